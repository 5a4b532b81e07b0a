from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import VirtualClock
from lapse.core.log import get_logger
from lapse.kube.controller.controller import Controller, ReconcileResult
from lapse.kube.controller.workqueue import WorkQueue
from lapse.kube.errors import ConflictError, InvalidError, StoreUnavailableError
from lapse.kube.resources import ObjectKey
from tests.unit.kube.scripted import NS, pass_time, settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

A, B, C, D = (ObjectKey("default", name) for name in "abcd")
UNAVAILABLE = StoreUnavailableError(problem="restarting")
CONFLICT = ConflictError(kind="Thing", name="a", problem="it changed")


@dataclass
class Work:
    """Reconciles as told: notes when, waits, and answers with the next answer for that key."""

    clock: VirtualClock
    answers: dict[ObjectKey, list[ReconcileResult | BaseException]] = field(default_factory=dict)
    seconds: float = 0.0
    begun: list[tuple[ObjectKey, float]] = field(default_factory=list)
    finished: list[ObjectKey] = field(default_factory=list)
    now: Counter[ObjectKey] = field(default_factory=Counter)
    most_at_once: int = 0

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        self.begun.append((key, self.clock.monotonic_ns() / NS))
        self.now[key] += 1
        assert self.now[key] == 1, "one key, two workers"
        self.most_at_once = max(self.most_at_once, self.now.total())
        get_logger("lapse.test").info("looking")
        try:
            await self.clock.sleep(self.seconds)
        finally:
            self.now[key] -= 1
        answer = self.answers[key].pop(0) if self.answers.get(key) else ReconcileResult()
        if isinstance(answer, BaseException):
            raise answer
        self.finished.append(key)
        return answer

    def times(self, key: ObjectKey) -> list[float]:
        return [at for found, at in self.begun if found == key]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def queue(clock: VirtualClock) -> WorkQueue[ObjectKey]:
    return WorkQueue(clock, chance=lambda: 1.0)


@pytest.fixture
def work(clock: VirtualClock) -> Work:
    return Work(clock)


@asynccontextmanager
async def running(
    work: Work,
    queue: WorkQueue[ObjectKey],
    *,
    workers: int = 4,
    on_error: Callable[[Exception], None] | None = None,
) -> AsyncIterator[asyncio.Event]:
    stopping = asyncio.Event()
    controller = Controller("things", work.reconcile, queue=queue, workers=workers, on_error=on_error)
    task = asyncio.create_task(controller.run(stopping))
    await settle(work.clock)
    yield stopping
    stopping.set()
    await settle(work.clock)
    assert task.done(), "a controller with nothing at hand stops at once"
    await task


async def test_a_success_is_looked_at_again_only_when_asked_for(
    queue: WorkQueue[ObjectKey], work: Work, clock: VirtualClock
) -> None:
    work.answers = {A: [ReconcileResult(requeue_after=5), ReconcileResult(requeue_after=7), ReconcileResult()]}
    async with running(work, queue):
        queue.add(A)
        queue.add(B)
        await pass_time(clock, 60)

    assert work.times(A) == [0, 5, 12]
    assert work.times(B) == [0]


