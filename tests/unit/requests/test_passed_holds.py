from __future__ import annotations

import pytest

from lapse.requests.lifecycle.keeper import PASSED_ON, changes

HOLD = {"lapse.dev/hold": "true", "lapse.dev/hold-reason": "audit"}
OTHER = {"lapse.dev/hold": "true", "lapse.dev/hold-until": "2030-01-01T00:00:00Z"}


def after(keeper: dict[str, str], followed: dict[str, str]) -> dict[str, str]:
    """The annotations of a keeper after it was looked at."""
    merged = {**keeper, **changes(keeper, followed, uid="u-1")}
    return {name: value for name, value in merged.items() if value is not None}


def without_marker(annotations: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in annotations.items() if name != PASSED_ON}


def test_a_hold_is_passed_on_changed_and_released() -> None:
    held = after({"a": "b"}, HOLD)
    assert without_marker(held) == {"a": "b", **HOLD}
    assert held[PASSED_ON].startswith("u-1/")
    assert changes(held, HOLD, uid="u-1") == {}, "a second look changes nothing"

    changed = after(held, OTHER)
    assert without_marker(changed) == {"a": "b", **OTHER}
    assert after(changed, {}) == {"a": "b"}


@pytest.mark.parametrize("followed", [{}, HOLD, OTHER])
def test_a_hold_of_its_own_is_left_alone(followed: dict[str, str]) -> None:
    assert changes({"lapse.dev/hold": "mine"}, followed, uid="u-1") == {}
    written_over = {**after({}, HOLD), "lapse.dev/hold-reason": "mine"}
    assert changes(written_over, followed, uid="u-1") == {}


@pytest.mark.parametrize("nothing", [{}, {"lapse.dev/hold": "false"}, {"lapse.dev/hold-reason": "audit"}])
def test_nothing_is_passed_on_where_nothing_is_held(nothing: dict[str, str]) -> None:
    assert changes({"a": "b"}, nothing, uid="u-1") == {}
