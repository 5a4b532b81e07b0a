"""The blocking API of keys: `Keys` is an opened store, `AppKeys` is one application's part of it.

`AppKeys` validates, then hands over to its space; it returns what the space answers. That is all, and it is why one
implementation serves both APIs: `lapse.keys.aio` derives the awaitable one from these very methods.

Guarantees: every validation error is raised before a backend is touched; each method is one atomic step on every
backend; an expired key is absent, swept or not. Not guaranteed: `insert_many` and `get_many` are not atomic together,
and a `scan` that spans pages sees each page as it was when that page was read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from lapse.core.clock import Clock, SystemClock
from lapse.keys.backends.layout import Prefix, end_of_prefix
from lapse.keys.errors import KeyTypeError
from lapse.keys.port import Backend, CleanupReport, Item, NewItem, Space
from lapse.keys.sweeper import SWEEP_SLICE, Sweeper
from lapse.keys.url import open_backend
from lapse.keys.validation import (
    MAX_KEY_BYTES,
    MAX_TTL_SECONDS,
    MAX_VALUE_BYTES,
    check_app_id,
    check_key,
    check_scan,
    check_ttl,
    check_value,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from lapse.keys.lock import KeyLock

_is_ascii = str.isascii  # called unbound: refuses what is not text, and takes no time


class AppKeys:
    """One application's expiring keys, isolated from every other application's. Made by `Keys.app`."""

    __slots__ = ("_backend", "_clock", "_space", "app_id")

    def __init__(self, app_id: int, space: Space, *, backend: Backend, clock: Clock) -> None:
        """Bind to a space; `backend` and `clock` serve `lock`."""
        self.app_id = app_id
        self._space = space
        self._backend = backend
        self._clock = clock

    def ttl_get(self, key: str) -> str | None:
        """Return the value of a live key, or None. Atomic; never returns an expired value."""
        # The checks of the common case stand here once more, because a call costs as much as the lookup itself.
        if key.__class__ is not str or not key.isascii() or not 0 < len(key) <= MAX_KEY_BYTES:
            check_key(key)
        return self._space.get(key)

    def insert_if_not_exists(self, key: str, value: str, ttl_seconds: int) -> bool:
        """Write unless a live record is there. Of any number of concurrent callers exactly one gets True."""
        if not _is_usual(key, value, ttl_seconds):
            _check_write(key, value, ttl_seconds)
        return self._space.insert(key, value, ttl_seconds)

    def compare_and_swap(self, key: str, expected_value: str, new_value: str, ttl_seconds: int) -> bool:
        """Replace the value and restart the TTL if the live value equals ``expected_value``, in one atomic step."""
        if not (_is_usual(key, expected_value, ttl_seconds) and _is_usual(key, new_value, ttl_seconds)):
            check_key(key)
            check_value(expected_value, "expected value")
            check_value(new_value, "new value")
            check_ttl(ttl_seconds)
        return self._space.swap(key, expected_value, new_value, ttl_seconds)

    def compare_and_delete(self, key: str, expected_value: str) -> bool:
        """Delete if the live value equals ``expected_value``, in one atomic step."""
        check_key(key)
        check_value(expected_value, "expected value")
        return self._space.delete_if(key, expected_value)

    def put(self, key: str, value: str, ttl_seconds: int) -> None:
        """Write whatever is there. Last writer wins."""
        if not _is_usual(key, value, ttl_seconds):
            _check_write(key, value, ttl_seconds)
        return self._space.put(key, value, ttl_seconds)

    def delete(self, key: str) -> bool:
        """Delete; whether a live record was there."""
        check_key(key)
        return self._space.delete(key)

    def touch(self, key: str, ttl_seconds: int) -> bool:
        """Restart the TTL of a live key, its value unchanged. An expired key is not revived."""
        check_key(key)
        check_ttl(ttl_seconds)
        return self._space.touch(key, ttl_seconds)

    def query_ttl(self, key: str) -> float | None:
        """Return the seconds left: never more than was given, never 0 for a live key; None when absent."""
        check_key(key)
        return self._space.ttl(key)

    def get_item(self, key: str) -> Item | None:
        """Return a live record with its expiry, or None."""
        check_key(key)
        return self._space.find(key)

    def scan(self, prefix: str = "", after: str | None = None, limit: int = 1000) -> list[Item]:
        """Return a page of live records whose key starts with ``prefix``, in byte order, after the key ``after``.

        For the next page pass the last key of this one as ``after``; a page shorter than ``limit`` is the last. The
        server keeps no cursor.
        """
        check_scan(prefix, after, limit)
        start = prefix
        if after is not None and after >= prefix:
            start = after + "\0"  # the smallest key greater than `after`
        return self._space.scan(start, end_of_prefix(prefix), limit)

    def get_many(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the live ones of ``keys`` with their values, in as few round trips as the backend allows."""
        if isinstance(keys, str):
            raise KeyTypeError(what="list of keys", given="str", expected="an iterable of str")
        wanted = list(keys)
        for key in wanted:
            check_key(key)
        return self._space.get_many(list(dict.fromkeys(wanted)))

    def insert_many(self, items: Iterable[tuple[str, str, int]]) -> list[bool]:
        """Insert each ``(key, value, ttl_seconds)`` unless a live record is there.

        The answers are in the order of the items. Each insert is atomic, all of them together are not. One wrong item
        is an error before any is written.
        """
        wanted = [NewItem(*item) for item in items]
        for item in wanted:
            _check_write(*item)
        return self._space.insert_many(wanted)

    def lock(self, name: str, ttl_seconds: int, *, wait_seconds: float = 0) -> KeyLock:
        """Return a lock for ``with`` or ``async with``; see `lapse.keys.lock` for what it does not guarantee."""
        from lapse.keys.aio import AsyncAppKeys
        from lapse.keys.lease import Lease
        from lapse.keys.lock import KeyLock

        check_key(name)
        check_ttl(ttl_seconds)
        space = self._backend.async_space(Prefix.LEADER_ELECTION, self.app_id)
        keys = AsyncAppKeys(self.app_id, space, backend=self._backend, clock=self._clock)
        lease = Lease(keys, name, ttl_seconds=ttl_seconds, clock=self._clock)
        return KeyLock(lease, wait_seconds=wait_seconds, clock=self._clock)


