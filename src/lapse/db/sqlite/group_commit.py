"""The shared commit: concurrent writers of one process pay for one fsync together.

A writer that finds nobody at work leads: it takes the database's write lock, runs its own operation and those that
queued meanwhile, commits once, and answers all. Writers that arrive while a group is at work queue and sleep, each on a
lock of its own. A finished leader wakes its first member, who wakes the next and goes its way; the last one appoints
the first in the queue as the next leader. So a lone writer pays for no thread switch (a writer thread, the usual
design, would halve its speed), and many writers pay for one fsync per group. Waking one after the other, and leading
only then, beats waking all at once: awake together they would fight for the interpreter lock with the leader and each
other, which cost half as much again per write, and made groups half as large.

Callers on an event loop must not lead, as that blocks: they get a `Ticket` to await, and a helper thread leads.

Guarantees.

- Nobody is answered before the commit is as durable as the connection's ``synchronous`` says.
- An operation that raises is undone alone; its neighbours stay, and never see it half done.
- Operations run while the write lock is held, so a clock that they read is not older than the wait for that lock.
- If the transaction fails as a whole, every member fails: also those that changed nothing, because what they saw was
  never true.
- A task that is cancelled, or a thread that is interrupted, does not disturb its group. Its operation may be applied or
  not.
- Nobody hangs, however often exceptions of signal handlers interrupt the main thread, and wherever. Such an exception
  may come at any instruction, also where another one is being dealt with, so no `finally` is sure to run. What is sure:
  a lock written in C that is held by `with` is released. So the main thread holds one (``_inside``) during each call;
  the state that a call leaves behind is on this object and changes hands with single stores (``_holder``); and when the
  lock is free while the call is not over (``_mains``), the next thread that looks does the rest: the next caller, or
  one that sleeps, as none sleeps for long without a look.

What a failure means. Before COMMIT: nothing was applied. In COMMIT:

- BUSY, LOCKED: the transaction is still open and is rolled back; not applied.
- FULL: the log could not take the frame that makes a commit valid; not applied.
- READONLY: nothing could be written; not applied.
- Everything else (I/O errors, memory, damage): *unknown*. SQLite writes the commit frame to the log, syncs, and then
  publishes it in the shared index. If the sync or the publishing fails, nobody sees the commit, and the next writer
  overwrites it; but if the machine stops before that, recovery finds a complete frame in the log and applies it.

Not guaranteed: order. Operations of one caller that waits for each answer are in order; concurrent ones are in some
order.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, Final, Generic, NoReturn, TypeVar

import apsw

from lapse.db.errors import CommitUnknownError, DatabaseClosedError, DatabaseError, DatabaseUnavailableError
from lapse.db.sqlite.forks import FORKED, guard_against_forks

T = TypeVar("T")
Operation = Callable[[apsw.Cursor], T]
"""Runs inside the group's transaction, on a cursor that all share: it must run its statements to the end, must not
begin, commit or roll back, and must be quick, as others wait for it. It may be run twice, when it or a neighbour failed
in the first run; only the last run counts."""
Explain = Callable[[apsw.Error], DatabaseError]
Translate = Callable[[DatabaseError], Exception]

_LARGEST_GROUP: Final = 1_024
"""Bounds how long the first member of a group waits for the last, and other processes for the lock."""
_HELPER_IDLE_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.1
"""How long a member sleeps before it looks whether one who should have woken it was interrupted."""
_CLOSE_LOOK_SECONDS: Final = 0.001
_NOT_APPLIED: Final = (apsw.BusyError, apsw.LockedError, apsw.FullError, apsw.ReadOnlyError)


class _Member(Generic[T]):
    """One operation and, in the end, its answer or error."""

    __slots__ = ("answer", "error", "operation")
    answer: T

    def __init__(self, operation: Operation[T]) -> None:
        self.operation = operation
        self.error: BaseException | None = None

    def result(self) -> T:
        if self.error is None:
            return self.answer
        try:
            raise self.error
        finally:
            del self  # else error, traceback, frame and member would keep each other alive


class _Blocked(_Member[T]):
    """A member whose caller sleeps on a lock, unless it leads."""

    __slots__ = ("answered", "gone", "wake")

    def __init__(self, operation: Operation[T]) -> None:
        self.operation = operation  # not by super(), which would cost a call per write
        self.error = None
        self.wake: threading.Lock | None = None
        """Held while the caller must sleep; None for one that found nobody at work."""
        self.answered = self.gone = False

    def rouse(self) -> None:
        if self.wake is not None:
            with suppress(RuntimeError):  # it is awake already
                self.wake.release()


class Ticket(_Member[T]):
    """A member whose caller awaits it, on any event loop. Awaiting it again gives the same answer."""

    __slots__ = ("_waiting", "done")

    def __init__(self, operation: Operation[T]) -> None:
        """Made by `GroupCommit.submit`."""
        super().__init__(operation)
        self.done = False
        self._waiting: list[asyncio.Future[None]] = []

    def __await__(self) -> Generator[Any, None, T]:
        """Wait until the group is committed, without blocking the loop."""
        if not self.done:
            future = asyncio.get_running_loop().create_future()
            # No lock: first stand in the list, then look again. What is done now need not be waited for; what is done
            # later finds the place in the list.
            self._waiting.append(future)
            try:
                if not self._is_done():
                    yield from future
            finally:
                self._waiting.remove(future)
        return self.result()

    def take_waiting(self) -> list[asyncio.Future[None]]:
        """Mark as done; return who is to be told. May be called again."""
        self.done = True
        return list(self._waiting)

    def _is_done(self) -> bool:
        return self.done


_Group = list[_Blocked[Any] | Ticket[Any]]


class _Helper(Enum):
    """Stands for the helper thread where a member could stand."""

    HELPER = "helper"


_HELPER: Final = _Helper.HELPER


class GroupCommit:
    """All writes of one process to one database. Safe to share between threads and event loops."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        *,
        explain: Explain,
        translate: Translate,
        largest_group: int = _LARGEST_GROUP,
    ) -> None:
        """Open nothing yet.

        ``connect`` gives the connection to write with, at first use and after one had to be given up. ``explain`` puts
        a driver's error in words, ``translate`` makes the exception that callers see, a fresh one for each.
        """
        self._connect = connect
        self._explain = explain
        self._translate = translate
        self._largest_group = largest_group
        # Guards what follows, for moments only; never held while the database is used.
        self._mutex = threading.Lock()
        self._queue: deque[_Blocked[Any] | Ticket[Any]] = deque()
        self._holder: _Blocked[Any] | _Helper | None = None
        """Who leads, or wakes the members of the last group. The next five are with the holder alone."""
        self._cursor: apsw.Cursor | None = None
        self._group: _Group = []
        self._committing = self._committed = False
        self._followers: deque[_Blocked[Any]] = deque()
        """Members of the last group that are to be woken."""
        self._closed = False
        self._forked = False
        self._inside = threading.RLock()
        """Held by the main thread during its calls; others take it to finish a call that was interrupted."""
        self._mains: _Blocked[Any] | Ticket[Any] | None = None
        self._main_ident = threading.main_thread().ident
        self._helper: threading.Thread | None = None
        self._helper_call = threading.Lock()  # held; released to call the helper, which takes it again
        self._helper_call.acquire()
        guard_against_forks(self)

    def connect(self) -> None:
        """Open the connection, so that what is wrong is known before the first operation. Call it before sharing."""
        try:
            self._open()
        except (apsw.Error, DatabaseError) as error:
            failure = self._failure(error)
            raise failure from failure.__cause__

    # --- joining -----------------------------------------------------------------------------------------------------

    def run(self, operation: Operation[T]) -> T:
        """Run one operation, alone or in a group; return its answer once that is durable. Blocks."""
        member = _Blocked(operation)
        if threading.get_ident() != self._main_ident:
            self._run(member)
        else:
            self._check_not_nested()
            with self._inside:
                self._recover()
                self._mains = member
                self._run(member)
                self._mains = None
        return member.result()

    def submit(self, operation: Operation[T]) -> Ticket[T]:
        """Queue one operation for the next group; await the ticket for its answer. Does not block on the disk."""
        ticket = Ticket(operation)
        if threading.get_ident() != self._main_ident:
            self._submit(ticket)
        else:
            self._check_not_nested()
            with self._inside:
                self._recover()
                self._mains = ticket
                self._submit(ticket)
                self._mains = None
        return ticket

    def close(self) -> None:
        """Refuse new operations, finish those that are here, release the connection. Idempotent."""
        if self._forked:
            return
        with self._mutex:
            self._closed = True
        pause = threading.Lock()
        pause.acquire()
        while self._holder is not None:
            self._look_after_main()
            pause.acquire(timeout=_CLOSE_LOOK_SECONDS)
        with self._mutex:
            cursor, self._cursor = self._cursor, None
            helper, self._helper = self._helper, None
            self._call_helper()
        if helper is not None:
            helper.join()
        if cursor is not None:
            with suppress(apsw.Error):
                cursor.connection.close(force=True)

    def become_forked(self) -> list[Any]:
        """See `lapse.db.sqlite.forks`."""
        self._forked = True
        return [self._cursor]

    def _refuse(self) -> NoReturn:
        # A fork is looked for before the mutex is touched: a thread that the child does not have may have held it.
        raise self._translate(DatabaseUnavailableError(FORKED) if self._forked else DatabaseClosedError())

    def _check_not_nested(self) -> None:
        if self._forked:
            self._refuse()
        if self._mains is not None and self._inside._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - as Condition asks it
            nested = "a signal handler or a finaliser used it in the middle of another call of the same thread"
            raise self._translate(DatabaseUnavailableError(nested))

    def _run(self, member: _Blocked[Any]) -> None:
        try:
            if self._join(member) or self._sleep(member):
                self._lead(member)
            elif self._holder is member:
                self._hand_over(member)
        except BaseException:
            self._abandon(member)
            raise

    def _submit(self, ticket: Ticket[Any]) -> None:
        if self._forked:
            self._refuse()
        with self._mutex:
            if self._closed:
                self._refuse()
            self._queue.append(ticket)
            if self._holder is None:
                self._holder = _HELPER
                self._start_helper_locked()
                self._call_helper()
            elif self._mains is not None:
                self._start_helper_locked()  # it looks whether the main thread was interrupted

    def _join(self, member: _Blocked[Any]) -> bool:
        """Take the lead, if nobody has it, and return True; else join the queue."""
        if self._forked:
            self._refuse()
        with self._mutex:
            if self._closed:
                self._refuse()
            if self._holder is None:
                self._holder = member
                return True
            member.wake = threading.Lock()
            member.wake.acquire()
            self._queue.append(member)
            return False

    def _sleep(self, member: _Blocked[Any]) -> bool:
        """Sleep until answered, or appointed to lead: then return True."""
        wake = member.wake
        while wake is not None and not wake.acquire(timeout=_LOOK_SECONDS):
            self._look_after_main()
            if member.answered or self._holder is member:
                break
        with self._mutex:
            member.gone = True  # need not be woken any more
            if member.answered:
                return False
            if self._queue and self._queue[0] is member:  # appointed by one who was interrupted then
                self._queue.popleft()
            return True

    # --- after an interruption ---------------------------------------------------------------------------------------

    def _look_after_main(self) -> None:
        """Finish the main thread's call, if an exception of a signal handler ended it in the middle."""
        if self._mains is not None and self._inside.acquire(blocking=False):
            try:
                self._recover()
            finally:
                self._inside.release()

    def _recover(self) -> None:
        left = self._mains
        if left is not None:
            self._abandon(left)
            self._mains = None

    def _abandon(self, member: _Blocked[Any] | Ticket[Any]) -> None:
        """Leave after an interruption, without leaving the others in the lurch. May be repeated from the start."""
        if self._forked:
            return
        if isinstance(member, Ticket):
            with self._mutex:
                if self._holder is _HELPER:
                    self._start_helper_locked()
                    self._call_helper()
            return
        with self._mutex:
            member.gone = True
            if member in self._queue:
                self._queue.remove(member)
        if self._holder is member:
            self._give_up_lead(member)

    def _give_up_lead(self, holder: _Blocked[Any] | _Helper) -> None:
        """Answer the group of a leader that was interrupted, and give the lead away."""
        if self._group and not self._committed:
            # A transaction that is open is undone; one that is not, after COMMIT began, may be stored or not.
            open_still = self._cursor is not None and self._cursor.connection.in_transaction
            interrupted = DatabaseUnavailableError("the thread that wrote for all was interrupted")
            self._fail(self._group, interrupted, unknown=self._committing and not open_still)
        self._end_group(holder)

    # --- leading -----------------------------------------------------------------------------------------------------

    def _lead(self, holder: _Blocked[Any] | _Helper) -> None:
        """Commit one group, answer it, and give the lead away."""
        self._committing = self._committed = False
        self._group = [] if holder is _HELPER else [holder]
        self._commit(self._group)
        self._end_group(holder)

    def _end_group(self, holder: _Blocked[Any] | _Helper) -> None:
        group = self._group
        if len(group) != 1 or holder is _HELPER:
            _tell_loops(member for member in group if isinstance(member, Ticket))
            blocked = [member for member in group if isinstance(member, _Blocked) and member is not holder]
            for member in blocked:
                member.answered = True
            with self._mutex:
                for taken in group:
                    if self._queue and self._queue[0] is taken:  # taken by one who was interrupted then
                        self._queue.popleft()
                self._followers.extend(blocked)
                self._group = []
        self._hand_over(holder)

    def _hand_over(self, holder: _Blocked[Any] | _Helper) -> None:
        """Wake the next member, who wakes the one after; the last gives the lead away."""
        with self._mutex:
            self._group = []
            while self._followers:
                member = self._followers[0]
                if not member.gone and member is not holder:
                    self._holder = member
                    self._followers.popleft()
                    member.rouse()
                    return
                self._followers.popleft()
            if not self._queue:
                self._holder = None
            elif isinstance(first := self._queue[0], Ticket):
                self._holder = _HELPER
                self._start_helper_locked()
                self._call_helper()
            else:
                self._holder = first
                self._queue.popleft()
                first.rouse()

    def _commit(self, group: _Group) -> None:
        try:
            try:
                cursor = self._cursor or self._open()
                cursor.execute("BEGIN IMMEDIATE")
            finally:
                # Also when it failed: those who queued meanwhile should not wait for the same time-out again.
                if self._queue:
                    self._take_queued(group)
            _run_members(cursor, group, self._failure)
            self._committing = True
            cursor.execute("COMMIT")
            self._committed = True
        except (apsw.Error, DatabaseError) as error:
            self._fail(group, error, unknown=self._committing and not isinstance(error, _NOT_APPLIED))

    def _open(self) -> apsw.Cursor:
        cursor = self._cursor = self._connect().cursor()
        return cursor

    def _take_queued(self, group: _Group) -> None:
        with self._mutex:
            while self._queue and len(group) < self._largest_group:
                group.append(self._queue[0])  # out of the queue only then: an interruption must not lose it
                self._queue.popleft()

    def _fail(self, group: Iterable[_Member[Any]], error: Exception, *, unknown: bool) -> None:
        self._undo()
        for member in group:
            # One that failed by itself keeps its own reason: that is as true as before.
            if member.error is None:
                member.error = self._failure(error, unknown=unknown)

    def _failure(self, error: Exception, *, unknown: bool = False) -> Exception:
        problem = self._explain(error) if isinstance(error, apsw.Error) else error
        if not isinstance(problem, DatabaseError):
            return error
        failure = self._translate(CommitUnknownError(problem.problem) if unknown else problem)
        failure.__cause__ = error if isinstance(error, apsw.Error) else error.__cause__
        return failure

    def _undo(self) -> None:
        """Leave no transaction open; a connection that cannot even roll back is given up."""
        cursor = self._cursor
        if cursor is None:
            return
        try:
            if cursor.connection.in_transaction:
                cursor.execute("ROLLBACK")
        except apsw.Error:
            self._cursor = None
            with suppress(apsw.Error):
                cursor.connection.close(force=True)

    # --- the helper thread -------------------------------------------------------------------------------------------

    def _start_helper_locked(self) -> None:
        if self._helper is None or not self._helper.is_alive():
            helper = threading.Thread(target=self._help, name="lapse-group-commit", daemon=True)
            helper.start()
            self._helper = helper

    def _call_helper(self) -> None:
        with suppress(RuntimeError):  # called already
            self._helper_call.release()

    def _help(self) -> None:
        # It ends when nothing comes for a while, so that a store that was never closed is not kept alive by its thread.
        while True:
            called = self._helper_call.acquire(timeout=_HELPER_IDLE_SECONDS)
            if not called:
                self._look_after_main()
            with self._mutex:
                if self._helper is not threading.current_thread():  # closed, or never known: its start was interrupted
                    self._call_helper()
                    return
                if not called and not self._queue and not self._helper_call.acquire(blocking=False):
                    self._helper = None
                    return
                if self._holder is not _HELPER:
                    continue
            try:
                self._lead(_HELPER)
            except BaseException:  # noqa: BLE001 - of an operation: its group is told
                self._give_up_lead(_HELPER)


