"""The cost of workspaces: a tick of the TTL manager beside the founding document's algorithm, a flush, the proxy.

``python -m bench.workspaces [--quick] [--only PART ...]`` prints one line of JSON with the figures and whether the
claims hold, which its exit status says too, and writes ``docs/benchmarks-workspaces.md``. Ticks and flushes are on a
real PostgreSQL and a real Redis, each contender in a process of its own.

- *tick*: so many workspaces run, a thousand of them are due and nobody is connected to those; somebody is connected to
  each of the others, whose time is not over. Ours is the whole of it: query, activity, change, journal. The document's
  algorithm asks for all rows and then Redis twice for each; it is measured at the smaller size and scaled.
- *flush*: ten thousand access times, against the same statement on a copy of the table without the indexes by deadline.
  CPU is that of the server's process for the connection, WAL what the server says.
- *proxy*: beside configurable-http-proxy and nginx; see `bench.proxy`.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import psycopg
import redis
import redis.asyncio

from bench import proxy
from bench.contest import Contender, contenders, median, require_linux, resident_bytes, step, this_machine
from bench.domain import ROOT, options_of, publish
from bench.workspaces_page import Flush, Results, Ticks, claims_of, write
from lapse.core.clock import SystemClock
from lapse.db.postgres.migration import migrate
from lapse.engine.journal.postgres import PostgresJournal
from lapse.engine.running.metrics import Metrics
from lapse.workspaces.activity.redis import RedisActivity
from lapse.workspaces.store.postgres import open_postgres_store
from lapse.workspaces.store.sql import load_sql
from lapse.workspaces.ttl_manager import ttl_sweeps
from tests.servers import postgres_server, redis_server

if TYPE_CHECKING:
    from collections.abc import Sequence

PARTS: Final = ("tick", "flush", "proxy")
_TTL: Final = 300
_MB: Final = 2**20
_FILL: Final = """
INSERT INTO workspaces (
    id, name, owner, command, port, desired_state, desired_by, version, observed_status, observed_at, status_changed_at,
    operation, op_tries, standby_ttl_seconds, archive_ttl_seconds, last_access_at, check_after, created_at
)
SELECT
    md5(number::text)::uuid::text, 'w' || number, 'owner' || number %% 1000, '{python,-m,notebook}', 8080, 'RUNNING',
    'user', 1, 'RUNNING', %(then)s, %(then)s, 'NONE', 0, %(ttl)s, 86400,
    CASE WHEN number <= %(due)s THEN %(then)s ELSE %(now)s END,
    CASE WHEN number <= %(due)s THEN %(then)s ELSE %(later)s END,
    %(then)s
FROM generate_series(%(first)s::int, %(last)s::int) AS number
"""
# By index: a look at all rows would leave the caches of the server, and so the next tick, in another state.
_AGAIN: Final = """
UPDATE workspaces SET desired_state = 'RUNNING', desired_by = 'user'
WHERE name = ANY(ARRAY(SELECT 'w' || number FROM generate_series(1, %s::int) AS number)) AND deleted_at IS NULL
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    sizes: tuple[int, int] = (100_000, 1_000_000)
    due: int = 1_000
    rounds: int = 15
    seed_rounds: int = 1
    flushed: int = 10_000
    flushes: int = 12
    proxy: proxy.Plan = field(default_factory=proxy.Plan)
    parts: Sequence[str] = PARTS


QUICK: Final = Plan(
    sizes=(5_000, 20_000), due=200, rounds=3, seed_rounds=1, flushed=1_000, flushes=4, proxy=proxy.QUICK
)


# --- rows ------------------------------------------------------------------------------------------------------------


def fill(database: str, cache: str, *, first: int, last: int, due: int) -> None:
    """Add workspaces by number; the first ``due`` of all are due, and somebody is connected to each of the others."""
    now = SystemClock().wall_ns() // 1_000_000
    values = {"now": now, "then": now - 3_600_000, "later": now + 86_400_000, "ttl": _TTL, "due": due}
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(_FILL, {**values, "first": first, "last": last})
        connection.execute("VACUUM ANALYZE workspaces")
        connection.execute("CHECKPOINT")
        os.sync()  # what is still to be written of all this would be in the way of the ticks' commits
        rows = connection.execute(
            "SELECT id FROM workspaces WHERE name = ANY(SELECT 'w' || n FROM generate_series(%s::int, %s::int) n)",
            (max(first, due + 1), last),
        ).fetchall()
    with redis.Redis.from_url(cache) as raw:
        raw.set("activity:epoch", 1)
        for start in range(0, len(rows), 10_000):
            raw.mset({f"ws_conn:{row[0]}": 1 for row in rows[start : start + 10_000]})


