"""Connections to uvicorn with limits: how many there are, and how long each may take.

uvicorn has none until a request is complete, so a few hundred half heads would keep everybody out. Here a connection
has so long for its head, so long for the whole body, and so long to take a byte of its answer; what it sends ahead of
its answers is not read. Connections that wait make room for new ones (`lapse.http1.connections`). What is refused here
is answered with a problem document and the headers of every other answer, as it is behind the guard.

Time limits are looked at once per ``sweep_seconds``, all connections together, so each may be exceeded by that much.
"""

from __future__ import annotations

import asyncio
import re
import sys
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

from h11 import RemoteProtocolError
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from lapse.core.identity import owner_token
from lapse.http1.connections import ConnectionLimit
from lapse.web.api.errors import (
    HeadTooLargeError,
    MalformedRequestError,
    RequestError,
    RequestTooSlowError,
    TooManyConnectionsError,
)
from lapse.web.api.problems import problem
from lapse.web.server.security import MAX_HEAD_BYTES, MAX_HEADER_LINES, with_own_headers

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Coroutine

    from starlette.types import ASGIApp, Receive, Scope, Send

    from lapse.core.clock import Clock

_NO_DESCRIPTOR_SECONDS: Final = 0.1
_ABSOLUTE: Final = re.compile(rb"https?://([^/]*)(/.*)?", re.IGNORECASE)
"""A target without its query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What the connections of one listener may take."""

    connections: int = 512
    """In all; 0 is no limit."""
    connections_per_peer: int = 256
    """Of one address; 0 is no limit."""
    head_seconds: float = 10.0
    """From the connection, or a request's first byte, to the end of its head."""
    body_seconds: float = 30.0
    """From there to the end of its body."""
    write_seconds: float = 30.0
    """How long a client may take nothing of an answer."""
    sweep_seconds: float = 1.0
    """How often connections are looked at."""


class ListenerConnections:
    """The connections of one listener, and the limits that they share."""

    def __init__(self, limits: ConnectionLimits, now: Callable[[], float]) -> None:
        """Begin with none; ``now`` returns monotonic seconds."""
        self.limits, self.now = limits, now
        self.admitted: ConnectionLimit[LimitedProtocol | Handshake] = ConnectionLimit(
            limits.connections, limits.connections_per_peer
        )
        self.open: set[LimitedProtocol] = set()

    def check(self) -> None:
        """Give up what takes too long."""
        now = self.now()
        for one in tuple(self.open):
            one.check(now)


class _Flow(FlowControl):
    """Reads nothing while something waits that was sent ahead."""

    full = False

    def resume_reading(self) -> None:
        if not self.full:
            super().resume_reading()