def _run_members(cursor: apsw.Cursor, group: Sequence[_Member[Any]], failure: Callable[[Exception], Exception]) -> None:
    """Run each operation; one that raises is undone alone. Raises when the transaction is lost as a whole."""
    try:
        # Without savepoints first: nearly always all succeed, and two statements less are a third of a member's cost.
        for member in group:
            member.answer = member.operation(cursor)
    except Exception as error:  # noqa: BLE001 - whatever an operation raises is its caller's
        _check_not_lost(cursor, error)
    else:
        return
    cursor.execute("ROLLBACK")
    cursor.execute("BEGIN IMMEDIATE")
    for member in group:
        cursor.execute("SAVEPOINT member")
        try:
            member.answer = member.operation(cursor)
        except Exception as error:  # noqa: BLE001 - the same
            _check_not_lost(cursor, error)
            member.error = failure(error)
            cursor.execute("ROLLBACK TO member")
        cursor.execute("RELEASE member")


def _check_not_lost(cursor: apsw.Cursor, error: Exception) -> None:
    if not cursor.connection.in_transaction:  # SQLite rolled back everything: the disk is full, or failed
        raise error if isinstance(error, apsw.Error) else DatabaseUnavailableError("a write failed") from error


def _tell_loops(tickets: Iterable[Ticket[Any]]) -> None:
    """Tell each event loop once, whatever the number of tickets: waking one costs a system call."""
    told: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for ticket in tickets:
        for future in ticket.take_waiting():
            told.setdefault(future.get_loop(), []).append(future)
    for loop, futures in told.items():
        with suppress(RuntimeError):  # that loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(_resolve, futures)


def _resolve(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
