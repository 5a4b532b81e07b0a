"""Proposed plans on PostgreSQL; those of two state folders are apart."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lapse.db.postgres.pool import Postgres
from lapse.engine.journal.postgres import PostgresJournal
from lapse.engine.plans.postgres import PostgresPlans
from tests.conformance.plans.plan_store_cases import CASES, DOCUMENT, NOW, row
from tests.conformance.workspaces.worlds import postgres_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.servers import Server

pytestmark = pytest.mark.server("postgres")


@pytest.fixture
async def database(shared_postgres: Server) -> AsyncIterator[Postgres]:
    with postgres_database(shared_postgres) as url:
        found = Postgres(url)
        await found.open()
        yield found
        await found.close()


def plans(database: Postgres, folder: str = "folder-1") -> PostgresPlans:
    return PostgresPlans(PostgresJournal(database, store=folder))


@pytest.mark.parametrize("name", CASES)
async def test_plans_are_kept_on_postgresql(name: str, database: Postgres) -> None:
    await CASES[name](plans(database))


async def test_plans_of_another_state_folder_are_not_seen_and_take_no_place(database: Postgres) -> None:
    one, two = plans(database), plans(database, "folder-2")
    assert await one.keep(row("one"), DOCUMENT, now=NOW, most=1)
    assert await two.document("one", NOW) is None
    assert await two.keep(row("one"), DOCUMENT, now=NOW, most=1)


async def test_of_two_who_keep_a_plan_at_the_same_moment_one_takes_the_last_place(database: Postgres) -> None:
    store = plans(database)
    kept = await asyncio.gather(*(store.keep(row(f"p{one}"), DOCUMENT, now=NOW, most=3) for one in range(8)))
    assert sorted(kept, key=str) == [None] * 5 + [True] * 3
    assert len(await store.plans(NOW)) == 3
