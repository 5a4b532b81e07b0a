"""The verbs of people on a running Lapse, over HTTP, awaited: `lapse.engine.verbs.contract.Verbs`.

Each method is one request, as `lapse.engine.verbs.operations` has it; nothing is decided and nothing is kept here. An
error of the server is raised as the error that it was (`lapse.client.errors`). What each domain can do beyond the verbs
is in `lapse.client.nouns`: ``client.keys``, ``client.workspaces`` and so on.
"""

from __future__ import annotations

from contextlib import aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lapse import __version__
from lapse.client.calls import SUCCESS, ApiCalls
from lapse.client.errors import NotTextError, RemoteError
from lapse.client.events import follow
from lapse.client.nouns import (
    RemoteDemo,
    RemoteHistory,
    RemoteKeys,
    RemoteRequests,
    RemoteRetention,
    RemoteSchedules,
    RemoteWorkspaces,
)
from lapse.client.transport import LapseServer, ServerTransport, TimeLimits
from lapse.core.clock import SystemClock
from lapse.engine.verbs import operations
from lapse.engine.verbs.operations import API, StatusRequest

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator

    from lapse.client.events import LiveEvent
    from lapse.core.clock import Clock
    from lapse.engine.explanation import Explanation
    from lapse.engine.journal.view import JournalRowView
    from lapse.engine.plans.plan import Plan
    from lapse.engine.trash import TrashEntry
    from lapse.engine.verbs.contract import (
        AppliedPlan,
        ApplyRequest,
        Approval,
        ApproveRequest,
        DeleteRequest,
        EmptiedTrash,
        EmptyTrashRequest,
        ExtendRequest,
        Forecast,
        ForecastRequest,
        FreezeRequest,
        FrozenView,
        HoldRequest,
        JournalRequest,
        PlanRequest,
        PlansRequest,
        ProposedPlan,
        ProposedRequest,
        ProposeRequest,
        ReleaseRequest,
        ResumeRequest,
        StatusView,
        SteeredView,
        TrashRequest,
        UndoneView,
        UndoRequest,
        WhyRequest,
    )
    from lapse.engine.verbs.operations import VerbOperation
    from lapse.engine.view import ViewPage

T = TypeVar("T")
_DEFAULT_LIMITS: Final = TimeLimits()


