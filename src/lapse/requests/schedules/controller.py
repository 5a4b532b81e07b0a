"""The schedule controller: makes the run that is due, and keeps the status true.

One run at a time: of several that were missed, the latest is made up, unless it is later than ``startingDeadline``. A
schedule has no past: none is made for a time before it was made, resumed, or given another schedule or time zone
(``status.notBefore``). Runs that fall into a suspension are not missed, and not made up. While it is not known what
time it is, no run is made and nothing is dated.

The request is made first, under a name that follows from the time; then the status says so. After a crash in between
the next reconcile finds the request, or, if that has lapsed, the keeper that it left. A run that cannot be made (there
is no such claim, the name is taken) is told in the status and tried again every minute until the next one is due.

Not guaranteed: a run within the minute. Overlapping runs are made; a capture of a volume that takes longer than its
schedule allows is the snapshotter's to refuse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lapse.core.clock import UnixNs
from lapse.core.duration import Duration, DurationError
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.kube.controller.controller import ReconcileResult, require
from lapse.kube.errors import AlreadyExistsError, ForbiddenError, InvalidError, NotFoundError, UnknownKindError
from lapse.kube.resources import ObjectKey, ready_condition
from lapse.objects.trash.rules import first_uid
from lapse.requests.addresses import Located
from lapse.requests.api.conditions import ScheduleReason, is_final
from lapse.requests.api.kinds import (
    CAPTURE_SCHEDULE,
    MANIFEST_CAPTURE_REQUEST,
    OBJECT_KEEPER,
    SCHEDULE,
    VOLUME_CAPTURE_REQUEST,
    ScheduleStatus,
)
from lapse.requests.api.upstream import PERSISTENT_VOLUME_CLAIM
from lapse.requests.controllers.finalise import conditions_of, with_ready
from lapse.requests.schedules.cron import CronError, TimeZoneError
from lapse.requests.schedules.runs import (
    NO_MANIFESTS,
    Runs,
    claim_of_runs,
    cron_of,
    kind_of_runs,
    request_of_run,
    run_name,
    scheduled_time,
    why_no_run,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lapse.core.clock import Clock
    from lapse.kube.resources import Json, Kind
    from lapse.objects.port import ObjectStore
    from lapse.requests.api.kinds import CaptureSchedule, ScheduleSpec
    from lapse.requests.controllers.caches import Caches
    from lapse.requests.controllers.finalise import Request
    from lapse.requests.schedules.retention import RunState, SupersededRuns

RUNS_OF: Final = "schedule"
"""The index of the requests' caches that finds those that say they are runs of a schedule."""
_AGAIN_SECONDS: Final = 60.0
"""How soon a run that could not be made is tried again."""
_LONGEST_WAIT_SECONDS: Final = 600.0
"""How long a timer sleeps at the most: the clock of the wall may be set meanwhile."""
_NS: Final = 1_000_000_000
_NO_STATUS: Final = ScheduleStatus()


def runs_of(request: Request) -> list[str]:
    """Return the schedule that a request says it is a run of, for the index `RUNS_OF`."""
    name = request.metadata.labels.get(SCHEDULE)
    return [] if name is None else [str(ObjectKey(request.metadata.namespace, name))]


@dataclass(frozen=True, slots=True)
class Timing:
    """When the runs of a schedule are, seen from one moment."""

    not_before: UnixNs
    due: UnixNs | None
    """The run to be made now."""
    missed: UnixNs | None
    """The run that is too late to be made up."""
    next: UnixNs | None


def timing_of(schedule: CaptureSchedule, now: UnixNs) -> Timing:
    """Say which run is due. Pure; raises `CronError` and `TimeZoneError`.

    A status may be forged, or written by a wrong clock: what it tells of the future is not believed. A run that was
    made and is due again by that is found by whoever makes it.
    """
    cron, status = cron_of(schedule.spec), schedule.status or _NO_STATUS
    not_before = _not_before(schedule, now)
    last = from_timestamp(status.last_schedule_time or "")
    since = not_before if last is None or last > now else max(not_before, last)
    latest, following = cron.latest(now), cron.after(now)
    if latest is None or latest <= since:
        return Timing(not_before, None, None, following)
    limit = _starting_deadline(schedule.spec)
    if limit is not None and now > latest + limit:
        return Timing(not_before, None, latest, following)
    return Timing(not_before, latest, None, following)


def observed_schedule(spec: ScheduleSpec) -> str | None:
    """Return what runs are counted by, as the status remembers it; None for a suspended schedule, which counts none."""
    return None if spec.suspend else f"{spec.schedule} {spec.time_zone or 'UTC'}"


