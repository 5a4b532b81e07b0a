"""Holds and extensions that the engine keeps on PostgreSQL; those of two state folders are apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.app.record import ProcessRecord
from lapse.core.clock import VirtualClock
from lapse.db.postgres.pool import Postgres
from lapse.domains import object_kinds
from lapse.engine.journal.postgres import PostgresJournal
from lapse.engine.safety.holds import Hold
from lapse.engine.safety.postgres import PostgresHolds
from lapse.engine.safety.sqlite import SQLiteHolds
from lapse.objects.embedded import open_embedded
from lapse.settings import Settings
from tests.conformance.holds.hold_store_cases import CASES, LEGAL, placed
from tests.conformance.workspaces.worlds import postgres_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.servers import Server

pytestmark = pytest.mark.server("postgres")


@pytest.fixture
async def database(shared_postgres: Server) -> AsyncIterator[Postgres]:
    with postgres_database(shared_postgres) as url:
        found = Postgres(url)
        await found.open()
        yield found
        await found.close()


@pytest.mark.parametrize("name", CASES)
async def test_the_engine_keeps_holds_on_postgresql(name: str, database: Postgres) -> None:
    await CASES[name](PostgresHolds(PostgresJournal(database, store="folder-1")))


async def test_a_thing_of_another_state_folder_is_another_thing(database: Postgres) -> None:
    one, two = (PostgresHolds(PostgresJournal(database, store=name)) for name in ("folder-1", "folder-2"))
    await one.hold(placed(Hold("audit", None)))
    assert await two.held("scratch", ["u-1"]) == {}
    shared = [PostgresHolds(PostgresJournal(database, store=name, shared=["scratch"])) for name in ("a", "b")]
    await shared[0].hold(placed(Hold("for all", None)))
    assert await shared[1].held("scratch", ["u-1"]) == {"u-1": Hold("for all", None)}


async def test_a_folder_that_joins_a_database_brings_its_holds(database: Postgres, tmp_path: Path) -> None:
    clock = VirtualClock()
    store = open_embedded(tmp_path / "objects.db", kinds=object_kinds(), clock=clock)
    try:
        here = ProcessRecord.in_folder(store)
        await here.holds.hold(placed(LEGAL))
        assert await here.has_rows(), "a command must not go on as if there was nothing"
        settings = Settings(state_dir=tmp_path, database_url="postgresql://lapse@127.0.0.1/this")
        there = await ProcessRecord.open(settings, store, database, joins=True)
        assert await there.holds.held("scratch", ["u-1"]) == {"u-1": LEGAL}
        assert isinstance(here.holds, SQLiteHolds)
        assert here.holds.is_empty()
    finally:
        await store.close()
