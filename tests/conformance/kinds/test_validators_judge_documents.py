from __future__ import annotations

from copy import deepcopy

import pytest

from lapse.requests.api.kinds import OUR_KINDS
from tests.conformance.kinds.documents import BAD, CASES, CHANGES, GOOD, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_validator_judges_as_the_table_says(case: Case) -> None:
    problems = case.kind.validate(case.document, case.old)
    if case.wrong is None:
        assert not problems
    else:
        assert any(problem.startswith(f"{case.wrong}:" if case.wrong else case.says) for problem in problems)
        assert any(case.says in problem for problem in problems)


@pytest.mark.parametrize("case", [case for case in CASES if case.wrong is None], ids=lambda case: case.name)
def test_what_is_accepted_can_be_read(case: Case) -> None:
    assert case.kind.convert(case.document).metadata.name == case.document["metadata"]["name"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_validator_leaves_its_documents_as_they_are(case: Case) -> None:
    before = deepcopy((case.document, case.old))
    case.kind.validate(case.document, case.old)
    assert (case.document, case.old) == before


def test_the_table_has_good_bad_and_changed_documents_of_every_kind() -> None:
    for cases in (GOOD, BAD, CHANGES):
        assert {case.kind for case in cases} == set(OUR_KINDS)


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
