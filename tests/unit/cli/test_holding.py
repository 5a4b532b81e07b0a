"""``lapse hold``, ``lapse release`` and ``lapse why`` on a state folder, in this process."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lapse.app.record import ProcessRecord, open_store
from lapse.cli import main
from lapse.cli.context import who
from lapse.core.believed_clock import Mark
from lapse.core.clock import SystemClock
from lapse.engine.journal.port import AUDIT, AuditReason, Entry, Outcome, audit_row
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.safety.freeze import CLOCK
from lapse.workspaces.model import ObservedStatus, WorkspaceId
from tests.unit.cli.test_workspaces import Person, now

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.engine.journal.port import Row


class Holder(Person):
    """Somebody who holds things."""

    def say(self, *line: str, code: int = 0) -> tuple[str, str]:
        assert main(list(line)) == code, self.capsys.readouterr()
        found = self.capsys.readouterr()
        return found.out, found.err

    def told(self, *line: str) -> Any:  # noqa: ANN401 - whatever it prints
        return json.loads(self.say(*line, "-o", "json")[0])


@pytest.fixture
def holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Holder:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAPSE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return Holder(tmp_path, capsys)


# --- hold and release -------------------------------------------------------------------------------------------------


def test_a_hold_is_said_shown_and_released(holder: Holder) -> None:
    holder.create()
    said = holder.say("hold", "workspace/lab", "--reason", "demo on Friday", "--until", "7d")[0]
    shown, table = holder.json("show", "lab"), holder.run("show", "lab")[0]
    released = holder.say("release", "workspace/lab")[0]

    assert re.fullmatch(r"Held: workspace/lab until 20\S+Z. To let it go: lapse release workspace/lab\n", said), said
    assert (shown["held"], shown["hold_reason"]) == (True, "demo on Friday")
    assert shown["hold_until"] is not None
    assert re.search(r"^held +demo on Friday until 20\S+Z$", table, re.MULTILINE)
    assert released == "Released: workspace/lab.\n"
    assert holder.json("show", "lab")["held"] is False


@pytest.mark.driver
def test_what_is_held_is_not_deleted_and_what_is_deleted_can_be_asked_about(holder: Holder) -> None:
    holder.create()
    holder.say("hold", "workspace/lab", "--reason", "audit")
    refused = holder.say("workspaces", "delete", "lab", code=1)[1]
    holder.say("release", "workspace/lab")
    holder.say("workspaces", "delete", "lab")
    told = holder.told("why", "workspace/lab")

    assert "workspace/lab is held (audit), so it is not deleted. To let it go: lapse release workspace/lab." in refused
    assert [row["outcome"] for row in told["journal"]] == ["ended", "intent", "done", "held", "done"]
    assert told["journal"][0]["actor"] == who()
    assert "ended (deleted_by_person" in holder.say("why", "workspace/lab")[0]


def test_without_an_end_it_is_held_until_it_is_released(holder: Holder) -> None:
    holder.create()
    held = holder.told("hold", "workspace/lab", "--reason", "mine")

    assert (held["hold"]["reason"], held["hold"]["until"]) == ("mine", None)


def test_a_point_in_time_is_an_end_too(holder: Holder) -> None:
    holder.create()
    held = holder.told("hold", "workspace/lab", "--reason", "mine", "--until", "2090-01-31T12:00:00Z")

    assert held["hold"]["until"] == "2090-01-31T12:00:00Z"


def test_a_second_hold_replaces_the_first(holder: Holder) -> None:
    holder.create()
    holder.told("hold", "workspace/lab", "--reason", "one", "--until", "1d")
    held = holder.told("hold", "workspace/lab", "--reason", "two")

    assert (held["hold"]["reason"], held["hold"]["until"]) == ("two", None)


def test_a_weaker_hold_takes_the_place_of_a_stronger_one_only_when_that_is_said(holder: Holder) -> None:
    holder.create()
    holder.say("hold", "workspace/lab", "--reason", "one")
    refused = holder.say("hold", "workspace/lab", "--reason", "two", "--until", "1d", code=64)[1]
    held = holder.told("hold", "workspace/lab", "--reason", "two", "--until", "1d", "--replace")

    assert "workspace/lab is held already (one)" in refused
    assert held["hold"]["reason"] == "two"


def test_who_holds_nothing_releases_nothing(holder: Holder) -> None:
    version = holder.create()["version"]

    assert holder.say("release", "workspace/lab")[0] == "Nothing to release: not held: workspace/lab.\n"
    assert holder.json("show", "lab")["version"] == version


def test_the_list_says_that_it_is_held(holder: Holder) -> None:
    made = holder.create()
    holder.on_store(lambda store: store.observe({WorkspaceId(made["id"]): ObservedStatus.RUNNING}, now=now()))
    holder.say("hold", "workspace/lab", "--reason", "mine")

    assert holder.run("list")[0].rstrip().endswith("standby (held)")


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (("hold", "workspace/none", "--reason", "x"), 1, "There is no workspace/none."),
        (("hold", "lab", "--reason", "x"), 64, "'lab' is a name, and no address"),
        (("hold", "key/7/a", "--reason", "x"), 64, "Keys cannot be held: a key is gone at the instant of its expiry."),
        (("release", "vcr/default/nightly"), 1, "There is no vcr/default/nightly."),
        (("hold", "workspace/lab"), 64, "--reason"),
        (("hold", "workspace/lab", "--reason", ""), 64, "expected 1 to 1024 printable characters in one line"),
        (("hold", "workspace/lab", "--reason", "a\nb"), 64, "expected 1 to 1024 printable characters in one line"),
        (
            ("hold", "workspace/lab", "--reason", "x", "--until", "soon"),
            64,
            "'soon' is not a time: expected a duration",
        ),
        (("hold", "workspace/lab", "--reason", "x", "--until", "0s"), 64, "The end '0s' is not in the future."),
        (("hold", "workspace/lab", "--reason", "x", "--until", "2020-01-01T00:00:00Z"), 64, "is not in the future"),
        (("why", "workspace/none"), 1, "There is no workspace/none."),
        (("why", "lab"), 64, "'lab' is a name, and no address"),
        (("why", "vcr/default/nightly"), 1, "There is no vcr/default/nightly."),
        (("why", "workspace/lab", "--at", "never"), 64, "--at cannot be never."),
        (("why", "workspace/lab", "--at", "soon"), 64, "'soon' is not a time"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(holder: Holder, line: tuple[str, ...], code: int, said: str) -> None:
    before = holder.create()
    out, err = holder.say(*line, code=code)

    assert out == ""
    assert said in err
    assert "Traceback" not in err
    assert holder.json("show", "lab")["version"] == before["version"]


# --- why --------------------------------------------------------------------------------------------------------------


def test_why_tells_the_verdict_its_grounds_and_what_would_save_it(holder: Holder) -> None:
    made = holder.create()
    holder.on_store(lambda store: store.observe({WorkspaceId(made["id"]): ObservedStatus.RUNNING}, now=now()))
    table = holder.say("why", "workspace/lab")[0]

    assert re.search(r"^verdict +keep: its time is not over$", table, re.MULTILINE)
    assert re.search(r"^rule +standby after 5m idle$", table, re.MULTILINE)
    assert re.search(r"^activity +not known here: ", table, re.MULTILINE)
    later = holder.say("why", "workspace/lab", "--at", "2h")[0]
    assert re.search(r"^activity +not known at another time than now$", later, re.MULTILINE)
    assert "lapse hold workspace/lab --reason TEXT" in table


def test_why_answers_for_another_time(holder: Holder) -> None:
    made = holder.create()
    holder.on_store(lambda store: store.observe({WorkspaceId(made["id"]): ObservedStatus.RUNNING}, now=now()))

    assert holder.told("why", "workspace/lab")["verdict"] == "keep"
    later = holder.told("why", "workspace/lab", "--at", "6m")
    assert (later["verdict"], later["reason"]) == ("due", "standby_ttl_expired")


@pytest.mark.parametrize("frozen", ["workspaces", "all"])
def test_why_tells_that_its_domain_is_frozen(holder: Holder, frozen: str) -> None:
    holder.create()
    assert holder.told("why", "workspace/lab")["frozen"] is None
    holder.say("freeze", frozen, "--reason", "audit of May")
    told = holder.told("why", "workspace/lab")["frozen"]
    table = holder.say("why", "workspace/lab")[0]

    assert (told["reason"], list(told)) == ("audit of May", ["since", "reason", "by"])
    assert re.search(rf"^frozen +since 20\S+Z by {re.escape(told['by'])}: audit of May$", table, re.MULTILINE)
    holder.say("resume", frozen)
    assert holder.told("why", "workspace/lab")["frozen"] is None


def test_why_tells_that_the_clock_is_in_doubt(holder: Holder) -> None:
    holder.create()

    async def believe_another_time() -> None:
        state, clock = open_store(holder.folder / "state", clock=SystemClock()), SystemClock()
        mark = Mark(clock.boot_id(), clock.wall_ns() - 3 * 3600 * 10**9, clock.boottime_ns(), 0)
        await ProcessRecord.in_folder(state).safety.write_note(CLOCK, msgspec.json.encode(mark).decode())
        await state.close()

    asyncio.run(believe_another_time())
    told = holder.told("why", "workspace/lab")["frozen"]
    assert told == {
        "since": None,
        "reason": "the clock is 3h ahead of what was expected; set it right, then resume",
        "by": "",
    }


def test_a_second_freeze_keeps_the_reason_of_the_first_unless_it_has_one(holder: Holder) -> None:
    holder.create()
    reasons = []
    for more in (["--reason", "audit"], [], ["--reason", "another"], []):
        said = holder.told("freeze", "workspaces", *more)
        reasons.append((said["frozen"]["reason"], holder.told("why", "workspace/lab")["frozen"]["reason"]))
    assert reasons == [("audit", "audit"), ("audit", "audit"), ("another", "another"), ("another", "another")]


def test_a_row_of_the_journal_shows_times_as_times(holder: Holder) -> None:
    holder.create()
    uid = holder.told("why", "workspace/lab")["uid"]

    async def journalled() -> None:
        state = open_store(holder.folder / "state", clock=SystemClock())
        row = Entry(
            time_ns=1_700_000_000_000_000_000,
            domain="workspaces",
            address="workspace/lab",
            uid=uid,
            version="3",
            verdict="keep",
            reason="held",
            anchor_ns=None,
            policy="",
            actor="lapse",
            outcome=Outcome.HELD,
            details={"hold": "audit", "until_ns": 1_800_000_000_000_000_000},
        )
        await SQLiteJournal(state.database).append(row)
        await state.close()

    asyncio.run(journalled())
    assert "(held, hold audit, until 2027-01-15T08:00:00Z) by lapse" in holder.say("why", "workspace/lab")[0]
    _, held = holder.told("why", "workspace/lab")["journal"]
    assert held["details"]["until"] == "2027-01-15T08:00:00Z"


@pytest.mark.driver
def test_why_says_that_activity_is_unknown_where_its_store_does_not_answer(holder: Holder) -> None:
    holder.create()
    told = holder.told("why", "workspace/lab", "--activity-url", "redis://127.0.0.1:1")

    assert told["activity"] == "unknown: the activity store does not answer"


def test_why_answers_from_the_journal_after_it_is_gone(holder: Holder) -> None:
    holder.create("other")

    async def journalled() -> None:
        state = open_store(holder.folder / "state", clock=SystemClock())
        row = Entry(
            time_ns=1_700_000_000_000_000_000,
            domain="workspaces",
            address="workspace/lab",
            uid="u",
            version="3",
            verdict="due",
            reason="archive_ttl_expired",
            anchor_ns=None,
            policy="archive after 86400s",
            actor="lapse",
            outcome=Outcome.ENDED,
            details={"desired": "PENDING"},
        )
        await SQLiteJournal(state.database).append(row)
        await state.close()

    asyncio.run(journalled())
    table = holder.say("why", "workspace/lab")[0]
    told = holder.told("why", "workspace/lab")

    assert re.search(r"^verdict +gone: ended at 2023-11-14T22:13:20Z by lapse, ", table, re.MULTILINE)
    assert "2023-11-14T22:13:20Z ended (archive_ttl_expired, archive after 86400s, desired PENDING) by lapse" in table
    assert [row["outcome"] for row in told["journal"]] == ["ended"]


# --- the audit --------------------------------------------------------------------------------------------------------


def test_commands_tell_the_journal_who_made_and_revoked_a_token_and_created_and_opened_a_workspace(
    holder: Holder,
) -> None:
    made = holder.told("tokens", "create", "--name", "ci", "--scope", "read")
    holder.say("tokens", "revoke", made["id"])
    holder.create()
    link = holder.told("workspaces", "open", "lab")["url"]

    async def audit() -> list[Row]:
        state = open_store(holder.folder / "state", clock=SystemClock())
        rows = await SQLiteJournal(state.database).entries(domain=AUDIT)
        await state.close()
        return rows[::-1]

    rows = asyncio.run(audit())
    assert [(row.reason, row.address) for row in rows] == [
        ("token_created", f"token/{made['id']}"),
        ("token_revoked", f"token/{made['id']}"),
        ("workspace_created", "workspace/lab"),
        ("workspace_opened", "workspace/lab"),
    ]
    assert {row.actor for row in rows} == {who()}
    shown = str(rows)
    assert made["token"] not in shown
    assert link.rpartition("=")[2] not in shown


def test_the_journal_has_all_rows_with_a_limit_of_zero_and_refuses_one_below(holder: Holder) -> None:
    holder.create()
    for _ in range(2):
        holder.say("hold", "workspace/lab", "--reason", "demo")
        holder.say("release", "workspace/lab")

    rows = holder.say("journal", "--limit", "0", "-o", "json")[0].splitlines()
    refused = holder.say("journal", "--limit", "-1", code=64)[1]

    assert len(rows) >= 4
    assert len(holder.say("journal", "--limit", "1", "-o", "json")[0].splitlines()) == 1
    assert "Expected 0 for all" in refused


def test_who_follows_the_journal_since_a_time_gets_what_was_written_since_then_and_what_comes_once_each(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder.create()
    holder.say("hold", "workspace/lab", "--reason", "one")
    slept = []

    async def sleep(_clock: SystemClock, seconds: float) -> None:
        slept.append(seconds)
        if len(slept) > 2:
            raise KeyboardInterrupt
        state = open_store(holder.folder / "state", clock=SystemClock())
        row = audit_row(AuditReason.HOLD_PLACED, address=f"workspace/{len(slept)}", actor="ann", time_ns=len(slept))
        await SQLiteJournal(state.database).append(row)
        await state.close()

    monkeypatch.setattr(SystemClock, "sleep", sleep)
    rows = [
        json.loads(line)
        for line in holder.say("journal", "-f", "--since", "1h", "-o", "json", code=130)[0].split("\n")
        if line
    ]

    assert [(row["address"], row["reason"]) for row in rows] == [
        ("workspace/lab", "workspace_created"),
        ("workspace/lab", "hold_placed"),
        ("workspace/1", "hold_placed"),
        ("workspace/2", "hold_placed"),
    ]


def test_who_follows_the_journal_since_no_time_is_told_so(holder: Holder) -> None:
    assert "1x" in holder.say("journal", "--follow", "--since", "1x", code=64)[1]
