from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from lapse.keys.conformance import CaseResult, StoreTarget, run_conformance

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class Store:
    """A store on which the whole kit runs."""

    name: str
    url: Callable[[Path], str]
    not_applicable: frozenset[str] = frozenset()
    """The cases that this store gives no occasion for; every other one must hold."""
    processes: bool = False
    """Whether those who race are processes; threads otherwise, also on a store that processes could share."""


STORES = [
    Store("memory", lambda _: "memory://"),
    Store("memory-in-8-buckets", lambda _: "memory://?buckets=8"),
    Store(
        "file-of-one-process",
        lambda folder: f"file://{folder}/keys.db",
        not_applicable=frozenset({"another-number-of-buckets-is-refused"}),
    ),
    Store("file", lambda folder: f"file://{folder}/keys.db", processes=True),
    Store("file-in-8-buckets", lambda folder: f"file://{folder}/keys.db?buckets=8", processes=True),
]
"""A server's backend joins with one line."""


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(store, id=store.name, marks=[pytest.mark.process] if store.processes else []) for store in STORES
    ],
)
def store(request: pytest.FixtureRequest) -> Store:
    chosen: Store = request.param
    return chosen


@pytest.fixture(scope="session")
def results(store: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, CaseResult]:
    """The kit's results on a store, run once for all tests that look at them."""
    target = StoreTarget.from_url(store.url(tmp_path_factory.mktemp(store.name)))
    if target.shared and not store.processes:
        target = replace(target, url=None)
    return {result.case.id: result for result in run_conformance(target)}
