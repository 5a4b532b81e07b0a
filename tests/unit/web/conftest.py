"""The API in this process: real routes, real guard, real tokens, keys in memory on a virtual clock. No sockets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import httpx2
import pytest
from fastapi import FastAPI

from lapse.app.demo.control import Demo
from lapse.app.demo.note import DemoContext
from lapse.app.live import live_changes
from lapse.app.record import ProcessRecord, open_store
from lapse.app.service import process_facts
from lapse.app.workspaces import ticket_records
from lapse.core.believed_clock import BelievedClock
from lapse.core.clock import VirtualClock
from lapse.core.duration import Duration
from lapse.domains import REGISTRY
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.plans.approvals import Approvals
from lapse.engine.plans.proposed import ProposedPlans
from lapse.engine.running.coordinator import Coordinator
from lapse.engine.running.logins import LoginFailures
from lapse.engine.running.metrics import Metrics
from lapse.engine.service import LocalService
from lapse.engine.trash import TrashBin
from lapse.engine.verbs.place import Place
from lapse.history.policy.default_policy import history_document
from lapse.history.service import Retention
from lapse.keys.aio import AsyncKeys, open_keys_async
from lapse.keys.sweeper import CleanupLoop
from lapse.requests.lifecycle.policy import TTLRule
from lapse.settings import load_settings
from lapse.web.api.forms import Tagger
from lapse.web.api.history import HistoryService
from lapse.web.api.keys import KeysService
from lapse.web.api.requests import RequestsService
from lapse.web.api.status import StatusService
from lapse.web.api.workspaces import Defaults, WorkspacesService
from lapse.web.app import create_app
from lapse.web.auth.sessions import BrowserSessions
from lapse.web.auth.state import StateDatabase
from lapse.web.auth.tokens import TokenStore, owner_of
from lapse.web.pages.render import PageLinks
from lapse.web.server.measurement import MeasuredApp
from lapse.web.server.security import AllowedHosts, Guard
from lapse.workspaces.activity.in_process import InProcessActivity
from lapse.workspaces.managed import ManagedWorkspaces
from lapse.workspaces.store.sqlite import open_sqlite_store
from lapse.workspaces.tickets import Tickets
from lapse.workspaces.trash import TrashedWorkspaces

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp

    from lapse.objects.embedded import EmbeddedStore
    from lapse.web.live import LiveChanges
    from lapse.workspaces.store.port import WorkspaceStore

BASE = "http://localhost:8750"
TRASH_TTL = Duration.parse("7d")
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class API:
    client: httpx2.AsyncClient
    """The owner's, with their token."""
    stranger: httpx2.AsyncClient
    """A client that sends no token."""
    clock: VirtualClock
    keys: AsyncKeys
    tokens: TokenStore
    metrics: Metrics
    coordinator: Coordinator
    sessions: BrowserSessions
    owner_id: str
    objects: EmbeddedStore
    journal: SQLiteJournal
    workspaces: WorkspaceStore
    activity: InProcessActivity
    retention: Retention
    live: LiveChanges
    app: ASGIApp


ROUTES: list[BaseRoute] = []


