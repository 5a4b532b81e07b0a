from __future__ import annotations

from contextlib import nullcontext

import pytest

from lapse.core.clock import UnixNs
from lapse.engine.safety.holds import (
    HELD_DEPENDENTS,
    HOLD,
    HOLD_BY,
    HOLD_REASON,
    HOLD_UNTIL,
    HeldDependent,
    Hold,
    LegalHoldError,
    SecondPersonError,
    UnnamedPersonError,
    WeakerHoldError,
    demand_placeable,
    demand_releasable,
    held_dependents,
    hold_annotations,
    hold_of,
    note_text,
    own_hold_of,
)

NOON = UnixNs(1_700_000_000 * 1_000_000_000)
AT_NOON = "2023-11-14T22:13:20Z"


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
    assert "u-1, u-2" in found.reason
    assert own_hold_of(noted) == Hold("", NOON)
    assert hold_of({HELD_DEPENDENTS: " "}) is None


def test_a_note_ends_with_the_last_hold_that_it_tells_of() -> None:
    one, two = HeldDependent("u-1", "v1/ConfigMap/shop/a", "2023-11-14T22:13:19Z"), HeldDependent("u-2", until=AT_NOON)
    assert ends(one, two) == NOON
    assert ends(one, two, HeldDependent("u-3")) is None, "one of them has no end"
    assert ends(one, HeldDependent("u-3", until="tomorrow")) is None, "an end that cannot be read is no end"
    assert held_dependents({HELD_DEPENDENTS: note_text([two, one]) or ""}) == (one, two)
    assert note_text([]) is None


def ends(*entries: HeldDependent) -> UnixNs | None:
    found = hold_of({HELD_DEPENDENTS: note_text(entries) or ""})
    assert found is not None
    return found.until


def test_of_a_hold_of_its_own_and_a_note_the_longer_one_keeps() -> None:
    note = note_text([HeldDependent("u-1", until=AT_NOON)]) or ""
    longer = {HELD_DEPENDENTS: note, HOLD: "true"}
    shorter = {HELD_DEPENDENTS: note, HOLD: "true", HOLD_UNTIL: "2023-11-14T22:13:19Z"}
    assert hold_of(longer) == Hold("", None)
    assert (hold_of(shorter) or Hold("", None)).until == NOON


@pytest.mark.parametrize("spoilt", ["[", "{}", "[{}]", '[{"uid": 1}]', "null"])
def test_a_note_that_cannot_be_read_keeps_without_an_end(spoilt: str) -> None:
    found = hold_of({HELD_DEPENDENTS: spoilt})
    assert found is not None
    assert found.until is None


def test_a_legal_hold_has_no_end_and_names_its_person() -> None:
    found = hold_of({HOLD: "legal", HOLD_UNTIL: AT_NOON, HOLD_BY: "ann", HOLD_REASON: "case 7"})
    assert found == Hold("case 7", None, "ann", is_legal=True)


@pytest.mark.parametrize("hold", [Hold("audit", NOON, "ann"), Hold("", None), Hold("case", None, "ann", is_legal=True)])
def test_what_is_written_is_what_is_read(hold: Hold) -> None:
    written = {name: value for name, value in hold_annotations(hold).items() if value is not None}
    assert own_hold_of(written) == hold
    assert set(hold_annotations(None)) == set(hold_annotations(hold))


# --- what may be written ----------------------------------------------------------------------------------------------

SOON, LATE = UnixNs(NOON + 1), UnixNs(NOON + 9)
LEGAL = Hold("case", None, "ann", is_legal=True)


@pytest.mark.parametrize(
    ("wanted", "found", "is_replacing", "error"),
    [
        (Hold("", LATE), Hold("", SOON), False, None),
        (Hold("", SOON), Hold("", SOON), False, None),
        (Hold("", None), Hold("", LATE), False, None),
        (Hold("", SOON), Hold("", LATE), False, WeakerHoldError),
        (Hold("", LATE), Hold("", None), False, WeakerHoldError),
        (Hold("", SOON), Hold("", LATE), True, None),
        (Hold("", SOON), Hold("", NOON), False, None),
        (LEGAL, Hold("", None, "bob"), False, None),
        (LEGAL, LEGAL, False, None),
        (Hold("", None, "ann"), LEGAL, True, LegalHoldError),
        (Hold("case", None, "bob", is_legal=True), LEGAL, True, LegalHoldError),
        (Hold("case", None, " ", is_legal=True), None, False, UnnamedPersonError),
    ],
)
def test_a_hold_is_never_weakened_in_silence(
    wanted: Hold,
    found: Hold | None,
    is_replacing: bool,  # noqa: FBT001 - a parameter of the test
    error: type[Exception] | None,
) -> None:
    with nullcontext() if error is None else pytest.raises(error):
        demand_placeable("vcr/a/b", wanted, found, NOON, replace=is_replacing)


@pytest.mark.parametrize(
    ("found", "by", "error"),
    [
        (None, "", None),
        (Hold("", None, "ann"), "ann", None),
        (LEGAL, "bob", None),
        (LEGAL, "ann", SecondPersonError),
        (LEGAL, "", UnnamedPersonError),
        (Hold("case", None, "", is_legal=True), "bob", SecondPersonError),
    ],
)
def test_a_legal_hold_is_released_by_another_person(found: Hold | None, by: str, error: type[Exception] | None) -> None:
    with nullcontext() if error is None else pytest.raises(error):
        demand_releasable("vcr/a/b", found, by=by)


def test_what_is_refused_says_what_stands_and_what_to_do() -> None:
    with pytest.raises(WeakerHoldError) as weaker:
        demand_placeable("vcr/a/b", Hold("", SOON), Hold("audit", None), NOON, replace=False)
    assert "vcr/a/b is held already (audit), without an end" in str(weaker.value)
    assert "--replace" in str(weaker.value)
