"""The watch for completed runs: each record that appears in the history's namespace is one.

A watch without a cache: of each record nothing is kept but which experiment it belongs to, and that goes into a queue
in which an experiment stands once, however many of its runs end. A pass reads all records of an experiment, so after
one that experiment rests `_RESTS` times as long as it took, a minute at most: many runs that end one after the other,
or an undo that brings many back, cost a part of the time and not a pass for each; after the last of them there is one
all the same. What is missed (while nobody led, or when the store no longer keeps the changes) is made up for by the
hourly pass, so nothing is listed here but to learn where to begin.

No error ends it: a store that does not answer is asked again, later each time.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from lapse.core.duration import SECOND
from lapse.core.jitter import Chance, backoff, chance
from lapse.core.log import get_logger
from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, EXPERIMENT_NAME, EXPERIMENT_NAMESPACE, EXPERIMENT_UID
from lapse.kube.controller.controller import Controller, ReconcileResult
from lapse.kube.controller.workqueue import WorkQueue
from lapse.kube.errors import GoneError, ObjectError, asked_to_wait
from lapse.kube.resources import EventType, metadata_only

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lapse.core.clock import Clock
    from lapse.kube.resources import PartialObject
    from lapse.objects.port import ObjectStore

Experiment = tuple[str, str, str]
"""The values of the three labels that the records of one experiment share."""
_LABELS: Final = (EXPERIMENT_NAMESPACE, EXPERIMENT_NAME, EXPERIMENT_UID)
_RESTS: Final = 9
"""So passes over one experiment take at most a tenth of the time."""
_LONGEST_REST_NS: Final = 60 * SECOND
"""However long a pass took: what is one too many goes within about that time."""
_KIND: Final = metadata_only(CHAOS_EXPERIMENT_HISTORY)
_log = get_logger("lapse.history.retention.completions")


def labels_of(experiment: Experiment) -> dict[str, str]:
    """Return the labels that select the records of an experiment."""
    return dict(zip(_LABELS, experiment, strict=True))


def experiment_of(found: PartialObject) -> Experiment | None:
    """Return whose record it is; None for one that does not say, which only a full pass can judge."""
    labels = found.metadata.labels
    if not all(name in labels for name in _LABELS):
        return None
    namespace, name, uid = (labels[name] for name in _LABELS)
    return namespace, name, uid


class Completions:
    """A service of the coordinator: calls ``completed`` for each experiment of which a run ended, one at a time."""

    name = "retention-completions"

    def __init__(
        self,
        store: ObjectStore,
        completed: Callable[[Experiment], Awaitable[ReconcileResult]],
        *,
        namespace: str,
        clock: Clock,
        on_error: Callable[[Exception], None],
        chance: Chance = chance,
    ) -> None:
        """Watch nothing yet. ``on_error`` is told of every failure: for metrics. It must not raise."""
        self._store, self._namespace, self._clock, self._chance = store, namespace, clock, chance
        self._on_error = on_error
        self._queue: WorkQueue[Experiment] = WorkQueue(clock, chance=chance)
        self._completed = completed
        self._rests: dict[Experiment, int] = {}
        """Until when experiments rest that were passed over just now, on the monotonic clock."""
        self._worker = Controller(self.name, self._pass, queue=self._queue, workers=1, on_error=on_error)
        self._since: str | None = None
        self._failures = 0

    @property
    def is_watching(self) -> bool:
        """Whether every record that appears from now on is noticed."""
        return self._since is not None

    async def run(self, stopping: asyncio.Event) -> None:
        """See `lapse.engine.running.coordinator.Service`."""
        watching = asyncio.create_task(self._keep_watching(), name="lapse-retention-watch")
        try:
            await self._worker.run(stopping)
        finally:
            watching.cancel()
            await asyncio.wait({watching})
            self._since = None  # another may lead meanwhile, and begins with a pass over everything, as we will

    async def _pass(self, experiment: Experiment) -> ReconcileResult:
        """Pass over an experiment, or later if it rests."""
        began = self._clock.monotonic_ns()
        self._rests = {one: until for one, until in self._rests.items() if until > began}
        if experiment in self._rests:
            return ReconcileResult(requeue_after=(self._rests[experiment] - began) / SECOND)
        try:
            return await self._completed(experiment)
        finally:
            ended = self._clock.monotonic_ns()
            self._rests[experiment] = ended + min(_LONGEST_REST_NS, _RESTS * (ended - began))

    async def _keep_watching(self) -> None:
        while True:
            at_least = 0.0
            try:
                await self._watch()
            except GoneError:
                self._since = None
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise  # else not we were cancelled, but something inside the store
            except Exception as error:  # noqa: BLE001 - a watch that silently stops is worse than one that is late
                at_least = asked_to_wait(error)
                defect = None if isinstance(error, ObjectError) else error
                _log.warning("completions_unseen", error=type(error).__name__, reason=str(error), exc_info=defect)
                self._on_error(error)
            await self._clock.sleep(max(at_least, backoff(self._failures, chance=self._chance)))
            self._failures += 1

    async def _watch(self) -> None:
        """Learn where to begin, if that is not known, and watch until the watch ends."""
        if self._since is None:
            page = await self._store.list(_KIND, namespace=self._namespace, limit=1)
            self._since = page.resource_version
        async with aclosing(self._store.watch(_KIND, namespace=self._namespace, since=self._since)) as events:
            async for event in events:
                self._failures = 0
                self._since = event.resource_version
                if event.type is EventType.ADDED and event.object is not None:
                    experiment = experiment_of(event.object)
                    if experiment is not None:
                        self._queue.add(experiment)
