"""``lapse up``: the composition root. Opens the stores that the settings name, builds the applications, runs them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Final, TypedDict

from cyclopts import Parameter

from lapse.cli.flags import NO_SERVER_FLAGS, ServerFlags
from lapse.cli.process import (
    NotSyncedError,
    deletion_budgets,
    history_policy_document,
    probes_listener,
    request_policy,
    retention,
    stay,
)
from lapse.core.errors import LapseError

if TYPE_CHECKING:
    import asyncio
    from contextlib import AsyncExitStack

    from starlette.types import ASGIApp

    from lapse.cli.workspace_parts import WorkspaceParts
    from lapse.core.clock import Clock
    from lapse.engine.brakes import Brakes
    from lapse.engine.coordinator import Coordinator, Loop, Service
    from lapse.engine.journal import Journal, SQLiteJournal
    from lapse.engine.metrics import Metrics
    from lapse.history.service import Retention
    from lapse.keys.aio import AsyncKeys
    from lapse.keys.loop import SweepLoop
    from lapse.requests.embedded import LocalRequests
    from lapse.settings import Loaded, Settings
    from lapse.web.listener import Endpoint
    from lapse.web.state import StateDatabase
    from lapse.web.tokens import Admission

_LEADER_SECONDS: Final = 15
"""How long another process waits to lead after this one has died without a word."""


class _Shared(TypedDict):
    """What all domains are built with."""

    journal: SQLiteJournal
    brake: Brakes
    clock: Clock
    metrics: Metrics


class OpenBindError(LapseError):
    """{address} is open to other machines and nobody has a token; see lapse tokens create --name NAME --scope admin."""


def up(
    flags: ServerFlags = NO_SERVER_FLAGS,
    *,
    example: Annotated[
        bool, Parameter(help="Create a workspace to try, once.", negative=(), show_default=False)
    ] = False,
) -> int:
    """Run everything that is enabled: loops, HTTP API, start page.

    Every setting can also stand in lapse.toml or in the environment; lapse config show tells which one counts.
    """
    return stay("lapse.up", flags.load(), partial(_Process.open, example=example))


@dataclass(frozen=True)
class _Doors:
    """Where the process listens. Bound before anything is opened: a taken port is the usual mistake."""

    http: Endpoint
    probes: Endpoint
    proxy: Endpoint | None
    """None where workspaces are not served."""

    @classmethod
    def open(cls, settings: Settings, stack: AsyncExitStack) -> _Doors:
        """Bind them all."""
        from lapse.cli.workspace_parts import proxy_endpoint
        from lapse.web.listener import Endpoint

        http = Endpoint(settings.http_host, settings.http_port, setting="http")
        stack.callback(http.close)
        probes = Endpoint(settings.probes_host, settings.probes_port, setting="probes")
        stack.callback(probes.close)
        # Whoever may create a workspace runs programs on this machine.
        serves_workspaces = http.loopback_only or settings.workspaces_beyond_loopback
        return cls(http, probes, proxy_endpoint(settings, stack) if serves_workspaces else None)


@dataclass(frozen=True)
class _Process:
    """Everything that is open, and what is built from it."""

    settings: Settings
    clock: Clock
    metrics: Metrics
    state: StateDatabase
    admission: Admission
    keys: AsyncKeys
    requests: LocalRequests
    retention: Retention
    workspaces: WorkspaceParts | None
    """None where they are not served."""
    example: bool
    """Whether there is a workspace to try."""
    doors: _Doors
    coordinator: Coordinator

    @classmethod
    async def open(cls, loaded: Loaded, stack: AsyncExitStack, *, example: bool) -> _Process:
        """Open it all; ``stack`` closes it, last opened first."""
        from lapse import __version__
        from lapse.cli.domains import DOMAINS, FOLDER_DOMAINS
        from lapse.cli.example_workspace import ensure_example
        from lapse.cli.state_folder import brakes_of, open_store
        from lapse.cli.workspace_record import is_on_server
        from lapse.core.clock import SystemClock
        from lapse.core.verdict import DueReason
        from lapse.engine.brakes import BrakeLoop
        from lapse.engine.coordinator import Coordinator
        from lapse.engine.journal import SQLiteJournal
        from lapse.engine.metrics import Metrics
        from lapse.keys.aio import open_keys_async
        from lapse.keys.election import Election
        from lapse.keys.loop import DOMAIN as KEYS
        from lapse.requests.embedded import LocalRequests
        from lapse.requests.ttl import DOMAIN as REQUESTS
        from lapse.web.state import StateDatabase
        from lapse.web.tokens import Admission, TokenStore

        settings, clock, metrics = loaded.settings, SystemClock(), Metrics(__version__)
        metrics.expect_domain(KEYS, reasons=[DueReason.TTL_EXPIRED])
        doors = _Doors.open(settings, stack)
        state = stack.enter_context(StateDatabase(settings.state_dir))
        tokens = TokenStore(state, clock=clock)
        if not doors.http.loopback_only and not tokens.any_usable():
            raise OpenBindError(address=f"{doors.http.host}:{doors.http.port}")
        keys = await stack.enter_async_context(open_keys_async(settings.keys_url, clock=clock, sweep=False))
        workspaces = await _open_workspaces(settings, stack, doors=doors, keys=keys, state=state, metrics=metrics)
        example = example and workspaces is not None and await ensure_example(workspaces.store, settings, clock)
        store = open_store(settings.state_dir, clock=clock)
        stack.push_async_callback(store.close)
        local = settings.state_dir / "local"
        domains = DOMAINS if is_on_server(settings) else FOLDER_DOMAINS
        brakes = brakes_of(store, budgets=deletion_budgets(settings), clock=clock, metrics=metrics, domains=domains)
        shared: _Shared = {
            "journal": SQLiteJournal(store.database), "brake": brakes, "clock": clock, "metrics": metrics,
        }  # fmt: skip
        requests = LocalRequests.build(store, local, policy=request_policy(settings), **shared)
        records = retention(loaded, store, documents=settings.retention_policies, holds=store, **shared)
        loops: list[Loop] = [*requests.requests.loops, *records.loops, *_workspace_loops(workspaces, shared)]
        coordinator = Coordinator(
            clock=clock,
            metrics=metrics,
            loops=[*_loops(loaded, keys, metrics), *loops, BrakeLoop(brakes, domain=REQUESTS)],
            leadership=Election(keys, "lapse-up", ttl_seconds=_LEADER_SECONDS, clock=clock),
        )
        admission = Admission(tokens, loopback_only=doors.http.loopback_only)
        return cls(
            settings, clock, metrics, state, admission, keys, requests, records, workspaces, example, doors, coordinator
        ).built()

    def built(self) -> _Process:
        """Build what serves before anybody is told: who hears that it listens may call, or end it, at once."""
        _ = self._services
        return self

    async def run(self) -> None:
        """Serve and tick until the coordinator is told to stop."""
        leading: list[Service] = [*self.requests.leader_services, *self.retention.leader_services]
        await self.coordinator.run(self._services, leading)

    @cached_property
    def _services(self) -> list[Service]:
        import asyncio

        from lapse.web.connections import ConnectionLimits
        from lapse.web.listener import Listener
        from lapse.web.probes import Readiness

        loop = asyncio.get_running_loop()
        probes = probes_listener(
            self.doors.probes,
            readiness=Readiness(lambda: self.check(loop)),
            settings=self.settings,
            coordinator=self.coordinator,
            metrics=self.metrics,
        )
        limits = ConnectionLimits(
            connections=self.settings.http_max_connections,
            connections_per_peer=self.settings.http_max_connections_per_peer,
        )
        http = Listener("http", self._api(), self.doors.http, limits=limits)
        here: list[Service] = [http, probes, *self.requests.requests.services]
        if self.workspaces is not None:
            here += self.workspaces.services
        return here

    def check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raise a `LapseError` unless the stores answer and the caches are filled. Blocks, beside ``loop``."""
        self.keys.backend.check()
        self.requests.store.database.read("SELECT 1")
        if not self.requests.requests.caches.synced:
            raise NotSyncedError
        if self.workspaces is not None:
            self.workspaces.check(loop)

    def announce(self) -> None:
        """Tell where it listens."""
        from lapse.cli.output import message
        from lapse.core.log import get_logger

        http, probes, proxy = self.doors.http.url, self.doors.probes.url, self.doors.proxy
        if sys.stderr.isatty():
            message(f"Lapse listens at {http}/ (Ctrl-C stops it).", style="bold")
            if self.example:
                message("An example workspace is there: lapse workspaces open example prints its address.")
        log = get_logger("lapse.up")
        shown = {"proxy": proxy.url} if proxy is not None else {}
        log.info("listening", http=http, probes=probes, **shown, open=self.admission.is_open())
        if proxy is None:
            reason = "other machines can call this one, and workspaces_beyond_loopback is false"
            log.warning("workspaces_not_served", reason=reason)

    def _api(self) -> ASGIApp:
        from lapse.keys.url import parse_url
        from lapse.web.app import create_app
        from lapse.web.history_api import HistoryService
        from lapse.web.keys_api import KeysService
        from lapse.web.pages import Places
        from lapse.web.requests_api import RequestsService
        from lapse.web.security import AllowedHosts
        from lapse.web.status import StatusService
        from lapse.web.tags import Tagger

        return create_app(
            keys=KeysService(self.keys, clock=self.clock, tagger=Tagger(self.state.secret("etag"))),
            requests=RequestsService(
                self.requests.store,
                holds=self.requests.store,
                journal=self.requests.journal,
                rule=request_policy(self.settings).ttl_rule,
                clock=self.clock,
            ),
            history=HistoryService(
                self.requests.store,
                self.retention,
                own=history_policy_document(self.settings),
                interval=self.settings.retention_interval,
                clock=self.clock,
            ),
            workspaces=None if self.workspaces is None else self.workspaces.api(self.requests.journal),
            status_service=StatusService(
                clock=self.clock,
                keys=self.keys,
                backend=str(parse_url(self.settings.keys_url)),
                coordinator=self.coordinator,
            ),
            places=lambda: Places(self.doors.http.url, self.doors.probes.url, self.admission.is_open()),
            hosts=AllowedHosts(self.settings.http_host, self.doors.http.port, self.settings.http_allowed_hosts),
            admit=self.admission,
            metrics=self.metrics,
        )


