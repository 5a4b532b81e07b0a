"""The map from rules to tests leads to tests that exist: a renamed test, case or decision breaks it."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING

import pytest

from lapse.domains import REGISTRY
from lapse.keys.conformance import list_cases
from tests.conformance.activity import cases as _activity_cases  # noqa: F401 - fills the registries
from tests.conformance.activity.registry import REGISTRY as ACTIVITY
from tests.conformance.activity.registry import SERVER_REGISTRY as ACTIVITY_ON_SERVERS
from tests.conformance.objects.cases import CASES as CONTRACT
from tests.conformance.retention.cases import CASES as RETENTION
from tests.conformance.ttl_manager import cases as ttl_cases
from tests.conformance.ttl_manager.harness import REGISTRY as TTL
from tests.conformance.workspaces.cases import CASES as STORES
from tests.markdown import REFERENCE, ROOT, code, table

if TYPE_CHECKING:
    from collections.abc import Collection

PAGE = REFERENCE / "conformance.md"
ENGINE = table(PAGE, "rule", "domain", "held by")
"""A rule of the engine has a row for every domain: one that is missing is a domain without the rule."""
ROWS = [*table(PAGE, "rule", "held by"), *ENGINE]
REGISTRIES: dict[str, Collection[str]] = {
    "kit": {case.id for case in list_cases()},
    "contract": CONTRACT,
    "retention": RETENTION,
    "store": STORES,
    "activity": {*ACTIVITY, *ACTIVITY_ON_SERVERS},
}
RECORD = re.compile(r"\[(\d{4})\]\(([^)]+)\)")
NOT_BUILT = re.compile("not (built )?yet|not applicable: ")
MARKS = ("ttl:", *(f"{mark}:" for mark in REGISTRIES))
EXAMPLES = {
    "kit:ID",
    "contract:NAME",
    "retention:NAME",
    "ttl:NAME",
    "store:NAME",
    "activity:NAME",
    "path::name",
    "tests/conformance/keys/test_kit_on_backends.py::test_the_rule_holds",
    "tests/conformance/objects/test_contract_on_embedded.py::test_the_embedded_store_keeps_the_contract",
    "tests/conformance/objects/test_contract_on_kubernetes.py::test_kubernetes_keeps_the_contract",
    "tests/conformance/retention/test_on_embedded.py::test_retention_holds_on_the_embedded_store",
    "tests/conformance/retention/test_on_kubernetes.py::test_retention_holds_on_kubernetes",
    "tests/conformance/ttl_manager/test_embedded.py::test_the_ttl_manager_in_one_process",
    "tests/conformance/ttl_manager/test_on_servers.py::test_the_ttl_manager_on_servers",
    "tests/conformance/workspaces/test_contract_on_sqlite.py::test_the_sqlite_store_keeps_the_contract",
    "tests/conformance/workspaces/test_contract_on_postgres.py::test_the_postgres_store_keeps_the_contract",
    "tests/conformance/activity/test_contract_in_process.py::test_activity_of_one_process",
    "tests/conformance/activity/test_contract_on_servers.py::test_activity_on_a_server",
}


@cache
def named_in(path: str) -> frozenset[str]:
    """Return the names of the tests in a file: functions, and the test case of a state machine."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    nodes = list(ast.walk(ast.parse(file.read_text())))
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    tests = {name for name in functions if name.startswith("test_")}
    return frozenset(tests | {name for name in names if name.startswith("Test")})


def exists(reference: str) -> bool:
    mark, _, name = reference.partition(":")
    if mark == "ttl":
        return getattr(ttl_cases, name, None) in TTL.values()
    if mark in REGISTRIES:
        return name in REGISTRIES[mark]
    path, _, name = reference.partition("::")
    return name in named_in(path)


def references(held_by: str) -> list[str]:
    """Return the tests and cases that a cell names; anything else between backquotes is prose."""
    return [text for text in code(held_by) if text.startswith((*MARKS, "tests/"))]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join((row.get("domain", ""), row["rule"])))
def test_a_rule_is_held_by_something_that_exists(row: dict[str, str]) -> None:
    named = references(row["held by"])
    records = RECORD.findall(row["held by"])

    assert named or records or NOT_BUILT.search(row["held by"])
    assert [reference for reference in named if not exists(reference)] == []
    assert [path for number, path in records if not _is_record(number, path)] == []


def _is_record(number: str, path: str) -> bool:
    file = (PAGE.parent / path).resolve()
    return file.name.startswith(f"{number}-") and file.is_file()


def test_each_rule_of_the_engine_has_a_row_for_every_domain_that_ends_things() -> None:
    rules: dict[str, list[str]] = {}
    for row in ENGINE:
        rules.setdefault(row["rule"], []).append(row["domain"])
    assert {rule: domains for rule, domains in rules.items() if sorted(domains) != sorted(REGISTRY.freezable())} == {}


def test_no_reference_stands_outside_a_table() -> None:
    in_tables = {reference for row in ROWS for reference in references(row["held by"])}
    everywhere = {text for text in code(PAGE.read_text()) if text.startswith(MARKS) or "::" in text}

    assert everywhere - in_tables <= EXAMPLES


def test_what_does_not_exist_is_noticed() -> None:
    assert not exists("kit:no-such-case")
    assert not exists("contract:no_such_case")
    assert not exists("retention:no_such_case")
    assert not exists("ttl:no_such_case")
    assert not exists("store:no_such_case")
    assert not exists("activity:no_such_case")
    assert not exists("tests/unit/test_conformance_map.py::test_no_such_test")
    assert not exists("tests/no_such_file.py::test_what_does_not_exist_is_noticed")
    assert not _is_record("0001", "../explanation/decisions/0002-memory-backend-by-hand.md")
    assert exists("tests/unit/test_conformance_map.py::test_what_does_not_exist_is_noticed")


def test_the_map_is_there_to_be_read() -> None:
    assert len(ROWS) > 250
