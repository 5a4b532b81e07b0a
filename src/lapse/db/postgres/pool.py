"""A pool of PostgreSQL connections (psycopg): bounded waiting, repeated transactions, and errors that say what to do.

Every wait has an end: for a connection, for a lock and for a statement on the server, and, should the server or the
network go silent, for its answer here. After the last one the connection is cut, because asking the server to stop
would wait on the same network.

Failures. `DatabaseUnavailableError`: nothing was changed. `CommitUnknownError`: the connection was lost between a
change and its answer, so it is durable or not. A transaction that the server undid because of others (a deadlock, a
serialization failure) is repeated a few times. A connection that the server has closed meanwhile, as at its restart, is
noticed before it is used: otherwise the first change after a restart would be of unknown outcome. The server's own
texts are not passed on, as they may quote values: they are in the ``__cause__``. Except where no connection came about,
and so no value was sent: there the driver gives no code, and its text is all there is.

Not guaranteed: that a call that is cancelled has or has not changed something.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from lapse.db.errors import (
    CommitUnknownError,
    DatabaseClosedError,
    DatabaseError,
    DatabaseMisfitError,
    DatabaseOutdatedError,
    DatabaseUnavailableError,
    DatabaseValueError,
)
from lapse.db.postgres.migrations import REVISIONS
from lapse.db.postgres.url import PostgresURL
from lapse.db.statements import load_statements

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

T = TypeVar("T")
Row = tuple[Any, ...]
_SQL: Final = load_statements("lapse.db.postgres", "pool.sql")
_REPEATS: Final = 5
_RECONNECT_SECONDS: Final = 10.0
"""How long the pool tries by itself. Its pauses double, so a longer time would let it sleep for minutes after an
outage; a later caller makes it try again at once."""

MAKE_TABLES: Final = "run: lapse db init"
REPEATABLE: Final = frozenset({"40001", "40P01"})
"""The whole transaction was undone, and would succeed another time."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, in seconds."""

    connect: float = 5.0
    """For one connection to come about."""
    queue: float = 5.0
    """For a connection of the pool to be free."""
    lock: float = 5.0
    """For a lock that somebody else holds."""
    statement: float = 15.0
    """For a statement, counted by the server."""
    answer: float = 20.0
    """For an answer, counted here: longer than the server's own limit, so that a slow statement is the server's to end
    and the outcome is known."""


DEFAULT_PATIENCE: Final = Patience()


class Postgres:
    """An open database; belongs to one event loop."""

    def __init__(
        self, url: str, *, patience: Patience = DEFAULT_PATIENCE, connections: int = 8, name: str = "lapse"
    ) -> None:
        """Connect to nothing yet; raises `PostgresURLError`."""
        self.url = PostgresURL.parse(url)
        self._patience = patience
        self._connect: Mapping[str, Any] = {
            "autocommit": True,
            "application_name": name,
            "connect_timeout": max(2, round(patience.connect)),  # libpq takes 1 for 2
            "keepalives_idle": 10,
            "tcp_user_timeout": round(patience.answer * 1000),
        }
        self._pool = AsyncConnectionPool(
            self.url.conninfo,
            kwargs=dict(self._connect),
            min_size=1,
            max_size=connections,
            open=False,
            configure=self._configure,
            check=_check_open,
            timeout=patience.queue,
            reconnect_timeout=_RECONNECT_SECONDS,
            name=name,
        )

    async def open(self) -> None:
        """Connect, and look whether the tables fit; raises `DatabaseError`, which says what to do."""
        # By itself first: the pool would only say that no connection came about, and not why.
        try:
            connection = await AsyncConnection.connect(self.url.conninfo, **self._connect)
        except psycopg.Error as error:
            raise explain_unreachable(error, self.url) from error
        try:
            async with connection:
                await self._configure(connection)
                await self._check_tables(connection)
        except psycopg.Error as error:
            raise explain(error, self.url) from error
        await self._pool.open()

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        await self._pool.close()

    async def read(self, sql: str, values: Mapping[str, Any]) -> list[Row]:
        """Run a statement that only looks; return its rows."""
        async with self._cursor(committing=False) as cursor:
            return await run(cursor, sql, values)

    async def write(self, sql: str, values: Mapping[str, Any]) -> list[Row]:
        """Run one statement as a transaction of its own, in one round trip; return its rows."""

        async def once() -> list[Row]:
            async with self._cursor(committing=True) as cursor:
                return await run(cursor, sql, values)

        return await self._repeatedly(once)

    async def transact(self, work: Callable[[AsyncCursor[Row]], Awaitable[T]]) -> T:
        """Run several statements as one transaction, which an error undoes. May run ``work`` more than once."""

        async def once() -> T:
            async with self._cursor(committing=False) as cursor:
                await cursor.execute("BEGIN")
                try:
                    answer = await work(cursor)
                except BaseException:
                    with suppress(psycopg.Error):
                        await cursor.execute("ROLLBACK")
                    raise
                await self._commit(cursor)
                return answer

        return await self._repeatedly(once)

    async def now_ns(self) -> int:
        """Return the server's time, as Unix nanoseconds, to the microsecond."""
        ((micros,),) = await self.read(_SQL["now"], {})
        return int(micros) * 1_000

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _commit(self, cursor: AsyncCursor[Row]) -> None:
        try:
            await cursor.execute("COMMIT")
        except psycopg.Error as error:
            if error.sqlstate in REPEATABLE:
                raise
            raise explain(error, self.url, committing=True) from error

    async def _repeatedly(self, once: Callable[[], Awaitable[T]]) -> T:
        for _ in range(_REPEATS):
            with suppress(_UndoneError):
                return await once()
        try:
            return await once()
        except _UndoneError as error:
            cause = cast("psycopg.Error", error.__cause__)
            raise explain(cause, self.url) from cause

    @asynccontextmanager
    async def _cursor(self, *, committing: bool) -> AsyncIterator[AsyncCursor[Row]]:
        """Lend a cursor whose connection is cut when the answer takes too long."""
        sent = False
        try:
            async with self._pool.connection() as connection, connection.cursor() as cursor:
                sent = True
                timer = asyncio.get_running_loop().call_later(self._patience.answer, _cut, connection)
                try:
                    yield cursor
                finally:
                    timer.cancel()
        except (PoolTimeout, PoolClosed) as error:
            raise explain(error, self.url) from error
        except psycopg.Error as error:
            if error.sqlstate in REPEATABLE:
                raise _UndoneError from error
            raise explain(error, self.url, committing=committing and sent) from error

    async def _configure(self, connection: AsyncConnection[Any]) -> None:
        # By statements and not by the connection's options, which poolers such as PgBouncer refuse; written here, as
        # they are settings of a session, made from numbers.
        limits = {
            "statement_timeout": self._patience.statement,
            "lock_timeout": self._patience.lock,
            "idle_in_transaction_session_timeout": self._patience.answer,
        }
        chosen = "SELECT " + ", ".join(
            f"set_config('{name}', '{round(1000 * s)}', false)" for name, s in limits.items()
        )
        await connection.execute(chosen)

    async def _check_tables(self, connection: AsyncConnection[Any]) -> None:
        rows = await (await connection.execute(_SQL["version"])).fetchall()
        found, needed = rows[0][0] if rows else "none", REVISIONS[-1]
        if found == needed:
            return
        if found not in (*REVISIONS, "none"):
            problem = f"its tables are of a newer version of Lapse ({found}, this one knows {needed}); upgrade Lapse"
            raise DatabaseMisfitError(f"{self.url}: {problem}")
        problem = f"its tables are of an older version of Lapse ({found}, this one needs {needed}); {MAKE_TABLES}"
        raise DatabaseOutdatedError(f"{self.url}: {problem}")