async def _open_workspaces(
    settings: Settings,
    stack: AsyncExitStack,
    *,
    doors: _Doors,
    keys: AsyncKeys,
    state: StateDatabase,
    metrics: Metrics,
) -> WorkspaceParts | None:
    from lapse.cli.workspace_parts import WorkspaceParts

    if doors.proxy is None:
        return None
    return await WorkspaceParts.open(
        settings, stack, endpoint=doors.proxy, keys=keys, state=state, hosting=metrics, server=doors.http.url
    )


def _workspace_loops(parts: WorkspaceParts | None, shared: _Shared) -> list[Loop]:
    """Return what is done about workspaces again and again, here or by the leader alone."""
    from lapse.cli.workspace_parts import clock_guard
    from lapse.cli.workspace_record import BRAKE_LOOP, ServerRecord
    from lapse.engine.brakes import BrakeLoop
    from lapse.workspaces.model import DOMAIN
    from lapse.workspaces.ttl_manager import TtlLoop, TtlManager

    if parts is None:
        return []
    clock, metrics = shared["clock"], shared["metrics"]
    settings, loops = parts.settings, list(parts.loops)
    journal: Journal = shared["journal"]
    brakes, record = shared["brake"], ServerRecord.of(parts.store, settings)
    if record is not None:
        journal, brakes = record.journal, record.brakes(settings, clock=clock, metrics=metrics)
        loops.append(BrakeLoop(brakes, domain=DOMAIN, name=BRAKE_LOOP))
    brake = clock_guard(parts.store, brakes, clock=clock)
    manager = TtlManager(parts.store, parts.activity, journal, clock=clock, metrics=metrics, brake=brake)
    return [*loops, TtlLoop(manager, interval=settings.ttl_manager_interval.seconds, clock=clock)]


def _loops(loaded: Loaded, keys: AsyncKeys, metrics: Metrics) -> list[SweepLoop]:
    """Return the loops that are needed: none for a store that cleans up by itself, or when told never."""
    from lapse.keys.loop import SweepLoop

    asked = keys.backend.sweep_interval
    if asked is not None and loaded.origins["keys_sweep_interval"].layer != "default":
        asked = loaded.settings.keys_sweep_interval.seconds  # a setting wins over the URL's option and its default
    loop = None if asked is None or asked == float("inf") else SweepLoop(keys, interval=asked, metrics=metrics)
    return [loop] if loop else []
