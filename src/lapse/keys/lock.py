"""A lock that lapses: one holder at a time, kept by renewal, freed by release or by its TTL.

How: an owner token is inserted; a fencing number is drawn while the token stands; a compare-and-swap of the token
then proves that nobody else held the lock in between, so fencing numbers grow with every acquisition. Renewal is a
compare-and-swap at a quarter of the TTL; release is a compare-and-delete.

What it does not guarantee. A holder that stalls (a long pause, a suspended machine) loses the lock by time, and
cannot know it while it stalls: check `lost` before each effect, or hand `fence` to the resource and let it refuse
smaller numbers. On a backend that can forget an acknowledged write (a Redis failover) two holders are possible. The
lock is neither reentrant nor fair.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from lapse.core.identity import owner_token
from lapse.core.jitter import around
from lapse.keys.background import run_blocking
from lapse.keys.errors import BackendError, KeyTooLongError, LockHeldError, LockLostError
from lapse.keys.validation import MAX_KEY_BYTES, MAX_TTL_SECONDS, check_key

if TYPE_CHECKING:
    from types import TracebackType

    from lapse.core.clock import Clock
    from lapse.keys.aio import AsyncAppKeys

_LOCK: Final = "lock:"
_FENCE: Final = "fence:"
_POLL_SECONDS: Final = 0.25
_RETRY_SECONDS: Final = 1.0
_NS: Final = 1_000_000_000


class KeyLock:
    """Made by `AppKeys.lock`; used once, with ``with`` or ``async with``."""

    def __init__(self, keys: AsyncAppKeys, name: str, *, ttl_seconds: int, wait_seconds: float, clock: Clock) -> None:
        """Validate the name; nothing is touched before the block is entered."""
        _check_name(name)
        self._keys = keys
        self._record, self._counter = _LOCK + name, _FENCE + name
        self._ttl_seconds, self._wait_seconds = ttl_seconds, wait_seconds
        self._clock = clock
        self._value = owner_token()
        self._fence: int | None = None
        self._deadline_ns = 0
        self._lost: str | None = None
        self._renewal: asyncio.Task[None] | None = None

    @property
    def fence(self) -> int:
        """The fencing number: greater than that of every earlier holder of this lock."""
        if self._fence is None:
            raise LockLostError(problem="it has not been acquired")
        return self._fence

    @property
    def lost(self) -> bool:
        """Whether the lock is no longer ours, or can no longer be known to be ours."""
        # Boottime, because a record's TTL also runs while this machine is suspended.
        return self._lost is not None or self._clock.boottime_ns() >= self._deadline_ns

    def check(self) -> None:
        """Raise `LockLostError` if `lost`."""
        if self.lost:
            raise LockLostError(problem=self._lost or "it was not renewed in time")

    async def __aenter__(self) -> Self:
        """Acquire, waiting up to ``wait_seconds``; raises `LockHeldError`."""
        give_up_ns = self._clock.monotonic_ns() + int(self._wait_seconds * _NS)
        while not await self._acquire():
            if self._clock.monotonic_ns() >= give_up_ns:
                raise LockHeldError
            await self._clock.sleep(around(min(_POLL_SECONDS, self._wait_seconds), fraction=0.5))
        self._renewal = asyncio.create_task(self._keep_renewing(), name="lapse-lock-renewal")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release. If the lock was lost meanwhile and the block raised nothing, `LockLostError` says so."""
        if self._renewal is not None:
            self._renewal.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewal
        if self.lost or not await self._keys.compare_and_delete(self._record, self._value):
            self._lost = self._lost or "it had expired or was taken when it was released"
            if error is None:
                self.check()

    def __enter__(self) -> Self:
        """Acquire like ``async with``, by blocking."""
        return run_blocking(self.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release like ``async with``, by blocking."""
        run_blocking(self.__aexit__(kind, error, trace))

    async def _acquire(self) -> bool:
        started_ns = self._clock.boottime_ns()
        if not await self._keys.insert_if_not_exists(self._record, self._value, self._ttl_seconds):
            return False
        fence = await self._next_fence()
        token, self._value = self._value, f"{self._value}:{fence}"
        if not await self._keys.compare_and_swap(self._record, token, self._value, self._ttl_seconds):
            self._value = (
                owner_token()
            )  # it expired while the number was drawn; a number drawn outside the lock is worthless
            return False
        self._fence = fence
        self._deadline_ns = started_ns + self._ttl_seconds * _NS
        return True

    async def _next_fence(self) -> int:
        """Draw a number greater than all before; the first is the time, so a lapsed counter does not start over."""
        while True:
            current = await self._keys.ttl_get(self._counter)
            if current is None:
                first = self._clock.wall_ns() // 1_000_000
                if await self._keys.insert_if_not_exists(self._counter, str(first), MAX_TTL_SECONDS):
                    return first
            elif await self._keys.compare_and_swap(self._counter, current, str(int(current) + 1), MAX_TTL_SECONDS):
                return int(current) + 1

    async def _keep_renewing(self) -> None:
        pause = self._ttl_seconds / 4
        wait = pause
        while not self.lost:
            await self._clock.sleep(wait)
            started_ns = self._clock.boottime_ns()
            try:
                # Swapping a value for itself may be repeated safely, so an unknown outcome is simply tried again.
                renewed = await self._keys.compare_and_swap(self._record, self._value, self._value, self._ttl_seconds)
            except BackendError:
                wait = min(_RETRY_SECONDS, pause)
                continue
            if not renewed:
                self._lost = "somebody else took it, or it was deleted"
                return
            self._deadline_ns = started_ns + self._ttl_seconds * _NS
            wait = pause


def _check_name(name: str) -> None:
    check_key(name)
    longest = MAX_KEY_BYTES - len(_FENCE)
    if len(name.encode()) > longest:
        raise KeyTooLongError(length=len(name.encode()), limit=longest)
