"""A controller: workers that take keys from a queue and reconcile what is found there.

``reconcile`` is told where to look and makes the world fit; it says when it wants to look again and may be called at
any time, any number of times. One key is never reconciled twice at the same time.

Errors. `StoreUnavailableError`, `ConflictError` and `NotFoundError` (the object went away in the middle) are everyday
life: look again, later each time, and not before a store that is overloaded wants to be asked again. Anything else is a
defect or a denial: logged with its traceback, and looked at again as well, because the next change of the world may be
what resolves it. A success ends the back-off. No error ends a worker.

Stopping: the items at hand are finished, nothing new is taken, and what is left stays in the queue for the next `run`.
An item that is cut off by cancellation goes back into the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from lapse.core.errors import LapseError
from lapse.core.log import get_logger, piece_of_work
from lapse.kube.controller.workqueue import QueueClosedError, WorkQueue
from lapse.kube.errors import ConflictError, NotFoundError, StoreUnavailableError, asked_to_wait

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

K = TypeVar("K", bound=Hashable)

_log = get_logger("lapse.kube.controller.controller")


class DependencyMissingError(LapseError, TypeError):
    """{controller} cannot work without {dependency}: give it one when you build it."""


class ReconcileInterruptedError(LapseError):
    """Something that the reconciliation waited for was cancelled."""


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """What a reconciliation wants next."""

    requeue_after: float | None = None
    """Look again in so many seconds; None: only when something changes."""


class Controller(Generic[K]):
    """Runs ``workers`` reconciliations at a time; a service of the engine's coordinator.

    ``on_error`` is told of every failed reconciliation, of whatever sort: for metrics. It must not raise.
    """

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[ReconcileResult]],
        *,
        queue: WorkQueue[K],
        workers: int = 4,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        """Nothing is taken before `run`."""
        self.name = name
        self._reconcile, self._queue, self._workers, self._on_error = reconcile, queue, workers, on_error

    async def run(self, stopping: asyncio.Event) -> None:
        """Work until ``stopping`` is set or the queue is closed and empty. May be run again."""
        idle: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as group:
            workers = [
                group.create_task(self._work(stopping, idle), name=f"lapse-controller-{self.name}-{number}")
                for number in range(self._workers)
            ]
            ending = group.create_task(_send_home(stopping, idle))
            await asyncio.wait(workers)
            ending.cancel()

    async def _work(self, stopping: asyncio.Event, idle: set[asyncio.Task[None]]) -> None:
        me = _this_task()
        while not stopping.is_set():
            idle.add(me)
            try:
                key = await self._queue.get()
            except QueueClosedError:
                return
            finally:
                idle.discard(me)
            with piece_of_work("reconcile", controller=self.name, object=str(key)):
                await self._process(key)

    async def _process(self, key: K) -> None:
        try:
            result = await self._reconcile(key)
        except asyncio.CancelledError:
            if _this_task().cancelling():
                self._queue.add(key)  # unfinished: whoever works next looks at it again
                raise
            self._failed(key, ReconcileInterruptedError())  # not we were cancelled, but something we waited for
        except Exception as error:  # noqa: BLE001 - one bad object must not end the worker
            self._failed(key, error)
        else:
            self._queue.forget(key)
            if result.requeue_after is not None:
                self._queue.add_after(key, result.requeue_after)
        finally:
            self._queue.done(key)

    def _failed(self, key: K, error: Exception) -> None:
        self._queue.retry(key, at_least=asked_to_wait(error))
        if isinstance(error, StoreUnavailableError | ConflictError | NotFoundError):
            _log.info("reconcile_postponed", error=type(error).__name__, reason=str(error))
        else:
            _log.error("reconcile_failed", error=type(error).__name__, reason=str(error), exc_info=error)
        if self._on_error is not None:
            self._on_error(error)


async def _send_home(stopping: asyncio.Event, idle: set[asyncio.Task[None]]) -> None:
    """Cancel those who wait for work; the others see for themselves that they should stop."""
    await stopping.wait()
    for worker in tuple(idle):
        worker.cancel()


def _this_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - only called from coroutines
    return task


def require(controller: object, **dependencies: object) -> None:
    """Raise `DependencyMissingError` unless every dependency is there."""
    for name, dependency in dependencies.items():
        if dependency is None:
            raise DependencyMissingError(controller=type(controller).__name__, dependency=name)
