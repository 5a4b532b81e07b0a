"""The state reconciler: brings each workspace, step by step, to where it is wanted.

A step is claimed by compare-and-set (no operation under way, the version still that of the plan) under a fresh id, done
by the runtime, and complete when the target is observed. Everything that is written carries that id, so an answer that
comes late changes nothing.

Guarantees. One step at a time for each workspace, however many reconcilers there are: the claim decides between those
of several processes, the runtime's turn between those of one. An operation that was interrupted, by an error of the
store or the end of the process, is gone on with by whoever looks next; every action can be repeated. A failing action
is tried three times, with growing pauses; then, or when its time is over, the workspace is in ERROR and stays there
until a user acts. Who comes before a workspace is really taken down finds it where it is: the step is given up. One
that is deleted cannot be acted on by anybody, so its removal is tried again and again.

Not guaranteed: fairness among workspaces that wait; only that those who want to be opened do not wait behind those
whose data is moved.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from lapse.core.errors import LapseError
from lapse.core.identity import owner_token
from lapse.core.jitter import Chance, backoff, chance
from lapse.core.log import get_logger, piece_of_work
from lapse.engine.coordinator import first_of
from lapse.workspaces.errors import UnknownWorkspaceError, WorkspaceStoreError
from lapse.workspaces.health import is_at
from lapse.workspaces.model import DesiredState, Ms, Operation, OpId
from lapse.workspaces.runtime.errors import FailureReason, RuntimeFailureError, RuntimeUnavailableError
from lapse.workspaces.steps import LIMITS_MS, TARGETS, Begin, GoOn, Lane, Look, Rest, lane_of, plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import UnsetType

    from lapse.core.clock import Clock
    from lapse.workspaces.health import HealthMonitor
    from lapse.workspaces.model import Workspace, WorkspaceId
    from lapse.workspaces.runtime.port import Runtime
    from lapse.workspaces.steps import Step
    from lapse.workspaces.store import WorkspaceStore

TRIES: Final = 3
_INTERVAL_SECONDS: Final = 1.0
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_AGAIN_SECONDS: Final = 300.0
"""After which the removal of a deleted workspace that failed is tried again."""
_STEADY_SECONDS: Final = 60.0
"""A program that ran for less before it ended is started again more and more slowly."""
_SETTLE_SECONDS: Final = 10.0
"""How long an action's effect may take to be observed."""
_LOOK_SECONDS: Final = 0.5
_NOTE_MS: Final = 60_000
_AT_ONCE: Final = {Lane.QUICK: 16, Lane.BACK: 2, Lane.AWAY: 2}
_MOST_IN_LANE: Final = 200
"""Taken up, with those that wait for their turn: a lane that is full takes nothing from the others."""
_PAGE: Final = 500
_MS: Final = 1_000_000
_NS: Final = 1_000_000_000
_log = get_logger("lapse.workspaces.reconciler")


class NotAsExpectedError(RuntimeFailureError):
    """After {operation} the workspace {workspace} should be {expected}, but it is {found}."""

    reason = FailureReason.NOT_AS_EXPECTED


@dataclass(frozen=True, slots=True)
class _Job:
    """An operation of ours."""

    workspace: Workspace
    operation: Operation
    op_id: OpId
    left_ms: int
    counts: bool = True
    """Whether the next try is one of three."""


