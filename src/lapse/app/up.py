"""``lapse up``: everything in one process. A composition root: opens what the settings name, wires it, runs it.

With ``--example`` there is a workspace to open for people who start Lapse for the first time. It is created once for a
state folder: a file there remembers that, so that one that was deleted does not come back. Two processes that start at
once make one, because names are unique in a store. Not guaranteed: that it stays deleted in a store that several state
folders share; each of them may make it once. Its TTLs are the defaults of the settings, not shorter ones of its own:
they would show little, as the idle timer, which is the same for all workspaces, holds it longer.
"""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, TypedDict

from lapse.app.process import (
    NotSyncedError,
    believed_clock,
    history_policy_document,
    probes_listener,
    request_policy,
    retention,
    stay,
)
from lapse.app.workspaces import node_of, prepare_folder, user_name
from lapse.core.errors import LapseError
from lapse.workspaces.errors import UnknownWorkspaceError, WorkspaceExistsError
from lapse.workspaces.model import Ms, NewWorkspace

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from contextlib import AsyncExitStack

    from starlette.types import ASGIApp

    from lapse.app.record import ProcessRecord
    from lapse.app.workspaces import WorkspaceParts
    from lapse.core.believed_clock import BelievedClock
    from lapse.core.clock import Clock
    from lapse.db.postgres.pool import Postgres
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.coordinator import Coordinator, ElectedWork, Loop, Service
    from lapse.engine.running.election import Leadership
    from lapse.engine.running.logins import LoginFailures
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.clock_guard import GuardedGate
    from lapse.history.service import Retention
    from lapse.keys.aio import AsyncKeys
    from lapse.keys.sweeper import CleanupLoop
    from lapse.requests.local.executor import LocalRequests
    from lapse.settings import LoadedSettings, Settings
    from lapse.web.auth.sessions import BrowserSessions
    from lapse.web.server.listener import Endpoint
    from lapse.workspaces.store.port import WorkspaceStore

NAME: Final = "example"
MARK: Final = "example-was-made"
_LOOPBACK: Final = "127.0.0.1"
_MS: Final = 1_000_000


