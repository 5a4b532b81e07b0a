"""``lapse up``: everything in one process. A composition root: opens what the settings name, wires it, runs it.

With ``--demo`` things lapse there from the first minute on (`lapse.app.demo`), for people who start Lapse for the first
time. Every process goes on with a demo that was started in its folder.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from lapse.app.process import (
    NotSyncedError,
    believed_clock,
    note_deciding,
    probes_listener,
    request_policy,
    retention,
    stay,
)
from lapse.app.webhooks import Webhooks, check_webhooks
from lapse.app.workspaces import prepare_folder
from lapse.core.errors import LapseError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AsyncExitStack

    from starlette.types import ASGIApp

    from lapse.app.demo.control import Demo
    from lapse.app.domains import OwnDomain
    from lapse.app.record import ProcessRecord
    from lapse.app.workspaces import WorkspaceParts
    from lapse.core.believed_clock import BelievedClock
    from lapse.core.clock import Clock
    from lapse.db.postgres.pool import Postgres
    from lapse.engine.domain import ManagedDomain
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.coordinator import Coordinator, ElectedWork, Loop, Service
    from lapse.engine.running.election import Leadership
    from lapse.engine.running.logins import LoginAudit, LoginFailures
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.clock_guard import ClockGuard, GuardedGate
    from lapse.engine.safety.gate import Gate
    from lapse.engine.safety.holds import HoldStore
    from lapse.engine.trash import Trash
    from lapse.engine.verbs.place import Place, ProcessFacts
    from lapse.history.service import Retention
    from lapse.keys.aio import AsyncKeys
    from lapse.objects.embedded import EmbeddedStore
    from lapse.requests.local.executor import LocalRequests
    from lapse.settings import LoadedSettings, Settings
    from lapse.web.auth.sessions import BrowserSessions
    from lapse.web.live import LiveChanges
    from lapse.web.server.listener import Certificate, Endpoint


class _Trashing(TypedDict):
    """What the trash of any domain is opened with."""

    journal: Journal
    clock: Clock
    metrics: Metrics


class _Shared(TypedDict):
    """What all domains are built with."""

    journal: Journal
    gate: Gate
    clock: BelievedClock
    metrics: Metrics


class OpenBindError(LapseError):
    """{address} is open to other machines and there is no token; run lapse tokens create --name NAME --scope admin."""


def run(loaded: LoadedSettings, *, demo: bool, tell: Callable[..., None]) -> int:
    """Work until a signal comes; ``tell`` says something to the person at the terminal, if there is one."""
    return stay("lapse.up", loaded, partial(_open_demo if demo else _Process.open, tell=tell))


async def _open_demo(loaded: LoadedSettings, stack: AsyncExitStack, *, tell: Callable[..., None]) -> _Process:
    """Open it all with the settings of a demo, and let that run."""
    from lapse.app.demo.running import demo_settings
    from lapse.core.clock import SystemClock

    loaded, quicker = await demo_settings(loaded, SystemClock())
    return await _Process.open(loaded, stack, tell=tell, quicker=quicker)


@dataclass(frozen=True)
class _Endpoints:
    """Where the process listens. Bound before anything is opened: a taken port is the usual mistake."""

    http: Endpoint
    probes: Endpoint
    proxy: Endpoint | None
    """None where workspaces are not served."""
    certificate: Certificate | None
    """That of ``http``; None: it speaks plain HTTP."""

    @classmethod
    def open(cls, settings: Settings, stack: AsyncExitStack) -> _Endpoints:
        """Bind them all. Raises `CertificateError` before, and `CannotListenError`."""
        from lapse.app.workspaces import proxy_endpoint
        from lapse.requests.expiry import DOMAIN as REQUESTS
        from lapse.web.server.listener import Certificate, Endpoint

        pair = settings.http_tls_certificate, settings.http_tls_key
        certificate = Certificate(*map(Path, pair), domain=REQUESTS) if all(pair) else None
        scheme = "http" if certificate is None else "https"
        http = Endpoint(settings.http_host, settings.http_port, setting="http", scheme=scheme)
        stack.callback(http.close)
        probes = Endpoint(settings.probes_host, settings.probes_port, setting="probes")
        stack.callback(probes.close)
        # Whoever may create a workspace runs programs on this machine.
        serves_workspaces = http.loopback_only or settings.workspaces_beyond_loopback
        return cls(http, probes, proxy_endpoint(settings, stack) if serves_workspaces else None, certificate)


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
        from lapse.settings import own_folder
        from lapse.web.auth.running import forget_server, note_server
        from lapse.web.auth.sessions import BrowserSessions
        from lapse.web.auth.state import StateDatabase
        from lapse.web.auth.tokens import TokenStore, owner_of

        state = stack.enter_context(StateDatabase(settings.state_dir))
        tokens = TokenStore(state, clock=clock)
        if not endpoints.http.loopback_only and not tokens.any_named():
            raise OpenBindError(address=f"{endpoints.http.host}:{endpoints.http.port}")
        owner_id, _ = owner_of(settings.state_dir, state, tokens)
        here = own_folder(), endpoints.http.port, settings.state_dir
        shown = Path(settings.http_tls_certificate) if settings.http_tls_certificate else None
        note_server(*here, certificate=shown)  # commands of this user find the owner's token by it
        stack.callback(forget_server, *here)
        return cls(BrowserSessions(state, tokens, clock), owner_id, LoginFailures(clock, metrics))

    async def audited(self, journal: Journal, settings: Settings, stack: AsyncExitStack) -> LoginAudit:
        """Let the journal know of the tokens that there are, and return what tells it of those that are refused."""
        from lapse.app.domains import ACTOR
        from lapse.engine.running.logins import LoginAudit
        from lapse.requests.expiry import DOMAIN as REQUESTS
        from lapse.web.auth.audit import tell_tokens

        oldest = self.sessions.clock.wall_ns() - (settings.journal_ttl.nanoseconds or self.sessions.clock.wall_ns())
        await tell_tokens(self.sessions.tokens, journal, since_ns=oldest, actor=ACTOR)
        audit = LoginAudit(self.failures, journal, domain=REQUESTS)
        stack.push_async_callback(audit.close)
        return audit


@dataclass(frozen=True, kw_only=True)
class _Stores:
    """Everything that is open: endpoints, stores, and the record with what stops a process."""

    settings: Settings
    machine: Clock
    """The machine's own clock: keys are shared with other processes, which have no other."""
    clock: BelievedClock
    """What domains decide by."""
    metrics: Metrics
    endpoints: _Endpoints
    access: _Access
    keys: AsyncKeys
    objects: EmbeddedStore
    server: Postgres | None
    record: ProcessRecord
    guard: ClockGuard
    gate: GuardedGate
    workspaces: WorkspaceParts | None
    """None where they are not served."""

    @classmethod
    async def open(cls, settings: Settings, stack: AsyncExitStack) -> _Stores:
        """Open it all; ``stack`` closes it, last opened first."""
        from lapse import __version__
        from lapse.app import record as records
        from lapse.core.clock import SystemClock
        from lapse.engine.running.metrics import Metrics
        from lapse.keys.aio import open_keys_async

        machine, metrics = SystemClock(), Metrics(__version__)
        clock = believed_clock(settings, machine, metrics)
        endpoints = _Endpoints.open(settings, stack)
        access = _Access.open(settings, stack, endpoints=endpoints, clock=machine, metrics=metrics)
        keys = await stack.enter_async_context(open_keys_async(settings.keys_url, clock=machine, sweep=False))
        store = records.open_store(settings.state_dir, clock=clock)
        stack.push_async_callback(store.close)
        server = await records.open_server(settings, stack, upgrades=True)
        prepare_folder(settings)  # before the record is moved: what cannot start should change nothing
        record = await records.ProcessRecord.open(settings, store, server, joins=True)
        await note_deciding(records.ProcessRecord.in_folder(store).safety, settings)
        guard = await record.guard(clock)
        policies = record.policy_guard(settings, store, clock=clock, metrics=metrics)
        gate = record.gate(guard, metrics=metrics, policies=policies)
        stack.push_async_callback(gate.close)
        return cls(
            settings=settings,
            machine=machine,
            clock=clock,
            metrics=metrics,
            endpoints=endpoints,
            access=access,
            keys=keys,
            objects=store,
            server=server,
            record=record,
            guard=guard,
            gate=gate,
            workspaces=await _open_workspaces(
                settings,
                stack,
                server=server,
                endpoints=endpoints,
                keys=keys,
                access=access,
                clock=clock,
                metrics=metrics,
            ),
        )

    @property
    def shared(self) -> _Shared:
        """What all domains are built with: loops end nothing that is ended by plans only."""
        from lapse.engine.plans.approvals import loop_gate

        gate = loop_gate(self.gate, self.settings.act_by_plan)
        return {"journal": self.record.journal, "gate": gate, "clock": self.clock, "metrics": self.metrics}


