"""Deliberately broken backends, each wrong in one way, around the real memory backend.

They know nothing of its inside: they stand between the public API and a `Space`, and spoil what goes through.
"""

from __future__ import annotations

import math
import unicodedata
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from lapse.core.clock import Clock, SystemClock
from lapse.keys.backends.layout import Prefix
from lapse.keys.conformance import StoreTarget
from lapse.keys.conformance.worker import START
from lapse.keys.port import Backend, CleanupReport, ExpiringCount, Item, NewItem, Space
from lapse.keys.store import Keys
from lapse.keys.url import open_backend
from tests.conformance.windows import AsyncWindow, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class PassingSpace:
    """A space that passes everything on. Subclasses spoil one thing."""

    def __init__(self, inner: Space, ever: dict[str, str], window: Window | None = None) -> None:
        self.inner = inner
        self.ever = ever
        """Every key ever written, with its last value: what a store that forgets to forget knows."""
        self.window = window or Window()
        """Where a step is not atomic, this is where it breaks."""

    def name(self, key: str) -> str:
        return key

    def content(self, value: str) -> str:
        return value

    def get(self, key: str) -> str | None:
        return self.inner.get(self.name(key))

    def find(self, key: str) -> Item | None:
        return self.inner.find(self.name(key))

    def ttl(self, key: str) -> float | None:
        return self.inner.ttl(self.name(key))

    def insert(self, key: str, value: str, ttl_seconds: int) -> bool:
        done = self.inner.insert(self.name(key), self.content(value), ttl_seconds)
        if done:
            self.ever[key] = value
        return done

    def put(self, key: str, value: str, ttl_seconds: int) -> None:
        self.ever[key] = value
        self.inner.put(self.name(key), self.content(value), ttl_seconds)

    def swap(self, key: str, expected: str, value: str, ttl_seconds: int) -> bool:
        return self.inner.swap(self.name(key), self.content(expected), self.content(value), ttl_seconds)

    def delete(self, key: str) -> bool:
        return self.inner.delete(self.name(key))

    def delete_if(self, key: str, expected: str) -> bool:
        return self.inner.delete_if(self.name(key), self.content(expected))

    def touch(self, key: str, ttl_seconds: int) -> bool:
        return self.inner.touch(self.name(key), ttl_seconds)

    def get_many(self, keys: Sequence[str]) -> dict[str, str]:
        return {key: value for key in keys if (value := self.get(key)) is not None}

    def insert_many(self, items: Sequence[NewItem]) -> list[bool]:
        return [self.insert(*item) for item in items]

    def scan(self, start: str, stop: str | None, limit: int) -> list[Item]:
        return self.inner.scan(start, stop, limit)


class PassingBackend:
    """A backend that passes everything on, through spaces of a given class."""

    space_class: type[PassingSpace] = PassingSpace

    def __init__(self, inner: Backend, clock: Clock) -> None:
        self.inner = inner
        self.clock = clock
        self.capabilities = inner.capabilities
        self.sweep_interval = inner.sweep_interval
        self.ever: defaultdict[tuple[Prefix, int], dict[str, str]] = defaultdict(dict)
        self.windows: defaultdict[tuple[Prefix, int], Window] = defaultdict(Window)

    def place(self, prefix: Prefix, app_id: int) -> tuple[Prefix, int]:
        return prefix, app_id

    def space(self, prefix: Prefix, app_id: int) -> Space:
        place = self.place(prefix, app_id)
        return self.space_class(self.inner.space(*place), self.ever[place], self.windows[place])

    def async_space(self, prefix: Prefix, app_id: int) -> Space:
        return self.space(prefix, app_id)  # the memory backend answers at once in either style

    def sweep(self, limit: int) -> CleanupReport:
        return self.inner.sweep(limit)

    def counts(self) -> Iterable[tuple[Prefix, int, int]]:
        return self.inner.counts()

    def expiring(self, until_ns: int, edges_ns: Sequence[int] = ()) -> Sequence[ExpiringCount] | None:
        return self.inner.expiring(until_ns, edges_ns)

    def check(self) -> None:
        self.inner.check()

    def async_check(self) -> object:
        return self.inner.async_check()

    def close(self) -> None:
        self.inner.close()

    def async_close(self) -> object:
        return self.inner.async_close()


def target_of(
    broken: type[PassingSpace | PassingBackend], *, exact_clock: bool = True, late_by_seconds: float = 0.0
) -> StoreTarget:
    """Return a target that opens a broken store; like memory, unless told otherwise."""

    def opened(clock: Clock | None) -> Keys:
        clock = clock or SystemClock()
        backend_class = broken if issubclass(broken, PassingBackend) else PassingBackend
        backend = backend_class(open_backend("memory://", clock), clock)
        if issubclass(broken, PassingSpace):
            backend.space_class = broken
        return Keys(backend, clock=clock, sweep=False)

    return StoreTarget(open=opened, exact_clock=exact_clock, shared=False, late_by_seconds=late_by_seconds)