class AsyncClient:
    """See the module. Holds nothing open: there is nothing to close, and any event loop may use it."""

    def __init__(
        self,
        server: str,
        token: str,
        *,
        limits: TimeLimits = _DEFAULT_LIMITS,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Ask the Lapse at an address, with the rights of a token; ``tls`` says what certificates are believed.

        Raises `ServerAddressError`, `TokenFormError`, and `TokenInTheClearError` for an address of another machine
        without TLS.
        """
        agent, where = f"lapse/{__version__}", LapseServer.parse(server)
        self._transport = ServerTransport(
            server=where, token=token, clock=clock or SystemClock(), user_agent=agent, limits=limits, tls=tls
        )
        self._calls = ApiCalls(self._transport)
        self.keys = RemoteKeys(self._calls)
        self.requests = RemoteRequests(self._calls)
        self.schedules = RemoteSchedules(self._calls)
        self.history = RemoteHistory(self._calls)
        self.retention = RemoteRetention(self._calls)
        self.workspaces = RemoteWorkspaces(self._calls)
        self.demo = RemoteDemo(self._calls)

    @property
    def server(self) -> LapseServer:
        """Where it asks."""
        return self._transport.server

    def __repr__(self) -> str:
        """Tell where it asks, and not with what."""
        return f"{type(self).__name__}({str(self.server)!r})"

    async def plan(self, asked: PlanRequest) -> Plan:
        """See `Verbs`."""
        return await self._call(operations.PLAN, asked)

    async def forecast(self, asked: ForecastRequest) -> Forecast:
        """See `Verbs`."""
        return await self._call(operations.FORECAST, asked)

    async def apply(self, asked: ApplyRequest) -> AppliedPlan:
        """See `Verbs`."""
        return await self._call(operations.APPLY, asked)

    async def approve(self, asked: ApproveRequest) -> Approval:
        """See `Verbs`."""
        return await self._call(operations.APPROVE, asked)

    async def propose(self, asked: ProposeRequest) -> ProposedPlan:
        """See `Verbs`."""
        return await self._call(operations.PROPOSE, asked)

    async def plans(self, asked: PlansRequest) -> ViewPage[ProposedPlan]:
        """See `Verbs`."""
        return await self._call(operations.PLANS, asked)

    async def proposed(self, asked: ProposedRequest) -> Plan:
        """See `Verbs`."""
        return await self._call(operations.PROPOSED, asked)

    async def why(self, asked: WhyRequest) -> Explanation:
        """See `Verbs`."""
        return await self._call(operations.WHY, asked)

    async def hold(self, asked: HoldRequest) -> SteeredView:
        """See `Verbs`."""
        return await self._call(operations.HOLD, asked)

    async def release(self, asked: ReleaseRequest) -> SteeredView:
        """See `Verbs`."""
        return await self._call(operations.RELEASE, asked)

    async def extend(self, asked: ExtendRequest) -> SteeredView:
        """See `Verbs`."""
        return await self._call(operations.EXTEND, asked)

    async def delete(self, asked: DeleteRequest) -> SteeredView:
        """See `Verbs`."""
        return await self._call(operations.DELETE, asked)

    async def undo(self, asked: UndoRequest) -> UndoneView:
        """See `Verbs`."""
        return await self._call(operations.UNDO, asked)

    async def trash(self, asked: TrashRequest) -> ViewPage[TrashEntry]:
        """See `Verbs`."""
        return await self._call(operations.TRASH, asked)

    async def empty_trash(self, asked: EmptyTrashRequest) -> EmptiedTrash:
        """See `Verbs`."""
        return await self._call(operations.EMPTY_TRASH, asked)

    async def freeze(self, asked: FreezeRequest) -> FrozenView:
        """See `Verbs`."""
        return await self._call(operations.FREEZE, asked)

    async def resume(self, asked: ResumeRequest) -> FrozenView:
        """See `Verbs`."""
        return await self._call(operations.RESUME, asked)

    async def journal(self, asked: JournalRequest) -> ViewPage[JournalRowView]:
        """See `Verbs`."""
        return await self._call(operations.JOURNAL, asked)

    async def status(self) -> StatusView:
        """See `Verbs`."""
        return await self._call(operations.STATUS, StatusRequest())

    async def events(self, *, domain: str | None = None, after: str | None = None) -> AsyncGenerator[LiveEvent, None]:
        """Follow what happens: rows of the journal behind ``after``, or from now on, and which stores have changed.

        It has no end. A connection that is lost is made again, and goes on behind the last row; then every topic is
        told once, because any of them may have changed meanwhile. Raises what the server says, such as that the token
        is not known any more, and `ServerUnreachableError` where it could not be reached in the first place.
        """
        async with aclosing(follow(self._transport, self._calls, domain=domain, after=after)) as found:
            async for event in found:
                yield event

    async def check(self) -> None:
        """Return when the server lets the token in, whatever its scopes; raises otherwise, as every method does."""
        response = await self._transport.call("GET", f"{API}{operations.STATUS.path}")
        if response.status not in SUCCESS:
            error = self._calls.error(response)
            if error.status != HTTPStatus.FORBIDDEN or not isinstance(error, RemoteError):
                raise error

    async def _call(self, operation: VerbOperation[Any, T], asked: Any) -> T:  # noqa: ANN401 - of the operation's kind
        try:
            target, body = operation.write(asked)
        except UnicodeEncodeError as error:
            raise NotTextError from error
        return await self._calls.send(operation.method, target, operation.told, body=body)
