"""Files that cannot be a keys store: each is refused with a sentence that says what is wrong, and none is changed."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest

import lapse
from lapse.keys.errors import BackendMisfitError, BackendUnavailableError, KeysURLError

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


def make_store(path: Path, options: str = "") -> None:
    with lapse.open_keys(f"file://{path}{options}", sweep=False) as keys:
        keys.app(7).put("key", "value", 3600)


def execute(path: Path, sql: str) -> list[tuple[object, ...]]:
    db = apsw.Connection(str(path))
    rows = db.execute(sql).fetchall()
    db.close()
    return rows


@pytest.mark.parametrize(
    "content", [b"no database at all, just some text that is long enough" * 20, b"short", b"\0" * 8192]
)
def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)

    with pytest.raises(BackendMisfitError, match="it is not a SQLite database") as refusal:
        lapse.open_keys(f"file://{path}")

    assert isinstance(refusal.value.__cause__, apsw.NotADBError)
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_refused_and_left_as_it_is(path: Path) -> None:
    execute(path, "CREATE TABLE theirs (x)")
    content = path.read_bytes()

    with pytest.raises(BackendMisfitError, match="it is a SQLite database of another program"):
        lapse.open_keys(f"file://{path}")

    assert path.read_bytes() == content


def test_a_file_of_a_newer_schema_is_refused_with_both_numbers(path: Path) -> None:
    make_store(path)
    execute(path, "PRAGMA user_version = 9")

    with pytest.raises(
        BackendMisfitError, match=r"newer version of Lapse \(schema 9, this one knows 1\): upgrade Lapse"
    ):
        lapse.open_keys(f"file://{path}")


def test_another_number_of_buckets_is_refused_with_both_numbers(path: Path) -> None:
    make_store(path, "?buckets=4")

    with pytest.raises(BackendMisfitError, match=r"made with buckets=4 and is opened with buckets=1"):
        lapse.open_keys(f"file://{path}")
    with lapse.open_keys(f"file://{path}?buckets=4", sweep=False) as keys:
        assert keys.app(7).ttl_get("key") == "value"


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()

    make_store(path)

    assert execute(path, "SELECT count(*) FROM records") == [(1,)]


def test_a_new_store_and_its_companions_are_private_to_their_owner(path: Path) -> None:
    with lapse.open_keys(f"file://{path}", sweep=False) as keys:
        keys.app(7).put("key", "value", 3600)

        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}

    assert modes == dict.fromkeys(["keys.db", "keys.db-wal", "keys.db-shm", "keys.db-reserve"], 0o600)


def test_after_closing_only_the_file_itself_is_left(path: Path) -> None:
    with lapse.open_keys(f"file://{path}", sweep=False) as keys:
        keys.app(7).put("key", "value", 3600)
        keys.app(7).ttl_get("key")

    assert [file.name for file in path.parent.iterdir()] == ["keys.db"]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("file://keys.db", "it has a host part; expected an absolute path after three slashes"),
        ("file://host/keys.db", "it has a host part"),
        ("file://me:secret@/keys.db", "it has a host part"),
        ("file:///", "it names no file"),
        ("file:///folder/", "it names no file"),
        ("file:///a%00b", "it names no file"),
        ("file:///k.db?sync=off", "the option sync=off is not valid; expected full .* or normal"),
        ("file:///k.db?timeout=never", "the option timeout=never is not valid; expected a duration such as 5s"),
        ("file:///k.db?timeout=0", "the option timeout=0 is not valid"),
        ("file:///k.db?colour=red", "valid options: buckets, sweep_interval, sync, timeout"),
    ],
)
def test_a_url_that_names_no_file_or_a_wrong_option_is_refused(url: str, problem: str) -> None:
    with pytest.raises(KeysURLError, match=problem) as refusal:
        lapse.open_keys(url)

    assert "secret" not in str(refusal.value)


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailableError, match=f"the folder {tmp_path}/missing does not exist; create it first"):
        lapse.open_keys(f"file://{tmp_path}/missing/keys.db")


def test_a_folder_instead_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailableError, match="it is a folder; name a file in it"):
        lapse.open_keys(f"file://{tmp_path}")


def test_a_file_in_the_place_of_the_folder_is_refused(path: Path) -> None:
    path.write_text("a file")

    with pytest.raises(BackendUnavailableError, match=f"{path} is not a folder"):
        lapse.open_keys(f"file://{path}/keys.db")


# --- rights ----------------------------------------------------------------------------------------------------------

OPEN_AS_NOBODY = f"""
import os, sys, lapse.keys.backends.file
from lapse import LapseError, open_keys  # while the modules may be read
if os.geteuid() == 0:  # rights do not bind root
    os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})
try:
    open_keys(sys.argv[1], sweep=False)
except LapseError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def common_folder() -> Iterator[Path]:
    """Give a folder that every user can reach; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="lapse-test-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def opened_without_rights(path: Path) -> str:
    program = [sys.executable, "-c", OPEN_AS_NOBODY, f"file://{path}"]
    return subprocess.run(program, capture_output=True, text=True, check=True).stdout


def test_a_read_only_file_is_refused(common_folder: Path) -> None:
    path = common_folder / "keys.db"
    make_store(path)
    path.chmod(0o444)
    common_folder.chmod(0o777)

    assert "BackendUnavailableError" in (said := opened_without_rights(path))
    assert "it is read-only; give write access to the file and its folder" in said


def test_a_read_only_folder_is_refused(common_folder: Path) -> None:
    path = common_folder / "keys.db"
    make_store(path)
    path.chmod(0o666)
    common_folder.chmod(0o555)

    assert "BackendUnavailableError" in (said := opened_without_rights(path))
    assert f"the folder {common_folder} is read-only" in said


def test_a_new_file_in_a_read_only_folder_is_refused(common_folder: Path) -> None:
    common_folder.chmod(0o555)

    assert "BackendUnavailableError" in (said := opened_without_rights(common_folder / "keys.db"))
    assert f"the folder {common_folder} is read-only" in said


def test_a_file_that_may_not_be_read_is_refused(common_folder: Path) -> None:
    path = common_folder / "keys.db"
    make_store(path)
    path.chmod(0o000)
    common_folder.chmod(0o777)

    assert "BackendUnavailableError" in (said := opened_without_rights(path))
    assert "it may not be opened; give read and write access" in said


def test_a_file_that_was_removed_while_in_use_fails_the_check(path: Path) -> None:
    with lapse.open_keys(f"file://{path}", sweep=False) as keys:
        keys.backend.check()
        path.unlink()

        with pytest.raises(BackendUnavailableError, match="its file was removed while it was in use"):
            keys.backend.check()
