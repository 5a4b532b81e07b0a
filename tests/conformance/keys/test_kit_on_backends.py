"""The whole conformance kit on every backend; each case is a test of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.keys.conformance import CaseKind, CaseOutcome, CaseResult, list_cases

if TYPE_CHECKING:
    from tests.conformance.keys.conftest import Store

CASES = list_cases()


@pytest.mark.parametrize("case_id", [case.id for case in CASES])
def test_the_rule_holds(case_id: str, store: Store, results: dict[str, CaseResult]) -> None:
    result = results[case_id]

    wanted = CaseOutcome.NOT_APPLICABLE if case_id in store.not_applicable else CaseOutcome.HOLDS
    assert result.outcome is wanted, f"{result.case.title}: {result.detail}"


def test_every_case_has_one_result(store: Store, results: dict[str, CaseResult]) -> None:
    assert set(results) == {case.id for case in CASES}


def test_a_race_says_who_raced(store: Store, results: dict[str, CaseResult]) -> None:
    workers = "4 processes with 4 threads each" if store.processes else "16 threads of one process"

    assert all(workers in result.detail for result in results.values() if result.case.kind is CaseKind.RACE)
