"""Errors of databases, sorted by what they mean for the caller.

Each error carries ``problem``, a clause that reads well after "it cannot be used:". Domains turn these into errors of
their own that name what is stored; the driver's error is the ``__cause__``.
"""

from __future__ import annotations

from lapse.core.errors import LapseError


class DatabaseError(LapseError):
    """The database failed: {problem}."""

    def __init__(self, problem: str = "") -> None:
        """Keep the clause for the caller that words the final message."""
        self.problem = problem
        super().__init__(problem=problem)


class DatabaseUnavailableError(DatabaseError):
    """The database cannot be used now: {problem}. Nothing was changed."""


class DatabaseValueError(DatabaseError):
    """The database does not take a value: {problem}. Nothing was changed."""


class DatabaseMisfitError(DatabaseError):
    """The database does not fit: {problem}."""


class DatabaseOutdatedError(DatabaseMisfitError):
    """The tables of the database are of an older version: {problem}."""


class DatabaseClosedError(DatabaseError):
    """The database is closed."""


class CommitUnknownError(DatabaseError):
    """The database did not say whether the commit is durable: {problem}."""
