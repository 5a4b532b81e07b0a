"""Views of keys, on the command line and over HTTP alike. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from lapse.keys.port import NS_PER_MS, seconds_left

if TYPE_CHECKING:
    from lapse.keys.port import Item


class KeyView(Struct, frozen=True):
    """A live record."""

    key: str
    value: str | UnsetType
    expires_at: Annotated[str, Meta(description="To the millisecond")]
    ttl_seconds: float


class Written(Struct, frozen=True):
    """What was written."""

    key: str
    ttl_seconds: int


class Inserted(Struct, frozen=True):
    """For each item, in its order, whether it was inserted."""

    inserted: list[bool]


class Found(Struct, frozen=True):
    """Those of the keys that are live, with their values."""

    values: dict[str, str]


def view_of(item: Item, now_ns: int, *, with_value: bool = True) -> KeyView:
    """Return the view of a record that was live when it was read: something is left of it, if only a millisecond."""
    return KeyView(
        key=item.key,
        value=item.value if with_value else UNSET,
        expires_at=item.expires_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        ttl_seconds=seconds_left(item.expires_ms * NS_PER_MS, now_ns) or 1 / 1000,
    )
