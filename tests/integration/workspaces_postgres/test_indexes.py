"""What questions and accesses cost on PostgreSQL: the first use their index, the second touch none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from lapse.core.clock import SystemClock
from lapse.workspaces.model import Ms, WorkspaceId
from lapse.workspaces.store.postgres import open_postgres_store
from lapse.workspaces.store.sql import load_sql
from tests.conformance.workspaces.worlds import postgres_database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Server

SQL = load_sql("postgres.sql")
MANY = 100_000
DUE = 1_000
NOW = 1_700_000_000_000
STATEMENTS = {
    "standby_candidates": "workspaces_to_standby",
    "archive_candidates": "workspaces_to_archive",
    "pending_work": "workspaces_with_work",
    "list": "workspaces_by_name",
    "list_of_owner": "workspaces_by_owner",
    "by_name": "workspaces_by_name",
    "get": "workspaces_pkey",
}
VALUES = {
    "now": NOW,
    "limit": DUE,
    "after_check": 0,
    "after_id": "",
    "after": "",
    "owner": "owner-7",
    "name": "w-7",
    "id": "7",
}
# Half run, half are in standby; one in a hundred of each is to be looked at, and one in a hundred of all has work.
FILL = """
INSERT INTO workspaces (
    id, name, owner, command, port, desired_state, desired_by, version, observed_status, status_changed_at, operation,
    op_tries, standby_ttl_seconds, archive_ttl_seconds, last_access_at, check_after, created_at
)
SELECT lpad(to_hex(n), 8, '0') || '-0000-4000-8000-000000000000', 'w-' || n, 'owner-' || n % 500, '{serve}', 8080,
    CASE WHEN n % 100 = 99 THEN 'PENDING' WHEN n % 2 = 0 THEN 'RUNNING' ELSE 'STANDBY' END, 'user', 1,
    CASE WHEN n % 2 = 0 THEN 'RUNNING' ELSE 'STANDBY' END, 1690000000000, 'NONE', 0, 300, 86400, 1690000000000,
    1700000000000 + CASE WHEN n % 100 IN (0, 1) THEN 0 ELSE n END, 1690000000000
FROM generate_series(1, 100000) AS n
"""


@pytest.fixture(scope="module")
def filled(shared_postgres: Server) -> Iterator[str]:
    with postgres_database(shared_postgres) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(FILL)
            connection.execute("VACUUM ANALYZE workspaces")
        yield url


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize(("statement", "index"), STATEMENTS.items())
def test_a_question_is_answered_by_its_index_in_order(filled: str, statement: str, index: str, mode: str) -> None:
    with psycopg.connect(filled) as connection:
        connection.execute(f"SET plan_cache_mode = {mode}")
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {SQL[statement]}"
        ((answer,),) = connection.execute(explain, VALUES, prepare=True).fetchall()
    steps = list(nodes(answer[0]["Plan"]))

    assert [step["Index Name"] for step in steps if "Index Name" in step] == [index]
    # The few of one owner may be sorted: with so few rows that is as good as walking through them in order.
    dear = {"Seq Scan"} if statement == "list_of_owner" else {"Seq Scan", "Sort", "Incremental Sort"}
    assert not {step["Node Type"] for step in steps} & dear
    # As many pages as rows, and a few of the index: not the thousands that the table has.
    pages = steps[0]["Shared Hit Blocks"] + steps[0]["Shared Read Blocks"]
    assert pages <= 2 * max(1, steps[0]["Actual Rows"]) + 20


async def test_candidates_are_exactly_those_whose_time_has_come(filled: str) -> None:
    store = await open_postgres_store(filled)
    try:
        found = await store.standby_candidates(Ms(NOW), limit=1000)
    finally:
        await store.close()

    assert len(found) == MANY // 100
    assert {one.check_after for one in found} == {NOW}


async def test_accesses_are_heap_only_updates_and_touch_no_index(filled: str) -> None:
    store = await open_postgres_store(filled)
    ids = [WorkspaceId(f"{number:08x}-0000-4000-8000-000000000000") for number in range(5, MANY, 100)]
    async with await psycopg.AsyncConnection.connect(filled, autocommit=True) as connection:
        before = await _updates(connection, 0)
        sizes = await _index_sizes(connection)
        try:
            for turn in range(3):
                await store.flush_access({one: Ms(NOW + turn) for one in ids})
        finally:
            await store.close()
        after = await _updates(connection, before[0] + 3 * len(ids))
        assert await _index_sizes(connection) == sizes

    assert after[0] - before[0] == 3 * len(ids)
    assert after[1] - before[1] == 3 * len(ids), "an access made index entries"


async def _updates(connection: psycopg.AsyncConnection[Any], expected: int) -> tuple[int, int]:
    """Updates so far, and how many of them were heap-only; the server counts a moment late."""
    clock, found = SystemClock(), (0, 0)
    for _ in range(300):
        await connection.execute("SELECT pg_stat_clear_snapshot()")
        sql = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'workspaces'"
        ((updates, hot),) = await (await connection.execute(sql)).fetchall()
        found = (updates, hot)
        if updates >= expected:
            break
        await clock.sleep(0.1)
    return found


async def _index_sizes(connection: psycopg.AsyncConnection[Any]) -> list[Any]:
    sizes = "SELECT indexrelid::regclass::text, pg_relation_size(indexrelid) FROM pg_index"
    sql = f"{sizes} WHERE indrelid = 'workspaces'::regclass ORDER BY 1"
    return await (await connection.execute(sql)).fetchall()


def test_no_index_names_what_is_written_often(filled: str) -> None:
    with psycopg.connect(filled) as connection:
        definitions = [
            row[0] for row in connection.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'workspaces'")
        ]
        ((options,),) = connection.execute("SELECT reloptions FROM pg_class WHERE relname = 'workspaces'").fetchall()

    assert len(definitions) == 9
    assert [text for text in definitions if "last_access_at" in text or "observed_at" in text] == []
    assert options == ["fillfactor=90"]
