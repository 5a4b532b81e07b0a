"""House rules that no linter knows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "lapse"
LONGEST_BODY = 60


def functions() -> list[tuple[str, int]]:
    """Every function of the product with the lines of its body, docstring included."""
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.body[0].lineno + 1
                found.append((f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}", lines))
    return found


def test_no_body_is_longer_than_sixty_lines() -> None:
    measured = functions()
    assert len(measured) > 200, "looked in the wrong place"
    assert [name for name, lines in measured if lines > LONGEST_BODY] == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [path for path in SOURCE.rglob("*.py") if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


def test_every_switched_off_rule_has_a_reason() -> None:
    bare = [
        f"{path.relative_to(SOURCE)}:{number}"
        for path in SOURCE.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"# (noqa|type: ignore)(?![^#]*( - |  # ))", line)
    ]
    assert bare == []


STATEMENT = re.compile(r"\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE TABLE|WITH)\b.")
ABOUT_THE_CONNECTION = {
    "db/postgres/migration.py": "SELECT pg_advisory_xact_lock(",
    "db/postgres/pool.py": "SELECT ",  # set_config, made from numbers
    "db/sqlite/file.py": "SELECT count(*) FROM sqlite_schema",
    "db/sqlite/readers.py": "SELECT 1 FROM sqlite_schema",
}
"""Statements about no table of ours: a lock, a setting, whether the file is empty or has changed."""


def test_statements_are_in_files_of_their_own() -> None:
    found = {
        (str(path.relative_to(SOURCE)), node.value)
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and STATEMENT.match(node.value)
    }
    assert found == set(ABOUT_THE_CONNECTION.items())
