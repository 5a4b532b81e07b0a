"""Names, labels, annotations and owners are judged as Kubernetes judges them."""

from __future__ import annotations

import pytest

from lapse.objects.metadata_rules import (
    annotation_problems,
    label_problems,
    name_problems,
    namespace_problems,
    owner_problems,
)

OWNER = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}


@pytest.mark.parametrize("name", ["a", "0", "a-b", "a.b", "a1.b2-c", "x" * 253, "1.2.3"])
def test_names_are_dns_subdomains(name: str) -> None:
    assert list(name_problems(name)) == []


@pytest.mark.parametrize(
    "name", ["", "A", "-a", "a-", ".a", "a.", "a..b", "a.-b", "a_b", "a/b", "ä", "a\n", "x" * 254, None, 7]
)
def test_other_names_are_refused_with_what_was_expected(name: object) -> None:
    (problem,) = name_problems(name)
    assert "expected at most 253 lower case letters" in problem


@pytest.mark.parametrize("namespace", ["a.b", "A", "x" * 64, "-", "a\n"])
def test_namespaces_are_dns_labels(namespace: str) -> None:
    assert list(namespace_problems("x" * 63, namespaced=True)) == []
    (problem,) = namespace_problems(namespace, namespaced=True)
    assert "expected at most 63 lower case letters" in problem


def test_a_namespaced_kind_demands_a_namespace_and_the_others_refuse_one() -> None:
    assert ["missing" in problem for problem in namespace_problems(None, namespaced=True)] == [True]
    assert ["missing" in problem for problem in namespace_problems("", namespaced=True)] == [True]
    assert ["expected none" in problem for problem in namespace_problems("n", namespaced=False)] == [True]
    assert list(namespace_problems(None, namespaced=False)) == []


@pytest.mark.parametrize(
    "labels", [{}, {"a": ""}, {"A_b.c-d": "X_y.z-0"}, {"example.com/" + "k" * 63: "v" * 63}, {"x" * 253 + "/a": "v"}]
)
def test_labels_that_kubernetes_takes(labels: object) -> None:
    assert list(label_problems(labels)) == []


@pytest.mark.parametrize(
    "labels",
    [
        {"": "v"},
        {"k" * 64: "v"},
        {"/a": "v"},
        {"Example.com/a": "v"},
        {"a/b/c": "v"},
        {"x" * 254 + "/a": "v"},
        {"-a": "v"},
        {"a": "v" * 64},
        {"a": "-v"},
        {"a": "v w"},
        {"a": 1},
        {"a": None},
        ["a"],
        "a=b",
    ],
)
def test_labels_that_kubernetes_refuses(labels: object) -> None:
    assert len(list(label_problems(labels))) == 1


def test_annotation_values_are_any_text_but_the_whole_is_bounded() -> None:
    size = 256 * 1024
    assert list(annotation_problems({"Example.com/A": "any text: \n ☃"})) == []
    assert list(annotation_problems({"a": "x" * (size - 1)})) == []
    assert len(list(annotation_problems({"a": "x" * size}))) == 1
    assert len(list(annotation_problems({"a": "ä" * (size // 2)}))) == 1, "bytes count, not characters"
    assert len(list(annotation_problems({"a b": "x"}))) == 1
    assert len(list(annotation_problems({"a": 1}))) == 1


def test_an_owner_is_named_completely_and_only_one_controls() -> None:
    assert list(owner_problems([OWNER, {**OWNER, "controller": True}])) == []
    assert len(list(owner_problems([{**OWNER, "controller": True}, {**OWNER, "uid": "v", "controller": True}]))) == 1
    for name in OWNER:
        assert len(list(owner_problems([{**OWNER, name: ""}]))) == 1
        assert len(list(owner_problems([{field: OWNER[field] for field in OWNER if field != name}]))) == 1
    assert len(list(owner_problems(["u"]))) == 1
    assert len(list(owner_problems(OWNER))) == 1
