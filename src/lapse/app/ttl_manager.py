"""``lapse ttl-manager``: the TTL manager of workspaces as a process of its own. A composition root, as ``lapse up`` is.

Any number of them may run against one database, beside any number of ``lapse up``: the one that leads, by a lease in
that database, looks for what is due. They change what is wanted and nothing else; whoever runs the workspaces makes it
true. The record (`lapse.app.record`) is that of ``lapse up``. Ends as ``lapse up`` does.

Not possible here: activity in the process itself. Nobody would ever be connected to this process, and everybody would
be taken for idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lapse.app.process import believed_clock, probes_listener, stay
from lapse.core.errors import UsageError

if TYPE_CHECKING:
    import asyncio
    from contextlib import AsyncExitStack

    from lapse.engine.running.coordinator import Coordinator
    from lapse.engine.running.metrics import Metrics
    from lapse.settings import LoadedSettings, Settings
    from lapse.web.server.listener import Endpoint
    from lapse.workspaces.store.port import WorkspaceStore


class ActivityMissingError(UsageError):
    """A TTL manager must know the connections: set activity_url (or --activity-url) to the Redis of the proxies."""


def run(loaded: LoadedSettings, *, dry_run: bool) -> int:
    """Tick until a signal comes; a dry run only writes to the journal what would be done."""
    if not loaded.settings.activity_url:
        raise ActivityMissingError
    return stay("lapse.ttl_manager", loaded, partial(_Process.open, dry_run=dry_run))


@dataclass(frozen=True)
class _Process:
    """Everything that is open, and what is built from it."""

    settings: Settings
    metrics: Metrics
    store: WorkspaceStore
    probes: Endpoint
    coordinator: Coordinator
    is_given_keys: bool
    """Whether a flag names a keys store, as it had to until this version."""

    @classmethod
    async def open(cls, loaded: LoadedSettings, stack: AsyncExitStack, *, dry_run: bool) -> _Process:
        """Open it all; ``stack`` closes it, last opened first."""
        from lapse import __version__
        from lapse.app import record as records
        from lapse.app.webhooks import Webhooks, check_webhooks
        from lapse.core.clock import SystemClock
        from lapse.engine.journal.lines import JournalLines
        from lapse.engine.plans.approvals import loop_gate
        from lapse.engine.running.coordinator import Coordinator
        from lapse.engine.running.metrics import Metrics
        from lapse.engine.safety.gate import GateLoop
        from lapse.web.server.listener import Endpoint
        from lapse.workspaces.counts import count_loop
        from lapse.workspaces.model import DOMAIN
        from lapse.workspaces.opening import open_activity
        from lapse.workspaces.ttl_manager import ttl_loop, ttl_sweeps

        settings, machine, metrics = loaded.settings, SystemClock(), Metrics(__version__)
        clock = believed_clock(settings, machine, metrics)
        probes = Endpoint(settings.probes_host, settings.probes_port, setting="probes")
        stack.callback(probes.close)
        check_webhooks(settings)
        webhooks = Webhooks(settings, stack, machine=machine, clock=clock, metrics=metrics)
        state = records.open_store(settings.state_dir, clock=clock)
        stack.push_async_callback(state.close)
        server = await records.open_server(settings, stack, upgrades=True)
        record = await records.open_shared_record(settings, state, server)
        store = await records.open_workspace_store(settings, server)
        stack.push_async_callback(store.close)
        activity = open_activity(settings.activity_url, clock=clock, lease_seconds=settings.proxy_lease.seconds)
        stack.push_async_callback(activity.close)
        guard = await record.guard(clock)
        policies = record.policy_guard(settings, state, clock=clock, metrics=metrics)
        gate = record.gate(guard, metrics=metrics, domains=[DOMAIN], policies=policies)
        stack.push_async_callback(gate.close)
        in_loops = loop_gate(gate, settings.act_by_plan)
        sweeps = ttl_sweeps(
            store, activity, record.journal, clock=clock, metrics=metrics, gate=in_loops, dry_run=dry_run
        )
        election = await records.workspace_election(settings, store, machine, stack)
        coordinator = Coordinator(
            clock=clock,
            metrics=metrics,
            loops=[
                ttl_loop(sweeps, interval=settings.ttl_manager_interval.seconds),
                GateLoop(gate, domain=DOMAIN),
                record.retention(settings, guard, domain=DOMAIN),
                count_loop(store, metrics),
                *await webhooks.of_database(record),
                *await JournalLines.open(record.journal, domain=DOMAIN),
            ],
            leadership=election or records.folder_election(state, machine),
        )
        is_given_keys = loaded.origins["keys_url"].layer == "flag"
        return cls(settings, metrics, store, probes, coordinator, is_given_keys)

    async def run(self) -> None:
        """Tick until the coordinator is told to stop."""
        import asyncio

        loop = asyncio.get_running_loop()
        listener = probes_listener(self, {"stores": lambda: self.check(loop)})
        await self.coordinator.run([listener])

    def check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raise a `LapseError` unless the store answers. Blocks, beside ``loop``.

        Activity is not asked: while it is away archives go on, and a metric tells.
        """
        import asyncio

        from lapse.web.server.probes import CHECK_SECONDS

        # Bounded, because a process that ends waits for its threads.
        asyncio.run_coroutine_threadsafe(self.store.check(), loop).result(CHECK_SECONDS)

    def announce(self) -> None:
        """Tell where it looks."""
        from lapse.core.log import get_logger
        from lapse.settings import show_value

        log = get_logger("lapse.ttl_manager")
        if self.is_given_keys:
            log.warning("odd_setting", reason="--keys-url is not used any more: who leads is decided in the database")
        log.info(
            "listening",
            probes=self.probes.url,
            workspaces=show_value(self.settings.workspaces_url),
            activity=show_value(self.settings.activity_url),
            interval=str(self.settings.ttl_manager_interval),
        )
