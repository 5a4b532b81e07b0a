"""Records and retention policies over HTTP: what experiments did, how long that stays, and passes when asked for.

| address under ``/api/v1`` | what |
|---|---|
| ``/history``, ``/history/{namespace}/{name}`` | records of runs; they are written once and never changed |
| ``/history/prune`` | a pass of the history's own policy, now |
| ``/retention``, ``/retention/{name}`` | policies, with what their last pass did; to be read only |
| ``/retention/{name}/run`` | a pass of one policy, now |
| ``/retention/lint`` | what is odd about policies that are sent; nothing is stored |

A list tells of each record when it is too old. Whether a limit of number, or of the last good ones, has a say as well
depends on all records of its group, which are read for one record and not for each of a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from lapse.core.clock import Clock, UnixNs
from lapse.core.duration import Duration
from lapse.core.timestamps import to_timestamp
from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, RETENTION_POLICY, STATUS, ExecutionStatus, RetentionPolicy
from lapse.history.policy.documents import read_document
from lapse.history.policy.lint import lint
from lapse.history.policy.policies import unreadable
from lapse.history.policy.policy import Policy
from lapse.history.records import write_record
from lapse.history.reports import run_json, summary, told_json
from lapse.history.retention.passes import PassItem
from lapse.history.service import Retention
from lapse.history.view import Seen, by_age_alone, experiment_labels_of, in_force, look_at, opinion_json
from lapse.kube.errors import InvalidError, NotFoundError
from lapse.kube.resources import Document, Json, Kind, ObjectKey, metadata_only
from lapse.objects.port import ObjectStore
from lapse.web.api.errors import ConfirmationNeededError, UnknownParameterError
from lapse.web.api.requests import After, Limit, Name, Namespace

_RECORD: Final[Kind[Any]] = CHAOS_EXPERIMENT_HISTORY
_POLICY: Final[Kind[Any]] = RETENTION_POLICY
_DEFAULT_PAGE: Final = 100
_MOST_POLICIES: Final = 200
_EXPERIMENT: Final = r"^[^/]+/[^/]+$"

# --- the form of requests and answers --------------------------------------------------------------------------------


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewHistoryRecord(_Form):
    """A run that has ended: what a ChaosExperimentHistory says in its spec, with the metadata that it is to have.

    A record without a name is named after its run.
    """

    api_version: Annotated[str | None, Field(alias="apiVersion")] = None
    kind: str | None = None
    metadata: dict[str, Any] = {}
    spec: dict[str, Any]


class PassOrder(_Form):
    """How a pass is to be made."""

    dry_run: Annotated[bool, Field(alias="dryRun", description="End nothing; list what would be ended")] = False
    confirm: Annotated[
        bool, Field(description="Delete although history_ttl is not set and no pass has ever deleted by its default")
    ] = False


class Policies(_Form):
    """Policies to be looked at."""

    policies: Annotated[list[dict[str, Any]], Field(max_length=_MOST_POLICIES, description="RetentionPolicy documents")]


class RecordSummary(BaseModel):
    """A record at a glance."""

    address: str
    namespace: str | None
    name: str
    uid: str
    experiment: str
    """NAMESPACE/NAME."""
    experiment_uid: str | None
    status: str | None
    created: str | None
    expires_at: str | None
    """In a list when it is too old; of one record when it goes, if that is known."""
    held: bool


class RecordPage(BaseModel):
    """Records by namespace and name; pass ``next`` as ``after`` for the following page."""

    items: list[RecordSummary]
    next: str | None


class Opinion(BaseModel):
    """What one policy says about a record."""

    policy: str
    verdict: str
    reason: str
    says: str
    """In words."""


class RecordShown(RecordSummary):
    """A record whole, and how long it stays."""

    verdict: str
    """keep, due or unknown: all policies taken together."""
    reason: str
    expires: str | None
    """When it goes, in words, if no moment is known."""
    retention: list[Opinion]
    object: dict[str, Any]
    """The document."""


class PolicyShown(BaseModel):
    """A policy, and what its last pass did."""

    name: str
    kind: str
    api_version: str
    dry_run: bool
    ready: bool | None
    """None before the first pass."""
    reason: str | None
    message: str | None
    last_run: str | None
    next_run: str | None
    last_run_was_dry: bool | None
    matched: int | None
    deleted: dict[str, int]
    kept: dict[str, int]
    object: dict[str, Any]
    """The document."""


class PolicyPage(BaseModel):
    """Policies by name; pass ``next`` as ``after`` for the following page."""

    items: list[PolicyShown]
    next: str | None


class PassDone(BaseModel):
    """What was due in a pass, the outcome of each item, and the result of each policy."""

    items: list[dict[str, Any]]
    policies: list[dict[str, Any]]


class Findings(BaseModel):
    """Mistakes in policies."""

    findings: list[dict[str, str]]
    policies: int


# --- what the routes need --------------------------------------------------------------------------------------------


class HistoryService:
    """The store, what retention does in it, and what the settings say about records."""

    def __init__(
        self, store: ObjectStore, retention: Retention, *, own: RetentionPolicy, interval: Duration, clock: Clock
    ) -> None:
        """Bind them together; ``own`` is the policy of the history that the settings make."""
        self.store, self._retention, self._clock = store, retention, clock
        self._own, self.interval = Policy.read(own), interval
        self.namespace = own.spec.selector.namespaces[0]

    async def page(self, labels: dict[str, str], *, limit: int, after: str | None) -> Response:
        """Answer one page of records."""
        policies, now = await in_force(self.store, self._own), self._clock.wall_ns()
        found = await self.store.list(
            metadata_only(_RECORD), namespace=self.namespace, labels=labels, limit=limit, after=after
        )
        items = [self._glance(Seen(one.metadata), policies, now) for one in found.items]
        return JSONResponse({"items": items, "next": found.next})

    def _glance(self, seen: Seen, policies: Sequence[Policy], now: int) -> dict[str, Any]:
        at = by_age_alone(seen.metadata, policies)
        told = {**seen.as_json(now), "expires_at": None if at is None else to_timestamp(at)}
        return {name: told[name] for name in RecordSummary.model_fields}

    async def one(self, key: ObjectKey) -> Response:
        """Answer one record with what retention says about it."""
        found = await self.store.get(replace(_RECORD, type=Document), key)
        now = UnixNs(self._clock.wall_ns())
        seen = await look_at(self.store, found.metadata, await in_force(self.store, self._own), now=now)
        opinions = [opinion_json(one, now) for one in seen.opinions]
        body = {**seen.as_json(now), "retention": opinions, "object": _RECORD.body(found)}
        return JSONResponse(body, headers={"ETag": f'"{found.metadata.resource_version}"'})

    async def record(self, new: NewHistoryRecord, where: str) -> Response:
        """Write the record of a run, or find the one that there is."""
        metadata = {"name": "new", **new.metadata, "namespace": self.namespace}
        given = new.metadata.get("namespace", self.namespace)
        body: Json = {"metadata": metadata, "spec": new.spec, "apiVersion": new.api_version, "kind": new.kind}
        body = _RECORD.body({name: value for name, value in body.items() if value is not None})
        asked = read_document(_RECORD, body)
        if given != self.namespace:
            problem = f"metadata.namespace is {given!r}; expected {self.namespace}, where records are kept"
            raise InvalidError(kind=_RECORD.kind, name="to be written", problem=problem)
        wanted = asked.metadata if new.metadata.get("name") else msgspec.structs.replace(asked.metadata, name="")
        made, is_new = await write_record(self.store, asked.spec, namespace=self.namespace, given=wanted)
        seen = Seen(made.metadata)
        told = self._glance(seen, await in_force(self.store, self._own), self._clock.wall_ns())
        place = f"{where}/{made.metadata.namespace}/{made.metadata.name}"
        tag = f'"{made.metadata.resource_version}"'
        return JSONResponse(told, 201 if is_new else 200, headers={"Location": place, "ETag": tag})

    async def policies(self, *, limit: int, after: str | None) -> Response:
        """Answer one page of policies."""
        found = await self.store.list(replace(_POLICY, type=Document), limit=limit, after=after)
        return JSONResponse({"items": [summary(_typed(one)) for one in found.items], "next": found.next})

    async def policy(self, name: str) -> Response:
        """Answer one policy."""
        found = await self.store.get(replace(_POLICY, type=Document), ObjectKey(None, name))
        return JSONResponse(summary(_typed(found)), headers={"ETag": f'"{found.metadata.resource_version}"'})

    async def run(self, name: str, order: PassOrder) -> Response:
        """Let one policy pass now."""
        told: list[PassItem] = []
        waits = not (order.dry_run or order.confirm) and await self._retention.is_unproved({name})
        runs = await self._retention.run_once(only={name}, dry_run=order.dry_run or waits, on_item=told.append)
        if name not in runs:
            raise NotFoundError(kind=RETENTION_POLICY.kind, name=name)
        if waits and told:
            raise ConfirmationNeededError(count=len(told))
        items = [told_json(one) for one in sorted(told, key=lambda one: one.address)]
        return JSONResponse({"items": items, "policies": [run_json(runs[name])]})


def _typed(found: Document) -> RetentionPolicy:
    try:
        return RETENTION_POLICY.convert(found.body)
    except msgspec.ValidationError:  # one that has another form is told of as well
        return unreadable(found.metadata, found.body.get("status"))


def _service(request: Request) -> HistoryService:
    service: HistoryService = request.app.state.history
    return service


def _demand_known(request: Request, *known: str) -> None:
    # A misspelt filter would otherwise answer with everything there is.
    unknown = set(request.query_params) - set(known)
    if unknown:
        raise UnknownParameterError(given=min(unknown), valid=", ".join(sorted(known)))


Service = Annotated[HistoryService, Depends(_service)]
OfExperiment = Annotated[str | None, Query(pattern=_EXPERIMENT, description="Only this experiment: NAMESPACE/NAME")]
OfStatus = Annotated[ExecutionStatus | None, Query(description="Only runs with this status")]

# --- the routes ------------------------------------------------------------------------------------------------------

router = APIRouter(tags=["history"])
_PASSED: Final[dict[int | str, dict[str, Any]]] = {200: {"model": PassDone, "description": "The result of the pass"}}


@router.get("/history", summary="List records", responses={200: {"model": RecordPage}})
async def list_records(
    request: Request,
    service: Service,
    *,
    experiment: OfExperiment = None,
    status: OfStatus = None,
    limit: Limit = _DEFAULT_PAGE,
    after: After = None,
) -> Response:
    """Answer one page of records, by name; those of one experiment are in the order of their runs."""
    _demand_known(request, "experiment", "status", "limit", "after")
    labels = {} if experiment is None else experiment_labels_of(*experiment.split("/"))
    return await service.page(labels | ({} if status is None else {STATUS: status}), limit=limit, after=after)


@router.post(
    "/history",
    summary="Record a run",
    status_code=201,
    responses={
        200: {"model": RecordSummary, "description": "Recorded before, and left as it is"},
        201: {"model": RecordSummary, "description": "Recorded"},
    },
)
async def record(request: Request, body: NewHistoryRecord, service: Service) -> Response:
    """Write the record of a run that has ended; of the same run, which is the same document, there is one record."""
    return await service.record(body, request.url.path)


@router.post("/history/prune", summary="Prune records", responses=_PASSED)
async def prune(body: PassOrder, service: Service) -> Response:
    """End the records that are too old or too many, now; nothing goes while history is frozen.

    If history_ttl is not set and no pass has ever deleted by its default, confirm must be true.
    """
    return await service.run("history", body)


@router.get("/history/{namespace}/{name}", summary="Get a record", responses={200: {"model": RecordShown}})
async def get_record(namespace: Namespace, name: Name, service: Service) -> Response:
    """Return a record with what retention says about it and why."""
    return await service.one(ObjectKey(namespace, name))


@router.get("/retention", summary="List retention policies", responses={200: {"model": PolicyPage}})
async def list_policies(
    request: Request, service: Service, *, limit: Limit = _DEFAULT_PAGE, after: After = None
) -> Response:
    """Answer one page of policies, with what their last passes did."""
    _demand_known(request, "limit", "after")
    return await service.policies(limit=limit, after=after)


@router.post("/retention/lint", summary="Lint policies", responses={200: {"model": Findings}})
async def lint_policies(body: Policies, service: Service) -> Response:
    """Find mistakes in policies: limits that never take effect, groups, overlaps. Nothing is stored."""
    found = lint(body.policies, interval=service.interval.nanoseconds or 0)
    return JSONResponse({"findings": [one.as_json() for one in found], "policies": len(body.policies)})


@router.get("/retention/{name}", summary="Get a retention policy", responses={200: {"model": PolicyShown}})
async def get_policy(name: Name, service: Service) -> Response:
    """Return a policy with what its last pass did."""
    return await service.policy(name)


@router.post("/retention/{name}/run", summary="Run a retention policy", responses=_PASSED)
async def run_policy(name: Name, body: PassOrder, service: Service) -> Response:
    """Run a policy now; one whose dryRun is true ends nothing."""
    return await service.run(name, body)
