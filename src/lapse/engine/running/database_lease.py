"""Leases in a database: who leads those that act on what is in it. On SQLite and on PostgreSQL.

All who act on one store find its lease in the store itself, whatever else they are configured with: there is one
election for each store. A lease is a row: taken, renewed and given back by one statement that compares. The fencing
number stands in that row, and grows with every owner.

Who counts the time. On PostgreSQL the server does. In a file the time since boot does, which all processes of the
machine share and nobody can set; a row of another boot is free.

Not guaranteed: on PostgreSQL, one leader at a time while somebody sets the server's clock ahead; in a file, that
processes of several machines, or in time namespaces of their own, see the same time. A call that is cancelled may still
reach the server, so that a lease which nobody knows to be ours stands until its TTL is over; we ourselves may take it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from lapse.core.errors import LapseError
from lapse.core.identity import owner_token
from lapse.db.statements import load_statements

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import apsw

    from lapse.core.clock import Clock
    from lapse.db.postgres.pool import Postgres
    from lapse.db.sqlite.database import Database
    from lapse.engine.running.election import ElectionLease

_SQL: Final = load_statements("lapse.engine.running", "lease.sql")
SCHEMA_SCRIPTS: Final[Sequence[str]] = (_SQL["sqlite_schema"],)
"""For whoever opens the SQLite database that has the lease."""
LEADER: Final = "lapse"
"""The lease of those that let things lapse; one name in every database."""
LEADER_SECONDS: Final = 15
"""How long another process waits to lead after this one has died without a word."""
_NS: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000


class NotAcquiredError(LapseError):
    """The lease has not been acquired."""


class DatabaseLease(ABC):
    """A `lapse.engine.running.election.ElectionLease`, without its database."""

    def __init__(self, *, clock: Clock, name: str = LEADER, ttl_seconds: int = LEADER_SECONDS) -> None:
        """Touch nothing yet; ``clock`` is the machine's own."""
        self._clock, self._name, self._owner = clock, name, owner_token()
        self._fence: int | None = None
        self._is_taken = False
        self.ttl_seconds = ttl_seconds
        self.deadline_ns = 0

    @property
    def fence(self) -> int:
        """See `ElectionLease`."""
        if self._fence is None:
            raise NotAcquiredError
        return self._fence

    @property
    def lost(self) -> bool:
        """See `ElectionLease`."""
        return self._is_taken or self._clock.boottime_ns() >= self.deadline_ns

    async def acquire(self) -> bool:
        """See `ElectionLease`."""
        started_ns = self._clock.boottime_ns()
        # The first number is the time, so that it is greater than those of elections that were held elsewhere before.
        fence = await self._run("acquire", {"first": self._clock.wall_ns() // _NS_PER_MS})
        if fence is None:
            return False
        self._fence, self._is_taken = fence, False
        self.deadline_ns = started_ns + self.ttl_seconds * _NS
        return True

    async def renew(self) -> bool:
        """See `ElectionLease`."""
        started_ns = self._clock.boottime_ns()
        if await self._run("renew", {"fence": self.fence}) is None:
            self._is_taken = True
            return False
        self.deadline_ns = started_ns + self.ttl_seconds * _NS
        return True

    async def release(self) -> bool:
        """See `ElectionLease`."""
        if self.lost:
            return False
        released = await self._run("release", {"fence": self.fence}) is not None
        self._is_taken, self.deadline_ns = not released, self._clock.boottime_ns()
        return released

    @abstractmethod
    async def _run(self, statement: str, values: Mapping[str, Any]) -> int | None:
        """Run a statement; return the fencing number of the row that it changed, None if it changed none."""


class SQLiteLease(DatabaseLease):
    """See the module; ``database`` holds `SCHEMA_SCRIPTS`."""

    def __init__(self, database: Database, **options: Any) -> None:  # noqa: ANN401 - those of `DatabaseLease`
        """See `DatabaseLease`."""
        super().__init__(**options)
        self._database = database

    async def _run(self, statement: str, values: Mapping[str, Any]) -> int | None:
        everything = {
            "name": self._name,
            "owner": self._owner,
            "boot_id": self._clock.boot_id(),
            "now": self._clock.boottime_ns(),
            "ttl": self.ttl_seconds * _NS,
            **values,
        }

        def write(cursor: apsw.Cursor) -> int | None:
            rows = cursor.execute(_SQL[f"sqlite_{statement}"], everything).fetchall()
            return int(str(rows[0][0])) if rows else None

        return await self._database.write(write)


class PostgresLease(DatabaseLease):
    """See the module. ``database`` is best one of its own: a renewal must not wait for its turn behind a sweep."""

    def __init__(self, database: Postgres, **options: Any) -> None:  # noqa: ANN401 - those of `DatabaseLease`
        """See `DatabaseLease`."""
        super().__init__(**options)
        self._database = database
        self._calls: set[asyncio.Task[int | None]] = set()

    async def _run(self, statement: str, values: Mapping[str, Any]) -> int | None:
        call = asyncio.create_task(self._call(statement, values))
        self._calls.add(call)
        call.add_done_callback(self._forget)
        # Who gives up must not wait for the driver, which would ask a silent server to stop.
        return await asyncio.shield(call)

    async def _call(self, statement: str, values: Mapping[str, Any]) -> int | None:
        everything = {"name": self._name, "owner": self._owner, "ttl": self.ttl_seconds, **values}
        rows = await self._database.write(_SQL[f"postgres_{statement}"], everything)
        return int(rows[0][0]) if rows else None

    def _forget(self, call: asyncio.Task[int | None]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # read, as the one who asked may have gone


if TYPE_CHECKING:
    _conforms: tuple[type[ElectionLease], type[ElectionLease]] = (SQLiteLease, PostgresLease)
