"""The whole contract on a real PostgreSQL server, and what can go wrong only there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.engine.journal.port import AuditReason, RowPosition, audit_row
from tests.conformance.journal.broken import FollowsById
from tests.conformance.journal.cases import CASES
from tests.conformance.journal.registry import follow, keeper, names
from tests.conformance.journal.worlds import postgres_world
from tests.conformance.workspaces.worlds import postgres_database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Server


@pytest.fixture(scope="module")
def database(shared_postgres: Server) -> Iterator[str]:
    with postgres_database(shared_postgres) as url:
        yield url


@pytest.mark.parametrize("name", CASES)
async def test_the_postgres_journal_keeps_the_contract(name: str, database: str) -> None:
    async with postgres_world(database) as world:
        await CASES[name](world)


async def test_a_journal_that_follows_by_ids_is_caught(database: str) -> None:
    async with postgres_world(database, wrap=FollowsById) as world:
        with pytest.raises(AssertionError):
            await CASES["a_row_that_is_committed_late_is_not_missed"](world)


async def test_a_transaction_that_runs_keeps_followers_back_and_nobody_else(database: str) -> None:
    async with postgres_world(database) as world:
        async with world.uncommitted(keeper(0)):
            await world.journal.append(keeper(1))
            meanwhile, _ = await follow(world.journal)
            newest = await names(world.journal)
        after, _ = await follow(world.journal)

    assert (meanwhile, newest, sorted(after)) == ([], ["keeper/1"], ["keeper/0", "keeper/1"])


async def test_nothing_is_missed_in_a_database_that_was_restored_on_another_server(database: str) -> None:
    import psycopg  # `make test` has no driver

    async with postgres_world(database) as world:
        await world.journal.append(keeper(0), keeper(1), keeper(2))
        first, *_ = reversed(await world.journal.entries())
        far = 2**60  # a number that this server gives in no time
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
            await connection.execute("UPDATE journal SET written_by = %s::text::xid8", (str(far),))
        place = RowPosition(first.time_ns, first.id, far)
        restored = await world.another()
        await restored.append(keeper(3))

        assert await names(restored, after=place) == ["keeper/1", "keeper/2", "keeper/3"]


async def test_rows_that_were_there_before_the_order_was_kept_come_first(database: str) -> None:
    import psycopg  # `make test` has no driver

    async with postgres_world(database) as world:
        await world.journal.append(keeper(0), keeper(1))
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
            await connection.execute("UPDATE journal SET written_by = '0'")
        await world.journal.append(keeper(2))

        assert (await follow(world.journal))[0] == ["keeper/0", "keeper/1", "keeper/2"]


async def test_rows_of_the_audit_are_about_the_store_of_their_things(database: str) -> None:
    from lapse.engine.journal.postgres import PostgresJournal

    def row(domain: str, address: str) -> object:
        return audit_row(AuditReason.HOLD_PLACED, address=address, actor="ann", time_ns=1, domain=domain)

    async with postgres_world(database) as world:
        one, other = (
            PostgresJournal(world.journal.database, store=store, shared=["workspaces"]) for store in ("one", "other")
        )
        await one.append(row("workspaces", "workspace/lab"), row("requests", "vcr/default/x"), row("", "token/1"))  # type: ignore[arg-type]

        assert sorted(await names(one)) == ["token/1", "vcr/default/x", "workspace/lab"]
        assert await names(other) == ["workspace/lab"]


async def test_followers_use_their_index(database: str) -> None:
    async with postgres_world(database) as world:
        await world.journal.append(*map(keeper, range(2_000)))
        steps: list[str] = []
        pool = world.journal.database
        read = pool.read

        async def explained(sql: str, values: dict[str, object]) -> list[object]:
            await pool.write("ANALYZE journal", {})
            steps.extend(str(row[0]) for row in await read(f"EXPLAIN {sql}", values))
            return []

        pool.read = explained
        await world.journal.entries(after=RowPosition(0, 0, 5), limit=10)
        del pool.read

    assert "Index Scan using journal_as_committed" in "\n".join(steps)
    assert not any("Sort" in step for step in steps)
