"""Keys in one SQLite file: durable, and shared by the threads and processes of one machine.

Guarantees. Each write is one SQL statement that decides and changes in one step, inside a transaction that is shared
with the process's other writers (`lapse.db.sqlite.group_commit`); nobody is answered before it is durable as ``sync``
says: ``full`` survives power loss, ``normal`` survives a crash of the process and may lose the last moments on power
loss, never consistency. The moment of a write is read from the clock after the database's lock is held, so waiting for
another process does not shorten a TTL. A read sees every write, of any process, that was answered before it began.

Whose clock: this machine's wall clock (or the one given to `open_keys`), at the instant of expiry exactly.

Not guaranteed: `insert_many` is atomic per item only, and is committed in chunks; a value that was deleted stays in
free pages of the file until they are reused or returned. The file must be on a local disk: write-ahead logging needs
shared memory, which network file systems do not have.
"""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from struct import unpack_from
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import apsw

from lapse.core.duration import Duration
from lapse.db.errors import (
    CommitUnknownError,
    DatabaseClosedError,
    DatabaseError,
    DatabaseMisfitError,
    DatabaseUnavailableError,
)
from lapse.db.sqlite.file import Reserve, Schema, SQLiteFile, Synchronous, bound_log, explain, open_reader, open_writer
from lapse.db.sqlite.group_commit import GroupCommit
from lapse.db.sqlite.readers import Readers
from lapse.db.statements import load_statements
from lapse.db.urls import Option, positive_duration
from lapse.keys.backends.base import EmbeddedBackend
from lapse.keys.backends.layout import BUCKETS, SWEEP_INTERVAL, Prefix, bucket_of, interval_seconds, partition_keys
from lapse.keys.errors import (
    BackendClosedError,
    BackendError,
    BackendMisfitError,
    BackendUnavailableError,
    KeysURLError,
    OutcomeUnknownError,
)
from lapse.keys.port import (
    NS_PER_MS,
    Capabilities,
    CleanupReport,
    ExpiringCount,
    Item,
    NewItem,
    expiry_ms,
    is_over,
    seconds_left,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from lapse.core.clock import Clock
    from lapse.db.sqlite.group_commit import Operation
    from lapse.db.urls import StoreURL

T = TypeVar("T")
if TYPE_CHECKING:
    _Steps = Generator[Operation[Any], Any, T]
    """Operations one after the other: each is committed and answered before the next is made."""

SQL: Final = load_statements("lapse.keys.backends", "file.sql")
SCHEMA: Final = Schema(application_id=0x4C61704B, scripts=[SQL["schema_1"]])  # "LapK"

_CHUNK_ITEMS: Final = 500
_CHUNK_CHARACTERS: Final = 1024 * 1024
"""These bound one transaction of `insert_many`: others wait for the write lock meanwhile."""
_SWEEP_CHUNK: Final = 1_000
_PAGES_RETURNED: Final = 512
"""Free pages given back to the file system in one transaction: 2 MiB, a few milliseconds."""
_RETURNS_PER_SWEEP: Final = 8
_PAGES_KEPT: Final = 64
_BEYOND_ALL_KEYS: Final = b"\xff"  # a byte that UTF-8 never uses

_FIND: Final = SQL["find"]
_INSERT: Final = SQL["insert"]


def _timeout(text: str) -> Duration:
    duration = positive_duration(text)
    if duration.is_never:
        raise ValueError(text)
    return duration


OPTIONS: Final[Mapping[str, Option]] = {
    "buckets": BUCKETS,
    "sync": Option(Synchronous, Synchronous.FULL, "full (survives power loss) or normal (survives a crash)"),
    "timeout": Option(_timeout, Duration.of_seconds(5), "a duration such as 5s"),
    "sweep_interval": SWEEP_INTERVAL,
}


def open_backend(url: StoreURL, clock: Clock) -> FileBackend:
    """Open or create the file that ``url`` names."""
    options = url.options
    busy_ms = max(1, options["timeout"].nanoseconds // NS_PER_MS)
    file = SQLiteFile(_path(url), synchronous=options["sync"], busy_ms=busy_ms)
    interval = interval_seconds(options["sweep_interval"])
    return FileBackend(file, name=str(url), clock=clock, buckets=options["buckets"], sweep_interval=interval)


def init_store(url: StoreURL, clock: Clock) -> str:
    """Create the file, if it is not there, and check that it fits."""
    was_there = _path(url).exists()
    open_backend(url, clock).close()
    return f"{url} is {'there' if was_there else 'made'}, with buckets={url.options['buckets']}"


def _path(url: StoreURL) -> Path:
    expected = "expected an absolute path after three slashes, as in file:///var/lib/app/keys.db"
    if url.location or url.username or url.password is not None:
        raise KeysURLError(url=url, problem=f"it has a host part; {expected}")
    if not url.path or url.path.endswith("/") or "\0" in url.path:
        raise KeysURLError(url=url, problem=f"it names no file; {expected}")
    return Path(url.path)


class FileBackend(EmbeddedBackend):
    """See the module."""

    capabilities = Capabilities(
        atomicity="one SQL statement per operation, across threads and processes",
        clock="this machine's wall clock",
        precision="exact: gone at the instant of expiry",
        cleanup="background sweep, costs what has expired; disk space returns",
        scan="in byte order, from the primary key",
        multi_key="reads from one snapshot, inserts in shared commits",
        shared=True,
    )

    def __init__(
        self, file: SQLiteFile, *, name: str, clock: Clock, buckets: int = 1, sweep_interval: float | None = None
    ) -> None:
        """Open or create the file, and check that its bucket number is this one. ``name`` is for error messages."""
        self.name = name
        self.now_ns = clock.wall_ns
        self.sweep_interval = sweep_interval
        self.readers = Readers(lambda: open_reader(file))
        self._file = file
        self._buckets = buckets
        self._commit = GroupCommit(
            self._open_writer, explain=lambda error: explain(error, file), translate=self._translate
        )
        self._commit.connect()  # so that a file that does not fit is known now, and not at the first write
        self._reserve = Reserve(file)
        self._reserve.keep()

    @property
    def file(self) -> SQLiteFile:
        """The file."""
        return self._file

    def space(self, prefix: Prefix, app_id: int) -> FileSpace:
        """See `Backend`."""
        partitions = partition_keys(prefix, app_id, self._buckets)
        return FileSpace(self, partitions, self._commit.run, self._run_in_turn)

    def async_space(self, prefix: Prefix, app_id: int) -> FileSpace:
        """See `Backend`. Reads answer at once, as they are quicker than a thread switch; writes answer with tickets."""
        partitions = partition_keys(prefix, app_id, self._buckets)
        return FileSpace(self, partitions, self._commit.submit, self._submit_in_turn)

    def sweep(self, limit: int) -> CleanupReport:
        """Remove up to ``limit`` expired records, in transactions of a bounded size; give some free pages back.

        On a full disk it gives up the reserve first, because deleting needs space, and makes another one at its end.
        """
        try:
            report = self._sweep(limit)
        except BackendUnavailableError as error:
            if not isinstance(error.__cause__, apsw.FullError):
                raise
            self._reserve.spend()
            self._empty_log()
            report = self._sweep(limit)
            self._empty_log()
        self._reserve.keep()
        return report

    def _empty_log(self) -> None:
        """Move the log into the database, and give its space back."""
        self._lend(lambda cursor: cursor.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE))

    def _sweep(self, limit: int) -> CleanupReport:
        now_ms = self.now_ns() // NS_PER_MS
        removed: list[tuple[int, bytes]] = []
        # Looks first, without the write lock: most rounds find nothing, and need neither wait nor make others wait.
        more = bool(self.read(SQL["is_anything_over"], (now_ms,))[0][0])
        while more and len(removed) < limit:
            expired, more = self._commit.run(self._sweep_chunk(min(_SWEEP_CHUNK, limit - len(removed))))
            removed += expired
        self._return_pages()
        self._lend(lambda cursor: bound_log(cursor.connection, self._file))
        lag = (now_ms - min(expires_ms for expires_ms, _ in removed)) / 1000 if removed else None
        return CleanupReport(len(removed), more, lag, _by_app(partition for _, partition in removed))

    def counts(self) -> Iterable[tuple[Prefix, int, int]]:
        """See `Backend`. Walks the whole primary key: O(records)."""
        totals: dict[tuple[Prefix, int], int] = {}
        for partition, number in self.read(SQL["counts"], ()):
            owner = _owner(partition)
            totals[owner] = totals.get(owner, 0) + number
        return [(prefix, app_id, number) for (prefix, app_id), number in sorted(totals.items())]

    def expiring(self, until_ns: int, edges_ns: Sequence[int] = ()) -> Sequence[ExpiringCount]:
        """See `Backend`. Walks that part of the index by expiry once, a range for each part, from one snapshot."""
        now = self.now_ns() // NS_PER_MS
        moments = [now, *(max(now, one // NS_PER_MS) for one in (*edges_ns, until_ns))]
        found: dict[tuple[Prefix, int], list[tuple[int, int, int]]] = {}

        def walk(cursor: apsw.Cursor) -> None:
            for part, between in enumerate(pairwise(moments)):
                for partition, number, first_ms in cursor.execute(SQL["expiring"], between):
                    found.setdefault(_owner(partition), []).append((part, number, first_ms * NS_PER_MS))

        self.read_together(walk)
        return [_expiring(*owner, told, edges=len(edges_ns)) for owner, told in sorted(found.items())]

    def check(self) -> None:
        """See `Backend`."""
        self.read(SQL["check"], ())
        if self._file.vfs is None and not self._file.path.exists():
            raise BackendUnavailableError(backend=self.name, problem="its file was removed while it was in use")

    def close(self) -> None:
        """Finish the commit at hand and close every connection. Idempotent."""
        self._reserve.spend()  # first: closing moves the log into the file, which may need the space
        self._commit.close()
        self.readers.close()

    # --- for spaces --------------------------------------------------------------------------------------------------

    def read(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run one statement that only reads."""
        return self._lend(lambda cursor: _rows(cursor.execute(sql, parameters)))

    def read_together(self, body: Callable[[apsw.Cursor], T]) -> T:
        """Run several statements that only read on one snapshot."""

        def together(cursor: apsw.Cursor) -> T:
            cursor.execute("BEGIN")
            answer = body(cursor)
            cursor.execute("COMMIT")
            return answer

        return self._lend(together)

    def take_reader(self) -> apsw.Cursor:
        """Borrow a cursor; give it back to ``readers``, or `fail_read`."""
        try:
            return self.readers.take()
        except DatabaseError as error:
            raise self._translate(error) from error.__cause__

    def fail_read(self, error: BaseException, cursor: apsw.Cursor) -> NoReturn:
        """Raise what a failed read means, and give up the connection it failed on."""
        self.readers.discard(cursor)
        if isinstance(error, apsw.Error):
            raise self._translate(explain(error, self._file)) from error
        raise error

    # --- inside ------------------------------------------------------------------------------------------------------

    def _lend(self, body: Callable[[apsw.Cursor], T]) -> T:
        cursor = self.take_reader()
        try:
            answer = body(cursor)
        except BaseException as error:  # noqa: BLE001 - raised again there
            self.fail_read(error, cursor)
        self.readers.give(cursor)
        return answer

    def _translate(self, error: DatabaseError) -> BackendError:
        """Word a database's problem for users of keys."""
        match error:
            case DatabaseClosedError():
                return BackendClosedError()
            case DatabaseMisfitError():
                return BackendMisfitError(backend=self.name, problem=error.problem)
            case CommitUnknownError():
                return OutcomeUnknownError(backend=self.name, problem=error.problem)
            case DatabaseUnavailableError():
                return BackendUnavailableError(backend=self.name, problem=error.problem)
        return BackendError(problem=error.problem)

    def _open_writer(self) -> apsw.Connection:
        db = open_writer(self._file, SCHEMA)
        number = _rows(db.execute(SQL["recorded_buckets"]))
        if not number:
            db.execute(SQL["record_buckets"], (self._buckets,))
            number = _rows(db.execute(SQL["recorded_buckets"]))  # another process may have been quicker
        if number != [(self._buckets,)]:
            made = f"it was made with buckets={number[0][0]} and is opened with buckets={self._buckets}"
            hint = f"open it with ?buckets={number[0][0]}, or use another file"
            db.close()
            raise DatabaseMisfitError(f"{made}; {hint}")
        return db

    def _sweep_chunk(self, limit: int) -> Operation[tuple[list[tuple[int, bytes]], bool]]:
        def sweep(cursor: apsw.Cursor) -> tuple[list[tuple[int, bytes]], bool]:
            now_ms = self.now_ns() // NS_PER_MS
            removed = _rows(cursor.execute(SQL["sweep"], (now_ms, limit)))
            more = len(removed) == limit and bool(_rows(cursor.execute(SQL["is_anything_over"], (now_ms,)))[0][0])
            return removed, more

        return sweep

    def _return_pages(self) -> None:
        """Give free pages back, a bounded number, once they are more than a quarter of the file.

        Giving back every page at once would move pages to and fro under a steady load of inserts and expiries.
        """
        for _ in range(_RETURNS_PER_SWEEP):
            free, pages = self.read(SQL["free_pages"], ())[0]
            surplus = min(free - max(_PAGES_KEPT, pages // 4), _PAGES_RETURNED)
            if surplus <= 0:
                return
            self._commit.run(_returning(surplus))

    # One driver per API; the steps themselves are written once.

    def _run_in_turn(self, steps: _Steps[T]) -> T:
        try:
            operation = next(steps)
            while True:
                try:
                    answer = self._commit.run(operation)
                except BackendError as error:
                    operation = steps.throw(error)
                else:
                    operation = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _submit_in_turn(self, steps: _Steps[T]) -> T:
        try:
            operation = next(steps)
            while True:
                try:
                    answer = await self._commit.submit(operation)
                except BackendError as error:
                    operation = steps.throw(error)
                else:
                    operation = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result


class FileSpace:
    """One application's records. ``run`` answers by blocking or with a ticket; operations do not know which."""

    __slots__ = ("_backend", "_now_ns", "_only", "_partitions", "_read_lock", "_readers", "_run", "_run_in_turn")

    def __init__(
        self,
        backend: FileBackend,
        partitions: Sequence[bytes],
        run: Callable[[Operation[Any]], Any],
        run_in_turn: Callable[[_Steps[Any]], Any],
    ) -> None:
        """Made by `FileBackend`."""
        self._backend = backend
        self._partitions = partitions
        self._only = partitions[0] if len(partitions) == 1 else None
        self._run = run
        self._run_in_turn = run_in_turn
        self._now_ns = backend.now_ns
        self._readers = backend.readers
        self._read_lock = backend.readers.read_lock

    # --- reading -----------------------------------------------------------------------------------------------------

    def get(self, key: str) -> str | None:
        """See `Space`."""
        # The path of every lookup, so what `find` calls stands here written out: a call costs a twentieth of it.
        if self._read_lock.unclaimed:
            self._read_lock.note_read()
        try:
            cursor = self._readers.pop()
        except IndexError:
            cursor = self._backend.take_reader()
        row: Any = None
        try:
            for row in cursor.execute(_FIND, (self._only or self._partition(key), key.encode())):  # noqa: B007 - below
                pass
        except BaseException as error:  # noqa: BLE001 - raised again there
            self._backend.fail_read(error, cursor)
        self._readers.push(cursor)
        if row is None or row[1] * NS_PER_MS <= self._now_ns():
            return None
        value: str = row[0].decode()
        return value

    def find(self, key: str) -> Item | None:
        """See `Space`."""
        for value, expires_ms in self._backend.read(_FIND, self._place(key)):
            if not is_over(expires_ms * NS_PER_MS, self._now_ns()):
                return Item(key, value.decode(), expires_ms)
        return None

    def ttl(self, key: str) -> float | None:
        """See `Space`."""
        for (expires_ms,) in self._backend.read(SQL["find_expiry"], self._place(key)):
            return seconds_left(expires_ms * NS_PER_MS, self._now_ns())
        return None

    def get_many(self, keys: Sequence[str]) -> dict[str, str]:
        """See `Space`. All are read from one snapshot."""
        places = map(self._place, keys)
        rows = self._backend.read_together(lambda cursor: _rows(cursor.executemany(SQL["find_many"], places)))
        now_ms = self._now_ns() // NS_PER_MS
        return {key.decode(): value.decode() for key, value, expires_ms in rows if expires_ms > now_ms}

    def scan(self, start: str, stop: str | None, limit: int) -> list[Item]:
        """See `Space`. One snapshot; with buckets, their ordered records are merged, read piece by piece as needed."""
        first, beyond = start.encode(), _BEYOND_ALL_KEYS if stop is None else stop.encode()
        now_ms = self._now_ns() // NS_PER_MS
        # Keys are spread evenly, so a bucket's share of the page and a little more will nearly always do.
        piece = limit if self._only else min(limit, 2 * limit // len(self._partitions) + 4)

        def merged(cursor: apsw.Cursor) -> list[Item]:
            def records(partition: bytes) -> Iterator[tuple[Any, ...]]:
                after = first
                while True:
                    rows = _rows(cursor.execute(SQL["scan"], (partition, after, beyond, now_ms, piece)))
                    yield from rows
                    if len(rows) < piece:
                        return
                    after = rows[-1][0] + b"\0"

            rows = heapq.merge(*map(records, self._partitions))
            return [Item(key.decode(), value.decode(), expires_ms) for key, value, expires_ms in islice(rows, limit)]

        return self._backend.read_together(merged)

    # --- writing: each answers bool or None, at once or with a ticket ------------------------------------------------
    # The clock is read inside the operation, when the write lock is held: waiting for it must not shorten a TTL.

    def insert(self, key: str, value: str, ttl_seconds: int) -> Any:  # noqa: ANN401 - at once or pending, see `Space`
        """See `Space`."""
        return self._run(self._insertion(key, value, ttl_seconds))

    def put(self, key: str, value: str, ttl_seconds: int) -> Any:  # noqa: ANN401 - the same
        """See `Space`."""
        record = *self._place(key), value.encode()

        def put(cursor: apsw.Cursor) -> None:
            cursor.execute(SQL["put"], (*record, expiry_ms(self._now_ns(), ttl_seconds)))

        return self._run(put)

    def swap(self, key: str, expected: str, value: str, ttl_seconds: int) -> Any:  # noqa: ANN401 - the same
        """See `Space`."""
        return self._run(self._renewal("swap", ttl_seconds, *self._place(key), expected.encode(), value.encode()))

    def touch(self, key: str, ttl_seconds: int) -> Any:  # noqa: ANN401 - the same
        """See `Space`."""
        return self._run(self._renewal("touch", ttl_seconds, *self._place(key)))

    def delete(self, key: str) -> Any:  # noqa: ANN401 - the same
        """See `Space`."""
        return self._run(self._deletion("delete", *self._place(key)))

    def delete_if(self, key: str, expected: str) -> Any:  # noqa: ANN401 - the same
        """See `Space`."""
        return self._run(self._deletion("delete_if", *self._place(key), expected.encode()))

    def insert_many(self, items: Sequence[NewItem]) -> Any:  # noqa: ANN401 - the same
        """See `Space`. One transaction per chunk."""
        return self._run_in_turn(self._insert_chunks(items))

    # --- inside ------------------------------------------------------------------------------------------------------

    def _partition(self, key: str) -> bytes:
        return self._only or self._partitions[bucket_of(key, len(self._partitions))]

    def _place(self, key: str) -> tuple[bytes, bytes]:
        return self._partition(key), key.encode()

    def _insertion(self, key: str, value: str, ttl_seconds: int) -> Operation[bool]:
        partition, key_bytes, value_bytes = self._partition(key), key.encode(), value.encode()

        def insert(cursor: apsw.Cursor) -> bool:
            now_ns = self._now_ns()
            expires_ms = expiry_ms(now_ns, ttl_seconds)
            cursor.execute(_INSERT, (partition, key_bytes, value_bytes, expires_ms, now_ns // NS_PER_MS))
            return cursor.connection.changes() > 0

        return insert

    def _renewal(self, statement: str, ttl_seconds: int, *parameters: bytes) -> Operation[bool]:
        sql = SQL[statement]

        def renew(cursor: apsw.Cursor) -> bool:
            now_ns = self._now_ns()
            cursor.execute(sql, (*parameters, expiry_ms(now_ns, ttl_seconds), now_ns // NS_PER_MS))
            return cursor.connection.changes() > 0

        return renew

    def _deletion(self, statement: str, *parameters: bytes) -> Operation[bool]:
        sql = SQL[statement]

        def delete(cursor: apsw.Cursor) -> bool:
            cursor.execute(sql, (*parameters, self._now_ns() // NS_PER_MS))
            return cursor.connection.changes() > 0

        return delete

    def _insert_chunks(self, items: Sequence[NewItem]) -> _Steps[list[bool]]:
        answers: list[bool] = []
        for chunk in _chunks(items):
            try:
                answers += yield _all_of([self._insertion(*item) for item in chunk])
            except BackendError as error:
                if not answers:
                    raise
                problem = (
                    f"the first {len(answers)} of {len(items)} items are written if they were absent; then: {error}"
                )
                raise OutcomeUnknownError(backend=self._backend.name, problem=problem) from error
        return answers


def _owner(partition: bytes) -> tuple[Prefix, int]:
    prefix, app_id = unpack_from(">II", partition)
    return Prefix(prefix), app_id


def _expiring(prefix: Prefix, app_id: int, told: Sequence[tuple[int, int, int]], *, edges: int) -> ExpiringCount:
    """Return the count of an application, of what each of its buckets has in a part, and the earliest expiry there."""
    parts = [0] * (edges + 1)
    for part, number, _ in told:
        parts[part] += number
    return ExpiringCount(prefix, app_id, sum(parts), min(first for *_, first in told), tuple(parts) if edges else ())


def _by_app(partitions: Iterable[bytes]) -> dict[int, int]:
    """Return how many of these records are keys of each application."""
    found: Counter[int] = Counter()
    for partition, number in Counter(partitions).items():
        prefix, app_id = _owner(partition)
        if prefix is Prefix.APPLICATION_TTL:
            found[app_id] += number
    return dict(found)


def _returning(pages: int) -> Operation[object]:
    return lambda cursor: _rows(cursor.execute(f"PRAGMA incremental_vacuum({pages})"))


def _all_of(operations: Sequence[Operation[T]]) -> Operation[list[T]]:
    return lambda cursor: [operation(cursor) for operation in operations]


def _chunks(items: Sequence[NewItem]) -> Iterator[list[NewItem]]:
    chunk: list[NewItem] = []
    size = 0
    for item in items:
        chunk.append(item)
        size += len(item.value)
        if len(chunk) == _CHUNK_ITEMS or size >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _rows(cursor: apsw.Cursor) -> list[tuple[Any, ...]]:
    # All of them: a statement that is not run to its end holds a snapshot. Their types are the table's.
    return cursor.fetchall()
