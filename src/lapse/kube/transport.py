"""The way to the API server: connections, time limits, credentials and what goes wrong between two machines.

Every call ends within a time limit. A watch, which may be silent for minutes, ends when it was silent for longer than
the server would let it run: so a connection that died without a word is noticed. Plain calls share a bounded pool of
connections; watches have theirs beside it, so that many of them cannot keep calls from getting through.

Nothing is sent twice, with two exceptions that cannot do harm: a call that was refused for its credentials (the server
did not look at it) is sent once more with renewed ones, if there are others; and the HTTP library repeats a read or a
deletion whose kept connection turned out to be closed already. Redirections are not followed: a token must not wander.
"""

from __future__ import annotations

import io
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from yarl import URL

from lapse.core.log import get_logger
from lapse.kube.credentials import Credential, Source, UserCredentials
from lapse.kube.errors import StoreUnavailableError
from lapse.kube.failures import UNAUTHORIZED
from lapse.kube.plugin import PluginCredentials
from lapse.kube.rate import RateLimit
from lapse.kube.tls import Contexts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from lapse.core.clock import Clock
    from lapse.kube.config import KubeConfig

_LARGE: Final = 512 * 1024
"""Bytes from which a body is sent in pieces; the library warns about whole ones of a megabyte."""
_LAST_TURNS: Final = 3
_KEEPALIVE_SECONDS: Final = 30
_SILENCE_SECONDS: Final = 15.0
"""How long after its end by the server's clock a watch may still say nothing."""
SUCCESS: Final = range(200, 300)
_TROUBLE: Final = (aiohttp.ClientError, TimeoutError, OSError)
_log = get_logger("lapse.kube.transport")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long, how many, how often."""

    connect_seconds: float = 10.0
    request_seconds: float = 30.0
    connections: int = 64
    per_second: float | None = None
    """Requests a second; None: as many as the server takes."""
    burst: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, whatever it says."""

    status: int
    content: bytes
    retry_after: str | None = None


