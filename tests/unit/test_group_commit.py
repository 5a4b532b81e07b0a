"""The shared commit, on real SQLite files; disks that wait or fail where the moment matters."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from lapse.db.errors import CommitUnknownError, DatabaseClosedError, DatabaseError, DatabaseUnavailableError
from lapse.db.sqlite.file import Schema, SQLiteFile, explain, open_reader, open_writer
from lapse.db.sqlite.group_commit import GroupCommit, Operation
from tests.sqlite_disks import Disk, disk, nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SCHEMA = Schema(1, ["CREATE TABLE notes (text TEXT)"])
SECONDS = 10


class Notes:
    """A table of texts behind a group commit, and ways to look at it from outside."""

    def __init__(self, file: SQLiteFile, *, largest_group: int = 1024) -> None:
        self.file = file
        self.opened = 0
        self.commit = GroupCommit(
            self._connect, explain=lambda e: explain(e, file), translate=lambda e: e, largest_group=largest_group
        )

    def _connect(self) -> apsw.Connection:
        self.opened += 1
        return open_writer(self.file, SCHEMA)

    def stored(self) -> list[str]:
        db = open_reader(self.file)
        try:
            return sorted(str(text) for (text,) in db.execute("SELECT text FROM notes").fetchall())
        finally:
            db.close()

    def stored_inside(self) -> list[str]:
        """For disks that allow one connection only."""
        return self.commit.run(lambda c: sorted(str(t) for (t,) in c.execute("SELECT text FROM notes").fetchall()))


def note(text: str) -> Operation[str]:
    def write(cursor: apsw.Cursor) -> str:
        cursor.execute("INSERT INTO notes VALUES (?)", (text,))
        return text

    return write


def failing(text: str) -> Operation[str]:
    def write_and_fail(cursor: apsw.Cursor) -> str:
        cursor.execute("INSERT INTO notes VALUES (?)", (text,))
        raise LookupError(text)

    return write_and_fail


class Gate:
    """An operation that stays inside its transaction until it is let go, so that others queue behind it."""

    def __init__(self) -> None:
        self._entered, self._let_go = threading.Event(), threading.Event()

    def __call__(self, _: apsw.Cursor) -> str:
        self._entered.set()
        assert self._let_go.wait(SECONDS)
        return "gate"

    def wait_until_entered(self) -> None:
        assert self._entered.wait(SECONDS)

    def open(self) -> None:
        self._let_go.set()


class Caller(threading.Thread):
    """A thread that makes one blocking call and keeps its outcome."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call = call
        self.answer: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._call()
        except BaseException as error:  # noqa: BLE001 - the outcome is what the test looks at
            self.error = error

    def outcome(self) -> Any:  # noqa: ANN401 - whatever was answered
        self.join(SECONDS)
        assert not self.is_alive(), "a caller was never answered"
        return self.error if self.error is not None else self.answer


def queued(commit: GroupCommit, length: int) -> None:
    """Wait until so many stand in the queue."""
    pause = threading.Event()
    for _ in range(SECONDS * 1000):
        if len(commit._queue) >= length:
            return
        pause.wait(0.001)
    pytest.fail("the queue never got that long")


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Notes]:
    made = Notes(SQLiteFile(tmp_path / "notes.db", busy_ms=200))
    yield made
    made.commit.close()


@contextmanager
def on(watched: Disk, folder: Path) -> Iterator[Notes]:
    made = Notes(watched.file(folder / "notes.db"))
    made.commit.run(note("first"))
    yield made
    made.commit.close()


def in_one_group(commit: GroupCommit, operations: list[Operation[Any]]) -> list[Any]:
    """Let operations queue behind a first one, so that the next leader takes all of them; return the outcomes."""
    gate = Gate()
    first = Caller(lambda: commit.run(gate))
    gate.wait_until_entered()
    callers = []
    for number, operation in enumerate(operations, 1):
        callers.append(Caller(lambda operation=operation: commit.run(operation)))  # type: ignore[misc]
        queued(commit, number)
    gate.open()
    assert first.outcome() == "gate"
    return [caller.outcome() for caller in callers]


# --- a group that goes well ------------------------------------------------------------------------------------------


def test_a_lone_writer_gets_its_answer_and_the_write_is_stored(notes: Notes) -> None:
    assert notes.commit.run(note("a")) == "a"
    assert notes.stored() == ["a"]


def test_a_lone_writer_runs_in_its_own_thread(notes: Notes) -> None:
    assert notes.commit.run(lambda _: threading.current_thread()) is threading.current_thread()