class _UndoneError(Exception):
    """The server undid the transaction because of others; the cause says why."""


async def run(cursor: AsyncCursor[Row], sql: str, values: Mapping[str, Any]) -> list[Row]:
    """Run a statement; return its rows, none for one that returns nothing."""
    await cursor.execute(sql, values)
    return await cursor.fetchall() if cursor.description is not None else []


async def _check_open(connection: AsyncConnection[Any]) -> None:
    """Raise if the connection is closed: one system call, unless the server has said something while nobody asked.

    That is nearly always its farewell; a round trip tells.
    """
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        await AsyncConnectionPool.check_connection(connection)


def _cut(connection: AsyncConnection[Any]) -> None:
    """Let the waiting caller find the connection closed."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as ours:
        ours.shutdown(socket.SHUT_RDWR)


_MISFITS: Final = {
    "42P01": f"the tables of Lapse are not there; {MAKE_TABLES}",
    "42703": f"the tables are of another version of Lapse; {MAKE_TABLES}",
    "42501": "this user may not use the tables of Lapse; grant it SELECT, INSERT, UPDATE and DELETE on them",
    "3F000": "there is no schema to make tables in; set search_path, or create one",
}
_PROBLEMS: Final = {
    "25006": "it is read-only, perhaps a replica; name the primary",
    "40001": "other clients changed the same rows at the same time, again and again",
    "40P01": "other clients changed the same rows at the same time, again and again",
    "53100": "the server's disk is full",
    "53200": "the server is out of memory",
    "53300": "the server has no room for more connections (max_connections)",
    "55P03": "another client holds a lock for too long",
    "57014": "the server did not finish in time (statement_timeout)",
    "57P01": "the server is shutting down",
    "57P02": "the server has crashed and is starting again",
    "57P03": "the server is starting or shutting down",
}
_BAD_VALUE: Final = "22"
"""How the codes of data exceptions begin."""
_MOST_WORDS: Final = 400
_UNKNOWN: Final = frozenset({"08007", "40003"})


def explain_unreachable(error: psycopg.Error, url: PostgresURL) -> DatabaseError:
    """Say why no connection came about, in the driver's words: these name hosts, users and files, never a password."""
    words = " ".join(str(error).split()).removeprefix("connection failed: ")
    shown = words if len(words) <= _MOST_WORDS else f"{words[:_MOST_WORDS]}..."
    return DatabaseUnavailableError(f"{url}: it cannot be reached ({shown})")


def explain(error: BaseException, url: PostgresURL, *, committing: bool = False) -> DatabaseError:
    """Say what it means; ``committing``: whether a change may be durable when no answer came."""
    match error:
        case PoolTimeout():
            problem = "no connection could be made in time; it cannot be reached, or all connections are busy"
            return DatabaseUnavailableError(f"{url}: {problem}")
        case PoolClosed():
            return DatabaseClosedError()
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    if state in _UNKNOWN or (state is None and committing):
        return CommitUnknownError(f"{url}: the connection was lost before the answer came")
    if state in _MISFITS:
        return DatabaseMisfitError(f"{url}: {_MISFITS[state]}")
    if state is None:
        return DatabaseUnavailableError(f"{url}: the connection was lost")
    kind = DatabaseValueError if state.startswith(_BAD_VALUE) else DatabaseUnavailableError
    return kind(f"{url}: {_PROBLEMS.get(state, f'the server answered with error {state}')}")
