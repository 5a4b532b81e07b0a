"""``lapse history`` and ``lapse retention`` as a person runs them: real processes, on records from long ago."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.past import left, policy, record, rows
from tests.servers.lapse_server import COMMAND, clean_environment, lapse

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(180)
RUN = {
    "experimentRef": {"name": "kill", "namespace": "shop", "uid": "u-kill"},
    "execution": {"startTime": "2026-01-31T12:00:00Z", "status": "success"},
}


def told(folder: Path, *line: str, code: int = 0) -> Any:  # noqa: ANN401 - whatever it prints
    done = lapse(*line, f"--state-dir={folder / 'state'}", "-o", "json", state_dir=folder)
    assert (done.returncode, done.stderr) == (code, "")
    return json.loads(done.stdout)


def test_records_are_written_listed_and_pruned_and_the_dry_run_names_what_the_real_one_ends(tmp_path: Path) -> None:
    state = tmp_path / "state"
    expired = {record(state, ago=f"{40 + days}d") for days in range(3)}
    too_many = {record(state, "shop/often", ago=f"{6 + hours}h") for hours in range(3)}
    kept = {record(state, "shop/often", ago=f"{1 + hours}h") for hours in range(2)}
    held = record(state, "shop/held", ago="99d", hold=True)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(RUN))
    new = told(tmp_path, "history", "record", "run.yaml")

    listed = told(tmp_path, "history", "list")["items"]
    line = ("history", "prune", "--history-retention-limit=2", "--yes")
    dry = told(tmp_path, *line, "--dry-run", "--detailed-exitcode", code=2)
    assert left(state) == {one["name"] for one in listed} == expired | too_many | kept | {held, new["name"]}
    real = told(tmp_path, *line)

    assert listed[0]["name"] == new["name"]
    assert [one["address"] for one in dry["items"]] == [one["address"] for one in real["items"]]
    assert {one["name"] for one in real["items"]} == expired | too_many
    assert {(one["name"] in expired, one["reason"]) for one in real["items"]} == {
        (True, "ttl_expired"),
        (False, "retention_limit"),
    }
    assert left(state) == kept | {held, new["name"]}
    assert told(tmp_path, *line)["items"] == []
    acts = [row for row in rows(state) if row.outcome == "ended"]
    assert {row.address for row in acts} == {one["address"] for one in real["items"]}
    assert all(row.actor.startswith("user ") for row in acts)


def test_two_processes_that_record_the_same_run_make_one_record_of_it(tmp_path: Path) -> None:
    line = [*COMMAND, "history", "record", "-", "-o", "json", f"--state-dir={tmp_path / 'state'}"]
    environment = clean_environment(tmp_path)
    both = [
        subprocess.Popen(line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
        for _ in range(2)
    ]
    answers = [json.loads(one.communicate(json.dumps(RUN), timeout=60)[0]) for one in both]

    assert [one.returncode for one in both] == [0, 0]
    assert sorted(answer["new"] for answer in answers) == [False, True]
    assert left(tmp_path / "state") == {answer["name"] for answer in answers}


def test_a_policy_is_linted_run_and_its_rights_are_printed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    old = record(state, ago="10d")
    (tmp_path / "week.json").write_text(json.dumps(policy("week", maxAge="7d", dryRun=False)))

    assert told(tmp_path, "retention", "run", "week.json", "--dry-run")["items"][0]["name"] == old
    assert told(tmp_path, "retention", "run", "week.json")["policies"][0]["deleted"] == {"ttl_expired": 1}
    assert left(state) == set()
    linted = lapse("retention", "lint", "week.json", "--strict", state_dir=tmp_path)
    assert (linted.returncode, linted.stdout) == (0, "")
    printed = lapse("retention", "rbac", "week.json", state_dir=tmp_path)
    assert [one["kind"] for one in yaml.safe_load_all(printed.stdout)] == ["Role", "RoleBinding"]


def test_what_is_due_is_told_alike_where_a_hold_with_an_end_takes_no_place(tmp_path: Path) -> None:
    state = tmp_path / "state"
    oldest, _, newest = (record(state, ago=f"{hours}h") for hours in (3, 2, 1))
    (tmp_path / "lapse.toml").write_text("history_retention_limit = 2\n")
    limit = f"--config={tmp_path / 'lapse.toml'}"
    held = f"history/chaos-system/{newest}"

    assert [one["due"] for one in told(tmp_path, "plan", limit)["items"]] == [True]
    told(tmp_path, "hold", held, "--reason", "audit", "--until", "2d")
    for within in ("1d", "8d"):
        assert told(tmp_path, "plan", limit, "--within", within)["items"] == []
    (status,) = [one for one in told(tmp_path, "status", limit)["domains"] if one["name"] == "history"]
    assert (status["due"], status["held"]) == (0, 0)
    (said,) = told(tmp_path, "history", "show", oldest, limit)["retention"]
    assert "now 1 are" in said["says"]


def test_a_plan_says_of_what_is_frozen_or_in_a_dry_run_that_it_waits(tmp_path: Path) -> None:
    state = tmp_path / "state"
    record(state, ago="40d")
    told(tmp_path, "freeze", "all", "--reason", "audit")
    (item,) = told(tmp_path, "plan")["items"]
    domains = {one["name"]: one for one in told(tmp_path, "status")["domains"]}
    assert item["waits_for"] == "history, which is frozen: lapse resume all"
    assert domains["history"]["frozen"]["reason"] == "audit"
    assert domains["keys"]["frozen"] is None

    told(tmp_path, "resume", "all")
    (tmp_path / "lapse.toml").write_text('dry_run_domains = ["history"]\n')
    dry = f"--config={tmp_path / 'lapse.toml'}"
    (item,) = told(tmp_path, "plan", dry)["items"]
    assert item["waits_for"] == "the end of a dry run: dry_run_domains names history"
    (status,) = [one for one in told(tmp_path, "status", dry)["domains"] if one["name"] == "history"]
    assert status["act"] == "dry"