def again(database: str, due: int) -> None:
    """Let those that were put to standby be due once more, and leave nothing behind that the next tick would meet."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(_AGAIN, (due,))
        connection.execute("VACUUM (INDEX_CLEANUP ON) workspaces")


# --- ticks -----------------------------------------------------------------------------------------------------------


class Ours:
    """The TTL manager as ``lapse ttl-manager`` runs it, in its process."""

    def __init__(self, database: str, cache: str) -> None:
        """Take where everything is."""
        self._database, self._cache = database, cache

    def round(self, rounds: int, due: int) -> tuple[list[float], float]:
        """Tick so often; return the seconds of each, and the megabytes of the process at its peak."""
        return asyncio.run(self._round(rounds, due))

    async def _round(self, rounds: int, due: int) -> tuple[list[float], float]:
        clock = SystemClock()
        store = await open_postgres_store(self._database, connections=2)
        activity = RedisActivity.at(self._cache, lease_seconds=30)
        journal = PostgresJournal(store.database)
        sweeps = ttl_sweeps(store, activity, journal, clock=clock, metrics=Metrics("bench"))
        took = []
        for _ in range(rounds + 1):  # the first one warms up
            start = time.perf_counter()
            reports = [await sweep.run(proceed=lambda: True) for sweep in sweeps]
            took.append(time.perf_counter() - start)
            if reports[0].ended != due:
                raise RuntimeError(f"{due} were due, and this happened: {reports}")
            await asyncio.to_thread(again, self._database, due)
        await activity.close()
        await store.close()
        return took[1:], resident_bytes("VmHWM") / _MB


class Seed:
    """The founding document's algorithm, in its process: one query for all, two reads of Redis for each."""

    def __init__(self, database: str, cache: str) -> None:
        """Take where everything is."""
        self._database, self._cache = database, cache

    def round(self, rounds: int, due: int) -> tuple[list[float], float]:
        """Do the same as `Ours.round`, without a warm-up."""
        return asyncio.run(self._round(rounds, due))

    async def _round(self, rounds: int, due: int) -> tuple[list[float], float]:
        took = []
        for _ in range(rounds):
            start = time.perf_counter()
            stopped = await self._check_standby()
            took.append(time.perf_counter() - start)
            if stopped != due:
                raise RuntimeError(f"{due} were due, {stopped} were stopped")
            await asyncio.to_thread(again, self._database, due)
        return took, resident_bytes("VmHWM") / _MB

    async def _check_standby(self) -> int:
        stopped = 0
        cache = redis.asyncio.Redis.from_url(self._cache)
        async with cache, await psycopg.AsyncConnection.connect(self._database, autocommit=True) as connection:
            found = await connection.execute(
                "SELECT * FROM workspaces "
                "WHERE observed_status = 'RUNNING' AND operation = 'NONE' AND deleted_at IS NULL"
            )
            for row in await found.fetchall():
                count = await cache.get(f"ws_conn:{row[0]}")
                if count and int(count) > 0:
                    continue
                if await cache.exists(f"idle_timer:{row[0]}"):
                    continue
                await connection.execute(
                    "UPDATE workspaces SET desired_state = 'STANDBY' WHERE id = %s AND desired_state = 'RUNNING'",
                    (row[0],),
                )
                stopped += 1
        return stopped


def tick(factory: str, arguments: Sequence[str], *, workspaces: int, rounds: int, due: int) -> Ticks:
    """Let a contender tick in a process of its own."""
    with contenders([Contender(factory, f"bench.workspaces:{factory}", *arguments)]) as (one,):
        took, peak = cast("tuple[list[float], float]", one.ask("round", rounds, due))
    return Ticks(workspaces, median(took), (min(took), max(took)), peak)


def ticks(plan: Plan, database: str, cache: str) -> tuple[list[Ticks], Ticks]:
    """Measure ours at both sizes, and the document's algorithm at the smaller one."""
    small, large = plan.sizes
    with step(f"{small} workspaces"):
        fill(database, cache, first=1, last=small, due=plan.due)
    with step("ours"):
        ours = [tick("Ours", [database, cache], workspaces=small, rounds=plan.rounds, due=plan.due)]
    with step("the document's"):
        seed = tick("Seed", [database, cache], workspaces=small, rounds=plan.seed_rounds, due=plan.due)
    with step(f"{large} workspaces"):
        fill(database, cache, first=small + 1, last=large, due=plan.due)
    with step("ours"):
        ours.append(tick("Ours", [database, cache], workspaces=large, rounds=plan.rounds, due=plan.due))
    return ours, seed


# --- flushes ---------------------------------------------------------------------------------------------------------


