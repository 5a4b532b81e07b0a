"""Composition of the requests domain: its controllers and sweeps, and what wakes each of them.

The caches run everywhere; controllers and sweeps run where this process leads. Everything is level-triggered: an event
only says where to look, and a lost event is made up for by the backstop of the controller.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lapse.core.clock import UnixNs
from lapse.core.duration import NEVER
from lapse.core.jitter import Chance, chance
from lapse.engine.executor import Executor
from lapse.engine.running.metrics import ErrorKind
from lapse.engine.safety.gate import Gate, OpenGate
from lapse.engine.safety.holds import hold_of
from lapse.engine.sweep import Sweep, SweepLoop
from lapse.kube.controller.controller import Controller
from lapse.kube.controller.workqueue import WorkQueue
from lapse.kube.errors import ConflictError
from lapse.kube.events.event import NO_RECORDER
from lapse.kube.resources import ObjectKey
from lapse.objects.holds.cluster import ClusterHolds, Dependants
from lapse.objects.holds.passed_on import hold_marks
from lapse.objects.holds.steering import Steering
from lapse.objects.holds.upkeep import HoldUpkeep
from lapse.objects.port import HoldLookup
from lapse.objects.target import ObjectTarget
from lapse.requests.addresses import keeper_name
from lapse.requests.api.kinds import (
    CAPTURE_SCHEDULE,
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    OBJECT_KEEPER,
    REQUEST_KINDS,
    SCHEDULE,
    VOLUME_CAPTURE_REQUEST,
    VOLUME_RESTORE_REQUEST,
)
from lapse.requests.api.upstream import (
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    VOLUME_SNAPSHOT,
    VOLUME_SNAPSHOT_CONTENT,
)
from lapse.requests.bridge.executor import Bridge
from lapse.requests.bridge.wakes import SOURCE, source_of, wake_bridges
from lapse.requests.controllers.base import PLAIN
from lapse.requests.controllers.caches import Caches
from lapse.requests.controllers.capture import SnapshotNudge, VolumeCapture
from lapse.requests.controllers.claims import RESTORED, filled_for, wanted_claim
from lapse.requests.controllers.detach import Detach
from lapse.requests.controllers.finalise import Finaliser
from lapse.requests.controllers.manifests import ManifestCapture
from lapse.requests.controllers.provisioning import NO_REPORTS
from lapse.requests.controllers.restore import RestoreNotes, VolumeRestore
from lapse.requests.expiry import DOMAIN, AnnotationTTL, FinishedRequests
from lapse.requests.lifecycle.keeper import FOLLOWS, KeeperController, follow_key, followed_by, keepers_of
from lapse.requests.lifecycle.keepers import Keepers
from lapse.requests.lifecycle.policy import RequestPolicy, RestoreExecutor, TTLMode
from lapse.requests.registration import REQUESTS
from lapse.requests.schedules.controller import RUNS_OF, ScheduleController, runs_of
from lapse.requests.schedules.retention import SupersededRuns
from lapse.requests.schedules.runs import Runs
from lapse.requests.trash import trash_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from lapse.core.clock import Clock
    from lapse.core.duration import Duration
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.holds import Hold
    from lapse.kube.controller.informer import Informer
    from lapse.kube.events.event import Recorder
    from lapse.kube.resources import Kind, Object, OwnerReference
    from lapse.objects.port import ObjectStore, Reader
    from lapse.requests.api.kinds import ObjectKeeper, VolumeCaptureRequest
    from lapse.requests.controllers.base import Conventions
    from lapse.requests.controllers.finalise import Request
    from lapse.requests.controllers.provisioning import ClaimReports

ACTOR: Final = "lapse"
"""What can be frozen, and has a deletion budget."""
_OPEN_GATE: Final = OpenGate()
SCAN_INTERVAL_SECONDS: Final = 60.0
"""How long a sweep sleeps at the most; it is woken by the next deadline."""
_CLAIM: Final = "claim"
_KEEPER: Final = "keeper"


class CacheService:
    """A service of the coordinator that keeps the caches filled."""

    name = "request-caches"

    def __init__(self, caches: Caches) -> None:
        """Fill ``caches``."""
        self._caches = caches

    async def run(self, stopping: asyncio.Event) -> None:
        """See `lapse.engine.running.coordinator.Service`."""
        filling = asyncio.create_task(self._caches.run(), name="lapse-request-caches")
        waiting = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({filling, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (filling, waiting):
                task.cancel()
            await asyncio.wait({filling, waiting})
        if not stopping.is_set():
            filling.result()


class ControllerService:
    """A service of the coordinator that reconciles one kind, once the caches know everything."""

    def __init__(self, controller: Controller[Any], caches: Caches) -> None:
        """Run ``controller``."""
        self.name = controller.name
        self._controller, self._caches = controller, caches

    async def run(self, stopping: asyncio.Event) -> None:
        """See `lapse.engine.running.coordinator.Service`."""
        synced = asyncio.create_task(self._caches.wait_until_synced())
        stopped = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({synced, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (synced, stopped):
                task.cancel()
        if not stopping.is_set():
            await self._controller.run(stopping)


class Requests:
    """Everything that runs for requests on one object store."""

    def __init__(  # noqa: PLR0913 - all of them named, one per dependency
        self,
        store: ObjectStore,
        *,
        policy: RequestPolicy,
        journal: Journal,
        metrics: Metrics,
        clock: Clock,
        direct: Reader | None = None,
        conventions: Conventions = PLAIN,
        recorder: Recorder = NO_RECORDER,
        reports: ClaimReports = NO_REPORTS,
        restore_executor: RestoreExecutor = RestoreExecutor.LOCAL,
        dry_run: bool = False,
        gate: Gate = _OPEN_GATE,
        hold_kinds: Collection[Kind[Any]] = (),
        trash_ttl: Duration = NEVER,
        scheduled_manifests: bool = True,
        chance: Chance = chance,
    ) -> None:
        """Put it together; nothing runs yet. ``direct`` reads configuration: the store itself unless said otherwise.

        A store that cannot tell by itself what is held is watched: our own kinds, and ``hold_kinds``. ``recorder`` is
        told what people look for, ``reports`` knows what provisioners say beside their objects. ``restore_executor``
        makes the claims of restores. What is ended can be brought back for ``trash_ttl``. Whether schedules may capture
        manifests, which are read with our rights and not with those of an author, ``scheduled_manifests`` says.
        """
        self.store, self.policy, self._clock, self._metrics = store, policy, clock, metrics
        self._restore_executor = restore_executor
        also = (VOLUME_SNAPSHOT,) if restore_executor is RestoreExecutor.BRIDGE else ()
        self.caches = Caches(store, clock=clock, also=also, hold_kinds=hold_kinds)
        reader = store if direct is None else direct
        self.holds: HoldLookup = store if isinstance(store, HoldLookup) else ClusterHolds(reader, self.caches)
        dependants: Dependants = store if isinstance(store, Dependants) else self.caches
        self.trash = trash_of(store, trash_ttl, dependants=dependants, clock=clock)
        self.executor = Executor(
            ObjectTarget(store, self.holds, trash=self.trash),
            journal,
            clock=clock,
            metrics=metrics,
            actor=ACTOR,
            dry_run=dry_run,
            gate=gate,
        )
        self.keepers = Keepers(self.caches, direct=reader, policy=policy, clock=clock)
        self.finished = FinishedRequests(self.caches, policy=policy, clock=clock)
        self.superseded = SupersededRuns(self.caches, policy=policy)
        self.runs = Runs(self.caches, manifests=scheduled_manifests)
        metrics.expect_sweep(DOMAIN, reasons=REQUESTS.reasons())
        make = partial(Sweep, executor=self.executor, journal=journal, clock=clock, metrics=metrics)
        self.loops = [_loop(make(self.keepers), "keepers", self.keepers)]
        if policy.request_ttl_mode is TTLMode.SCANNER:
            self.loops.append(_loop(make(self.finished), "request-ttl", self.finished))
        self.loops.append(_loop(make(self.superseded), "schedules", self.superseded))
        self.steering = Steering(store, dependants=self.caches, followers=keepers_of(store), clock=clock)
        self.upkeep = HoldUpkeep(reader, self.steering, dependants=self.caches, clock=clock, domain=DOMAIN)
        self._build(reader, conventions, recorder=recorder, reports=reports, chance=chance)
        self._wire()

    def _build(
        self, direct: Reader, conventions: Conventions, *, recorder: Recorder, reports: ClaimReports, chance: Chance
    ) -> None:
        store, policy, clock, caches = self.store, self.policy, self._clock, self.caches
        common: dict[str, Any] = {
            "store": store, "direct": direct, "caches": caches, "policy": policy, "clock": clock,
            "recorder": recorder,
        }  # fmt: skip
        ttl = None
        if policy.request_ttl_mode is TTLMode.ANNOTATION:
            finaliser = Finaliser(store, policy=policy, clock=clock, recorder=recorder)
            ttl = AnnotationTTL(
                self.finished,
                executor=self.executor,
                finaliser=finaliser,
                policy=policy,
                clock=clock,
                chance=chance,
            )
        detach = Detach(executor=self.executor, **common)
        self.capture = VolumeCapture(detach=detach, runs=self.runs, conventions=conventions, ttl=ttl, **common)
        self._notes = RestoreNotes()
        self.restore = VolumeRestore(
            executor=self._restore_executor, notes=self._notes, reports=reports, ttl=ttl, **common
        )
        self.manifests = ManifestCapture(runs=self.runs, ttl=ttl, **common)
        self.keeper = KeeperController(store=store, direct=direct, caches=caches, keepers=self.keepers, clock=clock)
        self.snapshot_nudge = SnapshotNudge(store=store, caches=caches, clock=clock)
        self.schedules = ScheduleController(
            store=store, caches=caches, runs=self.runs, superseded=self.superseded, clock=clock
        )
        self._queues: dict[Kind[Any], WorkQueue[ObjectKey]] = {}
        self.controllers: list[Controller[Any]] = []
        for kind, one in (
            (VOLUME_CAPTURE_REQUEST, self.capture),
            (VOLUME_RESTORE_REQUEST, self.restore),
            (MANIFEST_CAPTURE_REQUEST, self.manifests),
            (OBJECT_KEEPER, self.keeper),
            (VOLUME_SNAPSHOT_CONTENT, self.snapshot_nudge),
            (CAPTURE_SCHEDULE, self.schedules),
        ):
            queue: WorkQueue[ObjectKey] = WorkQueue(clock, chance=chance)
            self._queues[kind] = queue
            self.controllers.append(Controller(kind.plural, one.reconcile, queue=queue, on_error=self._count_error))

        if self._restore_executor is RestoreExecutor.BRIDGE:
            bridges: WorkQueue[str] = WorkQueue(clock, chance=chance)
            restores = self._queues[VOLUME_RESTORE_REQUEST]
            bridge = Bridge(
                executor=self.executor, conventions=conventions, notes=self._notes, tell=restores.add, **common
            )
            self.controllers.append(Controller("restores", bridge.reconcile, queue=bridges, on_error=self._count_error))
            wake_bridges(caches, bridges)

    def _count_error(self, error: Exception) -> None:
        if not isinstance(error, ConflictError):  # somebody else was quicker: it is looked at again
            self._metrics.failed(DOMAIN, ErrorKind.RECONCILE)

    # --- what wakes which -------------------------------------------------------------------------------------------

    def _wire(self) -> None:
        captures, restores = self.caches.of(VOLUME_CAPTURE_REQUEST), self.caches.of(VOLUME_RESTORE_REQUEST)
        captures.index(_CLAIM, _target)
        captures.index(_KEEPER, lambda request: [keeper_name(VOLUME_CAPTURE_REQUEST.short, request.metadata.uid)])
        restores.index(_CLAIM, lambda request: [str(wanted_claim(request))])
        self.caches.of(OBJECT_KEEPER).subscribe(self._keeper_changed)
        for runs in (VOLUME_CAPTURE_REQUEST, MANIFEST_CAPTURE_REQUEST):
            cache: Informer[Any] = self.caches.of(runs)
            cache.index(RUNS_OF, runs_of)
            cache.subscribe(self._run_changed)
        self.caches.of(OBJECT_KEEPER).subscribe(self._kept_run_changed)
        artifacts: tuple[Kind[Any], ...] = (VOLUME_SNAPSHOT_CONTENT, MANIFEST_CHECKPOINT)
        for artifact in artifacts:
            self.caches.of(artifact).subscribe(self._artifact_changed)
        for kind, queue in self._queues.items():
            self.caches.of(kind).subscribe(partial(_add, queue))
        self.caches.of(PERSISTENT_VOLUME_CLAIM).subscribe(self._claim_changed)
        sources: tuple[Kind[Any], ...] = (VOLUME_SNAPSHOT_CONTENT, PERSISTENT_VOLUME)
        for source in sources:
            self.caches.of(source).subscribe(partial(self._source_changed, source))
        self.caches.subscribe_all(self._anything_changed)
        self.caches.subscribe_all(self._released)
        self.caches.subscribe_all(self.upkeep.changed)
        self.caches.of(PERSISTENT_VOLUME_CLAIM).index(RESTORED, filled_for)
        restores.index(SOURCE, source_of)

    def _wake(self, kind: Kind[Any], index: str, value: str) -> None:
        for request in self.caches.of(kind).indexed(index, value):
            self._queues[kind].add(request.metadata.key)

    def _claim_changed(self, old: Object | None, new: Object | None) -> None:
        place = str(_some(old, new).metadata.key)
        self._wake(VOLUME_CAPTURE_REQUEST, _CLAIM, place)
        self._wake(VOLUME_RESTORE_REQUEST, _CLAIM, place)

    def _source_changed(self, kind: Kind[Any], old: Object | None, new: Object | None) -> None:
        meta = _some(old, new).metadata
        self._wake(VOLUME_RESTORE_REQUEST, SOURCE, f"{kind.kind}/{meta.name}")
        if meta.controller is not None:
            self._wake(VOLUME_CAPTURE_REQUEST, _KEEPER, meta.controller.name)

    def _keeper_changed(self, old: ObjectKeeper | None, new: ObjectKeeper | None) -> None:
        # Also where this process does not lead, and no controller ever tells a keeper anything.
        keepers = self.caches.of(OBJECT_KEEPER)
        if new is None and old is not None and not any(keepers.indexed(FOLLOWS, one) for one in followed_by(old)):
            self.keeper.forget(old)

    def _run_changed(self, old: Request | None, new: Request | None) -> None:
        meta = _some(old, new).metadata
        if SCHEDULE in meta.labels:
            self._queues[CAPTURE_SCHEDULE].add(ObjectKey(meta.namespace, meta.labels[SCHEDULE]))

    def _kept_run_changed(self, old: ObjectKeeper | None, new: ObjectKeeper | None) -> None:
        keeper = old if new is None else new
        ref = None if keeper is None else keeper.spec.follow_object_ref
        if ref is not None and (ref.api_version, ref.kind) == (CAPTURE_SCHEDULE.api_version, CAPTURE_SCHEDULE.kind):
            self._queues[CAPTURE_SCHEDULE].add(ObjectKey(ref.namespace, ref.name))

    def _artifact_changed(self, old: Object | None, new: Object | None) -> None:
        owner = _some(old, new).metadata.controller
        if owner is not None and owner.kind == OBJECT_KEEPER.kind:
            self._kept_run_changed(None, self.caches.of(OBJECT_KEEPER).get(ObjectKey(None, owner.name)))

    def _released(self, kind: Kind[Any], old: Object | None, new: Object | None) -> None:
        """Look again, now, at what was due and stayed because of a hold on something else."""
        if old is None or hold_of(old.metadata.annotations) is None or (new is not None and _kept(old) == _kept(new)):
            return
        now = UnixNs(self._clock.wall_ns())
        for one, found in self._covered(kind, old):
            key = found.metadata.key
            if one is OBJECT_KEEPER:
                self.keepers.deadlines.hurry(key, now)
                self.superseded.deadlines.hurry(key, now)
            elif one in REQUEST_KINDS:
                self.finished.deadlines.hurry((one, key), now)
                self._queues[one].add(key)  # in mode annotation its controller ends it

    def _covered(self, kind: Kind[Any], obj: Object) -> Iterator[tuple[Kind[Any], Object]]:
        """Yield what the hold of an object has kept, as far as the caches know.

        These are its owners, up the chain, and down the chain what it owns, and what follows it.
        """
        above, below = self.caches.owners_of(obj), [(kind, obj)]
        seen = {obj.metadata.uid}
        while above:
            one, found = above.pop()
            if found.metadata.uid not in seen:
                seen.add(found.metadata.uid)
                above += self.caches.owners_of(found)
                yield one, found
        while below:
            one, found = below.pop()
            followed = follow_key(one.api_version, one.kind, found.metadata.key)
            followers = self.caches.of(OBJECT_KEEPER).indexed(FOLLOWS, followed)
            owned = self.caches.owned_by(found.metadata.uid)
            for each, other in [*owned, *((OBJECT_KEEPER, keeper) for keeper in followers)]:
                if other.metadata.uid not in seen:
                    seen.add(other.metadata.uid)
                    below.append((each, other))
                    yield each, other

    def _anything_changed(self, kind: Kind[Any], old: Object | None, new: Object | None) -> None:
        """Wake the keepers of what appeared, went away, was held or released."""
        held_before, held = _hold(old), _hold(new)
        if old is not None and new is not None and held_before == held:
            return
        followed = follow_key(kind.api_version, kind.kind, _some(old, new).metadata.key)
        if new is None and old is not None and self.caches.of(OBJECT_KEEPER).indexed(FOLLOWS, followed):
            self.keeper.gone(old)
        self._wake(OBJECT_KEEPER, FOLLOWS, followed)

    # --- what runs --------------------------------------------------------------------------------------------------

    @property
    def services(self) -> list[CacheService]:
        """What runs in every process."""
        return [CacheService(self.caches)]

    @property
    def leader_services(self) -> list[ControllerService]:
        """What runs in the process that leads."""
        return [ControllerService(controller, self.caches) for controller in self.controllers]


def _loop(sweep: Sweep[Any], name: str, domain: FinishedRequests | Keepers | SupersededRuns) -> SweepLoop:
    loop = SweepLoop(sweep, name=name, interval=SCAN_INTERVAL_SECONDS)
    domain.deadlines.on_earlier = loop.wake
    return loop


def _add(queue: WorkQueue[ObjectKey], _old: Object | None, new: Object | None) -> None:
    if new is not None:
        queue.add(new.metadata.key)


def _kept(obj: Object) -> tuple[Hold | None, list[OwnerReference]]:
    """Return what an object keeps others by: its hold, or the note of one, and where it belongs."""
    return hold_of(obj.metadata.annotations), list(obj.metadata.owner_references)


def _hold(obj: Object | None) -> dict[str, str]:
    return {} if obj is None else hold_marks(obj.metadata.annotations)


def _some(old: Object | None, new: Object | None) -> Object:
    found = old if new is None else new
    assert found is not None  # noqa: S101 - an informer reports at least one of them
    return found


def _target(request: VolumeCaptureRequest) -> list[str]:
    return [str(ObjectKey(request.metadata.namespace, request.spec.target.name))]
