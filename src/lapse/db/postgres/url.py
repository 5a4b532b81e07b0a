"""PostgreSQL URLs: ``postgresql://[user[:password]@]host[:port]/database[?option=value]``.

As libpq reads it, options such as ``sslmode`` and ``sslrootcert`` included. A password never leaves this module except
to the driver: `str` shows host, port and database.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import psycopg
from psycopg.conninfo import conninfo_to_dict

from lapse.core.errors import UsageError

_SCHEMES = ("postgresql://", "postgres://")


class PostgresURLError(UsageError, ValueError):
    """The PostgreSQL URL cannot be used: {problem}. Expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE."""


@dataclass(frozen=True, slots=True)
class PostgresURL:
    """A URL that the driver can read."""

    conninfo: str = field(repr=False)
    shown: str

    @classmethod
    def parse(cls, url: str) -> PostgresURL:
        """Read a URL; raises `PostgresURLError`, which shows nothing of it."""
        if not url.startswith(_SCHEMES):
            raise PostgresURLError(problem="it does not begin with postgresql://")
        try:
            parts = conninfo_to_dict(url)
        except (psycopg.Error, UnicodeError):
            # The driver's words quote the URL, and so the password.
            problem = "it cannot be read; write odd characters such as / ? # @ % in a password as %2F %3F %23 %40 %25"
            raise PostgresURLError(problem=problem) from None
        host, port = parts.get("host") or "localhost", parts.get("port") or "5432"
        return cls(url, f"{host}:{port}/{parts.get('dbname') or parts.get('user') or ''}")

    def __str__(self) -> str:
        """Print host, port and database."""
        return self.shown
