"""The examples of RFC 7386, and what the RFC leaves to the reader."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from lapse.objects.documents import merge

EXAMPLES: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "patch", "expected"), EXAMPLES)
def test_the_examples_of_the_standard_come_out_as_it_says(target: object, patch: object, expected: object) -> None:
    assert merge(target, patch) == expected


@pytest.mark.parametrize(("target", "patch", "_"), EXAMPLES)
def test_neither_the_target_nor_the_patch_is_modified(target: object, patch: object, _: object) -> None:
    before = deepcopy((target, patch))
    merge(target, patch)
    assert (target, patch) == before
