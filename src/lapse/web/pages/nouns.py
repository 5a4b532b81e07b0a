"""Pages of what each domain keeps: requests with their chains, workspaces, history by experiment, and keys as counts.

They show what there is. When and why it lapses, and what can be done about it, is on the page of each thing.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from lapse.core.errors import LapseError
from lapse.engine.verbs import operations
from lapse.engine.verbs.contract import PlanRequest
from lapse.history.experiments import read_experiments
from lapse.keys.registration import KEYS
from lapse.kube.resources import Kind
from lapse.requests.api.kinds import (
    MANIFEST_CAPTURE_REQUEST,
    OBJECT_KEEPER,
    VOLUME_CAPTURE_REQUEST,
    VOLUME_RESTORE_REQUEST,
)
from lapse.web.api.history import HistoryService
from lapse.web.api.requests import RequestsService
from lapse.web.api.status import StatusService, status_service
from lapse.web.api.verbs import carried_out
from lapse.web.api.workspaces import WorkspacesService, opened_by, workspaces_service
from lapse.web.pages.forms import form_of
from lapse.web.pages.render import look_first, page
from lapse.web.server.security import PRINCIPAL, caller_of

_CHAINS: Final = 25
_RECORDS: Final = 200
_KINDS: Final[dict[str, tuple[Kind[Any], str]]] = {
    "vcr": (VOLUME_CAPTURE_REQUEST, "Volume captures"),
    "vrr": (VOLUME_RESTORE_REQUEST, "Volume restores"),
    "mcr": (MANIFEST_CAPTURE_REQUEST, "Manifest captures"),
    "keeper": (OBJECT_KEEPER, "Kept after their request has lapsed"),
}

router = APIRouter(include_in_schema=False, dependencies=[Depends(look_first)])


@router.get("/requests")
async def requests(
    request: Request,
    kind: Annotated[str | None, Query()] = None,
    after: Annotated[str | None, Query()] = None,
) -> Response:
    """Show requests, each with its keeper and the artifacts that this keeps."""
    service: RequestsService = request.app.state.requests
    chosen = {kind: _KINDS[kind]} if kind in _KINDS else _KINDS
    sections = []
    for name, (one, title) in chosen.items():
        found = await service.chains(one, limit=_CHAINS, after=after if kind == name else None)
        if found.items or found.next:  # a page may be empty and not the last: what is in the trash is left out
            sections.append({"name": name, "title": title, "chains": found.items, "next": found.next})
    return page(request, "requests.html", sections=sections, kind=kind, after=after, kinds=_KINDS, now=service.now)


@router.get("/workspaces")
async def workspaces(request: Request, status: Annotated[StatusService, Depends(status_service)]) -> Response:
    """Show workspaces, their state, and who is there."""
    service: WorkspacesService | None = request.app.state.workspaces
    found = None if service is None else await service.overview(opened_by(request))
    return page(request, "workspaces.html", workspaces=found, now=status.now)


@router.post("/act/open")
async def open_workspace(request: Request) -> Response:
    """Go to a workspace, by a page that leads there: a form may not be sent on to another origin."""
    fields, principal = await form_of(request), request.scope[PRINCIPAL]
    name, actor = fields.get("name", ""), caller_of(request).name
    opened = await (await workspaces_service(request)).open(name, opened_by(request), principal.token_id, actor=actor)
    return page(request, "opening.html", url=opened.url, workspace=name)


@router.get("/history")
async def history(
    request: Request,
    status: Annotated[StatusService, Depends(status_service)],
    experiment: Annotated[str | None, Query()] = None,
) -> Response:
    """Show experiments with their records counted and, of one experiment, the records."""
    service: HistoryService = request.app.state.history
    experiments = await read_experiments(service.store, service.namespace)
    records: Any = None
    if experiment and "/" in experiment:
        records = await service.records_of(experiment, limit=_RECORDS)
    return page(
        request,
        "history.html",
        experiments=experiments,
        experiment=experiment,
        records=records,
        most=_RECORDS,
        policies=await service.policy_views(),
        now=status.now,
    )


@router.get("/keys")
async def keys(request: Request, status: Annotated[StatusService, Depends(status_service)]) -> Response:
    """Show how many keys each application has, and how many lapse within an hour. Names and values are secrets."""
    lapsing: Any = {}
    problem = None
    try:
        told = await carried_out(request, operations.PLAN, PlanRequest(within="1h", domains=[KEYS.name]))
        lapsing = {one.scope: one for one in told.counts}
        problem = told.problems.get(KEYS.name)
    except LapseError as error:
        problem = str(error)
    links = request.app.state.places()
    return page(
        request, "keys.html", keys=await status.keys(), lapsing=lapsing, problem=problem, links=links, now=status.now
    )