def test_writers_that_queue_behind_a_leader_share_one_transaction_and_one_sync(tmp_path: Path) -> None:
    syncs: list[str] = []
    with disk() as counted, on(counted, tmp_path) as notes:
        counted.on_sync = syncs.append

        outcomes = in_one_group(notes.commit, [note(str(number)) for number in range(10)])
        counted.on_sync = nothing

        assert outcomes == [str(number) for number in range(10)]
        assert len(syncs) == 1
        assert len(notes.stored_inside()) == 11


def test_leadership_goes_to_the_queue_until_it_is_empty_and_then_to_whoever_comes(tmp_path: Path) -> None:
    small = Notes(SQLiteFile(tmp_path / "notes.db"), largest_group=3)

    outcomes = in_one_group(small.commit, [note(str(number)) for number in range(10)])

    assert outcomes == [str(number) for number in range(10)]
    assert small.commit.run(note("later")) == "later"
    assert len(small.stored()) == 11
    small.commit.close()


def test_many_threads_each_get_their_own_answers(notes: Notes) -> None:
    def work(name: int) -> list[str]:
        return [notes.commit.run(note(f"{name}:{number}")) for number in range(20)]

    callers = [Caller(lambda name=name: work(name)) for name in range(16)]  # type: ignore[misc]

    assert [caller.outcome() for caller in callers] == [[f"{name}:{n}" for n in range(20)] for name in range(16)]
    assert len(notes.stored()) == 320


# --- a member that fails ---------------------------------------------------------------------------------------------


def test_a_failing_operation_fails_alone_and_leaves_nothing_behind(notes: Notes) -> None:
    outcomes = in_one_group(notes.commit, [note("a"), failing("b"), note("c"), failing("d"), note("e")])

    assert [str(outcome).strip("'") for outcome in outcomes] == ["a", "b", "c", "d", "e"]
    assert [type(outcome) for outcome in outcomes] == [str, LookupError, str, LookupError, str]
    assert notes.stored() == ["a", "c", "e"]


def test_a_failing_lone_operation_is_rolled_back_and_the_next_one_works(notes: Notes) -> None:
    with pytest.raises(LookupError):
        notes.commit.run(failing("a"))

    assert notes.commit.run(note("b")) == "b"
    assert notes.stored() == ["b"]


def test_an_error_of_the_driver_in_one_operation_is_explained_and_fails_only_that_one(notes: Notes) -> None:
    def wrong(cursor: apsw.Cursor) -> None:
        cursor.execute("INSERT INTO nowhere VALUES (1)")

    good, bad = in_one_group(notes.commit, [note("a"), wrong])

    assert good == "a"
    assert isinstance(bad, DatabaseUnavailableError)
    assert isinstance(bad.__cause__, apsw.SQLError)
    assert notes.stored() == ["a"]


# --- a transaction that fails ----------------------------------------------------------------------------------------


def broken_sync(_: str) -> None:
    raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC)


def full_write(_path: str, _offset: int, _data: bytes) -> None:
    raise apsw.exception_for(apsw.SQLITE_FULL)


def answers_false(cursor: apsw.Cursor) -> bool:
    cursor.execute("UPDATE notes SET text = 'changed' WHERE text = 'no such note'")
    return cursor.connection.changes() > 0


def test_a_commit_that_fails_fails_every_member_also_those_who_were_to_be_answered_false(tmp_path: Path) -> None:
    with disk() as full, on(full, tmp_path) as notes:

        def last(cursor: apsw.Cursor) -> str:
            full.on_write = full_write  # from here on, so that only the commit meets it
            return note("b")(cursor)

        outcomes = in_one_group(notes.commit, [note("a"), answers_false, last])
        full.on_write = nothing

        assert [type(outcome) for outcome in outcomes] == [DatabaseUnavailableError] * 3
        assert {outcome.problem for outcome in outcomes} == {"the disk is full"}
        assert len({id(outcome) for outcome in outcomes}) == 3
        assert notes.stored_inside() == ["first"]
        assert notes.commit.run(note("c")) == "c"


def test_a_commit_whose_sync_fails_is_of_unknown_outcome_for_every_member(tmp_path: Path) -> None:
    with disk() as failing_disk, on(failing_disk, tmp_path) as notes:

        def last(cursor: apsw.Cursor) -> str:
            failing_disk.on_sync = broken_sync
            return note("b")(cursor)

        outcomes = in_one_group(notes.commit, [answers_false, last])
        failing_disk.on_sync = nothing

        assert [type(outcome) for outcome in outcomes] == [CommitUnknownError] * 2
        assert all(isinstance(outcome.__cause__, apsw.IOError) for outcome in outcomes)
        assert notes.commit.run(note("c")) == "c"


