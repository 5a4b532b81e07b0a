"""The state reconciler: brings each workspace, step by step, to where it is wanted.

A step is claimed by compare-and-set (no operation under way, the version still that of the plan) under a fresh id, done
by the runtime, and complete when the target is observed. Everything that is written carries that id, so an answer that
comes late changes nothing.

Guarantees. One step at a time for each workspace, however many reconcilers there are: the claim decides between those
of several processes, the runtime's turn between those of one. An operation that was interrupted, by an error of the
store or the end of the process, is gone on with by the next process that looks; every action can be repeated. A failing
action is tried three times, with growing pauses; then, or when its time is over, the workspace is in ERROR and stays
there until a user acts. Who comes before a workspace is really taken down finds it where it is: the step is given up,
and an archiving is abandoned as long as the volume is there. One that is deleted cannot be acted on by anybody, so its
removal, or its way into the trash, is tried again and again.

The time of an operation is monotonic time of the process that works on it, from the moment it was claimed or taken
over: time during which no Lapse ran does not count. Of what moves data, only time without progress counts.

A program that ends by itself is started again after a pause, which doubles from a second to a minute with each restart
in a row. How it ended is noted before.

Not guaranteed: fairness among workspaces that wait; only that those who want to be opened do not wait behind those
whose data is moved.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from lapse.core.errors import LapseError
from lapse.core.identity import owner_token
from lapse.core.jitter import Chance, backoff, chance
from lapse.core.log import get_logger, piece_of_work
from lapse.engine.running.coordinator import first_of
from lapse.workspaces.errors import UnknownWorkspaceError, WorkspaceStoreError
from lapse.workspaces.model import Ms, Operation, OpId, how_it_ended
from lapse.workspaces.runtime.port import (
    OF_THE_PROGRAM,
    ArchiveAbandonedError,
    FailureReason,
    ProgramEndedError,
    RuntimeFailureError,
    RuntimeUnavailableError,
    is_at,
)
from lapse.workspaces.runtime.steps import (
    LIMITS_MS,
    MOVES_DATA,
    STEADY_SECONDS,
    TARGETS,
    Begin,
    GoOn,
    Lane,
    Observe,
    Rest,
    is_wanted,
    lane_of,
    plan,
    restart_pause_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import UnsetType

    from lapse.core.clock import Clock
    from lapse.workspaces.model import Workspace, WorkspaceId
    from lapse.workspaces.runtime.port import HealthMonitor, Runtime
    from lapse.workspaces.runtime.steps import Step
    from lapse.workspaces.store.port import WorkspaceStore

TRIES: Final = 3
_INTERVAL_SECONDS: Final = 1.0
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_AGAIN_SECONDS: Final = 300.0
"""After which a step of a deleted workspace that failed is tried again."""
_PROGRESS_SECONDS: Final = 2.0
"""How often to ask how far an action is."""
_SETTLE_SECONDS: Final = 10.0
"""How long an action's effect may take to be observed."""
_LOOK_SECONDS: Final = 0.5
_AT_ONCE: Final = {Lane.QUICK: 16, Lane.BACK: 2, Lane.AWAY: 2}
_MOST_IN_LANE: Final = 200
"""Taken up, with those that wait for their turn: a lane that is full takes nothing from the others."""
_PAGE: Final = 500
_MS: Final = 1_000_000
_NS: Final = 1_000_000_000
_log = get_logger("lapse.workspaces.runtime.reconciler")


class NotAsExpectedError(RuntimeFailureError):
    """After {operation} the workspace {workspace} should be {expected}, but it is {found}."""

    reason = FailureReason.NOT_AS_EXPECTED


@dataclass(frozen=True, slots=True)
class _Job:
    """An operation of ours."""

    workspace: Workspace
    operation: Operation
    op_id: OpId
    counts: bool = True
    """Whether the next try is one of three."""


@dataclass(slots=True)
class _Work:
    """What is taken up."""

    operation: Operation | None
    task: asyncio.Task[bool] = field(init=False)
    abandoned: bool = False
    final: bool = False
    """Whether the volume goes: then there is no way back."""


