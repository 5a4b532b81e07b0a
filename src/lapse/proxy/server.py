"""Workspace proxy: listening, serving, time limits of all connections, and stopping, as a service of the coordinator.

Stateless but for open connections, so any number may run beside each other on one activity store. One task looks at all
connections once per sweep: time limits, and which of them were used (that is all that a websocket's messages cost; the
access is noted with the time of the look, at most one sweep late). One more renews all leases.

When it ends, websockets are closed, leases are given back, and the last access times are written: what a restart would
otherwise take from everybody's TTL. `AccessLoop` writes access times while it runs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from lapse.core.errors import LapseError
from lapse.core.log import get_logger
from lapse.http1.connections import ConnectionLimit
from lapse.http1.heads import RejectedError
from lapse.proxy import pages
from lapse.proxy.client_connection import ClientConnection, Phase
from lapse.proxy.exchange import Exchange
from lapse.proxy.leases import Leases
from lapse.proxy.limits import ProxyLimits
from lapse.proxy.ports import DirectResponse, GoingDownError, Ms
from lapse.proxy.router import Router
from lapse.proxy.upstream import UpstreamCutError, Upstreams, failure_of
from lapse.workspaces.model import DEFAULT_SUFFIX, DOMAIN, check_suffix

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Sequence

    from lapse.core.clock import Clock
    from lapse.engine.running.metrics import ProxyMetrics
    from lapse.http1.heads import RequestHead
    from lapse.proxy.ports import Access, ActivityLeases, Authenticator, Directory, Waker
    from lapse.proxy.tunnel import Tunnel
    from lapse.workspaces.activity.access import AccessTimes

FLUSH_SECONDS: Final = 1.0
"""How late an access may be in the store, after the look that finds it."""
THROTTLE_SECONDS: Final = FLUSH_SECONDS / 2
"""What `AccessTimes` is made with: as long as the pause between flushes, it would make them skip every other one."""
_GRACE_SECONDS: Final = 1.5
"""For requests under way: with what follows, less than the five seconds that a coordinator gives."""
_log = get_logger("lapse.proxy")
_SECOND_NS: Final = 1_000_000_000
_MS_NS: Final = 1_000_000
_BACKLOG: Final = 2048
_UNDER_WAY: Final = frozenset({Phase.WAITING, Phase.BODY})


class ProxyService:
    """A `lapse.engine.running.coordinator.Service`."""

    name = "proxy"

    def __init__(self, proxy: Proxy, sockets: Sequence[socket.socket], access: AccessTimes) -> None:
        """Take over the sockets, which are bound."""
        self._proxy, self._sockets, self._access = proxy, sockets, access

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until ``stopping`` is set."""
        try:
            for each in self._sockets:
                await self._proxy.listen(each)
            await stopping.wait()
        finally:
            await self._proxy.stop(grace_seconds=_GRACE_SECONDS)
            await self._write_last()

    async def _write_last(self) -> None:
        try:
            await self._access.flush(everything=True)
        except (LapseError, OSError) as error:
            _log.warning("last_accesses_not_written", workspaces=len(self._access), error=type(error).__name__)


