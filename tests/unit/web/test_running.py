"""Where the server of a port has its state folder, as commands of its user find it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from lapse.web.auth.running import (
    NotedServer,
    forget_server,
    note_server,
    noted_folder,
    noted_ports,
    noted_server,
)


def test_a_note_is_found_by_its_port_and_goes_with_its_server(tmp_path: Path) -> None:
    note_server(tmp_path, 8750, tmp_path / "one")
    assert (noted_folder(tmp_path, 8750), noted_folder(tmp_path, 8751)) == (tmp_path / "one", None)
    assert stat.S_IMODE((tmp_path / "running" / "8750").stat().st_mode) == 0o600

    note_server(tmp_path, 8750, tmp_path / "another")
    forget_server(tmp_path, 8750, tmp_path / "one")
    assert noted_folder(tmp_path, 8750) == tmp_path / "another"
    forget_server(tmp_path, 8750, tmp_path / "another")
    assert list((tmp_path / "running").iterdir()) == []


def test_the_servers_of_a_folder_are_found_by_their_notes(tmp_path: Path) -> None:
    assert noted_ports(tmp_path, tmp_path / "one") == []
    for port, folder in ((8750, "one"), (8760, "another"), (8740, "one")):
        note_server(tmp_path, port, tmp_path / folder)
    (tmp_path / "running" / "8750.17").write_text("of a server that was killed")
    (tmp_path / "running" / "8745").mkdir()

    assert noted_ports(tmp_path, tmp_path / "one") == [8740, 8750]


@pytest.mark.parametrize("content", [b"", b"relative/folder", b"/a\0b", b"/a\0/b\0/c"])
def test_a_note_that_names_no_folder_is_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "running").mkdir()
    (tmp_path / "running" / "8750").write_bytes(content)
    assert noted_folder(tmp_path, 8750) is None


def test_a_link_is_no_note(tmp_path: Path) -> None:
    (tmp_path / "running").mkdir()
    (tmp_path / "target").write_text("/somewhere")
    (tmp_path / "running" / "8750").symlink_to(tmp_path / "target")
    assert noted_folder(tmp_path, 8750) is None


def test_a_folder_that_cannot_be_written_stops_no_server(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    note_server(tmp_path / "file", 8750, tmp_path)
    forget_server(tmp_path / "file", 8750, tmp_path)
    assert noted_folder(tmp_path / "file", 8750) is None


def test_a_note_of_another_user_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note_server(tmp_path, 8750, Path("/somewhere"))
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert noted_folder(tmp_path, 8750) is None


def test_a_server_with_tls_notes_the_certificate_that_it_shows(tmp_path: Path) -> None:
    note_server(tmp_path, 8750, tmp_path / "one", tmp_path / "tls.crt")
    assert noted_server(tmp_path, 8750) == NotedServer(tmp_path / "one", tmp_path / "tls.crt")
    assert noted_ports(tmp_path, tmp_path / "one") == [8750]

    note_server(tmp_path, 8750, tmp_path / "one")
    assert noted_server(tmp_path, 8750) == NotedServer(tmp_path / "one", None)
