"""How completions are noticed, with stores that fail in every way."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import VirtualClock
from lapse.core.duration import SECOND
from lapse.history.api.kinds import Execution, ExperimentRef, HistorySpec
from lapse.history.records import record
from lapse.history.retention.completions import Completions, Experiment, labels_of
from lapse.kube.controller.controller import ReconcileResult
from lapse.kube.errors import ForbiddenError, GoneError, StoreUnavailableError
from lapse.kube.resources import Event, EventType, ObjectMeta, Page, PartialObject

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

ONE: Experiment = ("shop", "one", "u1")
TWO: Experiment = ("shop", "two", "u2")


def event(kind: EventType, experiment: Experiment | None, version: str) -> Event[PartialObject]:
    labels = labels_of(experiment) if experiment else {}
    return Event(kind, PartialObject(metadata=ObjectMeta(name=version, labels=labels)), version)


class Script:
    """A store that plays what it was given, one part for each watch; it is silent after the last."""

    def __init__(self, *watches: list[Any]) -> None:
        self.watches = list(watches)
        self.asked: list[str] = []
        self.lists: list[Exception | str] = ["100"]

    async def list(self, *_: object, **question: object) -> Page[PartialObject]:
        assert question == {"namespace": "chaos-system", "limit": 1}
        answer = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        self.asked.append("list")
        if isinstance(answer, Exception):
            raise answer
        return Page((), answer)

    async def watch(self, *_: object, namespace: str, since: str) -> AsyncGenerator[Event[PartialObject], None]:
        assert namespace == "chaos-system"
        self.asked.append(since)
        if not self.watches:
            await asyncio.Event().wait()
        for one in self.watches.pop(0):
            if isinstance(one, BaseException):
                raise one
            yield one


class Heard:
    """What is told of completions, and of failures."""

    def __init__(self, script: Script, *, failures: int = 0) -> None:
        self.clock = VirtualClock()
        self.experiments: list[Experiment] = []
        self.errors: list[str] = []
        self._failures = failures
        store: Any = script
        self.service = Completions(
            store,
            self._completed,
            namespace="chaos-system",
            clock=self.clock,
            on_error=lambda error: self.errors.append(type(error).__name__),
        )

    async def _completed(self, experiment: Experiment) -> ReconcileResult:
        self.experiments.append(experiment)
        if len(self.experiments) <= self._failures:
            raise StoreUnavailableError(problem="down")
        return ReconcileResult()

    async def listen(self, seconds: int = 200) -> None:
        """Let time pass, and stop."""
        stopping = asyncio.Event()
        running = asyncio.create_task(self.service.run(stopping))
        for _ in range(seconds):
            for _ in range(10):
                await self.clock.sleep(0)
            self.clock.advance(1)
        stopping.set()
        await running


async def test_only_what_appears_is_a_completion_and_each_experiment_is_looked_at_once_at_a_time() -> None:
    script = Script(
        [
            event(EventType.ADDED, ONE, "101"),
            event(EventType.ADDED, ONE, "102"),
            event(EventType.MODIFIED, TWO, "103"),
            event(EventType.DELETED, TWO, "104"),
            event(EventType.ADDED, None, "105"),
            Event(EventType.BOOKMARK, None, "106"),
        ]
    )
    heard = Heard(script)
    await heard.listen()

    assert heard.experiments == [ONE]
    assert script.asked == ["list", "100", "106"]
    assert heard.errors == []


async def test_a_watch_that_fell_behind_begins_again_from_now() -> None:
    script = Script([GoneError(version="100")], [event(EventType.ADDED, ONE, "205")])
    script.lists = ["100", "200"]
    heard = Heard(script)
    await heard.listen()

    assert script.asked == ["list", "100", "list", "200", "205"]
    assert heard.experiments == [ONE]


@pytest.mark.parametrize(
    "error", [StoreUnavailableError(problem="down"), ForbiddenError(problem="no"), ZeroDivisionError()]
)
async def test_no_error_ends_it_and_nothing_is_missed(error: Exception) -> None:
    script = Script([event(EventType.ADDED, ONE, "101"), error], [event(EventType.ADDED, TWO, "102")])
    script.lists = [error, "100"]
    heard = Heard(script)
    await heard.listen()

    assert script.asked == ["list", "list", "100", "101", "102"]
    assert heard.experiments == [ONE, TWO]
    assert heard.errors == [type(error).__name__] * 2


async def test_what_something_inside_the_store_cancels_is_begun_again() -> None:
    script = Script([asyncio.CancelledError()], [event(EventType.ADDED, ONE, "101")])
    heard = Heard(script)
    await heard.listen()

    assert script.asked == ["list", "100", "100", "101"]
    assert heard.experiments == [ONE]


async def test_a_pass_that_failed_is_tried_again() -> None:
    heard = Heard(Script([event(EventType.ADDED, ONE, "101")]), failures=2)
    await heard.listen()

    assert heard.experiments == [ONE, ONE, ONE]
    assert heard.errors == ["StoreUnavailableError"] * 2


async def test_an_experiment_whose_runs_end_one_after_the_other_is_passed_over_for_a_tenth_of_the_time() -> None:
    class Busy(Script):
        """A store in which a run of one experiment ends every second, for a hundred; and one of another."""

        async def watch(self, *_: object, namespace: str, since: str) -> AsyncGenerator[Event[PartialObject], None]:
            for number in range(100):
                await heard.clock.sleep(1)
                heard.appeared.append(heard.clock.monotonic_ns())
                yield event(EventType.ADDED, ONE, f"{number}")
                if number == 50:
                    yield event(EventType.ADDED, TWO, f"{number}")
            await asyncio.Event().wait()

    class Slow(Heard):
        """Each pass takes two seconds."""

        appeared: list[int]
        passed: list[tuple[Experiment, int]]

        async def _completed(self, experiment: Experiment) -> ReconcileResult:
            self.passed.append((experiment, self.clock.monotonic_ns()))
            await self.clock.sleep(2)
            return ReconcileResult()

    heard = Slow(Busy())
    heard.appeared, heard.passed = [], []
    await heard.listen(200)

    began = [moment for experiment, moment in heard.passed if experiment == ONE]
    assert began[0] == heard.appeared[0]
    assert 5 <= len(began) <= 7
    assert all(after - before >= 20 * SECOND for before, after in pairwise(began))
    assert began[-1] > heard.appeared[-1], "the last run that ended is passed over, too"
    (other,) = [moment for experiment, moment in heard.passed if experiment == TWO]
    assert other - heard.appeared[50] <= 2 * SECOND


async def test_the_labels_of_an_experiment_are_those_that_its_records_carry() -> None:
    ref = ExperimentRef(name="two", namespace="shop", uid="u2")
    made = record(
        HistorySpec(experiment_ref=ref, execution=Execution(start_time="2030-01-01T00:00:00Z", status="success")),
        namespace="chaos-system",
    )
    assert labels_of(TWO).items() <= made.metadata.labels.items()
