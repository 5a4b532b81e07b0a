"""SQLite files (apsw): connections, migrations, the disk reserve, and errors that say what is wrong.

Every connection is opened here, so that all of them agree on journal mode, durability and waiting. Write-ahead logging
lets readers and one writer work at the same time, in any number of threads and processes on one machine; it does not
work on network file systems, and opening there fails.

Durability is what `Synchronous` says, as far as the disk keeps its word about fsync.

`Reserve` is disk space for the one thing that makes room on a full disk: deleting. In write-ahead logging a deletion is
written to the log, and a log that cannot grow must be moved into the database first, which may have to grow for that.
On a full disk neither is possible, so a database whose records have all expired would stay full for ever. A file of
this size beside the database is given up then, and made again when there is room.
"""

from __future__ import annotations

import os
import stat
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import apsw

from lapse.core.clock import Clock, SystemClock
from lapse.core.duration import Duration
from lapse.db.errors import DatabaseClosedError, DatabaseError, DatabaseMisfitError, DatabaseUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_WAL_BYTES_KEPT: Final = 16 * 1024 * 1024
"""A log that grew further is cut back to this. Above what the automatic checkpoint (1000 pages) leaves, so that the log
is normally written over and not grown anew: syncing a file that grows took fifteen times as long (ext4)."""
_SHORTEST_LOOK_SECONDS: Final = 0.0005
_LONGEST_LOOK_SECONDS: Final = 0.005
_CLOCK: Final = SystemClock()
_RESET_WAIT_MS: Final = 200
_CACHE_KIB: Final = 16 * 1024
_WAL_ATTEMPTS: Final = 50

_RESERVE_BYTES: Final = 4 * 1024 * 1024 + 64 * 1024
"""What the automatic checkpoint (1000 pages) leaves in a log can make a database grow by so much."""


class Synchronous(StrEnum):
    """When a commit counts as done."""

    FULL = "full"
    """After the log is on the disk: survives power loss."""
    NORMAL = "normal"
    """After the log is with the operating system: survives a crash of the process. Power loss may take the last
    commits, never consistency."""


@dataclass(frozen=True, slots=True)
class SQLiteFile:
    """Where a database is and how it is to be opened."""

    path: Path
    synchronous: Synchronous = Synchronous.FULL
    busy_ms: int = 5_000
    """How long a connection waits for another process's lock."""
    vfs: str | None = None
    """Another file layer, for tests that cut the power or fill the disk."""
    pragmas: Mapping[str, str] = field(default_factory=dict)
    """Set first, and instead of ours. A file layer without shared memory needs ``locking_mode=EXCLUSIVE``."""


@dataclass(frozen=True, slots=True)
class Schema:
    """What a file must contain: one SQL script per version, applied in order, each version once."""

    application_id: int
    """Marks the file as ours and of this kind, in the header where `file` and SQLite look for it."""
    scripts: Sequence[str]


# --- opening ---------------------------------------------------------------------------------------------------------


def open_writer(file: SQLiteFile, schema: Schema) -> apsw.Connection:
    """Open for reading and writing; create and migrate when needed. Raises `DatabaseError`."""
    _create_private(file)
    try:
        db = _connect(file)
        try:
            _check_writable(db, file)
            _use_wal(db, schema)
            _migrate(db, schema)
        except BaseException:
            db.close(force=True)
            raise
    except apsw.Error as error:
        raise explain(error, file) from error
    return db


def open_reader(file: SQLiteFile) -> apsw.Connection:
    """Open a connection that cannot write. The file must have been opened with `open_writer` before."""
    try:
        db = _connect(file)
        _pragma(db, "query_only", "ON")
    except apsw.Error as error:
        raise explain(error, file) from error
    return db


def bound_log(db: apsw.Connection, file: SQLiteFile) -> None:
    """Reset a log that readers, who were never all absent at once, have kept from being reset in passing.

    Waits for them, but not long, because writers wait meanwhile; when it fails the next call tries again.
    """
    try:
        size = Path(f"{file.path}-wal").stat().st_size
    except OSError:
        return
    if size <= _WAL_BYTES_KEPT:
        return
    db.set_busy_handler(_patience(_RESET_WAIT_MS))
    try:
        with suppress(apsw.BusyError, apsw.LockedError):
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        db.set_busy_handler(_patience(file.busy_ms))


