"""PostgreSQL URLs: ``postgresql://[user[:password]@]host[:port]/database[?option=value]``.

As libpq reads it, options such as ``sslmode`` and ``sslrootcert`` included. A password never leaves this module except
to the driver: `str` shows host, port and database, and a URL whose password could be taken for one of these is refused.
The driver is imported when there is a URL to read, so that it stays optional.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lapse.core.errors import UsageError
from lapse.core.text import HIDDEN
from lapse.db.urls import ODD_CHARACTERS, Option, missing_driver, take_apart

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCHEMES: Final = ("postgresql", "postgres")
_PORT: Final = 5432
_HOST: Final = r"(?:\[[0-9A-Fa-f:.]+(?:%25\w+)?\]|[^\[\]:,]*)(?::[0-9]{1,5})?"
_HOSTS: Final = re.compile(rf"{_HOST}(?:,{_HOST})*")


class PostgresURLError(UsageError, ValueError):
    """The PostgreSQL URL cannot be used: {problem}. Expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE."""


@dataclass(frozen=True, slots=True)
class PostgresURL:
    """A URL that the driver can read."""

    conninfo: str = field(repr=False)
    shown: str

    @classmethod
    def parse(cls, url: str) -> PostgresURL:
        """Read a URL; raises `PostgresURLError`, which shows nothing of it but the names of its options."""
        _check_shape(url)
        parts = take_apart(url, schemes=_SCHEMES, options_of=_options_of, refusal=PostgresURLError)
        if not _HOSTS.fullmatch(parts.location):
            problem = "its host and port cannot be read; behind a user and password comes an @, and a port is a number"
            raise PostgresURLError(problem=problem)
        return cls(url, _place(url))

    def __str__(self) -> str:
        """Print host, port and database."""
        return self.shown


def is_postgres(url: str) -> bool:
    """Whether a text begins as a URL of PostgreSQL does."""
    return url.partition("://")[0] in _SCHEMES


def show_url(url: str) -> str:
    """Return the URL for people: scheme, host, port and database, or the scheme alone where it cannot be read."""
    try:
        return f"{_SCHEMES[0]}://{PostgresURL.parse(url)}"
    except PostgresURLError:
        return f"{_SCHEMES[0]}://{HIDDEN}"


def _check_shape(url: str) -> None:
    """Refuse what libpq and we could take apart in two ways."""
    scheme, separator, rest = url.partition("://")
    if scheme not in _SCHEMES or not separator:
        told = "; it is a connection string of libpq (host=... dbname=...), not a URL" if "=" in scheme else ""
        raise PostgresURLError(problem=f"it does not begin with postgresql://{told}")
    if not url.isprintable():
        raise PostgresURLError(problem="it has a character that cannot be printed; write a line break as %0A")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    # libpq ends a password at the first @, others at the last; behind the host none is needed.
    if authority.count("@") > 1 or "@" in rest[len(authority) :]:
        where = "two @ before its host" if authority.count("@") > 1 else "an @ after its host"
        raise PostgresURLError(problem=f"it has {where}; {ODD_CHARACTERS}")


def _options_of(_: str) -> Mapping[str, Option]:
    """Return what the installed libpq knows; it takes ``ssl=true`` as well, for those who come from JDBC."""
    try:
        from psycopg import pq
    except ModuleNotFoundError as error:
        raise PostgresURLError(problem=missing_driver(error, "postgres")) from error
    names = [one.keyword.decode() for one in pq.Conninfo.get_defaults()]
    return {name: Option(str, None, "a text") for name in (*names, "ssl")}


def _place(url: str) -> str:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        parts = conninfo_to_dict(url)
    except (psycopg.Error, UnicodeError):
        # The driver's words quote the URL, and so the password.
        problem = f"libpq cannot read it; {ODD_CHARACTERS}, and % itself as %25"
        raise PostgresURLError(problem=problem) from None
    hosts = str(parts.get("host") or "localhost").split(",")
    ports = str(parts.get("port") or "").split(",")
    ports *= len(hosts) if len(ports) == 1 else 1  # one is for all of them
    pairs = zip((f"[{host}]" if ":" in host else host for host in hosts), ports, strict=False)
    return f"{','.join(f'{host}:{port or _PORT}' for host, port in pairs)}/{parts.get('dbname') or ''}"
