"""Views of schedules: when they run next, and what of their runs stays, and why.

`schedule_view` is pure; `read_runs` reads the store, each object at a moment of its own. What is told about a run is
what the sweep would decide of what was read; holds and budgets are not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta, Struct, to_builtins

from lapse.core.clock import UnixNs
from lapse.core.decision import UNREADABLE_EXTENSION
from lapse.core.duration import Duration, DurationError, short
from lapse.core.timestamps import from_timestamp
from lapse.engine.safety.extensions import extension_of
from lapse.engine.view import Moment, fill, known
from lapse.kube.errors import ForbiddenError
from lapse.kube.resources import ConditionStatus, ready_condition
from lapse.objects.trash.rules import first_uid
from lapse.requests.addresses import Located
from lapse.requests.api.conditions import ScheduleReason
from lapse.requests.api.kinds import (
    CAPTURE_SCHEDULE,
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    OBJECT_KEEPER,
    RUN,
    SCHEDULE,
    ScheduleStatus,
)
from lapse.requests.api.upstream import VOLUME_SNAPSHOT_CONTENT
from lapse.requests.controllers.ownership import is_followed
from lapse.requests.schedules.cron import CronError, TimeZoneError
from lapse.requests.schedules.retention import is_usable
from lapse.requests.schedules.runs import cron_of, kind_of_runs, scheduled_time
from lapse.requests.schedules.tiers import ReadyRun, Tier, places

if TYPE_CHECKING:
    from lapse.engine.view import Columns, DetailRow
    from lapse.kube.resources import Kind
    from lapse.objects.port import Reader
    from lapse.requests.api.kinds import CaptureSchedule, ObjectKeeper

UPCOMING: Final = 3
"""How many runs are told in advance."""


class ScheduleView(Struct, frozen=True):
    """A schedule at a glance."""

    address: str
    namespace: str
    name: str
    schedule: str
    time_zone: str
    captures: Annotated[str, Meta(description="The claim, or how many manifests")]
    keep: Annotated[dict[str, int], Meta(description="How many of each tier stay")]
    suspended: bool
    ready: Annotated[bool | None, Meta(description="null while nobody has looked at it")]
    reason: str | None
    message: str | None
    active: int
    kept: int
    last_run_at: Annotated[Moment | None, Meta(description="The time of the last run")]
    last_successful_at: Annotated[Moment | None, Meta(description="The time of the newest run with an artifact")]
    next_runs_at: Annotated[list[Moment], Meta(description="The next runs; none while it is suspended or makes none")]
    no_run: Annotated[str | None, Meta(description="Why there is no run to come, if there is none")]


class RunView(Struct, frozen=True):
    """A run whose keeper is there."""

    keeper: str
    request: Annotated[str | None, Meta(description="The request that made it, which lapses soon")]
    scheduled_at: Moment | None
    artifact: Annotated[str | None, Meta(description="The name of its snapshot or checkpoint, to restore it by")]
    ready: bool
    stays: Annotated[list[str], Meta(description="The tiers in which it has a place; none: it goes")]
    extended_until: Annotated[Moment | None, Meta(description="The time that a person has given its keeper")] = None

    @property
    def why(self) -> str:
        """Say for people why it stays, or that it goes."""
        why = (", ".join(self.stays) or "superseded") if self.ready else "not ready"
        return why if self.extended_until is None else f"{why}, extended until {self.extended_until}"


class ScheduleDetails(ScheduleView, frozen=True):
    """A schedule with its runs, and whole."""

    runs: Annotated[list[RunView] | None, Meta(description="The newest first; null where they may not be listed")]
    object: Annotated[dict[str, Any], Meta(description="The document")]

    @property
    def etag(self) -> str:
        """Its version as HTTP has it, for If-Match."""
        return f'"{self.object["metadata"]["resourceVersion"]}"'


COLUMNS: Final[Columns] = {
    "namespace": "namespace",
    "name": "name",
    "schedule": "schedule",
    "zone": "time_zone",
    "captures": "captures",
    "ready": "ready",
    "reason": lambda one, _: one.reason,
    "kept": "kept",
    "last": lambda one, now: None if one.last_run_at is None else f"{short(now - one.last_run_at)} ago",
    "next": lambda one, now: None if not one.next_runs_at else f"in {short(one.next_runs_at[0] - now)}",
}
RUN_COLUMNS: Final[Columns] = {
    "run": lambda one, _: None if one.scheduled_at is None else str(one.scheduled_at),
    "age": lambda one, now: None if one.scheduled_at is None else short(now - one.scheduled_at),
    "stays as": lambda one, _: one.why,
    "artifact": "artifact",
    "request": "request",
}


def schedule_view(schedule: CaptureSchedule, *, now: int) -> ScheduleView:
    """Return the view of a schedule."""
    meta, spec, status = schedule.metadata, schedule.spec, schedule.status or ScheduleStatus()
    ready = ready_condition(status.conditions)
    volume, manifests = spec.template.volume_capture, spec.template.manifest_capture
    upcoming, no_run = _upcoming(schedule, now)
    count = len(manifests.targets) if manifests else 0
    return ScheduleView(
        address=str(Located(CAPTURE_SCHEDULE, meta.key).address),
        namespace=meta.namespace or "",
        name=meta.name,
        schedule=spec.schedule,
        time_zone=spec.time_zone or "UTC",
        captures=f"pvc/{volume.target.name}" if volume is not None else f"{count} manifest{'' if count == 1 else 's'}",
        keep={str(tier): getattr(spec.keep, tier) for tier in Tier if getattr(spec.keep, tier)},
        suspended=bool(spec.suspend),
        ready=None if ready is None else ready.status == ConditionStatus.TRUE,
        reason=None if ready is None else ready.reason,
        message=(ready.message if ready is not None else None) or None,
        active=status.active or 0,
        kept=status.kept or 0,
        last_run_at=Moment.of(from_timestamp(status.last_schedule_time or "")),
        last_successful_at=Moment.of(from_timestamp(status.last_successful_time or "")),
        next_runs_at=upcoming,
        no_run=no_run,
    )


def _upcoming(schedule: CaptureSchedule, now: int) -> tuple[list[Moment], str | None]:
    """Return the next runs; without any, why there are none."""
    found: list[Moment] = []
    if schedule.spec.suspend:
        return found, "it is suspended"
    try:
        cron, moment = cron_of(schedule.spec), UnixNs(now)
    except (CronError, TimeZoneError) as error:
        return found, f"{ScheduleReason.INVALID_SCHEDULE}: {error}"
    if (refused := _refused(schedule)) is not None:
        return found, refused
    while len(found) < UPCOMING and (following := cron.after(moment)) is not None:
        moment = following
        found.append(Moment(following))
    return found, None if found else "no such time comes within 50 years"


def _refused(schedule: CaptureSchedule) -> str | None:
    """Return why whoever makes the runs makes none, as the status says, unless that is about what has been changed."""
    status = schedule.status or ScheduleStatus()
    ready = ready_condition(status.conditions)
    if ready is None or ready.status == ConditionStatus.TRUE:
        return None
    match ready.reason:
        case ScheduleReason.NOT_ALLOWED:
            counts = kind_of_runs(schedule.spec) is MANIFEST_CAPTURE_REQUEST
        case ScheduleReason.INVALID_SCHEDULE:
            counts = status.observed_generation == schedule.metadata.generation
        case _:
            counts = False
    return f"{ready.reason}: {ready.message}" if counts else None


def detail_rows(view: ScheduleView, now: int) -> list[DetailRow]:
    """Return everything about a schedule that a person may ask for, but its runs."""
    return known(
        [
            ("address", view.address),
            ("schedule", f"{view.schedule} ({view.time_zone})"),
            ("captures", view.captures),
            ("keeps", ", ".join(f"{tier} {count}" for tier, count in view.keep.items())),
            (
                "ready",
                f"{'-' if view.ready is None else view.ready} {f'({view.reason})' if view.reason else ''}".rstrip(),
            ),
            ("message", view.message or ""),
            ("last run", "" if view.last_run_at is None else view.last_run_at.and_age(now)),
            ("last good run", "" if view.last_successful_at is None else view.last_successful_at.and_age(now)),
            *(("next run", f"{moment} (in {short(moment - now)})") for moment in view.next_runs_at),
            ("next run", "" if view.no_run is None else f"none: {view.no_run}"),
            ("active", str(view.active)),
        ]
    )


async def read_details(store: Reader, schedule: CaptureSchedule, *, now: int) -> ScheduleDetails:
    """Return a schedule with its runs, as far as they may be listed: they belong to no namespace."""
    try:
        runs: list[RunView] | None = await read_runs(store, schedule)
    except ForbiddenError:
        runs = None
    document = CAPTURE_SCHEDULE.body(to_builtins(schedule))
    return fill(ScheduleDetails, schedule_view(schedule, now=now), runs=runs, object=document)


async def read_runs(store: Reader, schedule: CaptureSchedule) -> list[RunView]:
    """Return the runs of a schedule whose keepers are there, the newest first. Raises `ForbiddenError`."""
    keepers = await _keepers(store, schedule)
    kinds: tuple[Kind[Any], ...] = (VOLUME_SNAPSHOT_CONTENT, MANIFEST_CHECKPOINT)
    artifacts: dict[str, str] = {}
    usable: set[str] = set()
    for kind in kinds:
        for one in (await store.list(kind)).items:
            owner = one.metadata.controller
            if owner is None:
                continue
            if is_usable(kind, one):
                usable.add(owner.uid)
                artifacts[owner.uid] = one.metadata.name
            else:
                artifacts.setdefault(owner.uid, one.metadata.name)
    tiers = _tiers(schedule, [one for one in keepers if one.metadata.uid in usable])
    found = [
        RunView(
            keeper=_address(one),
            request=one.metadata.annotations.get(RUN),
            scheduled_at=Moment.of(scheduled_time(one.metadata)),
            artifact=artifacts.get(one.metadata.uid),
            ready=one.metadata.uid in usable,
            stays=[str(tier) for tier in tiers.get(one.metadata.uid, ())],
            extended_until=Moment.of(_extended(one)),
        )
        for one in keepers
    ]
    return sorted(found, key=lambda one: one.scheduled_at or 0, reverse=True)


async def _keepers(store: Reader, schedule: CaptureSchedule) -> list[ObjectKeeper]:
    meta = schedule.metadata
    return [
        one
        for one in (await store.list(OBJECT_KEEPER, labels={SCHEDULE: first_uid(meta)})).items
        if one.spec.follow_object_ref is not None and is_followed(one.spec.follow_object_ref, meta)
    ]


def _extended(keeper: ObjectKeeper) -> int | None:
    until = extension_of(keeper.metadata.annotations)
    return None if until == UNREADABLE_EXTENSION else until


def _address(keeper: ObjectKeeper) -> str:
    return str(Located(OBJECT_KEEPER, keeper.metadata.key).address)


async def read_consequence(store: Reader, schedule: CaptureSchedule, *, now: int) -> str:
    """Say what happens to what a schedule has kept when it is deleted now."""
    try:
        keepers = {
            str(Located(OBJECT_KEEPER, one.metadata.key).address): one for one in await _keepers(store, schedule)
        }
        kept = [keepers[one.keeper] for one in await read_runs(store, schedule) if one.ready and one.keeper in keepers]
    except ForbiddenError:
        count = (schedule.status or ScheduleStatus()).kept or 0
        return (
            f"It keeps {_artifacts(count)}, for as long as the keepers of its runs say, which you may not list."
            if count
            else "It has kept nothing."
        )
    if not kept:
        return "It has kept nothing."
    spans = [_span(one) for one in kept]
    known_spans = [one for one in spans if one is not None]
    if len(known_spans) < len(spans):
        return f"It keeps {_artifacts(len(kept))}, until somebody deletes their keepers."
    longest = max(known_spans)
    until = f"{Moment(now + longest)} (in {short(longest)})"
    latest = " at the latest" if min(known_spans) < longest else ""
    return f"It keeps {_artifacts(len(kept))} until {until}{latest}; then {'it goes' if len(kept) == 1 else 'they go'}."


def _artifacts(count: int) -> str:
    return f"{count} artifact{'' if count == 1 else 's'}"


def _span(keeper: ObjectKeeper) -> int | None:
    """Return for how long a keeper stays when what it follows is gone; None for ever."""
    try:
        return Duration.parse(keeper.spec.ttl or "0").nanoseconds
    except DurationError:  # it cannot be read, so nothing is ended
        return None


def _tiers(schedule: CaptureSchedule, ready: list[ObjectKeeper]) -> dict[str, tuple[Tier, ...]]:
    runs = [
        ReadyRun(one.metadata.uid, scheduled, from_timestamp(one.metadata.creation_timestamp or "") or UnixNs(0))
        for one in ready
        if (scheduled := scheduled_time(one.metadata)) is not None
    ]
    try:
        return places(runs, schedule.spec.keep, cron_of(schedule.spec).zone)
    except (CronError, TimeZoneError):
        return {}
