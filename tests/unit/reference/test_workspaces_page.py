from __future__ import annotations

import re
from dataclasses import fields

import pytest

from lapse.core.decision import KeepReason, UnknownReason
from lapse.engine.journal.port import Outcome
from lapse.proxy.limits import ProxyLimits
from lapse.workspaces.activity.port import ActivityDoubt
from lapse.workspaces.expiry import LapseReason, StayReason
from lapse.workspaces.model import DesiredBy, DesiredState, ObservedStatus, Operation, Workspace
from lapse.workspaces.runtime.port import FailureReason
from lapse.workspaces.runtime.process import GRACE_SECONDS
from lapse.workspaces.runtime.processes import MARK
from lapse.workspaces.runtime.program import _PASSED_ON
from lapse.workspaces.runtime.steps import LIMITS_MS, TARGETS
from lapse.workspaces.tickets import TICKET_SECONDS
from tests.markdown import REFERENCE, ROOT, code, sections, table

PAGE = REFERENCE / "workspaces.md"
SECTIONS = sections(PAGE.read_text(), 2)
_FOR_BUSY = ("LAPSE_SERVER", "LAPSE_SERVER_CERTIFICATE", "LAPSE_WORKSPACE_TOKEN")
SCRIPT = (ROOT / "src/lapse/workspaces/activity/redis.lua").read_text()


def told(*headings: str) -> list[str]:
    """Return what the first column of a table names."""
    return [name for row in table(PAGE, *headings) for name in code(row[headings[0]])]


def test_the_page_lists_exactly_the_states() -> None:
    rows = table(PAGE, "state", "wanted", "seen", "is")
    assert {code(row["state"])[0] for row in rows if row["wanted"] == "yes"} == set(DesiredState)
    assert {code(row["state"])[0] for row in rows if row["seen"] == "yes"} == set(ObservedStatus)
    assert set(DesiredBy) <= set(code(SECTIONS["States"]))


def test_the_page_lists_exactly_the_operations_with_their_targets_and_limits() -> None:
    rows = table(PAGE, "operation", "from", "to", "limit", "does")
    shown = {code(row["operation"])[0]: (code(row["to"])[0], row["limit"]) for row in rows}
    assert shown == {one: (TARGETS[one], f"{LIMITS_MS[one] // 1000} s") for one in LIMITS_MS}
    assert set(shown) == set(Operation) - {Operation.NONE}
    assert GRACE_SECONDS == 10


def test_the_page_lists_exactly_the_columns() -> None:
    assert sorted(told("column", "written by", "is")) == sorted(Workspace.__struct_fields__)


def test_the_page_lists_exactly_the_reasons_of_verdicts() -> None:
    rows = table(PAGE, "reason", "verdict", "says")
    by_verdict = {row["verdict"]: set[str]() for row in rows}
    for row in rows:
        by_verdict[row["verdict"]] |= set(code(row["reason"]))
    assert by_verdict == {
        "due": set(LapseReason),
        "keep": {KeepReason.NOT_YET, KeepReason.HELD, *StayReason},
        "unknown": {UnknownReason.MISSING_ANCHOR, UnknownReason.INVALID_TTL, *ActivityDoubt},
    }


def test_the_page_lists_exactly_the_errors_of_operations() -> None:
    assert told("`error_reason`", "says") == list(FailureReason)


def test_the_page_names_outcomes_that_there_are() -> None:
    outcomes = {name for row in table(PAGE, "outcome", "says") for name in code(row["outcome"])}
    assert outcomes == set(Outcome) - {
        Outcome.GONE,
        Outcome.FROZEN,
        Outcome.RESUMED,
        Outcome.DONE,
        Outcome.UNDELIVERED,
    }


def test_the_page_names_events_that_are_logged() -> None:
    events = {name for row in table(PAGE, "event", "level", "says") for name in code(row["event"])}
    sources = [path.read_text() for path in (ROOT / "src/lapse").rglob("*.py")]
    logged = {
        name for text in sources for name in re.findall(r"og\.(?:info|warning|error|exception)\(\s*\"(\w+)\"", text)
    }
    assert events - logged == set()


def test_the_page_lists_exactly_the_keys_on_redis() -> None:
    shown = told("key", "type", "holds")
    assert len(shown) == SCRIPT[: SCRIPT.index("-- name:")].count("\n-- ws_") + SCRIPT.count("\n-- idle_timer:") + 2
    assert all(key in SCRIPT for key in shown)


def test_the_page_lists_exactly_the_limits_of_the_proxy() -> None:
    shown = {
        name: float(value)
        for row in table(PAGE, "limit", "default", "of")
        for name, value in zip(code(row["limit"]), row["default"].split(", "), strict=True)
    }
    assert shown == {each.name: float(getattr(ProxyLimits(), each.name)) for each in fields(ProxyLimits)}
    assert TICKET_SECONDS == 60


@pytest.mark.parametrize("name", sorted({*_PASSED_ON, MARK, "HOST", "PORT", "HOME", "LAPSE_WORKSPACE", *_FOR_BUSY}))
def test_the_page_names_what_a_program_gets_to_know(name: str) -> None:
    assert name in code(SECTIONS["Environment of a program"])
