"""A lease: one owner at a time for a name, in two records of the election partition. Locks and elections use it.

How: an owner token is inserted; a fencing number is drawn while the token stands; a compare-and-swap of the token then
proves that nobody else owned the name in between, so fencing numbers grow with every owner. Renewal swaps the value for
itself; release is a compare-and-delete.

The lease is ours until ``deadline_ns``, which counts from the *start* of the last successful renewal: the record cannot
expire earlier than that. Boottime, because a record's TTL also runs while this machine is suspended.

An `acquire` that fails or is cancelled half-way deletes its record again, if it is there; a log line says when that was
not possible, and then the record ends with its TTL. A request that is still on its way to a server may arrive after
that deletion: so callers let an `acquire` that is under way come to its end (`lapse.engine.running.shield`) and release
then, and do not cancel it. A lease belongs to the process that acquired it: after a fork the child has lost it.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

from lapse.core.identity import owner_token
from lapse.core.log import get_logger
from lapse.engine.running.shield import finish
from lapse.keys.errors import BackendError, KeyTooLongError, LockLostError
from lapse.keys.validation import MAX_KEY_BYTES, MAX_TTL_SECONDS, check_key, check_ttl

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.keys.aio import AsyncAppKeys

_LOCK: Final = "lock:"
_FENCE: Final = "fence:"
_NS: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000
_log = get_logger("lapse.keys.lease")


class Lease:
    """One try to own a name; may be acquired again after it was released or lost, with a new fencing number."""

    def __init__(
        self, keys: AsyncAppKeys, name: str, *, ttl_seconds: int, clock: Clock, ends_orphans: bool = False
    ) -> None:
        """Validate; nothing is touched. ``keys`` are those of the election partition.

        ``ends_orphans`` is for names whose owners all have this TTL: see `_end_orphan`.
        """
        _check_name(name)
        check_ttl(ttl_seconds)
        self._keys = keys
        self._record, self._counter = _LOCK + name, _FENCE + name
        self._clock = clock
        self._value = ""
        self._fence: int | None = None
        self._taken = False
        self._owner_pid = os.getpid()
        self._ends_orphans, self._orphaned_since_ns = ends_orphans, 0
        self.ttl_seconds = ttl_seconds
        self.deadline_ns = 0

    @property
    def fence(self) -> int:
        """The fencing number: greater than that of every earlier owner."""
        if self._fence is None:
            raise LockLostError(problem="it has not been acquired")
        return self._fence

    @property
    def lost(self) -> bool:
        """Whether it is no longer ours, or can no longer be known to be ours."""
        return self._taken or self._clock.boottime_ns() >= self.deadline_ns or self.forked

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that acquired it, which still owns it."""
        return self._owner_pid != os.getpid()

    def check(self) -> None:
        """Raise `LockLostError` if `lost`."""
        if self.forked:
            raise LockLostError(problem="it belongs to the process that this one was forked from")
        if self._taken:
            raise LockLostError(problem="another holder took it, or it was deleted")
        if self.lost:
            raise LockLostError(problem="it was not renewed in time")

    async def acquire(self) -> bool:
        """Become the owner; False when somebody else is, or when our own token expired before it was proven."""
        started_ns = self._clock.boottime_ns()
        token = self._value = owner_token()
        self._owner_pid = os.getpid()
        try:
            if not await self._keys.insert_if_not_exists(self._record, token, self.ttl_seconds):
                if self._ends_orphans:
                    await self._end_orphan()
                return False
            fence = await self._next_fence()
            self._value = f"{token}:{fence}"
            if not await self._keys.compare_and_swap(self._record, token, self._value, self.ttl_seconds):
                return False  # a number that was drawn without the lease is worthless
        except BaseException:
            await finish(partial(self._withdraw, token), clock=self._clock, cancelled=True)
            raise
        self._fence, self._taken = fence, False
        self.deadline_ns = started_ns + self.ttl_seconds * _NS
        return True

    async def renew(self) -> bool:
        """Move the deadline; False when somebody else is the owner now. May be repeated after an unknown outcome."""
        started_ns = self._clock.boottime_ns()
        if not await self._keys.compare_and_swap(self._record, self._value, self._value, self.ttl_seconds):
            self._taken = True
            return False
        self.deadline_ns = started_ns + self.ttl_seconds * _NS
        return True

    async def release(self) -> bool:
        """Give it back; False when it was lost before."""
        if self.lost:
            return False
        released = await self._keys.compare_and_delete(self._record, self._value)
        self._taken = not released
        self.deadline_ns = self._clock.boottime_ns()
        return released

    async def _end_orphan(self) -> None:
        """End a record that lasts longer than any owner's renewal makes it last, if nobody has renewed it for a TTL.

        Such a record was written by a process whose clock was far ahead, and which is gone: a living owner would have
        renewed it to the TTL by now.
        """
        left, now_ns = await self._keys.query_ttl(self._record), self._clock.boottime_ns()
        if left is None or left <= self.ttl_seconds + 1:
            self._orphaned_since_ns = 0
            return
        self._orphaned_since_ns = self._orphaned_since_ns or now_ns
        if now_ns - self._orphaned_since_ns <= self.ttl_seconds * _NS:
            return
        self._orphaned_since_ns = 0
        value = await self._keys.ttl_get(self._record)
        if value is not None and await self._keys.compare_and_delete(self._record, value):
            _log.warning("orphaned_lease_ended", lasted_for_seconds=round(left))

    async def _withdraw(self, token: str) -> None:
        """Do not block others for a whole TTL when acquiring failed half-way; if this fails too, the TTL does it."""
        for value in {token, self._value}:
            try:
                await self._keys.compare_and_delete(self._record, value)
            except BaseException as error:
                _log.warning("lease_not_given_back", error=type(error).__name__, lapses_after_seconds=self.ttl_seconds)
                if not isinstance(error, BackendError):
                    raise

    async def _next_fence(self) -> int:
        """Draw a number greater than all before; the first is the time, so a lapsed counter does not start over."""
        while True:
            current = await self._keys.ttl_get(self._counter)
            if current is None:
                first = self._clock.wall_ns() // _NS_PER_MS
                if await self._keys.insert_if_not_exists(self._counter, str(first), MAX_TTL_SECONDS):
                    return first
            elif await self._keys.compare_and_swap(self._counter, current, str(int(current) + 1), MAX_TTL_SECONDS):
                return int(current) + 1


def _check_name(name: str) -> None:
    check_key(name)
    longest = MAX_KEY_BYTES - len(_FENCE)
    if len(name.encode()) > longest:
        raise KeyTooLongError(length=len(name.encode()), limit=longest)