# --- not atomic ------------------------------------------------------------------------------------------------------


class InsertInTwoSteps(PassingSpace):
    def insert(self, key: str, value: str, ttl_seconds: int) -> bool:
        if self.inner.get(key) is not None:
            return False
        if value != START:  # which is written before a race, by one who is alone
            self.window.meet(key)
        self.inner.put(key, value, ttl_seconds)
        return True


class InsertInTwoStepsWhereExpired(PassingSpace):
    """Sees that the old record is over, removes it, and then writes whatever has come in between."""

    def insert(self, key: str, value: str, ttl_seconds: int) -> bool:
        if key not in self.ever:
            return super().insert(key, value, ttl_seconds)
        if self.inner.get(key) is not None:
            return False
        self.window.meet(key)
        self.inner.put(key, value, ttl_seconds)
        return True


class SwapInTwoSteps(PassingSpace):
    def swap(self, key: str, expected: str, value: str, ttl_seconds: int) -> bool:
        if self.inner.get(key) != expected:
            return False
        self.window.meet((key, expected))
        self.inner.put(key, value, ttl_seconds)
        return True

    def delete_if(self, key: str, expected: str) -> bool:
        self.window.wait_for_a_look()
        return super().delete_if(key, expected)


class DeleteInTwoSteps(PassingSpace):
    def delete(self, key: str) -> bool:
        if self.inner.get(key) is None:
            return False
        self.window.meet(key)
        self.inner.delete(key)
        return True

    def delete_if(self, key: str, expected: str) -> bool:
        return self.inner.get(key) == expected and self.delete(key)


class TouchInTwoSteps(PassingSpace):
    """Renews by writing the value that it read: what was swapped or deleted in between comes back."""

    def touch(self, key: str, ttl_seconds: int) -> bool:
        value = self.inner.get(key)
        if value is None:
            return False
        if not self.window.overtaken(lambda: self.inner.get(key) != value):
            return self.inner.touch(key, ttl_seconds)
        self.inner.put(key, value, ttl_seconds)
        return True

    def delete(self, key: str) -> bool:
        self.window.wait_for_a_look()
        return super().delete(key)


class AwaitedWritesInTwoSteps(PassingBackend):
    """Atomic for threads, not for tasks of an event loop."""

    class Space(PassingSpace):
        async_window: AsyncWindow

        def insert(self, key: str, value: str, ttl_seconds: int) -> Any:  # noqa: ANN401 - not what it should be
            return self._put_if(None, key, value, ttl_seconds)

        def swap(self, key: str, expected: str, value: str, ttl_seconds: int) -> Any:  # noqa: ANN401 - not what it should be
            return self._put_if(expected, key, value, ttl_seconds)

        async def _put_if(self, expected: str | None, key: str, value: str, ttl_seconds: int) -> bool:
            if self.inner.get(key) != expected:
                return False
            await self.async_window.meet(key, expected)
            self.inner.put(key, value, ttl_seconds)
            return True

    def __init__(self, inner: Backend, clock: Clock) -> None:
        super().__init__(inner, clock)
        self.async_window = AsyncWindow()

    def async_space(self, prefix: Prefix, app_id: int) -> Space:
        space = self.Space(self.inner.space(prefix, app_id), {})
        space.async_window = self.async_window
        return space


# --- wrong about time ------------------------------------------------------------------------------------------------


