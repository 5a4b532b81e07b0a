"""The shared commit: concurrent writers of one process pay for one fsync together.

A writer that finds nobody at work leads: it takes the database's write lock, runs its own operation and those that
queued meanwhile, commits once, and answers all. Writers that arrive while a group is at work queue and sleep, each on a
lock of its own. A finished leader wakes its first member, who wakes the next and goes its way; the last one appoints
the first in the queue as the next leader. So a lone writer pays for no thread switch (a writer thread, the usual
design, would halve its speed), and a crowd pays for one fsync per group. Waking one after the other, and leading only
then, beats waking all at once: awake together they would fight for the interpreter lock with the leader and each other,
which cost half as much again per write, and made groups half as large.

Callers on an event loop must not lead, as that blocks: they get a `Ticket` to await, and a helper thread leads.

Guarantees.

- Nobody is answered before the commit is as durable as the connection's ``synchronous`` says.
- An operation that raises is undone alone; its neighbours stay, and never see it half done.
- Operations run while the write lock is held, so a clock that they read is not older than the wait for that lock.
- If the transaction fails as a whole, every member fails: also those that changed nothing, because what they saw was
  never true.
- A task that is cancelled, or a thread that is interrupted, does not disturb its group. Its operation may be applied or
  not.

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
from typing import Any, Final, Generic, NoReturn, TypeVar

import apsw

from lapse.db.errors import CommitUnknownError, DatabaseClosedError, DatabaseError, DatabaseUnavailableError
from lapse.db.forks import FORKED, guard_against_forks

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

    __slots__ = ("followers", "gone", "leads", "wake")

    def __init__(self, operation: Operation[T]) -> None:
        self.operation = operation  # not by super(), which would cost a call per write
        self.error = None
        self.wake: threading.Lock | None = None
        """Held while the caller must sleep; None for one that found nobody at work."""
        self.leads = False
        self.followers: deque[_Blocked[Any]] | None = None
        """Members of the same group that this one has to wake."""
        self.gone = False

    def rouse(self) -> None:
        if self.wake is not None:
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
            # No lock: first stand in the list, then look again. Whoever takes the place out of the list decides.
            self._waiting.append(future)
            if not (self._is_done() and self._withdraw(future)):
                try:
                    yield from future
                finally:
                    self._withdraw(future)
        return self.result()

    def take_waiting(self) -> list[asyncio.Future[None]]:
        """Mark as done; return who is to be told."""
        self.done = True
        taken = []
        while self._waiting:
            with suppress(IndexError):  # withdrawn in this very moment
                taken.append(self._waiting.pop())
        return taken

    def _is_done(self) -> bool:
        return self.done

    def _withdraw(self, future: asyncio.Future[None]) -> bool:
        try:
            self._waiting.remove(future)
        except ValueError:
            return False
        return True


_Group = list[_Blocked[Any] | Ticket[Any]]


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
        self._cursor: apsw.Cursor | None = None  # whoever leads has it to himself
        # Guards all that follows, for moments only; never held while the database is used.
        self._mutex = threading.Lock()
        self._at_rest = threading.Condition(self._mutex)
        self._queue: deque[_Blocked[Any] | Ticket[Any]] = deque()
        self._led = False
        self._closed = False
        self._forked = False
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
        try:
            if self._join(member) or self._sleep(member):
                self._lead(member)
            if member.followers is not None:
                self._rouse_followers(member)
        except BaseException:
            self._abandon(member)
            raise
        return member.result()

    def submit(self, operation: Operation[T]) -> Ticket[T]:
        """Queue one operation for the next group; await the ticket for its answer. Does not block on the disk."""
        ticket = Ticket(operation)
        if self._forked:
            self._refuse()
        with self._mutex:
            if self._closed:
                self._refuse()
            if not self._led:
                self._call_helper_locked()
                self._led = True
            self._queue.append(ticket)
        return ticket

    def close(self) -> None:
        """Refuse new operations, finish those that are here, release the connection. Idempotent."""
        if self._forked:
            return
        with self._at_rest:
            self._closed = True
            while self._led:
                self._at_rest.wait()
            cursor, self._cursor = self._cursor, None
            helper, self._helper = self._helper, None
            if helper is not None:
                self._helper_call.release()
        if helper is not None:
            helper.join()
        if cursor is not None:
            with suppress(apsw.Error):
                cursor.connection.close(force=True)

    def become_forked(self) -> list[Any]:
        """See `lapse.db.forks`."""
        self._forked = True
        return [self._cursor]

    def _refuse(self) -> NoReturn:
        # A fork is looked for before the mutex is touched: a thread that the child does not have may have held it.
        raise self._translate(DatabaseUnavailableError(FORKED) if self._forked else DatabaseClosedError())

    def _join(self, member: _Blocked[Any]) -> bool:
        """Take the lead, if nobody has it, and return True; else join the queue."""
        if self._forked:
            self._refuse()
        with self._mutex:
            if self._closed:
                self._refuse()
            if not self._led:
                self._led = member.leads = True
                return True
            member.wake = threading.Lock()
            member.wake.acquire()
            self._queue.append(member)
            return False

    def _sleep(self, member: _Blocked[Any]) -> bool:
        """Sleep until answered, or appointed to lead: then return True."""
        if member.wake is not None:
            member.wake.acquire()
        return member.leads

    def _rouse_followers(self, member: _Blocked[Any]) -> None:
        followers, member.followers = member.followers, None
        if followers is not None:
            self._rouse_next(followers)

    def _abandon(self, member: _Blocked[Any]) -> None:
        """Leave after an interruption (an exception of a signal handler), without leaving the others in the lurch."""
        if self._forked:
            return
        with self._mutex:
            member.gone = True
            if member in self._queue:
                self._queue.remove(member)
            if member.leads:
                member.leads = False
                self._pass_on_locked()
        self._rouse_followers(member)

    # --- leading -----------------------------------------------------------------------------------------------------

    def _lead(self, own: _Blocked[Any] | None) -> None:
        """Commit one group. ``own`` is the leader's own member, which then wakes the others; the helper has none."""
        group: _Group = [] if own is None else [own]
        try:
            self._commit(group)
        finally:
            if own is None:
                self._rouse_next(_after_loops_were_told(group))
            elif len(group) == 1:
                with self._mutex:
                    own.leads = False
                    self._pass_on_locked()
            else:
                own.followers, own.leads = _after_loops_were_told(group[1:]), False

    def _rouse_next(self, followers: deque[_Blocked[Any]]) -> None:
        """Wake the next member, who wakes the one after; the last gives the lead away."""
        with self._mutex:
            while followers:
                member = followers.popleft()
                if not member.gone:
                    member.followers = followers
                    member.rouse()
                    return
            self._pass_on_locked()

    def _pass_on_locked(self) -> None:
        if not self._queue:
            self._led = False
            if self._closed:
                self._at_rest.notify_all()
        elif isinstance(first := self._queue[0], Ticket):
            self._call_helper_locked()
        else:
            self._queue.popleft()
            first.leads = True
            first.rouse()

    def _commit(self, group: _Group) -> None:
        committing = False
        try:
            try:
                cursor = self._cursor or self._open()
                cursor.execute("BEGIN IMMEDIATE")
            finally:
                # Also when it failed: those who queued meanwhile should not wait for the same time-out again.
                if self._queue:
                    self._take_queued(group)
            _run_members(cursor, group, self._failure)
            committing = True
            cursor.execute("COMMIT")
        except (apsw.Error, DatabaseError) as error:
            self._fail(group, error, unknown=committing and not isinstance(error, _NOT_APPLIED))
        except BaseException:
            interrupted = DatabaseUnavailableError("the thread that wrote for all was interrupted")
            self._fail(group, interrupted, unknown=committing)
            raise

    def _open(self) -> apsw.Cursor:
        cursor = self._cursor = self._connect().cursor()
        return cursor

    def _take_queued(self, group: _Group) -> None:
        with self._mutex:
            while self._queue and len(group) < self._largest_group:
                group.append(self._queue.popleft())

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

    def _call_helper_locked(self) -> None:
        if self._helper is None:
            self._helper = threading.Thread(target=self._help, name="lapse-group-commit", daemon=True)
            self._helper.start()
        self._helper_call.release()

    def _help(self) -> None:
        # It ends when nothing comes for a while, so that a store that was never closed is not kept alive by its thread.
        while True:
            called = self._helper_call.acquire(timeout=_HELPER_IDLE_SECONDS)
            with self._mutex:
                if not called and not self._helper_call.acquire(blocking=False):
                    self._helper = None
                    return
                if not self._led:  # called without a lead to take: closed
                    return
            self._lead(None)


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


def _after_loops_were_told(group: _Group) -> deque[_Blocked[Any]]:
    """Answer the tickets; return the members that sleep and must be woken one after the other."""
    _tell_loops(member for member in group if isinstance(member, Ticket))
    return deque(member for member in group if isinstance(member, _Blocked))


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
