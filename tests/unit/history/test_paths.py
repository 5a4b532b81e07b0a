from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.timestamps import from_timestamp
from lapse.history.policy.paths import FieldPath, FieldPathError

DOCUMENT = {
    "metadata": {
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "labels": {"app.kubernetes.io/name": "shop", "it's": "odd"},
        "generation": 3,
    },
    "spec": {"suspend": True, "weight": 1.5, "containers": [{"name": "a"}, {"name": "b"}]},
    "status": {"phase": "Done", "nothing": None, "conditions": []},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("metadata.creationTimestamp", "2026-01-02T03:04:05Z"),
        ("metadata.labels['app.kubernetes.io/name']", "shop"),
        ('metadata.labels["app.kubernetes.io/name"]', "shop"),
        ('metadata.labels["it\'s"]', "odd"),
        ("['status'].phase", "Done"),
        ("spec.containers[1].name", "b"),
        ("spec.containers[2].name", None),
        ("spec.containers.name", None),
        ("status[0]", None),
        ("status.phase.deeper", None),
        ("status.phase[0]", None),
        ("metadata.generation[0]", None),
        ("status.nothing", None),
        ("status.absent", None),
        ("data.absent", None),
    ],
)
def test_a_path_finds_what_stands_there_or_nothing(text: str, value: object) -> None:
    assert FieldPath.parse(text).value(DOCUMENT) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("status.phase", "Done"),
        ("spec.suspend", "true"),
        ("metadata.generation", "3"),
        ("spec.weight", "1.5"),
        ("spec.containers", None),
        ("status.conditions", None),
        ("status", None),
        ("status.nothing", None),
    ],
)
def test_values_are_compared_as_the_text_that_a_policy_writes(text: str, expected: str | None) -> None:
    assert FieldPath.parse(text).text(DOCUMENT) == expected


@pytest.mark.parametrize("text", ["status.phase", "metadata.generation", "status", "status.absent"])
def test_what_is_no_time_is_no_moment(text: str) -> None:
    assert FieldPath.parse(text).moment(DOCUMENT) is None


def test_a_time_is_a_moment() -> None:
    moment = FieldPath.parse("metadata.creationTimestamp").moment(DOCUMENT)
    assert moment == from_timestamp("2026-01-02T03:04:05Z")


@pytest.mark.parametrize(
    ("text", "metadata"),
    [("metadata.labels['a']", True), ("metadata", True), ("['metadata'].name", True), ("status.metadata", False)],
)
def test_a_path_knows_whether_metadata_is_enough(text: str, *, metadata: bool) -> None:
    assert FieldPath.parse(text).is_metadata is metadata


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is empty"),
        (".status", "'.status' does not begin with a name"),
        ("status.", "it ends with a dot"),
        ("status..phase", "'.phase' does not begin with a name"),
        ("status phase", "there is no dot before ' phase'"),
        ("status.9", "'9' does not begin with a name"),
        ("[0].name", "it begins with the number of an item"),
        ("spec.items[*].name", "'[*].name' is neither a name in quotes and brackets nor a number"),
        ("spec.items[-1]", "'[-1]' is neither"),
        ("spec.items[01]", "'[01]' is neither"),
        ("metadata.labels[app]", "'[app]' is neither"),
        ("metadata.labels['app]", '"[\'app]" is neither'),
        ("metadata.labels['']", "is neither"),
        ("metadata.labels['a']b", "there is no dot before 'b'"),
        ("{.status.phase}", "'{.status.phase}' does not begin with a name"),
        ("a." * 300, "it has 600 characters, 512 are the most"),
    ],
)
def test_what_is_no_path_is_told_why(text: str, problem: str) -> None:
    with pytest.raises(FieldPathError) as raised:
        FieldPath.parse(text)
    assert problem in str(raised.value)
    assert "as in status.phase" in str(raised.value)


NAMES = st.text("ab.9-/_ ", min_size=1, max_size=8) | st.sampled_from(["it's", 'say "x"'])


@given(NAMES, st.lists(NAMES | st.integers(0, 99), max_size=5))
def test_what_is_printed_reads_as_what_was_meant(first: str, rest: list[str | int]) -> None:
    path = FieldPath((first, *rest))
    assert FieldPath.parse(str(path)) == path


@given(st.text(max_size=30))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        path = FieldPath.parse(text)
    except FieldPathError:
        return
    assert path.value({}) is None
    assert FieldPath.parse(str(path)) == path
