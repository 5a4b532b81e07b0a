"""Client side of the proxy: requests come in, responses go out, one at a time on each connection.

The protocol carries bytes; a task per request decides (`exchange`). Bodies are passed on as they come and never
collected: while the workspace cannot take more, the client is not read, and the other way round. Requests sent ahead of
their responses wait in the socket, but for what was read with the one before; while a client does not take its
responses, none of them is looked at. A connection gets one request answered in a round of the event loop. A client that
ends its side of the connection is gone, as browsers and other proxies see it too, and so is its request.

Time limits are looked at by `check`, for all connections together; see `limits`.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol, cast

from lapse.http1.bodies import LAST_CHUNK, body_of, chunk
from lapse.http1.heads import CHUNKED, ReceiveBuffer, RejectedError, request_head
from lapse.proxy.pages import reply_bytes
from lapse.proxy.ports import DirectResponse
from lapse.proxy.tunnel import end_writing
from lapse.proxy.upstream import UpstreamCutError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from lapse.engine.running.metrics import ProxyMetrics
    from lapse.http1.bodies import Body
    from lapse.http1.connections import ConnectionLimit
    from lapse.http1.heads import RequestHead
    from lapse.proxy.limits import ProxyLimits
    from lapse.proxy.ports import Visitor, WorkspaceId
    from lapse.proxy.tunnel import Tunnel
    from lapse.proxy.upstream import Upstream

_AHEAD: Final = 65_536


class Phase(IntEnum):
    """The state of a connection, and so which time limit counts."""

    HEAD = 0
    """A head has begun, or is expected on a new connection."""
    KEEP = 1
    """Between requests."""
    BUSY = 2
    """A request is authenticated and routed; the stores have time limits of their own."""
    WAITING = 3
    """The workspace has the request, or gets it."""
    BODY = 4
    """The response is under way."""
    LINGER = 5
    """The last response is out; what still comes is thrown away."""


class ProxyContext(Protocol):
    """The part of the proxy that a client connection uses."""

    limits: ProxyLimits
    now: float
    """Monotonic seconds, as of the last sweep."""
    stopping: bool
    clients: dict[ClientConnection, None]
    admitted: ConnectionLimit[ClientConnection | Tunnel]
    metrics: ProxyMetrics

    def serve(self, client: ClientConnection, head: RequestHead) -> Coroutine[None, None, None]:
        """Answer one request, whatever happens."""
        ...


class ClientConnection(asyncio.Protocol):
    """One connection of a client."""

    __slots__ = (
        *(
            "_body",
            "_chunked_in",
            "_chunked_out",
            "_flushed",
            "_flushed_at",
            "_proxy",
            "_buffer",
            "_paused",
            "_taken",
        ),
        *("_task", "_upstream", "_write", "_written", "closed", "peer", "phase", "since", "transport", "visitor"),
        *("workspace", "write_paused"),
    )

    def __init__(self, proxy: ProxyContext) -> None:
        """Not connected yet."""
        self._proxy = proxy
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.peer = b""
        self.phase = Phase.HEAD
        self.since = proxy.now
        self.workspace: WorkspaceId | None = None
        """That of the request at hand."""
        self.visitor: Visitor | None = None
        """That of the request at hand."""
        self.closed = False
        self.write_paused = False
        self._paused = False
        self._buffer = ReceiveBuffer()
        self._written = self._flushed = 0
        """Bytes given to the connection, and how many of them it had taken at the last look with progress."""
        self._flushed_at = proxy.now
        self._task: asyncio.Task[None] | None = None
        self._upstream: Upstream | None = None
        self._body: Body | None = None
        self._taken = 0
        self._chunked_in = self._chunked_out = False

    # --- what the exchange uses ---------------------------------------------------------------------------------------

    @property
    def request_done(self) -> bool:
        """Whether the whole request has come in."""
        return self._body is None or self._body.done

    @property
    def is_silent(self) -> bool:
        """Whether nothing of a request has come."""
        return not self._buffer

    @property
    def buffered(self) -> int:
        """How many bytes of the client wait here, read and not used."""
        return len(self._buffer)

    @property
    def waits_for_request(self) -> bool:
        """Whether no request is at hand, so that the connection may be ended without breaking one off."""
        return self.phase <= Phase.KEEP

    def send_body(self, upstream: Upstream) -> None:
        """Pass the request's body on to this connection from now on."""
        self._enter(Phase.WAITING)
        self._upstream = upstream
        if not self.request_done and self._buffer:
            self._send(self._buffer.take())
        self._regulate()

    def begin_response(self, head: bytes, *, chunked: bool) -> None:
        """Write a response's head; its body follows by `take_body`."""
        self._enter(Phase.BODY)
        self._chunked_out = chunked
        self._put(head)

    def take_body(self, data: bytes) -> None:
        """Write a piece of a response's body."""
        self.since = self._proxy.now
        self._put(chunk(data) if self._chunked_out else data)
        if self.write_paused and self._upstream is not None:
            self._upstream.pause_reading()

    def end_response(self, *, keep: bool) -> None:
        """Finish the response: go on with the next request, or part."""
        if self._chunked_out:
            self._put(LAST_CHUNK)
        self._finish(keep=keep)

    def write(self, data: bytes) -> None:
        """Write an interim response, or that of an upgrade."""
        self._put(data)

    def reply(self, reply: DirectResponse, *, keep: bool, with_body: bool = True) -> None:
        """Respond in the workspace's place."""
        keep = keep and self.request_done and not self._proxy.stopping
        self._answer(reply, keep=keep, with_body=with_body)
        self._finish(keep=keep)

    def hold_body(self) -> None:
        """The workspace cannot take more of the request for now."""
        self._regulate()

    def free_body(self) -> None:
        """It can again."""
        self._regulate()

    def detach(self) -> bytes:
        """Give the connection away after an upgrade; return what has come behind the head."""
        self._proxy.clients.pop(self, None)
        self._upstream = self._task = None
        self._resume()
        return self._buffer.take()

    def abort(self) -> None:
        """End the connection in the middle, so that nobody takes a part for the whole."""
        self.closed = True
        self.transport.abort()

    def close(self) -> None:
        """End the connection after what was written."""
        self.closed = True
        self.transport.close()

    # --- time ---------------------------------------------------------------------------------------------------------

    def check(self, now: float, limits: ProxyLimits) -> None:
        """Give up what takes too long."""
        passed, phase = now - self.since, self.phase
        lies = self._takes_nothing(now, limits)
        if lies or (phase is Phase.LINGER and passed > limits.linger_seconds):
            self.abort()
        elif phase is Phase.KEEP:
            if passed > limits.keep_seconds or self._proxy.stopping:
                self.close()
        elif phase is Phase.HEAD:
            if passed > limits.head_seconds:
                self._too_slow_with_head()
        elif phase is Phase.WAITING and self.request_done:
            if passed > limits.answer_seconds:
                self._fail(RejectedError(504, "The workspace does not answer."))
        elif phase is not Phase.BUSY and passed > limits.idle_seconds:
            self._fail(RejectedError(408, "Nothing has moved for too long."))

    def _takes_nothing(self, now: float, limits: ProxyLimits) -> bool:
        """Whether a client leaves a response lie for too long; one that is still being made has a limit of its own."""
        waiting = self.transport.get_write_buffer_size()
        flushed = self._written - waiting
        if not waiting or flushed != self._flushed or self.phase is Phase.BODY:
            self._flushed, self._flushed_at = flushed, now
        return now - self._flushed_at > limits.write_seconds

    def _too_slow_with_head(self) -> None:
        if self._buffer:
            self._refuse(RejectedError(408, "The head of the request took too long."))
        else:
            self.close()

    # --- called by the event loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self.transport = cast("asyncio.Transport", transport)
        self._write = self.transport.write
        peer = transport.get_extra_info("peername")
        self.peer = peer[0].encode() if isinstance(peer, tuple) else b"unknown"
        self._proxy.clients[self] = None
        if not self._proxy.admitted.admit(self, self.peer.decode("latin-1")):
            self._answer(DirectResponse(503, "There are too many connections; try again later."), keep=False)
            self.close()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        phase = self.phase
        if self.closed:
            return
        if self._upstream is not None and not self.request_done:
            self._send(data)
        elif phase is not Phase.LINGER:
            self._buffer.feed(data)
            if phase <= Phase.KEEP:
                self._take_head()
            self._regulate()

    def eof_received(self) -> None:
        """See `asyncio.Protocol`."""

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.closed = True
        self._proxy.clients.pop(self, None)
        self._proxy.admitted.release(self)
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self.write_paused = True
        if self._upstream is not None and self.phase is Phase.BODY:
            self._upstream.pause_reading()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self.write_paused = False
        self.since = self._proxy.now
        if self._upstream is not None:
            self._upstream.resume_reading()
        elif self.phase is Phase.KEEP:
            self._next()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _put(self, data: bytes) -> None:
        if not self.closed:  # a task may find that out only at its next wait
            self._written += len(data)
            self._write(data)

    def _answer(self, reply: DirectResponse, *, keep: bool, with_body: bool = True) -> None:
        self._proxy.metrics.answered(reply.status)
        self._put(reply_bytes(reply, keep=keep, with_body=with_body))

    def _take_head(self) -> None:
        """Begin with the next request, if its head is there and the client takes its answers."""
        limits = self._proxy.limits
        if self.phase is Phase.KEEP:
            self._buffer.skip_line_end()
        if not self._buffer or self.write_paused:
            return
        try:
            raw = self._buffer.take_head()
            if (len(self._buffer) if raw is None else len(raw)) > limits.head_bytes:
                raise RejectedError(431, f"The head of a request may have {limits.head_bytes} bytes.")  # noqa: TRY301 - one way out
            if raw is None:
                if self.phase is Phase.KEEP:
                    self._enter(Phase.HEAD)
                return
            head = request_head(raw, most_fields=limits.fields)
            if head.length > limits.body_bytes:
                raise _too_long(limits)
        except RejectedError as error:
            self._refuse(error)
            return
        self._body = body_of(head.length) if head.length else None
        self._chunked_in, self._taken = head.length == CHUNKED, 0
        self._enter(Phase.BUSY)
        self._task = asyncio.get_running_loop().create_task(self._proxy.serve(self, head))

    def _refuse(self, error: RejectedError) -> None:
        """Answer a head that cannot be read; what comes behind it cannot be either."""
        self._answer(DirectResponse(error.status, error.words), keep=False)
        self._linger()

    def _send(self, data: bytes) -> None:
        """Pass a piece of the request's body on."""
        body, upstream = self._body, self._upstream
        if body is None or upstream is None:
            return
        self.since = self._proxy.now
        try:
            piece = body.feed(data)
            self._taken += len(piece)
            if self._taken > self._proxy.limits.body_bytes:
                raise _too_long(self._proxy.limits)
        except RejectedError as error:
            upstream.fail(error)
            return
        if piece:
            upstream.send(chunk(piece) if self._chunked_in else piece)
        if body.done:
            if body.rest:
                self._buffer.feed(body.rest)
            if self._chunked_in:
                upstream.send(LAST_CHUNK)
        elif body.more:
            asyncio.get_running_loop().call_soon(self._send_more, body)
        self._regulate()

    def _send_more(self, body: Body) -> None:
        """Go on with the chunks that were left for another turn."""
        if self._body is body and body.more:
            self._send(b"")

    def _finish(self, *, keep: bool) -> None:
        done = self.request_done
        self._upstream = self._task = self._body = self.workspace = self.visitor = None
        self._chunked_out = False
        self._enter(Phase.KEEP)
        if self.closed:
            return
        if keep and not self._proxy.stopping:
            self._next()
        elif done:
            self.close()
        else:
            self._linger()

    def _next(self) -> None:
        """Go on with what the client has sent ahead, unless it does not even take the answers that it has."""
        self.since = self._proxy.now
        self._take_head()
        self._regulate()

    def _linger(self) -> None:
        """Read what still comes: closing at once would make the kernel take the response back from the client."""
        self._enter(Phase.LINGER)
        self._buffer.take()
        self._resume()
        end_writing(self.transport)

    def _fail(self, error: Exception) -> None:
        if self._upstream is not None:
            self._upstream.fail(error if self.phase is Phase.WAITING else UpstreamCutError())

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.since = self._proxy.now

    def _regulate(self) -> None:
        """Read on, or not: nothing that could not be used soon is taken from the client."""
        if self._upstream is not None and not self.request_done:
            full = self._upstream.write_paused or (self._body is not None and self._body.more)
        elif self.phase <= Phase.KEEP:
            full = self.write_paused
        else:
            full = len(self._buffer) > _AHEAD and self.phase is not Phase.LINGER
        if full:
            self._pause()
        else:
            self._resume()

    def _pause(self) -> None:
        if not self._paused and not self.closed:
            self._paused = True
            self.transport.pause_reading()

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            if not self.closed and not self.transport.is_closing():
                self.transport.resume_reading()


def _too_long(limits: ProxyLimits) -> RejectedError:
    return RejectedError(413, f"A body may have {limits.body_bytes} bytes.")
