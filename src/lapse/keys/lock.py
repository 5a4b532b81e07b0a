"""A lock that lapses: one holder at a time, kept by renewal, freed by release or by its TTL. See `lapse.keys.lease`.

Interruption. A task may be cancelled at any await, and a signal handler may raise at any instruction: the lock is given
back, at once as a rule, and at the next renewal (a quarter of the TTL) if a second interruption stopped even that. What
renews a lock looks before each renewal whether its block is still there; see `_Leaving`. Cancellation is raised when
the lock was given back or two seconds have passed, never swallowed. A lock that could not be given back is logged
(``lease_not_given_back``) and ends with its TTL.

A generator that is collected while it holds a lock gives it back in the background. After a fork the lock is the
parent's: in the child it is lost.

What it does not guarantee. A holder that stalls (a long pause, a suspended machine) loses the lock by time, and cannot
know it while it stalls: check `lost` before each effect, or hand `fence` to the resource and let it refuse smaller
numbers. On a backend that can forget an acknowledged write (a Redis failover) two holders are possible. The lock is
neither reentrant nor fair, and one object is entered once at a time.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from contextlib import suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from lapse.core.jitter import around
from lapse.engine.running.shield import finish
from lapse.keys.backends.background import Call, on_background_thread, run_blocking
from lapse.keys.errors import BackendError, LockEnteredError, LockHeldError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from lapse.core.clock import Clock
    from lapse.keys.lease import Lease

_POLL_SECONDS: Final = 0.25
_RETRY_SECONDS: Final = 1.0
_COLLECTED_WAIT_SECONDS: Final = 1.0
"""How long a generator that is closed waits for the release. It may be collected while its thread holds what the
release needs, so it must not wait for ever."""
_NS: Final = 1_000_000_000


class _Leaving:
    """``__exit__`` of a lock, as an object that lives exactly as long as the ``with`` statement that looked it up.

    A ``with`` statement looks ``__exit__`` up before it enters, and keeps what it found until it is over, however it
    ends: also when an exception of a signal handler comes before the first instruction of ``__exit__`` itself, where no
    ``try`` can catch it. So what renews the lock holds this object weakly, and knows by it whether the block is there.
    """

    def __init__(self, leave: Callable[..., Any]) -> None:
        self._leave = leave

    def __get__(self, lock: KeyLock | None, owner: type[KeyLock]) -> Callable[..., Any]:
        if lock is None:
            return self._leave
        leaving = partial(self._leave, lock)
        lock._block = weakref.ref(leaving)  # noqa: SLF001 - a part of it
        return leaving


class _Entry:
    """One time that a lock was entered."""

    def __init__(self, lock: KeyLock, lease: Lease) -> None:
        self.lease = lease
        block = lock._block  # noqa: SLF001 - the same
        # None when it was entered without a `with` statement; then the lock object itself is what must be there.
        self._block = block if block is not None and block() is not None else weakref.ref(lock)
        self.renewal: asyncio.Task[None] | None = None

    @property
    def deserted(self) -> bool:
        """Whether what entered is gone, and did not leave."""
        return self._block() is None

    async def keep_renewing(self, clock: Clock) -> None:
        """Renew until the lock is lost; give it back when it is deserted."""
        lease = self.lease
        pause = lease.ttl_seconds / 4
        wait = pause
        while not lease.lost:
            await clock.sleep(wait)
            try:
                if self.deserted:
                    await lease.release()
                    return
                if not await lease.renew():
                    return
                wait = pause
            except BackendError:
                wait = min(_RETRY_SECONDS, pause)

    async def stop_renewing(self) -> None:
        """End the renewal."""
        if self.renewal is None:
            return
        loop = self.renewal.get_loop()
        if loop is asyncio.get_running_loop():
            self.renewal.cancel()
            await asyncio.wait({self.renewal})
        else:  # entered by `with` and left by `async with`, or the other way
            with suppress(RuntimeError):  # that loop is closed, and nothing is renewed there any more
                loop.call_soon_threadsafe(self.renewal.cancel)


class KeyLock:
    """Made by `AppKeys.lock`; used with ``with`` or ``async with``."""

    def __init__(self, lease: Lease, *, wait_seconds: float, clock: Clock) -> None:
        """Touch nothing before the block is entered."""
        self._lease = lease
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._guard = threading.Lock()
        self._block: weakref.ref[Any] | None = None
        self._entry: _Entry | None = None

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
        """Acquire, waiting up to ``wait_seconds``; raises `LockHeldError`, or `LockEnteredError` on a second entry."""
        await self._enter(self._new_entry())
        return self

    def __enter__(self) -> Self:
        """Acquire like ``async with``, by blocking."""
        entry = self._new_entry()
        try:
            run_blocking(self._enter(entry))
        except BaseException:
            if self._entry is entry:  # interrupted, perhaps when it was acquired already
                self._leave_later(entry)
            raise
        return self

    async def _aexit(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release. If the lock was lost meanwhile and the block raised nothing, `LockLostError` says so."""
        if kind is GeneratorExit:  # a coroutine that is collected must not await
            self._leave_later(self._entry)
            return
        released = await finish(partial(self._leave, self._entry), clock=self._clock)
        if not released and error is None:
            self._lease.check()

    def _exit(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Release like ``async with``, by blocking."""
        if self._lease.forked:
            self._entry = None
            if error is None:
                self._lease.check()
        elif kind is GeneratorExit:
            leaving = self._leave_later(self._entry)
            if leaving is not None and not on_background_thread():
                with suppress(TimeoutError):
                    leaving.wait(_COLLECTED_WAIT_SECONDS)
        else:
            entry = self._entry
            try:
                run_blocking(self._aexit(kind, error, trace))
            except BaseException:
                if self._entry is entry:  # interrupted before it was left
                    self._leave_later(entry)
                raise

    if TYPE_CHECKING:
        __exit__ = _exit
        __aexit__ = _aexit
    else:
        __exit__ = _Leaving(_exit)
        __aexit__ = _Leaving(_aexit)

    def _new_entry(self) -> _Entry:
        with self._guard:
            if self._entry is not None and not self._entry.deserted and not self._entry.lease.forked:
                raise LockEnteredError
            self._lease = copy(self._lease)  # a deserted entry may still have to give its own back
            self._entry = entry = _Entry(self, self._lease)
            return entry

    async def _enter(self, entry: _Entry) -> None:
        try:
            await self._acquire(entry)
            entry.renewal = asyncio.create_task(entry.keep_renewing(self._clock), name="lapse-lock-renewal")
        except BaseException:
            await finish(partial(self._leave, entry), clock=self._clock, cancelled=True)
            raise

    async def _acquire(self, entry: _Entry) -> None:
        give_up_ns = self._clock.monotonic_ns() + int(self._wait_seconds * _NS)
        while not await finish(entry.lease.acquire, clock=self._clock):
            if entry.deserted or self._clock.monotonic_ns() >= give_up_ns:
                raise LockHeldError
            await self._clock.sleep(around(min(_POLL_SECONDS, self._wait_seconds), fraction=0.5))

    async def _leave(self, entry: _Entry | None) -> bool:
        """Stop renewing and release; whether the lock was ours until then."""
        if entry is None:
            return False
        try:
            await entry.stop_renewing()
            return await entry.lease.release()
        finally:
            if self._entry is entry:
                self._entry = None

    def _leave_later(self, entry: _Entry | None) -> Call[bool] | None:
        """Leave on the loop that renews, without waiting."""
        if entry is None or entry.renewal is None:
            return None
        leaving = self._leave(entry)
        try:
            return Call(leaving, entry.renewal.get_loop())
        except RuntimeError:  # that loop is closed: nothing is renewed any more
            leaving.close()
            return None
