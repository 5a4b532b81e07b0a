"""Records as items of a DynamoDB table, and the requests that read and change them. Pure: time is given.

| attribute | type | what |
|---|---|---|
| ``pk`` | binary, partition key | the 8 or 10 bytes of `lapse.keys.backends.layout` |
| ``sk`` | binary, sort key | the key's UTF-8 bytes as they are: 1024 are allowed there, so nothing is put before them |
| ``val`` | binary | the value's UTF-8 bytes; binary, so that nothing on the way can normalise them |
| ``expires_ms`` | number | Unix milliseconds: this decides, in every condition and on every read |
| ``expires_s`` | number | Unix seconds, rounded up and a margin later: when the server may remove the item |

The margin is what keeps the native TTL from being early: the server removes by its own clock, which may be ahead of
that of a reader by as much as ``max_skew`` allows.
"""

from __future__ import annotations

from typing import Any, Final

from lapse.keys.backends.layout import Prefix, partition_keys
from lapse.keys.port import NS_PER_MS, Item, expiry_ms, is_over

PARTITION: Final = "pk"
SORT: Final = "sk"
VALUE: Final = "val"
EXPIRES_MS: Final = "expires_ms"
EXPIRES_S: Final = "expires_s"
BUCKETS: Final = "buckets"

_LIVE: Final = "expires_ms > :now"
_ABSENT: Final = "attribute_not_exists(pk) OR expires_ms <= :now"
_SAME: Final = "expires_ms > :now AND val = :expected"

Attributes = dict[str, dict[str, Any]]
"""An item, a key or the values of an expression, as the protocol has them."""
Request = dict[str, Any]


def place(partition: bytes, key: bytes) -> Attributes:
    """Return the primary key of a record."""
    return {PARTITION: {"B": partition}, SORT: {"B": key}}


MARKER: Final = place(partition_keys(Prefix.NULL, 0)[0], b"lapse")
"""Where a table says that it is one of Lapse, and its number of buckets. It has no expiry; prefix 0 is nobody's."""


class RequestFactory:
    """Makes the requests for one table."""

    def __init__(self, table: str, *, margin_seconds: int) -> None:
        """Let the server remove an item ``margin_seconds`` after its expiry at the earliest."""
        self.table = table
        self._margin = margin_seconds

    # --- reading -----------------------------------------------------------------------------------------------------

    def get(self, where: Attributes, projection: str = "val, expires_ms") -> Request:
        """Read one item."""
        return {"TableName": self.table, "Key": where, "ConsistentRead": True, "ProjectionExpression": projection}

    def get_many(self, places: list[Attributes]) -> Request:
        """Read up to 100 items."""
        wanted = {"Keys": places, "ConsistentRead": True, "ProjectionExpression": "sk, val, expires_ms"}
        return {"RequestItems": {self.table: wanted}}

    def query(
        self, condition: str, values: Attributes, *, limit: int, after: Attributes | None, now_ns: int
    ) -> Request:
        """Read items of one partition in order, at most ``limit``; expired ones count, and are left out."""
        request: Request = {
            "TableName": self.table,
            "ConsistentRead": True,
            "KeyConditionExpression": condition,
            "FilterExpression": _LIVE,
            "ProjectionExpression": "sk, val, expires_ms",
            "ExpressionAttributeValues": {**values, ":now": _now(now_ns)},
            "Limit": limit,
        }
        if after is not None:
            request["ExclusiveStartKey"] = after
        return request

    # --- writing -----------------------------------------------------------------------------------------------------

    def put(self, where: Attributes, value: bytes, ttl_seconds: int, now_ns: int) -> Request:
        """Write whatever is there."""
        return {"TableName": self.table, "Item": {**where, VALUE: {"B": value}, **self._expiry(ttl_seconds, now_ns)}}

    def insert(self, where: Attributes, value: bytes, ttl_seconds: int, now_ns: int) -> Request:
        """Write unless a live record is there."""
        return {
            **self.put(where, value, ttl_seconds, now_ns),
            "ConditionExpression": _ABSENT,
            "ExpressionAttributeValues": {":now": _now(now_ns)},
        }

    def swap(self, where: Attributes, expected: bytes, record: tuple[bytes, int], now_ns: int) -> Request:
        """Write ``record``, a value and its TTL, if the live value is ``expected``."""
        return {
            **self.put(where, *record, now_ns),
            "ConditionExpression": _SAME,
            "ExpressionAttributeValues": {":now": _now(now_ns), ":expected": {"B": expected}},
        }

    def touch(self, where: Attributes, ttl_seconds: int, now_ns: int) -> Request:
        """Give a live record a new expiry."""
        expiry = self._expiry(ttl_seconds, now_ns)
        return {
            "TableName": self.table,
            "Key": where,
            "UpdateExpression": "SET expires_ms = :ms, expires_s = :s",
            "ConditionExpression": _LIVE,
            "ExpressionAttributeValues": {":now": _now(now_ns), ":ms": expiry[EXPIRES_MS], ":s": expiry[EXPIRES_S]},
        }

    def delete(self, where: Attributes, now_ns: int) -> Request:
        """Remove a live record. By a condition: with the old item as the answer, its value would travel back."""
        return {
            "TableName": self.table,
            "Key": where,
            "ConditionExpression": _LIVE,
            "ExpressionAttributeValues": {":now": _now(now_ns)},
        }

    def delete_if(self, where: Attributes, expected: bytes, now_ns: int) -> Request:
        """Remove a live record if its value is ``expected``."""
        return {
            "TableName": self.table,
            "Key": where,
            "ConditionExpression": _SAME,
            "ExpressionAttributeValues": {":now": _now(now_ns), ":expected": {"B": expected}},
        }

    def _expiry(self, ttl_seconds: int, now_ns: int) -> Attributes:
        expires_ms = expiry_ms(now_ns, ttl_seconds)
        return {EXPIRES_MS: {"N": str(expires_ms)}, EXPIRES_S: {"N": str(-(-expires_ms // 1000) + self._margin)}}


def live_expiry(item: Attributes | None, now_ns: int) -> int | None:
    """Return the expiry of an item in milliseconds; None when there is no item or it is over."""
    if item is None:
        return None
    expires_ms = int(item[EXPIRES_MS]["N"])
    return None if is_over(expires_ms * NS_PER_MS, now_ns) else expires_ms


def live_record(item: Attributes, now_ns: int) -> Item | None:
    """Return an item that has its sort key as a record; None when it is over."""
    expires_ms = live_expiry(item, now_ns)
    return None if expires_ms is None else Item(item[SORT]["B"].decode(), text(item), expires_ms)


def text(item: Attributes) -> str:
    """Return the value of an item."""
    value: bytes = item[VALUE]["B"]
    return value.decode()


def _now(now_ns: int) -> dict[str, str]:
    # Rounded down: an expiry is a whole millisecond, so it is reached at the same instant.
    return {"N": str(now_ns // NS_PER_MS)}
