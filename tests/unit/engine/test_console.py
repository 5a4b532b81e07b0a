"""Log lines for people: what is said of an event, how it looks, and how many there are."""

from __future__ import annotations

import io
import logging
import re
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from lapse.core.log import get_logger
from lapse.engine.journal.lines import JournalLines
from lapse.engine.journal.log import log_row
from lapse.engine.journal.port import AuditReason, DeletionReason, Entry, Outcome, audit_row
from lapse.engine.running import console
from lapse.engine.running.console import MOST_LINES, ConsoleHandler, LogLine, line_of, written
from lapse.engine.running.logs import configure_logs
from lapse.workspaces.model import Operation

NOW = 1_700_000_000_000_000_000
MINUTE = 60_000_000_000
ROW = Entry(
    time_ns=NOW,
    domain="requests",
    address="vcr/default/nightly",
    uid="uid-1",
    version="41",
    verdict="due",
    reason="ttl_expired",
    anchor_ns=NOW - 10 * MINUTE,
    policy="a1b2c3",
    actor="lapse",
    outcome=Outcome.ENDED,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        return re.sub(r"\x1b\[[0-9;]*m", "", self.getvalue()).splitlines()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    made = Terminal()
    configure_logs(form="auto", level="info", stream=made)
    return made


def handler() -> ConsoleHandler:
    found = logging.getLogger().handlers[0]
    assert isinstance(found, ConsoleHandler)
    return found


def audited(what: AuditReason, address: str = "vcr/default/nightly", /, **details: Any) -> dict[str, Any]:  # noqa: ANN401 - as rows have them
    row = audit_row(what, address=address, actor="user ann", time_ns=NOW, domain="requests", details=details or None)
    return asdict(row)


def said(event: str, keys: dict[str, Any], level: int = logging.INFO) -> tuple[str, str, str] | None:
    line = line_of(event, keys, level=level)
    return None if line is None else (line.word, line.thing, line.why)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (ROW, ("lapsed", "vcr/default/nightly", "its time is over after 10m")),
        (replace(ROW, anchor_ns=None, reason="too_many"), ("lapsed", "vcr/default/nightly", "too many")),
        (
            replace(ROW, details={"plan": "p1"}, actor="user ann"),
            ("lapsed", "vcr/default/nightly", "its time is over after 10m (by user ann by plan p1)"),
        ),
        (
            replace(ROW, reason=DeletionReason.BY_PERSON, actor="token ci"),
            ("deleted", "vcr/default/nightly", "by token ci"),
        ),
        (
            replace(ROW, domain="keys", address="", anchor_ns=None, details={"count": 480, "apps": {"7": 480}}),
            ("lapsed", "keys", "480 of them: its time is over"),
        ),
        *[
            (replace(ROW, outcome=one), None)
            for one in Outcome
            if one not in {Outcome.ENDED, Outcome.DONE, Outcome.FROZEN, Outcome.RESUMED}  # no act
        ],
    ],
)
def test_a_row_that_is_an_act_is_said_in_words(row: Entry, line: tuple[str, str, str] | None) -> None:
    assert said("journal", asdict(row)) == line


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (
            audited(AuditReason.HOLD_PLACED, reason="audit", until_ns=None, legal=None),
            ("held", "vcr/default/nightly", "audit (by user ann)"),
        ),
        (
            audited(AuditReason.HOLD_PLACED, reason="case 7", legal=True),
            ("held", "vcr/default/nightly", "legal hold, case 7 (by user ann)"),
        ),
        (audited(AuditReason.HOLD_PLACED, "", reason="x", scope="7"), ("held", "requests", "x (by user ann)")),
        (audited(AuditReason.HOLD_RELEASED), ("released", "vcr/default/nightly", "by user ann")),
        (
            audited(AuditReason.DEADLINE_EXTENDED, until_ns=NOW),
            ("extended", "vcr/default/nightly", "until 2023-11-14T22:13:20Z (by user ann)"),
        ),
        (audited(AuditReason.BROUGHT_BACK, was="uid-0"), ("undone", "vcr/default/nightly", "by user ann")),
        (audited(AuditReason.TOKEN_CREATED, "token/0a1b", name="ci"), ("created", "token/0a1b", "by user ann")),
        (audited(AuditReason.JOURNAL_REMOVED, "journal", count=3), None),  # an event of its own tells it
    ],
)
def test_what_people_did_is_said_with_their_names(keys: dict[str, Any], line: tuple[str, str, str] | None) -> None:
    assert said("journal", keys) == line


def test_every_reason_of_the_audit_has_a_word_or_an_event_of_its_own() -> None:
    without = {one for one in AuditReason if said("journal", audited(one)) is None}
    assert without == {AuditReason.JOURNAL_REMOVED}


