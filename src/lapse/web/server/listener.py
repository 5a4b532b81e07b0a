"""HTTP listeners: sockets that are bound before anything else starts, and uvicorn as a service of the coordinator.

Bound first, so that a taken port is one clear message and nothing has been started yet. Signals belong to the
coordinator; uvicorn is told to stop, finishes the requests at hand, and cancels those that are not done after
`FINISH_SECONDS`, so a client that never finishes cannot keep the process. Connections are limited in number and in
time: see `lapse.web.server.connections`.

The certificate of a listener with TLS is read from two files, and again when they are replaced. Certificates of a
cluster live for weeks and are replaced on disk by their issuer (cert-manager, the kubelet). A new pair counts for the
next connection; connections that exist go on. Files that cannot be used (gone, half written, a certificate whose key is
still the old one) change nothing: the last good pair stays until there is a better one.

A new context for each pair, which a connection is handed in its handshake. To load a pair into the context in use would
be simpler, but a key that does not fit leaves that context without any.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from lapse.core.clock import Clock, SystemClock
from lapse.core.errors import LapseError
from lapse.core.log import get_logger
from lapse.web.server.connections import ConnectionLimits, LimitedProtocol, ListenerConnections, accept_tls
from lapse.web.server.security import MAX_HEAD_BYTES, in_url, is_loopback

LOOK_SECONDS: Final = 5.0
_NO_PASSWORD: Final = ""
"""Instead of asking at the terminal for one."""
_log = get_logger("lapse.web.server.listener")


class CertificateError(LapseError):
    """The certificate {certificate} with the key {key_file} cannot be used: {problem}."""


class Certificate:
    """A `lapse.engine.running.coordinator.Loop` that looks at the files; `context` is for the listener."""

    name = "certificate"
    interval = LOOK_SECONDS
    leader_only = False
    of_engine = True

    def __init__(self, certificate: Path, key: Path, *, domain: str) -> None:
        """Read the files; raises `CertificateError`."""
        self.domain = domain
        self._files = (certificate, key)
        self._last_problem = ""
        self._seen: tuple[bytes, bytes] | None = self._contents()
        self._current = self._load()
        self.context = self._load()
        self.context.sni_callback = self._hand_over  # also called for clients that name no server

    async def tick(self) -> None:
        """Take up files that were replaced."""
        await asyncio.to_thread(self.look)

    def look(self) -> None:
        """See `tick`."""
        try:
            found = self._contents()
            if found == self._seen:
                return
            self._current = self._load()
        except CertificateError as error:
            self._seen = None  # so that the next look tries again: the files may have been caught half replaced
            if str(error) != self._last_problem:
                self._last_problem = str(error)
                _log.warning("certificate_kept", reason=self._last_problem)
            return
        # What was read and not what was loaded: files that were replaced in between are different at the next look.
        self._seen, self._last_problem = found, ""
        _log.info("certificate_replaced", file=str(self._files[0]))

    def _hand_over(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _of: ssl.SSLContext) -> None:
        connection.context = self._current

    def _contents(self) -> tuple[bytes, bytes]:
        try:
            return self._files[0].read_bytes(), self._files[1].read_bytes()
        except OSError as error:
            raise self._error(f"{error.filename}: {error.strerror}") from error

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(*self._files, password=_NO_PASSWORD)
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise self._error("are both PEM, a pair, and without a password?") from error
        return context

    def _error(self, problem: str) -> CertificateError:
        return CertificateError(certificate=self._files[0], key_file=self._files[1], problem=problem)


FINISH_SECONDS: Final = 3
_BACKLOG: Final = 128
_SECOND_NS: Final = 1_000_000_000
_IDLE_SECONDS: Final = 5
"""After which a connection without a request is closed."""


class CannotListenError(LapseError):
    """Cannot listen on {address}: {problem}. Set {setting} (or --{flag}) to something else."""


class Endpoint:
    """The bound sockets of one listener: one address, or several when a name has several."""

    def __init__(self, host: str, port: int, *, setting: str, scheme: str = "http") -> None:
        """Bind; ``setting`` is the prefix of the keys that the messages name: ``http``, ``probes`` or ``webhook``."""
        self._scheme = scheme
        self.sockets: list[socket.socket] = []
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (socket.gaierror, UnicodeError) as error:
            raise self._error(host, port, f"{setting}_host", "the host name is unknown") from error
        for family, _, _, _, address in dict.fromkeys(infos):
            # With port 0 the first socket picks the port, and the others follow.
            wanted = (address[0], self.port, *address[2:]) if self.sockets else address
            try:
                self.sockets.append(_bind(family, wanted))
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL and len(infos) > 1:
                    continue  # a name for both IPv4 and IPv6 on a machine that has only one of them
                self.close()
                key = f"{setting}_host" if error.errno == errno.EADDRNOTAVAIL else f"{setting}_port"
                raise self._error(host, port, key, _reason(error)) from error
        if not self.sockets:
            raise self._error(host, port, f"{setting}_host", "none of its addresses belongs to this machine")
        self.host = host

    @property
    def port(self) -> int:
        """The port, also when a free one was picked."""
        port: int = self.sockets[0].getsockname()[1]
        return port

    @property
    def loopback_only(self) -> bool:
        """Whether only this machine can connect, by the addresses that are really bound."""
        return all(is_loopback(one.getsockname()[0]) for one in self.sockets)

    @property
    def url(self) -> str:
        """The address to open in a browser on this machine."""
        anywhere = self.host in {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound
        return f"{self._scheme}://{'localhost' if anywhere else in_url(self.host)}:{self.port}"

    def close(self) -> None:
        """Close all sockets. Idempotent."""
        for one in self.sockets:
            one.close()

    @staticmethod
    def _error(host: str, port: int, setting: str, problem: str) -> CannotListenError:
        address = f"{in_url(host)}:{port}"
        return CannotListenError(address=address, problem=problem, setting=setting, flag=setting.replace("_", "-"))


def _bind(family: int, address: tuple[object, ...]) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
        one.listen(_BACKLOG)  # from here on a client waits instead of being refused
    except BaseException:
        one.close()
        raise
    return one


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is taken by another process"
    if error.errno == errno.EADDRNOTAVAIL:
        return "the address does not belong to this machine"
    if error.errno == errno.EACCES:
        return "this user may not use the port; ports from 1024 on need no rights"
    return os.strerror(error.errno) if error.errno else "unknown reason"


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, room: ListenerConnections, clock: Clock) -> None:
        super().__init__(config)
        self._room, self._clock = room, clock
        self._accepting: list[asyncio.Task[None]] = []

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the coordinator."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, with our own limits on what comes in."""
        tls, loop = self.config.ssl, asyncio.get_running_loop()
        await self.lifespan.startup()
        self.servers = []
        for one in sockets or ():
            if tls is None:
                self.servers.append(await loop.create_server(self._protocol, sock=one, backlog=_BACKLOG))
            else:
                taking = accept_tls(one, tls, room=self._room, make=self._protocol, clock=self._clock)
                self._accepting.append(loop.create_task(taking))
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, then end those that are there."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().shutdown(sockets)

    def _protocol(self) -> LimitedProtocol:
        return LimitedProtocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state, room=self._room
        )