class LimitedProtocol(H11Protocol):
    """One connection. Made by uvicorn, which gives ``room`` by `Listener`."""

    def __init__(self, *args: Any, room: ListenerConnections, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's own
        """Not connected yet."""
        super().__init__(*args, **kwargs)
        self.app = partial(_in_origin_form, self.app)
        self._room = room
        self._since: float | None = room.now()
        """When the connection, a request's head or its body began; None between requests."""
        self._ahead = b""
        """What came while a request was being answered."""
        self._refused = False
        self._left = 0
        """Bytes of answers that the client had not taken at the last look."""
        self._moved = room.now()
        """When that last became another number."""

    # --- called by the event loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Take the connection, or refuse it when there are too many."""
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._room.open.add(self)
        if not self._room.admitted.admit(self, peer_of(transport)):
            self._refuse(TooManyConnectionsError())

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._room.open.discard(self)
        self._room.admitted.release(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, unless a request is being answered: what comes then waits, and nothing more is read."""
        if self._refused:
            return
        if not self._has_no_request and not self.cycle.more_body:
            self._ahead += data
            self._flow.full = True
            self._flow.pause_reading()
            return
        if self._since is None:
            self._since = self._room.now()
        super().data_received(data)

    def handle_events(self) -> None:
        """See uvicorn; a request that begins here begins its time."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._since = self._room.now()

    def on_response_complete(self) -> None:
        """See uvicorn; then go on with what was sent ahead."""
        self._since = None
        super().on_response_complete()
        if self._ahead and self._has_no_request and not self.transport.is_closing():
            data, self._ahead, self._flow.full = self._ahead, b"", False
            self._flow.resume_reading()
            self.data_received(data)

    # --- limits -------------------------------------------------------------------------------------------------------

    @property
    def waits_for_request(self) -> bool:
        """Whether ending it breaks nothing off: no request is at hand, or one whose body has not come, so not begun."""
        return self._has_no_request or (self.cycle.more_body and not self.cycle.response_started)

    @property
    def _has_no_request(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def close(self) -> None:
        """End the connection for another one."""
        self._refused = True
        self.transport.close()

    def check(self, now: float) -> None:
        """Give up what takes too long."""
        limits = self._room.limits
        if self._takes_nothing(now):
            self.transport.abort()
        elif self._since is None or self._refused:
            return
        elif self._has_no_request:
            if now - self._since > limits.head_seconds:
                self._too_slow("head", limits.head_seconds)
        elif self.cycle.more_body and now - self._since > limits.body_seconds:
            self._too_slow("body", limits.body_seconds)

    def _takes_nothing(self, now: float) -> bool:
        left = self.transport.get_write_buffer_size()
        if not left or left != self._left:
            self._left, self._moved = left, now
        return now - self._moved > self._room.limits.write_seconds

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP. Called by uvicorn while it handles the error that says what was wrong."""
        error = sys.exception()
        hint = error.error_status_hint if isinstance(error, RemoteProtocolError) else HTTPStatus.BAD_REQUEST
        if hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            self._give_up(HeadTooLargeError(limit=MAX_HEAD_BYTES, lines=MAX_HEADER_LINES))
        else:
            self._give_up(MalformedRequestError())

    def _too_slow(self, part: str, seconds: float) -> None:
        self._give_up(RequestTooSlowError(part=part, seconds=f"{seconds:g}"))

    def _give_up(self, error: RequestError) -> None:
        if not self._has_no_request and self.cycle.response_started:
            self.transport.abort()  # half an answer is out; a second one behind it would be taken for its rest
        else:
            self._refuse(error)

    def _refuse(self, error: RequestError) -> None:
        self._refused = True
        request_id = owner_token()
        answer = problem(error, request_id)
        fields = [*with_own_headers(answer.raw_headers, request_id), (b"connection", b"close")]
        head = b"HTTP/1.1 %d %b\r\n" % (answer.status_code, HTTPStatus(answer.status_code).phrase.encode())
        lines = b"".join(b"%b: %b\r\n" % field for field in fields)
        self.transport.write(head + lines + b"\r\n" + bytes(answer.body))
        self.transport.close()

    @property
    def _flow(self) -> _Flow:
        return cast("_Flow", self.flow)


async def _in_origin_form(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Take a target with scheme and host (RFC 9112, 3.2.2) for its path and the Host that it names, whichever came."""
    if not scope["raw_path"].startswith(b"/"):
        target = _ABSOLUTE.fullmatch(scope["raw_path"])
        if target is not None:
            path = target[2] or b"/"
            headers = [(b"host", target[1]), *(line for line in scope["headers"] if line[0] != b"host")]
            scope.update(raw_path=path, path=unquote(path.decode("ascii")), headers=headers)
    await app(scope, receive, send)


class Handshake:
    """A connection that has to begin TLS: counted, and limited in time, before uvicorn knows of it."""

    waits_for_request: Final = True

    def __init__(self, made: socket.socket, work: Callable[[], Coroutine[None, None, object]]) -> None:
        """Begin ``work``, which ends when HTTP can be spoken, or raises."""
        self._socket = made
        self._task = asyncio.get_running_loop().create_task(work())

    def close(self) -> None:
        """End the connection for another one."""
        self._task.cancel()

    def when_done(self, tell: Callable[[Handshake], None]) -> None:
        """Call ``tell`` at the end, whichever it is."""

        def done(task: asyncio.Task[object]) -> None:
            tell(self)
            # A client that does not speak TLS, or not in time, is gone; nobody waits for it.
            if task.cancelled() or task.exception() is not None:
                self._socket.close()

        self._task.add_done_callback(done)


async def accept_tls(
    listening: socket.socket,
    tls: ssl.SSLContext,
    *,
    room: ListenerConnections,
    make: Callable[[], LimitedProtocol],
    clock: Clock,
) -> None:
    """Take connections for ever. The loop's own server tells of one only after its handshake, which may never come."""
    loop = asyncio.get_running_loop()
    listening.setblocking(False)
    while True:
        try:
            made, address = await loop.sock_accept(listening)
        except OSError:  # no descriptor is left, or the client is gone already
            await clock.sleep(_NO_DESCRIPTOR_SECONDS)
            continue
        handshake = Handshake(
            made,
            partial(
                loop.connect_accepted_socket,
                make,
                made,
                ssl=tls,
                ssl_handshake_timeout=room.limits.head_seconds,
            ),
        )
        if room.admitted.admit(handshake, str(address[0])):
            handshake.when_done(room.admitted.release)
        else:
            handshake.close()
            made.close()


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Return the address of the other side."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""