@pytest.mark.parametrize(
    ("event", "keys", "level", "line"),
    [
        (
            "lapsed",
            {"domain": "requests", "address": "vcr/a/b", "reason": "ttl_expired"},
            logging.INFO,
            ("lapsed", "vcr/a/b", "its time is over"),
        ),
        ("lapsed", {"domain": "history", "more": 480}, logging.INFO, ("", "and 480 more of history lapsed", "")),
        (
            "domain_frozen",
            {"domain": "requests", "reason": "budget of 100/1h is spent", "by": "", "run": "lapse resume requests"},
            logging.WARNING,
            ("FROZEN", "requests", "budget of 100/1h is spent; to go on: lapse resume requests"),
        ),
        (
            "listening",
            {"http": "https://127.0.0.1:8750", "probes": "http://127.0.0.1:8751"},
            logging.INFO,
            ("listening", "https://127.0.0.1:8750", "probes http://127.0.0.1:8751"),
        ),
        ("stopping", {}, logging.INFO, ("stopping", "", "what is at hand is finished")),
        ("something_new", {"count": 3, "tick": "t1"}, logging.INFO, ("something_new", "", "count=3")),
        (
            "tick_failed",
            {"loop": "requests", "tick": "t1", "reason": "The disk is full."},
            logging.WARNING,
            ("WARNING", "tick_failed", "The disk is full.  loop=requests"),
        ),
        ("it_broke", {}, logging.ERROR, ("ERROR", "it_broke", "")),
        (
            "operation_begun",
            {"operation": "STARTING", "workspace": "4d2c07f3", "workspace_name": "lab", "reconcile": "r1"},
            logging.INFO,
            ("starting", "workspace/lab", ""),
        ),
        (
            "operation_done",
            {"operation": "ARCHIVING", "workspace": "4d2c07f3", "workspace_name": "lab", "reconcile": "r1"},
            logging.INFO,
            ("archived", "workspace/lab", ""),
        ),
        (
            "program_started",
            {"workspace": "4d2c07f3", "workspace_name": "lab", "pid": 12, "port": 9803},
            logging.INFO,
            ("runs", "workspace/lab", "its program, with the pid 12, listens on port 9803"),
        ),
        (
            "probe_failed",
            {"workspace": "4d2c07f3", "workspace_name": "lab", "problem": "no answer"},
            logging.WARNING,
            ("WARNING", "probe_failed", "no answer  workspace=lab"),
        ),
        (
            "leftover_ended",
            {"workspace": "4d2c07f3"},
            logging.INFO,
            ("ended", "workspace/4d2c07f3", "a program that a Lapse before this one has left"),
        ),
        (
            "demo",
            {"run": "lapse demo stop removes it", "settings": "ttl_manager_interval=5s", "is_on": True},
            logging.INFO,
            (
                "demo",
                "",
                "things that lapse soon come and go; lapse demo stop removes it; set for it: ttl_manager_interval=5s",
            ),
        ),
        (
            "policy_passed",
            {"policy": "history", "deleted": {"ttl_expired": 1}, "dry_run": True},
            logging.INFO,
            ("passed", "policy history", "1 would be deleted: it was dry"),
        ),
        (
            "policy_passed",
            {"policy": "history", "deleted": {"ttl_expired": 1}, "dry_run": False},
            logging.INFO,
            ("passed", "policy history", "1 deleted"),
        ),
        (
            "link_not_logged",
            {"reason": "it is for a person", "run": "lapse open"},
            logging.INFO,
            ("open", "", "for a link that logs a browser in: lapse open"),
        ),
        (
            "demo",
            {"run": "lapse demo start starts it again", "settings": "", "is_on": False},
            logging.INFO,
            ("demo", "", "it is stopped; lapse demo start starts it again"),
        ),
    ],
)
def test_an_event_is_said_in_words_and_an_unknown_one_by_its_keys(
    event: str, keys: dict[str, Any], level: int, line: tuple[str, str, str]
) -> None:
    assert said(event, keys, level) == line


def test_a_freeze_is_told_once_by_its_row_or_by_the_event_whichever_there_is(terminal: Terminal) -> None:
    handler().follows_journal = True
    events, run = get_logger("lapse.engine.safety.gate"), "lapse resume requests"
    events.warning("domain_frozen", domain="history", reason="from before", by="", run="lapse resume history")
    frozen = replace(ROW, address="", outcome=Outcome.FROZEN, reason="frozen_by_person", actor="user ann")
    log_row(replace(frozen, details={"reason": "look first"}))
    events.warning("domain_frozen", domain="requests", reason="look first", by="user ann", run=run)
    log_row(replace(frozen, outcome=Outcome.RESUMED))
    events.info("domain_resumed", domain="requests")
    log_row(replace(frozen, details={"policy": "jobs"}))  # a policy that waits, of which there is an event
    events.warning("domain_frozen", domain="keepers", reason="spent", by="", run="lapse resume keepers")
    log_row(replace(frozen, domain="keepers", actor="lapse", details={"reason": "spent"}))  # a moment later

    assert [line[10:] for line in terminal.lines] == [
        "FROZEN     history  from before; to go on: lapse resume history",
        "FROZEN     requests  look first (by user ann); to go on: lapse resume requests",
        "resumed    requests  it is ended again when it is due (by user ann)",
        "FROZEN     keepers  spent; to go on: lapse resume keepers",
    ]


