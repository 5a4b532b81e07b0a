"""The files in `examples/`, as the commands that they are for take them; none is left out, and none deletes."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.servers.lapse_server import lapse

EXAMPLES = Path(__file__).parents[2] / "examples"
POLICIES = sorted((EXAMPLES / "retention").glob("*.yaml"))
SETTINGS = sorted(EXAMPLES.glob("*.toml"))
RECORDS = sorted((EXAMPLES / "records").glob("*.yaml"))


def named(path: Path) -> str:
    return str(path.relative_to(EXAMPLES))


@pytest.mark.parametrize("path", POLICIES, ids=named)
def test_nothing_is_odd_about_a_policy_and_it_is_a_dry_run(path: Path, tmp_path: Path) -> None:
    done = lapse("retention", "lint", "--strict", str(path), "-o", "json", state_dir=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    documents = list(yaml.safe_load_all(path.read_text()))
    assert [one["spec"]["dryRun"] for one in documents] == [True] * json.loads(done.stdout)["policies"]


def test_policies_do_not_get_in_the_way_of_each_other(tmp_path: Path) -> None:
    done = lapse("retention", "lint", "--strict", *map(str, POLICIES), state_dir=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", POLICIES, ids=named)
def test_the_rights_that_a_policy_needs_can_be_told(path: Path, tmp_path: Path) -> None:
    done = lapse("retention", "rbac", str(path), state_dir=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "guess" not in done.stdout
    granted = {tuple(rule["verbs"]) for one in yaml.safe_load_all(done.stdout) for rule in one.get("rules", ())}
    assert {("list", "delete"), ("get", "list", "delete")} & granted
    alone = "get alone is for the owners of what is selected, which may be held"
    assert granted <= {("list", "delete"), ("get", "list", "delete"), ("get", "patch", "list", "delete"), ("get",)}, (
        alone
    )


@pytest.mark.parametrize("path", SETTINGS, ids=named)
def test_settings_are_valid_and_so_are_the_policies_in_them(path: Path, tmp_path: Path) -> None:
    done = lapse("config", "check", "--config", str(path), state_dir=tmp_path)
    assert done.returncode == 0, done.stderr
    for policy in tomllib.loads(path.read_text())["retention"]["policies"]:
        whole = {"apiVersion": "lapse.dev/v1alpha1", "kind": "RetentionPolicy", **policy}
        (tmp_path / "policy.json").write_text(json.dumps(whole))
        linted = lapse("retention", "lint", "--strict", "policy.json", state_dir=tmp_path)
        assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.parametrize("path", RECORDS, ids=named)
def test_records_are_taken_and_listed(path: Path, tmp_path: Path) -> None:
    done = lapse("history", "record", str(path), "-o", "json", state_dir=tmp_path)
    assert done.returncode == 0, done.stderr
    listed = lapse("history", "list", "-o", "json", state_dir=tmp_path)
    assert len(json.loads(listed.stdout)["items"]) == len(list(yaml.safe_load_all(path.read_text())))


def test_every_example_is_tried_here_and_told_of_in_the_list() -> None:
    there = {named(path) for path in EXAMPLES.rglob("*") if path.is_file()} - {"README.md"}
    there = {name for name in there if "__pycache__" not in name}
    elsewhere = {"domain/lapse_scratch.py", "domain/pyproject.toml"}  # in test_domain_of_your_own.py
    elsewhere |= {"webhook/receiver.py"}  # in integration/up/test_webhooks.py
    assert there == {named(path) for path in (*POLICIES, *SETTINGS, *RECORDS)} | elsewhere
    told = re.findall(r"\]\(([^)]+\.(?:yaml|toml|py))\)", (EXAMPLES / "README.md").read_text())
    assert set(told) == there