def _connect(file: SQLiteFile) -> apsw.Connection:
    # Not read-only at the level of the file: in write-ahead logging readers, too, take locks in the shared-memory file.
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    db = apsw.Connection(str(file.path), flags=flags, vfs=file.vfs)
    db.set_busy_handler(_patience(file.busy_ms))
    ours = {
        "synchronous": file.synchronous.value,
        "cache_size": str(-_CACHE_KIB),
        "journal_size_limit": str(_WAL_BYTES_KEPT),
    }
    for name, value in {**file.pragmas, **ours, **file.pragmas}.items():  # the caller's come first, and win
        _pragma(db, name, value)
    return db


def _patience(milliseconds: int, clock: Clock = _CLOCK) -> Callable[[int], bool]:
    """Make a busy handler that looks again often.

    SQLite's own waits longer and longer, up to 100 ms, so that of four processes that write all the time one gets
    nearly everything and the others time out; this one gave each its share, and ten times the writes in all.
    """
    pause = threading.Lock()  # not an Event, which an exception of a signal handler may leave locked for ever
    pause.acquire()
    give_up_ns = 0

    def look_again(attempt: int) -> bool:
        nonlocal give_up_ns
        now_ns = clock.monotonic_ns()
        if attempt == 0:
            give_up_ns = now_ns + milliseconds * 1_000_000
        pause.acquire(timeout=min(_SHORTEST_LOOK_SECONDS * (1 + attempt / 16), _LONGEST_LOOK_SECONDS))
        return now_ns < give_up_ns

    return look_again


def _create_private(file: SQLiteFile) -> None:
    # SQLite would create it readable by everybody, and its companions with the same rights. mknod, because it opens
    # nothing: closing a descriptor drops every POSIX lock that this process holds on the file. Where the system does
    # not allow it, SQLite creates the file.
    if file.vfs is None:
        with suppress(OSError):
            os.mknod(file.path, stat.S_IFREG | 0o600)


def _check_writable(db: apsw.Connection, file: SQLiteFile) -> None:
    if db.readonly("main"):  # SQLite opens a file that it may not write for reading, without a word
        raise DatabaseUnavailableError(_why_read_only(file.path))


def _use_wal(db: apsw.Connection, schema: Schema) -> None:
    """Switch to write-ahead logging, against others who do the same at this moment."""
    for attempt in range(_WAL_ATTEMPTS):
        try:
            if _value(db, "PRAGMA page_count") == 0:
                # Only an empty file can be given this; it lets freed pages return to the file system piece by piece.
                _pragma(db, "auto_vacuum", "INCREMENTAL")
            elif attempt == 0:
                _version(db, schema)  # refuses, before another program's file is changed
            if _value(db, "PRAGMA journal_mode=WAL") == "wal":
                return
            raise DatabaseMisfitError("write-ahead logging does not work there; is it a network file system?")
        except apsw.BusyError:
            # Switching does not wait for others who switch; taking the write lock does.
            if attempt == _WAL_ATTEMPTS - 1:
                raise
            db.execute("BEGIN IMMEDIATE; COMMIT").fetchall()


def _pragma(db: apsw.Connection, name: str, value: str) -> None:
    db.execute(f"PRAGMA {name}={value}").fetchall()


def _value(db: apsw.Connection, sql: str) -> object:
    row = db.execute(sql).fetchone()
    return None if row is None else row[0]


# --- migrating -------------------------------------------------------------------------------------------------------


def _migrate(db: apsw.Connection, schema: Schema) -> None:
    if _version(db, schema) == len(schema.scripts):
        return
    db.execute("BEGIN IMMEDIATE")
    for script in schema.scripts[_version(db, schema) :]:  # read again: another process may have been quicker
        db.execute(script).fetchall()
    _pragma(db, "application_id", str(schema.application_id))
    _pragma(db, "user_version", str(len(schema.scripts)))
    db.execute("COMMIT")