class Transport:
    """See the module. Belongs to one event loop, from its first use."""

    def __init__(
        self, config: KubeConfig, *, clock: Clock, environ: Mapping[str, str], limits: Limits, user_agent: str
    ) -> None:
        """Connect to nothing yet; raises `KubeConfigError` for what can be seen to be wrong."""
        cluster, user = config.cluster, config.user
        self._place, self._limits, self._proxy, self._clock = cluster.place, limits, cluster.proxy, clock
        self._timeout = aiohttp.ClientTimeout(total=limits.request_seconds, sock_connect=limits.connect_seconds)
        self._server, self._server_name = cluster.server, cluster.server_name
        self._contexts = Contexts(cluster, clock=clock)
        plugin = None
        if user.plugin is not None:
            plugin = PluginCredentials(user.plugin, cluster, clock=clock, environ=environ)
        self._credentials: Source = UserCredentials(user, clock=clock, plugin=plugin)
        self._rate = None
        if limits.per_second is not None:
            self._rate = RateLimit(limits.per_second, burst=limits.burst, clock=clock)
        self._headers = [("User-Agent", user_agent), *user.impersonation.items()]
        self._headers += [("Impersonate-Group", group) for group in user.groups]
        if not cluster.compress:
            self._headers.append(("Accept-Encoding", "identity"))
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._closed = False
        self.answered_ns: int | None = None
        """When the server last granted something, in boottime. A refusal may be that of something in between."""
        if cluster.insecure:
            _log.warning("server_not_verified", server=self._place, config=config.origin)

    async def call(
        self, method: str, path: str, *, accept: str, content_type: str | None = None, body: bytes | None = None
    ) -> Answer:
        """Ask and return the whole answer; raises `StoreUnavailableError` when there is none."""
        headers = {"Accept": accept} if content_type is None else {"Accept": accept, "Content-Type": content_type}
        credential = await self._credentials.current()
        answer = await self._exchange(method, path, headers, body, credential=credential)
        if answer.status == UNAUTHORIZED and (renewed := await self._renewed(credential)) is not None:
            answer = await self._exchange(method, path, headers, body, credential=renewed)
        return answer

    async def stream(
        self, path: str, *, accept: str, seconds: float, refusal: Callable[[Answer], Exception]
    ) -> AsyncGenerator[bytes, None]:
        """Ask for what the server sends in the next ``seconds``, piece by piece; raises ``refusal`` of another answer.

        Raises `StoreUnavailableError` when the connection ends in any other way than in order.
        """
        limit = self._limits.connect_seconds
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=limit, sock_read=seconds + _SILENCE_SECONDS)
        response = None
        try:
            credential = await self._credentials.current()
            response = await self._open("GET", path, {"Accept": accept}, credential=credential, lasting=timeout)
            if response.status == UNAUTHORIZED and (renewed := await self._renewed(credential)) is not None:
                _abort(response)
                response = await self._open("GET", path, {"Accept": accept}, credential=renewed, lasting=timeout)
            if response.status not in SUCCESS:
                raise refusal(Answer(response.status, await response.read(), response.headers.get("Retry-After")))
            async for piece in response.content.iter_any():
                self.answered_ns = self._clock.boottime_ns()
                yield piece
        except _TROUBLE as error:
            raise self._trouble(error, seconds + _SILENCE_SECONDS) from _cause(error)
        finally:
            if response is not None:
                _abort(response)

    async def close(self) -> None:
        """End all connections. Idempotent."""
        self._closed = True
        while self._sessions:
            _, session = self._sessions.popitem()
            await session.close()
        for _ in range(_LAST_TURNS):  # aborted connections end in the loop's next turns, TLS ones after what they carry
            await self._clock.sleep(0)

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _exchange(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None, *, credential: Credential
    ) -> Answer:
        try:
            response = await self._open(method, path, headers, body=body, credential=credential)
            async with response:
                content = await response.read()
        except _TROUBLE as error:
            raise self._trouble(error, self._limits.request_seconds) from _cause(error)
        if response.status in SUCCESS:
            self.answered_ns = self._clock.boottime_ns()
        return Answer(response.status, content, response.headers.get("Retry-After"))

    async def _open(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        *,
        credential: Credential,
        body: bytes | None = None,
        lasting: aiohttp.ClientTimeout | None = None,
    ) -> aiohttp.ClientResponse:
        if self._rate is not None:
            await self._rate.wait()
        if credential.authorization:
            headers = {**headers, "Authorization": credential.authorization}
        return await self._session(lasting=lasting is not None).request(
            method,
            URL(self._server + path, encoded=True),
            data=io.BytesIO(body) if body is not None and len(body) > _LARGE else body,
            headers=headers,
            allow_redirects=False,
            ssl=self._contexts.context(credential),
            server_hostname=self._server_name,
            proxy=self._proxy,
            timeout=lasting or self._timeout,
        )

    def _session(self, *, lasting: bool) -> aiohttp.ClientSession:
        if self._closed:
            raise StoreUnavailableError(problem=f"the client of {self._place} is closed")
        if lasting not in self._sessions:
            self._sessions[lasting] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0 if lasting else self._limits.connections,
                    keepalive_timeout=_KEEPALIVE_SECONDS,
                    socket_factory=_socket,
                ),
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=True,
            )
        return self._sessions[lasting]

    async def _renewed(self, refused: Credential) -> Credential | None:
        """Return other credentials than those that were refused, if there are any."""
        self._credentials.refused(refused)
        found = await self._credentials.current()
        return None if found == refused else found

    def _trouble(self, error: Exception, seconds: float) -> StoreUnavailableError:
        """Say what went wrong in words of ours: the library's name addresses of objects, and may quote headers."""
        place = self._place
        match error:
            case aiohttp.ClientConnectorCertificateError():
                reason = getattr(error.certificate_error, "verify_message", "")
                problem = f"the certificate of {place} is not trusted: {reason or 'it cannot be verified'}"
            case aiohttp.ConnectionTimeoutError():
                problem = f"no connection to {place} within {self._limits.connect_seconds:g} s"
            case TimeoutError():
                problem = f"no answer from {place} within {seconds:g} s"
            case aiohttp.ClientConnectorError():
                problem = f"no connection to {place}: {error.os_error.strerror or type(error.os_error).__name__}"
            case _:
                problem = f"the connection to {place} was cut ({type(error).__name__})"
        return StoreUnavailableError(problem=problem)


def _cause(error: Exception) -> Exception | None:
    """Leave out causes that carry the request's headers with them."""
    return None if isinstance(error, aiohttp.ClientResponseError) else error


def _abort(response: aiohttp.ClientResponse) -> None:
    """End a connection without a farewell, which would outlive the event loop; nothing if it ended by itself."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """Make a socket that notices within a minute or two that the other machine is gone."""
    made = socket.socket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 30),
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 60_000),
    ):
        if hasattr(socket, option):  # not every system has all of them
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
