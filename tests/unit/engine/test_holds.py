from __future__ import annotations

import pytest

from lapse.core.clock import UnixNs
from lapse.engine.safety.holds import HELD_DEPENDENTS, HOLD, HOLD_REASON, HOLD_UNTIL, Hold, hold_of, own_hold_of

NOON = UnixNs(1_700_000_000 * 1_000_000_000)


@pytest.mark.parametrize("annotations", [{}, {HOLD: ""}, {HOLD: "false"}, {HOLD_UNTIL: "2030-01-01T00:00:00Z"}])
def test_without_a_value_that_holds_there_is_no_hold(annotations: dict[str, str]) -> None:
    assert hold_of(annotations) is None


@pytest.mark.parametrize("value", ["true", "yes", "no", "False", " "])
def test_any_other_value_holds_because_doubt_keeps(value: str) -> None:
    assert hold_of({HOLD: value}) == Hold("", None)


def test_a_hold_says_why_and_until_when() -> None:
    found = hold_of({HOLD: "true", HOLD_REASON: "audit", HOLD_UNTIL: "2023-11-14T22:13:20Z"})

    assert found == Hold("audit", NOON)


@pytest.mark.parametrize(
    "until",
    [
        *("tomorrow", "", "2030-13-01T00:00:00Z", "2030-01-01T00:00:00", "1700000000"),
        *("0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z"),
    ],
)
def test_an_end_that_cannot_be_read_is_no_end(until: str) -> None:
    found = hold_of({HOLD: "true", HOLD_UNTIL: until})

    assert found is not None
    assert found.until is None
    assert found.active(UnixNs(2**62))


def test_a_hold_is_over_at_its_end_and_not_before() -> None:
    hold = Hold("", NOON)

    assert hold.active(UnixNs(NOON - 1))
    assert not hold.active(NOON)


def test_a_note_of_held_dependants_keeps_their_owner_and_does_not_cover_what_else_it_owns() -> None:
    noted = {HELD_DEPENDENTS: "u-1,u-2", HOLD: "true", HOLD_UNTIL: "2023-11-14T22:13:20Z"}
    found = hold_of(noted)

    assert found is not None
    assert found.until is None, "the note says nothing about an end"
    assert "u-1,u-2" in found.reason
    assert own_hold_of(noted) == Hold("", NOON)
    assert hold_of({HELD_DEPENDENTS: " "}) is None
