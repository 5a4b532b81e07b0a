"""``lapse retention`` on files and on a state folder, in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from lapse.cli import main
from lapse.core.clock import SystemClock
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.history.policy.policies import FROM, SETTINGS
from tests.past import left, policy, record, rows, store_policy

if TYPE_CHECKING:
    from pathlib import Path

EXPERIMENT = "metadata.labels['lapse.dev/experiment-name']"


@dataclass
class Person:
    """Somebody at the command line."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def write(self, *documents: dict[str, Any], name: str = "policy.yaml") -> str:
        (self.folder / name).write_text(yaml.safe_dump_all(documents))
        return name

    def run(self, *line: str, code: int = 0) -> tuple[str, str]:
        assert main(["retention", *line]) == code, self.capsys.readouterr()
        found = self.capsys.readouterr()
        return found.out, found.err

    def json(self, *line: str, code: int = 0) -> Any:  # noqa: ANN401 - whatever it prints
        return json.loads(self.run(*line, "-o", "json", code=code)[0])


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Person:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAPSE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return Person(tmp_path, capsys)


def test_a_pass_that_deletes_nothing_says_why(person: Person) -> None:
    record(person.state, ago="400d")
    file = person.write(policy("records", maxAge="9d", ageFrom="status.completionTime", dryRun=False))
    _, err = person.run("run", file)

    assert err == ("records: deleted 0 of 1; 1 kept: status.completionTime is missing, or not set to a time, in it.\n")
    assert len(left(person.state)) == 1


# --- run --------------------------------------------------------------------------------------------------------------


def test_a_policy_of_a_file_passes_once_and_names_what_goes(person: Person) -> None:
    old, young = record(person.state, ago="10d"), record(person.state, ago="1d")
    file = person.write(policy("records", maxAge="9d", dryRun=False))
    dry = person.json("run", file, "--dry-run")
    assert left(person.state) == {old, young}
    real = person.json("run", file)

    assert [one["name"] for one in dry["items"]] == [one["name"] for one in real["items"]] == [old]
    assert left(person.state) == {young}
    details = rows(person.state)[-1].details
    assert details is not None
    assert details.keys() == {"policy", "undo_until_ns"}
    assert details["policy"] == "records"
    assert main(["trash", "list", "-o", "json"]) == 0
    (entry,) = json.loads(person.capsys.readouterr().out)["items"]
    assert from_timestamp(entry["expires_at"]) == details["undo_until_ns"], "to the second"


def test_a_policy_deletes_nothing_until_its_dry_run_is_false_and_that_is_said(person: Person) -> None:
    name = record(person.state, ago="10d")
    out, err = person.run("run", person.write(policy("records", maxAge="9d")), "--detailed-exitcode", code=2)

    assert "would_end" in out
    assert err == "records (a dry run, as its dryRun is not false): would delete 1 of 1.\n"
    assert left(person.state) == {name}


