"""A timing wheel: which keys to look at when, at a constant cost per key.

Time is cut into ticks of about a second. A key whose expiry is near lies in the slot of its tick; one that is further away lies in a
slot that covers 64, 4096, ... ticks, and is dealt out to finer slots when that time comes. So a key moves a handful of times in a
year, and finding what is due costs what is due.

Where a key lies follows from its tick and the wheel's hand alone (the highest digit, base 64, in which they differ), so
nothing is stored per key but its place in one set, and removing a key is one set operation. That matters: a wheel that leaves
stale entries behind on renewal grows without bound under keys that are renewed often and live long. A heap was three times
dearer to insert and ten times to expire.

Not thread-safe: its owner holds a lock.
"""

from __future__ import annotations

from typing import Final

TICK_MS_BITS: Final = 10
"""A tick is 1024 ms: a shift is cheaper than a division, and physical cleanup needs no precision."""

_DIGIT_BITS: Final = 6
_LEVEL_SHIFT: Final = 48  # above any tick number
_OVERDUE: Final = -1
"""The slot of keys whose tick the hand has already passed: written while the clock stood further back than before."""


class TimingWheel:
    """Keys by the tick of their expiry. A key is in it at most once; its owner passes the tick it was added with."""

    __slots__ = ("_hand", "_slots")

    def __init__(self, now_ms: int) -> None:
        """Start with the hand at ``now_ms``."""
        self._hand = now_ms >> TICK_MS_BITS
        self._slots: dict[int, set[str]] = {}

    def add(self, key: str, expires_ms: int) -> None:
        """Remember to look at ``key`` when its tick is over."""
        slot_id = self._slot_of(expires_ms >> TICK_MS_BITS)
        slot = self._slots.get(slot_id)
        if slot is None:
            self._slots[slot_id] = {key}
        else:
            slot.add(key)

    def discard(self, key: str, expires_ms: int) -> None:
        """Forget ``key``, which was added with ``expires_ms``."""
        slot_id = self._slot_of(expires_ms >> TICK_MS_BITS)
        slot = self._slots.get(slot_id)
        if slot is not None:
            slot.discard(key)
            if not slot:
                del self._slots[slot_id]

    def _slot_of(self, tick: int) -> int:
        if tick < self._hand:
            return _OVERDUE
        # The level is the highest base-64 digit in which tick and hand differ; the slot is the tick without the digits below it.
        level = ((tick ^ self._hand) | 1).bit_length() - 1
        level -= level % _DIGIT_BITS
        return (level << _LEVEL_SHIFT) | (tick >> level)

    def next_due_ms(self) -> int | None:
        """Return a moment before which `take` has nothing to do; None when the wheel is empty."""
        if not self._slots:
            return None
        first = min(self._slots, key=_first_tick)
        return (_first_tick(first) + 1) << TICK_MS_BITS

    def take(self, now_ms: int, limit: int) -> list[str]:
        """Remove and return up to ``limit`` keys whose tick is over; fewer than ``limit`` means there are no more.

        Keys that were added with a moment still ahead may be among them after the clock went back: the owner compares each
        record's own expiry and adds those again.
        """
        target = now_ms >> TICK_MS_BITS
        taken: list[str] = []
        while self._slots and len(taken) < limit:
            slot_id = min(self._slots, key=_first_tick)
            first = _first_tick(slot_id)
            if first >= target:
                break
            level = slot_id >> _LEVEL_SHIFT
            if level > 0:
                self._hand = max(self._hand, first)
                self._deal_out(slot_id)
                continue
            slot = self._slots[slot_id]
            while slot and len(taken) < limit:
                taken.append(slot.pop())
            if not slot:
                del self._slots[slot_id]
        return taken
