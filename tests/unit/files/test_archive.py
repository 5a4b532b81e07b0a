"""Archives of directories: whole or not at all, and everything comes back as it was."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lapse.files import archive
from lapse.files.archive import ArchiveError, copy, pack, remove_leftovers, unpack

if TYPE_CHECKING:
    from collections.abc import Callable


def odd_files(folder: Path) -> None:
    """Everything that a directory may hold."""
    folder.mkdir()
    (folder / "plain.txt").write_text("hello")
    (folder / "empty").touch()
    (folder / "empty folder").mkdir()
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "file").write_bytes(bytes(range(256)) * 1000)
    (folder / "Ünïcödé 日本語 🗂").write_text("names")
    (folder / "-rf").touch()
    (folder / "line\nbreak").touch()
    Path(os.fsdecode(os.fsencode(folder) + b"/not-utf8-\xff")).touch()
    (folder / "n").mkdir()
    (folder / "n" / ("x" * 250)).touch()
    (folder / "link").symlink_to("plain.txt")
    (folder / "dangling").symlink_to("nowhere/at/all")
    (folder / "outside").symlink_to("/etc")
    (folder / "loop").symlink_to(".")
    os.link(folder / "plain.txt", folder / "second name")
    os.mkfifo(folder / "pipe")
    (folder / "script").write_text("#!/bin/sh\n")
    for name, mode in (("script", 0o755), ("plain.txt", 0o666), ("empty", 0o600), ("pipe", 0o622)):
        (folder / name).chmod(mode)
    (folder / "empty folder").chmod(0o1777)
    (folder / "deep").chmod(0o2770)
    os.utime(folder / "script", ns=(0, 1_234_567_890_000_000_000))
    folder.chmod(0o751)


def seen(folder: Path) -> dict[str, tuple[Any, ...]]:
    """What is in a directory, as far as it must come back."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        status = path.lstat()
        content: object = None
        if stat.S_ISLNK(status.st_mode):
            content = path.readlink()
        elif stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        mode = None if stat.S_ISLNK(status.st_mode) else oct(status.st_mode)
        found[str(path.relative_to(folder))] = (mode, content)
    return found


def nothing(_path: Path) -> None:
    pass


@pytest.fixture
def source(tmp_path: Path) -> Path:
    odd_files(tmp_path / "source")
    return tmp_path / "source"


def test_a_directory_with_odd_files_comes_back_as_it_was(source: Path, tmp_path: Path) -> None:
    found = pack(source, tmp_path / "a.tar.gz")
    unpack(found.path, found.sha256, tmp_path / "copy", arrived=nothing)
    assert seen(tmp_path / "copy") == seen(source)
    assert (tmp_path / "copy" / "script").stat().st_mtime_ns == 1_234_567_890_000_000_000
    assert (tmp_path / "copy" / "plain.txt").stat().st_ino == (tmp_path / "copy" / "second name").stat().st_ino
    assert found.unpacked_bytes >= 256_000


ATTRIBUTES = {"user.plain": b"text", "user.bytes": b"\xff\n\0=1%3D", "user.a=b%": b"", "user.long": b"x" * 2000}


def attributes(path: Path) -> dict[str, bytes]:
    return {name: os.getxattr(path, name) for name in os.listxattr(path)}


@pytest.mark.parametrize("name", ["plain.txt", "deep", "."])
def test_extended_attributes_come_back(source: Path, tmp_path: Path, name: str) -> None:
    for attribute, value in ATTRIBUTES.items():
        set_or_skip(source / name, attribute, value)
    (source / "plain.txt").chmod(0o400)
    found = pack(source, tmp_path / "a.tar.gz")
    refused = unpack(found.path, found.sha256, tmp_path / "copy", arrived=nothing)

    assert attributes(tmp_path / "copy" / name) == ATTRIBUTES
    assert (refused, found.left_out) == ([], ())
    assert oct((tmp_path / "copy" / "plain.txt").stat().st_mode) == "0o100400"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files capabilities, and to others")
def test_capabilities_and_owners_come_back(source: Path, tmp_path: Path) -> None:
    capability = bytes.fromhex("0100000200040000" + "00" * 12)  # CAP_NET_BIND_SERVICE
    os.chown(source / "script", 1234, 2345)
    set_or_skip(source / "script", "security.capability", capability)
    found = pack(source, tmp_path / "a.tar.gz")
    unpack(found.path, found.sha256, tmp_path / "copy", arrived=nothing)
    back = tmp_path / "copy" / "script"

    assert attributes(back) == {"security.capability": capability}
    assert (back.stat().st_uid, back.stat().st_gid) == (1234, 2345)


