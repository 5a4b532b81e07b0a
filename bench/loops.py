"""The common part of contenders: loops, and Lapse itself.

A loop is called once for many thousand operations, so that it is shared costs them nothing.
"""

# ruff: noqa: D102 - contenders have their methods in common

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lapse
from bench.contest import APP_ID, TTL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, MutableMapping

    Pairs = Iterable[tuple[str, str]]


def over_keys(call: Callable[[str], object], keys: Iterable[str]) -> None:
    """Call with every key."""
    for key in keys:
        call(key)


def over_pairs(call: Callable[[str, str], object], pairs: Pairs) -> None:
    """Call with every key and value: for a store that knows one TTL."""
    for key, value in pairs:
        call(key, value)


def over_pairs_with_ttl(call: Callable[[str, str, int], object], pairs: Pairs) -> None:
    """Call with every key, value and the TTL."""
    for key, value in pairs:
        call(key, value, TTL_SECONDS)


def swap_pairs(call: Callable[[str, str, str, int], object], pairs: Pairs) -> None:
    """Swap every value for itself."""
    for key, value in pairs:
        call(key, value, value, TTL_SECONDS)


def set_items(cache: MutableMapping[str, str], pairs: Pairs) -> None:
    """Set every key by subscript, which is quicker than any method of the mapping."""
    for key, value in pairs:
        cache[key] = value


async def over_keys_awaited(call: Callable[[str], Awaitable[Any]], keys: Iterable[str]) -> None:
    """As `over_keys`, one call awaited after the other."""
    for key in keys:
        await call(key)


async def over_pairs_awaited(call: Callable[[str, str, int], Awaitable[Any]], pairs: Pairs) -> None:
    """As `over_pairs_with_ttl`, one call awaited after the other."""
    for key, value in pairs:
        await call(key, value, TTL_SECONDS)


async def swap_pairs_awaited(call: Callable[[str, str, str, int], Awaitable[Any]], pairs: Pairs) -> None:
    """As `swap_pairs`, one call awaited after the other."""
    for key, value in pairs:
        await call(key, value, value, TTL_SECONDS)


class BlockingLapse:
    """The blocking face, validation included, with the background sweep as it is by default."""

    def __init__(self, url: str) -> None:
        """Open the store."""
        self._store = lapse.open_keys(url)
        self._keys = self._store.app(APP_ID)

    def get(self, keys: Iterable[str]) -> None:
        over_keys(self._keys.ttl_get, keys)

    def insert(self, pairs: Pairs) -> None:
        over_pairs_with_ttl(self._keys.insert_if_not_exists, pairs)

    def put(self, pairs: Pairs) -> None:
        over_pairs_with_ttl(self._keys.put, pairs)

    def swap(self, pairs: Pairs) -> None:
        swap_pairs(self._keys.compare_and_swap, pairs)

    def value(self, key: str) -> str | None:
        return self._keys.ttl_get(key)

    def close(self) -> None:
        self._store.close()
