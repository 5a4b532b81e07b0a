"""Documents that nobody means: a good one with one odd value in any of its places, for whatever reads documents."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN: dict[str, Any] = {
    "apiVersion": "chaos.gushchin.dev/v1alpha1",
    "kind": "ChaosExperimentHistory",
    "metadata": {"labels": {"app": "shop"}, "annotations": {"note": "x"}},
    "spec": {
        "experimentRef": {"name": "kill", "namespace": "shop", "uid": "u"},
        "execution": {"startTime": "2026-01-31T12:00:00Z", "endTime": "2026-01-31T12:01:00Z", "status": "success"},
        "experimentSpec": {"pods": [1, 2.5, "three"]},
        "affectedResources": [{"kind": "Pod", "name": "web"}],
        "audit": {"initiatedBy": "jane", "retryCount": 1},
        "error": {"message": "none"},
    },
}
POLICY: dict[str, Any] = {
    "apiVersion": "lapse.dev/v1alpha1",
    "kind": "RetentionPolicy",
    "metadata": {"name": "odd", "labels": {"app": "shop"}},
    "spec": {
        "selector": {"apiVersion": "v1", "kind": "ConfigMap", "namespaces": ["shop"], "labels": {"app": "shop"}},
        "groupBy": ["metadata.namespace"],
        "maxAge": "90d",
        "maxCount": 3,
        "keepLast": {"count": 1, "where": {"fieldPath": "metadata.name", "in": ["x"]}},
        "ageFrom": "metadata.creationTimestamp",
        "onlyWhen": [{"fieldPath": "metadata.name", "in": ["x"]}],
        "dryRun": True,
    },
}
CAPTURE: dict[str, Any] = {
    "metadata": {"name": "odd", "namespace": "default", "labels": {"app": "shop"}},
    "spec": {
        "mode": "Snapshot",
        "target": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data", "uid": "u"},
    },
}


def _deep(levels: int) -> Any:  # noqa: ANN401 - lists in lists
    found: Any = []
    for _ in range(levels):
        found = [found]
    return found


ODD: list[Any] = [
    None,
    *("", " ", "\0", "a\0b", "\ud800", "\udfff\ud800", "x" * 400, "../..", "never", "-1h", "\u202e", "{}"),
    *("0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00"),
    *("2026-02-30T00:00:00Z", "2026-01-31T12:00:00"),
    *(0, -1, 2**63, -(2**63) - 1, 10**400, 1.5, float("nan"), float("inf"), 1e308, True, False),
    *([], {}, [None], {"a": None}, {"": ""}, {"\ud800": 1}, {"a\0": "b"}, _deep(90), _deep(300)),
]


def odd_documents(good: dict[str, Any], odd: list[Any] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield where a document is odd, and the document; also one with odd keys in each of its objects."""
    for steps in _places(good):
        for value in ODD if odd is None else odd:
            document = copy.deepcopy(good)
            *way, last = steps
            _at(document, way)[last] = value
            yield f"{steps} = {ascii(value)[:40]}", document
        inside = _at(good, steps)
        if isinstance(inside, dict):
            for key in ("\ud800", "", "a\0", "x" * 1000):
                document = copy.deepcopy(good)
                _at(document, steps)[key] = "x"
                yield f"{steps} with {ascii(key)[:40]}", document


def _places(value: Any) -> Iterator[list[Any]]:  # noqa: ANN401 - any JSON
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield [key]
        yield from ([key, *rest] for rest in _places(part))


def _at(value: Any, steps: list[Any]) -> Any:  # noqa: ANN401 - any JSON
    for step in steps:
        value = value[step]
    return value
