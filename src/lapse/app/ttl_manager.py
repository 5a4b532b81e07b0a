"""``lapse ttl-manager``: the TTL manager of workspaces as a process of its own. A composition root, as ``lapse up`` is.

Any number of them may run against one database: the one that leads, by a lease in the keys store, looks for what is
due. They change what is wanted and nothing else; whoever runs the workspaces makes it true. Journal, freezes and what
was spent of the deletion budgets stand beside the workspaces on PostgreSQL, so all machines share them; for workspaces
in a file, in the state folder. Ends as ``lapse up`` does.

Not possible here: activity in the process itself. Nobody would ever be connected to this process, and everybody would
be taken for idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from lapse.app.process import believed_clock, deletion_budgets, probes_listener, stay
from lapse.core.errors import UsageError

if TYPE_CHECKING:
    import asyncio
    from contextlib import AsyncExitStack

    from lapse.engine.journal.port import Journal
    from lapse.engine.running.coordinator import Coordinator
    from lapse.engine.running.metrics import Metrics
    from lapse.keys.aio import AsyncKeys
    from lapse.settings import LoadedSettings, Settings
    from lapse.web.server.listener import Endpoint
    from lapse.workspaces.store.port import WorkspaceStore

LEADER: Final = "lapse-ttl-manager"
_LEADER_SECONDS: Final = 15
"""How long another process waits to lead after this one has died without a word."""

_OF_ONE_MACHINE: Final = ("file:", "memory:")


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
    keys: AsyncKeys
    store: WorkspaceStore
    probes: Endpoint
    coordinator: Coordinator

    @classmethod
    async def open(cls, loaded: LoadedSettings, stack: AsyncExitStack, *, dry_run: bool) -> _Process:
        """Open it all; ``stack`` closes it, last opened first."""
        from lapse import __version__
        from lapse.app.state_folder import gate_of, guard_of, open_store
        from lapse.app.workspace_record import ServerRecord
        from lapse.app.workspaces import time_of
        from lapse.core.clock import SystemClock
        from lapse.engine.journal.port import SQLiteJournal
        from lapse.engine.running.coordinator import Coordinator
        from lapse.engine.running.metrics import Metrics
        from lapse.engine.safety.gate import GateLoop
        from lapse.keys.aio import open_keys_async
        from lapse.keys.election import Election
        from lapse.web.server.listener import Endpoint
        from lapse.workspaces.model import DOMAIN
        from lapse.workspaces.opening import open_activity, open_workspaces
        from lapse.workspaces.ttl_manager import ttl_loop, ttl_sweeps

        settings, machine, metrics = loaded.settings, SystemClock(), Metrics(__version__)
        clock = believed_clock(settings, machine)
        probes = Endpoint(settings.probes_host, settings.probes_port, setting="probes")
        stack.callback(probes.close)
        # First, because it makes the folder that the keys may be in.
        state = open_store(settings.state_dir, clock=clock)
        stack.push_async_callback(state.close)
        keys = await stack.enter_async_context(open_keys_async(settings.keys_url, clock=machine, sweep=False))
        store = await open_workspaces(settings.workspaces_url)
        stack.push_async_callback(store.close)
        activity = open_activity(settings.activity_url, clock=clock, lease_seconds=settings.proxy_lease.seconds)
        stack.push_async_callback(activity.close)
        record = ServerRecord.of(store, settings)
        guard = guard_of(state, clock=clock, sources=time_of(store))
        if record is None:
            journal: Journal = SQLiteJournal(state.database)
            gate = gate_of(state, budgets=deletion_budgets(settings), guard=guard, metrics=metrics)
        else:
            journal, gate = record.journal, record.gate(settings, guard=guard, metrics=metrics)
        sweeps = ttl_sweeps(store, activity, journal, clock=clock, metrics=metrics, gate=gate, dry_run=dry_run)
        loop = ttl_loop(sweeps, interval=settings.ttl_manager_interval.seconds)
        coordinator = Coordinator(
            clock=clock,
            metrics=metrics,
            loops=[loop, GateLoop(gate, domain=DOMAIN)],
            leadership=Election(keys, LEADER, ttl_seconds=_LEADER_SECONDS, clock=machine),
        )
        return cls(settings, metrics, keys, store, probes, coordinator)

    async def run(self) -> None:
        """Tick until the coordinator is told to stop."""
        import asyncio

        loop = asyncio.get_running_loop()
        listener = probes_listener(self, {"stores": lambda: self.check(loop)})
        await self.coordinator.run([listener])

    def check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raise a `LapseError` unless the stores answer. Blocks, beside ``loop``.

        Activity is not among them: while it is away archives go on, and a metric tells.
        """
        import asyncio

        from lapse.web.server.probes import CHECK_SECONDS

        self.keys.backend.check()
        # Bounded, because a process that ends waits for its threads.
        asyncio.run_coroutine_threadsafe(self.store.check(), loop).result(CHECK_SECONDS)

    def announce(self) -> None:
        """Tell where it looks."""
        from lapse.core.log import get_logger
        from lapse.settings import show_value

        log = get_logger("lapse.ttl_manager")
        if self.settings.workspaces_url.startswith("postgres") and self.settings.keys_url.startswith(_OF_ONE_MACHINE):
            log.warning(
                "odd_setting", reason="keys_url is not shared, so a TTL manager on another machine leads as well"
            )
        log.info(
            "listening",
            probes=self.probes.url,
            workspaces=show_value(self.settings.workspaces_url),
            activity=show_value(self.settings.activity_url),
            interval=str(self.settings.ttl_manager_interval),
        )
