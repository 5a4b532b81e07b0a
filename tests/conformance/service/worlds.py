"""Worlds of the contract of the verbs: in this process, and on a real HTTP server of it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from lapse.app.service import process_facts
from lapse.client import AsyncClient
from lapse.engine.plans.approvals import Approvals
from lapse.engine.plans.proposed import ProposedPlans
from lapse.engine.plans.sqlite import SQLitePlans
from lapse.engine.running.coordinator import Coordinator
from lapse.engine.running.logins import LoginFailures
from lapse.engine.safety.blast_radius import PolicyApprovals
from lapse.engine.safety.budget import Budgets
from lapse.engine.service import LocalService
from lapse.engine.trash import TrashBin
from lapse.engine.verbs.place import Caller, Place
from lapse.keys.aio import open_keys_async
from lapse.web.api.status import StatusService
from lapse.web.app import create_app
from lapse.web.auth.sessions import BrowserSessions
from lapse.web.auth.state import StateDatabase
from lapse.web.auth.tokens import TokenStore
from lapse.web.server.listener import Endpoint, Listener
from lapse.web.server.security import AllowedHosts
from tests.conformance.domains.kit import open_fixture
from tests.conformance.domains.memory import Memory
from tests.conformance.service.memory import REGISTRY, MemoryTrash, Things
from tests.conformance.service.registry import DOMAIN
from tests.unit.web.conftest import share_routes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.engine.verbs.contract import Verbs
    from tests.conformance.domains.kit import DomainFixture


class _Things(Memory):
    domain = DOMAIN

    def __init__(self) -> None:
        super().__init__(Things)


class LocalWorld:
    """The service itself."""

    def __init__(self, fixture: DomainFixture) -> None:
        kit = fixture.kit
        self._kit, self.things = kit, cast("Things", fixture.world)
        notes: Any = kit.notes
        approvals = Approvals(kit.notes)
        self.place = Place(
            name="here",
            id="record-1",
            clock=kit.clock,
            registry=REGISTRY,
            domains={DOMAIN: self.things.managed()},
            journal=kit.journal,
            gate=kit.gate,
            freezes=notes,
            metrics=kit.metrics,
            secret=b"s" * 32,
            budgets=Budgets(),
            open_trash=self._open_trash,
            approvals=approvals,
            policies=PolicyApprovals([kit.notes], journal=kit.journal, clock=kit.clock),
            plans=ProposedPlans(SQLitePlans(kit.store.database), approvals),
        )

    async def _open_trash(self) -> TrashBin:
        return TrashBin(MemoryTrash(self.things))

    def of(self, person: str) -> Verbs:
        return LocalService(self.place, Caller.token(person))

    def elapse(self, seconds: float) -> None:
        self._kit.machine.advance(seconds)

    async def settings(self, **changed: Any) -> None:  # noqa: ANN401 - fields of a place
        self.place = replace(self.place, **changed)


class RemoteWorld(LocalWorld):
    """The client, against a server on a port of this machine; each person has a token with their name."""

    def __init__(self, fixture: DomainFixture, url: str, tokens: TokenStore) -> None:
        super().__init__(fixture)
        self._url, self._tokens = url, tokens

    def of(self, person: str) -> Verbs:
        return AsyncClient(self._url, self._tokens.create(person, ["admin"])[1])


@asynccontextmanager
async def local_world(folder: Path) -> AsyncIterator[LocalWorld]:
    """Open a world in this process."""
    async with open_fixture(folder, _Things()) as fixture:
        yield LocalWorld(fixture)


@asynccontextmanager
async def remote_world(folder: Path) -> AsyncIterator[RemoteWorld]:
    """Open a world behind a server: real sockets, the real guard and the real routes."""
    async with (
        open_fixture(folder, _Things()) as fixture,
        open_keys_async("memory://", clock=fixture.kit.machine, sweep=False) as keys,
    ):
        clock, metrics = fixture.kit.machine, fixture.kit.metrics
        with StateDatabase(folder / "state") as state:
            tokens = TokenStore(state, clock=clock)
            endpoint = Endpoint("127.0.0.1", 0, setting="http")
            world = RemoteWorld(fixture, endpoint.url, tokens)
            facts = process_facts(Coordinator(clock=clock, metrics=metrics, loops=[]), metrics, clock)
            unused: Any = None
            app = create_app(
                keys=unused,
                requests=unused,
                history=unused,
                workspaces=None,
                status_service=StatusService(clock=clock, keys=keys, backend="memory://", facts=facts),
                places=unused,
                hosts=AllowedHosts("127.0.0.1", endpoint.port, []),
                sessions=BrowserSessions(state, tokens, clock),
                failures=LoginFailures(clock, metrics),
                metrics=metrics,
                verbs=lambda caller: LocalService(world.place, caller),
                live=unused,
                demo=unused,
            )
            share_routes(app)
            stopping = asyncio.Event()
            serving = asyncio.create_task(Listener("http", app, endpoint).run(stopping))
            try:
                yield world
            finally:
                stopping.set()
                await serving
