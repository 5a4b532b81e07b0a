"""Upstream connections to workspaces: one request at a time, its response passed on as it comes.

Guarantees: a connection goes to the address it was asked for and nowhere else, and is used for one workspace only; one
whose response was not read to its end is never used again. A kept connection may be closed by the workspace at the very
moment it is used, so only requests that may be repeated travel on one; all others get a fresh one.
Not done here: time limits but that of connecting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol, cast

from lapse.engine.running.metrics import UpstreamFailure
from lapse.http1.bodies import body_of
from lapse.http1.heads import ReceiveBuffer, RejectedError, response_head

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.http1.bodies import Body
    from lapse.http1.heads import ResponseHead
    from lapse.proxy.limits import ProxyLimits
    from lapse.proxy.ports import UpstreamAddress, WorkspaceId

_AHEAD: Final = 65_536
_SWITCHING: Final = 101
_FINAL: Final = 200
_BAD_GATEWAY: Final = 502
_TIMED_OUT: Final = 504


class UpstreamCutError(ConnectionError):
    """The workspace ended the connection before its response."""


class UpstreamUnreachableError(RejectedError):
    """The workspace takes no connection."""


def failure_of(error: RejectedError | UpstreamCutError) -> UpstreamFailure | None:
    """Return what a workspace did wrong; None where its client did."""
    if isinstance(error, UpstreamCutError):
        return UpstreamFailure.CUT
    if isinstance(error, UpstreamUnreachableError):
        return UpstreamFailure.UNREACHABLE
    return {_BAD_GATEWAY: UpstreamFailure.INVALID, _TIMED_OUT: UpstreamFailure.SILENT}.get(error.status)


class BodyReceiver(Protocol):
    """The client side of an exchange: takes the response's body, and holds the request's back while asked to."""

    write_paused: bool
    """Whether it takes nothing for now. It calls `Upstream.resume_reading` when it does again."""

    def take_body(self, data: bytes) -> None:
        """Write a piece on."""
        ...

    def hold_body(self) -> None:
        """Send nothing more of the request for now."""
        ...

    def free_body(self) -> None:
        """Go on sending."""
        ...


class Upstream(asyncio.Protocol):
    """One connection to a workspace."""

    __slots__ = (
        *("_body", "_finished", "_held", "_buffer", "_on_interim", "_interim_count", "_limits", "_method", "_paused"),
        *("_receiver", "_turn", "_waiting", "closed", "ended", "heard", "spare_since", "transport", "write_paused"),
    )

    def __init__(self, limits: ProxyLimits) -> None:
        """Not connected yet."""
        self._limits = limits
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.closed = False
        self.ended = False
        """Whether the workspace has ended its side."""
        self.heard = False
        """Whether anything came since the last request."""
        self.write_paused = False
        self.spare_since = 0.0
        self._paused = False
        self._held = False
        """Whether interim responses wait for a client that takes nothing."""
        self._turn = False
        """Whether what has come in is looked at again in the loop's next round."""
        self._buffer = ReceiveBuffer()
        self._interim_count = 0
        self._method = b""
        self._receiver: BodyReceiver | None = None
        self._body: Body | None = None
        self._waiting: asyncio.Future[ResponseHead] | None = None
        self._finished: asyncio.Future[None] | None = None
        self._on_interim: Callable[[ResponseHead], None] | None = None

    # --- one request --------------------------------------------------------------------------------------------------

    def send_request(
        self, request: bytes, method: bytes, *, receiver: BodyReceiver, on_interim: Callable[[ResponseHead], None]
    ) -> None:
        """Send a request's head; its body may follow by `send`, and `response` waits for what comes back."""
        self.heard = False
        self._interim_count = 0
        self._method, self._receiver, self._on_interim = method, receiver, on_interim
        self._waiting = asyncio.get_running_loop().create_future()
        if self.closed:
            self._waiting.set_exception(UpstreamCutError())
        else:
            self.transport.write(request)

    def send(self, data: bytes) -> None:
        """Send a piece of the request's body."""
        if not self.closed:
            self.transport.write(data)

    async def response(self) -> ResponseHead:
        """Return the head of the response. Raises `UpstreamCutError`, or `RejectedError` if it is unreadable."""
        assert self._waiting is not None, "nothing was asked"  # noqa: S101 - a mistake of ours
        return await self._waiting

    async def relay(self, head: ResponseHead) -> bool:
        """Pass the response's body on, to its end; return whether the connection may be used again."""
        body = self._body = body_of(head.length)
        if not body.done and self._buffer:
            try:
                self._pass(body, self._buffer.take())
            except RejectedError as error:
                raise _by_workspace(error) from error
        if not body.done:
            if self.closed:
                self._ended_within(body)
            else:
                self._finished = asyncio.get_running_loop().create_future()
                self.resume_reading()
                await self._finished
        self._receiver = self._body = self._finished = self._waiting = None
        self.resume_reading()
        return head.keep and not self.closed and not self._buffer and not body.rest

    def fail(self, error: Exception) -> None:
        """Let whoever waits for this connection wait no longer."""
        for future in (self._finished, self._waiting):
            if future is not None and not future.done():
                future.set_exception(error)
                return

    def detach(self) -> bytes:
        """Give the connection away after an upgrade; return what has come behind the head."""
        self._receiver = self._waiting = None
        self.resume_reading()
        return self._buffer.take()

    def pause_reading(self) -> None:
        """Take nothing more from the workspace for now."""
        if not self._paused and not self.closed:
            self._paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on: with what has come in already, then with the connection."""
        if self._has_work:
            self._work_later()
        elif self._paused:
            self._paused = False
            if not self.closed:
                self.transport.resume_reading()

    def abort(self) -> None:
        """End it without a farewell."""
        self.closed = True
        if self.transport is not None:
            self.transport.abort()

    # --- called by the event loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self.heard = True
        if self._body is not None:
            self._pass_or_fail(self._body, data)
        elif self._waiting is None:
            self.abort()  # nobody asked
        else:
            self._buffer.feed(data)
            if not self._waiting.done():
                self._look_for_head(self._waiting)
            elif len(self._buffer) > _AHEAD:
                self.pause_reading()

    def eof_received(self) -> bool:
        """See `asyncio.Protocol`; whoever uses the connection ends it, because a tunnel may go on in one direction."""
        self.ended = True
        self._end(None)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._end(exc)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self.write_paused = True
        if self._receiver is not None:
            self._receiver.hold_body()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self.write_paused = False
        if self._receiver is not None:
            self._receiver.free_body()

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _has_work(self) -> bool:
        """Whether something that has come in waits for its turn."""
        if self._body is not None:
            return self._body.more
        return self._held and self._waiting is not None and not self._waiting.done()

    def _work_later(self) -> None:
        """Look at the rest of what has come in in the loop's next round, and read nothing before that."""
        self.pause_reading()
        if not self._turn:
            self._turn = True
            asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        self._turn = False
        if not self._has_work or (self._receiver is not None and self._receiver.write_paused):
            return  # it is over, or goes on when the client has taken what it has
        if self._body is not None:
            self._pass_or_fail(self._body, b"")
        elif self._waiting is not None:
            self._look_for_head(self._waiting)
        if not self._held:
            self.resume_reading()

    def _look_for_head(self, waiting: asyncio.Future[ResponseHead]) -> None:
        limits = self._limits
        self._held = False
        try:
            while (raw := self._buffer.take_head()) is not None:
                if len(raw) > limits.head_bytes:
                    break
                head = response_head(raw, method=self._method, most_fields=limits.fields)
                if head.status >= _FINAL or head.status == _SWITCHING:
                    waiting.set_result(head)
                    return
                self._pass_interim(head)
                if self._receiver is not None and self._receiver.write_paused:
                    self._held = True
                    self.pause_reading()
                    return
            if raw is not None or len(self._buffer) > limits.head_bytes:
                raise RejectedError(502, "Its head is too long.")  # noqa: TRY301 - one way out
        except RejectedError as error:
            waiting.set_exception(_by_workspace(error))
            self.abort()

    def _pass_interim(self, head: ResponseHead) -> None:
        self._interim_count += 1
        if self._interim_count > self._limits.informations:
            raise RejectedError(502, f"It is announced more than {self._limits.informations} times.")
        if self._on_interim is not None:
            self._on_interim(head)

    def _pass_or_fail(self, body: Body, data: bytes) -> None:
        try:
            self._pass(body, data)
        except RejectedError as error:
            self.fail(_by_workspace(error))
            self.abort()

    def _pass(self, body: Body, data: bytes) -> None:
        piece = body.feed(data)
        if piece and self._receiver is not None:
            self._receiver.take_body(piece)
        if body.done and self._finished is not None and not self._finished.done():
            self._finished.set_result(None)
        elif body.more:
            self._work_later()

    def _end(self, exc: Exception | None) -> None:
        self.closed = True
        body, finished = self._body, self._finished
        if finished is not None and body is not None and not finished.done():
            try:
                self._ended_within(body, exc)
            except UpstreamCutError as error:
                finished.set_exception(error)
            else:
                finished.set_result(None)
        elif self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(UpstreamCutError())

    def _ended_within(self, body: Body, exc: Exception | None = None) -> None:
        while body.more:
            self._pass(body, b"")
        if body.done:
            return
        if exc is not None or not body.endless:
            raise UpstreamCutError
        body.done = True


