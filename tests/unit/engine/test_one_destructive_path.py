"""There is one place that removes objects on the product's own account; everything else goes through it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src" / "lapse"

ALLOWED = {
    "objects/target.py": "the target of the one acting path",
    "objects/embedded.py": "the embedded store itself",
    "objects/embedded.sql": "the embedded store itself, and its garbage collection",
    "objects/gc.py": "the embedded store's garbage collection",
    "objects/kubernetes.py": "the other store itself",
    "keys/": "keys are no objects: they have a delete of their own, and expired ones are only cleaned up",
    "cli/commands/keys.py": "a person deletes a key",
    "web/api/keys.py": "a person deletes a key",
    "web/api/workspaces.py": "the route's own function, which hands it on",
    "workspaces/runtime/reconciler.py": "removes the data of one that a person deleted; none is deleted for its TTL",
}
# Words by which a list, a set or a web framework is meant, never a store.
HARMLESS = re.compile(r"(?:router|app|api)$")
RAW_DELETE = re.compile(r"\bDELETE\s+FROM\s+[\"`\[]?objects\b", re.IGNORECASE)


def is_allowed(path: Path) -> bool:
    name = path.relative_to(SOURCE).as_posix()
    return any(name == place or (place.endswith("/") and name.startswith(place)) for place in ALLOWED)


def destructive(text: str, *, sql: bool = False) -> list[int]:
    """Return the lines that remove objects, or take hold of the method that does."""
    if sql:
        return [number for number, line in enumerate(text.splitlines(), 1) if RAW_DELETE.search(line)]
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.expr)
        if _is_method(node) or _is_named(node) or (_text(node) is not None and RAW_DELETE.search(_text(node) or ""))
    ]


def _is_method(node: ast.AST) -> bool:
    """``store.delete(...)``, and also ``end = store.delete``, by which a call could hide."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr in {"delete", "delete_all", "delete_collection", "deletecollection"}
        and not (isinstance(node.value, ast.Name) and HARMLESS.search(node.value.id))
    )


def _is_named(node: ast.AST) -> bool:
    """``getattr(store, "delete")``."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"getattr", "methodcaller", "attrgetter"}
        and any(isinstance(one, ast.Constant) and one.value in {"delete", "delete_all"} for one in node.args)
    )


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def found_in(source: Path) -> dict[str, list[int]]:
    files = [(path, path.suffix == ".sql") for path in sorted([*source.rglob("*.py"), *source.rglob("*.sql")])]
    return {
        path.relative_to(source).as_posix(): lines
        for path, sql in files
        if (lines := destructive(path.read_text(), sql=sql))
    }


def test_objects_are_removed_in_one_place_and_by_the_commands_of_people() -> None:
    elsewhere = [name for name in found_in(SOURCE) if not is_allowed(SOURCE / name)]

    assert elsewhere == [], "hand it to lapse.engine.executor, which knows holds, versions, the journal and dry runs"


def test_the_one_place_is_found_where_it_is_said_to_be() -> None:
    found = found_in(SOURCE)

    assert len(found["objects/target.py"]) == 2, "one call for one object and one for several: everything goes there"
    assert found["objects/embedded.sql"], "the store's own statement"


@pytest.mark.parametrize(
    "planted",
    [
        "async def sweep(store):\n    await store.delete(KIND, key)\n",
        "async def sweep(self):\n    await self._store.delete(KIND, key, uid=uid)\n",
        "async def sweep(self):\n    end = self.objects.delete\n    await end(KIND, key)\n",
        "async def sweep(store):\n    await getattr(store, 'delete')(KIND, key)\n",
        "call = methodcaller('delete', KIND, key)\n",
        "def sweep(cursor):\n    cursor.execute('DELETE FROM objects WHERE uid = ?', [uid])\n",
        "def sweep(cursor):\n    cursor.execute('''\n        delete from\n          objects''')\n",
        "async def sweep(client):\n    await client.deletecollection(KIND)\n",
    ],
)
def test_a_planted_violation_is_caught(planted: str, tmp_path: Path) -> None:
    (tmp_path / "requests").mkdir()
    (tmp_path / "requests" / "expiry.py").write_text(planted)

    assert list(found_in(tmp_path)) == ["requests/expiry.py"]
    assert not is_allowed(SOURCE / "requests" / "expiry.py")


def test_a_planted_statement_is_caught(tmp_path: Path) -> None:
    (tmp_path / "ttl.sql").write_text("-- name: sweep\nDELETE FROM objects WHERE expires < ?;\n")

    assert found_in(tmp_path) == {"ttl.sql": [2]}


def test_what_removes_no_object_is_no_violation(tmp_path: Path) -> None:
    (tmp_path / "fine.py").write_text(
        "@router.delete('/keys')\ndef handler(): ...\nknown.discard(1)\nSQL = 'DELETE FROM tokens'\n"
        "deadlines.discard(key)\n'''Calls store.delete somewhere.'''\n"
    )

    assert found_in(tmp_path) == {}