@dataclass(frozen=True, kw_only=True)
class _Domains:
    """The domains of the process, built and not running yet."""

    requests: LocalRequests
    history: Retention
    others: Sequence[OwnDomain]

    @classmethod
    def build(cls, loaded: LoadedSettings, stores: _Stores) -> _Domains:
        """Build them on open stores. Raises `DomainSettingsError` and `BrokenDomainError`."""
        from lapse.app.domains import own_domains
        from lapse.keys.registration import KEYS
        from lapse.requests.local.executor import LocalRequests

        settings, store, shared = loaded.settings, stores.objects, stores.shared
        KEYS.expect_series(stores.metrics)
        requests = LocalRequests.build(
            store,
            settings.state_dir / "local",
            policy=request_policy(settings),
            trash_ttl=settings.trash_ttl,
            **shared,
        )
        documents, trash = settings.retention_policies, requests.requests.trash
        history = retention(loaded, store, documents=documents, holds=store, trash=trash, **shared)
        return cls(requests=requests, history=history, others=own_domains(settings, stores.clock))

    def elected(self, loaded: LoadedSettings, stores: _Stores) -> ElectedWork:
        """Return what only one process does on the state folder."""
        from lapse.app.record import folder_election
        from lapse.engine.running.coordinator import ElectedWork

        requests, shared = self.requests.requests, stores.shared
        loops: list[Loop] = [*_key_loops(loaded, stores.keys, stores.shared), *requests.loops]
        loops += [requests.upkeep, *self.history.loops]
        loops += [one.loop(holds=stores.record.holds, **shared) for one in self.others if one.section.enabled]
        services = [*self.requests.leader_services, *self.history.leader_services]
        return ElectedWork(folder_election(stores.objects, stores.machine), loops, services)