def _by_workspace(error: RejectedError) -> RejectedError:
    """Return what a client is told about a response that cannot be passed on."""
    return RejectedError(_BAD_GATEWAY, f"The workspace's answer is wrong. {error.words}")


class Upstreams:
    """Kept connections of all workspaces. Belongs to one event loop."""

    def __init__(self, limits: ProxyLimits) -> None:
        """Connect to nothing yet."""
        self._limits = limits
        self._spare: dict[tuple[WorkspaceId, UpstreamAddress], deque[Upstream]] = {}

    def spare(self, workspace: WorkspaceId, address: UpstreamAddress) -> Upstream | None:
        """Return the connection that was used last, if there is one."""
        kept = self._spare.get((workspace, address))
        while kept:
            upstream = kept.pop()
            if not upstream.closed:
                return upstream
            upstream.abort()
        return None

    async def fresh(self, address: UpstreamAddress) -> Upstream:
        """Connect to this address. Raises `UpstreamUnreachableError`."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                if address.path:
                    _, upstream = await loop.create_unix_connection(self._make, address.path)
                else:
                    _, upstream = await loop.create_connection(self._make, address.host, address.port)
        except TimeoutError as error:
            raise UpstreamUnreachableError(_TIMED_OUT, "The workspace takes no connection.") from error
        except OSError as error:
            raise UpstreamUnreachableError(_BAD_GATEWAY, "The workspace's program does not listen.") from error
        return upstream

    def give_back(self, workspace: WorkspaceId, address: UpstreamAddress, *, upstream: Upstream, now: float) -> None:
        """Keep a connection for the next request."""
        kept = self._spare.setdefault((workspace, address), deque())
        if len(kept) >= self._limits.spare:
            upstream.abort()
            return
        upstream.spare_since = now
        kept.append(upstream)

    def sweep(self, now: float) -> None:
        """End those that nobody needed for long."""
        oldest = now - self._limits.spare_seconds
        for place, kept in tuple(self._spare.items()):
            while kept and (kept[0].closed or kept[0].spare_since < oldest):
                kept.popleft().abort()
            if not kept:
                del self._spare[place]

    def close(self) -> None:
        """End all that are kept; those in use belong to their users."""
        for kept in self._spare.values():
            for upstream in kept:
                upstream.abort()
        self._spare.clear()

    def _make(self) -> Upstream:
        return Upstream(self._limits)
