"""Workspaces in a process that stays: stores, activity, tickets and the proxy, opened together and wired.

``lapse up`` and ``lapse proxy`` differ in what they run beside the proxy. What only one process may do (lapsing,
carrying out what is wanted) is added by ``lapse up``, on the same store and the same activity. Tickets to workspaces
are in a part of the keys store beside all applications, so that none can reach them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from lapse.core.errors import LapseError, UsageError
from lapse.keys.aio import AsyncAppKeys, AsyncKeys
from lapse.keys.backends.layout import Prefix

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping
    from contextlib import AsyncExitStack
    from pathlib import Path

    from lapse.app.record import ProcessRecord
    from lapse.core.clock import Clock
    from lapse.engine.running.coordinator import Loop, Service
    from lapse.engine.running.logins import LoginFailures
    from lapse.engine.running.metrics import Metrics, ProxyMetrics
    from lapse.keys.aio import AsyncKeys
    from lapse.proxy.directory import StoreDirectory
    from lapse.proxy.ports import UpstreamAddress
    from lapse.proxy.server import Ports
    from lapse.settings import Settings
    from lapse.web.api.workspaces import WorkspacesService
    from lapse.web.auth.state import StateDatabase
    from lapse.web.auth.tokens import TokenStore
    from lapse.web.server.listener import Endpoint
    from lapse.workspaces.activity.access import AccessTimes
    from lapse.workspaces.activity.port import Activity
    from lapse.workspaces.activity.probes import Reach
    from lapse.workspaces.model import Workspace, WorkspaceId
    from lapse.workspaces.runtime.host import WorkspaceHost
    from lapse.workspaces.store.port import WorkspaceStore
    from lapse.workspaces.tickets import Tickets


def ticket_records(keys: AsyncKeys, *, clock: Clock) -> AsyncAppKeys:
    """Return the records that `lapse.workspaces.tickets` works on."""
    space = keys.backend.async_space(Prefix.WORKSPACE_TICKETS, 0)
    return AsyncAppKeys(0, space, backend=keys.backend, clock=clock)


SECRET: Final = "workspace-session"  # noqa: S105 - the name of a secret, not the secret
FOLDER: Final = "workspaces"
"""Of the state folder: volumes, archives and output of workspaces."""
_LOOPBACK: Final = "127.0.0.1"
"""Where a workspace's program listens: it is a child of a process on this machine."""
_ONLY_NODE: Final = "local"


class OpenProxyError(LapseError):
    """{address} is open to other machines, and a workspace runs programs: set workspaces_beyond_loopback to true."""


class WorkspacesWaitingError(LapseError):
    """This process does not run the workspaces of its state folder yet: it waits for another lapse up, which does."""


class TicketsNotSharedError(UsageError):
    """No other process could use a ticket made here: keys_url is {url}, which only this process can read. {instead}."""


def proxy_endpoint(settings: Settings, stack: AsyncExitStack) -> Endpoint:
    """Bind the proxy's port; raises `OpenProxyError` where that would open it without anybody having said so."""
    from lapse.web.server.listener import Endpoint

    endpoint = Endpoint(settings.proxy_host, settings.proxy_port, setting="proxy")
    stack.callback(endpoint.close)
    if not endpoint.loopback_only and not settings.workspaces_beyond_loopback:
        raise OpenProxyError(address=f"{endpoint.host}:{endpoint.port}")
    return endpoint


def demand_shared_tickets(settings: Settings, instead: str) -> None:
    """Raise `TicketsNotSharedError` unless other processes reach the same tickets."""
    if settings.keys_url.startswith("memory:"):
        raise TicketsNotSharedError(url=settings.keys_url.partition("?")[0], instead=instead)


def url_of(settings: Settings, port: int) -> Callable[[str], str]:
    """Return what makes the address of a workspace from its name."""
    from lapse.workspaces import model as host_names

    return lambda name: host_names.url_of(name, suffix=settings.proxy_suffix, scheme=settings.proxy_scheme, port=port)


def node_of(settings: Settings) -> str | None:
    """Return where workspaces of this machine are, as they have it in ``node_id``; None where there is no other.

    A store in a file is one machine's, whatever that is called today.
    """
    import socket

    return socket.gethostname() if settings.database_url else None


def prepare_folder(settings: Settings) -> None:
    """Give the folder of the workspaces to the node that they are on by these settings; raises where it has data."""
    from lapse.workspaces.runtime.process import adopt

    adopt(settings.state_dir / FOLDER, node_of(settings) or _ONLY_NODE)


def log_of(settings: Settings, workspace: Workspace) -> Path:
    """Return the file that the program of a workspace of this machine writes to; raises `LogElsewhereError`."""
    from lapse.workspaces.logs import LogElsewhereError
    from lapse.workspaces.runtime.process import log_path
    from lapse.workspaces.view import address_of

    if workspace.node_id not in {None, node_of(settings)}:
        raise LogElsewhereError(address=address_of(workspace), node=workspace.node_id)
    return log_path(settings.state_dir / FOLDER, workspace.id)


