"""Events are written beside the work: few of them, never in its way, and honestly counted when they are lost."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import VirtualClock
from lapse.kube.errors import AlreadyExistsError, ForbiddenError, NotFoundError, ObjectError, StoreUnavailableError
from lapse.kube.events.event import Regarding, Report, clipped
from lapse.kube.events.recorder import EventRecorder, RecorderLimits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lapse.kube.resources import ObjectKey

LEASE = Regarding(api_version="coordination.k8s.io/v1", kind="Lease", name="lapse", namespace="system", uid="lease-uid")
REQUEST = Regarding(api_version="v1", kind="Thing", name="nightly", namespace="shop", uid="uid-1")
DONE = Report(REQUEST, "Completed", "Finish", "it is done")
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
UNAVAILABLE = StoreUnavailableError(problem="503")
Json = dict[str, Any]


def lapsed(namespace: str) -> Report:
    where = Regarding(api_version="v1", kind="Namespace", name=namespace, namespace=namespace)
    return Report(where, "TimeToLiveExpired", "Delete", "requests deleted")


class Cluster:
    """What an API server does with Events, and how it fails: each failure is for one call, in their order."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.events: dict[tuple[str | None, str], Json] = {}
        self.calls = 0
        self.failures: list[ObjectError] = []
        self.always: Exception | None = None
        self.seconds = 0.0
        self.answers_lost = 0

    async def _called(self) -> None:
        self.calls += 1
        if self.seconds:
            await self.clock.sleep(self.seconds)
        if self.always is not None:
            raise self.always
        if self.failures:
            raise self.failures.pop(0)

    def _answer(self) -> None:
        if self.answers_lost:
            self.answers_lost -= 1
            raise UNAVAILABLE

    async def create(self, kind: Any, obj: Any) -> Any:  # noqa: ANN401 - of any kind
        await self._called()
        place = (obj["metadata"]["namespace"], obj["metadata"]["name"])
        if place in self.events:
            raise AlreadyExistsError(kind=kind.kind, name=place)
        self.events[place] = obj
        self._answer()

    async def patch(self, kind: Any, key: ObjectKey, changes: Any) -> Any:  # noqa: ANN401 - of any kind
        await self._called()
        if key not in self.events:
            raise NotFoundError(kind=kind.kind, name=key)
        self.events[key] |= changes
        self._answer()

    @property
    def notes(self) -> list[str]:
        return [event["note"] for event in self.events.values()]


class Office:
    """A recorder at work, in virtual time."""

    def __init__(self, limits: RecorderLimits = RecorderLimits()) -> None:  # noqa: B008 - immutable
        self.clock = VirtualClock()
        self.cluster = Cluster(self.clock)
        self.dropped = 0
        self.stopping = asyncio.Event()
        self.recorder = EventRecorder(
            self.cluster,
            reporter=LEASE,
            instance="host_1",
            clock=self.clock,
            dropped=self._drop,
            limits=limits,
            chance=lambda: 1.0,
        )
        self.running = asyncio.create_task(self.recorder.run(self.stopping))

    def _drop(self) -> None:
        self.dropped += 1

    async def pass_time(self, seconds: float = 0.0, *, step: float = 0.1) -> None:
        """Let the recorder work, for so long."""
        for _ in range(round(seconds / step)):
            await self._settle()
            self.clock.advance(step)
        await self._settle()

    async def _settle(self) -> None:
        for _ in range(20):
            await self.clock.sleep(0)


@asynccontextmanager
async def at_work(limits: RecorderLimits = RecorderLimits()) -> AsyncIterator[Office]:  # noqa: B008 - immutable
    office = Office(limits)
    await office.pass_time()
    yield office
    office.running.cancel()
    with suppress(asyncio.CancelledError):
        await office.running


async def test_an_event_says_what_happened_to_which_object_and_who_reports_it() -> None:
    async with at_work() as office:
        office.recorder.record(replace(DONE, warning=True))
        await office.pass_time()
        ((place, event),) = office.cluster.events.items()
    assert place[0] == "shop"
    assert place[1].startswith("nightly.")
    assert MICRO_TIME.fullmatch(event.pop("eventTime"))
    assert event.pop("metadata")["namespace"] == "shop"
    assert event == {
        "regarding": {"apiVersion": "v1", "kind": "Thing", "name": "nightly", "namespace": "shop", "uid": "uid-1"},
        "type": "Warning",
        "reason": "Completed",
        "action": "Finish",
        "note": "it is done",
        "reportingController": "lapse.dev/operator",
        "reportingInstance": "host_1",
    }


