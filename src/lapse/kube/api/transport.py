"""The way to the API server: connections, time limits, credentials and what goes wrong between two machines.

Every call ends within a time limit. A watch, which may be silent for minutes, ends when it was silent for longer than
the server would let it run: so a connection that died without a word is noticed. Plain calls share a bounded number of
connections (`lapse.kube.api.connections`), first come, first served; watches have theirs beside it, through aiohttp, so
that many of them cannot keep calls from getting through. Through a proxy, calls go by aiohttp as well.

Nothing is sent twice, with two exceptions that cannot do harm: a call that was refused for its credentials (the server
did not look at it) is sent once more with renewed ones, if there are others; and a read whose kept
connection turned out to be closed already is repeated. Redirections are not followed: a token must not wander.

What goes wrong between two machines, in words of ours: those of libraries name objects, and may quote headers.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

import aiohttp

from lapse.core.log import get_logger
from lapse.kube.api.connections import ConnectionPool, ConnectTimeoutError, NoConnectionError, ServerAddress
from lapse.kube.api.failures import UNAUTHORIZED
from lapse.kube.api.rate import RateLimit
from lapse.kube.api.streams import Streams, abort
from lapse.kube.auth.credentials import Credential, CredentialSource, UserCredentials
from lapse.kube.auth.exec_credentials import PluginCredentials
from lapse.kube.auth.tls import Contexts
from lapse.kube.errors import CredentialsError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from lapse.core.clock import Clock
    from lapse.kube.auth.config import KubeConfig

TROUBLE: Final = (aiohttp.ClientError, TimeoutError, OSError)
"""What calls and watches raise."""


def trouble(error: Exception, *, place: str, seconds: float, connect_seconds: float) -> StoreUnavailableError:
    """Say what went wrong on the way to ``place``, within which limits."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            problem = _distrust(place, error.certificate_error)
        case NoConnectionError(__cause__=ssl.SSLCertVerificationError() as cause):
            problem = _distrust(place, cause)
        case NoConnectionError(__cause__=OSError() as cause):
            problem = f"no connection to {place}: {cause.strerror or type(cause).__name__}"
        case aiohttp.ConnectionTimeoutError() | ConnectTimeoutError():
            problem = f"no connection to {place} within {connect_seconds:g} s"
        case TimeoutError():
            problem = f"no answer from {place} within {seconds:g} s"
        case aiohttp.ClientConnectorError():
            problem = f"no connection to {place}: {error.os_error.strerror or type(error.os_error).__name__}"
        case _:
            problem = f"the connection to {place} was cut ({type(error).__name__})"
    return StoreUnavailableError(problem=problem)


def cause_of(error: Exception) -> Exception | None:
    """Leave out causes that carry the request's headers with them."""
    return None if isinstance(error, aiohttp.ClientResponseError) else error


def _distrust(place: str, error: Exception) -> str:
    reason = getattr(error, "verify_message", "")
    return f"the certificate of {place} is not trusted: {reason or 'it cannot be verified'}"


