from __future__ import annotations

import pytest

from lapse.web.api.errors import ContradictoryConditionsError
from lapse.web.api.forms import Conditions, Tagger, read_conditions


def test_a_tag_depends_on_application_key_value_and_secret() -> None:
    one = Tagger(b"1" * 32)
    tags = [
        one.tag(7, "key", "value"),
        one.tag(8, "key", "value"),
        one.tag(7, "kez", "value"),
        one.tag(7, "key", "valuf"),
        one.tag(7, "keyv", "alue"),
        Tagger(b"2" * 32).tag(7, "key", "value"),
    ]

    assert len(set(tags)) == len(tags)
    assert one.tag(7, "key", "value") == tags[0]


def test_a_tag_can_stand_in_a_header() -> None:
    tag = Tagger(b"1" * 32).tag(7, "é\0", "🦊")

    assert tag.isascii()
    assert read_conditions([tag], [], expected=False).matches(tag)


def test_a_weak_tag_never_matches() -> None:
    assert not read_conditions(['W/"a"'], [], expected=False).matches('"a"')


def test_one_of_several_tags_is_enough_wherever_they_stand() -> None:
    conditions = read_conditions(['"a", "b"', '"c"'], [], expected=False)

    assert [conditions.matches(tag) for tag in ('"a"', '"b"', '"c"', '"d"')] == [True, True, True, False]


def test_a_star_matches_whatever_is_there() -> None:
    assert read_conditions(["*"], [], expected=False).matches('"anything"')
    assert not Conditions().matches('"anything"')


@pytest.mark.parametrize(
    ("if_match", "if_none_match", "expected"),
    [
        (["*"], ["*"], False),
        (["*"], [], True),
        ([], ["*"], True),
        ([], ['"a"'], False),
        (["a"], [], False),
        ([""], [], False),
    ],
)
def test_conditions_that_make_no_sense_are_refused(
    if_match: list[str],
    if_none_match: list[str],
    expected: bool,  # noqa: FBT001 - a table
) -> None:
    with pytest.raises(ContradictoryConditionsError):
        read_conditions(if_match, if_none_match, expected=expected)