def test_a_member_that_failed_by_itself_keeps_its_own_reason_when_the_commit_fails(tmp_path: Path) -> None:
    with disk() as full, on(full, tmp_path) as notes:

        def last(cursor: apsw.Cursor) -> str:
            full.on_write = full_write
            return note("b")(cursor)

        outcomes = in_one_group(notes.commit, [failing("a"), last])
        full.on_write = nothing

        assert [type(outcome) for outcome in outcomes] == [LookupError, DatabaseUnavailableError]


def test_nobody_is_answered_before_the_commit_is_synced(tmp_path: Path) -> None:
    syncing, go_on = threading.Event(), threading.Event()

    def slow_sync(_: str) -> None:
        syncing.set()
        assert go_on.wait(SECONDS)

    with disk() as slow, on(slow, tmp_path) as notes:

        def last(cursor: apsw.Cursor) -> str:
            slow.on_sync = slow_sync
            return note("b")(cursor)

        gate = Gate()
        callers = [Caller(lambda: notes.commit.run(gate))]
        gate.wait_until_entered()
        for number, operation in enumerate([note("a"), answers_false, last], 1):
            callers.append(Caller(lambda operation=operation: notes.commit.run(operation)))  # type: ignore[misc]
            queued(notes.commit, number)
        gate.open()
        assert syncing.wait(SECONDS)
        callers[0].outcome()  # the gate's own group came before

        assert [caller.is_alive() for caller in callers[1:]] == [True] * 3
        go_on.set()
        assert [caller.outcome() for caller in callers[1:]] == ["a", False, "b"]


def test_when_the_lock_cannot_be_had_all_who_wait_fail_together_and_nothing_is_applied(notes: Notes) -> None:
    notes.commit.run(note("first"))
    other = apsw.Connection(str(notes.file.path))
    other.execute("BEGIN IMMEDIATE")

    callers = [Caller(lambda: notes.commit.run(note("x"))) for _ in range(8)]
    outcomes = [caller.outcome() for caller in callers]
    other.execute("ROLLBACK")

    assert [type(outcome) for outcome in outcomes] == [DatabaseUnavailableError] * 8
    assert {outcome.problem for outcome in outcomes} == {"it is locked by another process for more than 200ms"}
    assert notes.commit.run(note("after")) == "after"
    assert notes.stored() == ["after", "first"]
    other.close()


def test_a_connection_that_cannot_be_made_fails_its_group_and_is_tried_again_for_the_next(tmp_path: Path) -> None:
    notes = Notes(SQLiteFile(tmp_path / "missing" / "notes.db"))

    with pytest.raises(DatabaseUnavailableError, match="does not exist; create it first"):
        notes.commit.run(note("a"))
    (tmp_path / "missing").mkdir()

    assert notes.commit.run(note("b")) == "b"
    notes.commit.close()


# --- event loops -----------------------------------------------------------------------------------------------------


async def test_tickets_are_answered_and_share_transactions_with_blocking_callers(notes: Notes) -> None:
    gate = Gate()
    blocking = Caller(lambda: notes.commit.run(gate))
    gate.wait_until_entered()
    tickets = [notes.commit.submit(note(str(number))) for number in range(50)]
    gate.open()

    assert [await ticket for ticket in tickets] == [str(number) for number in range(50)]
    assert blocking.outcome() == "gate"
    assert len(notes.stored()) == 50


async def test_a_ticket_runs_outside_the_loops_thread(notes: Notes) -> None:
    ran_in = await notes.commit.submit(lambda _: threading.current_thread())

    assert ran_in is not threading.current_thread()


async def test_a_ticket_awaited_by_two_tasks_and_again_later_gives_the_same_answer(notes: Notes) -> None:
    ticket = notes.commit.submit(note("a"))

    async def wait() -> str:
        return await ticket

    assert [*await asyncio.gather(wait(), wait())] == ["a", "a"]
    assert await ticket == "a"


async def test_a_failing_ticket_raises_where_it_is_awaited(notes: Notes) -> None:
    good, bad = notes.commit.submit(note("a")), notes.commit.submit(failing("b"))

    with pytest.raises(LookupError, match="b"):
        await bad
    assert await good == "a"


