"""The suite is worth something: each domain that is broken on purpose is noticed by the cases that must."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.domains.broken import BROKEN
from tests.conformance.domains.cases import CASES
from tests.conformance.domains.memory import Memory, MemoryDomain

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("kind", "case"),
    [(kind, case) for kind, cases in BROKEN.items() for case in cases],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
async def test_a_broken_domain_is_noticed(kind: type[MemoryDomain], case: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        await CASES[case](tmp_path, Memory(kind))


def test_every_case_catches_something_or_is_about_the_engine_alone() -> None:
    caught = {case for cases in BROKEN.values() for case in cases}
    assert caught <= CASES.keys()
    assert CASES.keys() - caught == {
        "nothing_is_ended_while_the_clock_is_in_doubt",
        "what_people_delete_counts_for_the_budget_which_stops_nobody_but_the_engine",
    }