def _not_before(schedule: CaptureSchedule, now: UnixNs) -> UnixNs:
    status = schedule.status or _NO_STATUS
    known = from_timestamp(status.not_before or "")
    if known is None:
        return min(now, from_timestamp(schedule.metadata.creation_timestamp or "") or now)
    return min(now, known) if status.observed_schedule == observed_schedule(schedule.spec) else now


def _starting_deadline(spec: ScheduleSpec) -> int | None:
    try:
        return None if spec.starting_deadline is None else Duration.parse(spec.starting_deadline).nanoseconds
    except DurationError:
        return None


@dataclass(frozen=True, slots=True)
class _News:
    """What the Ready condition is to say."""

    ready: bool
    reason: ScheduleReason
    message: str = ""


class ScheduleController:
    """Reconciles CaptureSchedules."""

    def __init__(
        self, *, store: ObjectStore, caches: Caches, runs: Runs, superseded: SupersededRuns, clock: Clock
    ) -> None:
        """Take what is needed, all of it."""
        require(self, store=store, caches=caches, runs=runs, superseded=superseded, clock=clock)
        self._store, self._caches, self._runs = store, caches, runs
        self._superseded, self._clock = superseded, clock

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        """Make the run that is due, if one is, and say how things are."""
        # Past the cache: a schedule that was suspended or deleted a moment ago makes no run any more.
        schedule = await self._caches.read(CAPTURE_SCHEDULE, key)
        if schedule is None or schedule.metadata.deletion_timestamp:
            return ReconcileResult()
        states = self._superseded.look(schedule)
        if self._clock.in_doubt():
            return ReconcileResult(requeue_after=_AGAIN_SECONDS)
        now = UnixNs(self._clock.wall_ns())
        try:
            timing = timing_of(schedule, now)
        except (CronError, TimeZoneError) as error:
            await self._write(schedule, _News(False, ScheduleReason.INVALID_SCHEDULE, str(error)), states)
            return ReconcileResult()
        if kind_of_runs(schedule.spec) is MANIFEST_CAPTURE_REQUEST and not self._runs.manifests:
            await self._write(schedule, _News(False, ScheduleReason.NOT_ALLOWED, NO_MANIFESTS), states, timing)
            return ReconcileResult()
        if schedule.spec.suspend:
            await self._write(schedule, _News(True, ScheduleReason.SUSPENDED), states, timing)
            return ReconcileResult()
        problem = None if timing.due is None else await self._make(schedule, timing.due)
        made = timing.due if problem is None else None
        await self._write(schedule, self._news(schedule, timing, problem), states, timing, made=made)
        return self._look_again(timing, problem)

    def _look_again(self, timing: Timing, problem: str | None) -> ReconcileResult:
        left = _LONGEST_WAIT_SECONDS if timing.next is None else (timing.next - self._clock.wall_ns()) / _NS
        longest = _LONGEST_WAIT_SECONDS if problem is None else _AGAIN_SECONDS
        return ReconcileResult(requeue_after=min(longest, max(0.0, left)))

    # --- a run ------------------------------------------------------------------------------------------------------

    async def _make(self, schedule: CaptureSchedule, scheduled: UnixNs) -> str | None:
        """Make the request of a run, unless it was made; return why it cannot be."""
        kind, meta = kind_of_runs(schedule.spec), schedule.metadata
        key = ObjectKey(meta.namespace, run_name(meta.name, scheduled))
        if await self._was_made(schedule, scheduled):
            return None
        try:
            wanted = request_of_run(schedule, scheduled, claim_uid=await self._claim_uid(schedule))
            return await self._create(schedule, kind, key, wanted)
        except (NotFoundError, ForbiddenError, InvalidError, UnknownKindError) as error:
            return str(error)

    async def _create(self, schedule: CaptureSchedule, kind: Kind[Any], key: ObjectKey, wanted: Json) -> str | None:
        """Store a request, unless it is there; return why another one of its name is none."""
        try:
            await self._store.create(kind, wanted)
        except AlreadyExistsError:
            found = await self._caches.read(kind, key)
            problem = None if found is None else why_no_run(kind, found, schedule) or _other_claim(found, wanted)
            return None if problem is None else f"{Located(kind, key)} is there already, and is no run of it: {problem}"
        return None

    async def _was_made(self, schedule: CaptureSchedule, scheduled: UnixNs) -> bool:
        """Whether a run left a keeper: its request may have lapsed before anybody wrote down that it was made."""
        after = None
        while True:
            page = await self._store.list(OBJECT_KEEPER, labels={SCHEDULE: first_uid(schedule.metadata)}, after=after)
            if any(scheduled_time(one.metadata) == scheduled for one in page.items):
                return True
            if page.next is None:
                return False
            after = page.next

    async def _claim_uid(self, schedule: CaptureSchedule) -> str | None:
        key = claim_of_runs(schedule)
        if key is None:
            return None
        claim = await self._caches.find(PERSISTENT_VOLUME_CLAIM, key)
        if claim is None:
            raise NotFoundError(kind=PERSISTENT_VOLUME_CLAIM.kind, name=key)
        return claim.metadata.uid

    # --- the status -------------------------------------------------------------------------------------------------

    def _requests(self, schedule: CaptureSchedule) -> list[Any]:
        """Return the requests that are runs of a schedule, as far as the caches know; the newest last."""
        key = str(schedule.metadata.key)
        kinds: tuple[Kind[Any], ...] = (VOLUME_CAPTURE_REQUEST, MANIFEST_CAPTURE_REQUEST)
        found = [
            request
            for kind in kinds
            for request in self._caches.of(kind).indexed(RUNS_OF, key)
            if why_no_run(kind, request, schedule) is None
        ]
        return sorted(found, key=lambda one: scheduled_time(one.metadata) or 0)

    def _news(self, schedule: CaptureSchedule, timing: Timing, problem: str | None) -> _News:
        if problem is not None and timing.due is not None:
            message = f"the run of {to_timestamp(timing.due)} could not be made: {problem}"
            return _News(False, ScheduleReason.RUN_NOT_MADE, message)
        if timing.missed is not None:
            late = f"the run of {to_timestamp(timing.missed)} was not made: it was later than startingDeadline"
            return _News(True, ScheduleReason.SCHEDULED, late)
        ended = [one for one in self._requests(schedule) if is_final(conditions_of(one))]
        if ended:
            last = ready_condition(conditions_of(ended[-1]))
            if last is not None and last.status != "True":
                message = f"{ended[-1].metadata.name} has failed ({last.reason}): {last.message}"
                return _News(False, ScheduleReason.RUN_FAILED, message)
            return _News(True, ScheduleReason.SCHEDULED)
        known = ready_condition((schedule.status or _NO_STATUS).conditions)
        if known is not None and known.reason == ScheduleReason.RUN_FAILED and timing.due is None:
            return _News(
                False, ScheduleReason.RUN_FAILED, known.message
            )  # its request has lapsed, and no other has run
        return _News(True, ScheduleReason.SCHEDULED)

    async def _write(
        self,
        schedule: CaptureSchedule,
        news: _News,
        states: dict[ObjectKey, RunState],
        timing: Timing | None = None,
        *,
        made: UnixNs | None = None,
    ) -> None:
        """Write the status if it is not that already; a race is lost, and looked at again."""
        meta, known = schedule.metadata, schedule.status or _NO_STATUS
        is_counting = timing is not None and news.reason not in {ScheduleReason.SUSPENDED, ScheduleReason.NOT_ALLOWED}
        status: Json = {
            "lastScheduleTime": known.last_schedule_time if made is None else to_timestamp(made),
            "nextScheduleTime": None if timing is None or not is_counting else _printed(timing.next),
            "lastSuccessfulTime": _last_successful(known, states.values()),
            "active": sum(not is_final(conditions_of(one)) for one in self._requests(schedule)),
            "kept": sum(state.is_ready for state in states.values()),
            "conditions": with_ready(
                known.conditions,
                ready=news.ready,
                reason=news.reason,
                message=news.message,
                now=to_timestamp(self._clock.wall_ns()),
                generation=meta.generation,
            ),
            "observedGeneration": meta.generation,
            "observedSchedule": observed_schedule(schedule.spec) if is_counting else None,
            "notBefore": known.not_before if timing is None else to_timestamp(timing.not_before),
        }
        if msgspec.convert(status, ScheduleStatus) == known:
            return
        await self._store.patch_status(CAPTURE_SCHEDULE, meta.key, status, uid=meta.uid, version=meta.resource_version)


def _other_claim(found: Request, wanted: Json) -> str | None:
    """Say that a request which looks like a run captures another claim: it would fail, and count as made."""
    same = msgspec.to_builtins(found.spec) == wanted["spec"]
    return None if same else "it captures a claim of another uid"


def _printed(moment: UnixNs | None) -> str | None:
    return None if moment is None else to_timestamp(moment)


def _last_successful(known: ScheduleStatus, states: Iterable[RunState]) -> str | None:
    """Return the time of the newest run that has an artifact; what was once told stays, also when that one is gone."""
    times = [state.scheduled for state in states if state.is_ready and state.scheduled is not None]
    before = from_timestamp(known.last_successful_time or "")
    newest = max(times, default=None)
    return (
        known.last_successful_time if newest is None or (before is not None and newest <= before) else _printed(newest)
    )
