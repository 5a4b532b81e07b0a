"""Records and retention policies over HTTP: what experiments did, how long that stays, and passes when asked for.

| address under ``/api/v1`` | what |
|---|---|
| ``/history``, ``/history/{namespace}/{name}`` | records of runs; they are written once and never changed |
| ``/history/prune`` | a pass of the history's own policy, now |
| ``/retention``, ``/retention/{name}`` | policies, with what their last pass did; to be read only |
| ``/retention/{name}/run`` | a pass of one policy, now |
| ``/retention/lint`` | what is odd about policies that are sent; nothing is stored |

Records are listed by name, as the store has them in pages. Each is judged with its group, of which a page reads what it
needs (`lapse.history.view.look_at_page`).
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
from lapse.history.policy.default_policy import NO_LIMITS, POLICY_NAME, HistoryLimits
from lapse.history.policy.documents import read_document
from lapse.history.policy.lint import lint
from lapse.history.policy.policies import unreadable
from lapse.history.policy.policy import Policy
from lapse.history.records import write_record
from lapse.history.service import Retention
from lapse.history.view import (
    Findings,
    PassView,
    PolicyView,
    RecordDetails,
    Recorded,
    RecordQuery,
    RecordView,
    about_records,
    experiment_filter,
    experiment_labels_of,
    is_of,
    look,
    look_at,
    look_at_page,
    pass_view,
    policy_view,
)
from lapse.kube.errors import InvalidError, NotFoundError
from lapse.kube.resources import Document, Json, Kind, ObjectKey
from lapse.objects.port import ObjectStore
from lapse.web.api.errors import ConfirmationNeededError
from lapse.web.api.forms import DEFAULT_PAGE, After, Answer, Form, Name, Namespace, answer, etag, problems
from lapse.web.api.requests import Limit
from lapse.web.server.security import caller_of

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


_TTL: Final = "Instead of history_ttl: how old records become, such as 720h, at least 1h; 0 for any age"
_COUNT: Final = "Instead of history_retention_limit: how many records of each experiment stay; 0 for all"
_SUCCESSES: Final = "Instead of history_keep_last_success: how many successful ones stay, whatever the limits say"


class PruneOrder(PassOrder):
    """How records are to be pruned: by the policy that is in force, or once by other limits."""

    ttl: Annotated[str | None, Field(description=_TTL)] = None
    retention_limit: Annotated[int | None, Field(strict=True, description=_COUNT)] = None
    keep_last_success: Annotated[int | None, Field(strict=True, description=_SUCCESSES)] = None

    def limits(self) -> HistoryLimits:
        """Return the limits; raises `HistorySettingError`."""
        return HistoryLimits.read(self.ttl, self.retention_limit, self.keep_last_success)


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

    async def page(
        self, namespace: str | None, labels: dict[str, str], limits: HistoryLimits, *, limit: int, after: str | None
    ) -> Response:
        """Answer one page of records, of one namespace or of all."""
        policies, asked = await self._policies(limits), RecordQuery(namespace, labels, limit, after)
        found, after = await look_at_page(self.store, policies, asked, clock=self._clock)
        now = self._clock.wall_ns()
        return Answer(RecordPage([one.view(now) for one in found], after))

    async def records_of(self, experiment: str, *, limit: int) -> list[RecordView]:
        """Return the newest records of an experiment, each with how long it stays."""
        namespace, _, name = experiment.partition("/")
        policies, now = await self._policies(NO_LIMITS), UnixNs(self._clock.wall_ns())
        labels = experiment_filter(policies, namespace, name)
        found = await look(self.store, policies, namespace=self.namespace, now=now, labels=labels)
        return [one.view(now) for one in found if is_of(one, namespace, name)][:limit]

    async def policy_views(self) -> list[PolicyView]:
        """Return the policies that there are, with what came of their last passes."""
        found = await self.store.list(replace(_POLICY, type=Document), limit=_MOST_POLICIES)
        return [policy_view(_typed(one)) for one in found.items]

    async def _policies(self, limits: HistoryLimits) -> list[Policy]:
        """Return the policies about records that are in force, or would be with these limits."""
        return about_records(await self._retention.load(limits))

    async def one(self, key: ObjectKey, limits: HistoryLimits) -> Response:
        """Answer one record with what retention says about it."""
        found = await self.store.get(replace(_RECORD, type=Document), key)
        now = UnixNs(self._clock.wall_ns())
        judged = await look_at(self.store, found.metadata, await self._policies(limits), now=now)
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
        now = UnixNs(self._clock.wall_ns())
        judged = await look_at(self.store, made.metadata, await self._policies(NO_LIMITS), now=now)
        view = fill(Recorded, judged.view(now), new=is_new)
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

    async def run(self, name: str, order: PassOrder, *, actor: str, limits: HistoryLimits = NO_LIMITS) -> Response:
        """Let one policy pass now, in the name of who asks."""
        passes = self._retention.for_person(actor, limits)
        done = await passes.run_for_person({name}, dry_run=order.dry_run, confirmed=order.confirm)
        if name not in done.runs:
            raise NotFoundError(kind=RETENTION_POLICY.kind, name=name)
        if done.waits and done.items:
            raise ConfirmationNeededError(count=len(done.items))
        return Answer(pass_view(done.items, [done.runs[name]]))


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


async def _limits(
    ttl: Annotated[str | None, Query(description=_TTL)] = None,
    retention_limit: Annotated[int | None, Query(description=_COUNT)] = None,
    keep_last_success: Annotated[int | None, Query(description=_SUCCESSES)] = None,
) -> HistoryLimits:
    return HistoryLimits.read(ttl, retention_limit, keep_last_success)


Limits = Annotated[HistoryLimits, Depends(_limits)]
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
    limits: Limits,
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
    return await service.page(namespace, labels, limits, limit=limit, after=after)


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
async def prune(request: Request, body: PruneOrder, service: Service) -> Response:
    """End the records that are too old or too many, now; nothing goes while history is frozen.

    Limits that are given take the place of those of the history, this time. If neither ttl nor history_ttl is set and
    no pass has ever deleted by its default, confirm must be true.
    """
    return await service.run(POLICY_NAME, body, actor=caller_of(request).name, limits=body.limits())


@router.get(
    "/history/{namespace}/{name}",
    operation_id="history.show",
    summary="Get a record",
    responses={200: answer(RecordDetails, tagged=True), **problems(404)},
)
async def get_record(namespace: Namespace, name: Name, service: Service, limits: Limits) -> Response:
    """Return a record with what retention says about it and why; limits that are given tell what would be."""
    return await service.one(ObjectKey(namespace, name), limits)


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
async def run_policy(request: Request, name: Name, body: PassOrder, service: Service) -> Response:
    """Run a policy now; one whose dryRun is true ends nothing."""
    return await service.run(name, body, actor=caller_of(request).name)