@dataclass(frozen=True)
class _Process:
    """The process: its stores, its domains, and what runs them."""

    stores: _Stores
    domains: _Domains
    place: Place
    """What the verbs of people work on."""
    facts: Callable[[], ProcessFacts]
    """What it tells of itself."""
    demo: Demo
    demo_told: Mapping[str, object]
    """What the log tells of the demo; empty where none was asked for."""
    open_command: str
    """What prints a link to the dashboard of this process."""
    tell: Callable[..., None]
    coordinator: Coordinator

    @classmethod
    async def open(
        cls,
        loaded: LoadedSettings,
        stack: AsyncExitStack,
        *,
        tell: Callable[..., None],
        quicker: Sequence[str] | None = None,
    ) -> _Process:
        """Open it all; ``stack`` closes it, last opened first. With ``quicker``, the settings of a demo, that runs."""
        from lapse.app.demo.running import DemoLoop
        from lapse.app.record import workspace_election
        from lapse.app.service import own_managed, process_facts
        from lapse.engine.journal.lines import JournalLines
        from lapse.engine.safety.gate import GateLoop
        from lapse.requests.expiry import DOMAIN as REQUESTS

        check_webhooks(loaded.settings)  # first: what cannot start should change nothing
        stores = await _Stores.open(loaded.settings, stack)
        settings, workspaces = stores.settings, stores.workspaces
        domains = _Domains.build(loaded, stores)
        folder = domains.elected(loaded, stores)
        audit = await stores.access.audited(stores.record.journal, settings, stack)
        recorded: list[Loop] = [GateLoop(stores.gate, domain=REQUESTS), audit, *_workspace_loops(stores)]
        recorded += [] if stores.endpoints.certificate is None else [stores.endpoints.certificate]
        recorded += await JournalLines.open(stores.record.journal, domain=REQUESTS)
        rows = stores.record.retention(settings, stores.guard, domain=REQUESTS)
        folder = replace(folder, loops=[*folder.loops, rows]) if stores.server is None else folder
        recorded += [] if stores.server is None else [rows]
        managed = _managed(stores, domains)
        webhooks = Webhooks(settings, stack, machine=stores.machine, clock=stores.clock, metrics=stores.metrics)
        own = own_managed(domains.others, settings, stores.record.holds, stores.clock)
        heard = await webhooks.of_folder(stores.record, stores.objects, {**managed, **own})
        demos = DemoLoop(stores.clock, domain=REQUESTS)
        folder = replace(folder, loops=[*folder.loops, *heard, demos])
        recorded += await webhooks.of_database(stores.record, managed)
        kept = None if workspaces is None else workspaces.store
        election = await workspace_election(settings, kept, stores.machine, stack)
        coordinator = _coordinator(stores.shared, folder, recorded, election)
        facts = process_facts(coordinator, stores.metrics, stores.clock)
        place = await _place(stores, domains, managed, facts)
        demo = _demo(stores, place, domains.history)
        demos.attach(demo)
        told = (
            {}
            if quicker is None
            else {"run": await demo.resume(), "settings": ", ".join(quicker), "is_on": await demo.is_on()}
        )
        opens = _open_command(loaded, stores.endpoints.http)
        return cls(stores, domains, place, facts, demo, told, opens, tell, coordinator).built()

    @property
    def settings(self) -> Settings:
        """What it was started with."""
        return self.stores.settings

    @property
    def metrics(self) -> Metrics:
        """Its metrics, which the probes serve."""
        return self.stores.metrics

    @property
    def endpoints(self) -> _Endpoints:
        """Where it listens."""
        return self.stores.endpoints

    @property
    def workspaces(self) -> WorkspaceParts | None:
        """The workspaces; None where they are not served."""
        return self.stores.workspaces

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
    def _live(self) -> LiveChanges:
        from lapse.app.live import live_changes

        stores, kept = self.stores, self.workspaces
        return live_changes(
            journal=stores.record.journal,
            objects=stores.objects,
            workspaces=None if kept is None else kept.store,
            activity=None if kept is None else kept.activity,
            keys=stores.keys.backend,
            coordinator=self.coordinator,
            clock=stores.machine,
            has_others=bool(self.domains.others),
        )

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
        shown = self.endpoints.certificate
        tls = None if shown is None else shown.context
        http = Listener("http", self._api(), self.endpoints.http, tls=tls, limits=limits)
        here: list[Service] = [http, probes, self._live, *self.domains.requests.requests.services]
        if self.workspaces is not None:
            here += self.workspaces.services
        return here

    def checks(self, loop: asyncio.AbstractEventLoop) -> dict[str, Callable[[], None]]:
        """Return what raises an error unless a store answers and its caches are filled. Blocks, beside ``loop``."""
        checks: dict[str, Callable[[], None]] = {"keys": self.stores.keys.backend.check}
        checks["objects"] = partial(self._check_objects, loop)
        if self.workspaces is not None:
            checks["workspaces"] = partial(self.workspaces.check, loop)
        return checks

    def _check_objects(self, loop: asyncio.AbstractEventLoop) -> None:
        import asyncio

        from lapse.web.server.probes import CHECK_SECONDS

        # Bounded, because a process that ends waits for its threads.
        asyncio.run_coroutine_threadsafe(self.stores.objects.check(), loop).result(CHECK_SECONDS)
        if not self.domains.requests.requests.caches.synced:
            raise NotSyncedError

    def announce(self) -> None:
        """Tell where it listens."""
        from lapse.core.log import get_logger
        from lapse.web.auth.sessions import ticket_url

        http, probes, proxy = self.endpoints.http.url, self.endpoints.probes.url, self.endpoints.proxy
        if sys.stderr.isatty():  # a ticket is for a person, and never for a log
            link = ticket_url(http, self.stores.access.sessions.issue(self.stores.access.owner_id))
            self.tell(
                f"Lapse runs (Ctrl-C stops it). Open it in your browser, within ten minutes: {link}", style="bold"
            )
        log = get_logger("lapse.up")
        shown = {"proxy": proxy.url} if proxy is not None else {}
        log.info("listening", http=http, probes=probes, **shown)
        if not sys.stderr.isatty():
            log.info("link_not_logged", reason="a link that logs a browser in is for a person", run=self.open_command)
        if self.demo_told:
            log.info("demo", **self.demo_told)
        if proxy is None:
            reason = "other machines can call this one, and workspaces_beyond_loopback is false"
            log.warning("workspaces_not_served", reason=reason)
        if not self.endpoints.http.loopback_only and self.endpoints.certificate is None:
            reason = "other machines can call this one, and tokens go over the network as they are"
            instead = "set http_tls_certificate and http_tls_key, or let only a proxy with TLS reach this address"
            log.warning("tokens_in_the_clear", reason=reason, instead=instead)

    def _api(self) -> ASGIApp:
        from lapse.engine.service import LocalService
        from lapse.keys.url import parse_url
        from lapse.web.api.forms import Tagger
        from lapse.web.api.history import HistoryService
        from lapse.web.api.keys import KeysService
        from lapse.web.api.requests import RequestsService
        from lapse.web.api.status import StatusService
        from lapse.web.app import create_app
        from lapse.web.pages.render import PageLinks
        from lapse.web.server.security import AllowedHosts

        stores = self.stores
        tagger = Tagger(stores.access.sessions.state.secret("etag"))
        return create_app(
            keys=KeysService(stores.keys, clock=stores.machine, tagger=tagger),
            requests=RequestsService(
                stores.objects,
                holds=stores.objects,
                journal=stores.record.journal,
                rule=request_policy(self.settings).ttl_rule,
                clock=stores.clock,
                metrics=self.metrics,
                trash=self.domains.requests.requests.trash,
                dependants=stores.objects,
            ),
            history=HistoryService(
                stores.objects,
                self.domains.history,
                namespace=self.settings.history_namespace,
                interval=self.settings.retention_interval,
                clock=stores.clock,
            ),
            workspaces=None if self.workspaces is None else self.workspaces.api(stores.record, self.metrics),
            status_service=StatusService(
                clock=stores.clock,
                keys=stores.keys,
                backend=str(parse_url(self.settings.keys_url)),
                facts=self.facts,
            ),
            places=lambda: PageLinks(self.endpoints.http.url, self.endpoints.probes.url),
            hosts=AllowedHosts(self.settings.http_host, self.endpoints.http.port, self.settings.http_allowed_hosts),
            sessions=stores.access.sessions,
            failures=stores.access.failures,
            metrics=self.metrics,
            verbs=partial(LocalService, self.place),
            demo=self.demo,
            live=self._live,
        )


