"""The store behind a ``dynamodb://`` URL, and its table; see the package for what it promises.

The table is made on request only: ``lapse keys init URL``. It has on-demand billing, so there is no capacity to plan,
and the native TTL on `items.EXPIRES_S`. An item of its own, the marker, records the number of buckets: with another
number every record would seem to be gone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lapse.core.duration import Duration
from lapse.db.urls import Option, finite_duration, whole_number
from lapse.keys.backends.background import run_blocking
from lapse.keys.backends.base import NetworkBackend
from lapse.keys.backends.dynamodb.calls import INIT_COMMAND, RESOLUTION_SECONDS, Calls
from lapse.keys.backends.dynamodb.failures import FailureKind
from lapse.keys.backends.dynamodb.items import BUCKETS as BUCKETS_ATTRIBUTE
from lapse.keys.backends.dynamodb.items import EXPIRES_S, MARKER, PARTITION, SORT, Attributes, RequestFactory
from lapse.keys.backends.dynamodb.links import TableSettings
from lapse.keys.backends.dynamodb.space import DynamoDBSpace
from lapse.keys.backends.layout import BUCKETS, CACHE, Prefix, partition_keys
from lapse.keys.errors import BackendMisfitError, BackendUnavailableError, KeysURLError
from lapse.keys.port import NS_PER_SECOND, Capabilities

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lapse.core.clock import Clock
    from lapse.db.urls import StoreURL

_KEYS: Final = [
    {"AttributeName": PARTITION, "KeyType": "HASH"},
    {"AttributeName": SORT, "KeyType": "RANGE"},
]
_TYPES: Final = [
    {"AttributeName": PARTITION, "AttributeType": "B"},
    {"AttributeName": SORT, "AttributeType": "B"},
]
_READY_SECONDS: Final = 120
_POLL_SECONDS: Final = 0.5
_GOING_ON: Final = frozenset({"ENABLED", "ENABLING"})


def check_marker(calls: Calls, item: Attributes | None) -> None:
    """Raise `BackendMisfitError` unless the marker says that the table was made for this number of buckets."""
    settings = calls.settings
    if item is None or BUCKETS_ATTRIBUTE not in item:
        problem = f"the table {settings.table} was not made for keys; {INIT_COMMAND}"
        raise BackendMisfitError(backend=settings.name, problem=problem)
    recorded = int(item[BUCKETS_ATTRIBUTE]["N"])
    if recorded != settings.buckets:
        problem = f"it was made with buckets={recorded} and is opened with buckets={settings.buckets}; use the former"
        raise BackendMisfitError(backend=settings.name, problem=problem)


async def make_table(calls: Calls, clock: Clock) -> str:
    """Make what is missing, leave what is there, and say what was done in one sentence."""
    settings = calls.settings
    made = await _create(calls)
    await _wait_until_ready(calls, clock)
    await _enable_ttl(calls)
    marker = {**MARKER, BUCKETS_ATTRIBUTE: {"N": str(settings.buckets)}}
    condition = {"ConditionExpression": f"attribute_not_exists({PARTITION})"}
    if not await calls.write("put_item", lambda _: {"TableName": settings.table, "Item": marker, **condition}):
        check_marker(calls, (await calls.probe()).get("Item"))
    what = f"the table {settings.table} in {settings.region}"
    return (
        f"{what} is {'made, with on-demand billing' if made else 'there'}; "
        f"expired items are removed by its TTL attribute {EXPIRES_S}, and buckets={settings.buckets} is recorded in it"
    )


async def _create(calls: Calls) -> bool:
    table = calls.settings.table
    if await calls.ask("describe_table", {"TableName": table}, FailureKind.NO_TABLE) is not None:
        return False
    request = {
        "TableName": table,
        "KeySchema": _KEYS,
        "AttributeDefinitions": _TYPES,
        "BillingMode": "PAY_PER_REQUEST",
    }
    return await calls.ask("create_table", request, FailureKind.EXISTS) is not None


async def _wait_until_ready(calls: Calls, clock: Clock) -> None:
    settings = calls.settings
    give_up_ns = clock.monotonic_ns() + _READY_SECONDS * NS_PER_SECOND
    while True:
        answer = await calls.ask("describe_table", {"TableName": settings.table}, FailureKind.NO_TABLE)
        table: dict[str, Any] = {} if answer is None else answer["Table"]
        if table.get("TableStatus") in {"ACTIVE", "UPDATING"}:
            break
        if clock.monotonic_ns() > give_up_ns:
            problem = f"its table is not ready after {_READY_SECONDS} s; run the same command again"
            raise BackendUnavailableError(backend=settings.name, problem=problem)
        await clock.sleep(_POLL_SECONDS)
    types = {entry["AttributeName"]: entry["AttributeType"] for entry in table["AttributeDefinitions"]}
    if table["KeySchema"] != _KEYS or (types[PARTITION], types[SORT]) != ("B", "B"):
        problem = (
            f"the table {settings.table} is there with another key schema; expected a partition key {PARTITION} and a "
            f"sort key {SORT}, both binary. Name another table"
        )
        raise BackendMisfitError(backend=settings.name, problem=problem)


async def _enable_ttl(calls: Calls) -> None:
    settings = calls.settings
    name = {"TableName": settings.table}
    wanted = {"AttributeName": EXPIRES_S, "Enabled": True}
    for _ in range(2):
        answer = (await calls.ask("describe_time_to_live", name))["TimeToLiveDescription"]
        if answer["TimeToLiveStatus"] in _GOING_ON:
            if answer["AttributeName"] == EXPIRES_S:
                return
            problem = f"the TTL of its table is on the attribute {answer['AttributeName']}; expected {EXPIRES_S}"
            raise BackendMisfitError(backend=settings.name, problem=problem)
        # Refused while it is being changed, by another who makes the same table or by hand.
        request = {**name, "TimeToLiveSpecification": wanted}
        if await calls.ask("update_time_to_live", request, FailureKind.MISFIT, FailureKind.EXISTS) is not None:
            return
    problem = "the TTL of its table is about to change, which may take an hour; run the same command again then"
    raise BackendUnavailableError(backend=settings.name, problem=problem)


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