@pytest.mark.parametrize("error", [UNAVAILABLE, CONFLICT])
async def test_everyday_errors_are_tried_again_later_each_time_and_logged_in_one_line(
    queue: WorkQueue[ObjectKey], work: Work, clock: VirtualClock, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lapse.kube")
    work.answers = {A: [error] * 4}
    async with running(work, queue):
        queue.add(A)
        await pass_time(clock, 10, step=0.1)

    assert work.times(A) == pytest.approx([0, 0.1, 0.3, 0.7, 1.5], abs=0.01)
    records = [record for record in caplog.records if record.name == "lapse.kube.controller.controller"]
    assert [(record.getMessage(), record.levelno, record.exc_info) for record in records] == [
        ("reconcile_postponed", logging.INFO, None)
    ] * 4


async def test_a_store_that_asks_to_be_left_alone_is_left_alone_for_a_minute_at_the_most(
    queue: WorkQueue[ObjectKey], work: Work, clock: VirtualClock
) -> None:
    work.answers = {A: [StoreUnavailableError(problem="429 too many", retry_after=wait) for wait in (5.0, 1e9)]}
    async with running(work, queue):
        queue.add(A)
        await pass_time(clock, 100)

    assert work.times(A) == [0, 5, 65]


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError(),
        InvalidError(kind="Thing", name="a", problem="it is odd"),
        asyncio.CancelledError(),
    ],
)
async def test_a_defect_is_logged_with_its_traceback_and_tried_again_while_others_go_on(
    queue: WorkQueue[ObjectKey], work: Work, clock: VirtualClock, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    work.answers = {A: [error, error]}
    async with running(work, queue, workers=1):
        queue.add(A)
        queue.add(B)
        await pass_time(clock, 10, step=0.1)

    assert work.finished == [B, A]
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [(record.getMessage(), bool(record.exc_info)) for record in told] == [("reconcile_failed", True)] * 2


async def test_every_failure_is_reported_for_the_metrics(
    queue: WorkQueue[ObjectKey], work: Work, clock: VirtualClock
) -> None:
    errors: list[Exception] = []
    defect = ZeroDivisionError()
    work.answers = {A: [UNAVAILABLE, defect, CONFLICT]}
    async with running(work, queue, on_error=errors.append):
        queue.add(A)
        await pass_time(clock, 10, step=0.1)

    assert errors == [UNAVAILABLE, defect, CONFLICT]


async def test_a_success_ends_the_back_off(queue: WorkQueue[ObjectKey], work: Work, clock: VirtualClock) -> None:
    work.answers = {A: [CONFLICT, CONFLICT, CONFLICT, ReconcileResult(requeue_after=10), CONFLICT]}
    async with running(work, queue):
        queue.add(A)
        await pass_time(clock, 20, step=0.1)

    assert work.times(A) == pytest.approx([0, 0.1, 0.3, 0.7, 10.7, 10.8], abs=0.01)


async def test_as_many_keys_as_there_are_workers_are_worked_on_together(
    queue: WorkQueue[ObjectKey], work: Work, clock: VirtualClock
) -> None:
    work.seconds = 1
    for key in (A, B, C, D):
        queue.add(key)
    async with running(work, queue, workers=3):
        for key in (A, B, C, D):
            queue.add(key)
        await pass_time(clock, 10)

    assert work.most_at_once == 3
    assert Counter(work.finished) == {A: 2, B: 2, C: 2, D: 1}


async def test_when_stopping_the_item_at_hand_is_finished_and_the_rest_stays(
    queue: WorkQueue[ObjectKey], work: Work, clock: VirtualClock
) -> None:
    work.seconds = 5
    queue.add(A)
    queue.add(B)
    async with running(work, queue, workers=1) as stopping:
        stopping.set()
        await pass_time(clock, 10)
        assert work.finished == [A]
    assert len(queue) == 1

    async with running(work, queue, workers=1):
        await pass_time(clock, 10)
    assert work.finished == [A, B]


async def test_an_item_that_is_cut_off_is_worked_on_in_the_next_run(
    queue: WorkQueue[ObjectKey], work: Work, clock: VirtualClock
) -> None:
    work.seconds = 5
    queue.add(A)
    task = asyncio.create_task(Controller("things", work.reconcile, queue=queue).run(asyncio.Event()))
    await settle(clock)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert work.finished == []

    async with running(work, queue):
        await pass_time(clock, 10)
    assert work.finished == [A]


async def test_work_that_never_waits_leaves_room_for_others_and_can_be_stopped(
    queue: WorkQueue[ObjectKey], clock: VirtualClock
) -> None:
    looked = 0

    async def look(_key: ObjectKey) -> ReconcileResult:
        nonlocal looked
        looked += 1
        return ReconcileResult()

    for number in range(1_000):
        queue.add(ObjectKey(None, str(number)))
    stopping = asyncio.Event()
    task = asyncio.create_task(Controller("things", look, queue=queue).run(stopping))
    await settle(clock, 10)
    stopping.set()
    await task

    assert 0 < looked < 100
    assert len(queue) == 1_000 - looked


async def test_it_ends_when_the_queue_is_closed_and_empty(
    queue: WorkQueue[ObjectKey], work: Work, clock: VirtualClock
) -> None:
    queue.add(A)
    queue.add(B)
    queue.close()
    await asyncio.wait_for(Controller("things", work.reconcile, queue=queue).run(asyncio.Event()), 10)

    assert sorted(work.finished) == [A, B]


async def test_each_reconciliation_has_an_id_of_its_own_on_every_line(
    queue: WorkQueue[ObjectKey], work: Work, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lapse")
    work.answers = {A: [CONFLICT]}
    async with running(work, queue):
        queue.add(A)
        await pass_time(clock, 1, step=0.1)

    said = [(record.getMessage(), vars(record)) for record in caplog.records]
    assert [event for event, _ in said] == ["looking", "reconcile_postponed", "looking"]
    first, second, third = (fields["reconcile"] for _, fields in said)
    assert first == second != third
    assert {(fields["controller"], fields["object"]) for _, fields in said} == {("things", "default/a")}
