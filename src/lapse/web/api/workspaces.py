"""Workspaces over HTTP: create, look, start, stop, archive, delete, set TTLs, hold, open, and why.

| address under ``/api/v1`` | what |
|---|---|
| ``/workspaces``, ``/workspaces/{name}`` | workspaces; PATCH changes command, port, owner, TTLs and probe |
| ``/workspaces/{name}/start``, ``/stop``, ``/archive`` | another state is wanted |
| ``/workspaces/{name}/hold``, ``/release`` | keep it from lapsing, or no longer |
| ``/workspaces/{name}/why`` | why it is kept or lapses, when, and what would save it |
| ``/workspaces/{name}/logs`` | what its program wrote |
| ``/workspaces/{name}/open`` | an address with a ticket, to be opened in a browser once |

A caller sees and changes the workspaces of the owners in the scopes of its token: all of them with ``admin``, to be
looked at with ``read``. One of another owner is answered like one that does not exist. Changes are carried out by the
process that runs the workspaces; an answer tells what is wanted, and looking again tells what has become of it. While
an operation is under way a change is answered with 409, and with If-Match only the version that the caller has seen is
changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request
from pydantic import ConfigDict, Field
from starlette.responses import Response

from lapse.core.address import Address
from lapse.core.clock import Clock
from lapse.core.duration import NEVER, Duration
from lapse.engine.explanation import Explanation
from lapse.engine.journal.audit import tell
from lapse.engine.journal.port import AuditReason, DeletionReason, Journal, Outcome
from lapse.engine.running.metrics import Metrics
from lapse.engine.verbs.contract import HoldRequest, ReleaseRequest, WhyRequest
from lapse.engine.view import Moment, ViewPage, fill
from lapse.files.ownership import user_name
from lapse.web.api.errors import (
    NothingToChangeError,
    NotYourWorkspacesError,
    OwnerMissingError,
    VersionChangedError,
    WorkspacesNotServedError,
)
from lapse.web.api.forms import (
    DEFAULT_PAGE,
    IF_MATCH,
    After,
    Answer,
    Form,
    Name,
    answer,
    match_of,
    problems,
    verbs_of,
)
from lapse.web.auth.scopes import Owners, owners_in, sees_values
from lapse.web.pages.workspaces import Overview, overview
from lapse.web.server.security import PRINCIPAL, Principal, caller_of
from lapse.workspaces import verbs
from lapse.workspaces.activity.access import DEFAULT_MOST_SECONDS, BusyLeases
from lapse.workspaces.activity.port import Activity, ActivityUnavailableError
from lapse.workspaces.errors import UnknownWorkspaceError
from lapse.workspaces.logs import LogPage, read_log
from lapse.workspaces.model import (
    DEFAULT_ARCHIVE_TTL_SECONDS,
    DEFAULT_STANDBY_TTL_SECONDS,
    DOMAIN,
    LARGEST_PAGE,
    Changes,
    DesiredState,
    Ms,
    NewWorkspace,
    Workspace,
    WorkspaceId,
)
from lapse.workspaces.store.port import WorkspaceStore
from lapse.workspaces.target import OWNER, delete_by_person
from lapse.workspaces.tickets import TICKET_SECONDS, Tickets, ticket_url
from lapse.workspaces.verbs import Verb, ask
from lapse.workspaces.view import BusyLeaseView, Opened, WorkspaceDetails, address_of, etag_of, view_of, without_values

_MS: Final = 1_000_000
_SECOND: Final = 1_000_000_000
_MOST_LINES: Final = 1_000_000
_LARGEST: Final = 2**53 - 1
_ROWS: Final = 100
"""Deletions of one name that are looked at in the journal."""
_SINCE: Final = "@1794873600"
"""When the verbs of every domain took the place of those of workspaces."""

# --- the form of requests and answers --------------------------------------------------------------------------------


class WorkspaceForm(Form):
    """A body whose fields have exactly their types."""

    model_config = ConfigDict(strict=True)


_PROBE: Final = "How to ask its program whether it is at work: jupyter, or a path on its port"


class WorkspaceAsked(WorkspaceForm):
    """A new workspace."""

    name: Annotated[str, Field(description="A DNS label: it becomes part of a host name")]
    command: Annotated[list[str], Field(description="The program and its arguments")]
    port: Annotated[int, Field(description="The port that the program listens on")]
    owner: Annotated[str | None, Field(description="By default the one owner in the token's scopes")] = None
    standby_ttl_seconds: Annotated[int | None, Field(description="How long it may be idle before it is stopped")] = None
    archive_ttl_seconds: Annotated[
        int | None, Field(description="How long it stays in standby before it is archived")
    ] = None
    probe: Annotated[str | None, Field(description=_PROBE)] = None
    start: Annotated[bool, Field(description="false: do not start it until it is started by hand or opened")] = True


class WorkspaceChanges(WorkspaceForm):
    """What is to be different; what is left out stays."""

    owner: Annotated[str | None, Field(description="The new owner: one in the token's scopes")] = None
    command: Annotated[list[str] | None, Field(description="The command from its next start on")] = None
    port: Annotated[int | None, Field(description="The port from its next start on")] = None
    standby_ttl_seconds: Annotated[int | None, Field(description="How long it may be idle before it is stopped")] = None
    archive_ttl_seconds: Annotated[
        int | None, Field(description="How long it stays in standby before it is archived")
    ] = None
    probe: Annotated[str | None, Field(description=f"{_PROBE}; an empty text removes it")] = None


class HoldAsked(WorkspaceForm):
    """A hold."""

    reason: Annotated[str, Field(description="The reason, for others to read")]
    until: Annotated[
        str, Field(description="A duration from now such as 7d, or a time as 2030-01-31T12:00:00Z; never has no end")
    ] = "never"


class Nothing(WorkspaceForm):
    """No more to say."""


class WorkspacePage(ViewPage[WorkspaceDetails], frozen=True):
    """Workspaces by name; pass ``next`` as ``after`` for the following page."""


# --- what the routes need --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What a new workspace gets when nothing else is said. Seconds."""

    standby_ttl: int = DEFAULT_STANDBY_TTL_SECONDS
    archive_ttl: int = DEFAULT_ARCHIVE_TTL_SECONDS