async def test_what_concerns_no_object_is_told_on_the_one_that_stands_for_the_process() -> None:
    async with at_work() as office:
        office.recorder.record(replace(DONE, regarding=None))
        await office.pass_time()
        (event,) = office.cluster.events.values()
    assert event["regarding"]["uid"] == "lease-uid"
    assert event["metadata"]["namespace"] == "system"


async def test_an_object_of_the_whole_cluster_has_its_events_where_the_server_wants_them() -> None:
    async with at_work() as office:
        office.recorder.record(replace(DONE, regarding=replace_namespace(REQUEST)))
        await office.pass_time()
        (event,) = office.cluster.events.values()
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["regarding"]


def replace_namespace(regarding: Regarding) -> Regarding:
    return Regarding(api_version=regarding.api_version, kind=regarding.kind, name=regarding.name, uid=regarding.uid)


@pytest.mark.parametrize("name", ["a" * 253, "a" * 199 + "-" + "b" * 50, "a" * 199 + "." + "b" * 50])
async def test_a_long_name_leaves_room_for_the_rest(name: str) -> None:
    async with at_work() as office:
        office.recorder.record(replace(DONE, regarding=Regarding(api_version="v1", kind="Thing", name=name)))
        await office.pass_time()
        ((_namespace, made),) = office.cluster.events
    assert len(made) <= 253
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", made)


@pytest.mark.parametrize("note", ["x" * 5000, "ä" * 700, "a" + "ä" * 700])
def test_a_note_is_cut_to_what_a_server_takes(note: str) -> None:
    cut = clipped(note)
    assert 1000 < len(cut.encode()) <= 1024
    assert cut.endswith("...")
    assert note.startswith(cut.removesuffix("..."))


async def test_what_happens_again_goes_on_as_a_series() -> None:
    async with at_work() as office:
        for _ in range(3):
            office.recorder.record(DONE)
            await office.pass_time(1)
        (event,) = office.cluster.events.values()
    assert event["series"]["count"] == 3
    assert MICRO_TIME.fullmatch(event["series"]["lastObservedTime"])
    assert event["series"]["lastObservedTime"] > event["eventTime"]
    assert office.cluster.calls == 3


async def test_what_happens_often_while_it_waits_is_one_call() -> None:
    async with at_work() as office:
        for _ in range(500):
            office.recorder.record(DONE)
        await office.pass_time(1)
        (event,) = office.cluster.events.values()
    assert event["series"]["count"] == 500
    assert office.cluster.calls == 1


async def test_after_some_minutes_a_repetition_is_a_new_event() -> None:
    async with at_work() as office:
        office.recorder.record(DONE)
        await office.pass_time(400, step=10)
        office.recorder.record(DONE)
        await office.pass_time(1)
    assert len(office.cluster.events) == 2


async def test_a_series_whose_event_is_gone_begins_anew() -> None:
    async with at_work() as office:
        office.recorder.record(DONE)
        await office.pass_time(1)
        office.cluster.events.clear()
        office.recorder.record(DONE)
        await office.pass_time(1)
        (event,) = office.cluster.events.values()
    assert "series" not in event
    assert office.dropped == 0


# --- aggregates -------------------------------------------------------------------------------------------------------


async def test_thousands_of_deletions_are_one_event_per_namespace() -> None:
    async with at_work() as office:
        for number in range(5_000):
            office.recorder.aggregate(lapsed("shop"), f"vcr/shop/{number}")
        office.recorder.aggregate(lapsed("home"), "vcr/home/one")
        await office.pass_time(4)
        assert office.cluster.notes == []
        await office.pass_time(2)
    assert office.cluster.notes == [
        "requests deleted: 5000 (vcr/shop/0, vcr/shop/1, vcr/shop/2, vcr/shop/3, vcr/shop/4, ...)",
        "requests deleted: 1 (vcr/home/one)",
    ]
    assert office.cluster.calls == 2


async def test_deletions_that_go_on_are_told_once_a_minute() -> None:
    async with at_work() as office:
        for number in range(600):
            office.recorder.aggregate(lapsed("shop"), f"vcr/shop/{number}")
            await office.pass_time(1, step=1)
        await office.pass_time(61, step=1)
    told = [int(re.findall(r": (\d+) ", note)[0]) for note in office.cluster.notes]
    assert sum(told) == 600
    assert office.cluster.calls == len(told) <= 12


