"""Deletion budgets: at most so many acts in any window of a given length. Pure.

Acts are counted in *slices*, a tenth of a window each, and a slice counts until its last moment has left the window.
So the promise holds for every window, wherever it begins, with a handful of numbers instead of one per act; the price
is that what was spent comes back up to a tenth of a window late. The other way, to forget a slice when its first moment
leaves, would let up to a slice too much happen, and a budget errs on the side of fewer deletions.

An *account* is what is counted together: a domain, or everything (`TOTAL`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from lapse.core.duration import SECOND, Duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TOTAL: Final = "all"
"""The account of all domains together; no domain has this name."""
SLICES: Final = 10
_LARGEST_BLOCK: Final = 1_000
_FORM: Final = re.compile(r"(?P<most>[0-9]{1,12})\s*/\s*(?P<window>\S+)")
_EXPECTED: Final = "expected a number of deletions and a duration, such as 10000/1h, or off"

Ledger = dict[str, dict[int, int]]
"""By account: how many acts each slice has, by the last nanosecond of the slice."""


@dataclass(frozen=True, slots=True)
class Budget:
    """At most ``most`` acts in any window of ``window_ns``; None is no limit."""

    most: int | None
    window_ns: int

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read such as ``10000/1h``; ``off`` and ``never`` mean no limit. Raises ValueError, which says why."""
        body = text.strip()
        if body.lower() in {"off", "never"}:
            return OFF
        found = _FORM.fullmatch(body)
        if found is None:
            raise ValueError(_EXPECTED)
        most, window = int(found["most"]), Duration.parse(found["window"]).nanoseconds
        if most == 0:
            raise ValueError(f"{_EXPECTED}; to stop all deletions run lapse freeze all")
        if window is None or window < SECOND:
            raise ValueError(f"{_EXPECTED}; the shortest window is 1s")
        return cls(most, window)

    def __str__(self) -> str:
        """Print as it is written."""
        return "off" if self.most is None else f"{self.most}/{Duration(self.window_ns)}"

    @property
    def slice_ns(self) -> int:
        """How long one slice is."""
        return self.window_ns // SLICES

    def slice_end(self, now: int) -> int:
        """Return the last moment of the slice that ``now`` is in."""
        return (now // self.slice_ns + 1) * self.slice_ns - 1

    def counts(self, slice_end: int, now: int) -> bool:
        """Whether an act of that slice may be within the window that ends at ``now``, which includes ``now``."""
        return slice_end > now - self.window_ns


OFF: Final = Budget(None, 0)


@dataclass(frozen=True, slots=True)
class BudgetRoom:
    """What may still be done now."""

    most: int | None
    """None: there is no limit."""
    account: str = ""
    """Whose budget is the closest to its end."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What was taken from the ledger: ``count`` acts, to be done until ``until``, in a slice of each account."""

    slices: tuple[tuple[str, int], ...]
    until: int | None
    count: int


class Reservation(msgspec.Struct, frozen=True):
    """Acts of a domain that a process has taken, and of which no row of the journal tells yet."""

    domain: str
    count: int
    slices: dict[str, int]
    """By account: the slice that they are counted in."""
    until: int
    """After this moment they are not done any more: the process that has taken them is gone."""
    store: str = ""
    """Whose things they are about, where several share a database."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """The budget of everything together, and those of single domains."""

    total: Budget = OFF
    domains: Mapping[str, Budget] = field(default_factory=dict)

    def of(self, account: str) -> Budget:
        """Return the budget of one account."""
        return self.total if account == TOTAL else self.domains.get(account, OFF)

    @property
    def longest_ns(self) -> int:
        """How far back any of them counts, with the slice that a window begins in."""
        return max(budget.window_ns + budget.slice_ns for budget in (self.total, *self.domains.values()))

    def accounts(self, domain: str) -> list[tuple[str, Budget]]:
        """Return what an act of ``domain`` is counted on; nothing that has no limit."""
        both = ((domain, self.of(domain)), (TOTAL, self.total))
        return [(name, budget) for name, budget in both if budget.most is not None]

    def room(self, ledger: Ledger, domain: str, now: int) -> BudgetRoom:
        """Say how much ``domain`` may still do at ``now``; never less than nothing."""
        rooms = [BudgetRoom(self.left(ledger, name, now), name) for name, _ in self.accounts(domain)]
        return min(rooms, key=lambda room: room.most or 0, default=BudgetRoom(None))

    def left(self, ledger: Ledger, account: str, now: int) -> int:
        """Say how much of the budget of an account, which has one, is left at ``now``; never less than nothing."""
        budget = self.of(account)
        spent = sum(count for end, count in ledger.get(account, {}).items() if budget.counts(end, now))
        return max(0, (budget.most or 0) - spent)

    def block(self, domain: str, wanted: int) -> int:
        """Return how much to take at once: a tenth of the smallest budget, at least ``wanted``.

        What was taken and not done is lost in a crash, so a block is small against the budget; each costs a write
        where the ledger is stored, so it is large against one act.
        """
        tenths = [(budget.most or 0) // 10 for _, budget in self.accounts(domain)]
        return max(wanted, 1, min([*tenths, _LARGEST_BLOCK]))

    def charge(self, ledger: Ledger, domain: str, count: int, *, now: int) -> tuple[Ledger, Charge]:
        """Take ``count`` acts at ``now``; what no longer counts is left out of the new ledger."""
        accounts = self.accounts(domain)
        slices = tuple((name, budget.slice_end(now)) for name, budget in accounts)
        taken = Charge(slices, min((end for _, end in slices), default=None), count)
        return _changed(self._kept(ledger, now), slices, count), taken

    def reservation(self, domain: str, charge: Charge, count: int) -> Reservation:
        """Return what others are to know of ``count`` acts of a charge: for a slice longer, as some are under way."""
        slack = max((budget.slice_ns for _, budget in self.accounts(domain)), default=0)
        return Reservation(domain, count, dict(charge.slices), (charge.until or 0) + slack)

    def give_back(self, ledger: Ledger, charge: Charge, count: int) -> Ledger:
        """Undo ``count`` acts of a charge that will not be done any more."""
        return _changed(ledger, charge.slices, -count)

    def _kept(self, ledger: Ledger, now: int) -> Ledger:
        return {
            name: {end: count for end, count in slices.items() if self.of(name).counts(end, now)}
            for name, slices in ledger.items()
            if self.of(name).most is not None
        }


def added(ledger: Ledger, further: Ledger) -> Ledger:
    """Return the sum of two ledgers."""
    found = {name: dict(slices) for name, slices in ledger.items()}
    for name, slices in further.items():
        account = found.setdefault(name, {})
        for end, count in slices.items():
            account[end] = account.get(end, 0) + count
    return found


def ledger_of(reservations: Iterable[Reservation], now: int) -> Ledger:
    """Return what is reserved, without what was left behind by processes that are gone."""
    found: Ledger = {}
    for one in reservations:
        if one.until >= now:
            found = added(found, {name: {end: one.count} for name, end in one.slices.items()})
    return found


def _left(budget: Budget, slices: Mapping[int, int], now: int) -> int:
    return (budget.most or 0) - sum(count for end, count in slices.items() if budget.counts(end, now))


def _changed(ledger: Ledger, slices: Iterable[tuple[str, int]], count: int) -> Ledger:
    changed = {name: dict(found) for name, found in ledger.items()}
    for name, end in slices:
        account = changed.setdefault(name, {})
        account[end] = max(0, account.get(end, 0) + count)
    return changed
