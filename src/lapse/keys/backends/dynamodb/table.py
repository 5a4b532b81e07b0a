"""The table that keys need, made on request only: ``lapse keys init URL``.

It has on-demand billing, so there is no capacity to plan, and the native TTL on `items.EXPIRES_S`. An item of its own,
the marker, records the number of buckets: with another number every record would seem to be gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.keys.backends.dynamodb.calls import INIT_COMMAND, Calls
from lapse.keys.backends.dynamodb.failures import FailureKind
from lapse.keys.backends.dynamodb.items import BUCKETS, EXPIRES_S, MARKER, PARTITION, SORT, Attributes
from lapse.keys.errors import BackendMisfitError, BackendUnavailableError
from lapse.keys.expiry import NS_PER_SECOND

if TYPE_CHECKING:
    from lapse.core.clock import Clock

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
    if item is None or BUCKETS not in item:
        problem = f"the table {settings.table} was not made for keys; {INIT_COMMAND}"
        raise BackendMisfitError(backend=settings.name, problem=problem)
    recorded = int(item[BUCKETS]["N"])
    if recorded != settings.buckets:
        problem = f"it was made with buckets={recorded} and is opened with buckets={settings.buckets}; use the former"
        raise BackendMisfitError(backend=settings.name, problem=problem)


async def make_table(calls: Calls, clock: Clock) -> str:
    """Make what is missing, leave what is there, and say what was done in one sentence."""
    settings = calls.settings
    made = await _create(calls)
    await _wait_until_ready(calls, clock)
    await _enable_ttl(calls)
    marker = {**MARKER, BUCKETS: {"N": str(settings.buckets)}}
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
