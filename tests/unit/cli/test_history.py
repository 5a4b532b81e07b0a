"""``lapse history`` on a state folder, in this process, with records that were written long ago."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lapse.app.record import ProcessRecord
from lapse.cli import main
from lapse.core.clock import SystemClock
from lapse.core.duration import short
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.engine.safety.blast_radius import PolicyNote, note_name
from lapse.files.ownership import user_name
from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY
from lapse.kube.resources import ObjectKey
from lapse.objects.trash.rules import IN_TRASH, TRASH, TRASH_STATE, TrashState, to_text
from lapse.requests.api.kinds import OBJECT_KEEPER
from lapse.requests.api.upstream import CONFIG_MAP
from tests.past import NAMESPACE, at_store, left, many_records, policy, record, rows, store_policy

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.objects.embedded import EmbeddedStore

SPEC = """
experimentRef: {name: kill, namespace: shop, uid: u-1}
execution: {startTime: 2026-01-31T12:00:00Z, status: success, message: all well}
affectedResources: [{kind: Pod, name: web-1, namespace: shop, action: killed}]
audit: {initiatedBy: alice, scheduledExecution: true, retryCount: 2}
"""
NAME = "kill-20260131120000-"
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+Z")


@dataclass
class Person:
    """Somebody at the command line."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def run(self, *line: str, code: int = 0) -> tuple[str, str]:
        assert main(["history", *line]) == code, self.capsys.readouterr()
        found = self.capsys.readouterr()
        return found.out, found.err

    def json(self, *line: str, code: int = 0) -> Any:  # noqa: ANN401 - whatever it prints
        return json.loads(self.run(*line, "-o", "json", code=code)[0])

    def names(self, *line: str) -> list[str]:
        return [one["name"] for one in self.json("list", *line)["items"]]


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Person:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAPSE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return Person(tmp_path, capsys)


# --- list -------------------------------------------------------------------------------------------------------------


def test_records_are_listed_newest_first_with_their_age_and_when_they_go(person: Person) -> None:
    old = record(person.state, "shop/kill", ago="40d", status="failure")
    young = record(person.state, "bank/net", ago="3d")
    out, _ = person.run("list")
    heading, *lines = (line.split() for line in out.splitlines())

    assert heading == ["AGE", "EXPERIMENT", "STATUS", "ADDRESS", "EXPIRES"]
    first = ["3d", "bank/net", "success", f"history/chaos-system/{young}", "in", "26d23h"]
    assert lines[0] == first or lines[0][-1] == "27d"
    assert lines[1] == ["40d", "shop/kill", "failure", f"history/chaos-system/{old}", "now"]
    assert main(["history", "show", lines[0][3]]) == main(["why", lines[0][3]]) == 0


def test_a_list_may_be_of_one_experiment_one_namespace_one_status_and_of_so_many(person: Person) -> None:
    one = record(person.state, "shop/kill", ago="3h")
    two = record(person.state, "shop/kill", ago="2h", status="failure")
    other = record(person.state, "bank/kill", ago="1h")

    assert person.names() == [other, two, one]
    assert person.names("--experiment", "shop/kill") == [two, one]
    assert person.names("--experiment", "bank/nothing") == []
    assert person.names("--experiment-namespace", "bank") == [other]
    assert person.names("--status", "failure") == [two]
    assert person.names("--limit", "1") == [other]
    assert person.names("--experiment-namespace", "bank", "-A") == [other]
    assert person.names("--limit", "0") == [other, two, one]
    assert person.run("list", "--limit", "2")[1] == "There are more; --limit 0 shows all.\n"


def test_a_list_goes_on_where_the_page_before_ended_also_when_its_last_record_is_gone(person: Person) -> None:
    names = [record(person.state, "shop/kill", ago=f"{hours}h") for hours in (5, 4, 3, 2, 1)][::-1]
    first = person.json("list", "--limit", "2")
    second = person.json("list", "--limit", "2", "--after", first["next"])
    person.run("delete", names[3], "--yes")
    third = person.json("list", "--limit", "2", "--after", second["next"])

    assert [one["name"] for page in (first, second, third) for one in page["items"]] == names
    assert third["next"] is None
    assert "is not what a list" in person.run("list", "--after", "soon", code=64)[1]


def test_nothing_is_no_error(person: Person) -> None:
    assert person.run("list") == ("", "There are no records.\n")
    assert person.run("list", "--status", "partial") == ("", "There are no such records.\n")
    assert person.json("list") == {"items": [], "next": None}


