"""The store behind a ``dynamodb://`` URL; see the package for what it promises."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lapse.core.duration import Duration
from lapse.db.urls import Option, finite_duration, whole_number
from lapse.keys.backends.background import run_blocking
from lapse.keys.backends.base import NetworkBackend
from lapse.keys.backends.dynamodb.calls import RESOLUTION_SECONDS, Calls
from lapse.keys.backends.dynamodb.items import BUCKETS as BUCKETS_ATTRIBUTE
from lapse.keys.backends.dynamodb.items import MARKER, RequestFactory
from lapse.keys.backends.dynamodb.links import TableSettings
from lapse.keys.backends.dynamodb.space import DynamoDBSpace
from lapse.keys.backends.dynamodb.table import check_marker, make_table
from lapse.keys.backends.layout import BUCKETS, CACHE, Prefix, partition_keys
from lapse.keys.errors import KeysURLError
from lapse.keys.expiry import NS_PER_SECOND
from lapse.keys.port import Capabilities

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lapse.core.clock import Clock
    from lapse.db.urls import StoreURL

_MOST_CONNECTIONS: Final = 1000
_MAX_SKEW_LIMIT_SECONDS: Final = 60
"""AWS refuses a signature whose clock is five minutes off; what is left of a bound that wide decides nothing."""
_REGION: Final = re.compile(r"[a-z]{2,}(?:-[a-z0-9]+)+")
_TABLE: Final = re.compile(r"/([A-Za-z0-9_.-]{3,255})/?")


def _skew(text: str) -> Duration:
    duration = finite_duration(text)
    if duration.seconds > _MAX_SKEW_LIMIT_SECONDS:
        raise ValueError(text)
    return duration


def _endpoint(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.port == 0:
        raise ValueError(text)
    if parts.username is not None or parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise ValueError(text)
    return f"{parts.scheme}://{parts.netloc}"


OPTIONS: Final[Mapping[str, Option]] = {
    "buckets": BUCKETS,
    "endpoint": Option(_endpoint, None, "the address of a local server, as in http://127.0.0.1:8000"),
    "timeout": Option(finite_duration, Duration.of_seconds(5), "how long a request may take in all, such as 5s"),
    "connect_timeout": Option(finite_duration, Duration.of_seconds(2), "how long a connection may take, such as 2s"),
    "connections": Option(whole_number(1, _MOST_CONNECTIONS), 64, f"a whole number from 1 to {_MOST_CONNECTIONS}"),
    "max_skew": Option(_skew, Duration.of_seconds(1), "a duration up to 60s, such as 1s"),
    **CACHE,
}


def open_backend(url: StoreURL, clock: Clock) -> DynamoDBBackend:
    """Prepare for the table that ``url`` names; nothing is sent yet."""
    return DynamoDBBackend(_settings(url), clock)


def init_store(url: StoreURL, clock: Clock) -> str:
    """Make the table that ``url`` names, or what it lacks; safe to repeat. Says what was made."""
    return run_blocking(_init(_settings(url), clock))


async def _init(settings: TableSettings, clock: Clock) -> str:
    backend = DynamoDBBackend(settings, clock)
    try:
        return await make_table(backend.calls, clock)
    finally:
        await backend.async_close()


def _settings(url: StoreURL) -> TableSettings:
    expected = "expected dynamodb://region/table, as in dynamodb://eu-west-1/lapse"
    if url.username is not None or url.password is not None:
        problem = "it holds credentials; they come from the usual AWS chain (environment, ~/.aws, a role)"
        raise KeysURLError(url=url, problem=problem)
    if not _REGION.fullmatch(url.location):
        raise KeysURLError(
            url=url, problem=f"it names no region; {expected}. A local server is named by endpoint=http://host:port"
        )
    table = _TABLE.fullmatch(url.path)
    if table is None:
        problem = f"it names no table (3 to 255 letters, digits, and . - _); {expected}"
        raise KeysURLError(url=url, problem=problem)
    options: Mapping[str, Any] = url.options
    return TableSettings(
        name=str(url),
        region=url.location,
        table=table[1],
        endpoint=options["endpoint"],
        buckets=options["buckets"],
        timeout=options["timeout"].seconds,
        connect_timeout=options["connect_timeout"].seconds,
        connections=options["connections"],
        max_skew_ns=options["max_skew"].nanoseconds,
    )


class DynamoDBBackend(NetworkBackend):
    """Implements `Backend`."""

    def __init__(self, settings: TableSettings, clock: Clock) -> None:
        """Prepare; the first request opens the connections of its loop."""
        max_skew = settings.max_skew_ns / NS_PER_SECOND
        self.capabilities = Capabilities(
            atomicity="one conditional request per operation, which takes an expired item for absent",
            clock=f"this machine's wall clock, at most {max_skew:g} s from the server's (refused beyond)",
            precision=f"to the millisecond by the stored expiry; two machines differ by {2 * max_skew:g} s at most, "
            "and by 2 s more before the server has answered a few times",
            cleanup="the server's TTL, hours to days after the expiry",
            scan="in byte order, one Query per bucket",
            multi_key="reads 100 keys a request, inserts one a request, 32 at once",
            shared=True,
            late_by_seconds=2 * (max_skew + RESOLUTION_SECONDS),
        )
        # Whole seconds by which any clock that is not refused may lag behind the server's.
        margin = -(-settings.max_skew_ns // NS_PER_SECOND) + RESOLUTION_SECONDS
        self._requests = RequestFactory(settings.table, margin_seconds=margin)
        self._clock = clock
        self.calls = Calls(settings, clock, self._requests.get(MARKER, BUCKETS_ATTRIBUTE))

    def async_space(self, prefix: Prefix, app_id: int) -> DynamoDBSpace:
        """See `Backend`."""
        partitions = partition_keys(prefix, app_id, self.calls.settings.buckets)
        return DynamoDBSpace(self.calls, self._requests, partitions, self._clock)

    async def async_check(self) -> None:
        """See `Backend`. One request."""
        check_marker(self.calls, (await self.calls.probe()).get("Item"))

    async def async_close(self) -> None:
        """See `Backend`."""
        await self.calls.close()
