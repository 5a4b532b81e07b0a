"""Life of a process that stays, such as ``lapse up`` and ``lapse operator``, and what the settings say to each.

SIGTERM and SIGINT stop one in order: exit 0 within ten seconds, whatever clients do. SIGHUP does the same, unless the
caller has asked to ignore it (nohup); settings are read at the start only. A store that hangs while it is closed ends
the process by force, with exit 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from lapse.core.believed_clock import DRY_SECONDS
from lapse.core.errors import LapseError
from lapse.settings import deciding_values, with_deciding

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
    from contextlib import AsyncExitStack

    from lapse.core.believed_clock import BelievedClock
    from lapse.core.clock import Clock
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.coordinator import Coordinator
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.budget import Budgets
    from lapse.engine.safety.freeze import Notes
    from lapse.engine.safety.gate import Gate
    from lapse.history.api.kinds import RetentionPolicy
    from lapse.history.service import Retention
    from lapse.kube.resources import Json
    from lapse.objects.port import HoldLookup, ObjectStore, Reader
    from lapse.objects.trash.moves import ObjectTrash
    from lapse.requests.lifecycle.policy import RequestPolicy
    from lapse.settings import LoadedSettings, Settings
    from lapse.web.server.listener import Endpoint, Listener

_FORCE_SECONDS: Final = 9.0
"""After this a process that should end is ended, so that ten seconds are kept."""


_GARBAGE: Final = 10_000
"""So many new objects before the garbage collector looks at them; Python's own 700 is half a request."""


DECIDING: Final = "settings"
"""The note, beside what is frozen, with the settings that decide there."""


class NotSyncedError(LapseError):
    """The caches of the object store are still being filled."""


class DecidingUnreadableError(LapseError):
    """The settings that decide in {place} cannot be read; restart the process that runs there, which notes them."""


async def note_deciding(notes: Notes, settings: Settings) -> None:
    """Note what decides at a place: commands beside the process decide by that, not by their settings."""
    values = msgspec.json.encode(deciding_values(settings)).decode()
    if await notes.read_note(DECIDING) != values:
        await notes.write_note(DECIDING, values)


def decided_by(note: str | None, loaded: LoadedSettings, *, place: str) -> LoadedSettings:
    """Return settings as they decide at a place: as of the process that ran there last, if it has left a note."""
    if not note:
        return loaded
    try:
        return with_deciding(loaded, msgspec.json.decode(note, type=dict[str, str]))
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise DecidingUnreadableError(place=place) from error


class DecidingLoop:
    """A `lapse.engine.running.coordinator.Loop` that keeps the note of what decides as it is where this one leads."""

    name: Final = "settings"
    interval: Final = 60.0
    leader_only: Final = True
    of_engine: Final = True

    def __init__(self, notes: Notes, settings: Settings, *, domain: str) -> None:
        """Note ``settings``; failures are those of ``domain``."""
        self._notes, self._settings, self.domain = notes, settings, domain

    async def tick(self) -> float | None:
        """Look once, and write what differs."""
        await note_deciding(self._notes, self._settings)
        return None


def settle_memory() -> None:
    """Tell the garbage collector that what is there now stays, and to look less often for what is not.

    Modules and settings are most of what it would walk over again and again. What lapses is freed without it: hardly
    anything of ours refers to itself.
    """
    import gc

    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE, *gc.get_threshold()[1:])


class Process(Protocol):
    """Everything that is open, and what is built from it."""

    @property
    def settings(self) -> Settings:
        """What it was started with."""
        ...

    @property
    def metrics(self) -> Metrics:
        """Its metrics, which the probes serve."""
        ...

    @property
    def probes(self) -> Endpoint:
        """Where the probes listen."""
        ...

    @property
    def coordinator(self) -> Coordinator:
        """Who is told to stop."""
        ...

    def announce(self) -> None:
        """Tell where it listens."""
        ...

    async def run(self) -> None:
        """Work until the coordinator is told to stop."""
        ...


def stay(
    name: str, loaded: LoadedSettings, start: Callable[[LoadedSettings, AsyncExitStack], Awaitable[Process]]
) -> int:
    """Run what ``start`` opens until a signal comes, with its log under ``name``; the stack closes what was opened."""
    import uvloop

    from lapse.core.log import get_logger
    from lapse.engine.running.logs import configure_logs
    from lapse.files.descriptors import raise_limit

    configure_logs(form=loaded.settings.log_format, level=loaded.settings.log_level)
    log = get_logger(name)
    raise_limit()
    for warning in loaded.warnings:
        log.warning("odd_setting", reason=warning)
    uvloop.run(_run(loaded, start))
    log.info("stopped")
    return 0


