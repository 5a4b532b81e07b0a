"""Places put together: the verbs of people on a running process, on a state folder and on a cluster.

A composition root: opens and wires, and decides nothing. In a running process everything is open already; a command
opens a store when it first asks for something of it (`Place.opened`), so that a domain which cannot be opened is in the
way of no other.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from lapse.app.domains import ManagedOwnDomain, own_domain
from lapse.app.process import request_policy
from lapse.core.clock import UnixNs
from lapse.core.duration import SECOND
from lapse.domains import REGISTRY
from lapse.engine.verbs.contract import LoopView, SignalView
from lapse.engine.verbs.place import Caller, ProcessFacts
from lapse.engine.view import Moment
from lapse.history.api.kinds import HISTORY, RETENTION
from lapse.history.managed import ManagedRecords
from lapse.objects.holds.steering import Steering
from lapse.requests.api.kinds import OBJECT_KEEPER
from lapse.requests.controllers.caches import Caches
from lapse.requests.expiry import FinishedRequests
from lapse.requests.lifecycle.keeper import keepers_of
from lapse.requests.lifecycle.keepers import Keepers
from lapse.requests.managed import RequestObjects, managed_domains
from lapse.requests.schedules.retention import SupersededRuns
from lapse.workspaces.managed import ManagedWorkspaces

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from collections.abc import Set as AbstractSet
    from contextlib import AsyncExitStack

    from lapse.app.domains import OwnDomain
    from lapse.core.clock import Clock
    from lapse.engine.domain import ManagedDomain
    from lapse.engine.running.coordinator import Coordinator, LoopStatus
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.holds import HoldStore
    from lapse.history.service import Retention
    from lapse.objects.holds.cluster import Dependants
    from lapse.objects.port import HoldLookup, ObjectStore
    from lapse.objects.trash.moves import ObjectTrash
    from lapse.requests.service import Requests
    from lapse.settings import Settings
    from lapse.web.auth.tokens import TokenStore
    from lapse.workspaces.activity.port import Activity
    from lapse.workspaces.store.port import WorkspaceStore

    Domains = dict[str, ManagedDomain[Any]]
    Opening = Callable[[], Awaitable[ManagedDomain[Any]]]


class SharedObjects(TypedDict):
    """What all domains whose things are objects are built with."""

    store: ObjectStore
    holds: HoldLookup
    steering: Steering
    clock: Clock
    trash: ObjectTrash | None
    """Into which what is ended goes; None: nowhere."""


# --- domains ----------------------------------------------------------------------------------------------------------


def steering_of(store: ObjectStore, dependants: Dependants, clock: Clock) -> Steering:
    """Return what holds, releases and extends objects."""
    return Steering(store, dependants=dependants, followers=keepers_of(store), clock=clock)


def request_domains(requests: Requests, objects: SharedObjects) -> Domains:
    """Return requests, keepers and schedules of a running process, whose caches are filled."""
    shared = RequestObjects(
        **objects,
        caches=requests.caches,
        finished=requests.finished,
        keepers=requests.keepers,
        superseded=requests.superseded,
        policy=requests.policy,
        ready=requests.caches.wait_until_synced,
    )
    return {one.name: one for one in managed_domains(shared)}


@dataclass(frozen=True, kw_only=True)
class RequestsOfCommand:
    """Requests, keepers and schedules for one command; the caches are filled when a list of them is needed."""

    objects: SharedObjects
    settings: Settings
    stack: AsyncExitStack

    def domains(self) -> Domains:
        """Return them; nothing is read yet."""
        policy, store, clock = request_policy(self.settings), self.objects["store"], self.objects["clock"]
        caches = Caches(store, clock=clock)
        superseded = SupersededRuns(caches, policy=policy)
        shared = RequestObjects(
            **self.objects,
            caches=caches,
            finished=FinishedRequests(caches, policy=policy, clock=clock),
            keepers=Keepers(caches, direct=store, policy=policy, clock=clock),
            superseded=superseded,
            policy=policy,
            ready=_Once(partial(self._fill, caches, superseded)),
        )
        return {one.name: one for one in managed_domains(shared)}

    async def _fill(self, caches: Caches, superseded: SupersededRuns) -> None:
        filling = asyncio.create_task(caches.run(), name="lapse-request-caches")
        self.stack.push_async_callback(_cancelled, filling)
        await caches.prepare(OBJECT_KEEPER)
        superseded.look_at_all()


class _Once:
    """Does some work when it is first awaited."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._done: asyncio.Future[None] | None = None

    async def __call__(self) -> None:
        if self._done is None:
            self._done = asyncio.ensure_future(self._work())
        await self._done


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def record_domains(retention: Retention, objects: SharedObjects) -> Domains:
    """Return records, and what policies select."""
    return {name: ManagedRecords(retention, name, **objects) for name in (HISTORY, RETENTION)}


def workspace_domain(
    store: WorkspaceStore, activity: Activity | None, *, clock: Clock, settings: Settings
) -> ManagedWorkspaces:
    """Return workspaces; without ``activity`` nobody knows here who is connected."""
    return ManagedWorkspaces(
        store, activity, clock=clock, lease_seconds=settings.proxy_lease.seconds, trash_ttl=settings.trash_ttl
    )


def own_managed(domains: Sequence[OwnDomain], settings: Settings, holds: HoldStore, clock: Clock) -> Domains:
    """Return domains of other distributions that are swept, as people see them; built anew, beside those of sweeps."""
    built = {one.registration.name: own_domain(one.registration, settings, clock) for one in domains}
    return {name: ManagedOwnDomain(one, holds, clock=clock) for name, one in built.items() if one.section.enabled}


def own_openings(settings: Settings, holds: Callable[[], Awaitable[HoldStore]], clock: Clock) -> dict[str, Opening]:
    """Return what opens the domains of other distributions, each when it is needed."""

    async def opened(name: str) -> ManagedDomain[Any]:
        own: OwnDomain = own_domain(REGISTRY.get(name), settings, clock)
        return ManagedOwnDomain(own, await holds(), clock=clock)

    return {name: partial(opened, name) for name in REGISTRY.installed_names()}


def persons_of(tokens: TokenStore, settings: Settings, scope: str, domain: str | None) -> AbstractSet[str] | None:
    """Return who may do what a scope allows in a state folder: its user, and the persons who have tokens for it.

    None for what is in a database, which others may reach from other machines.
    """
    if domain is not None and settings.database_url and REGISTRY.get(domain).is_in_database:
        return None
    return {Caller.user().name, *(Caller.token(name).name for name in tokens.persons(scope))}


def process_facts(coordinator: Coordinator, metrics: Metrics, clock: Clock) -> Callable[[], ProcessFacts]:
    """Return what a running process tells of itself, from now on."""
    started = UnixNs(clock.wall_ns())

    def facts() -> ProcessFacts:
        signals = [SignalView(source, up) for source, up in sorted(metrics.signals.items())]
        now = clock.wall_ns()
        return ProcessFacts(coordinator.leading, started, [_loop(one, now) for one in coordinator.loops()], signals)

    return facts


def _loop(status: LoopStatus, now: int) -> LoopView:
    due = status.next_run_ns
    return LoopView(
        name=status.name,
        domain=status.domain,
        interval_seconds=status.interval,
        ticks=status.ticks,
        errors=status.errors,
        last_run_at=Moment.of(status.last_run_ns),
        last_success_at=Moment.of(status.last_success_ns),
        next_run_at=Moment.of(due),
        lag_seconds=None if due is None else round(max(0, now - due) / SECOND, 3),
        last_error=status.last_error,
    )
