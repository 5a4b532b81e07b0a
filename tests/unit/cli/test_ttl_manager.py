"""What ``lapse ttl-manager`` refuses before it opens anything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from lapse.cli import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _nothing_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("LAPSE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def test_without_a_shared_activity_store_everybody_would_seem_idle_so_it_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ttl-manager"]) == 64
    assert "set activity_url (or --activity-url) to the Redis of the proxies" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


@pytest.mark.driver
@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--activity-url=memory://", "'memory' is not a known scheme"),
        ("--ttl-manager-interval=60", "it has no unit"),
        ("--ttl-manager-interval=never", "expected a duration above zero"),
        ("--workspaces-url=mysql://u:hunter2@h/db", "neither a file nor a PostgreSQL database"),
    ],
)
def test_a_setting_that_cannot_be_used_is_one_line_with_its_flag(
    flag: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAPSE_ACTIVITY_URL", "redis://h")
    assert main(["ttl-manager", flag]) == 64
    error = capsys.readouterr().err
    assert said in " ".join(error.split())
    assert flag.partition("=")[0] in error
    assert "hunter2" not in error