async def _run(loaded: LoadedSettings, start: Callable[[LoadedSettings, AsyncExitStack], Awaitable[Process]]) -> None:
    from contextlib import AsyncExitStack

    async with AsyncExitStack() as stack:
        process = await start(loaded, stack)
        stop_on_signals(process.coordinator)
        process.announce()
        settle_memory()
        await process.run()


def believed_clock(settings: Settings, machine: Clock, metrics: Metrics) -> BelievedClock:
    """Return what domains decide by; where a time that nobody knows has passed, all is dry for one interval."""
    from lapse.core.believed_clock import BelievedClock

    clock = BelievedClock(machine, dry_seconds=dry_seconds(settings))
    metrics.watch_clock(clock.in_doubt)
    return clock


def dry_seconds(settings: Settings) -> float:
    """Return for how long policies are dry that are new on a store: the interval of passes, an hour where none is."""
    interval = settings.retention_interval
    return DRY_SECONDS if interval.is_never else interval.seconds


def request_policy(settings: Settings) -> RequestPolicy:
    """Return what the settings say about requests."""
    from lapse.requests.lifecycle.policy import RequestPolicy

    return RequestPolicy(
        request_ttl=settings.request_ttl,
        request_ttl_mode=settings.request_ttl_mode,
        request_deadline=settings.request_deadline,
        keeper_mode=settings.keeper_mode,
        keeper_ttl=settings.keeper_ttl,
        artifact_ttl_max=settings.artifact_ttl_max,
        restore_ownership=settings.restore_ownership,
    )


def history_policy_document(settings: Settings) -> RetentionPolicy:
    """Return what the settings say about records."""
    from lapse.history.policy.default_policy import history_document

    return history_document(
        namespace=settings.history_namespace,
        ttl=settings.history_ttl,
        limit=settings.history_retention_limit,
        keep_last_success=settings.history_keep_last_success,
    )


def retention(  # noqa: PLR0913 - as many as the domain takes, each by its name
    loaded: LoadedSettings,
    store: ObjectStore,
    *,
    documents: Sequence[Json],
    journal: Journal,
    metrics: Metrics,
    holds: HoldLookup,
    gate: Gate,
    clock: Clock,
    left_alone: Collection[str] = (),
    direct: Reader | None = None,
    selected: ObjectStore | None = None,
    trash: ObjectTrash | None = None,
    actor: str = "lapse",
) -> Retention:
    """Return what ends records and what policies select; ``left_alone`` are namespaces beside the system's own."""
    from lapse.history.retention.listing import LEFT_ALONE
    from lapse.history.service import Retention

    return Retention(
        store,
        history=history_policy_document(loaded.settings),
        documents=documents,
        journal=journal,
        metrics=metrics,
        holds=holds,
        clock=clock,
        interval=loaded.settings.retention_interval,
        gate=gate,
        left_alone={*LEFT_ALONE, *left_alone},
        history_ttl_is_default=loaded.origins["history_ttl"].layer == "default",
        direct=direct,
        selected=selected,
        trash=trash,
        actor=actor,
    )


def deletion_budgets(settings: Settings) -> Budgets:
    """Return what the settings say about how much may be ended."""
    from lapse.app.domains import section_of
    from lapse.domains import REGISTRY
    from lapse.engine.safety.budget import Budgets

    own = {one.name: getattr(settings, one.budget_setting) for one in REGISTRY.built_in if one.budget_setting}
    others = {name: section_of(settings, name).deletion_budget for name in REGISTRY.installed_names()}
    return Budgets(settings.deletion_budget, own | others)


def probes_listener(process: Process, checks: Mapping[str, Callable[[], None]]) -> Listener:
    """Return the service that answers the probes; each of ``checks`` raises an error unless its part is ready."""
    from lapse.web.server.connections import ConnectionLimits
    from lapse.web.server.listener import Listener
    from lapse.web.server.probes import Readiness, create_probes
    from lapse.web.server.security import AllowedHosts

    settings = process.settings
    app = create_probes(
        readiness=Readiness(checks),
        stopping=lambda: process.coordinator.stopping,
        metrics=process.metrics,
        hosts=AllowedHosts(settings.probes_host, process.probes.port, settings.http_allowed_hosts),
    )
    # Beside those of the API and the proxy: whoever fills these does not make the process look dead.
    return Listener("probes", app, process.probes, limits=ConnectionLimits(connections=128, connections_per_peer=128))


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
