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


@dataclass(frozen=True, slots=True)
class Budgets:
    """The budget of everything together, and those of single domains."""

    total: Budget = OFF
    domains: Mapping[str, Budget] = field(default_factory=dict)

    def of(self, account: str) -> Budget:
        """Return the budget of one account."""
        return self.total if account == TOTAL else self.domains.get(account, OFF)

    def accounts(self, domain: str) -> list[tuple[str, Budget]]:
        """Return what an act of ``domain`` is counted on; nothing that has no limit."""
        both = ((domain, self.of(domain)), (TOTAL, self.total))
        return [(name, budget) for name, budget in both if budget.most is not None]

    def room(self, ledger: Ledger, domain: str, now: int) -> BudgetRoom:
        """Say how much ``domain`` may still do at ``now``; never less than nothing."""
        rooms = [
            BudgetRoom(max(0, _left(budget, ledger.get(name, {}), now)), name) for name, budget in self.accounts(domain)
        ]
        return min(rooms, key=lambda room: room.most or 0, default=BudgetRoom(None))

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

    def give_back(self, ledger: Ledger, charge: Charge, count: int) -> Ledger:
        """Undo ``count`` acts of a charge that will not be done any more."""
        return _changed(ledger, charge.slices, -count)

    def _kept(self, ledger: Ledger, now: int) -> Ledger:
        return {
            name: {end: count for end, count in slices.items() if self.of(name).counts(end, now)}
            for name, slices in ledger.items()
            if self.of(name).most is not None
        }


def _left(budget: Budget, slices: Mapping[int, int], now: int) -> int:
    return (budget.most or 0) - sum(count for end, count in slices.items() if budget.counts(end, now))


def _changed(ledger: Ledger, slices: Iterable[tuple[str, int]], count: int) -> Ledger:
    changed = {name: dict(found) for name, found in ledger.items()}
    for name, end in slices:
        account = changed.setdefault(name, {})
        account[end] = max(0, account.get(end, 0) + count)
    return changed
