from __future__ import annotations

import pytest

from lapse.engine.safety.holds import own_hold_of
from lapse.objects.holds.passed_on import PASSED_ON, REPLACED, passed_on, source_of

HOLD = {"lapse.dev/hold": "true", "lapse.dev/hold-reason": "audit"}
OTHER = {"lapse.dev/hold": "true", "lapse.dev/hold-until": "2030-01-01T00:00:00Z"}
LEGAL = {"lapse.dev/hold": "legal", "lapse.dev/hold-by": "ann"}


def after(told: dict[str, str], source: dict[str, str]) -> dict[str, str]:
    """The annotations of an object after it was told of a hold."""
    merged = {**told, **passed_on(told, source, uid="u-1")}
    return {name: value for name, value in merged.items() if value is not None}


def without_marker(annotations: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in annotations.items() if name != PASSED_ON}


@pytest.mark.parametrize("hold", [HOLD, LEGAL])
def test_a_hold_is_passed_on_changed_and_released(hold: dict[str, str]) -> None:
    held = after({"a": "b"}, hold)
    assert without_marker(held) == {"a": "b", **hold}
    assert held[PASSED_ON].startswith("u-1/")
    assert passed_on(held, hold, uid="u-1") == {}, "a second look changes nothing"

    changed = after(held, OTHER)
    assert without_marker(changed) == {"a": "b", **OTHER}
    assert after(changed, {}) == {"a": "b"}


@pytest.mark.parametrize("source", [{}, HOLD, OTHER])
def test_a_hold_of_its_own_is_left_alone(source: dict[str, str]) -> None:
    assert passed_on({"lapse.dev/hold": "mine"}, source, uid="u-1") == {}
    written_over = {**after({}, HOLD), "lapse.dev/hold-reason": "mine"}
    assert passed_on(written_over, source, uid="u-1") == {}


def test_a_legal_hold_of_its_own_is_left_alone_by_another_legal_one() -> None:
    assert passed_on(LEGAL, {**LEGAL, "lapse.dev/hold-by": "bob"}, uid="u-1") == {}


def test_a_legal_hold_stands_in_the_place_of_a_plain_one_which_comes_back() -> None:
    held = after(HOLD, LEGAL)
    found = own_hold_of(held)
    assert found is not None
    assert found.is_legal
    assert passed_on(held, LEGAL, uid="u-1") == {}
    assert after(held, {}) == HOLD


def test_where_it_cannot_be_read_what_was_replaced_it_stays_held() -> None:
    spoilt = {**after(HOLD, LEGAL), REPLACED: "{"}
    assert own_hold_of(after(spoilt, {})) is not None


@pytest.mark.parametrize("nothing", [{}, {"lapse.dev/hold": "false"}, {"lapse.dev/hold-reason": "audit"}])
def test_nothing_is_passed_on_where_nothing_is_held(nothing: dict[str, str]) -> None:
    assert passed_on({"a": "b"}, nothing, uid="u-1") == {}


def test_whose_hold_it_is_is_known_as_long_as_it_is_as_it_was_passed_on() -> None:
    held = after({}, HOLD)
    assert source_of(held) == "u-1"
    assert source_of({**held, "lapse.dev/hold-reason": "mine"}) is None
    assert source_of(HOLD) is None
    assert source_of({PASSED_ON: "u-1"}) is None
