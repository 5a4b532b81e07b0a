from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from lapse.core.duration import Duration
from lapse.kube.crd.rules import DURATION_PATTERN, Rule
from lapse.requests.api.kinds import OBJECT_KEEPER, RULES

PYTHON_PATTERN = DURATION_PATTERN.removesuffix("$") + r"\Z"  # to Python, `$` also stands before a last newline


def problems(ttl: str) -> list[str]:
    keeper = {"metadata": {"name": "one"}, "spec": {"mode": "TTL", "ttl": ttl}}
    return [*OBJECT_KEEPER.validate(keeper, None)]


@given(st.from_regex(PYTHON_PATTERN).filter(lambda text: len(text) <= 100))
def test_a_ttl_that_is_accepted_is_a_duration_longer_than_zero(text: str) -> None:
    if not problems(text):
        assert Duration(0) < Duration.parse(text)


@given(st.integers(1, 2**63 - 1))
@example(2**63 - 1)
def test_every_duration_that_lapse_writes_is_accepted(nanoseconds: int) -> None:
    assert problems(str(Duration(nanoseconds))) == []


@given(st.text(max_size=20))
@example("never")
def test_no_text_breaks_the_validator(text: str) -> None:
    if not problems(text):
        assert Duration(0) < Duration.parse(text)


def test_a_rule_about_changes_is_one_that_looks_back() -> None:
    rules: list[Rule] = [rule for several in RULES.values() for rule in several]
    assert [rule.about_changes for rule in rules] == ["oldSelf" in rule.cel for rule in rules]


def test_the_spec_of_every_kind_is_immutable_but_that_of_schedules() -> None:
    mutable = [kind for kind, rules in RULES.items() if all(rule.message != "spec is immutable" for rule in rules)]
    assert mutable == ["CaptureSchedule"]
