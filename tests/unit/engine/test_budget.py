from __future__ import annotations

import pytest

from lapse.core.duration import HOUR, SECOND
from lapse.engine.safety.budget import OFF, TOTAL, Budget, BudgetRoom, Budgets

TEN_SECONDS = Budget(20, 10 * SECOND)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10000/1h", Budget(10_000, HOUR)),
        (" 5 / 90s ", Budget(5, 90 * SECOND)),
        ("1/1s", Budget(1, SECOND)),
        ("7/PT1H", Budget(7, HOUR)),
        ("off", OFF),
        ("Never", OFF),
    ],
)
def test_a_budget_is_read_as_people_write_it(text: str, expected: Budget) -> None:
    assert Budget.parse(text) == expected


@pytest.mark.parametrize("budget", [Budget(10_000, HOUR), TEN_SECONDS, OFF])
def test_a_printed_budget_is_read_back(budget: Budget) -> None:
    assert Budget.parse(str(budget)) == budget


@pytest.mark.parametrize(
    "text", ["", "1000", "0/1h", "-1/1h", "1/0s", "1/999ms", "1/never", "1h/1000", "1e3/1h", "/1h"]
)
def test_what_is_no_budget_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"10000/1h|1h30m"):
        Budget.parse(text)


@pytest.mark.parametrize(
    ("now", "end"),
    [(0, SECOND - 1), (SECOND - 1, SECOND - 1), (SECOND, 2 * SECOND - 1), (5 * SECOND + 1, 6 * SECOND - 1)],
)
def test_a_slice_ends_just_before_the_next(now: int, end: int) -> None:
    assert TEN_SECONDS.slice_end(now) == end


def test_a_slice_counts_until_its_last_moment_has_left_the_window() -> None:
    end = TEN_SECONDS.slice_end(0)

    assert TEN_SECONDS.counts(end, 0)
    assert TEN_SECONDS.counts(end, end + 10 * SECOND - 1)
    assert not TEN_SECONDS.counts(end, end + 10 * SECOND)


def test_the_room_is_that_of_the_budget_closest_to_its_end() -> None:
    budgets = Budgets(Budget(10, HOUR), {"a": Budget(8, HOUR)})
    ledger, _ = budgets.charge({}, "a", 3, now=0)

    assert budgets.room(ledger, "a", 0) == BudgetRoom(5, "a")
    assert budgets.room(ledger, "b", 0) == BudgetRoom(7, TOTAL)
    ledger, _ = budgets.charge(ledger, "b", 7, now=1)
    assert budgets.room(ledger, "a", 1) == BudgetRoom(0, TOTAL)


def test_without_a_budget_there_is_no_limit_and_nothing_to_write() -> None:
    ledger, charge = Budgets().charge({}, "a", 5, now=0)

    assert (ledger, charge.slices, charge.until) == ({}, (), None)
    assert Budgets().room(ledger, "a", 0) == BudgetRoom(None)


def test_a_smaller_budget_than_before_leaves_no_room_instead_of_less_than_none() -> None:
    ledger, _ = Budgets(Budget(10, HOUR)).charge({}, "a", 9, now=0)

    assert Budgets(Budget(5, HOUR)).room(ledger, "a", 0) == BudgetRoom(0, TOTAL)


def test_what_no_longer_counts_is_forgotten() -> None:
    budgets = Budgets(TEN_SECONDS)
    ledger, _ = budgets.charge({}, "a", 4, now=0)
    ledger, _ = budgets.charge(ledger, "a", 2, now=20 * SECOND)

    assert ledger == {TOTAL: {21 * SECOND - 1: 2}}


def test_what_is_given_back_may_be_taken_again() -> None:
    budgets = Budgets(TEN_SECONDS, {"a": TEN_SECONDS})
    ledger, charge = budgets.charge({}, "a", 20, now=0)
    assert budgets.room(ledger, "a", 0).most == 0

    assert budgets.room(budgets.give_back(ledger, charge, 3), "a", 0).most == 3


@pytest.mark.parametrize(
    ("most", "wanted", "block"), [(5, 1, 1), (20, 1, 2), (20, 7, 7), (1_000, 1, 100), (1_000_000, 1, 1_000)]
)
def test_a_block_is_small_against_the_budget_and_large_against_an_act(most: int, wanted: int, block: int) -> None:
    assert Budgets(Budget(most, HOUR)).block("a", wanted) == block
