"""Keyspace, tables and settings of a store on Cassandra: made on request, checked when a store is opened.

Repeatable: what is there stays as it is. Not guaranteed: that an existing keyspace or table has the replication or
the grace time that the URL asks for; those are the administrator's to alter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from cassandra import ConsistencyLevel, Unauthorized
from cassandra.query import SimpleStatement

from lapse.db.statements import load_statements
from lapse.keys.backends.cassandra.driver import ContactPoints, connect, explain
from lapse.keys.errors import BackendMisfitError, BackendUnavailableError, KeysURLError

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from lapse.db.urls import StoreURL

Replication = Mapping[str, int]
"""Number of copies by datacenter; ``replication_factor`` stands for every datacenter."""

CQL: Final = load_statements("lapse.keys.backends.cassandra", "statements.cql")
EVERYWHERE: Final = "replication_factor"

_TABLES: Final = ("lapse_keys", "lapse_keys_settings")
_KEYSPACE: Final = re.compile(r"/([A-Za-z][A-Za-z0-9_]{0,47})")
_COPIES: Final = re.compile(r"(?:(?P<datacenter>[A-Za-z0-9._-]+):)?(?P<number>[1-9][0-9]{0,2})")
_USUAL_COPIES: Final = 3


def keyspace_name(url: StoreURL) -> str:
    """Return the keyspace that a URL names."""
    match = _KEYSPACE.fullmatch(url.path)
    if match is None:
        problem = "its path must be a keyspace: a letter, then up to 47 letters, digits or underscores"
        raise KeysURLError(url=url, problem=problem)
    return match[1]


def parse_replication(text: str) -> Replication:
    """Read ``3`` or ``dc1:3,dc2:3``."""
    copies: dict[str, int] = {}
    parts = text.split(",")
    for part in parts:
        match = _COPIES.fullmatch(part)
        if match is None or (match["datacenter"] is None and len(parts) > 1):
            raise ValueError(text)
        copies[match["datacenter"] or EVERYWHERE] = int(match["number"])
    if len(copies) != len(parts):
        raise ValueError(text)
    return copies


def statement(name: str, keyspace: str) -> str:
    """Return a statement with its keyspace filled in."""
    return CQL[name].replace(":keyspace", f'"{keyspace}"')  # quoted, because CQL folds bare names to lower case


def check_buckets(shown: str, *, recorded: str | None, wanted: int) -> None:
    """Raise unless a store was made with this number of buckets."""
    if recorded is None:
        problem = f"its number of buckets is not recorded; run: lapse keys init {shown}"
        raise BackendMisfitError(backend=shown, problem=problem)
    if recorded != str(wanted):
        made = f"it was made with buckets={recorded} and is opened with buckets={wanted}"
        raise BackendMisfitError(
            backend=shown, problem=f"{made}; open it with ?buckets={recorded}, or use another keyspace"
        )


def create_schema(
    address: ContactPoints, *, keyspace: str, buckets: int, replication: Replication | None, gc_grace_seconds: int
) -> str:
    """Make what is missing and say what that was. Blocks."""
    session = connect(address)
    try:
        made = _create_keyspace(session, keyspace, replication) + _create_tables(session, keyspace, gc_grace_seconds)
        check_buckets(address.shown, recorded=_record_buckets(session, keyspace, buckets), wanted=buckets)
    except Unauthorized as error:
        problem = "the user may not make this schema; it needs CREATE on the keyspace, and on all keyspaces to make one"
        raise BackendUnavailableError(backend=address.shown, problem=problem) from error
    except Exception as error:
        raise explain(error, address.shown, writing=False) from error
    finally:
        session.cluster.shutdown()
    if not made:
        return f"nothing was missing in {address.shown}; it is used with buckets={buckets}"
    return f"made {' and '.join(made)} in {address.shown}, with buckets={buckets}"


def _create_keyspace(session: Session, keyspace: str, replication: Replication | None) -> list[str]:
    if keyspace in session.cluster.metadata.keyspaces:
        return []
    copies = replication or _usual_replication(session)
    options = {"class": "NetworkTopologyStrategy", **{name: str(number) for name, number in copies.items()}}
    session.execute(statement("create_keyspace", keyspace).replace(":replication", str(options)))
    told = ", ".join(
        f"{number} in {'every datacenter' if name == EVERYWHERE else name}" for name, number in copies.items()
    )
    return [f"the keyspace {keyspace} (copies: {told})"]


def _usual_replication(session: Session) -> Replication:
    """Return three copies, or as many as the smallest datacenter has servers."""
    servers = Counter(host.datacenter for host in session.cluster.metadata.all_hosts())
    return {EVERYWHERE: min(_USUAL_COPIES, *servers.values())}


def _create_tables(session: Session, keyspace: str, gc_grace_seconds: int) -> list[str]:
    session.cluster.refresh_keyspace_metadata(keyspace)
    existing = session.cluster.metadata.keyspaces[keyspace].tables
    missing = [table for table in _TABLES if table not in existing]
    if missing:
        session.execute(statement("create_table", keyspace).replace(":gc_grace", str(gc_grace_seconds)))
        session.execute(statement("create_settings", keyspace))
    return [f"the tables {', '.join(missing)}"] if missing else []


def _record_buckets(session: Session, keyspace: str, buckets: int) -> str:
    """Record the number unless one is recorded; return the one that is."""
    text = statement("record_buckets", keyspace).replace("?", "%s")  # the driver's form for what is not prepared
    record = SimpleStatement(
        text, consistency_level=ConsistencyLevel.QUORUM, serial_consistency_level=ConsistencyLevel.SERIAL
    )
    answer: tuple[Any, ...] = session.execute(record, (str(buckets),)).one()
    return str(buckets) if answer[0] else str(answer[-1])