def test_limits_on_the_command_line_tell_what_would_be(person: Person) -> None:
    first = record(person.state, ago="3h")
    record(person.state, ago="2h")
    found = {
        one["name"]: one for one in person.json("list", "--history-retention-limit", "1", "--history-ttl", "0")["items"]
    }

    assert (found[first]["verdict"], found[first]["reason"]) == ("due", "retention_limit")
    assert [one["expires"] for one in found.values()] == ["by number", "with the next pass"]
    assert found[first]["expires_at"] is not None, "since then there is one too many"
    table = person.run("list", "--history-retention-limit", "1")[0]
    assert [line.rstrip().endswith("with the next pass") for line in table.splitlines()] == [False, False, True]


def test_what_is_in_force_is_what_is_stored_and_not_what_the_settings_say(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(person.state, ago="10d")
    store_policy(person.state, policy("history", maxAge="9d", dryRun=False))
    monkeypatch.setenv("LAPSE_HISTORY_TTL", "2160h")

    assert person.json("list")["items"][0]["verdict"] == "due"
    assert person.json("list", "--history-ttl", "2160h")["items"][0]["verdict"] == "keep"


def test_a_stored_policy_that_is_a_dry_run_ends_nothing(person: Person) -> None:
    record(person.state, ago="10d")
    store_policy(person.state, policy("history", maxAge="9d"))

    assert person.json("list")["items"][0]["expires"] == "never (dry run)"


# --- show -------------------------------------------------------------------------------------------------------------


def test_a_record_is_shown_with_all_that_the_run_did_and_what_retention_says(person: Person) -> None:
    (person.folder / "run.yaml").write_text(SPEC)
    name = person.json("record", "run.yaml")["name"]
    out, _ = person.run("show", name)
    told = dict(line.split("  ", 1) for line in out.splitlines()[1:])
    told = {fact: text.strip() for fact, text in told.items()}

    assert told["experiment"] == "shop/kill"
    assert told["status"] == "success"
    assert told["started"] == "2026-01-31T12:00:00Z"
    assert told["message"] == "all well"
    assert told["affected"] == "Pod/shop/web-1 (killed)"
    assert (told["by"], told["how"], told["retries"]) == ("alice", "scheduled", "2")
    assert told["policy history"].startswith("stays until ")
    assert told["policy history"].endswith("while fewer than 100 of its group are newer; now 0 are")


def test_a_record_is_found_by_its_name_and_by_its_address(person: Person) -> None:
    name = record(person.state)

    assert person.json("show", name) == person.json("show", f"history/{NAMESPACE}/{name}")
    assert person.json("show", name)["object"]["metadata"]["name"] == name
    assert person.json("show", f"{NAMESPACE}/{name}")["address"] == f"history/{NAMESPACE}/{name}"


def test_the_namespace_is_that_of_the_address(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    name = record(person.state)
    monkeypatch.setenv("LAPSE_HISTORY_NAMESPACE", "elsewhere")

    assert person.names() == []
    assert person.names("-n", NAMESPACE) == person.names("-A") == [name]
    assert person.names("-n", "shop") == []
    person.run("show", name, code=1)
    assert person.json("show", name, "-n", NAMESPACE)["address"] == f"history/{NAMESPACE}/{name}"
    person.run("delete", name, "--yes", code=1)
    person.run("delete", name, "-n", NAMESPACE, "--yes")
    assert left(person.state) == set()


@pytest.mark.parametrize(
    ("flags", "verdict", "says"),
    [
        ([], "due", "goes: it is older than maxAge 30d since "),
        (["--history-ttl", "0"], "keep", "stays while fewer than 100 of its group are newer; now 2 are"),
        (["--history-ttl", "0", "--history-retention-limit", "0"], "keep", "stays: there is no limit"),
        (
            ["--history-ttl", "0", "--history-retention-limit", "2"],
            "due",
            "goes: 2 of its group are newer, and maxCount is 2",
        ),
        (
            ["--history-keep-last-success", "1"],
            "keep",
            "stays: keepLast keeps the last 1 with metadata.labels['lapse.dev/status'] success; otherwise it would go",
        ),
        (
            ["--history-ttl", "0", "--history-retention-limit", "1", "--history-keep-last-success", "1"],
            "keep",
            "otherwise it would go, as 2 of its group are newer, and maxCount is 1",
        ),
    ],
    ids=str,
)
def test_the_reason_is_told(person: Person, flags: list[str], verdict: str, says: str) -> None:
    name = record(person.state, ago="40d")
    record(person.state, ago="2d", status="failure")
    record(person.state, ago="1d", status="failure")
    record(person.state, "shop/other", ago="1h")
    found = person.json("show", name, *flags)

    assert found["verdict"] == verdict
    assert [one["policy"] for one in found["retention"]] == ["history"]
    assert says in found["retention"][0]["says"]


def test_what_is_held_says_so(person: Person) -> None:
    name = record(person.state, ago="40d", hold=True)
    found = person.json("show", name)

    assert (found["held"], found["reason"]) == (True, "held")
    assert found["retention"][0]["says"] == "stays: it is held"
    assert "audit" in person.run("show", name)[0]
    assert "held" in person.run("list")[0]


def test_every_policy_about_records_has_its_say(person: Person) -> None:
    name = record(person.state, ago="40d")
    keep = {"count": 1, "where": {"fieldPath": "spec.execution.message", "in": ["told"]}}
    store_policy(person.state, policy("protects", keepLast=keep, dryRun=True))
    found = person.json("show", name)

    assert [one["policy"] for one in found["retention"]] == ["protects", "history"]
    assert found["verdict"] == "keep"
    assert found["retention"][1]["verdict"] == "due"


def test_the_document_of_a_deletion_is_that_of_the_verb(person: Person) -> None:
    first, second = record(person.state, ago="2h"), record(person.state, ago="1h")
    uid = person.json("show", first)["uid"]
    by_noun = person.json("delete", first, "--yes")
    assert main(["delete", f"history/{NAMESPACE}/{second}", "--yes", "-o", "json"]) == 0
    by_verb = json.loads(person.capsys.readouterr().out)

    assert (by_noun["address"], by_noun["uid"], by_noun["domain"]) == (f"history/{NAMESPACE}/{first}", uid, "history")
    assert by_noun.keys() == by_verb.keys()
    said = [TIME.sub("TIME", one["says"]).replace(second, first) for one in (by_noun, by_verb)]
    assert said[0] == said[1]


# --- record -----------------------------------------------------------------------------------------------------------


def test_a_run_is_recorded_once_however_often_it_is_told(person: Person) -> None:
    (person.folder / "run.yaml").write_text(SPEC)
    first, _ = person.run("record", "run.yaml")
    second, _ = person.run("record", "run.yaml")

    assert first.startswith(f"Recorded: history/{NAMESPACE}/{NAME}")
    assert second == first.replace(".\n", ". It was recorded before, and is left as it is.\n")
    assert len(left(person.state)) == 1
    assert person.json("record", "run.yaml")["new"] is False


def test_a_whole_document_and_stdin_do_as_well(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    head = "apiVersion: chaos.gushchin.dev/v1alpha1\nkind: ChaosExperimentHistory\nspec:\n"
    (person.folder / "run.yaml").write_text(head + "".join(f"  {line}\n" for line in SPEC.strip().splitlines()))
    name = person.json("record", "run.yaml")["name"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SPEC.encode())))

    assert person.json("record", "-") == {"address": f"history/{NAMESPACE}/{name}", "name": name, "new": False}


def test_a_name_labels_and_a_hold_in_the_document_are_kept(person: Person) -> None:
    metadata = "metadata: {name: mine, labels: {team: shop}, annotations: {lapse.dev/hold: 'true'}}\n"
    head = f"apiVersion: chaos.gushchin.dev/v1alpha1\nkind: ChaosExperimentHistory\n{metadata}spec:\n"
    whole = head + "".join(f"  {line}\n" for line in SPEC.strip().splitlines())
    (person.folder / "run.yaml").write_text(whole)
    name = person.json("record", "run.yaml")["name"]
    shown = person.json("show", name)

    assert name == "mine"
    assert shown["held"] is True
    assert shown["object"]["metadata"]["labels"]["team"] == "shop"
    assert person.json("record", "run.yaml")["new"] is False

    (person.folder / "other.yaml").write_text(whole.replace("2026", "2025"))
    _, said = person.run("record", "other.yaml", code=1)
    assert "mine already" in said, "the name is that of another run"


def test_what_was_shown_can_be_recorded_elsewhere(person: Person) -> None:
    name = record(person.state)
    (person.folder / "run.json").write_text(json.dumps(person.json("show", name)["object"]))
    told = person.json("record", "run.json", "--state-dir", str(person.folder / "elsewhere"))

    assert told == {"address": f"history/{NAMESPACE}/{name}", "name": name, "new": True}


def test_a_run_can_be_told_by_flags_alone(person: Person) -> None:
    line = ("record", "--experiment", "shop/kill", "--status", "failure", "--start", "2026-01-31T12:00:00Z")
    name = person.json(*line, "--message", "it broke", "--end", "2026-01-31T12:05:00Z", "--experiment-uid", "u-1")[
        "name"
    ]
    spec = person.json("show", name)["object"]["spec"]

    assert spec["experimentRef"] == {"name": "kill", "namespace": "shop", "uid": "u-1"}
    assert spec["execution"] == {
        "startTime": "2026-01-31T12:00:00Z",
        "endTime": "2026-01-31T12:05:00Z",
        "status": "failure",
        "message": "it broke",
    }


def test_several_runs_are_recorded_from_one_file_and_none_when_one_is_wrong(person: Person) -> None:
    second = SPEC.replace("12:00:00", "13:00:00")
    (person.folder / "good.yaml").write_text(f"{SPEC}---{second}")
    (person.folder / "bad.yaml").write_text(f"{SPEC.replace('kill', 'other')}---{second.replace('success', 'fine')}")

    assert "spec.execution.status: must be one of" in person.run("record", "bad.yaml", code=64)[1]
    assert person.names() == []
    assert [one["new"] for one in person.json("record", "good.yaml")["items"]] == [True, True]


# --- prune ------------------------------------------------------------------------------------------------------------


def scene(person: Person) -> dict[str, str]:
    """Return records by what is to become of them, with at most three of an experiment and 30 days."""
    return {
        "expired": record(person.state, ago="40d"),
        "held": record(person.state, "shop/held", ago="40d", hold=True),
        "too many": record(person.state, ago="4d", status="failure"),
        "third": record(person.state, ago="3d"),
        "second": record(person.state, ago="2d"),
        "first": record(person.state, ago="1d"),
        "other": record(person.state, "bank/kill", ago="5d"),
    }


def test_the_dry_run_and_the_real_run_name_the_same_records(person: Person) -> None:
    found = scene(person)
    line = ("prune", "--history-retention-limit", "3")
    before = left(person.state)
    dry = person.json(*line, "--dry-run")
    assert left(person.state) == before
    real = person.json(*line, "--yes")

    for run in (dry, real):
        assert {(one["name"], one["reason"]) for one in run["items"]} == {
            (found["expired"], "ttl_expired"),
            (found["too many"], "retention_limit"),
        }
    assert {one["outcome"] for one in dry["items"]} == {"would_end"}
    assert {one["outcome"] for one in real["items"]} == {"ended"}
    assert left(person.state) == before - {found["expired"], found["too many"]}
    assert real["policies"][0]["kept"] == {"held": 1, "not_yet": 4}


def test_where_nobody_chose_a_ttl_the_first_prune_lists_what_would_go_and_deletes_nothing(person: Person) -> None:
    name = record(person.state, ago="40d")
    out, err = person.run("prune", code=1)
    assert name in out
    assert "would_end" in out
    assert "Nothing was deleted: --history-ttl is not set" in err
    assert "--yes" in err
    person.run("prune", "--detailed-exitcode", code=2)
    assert left(person.state) == {name}

    person.run("prune", "--yes")
    assert left(person.state) == set()
    record(person.state, ago="41d")
    person.run("prune")
    assert left(person.state) == set(), "it has acted here before"


def test_who_says_the_ttl_is_not_asked(person: Person) -> None:
    record(person.state, ago="40d")
    person.run("prune", "--history-ttl", "720h")
    assert left(person.state) == set()


@pytest.mark.parametrize(("answer", "stays"), [("y\n", 0), ("no\n", 1), ("", 1)])
def test_at_a_terminal_a_prune_asks(person: Person, monkeypatch: pytest.MonkeyPatch, answer: str, stays: int) -> None:
    record(person.state, ago="40d")
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    _, err = person.run("prune", code=1 if stays else 0)

    assert "Delete 1 of these records now? [y/N]" in err
    assert len(left(person.state)) == stays


def test_a_person_who_prunes_is_named_in_the_journal(person: Person) -> None:
    record(person.state, ago="40d")
    out, err = person.run("prune", "--yes")
    (row,) = rows(person.state)

    assert (row.domain, row.reason, row.outcome) == ("history", "ttl_expired", "ended")
    assert row.actor == f"user {user_name()}"
    assert row.address in out
    assert err == "history: deleted 1 of 1.\n"


def test_the_exit_code_of_a_dry_run_tells_when_it_is_asked_to(person: Person) -> None:
    person.run("prune", "--dry-run", "--detailed-exitcode", code=0)
    record(person.state, ago="40d")
    person.run("prune", "--dry-run", code=0)
    person.run("prune", "--dry-run", "--detailed-exitcode", code=2)
    person.run("prune", "--detailed-exitcode", "--yes", code=0)


def test_nothing_goes_while_history_is_frozen(person: Person) -> None:
    record(person.state, ago="40d")
    assert main(["freeze", "history"]) == 0
    person.capsys.readouterr()
    out, err = person.run("prune", "--yes", code=3)

    assert "refused" in out
    assert "1 must wait until lapse resume history is run" in err
    assert len(left(person.state)) == 1


def test_a_plan_of_what_is_frozen_says_since_when_and_why_and_what_lets_it_go_on(person: Person) -> None:
    record(person.state, ago="40d")
    assert main(["plan", "--out", "plan.json"]) == 0
    for name in ("history", "all"):
        assert main(["freeze", name, "--reason", "a look"]) == 0
        person.capsys.readouterr()
        assert main(["apply", "plan.json", "-o", "json"]) == 3
        (item,) = json.loads(person.capsys.readouterr().out)["items"]
        told = rf"\S+ is kept: history is frozen since 20\S+Z \(a look\); to let it go on: lapse resume {name}\."
        assert re.fullmatch(told, item["because"]), item


def test_past_its_budget_a_prune_is_partly_done_and_history_is_frozen(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAPSE_HISTORY_DELETION_BUDGET", "2/1h")
    for hours in range(3):
        record(person.state, ago=f"{960 + hours}h")
    found = person.json("prune", "--yes", code=3)

    assert sorted(one["outcome"] for one in found["items"]) == ["ended", "ended", "refused"]
    assert len(left(person.state)) == 1
    person.run("prune", "--yes", code=3)


def test_another_policy_protects_what_it_keeps(person: Person) -> None:
    name = record(person.state, ago="40d")
    record(person.state, ago="50d")
    store_policy(
        person.state,
        policy("protects", keepLast={"count": 1}, groupBy=["metadata.labels['lapse.dev/experiment-name']"]),
    )
    found = person.json("prune", "--yes")

    assert left(person.state) == {name}
    assert len(found["items"]) == 1


def test_limits_on_the_command_line_are_for_this_time_only(person: Person) -> None:
    record(person.state, ago="10d")
    store_policy(person.state, policy("history", maxAge="20d", dryRun=False))

    assert person.json("prune")["items"] == []
    assert len(person.json("prune", "--history-ttl", "24h", "--dry-run")["items"]) == 1
    assert person.json("prune", "--dry-run")["items"] == []
    assert len(person.json("prune", "--history-ttl", "24h")["items"]) == 1


def test_a_stored_history_policy_that_is_broken_deletes_nothing_and_says_so(person: Person) -> None:
    record(person.state, ago="400d")
    store_policy(person.state, policy("history", maxAge="9d", ageFrom="metadata..x", dryRun=False))
    _, err = person.run("prune", code=1)

    assert "spec.ageFrom: 'metadata..x' is not a field path" in err
    assert len(left(person.state)) == 1


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "says", "code"),
    [
        (
            "list --experiment kill",
            "'kill' is not the name of an experiment. Expected NAMESPACE/NAME, as in shop/kill-pods.",
            64,
        ),
        ("list --experiment a/b/c", "'a/b/c' is not the name of an experiment.", 64),
        ("list --status fine", "'fine' is not a status; expected success, failure, partial or cancelled.", 64),
        ("list --limit -1", "--limit is -1. Expected 0 for all, or a number above 0.", 64),
        ("list --limit many", "--limit", 64),
        ("list --history-ttl 30m", "it is shorter than an hour", 64),
        ("list --history-ttl -1h", "it is below zero", 64),
        ("prune --history-ttl -720h", "it is below zero", 64),
        ("prune --history-ttl 90", "history_ttl", 64),
        ("prune --history-retention-limit -1", "history_retention_limit", 64),
        ("prune all", "1 argument too many", 64),
        ("show", "The argument RECORD is missing.", 64),
        ("show nobody", "There is no record chaos-system/nobody in ", 1),
        ("show vcr/default/x", "it does not name a record, as history/NAMESPACE/NAME does", 64),
        ("show history/x/y/z", "history takes NAMESPACE/NAME", 64),
        ("show a//b", "a part is empty", 64),
        ("record", "Nothing is given. Name a FILE, - for stdin, or say --experiment, --status and --start.", 64),
        ("record run.yaml --status success", "A file and flags are given.", 64),
        ("record nowhere.yaml", "nowhere.yaml cannot be read: No such file or directory.", 64),
        ("record broken.yaml", "broken.yaml cannot be read: line 2: ", 64),
        ("record other.yaml", "it is v1/ConfigMap; expected apiVersion: chaos.gushchin.dev/v1alpha1", 64),
        ("record typo.yaml", "spec.execution.massage: there is no such field; did you mean message?", 64),
        ("record elsewhere.yaml", "The record is in the namespace bank, but records are kept in chaos-system", 64),
        ("record --experiment a/b --status success", "--start is missing.", 64),
        ("record --experiment a/b --start 2026-01-31T12:00:00Z", "--status is missing.", 64),
        (
            "record --experiment a/b --status success --start today",
            "--start is 'today', which is not a time. Expected one such as 2026-01-31T12:00:00Z",
            64,
        ),
        (
            "record --experiment a/b --status success --start 2026-01-31",
            "--start is '2026-01-31', which is not a time. Expected",
            64,
        ),
        ("list --state-dir run.yaml", "cannot be used: File exists. Name another one", 1),
    ],
    ids=str,
)
def test_a_mistake_is_one_clear_line_and_nothing_is_touched(person: Person, line: str, says: str, code: int) -> None:
    files = {
        "run.yaml": SPEC,
        "broken.yaml": "a: 1\n b: 2",
        "other.yaml": "apiVersion: v1\nkind: ConfigMap",
        "typo.yaml": SPEC.replace("message", "massage"),
        "elsewhere.yaml": json.dumps(
            {
                "apiVersion": "chaos.gushchin.dev/v1alpha1",
                "kind": "ChaosExperimentHistory",
                "metadata": {"namespace": "bank"},
                "spec": {
                    "experimentRef": {"name": "a", "namespace": "b"},
                    "execution": {"startTime": "2026-01-31T12:00:00Z", "status": "success"},
                },
            }
        ),
    }
    for name, text in files.items():
        (person.folder / name).write_text(text)
    before = record(person.state, ago="400d")
    out, err = person.run(*line.split(), code=code)
    first, *rest = err.splitlines()

    assert out == ""
    assert first.startswith("lapse: ")
    assert says in err
    assert all(line.startswith("Try 'lapse history") or "history" in line for line in rest)
    assert left(person.state) == {before}