_LAST_TURNS: Final = 3
_SILENCE_SECONDS: Final = 15.0
"""How long after its end by the server's clock a watch may still say nothing."""
SUCCESS: Final = range(200, 300)
_PORTS: Final = {"http": 80, "https": 443}
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
        self._proxied = cluster.proxy is not None
        self._contexts = Contexts(cluster, clock=clock)
        plugin = None
        if user.plugin is not None:
            plugin = PluginCredentials(user.plugin, cluster, clock=clock, environ=environ)
        self._credentials: CredentialSource = UserCredentials(user, clock=clock, plugin=plugin)
        self._rate = None
        if limits.per_second is not None:
            self._rate = RateLimit(limits.per_second, burst=limits.burst, clock=clock)
        self._headers = [("User-Agent", user_agent), *user.impersonation.items()]
        self._headers += [("Impersonate-Group", group) for group in user.groups]
        self._headers.append(("Accept-Encoding", "gzip" if cluster.compress else "identity"))
        parts = urlsplit(cluster.server)
        place = ServerAddress(parts.hostname or "", parts.port or _PORTS[parts.scheme], cluster.server_name)
        self._connections = ConnectionPool(place, connect_seconds=limits.connect_seconds, clock=clock)
        self._turns = asyncio.Semaphore(limits.connections)
        self._prefix, self._host = parts.path, parts.netloc
        self._fixed: tuple[Credential | None, str] = (None, "")
        self._streams = Streams(cluster, headers=self._headers)
        self._closed = False
        self.answered_ns: int | None = None
        """When the server last granted something, in boottime. A refusal may be that of something in between."""
        if cluster.insecure:
            _log.warning("server_not_verified", server=self._place, config=config.origin)

    async def call(
        self, method: str, path: str, *, accept: str, content_type: str | None = None, body: bytes | None = None
    ) -> Response:
        """Ask and return the whole answer; raises `StoreUnavailableError` when there is none."""
        headers = {"Accept": accept} if content_type is None else {"Accept": accept, "Content-Type": content_type}
        credential = await self._credentials.current()
        answer = await self._exchange(method, path, headers, body, credential=credential)
        if answer.status == UNAUTHORIZED and (renewed := await self._renewed(credential)) is not None:
            answer = await self._exchange(method, path, headers, body, credential=renewed)
        return answer

    async def stream(
        self, path: str, *, accept: str, seconds: float, refusal: Callable[[Response], Exception]
    ) -> AsyncGenerator[bytes, None]:
        """Ask for what the server sends in the next ``seconds``, piece by piece; raises ``refusal`` of another answer.

        Raises `StoreUnavailableError` when the connection ends in any other way than in order.
        """
        limit = self._limits.connect_seconds
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=limit, sock_read=seconds + _SILENCE_SECONDS)
        ask = partial(self._open, "GET", path, {"Accept": accept}, timeout=timeout)
        response = None
        try:
            credential = await self._credentials.current()
            if self._rate is not None:
                await self._rate.wait()
            response = await ask(credential=credential)
            if response.status == UNAUTHORIZED and (renewed := await self._renewed(credential)) is not None:
                abort(response)
                response = await ask(credential=renewed)
            if response.status not in SUCCESS:
                raise refusal(Response(response.status, await response.read(), response.headers.get("Retry-After")))
            async for piece in response.content.iter_any():
                self.answered_ns = self._clock.boottime_ns()
                yield piece
        except TROUBLE as error:
            raise self._trouble(error, seconds + _SILENCE_SECONDS) from cause_of(error)
        finally:
            if response is not None:
                abort(response)

    async def close(self) -> None:
        """End all connections. Idempotent."""
        self._closed = True
        self._connections.close()
        await self._streams.close()
        for _ in range(_LAST_TURNS):  # aborted connections end in the loop's next turns, TLS ones after what they carry
            await self._clock.sleep(0)

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _exchange(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None, *, credential: Credential
    ) -> Response:
        if self._rate is not None:
            await self._rate.wait()
        try:
            async with asyncio.timeout(self._limits.request_seconds), self._turns:
                if self._proxied:
                    answer = await self._by_library(method, path, headers, body, credential=credential)
                else:
                    answer = await self._by_connection(method, path, headers, body, credential=credential)
        except TROUBLE as error:
            raise self._trouble(error, self._limits.request_seconds) from cause_of(error)
        if answer.status in SUCCESS:
            self.answered_ns = self._clock.boottime_ns()
        return answer

    async def _by_connection(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None, *, credential: Credential
    ) -> Response:
        self._demand_open()
        context = self._contexts.context(credential)
        own = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        where = path if _PATH.fullmatch(path) else quote(path, safe=_SAFE)
        head = f"{method} {self._prefix}{where} HTTP/1.1\r\n{self._fixed_lines(credential)}{own}{length}\r\n"
        reply = await self._connections.ask(
            head.encode() + (body or b""),
            context=context if isinstance(context, ssl.SSLContext) else None,
            again=method == "GET",
        )
        retry_after, date = (reply.headers.get(name) for name in (b"retry-after", b"date"))
        return Response(
            reply.status,
            reply.content,
            None if retry_after is None else retry_after.decode("latin-1"),
            None if date is None else date.decode("latin-1"),
        )

    def _fixed_lines(self, credential: Credential) -> str:
        """Return the lines of a request's head that are the same for every call."""
        known, lines = self._fixed
        if known is not credential:
            fixed = [("Host", self._host), *self._headers]
            if credential.authorization:
                fixed.append(("Authorization", credential.authorization))
            if not all(text.isprintable() for pair in fixed for text in pair):
                raise CredentialsError(problem="a header would hold characters that none may have")
            lines = "".join(f"{name}: {value}\r\n" for name, value in fixed)
            self._fixed = (credential, lines)
        return lines

    async def _by_library(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None, *, credential: Credential
    ) -> Response:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._limits.connect_seconds)
        response = await self._open(method, path, headers, body=body, credential=credential, timeout=timeout)
        async with response:
            told = response.headers
            return Response(response.status, await response.read(), told.get("Retry-After"), told.get("Date"))

    async def _open(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        *,
        credential: Credential,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - the library's own, of several parts
        body: bytes | None = None,
    ) -> aiohttp.ClientResponse:
        self._demand_open()
        if credential.authorization:
            headers = {**headers, "Authorization": credential.authorization}
        context = self._contexts.context(credential)
        return await self._streams.open(method, path, headers=headers, context=context, timeout=timeout, body=body)

    async def _renewed(self, refused: Credential) -> Credential | None:
        """Return other credentials than those that were refused, if there are any."""
        self._credentials.refused(refused)
        found = await self._credentials.current()
        return None if found == refused else found

    def _demand_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError(problem=f"the client of {self._place} is closed")

    def _trouble(self, error: Exception, seconds: float) -> StoreUnavailableError:
        return trouble(error, place=self._place, seconds=seconds, connect_seconds=self._limits.connect_seconds)
