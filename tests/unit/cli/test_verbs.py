"""The verbs for things of every domain on a state folder, in this process: what is shown is what is so."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from lapse.cli.commands.record import LOOPS
from lapse.cli.context import who
from lapse.cli.flags import VerbFlags
from lapse.cli.output import print_views
from lapse.engine.journal.view import JournalRowView
from lapse.engine.verbs.contract import LoopView
from lapse.engine.verbs.operations import OPERATIONS
from lapse.engine.view import Moment, decode, to_json
from lapse.files.ownership import user_name
from lapse.workspaces.model import Ms, NewWorkspace, ObservedStatus
from tests.unit.cli.test_holding import Holder
from tests.unit.cli.test_workspaces import now

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.workspaces.store.port import WorkspaceStore

HOUR_MS = 3_600_000


@pytest.fixture
def holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Holder:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAPSE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return Holder(tmp_path, capsys)


def run_since(holder: Holder, hours: float) -> None:
    """Let there be a workspace that runs since then, with a standby TTL of ten minutes."""

    async def work(store: WorkspaceStore) -> None:
        before = Ms(now() - int(hours * HOUR_MS))
        new = NewWorkspace(name="lab", owner="ann", command=("serve",), port=1, standby_ttl_seconds=600)
        made = await store.create(new, now=before)
        await store.observe({made.id: ObservedStatus.RUNNING}, now=before)

    holder.say("status")  # makes the folder
    holder.on_store(work)


# --- forecast ---------------------------------------------------------------------------------------------------------


def test_a_forecast_shows_a_bar_for_each_step_and_the_nearest_things(holder: Holder) -> None:
    run_since(holder, 0.01)
    table, said = holder.say("forecast", "--within", "20m", "--steps", "4")
    assert [line.split() for line in table.splitlines() if line.startswith("workspaces")] == [
        ["workspaces", "·█··", "0", "1", "0"]
    ]
    assert "workspace/lab" in table
    assert "1 lapse by" in said
    assert "The highest bar is 1 in 5m." in said
    told = holder.told("forecast", "--within", "20m", "--steps", "4", "--domain", "workspaces")
    assert [(one["name"], one["counts"]) for one in told["domains"]] == [("workspaces", [0, 1, 0, 0])]


def test_a_forecast_counts_what_is_overdue_and_what_is_held_apart(holder: Holder) -> None:
    run_since(holder, 1)
    held = ("forecast", "--domain", "workspaces")
    assert [holder.told(*held)["domains"][0][name] for name in ("overdue", "held")] == [1, 0]
    holder.say("hold", "workspace/lab", "--reason", "look")
    assert [holder.told(*held)["domains"][0][name] for name in ("overdue", "held")] == [0, 1]
    assert "0 are overdue, and 1 are held" in holder.say(*held)[1]


@pytest.mark.parametrize(
    "line",
    [["--steps", "0"], ["--steps", "367"], ["--limit", "-1"], ["--limit", "1001"], ["--after", "x"], ["--domain", "x"]],
    ids=" ".join,
)
def test_a_forecast_that_cannot_be_meant_is_wrong_usage(holder: Holder, line: list[str]) -> None:
    out, err = holder.say("forecast", *line, code=64)
    assert out == ""
    assert "xpected" in err


# --- plan and why -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [0.01, 1])
def test_plan_and_why_agree_about_a_workspace_of_which_another_process_knows_who_is_there(
    holder: Holder,
    hours: float,
) -> None:
    run_since(holder, hours)
    (item,) = holder.told("plan")["items"]
    why = holder.told("why", "workspace/lab")

    assert item["deadline"] == why["deadline"]
    assert (item["policy"], why["rules"][0]["rule"]) == ("standby after 600s", "standby after 10m idle")
    assert item["due"] is (why["verdict"] == "due")
    assert (item["doubt"] is not None) is (why["verdict"] == "unknown")
    assert (why["verdict"], item["doubt"]) == (("keep", None) if hours < 0.1 else ("unknown", why["because"]))


def test_the_archive_after_standby_is_no_further_thing(holder: Holder) -> None:
    run_since(holder, 0.01)
    (item,) = holder.told("plan", "--within", "31d")["items"]
    said = holder.say("plan", "--within", "31d")[1]

    assert [(one["address"], one["action"]) for one in item["then"]] == [("workspace/lab", "archive")]
    assert "along" not in said


def test_what_is_in_doubt_is_told_apart_from_what_is_due(holder: Holder) -> None:
    run_since(holder, 1)
    table, said = holder.say("plan")

    assert "not known" in table
    assert "0 now, 0 later, 0 held, 1 in doubt." in said


def test_what_is_held_until_a_time_is_in_the_plan_all_the_same(holder: Holder) -> None:
    run_since(holder, 1)
    holder.say("hold", "workspace/lab", "--reason", "demo", "--until", "30d")
    (item,) = holder.told("plan")["items"]

    assert item["hold"]["reason"] == "demo"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("--policy", "bogus"), "There is no policy 'bogus'. Known: requests/"),
        (("--policy", "bogus", "--domain", "history"), "There is no policy 'bogus'. Known: history/"),
        (("--domain", "bogus"), "There is no domain 'bogus'. Expected "),
    ],
)
def test_a_plan_of_what_nobody_knows_is_refused(holder: Holder, line: tuple[str, ...], said: str) -> None:
    out, err = holder.say("plan", *line, code=64)

    assert out == ""
    assert said in err


def test_a_plan_has_moments_as_everything_else_and_one_of_another_form_is_told_as_such(holder: Holder) -> None:
    holder.create()
    holder.say("plan", "--out", "plan.json")
    plan = json.loads((holder.folder / "plan.json").read_text())
    assert (plan["form"], {"created_at", "expires_at", "until"} - plan.keys()) == (2, set())
    former = {**plan, "form": 1, "created": plan.pop("created_at"), "expires": plan.pop("expires_at")}
    (holder.folder / "plan.json").write_text(json.dumps(former))

    assert "its form is 1, and this Lapse knows 2. Expected" in holder.say("apply", "plan.json", code=64)[1]


def test_a_plan_is_for_a_policy_by_its_name(holder: Holder) -> None:
    run_since(holder, 1)

    assert [one["policy_name"] for one in holder.told("plan", "--policy", "standby")["items"]] == ["standby"]
    assert holder.told("plan", "--policy", "archive")["items"] == []


def test_a_kind_that_there_is_not_is_a_usage_error_that_names_those_that_there_are(holder: Holder) -> None:
    holder.create()
    for line in (("why",), ("hold", "--reason", "z"), ("release",), ("delete", "--yes")):
        refused = holder.say(line[0], "Foo.bar/x/y", *line[1:], code=64)[1]
        assert "There is no kind Foo.bar in this store. Expected " in refused
        assert " history, " in refused
    assert "There is no kind Job.batch in this store" in holder.say("extend", "Job.batch/x/y", "2h", code=64)[1]


def test_a_name_alone_is_a_usage_error_that_names_what_is_called_so(holder: Holder) -> None:
    holder.create()
    for line in (("why",), ("hold", "--reason", "z"), ("release",), ("delete", "--yes")):
        refused = holder.say(line[0], "lab", *line[1:], code=64)[1]
        assert refused == "lapse: 'lab' is a name, and no address: perhaps workspace/lab is meant.\n"
    told = holder.say("extend", "nobody", "2h", code=64)[1]
    assert "'nobody' is a name, and no address: expected KIND/NAMESPACE/NAME as in vcr/default/nightly" in told


def test_a_name_alone_that_is_not_utf_8_is_told_as_an_address_is(holder: Holder) -> None:
    for given in ("x\udcff", "workspace/x\udcff"):
        assert "is not an address: it is not valid UTF-8." in holder.say("delete", given, "--yes", code=64)[1]


def test_the_status_tells_of_the_budget_that_ends_first_what_is_left_and_its_limit(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def budget() -> object:
        domains = json.loads(holder.say("status", "-o", "json")[0])["domains"]
        return next(one["budget"] for one in domains if one["name"] == "workspaces")

    assert budget() == {"limit": "100000/1h", "left": 100_000}, "that of everything together"
    monkeypatch.setenv("LAPSE_WORKSPACES_DELETION_BUDGET", "5/1h")
    assert budget() == {"limit": "5/1h", "left": 5}
    monkeypatch.setenv("LAPSE_WORKSPACES_DELETION_BUDGET", "off")
    monkeypatch.setenv("LAPSE_DELETION_BUDGET", "off")
    assert budget() == {"limit": "off", "left": None}


def test_what_is_not_due_yet_is_waited_for_where_that_is_asked_and_the_hints_say_so(holder: Holder) -> None:
    run_since(holder, 0.01)
    assert holder.say("plan", "--out", "plan.json")[1].endswith("lapse apply plan.json --when-due\n")
    said = holder.say("apply", "plan.json", code=3)[1]
    assert said.endswith("0 ended, 1 left, of 1.\nTo wait for what is not due: lapse apply plan.json --when-due\n")


def test_what_was_released_is_told_with_its_deadline_and_what_was_deleted_with_the_way_back(holder: Holder) -> None:
    run_since(holder, 0.01)
    extended = holder.told("extend", "workspace/lab", "2h")
    holder.say("hold", "workspace/lab", "--reason", "demo")
    released = holder.told("release", "workspace/lab")
    assert (released["changed"], released["hold"]) == (True, None)
    for name in ("deadline", "extended_until"):
        assert released[name] == extended[name] is not None

    said = holder.say("delete", "workspace/lab", "--yes")[0]
    (entry,) = holder.told("trash", "list")["items"]
    back = f"It is in the trash until {entry['expires_at']}. To bring it back: lapse undo workspace/lab"
    assert said == f"Deleted: workspace/lab. {back}\n"
    holder.say("undo", "workspace/lab")
    assert holder.told("delete", "workspace/lab", "--yes")["says"].endswith(
        "To bring it back: lapse undo workspace/lab"
    )


def test_what_is_done_to_one_thing_only_is_refused_where_its_address_is_that_of_another(holder: Holder) -> None:
    run_since(holder, 0.01)
    uid = holder.told("why", "workspace/lab")["uid"]
    for line in (
        ("hold", "workspace/lab", "--reason", "x"),
        ("release", "workspace/lab"),
        ("extend", "workspace/lab", "2h"),
        ("delete", "workspace/lab", "--yes"),
    ):
        _, said = holder.say(*line, "--uid", "another", code=1)
        assert f"workspace/lab is another one now, made or written anew since: its uid is {uid}" in said
    assert holder.told("why", "workspace/lab")["verdict"] == "keep"
    assert holder.told("delete", "workspace/lab", "--yes", "--uid", uid)["uid"] == uid


def test_a_release_of_the_hold_that_was_seen_leaves_another(holder: Holder) -> None:
    run_since(holder, 0.01)
    seen = holder.told("hold", "workspace/lab", "--reason", "mine", "--until", "2h")["hold"]["hash"]
    now = holder.told("hold", "workspace/lab", "--reason", "evidence")["hold"]["hash"]
    _, said = holder.say("release", "workspace/lab", "--hash", seen, code=1)
    assert "workspace/lab is under another hold now: evidence, by user" in said
    assert now in said
    assert holder.told("why", "workspace/lab")["hold"]["reason"] == "evidence"
    assert holder.told("release", "workspace/lab", "--hash", now)["changed"]


def test_hints_repeat_the_place_that_was_named_and_no_other(holder: Holder) -> None:
    holder.create()
    there = ("--state-dir", str(holder.folder / "state"))
    for line, hint in (
        (("hold", "workspace/lab", "--reason", "z"), "To let it go: lapse release{} workspace/lab\n"),
        (("plan", "--out", "plan.json"), "To carry it out: lapse apply{} plan.json\n"),
        (("freeze", "workspaces"), "To resume: lapse resume{} workspaces\n"),
    ):
        plain, named = holder.say(*line), holder.say(*line, *there)
        assert " ".join("".join(plain).split()).endswith(hint.format("").strip())
        assert " ".join("".join(named).split()).endswith(hint.format(f" {' '.join(there)}").strip())


def test_a_hint_names_a_server_and_a_cluster_and_no_password() -> None:
    assert VerbFlags(server="https://l.example").command("undo", "x") == ": lapse undo --server https://l.example x"
    assert VerbFlags().command("undo", "x", cluster=True) == ": lapse undo --cluster x"
    assert VerbFlags(kube_context="a b").command("undo", "x") == ": lapse undo --kube-context 'a b' x"
    hidden = VerbFlags(database_url="postgresql://u:s3cr3t@h/d").command("undo", "x")
    assert hidden == ", with the same --database-url: lapse undo x"


def test_a_hold_tells_the_deadline_and_the_extension_that_there_are(holder: Holder) -> None:
    run_since(holder, 0.01)
    holder.say("extend", "workspace/lab", "2h")
    held, why = holder.told("hold", "workspace/lab", "--reason", "z"), holder.told("why", "workspace/lab")

    assert held["deadline"] == why["deadline"]
    assert held["extended_until"] == why["extended_until"] is not None


# --- two persons ------------------------------------------------------------------------------------------------------


def test_a_legal_hold_needs_somebody_who_could_release_it(holder: Holder) -> None:
    holder.create()
    line = ("hold", "workspace/lab", "--reason", "case 7", "--legal")
    refused = holder.say(*line, code=64)[1]
    assert f"A legal hold takes two persons, and in {holder.folder / 'state'} there is nobody but {who()}." in refused
    assert "lapse tokens create --name NAME --scope legal" in refused
    assert holder.told("why", "workspace/lab")["hold"] is None

    holder.say("tokens", "create", "--name", "reader", "--scope", "read")
    holder.say(*line, code=64)
    holder.say("tokens", "create", "--name", "ben", "--scope", "legal")
    held = holder.told(*line)
    assert (held["hold"]["legal"], held["hold"]["by"]) == (True, who())
    assert "another person must release it" in holder.say("release", "workspace/lab", "--legal", code=64)[1]


def test_who_is_alone_approves_no_plan(holder: Holder) -> None:
    holder.create()
    holder.say("plan", "--out", "plan.json")
    refused = holder.say("approve", "plan.json", code=64)[1]
    assert "The approval of a plan takes two persons, and in " in refused
    assert "lapse tokens create --name NAME --scope approve" in refused


def test_a_person_has_one_name_in_the_journal_in_holds_and_in_plans(holder: Holder) -> None:
    holder.create()
    holder.say("hold", "workspace/lab", "--reason", "mine")
    holder.say("freeze", "history", "--reason", "look")
    holder.say("release", "workspace/lab")
    holder.say("delete", "workspace/lab", "--yes")
    rows = [json.loads(line) for line in holder.say("journal", "-o", "json")[0].splitlines()]

    assert {row["actor"] for row in rows} == {who()}
    assert holder.told("plan")["author"] == who()
    assert who() == f"user {user_name()}"


# --- proposed plans ---------------------------------------------------------------------------------------------------


def test_a_proposed_plan_is_listed_shown_and_carried_out_by_its_id(holder: Holder) -> None:
    run_since(holder, 0.01)
    assert holder.say("plans", "list")[1] == "No plan is proposed.\n"
    said = holder.say("plan", "--propose")[1].splitlines()[-3:]
    (listed,) = holder.told("plans", "list")["items"]
    plan = listed["id"]
    assert said == [
        f"Plan {plan}, proposed, kept until {listed['expires_at']}.",
        f"To approve it, as another person: lapse approve {plan}",
        f"To carry it out: lapse apply {plan} --when-due",
    ]
    assert (listed["author"], listed["items"], listed["due"], listed["applied_by"]) == (who(), 1, 0, None)
    shown, told = holder.say("plans", "show", plan)
    assert "workspace/lab" in shown
    assert told.startswith(f"Plan {plan} of {who()}, made at ")
    assert holder.told("plans", "show", plan)["id"] == plan

    assert "takes two persons" in holder.say("approve", plan, code=64)[1]
    waits = holder.say("apply", plan, code=3)[1]
    assert waits.endswith(f"To wait for what is not due: lapse apply {plan} --when-due\n")
    assert (plan, who(), 0, 1) in {
        (one["id"], one["applied_by"], one["ended"], one["left"]) for one in holder.told("plans", "list")["items"]
    }
    assert "plan_proposed" in holder.say("journal", "--domain", "audit")[0]


def test_what_is_neither_a_file_nor_a_proposed_plan_is_told_as_both(holder: Holder) -> None:
    holder.create()
    for given in ("0123456789abcdef", "nothing.json"):
        for verb in ("apply", "approve"):
            refused = holder.say(verb, given, code=64)[1]
            assert f"{given} is no file, and no plan of that id is kept there. Expected a file" in refused
            assert "or an id that lapse plans list shows" in refused
    assert "keeps no plan 0123456789abcdef" in holder.say("plans", "show", "0123456789abcdef", code=1)[1]


def test_a_file_that_is_named_like_an_id_is_meant_as_a_file(holder: Holder) -> None:
    holder.create()
    plan = holder.told("plan", "--propose")["id"]
    (holder.folder / plan).write_text("{}")
    assert "This is not a plan" in holder.say("apply", plan, code=64)[1]


# --- reasons ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["Prüfung 監査 🙂", "vcr/default/x", "[bold red]x[/]", "x" * 1024])
def test_a_reason_is_shown_as_it_was_given(holder: Holder, text: str) -> None:
    holder.create()
    holder.say("tokens", "create", "--name", "ben", "--scope", "legal")
    assert holder.told("hold", "workspace/lab", "--reason", text, "--legal")["hold"]["reason"] == text

    assert text in holder.say("why", "workspace/lab")[0]
    assert text in holder.say("delete", "workspace/lab", "--yes", code=1)[1]


@pytest.mark.parametrize("text", ["", "  ", "a\nb", "\x1b[31mred", "\u202ereversed", "x" * 1025, "\udcff"])
@pytest.mark.parametrize("legal", [[], ["--legal"]])
def test_a_reason_that_cannot_be_shown_is_refused_and_not_repeated(holder: Holder, text: str, legal: list[str]) -> None:
    holder.create()
    out, err = holder.say("hold", "workspace/lab", f"--reason={text}", *legal, code=64)

    assert out == ""
    assert "The reason of a hold is for others to read: expected 1 to 1024 printable characters" in err
    assert not text.strip() or text not in err
    assert holder.told("why", "workspace/lab")["hold"] is None


# --- JSON -------------------------------------------------------------------------------------------------------------

LINES = {
    "plan": ("plan", "--out", "plan.json"),
    "apply": ("apply", "plan.json"),
    "why": ("why", "workspace/lab"),
    "hold": ("hold", "workspace/lab", "--reason", "demo", "--until", "2d"),
    "release": ("release", "workspace/lab"),
    "extend": ("extend", "workspace/lab", "2h"),
    "approve": ("approve", "plan.json"),
    "plans": ("plans", "list"),
    "proposed": ("plans", "show", "ID"),
    "forecast": ("forecast",),
    "freeze": ("freeze", "history", "--reason", "look"),
    "resume": ("resume", "history"),
    "delete": ("delete", "workspace/lab", "--yes"),
    "trash": ("trash", "list"),
    "undo": ("undo", "workspace/lab"),
    "empty_trash": ("trash", "empty", "--yes"),
    "status": ("status",),
}
CODES = {"apply": 3, "approve": 64}
"""What is not due yet is left, and nobody approves their own plan."""


def times_in(document: object) -> list[str]:
    """Return what looks like a time; raises for a number that is one."""
    if isinstance(document, dict):
        return [one for value in document.values() for one in times_in(value)]
    if isinstance(document, list):
        return [one for value in document for one in times_in(value)]
    assert not (isinstance(document, int) and document > 10**11), "a time is written as a text"
    return [document] if isinstance(document, str) and re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", document) else []


def test_json_of_every_verb_is_one_document_with_the_fields_of_http(holder: Holder) -> None:
    run_since(holder, 0.01)
    holder.say("tokens", "create", "--name", "ben", "--scope", "approve")
    told = {one.verb: one.told for one in OPERATIONS}
    assert LINES.keys() == told.keys() - {"journal", "propose"}, "lapse plan --propose prints the plan"
    plan = holder.told("plan", "--propose")["id"]

    for verb, line in LINES.items():
        out, err = holder.say(*(plan if word == "ID" else word for word in line), "-o", "json", code=CODES.get(verb, 0))
        if CODES.get(verb) == 64:
            assert out == ""
            assert err.startswith("lapse: ")
            continue
        assert len(out.splitlines()) == 1
        document = json.loads(out)
        assert to_json(decode(out.encode(), told[verb])) == document, "no field more or less than over HTTP"
        assert all(re.fullmatch(r"[0-9-]{10}T[0-9:]{8}Z", one) for one in times_in(document)), document


def test_the_journal_is_json_lines_with_the_fields_of_http(holder: Holder) -> None:
    holder.create()
    holder.say("hold", "workspace/lab", "--reason", "demo", "--until", "2d")
    holder.say("delete", "workspace/lab", "--yes", code=1)
    lines = holder.say("journal", "-o", "json")[0].splitlines()

    assert [json.loads(line)["reason"] for line in lines] == ["held", "hold_placed", "workspace_created"]
    for line in lines:
        document = json.loads(line)
        assert to_json(decode(line.encode(), JournalRowView)) == document
        assert times_in(document)
        assert all(re.fullmatch(r"[0-9-]{10}T[0-9:]{8}Z", one) for one in times_in(document)), document


def test_the_journal_is_searched_by_a_part_of_an_address_which_is_no_pattern(holder: Holder) -> None:
    holder.create()
    holder.say("hold", "workspace/lab", "--reason", "demo", "--until", "2d")
    found = holder.say("journal", "--search", "space/la", "-o", "json")[0].splitlines()
    assert {json.loads(line)["address"] for line in found} == {"workspace/lab"}
    for text in ("space%la", "workspace_lab", "LAB", "demo"):
        assert "Nothing was journalled that fits" in holder.say("journal", "--search", text)[1]
    for text in ("", "x" * 201):
        for more in ((), ("--follow",)):
            assert "1 to 200 printable characters" in holder.say("journal", "--search", text, *more, code=64)[1]


def test_the_status_of_a_running_lapse_shows_the_lag_of_its_loops(capsys: pytest.CaptureFixture[str]) -> None:
    loop = LoopView(
        name="retention",
        domain="history",
        interval_seconds=3600,
        ticks=2,
        errors=0,
        last_run_at=Moment(0),
        last_success_at=Moment(0),
        next_run_at=Moment(0),
        lag_seconds=90.5,
        last_error=None,
    )
    print_views([loop, replace(loop, name="idle", domain=None, lag_seconds=None)], LOOPS, now=0)
    head, late, idle = capsys.readouterr().out.splitlines()
    place = head.index("LAG")

    assert (late[place:].split()[0], idle[place:].split()[0]) == ("1m31s", "-")
    assert (late.split()[:2], idle.split()[:2]) == (["retention", "history"], ["idle", "-"]), "the engine's own"