def test_a_policy_that_acts_by_plan_is_told_so_by_a_run(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAPSE_ACT_BY_PLAN", "policy/records")
    name = record(person.state, ago="10d")
    real = policy("records", maxAge="9d", dryRun=False)
    assert "as ending needs an approved plan): would delete 1 of 1" in person.run("run", person.write(real), code=3)[1]
    assert "as its dryRun is not false" in person.run("run", person.write(policy("records", maxAge="9d")))[1]
    assert person.json("run", person.write(policy("others", maxAge="20d", dryRun=False)))["items"] == []
    assert left(person.state) == {name}


def test_stored_policies_protect_and_delete_nothing_themselves(person: Person) -> None:
    kept, gone = record(person.state, ago="10d"), record(person.state, ago="11d")
    other = record(person.state, "shop/other", ago="20d", status="failure")
    success = {"fieldPath": "metadata.labels['lapse.dev/status']", "in": ["success"]}
    store_policy(person.state, policy("protects", keepLast={"count": 1, "where": success}, groupBy=[EXPERIMENT]))
    store_policy(person.state, policy("deletes", maxAge="1d", dryRun=False))
    only_successes = {"onlyWhen": [success]}
    person.run("run", person.write(policy("records", maxAge="9d", dryRun=False, **only_successes)))

    assert left(person.state) == {kept, other}
    assert gone not in left(person.state)


def test_a_stored_policy_of_the_same_name_is_not_asked_and_its_status_is_left_alone(person: Person) -> None:
    record(person.state, ago="10d")
    store_policy(person.state, policy("records", maxAge="1d", dryRun=False))

    assert person.json("run", person.write(policy("records", maxAge="20d", dryRun=False)))["items"] == []
    assert person.json("show", "records")["last_run_at"] is None


def test_a_kind_that_the_store_does_not_know_fails_and_the_others_go_on(person: Person) -> None:
    record(person.state, ago="10d")
    jobs = policy("jobs", maxAge="1d")
    jobs["spec"]["selector"] = {"apiVersion": "batch/v1", "kind": "Job"}
    out, err = person.run("run", person.write(jobs, policy("records", maxAge="9d", dryRun=False)), code=3)

    assert "ended" in out
    assert "jobs: The store does not know the kind Job of batch/v1.\n" in err
    assert person.run("run", person.write(jobs), code=1)[0] == ""


def test_what_is_frozen_stays(person: Person) -> None:
    record(person.state, ago="10d")
    assert main(["freeze", "all"]) == 0
    person.capsys.readouterr()
    person.run("run", person.write(policy("records", maxAge="9d", dryRun=False)), code=3)

    assert len(left(person.state)) == 1


# --- status -----------------------------------------------------------------------------------------------------------


READY = {"type": "Ready", "status": "True", "reason": "Completed", "message": "7 matched, 2 were deleted"}
STATUS = {
    "conditions": [READY],
    "lastRun": "2026-01-31T12:00:00Z",
    "nextRun": "2026-01-31T13:00:00Z",
    "dryRun": False,
    "matched": 7,
    "deleted": {"ttl_expired": 2},
    "kept": {"keep_last": 1, "not_yet": 4},
}


def test_the_status_is_that_of_the_policies_in_force(person: Person) -> None:
    store_policy(person.state, policy("records", maxAge="9d", maxCount=3, dryRun=False), status=STATUS)
    store_policy(person.state, policy("another", maxAge="9d"))
    out, _ = person.run("list")
    cells = [line.split() for line in out.splitlines()]

    assert [line[0] for line in cells] == ["NAME", "another", "history", "records"]
    assert cells[1][1:] == ["ChaosExperimentHistory", "9d", "-", "yes", *"------"]
    assert cells[3][1:10] == ["ChaosExperimentHistory", "9d", "3", "no", "True", "Completed", "7", "2", "ttl_expired"]


def test_one_policy_is_shown_with_all_that_is_known_of_it(person: Person) -> None:
    keep = {"count": 2, "where": {"fieldPath": "spec.execution.status", "in": ["success"]}}
    document = policy("records", maxAge="9d", keepLast=keep, groupBy=[EXPERIMENT], dryRun=False)
    store_policy(person.state, document, status=STATUS)
    told = dict(line.split("  ", 1) for line in person.run("show", "records")[0].splitlines()[1:])

    assert told["keep last"].strip() == "2 with spec.execution.status success"
    assert told["kept"].strip() == "1 keep_last, 4 not_yet"
    assert told["deleted"].strip() == "2 ttl_expired"
    assert told["message"].strip() == READY["message"]
    found = person.json("show", "records")
    assert (found["ready"], found["matched"], found["object"]["spec"]) == (True, 7, document["spec"])


def test_a_policy_has_an_address_by_which_it_is_shown_and_explained(person: Person) -> None:
    store_policy(person.state, policy("records", maxAge="9d"))
    shown = person.json("show", "records")

    assert shown["address"] == "RetentionPolicy.lapse.dev/records"
    assert person.json("show", shown["address"]) == shown
    assert main(["why", shown["address"]]) == 0
    assert shown["address"] in person.capsys.readouterr().out


def test_a_file_whose_path_is_written_like_an_address_is_read(person: Person) -> None:
    for name in ("records", "another"):
        store_policy(person.state, policy(name, maxAge="9d"))
    person.write(policy("unknown", maxAge="1d"), name="records")
    assert person.json("show", "RetentionPolicy.lapse.dev/records")["name"] == "records"

    (person.folder / "RetentionPolicy.lapse.dev").mkdir()
    file = person.write(policy("another", maxAge="1d"), name="RetentionPolicy.lapse.dev/records")
    assert person.json("show", file)["name"] == "another"


def test_a_run_that_was_dry_and_one_of_this_moment_are_told_as_such(person: Person) -> None:
    shortly = to_timestamp(SystemClock().wall_ns() + 500_000_000)  # rounded up, as a status has it
    store_policy(person.state, policy("records", maxCount=3, dryRun=False), status={"lastRun": shortly, "dryRun": True})
    told = dict(line.split("  ", 1) for line in person.run("show", "records")[0].splitlines()[1:])

    assert told["last run"].strip().startswith(shortly)
    assert told["last run"].endswith(", a dry run)")
    assert "in 0s" not in told["last run"]
    assert told["max age"].strip() == "none"


@pytest.mark.parametrize(("written", "shown"), [("0s", "-"), ("never", "-"), ("90d", "90d")])
def test_a_limit_that_is_off_is_not_shown_as_one(person: Person, written: str, shown: str) -> None:
    store_policy(person.state, policy("records", maxAge=written, maxCount=3))
    assert person.run("list", "records")[0].splitlines()[1].split()[2] == shown


def test_the_policies_of_a_file_are_looked_up_by_their_names(person: Person) -> None:
    store_policy(person.state, policy("records", maxAge="9d"), status=STATUS)
    store_policy(person.state, policy("another", maxAge="9d"))
    file = person.write(policy("records", maxAge="1d"))

    assert [one["matched"] for one in person.json("list", file)["items"]] == [7]
    assert person.json("show", file)["matched"] == 7
    person.write(policy("unknown", maxAge="1d"), name="unknown.yaml")
    assert "There is no retention policy unknown in " in person.run("list", "unknown.yaml", code=1)[1]
    assert "There is no retention policy unknown in " in person.run("show", "unknown.yaml", code=1)[1]


def test_a_policy_that_nobody_has_is_not_found(person: Person) -> None:
    assert [one["name"] for one in person.json("list")["items"]] == ["history"]
    assert "There is no retention policy nobody in " in person.run("show", "nobody", code=1)[1]
    assert "There is no retention policy nobody in " in person.run("run", "nobody", code=1)[1]


def test_a_stored_policy_is_run_by_its_name(person: Person) -> None:
    record(person.state, ago="10d")
    store_policy(person.state, policy("records", maxAge="9d", dryRun=False))

    assert [one["outcome"] for one in person.json("run", "records", "--dry-run")["items"]] == ["would_end"]
    assert [one["outcome"] for one in person.json("run", "records")["items"]] == ["ended"]
    assert left(person.state) == set()


def test_a_policy_of_the_settings_counts_for_every_command_before_a_process_has_published_it(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, young = record(person.state, ago="2h"), record(person.state, ago="1h")
    few = policy("few-records", maxCount=1, dryRun=False)
    monkeypatch.setenv("LAPSE_RETENTION_POLICIES", json.dumps([few, {"metadata": {"name": "odd"}, "spec": {"a": 1}}]))

    assert main(["plan", "-o", "json"]) == 0
    assert [one["address"].split("/")[-1] for one in json.loads(person.capsys.readouterr().out)["items"]] == [old]
    assert main(["history", "list", "-o", "json"]) == 0
    listed = json.loads(person.capsys.readouterr().out)["items"]
    assert {one["name"]: one["verdict"] for one in listed} == {old: "due", young: "keep"}
    assert [one["name"] for one in person.json("list")["items"]] == ["few-records", "history", "odd"]
    assert person.json("show", "few-records")["object"]["spec"]["maxCount"] == 1
    assert [one["outcome"] for one in person.json("run", "few-records")["items"]] == ["ended"]
    assert left(person.state) == {young}


def test_a_stored_policy_that_nobody_chose_is_not_run_for_the_first_time_without_a_yes(person: Person) -> None:
    name = record(person.state, ago="40d")
    published = policy("history", maxAge="30d", dryRun=False)
    published["metadata"]["labels"] = {FROM: SETTINGS}
    store_policy(person.state, published)

    out, told = person.run("run", "history", code=1)
    assert name in out
    assert "run lapse history prune with --yes" in told
    assert left(person.state) == {name}


def test_status_was_list_and_with_a_policy_show(person: Person) -> None:
    store_policy(person.state, policy("records", maxAge="9d"), status=STATUS)
    former = "goes with the next version"

    listed, told = person.run("status", "--state-dir", str(person.state), "-o", "json")
    assert (json.loads(listed)["next"], former in told) == (None, True)
    shown, told = person.run("status", "--state-dir", str(person.state), "records", "-o", "json")
    assert (json.loads(shown)["name"], former in told) == ("records", True)


# --- lint and rbac ----------------------------------------------------------------------------------------------------


def test_lint_exits_with_one_for_errors_and_when_it_is_strict_for_warnings(person: Person) -> None:
    good = person.write(policy("records", maxAge="9d", dryRun=False), name="good.yaml")
    odd = person.write(policy("records", maxCount=9, dryRun=False), name="odd.yaml")
    bad = person.write(policy("other", maxAge="-9d"), name="bad.yaml")

    assert person.run("lint", good) == ("", "1 policy: 0 errors, 0 warnings, 0 notes.\n")
    assert person.json("lint", good, "--strict") == {"findings": [], "policies": 1}
    assert "everything is one group" in person.run("lint", odd)[0]
    person.run("lint", odd, "--strict", code=1)
    (found,) = person.json("lint", bad, code=1)["findings"]
    assert (found["severity"], found["policy"], found["place"]) == ("error", "other", "spec.maxAge")


def test_lint_compares_the_policies_of_all_files(person: Person) -> None:
    one = person.write(policy("one", maxAge="9d", dryRun=False), name="one.yaml")
    two = person.write(policy("two", maxAge="8d", dryRun=False), name="two.yaml")

    assert "two may select the same ChaosExperimentHistory" in person.run("lint", one, two)[0]


def test_lint_compares_ages_with_the_interval_of_the_settings(person: Person) -> None:
    file = person.write(policy("records", maxAge="2h", dryRun=False))

    assert person.json("lint", file)["findings"] == []
    assert len(person.json("lint", file, "--retention-interval", "3h")["findings"]) == 1


def test_rbac_prints_what_can_be_applied(person: Person) -> None:
    jobs = policy("jobs", maxAge="1d")
    jobs["spec"]["selector"] = {"apiVersion": "batch/v1", "kind": "Job", "namespaces": ["shop"]}
    out, err = person.run("rbac", person.write(jobs), "--lease-namespace", "here")
    role, binding = yaml.safe_load_all(out)

    assert err == ""
    assert role["rules"][0] == {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["list", "delete"]}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "lapse-retention", "namespace": "here"}]
    assert not (person.state).exists()


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["run", "rbac", "lint"])
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "No file is named. Name the files to look at, or - for stdin."),
        ("nowhere.yaml", "nowhere.yaml cannot be read: No such file or directory."),
        ("broken.yaml", "broken.yaml cannot be read: line 2: "),
        ("empty.yaml", "empty.yaml cannot be read: there is no document in it."),
        ("good.yaml nowhere.yaml", "nowhere.yaml cannot be read: "),
    ],
    ids=str,
)
def test_a_file_that_cannot_be_read_is_one_clear_line(person: Person, command: str, line: str, says: str) -> None:
    _mistakes(person)
    before = record(person.state, ago="400d")
    out, err = person.run(command, *line.split(), code=64)

    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"lapse: {says}")
    assert left(person.state) == {before}


