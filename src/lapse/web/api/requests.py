"""Requests over HTTP: ask for an operation, see what became of it and when it goes, delete it before its time.

| address under ``/api/v1`` | what |
|---|---|
| ``/requests/{kind}``, ``/requests/{kind}/{namespace}/{name}`` | requests: vcr, vrr, mcr |
| ``/claims``, ``/claims/{namespace}/{name}`` | the claims that captures name and restores make |
| ``/keepers``, ``/keepers/{name}`` | keepers, to be read only |
| ``/artifacts/{kind}``, ``/artifacts/{kind}/{name}`` | what keepers own: vsc, mcp, pv; to be read only |
| ``/checkpoints/{name}/manifests`` | the manifests of a checkpoint, verified |

What is sent and answered as ``object`` is the Kubernetes document. Its rules are those of `lapse.requests.api` and of
the store, and only those. Lists come in pages that show one moment; a page asked for too late is answered with 410.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field
from starlette.responses import Response

from lapse.core.clock import Clock
from lapse.engine.journal.port import DeletionReason, Journal
from lapse.engine.running.metrics import Metrics
from lapse.engine.view import ViewPage
from lapse.kube.errors import InvalidError
from lapse.kube.resources import Document, Json, Kind, ObjectKey
from lapse.objects.holds.cluster import Dependants
from lapse.objects.port import HoldLookup, ObjectStore
from lapse.objects.trash.moves import ObjectTrash
from lapse.requests.addresses import Located
from lapse.requests.api.kinds import (
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    OBJECT_KEEPER,
    VOLUME_CAPTURE_REQUEST,
    VOLUME_RESTORE_REQUEST,
)
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.chains import Chain, ChainReader
from lapse.requests.controllers.manifests import read_checkpoint
from lapse.requests.expiry import delete_by_person
from lapse.requests.lifecycle.policy import TTLRule
from lapse.requests.registration import REQUESTS
from lapse.requests.view import Manifests, ObjectDetails, details_of, keeper_of
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
from lapse.web.auth.scopes import sees_values
from lapse.web.server.security import PRINCIPAL, Principal, caller_of

PAGE_LIMIT: Final = 1_000


class RequestKind(StrEnum):
    """Requests by their short names."""

    VCR = "vcr"
    VRR = "vrr"
    MCR = "mcr"


class ArtifactKind(StrEnum):
    """Artifacts by their short names."""

    VSC = "vsc"
    MCP = "mcp"
    PV = "pv"


_KINDS: Final[dict[str, Kind[Any]]] = {
    RequestKind.VCR: VOLUME_CAPTURE_REQUEST,
    RequestKind.VRR: VOLUME_RESTORE_REQUEST,
    RequestKind.MCR: MANIFEST_CAPTURE_REQUEST,
    ArtifactKind.VSC: VOLUME_SNAPSHOT_CONTENT,
    ArtifactKind.MCP: MANIFEST_CHECKPOINT,
    ArtifactKind.PV: PERSISTENT_VOLUME,
}

# --- the form of requests and answers --------------------------------------------------------------------------------


class NewMetadata(Form):
    """What the caller says of a new object."""

    name: str
    namespace: str = "default"
    labels: Annotated[dict[str, str], Field(default={})]
    annotations: Annotated[dict[str, str], Field(default={})]


class NewObject(Form):
    """A new object, as a Kubernetes document; what it is may be left out, as the address says it."""

    api_version: Annotated[str | None, Field(alias="apiVersion")] = None
    kind: str | None = None
    metadata: NewMetadata
    spec: Annotated[dict[str, Any], Field(default={})]


class ObjectPage(ViewPage[ObjectDetails], frozen=True):
    """Objects by namespace and name; pass ``next`` as ``after`` for the following page."""


# --- what the routes need --------------------------------------------------------------------------------------------


class RequestsService:
    """The store, its journal, and the rule by which requests expire."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        holds: HoldLookup,
        journal: Journal,
        rule: TTLRule,
        clock: Clock,
        metrics: Metrics,
        trash: ObjectTrash | None = None,
        dependants: Dependants,
    ) -> None:
        """Bind them together; what people delete is counted in ``metrics``, and goes to the ``trash``.

        ``dependants`` knows what a keeper owns.
        """
        self._dependants = dependants
        self.store, self._holds, self._journal, self._rule, self._clock = store, holds, journal, rule, clock
        self._metrics, self._trash = metrics, trash
        metrics.expect_domain(REQUESTS.name, reasons=[DeletionReason.BY_PERSON])

    @property
    def now(self) -> int:
        """The time that answers are about."""
        return self._clock.wall_ns()

    def details(self, kind: Kind[Any], found: Document, *, with_object: bool = True) -> ObjectDetails:
        """Return the view of an object."""
        return details_of(kind, kind.body(found), now=self.now, rule=self._rule, with_object=with_object)

    async def chains(self, kind: Kind[Any], *, limit: int, after: str | None) -> ViewPage[Chain]:
        """Return requests of a kind with what belongs to each; of keepers, those whose request has lapsed."""
        reader = ChainReader(self.store, self._dependants, rule=self._rule, now=self.now)
        return await reader.page(kind, limit=limit, after=after)

    async def page(self, request: Request, kind: Kind[Any], *, limit: int, after: str | None) -> Response:
        """Answer one page of a list."""
        namespace = request.query_params.get("namespace")
        found = await self.store.list(_whole(kind), namespace=namespace, limit=limit, after=after)
        principal: Principal = request.scope[PRINCIPAL]
        shown = sees_values(principal.scopes)
        return Answer(ObjectPage([self.details(kind, one, with_object=shown) for one in found.items], found.next))

    async def one(self, kind: Kind[Any], key: ObjectKey) -> Response:
        """Answer one object."""
        return self._answer(kind, await self.store.get(_whole(kind), key))

    async def create(self, kind: Kind[Any], new: NewObject, where: str) -> Response:
        """Store a new object and answer it."""
        name = new.metadata.name
        for given, right, field in ((new.api_version, kind.api_version, "apiVersion"), (new.kind, kind.kind, "kind")):
            if given not in {None, right}:
                raise InvalidError(kind=kind.kind, name=name, problem=f"{field} is {given!r}; expected {right}")
        body: Json = {"metadata": new.metadata.model_dump(), "spec": new.spec}
        made = await self.store.create(_whole(kind), kind.body(body))
        return self._answer(kind, made, status=201, Location=f"{where}/{new.metadata.namespace}/{name}")

    async def remove(self, request: Request, kind: Kind[Any], key: ObjectKey) -> Response:
        """Delete an object as it was read; with If-Match only if that is the version that the caller means."""
        conditions = match_of(request, "DELETE")
        found = await self.store.get(_whole(kind), key)
        meta, place = found.metadata, Located(kind, key)
        if conditions.tags is not None and not conditions.matches(etag(found)["ETag"]):
            raise VersionChangedError
        await delete_by_person(
            self.store,
            place,
            found,
            keeper=await keeper_of(self.store, kind, meta.uid),
            holds=self._holds,
            journal=self._journal,
            actor=caller_of(request).name,
            clock=self._clock,
            trash=self._trash,
            metrics=self._metrics,
        )
        return Response(status_code=204)

    def _answer(self, kind: Kind[Any], found: Document, *, status: int = 200, **headers: str) -> Response:
        return Answer(self.details(kind, found), status, headers={**etag(found), **headers})


