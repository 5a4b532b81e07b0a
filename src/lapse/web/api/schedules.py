"""Schedules over HTTP: captures again and again, when they run next, and what of their runs stays.

| address under ``/api/v1`` | what |
|---|---|
| ``/schedules`` | schedules; POST makes one |
| ``/schedules/{namespace}/{name}`` | one with its runs; PATCH changes its spec, suspension included |

What is sent and answered as ``object`` is the Kubernetes document; its rules are those of `lapse.requests.api` and of
the store, and that its times can be read. A PATCH merges (RFC 7386: null removes) into the spec.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request
from pydantic import Field
from starlette.responses import Response

from lapse.engine.view import ViewPage
from lapse.kube.errors import ConflictError, InvalidError
from lapse.kube.resources import Json, ObjectKey
from lapse.requests.api.kinds import CAPTURE_SCHEDULE, CaptureSchedule
from lapse.requests.schedules.cron import Cron, CronError, TimeZoneError
from lapse.requests.schedules.view import ScheduleDetails, ScheduleView, read_details, schedule_view
from lapse.web.api.errors import VersionChangedError
from lapse.web.api.forms import (
    DEFAULT_PAGE,
    IF_MATCH,
    After,
    Answer,
    Form,
    Name,
    Namespace,
    answer,
    etag,
    match_of,
    problems,
)
from lapse.web.api.requests import InNamespace, Limit, NewObject, RequestsService, Service

_TRIES: Final = 5
"""How often a change without If-Match is tried while the status of the schedule is being written."""


class ScheduleChange(Form):
    """What is merged into the spec of a schedule."""

    spec: Annotated[dict[str, Any], Field(description="As in the document; null removes a field")]


class SchedulePage(ViewPage[ScheduleView], frozen=True):
    """Schedules by namespace and name; pass ``next`` as ``after`` for the following page."""


class SchedulesService:
    """Schedules in the store of the requests."""

    def __init__(self, requests: RequestsService) -> None:
        """Work on what the routes of requests work on."""
        self._requests, self._store = requests, requests.store

    async def page(self, namespace: str | None, *, limit: int, after: str | None) -> Response:
        """Answer one page of schedules."""
        found = await self._store.list(CAPTURE_SCHEDULE, namespace=namespace, limit=limit, after=after)
        now = self._requests.now
        return Answer(SchedulePage([schedule_view(one, now=now) for one in found.items], found.next))

    async def one(self, key: ObjectKey) -> Response:
        """Answer one schedule with its runs."""
        return await self._answer(await self._store.get(CAPTURE_SCHEDULE, key))

    async def create(self, new: NewObject, where: str) -> Response:
        """Make a schedule and answer it."""
        _demand_times(new.metadata.name, new.spec.get("schedule"), new.spec.get("timeZone"))
        await self._requests.create(CAPTURE_SCHEDULE, new, where)
        key = ObjectKey(new.metadata.namespace, new.metadata.name)
        place = f"{where}/{key.namespace}/{key.name}"
        return await self._answer(await self._store.get(CAPTURE_SCHEDULE, key), status=201, Location=place)

    async def change(self, request: Request, key: ObjectKey, spec: Json) -> Response:
        """Change a schedule as it was read; with If-Match only if that is the version that the caller means."""
        conditions = match_of(request, "PATCH")
        for tries_left in reversed(range(_TRIES)):
            found = await self._store.get(CAPTURE_SCHEDULE, key)
            meta = found.metadata
            if conditions.tags is not None and not conditions.matches(etag(found)["ETag"]):
                raise VersionChangedError
            zone = spec.get("timeZone", found.spec.time_zone)
            _demand_times(meta.name, spec.get("schedule", found.spec.schedule), zone)
            try:
                changed = await self._store.patch(
                    CAPTURE_SCHEDULE, key, {"spec": spec}, uid=meta.uid, version=meta.resource_version
                )
            except ConflictError:
                if not tries_left:
                    raise
            else:
                return await self._answer(changed)
        raise AssertionError("the last try returns or raises")

    async def _answer(self, found: CaptureSchedule, *, status: int = 200, **headers: str) -> Response:
        details = await read_details(self._store, found, now=self._requests.now)
        return Answer(details, status, headers={**etag(found), **headers})


def _demand_times(name: str, schedule: object, zone: object) -> None:
    """Refuse times that cannot be read; what has another form is for the store to refuse."""
    if isinstance(schedule, str) and isinstance(zone, str | None):
        try:
            Cron.parse(schedule, zone)
        except (CronError, TimeZoneError) as error:
            raise InvalidError(kind=CAPTURE_SCHEDULE.kind, name=name, problem=str(error)) from error


async def _service(requests: Service) -> SchedulesService:
    return SchedulesService(requests)


Schedules = Annotated[SchedulesService, Depends(_service)]

# --- the routes ------------------------------------------------------------------------------------------------------

router = APIRouter(tags=["schedules"])
_SHOWN: Final[dict[int | str, dict[str, Any]]] = {200: answer(ScheduleDetails, tagged=True), **problems(404)}


@router.get(
    "/schedules",
    operation_id="schedules.list",
    summary="List schedules",
    responses={200: answer(SchedulePage), **problems(410)},
)
async def list_schedules(
    schedules: Schedules,
    *,
    namespace: InNamespace = None,
    limit: Limit = DEFAULT_PAGE,
    after: After = None,
) -> Response:
    """Answer one page of schedules, with their last and next runs."""
    return await schedules.page(namespace, limit=limit, after=after)


@router.post(
    "/schedules",
    operation_id="schedules.create",
    summary="Make a schedule",
    status_code=201,
    responses={
        201: answer(ScheduleDetails, "The schedule is stored", tagged=True, located=True),
        **problems(409),
    },
)
async def create_schedule(request: Request, body: NewObject, schedules: Schedules) -> Response:
    """Make a schedule; the leading process makes its runs, and its Ready condition tells if it cannot."""
    return await schedules.create(body, request.url.path)


@router.get("/schedules/{namespace}/{name}", operation_id="schedules.show", summary="Get a schedule", responses=_SHOWN)
async def get_schedule(namespace: Namespace, name: Name, schedules: Schedules) -> Response:
    """Return a schedule with its runs, and why each stays; its ETag is for If-Match."""
    return await schedules.one(ObjectKey(namespace, name))


@router.patch(
    "/schedules/{namespace}/{name}",
    operation_id="schedules.edit",
    summary="Change a schedule",
    responses={**_SHOWN, **problems(409, 412)},
    openapi_extra=IF_MATCH,
)
async def change_schedule(
    request: Request, namespace: Namespace, *, name: Name, body: ScheduleChange, schedules: Schedules
) -> Response:
    """Change or suspend a schedule; with less to keep, what has no place any more goes at once."""
    return await schedules.change(request, ObjectKey(namespace, name), body.spec)


@router.delete(
    "/schedules/{namespace}/{name}",
    operation_id="schedules.delete",
    summary="Delete a schedule",
    status_code=204,
    openapi_extra=IF_MATCH,
    responses=problems(404, 409, 412),
)
async def delete_schedule(request: Request, namespace: Namespace, *, name: Name, requests: Service) -> Response:
    """Delete a schedule. What it has kept stays for a while, as the keepers of its runs say."""
    return await requests.remove(request, CAPTURE_SCHEDULE, ObjectKey(namespace, name))
