"""Connections to one server that are kept open: a question, then its whole answer, then the next question.

Short calls are most of what controllers do, and the library that watches go through costs nearly twice as much
processor time for each (`python -m bench.kube_client` shows both). This is what a call needs and nothing else: no
cookies, no redirections, no streams, no proxy.

Guarantees: a question is sent once, but for one that may be repeated (``again``) on a kept connection that the server
had closed before it heard of it; a connection whose answer is not complete, for whatever reason, is never used again;
none is kept longer than half a minute, or for another TLS context than it was made with. Not done here: time limits but
that of connecting, and how many there are.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from aiohappyeyeballs import start_connection

from lapse.http1.sockets import new_socket
from lapse.kube.api.http1 import ResponseReader, UnreadableError

if TYPE_CHECKING:
    import ssl

    from lapse.core.clock import Clock
    from lapse.kube.api.http1 import RawResponse

_KEPT_NS: Final = 30_000_000_000
_SECOND_FAMILY_SECONDS: Final = 0.25


class ConnectionCutError(ConnectionError):
    """The connection ended before the answer did."""


class ConnectTimeoutError(TimeoutError):
    """There was no connection in time."""


class NoConnectionError(OSError):
    """There was no connection; the cause says why."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server listens, and by which name its certificate is checked."""

    host: str
    port: int
    server_name: str | None = None


class Connection(asyncio.Protocol):
    """One connection; one question at a time."""

    def __init__(self) -> None:
        """Not connected yet."""
        self.open = False
        self.context: ssl.SSLContext | None = None
        self.since_ns = 0
        """When it was put aside."""
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[RawResponse] | None = None
        self._answer = ResponseReader()

    @property
    def heard(self) -> bool:
        """Whether the server has begun to answer the last question."""
        return self._answer.begun

    async def ask(self, question: bytes) -> RawResponse:
        """Send a question and return its answer; useless after `ConnectionCutError` or `UnreadableError`."""
        if self._transport is None or not self.open:
            raise ConnectionCutError("it is closed")
        self._answer = ResponseReader()
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(question)
        try:
            return await self._waiting
        except BaseException:
            self.abort()  # the rest of the answer may still be under way
            raise

    def abort(self) -> None:
        """End it without a farewell, which would outlive the event loop."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    # --- called by the event loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport, self.open = cast("asyncio.Transport", transport), True

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        waiting = self._waiting
        if waiting is None or waiting.done():
            self.abort()  # nobody asked
            return
        try:
            reply = self._answer.feed(data)
        except UnreadableError as error:
            waiting.set_exception(error)
        else:
            if reply is not None:
                waiting.set_result(reply)

    def eof_received(self) -> None:
        """See `asyncio.Protocol`."""
        self.open = False
        if self._waiting is not None and not self._waiting.done():
            try:
                reply = self._answer.end()
            except UnreadableError as error:
                self._waiting.set_exception(error)
            else:
                if reply is not None:
                    self._waiting.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.open = False
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(
                ConnectionCutError("the server closed it" if exc is None else type(exc).__name__)
            )


class ConnectionPool:
    """See the module. Belongs to one event loop."""

    def __init__(self, place: ServerAddress, *, connect_seconds: float, clock: Clock) -> None:
        """Connect to nothing yet."""
        self._place, self._connect_seconds, self._clock = place, connect_seconds, clock
        self._free: deque[Connection] = deque()
        self._all: set[Connection] = set()

    async def ask(self, question: bytes, *, context: ssl.SSLContext | None, again: bool) -> RawResponse:
        """Send a question; raises `OSError`, `TimeoutError`, `ConnectionCutError` or `UnreadableError`."""
        kept = self._kept(context)
        if kept is not None:
            try:
                return await self._ask(kept, question)
            except ConnectionCutError:
                if kept.heard or not again:
                    raise
        return await self._ask(await self._connect(context), question)

    def close(self) -> None:
        """End all of them, also those in use."""
        for connection in tuple(self._all):
            connection.abort()
        self._all.clear()
        self._free.clear()

    async def _ask(self, connection: Connection, question: bytes) -> RawResponse:
        try:
            reply = await connection.ask(question)
        except BaseException:
            self._all.discard(connection)
            raise
        if reply.keep and connection.open:
            connection.since_ns = self._clock.monotonic_ns()
            self._free.append(connection)
        else:
            self._end(connection)
        return reply

    def _kept(self, context: ssl.SSLContext | None) -> Connection | None:
        """Return the connection that was used last, and end those that nobody needed for long."""
        oldest_ns = self._clock.monotonic_ns() - _KEPT_NS
        while self._free and self._free[0].since_ns < oldest_ns:
            self._end(self._free.popleft())
        while self._free:
            found = self._free.pop()
            if found.open and found.context is context:
                return found
            self._end(found)
        return None

    async def _connect(self, context: ssl.SSLContext | None) -> Connection:
        loop, place = asyncio.get_running_loop(), self._place
        name: dict[str, Any] = {} if context is None else {"server_hostname": place.server_name or place.host}
        try:
            async with asyncio.timeout(self._connect_seconds):
                # Not by the loop itself: of a host with two families, uvloop would wait for one before the other.
                found = await loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
                made = await start_connection(
                    found, happy_eyeballs_delay=_SECOND_FAMILY_SECONDS, socket_factory=new_socket
                )
                _, connection = await loop.create_connection(Connection, sock=made, ssl=context, **name)
        except TimeoutError as error:
            raise ConnectTimeoutError from error
        except OSError as error:
            raise NoConnectionError from error
        connection.context = context
        self._all.add(connection)
        return connection

    def _end(self, connection: Connection) -> None:
        connection.abort()
        self._all.discard(connection)
