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

from dataclasses import replace
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field
from starlette.responses import Response

from lapse.core.clock import Clock, UnixNs
from lapse.core.duration import Duration
from lapse.engine.view import ViewPage, fill
from lapse.history.api.kinds import (
    CHAOS_EXPERIMENT_HISTORY,
    EXPERIMENT_NAMESPACE,
    RETENTION_POLICY,
    STATUS,
    ExecutionStatus,
    RetentionPolicy,
    label_value,
)
from lapse.history.policy.documents import read_document
from lapse.history.policy.lint import lint
from lapse.history.policy.policies import unreadable
from lapse.history.records import write_record
from lapse.history.retention.passes import PassItem
from lapse.history.service import Retention
from lapse.history.view import (
    Findings,
    JudgedRecord,
    PassView,
    PolicyView,
    RecordDetails,
    Recorded,
    RecordView,
    about_records,
    experiment_filter,
    experiment_labels_of,
    is_of,
    look,
    look_at,
    pass_view,
    policy_view,
)
from lapse.kube.errors import InvalidError, NotFoundError
from lapse.kube.resources import Document, Json, Kind, ObjectKey, metadata_only
from lapse.objects.port import ObjectStore
from lapse.web.api.errors import ConfirmationNeededError
from lapse.web.api.forms import DEFAULT_PAGE, After, Answer, Form, Name, Namespace, answer, etag, problems
from lapse.web.api.requests import Limit

_RECORD: Final[Kind[Any]] = CHAOS_EXPERIMENT_HISTORY
_POLICY: Final[Kind[Any]] = RETENTION_POLICY
_MOST_POLICIES: Final = 200
_EXPERIMENT: Final = r"^[^/]+/[^/]+$"

# --- the form of requests and answers --------------------------------------------------------------------------------


class NewHistoryRecord(Form):
    """A run that has ended: what a ChaosExperimentHistory says in its spec, with the metadata that it is to have.

    A record without a name is named after its run.
    """

    api_version: Annotated[str | None, Field(alias="apiVersion")] = None
    kind: str | None = None
    metadata: Annotated[dict[str, Any], Field(default={})]
    spec: dict[str, Any]


class PassOrder(Form):
    """How a pass is to be made."""

    dry_run: Annotated[bool, Field(alias="dryRun", description="End nothing; list what would be ended")] = False
    confirm: Annotated[
        bool, Field(description="Delete although history_ttl is not set and no pass has ever deleted by its default")
    ] = False


class Policies(Form):
    """Policies to be looked at."""

    policies: Annotated[list[dict[str, Any]], Field(max_length=_MOST_POLICIES, description="RetentionPolicy documents")]


class RecordPage(ViewPage[RecordView], frozen=True):
    """Records by namespace and name; pass ``next`` as ``after`` for the following page."""


class PolicyPage(ViewPage[PolicyView], frozen=True):
    """Policies by name; pass ``next`` as ``after`` for the following page."""


# --- what the routes need --------------------------------------------------------------------------------------------


class HistoryService:
    """The store, what retention does in it, and what the settings say about records."""

    def __init__(
        self, store: ObjectStore, retention: Retention, *, namespace: str, interval: Duration, clock: Clock
    ) -> None:
        """Bind them together; ``namespace`` is where records are kept."""
        self.store, self._retention, self._clock = store, retention, clock
        self.namespace, self.interval = namespace, interval

    async def page(self, namespace: str | None, labels: dict[str, str], *, limit: int, after: str | None) -> Response:
        """Answer one page of records, of one namespace or of all."""
        policies, now = about_records(await self._retention.load()), self._clock.wall_ns()
        found = await self.store.list(
            metadata_only(_RECORD), namespace=namespace, labels=labels, limit=limit, after=after
        )
        items = [JudgedRecord(one.metadata).aged_view(policies, now) for one in found.items]
        return Answer(RecordPage(items, found.next))

    async def records_of(self, experiment: str, *, limit: int) -> list[RecordView]:
        """Return the newest records of an experiment, each with how long it stays."""
        namespace, _, name = experiment.partition("/")
        policies, now = about_records(await self._retention.load()), UnixNs(self._clock.wall_ns())
        labels = experiment_filter(policies, namespace, name)
        found = await look(self.store, policies, namespace=self.namespace, now=now, labels=labels)
        return [one.view(now) for one in found if is_of(one, namespace, name)][:limit]

    async def policy_views(self) -> list[PolicyView]:
        """Return the policies that there are, with what came of their last passes."""
        found = await self.store.list(replace(_POLICY, type=Document), limit=_MOST_POLICIES)
        return [policy_view(_typed(one)) for one in found.items]

    async def one(self, key: ObjectKey) -> Response:
        """Answer one record with what retention says about it."""
        found = await self.store.get(replace(_RECORD, type=Document), key)
        now = UnixNs(self._clock.wall_ns())
        judged = await look_at(self.store, found.metadata, about_records(await self._retention.load()), now=now)
        return Answer(judged.details(_RECORD.body(found), now), headers=etag(found))

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
        policies = about_records(await self._retention.load())
        view = fill(Recorded, JudgedRecord(made.metadata).aged_view(policies, self._clock.wall_ns()), new=is_new)
        place = f"{where}/{made.metadata.namespace}/{made.metadata.name}"
        return Answer(view, 201 if is_new else 200, headers={"Location": place, **etag(made)})

    async def policies(self, *, limit: int, after: str | None) -> Response:
        """Answer one page of policies."""
        found = await self.store.list(replace(_POLICY, type=Document), limit=limit, after=after)
        return Answer(PolicyPage([policy_view(_typed(one)) for one in found.items], found.next))

    async def policy(self, name: str) -> Response:
        """Answer one policy."""
        found = await self.store.get(replace(_POLICY, type=Document), ObjectKey(None, name))
        return Answer(policy_view(_typed(found)), headers=etag(found))

    async def run(self, name: str, order: PassOrder) -> Response:
        """Let one policy pass now."""
        told: list[PassItem] = []
        waits = not (order.dry_run or order.confirm) and await self._retention.is_unproved({name})
        runs = await self._retention.run_once(only={name}, dry_run=order.dry_run or waits, on_item=told.append)
        if name not in runs:
            raise NotFoundError(kind=RETENTION_POLICY.kind, name=name)
        if waits and told:
            raise ConfirmationNeededError(count=len(told))
        return Answer(pass_view(told, [runs[name]]))


