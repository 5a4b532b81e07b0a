"""Connection pool to one HTTP/1.1 server: a request, then its response, whole or piece by piece, then the next request.

All calls and watches of the Kubernetes client and all deliveries to a webhook go through one, straight to the server or
through an HTTP proxy (for https:// by CONNECT). It has what they need and nothing else: no cookies, no redirections.

Guarantees: a request is sent once, but for one that may be repeated (``repeatable``) on a kept connection that the
server had closed before it heard of it; a connection whose response was not read to its end, for whatever reason, is
never used again; none is kept longer than half a minute, or for another TLS context than it was made with; a response
that is read in pieces is not read ahead of its reader by more than a few. Not done here: time limits but that of
connecting, and how many connections there are.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar, cast
from urllib.parse import unquote, urlsplit

from aiohappyeyeballs import start_connection

from lapse.http1.heads import RejectedError
from lapse.http1.responses import ResponseReader
from lapse.http1.sockets import new_socket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lapse.core.clock import Clock
    from lapse.http1.heads import ResponseHead

_KEPT_NS: Final = 30_000_000_000
_SECOND_FAMILY_SECONDS: Final = 0.25
_READ_AHEAD: Final = 262_144
"""Bytes of a response in pieces that may wait for their reader."""
_SUCCESS: Final = range(200, 300)
T = TypeVar("T")
PORTS: Final = {"http": 80, "https": 443}


class ConnectionCutError(ConnectionError):
    """The connection ended before the response did."""


class UnreadableResponseError(ConnectionError):
    """What came is no response; the message says why."""


class ConnectTimeoutError(TimeoutError):
    """There was no connection in time."""


class NoConnectionError(OSError):
    """There was no connection; the cause says why."""


class ProxyRefusedError(ConnectionError):
    """The proxy did not connect; the message says what it answered."""


@dataclass(frozen=True, slots=True)
class ProxyAddress:
    """An HTTP proxy, and what it wants to see of us."""

    host: str
    port: int
    tls: bool
    authorization: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str) -> ProxyAddress:
        """Take an address apart, which may hold a user and a password."""
        parts = urlsplit(url)
        authorization = ""
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            authorization = f"Basic {base64.b64encode(user.encode()).decode()}"
        port = parts.port or PORTS[parts.scheme]
        return cls(parts.hostname or "", port, parts.scheme == "https", authorization)

    @property
    def lines(self) -> str:
        """The lines of a head that are for the proxy."""
        return f"Proxy-Authorization: {self.authorization}\r\n" if self.authorization else ""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server listens, by which name its certificate is checked, and the proxy that leads there."""

    host: str
    port: int
    server_name: str | None = None
    proxy: ProxyAddress | None = None


@dataclass(frozen=True, slots=True)
class WholeResponse:
    """A response that was read to its end."""

    head: ResponseHead
    content: bytes


class Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        """Not connected yet."""
        self.open = False
        self.context: ssl.SSLContext | None = None
        self.inflates = True
        """Whether bodies are decompressed."""
        self.since_ns = 0
        """When it was put aside."""
        self.transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._wants_all = True
        self._error: Exception | None = None
        self._pieces: list[bytes] = []
        self._paused = False
        self._reader = ResponseReader(b"")
        self._reader.done = True  # nothing was asked yet

    @property
    def heard(self) -> bool:
        """Whether the server has begun to answer the last request."""
        return self._reader.begun

    @property
    def reusable(self) -> bool:
        """Whether the response was read to its end, and another request may follow."""
        return self.open and self._reader.done and self._reader.keep and not self._pieces

    def send(self, request: bytes) -> None:
        """Send a request; `head`, `read` and `whole` give what comes back."""
        self._reader = ResponseReader(request[: request.index(b" ")], inflates=self.inflates)
        if self.transport is None or not self.open:
            raise ConnectionCutError("it is closed")
        self.transport.write(request)

    async def head(self) -> ResponseHead:
        """Wait for the head of the response."""
        while self._reader.head is None:
            await self._wait(for_all=False)
        return self._reader.head

    async def read(self) -> bytes:
        """Wait for more of the body; nothing at its end."""
        while not self._pieces and not self._reader.done:
            await self._wait(for_all=False)
        data = self._take()
        self._resume()
        return data

    async def whole(self) -> WholeResponse:
        """Wait for all of the response, or the rest of its body."""
        while not self._reader.done:
            await self._wait(for_all=True)
        return WholeResponse(cast("ResponseHead", self._reader.head), self._take())

    def abort(self) -> None:
        """End it without a farewell, which would outlive the event loop."""
        self.open = False
        if self.transport is not None:
            self.transport.abort()

    async def _wait(self, *, for_all: bool) -> None:
        if self._error is not None:
            raise self._error
        if not self.open:
            raise ConnectionCutError("it is closed")
        self._resume()
        self._wants_all = for_all
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _resume(self) -> None:
        if self._paused and self.open and self.transport is not None:
            self._paused = False
            self.transport.resume_reading()

    def _take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # --- called by the event loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self.transport, self.open = cast("asyncio.Transport", transport), True

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._reader.done:
            self.abort()  # nobody asked
            return
        try:
            piece = self._reader.feed(data)
        except RejectedError as error:
            self._fail(UnreadableResponseError(error.words))
            return
        if piece:
            self._pieces.append(piece)
        self._tell()

    def _tell(self) -> None:
        """Let the reader go on with what has come, or read no more when there is none and enough waits for it."""
        done = self._reader.done
        if self._waiting is None:
            if not done and sum(map(len, self._pieces)) > _READ_AHEAD:
                self._paused = True
                cast("asyncio.Transport", self.transport).pause_reading()
        elif done or not self._wants_all:
            self._wake()

    def eof_received(self) -> None:
        """See `asyncio.Protocol`."""
        self.open = False
        try:
            if self._reader.end():
                self._wake()
        except RejectedError as error:
            self._fail(UnreadableResponseError(error.words))

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.open = False
        if not self._reader.done:
            self._fail(ConnectionCutError("the server closed it" if exc is None else type(exc).__name__))

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)


