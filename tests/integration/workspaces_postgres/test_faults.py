"""A PostgreSQL that is away, slow, silent or restarted: bounded waits, and no doubt where there need be none."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from lapse.core.clock import SystemClock
from lapse.core.identity import secret_bytes
from lapse.db.errors import DatabaseUnavailableError
from lapse.db.postgres.pool import Patience, Postgres
from lapse.workspaces.errors import (
    StoreClosedError,
    StoreMisfitError,
    WorkspaceOutcomeUnknownError,
    WorkspaceStoreUnavailableError,
)
from lapse.workspaces.model import DesiredBy, DesiredState, Ms, NewWorkspace, ObservedStatus, Operation, OpId
from lapse.workspaces.store.postgres import PostgresWorkspaceStore, open_postgres_store
from tests.conformance.workspaces.worlds import postgres_database
from tests.servers import Relay, postgres_server

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.servers import Server

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to" / "workspaces-on-postgresql-and-redis.md"
NOW = Ms(1_700_000_000_000)
NEW = NewWorkspace(name="notes", owner="ada", command=("serve",), port=8080)
SHORT = Patience(connect=2, queue=1, lock=0.5, statement=1, answer=2)
PATIENCE_SECONDS = 60


def through(relay: Relay, url: str) -> str:
    """The same database, by way of the relay."""
    return f"postgresql://lapse@127.0.0.1:{relay.port}/{url.rpartition('/')[2]}"


async def eventually(attempt: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Try until the store answers."""
    clock = SystemClock()
    end = clock.monotonic_ns() + PATIENCE_SECONDS * 1_000_000_000
    while True:
        try:
            await attempt()
        except WorkspaceStoreUnavailableError:
            assert clock.monotonic_ns() < end
            await clock.sleep(0.1)
        else:
            return


async def test_a_change_whose_answer_is_lost_is_of_unknown_outcome_and_may_be_made(
    database: str, shared_postgres: Server
) -> None:
    with Relay(shared_postgres.port) as relay:
        store = await open_postgres_store(through(relay, database), patience=SHORT, connections=1)
        try:
            made = await store.create(NEW, now=NOW)
            relay.silence(up=False, down=True)
            change = asyncio.create_task(store.connected(made.id, now=Ms(NOW + 1)))
            await _reaches_the_server(database, version=2)
            relay.cut()
            relay.speak()
            with pytest.raises(WorkspaceOutcomeUnknownError):
                await change
            await eventually(store.check)
            assert (await store.get(made.id)).version == 2
        finally:
            await store.close()


async def test_a_transaction_whose_commit_is_not_answered_is_of_unknown_outcome(
    database: str, shared_postgres: Server
) -> None:
    with Relay(shared_postgres.port) as relay:
        store = await open_postgres_store(through(relay, database), patience=SHORT, connections=1)
        try:
            made = await store.create(NEW, now=NOW)
            await store.observe({made.id: ObservedStatus.RUNNING}, now=NOW)
            candidate = (await store.get(made.id)).candidate

            def be_silent(cursor: object, places: object) -> None:
                relay.silence(up=False, down=True)

            change = asyncio.create_task(store.to_standby([candidate], now=NOW, also=be_silent))
            await _reaches_the_server(database, version=2)
            relay.cut()
            relay.speak()
            with pytest.raises(WorkspaceOutcomeUnknownError):
                await change
        finally:
            await store.close()


async def test_a_transaction_that_is_lost_before_its_commit_changed_nothing(
    database: str, shared_postgres: Server
) -> None:
    with Relay(shared_postgres.port) as relay:
        store = await open_postgres_store(through(relay, database), patience=SHORT, connections=1)
        try:
            made = await store.create(NEW, now=NOW)
            await store.observe({made.id: ObservedStatus.RUNNING}, now=NOW)
            before = await store.get(made.id)

            async def lose(cursor: Any, places: object) -> None:  # noqa: ANN401
                await asyncio.to_thread(relay.cut)
                await cursor.execute("SELECT 1")

            with pytest.raises(WorkspaceStoreUnavailableError):
                await store.to_standby([before.candidate], now=NOW, also=lose)
            await eventually(store.check)
            assert await store.get(made.id) == before
        finally:
            await store.close()


async def _reaches_the_server(url: str, *, version: int) -> None:
    clock = SystemClock()
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        for _ in range(PATIENCE_SECONDS * 100):
            ((found,),) = await (await connection.execute("SELECT version FROM workspaces")).fetchall()
            if found == version:
                return
            await clock.sleep(0.01)
    raise AssertionError("the change did not reach the server")


async def test_a_server_that_goes_silent_is_waited_for_no_longer_than_was_said(
    database: str, shared_postgres: Server
) -> None:
    with Relay(shared_postgres.port) as relay:
        store = await open_postgres_store(through(relay, database), patience=SHORT, connections=2)
        try:
            made = await store.create(NEW, now=NOW)
            relay.silence()
            async with asyncio.timeout(PATIENCE_SECONDS):
                with pytest.raises(WorkspaceOutcomeUnknownError):
                    await store.connected(made.id, now=NOW)
                with pytest.raises(WorkspaceStoreUnavailableError):
                    await store.get(made.id)
            relay.cut()
            relay.speak()
            await eventually(store.check)
        finally:
            await store.close()


async def test_a_row_that_somebody_holds_is_waited_for_and_then_nothing_was_changed(database: str) -> None:
    store = await open_postgres_store(database, patience=SHORT)
    try:
        made = await store.create(NEW, now=NOW)
        async with await psycopg.AsyncConnection.connect(database) as other:
            await other.execute("SELECT 1 FROM workspaces FOR UPDATE")
            with pytest.raises(WorkspaceStoreUnavailableError, match="holds a lock"):
                await store.connected(made.id, now=NOW)
            assert await store.get(made.id) == made
        assert (await store.connected(made.id, now=NOW)).version == 2
    finally:
        await store.close()