@dataclass(slots=True)
class _Watch:
    """How long an operation has been under way in this process, in monotonic time."""

    op_id: OpId
    since_ns: int
    """Since it was claimed or taken over here, or since its last progress."""
    marks: int
    note: str | None = None


class Reconciler:
    """Works beside a runtime. Belongs to one event loop."""

    def __init__(
        self,
        store: WorkspaceStore,
        runtime: Runtime,
        health: HealthMonitor,
        *,
        clock: Clock,
        on_error: Callable[[Exception], None] = lambda _error: None,
        on_exit: Callable[[], None] = lambda: None,
        chance: Chance = chance,
    ) -> None:
        """Do nothing yet. ``on_error`` is told of each step that failed, but not of commands that are wrong themselves.

        ``on_exit`` is told of each program that ended.
        """
        self._store, self._runtime, self._health, self._clock = store, runtime, health, clock
        self._on_error, self._on_exit, self._chance = on_error, on_exit, chance
        self._working: dict[WorkspaceId, _Work] = {}
        self._watches: dict[WorkspaceId, _Watch] = {}
        self._not_before_ns: dict[WorkspaceId, int] = {}
        self._no_restart_before_ns: dict[WorkspaceId, int] = {}
        self._turns = {lane: asyncio.Semaphore(most) for lane, most in _AT_ONCE.items()}
        self._in_lane: Counter[Lane] = Counter()
        self._wake = asyncio.Event()

    # --- looking for work --------------------------------------------------------------------------------------------

    async def run(self, stopping: asyncio.Event) -> None:
        """Take up what there is to do, again and again, until ``stopping`` is set."""
        try:
            while not stopping.is_set():
                self._wake.clear()
                try:
                    await self.tick()
                except Exception as error:  # noqa: BLE001 - one bad round must not be the last one
                    expected = isinstance(error, LapseError)
                    _log.warning("tick_failed", error=type(error).__name__, reason=str(error), exc_info=not expected)
                    self._on_error(error)
                await first_of(stopping.wait(), self._wake.wait(), self._clock.sleep(_INTERVAL_SECONDS))
        finally:
            await self.end()

    def wake(self) -> None:
        """Look for work now. For use on the event loop."""
        self._wake.set()

    async def tick(self) -> None:
        """Take up all there is to do, without waiting for it."""
        after: WorkspaceId | None = None
        while True:
            page = await self._store.pending_work(limit=_PAGE, after=after)
            for workspace in page:
                self._consider(workspace)
            if len(page) < _PAGE:
                return
            after = page[-1].id

    async def end(self) -> None:
        """Give up what is under way; it is gone on with when somebody looks again."""
        tasks = tuple(work.task for work in self._working.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _consider(self, workspace: Workspace) -> None:
        if not is_at(workspace, self._runtime.node):
            return
        if workspace.id in self._working:
            self._abandon(self._working[workspace.id], workspace)
            return
        step = plan(workspace)
        if isinstance(step, Rest) or self._clock.monotonic_ns() < self._earliest_ns(workspace, step):
            return
        operation = step.operation if isinstance(step, Begin | GoOn) else None
        lane = lane_of(operation, workspace.desired_state)
        if self._in_lane[lane] >= _MOST_IN_LANE:
            return
        work = self._working[workspace.id] = _Work(operation)
        taken = self._take_up(workspace, operation, lane)
        work.task = asyncio.create_task(taken, name=f"lapse-workspace-{workspace.name}")
        self._in_lane[lane] += 1
        work.task.add_done_callback(lambda task: self._done(workspace.id, lane, task))

    def _abandon(self, work: _Work, workspace: Workspace) -> None:
        """End an archiving, or the wait for its turn, if somebody came; the next look gives the operation up."""
        unwanted = work.operation is Operation.ARCHIVING and not is_wanted(work.operation, workspace.desired_state)
        if unwanted and not work.final and not work.abandoned:
            work.abandoned = True
            work.task.cancel()

    def _done(self, workspace: WorkspaceId, lane: Lane, task: asyncio.Task[bool]) -> None:
        work = self._working.pop(workspace, None)
        self._in_lane[lane] -= 1
        if work is not None and work.abandoned:
            self._wake.set()
        # Without any progress the next step would be the same one, for ever; and where data goes there is mostly none:
        # with thousands of them, a look at all that waits after each would be most of the work.
        if lane is not Lane.AWAY and not task.cancelled() and task.exception() is None and task.result():
            self._wake.set()

    def _earliest_ns(self, workspace: Workspace, step: Step) -> int:
        """Return when a step may begin, in monotonic time."""
        earliest = self._not_before_ns.get(workspace.id, 0)
        if step == Begin(Operation.STARTING) and workspace.restarts:
            earliest = max(earliest, self._no_restart_before_ns.get(workspace.id, 0))
        return earliest

    # --- one step ----------------------------------------------------------------------------------------------------

    async def _take_up(self, workspace: Workspace, operation: Operation | None, lane: Lane) -> bool:
        """Do one step when its turn has come; return whether there was any progress."""
        with piece_of_work("reconcile", workspace=workspace.id, workspace_name=workspace.name):
            try:
                async with self._turns[lane]:
                    with self._runtime.turn(workspace.id) as free:
                        return free and await self._step(workspace.id, operation)
            except UnknownWorkspaceError:
                self._health.forget(workspace.id)
            except Exception as error:  # noqa: BLE001 - one bad workspace must not stop the others
                expected = isinstance(error, LapseError)
                _log.warning("step_failed", error=type(error).__name__, reason=str(error), exc_info=not expected)
                self._not_before_ns[workspace.id] = self._clock.monotonic_ns() + round(_FIRST_PAUSE * _NS)
                self._on_error(error)
        return False

    async def _step(self, workspace_id: WorkspaceId, expected: Operation | None) -> bool:
        """Decide anew, as it may have waited for long, and do it if it is still the same step."""
        self._not_before_ns.pop(workspace_id, None)
        workspace = await self._store.get(workspace_id)
        match plan(workspace):
            case Observe():
                return workspace_id in await self._health.look([workspace_id])
            case Begin(Operation.STARTING) if expected is Operation.STARTING and await self._note_exit(workspace):
                return False
            case Begin(operation) if operation is expected:
                return await self._begin(workspace, operation)
            case GoOn(operation, op_id) if operation is expected:
                return await self._go_on(_Job(workspace, operation, op_id))
            case _:
                return False

    async def _note_exit(self, workspace: Workspace) -> bool:
        """Write down how a program ended by itself, and let its restart wait; False if it did not."""
        ended = self._runtime.exit_of(workspace.id)
        if ended is None:
            return False
        steady = ended.seconds >= STEADY_SECONDS
        restarts = await self._store.note_exit(
            workspace.id, status=ended.status, output=ended.output, at=ended.at, steady=steady
        )
        await self._runtime.stop(workspace)  # what is left of it: children may still have the port
        if restarts is not None:
            pause = restart_pause_seconds(restarts)
            self._no_restart_before_ns[workspace.id] = self._clock.monotonic_ns() + round(pause * _NS)
            _log.warning("program_ended", status=ended.status, restarts=restarts, again_after_seconds=pause)
            self._on_exit()
        return True

    async def _begin(self, workspace: Workspace, operation: Operation) -> bool:
        op_id = OpId(owner_token())
        claimed = await self._store.claim(workspace.id, operation, op_id, version=workspace.version, now=self._now())
        if claimed:
            _log.info("operation_begun", operation=operation.value)
            await self._carry_out(_Job(workspace, operation, op_id))
        return claimed

    async def _go_on(self, job: _Job) -> bool:
        """Take over an operation that was interrupted.

        If its target is there already, what is missing is the note of it: that is no try, and it is never too late.
        """
        with suppress(RuntimeUnavailableError):  # unknown: then it goes on as if nothing was done
            seen = await self._health.look([job.workspace.id])
            if seen.get(job.workspace.id) is TARGETS[job.operation]:
                self._watches.pop(job.workspace.id, None)
                job = replace(job, counts=False)
        await self._carry_out(job)
        return True

    async def _carry_out(self, job: _Job) -> None:
        """Do it within its time, or fail."""
        watch = self._watch(job)
        if self._left_ns(job, watch) <= 0:
            await self._time_out(job, watch)
            return
        work = asyncio.create_task(self._try_until_done(job))
        timer = asyncio.create_task(self._until_time_is_over(job, watch))
        try:
            await asyncio.wait({work, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            in_time = work.done()
            timer.cancel()
            work.cancel()
            await asyncio.gather(work, timer, return_exceptions=True)
        if in_time or not work.cancelled():
            work.result()
        else:
            await self._time_out(job, watch)

    def _watch(self, job: _Job) -> _Watch:
        """Return the time of an operation: a new one, unless this process has worked on it before."""
        watch = self._watches.get(job.workspace.id)
        if watch is None or watch.op_id != job.op_id:
            marks = self._runtime.progress(job.workspace.id).marks
            watch = self._watches[job.workspace.id] = _Watch(job.op_id, self._clock.monotonic_ns(), marks)
        return watch

    def _left_ns(self, job: _Job, watch: _Watch) -> int:
        return watch.since_ns + LIMITS_MS[job.operation] * _MS - self._clock.monotonic_ns()

    async def _until_time_is_over(self, job: _Job, watch: _Watch) -> None:
        """Return when an operation has taken too long, and tell meanwhile what there is to tell."""
        while (left := self._left_ns(job, watch)) > 0:
            await self._clock.sleep(min(left / _NS, _PROGRESS_SECONDS))
            marks, note = self._runtime.progress(job.workspace.id)
            if marks != watch.marks and job.operation in MOVES_DATA:
                watch.marks, watch.since_ns = marks, self._clock.monotonic_ns()
            if note != watch.note:
                with suppress(WorkspaceStoreError):  # it is told with the next one
                    await self._store.note_operation(job.workspace.id, job.op_id, note)
                    watch.note = note

    async def _time_out(self, job: _Job, watch: _Watch) -> None:
        limit = LIMITS_MS[job.operation] // 1000
        moves = job.operation in MOVES_DATA
        said = f"made no progress for {limit} seconds" if moves else f"was not done after {limit} seconds"
        hint = watch.note or _HINTS.get(job.operation, "")
        await self._fail(job, FailureReason.TIMED_OUT, f"{job.operation.value} {said}. {hint}".strip())

    async def _try_until_done(self, job: _Job) -> None:
        while True:
            tries = await self._store.tried(job.workspace.id, job.op_id) if job.counts else 0
            job = replace(job, counts=True)
            if tries is None:
                return  # somebody else ended it
            if not await self._is_still_wanted(job):
                await self._give_up(job)
                return
            if tries > TRIES:
                message = f"{job.operation.value} was interrupted {TRIES} times."
                await self._fail(job, FailureReason.INTERRUPTED, message)
                return
            try:
                archive_key = await self._act(job)
                await self._until_observed(job)
            except WorkspaceStoreError:
                raise
            except ArchiveAbandonedError:
                continue
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the workspace's problem, and is written to it
                if not await self._may_try_again(job, error, tries):
                    return
            else:
                await self._complete(job, archive_key)
                return

    async def _may_try_again(self, job: _Job, error: Exception, tries: int) -> bool:
        """Wait for the next try; False if there is none."""
        expected = isinstance(error, LapseError)
        _log.warning("try_failed", operation=job.operation.value, tries=tries, reason=str(error), exc_info=not expected)
        if not (isinstance(error, RuntimeFailureError) and error.reason in OF_THE_PROGRAM):
            self._on_error(error)
        if tries >= TRIES:
            reason = error.reason if isinstance(error, RuntimeFailureError) else FailureReason.INTERNAL
            await self._fail(job, reason, str(error) or type(error).__name__)
            return False
        await self._clock.sleep(
            backoff(max(0, tries - 1), first=2 * _FIRST_PAUSE, longest=_LONGEST_PAUSE, chance=self._chance)
        )
        return True

    async def _is_still_wanted(self, job: _Job) -> bool:
        """Whether nobody came while it was about to be taken down: also long after the claim, at a later try."""
        return is_wanted(job.operation, (await self._store.get(job.workspace.id)).desired_state)

    async def _give_up(self, job: _Job) -> None:
        """End an operation that is not wanted any more; what it has done already is seen before the next is planned."""
        _log.info("operation_given_up", operation=job.operation.value)
        await self._health.look([job.workspace.id])
        await self._store.complete(job.workspace.id, job.op_id, now=self._now())
        self._watches.pop(job.workspace.id, None)

    async def _confirm(self, job: _Job) -> bool:
        """Say whether the volume may go; then nobody abandons it any more."""
        wanted = await self._is_still_wanted(job)
        self._mark_final(job, final=wanted)
        return wanted

    def _mark_final(self, job: _Job, *, final: bool) -> None:
        if work := self._working.get(job.workspace.id):
            work.final = final

    async def _act(self, job: _Job) -> str | UnsetType:
        """Have the runtime do it; return the key of the archive, where that is known now."""
        runtime, workspace = self._runtime, job.workspace
        key: str | None = None
        match job.operation:
            case Operation.PROVISIONING:
                key = await runtime.provision(workspace)
            case Operation.RESTORING:
                key = await runtime.restore(workspace)
            case Operation.STARTING:
                await runtime.start(workspace)
            case Operation.STOPPING:
                await runtime.stop(workspace)
            case Operation.ARCHIVING:
                self._mark_final(job, final=False)  # an earlier try may have left the volume
                key = await runtime.archive(workspace, confirm=lambda: self._confirm(job))
            case Operation.DELETING:
                await runtime.delete(workspace)
        return UNSET if key is None else key

    async def _until_observed(self, job: _Job) -> None:
        target = TARGETS[job.operation]
        end_ns = self._clock.monotonic_ns() + round(_SETTLE_SECONDS * _NS)
        found: object = "unknown"
        while True:
            try:
                found = (await self._health.look([job.workspace.id])).get(job.workspace.id, "unknown")
            except RuntimeUnavailableError as error:
                found = f"unknown ({error})"
            if found is target:
                return
            self._demand_no_exit(job)
            if self._clock.monotonic_ns() >= end_ns:
                raise NotAsExpectedError(
                    operation=job.operation, workspace=job.workspace.name, expected=target, found=found
                )
            await self._clock.sleep(_LOOK_SECONDS)

    def _demand_no_exit(self, job: _Job) -> None:
        ended = self._runtime.exit_of(job.workspace.id) if job.operation is Operation.STARTING else None
        if ended is not None:
            output = f"Its last output: {ended.output.rstrip('.')}" if ended.output else "It wrote nothing"
            how = how_it_ended(ended.status)
            raise ProgramEndedError(workspace=job.workspace.name, how=how, output=output)

    # --- the end of a step -------------------------------------------------------------------------------------------

    async def _complete(self, job: _Job, archive_key: str | UnsetType) -> None:
        workspace = job.workspace.id
        if job.operation is Operation.DELETING:
            if await self._store.forget(workspace, job.op_id):
                self._forget(workspace)
        else:
            ours = await self._store.complete(workspace, job.op_id, now=self._now(), archive_key=archive_key)
            if ours and job.operation is Operation.ARCHIVING:
                with suppress(LapseError, OSError):  # it costs room, nothing else, and the next archive tries again
                    await self._runtime.tidy(job.workspace)
        self._watches.pop(workspace, None)
        _log.info("operation_done", operation=job.operation.value)

    async def _fail(self, job: _Job, reason: FailureReason, message: str) -> None:
        _log.warning("operation_failed", operation=job.operation.value, why=reason.value, reason=message)
        if job.workspace.deleted_at is not None:
            self._not_before_ns[job.workspace.id] = self._clock.monotonic_ns() + round(_AGAIN_SECONDS * _NS)
        if job.workspace.trash_until is not None:  # nobody could clear an error of it
            await self._store.complete(job.workspace.id, job.op_id, now=self._now())
        else:
            await self._store.fail(job.workspace.id, job.op_id, reason=reason.value, message=message, now=self._now())
        self._watches.pop(job.workspace.id, None)
        with suppress(LapseError):  # a later look tells as well whether the data is in place
            await self._health.look([job.workspace.id])

    def _forget(self, workspace: WorkspaceId) -> None:
        self._health.forget(workspace)
        for known in (self._not_before_ns, self._no_restart_before_ns, self._watches):
            known.pop(workspace, None)

    def _now(self) -> Ms:
        return Ms(self._clock.wall_ns() // _MS)


_HINTS: Final = {
    Operation.STARTING: "Its command must listen on its port at 127.0.0.1; both are in its environment (HOST, PORT).",
}