class WorkspacesService:
    """The store, its tickets and its journal, and where workspaces are opened."""

    def __init__(  # noqa: PLR0913 - all but the stores named
        self,
        store: WorkspaceStore,
        tickets: Tickets,
        journal: Journal,
        *,
        url_of: Callable[[str], str],
        defaults: Defaults,
        clock: Clock,
        metrics: Metrics,
        activity: Activity | None = None,
        busy_most: float = DEFAULT_MOST_SECONDS,
        counts: Callable[[], bool] = lambda: True,
        node: str | None = None,
        changed: Callable[[], None] = lambda: None,
        trash_ttl: Duration = NEVER,
        log_of: Callable[[Workspace], Path] | None = None,
    ) -> None:
        """Bind them together.

        ``url_of`` returns where the workspace of a name is found, ``node`` is where new ones are run, and ``changed``
        is called after something was asked for. What people delete is counted in ``metrics``. Without ``activity`` it
        is not known who is there; ``counts`` says whether what it counts is believed now. ``busy_most`` is how long a
        busy lease can be renewed, in seconds. What is deleted can come back for ``trash_ttl``. ``log_of`` returns the
        file that the program of a workspace writes to; without it, none has written anything.
        """
        self._log_of = log_of
        self._trash_ttl = trash_ttl
        self._activity, self._counts, self._busy_most = activity, counts, busy_most
        self.store, self._tickets, self._journal, self._clock = store, tickets, journal, clock
        self._url_of, self._defaults, self._node, self._changed = url_of, defaults, node, changed
        self._metrics = metrics
        metrics.expect_domain(DOMAIN, reasons=[DeletionReason.BY_PERSON])

    async def overview(self, openable: Owners) -> Overview:
        """Say how all of them are, for the dashboard, and which of them the caller can open."""
        now, with_values = self._now(), openable.with_values
        return await overview(self.store, self._activity, now=now, openable=openable, with_values=with_values)

    async def page(self, owners: Owners, *, owner: str | None, limit: int, after: str | None) -> Response:
        """Answer one page of those that the caller may see."""
        found = await self._visible(owners, owner=owner, limit=limit + 1, after=after)
        shown, more = found[:limit], len(found) > limit
        items = [self._shown(one, owners) for one in shown]
        return Answer(WorkspacePage(items, shown[-1].name if more else None))

    async def create(
        self, owners: Owners, asked: WorkspaceAsked, where: str, *, actor: str, mine: str | None
    ) -> Response:
        """Keep a new one and answer it; ``mine`` is the owner where none is named."""
        standby, archive = asked.standby_ttl_seconds, asked.archive_ttl_seconds
        new = NewWorkspace(
            name=asked.name,
            owner=_owner_of(asked, owners, mine),
            command=tuple(asked.command),
            port=asked.port,
            node_id=self._node,
            desired_state=DesiredState.RUNNING if asked.start else DesiredState.PENDING,
            standby_ttl_seconds=self._defaults.standby_ttl if standby is None else standby,
            archive_ttl_seconds=self._defaults.archive_ttl if archive is None else archive,
            probe=asked.probe,
        )
        made = await verbs.create(self.store, new, visible=owners, now=self._now())
        self._changed()
        await self._tell(AuditReason.WORKSPACE_CREATED, made, actor)
        return self._answer(made, owners, status=201, Location=f"{where}/{made.name}")

    async def find(self, name: str, owners: Owners) -> Workspace:
        """Return a workspace of one of these owners; raises `UnknownWorkspaceError`."""
        found = await self.store.by_name(name)
        if found.owner not in owners:
            raise UnknownWorkspaceError(workspace=name)
        return found

    async def find_gone(self, name: str, owners: Owners, *, uid: str | None = None) -> str:
        """Return the uid of a deleted workspace of one of these owners: the last one of the name, or that of ``uid``.

        From the trash, and from the journal what has left it. Raises `UnknownWorkspaceError`, also for somebody else's.
        """
        found: list[Workspace] = []
        after: WorkspaceId | None = None
        while page := await self.store.trashed(limit=LARGEST_PAGE, after=after):
            after = page[-1].id
            found += [one for one in page if one.name == name and one.owner in owners and uid in {None, one.id}]
        if found:
            return max(found, key=lambda one: one.deleted_at or 0).id
        address = str(Address("workspace", None, name))
        for row in await self._journal.entries(address=address, uid=uid, outcome=Outcome.ENDED, limit=_ROWS):
            if row.reason == DeletionReason.BY_PERSON and (row.details or {}).get(OWNER) in owners:
                return row.uid
        raise UnknownWorkspaceError(workspace=name)

    async def one(self, name: str, owners: Owners) -> Response:
        """Answer one workspace."""
        return self._answer(await self.find(name, owners), owners)

    async def logs(self, name: str, owners: Owners, *, tail: int | None, after: int) -> LogPage:
        """Return a page of what the program of a workspace wrote."""
        found = await self.find(name, owners)
        if self._log_of is None:
            return LogPage("", 0, more=False)
        path, address = self._log_of(found), str(address_of(found))
        return await asyncio.to_thread(read_log, path, address, tail=tail, after=after)

    async def change(
        self,
        request: Request,
        name: str,
        owners: Owners,
        *,
        how: Callable[[Workspace, int | None], Awaitable[Workspace]],
        status: int = 200,
    ) -> Response:
        """Change a workspace, with If-Match only as the caller has seen it, and answer it."""
        found = await self.find(name, owners)
        changed = await how(found, _version(request, found))
        self._changed()
        return self._answer(changed, owners, status=status)

    async def ask(self, verb: Verb, workspace: Workspace, version: int | None) -> Workspace:
        """Want another state."""
        return await ask(self.store, verb, workspace, version=version, now=self._now())

    async def configure(
        self, asked: WorkspaceChanges, owners: Owners, workspace: Workspace, version: int | None
    ) -> Workspace:
        """Change command, port, owner, TTLs or probe."""
        given = asked.model_dump(exclude_none=True)
        if not given:
            raise NothingToChangeError  # nothing would change but the version, and with it everybody's If-Match
        if asked.owner is not None and asked.owner not in owners:
            raise NotYourWorkspacesError
        command = None if asked.command is None else tuple(asked.command)
        return await verbs.configure(
            self.store,
            workspace,
            Changes(**{**given, "command": command}),
            node=self._node,
            version=version,
            visible=owners,
            now=self._now(),
        )

    async def delete(self, actor: str, workspace: Workspace) -> Workspace:
        """Give the name free, unless it is held; what else there is goes by and by."""
        return await delete_by_person(
            self.store,
            self._journal,
            workspace,
            actor=actor,
            clock=self._clock,
            trash_ttl=self._trash_ttl,
            metrics=self._metrics,
        )

    async def open(self, name: str, owners: Owners, token_id: str, *, actor: str) -> Opened:
        """Make a ticket in the name of a token; return the address that it opens."""
        found = await self.find(name, owners)
        until = self._clock.wall_ns() + TICKET_SECONDS * _SECOND
        ticket = await self._tickets.issue(found.id, token_id)
        await self._tell(AuditReason.WORKSPACE_OPENED, found, actor)
        return Opened(ticket_url(self._url_of(found.name), ticket), Moment(until))

    async def busy(self, name: str, owners: Owners, *, own: str | None, lease: str | None) -> BusyLeaseView:
        """Begin or renew a lease that keeps a workspace from lapsing; ``own`` is the workspace that is calling."""
        found, leases = await self._worker(name, owners, own), self._leases()
        kept = await leases.keep(found, lease)
        return BusyLeaseView(kept, leases.activity.lease_seconds, leases.most_seconds)

    async def not_busy(self, name: str, owners: Owners, *, own: str | None, lease: str) -> None:
        """End such a lease."""
        await self._leases().end(await self._worker(name, owners, own), lease)

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _worker(self, name: str, owners: Owners, own: str | None) -> Workspace:
        found = await self.store.by_name(name)
        if found.id != own and found.owner not in owners:
            raise UnknownWorkspaceError(workspace=name)
        return found

    async def _tell(self, reason: AuditReason, workspace: Workspace, actor: str) -> None:
        row = verbs.told(reason, workspace, actor=actor, now=self._now())
        await tell(self._journal, row, domain=DOMAIN, metrics=self._metrics)

    def _leases(self) -> BusyLeases:
        if self._activity is None or not self._counts():
            raise ActivityUnavailableError(backend="of this process", problem="another process runs the workspaces")
        return BusyLeases(self.store, self._activity, self._clock, self._busy_most)

    async def _visible(
        self, owners: Owners, *, owner: str | None, limit: int, after: str | None
    ) -> Sequence[Workspace]:
        limit = min(limit, LARGEST_PAGE)
        if owner is not None:
            wanted = [owner] if owner in owners else []
        elif owners.names is None:
            return await self.store.list(limit=limit, after=after)
        else:
            wanted = sorted(owners.names)
        found = [one for each in wanted for one in await self.store.list(owner=each, limit=limit, after=after)]
        return sorted(found, key=lambda one: one.name)[:limit]

    def _answer(self, found: Workspace, owners: Owners, *, status: int = 200, **headers: str) -> Response:
        return Answer(self._shown(found, owners), status, headers={"ETag": etag_of(found), **headers})

    def _shown(self, found: Workspace, owners: Owners) -> WorkspaceDetails:
        view = view_of(found, self._now())
        return fill(
            WorkspaceDetails, view if owners.with_values else without_values(view), url=self._url_of(found.name)
        )

    def _now(self) -> Ms:
        return Ms(self._clock.wall_ns() // _MS)


def _owner_of(asked: WorkspaceAsked, owners: Owners, mine: str | None) -> str:
    if asked.owner is None and mine is not None:
        return mine
    if asked.owner is None:
        if owners.names is None or len(owners.names) != 1:
            raise OwnerMissingError
        return next(iter(owners.names))
    if asked.owner not in owners:
        raise NotYourWorkspacesError
    return asked.owner


def _version(request: Request, found: Workspace) -> int | None:
    """Return the version that the change is for; None if the caller does not care."""
    conditions = match_of(request, "a change")
    if not conditions.tags:
        return None
    if not conditions.matches(etag_of(found)):
        raise VersionChangedError
    return found.version


async def workspaces_service(request: Request) -> WorkspacesService:
    """Find the service of this application; raises `WorkspacesNotServedError`."""
    service: WorkspacesService | None = request.app.state.workspaces
    if service is None:
        raise WorkspacesNotServedError
    return service


async def _owners(request: Request) -> Owners:
    principal: Principal = request.scope[PRINCIPAL]
    return owners_in(principal.scopes, request.method, request.scope["route"].path)


def opened_by(request: Request) -> Owners:
    """Return whose workspaces the caller can open, and whether values of all of them may be shown."""
    principal: Principal = request.scope[PRINCIPAL]
    return Owners(owners_in(principal.scopes, "POST").names, with_values=sees_values(principal.scopes))


async def _nothing(body: Nothing = Nothing()) -> None:  # noqa: B008 - for the framework, which refuses what is said
    """Take a body that says nothing, or none."""


Service = Annotated[WorkspacesService, Depends(workspaces_service)]
Whose = Annotated[Owners, Depends(_owners)]
Limit = Annotated[int, Query(ge=1, le=LARGEST_PAGE - 1, description="Workspaces per page at most")]
OfOwner = Annotated[str | None, Query(description="Only this owner's")]

# --- the routes ------------------------------------------------------------------------------------------------------

router = APIRouter(tags=["workspaces"])
_BARE: Final = [Depends(_nothing)]
_SHOWN: Final[dict[int | str, dict[str, Any]]] = {200: answer(WorkspaceDetails, tagged=True), **problems(404)}
_CHANGED: Final[dict[int | str, dict[str, Any]]] = {**_SHOWN, **problems(409, 412)}


@router.get(
    "/workspaces",
    operation_id="workspaces.list",
    summary="List workspaces",
    responses={200: answer(WorkspacePage)},
)
async def list_workspaces(
    service: Service,
    whose: Whose,
    *,
    owner: OfOwner = None,
    limit: Limit = DEFAULT_PAGE,
    after: After = None,
) -> Response:
    """Answer one page of workspaces, by name."""
    return await service.page(whose, owner=owner, limit=limit, after=after)


@router.post(
    "/workspaces",
    operation_id="workspaces.create",
    summary="Create a workspace",
    status_code=201,
    responses={201: answer(WorkspaceDetails, "Created", tagged=True, located=True), **problems(409)},
)
async def create_workspace(request: Request, body: WorkspaceAsked, service: Service, whose: Whose) -> Response:
    """Create a workspace; it is started unless start is false."""
    principal: Principal = request.scope[PRINCIPAL]
    mine = user_name() if principal.is_owner else None
    return await service.create(whose, body, request.url.path, actor=caller_of(request).name, mine=mine)


@router.get("/workspaces/{name}", operation_id="workspaces.show", summary="Get a workspace", responses=_SHOWN)
async def get_workspace(name: Name, service: Service, whose: Whose) -> Response:
    """Return a workspace; its ETag is for If-Match."""
    return await service.one(name, whose)


@router.get(
    "/workspaces/{name}/logs",
    operation_id="workspaces.logs",
    summary="What the program of a workspace wrote",
    responses={200: answer(LogPage), **problems(404, 409)},
)
async def logs(
    name: Name,
    *,
    service: Service,
    whose: Whose,
    tail: Annotated[int | None, Query(ge=0, le=_MOST_LINES, description="Begin with so many last lines")] = None,
    after: Annotated[int, Query(ge=0, le=_LARGEST, description="Where to begin: next of the page before")] = 0,
) -> Response:
    """Return a page of its log, from its beginning, its last lines, or where the page before ended."""
    return Answer(await service.logs(name, whose, tail=tail, after=after))


@router.patch(
    "/workspaces/{name}",
    operation_id="workspaces.set",
    summary="Change a workspace",
    responses=_CHANGED,
    openapi_extra=IF_MATCH,
)
async def change_workspace(
    request: Request, name: Name, body: WorkspaceChanges, *, service: Service, whose: Whose
) -> Response:
    """Change command, port, owner, TTLs or probe of a workspace; its data stays.

    A program that runs goes on as it is: command and port count from its next start, and are refused while an
    operation is under way. TTLs count from the last access.
    """
    return await service.change(
        request, name, whose, how=lambda one, version: service.configure(body, whose, one, version)
    )


@router.post(
    "/workspaces/{name}/start",
    operation_id="workspaces.start",
    summary="Start a workspace",
    responses=_CHANGED,
    openapi_extra=IF_MATCH,
    dependencies=_BARE,
)
async def start(request: Request, name: Name, *, service: Service, whose: Whose) -> Response:
    """Let a workspace run, from standby or from the archive; clears an error."""
    return await _ask(request, name, Verb.START, service=service, whose=whose)


@router.post(
    "/workspaces/{name}/stop",
    operation_id="workspaces.stop",
    summary="Stop a workspace",
    responses=_CHANGED,
    openapi_extra=IF_MATCH,
    dependencies=_BARE,
)
async def stop(request: Request, name: Name, *, service: Service, whose: Whose) -> Response:
    """Stop a workspace; its data stays in place."""
    return await _ask(request, name, Verb.STOP, service=service, whose=whose)


@router.post(
    "/workspaces/{name}/archive",
    operation_id="workspaces.archive",
    summary="Archive a workspace",
    responses=_CHANGED,
    openapi_extra=IF_MATCH,
    dependencies=_BARE,
)
async def archive(request: Request, name: Name, *, service: Service, whose: Whose) -> Response:
    """Stop a workspace and move its data to the archive, from which starting or opening it brings it back."""
    return await _ask(request, name, Verb.ARCHIVE, service=service, whose=whose)


@router.post(
    "/workspaces/{name}/hold",
    operation_id="workspaces.hold",
    summary="Hold a workspace",
    responses=_CHANGED,
    openapi_extra=IF_MATCH,
    deprecated=True,
)
async def hold(request: Request, name: Name, body: HoldAsked, *, service: Service, whose: Whose) -> Response:
    """Keep a workspace from lapsing; a second hold replaces the first. Use POST /api/v1/hold instead."""

    async def how(found: Workspace, _: int | None) -> Workspace:
        asked = HoldRequest(
            address=str(address_of(found)), uid=found.id, reason=body.reason, until=body.until, replace=True
        )
        await verbs_of(request).hold(asked)
        return await service.store.get(found.id)

    return _deprecated(await service.change(request, name, whose, how=how))


@router.post(
    "/workspaces/{name}/release",
    operation_id="workspaces.release",
    summary="Release a workspace",
    responses=_CHANGED,
    openapi_extra=IF_MATCH,
    dependencies=_BARE,
    deprecated=True,
)
async def release(request: Request, name: Name, *, service: Service, whose: Whose) -> Response:
    """End a hold; a workspace whose time is over lapses at the next look. Use POST /api/v1/release instead."""

    async def how(found: Workspace, _: int | None) -> Workspace:
        await verbs_of(request).release(ReleaseRequest(address=str(address_of(found)), uid=found.id))
        return await service.store.get(found.id)

    return _deprecated(await service.change(request, name, whose, how=how))


@router.get(
    "/workspaces/{name}/why",
    operation_id="workspaces.why",
    summary="Why a workspace stays or lapses",
    responses={200: answer(Explanation), **problems(404)},
    deprecated=True,
)
async def why(request: Request, name: Name, *, service: Service, whose: Whose) -> Response:
    """Tell which rule decides, and what would keep the workspace. Use GET /api/v1/why/workspace/{name} instead."""
    asked = WhyRequest(address=str(address_of(await service.find(name, whose))))
    return _deprecated(Answer(await verbs_of(request).why(asked)))


@router.delete(
    "/workspaces/{name}",
    operation_id="workspaces.delete",
    summary="Delete a workspace",
    status_code=202,
    responses={
        202: answer(WorkspaceDetails, "The name is free; the data is being removed", tagged=True),
        **problems(404, 409, 412),
    },
    openapi_extra=IF_MATCH,
)
async def delete_workspace(request: Request, name: Name, *, service: Service, whose: Whose) -> Response:
    """Delete a workspace with its data and its archive; not one that is held or changes meanwhile."""
    actor = caller_of(request).name
    return await service.change(request, name, whose, how=lambda one, _: service.delete(actor, one), status=202)


@router.post(
    "/workspaces/{name}/open",
    operation_id="workspaces.open",
    summary="Open a workspace",
    status_code=201,
    responses={201: answer(Opened, "A ticket was made"), **problems(404)},
    dependencies=_BARE,
)
async def open_workspace(request: Request, name: Name, *, service: Service, whose: Whose) -> Response:
    """Return an address that opens the workspace in a browser: once, within a minute."""
    principal: Principal = request.scope[PRINCIPAL]
    return Answer(await service.open(name, whose, principal.token_id, actor=caller_of(request).name), 201)


def _deprecated(response: Response) -> Response:
    """Say that there is another address for this, and since when (RFC 9745)."""
    response.headers["Deprecation"] = _SINCE
    return response


async def _ask(request: Request, name: str, verb: Verb, *, service: WorkspacesService, whose: Owners) -> Response:
    return await service.change(request, name, whose, how=lambda one, version: service.ask(verb, one, version))
