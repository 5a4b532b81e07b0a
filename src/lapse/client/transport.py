"""ServerTransport to a Lapse server: one request, one connection, one response, within time limits.

Over a pool of `lapse.http1.client` that lasts for the call, so that nothing belongs to an event loop. A request that
only reads is sent up to three times when there is no connection, no answer, or one that says 'not now' (502, 503, 504);
one that changes something is sent once.

Guarantees: a token goes to the server that it is for and no other. It is never sent without TLS but to this machine,
redirections are not followed, and no message holds it. A call that is cancelled ends its connection at once.

Not done: connections that are kept, because a command asks once; proxies that the environment names.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import ssl
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from lapse.client.errors import (
    AnswerMissingError,
    CertificateNotTrustedError,
    NotLapseError,
    ServerAddressError,
    ServerUnreachableError,
    TokenFormError,
    TokenInTheClearError,
    TrustFileError,
)
from lapse.core.jitter import backoff
from lapse.http1.client import (
    PORTS,
    ConnectionPool,
    ConnectTimeoutError,
    NoConnectionError,
    ServerAddress,
    UnreadableResponseError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from lapse.core.clock import Clock
    from lapse.http1.client import Connection

_END_CERTIFICATE: Final = "-----END CERTIFICATE-----"
_TOKEN: Final = re.compile(r"[!-~]+")
_PREFIX: Final = re.compile(r"(?:/[A-Za-z0-9._~-]+)*")
_ATTEMPTS: Final = 3
NOT_NOW: Final = frozenset({502, 503, 504})
_REDIRECTIONS: Final = range(300, 400)
_MOST_BYTES: Final = 256 << 20
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LapseServer:
    """Where a Lapse is, in one form for each."""

    scheme: str
    host: str
    port: int
    prefix: str = ""
    """Before the paths of the API, where a reverse proxy has it under one."""

    @classmethod
    def parse(cls, text: str) -> LapseServer:
        """Read an address; raises `ServerAddressError`."""
        try:
            parts = urlsplit(text.strip())
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise ServerAddressError(given="This", problem=str(error)) from error
        if parts.username is not None or parts.password is not None:
            raise ServerAddressError(given="This", problem="it holds a user or a password; a token is given apart")
        if parts.scheme not in PORTS or not host or port == 0:
            raise ServerAddressError(given=repr(text), problem="it must begin with https:// or http:// and a host")
        prefix = parts.path.rstrip("/")
        if parts.query or parts.fragment or not _PREFIX.fullmatch(prefix) or not host.isascii():
            raise ServerAddressError(given=repr(text), problem="only a plain path may stand behind host and port")
        return cls(parts.scheme, host, port or PORTS[parts.scheme], prefix)

    @property
    def authority(self) -> str:
        """Host and port, as a Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can be meant."""
        with suppress(ValueError):
            return ip_address(self.host).is_loopback
        return self.host == "localhost"

    def __str__(self) -> str:
        """Print the address."""
        return f"{self.scheme}://{self.authority}{self.prefix}"


def trust_authority(file: Path) -> ssl.SSLContext:
    """Return what believes the certificates of the authorities in a file, and no others. Raises `TrustFileError`."""
    context = ssl.create_default_context(cadata=_read_certificates(file))
    # Newer Pythons refuse authorities without a key identifier, which many people have made for themselves.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def trust_certificate(file: Path) -> ssl.SSLContext:
    """Return what believes the first certificate in a file and no other, whatever names it has.

    For a server of this machine, which is known by its file and not by a name. Raises `TrustFileError`.
    """
    first, end, _ = _read_certificates(file).partition(_END_CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags = (context.verify_flags & ~ssl.VERIFY_X509_STRICT) | ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=first + end)
    return context


def _read_certificates(file: Path) -> str:
    """Return what is in a file with certificates; raises `TrustFileError`."""
    try:
        text = file.read_text(encoding="ascii")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise TrustFileError(file=file, problem="there is no certificate in it, or not a whole one") from error
    except OSError as error:
        raise TrustFileError(file=file, problem=error.strerror or "unknown reason") from error
    return text


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """What came back, whatever it says."""

    status: int
    content: bytes


@dataclass(frozen=True, slots=True)
class ServerStream:
    """What comes back piece by piece."""

    status: int
    read: Callable[[float], Awaitable[bytes]]
    """Waits so many seconds for the next piece; nothing at the end."""


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """How long to wait, in seconds."""

    connect: float = 10.0
    read: float = 60.0
    """For something that only reads, each time that it is sent."""
    change: float = 600.0
    """For something that changes things: a large plan takes its time."""


@dataclass(frozen=True, kw_only=True)
class ServerTransport:
    """See the module. Holds nothing open, so it may be used on any event loop."""

    server: LapseServer
    token: str = field(repr=False)
    clock: Clock
    user_agent: str
    limits: TimeLimits = TimeLimits()
    tls: ssl.SSLContext | None = None
    """What certificates are believed; None: those that the machine believes."""

    def __post_init__(self) -> None:
        """Refuse a token that is none, or that others could read on its way."""
        if not _TOKEN.fullmatch(self.token):
            raise TokenFormError
        if self.server.scheme == "http" and not self.server.is_loopback:
            raise TokenInTheClearError(server=self.server)

    async def call(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] = NO_HEADERS
    ) -> ServerAnswer:
        """Send a request; raises `ServerUnreachableError`, `AnswerMissingError` and `NotLapseError`.

        Target and ``headers`` are sent as they are: that no line ends stand in them is up to the caller.
        """
        request = self._request(method, target, body, headers)
        if method != "GET":
            return await self._once(request, self.limits.change)
        for attempt in range(_ATTEMPTS - 1):
            try:
                response: ServerAnswer | None = await self._once(request, self.limits.read)
            except CertificateNotTrustedError:
                raise  # the next one would be the same
            except (ServerUnreachableError, AnswerMissingError):
                response = None
            if response is not None and response.status not in NOT_NOW:
                return response
            await self.clock.sleep(backoff(attempt, first=0.2))
        try:
            return await self._once(request, self.limits.read)
        except AnswerMissingError as error:  # nothing was to be changed, so there is nothing to be found out
            raise ServerUnreachableError(server=self.server, problem=error.details["problem"]) from error

    @asynccontextmanager
    async def stream(self, target: str, headers: Mapping[str, str] = NO_HEADERS) -> AsyncIterator[ServerStream]:
        """Enter a block in which an answer is read piece by piece; its request is sent once.

        Raises as `call` does, and so does reading.
        """
        request = self._request("GET", target, None, headers)
        pool = self._pool()
        try:
            async with self._in_time(self.limits.read):
                connection, head = await pool.open(request, context=self._context())
            self._demand_here(head.status)
            yield ServerStream(head.status, partial(self._piece, connection))
        finally:
            pool.close()

    async def _piece(self, connection: Connection, seconds: float) -> bytes:
        async with self._in_time(seconds):
            return await connection.read()

    async def _once(self, request: bytes, seconds: float) -> ServerAnswer:
        pool = self._pool()
        try:
            async with self._in_time(seconds):
                response = await self._exchange(pool, request)
        finally:
            pool.close()
        self._demand_here(response.status)
        return response

    def _pool(self) -> ConnectionPool:
        address = ServerAddress(self.server.host, self.server.port)
        return ConnectionPool(address, connect_seconds=self.limits.connect, clock=self.clock)

    def _context(self) -> ssl.SSLContext | None:
        return (self.tls or ssl.create_default_context()) if self.server.scheme == "https" else None

    def _demand_here(self, status: int) -> None:
        if status in _REDIRECTIONS:
            raise NotLapseError(server=self.server, problem="it sends to another address, and a token stays here")

    @asynccontextmanager
    async def _in_time(self, seconds: float) -> AsyncIterator[None]:
        """Enter a block that has so long, and whose errors of the network are raised as the client's own."""
        server, limit = self.server, self.limits.connect
        hint = "; does it speak TLS? Then its address begins with https://" if server.scheme == "http" else ""
        try:
            async with asyncio.timeout(seconds):
                yield
        except (NoConnectionError, ConnectTimeoutError, UnicodeError) as error:  # of a host name that is too long
            if isinstance(untrusted := error.__cause__, ssl.SSLCertVerificationError):
                raise CertificateNotTrustedError(server=server, problem=untrusted.verify_message) from error
            raise ServerUnreachableError(server=server, problem=_problem(error, limit)) from error
        except TimeoutError as error:
            raise AnswerMissingError(server=server, problem=f"not within {seconds:g} s") from error
        except UnreadableResponseError as error:
            raise NotLapseError(server=server, problem=str(error).rstrip(".")) from error
        except OSError as error:
            raise AnswerMissingError(server=server, problem=f"the connection was cut{hint}") from error

    async def _exchange(self, pool: ConnectionPool, request: bytes) -> ServerAnswer:
        connection, head = await pool.open(request, context=self._context())
        pieces, size = list[bytes](), 0
        while piece := await connection.read():
            pieces.append(piece)
            size += len(piece)
            if size > _MOST_BYTES:
                raise UnreadableResponseError(f"it is larger than {_MOST_BYTES >> 20} MiB")
        return ServerAnswer(head.status, b"".join(pieces))

    def _request(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        fields = {
            "Host": self.server.authority,
            "Authorization": f"Bearer {self.token}",
            "User-Agent": self.user_agent,
            "Accept": "application/json",
            "Connection": "close",
            **({} if body is None else {"Content-Type": "application/json", "Content-Length": str(len(body))}),
            **headers,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"{method} {self.server.prefix}{target} HTTP/1.1\r\n{head}\r\n".encode() + (body or b"")


def _problem(error: Exception, seconds: float) -> str:
    """Say why there is no connection."""
    match error:
        case NoConnectionError(__cause__=ssl.SSLError()):
            return "it does not speak TLS, or not as expected; http:// is an address without TLS"
        case NoConnectionError(__cause__=OSError() as cause) if "Connect call failed" in str(cause):
            # asyncio's own words, of each address of a host that has several; the number tells what the system said
            is_refused = cause.errno in {None, errno.ECONNREFUSED}
            return "no program listens there" if is_refused else os.strerror(cause.errno or 0)
        case NoConnectionError(__cause__=OSError() as cause):
            return cause.strerror or type(cause).__name__
        case TimeoutError():
            return f"no connection within {seconds:g} s"
        case _:
            return "its host name is not valid"
