"""Keys on Redis or Valkey: ``redis://[user:password@]host[:port][/db]``, with TLS ``rediss://``.

A record is a plain string under ``namespace:{tag}:key`` with the server's own expiry; ``tag`` is the partition key in
hexadecimal, so that all keys of a partition share a slot of a cluster. Two sorted sets per partition, ``#names`` and
``#ends``, serve `scan` and shrink as records expire. There is no schema; only the number of buckets is recorded, under
``namespace:buckets``, when a store is opened for the first time.

Guarantees: every operation is one command or one Lua script, and one round trip; the server's clock decides, so a
client's clock does not matter. Not guaranteed: that an acknowledged write survives a failover, because replication is
asynchronous; that live keys stay where the server may evict them (``maxmemory-policy`` other than ``noeviction``);
anything about Redis Cluster, whose redirections this client does not follow.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio.connection import Connection, RedisSSLContext, SSLConnection

from lapse.core.duration import Duration
from lapse.keys.backends.redis.backend import RedisBackend
from lapse.keys.errors import KeysURLError
from lapse.keys.options import BUCKETS, CACHE, Option, existing_file, finite_duration, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lapse.core.clock import Clock
    from lapse.keys.backends.redis.connections import Wire
    from lapse.keys.url import KeysURL

__all__ = ["OPTIONS", "RedisBackend", "init_store", "open_backend"]

_PORT: Final = 6379
_MAX_PORT: Final = 65_535
_MAX_CONNECTIONS: Final = 10_000
_LOCATION: Final = re.compile(r"(\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]:,@\s]+))(:(?P<port>[0-9]{1,5}))?")
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


def _namespace(text: str) -> str:
    if not _NAMESPACE.fullmatch(text):
        raise ValueError(text)
    return text


_PEM: Final = "an existing file in PEM form"
OPTIONS: Final[Mapping[str, Option]] = {
    "buckets": BUCKETS,
    "namespace": Option(_namespace, "lapse", "1 to 64 letters, digits, dots, dashes or underscores"),
    "timeout": Option(finite_duration, Duration.of_seconds(5), "how long to wait for an answer, such as 5s"),
    "connect_timeout": Option(finite_duration, Duration.of_seconds(2), "how long to wait for a connection, such as 2s"),
    "connections": Option(whole_number(1, _MAX_CONNECTIONS), 32, f"a whole number from 1 to {_MAX_CONNECTIONS}"),
    "ca": Option(existing_file, None, _PEM),
    "cert": Option(existing_file, None, _PEM),
    "key": Option(existing_file, None, _PEM),
    **CACHE,
}


def open_backend(url: KeysURL, clock: Clock) -> RedisBackend:  # noqa: ARG001 - the server has a clock of its own
    """Prepare a store; no connection is made before the first use."""
    options = url.options
    return RedisBackend(
        _connector(url),
        name=str(url),
        namespace=options["namespace"],
        buckets=options["buckets"],
        connections=options["connections"],
        timeout=options["timeout"].seconds,
        connect_timeout=options["connect_timeout"].seconds,
    )


def init_store(url: KeysURL, clock: Clock) -> str:
    """Record the number of buckets, and say so; also say when the server is set up to lose live keys."""
    backend = open_backend(url, clock)
    try:
        backend.check()
        policy = backend.eviction_policy()
    finally:
        backend.close()
    said = f"redis needs no schema; {url} is used with buckets={url.options['buckets']}"
    if policy not in {None, "noeviction"}:
        said += f"; warning: its maxmemory-policy is {policy}, which removes live keys: set it to noeviction"
    return said


def _connector(url: KeysURL) -> Callable[[], Wire]:
    host, port = _host_and_port(url)
    if url.username is not None and url.password is None:
        raise KeysURLError(url=url, problem="it has a user name and no password; write user:password@")
    arguments: dict[str, Any] = {
        "host": host,
        "port": port,
        "db": _database(url),
        "username": url.username,
        "password": url.password,
        # Version 3 begins with a greeting, so a wrong password or port is found before anything is sent.
        "protocol": 3,
        # Time-outs are those of `Connections`, around the whole of an exchange; the driver's begin anew at each read.
        "socket_timeout": None,
        "socket_connect_timeout": url.options["connect_timeout"].seconds,
        "driver_info": None,  # its introduction is a command more that an access list would have to allow
    }
    tls = _tls(url)
    if tls is None:
        return partial(Connection, **arguments)

    def connect() -> Wire:
        connection = SSLConnection(**arguments)
        connection.ssl_context = tls  # one for all: reading the authorities' certificates takes milliseconds
        return connection

    return connect


def _host_and_port(url: KeysURL) -> tuple[str, int]:
    match = _LOCATION.fullmatch(url.location)
    port = int(match["port"] or _PORT) if match else 0
    if match is None or not 0 < port <= _MAX_PORT:
        raise KeysURLError(url=url, problem="it names no server; expected one host, as in redis://localhost:6379/0")
    return match["six"] or match["host"], port


def _database(url: KeysURL) -> int:
    text = url.path.removeprefix("/")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise KeysURLError(url=url, problem="its path is no database number; expected one, as in redis://host:6379/0")
    return int(text)


def _tls(url: KeysURL) -> RedisSSLContext | None:
    files = {name: url.options[name] for name in ("ca", "cert", "key")}
    if url.scheme != "rediss":
        given = [name for name, path in files.items() if path is not None]
        if given:
            raise KeysURLError(url=url, problem=f"the option {given[0]} is for TLS; write rediss://")
        return None
    if (files["cert"] is None) != (files["key"] is None):
        raise KeysURLError(url=url, problem="the options cert and key belong together; give both or none")
    texts = {name: None if path is None else str(path) for name, path in files.items()}
    tls = RedisSSLContext(
        cert_reqs="required",
        check_hostname=True,
        ca_certs=texts["ca"],
        certfile=texts["cert"],
        keyfile=texts["key"],
    )
    try:
        tls.get()
    except OSError as error:  # ssl.SSLError is one
        raise KeysURLError(url=url, problem="its ca, cert or key holds no PEM that fits") from error
    return tls
