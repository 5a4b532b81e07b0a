"""A timing wheel: which keys to look at when, at a constant cost per key.

Time is cut into ticks of about a second. A key whose expiry is near lies in the slot of its tick; one that is further
away lies in a slot that covers 64, 4096, ... ticks, and is dealt out to finer slots when that time comes. So a key
moves a handful of times in a year, and finding what is due costs what is due.

Where a key lies follows from its tick and the wheel's hand alone (the highest digit, base 64, in which they differ),
so nothing is kept per key but its place in one set, and forgetting a key is one set operation. That matters: a wheel
that leaves stale entries behind on renewal grows without bound under keys that are renewed often and live long. A heap
was twice as dear to insert into and ten times to expire from.

Guarantees: a key that was added is handed out once its tick is over, unless it was discarded. A key may be handed out
early or after it was discarded when the clock went back: the owner compares the record's own expiry before it acts.
Not thread-safe: the owner holds a lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

TICK_NS_BITS: Final = 30
"""A tick is 2**30 ns, about a second: a shift is cheaper than a division, and physical cleanup needs no precision."""

_DIGIT_BITS: Final = 6
_NO_TICK: Final = -1
_LEVEL_SHIFT: Final = 48  # a slot's id is its level (in bits) above its tick number without the digits below that level
_TICK_MASK: Final = (1 << _LEVEL_SHIFT) - 1
# Bits in which tick and hand differ -> level in bits. A table, because this is computed for every write.
_LEVEL_ID: Final = tuple((max(bits - 1, 0) // _DIGIT_BITS * _DIGIT_BITS) << _LEVEL_SHIFT for bits in range(64))


def _first_tick(slot_id: int) -> int:
    return (slot_id & _TICK_MASK) << (slot_id >> _LEVEL_SHIFT)


class TimingWheel:
    """Keys by the tick of their expiry. The owner names the same expiry when it adds and when it discards a key."""

    __slots__ = ("_dealing", "_hand", "_slots", "recent", "recent_tick")

    def __init__(self, now_tick: int) -> None:
        self._hand = now_tick
        self._slots: dict[int, set[str]] = {}
        self._dealing: set[str] = set()  # a coarse slot that is being dealt out, in slices
        # The slot of the last `add`: writes with one TTL come in bursts that fall into one tick.
        self.recent_tick = _NO_TICK
        self.recent: set[str] = set()

    def add(self, key: str, tick: int) -> None:
        """Remember to look at ``key`` when its tick is over."""
        if tick != self.recent_tick:
            self.recent = self._slots.setdefault(self._slot_of(tick), set())
            self.recent_tick = tick
        self.recent.add(key)

    def discard(self, key: str, tick: int) -> None:
        """Forget ``key``, which was added with this tick."""
        slot_id = self._slot_of(tick)
        slot = self._slots.get(slot_id)
        if slot is not None:
            slot.discard(key)
            if not slot:
                self._drop(slot_id)
        if self._dealing:
            self._dealing.discard(key)

    def _slot_of(self, tick: int) -> int:
        hand = self._hand
        tick = max(tick, hand)  # earlier only if the clock went back; `take` notices that and deals everything out anew
        level_id = _LEVEL_ID[(tick ^ hand).bit_length()]
        return level_id | (tick >> (level_id >> _LEVEL_SHIFT))

    def _drop(self, slot_id: int) -> set[str]:
        self.recent_tick = _NO_TICK
        return self._slots.pop(slot_id)

    def next_tick(self) -> int | None:
        """Return the first tick at which there is something to do; None when the wheel is empty."""
        if self._dealing:
            return self._hand
        return min(map(_first_tick, self._slots)) if self._slots else None

    def until(self, tick: int) -> list[set[str]]:
        """Return the slots with the keys whose tick may have begun by ``tick``; they are the wheel's own, to be read.

        In them are all for which that is so, and others: of the slot into which ``tick`` falls, of those that are being
        dealt out, and stale ones. A key may be in two of them.
        """
        last = max(tick, self._hand)  # what was added for an earlier tick lies where the hand is
        slots = (slot for slot_id, slot in self._slots.items() if _first_tick(slot_id) <= last)
        return [self._dealing, *slots]

    def take(self, now_tick: int, limit: int, tick_of: Callable[[str], int | None]) -> list[str]:
        """Remove and return keys whose tick is over; `next_tick` tells whether there are more.

        Looks at ``limit`` keys at most. ``tick_of`` tells a key's present tick when a coarse slot is dealt out; None
        drops it.
        """
        if now_tick < self._hand:
            self._rewind()
        due: list[str] = []
        while limit > 0:
            if self._dealing:
                limit -= self._deal(limit, tick_of)
                continue
            slot_id = self._first_due(now_tick)
            if slot_id is None:
                break
            # Moving the hand to the start of the first slot leaves every other key where it is: each differs from the
            # new hand in the same digit as from the old one.
            self._hand = _first_tick(slot_id)
            slot = self._drop(slot_id)
            if slot_id >> _LEVEL_SHIFT:
                self._dealing = slot
                continue
            taken = min(limit, len(slot))
            due.extend(slot.pop() for _ in range(taken))
            limit -= taken
            if slot:
                self._slots[slot_id] = slot
        return due

    def _first_due(self, now_tick: int) -> int | None:
        if not self._slots:
            self._hand, self.recent_tick = now_tick, _NO_TICK
            return None
        slot_id = min(self._slots, key=_first_tick)
        return slot_id if _first_tick(slot_id) < now_tick else None

    def _deal(self, limit: int, tick_of: Callable[[str], int | None]) -> int:
        dealing = self._dealing
        count = min(limit, len(dealing))
        for _ in range(count):
            key = dealing.pop()
            tick = tick_of(key)
            if tick is not None:
                self.add(key, tick)
        if not dealing:
            self._dealing = set()  # the emptied set still holds the memory of all it had
        return count

    def _rewind(self) -> None:
        # The clock went back behind the hand: places no longer follow from hand and tick, so all is dealt out again,
        # from the beginning of time, because some may be due before any moment the hand has seen.
        self._dealing = self._dealing.union(*self._slots.values())
        self._slots = {}
        self._hand, self.recent_tick = 0, _NO_TICK
