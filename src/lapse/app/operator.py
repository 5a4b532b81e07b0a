"""``lapse operator``: requests and retention on a Kubernetes cluster. A composition root, as ``lapse up`` is.

Every replica keeps its caches filled; one of them, the holder of a Lease, runs the controllers and the sweeps. There is
no database: requests, keepers, records, policies and holds are objects of the cluster, what is frozen stands in a
ConfigMap, and the journal is the log. Nothing is served but the probes. Ends as ``lapse up`` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict

from lapse.app.process import (
    DecidingLoop,
    NotSyncedError,
    believed_clock,
    deletion_budgets,
    probes_listener,
    request_policy,
    retention,
    stay,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence
    from contextlib import AsyncExitStack

    from lapse.core.believed_clock import BelievedClock
    from lapse.core.clock import Clock
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.coordinator import Coordinator, Loop, Service
    from lapse.engine.running.election import Leadership
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.clock_guard import GuardedGate
    from lapse.engine.safety.freeze import Notes
    from lapse.engine.safety.gate import Gate
    from lapse.history.service import Retention
    from lapse.kube.events.recorder import EventRecorder
    from lapse.kube.resources import Kind, ObjectKey
    from lapse.objects.kubernetes import KubernetesStore
    from lapse.objects.port import HoldLookup
    from lapse.requests.service import Requests
    from lapse.settings import LoadedSettings, Settings
    from lapse.web.server.listener import Endpoint

LEASE_SECONDS: Final = 15
"""How long another replica waits to lead after the leader has died without a word."""
_ANSWERED_SECONDS: Final = 10.0
"""How long an answer of the API server proves that it is there: two renewals of the lease may fail before."""


class _Shared(TypedDict):
    """What all domains are built with."""

    journal: Journal
    gate: Gate
    clock: Clock
    metrics: Metrics


def run(loaded: LoadedSettings) -> int:
    """Work until a signal comes."""
    return stay("lapse.operator", loaded, _Process.open)


@dataclass(frozen=True)
class _Process:
    """Everything that is open, and what is built from it."""

    settings: Settings
    metrics: Metrics
    store: KubernetesStore
    leases: KubernetesStore
    requests: Requests
    retention: Retention
    recorder: EventRecorder
    probes: Endpoint
    coordinator: Coordinator

    @classmethod
    async def open(cls, loaded: LoadedSettings, stack: AsyncExitStack) -> _Process:
        """Open it all, and look over the cluster; ``stack`` closes it, last opened first."""
        from lapse import __version__
        from lapse.app.cluster import hold_kinds, in_plain_words, look_over, open_client
        from lapse.app.webhooks import refuse_webhooks
        from lapse.core.clock import SystemClock
        from lapse.domains import object_kinds
        from lapse.engine.journal.log import LogJournal
        from lapse.engine.plans.approvals import loop_gate
        from lapse.engine.running.coordinator import Coordinator
        from lapse.engine.running.metrics import Metrics
        from lapse.kube.controller.lease import LEASE
        from lapse.kube.resources import ObjectKey
        from lapse.objects.kubernetes import KubernetesStore
        from lapse.web.server.listener import Endpoint

        settings, machine, metrics = loaded.settings, SystemClock(), Metrics(__version__)
        refuse_webhooks(settings)
        clock, kinds = believed_clock(settings, machine, metrics), object_kinds()
        probes = Endpoint(settings.probes_host, settings.probes_port, setting="probes")
        stack.callback(probes.close)
        store = KubernetesStore(open_client(settings, clock=machine), kinds=[*kinds, LEASE])
        stack.push_async_callback(store.close)
        lease = ObjectKey(settings.lease_namespace, settings.lease_name)
        with in_plain_words(store.client, rights="of the roles in deploy/base"):
            holding = await hold_kinds(store, settings)
        await look_over(store, lease, holding=holding, restores=settings.restore_executor)
        identity, journal = _identity(), LogJournal()
        recorder = await _recorder(store, lease, identity=identity, clock=clock, metrics=metrics)
        gate, kept = await _gate(store, settings, journal, stack, clock=clock, metrics=metrics)
        in_loops = loop_gate(gate, settings.act_by_plan)
        shared: _Shared = {"journal": journal, "gate": in_loops, "clock": clock, "metrics": metrics}
        requests = _requests(store, settings, shared, recorder=recorder, holding=holding)
        selected = KubernetesStore(open_client(settings, clock=machine, user=_policies_user(settings)), kinds=kinds)
        stack.push_async_callback(selected.close)
        records = retention(
            loaded,
            store,
            documents=(),  # on a cluster policies are objects, and whoever may make them makes them there
            holds=_holds_for_policies(requests.holds, selected),
            left_alone=[settings.lease_namespace],
            selected=selected,
            trash=requests.trash,
            **shared,
        )
        # A client of its own: a renewal must not wait for its turn behind the calls of a sweep.
        leases = KubernetesStore(open_client(settings, clock=machine))
        stack.push_async_callback(leases.close)
        leadership = _leadership(leases, lease, identity=identity, clock=machine)
        loops = _loops(requests, records, gate, notes=kept, settings=settings)
        coordinator = Coordinator(clock=clock, metrics=metrics, loops=loops, leadership=leadership)
        return cls(settings, metrics, store, leases, requests, records, recorder, probes, coordinator)

    async def run(self) -> None:
        """Work until the coordinator is told to stop."""
        import asyncio

        loop = asyncio.get_running_loop()
        listener = probes_listener(self, {"cluster": lambda: self.check(loop)})
        leading: list[Service] = [*self.requests.leader_services, *self.retention.leader_services, self.recorder]
        await self.coordinator.run([listener, *self.requests.services], leading)

    def check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raise a `LapseError` unless the API server answers and the caches are filled. Blocks, beside ``loop``.

        The election calls every few seconds, so it is nearly always known that the server answers; it is asked only
        when it is not.
        """
        import asyncio

        from lapse.web.server.probes import CHECK_SECONDS

        if not self.leases.client.answered_within(_ANSWERED_SECONDS):
            # Bounded, because a process that ends waits for its threads.
            asyncio.run_coroutine_threadsafe(self.leases.check(), loop).result(CHECK_SECONDS)
        if not self.requests.caches.synced:
            raise NotSyncedError

    def announce(self) -> None:
        """Tell where it works, and where its journal is."""
        from lapse.core.log import get_logger

        log = get_logger("lapse.operator")
        config = self.store.client.config
        if self.settings.retention_policies:
            log.warning("odd_setting", reason="retention_policies are for lapse up; on a cluster, kubectl apply them")
        log.info("journal_is_the_log", reason="no database is configured: its rows are the log events named journal")
        log.info(
            "listening",
            probes=self.probes.url,
            cluster=config.cluster.place,
            lease=f"{self.settings.lease_namespace}/{self.settings.lease_name}",
        )