async def test_cancelling_a_task_that_waits_disturbs_nobody(notes: Notes) -> None:
    gate = Gate()
    blocking = Caller(lambda: notes.commit.run(gate))
    gate.wait_until_entered()

    async def wait(text: str) -> str:
        return await notes.commit.submit(note(text))

    tasks = [asyncio.create_task(wait(text)) for text in ("a", "b", "c")]
    queued_by_now = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(queued_by_now.set_result, None)
    await queued_by_now
    tasks[1].cancel()
    gate.open()

    await asyncio.wait(tasks)
    assert (tasks[0].result(), tasks[1].cancelled(), tasks[2].result()) == ("a", True, "c")
    assert blocking.outcome() == "gate"
    notes.commit.run(note("after"))
    assert set(notes.stored()) >= {"a", "c", "after"}


def test_a_loop_that_was_closed_before_its_answer_came_disturbs_nobody(notes: Notes) -> None:
    gate = Gate()

    async def give_up() -> None:
        notes.commit.submit(gate)
        waiting = asyncio.ensure_future(_awaited(notes.commit.submit(note("a"))))
        await asyncio.wait([waiting], timeout=0.01)
        waiting.cancel()

    asyncio.run(give_up())
    gate.open()

    assert notes.commit.run(note("b")) == "b"
    assert notes.stored() == ["a", "b"]


async def _awaited(ticket: Any) -> Any:  # noqa: ANN401 - a ticket of anything
    return await ticket


# --- closing, forking, interrupting ----------------------------------------------------------------------------------


def test_close_waits_for_what_is_at_hand_and_refuses_what_comes_later(notes: Notes) -> None:
    gate = Gate()
    first = Caller(lambda: notes.commit.run(gate))
    gate.wait_until_entered()
    second = Caller(lambda: notes.commit.run(note("a")))
    queued(notes.commit, 1)
    closing = Caller(notes.commit.close)
    closing.join(0.05)
    assert closing.is_alive()
    with pytest.raises(DatabaseClosedError):
        notes.commit.run(note("too late"))
    with pytest.raises(DatabaseClosedError):
        notes.commit.submit(note("too late"))
    gate.open()

    assert [first.outcome(), second.outcome(), closing.outcome()] == ["gate", "a", None]
    assert notes.stored() == ["a"]
    notes.commit.close()


def test_the_helper_thread_ends_with_the_store(notes: Notes) -> None:
    async def write() -> None:
        await notes.commit.submit(note("a"))

    asyncio.run(write())
    helper = notes.commit._helper
    assert helper is not None
    assert helper.is_alive()
    notes.commit.close()

    assert not helper.is_alive()


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused_and_the_parent_goes_on(notes: Notes) -> None:
    notes.commit.run(note("before"))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            notes.commit.run(note("child"))
        except DatabaseError as error:
            code = 0 if "forked" in str(error) else 2
        finally:
            notes.commit.close()
            os._exit(code)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert notes.commit.run(note("after")) == "after"
    assert notes.stored() == ["after", "before"]


class Interrupted(BaseException):
    """What a signal handler raises, like KeyboardInterrupt."""


@pytest.fixture
def interruption() -> Iterator[Callable[[], None]]:
    """Give a way to raise `Interrupted` in the main thread."""

    def raise_it(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, raise_it)
    yield lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_a_caller_interrupted_in_the_queue_leaves_and_the_others_go_on(
    notes: Notes, interruption: Callable[[], None]
) -> None:
    gate = Gate()
    first = Caller(lambda: notes.commit.run(gate))
    gate.wait_until_entered()

    def interrupt_when_queued() -> str:
        queued(notes.commit, 1)
        interruption()
        return notes.commit.run(note("behind"))

    behind = Caller(interrupt_when_queued)
    with pytest.raises(Interrupted):
        notes.commit.run(note("interrupted"))
    queued(notes.commit, 1)
    gate.open()

    assert [first.outcome(), behind.outcome()] == ["gate", "behind"]
    assert notes.stored() == ["behind"]


def test_a_leader_interrupted_in_its_operation_fails_its_group_and_hands_over(notes: Notes) -> None:
    members: list[Caller] = []

    def interrupted(cursor: apsw.Cursor) -> None:
        note("lost")(cursor)
        raise Interrupted

    gate = Gate()
    first = Caller(lambda: notes.commit.run(gate))
    gate.wait_until_entered()

    def member_behind_the_main_thread() -> str:
        queued(notes.commit, 1)
        members.append(Caller(lambda: notes.commit.run(note("member"))))
        queued(notes.commit, 2)
        gate.open()
        return "done"

    starter = Caller(member_behind_the_main_thread)
    with pytest.raises(Interrupted):
        notes.commit.run(interrupted)

    assert [first.outcome(), starter.outcome()] == ["gate", "done"]
    assert isinstance(members[0].outcome(), DatabaseUnavailableError)
    assert notes.commit.run(note("after")) == "after"
    assert notes.stored() == ["after"]