async def test_with_very_many_namespaces_the_rest_is_told_together() -> None:
    limits = RecorderLimits(places=10)
    async with at_work(limits) as office:
        for number in range(1_000):
            office.recorder.aggregate(lapsed(f"team-{number}"), f"vcr/team-{number}/one")
        await office.pass_time(10)
        notes = office.cluster.notes
        on_lease = [one for one in office.cluster.events.values() if one["regarding"]["kind"] == "Lease"]
    assert len(notes) == office.cluster.calls == 11
    assert [one["note"].split(" (")[0] for one in on_lease] == ["requests deleted: 990"]


# --- when it does not work --------------------------------------------------------------------------------------------


async def test_recording_never_waits_for_a_slow_server_and_what_does_not_fit_is_dropped() -> None:
    async with at_work(RecorderLimits(waiting=10)) as office:
        office.cluster.seconds = 1000.0
        for number in range(30):
            office.recorder.record(replace(DONE, note=f"number {number}"))
        await office.pass_time(1)
        assert office.cluster.calls == 1
        assert office.dropped == 20
        office.recorder.record(replace(DONE, note="there is room for one, since another is on its way"))
        assert office.dropped == 20
        office.recorder.record(replace(DONE, note="and for no more"))
    assert office.dropped == 21 + 11, "at the end also what was waiting, and what was on its way"


async def test_a_server_that_is_away_for_a_moment_loses_nothing() -> None:
    async with at_work() as office:
        office.cluster.failures = [UNAVAILABLE, UNAVAILABLE]
        office.recorder.record(DONE)
        await office.pass_time(5)
    assert office.cluster.notes == ["it is done"]
    assert office.dropped == 0


async def test_an_answer_that_was_lost_does_not_make_two_events() -> None:
    async with at_work() as office:
        office.cluster.answers_lost = 1
        office.recorder.record(DONE)
        await office.pass_time(5)
        office.cluster.answers_lost = 1
        office.recorder.record(DONE)
        await office.pass_time(5)
        (event,) = office.cluster.events.values()
    assert event["series"]["count"] == 2
    assert office.dropped == 0


@pytest.mark.parametrize("error", [ForbiddenError(problem="no right"), RuntimeError("a defect")])
async def test_a_server_that_refuses_is_asked_ever_more_seldom(error: Exception) -> None:
    async with at_work() as office:
        office.cluster.always = error
        for number in range(1_000):
            office.recorder.record(replace(DONE, note=f"number {number}"))
        await office.pass_time(600, step=1)
        assert office.cluster.calls <= 10 + 600 / 30
        assert office.dropped >= office.cluster.calls - 1
        office.cluster.always = None
        await office.pass_time(100)
        assert len(office.cluster.events) > 900, "it comes back to its pace at the first success"


async def test_calls_are_limited_in_number_per_second() -> None:
    async with at_work(RecorderLimits(per_second=10, burst=5)) as office:
        for number in range(100):
            office.recorder.record(replace(DONE, note=f"number {number}"))
        await office.pass_time()
        assert office.cluster.calls == 5
        await office.pass_time(2)
        assert 20 <= office.cluster.calls <= 26
        await office.pass_time(10)
    assert len(office.cluster.events) == 100


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_what_waits_at_a_stop_is_written_with_the_tallies_and_what_comes_just_then() -> None:
    async with at_work() as office:
        office.recorder.record(DONE)
        office.recorder.aggregate(lapsed("shop"), "vcr/shop/one")
        office.stopping.set()
        await office.pass_time(0.1)
        office.recorder.record(replace(DONE, note="the item at hand"))
        await office.pass_time(1)
        assert office.running.done()
    assert office.cluster.notes == ["it is done", "requests deleted: 1 (vcr/shop/one)", "the item at hand"]
    assert office.dropped == 0


async def test_a_stop_waits_for_a_silent_server_no_longer_than_two_seconds_and_counts_what_is_lost() -> None:
    async with at_work() as office:
        office.cluster.seconds = 1000.0
        for number in range(3):
            office.recorder.record(replace(DONE, note=f"number {number}"))
        office.recorder.aggregate(lapsed("shop"), "vcr/shop/one")
        await office.pass_time(1)
        office.stopping.set()
        await office.pass_time(1.5)
        assert not office.running.done()
        await office.pass_time(1)
        assert office.running.done()
        office.running.result()
    assert office.dropped == 4


async def test_a_recorder_works_again_in_the_next_term() -> None:
    async with at_work() as office:
        office.running.cancel()
        await office.pass_time()
        office.running = asyncio.create_task(office.recorder.run(office.stopping))
        office.recorder.record(DONE)
        await office.pass_time(1)
    assert office.cluster.notes == ["it is done"]
