"""``lapse keys`` at a terminal, in this process; the rest is in tests/integration/cli/test_keys.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.cli import main
from tests.unit.cli.test_workspaces import at_a_terminal

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> tuple[str, ...]:
    return ("--app", "7", "--url", (tmp_path / "keys.db").as_uri())


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_at_a_terminal_a_deletion_without_a_yes_does_nothing(
    store: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str
) -> None:
    assert main(["keys", "put", "k", "v", "--ttl", "1h", *store]) == 0
    at_a_terminal(monkeypatch, answer)

    assert main(["keys", "delete", "k", *store]) == 1
    assert "Delete key/7/k? [y/N] " in capsys.readouterr().err
    assert main(["keys", "get", "k", *store]) == 0


@pytest.mark.parametrize(("answer", "options"), [("y\n", ()), ("", ("--yes",)), ("", ("-y",))])
def test_a_yes_deletes(
    store: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    options: tuple[str, ...],
) -> None:
    assert main(["keys", "put", "k", "v", "--ttl", "1h", *store]) == 0
    at_a_terminal(monkeypatch, answer)
    capsys.readouterr()

    assert main(["keys", "delete", "k", *store, *options]) == 0
    found = capsys.readouterr()
    assert found.out == "Deleted: key/7/k.\n"
    assert ("[y/N]" in found.err) is not bool(options)
