"""What an error of PostgreSQL or its driver means, in words for people.

The server's own texts are not passed on, as they may quote values: they are in the ``__cause__``. Except where no
connection came about, and so no value was sent: there the driver gives no code, and its text is all there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout

from lapse.db.errors import (
    CommitUnknownError,
    DatabaseClosedError,
    DatabaseError,
    DatabaseMisfitError,
    DatabaseUnavailableError,
)

if TYPE_CHECKING:
    from lapse.db.postgres.url import PostgresURL

MAKE_TABLES: Final = "run: lapse db init"
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
_MOST_WORDS: Final = 400
_UNKNOWN: Final = frozenset({"08007", "40003"})
REPEATABLE: Final = frozenset({"40001", "40P01"})
"""The whole transaction was undone, and would succeed another time."""


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
    return DatabaseUnavailableError(f"{url}: {_PROBLEMS.get(state, f'the server answered with error {state}')}")