def _is_usual(key: str, value: str, ttl_seconds: int) -> bool:
    """Whether a write is beyond doubt: ASCII within the limits. One call instead of three; the rules judge the rest."""
    try:
        return (
            _is_ascii(key)
            and _is_ascii(value)
            and 0 < len(key) <= MAX_KEY_BYTES
            and len(value) <= MAX_VALUE_BYTES
            and ttl_seconds.__class__ is int
            and 0 < ttl_seconds <= MAX_TTL_SECONDS
        )
    except TypeError:  # not text
        return False


def _check_write(key: str, value: str, ttl_seconds: int) -> None:
    check_key(key)
    check_value(value)
    check_ttl(ttl_seconds)


class Keys:
    """An opened keys store. Safe to share between threads. Use it with ``with``, or call `close`."""

    def __init__(self, backend: Backend, *, clock: Clock, sweep: bool) -> None:
        """Own a backend. With ``sweep`` its expired records are removed in the background until `close`."""
        self._backend = backend
        self._clock = clock
        self._sweeper = Sweeper.start(backend) if sweep else None

    def app(self, app_id: int) -> AppKeys:
        """Return one application's keys; ``app_id`` is an unsigned 32-bit number."""
        check_app_id(app_id)
        space = self._backend.space(Prefix.APPLICATION_TTL, app_id)
        return AppKeys(app_id, space, backend=self._backend, clock=self._clock)

    @property
    def backend(self) -> Backend:
        """The backend behind this store."""
        return self._backend

    def sweep(self, limit: int = SWEEP_SLICE) -> CleanupReport:
        """Remove up to ``limit`` expired records physically now. Reads never need this; memory and disk do."""
        return self._backend.sweep(limit)

    def close(self) -> None:
        """Stop the background sweep and release the backend. Idempotent."""
        if self._sweeper is not None:
            self._sweeper.stop()
            self._sweeper = None
        self._backend.close()

    def __enter__(self) -> Self:
        """Enter a block that closes the store at its end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the store."""
        self.close()


def open_keys(url: str, *, clock: Clock | None = None, sweep: bool = True) -> Keys:
    """Open a keys store by URL, such as ``memory://`` or ``file:///var/lib/app/keys.db``.

    Raises at once when the store cannot be used. ``sweep=False`` leaves physical cleanup to the caller (`Keys.sweep`);
    ``clock`` replaces the system clock in tests.
    """
    clock = clock or SystemClock()
    backend = open_backend(url, clock)
    try:
        backend.check()
    except BaseException:
        backend.close()
        raise
    return Keys(backend, clock=clock, sweep=sweep)