def flushes(plan: Plan, database: str) -> dict[str, list[Flush]]:
    """Flush in turn to the table and to a copy of it without the indexes by deadline."""
    found: dict[str, list[Flush]] = {"workspaces": [], "plain": []}
    with psycopg.connect(database, autocommit=True) as connection:
        with step("a copy without indexes by deadline"):
            connection.execute("CREATE TABLE plain (LIKE workspaces INCLUDING ALL) WITH (fillfactor = 90)")
            names = connection.execute("SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'plain'")
            for name, definition in names.fetchall():
                if "check_after" in definition:
                    connection.execute(f'DROP INDEX "{name}"'.encode())
            connection.execute("INSERT INTO plain SELECT * FROM workspaces")
            connection.execute("VACUUM ANALYZE plain")
        ids = [row[0] for row in connection.execute("SELECT id FROM workspaces ORDER BY md5(id)").fetchall()]
        with step("flushes"):
            for number in range(plan.flushes + 2):  # the first two warm up
                part = sorted(ids[number * plan.flushed % len(ids) :][: plan.flushed])
                for table in ("workspaces", "plain") if number % 2 else ("plain", "workspaces"):
                    cost = _flush(connection, table, part)
                    if number > 1:
                        found[table].append(cost)
    return found


def _flush(connection: psycopg.Connection[Any], table: str, ids: Sequence[str]) -> Flush:
    sql = load_sql("postgres.sql")["flush_access"].replace("UPDATE workspaces", f"UPDATE {table}").encode()
    connection.execute("CHECKPOINT")
    connection.execute("SELECT pg_stat_force_next_flush()")
    pid = connection.info.backend_pid
    now = SystemClock().wall_ns() // 1_000_000
    cpu, wal, stats = _cpu_ns(pid), _wal(connection), _updates(connection, table)
    for start in range(0, len(ids), 1000):
        batch = ids[start : start + 1000]
        connection.execute(sql, {"id": batch, "time": [now] * len(batch)})
    spent = _cpu_ns(pid) - cpu
    written = _wal(connection) - wal
    connection.execute("SELECT pg_stat_force_next_flush()")
    updates, hot = (after - before for after, before in zip(_updates(connection, table), stats, strict=True))
    return Flush(spent / 1e6, written / 1024, hot / updates if updates else 0.0)


def _cpu_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text("utf-8").split()[0])


def _wal(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')").fetchone()
    return 0 if row is None else int(row[0])


def _updates(connection: psycopg.Connection[Any], table: str) -> tuple[int, int]:
    row = connection.execute(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = %s", (table,)
    ).fetchone()
    return (0, 0) if row is None else (row[0], row[1])


# --- all -------------------------------------------------------------------------------------------------------------


def on_servers(plan: Plan, results: Results) -> Results:
    """Measure what needs PostgreSQL and Redis."""
    with (
        postgres_server(config={"max_wal_size": "4GB", "shared_buffers": "2GB", "autovacuum": "off"}) as postgres,
        redis_server() as cache,
    ):
        migrate(postgres.url)
        versions = {**results.versions, "PostgreSQL": postgres.version, "Redis": cache.version}
        results = replace(results, versions=versions)
        if "tick" in plan.parts:
            ours, seed = ticks(plan, postgres.url, cache.url)
            results = replace(results, ours=ours, seed=seed)
        else:
            with step(f"{plan.sizes[1]} workspaces"):
                fill(postgres.url, cache.url, first=1, last=plan.sizes[1], due=plan.due)
        if "flush" in plan.parts:
            found = flushes(plan, postgres.url)
            results = replace(results, with_deadlines=found["workspaces"], without=found["plain"])
    return results


def run(plan: Plan) -> Results:
    """Measure everything."""
    results = Results(due=plan.due, flushed=plan.flushed, idle=plan.proxy.idle)
    if "proxy" in plan.parts:
        proxies, missing = proxy.run(plan.proxy)
        results = replace(results, proxies=proxies, missing=missing, versions=proxy.versions(proxies))
    if {"tick", "flush"} & set(plan.parts):
        results = on_servers(plan, results)
    return results


def main() -> None:
    """Measure, print, write."""
    options = options_of("workspaces", __doc__, PARTS).parse_args()
    require_linux()
    (ROOT / "build").mkdir(exist_ok=True)
    plan = replace(QUICK if options.quick else Plan(), parts=options.only or PARTS)
    machine, start = this_machine(ROOT / "build"), time.perf_counter()
    results = run(plan)
    publish(
        "workspaces",
        options,
        figures=results.figures(),
        claims=claims_of(results),
        page="benchmarks-workspaces.md",
        write=lambda command: write(results, machine, command=command, seconds=time.perf_counter() - start),
    )


if __name__ == "__main__":
    main()
