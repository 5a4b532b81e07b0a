"""Transport to the API server: requests and responses, time limits, credentials, and errors of the network.

Every call ends within a time limit. A watch, which may be silent for minutes, ends when it was silent for longer than
the server would let it run: so a connection that died without a word is noticed. Calls and watches take one path
(`lapse.http1.client`), with or without a proxy. Calls share a bounded number of connections, first come, first
served; watches do not count, so that many of them cannot keep calls from getting through.

Nothing is sent twice, with two exceptions that cannot do harm: a call that was refused for its credentials (the server
did not look at it) is sent once more with renewed ones, if there are others; and a read whose kept
connection turned out to be closed already is repeated. Redirections are not followed: a token must not wander.

Errors are told in words of ours: those of libraries name objects, and may quote headers.

The rate limit allows so many calls a second, and so many at once after a rest. Slots are given out in the order of
asking. A caller that is cancelled while it waits keeps its slot: it was counted.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

from lapse.core.log import get_logger
from lapse.http1.client import (
    PORTS,
    ConnectionPool,
    ConnectTimeoutError,
    NoConnectionError,
    ProxyAddress,
    ProxyRefusedError,
    ServerAddress,
    UnreadableResponseError,
)
from lapse.kube.api.failures import UNAUTHORIZED
from lapse.kube.auth.credentials import Contexts, Credential, CredentialSource, UserCredentials
from lapse.kube.auth.exec_credentials import ExecCredentials
from lapse.kube.errors import CredentialsError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from lapse.core.clock import Clock
    from lapse.http1.client import Connection, WholeResponse
    from lapse.http1.heads import ResponseHead
    from lapse.kube.auth.config import KubeConfig

_NS: Final = 1_000_000_000


class RateLimit:
    """See the module. Belongs to one event loop."""

    def __init__(self, per_second: float, *, burst: int | None = None, clock: Clock) -> None:
        """Allow ``burst`` at once, by default what a second allows."""
        allowed = max(1, round(per_second)) if burst is None else burst
        if per_second <= 0 or allowed < 1:
            message = "a rate and its burst must be above zero"
            raise ValueError(message)
        self._step_ns = _NS / per_second
        self._slack_ns = (allowed - 1) * self._step_ns
        self._clock = clock
        self._next_ns = float(clock.monotonic_ns()) - self._slack_ns

    async def wait(self) -> None:
        """Return when it is the caller's turn."""
        now_ns = self._clock.monotonic_ns()
        mine_ns = max(self._next_ns, now_ns - self._slack_ns)
        self._next_ns = mine_ns + self._step_ns
        if mine_ns > now_ns:
            await self._clock.sleep((mine_ns - now_ns) / _NS)


def network_error(error: OSError, *, place: str, seconds: float, connect_seconds: float) -> StoreUnavailableError:
    """Say what went wrong on the way to ``place``, within which limits."""
    match error:
        case NoConnectionError(__cause__=ssl.SSLCertVerificationError() as cause):
            reason = cause.verify_message or "it cannot be verified"
            problem = f"the certificate of {place} is not trusted: {reason}"
        case NoConnectionError(__cause__=ProxyRefusedError() | UnreadableResponseError() as cause):
            problem = f"no connection to {place}: {cause}"
        case NoConnectionError(__cause__=OSError() as cause):
            problem = f"no connection to {place}: {cause.strerror or type(cause).__name__}"
        case ConnectTimeoutError():
            problem = f"no connection to {place} within {connect_seconds:g} s"
        case TimeoutError():
            problem = f"no answer from {place} within {seconds:g} s"
        case UnreadableResponseError():
            problem = f"the answer of {place} is not understood: {error}"
        case _:
            problem = f"the connection to {place} was cut ({type(error).__name__})"
    return StoreUnavailableError(problem=problem)