def user_name() -> str:
    """Return who is at the command line, as the owner of what they create."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user that has no name
        return "owner"


@dataclass(frozen=True)
class WorkspaceParts:
    """What is open."""

    settings: Settings
    clock: Clock
    endpoint: Endpoint
    store: WorkspaceStore
    activity: Activity
    access: AccessTimes
    tickets: Tickets
    tokens: TokenStore
    secret: bytes
    failures: LoginFailures
    metrics: ProxyMetrics
    host: WorkspaceHost | None
    """Who runs them; None where somebody else does."""

    @classmethod
    async def open(  # noqa: PLR0913 - all of them named, one per dependency
        cls,
        settings: Settings,
        stack: AsyncExitStack,
        *,
        endpoint: Endpoint,
        store: WorkspaceStore,
        keys: AsyncKeys,
        state: StateDatabase,
        clock: Clock,
        failures: LoginFailures,
        metrics: Metrics,
        hosts: bool = False,
        server: str = "",
    ) -> WorkspaceParts:
        """Open it all beside ``store``; ``stack`` closes it, last opened first, and the store with it.

        With ``hosts`` they run here, and their programs find the API at ``server``.
        """
        from lapse.core.clock import SystemClock
        from lapse.proxy.server import THROTTLE_SECONDS
        from lapse.web.auth.tokens import TokenStore
        from lapse.workspaces.activity.access import AccessTimes
        from lapse.workspaces.opening import open_activity
        from lapse.workspaces.tickets import Tickets

        machine = SystemClock()  # what other processes share, such as tickets, has no time but the wall clock's
        tokens = TokenStore(state, clock=machine)
        stack.push_async_callback(store.close)
        secret = state.secret(SECRET)
        variables = _variables(tokens, server, settings.http_tls_certificate, secret)
        reach = partial(_reach, settings, secret)
        host = _host(settings, store, variables, reach, clock=clock, metrics=metrics) if hosts else None
        activity = open_activity(
            settings.activity_url,
            clock=clock,
            lease_seconds=settings.proxy_lease.seconds,
            since=None if host is None else lambda: host.since_ns,
        )
        stack.push_async_callback(activity.close)
        return cls(
            settings=settings,
            clock=clock,
            endpoint=endpoint,
            store=store,
            activity=activity,
            access=AccessTimes(store, clock, throttle_seconds=THROTTLE_SECONDS),
            tickets=Tickets(ticket_records(keys, clock=machine)),
            tokens=tokens,
            secret=secret,
            failures=failures,
            metrics=metrics.proxy,
            host=host,
        )

    @property
    def services(self) -> list[Service]:
        """What runs in this process: the proxy, and the programs themselves if they are its own."""
        return [self._proxy()] if self.host is None else [self._proxy(), self.host]

    def _changed(self) -> None:
        """Let proxy and host of this process know that something else is wanted; others look by themselves."""
        self._directory.forget()
        if self.host is not None:
            self.host.wake()

    @property
    def loops(self) -> list[Loop]:
        """What every process with a proxy does again and again."""
        from lapse.proxy.server import AccessLoop

        return [AccessLoop(self.access)]

    def _proxy(self) -> Service:
        from lapse.proxy.auth import COOKIES
        from lapse.proxy.limits import ProxyLimits
        from lapse.proxy.server import Options, Proxy, ProxyService

        options = Options(
            suffix=self.settings.proxy_suffix,
            scheme=self.settings.proxy_scheme,
            cookies=COOKIES,
            lease_seconds=self.settings.proxy_lease.seconds,
            idle_seconds=self.settings.idle_timer.seconds,
            limits=ProxyLimits(
                connections=self.settings.proxy_max_connections,
                connections_per_peer=self.settings.proxy_max_connections_per_peer,
            ),
        )
        return ProxyService(Proxy(self._ports(), options), self.endpoint.sockets, self.access)

    def api(self, record: ProcessRecord, metrics: Metrics) -> WorkspacesService:
        """Return what the HTTP API needs; ``metrics`` are those of the process."""
        from lapse.web.api.workspaces import Defaults, WorkspacesService

        settings = self.settings
        return WorkspacesService(
            self.store,
            self.tickets,
            record.journal,
            url_of=url_of(settings, self.endpoint.port),
            defaults=Defaults(
                standby_ttl=int(settings.default_standby_ttl.seconds),
                archive_ttl=int(settings.default_archive_ttl.seconds),
            ),
            clock=self.clock,
            metrics=metrics,
            activity=self.activity,
            busy_most=settings.busy_most.seconds,
            counts=lambda: self._counts,
            node=node_of(settings),
            changed=self._changed,
            trash_ttl=settings.trash_ttl,
            log_of=partial(log_of, settings),
        )

    def check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raise a `LapseError` unless requests can be served and the store answers. Blocks, beside ``loop``.

        Activity is not asked: all proxies share it, and while it is away nobody is helped by all of them being gone.
        """
        import asyncio

        from lapse.web.server.probes import CHECK_SECONDS

        if not self._counts:
            raise WorkspacesWaitingError

        # Bounded, because a process that ends waits for its threads.
        asyncio.run_coroutine_threadsafe(self.store.check(), loop).result(CHECK_SECONDS)

    @cached_property
    def _directory(self) -> StoreDirectory:
        from lapse.proxy.directory import StoreDirectory

        return StoreDirectory(self.store, self._locate, clock=self.clock)

    def _ports(self) -> Ports:
        from lapse.proxy.auth import ProxyAuthenticator, Sessions
        from lapse.proxy.directory import StoreWaker
        from lapse.proxy.server import Ports

        authenticator = ProxyAuthenticator(
            directory=self._directory,
            tickets=self.tickets,
            sessions=Sessions(self.secret, self.settings.proxy_scheme),
            tokens=_Rights(self.tokens),
            clock=self.clock,
            suffix=self.settings.proxy_suffix,
            failures=self.failures,
        )
        return Ports(
            directory=self._directory,
            authenticator=authenticator,
            waker=StoreWaker(self.store, clock=self.clock, changed=self._changed, access=self.access.note),
            activity=self.activity,
            access=self.access.note,
            clock=self.clock,
            metrics=self.metrics,
        )

    def _locate(self, workspace: Workspace) -> UpstreamAddress | None:
        """Return where a running workspace listens; None where this process may not, or cannot, send anybody there.

        Who is connected through a process that counts by itself is known to nobody else; so unless it is the one that
        runs the workspaces, it lets nobody in.
        """
        from lapse.proxy.ports import UpstreamAddress

        here = workspace.node_id is None or workspace.node_id == node_of(self.settings)
        if not (self._counts and here):
            return None
        reach = _reach(self.settings, self.secret, workspace)
        return UpstreamAddress(_LOOPBACK, reach.port, reach.socket, reach.secret)

    @property
    def _counts(self) -> bool:
        """Whether a connection through this process is known to whoever lets workspaces lapse."""
        return bool(self.settings.activity_url) or (self.host is not None and self.host.since_ns is not None)