def test_what_may_not_be_set_is_named_and_the_rest_comes_back(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_or_skip(source / "script", "user.plain", b"text")
    found = pack(source, tmp_path / "a.tar.gz")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "setxattr", refuse)
    refused = unpack(found.path, found.sha256, tmp_path / "copy", arrived=nothing)

    assert refused == ["script: user.plain (Operation not permitted)"]
    assert seen(tmp_path / "copy") == seen(source)


@pytest.mark.parametrize("moment", [1_700_000_000_123_456_789, 1, -1, -1_500_000_000])
def test_times_come_back_to_the_nanosecond(source: Path, tmp_path: Path, moment: int) -> None:
    os.utime(source / "script", ns=(0, moment))
    os.utime(source / "deep", ns=(0, moment))
    kept = [(source / name).stat().st_mtime_ns for name in ("script", "deep")]
    found = pack(source, tmp_path / "a.tar.gz")
    unpack(found.path, found.sha256, tmp_path / "copy", arrived=nothing)

    assert [(tmp_path / "copy" / name).stat().st_mtime_ns for name in ("script", "deep")] == kept


@pytest.mark.process
@pytest.mark.skipif(shutil.which("tar") is None, reason="there is no tar here")
def test_other_programs_read_the_attributes(source: Path, tmp_path: Path) -> None:
    for attribute, value in ATTRIBUTES.items():
        set_or_skip(source / "plain.txt", attribute, value)
    found = pack(source, tmp_path / "a.tar.gz")
    (tmp_path / "copy").mkdir()
    subprocess.run(["tar", "--xattrs", "-xzf", found.path, "-C", tmp_path / "copy"], check=True, capture_output=True)

    assert attributes(tmp_path / "copy" / "plain.txt") == ATTRIBUTES


