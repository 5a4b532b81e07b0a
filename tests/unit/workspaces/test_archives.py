"""The archives of workspaces: the newest whole one counts, and nothing but its own ever gets into a volume."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.files.archive import ArchiveError
from lapse.workspaces.errors import InvalidWorkspaceError
from lapse.workspaces.model import WorkspaceId
from lapse.workspaces.runtime.archive import ArchiveKey, Archives, parse_key
from lapse.workspaces.runtime.port import ArchiveFailedError, ArchiveMissingError

if TYPE_CHECKING:
    from pathlib import Path

ONE = WorkspaceId("0b51ad5c-9f8e-4f5e-8b1e-0d3c6a3f7a11")
OTHER = WorkspaceId("0b51ad5c-9f8e-4f5e-8b1e-0d3c6a3f7a12")


@pytest.fixture
def archives(tmp_path: Path) -> Archives:
    (tmp_path / "archives").mkdir()
    return Archives(tmp_path / "archives")


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    volume = tmp_path / "volumes" / ONE
    volume.mkdir(parents=True)
    (volume / "work").write_text("of a day")
    (volume / "link").symlink_to("/etc/passwd")
    return volume


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def test_a_volume_comes_back_as_it_was(archives: Archives, volume: Path, tmp_path: Path) -> None:
    key = archives.keep(ONE, volume)
    restored = tmp_path / "restored"
    assert archives.restore(ONE, restored, expected=str(key)) == key
    assert (restored / "work").read_text() == "of a day"
    assert str((restored / "link").readlink()) == "/etc/passwd"
    assert names(tmp_path / "archives") == [str(key)], "it stays after it was restored, and nothing else is there"


def test_the_newest_counts_even_if_it_was_never_noted(archives: Archives, volume: Path, tmp_path: Path) -> None:
    noted = archives.keep(ONE, volume)
    (volume / "work").write_text("of two days")
    newest = archives.keep(ONE, volume)
    assert archives.newest(ONE) == newest
    assert archives.restore(ONE, tmp_path / "restored", expected=str(noted)) == newest
    assert (tmp_path / "restored" / "work").read_text() == "of two days"
    archives.prune(ONE)
    assert names(tmp_path / "archives") == [str(newest)]


def test_numbers_are_compared_as_numbers(archives: Archives, volume: Path, tmp_path: Path) -> None:
    key = archives.keep(ONE, volume)
    folder = tmp_path / "archives" / ONE
    (folder / key.file).rename(folder / f"999999-{key.sha256}.tar.gz")
    after = archives.keep(ONE, volume)
    assert (after.number, archives.newest(ONE)) == (1_000_000, after)
    assert parse_key(str(after), ONE) == after


def test_a_damaged_archive_is_refused_and_kept(archives: Archives, volume: Path, tmp_path: Path) -> None:
    key = archives.keep(ONE, volume)
    path = tmp_path / "archives" / str(key)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ArchiveFailedError, match="checksum"):
        archives.restore(ONE, tmp_path / "restored", expected=str(key))
    with pytest.raises(ArchiveFailedError, match="checksum"):
        archives.check(key)
    assert not (tmp_path / "restored").exists()
    assert path.read_bytes() == bytes(raw)


def test_an_archive_that_is_missing_is_not_replaced_by_an_older_one(
    archives: Archives, volume: Path, tmp_path: Path
) -> None:
    older = archives.keep(ONE, volume)
    newer = archives.keep(ONE, volume)
    (tmp_path / "archives" / str(newer)).unlink()
    with pytest.raises(ArchiveMissingError):
        archives.restore(ONE, tmp_path / "restored", expected=str(newer))
    assert archives.restore(ONE, tmp_path / "restored", expected=str(older)) == older


def test_an_archive_of_the_same_number_and_another_checksum_is_not_taken(
    archives: Archives, volume: Path, tmp_path: Path
) -> None:
    key = archives.keep(ONE, volume)
    with pytest.raises(ArchiveMissingError):
        archives.restore(ONE, tmp_path / "restored", expected=str(key._replace(sha256="0" * 64)))


@pytest.mark.parametrize(
    "text",
    ["", "/etc/passwd", "../../etc/passwd", f"{ONE}/../../x", f"{OTHER}/000001-{'0' * 64}.tar.gz",
     f"{ONE}/000001-{'0' * 64}.tar.gz\n", f"{ONE}/1-{'0' * 64}.tar.gz", f"{ONE}/000001-{'0' * 63}.tar.gz"],
)  # fmt: skip
def test_a_key_that_is_not_its_own_is_refused(text: str, archives: Archives, tmp_path: Path) -> None:
    with pytest.raises(InvalidWorkspaceError, match="archive_key"):
        parse_key(text, ONE)


@pytest.mark.parametrize("name", ["", "..", "../volumes", "/etc", ONE.upper()])
def test_what_is_no_id_never_becomes_a_path(name: str, archives: Archives, volume: Path) -> None:
    workspace = WorkspaceId(name)
    for call in (archives.forget, archives.prune, archives.newest):
        with pytest.raises(InvalidWorkspaceError):
            call(workspace)
    assert volume.exists()


def test_an_archive_that_cannot_be_verified_gets_no_name(
    archives: Archives, volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bad(*_args: object, **_more: object) -> None:
        raise ArchiveError(action="verifying", problem="the disk lies")

    monkeypatch.setattr("lapse.workspaces.runtime.archive.verify", bad)
    with pytest.raises(ArchiveFailedError, match=r"stays where it is.*the disk lies"):
        archives.keep(ONE, volume)
    assert names(tmp_path / "archives") == []
    assert archives.newest(ONE) is None
    assert (volume / "work").exists()


def test_leftovers_are_removed_and_archives_stay(archives: Archives, volume: Path, tmp_path: Path) -> None:
    key = archives.keep(ONE, volume)
    folder = tmp_path / "archives" / ONE
    (folder / ".abc.part").touch()
    (folder / "..abc.part.def.part").touch()
    (folder / "notes.txt").touch()
    archives.remove_leftovers()
    assert names(tmp_path / "archives") == [str(key), f"{ONE}/notes.txt"]
    assert list(archives._keys(ONE)) == [key]


def test_those_of_one_are_forgotten_and_those_of_others_stay(archives: Archives, volume: Path, tmp_path: Path) -> None:
    archives.keep(ONE, volume)
    other = archives.keep(OTHER, volume)
    archives.forget(ONE)
    archives.forget(ONE)
    assert names(tmp_path / "archives") == [str(other)]
    assert archives.newest(ONE) is None


def test_a_key_reads_as_it_is_written() -> None:
    key = ArchiveKey(ONE, 7, "a" * 64)
    assert parse_key(str(key), ONE) == key
