"""Keys on Cassandra: ``cassandra://[user:password@]host[,host...][:port]/keyspace``. Also for ScyllaDB, untested there.

A record is a row of ``lapse_keys``: partition and key as in `lapse.keys.backends.layout`, the value, and the absolute
expiry. The tables are made on request only (`init_store`); ``lapse_keys_settings`` records the number of buckets.

Guarantees: every write is one lightweight transaction, every read is linearizable with them, and each operation is one
round trip, except for `touch` (a read and a write) and an insert over a record in the second after its expiry. The
clock of this machine decides about expiry; while it is further from the server's than ``max_skew`` nothing is decided.
Not guaranteed: that two machines whose clocks differ, each within ``max_skew``, see a key go at the same instant;
anything across datacenters with ``consistency=local``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from lapse.core.duration import Duration
from lapse.db.urls import Option, existing_file, finite_duration
from lapse.keys.backends.cassandra.backend import CassandraBackend
from lapse.keys.backends.cassandra.driver import ContactPoints
from lapse.keys.backends.cassandra.schema import Replication, create_schema, keyspace_name, parse_replication
from lapse.keys.backends.layout import BUCKETS, CACHE
from lapse.keys.errors import KeysURLError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lapse.core.clock import Clock
    from lapse.db.urls import StoreURL

__all__ = ["OPTIONS", "CassandraBackend", "init_store", "open_backend"]

_PORT: Final = 9042
_MAX_PORT: Final = 65_535
_MAX_SKEW_LIMIT_SECONDS: Final = 60
_HOST: Final = re.compile(r"\[[0-9A-Fa-f:.%]+\]|[^\[\]:,@/\s]+")
_LOCATION: Final = re.compile(rf"(?P<hosts>(?:{_HOST.pattern})(?:,(?:{_HOST.pattern}))*)(?::(?P<port>[0-9]{{1,5}}))?")
_DATACENTER: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_YES_OR_NO: Final = {"true": True, "false": False}
_SCOPES: Final = {"global": False, "local": True}


def _skew(text: str) -> Duration:
    duration = finite_duration(text)
    if duration.seconds > _MAX_SKEW_LIMIT_SECONDS:
        raise ValueError(text)
    return duration


def _grace(text: str) -> Duration:
    duration = Duration.parse(text)
    if duration.is_never or duration.seconds < 0 or duration.seconds % 1:
        raise ValueError(text)
    return duration


def _named(choices: Mapping[str, bool], text: str) -> bool:
    if text not in choices:
        raise ValueError(text)
    return choices[text]


def _datacenter(text: str) -> str:
    if not _DATACENTER.fullmatch(text):
        raise ValueError(text)
    return text


OPTIONS: Final[Mapping[str, Option]] = {
    "buckets": BUCKETS,
    **CACHE,
    "timeout": Option(finite_duration, Duration.of_seconds(10), "how long to wait for an answer, such as 10s"),
    "connect_timeout": Option(finite_duration, Duration.of_seconds(5), "how long to wait for a connection, such as 5s"),
    "consistency": Option(lambda text: _named(_SCOPES, text), False, "global, or local together with dc"),
    "dc": Option(_datacenter, None, "the name of the local datacenter"),
    "max_skew": Option(_skew, Duration.parse("500ms"), "a duration up to 60s, such as 500ms"),
    "ssl": Option(lambda text: _named(_YES_OR_NO, text), False, "true or false"),
    "ca": Option(existing_file, None, "an existing file in PEM form, together with ssl=true"),
    "replication": Option(parse_replication, None, "a number of copies, such as 3, or one per datacenter: dc1:3,dc2:3"),
    "gc_grace": Option(_grace, Duration.of_seconds(864_000), "whole seconds, such as 10d"),
}
"""``replication`` and ``gc_grace`` are used when the schema is made, and mean nothing afterwards."""


def open_backend(url: StoreURL, clock: Clock) -> CassandraBackend:
    """Prepare a store; no connection is made before the first use."""
    return CassandraBackend(
        _address(url),
        keyspace=keyspace_name(url),
        clock=clock,
        buckets=url.options["buckets"],
        max_skew=url.options["max_skew"].seconds,
    )


def init_store(url: StoreURL, clock: Clock) -> str:  # noqa: ARG001 - every backend's has this signature
    """Make what is missing of keyspace, tables and settings, and say what was made. Repeatable."""
    options = url.options
    replication: Replication | None = options["replication"]
    return create_schema(
        _address(url),
        keyspace=keyspace_name(url),
        buckets=options["buckets"],
        replication=replication,
        gc_grace_seconds=int(options["gc_grace"].seconds),
    )


def _address(url: StoreURL) -> ContactPoints:
    options = url.options
    match = _LOCATION.fullmatch(url.location)
    port = int(match["port"] or _PORT) if match else 0
    if match is None or not 0 < port <= _MAX_PORT:
        raise KeysURLError(
            url=url, problem="expected cassandra://host[,host...][:port]/keyspace, one port for all hosts"
        )
    if url.username is not None and url.password is None:
        raise KeysURLError(url=url, problem="it has a user name and no password; write user:password@")
    if options["consistency"] and options["dc"] is None:
        # Without a name the first host that answers would decide which datacenter is the local one.
        raise KeysURLError(url=url, problem="consistency=local needs the name of the datacenter: add dc=NAME")
    if options["ca"] is not None and not options["ssl"]:
        raise KeysURLError(url=url, problem="it has ca= without ssl=true")
    return ContactPoints(
        shown=str(url),
        hosts=[host.strip("[]") for host in match["hosts"].split(",")],
        port=port,
        username=url.username,
        password=url.password,
        local_datacenter=options["dc"],
        one_datacenter=options["consistency"],
        timeout_seconds=options["timeout"].seconds,
        connect_timeout_seconds=options["connect_timeout"].seconds,
        tls=options["ssl"],
        ca_file=str(options["ca"]) if options["ca"] else None,
    )
