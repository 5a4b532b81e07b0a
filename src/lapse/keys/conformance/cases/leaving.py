"""The last case: the kit was a good guest."""

from __future__ import annotations

from typing import Final

from lapse.keys.conformance.case import CaseBook, CaseKind, ContractRule, expect
from lapse.keys.conformance.fixture import Stage, is_empty

BOOK: Final = CaseBook()
case = BOOK.case

_SLICES: Final = 20


@case(ContractRule.GUEST, kind=CaseKind.LAST)
def nothing_left_behind(stage: Stage) -> str:
    """Every application that the kit used is empty again."""
    session = stage.session
    backend = session.keys.backend
    left = sorted(app_id for app_id in session.drawn if not is_empty(backend, app_id))
    expect(left, [], "applications of the kit that still show records")
    if stage.target.exact_clock:
        for _ in range(_SLICES):  # expired ones may still be stored
            if not session.keys.sweep().more:
                break
        stored = sorted(app_id for _, app_id, number in backend.counts() if app_id in session.drawn and number)
        expect(stored, [], "applications of the kit in which records are stored")
    return f"looked into {len(session.drawn)} applications"