# --- verbs of every domain, on records --------------------------------------------------------------------------------


def test_what_is_ended_by_approved_plans_only_is_not_ended_by_a_prune(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAPSE_ACT_BY_PLAN", "history")
    for day in (1, 2, 3):
        record(person.state, ago=f"{day}d")
    found = person.json("prune", "--yes", "--history-retention-limit", "1", code=3)
    said = person.run("prune", "--yes", "--history-retention-limit", "1", code=3)[1]
    assert [one["outcome"] for one in found["items"]] == ["would_end", "would_end"]
    assert [(one["ready"], one["reason"]) for one in found["policies"]] == [(True, "NeedsApprovedPlan")]
    assert said == (
        "history (a dry run, as ending needs an approved plan): would delete 2 of 3; to end it: lapse plan --out FILE,"
        " lapse approve FILE by another person, lapse apply FILE.\n"
    )
    assert len(person.names()) == 3
    assert "(a dry run): would delete" in person.run("prune", "--dry-run", "--history-retention-limit", "1")[1]


def test_what_a_policy_in_a_dry_run_of_its_own_is_about_says_so(person: Person) -> None:
    many_records(person.state, 3, ago="2h")
    store_policy(person.state, policy("few", maxCount=1, dryRun=True))
    waits = "the end of a dry run: the policy few says dryRun"
    assert main(["plan", "-o", "json"]) == 0
    items = json.loads(person.capsys.readouterr().out)["items"]
    assert [one["waits_for"] for one in items] == [waits, waits]
    assert main(["why", items[0]["address"], "-o", "json"]) == 0
    assert json.loads(person.capsys.readouterr().out)["waits_for"] == waits
    assert main(["plan", "--out", str(person.folder / "plan.json")]) == 0
    person.capsys.readouterr()
    assert main(["apply", str(person.folder / "plan.json"), "-o", "json"]) == 3
    done = json.loads(person.capsys.readouterr().out)["items"]
    assert [one["outcome"] for one in done] == ["would_end", "would_end"]
    assert len(person.names()) == 3


def test_the_status_says_until_when_a_first_pass_keeps_what_is_due(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(person.state, ago="40d")
    seen = PolicyNote("history", "history", SystemClock().wall_ns())

    async def see(store: EmbeddedStore) -> None:
        text = msgspec.json.encode(seen).decode()
        await ProcessRecord.in_folder(store).safety.write_note(note_name("history", "history"), text)

    at_store(person.state, see)
    monkeypatch.setenv("LAPSE_RETENTION_INTERVAL", "2h")
    ends = to_timestamp(seen.seen_ns + 7_200 * 1_000_000_000)
    assert main(["status", "-o", "json"]) == 0
    (status,) = [one for one in json.loads(person.capsys.readouterr().out)["domains"] if one["name"] == "history"]
    assert (status["due"], status["act"], status["first_pass_until"]) == (1, "first_pass", ends)
    assert main(["status"]) == 0
    assert f"first pass until {ends}" in person.capsys.readouterr().out
    assert main(["plan"]) == 0
    table, said = person.capsys.readouterr()
    assert "  waits  " in table
    assert f"1 waits for the end of the first pass at {ends}: until then only what would end is told" in said


def test_a_policy_that_waits_is_told_by_plan_and_status(person: Person) -> None:
    many_records(person.state, 105, ago="2h")
    store_policy(person.state, policy("few", maxCount=1, dryRun=False))
    assert main(["plan", "--out", "plan.json"]) == 0
    assert main(["apply", "plan.json"]) == 3
    assert len(left(person.state)) == 105

    person.capsys.readouterr()
    assert main(["plan", "--policy", "few"]) == 0
    table, said = person.capsys.readouterr()
    assert table.count("  waits  ") == 104
    assert "0 now, 0 later, 0 held, 104 waiting." in said
    assert "104 wait for the policy few, which is new or changed, to be approved: lapse resume --policy few" in said
    assert main(["plan", "--detailed-exitcode", "-o", "json"]) == 2
    items = json.loads(person.capsys.readouterr().out)["items"]
    assert {one["waits_for"] for one in items} == {
        "the policy few, which is new or changed, to be approved: lapse resume --policy few"
    }
    assert main(["status", "-o", "json"]) == 0
    status = json.loads(person.capsys.readouterr().out)
    (problem,) = [one["problem"] for one in status["domains"] if one["problem"]]
    assert problem == "the policy few waits: lapse resume --policy few"

    assert main(["retention", "run", "few"]) != 0
    told = person.capsys.readouterr().err
    assert "few (a dry run, as it waits for approval): " in told
    assert "dryRun" not in told

    assert main(["resume", "--policy", "few", "--hash", "of-another"]) == 1
    assert "The policy few has changed since: it would end 104 now." in person.capsys.readouterr().err
    assert main(["resume", "history", "--hash", status["waiting"][0]["hash"]]) == 64
    assert main(["resume", "--policy", "few", "--hash", status["waiting"][0]["hash"]]) == 0
    person.capsys.readouterr()
    assert main(["plan", "--policy", "few"]) == 0
    assert "104 now, 0 later, 0 held." in person.capsys.readouterr().err


def test_extensions_of_a_record_add_up_to_extend_max_and_no_further(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAPSE_EXTEND_MAX", "3h")
    monkeypatch.setenv("LAPSE_HISTORY_NAMESPACE", NAMESPACE)
    address = f"history/{NAMESPACE}/{record(person.state)}"
    assert [main(["extend", address, "1h"]) for _ in range(4)] == [0, 0, 0, 64]


def test_the_end_that_is_shown_is_the_one_that_somebody_has_given(person: Person) -> None:
    young, old = record(person.state, ago="3d"), record(person.state, ago="40d")
    for name in (young, old):
        assert main(["extend", f"history/{NAMESPACE}/{name}", "5d"]) == 0
    person.capsys.readouterr()
    found = {one["name"]: one for one in person.json("list")["items"]}
    now = SystemClock.wall_ns()
    shown = {name: short((from_timestamp(one["expires_at"]) or 0) - now) for name, one in found.items()}

    assert (found[old]["verdict"], found[old]["reason"]) == ("keep", "extended")
    assert shown[young].startswith("31d") or shown[young] == "32d"
    assert shown[old].startswith("4d") or shown[old] == "5d"
    assert "stays: a person has extended it until" in person.json("show", old)["retention"][0]["says"]


def test_what_is_over_by_its_number_is_not_extended_for_ever(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAPSE_EXTEND_MAX", "3h")
    monkeypatch.setenv("LAPSE_HISTORY_NAMESPACE", NAMESPACE)
    monkeypatch.setenv("LAPSE_HISTORY_RETENTION_LIMIT", "1")
    address = f"history/{NAMESPACE}/{record(person.state, ago='4h')}"
    record(person.state, ago="2h")  # since then there is one too many
    assert main(["extend", address, "2h"]) == 64
    assert main(["extend", address, "30m"]) == 0
    assert main(["extend", address, "1h"]) == 64


def test_the_undo_of_a_plan_brings_back_what_the_plan_has_ended_and_not_a_later_one_of_its_name(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAPSE_HISTORY_NAMESPACE", NAMESPACE)
    monkeypatch.setenv("LAPSE_HISTORY_TTL", "1h")
    name = record(person.state, ago="2h")
    address = f"history/{NAMESPACE}/{name}"
    (person.folder / "run.json").write_text(json.dumps(person.json("show", name)["object"]))
    assert main(["plan", "--out", "plan.json"]) == 0
    assert main(["apply", "plan.json"]) == 0
    at_store(person.state, _ended_an_hour_ago)  # of two in the same second neither is the later one
    person.run("record", "run.json")
    assert main(["delete", address, "--yes"]) == 0

    plan = json.loads((person.folder / "plan.json").read_text())
    assert main(["undo", plan["id"]]) == 0
    (back,) = [one for one in rows(person.state) if one.reason == "brought_back"]
    assert back.details is not None
    assert back.details["was"] == plan["items"][0]["uid"]


def test_a_plan_tells_what_a_record_takes_along_and_what_does_not_come_back(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = record(person.state, ago="40d")

    async def own(store: EmbeddedStore) -> None:
        kind = CHAOS_EXPERIMENT_HISTORY
        owner = await store.get(kind, ObjectKey(NAMESPACE, name))
        reference = {"apiVersion": kind.api_version, "kind": kind.kind, "name": name, "uid": owner.metadata.uid}
        metadata = {"name": "notes", "namespace": NAMESPACE, "ownerReferences": [reference]}
        await store.create(CONFIG_MAP, {"metadata": metadata})

    at_store(person.state, own)
    assert main(["plan", "--domain", "history", "-o", "json"]) == 0
    (item,) = json.loads(person.capsys.readouterr().out)["items"]
    assert (item["takes_along"], item["not_undoable"]) == ([f"ConfigMap/{NAMESPACE}/notes"], None)
    assert main(["plan", "--domain", "history"]) == 0
    assert "1 more goes along." in person.capsys.readouterr().err
    monkeypatch.setenv("LAPSE_TRASH_TTL", "never")
    assert main(["plan", "--domain", "history", "-o", "json"]) == 0
    (item,) = json.loads(person.capsys.readouterr().out)["items"]
    assert item["not_undoable"] == "trash_ttl is never"


def test_the_trash_is_emptied_of_one_of_two_that_had_the_same_address(person: Person) -> None:
    name = record(person.state, ago="2h")
    address = f"history/{NAMESPACE}/{name}"
    (person.folder / "run.json").write_text(json.dumps(person.json("show", name)["object"]))
    assert main(["delete", address, "--yes"]) == 0
    person.run("record", "run.json")
    assert main(["delete", address, "--yes"]) == 0
    person.capsys.readouterr()

    def listed() -> list[dict[str, Any]]:
        assert main(["trash", "list", "-o", "json"]) == 0
        found: list[dict[str, Any]] = json.loads(person.capsys.readouterr().out)["items"]
        return found

    first, second = listed()
    assert first["address"] == second["address"] == address
    assert main(["trash", "list"]) == 0
    assert first["uid"] in person.capsys.readouterr().out
    assert main(["trash", "empty", address, "--uid", first["uid"], "--yes"]) == 0
    person.capsys.readouterr()
    assert [one["uid"] for one in listed()] == [second["uid"]]
    assert main(["trash", "empty", address, "--uid", first["uid"], "--yes"]) == 1
    assert "is not in the trash" in person.capsys.readouterr().err


def test_a_page_of_the_trash_is_of_the_newest_and_the_total_of_everything(person: Person) -> None:
    older, newer = (f"history/{NAMESPACE}/{record(person.state, ago=ago)}" for ago in ("2h", "3h"))
    assert main(["delete", older, "--yes"]) == 0
    at_store(person.state, _ended_an_hour_ago)
    assert main(["delete", newer, "--yes"]) == 0
    person.capsys.readouterr()

    assert main(["trash", "list", "--limit", "1"]) == 0
    assert "2 in the trash, " in person.capsys.readouterr().err
    assert main(["trash", "list", "--limit", "1", "-o", "json"]) == 0
    page = json.loads(person.capsys.readouterr().out)
    assert [one["address"] for one in page["items"]] == [newer]
    assert main(["trash", "list", "--after", page["next"], "-o", "json"]) == 0
    assert [one["address"] for one in json.loads(person.capsys.readouterr().out)["items"]] == [older]
    assert main(["trash", "list", "--after", "x"]) == 64


async def _ended_an_hour_ago(store: EmbeddedStore) -> None:
    (keeper,) = (await store.list(OBJECT_KEEPER, labels={TRASH: IN_TRASH})).items
    state = to_text(TrashState(to_timestamp(SystemClock().wall_ns() - 3_600 * 1_000_000_000)))
    await store.patch(OBJECT_KEEPER, keeper.metadata.key, {"metadata": {"annotations": {TRASH_STATE: state}}})
