"""There is one place that ends things on the product's own account; everything else goes through it.

The source is read, not run: each rule finds what ends a thing of one sort, by a call, by a method that is taken hold
of, by its name as text, or by a statement, and names the places that may do it, each with the reason.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SOURCE = Path(__file__).parents[3] / "src" / "lapse"
ADVICE = "hand it to lapse.engine.executor, which knows holds, versions, the journal and dry runs"
HARMLESS = frozenset(
    {
        *("router", "api_router"),  # a web framework is meant, never a store: ``router.delete("/path")``
        *("verbs", "await context.service()"),  # `lapse.engine.verbs.contract`, which hands on what a person asks for
        *("context.client", "context.client.requests", "context.client.schedules"),  # a running Lapse, which does
        "place.workspaces",  # that one, or `lapse.workspaces.verbs`
    }
)
"""What is meant, never a store, by its exact expression."""
BY_NAME = {"getattr", "methodcaller", "attrgetter", "__getattribute__"}


@dataclass(frozen=True)
class Rule:
    """What ends one sort of things, and the places that may."""

    allowed: Mapping[str, str]
    """By file, or by folder with a slash at its end: why."""
    methods: frozenset[str] = frozenset()
    """``store.delete(...)``, and also ``end = store.delete``, by which a call could hide."""
    functions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By module: ``shutil.rmtree(...)``, and ``from shutil import rmtree``."""
    statement: re.Pattern[str] | None = None
    """SQL, in any text; ``{}`` stands for what is put in between."""

    def allows(self, name: str) -> bool:
        return any(name == place or (place.endswith("/") and name.startswith(place)) for place in self.allowed)

    def found_in(self, text: str, *, sql: bool = False) -> list[int]:
        """Return the lines that end something."""
        if sql:
            return [] if self.statement is None else [_line(text, one.start()) for one in self.statement.finditer(text)]
        return sorted({node.lineno for node in _nodes(text) if self._is_found(node)})

    def _is_found(self, node: ast.AST) -> bool:
        return self._is_method(node) or self._is_named(node) or self._is_function(node) or self._is_statement(node)

    def _is_method(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Attribute) or node.attr not in self.methods:
            return False
        return ast.unparse(node.value) not in HARMLESS

    def _is_named(self, node: ast.AST) -> bool:
        """``getattr(store, "delete")``."""
        if not isinstance(node, ast.Call):
            return False
        called = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
        if called not in BY_NAME:
            return False
        return any(isinstance(one, ast.Constant) and one.value in self.methods for one in node.args)

    def _is_function(self, node: ast.AST) -> bool:
        if isinstance(node, ast.ImportFrom):
            known = self.functions.get(node.module or "", frozenset())
            return any(one.name in known for one in node.names)
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute)):
            return False
        return node.attr in self.functions.get(ast.unparse(node.value), frozenset())

    def _is_statement(self, node: ast.AST) -> bool:
        return self.statement is not None and any(self.statement.search(text) for text in _texts(node))


@cache  # each rule reads each file
def _nodes(text: str) -> list[ast.expr | ast.ImportFrom]:
    """Return the parts of a module that a rule may find."""
    parts = (ast.Attribute, ast.Call, ast.ImportFrom, ast.JoinedStr, ast.Constant)
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, parts)]


def _texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


_KEYS = {
    "keys/": "keys are no objects: they have a delete of their own, and expired ones are only cleaned up",
    "cli/commands/keys.py": "a person deletes a key",
    "web/api/keys.py": "a person deletes a key",
}
_ANY = r"[\"`\[]?"