def _version(db: apsw.Connection, schema: Schema) -> int:
    """Return which version the file has, 0 for an empty one; refuses a file of another program or of a newer Lapse."""
    with db:  # one look: a process that creates the file now is seen before or after, never in between
        owner = _value(db, "PRAGMA application_id")
        version = int(str(_value(db, "PRAGMA user_version")))
        objects = _value(db, "SELECT count(*) FROM sqlite_schema")
    if owner != schema.application_id and (owner or version or objects):
        raise DatabaseMisfitError("it is a SQLite database of another program; name another file")
    known = len(schema.scripts)
    if version > known:
        newer = f"it was made by a newer version of Lapse (schema {version}, this one knows {known}): upgrade Lapse"
        raise DatabaseMisfitError(newer)
    return version


# --- errors -----------------------------------------------------------------------------------------------------------


def explain(error: apsw.Error, file: SQLiteFile) -> DatabaseError:
    """Say what a driver's error means for the file: unavailable, misfit or closed."""
    match error:
        case apsw.NotADBError():
            return DatabaseMisfitError("it is not a SQLite database; name another file")
        case apsw.ConnectionClosedError() | apsw.CursorClosedError():
            return DatabaseClosedError()
        case apsw.BusyError() | apsw.LockedError():
            waited = Duration(file.busy_ms * 1_000_000)
            problem = f"it is locked by another process for more than {waited}"
        case apsw.FullError():
            problem = "the disk is full"
        case apsw.ReadOnlyError():
            problem = _why_read_only(file.path)
        case apsw.CantOpenError() | apsw.PermissionsError():
            problem = _why_not_opened(file.path)
        case apsw.CorruptError():
            problem = f"it is damaged ({error}); restore it from a backup"
        case apsw.IOError():
            problem = f"reading or writing it failed ({_code(error)})"
        case apsw.NoMemError():
            problem = "there is not enough memory"
        case _:
            problem = f"SQLite says {error}"
    return DatabaseUnavailableError(problem)


def _why_read_only(path: Path) -> str:
    if os.access(path, os.W_OK) and not os.access(path.parent, os.W_OK):
        return _read_only_folder(path.parent)
    return "it is read-only; give write access to the file and its folder"


def _why_not_opened(path: Path) -> str:
    folder = path.parent
    try:
        if not folder.exists():
            return f"the folder {folder} does not exist; create it first"
        if not folder.is_dir():
            return f"{folder} is not a folder"
        if path.is_dir():
            return "it is a folder; name a file in it"
    except OSError as error:
        return f"it cannot be reached ({error.strerror})"
    if not os.access(folder, os.W_OK | os.X_OK):
        return _read_only_folder(folder)
    return "it may not be opened; give read and write access to the file and its folder"


def _read_only_folder(folder: Path) -> str:
    return f"the folder {folder} is read-only, and SQLite keeps its log beside the file; give write access to both"


def _code(error: apsw.Error) -> str:
    names: Mapping[str | int, str | int] = apsw.mapping_extended_result_codes
    return str(names.get(getattr(error, "extendedresult", 0), error))


# --- the reserve ----------------------------------------------------------------------------------------------------


class Reserve:
    """The reserve of one database; processes that share the database share it."""

    def __init__(self, file: SQLiteFile) -> None:
        """Touch nothing yet."""
        self._owner_pid = os.getpid()
        self._path = None if file.vfs is not None else Path(f"{file.path}-reserve")

    def keep(self) -> None:
        """Have the reserve, if there is room for it."""
        if self._path is None or self._path.exists():
            return
        with suppress(OSError):
            handle = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            try:
                _allocate(handle)
            except OSError:
                self.spend()
            finally:
                os.close(handle)

    def spend(self) -> None:
        """Give the space back to the disk: when it is full, and when the database is closed. Not in a forked child."""
        if self._path is not None and self._owner_pid == os.getpid():
            self._path.unlink(missing_ok=True)


def _allocate(handle: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, _RESERVE_BYTES)
    else:
        for _ in range(_RESERVE_BYTES // 65_536):
            os.write(handle, bytes(65_536))