def _open_command(loaded: LoadedSettings, http: Endpoint) -> str:
    """Return the command that prints a link to the dashboard, with the flags that this process was given for that."""
    given = {"state_dir": str(loaded.settings.state_dir), "http_port": str(http.port)}
    flags = [
        f"--{key.replace('_', '-')} {shlex.quote(value)}"
        for key, value in given.items()
        if loaded.origins[key].layer == "flag"
    ]
    return " ".join(["lapse open", *flags])


def _demo(stores: _Stores, place: Place, history: Retention) -> Demo:
    """Return the demo of the folder, whether it runs or not."""
    from lapse.app.demo.control import Demo
    from lapse.app.demo.note import DemoContext
    from lapse.app.record import ProcessRecord

    async def pass_over(names: Collection[str], labels: Mapping[str, str]) -> None:
        await history.run_once(only=names, labels=labels)

    context = DemoContext(
        settings=stores.settings,
        place=place,
        objects=stores.objects,
        keys=stores.keys,
        workspaces=None if stores.workspaces is None else stores.workspaces.store,
        notes=ProcessRecord.in_folder(stores.objects).safety,
    )
    return Demo(context, pass_over=pass_over)


def _managed(stores: _Stores, domains: _Domains) -> dict[str, ManagedDomain[Any]]:
    """Return the domains whose things people see and steer, but for keys."""
    from lapse.app import service
    from lapse.workspaces.registration import WORKSPACES

    store, clock, requests, workspaces = stores.objects, stores.clock, domains.requests.requests, stores.workspaces
    objects: service.SharedObjects = {
        "store": store, "holds": store, "steering": service.steering_of(store, requests.caches, clock), "clock": clock,
        "trash": requests.trash,
    }  # fmt: skip
    managed = {**service.request_domains(requests, objects), **service.record_domains(domains.history, objects)}
    if workspaces is not None:
        parts = workspaces.store, workspaces.activity
        managed[WORKSPACES.name] = service.workspace_domain(*parts, clock=clock, settings=stores.settings)
    return managed


