"""Where commands work: the object store of the state folder, or a cluster; open for one command.

Commands are the same for both. Nothing has to run: what a command writes or freezes is read by whoever runs later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter

from lapse.cli.flags import Flags

if TYPE_CHECKING:
    from lapse.core.believed_clock import BelievedClock
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.clock_guard import ClockGuard, GuardedGate
    from lapse.engine.safety.freeze import GateStore
    from lapse.objects.port import ObjectStore
    from lapse.settings import LoadedSettings, Settings

T = TypeVar("T")
InCluster = Annotated[
    bool,
    Parameter(
        help="On the cluster that kubectl would use, instead of the state folder.", negative=(), show_default=False
    ),
]


@dataclass(frozen=True)
class Place:
    """An open store, and what belongs to it."""

    name: str
    """For messages."""
    store: ObjectStore
    loaded: LoadedSettings
    guard: ClockGuard
    journal: Journal
    freezes: GateStore
    """Where it is written what is frozen."""
    where_frozen: str
    """The same for messages."""
    is_cluster: bool

    @property
    def clock(self) -> BelievedClock:
        """What is decided by."""
        return self.guard.clock

    @property
    def settings(self) -> Settings:
        """What file, environment and flags say."""
        return self.loaded.settings

    def gate(self, metrics: Metrics, *, actor: str) -> GuardedGate:
        """Return what stops a command that ends things: freezes, budgets and the clock, as for whoever runs."""
        from lapse.app.process import deletion_budgets
        from lapse.domains import REGISTRY
        from lapse.engine.safety.clock_guard import GuardedGate
        from lapse.engine.safety.gate import SafetyGate
        from lapse.objects.config_map_gate import RUN

        gate = SafetyGate(
            self.freezes,
            budgets=deletion_budgets(self.settings),
            domains=REGISTRY.freezable(cluster=self.is_cluster),
            clock=self.clock,
            metrics=metrics,
            actor=actor,
            run=RUN if self.is_cluster else "lapse resume",
        )
        return GuardedGate(gate, self.guard)


def at_place(
    flags: Flags,
    work: Callable[[Place], Coroutine[Any, Any, T]],
    *,
    cluster: bool,
    rights: Callable[[Settings], str],
) -> T:
    """Do some work at the place that the flags name, and close it; ``rights`` are those that it needs on a cluster."""
    loaded = flags.load()
    return asyncio.run(
        _on_cluster(loaded, work, rights(loaded.settings))
        if cluster or flags.names_cluster
        else _in_folder(loaded, work)
    )


async def _in_folder(loaded: LoadedSettings, work: Callable[[Place], Coroutine[Any, Any, T]]) -> T:
    from lapse.app.process import deletion_budgets
    from lapse.app.state_folder import guard_of, open_gate_store
    from lapse.cli.desk import Desk, with_store
    from lapse.engine.journal.port import SQLiteJournal
    from lapse.requests.lifecycle.policy import TTLRule

    settings = loaded.settings

    async def at_desk(desk: Desk) -> T:
        return await work(
            Place(
                name=str(settings.state_dir),
                store=desk.store,
                loaded=loaded,
                guard=guard_of(desk.store, clock=desk.clock),
                journal=SQLiteJournal(desk.store.database),
                freezes=open_gate_store(desk.store, budgets=deletion_budgets(settings), actors=[who()]),
                where_frozen=str(settings.state_dir),
                is_cluster=False,
            )
        )

    return await with_store(settings.state_dir, TTLRule(settings.request_ttl), at_desk)


async def _on_cluster(loaded: LoadedSettings, work: Callable[[Place], Coroutine[Any, Any, T]], rights: str) -> T:
    from lapse.app.cluster import DefinitionsMissingError, gate_key, guard_on, in_plain_words, open_client
    from lapse.core.believed_clock import BelievedClock
    from lapse.core.clock import SystemClock
    from lapse.domains import REGISTRY, object_kinds
    from lapse.engine.journal.log import LogJournal
    from lapse.kube.errors import UnknownKindError
    from lapse.objects.config_map_gate import CONFIG_MAP, ConfigMapGateStore
    from lapse.objects.kubernetes import KubernetesStore

    machine, key, journal = SystemClock(), gate_key(loaded.settings), LogJournal()
    clock = BelievedClock(machine)
    client = open_client(loaded.settings, clock=machine)
    store = KubernetesStore(client, kinds=[*object_kinds(), CONFIG_MAP])
    freezes = ConfigMapGateStore(store, key, domains=REGISTRY.freezable(cluster=True), clock=clock, journal=journal)
    place = Place(
        name=client.config.cluster.place,
        store=store,
        loaded=loaded,
        guard=guard_on(client, freezes, clock=clock),
        journal=journal,
        freezes=freezes,
        where_frozen=f"the ConfigMap {key} of {client.config.cluster.place}",
        is_cluster=True,
    )
    try:
        with in_plain_words(client, rights=rights):
            try:
                return await work(place)
            except UnknownKindError as error:
                kind, version = error.details["kind"], error.details["api_version"]
                if (version, kind) not in {(one.api_version, one.kind) for one in object_kinds()}:
                    raise
                raise DefinitionsMissingError(place=place.name, kinds=f"{kind} ({version})") from error
    finally:
        await store.close()


def who() -> str:
    """Return how the journal names the person at the command line."""
    import getpass

    try:
        return f"cli ({getpass.getuser()})"
    except (KeyError, OSError):  # a container may run as a user that has no name
        return "cli"