@dataclass(slots=True)
class _Starts:
    """How often a program was started without staying, and when the last time was."""

    count: int
    at_ns: int


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
        chance: Chance = chance,
    ) -> None:
        """Do nothing yet. ``on_error`` is told of each step that failed."""
        self._store, self._runtime, self._health, self._clock = store, runtime, health, clock
        self._on_error, self._chance = on_error, chance
        self._working: dict[WorkspaceId, asyncio.Task[bool]] = {}
        self._not_before_ns: dict[WorkspaceId, int] = {}
        self._starts: dict[WorkspaceId, _Starts] = {}
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
        tasks = tuple(self._working.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _consider(self, workspace: Workspace) -> None:
        if workspace.id in self._working or not is_at(workspace, self._runtime.node):
            return
        step = plan(workspace, self._now())
        if isinstance(step, Rest) or self._clock.monotonic_ns() < self._earliest_ns(workspace.id, step):
            return
        operation = step.operation if isinstance(step, Begin | GoOn) else None
        lane = lane_of(operation)
        if self._in_lane[lane] >= _MOST_IN_LANE:
            return
        task = asyncio.create_task(self._take_up(workspace, operation), name=f"lapse-workspace-{workspace.name}")
        self._working[workspace.id] = task
        self._in_lane[lane] += 1
        task.add_done_callback(lambda task: self._done(workspace.id, lane, task))

    def _done(self, workspace: WorkspaceId, lane: Lane, task: asyncio.Task[bool]) -> None:
        self._working.pop(workspace, None)
        self._in_lane[lane] -= 1
        # Without any progress the next step would be the same one, for ever; and where data goes there is mostly none:
        # with thousands of them, a look at all that waits after each would be most of the work.
        if lane is not Lane.AWAY and not task.cancelled() and task.exception() is None and task.result():
            self._wake.set()

    def _earliest_ns(self, workspace: WorkspaceId, step: Step) -> int:
        """Return when a step may begin, in monotonic time."""
        earliest = self._not_before_ns.get(workspace, 0)
        starts = self._starts.get(workspace)
        if starts is not None and step == Begin(Operation.STARTING):
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** (starts.count - 1))
            earliest = max(earliest, starts.at_ns + round(pause * _NS))
        return earliest

    # --- one step ----------------------------------------------------------------------------------------------------

    async def _take_up(self, workspace: Workspace, operation: Operation | None) -> bool:
        """Do one step when its turn has come; return whether there was any progress."""
        with piece_of_work("reconcile", workspace=workspace.id):
            try:
                async with self._turns[lane_of(operation)]:
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
        step = plan(workspace, self._now())
        match step:
            case Look():
                return workspace_id in await self._health.look([workspace_id])
            case Begin(operation) if operation is expected:
                return await self._begin(workspace, operation)
            case GoOn(operation, op_id, left_ms) if operation is expected:
                return await self._go_on(_Job(workspace, operation, op_id, left_ms))
            case _:
                return False

    async def _begin(self, workspace: Workspace, operation: Operation) -> bool:
        op_id = OpId(owner_token())
        claimed = await self._store.claim(workspace.id, operation, op_id, version=workspace.version, now=self._now())
        if claimed:
            _log.info("operation_begun", operation=operation.value)
            await self._carry_out(_Job(workspace, operation, op_id, LIMITS_MS[operation]))
        return claimed

    async def _go_on(self, job: _Job) -> bool:
        """Take over an operation that was interrupted.

        If its target is there already, what is missing is the note of it: that is no try, and it is never too late.
        """
        with suppress(RuntimeUnavailableError):  # unknown: then it goes on as if nothing was done
            seen = await self._health.look([job.workspace.id])
            if seen.get(job.workspace.id) is TARGETS[job.operation]:
                job = replace(job, left_ms=max(job.left_ms, _NOTE_MS), counts=False)
        await self._carry_out(job)
        return True

    async def _carry_out(self, job: _Job) -> None:
        """Do it within its time, or fail."""
        work = asyncio.create_task(self._try_until_done(job))
        timer = asyncio.create_task(self._clock.sleep(max(0.0, job.left_ms / 1000)))
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
            limit = LIMITS_MS[job.operation] // 1000
            message = f"{job.operation.value} was not done after {limit} seconds. {_HINTS.get(job.operation, '')}"
            await self._fail(job, FailureReason.TIMED_OUT, message.strip())

    async def _try_until_done(self, job: _Job) -> None:
        if job.left_ms <= 0:
            await asyncio.get_running_loop().create_future()  # its time was over before: let the timer say so
        while True:
            tries = await self._store.tried(job.workspace.id, job.op_id) if job.counts else 0
            job = replace(job, counts=True)
            if tries is None:
                return  # somebody else ended it
            if tries > TRIES:
                message = f"{job.operation.value} was interrupted {TRIES} times."
                await self._fail(job, FailureReason.INTERRUPTED, message)
                return
            if not await self._is_still_wanted(job):
                _log.info("operation_given_up", operation=job.operation.value)
                await self._store.complete(job.workspace.id, job.op_id, now=self._now())
                return
            try:
                archive_key = await self._act(job)
                await self._until_observed(job)
            except WorkspaceStoreError:
                raise
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
        wanted = (await self._store.get(job.workspace.id)).desired_state
        match job.operation:
            case Operation.STOPPING:
                return wanted is not DesiredState.RUNNING
            case Operation.ARCHIVING:
                return wanted is DesiredState.PENDING
            case _:
                return True

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
                key = await runtime.archive(workspace)
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
            if self._clock.monotonic_ns() >= end_ns:
                raise NotAsExpectedError(
                    operation=job.operation, workspace=job.workspace.name, expected=target, found=found
                )
            await self._clock.sleep(_LOOK_SECONDS)

    # --- the end of a step -------------------------------------------------------------------------------------------

    async def _complete(self, job: _Job, archive_key: str | UnsetType) -> None:
        workspace = job.workspace.id
        if job.operation is Operation.DELETING:
            if await self._store.forget(workspace, job.op_id):
                self._forget(workspace)
        elif await self._store.complete(workspace, job.op_id, now=self._now(), archive_key=archive_key):
            self._count_start(job)
            if job.operation is Operation.ARCHIVING:
                with suppress(LapseError, OSError):  # it costs room, nothing else, and the next archive tries again
                    await self._runtime.tidy(job.workspace)
        _log.info("operation_done", operation=job.operation.value)

    async def _fail(self, job: _Job, reason: FailureReason, message: str) -> None:
        _log.warning("operation_failed", operation=job.operation.value, why=reason.value, reason=message)
        if job.operation is Operation.DELETING:
            self._not_before_ns[job.workspace.id] = self._clock.monotonic_ns() + round(_AGAIN_SECONDS * _NS)
        await self._store.fail(job.workspace.id, job.op_id, reason=reason.value, message=message, now=self._now())

    def _count_start(self, job: _Job) -> None:
        workspace, now_ns = job.workspace.id, self._clock.monotonic_ns()
        if job.operation is not Operation.STARTING:
            self._starts.pop(workspace, None)
            return
        last = self._starts.get(workspace)
        quick = last is not None and now_ns - last.at_ns < (_STEADY_SECONDS + _LONGEST_PAUSE) * _NS
        self._starts[workspace] = _Starts(last.count + 1 if last is not None and quick else 1, now_ns)

    def _forget(self, workspace: WorkspaceId) -> None:
        self._health.forget(workspace)
        self._not_before_ns.pop(workspace, None)
        self._starts.pop(workspace, None)

    def _now(self) -> Ms:
        return Ms(self._clock.wall_ns() // _MS)


_HINTS: Final = {
    Operation.STARTING: "Its command must listen on its port at 127.0.0.1; both are in its environment (HOST, PORT).",
}
