"""A lock that lapses: one holder at a time, kept by renewal, freed by release or by its TTL. See `lapse.keys.lease`.

What it does not guarantee. A holder that stalls (a long pause, a suspended machine) loses the lock by time, and cannot
know it while it stalls: check `lost` before each effect, or hand `fence` to the resource and let it refuse smaller
numbers. On a backend that can forget an acknowledged write (a Redis failover) two holders are possible. The lock is
neither reentrant nor fair.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from lapse.core.jitter import around
from lapse.keys.background import run_blocking
from lapse.keys.errors import BackendError, LockHeldError

if TYPE_CHECKING:
    from types import TracebackType

    from lapse.core.clock import Clock
    from lapse.keys.lease import Lease

_POLL_SECONDS: Final = 0.25
_RETRY_SECONDS: Final = 1.0
_NS: Final = 1_000_000_000


class KeyLock:
    """Made by `AppKeys.lock`; used with ``with`` or ``async with``."""

    def __init__(self, lease: Lease, *, wait_seconds: float, clock: Clock) -> None:
        """Touch nothing before the block is entered."""
        self._lease = lease
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._renewal: asyncio.Task[None] | None = None

    @property
    def fence(self) -> int:
        """The fencing number: greater than that of every earlier holder of this lock."""
        return self._lease.fence

    @property
    def lost(self) -> bool:
        """Whether the lock is no longer ours, or can no longer be known to be ours."""
        return self._lease.lost

    def check(self) -> None:
        """Raise `LockLostError` if `lost`."""
        self._lease.check()

    async def __aenter__(self) -> Self:
        """Acquire, waiting up to ``wait_seconds``; raises `LockHeldError`."""
        give_up_ns = self._clock.monotonic_ns() + int(self._wait_seconds * _NS)
        while not await self._lease.acquire():
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
        released = await self._lease.release()
        if not released and error is None:
            self._lease.check()

    def __enter__(self) -> Self:
        """Acquire like ``async with``, by blocking."""
        return run_blocking(self.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release like ``async with``, by blocking."""
        run_blocking(self.__aexit__(kind, error, trace))

    async def _keep_renewing(self) -> None:
        pause = self._lease.ttl_seconds / 4
        wait = pause
        while not self.lost:
            await self._clock.sleep(wait)
            try:
                if not await self._lease.renew():
                    return
                wait = pause
            except BackendError:
                wait = min(_RETRY_SECONDS, pause)