async def test_a_statement_that_takes_too_long_is_ended_by_the_server(database: str) -> None:
    postgres = Postgres(database, patience=SHORT)
    await postgres.open()
    try:
        with pytest.raises(DatabaseUnavailableError, match="did not finish in time"):
            await postgres.write("SELECT pg_sleep(%(seconds)s)", {"seconds": PATIENCE_SECONDS})
    finally:
        await postgres.close()


async def test_more_callers_than_connections_wait_their_turn(database: str) -> None:
    store = await open_postgres_store(database, connections=2)
    try:
        made = await store.create(NEW, now=NOW)
        await asyncio.gather(*(store.connected(made.id, now=NOW) for _ in range(50)))
        assert (await store.get(made.id)).version == 51
    finally:
        await store.close()


async def test_a_deadlock_is_repeated_and_nobody_notices(database: str) -> None:
    postgres = Postgres(database)
    await postgres.open()
    store = PostgresWorkspaceStore(postgres)
    both_hold_one = asyncio.Barrier(2)
    runs: list[str] = []

    def locking(first: str, second: str) -> Callable[[Any], Coroutine[Any, Any, None]]:
        async def work(cursor: Any) -> None:  # noqa: ANN401
            runs.append(first)
            sql = "UPDATE workspaces SET op_tries = op_tries + 1 WHERE name = %s"
            await cursor.execute(sql, (first,))
            if len(runs) <= 2:
                await both_hold_one.wait()
            await cursor.execute(sql, (second,))

        return work

    try:
        for name in "ab":
            await store.create(NewWorkspace(name=name, owner="ada", command=("serve",), port=1), now=NOW)
        await asyncio.gather(postgres.transact(locking("a", "b")), postgres.transact(locking("b", "a")))
        assert [one.op_tries for one in await store.list()] == [2, 2]
        assert len(runs) == 3
    finally:
        await store.close()


@pytest.mark.server("postgres", private=True)
async def test_a_server_that_is_killed_or_restarted_is_used_again_without_doubt() -> None:
    with postgres_server() as server, postgres_database(server) as url:
        store = await open_postgres_store(url, patience=SHORT, connections=2)
        try:
            made = await store.create(NEW, now=NOW)
            await asyncio.to_thread(server.kill)
            with pytest.raises(WorkspaceStoreUnavailableError):
                await store.connected(made.id, now=NOW)
            await asyncio.to_thread(server.start)
            # An unknown outcome would be another error, and fail this.
            await eventually(lambda: store.connected(made.id, now=NOW))
            assert (await store.get(made.id)).version == 2
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            await eventually(lambda: store.connected(made.id, now=NOW))
            assert (await store.get(made.id)).version == 3
        finally:
            await store.close()


async def test_a_read_only_server_says_so(database: str) -> None:
    store = await open_postgres_store(f"{database}?options=-cdefault_transaction_read_only%3Don")
    try:
        with pytest.raises(WorkspaceStoreUnavailableError, match="read-only"):
            await store.create(NEW, now=NOW)
    finally:
        await store.close()


async def test_a_user_without_rights_is_told_what_to_grant(database: str) -> None:
    stranger = f"stranger_{secret_bytes(5).hex()}"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {stranger} LOGIN")
        try:
            with pytest.raises(StoreMisfitError, match="grant"):
                await open_postgres_store(database.replace("lapse@", f"{stranger}@"))
        finally:
            connection.execute(f"DROP ROLE {stranger}")


async def test_the_rights_that_the_how_to_names_are_enough(database: str) -> None:
    app = f"app_{secret_bytes(5).hex()}"
    grants = [f"{grant} TO {app}" for grant in re.findall(r"^(GRANT .+) TO app;$", HOW_TO.read_text(), re.MULTILINE)]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {app} LOGIN")
        for grant in grants:
            connection.execute(grant.encode())
        try:
            store = await open_postgres_store(database.replace("lapse@", f"{app}@"))
            made = await store.create(NEW, now=NOW)
            await store.set_desired(made.id, DesiredState.PENDING, DesiredBy.USER, now=NOW)
            await store.mark_deleted(made.id, now=NOW)
            assert await store.claim(made.id, Operation.DELETING, OpId("mine"), now=NOW)
            assert await store.forget(made.id, OpId("mine"))
            await store.close()
        finally:
            connection.execute(f"DROP OWNED BY {app}")
            connection.execute(f"DROP ROLE {app}")
    assert grants


async def test_a_closed_store_says_so(database: str) -> None:
    store = await open_postgres_store(database)
    made = await store.create(NEW, now=NOW)
    await store.close()
    await store.close()
    with pytest.raises(StoreClosedError):
        await store.get(made.id)
    with pytest.raises(StoreClosedError):
        await store.set_desired(made.id, DesiredState.RUNNING, DesiredBy.USER, now=NOW)


async def test_a_cancelled_call_gives_its_connection_back(database: str) -> None:
    store = await open_postgres_store(database, connections=1)
    try:
        made = await store.create(NEW, now=NOW)
        async with await psycopg.AsyncConnection.connect(database) as other:
            await other.execute("SELECT 1 FROM workspaces FOR UPDATE")
            waiting = asyncio.create_task(store.connected(made.id, now=NOW))
            await SystemClock().sleep(0.2)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert (await store.get(made.id)).version in {1, 2}
        await store.check()
    finally:
        await store.close()