@dataclass(frozen=True)
class _Rights:
    """What tokens open, for the proxy: what they may change in the API. A `lapse.proxy.auth.Tokens`."""

    tokens: TokenStore

    def holder(self, token: str) -> str | None:
        """Return the id of a token; None if it is unknown or revoked."""
        from lapse.web.api.errors import TokenInvalidError

        try:
            return self.tokens.principal(token).token_id
        except TokenInvalidError:
            return None

    def opens(self, token_id: str, owner: str) -> bool:
        """Whether the token of this id counts, and may change an owner's workspaces."""
        from lapse.web.auth.scopes import owners_in

        principal = self.tokens.find(token_id)
        return principal is not None and owner in owners_in(principal.scopes, "POST")


def _port_secret(secret: bytes, workspace: WorkspaceId) -> str:
    """Return what the proxy sends and a workspace's program compares: derived, so any proxy of the folder knows it."""
    from lapse.workspaces.tickets import derive

    return derive(secret, "workspace-port", workspace)


def _reach(settings: Settings, secret: bytes, workspace: Workspace) -> Reach:
    """Return how a program of this machine is reached: by its socket, if it listens there, and with its secret."""
    from lapse.workspaces.activity.probes import Reach
    from lapse.workspaces.runtime.program import socket_of

    listens_at = socket_of(settings.state_dir / FOLDER, workspace.id)
    path = str(listens_at) if listens_at is not None and listens_at.is_socket() else ""
    return Reach(workspace.port, path, _port_secret(secret, workspace.id))


def _variables(
    tokens: TokenStore, server: str, certificate: str, secret: bytes
) -> Callable[[Workspace], Mapping[str, str]]:
    """Return what makes the variables of a program: its way to ``lapse busy``, and by what it knows the proxy."""
    return lambda workspace: {
        "LAPSE_SERVER": server,
        **({"LAPSE_SERVER_CERTIFICATE": certificate} if certificate else {}),
        "LAPSE_WORKSPACE_TOKEN": tokens.of_program(workspace.id),
        "LAPSE_WORKSPACE_SECRET": _port_secret(secret, workspace.id),
    }


def _host(
    settings: Settings,
    store: WorkspaceStore,
    variables: Callable[[Workspace], Mapping[str, str]],
    reach: Callable[[Workspace], Reach],
    *,
    clock: Clock,
    metrics: Metrics,
) -> WorkspaceHost:
    from lapse.engine.running.metrics import ErrorKind
    from lapse.workspaces.activity.probes import SOURCE
    from lapse.workspaces.model import DOMAIN
    from lapse.workspaces.runtime.host import WorkspaceHost
    from lapse.workspaces.runtime.process import ProcessRuntime

    runtime = ProcessRuntime(
        settings.state_dir / FOLDER,
        node=node_of(settings) or _ONLY_NODE,
        clock=clock,
        stop_on_exit=settings.workspaces_stop_on_exit,
        variables=variables,
    )
    metrics.expect_signal(SOURCE)
    metrics.expect_restarts()
    return WorkspaceHost(
        store,
        runtime,
        clock=clock,
        on_error=lambda _: metrics.failed(DOMAIN, ErrorKind.RECONCILE),
        on_exit=metrics.restarted,
        probes=lambda up: metrics.signal(SOURCE, up=up),
        reach=reach,
    )