_LAST_TURNS: Final = 3
_SILENCE_SECONDS: Final = 15.0
"""How long after its end by the server's clock a watch may still say nothing."""
SUCCESS: Final = range(200, 300)
_TOLD: Final = (b"retry-after", b"date")
_PATH: Final = re.compile(r"[!-~]+")
_SAFE: Final = "".join(map(chr, range(0x21, 0x7F)))
_log = get_logger("lapse.kube.api.transport")


@dataclass(frozen=True, kw_only=True)
class CallLimits:
    """How long, how many, how often."""

    connect_seconds: float = 10.0
    request_seconds: float = 30.0
    connections: int = 32
    """Calls in flight. More do not get more out of one API server, and each costs a handshake."""
    per_second: float | None = None
    """Requests a second; None: as many as the server takes."""
    burst: int | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """What came back, whatever it says."""

    status: int
    content: bytes
    retry_after: str | None = None
    date: str | None = None


class Transport:
    """See the module. Belongs to one event loop, from its first use."""

    def __init__(
        self, config: KubeConfig, *, clock: Clock, environ: Mapping[str, str], limits: CallLimits, user_agent: str
    ) -> None:
        """Connect to nothing yet; raises `KubeConfigError` for what can be seen to be wrong."""
        cluster, user = config.cluster, config.user
        self._place, self._limits, self._clock = cluster.place, limits, clock
        self._contexts = Contexts(cluster, clock=clock)
        exec_credentials = None
        if user.exec_config is not None:
            exec_credentials = ExecCredentials(user.exec_config, cluster, clock=clock, environ=environ)
        self._credentials: CredentialSource = UserCredentials(user, clock=clock, exec_credentials=exec_credentials)
        self._rate = None
        if limits.per_second is not None:
            self._rate = RateLimit(limits.per_second, burst=limits.burst, clock=clock)
        self._headers = [("User-Agent", user_agent), *user.impersonation.items()]
        self._headers += [("Impersonate-Group", group) for group in user.groups]
        self._headers.append(("Accept-Encoding", "gzip" if cluster.compress else "identity"))
        parts = urlsplit(cluster.server)
        proxy = None if cluster.proxy is None else ProxyAddress.parse(cluster.proxy)
        address = ServerAddress(parts.hostname or "", parts.port or PORTS[parts.scheme], cluster.server_name, proxy)
        self._connections = ConnectionPool(address, connect_seconds=limits.connect_seconds, clock=clock)
        self._turns = asyncio.Semaphore(limits.connections)
        self._prefix, self._host = parts.path, parts.netloc
        self._for_proxy = ""
        if proxy is not None and parts.scheme == "http":  # the proxy itself reads each request
            self._prefix, self._for_proxy = f"http://{parts.netloc}{parts.path}", proxy.lines
        self._fixed: tuple[Credential | None, str] = (None, "")
        self._closed = False
        self.answered_ns: int | None = None
        """When the server last granted something, in boottime. A refusal may be that of something in between."""
        if cluster.insecure:
            _log.warning("server_not_verified", server=self._place, config=config.origin)

    async def call(
        self, method: str, path: str, *, accept: str, content_type: str | None = None, body: bytes | None = None
    ) -> Response:
        """Send a request and return the whole response; raises `StoreUnavailableError` when there is none."""
        headers = {"Accept": accept} if content_type is None else {"Accept": accept, "Content-Type": content_type}
        credential = await self._credentials.current()
        response = await self._call(method, path, headers, body, credential=credential)
        if response.status == UNAUTHORIZED and (renewed := await self._renewed(credential)) is not None:
            response = await self._call(method, path, headers, body, credential=renewed)
        return response

    async def stream(
        self, path: str, *, accept: str, seconds: float, refusal: Callable[[Response], Exception]
    ) -> AsyncGenerator[bytes, None]:
        """Ask for what the server sends in the next ``seconds``, piece by piece.

        Raises ``refusal`` of a response that is no success, and `StoreUnavailableError` when the connection
        ends in any other way than in order.
        """
        limit = seconds + _SILENCE_SECONDS
        connection = None
        try:
            credential = await self._credentials.current()
            if self._rate is not None:
                await self._rate.wait()
            connection, head = await self._open(path, accept, limit, credential=credential)
            if head.status == UNAUTHORIZED and (renewed := await self._renewed(credential)) is not None:
                self._connections.release(connection)
                connection, head = await self._open(path, accept, limit, credential=renewed)
            if head.status not in SUCCESS:
                async with asyncio.timeout(limit):
                    raise refusal(_response(await connection.whole()))
            while piece := await _read(connection, limit):
                self.answered_ns = self._clock.boottime_ns()
                yield piece
        except OSError as error:
            raise self._network_error(error, limit) from error
        finally:
            if connection is not None:
                self._connections.release(connection)

    async def close(self) -> None:
        """End all connections. Idempotent."""
        self._closed = True
        self._connections.close()
        for _ in range(_LAST_TURNS):  # aborted connections end in the loop's next turns, TLS ones after what they carry
            await self._clock.sleep(0)

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _call(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None, *, credential: Credential
    ) -> Response:
        if self._rate is not None:
            await self._rate.wait()
        try:
            async with asyncio.timeout(self._limits.request_seconds), self._turns:
                request, context = self._request(method, path, headers, body, credential=credential)
                whole = await self._connections.call(request, context=context, repeatable=method == "GET")
        except OSError as error:
            raise self._network_error(error, self._limits.request_seconds) from error
        response = _response(whole)
        if response.status in SUCCESS:
            self.answered_ns = self._clock.boottime_ns()
        return response

    async def _open(
        self, path: str, accept: str, limit: float, *, credential: Credential
    ) -> tuple[Connection, ResponseHead]:
        request, context = self._request("GET", path, {"Accept": accept}, None, credential=credential)
        async with asyncio.timeout(limit):
            return await self._connections.open(request, context=context)

    def _request(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None, *, credential: Credential
    ) -> tuple[bytes, ssl.SSLContext | None]:
        """Return a request as it is sent, and the TLS context for it."""
        if self._closed:
            raise StoreUnavailableError(problem=f"the client of {self._place} is closed")
        own = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        target = path if _PATH.fullmatch(path) else quote(path, safe=_SAFE)
        head = f"{method} {self._prefix}{target} HTTP/1.1\r\n{self._fixed_lines(credential)}{own}{length}\r\n"
        return head.encode() + (body or b""), self._contexts.context(credential)

    def _fixed_lines(self, credential: Credential) -> str:
        """Return the lines of a request's head that are the same for every call."""
        known, lines = self._fixed
        if known is not credential:
            fixed = [("Host", self._host), *self._headers]
            if credential.authorization:
                fixed.append(("Authorization", credential.authorization))
            if not all(text.isprintable() for pair in fixed for text in pair):
                raise CredentialsError(problem="a header would hold characters that none may have")
            lines = "".join(f"{name}: {value}\r\n" for name, value in fixed) + self._for_proxy
            self._fixed = (credential, lines)
        return lines

    async def _renewed(self, refused: Credential) -> Credential | None:
        """Return other credentials than those that were refused, if there are any."""
        self._credentials.refused(refused)
        found = await self._credentials.current()
        return None if found == refused else found

    def _network_error(self, error: OSError, seconds: float) -> StoreUnavailableError:
        return network_error(error, place=self._place, seconds=seconds, connect_seconds=self._limits.connect_seconds)


def _response(whole: WholeResponse) -> Response:
    values = whole.head.values
    retry_after, date = (values[name].decode("latin-1") if name in values else None for name in _TOLD)
    return Response(whole.head.status, whole.content, retry_after, date)


async def _read(connection: Connection, seconds: float) -> bytes:
    async with asyncio.timeout(seconds):
        return await connection.read()
