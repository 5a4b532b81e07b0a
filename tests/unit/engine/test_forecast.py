"""The counting of a forecast: to which step an instant belongs, and which things are the nearest."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.decision import Decision, Due, DueReason
from lapse.engine.domain import Candidate
from lapse.engine.explanation import HoldFacts
from lapse.engine.plans.forecast import ForecastPlace, ForecastPlaceError, Foreseen, Nearest, StepCounts, Window

NOW = UnixNs(1_900_000_000_000_000_000)
HOUR = 3_600_000_000_000
WINDOW = Window(NOW, UnixNs(NOW + HOUR), 4)


def thing(name: str, after: int, *, due: bool = False, hold: HoldFacts | None = None) -> Foreseen:
    candidate: Candidate[Any] = Candidate(
        address=Address("thing", None, name), uid=f"u-{name}", version="1", state=None, handle=None
    )
    at = UnixNs(NOW + after)
    return Foreseen(candidate, Decision(Due("delete", DueReason.TTL_EXPIRED, since=at)), due, at, hold)


@pytest.mark.parametrize(
    ("after", "step"),
    [
        (-1, 0),
        (0, 0),
        (HOUR // 4 - 1, 0),
        (HOUR // 4, 1),
        (HOUR // 4 + 1, 1),
        (HOUR // 2 - 1, 1),
        (HOUR // 2, 2),
        (HOUR - 1, 3),
        (HOUR, 3),
        (HOUR + 1, 3),
    ],
)
def test_an_instant_at_which_a_step_begins_is_in_that_step_and_the_end_in_the_last(after: int, step: int) -> None:
    assert WINDOW.step_of(NOW + after) == step


@given(st.integers(1, 366), st.integers(1, 10**18), st.data())
def test_the_edges_are_the_first_instants_of_their_steps(steps: int, length: int, data: st.DataObject) -> None:
    window = Window(NOW, UnixNs(NOW + length), steps)
    edges = window.edges()
    assert len(edges) == steps - 1
    moment = data.draw(st.integers(NOW, NOW + length - 1) | st.sampled_from(edges or [NOW]))
    if moment < window.until:  # of a window with fewer instants than steps, the last edges are its end
        assert window.step_of(moment) == sum(edge <= moment for edge in edges)


def test_a_window_of_no_length_has_all_in_its_first_step() -> None:
    assert Window(NOW, NOW, 3).step_of(NOW) == 0
    assert Window(NOW, NOW, 3).step_seconds == 0


def test_what_is_held_or_overdue_is_in_no_step() -> None:
    counts = StepCounts(WINDOW)
    held = HoldFacts("audit", None)
    for one in (
        thing("a", -1, due=True),
        thing("b", -1, due=True, hold=held),
        thing("c", 1, hold=held),
        thing("d", 1),
        thing("e", HOUR - 1),
    ):
        counts.add(one)
    assert (counts.overdue, counts.held, counts.counts) == (1, 2, [1, 0, 0, 1])


@given(st.integers(1, 7), st.lists(st.integers(0, 9), max_size=30))
def test_pages_have_each_thing_once_and_in_order(limit: int, times: list[int]) -> None:
    things = [thing(str(number), time) for number, time in enumerate(times)]
    expected = sorted((one.due_at, str(one.candidate.address)) for one in things)
    seen: list[tuple[int, str]] = []
    after: ForecastPlace | None = None
    while True:
        things.reverse()  # in whatever order they come
        nearest = Nearest(limit, after)
        for one in things:
            nearest.add("things", one)
        found, behind = nearest.page()
        assert len(found) <= limit
        seen += [place[:2] for place, _ in found]
        if behind is None:
            break
        after = ForecastPlace.parse(str(behind))
    assert seen == expected


def test_of_many_things_only_little_more_than_a_page_is_kept() -> None:
    nearest = Nearest(2, None)
    for number in range(5_000, 0, -1):
        nearest.add("things", thing(f"{number:04}", number))
    found, behind = nearest.page()
    assert [place.due_at - NOW for place, _ in found] == [1, 2]
    assert behind == found[-1][0]
    assert len(nearest._found) == 3


def test_things_of_one_time_and_address_in_two_domains_are_both_told() -> None:
    whole, first = Nearest(1, None), thing("a", 5)
    for domain in ("one", "two"):
        beside = whole.beside()
        beside.add(domain, first)
        whole.merge(beside)
    found, behind = whole.page()
    assert [place.domain for place, _ in found] == ["one"]
    rest = Nearest(1, behind)
    for domain in ("one", "two"):
        rest.add(domain, first)
    assert [place.domain for place, _ in rest.page()[0]] == ["two"]


@pytest.mark.parametrize("text", ["", "1", "x thing thing/a", "1 thing", "1 thing a b", "-1 thing a", "\u0661 b c"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ForecastPlaceError):
        ForecastPlace.parse(text)