@pytest.mark.parametrize("command", ["run", "rbac"])
@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("other.yaml", "it is v1/ConfigMap; expected apiVersion: lapse.dev/v1alpha1 and kind: RetentionPolicy"),
        ("list.yaml", "it is not a document"),
        ("path.yaml", "spec.groupBy[0]: 'metadata..name' is not a field path"),
        ("age.yaml", "spec.maxAge: must be a duration such as 10m"),
        ("count.yaml", "spec.maxCount: must be at least 0"),
        ("typo.yaml", "spec.maxage: there is no such field; did you mean maxAge?"),
        ("unnamed.yaml", "metadata.name: is required"),
    ],
)
def test_a_policy_that_cannot_be_used_is_one_clear_line(person: Person, command: str, file: str, says: str) -> None:
    _mistakes(person)
    before = record(person.state, ago="400d")
    out, err = person.run(command, file, code=64)

    assert out == ""
    assert err.startswith("lapse: The ")
    assert says in err
    assert err.count("\n") == 1
    assert left(person.state) == {before}


def test_two_policies_of_one_name_are_refused(person: Person) -> None:
    _mistakes(person)

    assert person.run("run", "good.yaml", "good.yaml", code=64)[1] == (
        "lapse: Two policies are called good. Give each a name of its own.\n"
    )


def _mistakes(person: Person) -> None:
    person.write(policy("good", maxAge="1d", dryRun=False), name="good.yaml")
    person.write(policy("path", maxAge="1d", groupBy=["metadata..name"], dryRun=False), name="path.yaml")
    person.write(policy("age", maxAge="-1h", dryRun=False), name="age.yaml")
    person.write(policy("count", maxCount=-1, dryRun=False), name="count.yaml")
    person.write(policy("typo", maxage="1h", dryRun=False), name="typo.yaml")
    person.write(policy("", maxAge="1d") | {"metadata": {}}, name="unnamed.yaml")
    for name, text in {
        "broken.yaml": "a: 1\n b: 2",
        "empty.yaml": "# nothing",
        "other.yaml": "apiVersion: v1\nkind: ConfigMap",
        "list.yaml": "[1, 2]",
    }.items():
        (person.folder / name).write_text(text)
