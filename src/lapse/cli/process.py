"""What the processes that stay, ``lapse up`` and ``lapse operator``, have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.core.errors import LapseError

if TYPE_CHECKING:
    from lapse.engine.coordinator import Coordinator
    from lapse.engine.metrics import Metrics
    from lapse.requests.policy import Policy
    from lapse.settings import Settings
    from lapse.web.listener import Endpoint, Listener
    from lapse.web.probes import Readiness

_FORCE_SECONDS: Final = 9.0
"""After this a process that should end is ended, so that ten seconds are kept."""


_GARBAGE: Final = 10_000
"""So many new objects before the garbage collector looks at them; Python's own 700 is half a request."""


class NotSyncedError(LapseError):
    """The caches of the object store are still being filled."""


def settle_memory() -> None:
    """Tell the garbage collector that what is there now stays, and to look less often for what is not.

    Modules and settings are most of what it would walk over again and again. What lapses is freed without it: hardly
    anything of ours refers to itself.
    """
    import gc

    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE, *gc.get_threshold()[1:])


def request_policy(settings: Settings) -> Policy:
    """Return what the settings say about requests."""
    from lapse.requests.policy import Policy

    return Policy(
        request_ttl=settings.request_ttl,
        request_ttl_mode=settings.request_ttl_mode,
        request_deadline=settings.request_deadline,
        keeper_mode=settings.keeper_mode,
        keeper_ttl=settings.keeper_ttl,
        restore_ownership=settings.restore_ownership,
    )


def probes_listener(
    endpoint: Endpoint, *, readiness: Readiness, settings: Settings, coordinator: Coordinator, metrics: Metrics
) -> Listener:
    """Return the service that answers the probes."""
    from lapse.web.listener import Listener
    from lapse.web.probes import create_probes
    from lapse.web.security import AllowedHosts

    hosts = AllowedHosts(settings.probes_host, endpoint.port, settings.http_allowed_hosts)
    app = create_probes(readiness=readiness, stopping=lambda: coordinator.stopping, metrics=metrics, hosts=hosts)
    return Listener("probes", app, endpoint)


def stop_on_signals(coordinator: Coordinator) -> None:
    """Let SIGTERM, SIGINT and, unless it is ignored, SIGHUP end the process in order, or else by force."""
    import asyncio
    import os
    import signal
    from threading import Timer

    def stop() -> None:
        # A thread of its own: it must work when the event loop does not.
        force = Timer(_FORCE_SECONDS, os._exit, [1])
        force.daemon = True
        force.start()
        coordinator.stop()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, stop)