def _typed(found: Document) -> RetentionPolicy:
    try:
        return RETENTION_POLICY.convert(found.body)
    except msgspec.ValidationError:  # one that has another form is told of as well
        return unreadable(found.metadata, found.body.get("status"))


async def _service(request: Request) -> HistoryService:
    service: HistoryService = request.app.state.history
    return service


Service = Annotated[HistoryService, Depends(_service)]
OfExperiment = Annotated[str | None, Query(pattern=_EXPERIMENT, description="Only this experiment: NAMESPACE/NAME")]
OfExperiments = Annotated[str | None, Query(description="Only of experiments in this namespace")]
OfNamespace = Annotated[str | None, Query(description="Only records in this namespace")]
OfStatus = Annotated[ExecutionStatus | None, Query(description="Only runs with this status")]

# --- the routes ------------------------------------------------------------------------------------------------------

router = APIRouter(tags=["history"])
_PASSED: Final[dict[int | str, dict[str, Any]]] = {
    200: answer(PassView, "The result of the pass"),
    **problems(404, 409),
}


@router.get(
    "/history",
    operation_id="history.list",
    summary="List records",
    responses={200: answer(RecordPage), **problems(410)},
)
async def list_records(
    service: Service,
    *,
    experiment: OfExperiment = None,
    experiment_namespace: OfExperiments = None,
    namespace: OfNamespace = None,
    status: OfStatus = None,
    limit: Limit = DEFAULT_PAGE,
    after: After = None,
) -> Response:
    """Answer one page of records, by name; those of one experiment are in the order of their runs."""
    labels = {} if experiment_namespace is None else {EXPERIMENT_NAMESPACE: label_value(experiment_namespace)}
    if experiment is not None:
        of_experiment = experiment_labels_of(*experiment.split("/"))
        if labels.items() - of_experiment.items():
            return Answer(RecordPage([], None))
        labels = of_experiment
    labels |= {} if status is None else {STATUS: status}
    return await service.page(namespace, labels, limit=limit, after=after)


@router.post(
    "/history",
    operation_id="history.record",
    summary="Record a run",
    status_code=201,
    responses={
        200: answer(Recorded, "Recorded before, and left as it is", tagged=True, located=True),
        201: answer(Recorded, "Recorded", tagged=True, located=True),
        **problems(409),
    },
)
async def record(request: Request, body: NewHistoryRecord, service: Service) -> Response:
    """Write the record of a run that has ended; of the same run, which is the same document, there is one record."""
    return await service.record(body, request.url.path)


@router.post("/history/prune", operation_id="history.prune", summary="Prune records", responses=_PASSED)
async def prune(body: PassOrder, service: Service) -> Response:
    """End the records that are too old or too many, now; nothing goes while history is frozen.

    If history_ttl is not set and no pass has ever deleted by its default, confirm must be true.
    """
    return await service.run("history", body)


@router.get(
    "/history/{namespace}/{name}",
    operation_id="history.show",
    summary="Get a record",
    responses={200: answer(RecordDetails, tagged=True), **problems(404)},
)
async def get_record(namespace: Namespace, name: Name, service: Service) -> Response:
    """Return a record with what retention says about it and why."""
    return await service.one(ObjectKey(namespace, name))


@router.get(
    "/retention",
    operation_id="retention.list",
    summary="List retention policies",
    responses={200: answer(PolicyPage), **problems(410)},
)
async def list_policies(service: Service, *, limit: Limit = DEFAULT_PAGE, after: After = None) -> Response:
    """Answer one page of policies, with what their last passes did."""
    return await service.policies(limit=limit, after=after)


@router.post(
    "/retention/lint", operation_id="retention.lint", summary="Lint policies", responses={200: answer(Findings)}
)
async def lint_policies(body: Policies, service: Service) -> Response:
    """Find mistakes in policies: limits that never take effect, groups, overlaps. Nothing is stored."""
    found = lint(body.policies, interval=service.interval.nanoseconds or 0)
    return Answer(Findings([one.as_json() for one in found], len(body.policies)))


@router.get(
    "/retention/{name}",
    operation_id="retention.show",
    summary="Get a retention policy",
    responses={200: answer(PolicyView, tagged=True), **problems(404)},
)
async def get_policy(name: Name, service: Service) -> Response:
    """Return a policy with what its last pass did."""
    return await service.policy(name)


@router.post("/retention/{name}/run", operation_id="retention.run", summary="Run a retention policy", responses=_PASSED)
async def run_policy(name: Name, body: PassOrder, service: Service) -> Response:
    """Run a policy now; one whose dryRun is true ends nothing."""
    return await service.run(name, body)
