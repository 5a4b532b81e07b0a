from __future__ import annotations

from lapse.engine.journal.port import AuditReason, Outcome
from lapse.engine.journal.view import JournalRowView
from tests.markdown import REFERENCE, code, table

PAGE = REFERENCE / "journal.md"


def test_the_page_names_exactly_the_fields_of_a_row() -> None:
    fields = [name for row in table(PAGE, "field", "holds") for name in code(row["field"])]
    assert sorted(fields) == sorted(JournalRowView.__struct_fields__)


def test_the_page_names_exactly_the_outcomes_that_there_are() -> None:
    outcomes = [name for row in table(PAGE, "outcome", "says") for name in code(row["outcome"])]
    assert sorted(outcomes) == sorted(Outcome)


def test_the_page_names_exactly_what_the_audit_tells() -> None:
    reasons = [name for row in table(PAGE, "reason", "address", "details") for name in code(row["reason"])]
    assert sorted(reasons) == sorted(AuditReason)