async def ensure_example(store: WorkspaceStore, settings: Settings, clock: Clock) -> bool:
    """Create it unless that was done before; return whether there is a workspace of its name."""
    mark = settings.state_dir / MARK
    if not mark.exists():
        await _create(store, settings, Ms(clock.wall_ns() // _MS))
        mark.touch()
    try:
        await store.by_name(NAME)
    except UnknownWorkspaceError:
        return False
    return True


async def _create(store: WorkspaceStore, settings: Settings, now: Ms) -> None:
    new = NewWorkspace(
        name=NAME,
        owner=user_name(),
        command=(sys.executable, "-m", "lapse.workspaces.example"),
        # Beside the proxy's, where it stays from start to start; any, where the proxy takes any, too.
        port=free_port(settings.proxy_port and settings.proxy_port + 1),
        node_id=node_of(settings),
        standby_ttl_seconds=int(settings.default_standby_ttl.seconds),
        archive_ttl_seconds=int(settings.default_archive_ttl.seconds),
    )
    try:
        await store.create(new, now=now)
    except WorkspaceExistsError:
        return


def free_port(wanted: int) -> int:
    """Return the port that is wanted, or, where that is taken or there is none such, one that is free now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was just left is free
        try:
            probe.bind((_LOOPBACK, wanted))
        except (OSError, OverflowError):
            probe.bind((_LOOPBACK, 0))
        found: int = probe.getsockname()[1]
        return found


class _Shared(TypedDict):
    """What all domains are built with."""

    journal: Journal
    gate: GuardedGate
    clock: Clock
    metrics: Metrics


class OpenBindError(LapseError):
    """{address} is open to other machines and there is no token; run lapse tokens create --name NAME --scope admin."""


def run(loaded: LoadedSettings, *, example: bool, tell: Callable[..., None]) -> int:
    """Work until a signal comes; ``tell`` says something to the person at the terminal, if there is one."""
    return stay("lapse.up", loaded, partial(_Process.open, example=example, tell=tell))


@dataclass(frozen=True)
class _Endpoints:
    """Where the process listens. Bound before anything is opened: a taken port is the usual mistake."""

    http: Endpoint
    probes: Endpoint
    proxy: Endpoint | None
    """None where workspaces are not served."""

    @classmethod
    def open(cls, settings: Settings, stack: AsyncExitStack) -> _Endpoints:
        """Bind them all."""
        from lapse.app.workspaces import proxy_endpoint
        from lapse.web.server.listener import Endpoint

        http = Endpoint(settings.http_host, settings.http_port, setting="http")
        stack.callback(http.close)
        probes = Endpoint(settings.probes_host, settings.probes_port, setting="probes")
        stack.callback(probes.close)
        # Whoever may create a workspace runs programs on this machine.
        serves_workspaces = http.loopback_only or settings.workspaces_beyond_loopback
        return cls(http, probes, proxy_endpoint(settings, stack) if serves_workspaces else None)


@dataclass(frozen=True)
class _Access:
    """Who may call: sessions and tokens of the state folder."""

    sessions: BrowserSessions
    owner_id: str
    """Of the owner's token."""
    failures: LoginFailures

    @classmethod
    def open(
        cls, settings: Settings, stack: AsyncExitStack, *, endpoints: _Endpoints, clock: Clock, metrics: Metrics
    ) -> _Access:
        """Open the state database, and make the owner's token if need be. Raises `OpenBindError`."""
        from lapse.engine.running.logins import LoginFailures
        from lapse.web.auth.sessions import BrowserSessions
        from lapse.web.auth.state import StateDatabase
        from lapse.web.auth.tokens import TokenStore, owner_of

        state = stack.enter_context(StateDatabase(settings.state_dir))
        tokens = TokenStore(state, clock=clock)
        if not endpoints.http.loopback_only and not tokens.any_named():
            raise OpenBindError(address=f"{endpoints.http.host}:{endpoints.http.port}")
        owner_id, _ = owner_of(settings.state_dir, state, tokens)
        return cls(BrowserSessions(state, tokens, clock), owner_id, LoginFailures(clock, metrics))


@dataclass(frozen=True)
class _Process:
    """Everything that is open, and what is built from it."""

    settings: Settings
    machine: Clock
    """The machine's own clock: keys are shared with other processes, which have no other."""
    clock: BelievedClock
    """What domains decide by."""
    record: ProcessRecord
    metrics: Metrics
    access: _Access
    keys: AsyncKeys
    requests: LocalRequests
    retention: Retention
    workspaces: WorkspaceParts | None
    """None where they are not served."""
    example: bool
    """Whether there is a workspace to try."""
    tell: Callable[..., None]
    endpoints: _Endpoints
    coordinator: Coordinator

    @classmethod
    async def open(
        cls, loaded: LoadedSettings, stack: AsyncExitStack, *, example: bool, tell: Callable[..., None]
    ) -> _Process:
        """Open it all; ``stack`` closes it, last opened first."""
        from lapse import __version__
        from lapse.app import record as records
        from lapse.app.domains import own_domains
        from lapse.core.clock import SystemClock
        from lapse.engine.running.coordinator import ElectedWork
        from lapse.engine.running.metrics import Metrics
        from lapse.engine.safety.gate import GateLoop
        from lapse.engine.safety.sqlite import SQLiteHolds
        from lapse.keys.aio import open_keys_async
        from lapse.keys.registration import KEYS
        from lapse.requests.expiry import DOMAIN as REQUESTS
        from lapse.requests.local.executor import LocalRequests

        settings, machine, metrics = loaded.settings, SystemClock(), Metrics(__version__)
        clock = believed_clock(settings, machine)
        KEYS.expect_series(metrics)
        others = own_domains(settings, clock)
        endpoints = _Endpoints.open(settings, stack)
        access = _Access.open(settings, stack, endpoints=endpoints, clock=machine, metrics=metrics)
        keys = await stack.enter_async_context(open_keys_async(settings.keys_url, clock=machine, sweep=False))
        store = records.open_store(settings.state_dir, clock=clock)
        stack.push_async_callback(store.close)
        server = await records.open_server(settings, stack, upgrades=True)
        prepare_folder(settings)  # before the record is moved: what cannot start should change nothing
        record = await records.ProcessRecord.open(settings, store, server, joins=True)
        gate = record.gate(await record.guard(clock), metrics=metrics)
        workspaces = await _open_workspaces(
            settings, stack, server=server, endpoints=endpoints, keys=keys, access=access, clock=clock, metrics=metrics
        )
        example = example and workspaces is not None and await ensure_example(workspaces.store, settings, clock)
        shared: _Shared = {"journal": record.journal, "gate": gate, "clock": clock, "metrics": metrics}
        requests = LocalRequests.build(store, settings.state_dir / "local", policy=request_policy(settings), **shared)
        # What is noted about policies is about the objects of this folder, wherever the record is.
        notes = records.ProcessRecord.in_folder(store).safety
        history = retention(loaded, store, documents=settings.retention_policies, holds=store, notes=notes, **shared)
        loops: list[Loop] = [*_loops(loaded, keys, metrics, clock), *requests.requests.loops, *history.loops]
        loops += [one.loop(holds=SQLiteHolds(store.database), **shared) for one in others if one.section.enabled]
        services = [*requests.leader_services, *history.leader_services]
        folder = ElectedWork(records.folder_election(store, machine), loops, services)
        recorded: list[Loop] = [GateLoop(gate, domain=REQUESTS), *_workspace_loops(workspaces, shared)]
        kept = None if workspaces is None else workspaces.store
        election = await records.workspace_election(settings, kept, machine, stack)
        opened = (settings, machine, clock, record, metrics, access, keys, requests, history, workspaces, example, tell)
        return cls(*opened, endpoints, _coordinator(shared, folder, recorded, election)).built()

    @property
    def probes(self) -> Endpoint:
        """Where the probes listen."""
        return self.endpoints.probes

    def built(self) -> _Process:
        """Build what serves before anybody is told: who hears that it listens may call, or end it, at once."""
        _ = self._services
        return self

    async def run(self) -> None:
        """Serve and tick until the coordinator is told to stop."""
        await self.coordinator.run(self._services)

    @cached_property
    def _services(self) -> list[Service]:
        import asyncio

        from lapse.web.server.connections import ConnectionLimits
        from lapse.web.server.listener import Listener

        loop = asyncio.get_running_loop()
        probes = probes_listener(self, self.checks(loop))
        limits = ConnectionLimits(
            connections=self.settings.http_max_connections,
            connections_per_peer=self.settings.http_max_connections_per_peer,
        )
        http = Listener("http", self._api(), self.endpoints.http, limits=limits)
        here: list[Service] = [http, probes, *self.requests.requests.services]
        if self.workspaces is not None:
            here += self.workspaces.services
        return here

    def checks(self, loop: asyncio.AbstractEventLoop) -> dict[str, Callable[[], None]]:
        """Return what raises an error unless a store answers and its caches are filled. Blocks, beside ``loop``."""
        checks: dict[str, Callable[[], None]] = {"keys": self.keys.backend.check}
        checks["objects"] = partial(self._check_objects, loop)
        if self.workspaces is not None:
            checks["workspaces"] = partial(self.workspaces.check, loop)
        return checks

    def _check_objects(self, loop: asyncio.AbstractEventLoop) -> None:
        import asyncio

        from lapse.web.server.probes import CHECK_SECONDS

        # Bounded, because a process that ends waits for its threads.
        asyncio.run_coroutine_threadsafe(self.requests.store.check(), loop).result(CHECK_SECONDS)
        if not self.requests.requests.caches.synced:
            raise NotSyncedError

    def announce(self) -> None:
        """Tell where it listens."""
        from lapse.core.log import get_logger
        from lapse.web.auth.sessions import ticket_url

        http, probes, proxy = self.endpoints.http.url, self.endpoints.probes.url, self.endpoints.proxy
        if sys.stderr.isatty():  # a ticket is for a person, and never for a log
            link = ticket_url(http, self.access.sessions.issue(self.access.owner_id))
            self.tell(f"Lapse runs (Ctrl-C stops it). Open it in your browser: {link}", style="bold")
            self.tell("The link works once, within ten minutes; lapse open prints another.")
            if self.example:
                self.tell("An example workspace is there: lapse workspaces open example prints its address.")
        log = get_logger("lapse.up")
        shown = {"proxy": proxy.url} if proxy is not None else {}
        log.info("listening", http=http, probes=probes, **shown)
        if proxy is None:
            reason = "other machines can call this one, and workspaces_beyond_loopback is false"
            log.warning("workspaces_not_served", reason=reason)

    def _api(self) -> ASGIApp:
        from lapse.keys.url import parse_url
        from lapse.web.api.forms import Tagger
        from lapse.web.api.history import HistoryService
        from lapse.web.api.keys import KeysService
        from lapse.web.api.requests import RequestsService
        from lapse.web.api.status import StatusService
        from lapse.web.app import create_app
        from lapse.web.pages.pages import PageLinks
        from lapse.web.server.security import AllowedHosts

        return create_app(
            keys=KeysService(self.keys, clock=self.machine, tagger=Tagger(self.access.sessions.state.secret("etag"))),
            requests=RequestsService(
                self.requests.store,
                holds=self.requests.store,
                journal=self.requests.journal,
                rule=request_policy(self.settings).ttl_rule,
                clock=self.clock,
                metrics=self.metrics,
            ),
            history=HistoryService(
                self.requests.store,
                self.retention,
                own=history_policy_document(self.settings),
                interval=self.settings.retention_interval,
                clock=self.clock,
            ),
            workspaces=None if self.workspaces is None else self.workspaces.api(self.record, self.clock, self.metrics),
            status_service=StatusService(
                clock=self.clock,
                keys=self.keys,
                backend=str(parse_url(self.settings.keys_url)),
                coordinator=self.coordinator,
            ),
            places=lambda: PageLinks(self.endpoints.http.url, self.endpoints.probes.url),
            hosts=AllowedHosts(self.settings.http_host, self.endpoints.http.port, self.settings.http_allowed_hosts),
            sessions=self.access.sessions,
            failures=self.access.failures,
            metrics=self.metrics,
        )


async def _open_workspaces(
    settings: Settings,
    stack: AsyncExitStack,
    *,
    server: Postgres | None,
    endpoints: _Endpoints,
    keys: AsyncKeys,
    access: _Access,
    clock: Clock,
    metrics: Metrics,
) -> WorkspaceParts | None:
    from lapse.app.record import open_workspace_store
    from lapse.app.workspaces import WorkspaceParts

    if endpoints.proxy is None:
        return None
    return await WorkspaceParts.open(
        settings,
        stack,
        endpoint=endpoints.proxy,
        store=await open_workspace_store(settings, server),
        keys=keys,
        state=access.sessions.state,
        clock=clock,
        failures=access.failures,
        hosting=metrics,
        server=endpoints.http.url,
    )


def _workspace_loops(parts: WorkspaceParts | None, shared: _Shared) -> list[Loop]:
    """Return what is done about workspaces again and again, here or by the leader alone."""
    from lapse.workspaces.ttl_manager import ttl_loop, ttl_sweeps

    if parts is None:
        return []
    sweeps = ttl_sweeps(parts.store, parts.activity, **shared)
    return [*parts.loops, ttl_loop(sweeps, interval=parts.settings.ttl_manager_interval.seconds)]


def _coordinator(
    shared: _Shared, folder: ElectedWork, recorded: Sequence[Loop], election: Leadership | None
) -> Coordinator:
    """Return what runs the work on the folder and that on workspaces; ``election`` is theirs, if they are elsewhere."""
    from lapse.engine.running.coordinator import Coordinator

    clock, metrics = shared["clock"], shared["metrics"]
    if election is None:  # then all of it is in the folder, and one election is enough
        return Coordinator(clock=clock, metrics=metrics, beside=replace(folder, loops=[*folder.loops, *recorded]))
    return Coordinator(clock=clock, metrics=metrics, loops=recorded, leadership=election, beside=folder)


def _loops(loaded: LoadedSettings, keys: AsyncKeys, metrics: Metrics, clock: Clock) -> list[CleanupLoop]:
    """Return the loops that are needed: none for a store that cleans up by itself, or when told never."""
    from lapse.keys.sweeper import CleanupLoop

    asked = keys.backend.sweep_interval
    if asked is not None and loaded.origins["keys_sweep_interval"].layer != "default":
        asked = loaded.settings.keys_sweep_interval.seconds  # a setting wins over the URL's option and its default
    if asked is None or asked == float("inf"):
        return []
    return [CleanupLoop(keys, interval=asked, metrics=metrics, clock=clock)]