class AccessLoop:
    """A `lapse.engine.running.coordinator.Loop` that writes access times. In every process that has a proxy."""

    name = "access-times"
    domain = DOMAIN
    interval = FLUSH_SECONDS
    leader_only = False

    def __init__(self, access: AccessTimes) -> None:
        """Write these."""
        self._access = access

    async def tick(self) -> float | None:
        """Write what waits; what fails waits on."""
        await self._access.flush()
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a proxy presents itself."""

    suffix: str = DEFAULT_SUFFIX
    scheme: Literal["http", "https"] = "http"
    """That of the addresses people type: https if something before the proxy ends TLS."""
    cookies: frozenset[str] = frozenset({"lapse_session"})
    """Names of the proxy's own, which no workspace ever sees or sets."""
    lease_seconds: float = 30.0
    idle_seconds: float = 300.0
    """Of the idle timer that the last disconnect sets."""
    limits: ProxyLimits = field(default_factory=ProxyLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of a proxy."""

    directory: Directory
    authenticator: Authenticator
    waker: Waker
    activity: ActivityLeases
    access: Access
    clock: Clock
    metrics: ProxyMetrics


class Proxy:
    """See the module. Belongs to one event loop."""

    def __init__(self, ports: Ports, options: Options) -> None:
        """Listen to nobody yet."""
        self.limits = options.limits
        self.clients: dict[ClientConnection, None] = {}
        self.admitted: ConnectionLimit[ClientConnection | Tunnel] = ConnectionLimit(
            self.limits.connections, self.limits.connections_per_peer
        )
        self.stopping = False
        self.metrics = ports.metrics
        self._clock, self._access = ports.clock, ports.access
        self._still_admits = ports.authenticator.still_admits
        self.now = self._seconds()
        self._tunnels: set[Tunnel] = set()
        self._servers: list[asyncio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._upstreams = Upstreams(self.limits)
        self._leases = Leases(
            ports.activity,
            ports.waker,
            lease_seconds=options.lease_seconds,
            idle_seconds=options.idle_seconds,
            not_renewed=lambda workspace: self._access(workspace, self._moment()),
        )
        self._router = Router(
            directory=ports.directory,
            authenticator=ports.authenticator,
            waker=ports.waker,
            clock=ports.clock,
            limits=self.limits,
            suffix=check_suffix(options.suffix),
            scheme=options.scheme,
        )
        self._exchange = Exchange(
            upstreams=self._upstreams,
            leases=self._leases,
            scheme=options.scheme.encode(),
            cookies=frozenset(name.encode() for name in options.cookies),
            now=lambda: self.now,
            begin=self._tunnel_begun,
            end=self._tunnel_ended,
            metrics=self.metrics,
        )

    # --- from start to stop -------------------------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port, which the system chooses for 0. May be called for several addresses."""
        server = await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(self), host, port, backlog=_BACKLOG
        )
        self._begin(server)
        chosen: int = server.sockets[0].getsockname()[1]
        return chosen

    async def listen(self, bound: socket.socket) -> None:
        """Listen on a socket that somebody else has bound; it is closed with the proxy."""
        server = await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(self), sock=bound, backlog=_BACKLOG
        )
        self._begin(server)

    def _begin(self, server: asyncio.Server) -> None:
        self._servers.append(server)
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks += [
                loop.create_task(self._every(self.limits.sweep_seconds, self.look), name="proxy-sweep"),
                loop.create_task(self._every(self._leases.round_seconds, self._leases.renew), name="proxy-leases"),
            ]

    async def stop(self, *, grace_seconds: float = 10.0) -> None:
        """Take no more connections, let requests under way finish, then end websockets and give their leases back."""
        self.stopping = True
        for server in self._servers:
            server.close()
        await self._until_idle(grace_seconds)
        for client in tuple(self.clients):
            client.abort()
        for tunnel in tuple(self._tunnels):
            tunnel.close()
        await self._until_idle(min(grace_seconds, 1.0))
        for tunnel in tuple(self._tunnels):
            tunnel.abort()
        await self._until_idle(1.0)
        await self._leases.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._upstreams.close()

    @property
    def connections(self) -> int:
        """How many websockets are open."""
        return len(self._tunnels)

    # --- one request --------------------------------------------------------------------------------------------------

    async def serve(self, client: ClientConnection, head: RequestHead) -> None:
        """Answer one request, whatever happens."""
        try:
            reply = await self._serve(client, head)
        except (RejectedError, UpstreamCutError) as error:
            if (failure := failure_of(error)) is not None:
                self.metrics.failed(failure)
            reply = pages.CUT if isinstance(error, UpstreamCutError) else DirectResponse(error.status, error.words)
        except (LapseError, OSError) as error:
            _log.warning("request_not_served", error=type(error).__name__)
            reply = pages.UNAVAILABLE
        except Exception:  # noqa: BLE001 - one request that fails is one response, not the end of its connection's task
            _log.exception("request_failed")
            reply = pages.BROKEN
        if reply is None or client.closed:
            return
        if client.phase is Phase.BODY:
            client.abort()  # half a response is out; a second one behind it would be taken for its rest
        else:
            shown = pages.for_person(reply) if head.for_person else reply
            client.reply(shown, keep=head.keep, with_body=head.method != b"HEAD")

    async def _serve(self, client: ClientConnection, head: RequestHead) -> DirectResponse | None:
        carry = self._exchange.upgrade if head.upgrade else self._exchange.request
        routed = await self._router.route(head, client.peer)
        if isinstance(routed, DirectResponse):
            return routed
        client.visitor, decided = routed
        while not isinstance(decided, DirectResponse):
            if decided.address is None:
                return pages.UNAVAILABLE
            client.workspace = decided.workspace
            self._access(decided.workspace, self._moment())
            try:
                await carry(client, head, workspace=decided.workspace, address=decided.address)
            except GoingDownError:
                # Its program may still answer, and would take whoever is let in now down with it.
                decided = await self._router.wake(head, decided)
            else:
                return None
        return decided

    # --- all connections ----------------------------------------------------------------------------------------------

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        """Do it again and again; a failure of one round is not the end of all."""
        while True:
            await self._clock.sleep(seconds)
            try:
                await work()
            except Exception:  # noqa: BLE001 - logged; the next round may do better
                _log.exception("round_failed")

    async def look(self) -> None:
        """Look at all connections once."""
        now = self.now = self._seconds()
        moment = self._moment()
        self._part_with_refused()
        for client in tuple(self.clients):
            if client.workspace is not None and client.phase in _UNDER_WAY:
                self._access(client.workspace, moment)
            client.check(now, self.limits)
        for tunnel in tuple(self._tunnels):
            if tunnel.moved:
                tunnel.moved = False
                self._access(tunnel.workspace, moment)
            if tunnel.is_half:
                self._check_half(tunnel, now)
        self._upstreams.sweep(now)

    def _part_with_refused(self) -> None:
        """End connections of visitors who would not be let in any more; all stay while that is not known."""
        under_way = [client for client in self.clients if client.visitor is not None and client.phase in _UNDER_WAY]
        connections: list[ClientConnection | Tunnel] = [*under_way, *self._tunnels]
        visitors = {each.visitor for each in connections if each.visitor is not None}
        try:
            refused = {visitor for visitor in visitors if not self._still_admits(visitor)}
        except LapseError as error:
            _log.warning("tokens_not_checked", error=type(error).__name__)
            return
        for each in connections:
            if each.visitor in refused:
                each.abort()

    def _check_half(self, tunnel: Tunnel, now: float) -> None:
        if tunnel.half_since is None:
            tunnel.half_since = now
        elif now - tunnel.half_since > self.limits.half_seconds:
            tunnel.abort()

    def _tunnel_begun(self, client: ClientConnection, tunnel: Tunnel) -> None:
        self._tunnels.add(tunnel)
        self.metrics.connected(len(self._tunnels))
        self.admitted.replace(client, tunnel)

    def _tunnel_ended(self, tunnel: Tunnel) -> None:
        self._tunnels.discard(tunnel)
        self.metrics.connected(len(self._tunnels))
        self.admitted.release(tunnel)
        self._access(tunnel.workspace, self._moment())
        self._leases.end(tunnel.connection)

    async def _until_idle(self, seconds: float) -> None:
        """Wait until all requests have ended (and, once they were told to, all websockets)."""
        end_ns = self._clock.monotonic_ns() + seconds * _SECOND_NS
        while self._clock.monotonic_ns() < end_ns:
            for client in tuple(self.clients):
                if client.phase is Phase.KEEP or (client.phase is Phase.HEAD and client.is_silent):
                    client.close()
            if not self.clients and not any(tunnel.is_half for tunnel in self._tunnels):
                return
            await self._clock.sleep(min(0.02, seconds))

    def _moment(self) -> Ms:
        return Ms(self._clock.wall_ns() // _MS_NS)

    def _seconds(self) -> float:
        return self._clock.monotonic_ns() / _SECOND_NS