async def _place(
    stores: _Stores,
    domains: _Domains,
    managed: Mapping[str, ManagedDomain[Any]],
    facts: Callable[[], ProcessFacts],
) -> Place:
    """Return what the verbs of people work on, in this process."""
    from lapse import __version__
    from lapse.app import service
    from lapse.app.trash import trashed_objects, trashed_workspaces
    from lapse.domains import REGISTRY
    from lapse.engine.plans.approvals import Approvals, ByPlan
    from lapse.engine.plans.proposed import ProposedPlans
    from lapse.engine.trash import TrashBin
    from lapse.engine.verbs.place import Place
    from lapse.keys.managed import ManagedKeys
    from lapse.keys.registration import KEYS
    from lapse.settings import show_value

    settings, store, clock, record = stores.settings, stores.objects, stores.clock, stores.record
    requests = domains.requests.requests

    async def holds() -> HoldStore:
        return record.holds

    async def open_trash() -> TrashBin:
        common: _Trashing = {"journal": record.journal, "clock": clock, "metrics": stores.metrics}
        bins: list[Trash] = [trashed_objects(store, holds=store, dependants=store, trash=requests.trash, **common)]
        if stores.workspaces is not None:
            bins.append(trashed_workspaces(settings, stores.workspaces.store, **common))
        return TrashBin(*bins)

    approvals = Approvals(record.safety)
    return Place(
        name=str(settings.state_dir),
        id=await record.safety.name(),
        clock=clock,
        registry=REGISTRY,
        domains={KEYS.name: ManagedKeys(stores.keys), **managed},
        opened=service.own_openings(settings, holds, clock),
        journal=record.journal,
        gate=stores.gate,
        freezes=record.safety,
        metrics=stores.metrics,
        secret=stores.access.sessions.state.secret("plan"),
        budgets=record.safety.budgets,
        open_trash=open_trash,
        version=__version__,
        approvals=approvals,
        plans=ProposedPlans(record.plans, approvals),
        by_plan=ByPlan(settings.act_by_plan),
        dry=settings.dry_run_domains,
        policies=record.approvals(settings, store, clock=clock),
        frozen_in=show_value(settings.database_url),
        process=facts,
        persons=partial(service.persons_of, stores.access.sessions.tokens, settings),
        extend_max=settings.extend_max,
        plan_ttl=settings.plan_ttl,
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
        metrics=metrics,
        hosts=True,
        server=endpoints.http.url,
    )