RULES: Mapping[str, Rule] = {
    "an object is deleted": Rule(
        methods=frozenset({"delete", "delete_all", "delete_collection", "deletecollection"}),
        allowed={
            "objects/target.py": "the target of the one acting path",
            "objects/kubernetes.py": "a store itself; what the embedded one does is a statement",
            "web/api/workspaces.py": "the route's own function, which hands it on",
            "workspaces/runtime/reconciler.py": "the data of one that a person deleted; none is deleted for its TTL",
            **_KEYS,
        },
    ),
    "an object is deleted by a call of HTTP": Rule(
        statement=re.compile(r"\A\s*DELETE\s*\Z"),
        allowed={
            "kube/api/client.py": "the client's own delete, which only the store calls",
            "web/": "what people ask the API for",
            "client/nouns.py": "the same, asked from elsewhere",
            "cli/commands/busy.py": "the lease of somebody who works, which they give back",
        },
    ),
    "a row of an object is removed": Rule(
        functions={name: frozenset({"remove", "remove_all"}) for name in ("tables", "self.tables", "self._tables")},
        allowed={
            "objects/embedded.py": "the embedded store itself",
            "objects/gc.py": "its garbage collection: what was owned by what is gone",
        },
    ),
    "a workspace lapses or is deleted": Rule(
        methods=frozenset({"to_standby", "to_pending", "mark_deleted"}),
        allowed={"workspaces/target.py": "the target of the one acting path"},
    ),
    "something else is wanted of a workspace": Rule(
        methods=frozenset({"set_desired"}),
        allowed={
            "workspaces/verbs.py": "a person starts or stops it",
            "proxy/directory.py": "a visit wakes it",
        },
    ),
    "a target acts": Rule(
        methods=frozenset({"apply"}),
        allowed={
            "engine/executor.py": "the executor itself",
            "engine/safety/holds.py": "a target around another one, which adds the engine's holds",
            "engine/service.py": "a plan, which the planner hands to the executor item by item",
        },
    ),
    "a row is ended by a statement": Rule(
        statement=re.compile(
            rf"\bDELETE\s+FROM\s+(?:ONLY\s+)?{_ANY}(?:\w+\.)?{_ANY}(?:objects\b|workspaces\b|\{{\}})"
            rf"|\bTRUNCATE\s+(?:TABLE\s+)?{_ANY}(?:objects\b|workspaces\b|\{{\}})"
            rf"|\bDROP\s+TABLE\s+(?:IF\s+EXISTS\s+)?{_ANY}(?:objects\b|workspaces\b|\{{\}})"
            rf"|\bUPDATE\s+{_ANY}(?:workspaces\b|\{{\}})(?:(?!\bWHERE\b)[^;])*?\b(?:desired_state|deleted_at)\s*=",
            re.IGNORECASE,
        ),
        allowed={
            "objects/embedded.sql": "the embedded store itself, and its garbage collection",
            "workspaces/store/sqlite.sql": "the statements of the store of workspaces",
            "workspaces/store/postgres.sql": "the same, on PostgreSQL",
            **_KEYS,
        },
    ),
    "a file or a folder is removed": Rule(
        methods=frozenset({"rmtree", "unlink", "rmdir", "removedirs"}),
        functions={
            "os": frozenset({"remove", "unlink", "rmdir", "removedirs"}),
            "shutil": frozenset({"rmtree"}),
            "lapse.files.archive": frozenset({"remove", "remove_leftovers"}),
        },
        allowed={
            "files/archive.py": "whole directories and archives, for those below",
            "app/demo/making.py": "a file that the demo has just written, where its domain is not the example",
            "app/demo/removal.py": "the directory that the demo has made for its captures, if nobody wrote to it",
            "db/sqlite/file.py": "a database that could not be made",
            "web/auth/tokens.py": "the file with the owner's token",
            "web/auth/running.py": "the note of a server that ends",
            "cli/remote.py": "the file with the tokens of servers",
            "requests/local/provisioner.py": "the note of a volume that is made anew",
            "requests/local/executor.py": "archives of snapshots whose object is gone, and what a crash left of one",
            "workspaces/runtime/archive.py": "archives that a newer one replaces, or of one that a person deleted",
            "workspaces/runtime/process.py": "the data of one that is archived or deleted, by the reconciler",
            "workspaces/runtime/program.py": "the record of a program that has ended",
        },
    ),
}


def found_in(source: Path, rule: Rule) -> dict[str, list[int]]:
    files = [(path, path.suffix == ".sql") for path in sorted([*source.rglob("*.py"), *source.rglob("*.sql")])]
    return {
        path.relative_to(source).as_posix(): lines
        for path, sql in files
        if (lines := rule.found_in(path.read_text(), sql=sql))
    }


@cache
def in_source(about: str) -> dict[str, list[int]]:
    return found_in(SOURCE, RULES[about])


@pytest.mark.parametrize("about", RULES)
def test_things_are_ended_in_one_place_and_by_those_who_are_named(about: str) -> None:
    elsewhere = [name for name in in_source(about) if not RULES[about].allows(name)]

    assert elsewhere == [], ADVICE


@pytest.mark.parametrize("about", RULES)
def test_nobody_is_named_without_a_need(about: str) -> None:
    found = in_source(about)
    unneeded = [place for place in RULES[about].allowed if not any(name.startswith(place) for name in found)]

    assert [place for place in unneeded if place not in _KEYS] == []


def test_the_one_place_is_found_where_it_is_said_to_be() -> None:
    deleted, acts = in_source("an object is deleted"), in_source("a target acts")

    assert len(deleted["objects/target.py"]) == 2, "one call for one object and one for several: everything goes there"
    assert len(acts["engine/executor.py"]) == 1
    assert len(in_source("a workspace lapses or is deleted")["workspaces/target.py"]) == 2
    assert in_source("a row is ended by a statement")["objects/embedded.sql"], "the store's own statement"


