"""Whatever users, controllers, executors, sweeps, garbage collection and the clock do, in any order: the rules hold.

Every step is one small act of one of them. There may be two processes that both think that they lead; their caches may
be late, each kind by itself; calls may fail before or after they were done; a user may act between any two calls of a
reconcile; a process may end at any time. After every step a `Witness` compares what happened with the rules. At the end
everybody is left in peace for a while, and then nothing that was due may be left.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lapse.core.clock import VirtualClock
from lapse.core.duration import Duration
from lapse.core.timestamps import to_timestamp
from lapse.db.sqlite.file import Synchronous
from lapse.engine.running.coordinator import Turn
from lapse.kube.errors import AlreadyExistsError, NotFoundError, ObjectError, StoreUnavailableError
from lapse.kube.resources import Json, Kind, ObjectKey
from lapse.objects.embedded import open_embedded
from lapse.objects.tables import kind_name
from lapse.requests.api.kinds import (
    MANIFEST_CAPTURE_REQUEST,
    OBJECT_KEEPER,
    VOLUME_CAPTURE_REQUEST,
    VOLUME_RESTORE_REQUEST,
    KeeperMode,
)
from lapse.requests.api.upstream import (
    ALL_KINDS,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    VOLUME_SNAPSHOT_CONTENT,
)
from lapse.requests.lifecycle.policy import RequestPolicy, RestoreOwnership, TTLMode
from tests.integration.requests.witness import ARTIFACTS, KEEPER, REQUESTS, SECOND, TTL_ANNOTATION, Life, Witness
from tests.integration.requests.world import NAMESPACE, Call, Wire, World

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine

    from lapse.engine.sweep import SweepLoop
    from lapse.kube.resources import Event
    from lapse.objects.embedded import EmbeddedStore

REQUEST_TTL, KEEPER_TTL, DEADLINE = 120, 180, 600
QUIET_SECONDS = DEADLINE + REQUEST_TTL + KEEPER_TTL + 600 + 300
"""The deadline, both TTLs, how long a hold may go unnoticed once it is over, and the longest back-off."""
KINDS: dict[str, Kind[Any]] = {kind_name(kind): kind for kind in ALL_KINDS}
LATE: list[Kind[Any]] = [
    VOLUME_CAPTURE_REQUEST,
    OBJECT_KEEPER,
    VOLUME_SNAPSHOT_CONTENT,
    PERSISTENT_VOLUME_CLAIM,
    MANIFEST_CAPTURE_REQUEST,
]
TTLS = st.sampled_from(["60s", "3m", "never", "10minutes", "0s", "-1h", None])
HOLDABLE = {"request": REQUESTS, "keeper": {KEEPER}, "artifact": ARTIFACTS, "claim": {"PersistentVolumeClaim"}}
WHICH = st.integers(0, 5)
PROCESS = st.integers(0, 1)
FATES: st.SearchStrategy[list[str]] = st.one_of(
    st.just([]),
    st.builds(
        lambda before, fate: ["fine"] * before + [fate], st.integers(0, 4), st.sampled_from(["refused", "unanswered"])
    ),
)
"""What becomes of the next calls of a process."""


@dataclass
class LateWire(Wire):
    """A wire whose watches may be late, whose calls may fail, and before whose calls somebody else may act."""

    reach: dict[str, int] = field(default_factory=dict)
    """By kind: the version up to which a late cache may know."""
    seen: dict[str, int] = field(default_factory=dict)
    """By kind: the version up to which the cache has taken everything in."""
    fates_ahead: list[str] = field(default_factory=list)
    """What becomes of the next calls: fine, refused, or unanswered (done, but nobody knows)."""
    intruder: tuple[int, Callable[[], Awaitable[object]]] | None = None
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def pass_on(self, these: list[Call], real: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401
        if these[0].method in {"list", "resolve"}:
            return await super().pass_on(these, real)
        if self.intruder is not None:
            left, act = self.intruder
            self.intruder = None if left == 0 else (left - 1, act)
            if left == 0:
                await act()
        fate = self.fates_ahead.pop(0) if self.fates_ahead else "fine"
        if fate == "refused":
            raise StoreUnavailableError(problem="it is being restarted")
        answer = await super().pass_on(these, real)
        if fate == "unanswered":
            raise StoreUnavailableError(problem="the answer was lost")
        return answer

    async def watch(
        self, kind: Kind[Any], *, namespace: str | None = None, since: str
    ) -> AsyncGenerator[Event[Any], None]:
        self.seen[kind.kind] = int(since)
        async with aclosing(self.store.watch(kind, since=since)) as events:
            async for event in events:
                while int(event.resource_version) > self.reach.get(kind.kind, 1 << 62):
                    await self.moved.wait()
                yield event
                self.seen[kind.kind] = int(event.resource_version)

    def let_pass(self, kind: Kind[Any], version: int | None) -> None:
        """Let a cache know everything up to a version, or everything."""
        if version is None:
            self.reach.pop(kind.kind, None)
        else:
            self.reach[kind.kind] = version
        self.moved.set()
        self.moved = asyncio.Event()


class Process(World):
    """A world that may be late."""

    wire: LateWire

    async def caught_up(self) -> None:
        """Return when every cache knows what it may know."""
        for _ in range(100_000):
            if self._knows_all():
                return
            await asyncio.sleep(0)  # noqa: TID251 - the store answers from another thread, in real time
        raise AssertionError("the caches do not catch up")

    def _knows_all(self) -> bool:
        informers = self.requests.caches._informers
        if not all(cache.synced.is_set() and kind.kind in self.wire.seen for kind, cache in informers.items()):
            return False
        for name, version in self.store.database.read("SELECT kind, version FROM changes"):
            kind = KINDS[name]
            seen = self.wire.seen.get(kind.kind)
            if seen is not None and seen < version <= self.wire.reach.get(kind.kind, 1 << 62):
                return False
        return True


class Ticker:
    """Ticks a loop when it wants to, as the coordinator does."""

    def __init__(self, loop: SweepLoop, clock: VirtualClock) -> None:
        self.loop, self.clock, self.when, self.woken = loop, clock, 0, True
        loop.begin(Turn(proceed=lambda: True, wake=self.wake))

    def wake(self) -> None:
        self.woken = True

    async def tick_if_due(self) -> None:
        while self.woken or self.clock.monotonic_ns() >= self.when:
            self.woken = False
            wait = await self.loop.tick()
            self.when = self.clock.monotonic_ns() + round((self.loop.interval if wait is None else wait) * SECOND)


A = TypeVar("A", bound="Callable[..., None]")
STRATEGIES: dict[str, dict[str, st.SearchStrategy[Any]]] = {}
ACTS: list[str] = []
"""Names, each as often as it has weight."""


def act(weight: int, **strategies: st.SearchStrategy[Any]) -> Callable[[A], A]:
    """Make a method one of the acts. Not a rule each: an example uses few of many rules, and much would never meet."""

    def register(method: A) -> A:
        STRATEGIES[method.__name__] = strategies
        ACTS.extend([method.__name__] * weight)
        return method

    return register


class Interleavings(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.loop = asyncio.new_event_loop()
        self.patch = pytest.MonkeyPatch()
        self.uids = count(1)
        self.next_uid: str | None = None
        self.things: dict[str, str] = {}
        self.broken = False
        self.unseen: dict[str, set[str]] = {}
        self.processes: list[Process] = []

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - the answer of any act
        try:
            return self.loop.run_until_complete(work)
        except BaseException:
            self.broken = True
            raise

    def uid(self) -> str:
        found, self.next_uid = self.next_uid, None
        return found or f"00000000-0000-0000-0000-{next(self.uids):012}"

    @initialize(
        mode=st.sampled_from(TTLMode),
        keepers=st.sampled_from([KeeperMode.FOLLOW_OBJECT, KeeperMode.FOLLOW_OBJECT_WITH_TTL]),
        ownership=st.sampled_from(RestoreOwnership),
        processes=st.sampled_from([1, 1, 2]),
    )
    def begin(self, mode: TTLMode, keepers: KeeperMode, ownership: RestoreOwnership, processes: int) -> None:
        self.patch.setattr("lapse.objects.embedded.uuid", self.uid)
        self.policy = RequestPolicy(
            request_ttl=Duration.parse(f"{REQUEST_TTL}s"),
            request_ttl_mode=mode,
            request_deadline=Duration.parse(f"{DEADLINE}s"),
            keeper_mode=keepers,
            keeper_ttl=Duration.parse(f"{KEEPER_TTL}s"),
            restore_ownership=ownership,
        )
        self.run(self._begin(processes))

    async def _begin(self, processes: int) -> None:
        self.clock = VirtualClock()
        self.store: EmbeddedStore = open_embedded(
            self.folder / "o.db", kinds=ALL_KINDS, clock=self.clock, synchronous=Synchronous.NORMAL
        )
        self.store._collector.call = lambda: None  # type: ignore[method-assign]  # garbage is a step of its own
        self.witness = Witness(
            self.store, request_ttl=REQUEST_TTL, annotation_decides=self.policy.request_ttl_mode is TTLMode.ANNOTATION
        )
        self.witness.unseen = self.unseen_by_caches
        for _ in range(processes):
            process = Process(self.store, self.clock, self.folder, policy=self.policy, wire=LateWire(self.store))
            self.processes.append(process)
            await process.start()
        self.world = self.processes[0]
        await self.world.classes()
        for name in ("data", "logs"):
            self.witness.made_by_users.add((await self.world.volume(name)).metadata.uid)
        self.witness.made_by_users.add((await self.world.volume("later", phase="Pending")).metadata.uid)
        self.witness.made_by_users.add((await self.world.snapshot("foreign")).metadata.uid)
        for name in ("thing", "other"):
            self.things[name] = (await self.world.config_map(name)).metadata.uid
        await self._ask_for_one_of_each()

    async def _ask_for_one_of_each(self) -> None:
        """So that there is something to act on from the first step."""
        claim = await self.store.get(PERSISTENT_VOLUME_CLAIM, ObjectKey(NAMESPACE, "data"))
        await self.world.capture("first", claim)
        source = await self.store.get(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, "foreign"))
        await self.world.restore("first", source, claim="first")
        thing = await self.world.config_map("thing")
        await self.world.capture_manifests("first", thing)
        await self._keeper("first", KeeperMode.FOLLOW_OBJECT_WITH_TTL, thing.metadata.uid)

    async def _keeper(self, name: str, mode: KeeperMode, thing: str | None) -> None:
        spec: Json = {"mode": mode}
        if mode is not KeeperMode.FOLLOW_OBJECT:
            spec["ttl"] = f"{KEEPER_TTL}s"
        if mode is not KeeperMode.TTL:
            followed = next(name for name, uid in self.things.items() if uid == thing)
            ref = {"apiVersion": "v1", "kind": "ConfigMap", "namespace": NAMESPACE, "name": followed}
            spec["followObjectRef"] = {**ref, "uid": thing}
        await asked(self.store.create(OBJECT_KEEPER, {"metadata": {"name": name}, "spec": spec}))

    @rule(data=st.data())
    def somebody_acts(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(ACTS), label="act")
        arguments = {label: data.draw(values, label=label) for label, values in STRATEGIES[name].items()}
        getattr(self, name)(**arguments)

    @invariant()
    def the_rules_hold(self) -> None:
        if self.processes:
            self.run(self.look())

    async def look(self) -> None:
        await self.caught_up()
        self.witness.look(self.clock.wall_ns())

    async def caught_up(self) -> None:
        for process in self.processes:
            await process.caught_up()

    # --- what there is ----------------------------------------------------------------------------------------------

    def pick(self, number: int, wanted: Callable[[Life], bool]) -> Life | None:
        found = sorted((life for life in self.witness.alive.values() if wanted(life)), key=lambda life: life.place)
        return found[number % len(found)] if found else None

    def any_request(self, number: int) -> Life | None:
        return self.pick(number, lambda life: life.kind in REQUESTS)

    def artifact(self, number: int) -> Life | None:
        return self.pick(number, lambda life: life.kind in ARTIFACTS and life.uid not in self.witness.made_by_users)

    def unseen_by_caches(self, keeper: str) -> set[str]:
        return set(self.unseen.get(keeper, ()))

    def remember_what_caches_miss(self) -> None:
        """Before the engine acts: what keepers own that some cache has not heard of."""
        self.unseen = {}
        for keeper in [life.uid for life in self.witness.alive.values() if life.kind == KEEPER]:
            owned = {life.uid for life in self.witness.owned(keeper)}
            for process in self.processes:
                known = {obj.metadata.uid for _, obj in process.requests.caches.owned_by(keeper)}
                self.unseen.setdefault(keeper, set()).update(owned - known)

    # --- users ------------------------------------------------------------------------------------------------------

    async def user_patch(self, life: Life, changes: Json) -> None:
        with suppress(NotFoundError):
            patched = await self.store.patch(KINDS[life.place[0]], key_of(life), changes, uid=life.uid)
            self.witness.user_writes.add(patched.metadata.resource_version)

    async def user_delete(self, life: Life) -> None:
        self.witness.user_deletes.add(life.uid)
        with suppress(ObjectError):
            await self.store.delete(KINDS[life.place[0]], key_of(life), uid=life.uid)

    @act(
        2,
        name=st.sampled_from("ab"),
        which=WHICH,
        detach=st.sampled_from([False, False, True]),
        stranger=st.sampled_from([False] * 5 + [True]),
    )
    def ask_for_a_capture(self, name: str, which: int, detach: bool, stranger: bool) -> None:  # noqa: FBT001 - drawn
        claim = self.pick(which, lambda life: life.kind == "PersistentVolumeClaim")
        if claim is not None:
            target = {"name": claim.name, "uid": "somebody-else" if stranger else claim.uid}
            mode = "Detach" if detach else "Snapshot"
            self.run(asked(self.world.capture(name, mode=mode, target=target)))

    @act(2, name=st.sampled_from("ab"), which=WHICH, claim=st.sampled_from(["restored", "again"]))
    def ask_for_a_restore(self, name: str, which: int, claim: str) -> None:
        source = self.pick(which, lambda life: life.kind in {"VolumeSnapshotContent", "PersistentVolume"})
        if source is not None:
            kind = KINDS[source.place[0]]
            ref = {"apiVersion": kind.api_version, "kind": kind.kind, "name": source.name, "uid": source.uid}
            self.run(asked(self.world.restore(name, source_ref=ref, claim=claim)))

    @act(1, name=st.sampled_from("ab"), which=WHICH)
    def ask_for_manifests(self, name: str, which: int) -> None:
        thing = self.pick(which, lambda life: life.kind == "ConfigMap")
        if thing is not None:
            targets = [{"apiVersion": "v1", "kind": "ConfigMap", "name": thing.name}]
            body = {"metadata": {"namespace": NAMESPACE, "name": name}, "spec": {"targets": targets}}
            self.run(asked(self.store.create(MANIFEST_CAPTURE_REQUEST, body)))

    @act(1, name=st.sampled_from("ab"), mode=st.sampled_from(KeeperMode), which=WHICH)
    def make_a_keeper(self, name: str, mode: KeeperMode, which: int) -> None:
        thing = self.pick(which, lambda life: life.kind == "ConfigMap")
        if thing is not None:
            self.run(self._keeper(name, mode, thing.uid))

    @act(3, name=st.sampled_from(["thing", "thing", "other"]), same=st.sampled_from([True, True, False]))
    def a_thing_goes_or_comes(self, name: str, same: bool) -> None:  # noqa: FBT001 - drawn
        thing = self.witness.alive.get(("v1/ConfigMap", NAMESPACE, name))
        if thing is not None:
            self.run(self.user_delete(thing))
            return
        self.next_uid = self.things[name] if same else None
        self.things[name] = self.run(self.world.config_map(name)).metadata.uid

    @act(2, which=WHICH)
    def delete_a_request(self, which: int) -> None:
        request = self.any_request(which)
        if request is not None:
            self.run(self.user_delete(request))

    @act(1, which=WHICH)
    def delete_an_artifact(self, which: int) -> None:
        # Not one that its request does not know of yet: nobody can tell that it was made.
        recorded = {(life.status.get("artifactRef") or {}).get("uid") for life in self.witness.alive.values()}
        named = {life.status.get("checkpointName") for life in self.witness.alive.values()}
        found = self.pick(which, lambda life: life.uid in recorded or life.name in named)
        if found is not None:
            self.run(self.user_delete(found))

    @act(
        3,
        which=WHICH,
        what=st.sampled_from(sorted(HOLDABLE)),
        until=st.sampled_from([0, 1, 90, None, None]),
    )
    def hold_or_release(self, which: int, what: str, until: int | None) -> None:
        """Zero seconds: release."""
        found = self.pick(which, lambda life: life.kind in HOLDABLE[what])
        if found is not None:
            self.run(self.user_patch(found, self.hold(until)))

    def hold(self, until: int | None) -> Json:
        end = None if not until else to_timestamp(self.clock.wall_ns() + until * SECOND)
        return {
            "metadata": {"annotations": {"lapse.dev/hold": None if until == 0 else "yes", "lapse.dev/hold-until": end}}
        }

    @act(1, which=WHICH, ttl=TTLS)
    def edit_the_ttl(self, which: int, ttl: str | None) -> None:
        request = self.any_request(which)
        if request is not None:
            self.run(self.user_patch(request, {"metadata": {"annotations": {TTL_ANNOTATION: ttl}}}))

    @act(2, which=WHICH, by=WHICH)
    def take_an_artifact_over(self, which: int, by: int) -> None:
        artifact, thing = self.artifact(which), self.pick(by, lambda life: life.kind == "ConfigMap")
        if artifact is not None and thing is not None:
            reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": thing.name, "uid": thing.uid}
            others = [owner for owner in artifact.owners if owner["uid"] != thing.uid]
            self.run(self.user_patch(artifact, {"metadata": {"ownerReferences": [*others, reference]}}))

    # --- executors --------------------------------------------------------------------------------------------------

    @act(2, which=WHICH, fails=st.sampled_from([False, False, False, True]))
    def a_snapshot_is_done(self, which: int, fails: bool) -> None:  # noqa: FBT001 - drawn
        content = self.pick(which, lambda life: life.kind == "VolumeSnapshotContent" and not life.status)
        if content is not None:
            status = {"error": {"message": "the disk is on fire"}} if fails else {"readyToUse": True}
            self.run(self.store.patch_status(VOLUME_SNAPSHOT_CONTENT, key_of(content), status))

    @act(2, which=WHICH, outcome=st.sampled_from(["Bound", "Bound", "Lost", "Pending", "failed"]))
    def a_claim_is_provisioned(self, which: int, outcome: str) -> None:
        request = self.pick(which, lambda life: life.kind == "VolumeRestoreRequest" and not life.final)
        if request is None:
            return
        status: Json = {"phase": outcome}
        if outcome == "failed":
            condition = {"type": "ProvisioningFailed", "status": "True", "message": "no space"}
            status = {"phase": "Pending", "conditions": [condition]}
        self.run(self._provision(request.body["spec"]["pvcTemplate"]["metadata"]["name"], status))

    async def _provision(self, name: str, status: Json) -> None:
        body = {"metadata": {"namespace": NAMESPACE, "name": name}, "spec": {"volumeName": "x"}}
        with suppress(AlreadyExistsError):
            made = await self.store.create(PERSISTENT_VOLUME_CLAIM, body)
            self.witness.made_by_users.add(made.metadata.uid)
        await self.store.patch_status(PERSISTENT_VOLUME_CLAIM, ObjectKey(NAMESPACE, name), status)

    @act(1)
    def volumes_follow_their_claims(self) -> None:
        """The late claim is bound; volumes whose claims are gone are released."""
        for volume in [life for life in self.witness.alive.values() if life.kind == "PersistentVolume"]:
            claimed = volume.body["spec"]["claimRef"]["uid"]
            phase = "Bound" if self.witness.lives(claimed) else "Released"
            with suppress(NotFoundError):
                self.run(self.store.patch_status(PERSISTENT_VOLUME, key_of(volume), {"phase": phase}))
        later = self.witness.alive.get(("v1/PersistentVolumeClaim", NAMESPACE, "later"))
        if later is not None:
            self.run(self.store.patch(PERSISTENT_VOLUME_CLAIM, key_of(later), {"spec": {"volumeName": "pv-later"}}))
            self.run(self.store.patch_status(PERSISTENT_VOLUME_CLAIM, key_of(later), {"phase": "Bound"}))

    # --- controllers and sweeps -------------------------------------------------------------------------------------

    def process(self, number: int) -> Process:
        return self.processes[number % len(self.processes)]

    @act(6, number=PROCESS, queue=WHICH, place=WHICH, fates=FATES)
    def a_controller_works(self, number: int, queue: int, place: int, fates: list[str]) -> None:
        self.process(number).wire.fates_ahead = [*fates]
        self.run(self._work(self.process(number), queue, place))

    @act(
        2,
        number=PROCESS,
        queue=WHICH,
        place=WHICH,
        call=st.integers(0, 6),
        how=st.sampled_from(["hold", "delete", "ttl"]),
    )
    def a_user_acts_in_the_middle(self, number: int, queue: int, place: int, call: int, how: str) -> None:
        request, process = self.any_request(place), self.process(number)
        if request is None:
            return
        act: Callable[[], Awaitable[object]]
        if how == "delete":
            act = lambda: self.user_delete(request)  # noqa: E731 - one of three
        elif how == "hold":
            act = lambda: self.user_patch(request, self.hold(None))  # noqa: E731 - one of three
        else:
            act = lambda: self.user_patch(request, {"metadata": {"annotations": {TTL_ANNOTATION: "60s"}}})  # noqa: E731 - one of three
        process.wire.intruder = call, act
        self.run(self._work(process, queue, place))
        process.wire.intruder = None

    async def _work(self, process: Process, queue: int, place: int) -> bool:
        await asyncio.sleep(0)  # noqa: TID251 - the timers of the queues
        self.remember_what_caches_miss()
        busy = [controller for controller in process.controllers if len(controller._queue)]
        if not busy:
            return False
        controller = busy[queue % len(busy)]
        controller._queue._ready.rotate(-place)
        await controller._process(await controller._queue.get())
        return True

    @act(4, number=PROCESS)
    def controllers_work_until_nothing_is_left(self, number: int) -> None:
        async def work() -> None:
            while await self._work(self.process(number), 0, 0):
                await self.process(number).caught_up()

        self.run(work())

    @act(2, number=PROCESS, which=WHICH)
    def anything_is_reconciled(self, number: int, which: int) -> None:
        found = self.pick(which, lambda life: life.kind in REQUESTS or life.kind == KEEPER)
        if found is not None:
            self.remember_what_caches_miss()
            self.run(self._reconcile(self.process(number), found))

    async def _reconcile(self, process: Process, found: Life) -> None:
        requests = process.requests
        by_kind: dict[str, Any] = {
            VOLUME_CAPTURE_REQUEST.kind: requests.capture,
            VOLUME_RESTORE_REQUEST.kind: requests.restore,
            MANIFEST_CAPTURE_REQUEST.kind: requests.manifests,
            OBJECT_KEEPER.kind: requests.keeper,
        }
        with suppress(ObjectError):
            await by_kind[found.kind].reconcile(key_of(found))

    @act(3, number=PROCESS, fates=FATES)
    def a_process_sweeps(self, number: int, fates: list[str]) -> None:
        self.process(number).wire.fates_ahead = [*fates]
        self.remember_what_caches_miss()
        self.run(sweep(self.process(number)))

    @act(1)
    def all_processes_sweep_at_once(self) -> None:
        async def together() -> None:
            await asyncio.gather(*map(sweep, self.processes))

        self.remember_what_caches_miss()
        self.run(together())

    @act(2)
    def garbage_is_collected(self) -> None:
        self.run(self._collect())

    async def _collect(self) -> None:
        while (step := await self.store._submit(self.store._collector._step)).more:
            for kind in step.touched:
                self.store._wakeups.wake(kind)

    # --- time, and what can go wrong --------------------------------------------------------------------------------

    @act(2, seconds=st.sampled_from([0.3, 1, 10, 61, REQUEST_TTL, KEEPER_TTL, DEADLINE]))
    def time_passes(self, seconds: float) -> None:
        self.run(self._pass(round(seconds * SECOND)))

    @act(4, which=WHICH, off=st.sampled_from([-1, 0, 1, 1]), act=st.booleans(), fates=FATES)
    def a_deadline_comes(self, which: int, off: int, act: bool, fates: list[str]) -> None:  # noqa: FBT001 - drawn
        """Exactly, or a nanosecond before or after; perhaps everybody acts at once."""
        now = self.clock.wall_ns()
        dues = [self.witness.request_due(life) for life in self.witness.alive.values() if life.kind in REQUESTS]
        dues += [self.witness.keeper_due(life) for life in self.witness.alive.values() if life.kind == KEEPER]
        ahead = sorted({due for due in dues if due is not None and due + off > now})
        if ahead:
            self.run(self._pass(ahead[which % len(ahead)] + off - now))
        if act:
            self.controllers_work_until_nothing_is_left(0)
            self.a_process_sweeps(0, fates)

    @act(4, which=WHICH, what=st.sampled_from(sorted(HOLDABLE)), change=st.sampled_from(["hold", "release", "ttl"]))
    def a_deadline_comes_and_the_caches_are_late(self, which: int, what: str, change: str) -> None:
        """The sweep decides on what was true before the last change."""
        for process in self.processes:
            for kind in LATE:
                process.wire.let_pass(kind, process.wire.seen[kind.kind])
        found = self.pick(which, lambda life: life.kind in HOLDABLE[what])
        if found is not None:
            hold = self.hold(0 if change == "release" else None)
            ttl = {"metadata": {"annotations": {TTL_ANNOTATION: "3m"}}}
            self.run(self.user_patch(found, ttl if change == "ttl" else hold))
        self.a_deadline_comes(-1, 1, act=False, fates=[])  # the last one: all others are over, too
        self.a_process_sweeps(which, [])
        for number in range(len(self.processes)):
            self.caches_catch_up(number)

    async def _pass(self, ns: int) -> None:
        self.clock.advance(ns=ns)
        await asyncio.sleep(0)  # noqa: TID251 - whoever slept wakes

    @act(2, number=PROCESS, kind=st.sampled_from(LATE), more=st.integers(0, 2))
    def a_cache_falls_behind(self, number: int, kind: Kind[Any], more: int) -> None:
        wire = self.process(number).wire
        wire.let_pass(kind, wire.seen[kind.kind] + more)

    @act(2, number=PROCESS)
    def caches_catch_up(self, number: int) -> None:
        for kind in LATE:
            self.process(number).wire.let_pass(kind, None)

    @act(1, number=PROCESS)
    def a_process_is_killed_and_started(self, number: int) -> None:
        self.run(self.process(number).restart(wire=LateWire(self.store)))

    # --- the end ----------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            if self.processes and not self.broken:
                self.run(self.end())
        finally:
            self.loop.run_until_complete(self.close())
            self.loop.close()
            self.patch.undo()
            shutil.rmtree(self.folder)

    async def close(self) -> None:
        for process in self.processes:
            await process.stop()
        if self.processes:
            await self.store.close()
        await asyncio.sleep(0)  # noqa: TID251 - timers that were cancelled

    async def end(self) -> None:
        """Leave everybody in peace; then nothing that is due may be left."""
        for process in self.processes:
            for kind in LATE:
                process.wire.let_pass(kind, None)
            process.wire.fates_ahead = []
        tickers = [Ticker(loop, self.clock) for process in self.processes for loop in process.requests.loops]
        await self.rest(tickers)
        end = self.clock.monotonic_ns() + QUIET_SECONDS * SECOND
        while self.clock.monotonic_ns() < end:
            await self._pass(30 * SECOND)
            await self.rest(tickers)
        self.nothing_due_is_left()

    async def rest(self, tickers: list[Ticker]) -> None:
        """Everybody does what they have to do at this moment."""
        busy = True
        while busy:
            busy = False
            for process in self.processes:
                while await self._work(process, 0, 0):
                    busy = True
                    await self.look()
            for ticker in tickers:
                await ticker.tick_if_due()
                await self.look()
            await self._collect()
            await self.look()

    def nothing_due_is_left(self) -> None:
        now, witness = self.clock.wall_ns(), self.witness
        for life in [*witness.alive.values()]:
            if life.kind in REQUESTS:
                assert life.final, f"never finished: {life.body}"
                due = witness.request_due(life)
                assert due is None or life.held(now) or due >= now, f"left behind: {life.body}"
            elif life.kind == KEEPER:
                due = witness.keeper_due(life)
                held = life.held(now) or any(one.held(now) for one in witness.owned(life.uid))
                assert due is None or held, f"left behind: {life.body}"
                if life.body["spec"]["mode"] == "FollowObjectWithTTL":
                    lives = witness.lives(life.body["spec"]["followObjectRef"]["uid"])
                    assert lives is ("lostAt" not in life.status), f"wrong about what it follows: {life.body}"
            elif life.kind in ARTIFACTS and life.uid not in witness.made_by_users:
                assert any(witness.lives(owner["uid"]) for owner in life.owners), f"nobody owns {life.body}"


async def asked(work: Coroutine[Any, Any, Any]) -> None:
    with suppress(AlreadyExistsError):
        await work


async def sweep(process: Process) -> None:
    for loop in process.requests.loops:
        await loop.sweeps[0].run(proceed=lambda: True)


def key_of(life: Life) -> ObjectKey:
    return ObjectKey(life.place[1] or None, life.name)


pytestmark = pytest.mark.timeout(300)  # half a minute by itself; all examples beside others take a few
TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)