def test_a_reason_ends_where_the_terminal_does_and_an_address_never() -> None:
    line = LogLine("lapsed", "vcr/default/nightly", "because of this and that and much more", domain="requests")
    whole = written(line, time=0)
    assert re.fullmatch(r"\d\d:00:00  lapsed     vcr/default/nightly  because of this and that and much more", whole)
    cut = written(line, time=0, width=56)
    assert (len(cut), cut[-1], cut[:-1]) == (56, "…", whole[:55])
    assert "vcr/default/nightly" in written(line, time=0, width=20)
    assert written(line, time=0, width=56, level=logging.WARNING) == whole, "a warning says what to do at its end"


def test_a_line_holds_no_control_character_of_its_data(terminal: Terminal) -> None:
    log_row(replace(ROW, address="vcr/a/\x1b[2Jb\nc", reason="x\x07"))
    get_logger("lapse.test").warning("odd\x9b2J", reason="\x1b]0;title\x07")
    assert len(terminal.lines) == 2
    assert r"vcr/a/\x1b[2Jb\nc" in terminal.getvalue()
    assert not {"\x07", "\x9b"} & set(terminal.getvalue())
    assert "\x1b[2J" not in terminal.getvalue()


def test_warnings_stand_out_by_a_word_and_a_colour_and_without_colours_by_the_word(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_logger("lapse.test").warning("odd_setting", reason="a reason")
    assert "\x1b[33;1mWARNING\x1b[0m" in terminal.getvalue()
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            plain = Terminal()
            configure_logs(form="auto", level="info", stream=plain)
            get_logger("lapse.test").warning("odd_setting", reason="a reason")
            assert "WARNING    odd_setting  a reason" in plain.getvalue()
            assert "\x1b" not in plain.getvalue()


class FixedTime(logging.Filter):
    """Gives every record one time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def filter(self, record: logging.LogRecord) -> bool:
        record.created = self.seconds
        return True


class NoTimer:
    """A timer that does not run by itself."""

    started: list[NoTimer]

    def __init__(self, _seconds: float, work: Any) -> None:  # noqa: ANN401 - as the real one
        self.run, self.daemon = work, False

    def start(self) -> None:
        NoTimer.started.append(self)


def test_a_flood_is_some_lines_and_a_number(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    NoTimer.started = []
    monkeypatch.setattr(console, "Timer", NoTimer)
    now = FixedTime(1000.5)
    handler().addFilter(now)
    for number in range(500):
        log_row(replace(ROW, domain="history", address=f"history/a/{number}"))
    log_row(replace(ROW, domain="requests"))
    get_logger("lapse.test").warning("odd_setting")
    assert len(terminal.lines) == MOST_LINES + 2, "others are told beside it"

    assert len(NoTimer.started) == 1
    NoTimer.started[0].run()
    assert terminal.lines[-1].endswith("  and 480 more of history lapsed")
    handler().tell_rest()
    assert len(terminal.lines) == MOST_LINES + 3, "once"

    now.seconds = 1001.5
    log_row(replace(ROW, domain="history", address="history/a/next"))
    assert "history/a/next" in terminal.lines[-1], "the next second has lines of its own"


def test_what_was_not_shown_is_told_before_the_next_second_begins(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    NoTimer.started = []
    monkeypatch.setattr(console, "Timer", NoTimer)
    now = FixedTime(1000.5)
    handler().addFilter(now)
    for number in range(MOST_LINES + 2):
        log_row(replace(ROW, address=f"vcr/a/{number}", reason=DeletionReason.BY_PERSON, actor="user ann"))
    now.seconds = 1001.5
    get_logger("lapse.test").info("stopping")
    assert terminal.lines[-2].endswith("  and 2 more of requests deleted")
    assert "stopping" in terminal.lines[-1]


def test_what_a_followed_journal_tells_is_not_told_by_the_event_again(terminal: Terminal) -> None:
    lapsed = {"domain": "requests", "address": "vcr/a/b", "reason": "ttl_expired"}
    get_logger("lapse.engine.executor").info("lapsed", **lapsed)
    assert len(terminal.lines) == 1
    handler().follows_journal = True
    get_logger("lapse.engine.executor").info("lapsed", **lapsed)
    assert len(terminal.lines) == 1


async def test_programs_get_no_rows_that_they_did_not_get_before() -> None:
    stream = io.StringIO()
    configure_logs(form="json", level="info", stream=stream)
    assert await JournalLines.open(None, domain="requests") == []  # type: ignore[arg-type]  # it is not asked


def test_every_step_of_a_workspace_has_a_word() -> None:
    for operation in Operation:
        if operation is not Operation.NONE:
            for event in ("operation_begun", "operation_done"):
                line = line_of(event, {"operation": operation.value, "workspace": "lab"})
                assert line is not None
                assert line.word.islower()