def _policies_user(settings: Settings) -> str:
    from lapse.history.policy.rbac import account_user

    return account_user(settings.lease_namespace, settings.retention_account)


def _holds_for_policies(holds: HoldLookup, selected: KubernetesStore) -> HoldLookup:
    """Return what finds holds over what policies select: owners may be of kinds that only policies may read."""
    from lapse.objects.holds.cluster import ClusterHolds

    return holds.reading_also(selected) if isinstance(holds, ClusterHolds) else holds


def _identity() -> str:
    import socket

    from lapse.core.identity import owner_token

    return f"{socket.gethostname()}_{owner_token()}"


async def _recorder(
    store: KubernetesStore, lease: ObjectKey, *, identity: str, clock: Clock, metrics: Metrics
) -> EventRecorder:
    """Return who writes Events; what concerns no object that still exists is told on the Lease."""
    from lapse.engine.running.metrics import ErrorKind
    from lapse.kube.controller.lease import LEASE
    from lapse.kube.events.event import about
    from lapse.kube.events.recorder import EventRecorder
    from lapse.requests.expiry import DOMAIN

    reporter = about(LEASE, (await store.get(LEASE, lease)).metadata)
    return EventRecorder(
        store,
        reporter=reporter,
        instance=identity,
        clock=clock,
        dropped=lambda: metrics.failed(DOMAIN, ErrorKind.EVENT),
    )


async def _gate(
    store: KubernetesStore,
    settings: Settings,
    journal: Journal,
    stack: AsyncExitStack,
    *,
    clock: BelievedClock,
    metrics: Metrics,
) -> tuple[GuardedGate, Notes]:
    """Return what stops this process (freezes, budgets, a clock in doubt), and the notes beside it."""
    from lapse.app.cluster import gate_store_on, guard_on, policy_guard_on
    from lapse.app.domains import ACTOR
    from lapse.domains import REGISTRY
    from lapse.engine.safety.clock_guard import GuardedGate
    from lapse.engine.safety.gate import SafetyGate
    from lapse.objects.config_map_gate import RUN

    kept = gate_store_on(store, settings, clock=clock, journal=journal)
    gate = SafetyGate(
        kept,
        budgets=deletion_budgets(settings),
        domains=REGISTRY.freezable(cluster=True),
        clock=clock,
        metrics=metrics,
        actor=ACTOR,
        run=RUN,
    )
    stack.push_async_callback(gate.close)
    await gate.look()
    guard = guard_on(store.client, kept, clock=clock)
    # Before the controllers date anything; what is believed is written later, by the replica that leads.
    await guard.prepare()
    policies = policy_guard_on(kept, settings, journal=journal, clock=clock, metrics=metrics, actor=ACTOR)
    return GuardedGate(gate, guard, policies), kept


def _requests(
    store: KubernetesStore,
    settings: Settings,
    shared: _Shared,
    *,
    recorder: EventRecorder,
    holding: Sequence[Kind[Any]],
) -> Requests:
    from lapse.requests.controllers.base import STOCK
    from lapse.requests.controllers.provisioning import EventReports
    from lapse.requests.lifecycle.eventing_journal import EventingJournal
    from lapse.requests.service import Requests

    return Requests(
        store,
        policy=request_policy(settings),
        journal=EventingJournal(shared["journal"], recorder),
        gate=shared["gate"],
        metrics=shared["metrics"],
        clock=shared["clock"],
        conventions=STOCK,
        recorder=recorder,
        reports=EventReports(store.client),
        restore_executor=settings.restore_executor,
        hold_kinds=holding,
        trash_ttl=settings.trash_ttl,
        scheduled_manifests=settings.schedule_manifests == "admitted",
    )


def _loops(
    requests: Requests, records: Retention, gate: GuardedGate, *, notes: Notes, settings: Settings
) -> list[Loop]:
    from lapse.engine.safety.clock_guard import ClockLoop
    from lapse.requests.expiry import DOMAIN

    further = ClockLoop(gate, domain=DOMAIN), DecidingLoop(notes, settings, domain=DOMAIN)
    return [*requests.loops, requests.upkeep, *records.loops, *further]


def _leadership(store: KubernetesStore, lease: ObjectKey, *, identity: str, clock: Clock) -> Leadership:
    from lapse.engine.running.election import LeaseElection
    from lapse.kube.controller.lease import KubeLease

    return LeaseElection(
        KubeLease(store, lease, identity=identity, ttl_seconds=LEASE_SECONDS, clock=clock), clock=clock
    )
