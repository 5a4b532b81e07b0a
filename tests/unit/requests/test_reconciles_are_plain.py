"""What a reader of the controllers may rely on: no waiting in a reconcile, no reason as text, who writes which kind."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lapse.requests.api.conditions import ConditionReason

SOURCE = Path(__file__).parents[3] / "src" / "lapse" / "requests"
RECONCILED = (
    *("controllers/base", "controllers/capture", "controllers/detach", "controllers/finalise", "controllers/manifests"),
    *("controllers/ownership", "controllers/restore", "lifecycle/keeper", "expiry"),
    *("bridge/adoption", "bridge/executor", "bridge/snapshots"),
)
"""The modules that a reconcile runs through."""


def waits(tree: ast.AST) -> list[int]:
    """Return the lines that wait or loop without an end that is known before."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.While) or (isinstance(node, ast.Attribute) and node.attr in {"sleep", "wait"})
    ]


def literal_reasons(tree: ast.AST) -> list[int]:
    """Return the lines on which the reason of an outcome or a condition is a text of its own."""
    found = []
    for node in ast.walk(tree):
        given: list[ast.expr | None] = []
        if isinstance(node, ast.Call):
            is_end = isinstance(node.func, ast.Name) and node.func.id == "End"
            given += node.args[:1] if is_end else []
            given += [keyword.value for keyword in node.keywords if keyword.arg == "reason"]
        if isinstance(node, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            given += [value for key, value in zip(keys, node.values, strict=True) if key == "reason"]
        found += [one.lineno for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return found


def writes(tree: ast.AST) -> set[tuple[str, str]]:
    """Return how something is written to a store, and of which kind it is."""
    return {
        (node.func.attr, ast.unparse(node.args[0]))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"create", "patch", "patch_status", "delete"}
        and node.args
    }


@pytest.mark.parametrize("module", RECONCILED)
def test_no_reconcile_waits(module: str) -> None:
    assert waits(ast.parse((SOURCE / f"{module}.py").read_text())) == []


def test_reasons_are_never_written_as_text() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    found = {path.name: lines for path in files if (lines := literal_reasons(ast.parse(path.read_text())))}

    assert len(files) > 20
    assert found == {}


def test_the_bridge_writes_no_request_and_the_controller_of_restores_makes_no_claim() -> None:
    bridge = {one for path in (SOURCE / "bridge").glob("*.py") for one in writes(ast.parse(path.read_text()))}
    assert bridge == {
        ("create", "PERSISTENT_VOLUME_CLAIM"),
        ("create", "VOLUME_SNAPSHOT"),
        ("create", "VOLUME_SNAPSHOT_CONTENT"),
        ("patch", "PERSISTENT_VOLUME"),
        ("patch", "VOLUME_SNAPSHOT_CONTENT"),
    }
    controller = writes(ast.parse((SOURCE / "controllers" / "restore.py").read_text()))
    assert controller == {("patch", "PERSISTENT_VOLUME_CLAIM")}  # its owner, with RESTORE_OWNERSHIP=keeper


def test_a_planted_violation_is_caught() -> None:
    assert writes(ast.parse("await self._store.patch_status(VOLUME_RESTORE_REQUEST, key, {})")) == {
        ("patch_status", "VOLUME_RESTORE_REQUEST")
    }
    assert waits(ast.parse("while True:\n    await clock.sleep(1)")) == [1, 2]
    assert literal_reasons(ast.parse(f"End('{ConditionReason.FAILED}', 'x')")) == [1]
    assert literal_reasons(ast.parse("condition = {'type': 'Ready', 'reason': 'Failed'}")) == [1]
    assert literal_reasons(ast.parse("End(Reason.FAILED, 'x')")) == []
