"""The schedules domain of the sweep: keepers of runs that newer runs have superseded, or that came to nothing.

What is ended is the keeper; garbage collection removes the artifact. Only keepers that follow the very schedule (its
uid, or the one that it had before it came back from the trash) are looked at. They are objects of the cluster, which no
tenant writes, and the controllers make one for a request only after they have compared that with the schedule.

Whether a run stays is decided by the tiers of its schedule among the runs whose artifact is *ready*. One that is not
ready takes no place and pushes nobody out. One that holds nothing goes when the keeper of an ordinary request would
have gone at the latest: after deadline, TTL of the request and keeper_ttl. Doubt keeps: an unreadable time, a request
that goes on, a schedule that is suspended, gone or unreadable. A keeper whose schedule is gone is the business of the
keepers domain.

`look` judges all runs of a schedule from the caches. Before anything is ended, `refresh` reads the schedule, and the
keeper and artifact of every run that has a place, straight from the store: a cache may still show what is gone, and the
last good artifact must not be ended in favour of one that is not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.decision import Decision, Due, Keep, KeepReason, Reason, Unknown, UnknownReason
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.engine.deadlines import Deadlines
from lapse.engine.domain import DELETE, Candidate, Settled, policy_hash
from lapse.engine.safety.blast_radius import MOST
from lapse.engine.safety.extensions import extension_of
from lapse.engine.safety.holds import hold_of
from lapse.kube.resources import ConditionStatus, ObjectKey, ready_condition
from lapse.objects.target import ObjectHandle
from lapse.requests.addresses import PlaceError, keeper_name, locate
from lapse.requests.api.conditions import is_final
from lapse.requests.api.kinds import CAPTURE_SCHEDULE, MANIFEST_CHECKPOINT, OBJECT_KEEPER, RUN, KeeperMode
from lapse.requests.api.upstream import VOLUME_SNAPSHOT_CONTENT
from lapse.requests.controllers.base import is_ready
from lapse.requests.controllers.finalise import conditions_of
from lapse.requests.controllers.ownership import is_followed
from lapse.requests.lifecycle.keeper import FOLLOWS, follow_key, followed_by
from lapse.requests.registration import SCHEDULES
from lapse.requests.schedules.cron import CronError, TimeZoneError
from lapse.requests.schedules.runs import cron_of, scheduled_time
from lapse.requests.schedules.tiers import ReadyRun, Tier, places

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from lapse.kube.resources import Kind
    from lapse.requests.api.kinds import CaptureSchedule, ObjectKeeper
    from lapse.requests.controllers.caches import Caches
    from lapse.requests.lifecycle.policy import RequestPolicy

DOMAIN: Final = SCHEDULES.name
_LOOK_AGAIN_NS: Final = 60_000_000_000
_ARTIFACTS: Final[frozenset[Kind[Any]]] = frozenset({VOLUME_SNAPSHOT_CONTENT, MANIFEST_CHECKPOINT})


class ScheduledRunReason(Reason):
    """Why the keeper of a run stays or goes."""

    SUPERSEDED = "superseded"
    """Newer runs have all the places."""
    NOT_USABLE = "not_usable"
    """It has no artifact that is ready, and will not have one."""
    HAS_PLACE = "has_place"
    SUSPENDED = "suspended"
    """Its schedule is suspended, gone or cannot be read: nothing is pushed out."""
    GOES_ON = "goes_on"
    """Its request is not final."""


class RunState(Struct, frozen=True, gc=False):
    """What the decision about a run looks at."""

    scheduled: UnixNs | None
    """None when it cannot be read."""
    is_ready: bool
    tiers: tuple[Tier, ...] = ()
    newest: UnixNs | None = None
    """The time of the newest run of the schedule that is ready."""
    lapses: UnixNs | None = None
    """When a run that is not ready goes."""
    goes_on: bool = False
    """Whether its request is not final."""
    has_data: bool = False
    """Whether it has an artifact that holds something, be that ready now or not: doubt keeps it."""
    is_swept: bool = True
    """False while its schedule is suspended, gone or cannot be read."""


def decide(run: RunState, now: UnixNs) -> Decision:
    """Say whether the keeper of a run is due."""
    if run.scheduled is None:
        return Decision(Unknown(UnknownReason.MISSING_ANCHOR))
    if not run.is_swept:
        return Decision(Keep(ScheduledRunReason.SUSPENDED), run.scheduled)
    if not run.is_ready:
        return _decide_unready(run, now)
    if run.tiers or run.newest is None:
        return Decision(Keep(ScheduledRunReason.HAS_PLACE), run.scheduled)
    if run.newest > now:  # somebody's clock is wrong, and it may be that of who made the newest
        return Decision(Unknown(UnknownReason.CLOCK_JUMPED, next_check=UnixNs(now + _LOOK_AGAIN_NS)), run.scheduled)
    return Decision(Due(DELETE, ScheduledRunReason.SUPERSEDED, since=run.newest), run.scheduled)


def _decide_unready(run: RunState, now: UnixNs) -> Decision:
    if run.lapses is None:
        return Decision(Unknown(UnknownReason.MISSING_ANCHOR))
    if run.has_data:  # what was ready once may be so again
        again = UnixNs(now + _LOOK_AGAIN_NS)
        return Decision(Unknown(UnknownReason.UNREADABLE_SIGNAL, next_check=again), run.scheduled)
    if now <= run.lapses:
        return Decision(Keep(KeepReason.NOT_YET, next_check=UnixNs(run.lapses + 1)), run.scheduled, deadline=run.lapses)
    if run.goes_on:
        return Decision(Keep(ScheduledRunReason.GOES_ON, next_check=UnixNs(now + _LOOK_AGAIN_NS)), run.scheduled)
    return Decision(Due(DELETE, ScheduledRunReason.NOT_USABLE, since=run.lapses), run.scheduled, deadline=run.lapses)


def is_usable(kind: Kind[Any], artifact: Any) -> bool:  # noqa: ANN401 - an object of ``kind``
    """Whether an artifact is complete and stays."""
    if kind not in _ARTIFACTS:
        return False  # a part of one, such as a chunk
    if artifact.metadata.deletion_timestamp or artifact.status is None:
        return False
    if kind is VOLUME_SNAPSHOT_CONTENT:
        return is_ready(artifact) and artifact.status.error is None
    ready = ready_condition(artifact.status.conditions)
    return ready is not None and ready.status == ConditionStatus.TRUE


def has_data(kind: Kind[Any], artifact: Any) -> bool:  # noqa: ANN401 - an object of ``kind``
    """Whether an artifact holds something, whatever it says of itself now."""
    status = artifact.status if kind in _ARTIFACTS else None
    if status is None:
        return False
    if kind is VOLUME_SNAPSHOT_CONTENT:
        return bool(status.snapshot_handle or status.creation_time)
    return bool(status.chunks)


class SupersededRuns:
    """See the module. Belongs to one event loop."""

    name = DOMAIN
    is_indexed = True
    reasons: tuple[Reason, ...] = (ScheduledRunReason.SUPERSEDED, ScheduledRunReason.NOT_USABLE)

    def __init__(self, caches: Caches, *, policy: RequestPolicy) -> None:
        """Begin to follow the cache of keepers, which is given the index `FOLLOWS`."""
        self._caches, self._policy = caches, policy
        self.deadlines: Deadlines[ObjectKey] = Deadlines()
        self._states: dict[ObjectKey, RunState] = {}
        """As they were when `look` last judged their schedule."""
        self._large: dict[str, str] = {}
        """Schedules with so many runs that they could end much at once, and a hash of what each says."""
        caches.of(OBJECT_KEEPER).index(FOLLOWS, followed_by)
        caches.of(OBJECT_KEEPER).subscribe(self._keeper_changed)
        caches.of(CAPTURE_SCHEDULE).subscribe(self._schedule_changed)

    def _keeper_changed(self, old: ObjectKeeper | None, new: ObjectKeeper | None) -> None:
        if new is None and old is not None:
            self._states.pop(old.metadata.key, None)
            self.deadlines.discard(old.metadata.key)

    def _schedule_changed(self, old: CaptureSchedule | None, new: CaptureSchedule | None) -> None:
        if new is None and old is not None:
            self._large.pop(str(old.metadata.key), None)

    # --- judging a schedule -------------------------------------------------------------------------------------------

    def keepers(self, schedule: CaptureSchedule) -> list[ObjectKeeper]:
        """Return the keepers of the runs of a schedule, as far as the cache knows."""
        followed = follow_key(CAPTURE_SCHEDULE.api_version, CAPTURE_SCHEDULE.kind, schedule.metadata.key)
        found = self._caches.of(OBJECT_KEEPER).indexed(FOLLOWS, followed)
        return [one for one in found if _is_of(one, schedule)]

    def look(self, schedule: CaptureSchedule) -> dict[ObjectKey, RunState]:
        """Judge all runs of a schedule, and take note of those that may be due; return what was found."""
        found = self.states(schedule, self.keepers(schedule))
        if len(found) > MOST:
            self._large[str(schedule.metadata.key)] = self._digest(schedule)
        for key, state in found.items():
            if self._states.get(key) == state:
                continue
            self._states[key] = state
            when = _may_be_due(state)
            if when is None:
                self.deadlines.discard(key)
            else:
                self.deadlines.set(key, when)
        return found

    def states(
        self, schedule: CaptureSchedule, keepers: Sequence[ObjectKeeper], *, but: frozenset[str] = frozenset()
    ) -> dict[ObjectKey, RunState]:
        """Return the states of runs; the keepers whose uids are in ``but`` count as not ready."""
        plain = {one.metadata.key: self._alone(one, is_ready=one.metadata.uid not in but) for one in keepers}
        try:
            zone = cron_of(schedule.spec).zone
        except (CronError, TimeZoneError):
            return {key: replace(state, is_swept=False) for key, state in plain.items()}
        ready = [
            ReadyRun(
                one.metadata.uid, state.scheduled, from_timestamp(one.metadata.creation_timestamp or "") or UnixNs(0)
            )
            for one in keepers
            if (state := plain[one.metadata.key]).is_ready and state.scheduled is not None
        ]
        tiers, newest = places(ready, schedule.spec.keep, zone), max((one.scheduled for one in ready), default=None)
        is_swept = not schedule.spec.suspend
        return {
            one.metadata.key: replace(
                plain[one.metadata.key], tiers=tiers.get(one.metadata.uid, ()), newest=newest, is_swept=is_swept
            )
            for one in keepers
        }

    def _alone(self, keeper: ObjectKeeper, *, is_ready: bool) -> RunState:
        """Return what can be said about a run without the others."""
        owned = self._caches.owned_by(keeper.metadata.uid)
        is_ready = is_ready and not keeper.metadata.deletion_timestamp
        return RunState(
            scheduled=scheduled_time(keeper.metadata),
            is_ready=is_ready and any(is_usable(kind, artifact) for kind, artifact in owned),
            lapses=self._lapses(keeper),
            has_data=any(has_data(kind, artifact) for kind, artifact in owned),
        )

    def _lapses(self, keeper: ObjectKeeper) -> UnixNs | None:
        made = from_timestamp(keeper.metadata.creation_timestamp or "")
        policy = self._policy
        waits = (policy.request_deadline, policy.request_ttl, policy.keeper_ttl)
        return None if made is None else UnixNs(made + sum(one.nanoseconds or 0 for one in waits))

    # --- the domain ---------------------------------------------------------------------------------------------------

    def due(self, now: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[RunState]], None]:
        """See `Domain`."""
        return self.deadlines.pages(now, size=size, find=self._find)

    def until(self, moment: UnixNs) -> Iterator[Candidate[RunState]]:
        """Yield what may be due by a moment, as far as the caches know; the index stays as it is."""
        return (found for key in self.deadlines.until(moment) if (found := self._find(key)) is not None)

    def look_at_all(self) -> None:
        """Judge the runs of every schedule that the caches know, where no controller does."""
        for schedule in self._caches.of(CAPTURE_SCHEDULE).items():
            self.look(schedule)

    async def fresh(self, keeper: ObjectKeeper) -> Candidate[RunState]:
        """Return the keeper of a run that was just read, judged by what the store itself says."""
        judged = await self._judge(keeper) or {}
        state = judged.get(keeper.metadata.key) or replace(self._alone(keeper, is_ready=True), is_swept=False)
        return _candidate(keeper, await self._with_request(keeper, state))

    def _find(self, key: ObjectKey) -> Candidate[RunState] | None:
        keeper, state = self._caches.of(OBJECT_KEEPER).get(key), self._states.get(key)
        return None if keeper is None or state is None else _candidate(keeper, state)

    def next_deadline(self) -> UnixNs | None:
        """See `Domain`."""
        return self.deadlines.next()

    def decide(self, candidate: Candidate[RunState], now: UnixNs) -> Decision:
        """See `Domain`."""
        return decide(candidate.state, now)

    async def refresh(self, candidates: Sequence[Candidate[RunState]]) -> Sequence[Candidate[RunState] | None]:
        """Judge the schedules of these runs again, by what the store itself says of those that have places."""
        judged: dict[str, dict[ObjectKey, RunState] | None] = {}
        fresh: list[Candidate[RunState] | None] = []
        for one in candidates:
            keeper = await self._caches.read(OBJECT_KEEPER, one.handle.key)
            if keeper is None or keeper.metadata.uid != one.uid:
                fresh.append(None)
                continue
            ref = keeper.spec.follow_object_ref
            uid = "" if ref is None else ref.uid or ""
            if uid not in judged:
                judged[uid] = await self._judge(keeper)
            state = (judged[uid] or {}).get(one.handle.key, replace(one.state, is_swept=False))
            fresh.append(_candidate(keeper, await self._with_request(keeper, state)))
        return fresh

    async def _judge(self, keeper: ObjectKeeper) -> dict[ObjectKey, RunState] | None:
        """Judge the schedule that a keeper follows; None when it is gone, or has another uid."""
        ref = keeper.spec.follow_object_ref
        key = ObjectKey(None if ref is None else ref.namespace, "" if ref is None else ref.name)
        schedule = await self._caches.read(CAPTURE_SCHEDULE, key)
        if schedule is None or ref is None or not is_followed(ref, schedule.metadata):
            return None
        keepers, gone, confirmed = self.keepers(schedule), set[str](), set[str]()
        while True:
            states = self.states(schedule, keepers, but=frozenset(gone))
            unsure = [one for one in keepers if states[one.metadata.key].tiers and one.metadata.uid not in confirmed]
            if not unsure:
                return states
            for one in unsure:
                (confirmed if await self._is_there(one) else gone).add(one.metadata.uid)

    async def _is_there(self, keeper: ObjectKeeper) -> bool:
        """Whether the store itself has a keeper and an artifact of it that is ready."""
        found = await self._caches.read(OBJECT_KEEPER, keeper.metadata.key)
        if found is None or found.metadata.uid != keeper.metadata.uid or found.metadata.deletion_timestamp:
            return False
        for kind, cached in self._caches.owned_by(keeper.metadata.uid):
            if is_usable(kind, cached):
                artifact = await self._caches.read(kind, cached.metadata.key)
                if artifact is not None and artifact.metadata.uid == cached.metadata.uid and is_usable(kind, artifact):
                    return True
        return False

    async def _with_request(self, keeper: ObjectKeeper, state: RunState) -> RunState:
        """Say of a run that is not ready whether its request goes on."""
        if state.is_ready:
            return state
        # Past the cache, before it is said that a run came to nothing.
        await self._caches.prepare(OBJECT_KEEPER)
        for kind, cached in self._caches.owned_by(keeper.metadata.uid):
            artifact = await self._caches.read(kind, cached.metadata.key) if kind in _ARTIFACTS else None
            if artifact is not None and has_data(kind, artifact):
                return replace(state, has_data=True)
        try:
            place = locate(keeper.metadata.annotations.get(RUN, ""))
        except PlaceError:
            return replace(state, lapses=None)  # made by nobody we know, so nothing is known about it
        request = await self._caches.read(place.kind, place.key)
        if request is None or keeper_name(place.kind.short, request.metadata.uid) != keeper.metadata.name:
            return state
        return replace(state, goes_on=not is_final(conditions_of(request)))

    def policy(self, candidate: Candidate[RunState]) -> str:
        """See `Domain`: the tiers are the schedule's."""
        return self._digest(self._schedule(candidate))

    def policy_name(self, candidate: Candidate[RunState]) -> str:
        """See `Domain`: the schedule, if it has so many runs that it could end much at once.

        No run is older than the schedule that it follows, so a small one needs no first pass either.
        """
        schedule = self._schedule(candidate)
        name = "" if schedule is None else str(schedule.metadata.key)
        return name if name in self._large else ""

    def policies(self) -> dict[str, str]:
        """See `Domain`: the tiers of schedules with many runs."""
        return self._large

    async def governed(self, *, size: int) -> AsyncGenerator[Sequence[Candidate[RunState]], None]:
        """See `Domain`: the keepers of all runs, as the caches have them."""
        self._caches.demand_synced()
        for schedule in self._caches.of(CAPTURE_SCHEDULE).items():
            keepers = self.keepers(schedule)
            states = self.states(schedule, keepers)
            found = [_candidate(one, states[one.metadata.key]) for one in keepers]
            for start in range(0, len(found), size):
                yield found[start : start + size]

    def _digest(self, schedule: CaptureSchedule | None) -> str:
        return policy_hash(self._policy.digest, "" if schedule is None else schedule.spec.keep)

    def details(self, candidate: Candidate[RunState]) -> dict[str, Any] | None:
        """Name the schedule and the time of the run, to be found again when all of it is gone."""
        schedule, scheduled = self._schedule(candidate), candidate.state.scheduled
        return {
            "schedule": None if schedule is None else str(schedule.metadata.key),
            "scheduled": None if scheduled is None else to_timestamp(scheduled),
        }

    def _schedule(self, candidate: Candidate[RunState]) -> CaptureSchedule | None:
        keeper = self._caches.of(OBJECT_KEEPER).get(candidate.handle.key)
        ref = None if keeper is None else keeper.spec.follow_object_ref
        return None if ref is None else self._caches.of(CAPTURE_SCHEDULE).get(ObjectKey(ref.namespace, ref.name))

    async def settle(self, settled: Sequence[Settled[RunState]]) -> None:
        """See `Domain`."""
        for one in settled:
            key = one.candidate.handle.key
            one.note(self.deadlines, key)
            if one.next_check is None:
                self._states.pop(key, None)  # the next look at its schedule takes note of it again


def _is_of(keeper: ObjectKeeper, schedule: CaptureSchedule) -> bool:
    ref = keeper.spec.follow_object_ref
    is_followed_by = ref is not None and is_followed(ref, schedule.metadata)
    return is_followed_by and keeper.spec.mode == KeeperMode.FOLLOW_OBJECT_WITH_TTL


def _may_be_due(state: RunState) -> UnixNs | None:
    """Return from when on a look is worth it; None: only when something changes."""
    if state.scheduled is None or not state.is_swept:
        return None
    if not state.is_ready:
        return None if state.lapses is None else UnixNs(state.lapses + 1)
    return None if state.tiers else state.newest


def _candidate(keeper: ObjectKeeper, state: RunState) -> Candidate[RunState]:
    meta = keeper.metadata
    return Candidate(
        address=Address("keeper", None, meta.name),
        uid=meta.uid,
        version=meta.resource_version,
        state=state,
        handle=ObjectHandle.of(OBJECT_KEEPER, keeper),
        hold=hold_of(meta.annotations),
        extended=extension_of(meta.annotations),
    )
