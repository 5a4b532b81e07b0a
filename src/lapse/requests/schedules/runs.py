"""Runs of schedules: the request that one makes, and how a request is known to be one.

A run is an ordinary request. Its name follows from the schedule and the time, so that it is made once, whoever makes it
and however often that is tried. Its artifact TTL is ``never``: nothing counts from the end of the request. Its keeper
follows the schedule, which is what decides how long the artifact stays.

**Labels, annotations and names are free**: whoever may make a request may write them. So a request that says that it is
a run is compared with the schedule before anything is made for it: it must be what the schedule itself asks for, to the
letter, for the time that was the latest of the schedule when the *store* says that the request was made. Who forges a
request can then cause nothing that the schedule would not have caused: one artifact of the same target for one of its
times. A second one for the same time takes no place (`lapse.requests.schedules.tiers`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from lapse.core.clock import UnixNs
from lapse.core.errors import LapseError
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.kube.resources import ObjectKey
from lapse.requests.api.kinds import (
    CAPTURE_SCHEDULE,
    MANIFEST_CAPTURE_REQUEST,
    SCHEDULE,
    SCHEDULED_AT,
    VOLUME_CAPTURE_REQUEST,
)
from lapse.requests.schedules.cron import Cron, CronError, TimeZoneError

if TYPE_CHECKING:
    from lapse.kube.resources import Json, Kind, ObjectMeta
    from lapse.requests.api.kinds import CaptureSchedule, ScheduleSpec
    from lapse.requests.controllers.caches import Caches
    from lapse.requests.controllers.finalise import Request

NEVER: Final = "never"
_SKEW_NS: Final = 60_000_000_000
"""How far the clock of the store may be behind that of who makes runs."""


class NotARunError(LapseError):
    """The label lapse.dev/schedule says that this is a run of the CaptureSchedule {schedule}, but {problem}.

    Runs are made by Lapse itself. Make a request of your own without that label.
    """


def cron_of(spec: ScheduleSpec) -> Cron:
    """Return when runs are due; raises `CronError` and `TimeZoneError`."""
    return Cron.parse(spec.schedule, spec.time_zone)


def run_name(schedule: str, scheduled: UnixNs) -> str:
    """Name the request of a run: the schedule, and the minute in UTC."""
    digits = "".join(filter(str.isdigit, to_timestamp(scheduled)[:16]))
    return f"{schedule}-{digits}"


def kind_of_runs(spec: ScheduleSpec) -> Kind[Any]:
    """Return what a schedule asks for."""
    return MANIFEST_CAPTURE_REQUEST if spec.template.volume_capture is None else VOLUME_CAPTURE_REQUEST


def claim_of_runs(schedule: CaptureSchedule) -> ObjectKey | None:
    """Return the claim whose uid must be looked up for a run; None where nothing is to be looked up."""
    volume = schedule.spec.template.volume_capture
    return None if volume is None or volume.target.uid else ObjectKey(schedule.metadata.namespace, volume.target.name)


def request_of_run(schedule: CaptureSchedule, scheduled: UnixNs, *, claim_uid: str | None) -> Json:
    """Return the request of a run; ``claim_uid`` is that of `claim_of_runs`."""
    meta = schedule.metadata
    return {
        "metadata": {
            "name": run_name(meta.name, scheduled),
            "namespace": meta.namespace,
            "labels": {SCHEDULE: meta.name},
            "annotations": {SCHEDULED_AT: to_timestamp(scheduled)},
        },
        "spec": _spec(schedule.spec, claim_uid),
    }


def _spec(spec: ScheduleSpec, claim_uid: str | None) -> Json:
    template = spec.template
    found: Json = msgspec.to_builtins(template.volume_capture or template.manifest_capture)
    if template.volume_capture is not None and claim_uid is not None:
        found["target"] = {**found["target"], "uid": claim_uid}
    return {**found, "artifactTTL": NEVER}


def scheduled_time(meta: ObjectMeta) -> UnixNs | None:
    """Return the time that a request or a keeper says it was made for; None when it says none that can be read."""
    return from_timestamp(meta.annotations.get(SCHEDULED_AT, ""))


def why_no_run(kind: Kind[Any], request: Request, schedule: CaptureSchedule) -> str | None:
    """Say why a request is not a run of a schedule; None when it is one. Pure."""
    scheduled, name = scheduled_time(request.metadata), request.metadata.name
    if scheduled is None:
        return f"it does not say for which time: the annotation {SCHEDULED_AT} is missing or cannot be read"
    if name != run_name(schedule.metadata.name, scheduled):
        return f"its name is not {run_name(schedule.metadata.name, scheduled)}"
    if kind is not kind_of_runs(schedule.spec):
        return f"the schedule asks for a {kind_of_runs(schedule.spec).kind}"
    asked: Json = msgspec.to_builtins(request.spec)
    if asked != _spec(schedule.spec, asked.get("target", {}).get("uid")):
        return "the schedule asks for something else, or has been changed since"
    return _why_not_then(request.metadata, scheduled, schedule.spec)


def _why_not_then(meta: ObjectMeta, scheduled: UnixNs, spec: ScheduleSpec) -> str | None:
    """Say why no run was due for the time that a request names, when it was made."""
    try:
        cron = cron_of(spec)
    except (CronError, TimeZoneError) as error:
        return f"its schedule cannot be read: {error}"
    made = from_timestamp(meta.creation_timestamp or "")
    if made is None:
        return "it is not known when it was made"
    if scheduled in {cron.latest(made), cron.latest(UnixNs(made + _SKEW_NS))}:
        return None
    return f"{to_timestamp(scheduled)} was not the latest time of the schedule when it was made"


class Runs:
    """Tells runs of schedules from other requests. ``manifests``: whether runs may capture manifests."""

    def __init__(self, caches: Caches, *, manifests: bool) -> None:
        """Ask ``caches`` for schedules; what they say against a request is read again."""
        self._caches, self.manifests = caches, manifests

    async def schedule_of(self, kind: Kind[Any], request: Request) -> CaptureSchedule | None:
        """Return the schedule of a run, None for a request that says nothing of one; raises `NotARunError`."""
        meta = request.metadata
        name = meta.labels.get(SCHEDULE)
        if name is None:
            return None
        if kind is MANIFEST_CAPTURE_REQUEST and not self.manifests:
            raise NotARunError(schedule=name, problem=NO_MANIFESTS)
        schedule = await self._caches.find(
            CAPTURE_SCHEDULE,
            ObjectKey(meta.namespace, name),
            suits=lambda cached: why_no_run(kind, request, cached) is None,
        )
        problem = "there is no such schedule" if schedule is None else why_no_run(kind, request, schedule)
        if problem is not None:
            raise NotARunError(schedule=name, problem=problem)
        return schedule


NO_MANIFESTS: Final = (
    "this operator makes no scheduled captures of manifests, because it would read them with its own rights. Where the"
    " admission webhook judges schedules, its administrator may set schedule_manifests to admitted"
)
