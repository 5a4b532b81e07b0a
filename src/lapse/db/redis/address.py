"""The address of a Redis server: ``redis://[user:password@]host[:port][/db]``, with TLS ``rediss://``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio.connection import Connection, RedisSSLContext, SSLConnection

from lapse.core.duration import Duration
from lapse.db.urls import Option, existing_file, finite_duration, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lapse.db.redis.connections import Wire
    from lapse.db.urls import Refusal, StoreURL

SCHEMES: Final = ("redis", "rediss")
_PORT: Final = 6379
_MAX_PORT: Final = 65_535
_MAX_CONNECTIONS: Final = 10_000
_LOCATION: Final = re.compile(r"(\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]:,@\s]+))(:(?P<port>[0-9]{1,5}))?")
_PEM: Final = "an existing file in PEM form"
OPTIONS: Final[Mapping[str, Option]] = {
    "timeout": Option(finite_duration, Duration.of_seconds(5), "how long to wait for an answer, such as 5s"),
    "connect_timeout": Option(finite_duration, Duration.of_seconds(2), "how long to wait for a connection, such as 2s"),
    "connections": Option(whole_number(1, _MAX_CONNECTIONS), 32, f"a whole number from 1 to {_MAX_CONNECTIONS}"),
    "ca": Option(existing_file, None, _PEM),
    "cert": Option(existing_file, None, _PEM),
    "key": Option(existing_file, None, _PEM),
}
"""What every URL of a server may say."""


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A server, and how much time and how many connections it is given. The times are seconds."""

    name: str
    """For error messages: the URL without credentials."""
    connector: Callable[[], Wire]
    connections: int
    timeout: float
    connect_timeout: float

    @classmethod
    def of(cls, url: StoreURL, refusal: Refusal) -> RedisAddress:
        """Read a URL that has at least `OPTIONS`; raises ``refusal`` for one that names no server."""
        options = url.options
        return cls(
            name=str(url),
            connector=_connector(url, refusal),
            connections=options["connections"],
            timeout=options["timeout"].seconds,
            connect_timeout=options["connect_timeout"].seconds,
        )


def _connector(url: StoreURL, refusal: Refusal) -> Callable[[], Wire]:
    host, port = _host_and_port(url, refusal)
    if url.username is not None and url.password is None:
        raise refusal(url=url, problem="it has a user name and no password; write user:password@")
    arguments: dict[str, Any] = {
        "host": host,
        "port": port,
        "db": _database(url, refusal),
        "username": url.username,
        "password": url.password,
        # Version 3 begins with a greeting, so a wrong password or port is found before anything is sent.
        "protocol": 3,
        # Time-outs are those of `Connections`, around the whole of an exchange; the driver's begin anew at each read.
        "socket_timeout": None,
        "socket_connect_timeout": url.options["connect_timeout"].seconds,
        "driver_info": None,  # its introduction is a command more that an access list would have to allow
    }
    tls = _tls(url, refusal)
    if tls is None:
        return partial(Connection, **arguments)

    def connect() -> Wire:
        connection = SSLConnection(**arguments)
        connection.ssl_context = tls  # one for all: reading the authorities' certificates takes milliseconds
        return connection

    return connect


def _host_and_port(url: StoreURL, refusal: Refusal) -> tuple[str, int]:
    match = _LOCATION.fullmatch(url.location)
    port = int(match["port"] or _PORT) if match else 0
    if match is None or not 0 < port <= _MAX_PORT:
        raise refusal(url=url, problem="it names no server; expected one host, as in redis://localhost:6379/0")
    return match["six"] or match["host"], port


def _database(url: StoreURL, refusal: Refusal) -> int:
    text = url.path.removeprefix("/")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise refusal(url=url, problem="its path is not a database number; expected one, as in redis://host:6379/0")
    return int(text)


def _tls(url: StoreURL, refusal: Refusal) -> RedisSSLContext | None:
    files = {name: url.options[name] for name in ("ca", "cert", "key")}
    if url.scheme != "rediss":
        given = [name for name, path in files.items() if path is not None]
        if given:
            raise refusal(url=url, problem=f"the option {given[0]} is for TLS; write rediss://")
        return None
    if (files["cert"] is None) != (files["key"] is None):
        raise refusal(url=url, problem="the options cert and key belong together; give both or none")
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
        raise refusal(url=url, problem="its ca, cert or key holds no PEM that fits") from error
    return tls
