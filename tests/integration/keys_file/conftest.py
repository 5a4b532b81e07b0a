"""A store in a folder of its own, on virtual time, and ways to look into its file past the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw
import pytest

from lapse.core.clock import VirtualClock
from lapse.keys.store import Keys, open_keys

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Store:
    """An opened store, its clock and its file."""

    def __init__(self, path: Path, options: str = "") -> None:
        self.path = path
        self.url = f"file://{path}{options}"
        self.clock = VirtualClock()
        self.keys: Keys = open_keys(self.url, clock=self.clock, sweep=False)
        self.app = self.keys.app(7)

    def query(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:  # noqa: ANN401 - whatever SQL takes
        """Ask the file itself, as another program would."""
        db = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            return db.execute(sql, parameters).fetchall()
        finally:
            db.close()

    def stored_keys(self) -> list[str]:
        return [key.decode() for (key,) in self.query("SELECT key FROM records ORDER BY partition, key")]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "keys.db")
    yield made
    made.keys.close()