def share_routes(app: ASGIApp) -> None:
    """Give the application the routes of the first one, which are the same: state is of the application, not of them.

    FastAPI analyses a route on its first request, and that was two thirds of the time of the tests here.
    """
    assert isinstance(app, MeasuredApp)
    guard = app.app
    assert isinstance(guard, Guard)
    inner = guard._app
    assert isinstance(inner, FastAPI)
    ROUTES[:] = ROUTES or inner.router.routes
    inner.router.routes[:] = ROUTES


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def objects(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[EmbeddedStore]:
    store = open_store(tmp_path, clock=clock)
    yield store
    await store.close()


@pytest.fixture
async def workspaces(tmp_path: Path) -> AsyncIterator[WorkspaceStore]:
    store = open_sqlite_store(tmp_path / "workspaces.db")
    yield store
    await store.close()


@pytest.fixture
async def api(
    tmp_path: Path, clock: VirtualClock, objects: EmbeddedStore, workspaces: WorkspaceStore
) -> AsyncIterator[API]:
    activity = InProcessActivity(clock)
    metrics, journal, record = Metrics("test"), SQLiteJournal(objects.database), ProcessRecord.in_folder(objects)
    believed = BelievedClock(clock)
    gate = record.gate(await record.guard(believed), metrics=metrics)
    retention = Retention(
        objects,
        history=history_document(),
        journal=journal,
        metrics=metrics,
        holds=objects,
        clock=clock,
        interval=Duration.parse("1h"),
        gate=gate,
    )

    async def open_trash() -> TrashBin:
        return TrashBin(TrashedWorkspaces(workspaces, journal=journal, clock=clock))

    approvals = Approvals(record.safety)
    place = Place(
        name="here",
        id="test",
        clock=believed,
        registry=REGISTRY,
        domains={
            "workspaces": ManagedWorkspaces(workspaces, activity, clock=clock, lease_seconds=30, trash_ttl=TRASH_TTL)
        },
        journal=journal,
        gate=gate,
        freezes=record.safety,
        metrics=metrics,
        secret=b"s" * 32,
        open_trash=open_trash,
        approvals=approvals,
        plans=ProposedPlans(record.plans, approvals),
    )
    async with open_keys_async("memory://", clock=clock, sweep=False) as keys:
        coordinator = Coordinator(clock=clock, metrics=metrics, loops=[CleanupLoop(keys, interval=1, metrics=metrics)])
        with StateDatabase(tmp_path) as state:
            tokens = TokenStore(state, clock=clock)
            owner_id, owner = owner_of(tmp_path, state, tokens)
            sessions = BrowserSessions(state, tokens, clock)
            facts = process_facts(coordinator, metrics, clock)
            status = StatusService(clock=clock, keys=keys, backend="memory://", facts=facts)
            live = live_changes(
                journal=journal,
                objects=objects,
                workspaces=workspaces,
                activity=activity,
                keys=keys.backend,
                coordinator=coordinator,
                clock=clock,
            )
            app = create_app(
                keys=KeysService(keys, clock=clock, tagger=Tagger(state.secret("etag"))),
                requests=RequestsService(
                    objects,
                    holds=objects,
                    journal=journal,
                    rule=TTLRule(Duration.parse("10m"), annotated=False),
                    clock=clock,
                    metrics=metrics,
                    dependants=objects,
                ),
                history=HistoryService(
                    objects,
                    retention,
                    namespace=history_document().spec.selector.namespaces[0],
                    interval=Duration.parse("1h"),
                    clock=clock,
                ),
                workspaces=WorkspacesService(
                    workspaces,
                    Tickets(ticket_records(keys, clock=clock)),
                    journal,
                    url_of=lambda name: f"http://{name}.w.localhost:8752/",
                    defaults=Defaults(standby_ttl=600),
                    clock=clock,
                    metrics=metrics,
                    activity=activity,
                    trash_ttl=TRASH_TTL,
                    log_of=lambda one: tmp_path / f"{one.id}.log",
                ),
                status_service=status,
                places=lambda: PageLinks("http://localhost:8750", "http://localhost:8751"),
                hosts=AllowedHosts("127.0.0.1", 8750, ["lapse.example.org"]),
                sessions=sessions,
                failures=LoginFailures(clock, metrics),
                metrics=metrics,
                verbs=partial(LocalService, replace(place, process=facts)),
                live=live,
                demo=Demo(
                    DemoContext(
                        settings=load_settings({"state_dir": str(tmp_path)}).settings,
                        place=place,
                        objects=objects,
                        keys=keys,
                        workspaces=workspaces,
                        notes=record.safety,
                    )
                ),
            )
            share_routes(app)
            transport = httpx2.ASGITransport(app=app)
            with_token = {"Authorization": f"Bearer {owner}"}
            async with (
                httpx2.AsyncClient(transport=transport, base_url=BASE, headers=with_token) as client,
                httpx2.AsyncClient(transport=transport, base_url=BASE) as stranger,
            ):
                yield API(
                    client, stranger, clock, keys, tokens, metrics, coordinator, sessions, owner_id, objects, journal,
                    workspaces, activity, retention, live, app,
                )  # fmt: skip
            await live.close()


@pytest.fixture
def client(api: API) -> httpx2.AsyncClient:
    """The owner's."""
    return api.client


@pytest.fixture
def stranger(api: API) -> httpx2.AsyncClient:
    """A client that sends no token."""
    return api.stranger