def _whole(kind: Kind[Any]) -> Kind[Document]:
    """Read a kind as it is stored: its type knows only what we need."""
    return replace(kind, type=Document)


async def _service(request: Request) -> RequestsService:
    service: RequestsService = request.app.state.requests
    return service


Service = Annotated[RequestsService, Depends(_service)]
Limit = Annotated[int, Query(ge=1, le=PAGE_LIMIT, description="Objects per page at most")]
InNamespace = Annotated[str | None, Query(description="Only this namespace")]

# --- the routes ------------------------------------------------------------------------------------------------------

router = APIRouter(tags=["requests"])
_LISTED: Final[dict[int | str, dict[str, Any]]] = {200: answer(ObjectPage), **problems(410)}
_SHOWN: Final[dict[int | str, dict[str, Any]]] = {200: answer(ObjectDetails, tagged=True), **problems(404)}
_MADE: Final[dict[int | str, dict[str, Any]]] = {
    201: answer(ObjectDetails, "It is stored", tagged=True, located=True),
    **problems(409),
}
_REMOVED: Final = problems(404, 409, 412)


@router.get("/requests/{kind}", operation_id="requests.list", summary="List requests", responses=_LISTED)
async def list_requests(
    request: Request,
    kind: RequestKind,
    service: Service,
    *,
    namespace: InNamespace = None,  # noqa: ARG001 - for OpenAPI
    limit: Limit = DEFAULT_PAGE,
    after: After = None,
) -> Response:
    """Answer one page of the requests of a kind."""
    return await service.page(request, _KINDS[kind], limit=limit, after=after)


