"""The TTL of finished requests, in both modes, for every kind: the nine cases of the founding document, and edges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import UnixNs
from lapse.core.duration import Duration
from lapse.core.timestamps import from_timestamp
from lapse.engine.journal.port import Outcome
from lapse.kube.resources import ready_condition
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import EXPIRES_AT, OBJECT_KEEPER, REQUEST_KINDS, TTL, VOLUME_CAPTURE_REQUEST
from lapse.requests.lifecycle.policy import RequestPolicy, TTLMode
from tests.integration.requests.world import World, opened

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from lapse.engine.domain import Candidate
    from lapse.kube.resources import Kind
    from lapse.requests.expiry import Finished

every_kind = pytest.mark.parametrize("kind", REQUEST_KINDS, ids=lambda kind: kind.short)
either_end = pytest.mark.parametrize("fail", [False, True], ids=["ready", "failed"])
MINUTES = 600.0


@pytest.fixture(params=[*TTLMode])
def mode(request: pytest.FixtureRequest) -> TTLMode:
    return TTLMode(request.param)


@pytest.fixture
async def world(tmp_path: Path, mode: TTLMode) -> AsyncIterator[World]:
    async with opened(tmp_path, policy=RequestPolicy(request_ttl_mode=mode)) as found:
        yield found


@pytest.fixture
def annotated(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[World]]:
    """A world in mode annotation, with chance as given."""

    def make(chance: float = 0.5) -> AbstractAsyncContextManager[World]:
        policy = RequestPolicy(request_ttl_mode=TTLMode.ANNOTATION)
        return opened(tmp_path, policy=policy, chance=lambda: chance)

    return make


def ttl_in(obj: Any) -> str | None:  # noqa: ANN401 - any request
    found: str | None = obj.metadata.annotations.get(TTL)
    return found


def expiry_in(obj: Any) -> float | None:  # noqa: ANN401 - any request
    """How long after its completion a request says that it goes, in seconds."""
    told = from_timestamp(obj.metadata.annotations.get(EXPIRES_AT, ""))
    completed = from_timestamp(obj.status.completion_timestamp or "")
    return None if told is None or completed is None else (told - completed) / 1e9


# --- the nine cases ---------------------------------------------------------------------------------------------------


@every_kind
@either_end
async def test_the_ttl_is_written_when_a_request_becomes_ready_or_fails(
    world: World, kind: Kind[Any], *, fail: bool
) -> None:
    request = await world.completed(kind, fail=fail)
    assert ttl_in(request) == "10m"
    assert request.status.completion_timestamp
    assert expiry_in(request) == MINUTES


@every_kind
@either_end
async def test_a_ttl_that_is_there_already_is_not_overwritten(world: World, kind: Kind[Any], *, fail: bool) -> None:
    request = await world.completed(kind, fail=fail)
    other = await world.annotate(request, {TTL: "3h"})
    for _ in range(3):
        await world.reconcile(other)
    assert ttl_in(await world.fresh(other)) == "3h"


async def test_a_ttl_that_a_user_gave_at_creation_survives_completion(world: World, mode: TTLMode) -> None:
    claim = await world.volume()
    request = await world.capture("nightly", claim, annotations={TTL: "2h"})
    await world.settle()
    await world.snapshot_ready(request)
    await world.settle()
    assert await world.reason(request) == ConditionReason.COMPLETED
    found = await world.fresh(request)
    assert ttl_in(found) == "2h"
    assert expiry_in(found) == (7200 if mode is TTLMode.ANNOTATION else MINUTES)


async def test_a_request_says_when_it_goes_also_after_somebody_set_another_ttl(
    annotated: Callable[..., AbstractAsyncContextManager[World]],
) -> None:
    async with annotated() as world:
        request = await world.completed(VOLUME_CAPTURE_REQUEST)
        for text, expected in (("3h", 10_800), ("never", None), ("1500ms", 2), ("10minutes", None), ("1h", 3600)):
            await world.annotate(await world.fresh(request), {TTL: text})
            await world.caught_up()
            await world.reconcile(request)
            assert (text, expiry_in(await world.fresh(request))) == (text, expected)


@every_kind
async def test_no_ttl_applies_until_there_is_a_completion_timestamp(world: World, kind: Kind[Any]) -> None:
    request = await world.completed(kind)
    await world.store.patch_status(kind, request.metadata.key, {"completionTimestamp": None})
    await world.live(hours=3, step=1800)
    assert await world.exists(request)
    assert (await world.fresh(request)).status.completion_timestamp is None


async def test_no_ttl_applies_to_a_request_that_is_not_final(world: World) -> None:
    request = await world.capture("nightly", await world.volume(), annotations={TTL: "1s"})
    await world.live(hours=2, step=1200)
    assert await world.exists(request)


@every_kind
@either_end
async def test_a_request_whose_ttl_is_over_is_deleted(world: World, kind: Kind[Any], *, fail: bool) -> None:
    request = await world.completed(kind, fail=fail)
    await world.live(MINUTES + 70, step=35)
    assert not await world.exists(request)
    (row,) = await world.journal_rows(uid=request.metadata.uid)
    assert (row.outcome, row.reason, row.address) == (Outcome.ENDED, "ttl_expired", f"{kind.short}/shop/done")
    assert row.anchor_ns == from_timestamp(request.status.completion_timestamp)


@every_kind
@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999_999])
async def test_a_request_whose_ttl_is_not_over_is_looked_at_again_within_the_range(
    annotated: Callable[..., AbstractAsyncContextManager[World]], kind: Kind[Any], chance: float
) -> None:
    async with annotated(chance) as world:
        request = await world.completed(kind)
        passed = 0.0
        for left in (599.0, 61.0, 60.0, 45.0, 31.0, 29.0, 1.0):
            world.advance(MINUTES - left - passed)
            passed = MINUTES - left
            result = await world.reconcile(request)
            assert result.requeue_after == pytest.approx(max(30.0, min(left, 60.0) * (0.9 + 0.2 * chance)), rel=1e-6)
            assert 30.0 <= (result.requeue_after or 0) <= 66.0
        assert await world.exists(request)


@pytest.mark.parametrize(
    ("kind", "text"),
    [*((kind, "10minutes") for kind in REQUEST_KINDS), *((REQUEST_KINDS[0], text) for text in ("0s", "-1h", "", "10"))],
)
async def test_an_invalid_ttl_is_said_in_the_condition_and_nothing_is_deleted(
    annotated: Callable[..., AbstractAsyncContextManager[World]], kind: Kind[Any], text: str
) -> None:
    async with annotated() as world:
        request = await world.completed(kind)
        completed = request.status.completion_timestamp
        await world.annotate(request, {TTL: text})
        await world.caught_up()
        assert (await world.reconcile(request)).requeue_after is None
        found = await world.fresh(request)
        ready = ready_condition(found.status.conditions)
        assert ready is not None
        assert (ready.status, ready.reason) == ("False", ConditionReason.INVALID_TTL)
        assert ready.message.startswith(f"Invalid TTL annotation format: {text} (error: ")
        assert ready.message.endswith(")")
        assert ttl_in(found) == text
        assert found.status.completion_timestamp == completed
        await world.live(hours=5, step=1800)
        again = await world.fresh(request)
        assert again.metadata.resource_version == found.metadata.resource_version, "it is said once"


@every_kind
async def test_an_invalid_ttl_has_no_effect_where_a_scanner_decides(tmp_path: Path, kind: Kind[Any]) -> None:
    async with opened(tmp_path) as world:
        request = await world.completed(kind)
        await world.annotate(request, {TTL: "10minutes"})
        await world.settle()
        assert await world.reason(request) == ConditionReason.COMPLETED
        await world.live(MINUTES + 60)
        assert not await world.exists(request)


async def test_the_annotation_does_not_decide_where_a_scanner_does(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        short = await world.completed(VOLUME_CAPTURE_REQUEST, "short")
        await world.annotate(short, {TTL: "1s"})
        longer = await world.completed(VOLUME_CAPTURE_REQUEST, "long")
        await world.annotate(longer, {TTL: "1000h"})
        await world.live(MINUTES - 60)
        assert await world.exists(short)
        await world.live(120)
        assert not await world.exists(short)
        assert not await world.exists(longer)


async def test_the_annotation_decides_where_it_is_to_decide(
    annotated: Callable[..., AbstractAsyncContextManager[World]],
) -> None:
    async with annotated() as world:
        short = await world.completed(VOLUME_CAPTURE_REQUEST, "short")
        await world.annotate(short, {TTL: "1m"})
        longer = await world.completed(VOLUME_CAPTURE_REQUEST, "long")
        await world.annotate(longer, {TTL: "2h"})
        forever = await world.completed(VOLUME_CAPTURE_REQUEST, "for-ever")
        await world.annotate(forever, {TTL: "never"})
        await world.live(minutes=3, step=30)
        assert not await world.exists(short)
        await world.live(minutes=110, step=300)
        assert await world.exists(longer)
        await world.live(minutes=20, step=60)
        assert not await world.exists(longer)
        await world.live(hours=100, step=36_000)
        assert await world.exists(forever)


@every_kind
async def test_the_ttl_of_a_request_and_the_ttl_of_its_keeper_are_independent(
    world: World, kind: Kind[Any], mode: TTLMode
) -> None:
    request = await world.completed(kind)
    keeper = await world.keeper(request)
    await world.live(minutes=13)
    assert not await world.exists(request)
    assert await world.exists(keeper), "the keeper outlives its request"
    await world.live(hours=23, step=3600)
    assert await world.exists(keeper)
    await world.live(hours=2, step=1800)
    assert not await world.exists(keeper)


async def test_a_keeper_that_is_gone_changes_nothing_about_the_ttl_of_its_request(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    await world.delete(await world.keeper(request))
    await world.live(minutes=9)
    assert await world.exists(request)
    assert await world.reason(request) == ConditionReason.COMPLETED
    await world.live(minutes=4)
    assert not await world.exists(request)


# --- edges ------------------------------------------------------------------------------------------------------------


@every_kind
async def test_a_corrected_annotation_applies_again(
    annotated: Callable[..., AbstractAsyncContextManager[World]], kind: Kind[Any]
) -> None:
    async with annotated() as world:
        request = await world.completed(kind)
        await world.annotate(request, {TTL: "10minutes"})
        await world.live(hours=1, step=600)
        assert await world.reason(request) == ConditionReason.INVALID_TTL
        await world.annotate(request, {TTL: "2h"})
        await world.live(minutes=55, step=60)
        assert await world.exists(request), "two hours after completion, not after the correction"
        await world.live(minutes=8, step=60)
        assert not await world.exists(request)


@every_kind
async def test_at_the_very_end_of_its_ttl_a_request_is_kept_and_a_nanosecond_later_it_goes(
    world: World, kind: Kind[Any], mode: TTLMode
) -> None:
    request = await world.completed(kind)
    over = from_timestamp(request.status.completion_timestamp)
    assert over is not None
    world.advance(ns=over + 600 * 10**9 - world.clock.wall_ns())
    await look(world, request, mode)
    assert await world.exists(request)
    world.advance(ns=1)
    await look(world, request, mode)
    assert not await world.exists(request)


async def look(world: World, request: Any, mode: TTLMode) -> None:  # noqa: ANN401 - any request
    if mode is TTLMode.ANNOTATION:
        await world.reconcile(request)
    else:
        await world.sweep()


async def test_the_scanner_knows_to_the_nanosecond_when_to_look_next(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        request = await world.completed(VOLUME_CAPTURE_REQUEST)
        over = from_timestamp(request.status.completion_timestamp)
        assert over is not None
        assert world.requests.finished.next_deadline() == over + 600 * 10**9 + 1


async def test_a_scanner_with_nothing_due_makes_no_call_of_the_store(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        for number in range(5):
            await world.completed(VOLUME_CAPTURE_REQUEST, f"done-{number}")
        world.wire.calls.clear()
        report = (await world.sweep())["request-ttl"]
        assert report.looked == 0
        assert world.wire.calls == []


async def test_a_request_that_changed_since_it_was_decided_about_is_not_deleted_but_decided_again(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as world:
        request = await world.completed(VOLUME_CAPTURE_REQUEST)
        world.advance(MINUTES + 1)
        stale = world.requests.finished.due

        async def meanwhile() -> None:
            await world.store.patch(
                VOLUME_CAPTURE_REQUEST, request.metadata.key, {"metadata": {"labels": {"seen": "yes"}}}
            )

        pages = [page async for page in stale(UnixNs(world.clock.wall_ns()), size=1)]
        await meanwhile()

        async def seen_before(_now: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[Finished]], None]:
            for page in pages:
                yield page

        world.requests.finished.due = seen_before  # type: ignore[method-assign, assignment]
        report = await world.requests.loops[1].sweeps[0].run(proceed=lambda: True)
        assert (report.changed, report.ended) == (1, 0)
        assert await world.exists(request)
        world.requests.finished.due = stale  # type: ignore[method-assign]
        await world.live(120)
        assert not await world.exists(request)


async def test_a_held_request_stays_and_goes_when_it_is_released(world: World) -> None:
    request = await world.hold(await world.completed(VOLUME_CAPTURE_REQUEST))
    await world.live(hours=1, step=60)
    assert await world.exists(request)
    assert [row.outcome for row in await world.journal_rows(uid=request.metadata.uid)] == [Outcome.HELD]
    await world.release(request)
    await world.live(minutes=12, step=60)
    assert not await world.exists(request)


async def test_a_request_ttl_of_never_keeps_finished_requests(tmp_path: Path) -> None:
    async with opened(tmp_path, policy=RequestPolicy(request_ttl=Duration.parse("never"))) as world:
        request = await world.completed(VOLUME_CAPTURE_REQUEST)
        await world.live(hours=1000, step=360_000)
        assert await world.exists(request)


async def test_after_a_restart_what_is_overdue_goes_at_once(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    await world.stop()
    world.advance(3 * 3600)
    await world.restart()
    await world.rest()
    assert not await world.exists(request)
    assert len(await world.all(OBJECT_KEEPER)) == 1


async def test_a_crash_between_annotation_and_end_is_made_up_for(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    await world.annotate(request, {TTL: None})  # as if the end had been written without it
    await world.settle()
    found = await world.fresh(request)
    assert ttl_in(found) == "10m"
    assert found.status.completion_timestamp == request.status.completion_timestamp
    assert found.status.conditions == request.status.conditions