def _workspace_loops(stores: _Stores) -> list[Loop]:
    """Return what is done about workspaces again and again, here or by the leader alone."""
    from lapse.workspaces.counts import count_loop
    from lapse.workspaces.ttl_manager import ttl_loop, ttl_sweeps

    parts = stores.workspaces
    if parts is None:
        return []
    sweeps = ttl_sweeps(parts.store, parts.activity, **stores.shared)
    lapsing = ttl_loop(sweeps, interval=parts.settings.ttl_manager_interval.seconds)
    return [*parts.loops, lapsing, count_loop(parts.store, stores.metrics)]


def _coordinator(
    shared: _Shared, folder: ElectedWork, recorded: Sequence[Loop], election: Leadership | None
) -> Coordinator:
    """Return what runs the work on the folder and that on workspaces; ``election`` is theirs, if they are elsewhere."""
    from lapse.engine.running.coordinator import Coordinator

    clock, metrics = shared["clock"], shared["metrics"]
    if election is None:  # then all of it is in the folder, and one election is enough
        return Coordinator(clock=clock, metrics=metrics, beside=replace(folder, loops=[*folder.loops, *recorded]))
    return Coordinator(clock=clock, metrics=metrics, loops=recorded, leadership=election, beside=folder)


def _key_loops(loaded: LoadedSettings, keys: AsyncKeys, shared: _Shared) -> list[Loop]:
    """Return the loops that are needed: no sweep for a store that cleans up by itself, or when told never."""
    from lapse.keys.counts import ExpiredCounts, count_loops
    from lapse.keys.sweeper import CleanupLoop

    clock, metrics = shared["clock"], shared["metrics"]
    asked, counting = keys.backend.sweep_interval, count_loops(keys, metrics)
    if asked is not None and loaded.origins["keys_sweep_interval"].layer != "default":
        asked = loaded.settings.keys_sweep_interval.seconds  # a setting wins over the URL's option and its default
    if asked is None or asked == float("inf"):
        return [*counting]
    expired = ExpiredCounts(shared["journal"], clock=clock, metrics=metrics)
    return [CleanupLoop(keys, interval=asked, metrics=metrics, clock=clock, expired=expired), *counting]