PLANTED: list[tuple[str, str]] = [
    ("an object is deleted", "async def sweep(store):\n    await store.delete(KIND, key)\n"),
    ("an object is deleted", "async def sweep(self):\n    await self._store.delete(KIND, key, uid=uid)\n"),
    ("an object is deleted", "async def sweep(self):\n    end = self.objects.delete\n    await end(KIND, key)\n"),
    ("an object is deleted", "async def sweep(store):\n    await getattr(store, 'delete')(KIND, key)\n"),
    ("an object is deleted", "call = methodcaller('delete', KIND, key)\n"),
    ("an object is deleted", "async def sweep(client):\n    await client.deletecollection(KIND)\n"),
    ("an object is deleted", "async def sweep(kube_api):\n    await kube_api.delete(KIND, key)\n"),
    ("an object is deleted", "async def sweep(api):\n    await api.delete(KIND, key)\n"),
    ("an object is deleted", "async def sweep(store):\n    await store.__getattribute__('delete')(KIND, key)\n"),
    ("an object is deleted by a call of HTTP", "async def sweep(client):\n    await client.request('DELETE', path)\n"),
    ("an object is deleted by a call of HTTP", "METHOD = 'DELETE'\n"),
    ("a row of an object is removed", "def sweep(cursor, tables):\n    tables.remove(cursor, place, uid=None)\n"),
    ("a row of an object is removed", "def sweep(self, cursor):\n    end = self._tables.remove_all\n"),
    ("a row is ended by a statement", "SQL = 'DELETE FROM ONLY workspaces WHERE id = ?'\n"),
    ("a workspace lapses or is deleted", "async def f(rows):\n    await rows.mark_deleted(one, now=now)\n"),
    ("a workspace lapses or is deleted", "async def f(self):\n    await self._store.to_standby(these, now=now)\n"),
    ("a workspace lapses or is deleted", "async def f(self):\n    go = self._store.to_pending\n    await go(these)\n"),
    ("a workspace lapses or is deleted", "change = getattr(store, 'to_standby')\n"),
    (
        "something else is wanted of a workspace",
        "async def f(store):\n    await store.set_desired(one, STANDBY)\n",
    ),
    ("a target acts", "async def f(target):\n    await target.apply(actions, also=None)\n"),
    ("a target acts", "async def f(self):\n    await self._executor.target.apply([one], also=also)\n"),
    ("a target acts", "async def f(self):\n    act = ObjectTarget(self.store, holds).apply\n"),
    ("a target acts", "async def f(target):\n    await attrgetter('apply')(target)(actions)\n"),
    ("a row is ended by a statement", "cursor.execute('DELETE FROM objects WHERE uid = ?', [uid])\n"),
    ("a row is ended by a statement", "cursor.execute('''\n        delete from\n          objects''')\n"),
    ("a row is ended by a statement", "SQL = 'DELETE FROM ' 'workspaces WHERE id = ?'\n"),
    ("a row is ended by a statement", "SQL = f'DELETE FROM {table} WHERE id = ?'\n"),
    ("a row is ended by a statement", "SQL = 'UPDATE workspaces SET desired_state = ? WHERE id = ?'\n"),
    ("a row is ended by a statement", "SQL = '''update workspaces\n set version = 2,\n desired_state='PENDING' '''\n"),
    ("a row is ended by a statement", "SQL = 'UPDATE workspaces SET deleted_at = 1'\n"),
    ("a row is ended by a statement", "SQL = 'DROP TABLE IF EXISTS workspaces'\n"),
    ("a file or a folder is removed", "import shutil\nshutil.rmtree(folder)\n"),
    ("a file or a folder is removed", "from shutil import rmtree\nrmtree(folder)\n"),
    ("a file or a folder is removed", "from shutil import rmtree as tidy\ntidy(folder)\n"),
    ("a file or a folder is removed", "def f(path):\n    path.unlink(missing_ok=True)\n"),
    ("a file or a folder is removed", "import os\nos.remove(path)\n"),
    ("a file or a folder is removed", "from os import unlink\n"),
    ("a file or a folder is removed", "from lapse.files.archive import pack, remove\n"),
    ("a file or a folder is removed", "list(map(Path.unlink, folder.iterdir()))\n"),
]


@pytest.mark.parametrize(("about", "planted"), PLANTED)
def test_a_planted_violation_is_caught(about: str, planted: str, tmp_path: Path) -> None:
    for place in ("requests/expiry.py", "workspaces/ttl_manager.py", "history/retention/passes.py", "app/up.py"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(planted)
        assert not RULES[about].allows(place)

    assert len(found_in(tmp_path, RULES[about])) == 4


def test_every_rule_has_something_planted() -> None:
    assert {about for about, _ in PLANTED} == RULES.keys()


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("-- name: sweep\nDELETE FROM objects WHERE expires < ?;\n", 2),
        ("-- name: sweep\nDELETE FROM workspaces WHERE id = ?;\n", 2),
        ("-- name: stop\nUPDATE workspaces AS kept\nSET version = 1, desired_state = 'STANDBY'\n", 2),
    ],
)
def test_a_planted_statement_is_caught(statement: str, line: int, tmp_path: Path) -> None:
    (tmp_path / "ttl.sql").write_text(statement)

    assert found_in(tmp_path, RULES["a row is ended by a statement"]) == {"ttl.sql": [line]}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_what_ends_nothing_is_no_violation(rule: Rule, tmp_path: Path) -> None:
    (tmp_path / "fine.py").write_text(
        "@router.delete('/keys')\ndef handler(): ...\nknown.discard(1)\nSQL = 'DELETE FROM tokens'\n"
        "deadlines.discard(key)\n'''Calls store.delete somewhere.'''\nnames.remove(one)\napply = 1\n"
        "LOOK = \"UPDATE workspaces SET check_after = 1 WHERE desired_state = 'RUNNING'\"\n"
    )

    assert found_in(tmp_path, rule) == {}
