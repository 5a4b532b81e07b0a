"""Workspaces at the place of a command: those of a store that this machine reaches, or of a running Lapse.

`StoreWorkspaces` has the methods of `lapse.client.nouns.RemoteWorkspaces`, as far as commands need them, on the
workspace store itself: nothing has to run for them, and what is asked for is carried out by the ``lapse up`` on the
same store. A ticket is made in the keys store that ``lapse up`` and the proxies read, in the name of the owner's token
of the state folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from lapse.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from lapse.cli.context import Context
    from lapse.cli.flags import Flags
    from lapse.client import AsyncClient
    from lapse.client.nouns import RemoteWorkspaces
    from lapse.core.clock import Clock
    from lapse.engine.journal.port import AuditReason
    from lapse.engine.view import ViewPage
    from lapse.workspaces.activity.port import Signal
    from lapse.workspaces.logs import LogPage
    from lapse.workspaces.model import Changes, Workspace, WorkspaceId
    from lapse.workspaces.view import Opened, WorkspaceDetails, WorkspaceView

T = TypeVar("T")
_SECOND: Final = 1_000_000_000


class ProxyPortUnknownError(UsageError):
    """proxy_port is 0, so lapse up picks one, and this command does not know which. Name it with --proxy-port."""


class StoreWorkspaces:
    """The workspaces of a store; see the module."""

    def __init__(self, context: Context) -> None:
        """Work on the store of a context, which is opened when it is needed."""
        self._context = context

    async def list(self, *, owner: str | None, limit: int, after: str | None) -> ViewPage[WorkspaceDetails]:
        """Return a page of workspaces, by name."""
        from lapse.engine.view import ViewPage

        store = await self._context.workspaces()
        found = await store.list(owner=owner, limit=limit + 1, after=after)
        shown = found[:limit]
        return ViewPage([self.details(one) for one in shown], shown[-1].name if len(found) > limit else None)

    async def show(self, name: str) -> WorkspaceDetails:
        """Return a workspace."""
        return self.details(await self._find(name))

    async def create(
        self,
        name: str,
        *,
        command: Sequence[str],
        port: int,
        owner: str | None = None,
        standby_ttl_seconds: int | None = None,
        archive_ttl_seconds: int | None = None,
        probe: str | None = None,
        start: bool = True,
    ) -> WorkspaceDetails:
        """Create a workspace of this machine; what is None is as the settings have it."""
        from lapse.app.workspaces import node_of, user_name
        from lapse.engine.journal.port import AuditReason
        from lapse.workspaces import verbs
        from lapse.workspaces.model import DesiredState, NewWorkspace

        settings = self._context.settings
        standby, archive = settings.default_standby_ttl, settings.default_archive_ttl
        new = NewWorkspace(
            name=name,
            owner=user_name() if owner is None else owner,
            command=tuple(command),
            port=port,
            node_id=node_of(settings),
            desired_state=DesiredState.RUNNING if start else DesiredState.PENDING,
            standby_ttl_seconds=int(standby.seconds) if standby_ttl_seconds is None else standby_ttl_seconds,
            archive_ttl_seconds=int(archive.seconds) if archive_ttl_seconds is None else archive_ttl_seconds,
            probe=probe,
        )
        made = await verbs.create(await self._context.workspaces(), new, now=self._context.now)
        await self._tell(AuditReason.WORKSPACE_CREATED, made)
        return self.details(made)

    async def set(self, name: str, changes: Changes) -> WorkspaceDetails:
        """Change command, port, owner, TTLs or probe, unless something else changes meanwhile."""
        from lapse.app.workspaces import node_of
        from lapse.workspaces import verbs

        found, store, now = await self._find(name), await self._context.workspaces(), self._context.now
        node = node_of(self._context.settings)
        return self.details(await verbs.configure(store, found, changes, node=node, version=found.version, now=now))

    async def start(self, name: str) -> WorkspaceDetails:
        """Let it run."""
        return await self._want(name, "start")

    async def stop(self, name: str) -> WorkspaceDetails:
        """Stop it."""
        return await self._want(name, "stop")

    async def archive(self, name: str) -> WorkspaceDetails:
        """Stop it and move its data to the archive."""
        return await self._want(name, "archive")

    async def delete(self, name: str, *, if_match: str | None = None) -> WorkspaceDetails:
        """Delete it; with ``if_match`` only as it was seen."""
        from lapse.cli.context import who
        from lapse.workspaces.errors import ChangedMeanwhileError
        from lapse.workspaces.target import delete_by_person
        from lapse.workspaces.view import etag_of

        found, context = await self._find(name), self._context
        if if_match is not None and etag_of(found) != if_match:
            raise ChangedMeanwhileError(workspace=name, found=found.version, expected="the one that was shown")
        store, journal, ttl = await context.workspaces(), await context.journal(), context.settings.trash_ttl
        deleted = await delete_by_person(store, journal, found, actor=who(), clock=context.machine, trash_ttl=ttl)
        return self.details(deleted)

    async def logs(self, name: str, *, tail: int | None = None, after: int = 0) -> LogPage:
        """Return a page of what its program wrote, on this machine."""
        from lapse.app.workspaces import log_of
        from lapse.workspaces.logs import read_log
        from lapse.workspaces.view import address_of

        found = await self._find(name)
        return read_log(log_of(self._context.settings, found), str(address_of(found)), tail=tail, after=after)

    async def open(self, name: str) -> Opened:
        """Make a ticket, and return the address that it opens."""
        from lapse.app.workspaces import demand_shared_tickets, ticket_records, url_of
        from lapse.engine.journal.port import AuditReason
        from lapse.engine.view import Moment
        from lapse.keys.aio import open_keys_async
        from lapse.workspaces.tickets import TICKET_SECONDS, Tickets, ticket_url
        from lapse.workspaces.view import Opened

        found, settings, clock = await self._find(name), self._context.settings, self._context.machine
        await self._context.journal()
        demand_shared_tickets(settings, "Ask the HTTP API of lapse up instead, or name a store that both can reach")
        if self._url(found) is None:
            raise ProxyPortUnknownError
        owner_id, _ = self._context.owner()
        until = Moment(clock.wall_ns() + TICKET_SECONDS * _SECOND)
        async with open_keys_async(settings.keys_url, clock=clock, sweep=False) as keys:
            ticket = await Tickets(ticket_records(keys, clock=clock)).issue(found.id, owner_id)
        await self._tell(AuditReason.WORKSPACE_OPENED, found)
        return Opened(ticket_url(url_of(settings, settings.proxy_port)(found.name), ticket), until)

    def details(self, found: Workspace) -> WorkspaceDetails:
        """Return the view of a row."""
        from lapse.engine.view import fill
        from lapse.workspaces.view import WorkspaceDetails, view_of

        return fill(WorkspaceDetails, view_of(found, self._context.now), url=self._url(found))

    def _url(self, found: Workspace) -> str | None:
        from lapse.app.workspaces import url_of

        settings = self._context.settings
        if not settings.proxy_port and settings.proxy_scheme == "http":
            return None
        return url_of(settings, settings.proxy_port)(found.name)

    async def _find(self, name: str) -> Workspace:
        return await (await self._context.workspaces()).by_name(name)

    async def _want(self, name: str, verb: str) -> WorkspaceDetails:
        from lapse.workspaces.verbs import Verb, ask

        found, store = await self._find(name), await self._context.workspaces()
        return self.details(await ask(store, Verb(verb), found, now=self._context.now))

    async def _tell(self, reason: AuditReason, workspace: Workspace) -> None:
        """Write into the journal who has done this with a workspace."""
        from lapse.cli.context import who
        from lapse.engine.journal.audit import tell
        from lapse.workspaces.model import DOMAIN
        from lapse.workspaces.verbs import told

        row = told(reason, workspace, actor=who(), now=self._context.now)
        await tell(await self._context.journal(), row, domain=DOMAIN)


@dataclass(frozen=True)
class WorkspacePlace:
    """Where a command finds workspaces."""

    workspaces: StoreWorkspaces | RemoteWorkspaces
    clock: Clock
    context: Context | None = None
    """None on a server, where there is no store to look into."""

    async def look(self, seen: WorkspaceView) -> WorkspaceView | None:
        """Return a workspace as it is now, a deleted one as long as something of it is left; None: it is gone."""
        from lapse.workspaces.errors import UnknownWorkspaceError
        from lapse.workspaces.model import WorkspaceId

        try:
            if isinstance(self.workspaces, StoreWorkspaces) and self.context is not None:
                store = await self.context.workspaces()
                return self.workspaces.details(await store.get(WorkspaceId(seen.id)))
            found = await self.workspaces.show(seen.name)
        except UnknownWorkspaceError:
            return None
        return found if found.id == seen.id else None

    async def signals(self, views: Sequence[WorkspaceView]) -> Mapping[WorkspaceId, Signal]:
        """Return who is connected to which; nothing where that is not known."""
        from lapse.workspaces.model import WorkspaceId

        return {} if self.context is None else await self.context.signals([WorkspaceId(one.id) for one in views])


def ask_workspaces(flags: Flags, asked: Callable[[WorkspacePlace], Awaitable[T]]) -> T:
    """Ask the workspaces at the place that flags or environment name."""
    from lapse.cli.context import in_context

    async def here(context: Context) -> T:
        return await asked(WorkspacePlace(StoreWorkspaces(context), context.machine, context))

    def there(client: AsyncClient) -> Awaitable[T]:
        from lapse.core.clock import SystemClock

        return asked(WorkspacePlace(client.workspaces, SystemClock()))

    return in_context(flags, here, remote=there)