class ConnectionPool:
    """See the module. Belongs to one event loop."""

    def __init__(self, address: ServerAddress, *, connect_seconds: float, clock: Clock, inflates: bool = True) -> None:
        """Connect to nothing yet. Unless it ``inflates``, bodies are left as they come: see `ResponseReader`."""
        self._inflates = inflates
        self._address, self._connect_seconds, self._clock = address, connect_seconds, clock
        self._free: deque[Connection] = deque()
        self._all: set[Connection] = set()

    def __len__(self) -> int:
        """How many connections there are, in use or kept."""
        return len(self._all)

    async def call(self, request: bytes, *, context: ssl.SSLContext | None, repeatable: bool) -> WholeResponse:
        """Send a request and return its whole response; raises `OSError`, which all errors of this module are."""
        connection, response = await self._exchange(request, Connection.whole, context=context, repeatable=repeatable)
        self.release(connection)
        return response

    async def open(self, request: bytes, *, context: ssl.SSLContext | None) -> tuple[Connection, ResponseHead]:
        """Send a request that may be repeated; return the connection to read its body from, and to `release`."""
        return await self._exchange(request, Connection.head, context=context, repeatable=True)

    def release(self, connection: Connection) -> None:
        """Keep a connection for the next request, if its response was read to the end; otherwise end it."""
        if connection.reusable:
            connection.since_ns = self._clock.monotonic_ns()
            self._free.append(connection)
        else:
            self._end(connection)

    def close(self) -> None:
        """End all of them, also those in use."""
        for connection in tuple(self._all):
            connection.abort()
        self._all.clear()
        self._free.clear()

    async def _exchange(
        self,
        request: bytes,
        receive: Callable[[Connection], Awaitable[T]],
        *,
        context: ssl.SSLContext | None,
        repeatable: bool,
    ) -> tuple[Connection, T]:
        kept = self._kept(context)
        if kept is not None:
            try:
                return kept, await self._send(kept, request, receive)
            except ConnectionCutError:
                if kept.heard or not repeatable:
                    raise
        fresh = await self._connect(context)
        return fresh, await self._send(fresh, request, receive)

    async def _send(self, connection: Connection, request: bytes, receive: Callable[[Connection], Awaitable[T]]) -> T:
        try:
            connection.send(request)
            return await receive(connection)
        except BaseException:
            self._end(connection)  # the rest of the response may still be under way
            raise

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
        address = self._address
        name = address.server_name or address.host
        try:
            async with asyncio.timeout(self._connect_seconds):
                if address.proxy is None:
                    connection = await _connected(address.host, address.port, context, name)
                else:
                    connection = await _through(address.proxy, address, context, name)
        except TimeoutError as error:
            raise ConnectTimeoutError from error
        except OSError as error:
            raise NoConnectionError from error
        connection.context, connection.inflates = context, self._inflates
        self._all.add(connection)
        return connection

    def _end(self, connection: Connection) -> None:
        connection.abort()
        self._all.discard(connection)


async def _connected(host: str, port: int, context: ssl.SSLContext | None, name: str) -> Connection:
    loop = asyncio.get_running_loop()
    # Not by the loop itself: of a host with two families, uvloop would wait for one before the other.
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    made = await start_connection(found, happy_eyeballs_delay=_SECOND_FAMILY_SECONDS, socket_factory=new_socket)
    server_name = None if context is None else name
    _, connection = await loop.create_connection(Connection, sock=made, ssl=context, server_hostname=server_name)
    return connection


async def _through(
    proxy: ProxyAddress, address: ServerAddress, context: ssl.SSLContext | None, name: str
) -> Connection:
    """Connect to a proxy and, for a server with TLS, through it; without TLS the proxy passes each request on."""
    trust = (context or ssl.create_default_context()) if proxy.tls else None
    connection = await _connected(proxy.host, proxy.port, trust, proxy.host)
    if context is None:
        return connection
    try:
        host = f"[{address.host}]" if ":" in address.host else address.host
        target = f"{host}:{address.port}"
        connection.send(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{proxy.lines}\r\n".encode())
        await _begin_tls(connection, context, name)
    except BaseException:
        connection.abort()
        raise
    return connection


async def _begin_tls(connection: Connection, context: ssl.SSLContext, name: str) -> None:
    """Begin TLS with the server, once the proxy says that it is connected."""
    head = await connection.head()
    if head.status not in _SUCCESS or connection.transport is None:
        raise ProxyRefusedError(f"the proxy answered {head.status}")
    loop = asyncio.get_running_loop()
    connection.transport = await loop.start_tls(connection.transport, connection, context, server_hostname=name)