@router.post(
    "/requests/{kind}", operation_id="requests.create", summary="Ask for an operation", status_code=201, responses=_MADE
)
async def create_request(request: Request, kind: RequestKind, body: NewObject, service: Service) -> Response:
    """Make a request; the leading process carries it out, and its Ready condition tells the outcome."""
    return await service.create(_KINDS[kind], body, request.url.path)


@router.get(
    "/requests/{kind}/{namespace}/{name}", operation_id="requests.show", summary="Get a request", responses=_SHOWN
)
async def get_request(kind: RequestKind, namespace: Namespace, name: Name, service: Service) -> Response:
    """Return a request; its ETag is for If-Match."""
    return await service.one(_KINDS[kind], ObjectKey(namespace, name))


@router.delete(
    "/requests/{kind}/{namespace}/{name}",
    operation_id="requests.delete",
    summary="Delete a request",
    status_code=204,
    openapi_extra=IF_MATCH,
    responses=_REMOVED,
)
async def delete_request(
    request: Request, kind: RequestKind, namespace: Namespace, *, name: Name, service: Service
) -> Response:
    """Delete a request before its time. Its keeper decides when what it made is deleted; restored data stays."""
    return await service.remove(request, _KINDS[kind], ObjectKey(namespace, name))


@router.get("/claims", operation_id="claims.list", summary="List claims", responses=_LISTED)
async def list_claims(
    request: Request,
    service: Service,
    *,
    namespace: InNamespace = None,  # noqa: ARG001 - for OpenAPI
    limit: Limit = DEFAULT_PAGE,
    after: After = None,
) -> Response:
    """Answer one page of claims."""
    return await service.page(request, PERSISTENT_VOLUME_CLAIM, limit=limit, after=after)


@router.post("/claims", operation_id="claims.create", summary="Make a claim", status_code=201, responses=_MADE)
async def create_claim(request: Request, body: NewObject, service: Service) -> Response:
    """Make a claim; the annotation local.lapse.dev/directory names the directory that it stands for."""
    return await service.create(PERSISTENT_VOLUME_CLAIM, body, request.url.path)


@router.get("/claims/{namespace}/{name}", operation_id="claims.show", summary="Get a claim", responses=_SHOWN)
async def get_claim(namespace: Namespace, name: Name, service: Service) -> Response:
    """Return a claim; its uid is what a capture names."""
    return await service.one(PERSISTENT_VOLUME_CLAIM, ObjectKey(namespace, name))


@router.delete(
    "/claims/{namespace}/{name}",
    operation_id="claims.delete",
    summary="Delete a claim",
    status_code=204,
    openapi_extra=IF_MATCH,
    responses=_REMOVED,
)
async def delete_claim(request: Request, namespace: Namespace, name: Name, service: Service) -> Response:
    """Delete a claim; its directory stays."""
    return await service.remove(request, PERSISTENT_VOLUME_CLAIM, ObjectKey(namespace, name))


@router.get("/keepers", operation_id="keepers.list", summary="List keepers", responses=_LISTED)
async def list_keepers(
    request: Request, service: Service, *, limit: Limit = DEFAULT_PAGE, after: After = None
) -> Response:
    """Answer one page of keepers."""
    return await service.page(request, OBJECT_KEEPER, limit=limit, after=after)


@router.get("/keepers/{name}", operation_id="keepers.show", summary="Get a keeper", responses=_SHOWN)
async def get_keeper(name: Name, service: Service) -> Response:
    """Return a keeper."""
    return await service.one(OBJECT_KEEPER, ObjectKey(None, name))


@router.get("/artifacts/{kind}", operation_id="artifacts.list", summary="List artifacts", responses=_LISTED)
async def list_artifacts(
    request: Request, kind: ArtifactKind, service: Service, *, limit: Limit = DEFAULT_PAGE, after: After = None
) -> Response:
    """Answer one page of the artifacts of a kind."""
    return await service.page(request, _KINDS[kind], limit=limit, after=after)


@router.get("/artifacts/{kind}/{name}", operation_id="artifacts.show", summary="Get an artifact", responses=_SHOWN)
async def get_artifact(kind: ArtifactKind, name: Name, service: Service) -> Response:
    """Return an artifact."""
    return await service.one(_KINDS[kind], ObjectKey(None, name))


@router.get(
    "/checkpoints/{name}/manifests",
    operation_id="requests.manifests",
    summary="Read a checkpoint",
    responses={200: answer(Manifests), **problems(404, 409)},
)
async def read_manifests(name: Name, service: Service) -> Response:
    """Return the manifests of a checkpoint, proven to be what was captured, or a problem and none of them."""
    return Answer(Manifests(name, await read_checkpoint(service.store, name)))