def set_or_skip(path: Path, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        pytest.skip(f"no extended attributes here: {error}")


def test_a_copy_of_a_directory_with_odd_files_is_as_it_was(source: Path, tmp_path: Path) -> None:
    copy(source, tmp_path / "copy", arrived=nothing)
    assert seen(tmp_path / "copy") == seen(source)


@pytest.mark.parametrize("way", ["archive", "copy"])
def test_sockets_are_left_out(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "file").touch()
    monkeypatch.chdir(folder)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
        if way == "archive":
            found = pack(folder, tmp_path / "a.tar.gz")
            assert found.left_out == ("socket",)
            unpack(found.path, found.sha256, tmp_path / "copy", arrived=nothing)
        else:
            copy(folder, tmp_path / "copy", arrived=nothing)
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["file"]


def test_the_same_directory_gives_the_same_archive(source: Path, tmp_path: Path) -> None:
    assert pack(source, tmp_path / "a.tar.gz").sha256 == pack(source, tmp_path / "b.tar.gz").sha256


def test_a_file_that_goes_away_meanwhile_is_not_captured(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = archive._below

    def below(directory: Path) -> Any:  # noqa: ANN401
        for path in before(directory):
            if path.name == "script":
                path.unlink()
            yield path

    monkeypatch.setattr(archive, "_below", below)
    found = pack(source, tmp_path / "a.tar.gz")
    unpack(found.path, found.sha256, tmp_path / "copy", arrived=nothing)
    assert seen(tmp_path / "copy") == seen(source)


def test_a_folder_that_cannot_be_listed_is_a_failure_and_not_an_empty_folder(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir, deep = os.scandir, next(source.rglob("deep")).stat()

    def refuse(descriptor: Any) -> Any:  # noqa: ANN401
        if os.path.samestat(os.fstat(descriptor), deep):
            raise PermissionError(errno.EACCES, "Permission denied", "deep")
        return scandir(descriptor)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(ArchiveError, match="Permission denied"):
        pack(source, tmp_path / "a.tar.gz")
    assert not (tmp_path / "a.tar.gz").exists()


# --- whole or not at all ----------------------------------------------------------------------------------------------


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_what_is_interrupted_anywhere_leaves_nothing(source: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    attempts = 0
    for allowed in range(1000):
        asked = iter([False] * allowed)
        attempts += 1
        try:
            pack(source, place / "a.tar.gz", stop=lambda asked=asked: next(asked, True))  # type: ignore[misc]
        except ArchiveError:
            assert everything(place) == []
        else:
            break
    assert attempts > 3
    assert everything(place) == ["a.tar.gz"]


@pytest.mark.parametrize("way", ["archive", "copy"])
def test_a_restore_that_is_interrupted_anywhere_leaves_nothing(source: Path, tmp_path: Path, way: str) -> None:
    found = pack(source, tmp_path / "a.tar.gz")
    place = tmp_path / "place"
    place.mkdir()
    for allowed in range(1000):
        asked = iter([False] * allowed)

        def stop(asked: Any = asked) -> bool:  # noqa: ANN401
            return next(asked, True)

        try:
            if way == "archive":
                unpack(found.path, found.sha256, place / "copy", arrived=nothing, stop=stop)
            else:
                copy(source, place / "copy", arrived=nothing, stop=stop)
        except ArchiveError:
            assert everything(place) == []
        else:
            break
    assert allowed > 5
    assert seen(place / "copy") == seen(source)


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_a_crash_while_packing_leaves_nothing_of_the_final_name(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    place = tmp_path / "place"

    def killed(*_args: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os if at == "fsync" else Path, at, killed)
        with suppress(Killed):
            pack(source, place / "a.tar.gz")
    assert not (place / "a.tar.gz").exists()
    remove_leftovers(place)
    assert everything(place) == []
    assert pack(source, place / "a.tar.gz").path.exists()


def test_an_archive_cut_in_half_is_refused_and_kept(source: Path, tmp_path: Path) -> None:
    found = pack(source, tmp_path / "a.tar.gz")
    os.truncate(found.path, found.path.stat().st_size // 2)
    with pytest.raises(ArchiveError, match="the archive is damaged"):
        unpack(found.path, found.sha256, tmp_path / "copy", arrived=nothing)
    assert found.path.exists()
    assert not (tmp_path / "copy").exists()


def test_one_flipped_bit_is_noticed(source: Path, tmp_path: Path) -> None:
    found = pack(source, tmp_path / "a.tar.gz")
    raw = bytearray(found.path.read_bytes())
    raw[len(raw) // 2] ^= 1
    found.path.write_bytes(raw)
    with pytest.raises(ArchiveError, match="checksum"):
        unpack(found.path, found.sha256, tmp_path / "copy", arrived=nothing)


def test_an_archive_that_is_gone_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="No such file"):
        unpack(tmp_path / "a.tar.gz", "0" * 64, tmp_path / "copy", arrived=nothing)


def full(*_args: object, **_more: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_while_packing_is_a_clear_error_and_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArchiveError, match="No space left on device"):
        pack(source, place / "a.tar.gz")
    assert everything(place) == []


@pytest.mark.process
def test_a_real_limit_on_the_size_of_files_is_a_clear_error_and_leaves_nothing(source: Path, tmp_path: Path) -> None:
    """In a process of its own: the limit cannot be taken back."""
    (source / "large").write_bytes(os.urandom(300_000))  # noqa: TID251 - incompressible
    script = f"""
import resource, signal
from pathlib import Path
from lapse.files.archive import ArchiveError, pack
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    pack(Path({str(source)!r}), Path({str(tmp_path / "place" / "a.tar.gz")!r}))
except ArchiveError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert "File too large" in done.stdout
    assert everything(tmp_path / "place") == []


def test_a_full_disk_while_unpacking_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = pack(source, tmp_path / "a.tar.gz")
    monkeypatch.setattr(archive, "_copy_sparsely", full)
    place = tmp_path / "place"
    with pytest.raises(ArchiveError, match="No space left on device"):
        unpack(found.path, found.sha256, place / "copy", arrived=nothing)
    assert everything(place) == []


@pytest.mark.parametrize("way", ["archive", "copy"])
def test_a_directory_that_is_not_empty_is_left_as_it_was(source: Path, tmp_path: Path, way: str) -> None:
    found = pack(source, tmp_path / "a.tar.gz")
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine").write_text("keep me")
    fill: dict[str, Callable[[], object]] = {
        "archive": lambda: unpack(found.path, found.sha256, taken, arrived=nothing),
        "copy": lambda: copy(source, taken, arrived=nothing),
    }
    with pytest.raises(ArchiveError, match="not an empty directory"):
        fill[way]()
    assert everything(taken) == ["mine"]


def test_an_empty_directory_is_filled(source: Path, tmp_path: Path) -> None:
    found = pack(source, tmp_path / "a.tar.gz")
    (tmp_path / "copy").mkdir()
    unpack(found.path, found.sha256, tmp_path / "copy", arrived=nothing)
    assert seen(tmp_path / "copy") == seen(source)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.touch()], ids=["missing", "a file"])
def test_what_is_no_directory_cannot_be_captured(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "source")
    with pytest.raises(ArchiveError, match="there is no such directory"):
        pack(tmp_path / "source", tmp_path / "a.tar.gz")
    assert not (tmp_path / "a.tar.gz").exists()


def test_a_long_name_in_many_bytes_can_be_restored_into(source: Path, tmp_path: Path) -> None:
    found = pack(source, tmp_path / "a.tar.gz")
    target = tmp_path / ("文" * 80)
    unpack(found.path, found.sha256, target, arrived=nothing)
    assert seen(target) == seen(source)


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".a.tar.gz.0123.part").touch()
    (tmp_path / ".b.0123.part").mkdir()
    (tmp_path / "a.tar.gz").touch()
    (tmp_path / "mine.part").touch()
    remove_leftovers(tmp_path)
    remove_leftovers(tmp_path / "not there")
    assert everything(tmp_path) == ["a.tar.gz", "mine.part"]
