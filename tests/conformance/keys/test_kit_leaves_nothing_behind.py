"""The kit on a store that is in use: it touches no record of others and leaves none of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import Clock, SystemClock
from lapse.keys.backends.layout import Prefix
from lapse.keys.conformance import KIT_APPS, CaseOutcome, StoreTarget, run_conformance
from lapse.keys.store import Keys, open_keys
from lapse.keys.url import open_backend
from tests.conformance.keys.broken import Forgets, PassingBackend, PassingSpace, UnorderedScan

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.keys.port import Space

QUICK = [
    "insert-live",
    "async-insert-live",
    "scan-in-byte-order",
    "many-large-values",
    "lock-is-exclusive-and-released",
]
QUICK += ["racing-inserts-have-one-winner", "racing-locks-have-one-holder-at-a-time", "nothing-left-behind"]


class OneStore(PassingBackend):
    """One store for all who open it, that outlives their closing it."""

    def close(self) -> None:
        pass

    def async_close(self) -> object:
        return None


class OneStoreOneApplication(OneStore):
    def place(self, prefix: Prefix, app_id: int) -> tuple[Prefix, int]:
        return prefix, 7


def in_use(
    backend_class: type[OneStore] = OneStore, space_class: type[PassingSpace] = PassingSpace
) -> tuple[StoreTarget, OneStore]:
    """Return a shared store in which somebody keeps records, as a target and to look into."""
    clock: Clock = SystemClock()
    backend = backend_class(open_backend("memory://", clock), clock)
    with Keys(backend, clock=clock, sweep=False) as keys:
        for app_id in (0, 7):
            for name in ("k", "a", "counter"):
                keys.app(app_id).put(name, "somebody's", 3600)
    backend.space_class = space_class
    target = StoreTarget(open=lambda _: Keys(backend, clock=clock, sweep=False), exact_clock=False, shared=True)
    return target, backend


def everything(backend: PassingBackend) -> dict[Any, Any]:
    """Return all that is stored, past what the backend shows."""
    spaces: list[tuple[int, Space]] = [(app, backend.inner.space(Prefix.APPLICATION_TTL, app)) for app in (0, 7)]
    records = {(app, item.key): item for app, space in spaces for item in space.scan("", None, 10_000)}
    return {"records": records, "counts": sorted(backend.counts())}


def test_the_kit_leaves_a_store_as_it_found_it() -> None:
    target, backend = in_use()
    before = everything(backend)

    results = list(run_conformance(target, only=QUICK))

    assert {result.outcome for result in results} == {CaseOutcome.HOLDS}
    assert everything(backend) == before


@pytest.mark.process
def test_the_kit_leaves_a_file_as_it_found_it_although_its_virtual_clocks_run_ahead(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/keys.db"
    cases = [*QUICK, "insert-expired", "longest-ttl", "touched-then-swept", "expired-records-are-removed"]
    with open_keys(url, sweep=False) as keys:
        for number in range(50):
            keys.app(7).put(f"k{number}", "somebody's", 100)
        before = keys.app(7).scan(), sorted(keys.backend.counts())

    results = list(run_conformance(StoreTarget.from_url(url), only=cases))

    assert {result.outcome for result in results} == {CaseOutcome.HOLDS}
    with open_keys(url, sweep=False) as keys:
        assert (keys.app(7).scan(), sorted(keys.backend.counts())) == before


def test_the_kit_cleans_up_after_a_case_that_fails() -> None:
    target, backend = in_use(space_class=UnorderedScan)
    before = everything(backend)

    outcomes = {result.case.id: result.outcome for result in run_conformance(target, only=QUICK)}

    assert outcomes["scan-in-byte-order"] is CaseOutcome.VIOLATED
    assert everything(backend) == before


def test_the_kit_says_so_when_its_records_cannot_be_removed() -> None:
    target, _ = in_use(space_class=Forgets)

    outcomes = {
        result.case.id: result.outcome for result in run_conformance(target, only=["get-live", "nothing-left-behind"])
    }

    assert outcomes == {"get-live": CaseOutcome.HOLDS, "nothing-left-behind": CaseOutcome.VIOLATED}


def test_the_kit_writes_nothing_into_a_store_that_shows_it_the_records_of_others() -> None:
    target, backend = in_use(OneStoreOneApplication)
    before = everything(backend)

    results = list(run_conformance(target, only=["insert-live", "racing-inserts-have-one-winner"]))

    assert {result.outcome for result in results} == {CaseOutcome.VIOLATED}
    assert everything(backend) == before


def test_the_kit_leaves_the_first_application_alone_when_somebody_uses_it() -> None:
    target, backend = in_use()
    before = everything(backend)

    [result] = run_conformance(target, only=["first-and-last-application"])

    assert result.outcome is CaseOutcome.NOT_APPLICABLE
    assert result.detail == "application 0 holds records already, so the kit does not write there"
    assert everything(backend) == before


def test_the_kit_works_in_the_documented_range_of_applications() -> None:
    seen: set[int] = set()

    class Watching(OneStore):
        def space(self, prefix: Prefix, app_id: int) -> Space:
            seen.add(app_id)
            return super().space(prefix, app_id)

    target, _ = in_use(Watching)
    seen.clear()
    list(run_conformance(target, only=["insert-live", "applications-are-isolated"]))

    assert len(seen) == 3
    assert all(0xFFF0_0000 <= app_id < 0xFFFF_FFFF for app_id in seen)
    assert range(0xFFF0_0000, 0xFFFF_FFFF) == KIT_APPS