class LateClock:
    """One nanosecond behind."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def wall_ns(self) -> int:
        return self._clock.wall_ns() - 1

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the clock
        return getattr(self._clock, name)


class AliveAtTheInstant(PassingBackend):
    """Off by one: ``now > expiry`` where it should be ``now >= expiry``."""

    def __init__(self, inner: Backend, clock: Clock) -> None:
        super().__init__(open_backend("memory://", LateClock(clock)), clock)


class GoneOneMillisecondEarly(PassingSpace):
    def get(self, key: str) -> str | None:
        left = self.inner.ttl(key)
        return None if left is not None and left <= 0.001 else self.inner.get(key)


class GoneASecondEarly(PassingSpace):
    def get(self, key: str) -> str | None:
        left = self.inner.ttl(key)
        return None if left is not None and left <= 1 else self.inner.get(key)


class LivesASecondLonger(PassingSpace):
    def insert(self, key: str, value: str, ttl_seconds: int) -> bool:
        return super().insert(key, value, ttl_seconds + 1)


class BlocksForever(PassingSpace):
    """An expired record is not seen, but still refuses an insert."""

    def insert(self, key: str, value: str, ttl_seconds: int) -> bool:
        return key not in self.ever and super().insert(key, value, ttl_seconds)


class TouchRevives(PassingSpace):
    def touch(self, key: str, ttl_seconds: int) -> bool:
        if not self.inner.touch(key, ttl_seconds) and key in self.ever:
            self.inner.put(key, self.ever[key], ttl_seconds)
        return key in self.ever


class SwapRevives(PassingSpace):
    def swap(self, key: str, expected: str, value: str, ttl_seconds: int) -> bool:
        if self.inner.get(key) is None and self.ever.get(key) == expected:
            self.inner.put(key, value, ttl_seconds)
            return True
        return self.inner.swap(key, expected, value, ttl_seconds)


class SwapKeepsTheOldTTL(PassingSpace):
    def swap(self, key: str, expected: str, value: str, ttl_seconds: int) -> bool:
        return self.inner.swap(key, expected, value, math.ceil(self.inner.ttl(key) or 1))


class RefusedInsertRenews(PassingSpace):
    def insert(self, key: str, value: str, ttl_seconds: int) -> bool:
        return super().insert(key, value, ttl_seconds) or (self.inner.touch(key, ttl_seconds) and False)


class ReadRenews(PassingSpace):
    def get(self, key: str) -> str | None:
        self.inner.touch(key, 600)
        return self.inner.get(key)


class TTLRoundedDown(PassingSpace):
    def ttl(self, key: str) -> float | None:
        left = self.inner.ttl(key)
        return None if left is None else float(math.floor(left))


class SweepKillsTheRenewed(PassingBackend):
    """Keeps an index by the first expiry and trusts it."""

    class Space(PassingSpace):
        note: Callable[[str, int], object]

        def insert(self, key: str, value: str, ttl_seconds: int) -> bool:
            done = super().insert(key, value, ttl_seconds)
            if done:
                self.note(key, ttl_seconds)
            return done

    def __init__(self, inner: Backend, clock: Clock) -> None:
        super().__init__(inner, clock)
        self._due: dict[tuple[Prefix, int, str], int] = {}

    def space(self, prefix: Prefix, app_id: int) -> Space:
        space = self.Space(self.inner.space(prefix, app_id), {})
        space.note = lambda key, ttl: self._due.setdefault((prefix, app_id, key), self.clock.wall_ns() + ttl * 10**9)
        return space

    def sweep(self, limit: int) -> CleanupReport:
        for (prefix, app_id, key), due_ns in list(self._due.items()):
            if due_ns <= self.clock.wall_ns():
                self.inner.space(prefix, app_id).delete(key)
                del self._due[prefix, app_id, key]
        return self.inner.sweep(limit)


class NeverSweeps(PassingBackend):
    def sweep(self, limit: int) -> CleanupReport:
        return CleanupReport(removed=0, more=False)


class SweepsWithoutLimit(PassingBackend):
    def sweep(self, limit: int) -> CleanupReport:
        return self.inner.sweep(1_000_000)


class CountsTheExpired(PassingBackend):
    """As one that counts by an index and forgets that some of it is not swept yet."""

    def expiring(self, until_ns: int, edges_ns: Sequence[int] = ()) -> Sequence[ExpiringCount] | None:
        stored = {(prefix, app_id): number for prefix, app_id, number in self.inner.counts()}
        return [one._replace(number=stored[one[:2]]) for one in self.inner.expiring(until_ns, edges_ns) or ()]


class CountsWithoutTheInstant(PassingBackend):
    """Off by one: ``expiry < until`` where it should be ``expiry <= until``."""

    def expiring(self, until_ns: int, edges_ns: Sequence[int] = ()) -> Sequence[ExpiringCount] | None:
        return self.inner.expiring(until_ns - 1, edges_ns)


class CountsByTheSlot(PassingBackend):
    """Trusts a coarse index: what lies in one slot with the moment counts, too."""

    def expiring(self, until_ns: int, edges_ns: Sequence[int] = ()) -> Sequence[ExpiringCount] | None:
        return self.inner.expiring(until_ns | (1 << 36) - 1, edges_ns)


class CountsByWriting(PassingBackend):
    """Renews what it counts."""

    def expiring(self, until_ns: int, edges_ns: Sequence[int] = ()) -> Sequence[ExpiringCount] | None:
        told = self.inner.expiring(until_ns, edges_ns)
        for one in told or ():
            space = self.inner.space(one.prefix, one.app_id)
            for item in space.scan("", None, 1000):
                space.touch(item.key, 3600)
        return told


# --- wrong about texts -----------------------------------------------------------------------------------------------


class NormalisedKeys(PassingSpace):
    def name(self, key: str) -> str:
        return unicodedata.normalize("NFC", key)


class CaseFoldedKeys(PassingSpace):
    def name(self, key: str) -> str:
        return key.casefold()


class KeysWithoutTrailingSpace(PassingSpace):
    def name(self, key: str) -> str:
        return key.rstrip(" ") or " "


class KeysThatEndAtNUL(PassingSpace):
    def name(self, key: str) -> str:
        return key.partition("\0")[0] or "nothing"


class KeysOf255Characters(PassingSpace):
    def name(self, key: str) -> str:
        return key[:255]


class ValuesOf65535Bytes(PassingSpace):
    def content(self, value: str) -> str:
        return value.encode()[:65_535].decode(errors="ignore")


class ValuesWithTypes(PassingSpace):
    """As a column of numbers would: 01 is 1."""

    def content(self, value: str) -> str:
        return str(int(value)) if value.isdecimal() else value


class NormalisedValues(PassingSpace):
    def content(self, value: str) -> str:
        return unicodedata.normalize("NFC", value)


class EmptyValueIsAbsent(PassingSpace):
    def get(self, key: str) -> str | None:
        return self.inner.get(key) or None


# --- wrong about scans -----------------------------------------------------------------------------------------------


class UnorderedScan(PassingSpace):
    def scan(self, start: str, stop: str | None, limit: int) -> list[Item]:
        page = self.inner.scan(start, stop, limit)
        return page[1::2] + page[::2]


class ScanInTheOrderOfUTF16(PassingSpace):
    def scan(self, start: str, stop: str | None, limit: int) -> list[Item]:
        return sorted(self.inner.scan(start, stop, limit), key=lambda item: item.key.encode("utf-16-be"))


class ScanWithoutRightBound(PassingSpace):
    def scan(self, start: str, stop: str | None, limit: int) -> list[Item]:
        return self.inner.scan(start, None, limit)


class ScanWithAnInclusiveRightBound(PassingSpace):
    def scan(self, start: str, stop: str | None, limit: int) -> list[Item]:
        return self.inner.scan(start, None if stop is None else stop + "\0", limit)


class ScanWithoutLimit(PassingSpace):
    def scan(self, start: str, stop: str | None, limit: int) -> list[Item]:
        return self.inner.scan(start, stop, 10_000)


class ScanRepeatsTheLastKey(PassingSpace):
    def scan(self, start: str, stop: str | None, limit: int) -> list[Item]:
        return self.inner.scan(start.rstrip("\0"), stop, limit)


class ScanCountsTheDead(PassingSpace):
    """Cuts the page first and drops the dead afterwards, so a short page is not the last one."""

    def scan(self, start: str, stop: str | None, limit: int) -> list[Item]:
        names = sorted(name for name in self.ever if start <= name and (stop is None or name < stop))[:limit]
        return [item for name in names if (item := self.inner.find(name)) is not None]


# --- wrong about several keys, applications and expectations ---------------------------------------------------------


class InsertManyStopsAtARefusal(PassingSpace):
    def insert_many(self, items: Sequence[NewItem]) -> list[bool]:
        answers: list[bool] = []
        for item in items:
            answers.append(self.insert(*item))
            if not answers[-1]:
                break
        return answers + [False] * (len(items) - len(answers))


class InsertManyTakesTheLast(PassingSpace):
    def insert_many(self, items: Sequence[NewItem]) -> list[bool]:
        last = {item.key: item for item in items}
        return [last[item.key] is item and self.insert(*item) for item in items]


class GetManyOfAHundred(PassingSpace):
    def get_many(self, keys: Sequence[str]) -> dict[str, str]:
        return super().get_many(keys[:100])


class DeleteIfIgnoresTheValue(PassingSpace):
    def delete_if(self, key: str, expected: str) -> bool:
        return self.inner.delete(key)


class DeleteIfForgetsToDelete(PassingSpace):
    def delete_if(self, key: str, expected: str) -> bool:
        return self.inner.get(key) == expected


class OneApplicationForAll(PassingBackend):
    def place(self, prefix: Prefix, app_id: int) -> tuple[Prefix, int]:
        return prefix, 0


class ApplicationsOf16Bits(PassingBackend):
    def place(self, prefix: Prefix, app_id: int) -> tuple[Prefix, int]:
        return prefix, app_id & 0xFFFF


class LocksAmongKeys(PassingBackend):
    def place(self, prefix: Prefix, app_id: int) -> tuple[Prefix, int]:
        return Prefix.APPLICATION_TTL, app_id


class Failing(PassingSpace):
    def get(self, key: str) -> str | None:
        raise OSError("the disk is on fire")


class AnswersTheWrongType(PassingSpace):
    def insert(self, key: str, value: str, ttl_seconds: int) -> Any:  # noqa: ANN401 - not what it should be
        return int(super().insert(key, value, ttl_seconds))


class Forgets(PassingSpace):
    """Cannot delete what it has stored."""

    def delete(self, key: str) -> bool:
        return self.inner.get(key) is not None