class Listener:
    """A `lapse.engine.running.coordinator.Service`: one ASGI application on the sockets of one endpoint."""

    def __init__(
        self,
        name: str,
        app: ASGIApp,
        endpoint: Endpoint,
        *,
        tls: ssl.SSLContext | None = None,
        idle_seconds: int = _IDLE_SECONDS,
        limits: ConnectionLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Serve ``app``, with ``tls`` to those who speak it only; takes over the sockets."""
        self.name = name
        self._endpoint = endpoint
        self._clock = clock or SystemClock()
        self._room = ListenerConnections(limits or ConnectionLimits(), lambda: self._clock.monotonic_ns() / _SECOND_NS)
        config = uvicorn.Config(
            app,
            http=LimitedProtocol,
            ws="none",
            lifespan="off",
            access_log=False,  # it would show paths, which hold keys
            log_config=None,
            proxy_headers=False,  # nobody's word about addresses is taken
            server_header=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_keep_alive=idle_seconds,
            timeout_graceful_shutdown=FINISH_SECONDS,
            ssl_context_factory=None if tls is None else lambda *_: tls,
        )
        self._server = _Server(config, self._room, self._clock)

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until ``stopping`` is set."""
        serving = asyncio.create_task(self._server.serve(sockets=self._endpoint.sockets))
        waiting = asyncio.create_task(stopping.wait())
        sweeping = asyncio.create_task(self._sweep())
        try:
            await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
            self._server.should_exit = True
            await serving
        finally:
            waiting.cancel()
            sweeping.cancel()
            serving.cancel()
            self._endpoint.close()

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep(self._room.limits.sweep_seconds)
            self._room.check()
