"""Archives that somebody made up, sparse files, verification, and removal."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from typing import TYPE_CHECKING

import pytest

from lapse.files.archive import ArchiveError, copy, pack, remove, remove_leftovers, sync_tree, unpack, verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def nothing(_part: Path) -> None: ...


def member(name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def made_up(path: Path, *members: tarfile.TarInfo) -> str:
    """Write an archive of one's own; return its checksum."""
    with tarfile.open(path, "w:gz") as tar:
        for info in members:
            content = b"written" if info.isreg() else b""
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "members",
    [
        [member("../outside")],
        [member("a/../../outside")],
        [member("link", tarfile.SYMTYPE, link=".."), member("link/outside")],
        [member("link", tarfile.SYMTYPE, link="/tmp"), member("link/deep/outside")],
        [member("hard", tarfile.LNKTYPE, link="../secret")],
        [member("link", tarfile.SYMTYPE, link=".."), member("hard", tarfile.LNKTYPE, link="link/secret")],
        [member("device", tarfile.CHRTYPE)],
        [member("device", tarfile.BLKTYPE)],
    ],
    ids=["dots", "hidden dots", "through a link", "through an absolute link", "hard link", "hard link through a link",
         "character device", "block device"],
)  # fmt: skip
def test_a_member_that_would_leave_the_directory_is_refused_and_nothing_is_written(
    tmp_path: Path, members: list[tarfile.TarInfo]
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "secret").write_text("secret")
    digest = made_up(tmp_path / "a.tar.gz", *members)
    with pytest.raises(ArchiveError, match=r"restoring a\.tar\.gz"):
        unpack(tmp_path / "a.tar.gz", digest, place / "copy", arrived=nothing)
    assert sorted(path.name for path in place.iterdir()) == ["secret"]


def test_an_absolute_name_is_refused(tmp_path: Path) -> None:
    digest = made_up(tmp_path / "a.tar.gz", member(f"{tmp_path}/outside"))
    with pytest.raises(ArchiveError):
        unpack(tmp_path / "a.tar.gz", digest, tmp_path / "copy", arrived=nothing)
    assert not (tmp_path / "outside").exists()


def test_a_sparse_file_comes_back_with_its_holes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with (source / "sparse").open("wb") as file:
        file.write(b"begin")
        file.seek(64_000_000)
        file.write(b"end")
        file.truncate(80_000_000)
    found = pack(source, tmp_path / "a.tar.gz")
    assert found.path.stat().st_size < 1_000_000
    unpack(found.path, found.sha256, tmp_path / "copy", arrived=nothing)
    status = (tmp_path / "copy" / "sparse").stat()
    assert status.st_size == 80_000_000
    assert status.st_blocks * 512 < 1_000_000
    assert (tmp_path / "copy" / "sparse").read_bytes() == (source / "sparse").read_bytes()


def test_files_of_any_length_come_back_whole(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    block = 64 * 1024
    for size in (0, 1, block - 1, block, block + 1, 3 * block):
        (source / f"zeros {size}").write_bytes(bytes(size))
        (source / f"ones {size}").write_bytes(b"\1" * size)
        (source / f"mixed {size}").write_bytes(bytes(size) + b"\1" + bytes(size))
    found = pack(source, tmp_path / "a.tar.gz")
    unpack(found.path, found.sha256, tmp_path / "copy", arrived=sync_tree)
    copies = {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()}
    assert copies == {path.name: path.read_bytes() for path in source.iterdir()}


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable for root")
def test_a_file_that_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "secret").touch(mode=0o000)
    with pytest.raises(ArchiveError, match=r"Permission denied.*secret"):
        pack(source, tmp_path / "a.tar.gz")


def test_what_was_written_can_be_verified(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("content")
    found = pack(source, tmp_path / "a.tar.gz")
    verify(found.path, found.sha256, unpacked_bytes=7)
    with pytest.raises(ArchiveError, match="checksum"):
        verify(found.path, "0" * 64)
    with pytest.raises(ArchiveError, match="7 bytes, expected 8"):
        verify(found.path, found.sha256, unpacked_bytes=8)
    cut = found.path.read_bytes()[:-20]
    found.path.write_bytes(cut)
    with pytest.raises(ArchiveError, match="verifying"):
        verify(found.path, hashlib.sha256(cut).hexdigest())


def test_a_directory_is_removed_with_all_its_odd_files(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    volume = tmp_path / "volumes" / "one"
    (volume / "locked" / "deep").mkdir(parents=True)
    (volume / "locked" / "deep" / "file").touch()
    (volume / "link").symlink_to(outside)
    (volume / "locked" / "deep").chmod(0o000)
    (volume / "locked").chmod(0o500)
    remove(volume)
    remove(volume)
    assert list((tmp_path / "volumes").iterdir()) == []
    assert (outside / "kept").exists()


def test_a_removal_that_was_interrupted_is_finished_with_the_leftovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = tmp_path / "volumes" / "one"
    volume.mkdir(parents=True)
    (volume / "file").touch()
    with monkeypatch.context() as patch:
        patch.setattr("lapse.files.archive._remove_tree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            remove(volume)
    assert not volume.exists()
    remove_leftovers(volume.parent)
    assert list(volume.parent.iterdir()) == []


def interrupted(_directory: Path, _mark: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("way", ["archive", "copy"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_link_that_is_swapped_in_while_it_is_being_read_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, kind: str
) -> None:
    outside, source = tmp_path / "outside", tmp_path / "source"
    for folder in (outside, source, source / "folder"):
        folder.mkdir()
    (outside / "secret").write_text("SECRET")
    (source / "file").write_text("mine")
    (source / "folder" / "secret").write_text("mine")
    look = os.stat
    swapped: list[object] = []

    def swap(path: str | Path, *args: object, **kwargs: object) -> os.stat_result:
        """Look, and put a link there before the next step."""
        found = look(path, *args, **kwargs)  # type: ignore[arg-type]
        if str(path).endswith(kind) and not swapped and not stat.S_ISLNK(found.st_mode):
            swapped.append(path)
            (source / kind).rename(tmp_path / "aside")
            (source / kind).symlink_to(outside / "secret" if kind == "file" else outside)
        return found

    monkeypatch.setattr(os, "stat", swap)
    monkeypatch.setattr(os, "lstat", lambda path, **kwargs: swap(path, follow_symlinks=False, **kwargs))
    ways: dict[str, Callable[[], object]] = {
        "archive": lambda: pack(source, tmp_path / "a.tar.gz"),
        "copy": lambda: copy(source, tmp_path / "copy", arrived=nothing),
    }
    with pytest.raises(ArchiveError, match="replaced by something else while it was being read"):
        ways[way]()
    monkeypatch.undo()
    assert swapped
    assert not (tmp_path / "a.tar.gz").exists()
    assert not (tmp_path / "copy").exists()
