"""Views of keys, on the command line and over HTTP alike. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, UnsetType

from lapse.core.address import Address
from lapse.engine.view import Moment
from lapse.keys.port import NS_PER_MS, seconds_left

if TYPE_CHECKING:
    from lapse.keys.port import Item


class KeyView(Struct, frozen=True):
    """A live record."""

    address: str
    key: str
    value: str | UnsetType
    expires_at: Moment
    ttl_seconds: Annotated[float, Meta(description="What is left, to the millisecond")]


class Written(Struct, frozen=True):
    """What was written."""

    address: str
    key: str
    ttl_seconds: int


class Inserted(Struct, frozen=True):
    """For each item, in its order, whether it was inserted."""

    inserted: list[bool]


class Found(Struct, frozen=True):
    """Those of the keys that are live, with their values."""

    values: dict[str, str]


def address_of(app: int, key: str) -> str:
    """Return the address of a key."""
    return str(Address("key", str(app), key))


def view_of(app: int, item: Item, now_ns: int) -> KeyView:
    """Return the view of a record that was live when it was read: something is left of it, if only a millisecond."""
    return KeyView(
        address=address_of(app, item.key),
        key=item.key,
        value=item.value,
        expires_at=Moment(item.expires_ms * NS_PER_MS),
        ttl_seconds=seconds_left(item.expires_ms * NS_PER_MS, now_ns) or 1 / 1000,
    )
