"""``lapse operator``: the requests domain on a Kubernetes cluster. A composition root, as ``lapse up`` is.

Every replica keeps its caches filled; one of them, the holder of a Lease, runs the controllers and the sweeps. There is
no database: requests, keepers and holds are objects of the cluster, and the journal is the log. Nothing is served but
the probes. Ends as ``lapse up`` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lapse.cli.flags import NO_OPERATOR_FLAGS, OperatorFlags

if TYPE_CHECKING:
    import asyncio
    from contextlib import AsyncExitStack

    from lapse.core.clock import Clock
    from lapse.engine.coordinator import Coordinator
    from lapse.engine.leadership import Leadership
    from lapse.engine.metrics import Metrics
    from lapse.kube.resources import ObjectKey
    from lapse.objects.kubernetes import KubernetesStore
    from lapse.requests.service import Requests
    from lapse.settings import Loaded, Settings
    from lapse.web.listener import Endpoint

LEASE_SECONDS: Final = 15
"""How long another replica waits to lead after the leader has died without a word."""


def operator(flags: OperatorFlags = NO_OPERATOR_FLAGS) -> int:
    """Carry out requests on a Kubernetes cluster, and end what has lapsed there.

    Every setting can also stand in lapse.toml or in the environment; lapse config show tells which one counts.
    """
    import asyncio

    from lapse.core.log import get_logger
    from lapse.engine.logs import configure_logs

    loaded = flags.load()
    configure_logs(form=loaded.settings.log_format, level=loaded.settings.log_level)
    log = get_logger("lapse.operator")
    for warning in loaded.warnings:
        log.warning("odd_setting", reason=warning)
    asyncio.run(_run(loaded))
    log.info("stopped")
    return 0


async def _run(loaded: Loaded) -> None:
    from contextlib import AsyncExitStack

    from lapse.cli.process import settle_memory, stop_on_signals

    async with AsyncExitStack() as stack:
        process = await _Process.open(loaded.settings, stack)
        stop_on_signals(process.coordinator)
        process.announce()
        settle_memory()
        await process.run()


@dataclass(frozen=True)
class _Process:
    """Everything that is open, and what is built from it."""

    settings: Settings
    metrics: Metrics
    store: KubernetesStore
    requests: Requests
    probes: Endpoint
    coordinator: Coordinator

    @classmethod
    async def open(cls, settings: Settings, stack: AsyncExitStack) -> _Process:
        """Open it all, and look over the cluster; ``stack`` closes it, last opened first."""
        from lapse import __version__
        from lapse.cli.cluster import look_over, open_client
        from lapse.cli.process import request_policy
        from lapse.core.clock import SystemClock
        from lapse.engine.coordinator import Coordinator
        from lapse.engine.log_journal import LogJournal
        from lapse.engine.metrics import Metrics
        from lapse.kube.lease import LEASE
        from lapse.kube.resources import ObjectKey
        from lapse.objects.kubernetes import KubernetesStore
        from lapse.requests.api.upstream import ALL_KINDS
        from lapse.requests.conventions import STOCK
        from lapse.requests.service import Requests
        from lapse.web.listener import Endpoint

        clock, metrics = SystemClock(), Metrics(__version__)
        probes = Endpoint(settings.probes_host, settings.probes_port, setting="probes")
        stack.callback(probes.close)
        store = KubernetesStore(open_client(settings, clock=clock), kinds=[*ALL_KINDS, LEASE])
        stack.push_async_callback(store.close)
        lease = ObjectKey(settings.lease_namespace, settings.lease_name)
        await look_over(store, lease)
        requests = Requests(
            store,
            policy=request_policy(settings),
            journal=LogJournal(),
            metrics=metrics,
            clock=clock,
            conventions=STOCK,
        )
        # A client of its own: a renewal must not wait for its turn behind the calls of a sweep.
        leases = KubernetesStore(open_client(settings, clock=clock))
        stack.push_async_callback(leases.close)
        leadership = _leadership(leases, lease, clock)
        coordinator = Coordinator(clock=clock, metrics=metrics, loops=requests.loops, leadership=leadership)
        return cls(settings, metrics, store, requests, probes, coordinator)

    async def run(self) -> None:
        """Work until the coordinator is told to stop."""
        import asyncio

        from lapse.cli.process import probes_listener
        from lapse.web.probes import Readiness

        loop = asyncio.get_running_loop()
        listener = probes_listener(
            self.probes,
            readiness=Readiness(lambda: self.check(loop)),
            settings=self.settings,
            coordinator=self.coordinator,
            metrics=self.metrics,
        )
        await self.coordinator.run([listener, *self.requests.services], self.requests.leader_services)

    def check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raise a `LapseError` unless the API server answers and the caches are filled. Blocks, beside ``loop``."""
        import asyncio

        from lapse.cli.process import NotSyncedError
        from lapse.web.probes import CHECK_SECONDS

        # Bounded, because a process that ends waits for its threads.
        asyncio.run_coroutine_threadsafe(self.store.check(), loop).result(CHECK_SECONDS)
        if not self.requests.caches.synced:
            raise NotSyncedError

    def announce(self) -> None:
        """Tell where it works, and where its journal is."""
        from lapse.core.log import get_logger

        log = get_logger("lapse.operator")
        config = self.store.client.config
        log.info("journal_is_the_log", reason="no database is configured: rows are the events named journal")
        log.info(
            "listening",
            probes=self.probes.url,
            cluster=config.cluster.place,
            lease=f"{self.settings.lease_namespace}/{self.settings.lease_name}",
        )


def _leadership(store: KubernetesStore, lease: ObjectKey, clock: Clock) -> Leadership:
    import socket

    from lapse.core.identity import owner_token
    from lapse.engine.campaign import Campaign
    from lapse.kube.lease import KubeLease

    identity = f"{socket.gethostname()}_{owner_token()}"
    return Campaign(KubeLease(store, lease, identity=identity, ttl_seconds=LEASE_SECONDS, clock=clock), clock=clock)
