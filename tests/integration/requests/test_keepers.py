"""Keepers: how long they follow what they follow, and what keeps them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import UnixNs
from lapse.core.duration import Duration
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.engine.journal.port import Outcome
from lapse.kube.errors import ForbiddenError, StoreUnavailableError, UnknownKindError
from lapse.kube.resources import ObjectKey
from lapse.requests.api.kinds import (
    MANIFEST_CHUNK,
    OBJECT_KEEPER,
    VOLUME_CAPTURE_REQUEST,
    KeeperMode,
    KeeperPhase,
    ObjectKeeper,
)
from lapse.requests.api.upstream import CONFIG_MAP, PERSISTENT_VOLUME, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.lifecycle.policy import RequestPolicy
from tests.integration.requests.stories import detach, done, manifests, snapshot
from tests.integration.requests.world import NAMESPACE, Call, World, opened

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.kube.resources import Object

HOUR = 3600


async def keeper_of(
    world: World, followed: Object | None, mode: KeeperMode, *, ttl: str | None = None, name: str = "mine"
) -> ObjectKeeper:
    """A keeper that somebody made by hand."""
    spec: dict[str, Any] = {"mode": mode}
    if followed is not None:
        meta = followed.metadata
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "namespace": meta.namespace, "name": meta.name}
        spec["followObjectRef"] = {**reference, "uid": meta.uid}
    if ttl is not None:
        spec["ttl"] = ttl
    return await world.store.create(OBJECT_KEEPER, {"metadata": {"name": name}, "spec": spec})


async def status(world: World, keeper: ObjectKeeper) -> tuple[str | None, str | None, str | None]:
    found = (await world.fresh(keeper)).status
    assert found is not None
    return found.phase, found.lost_at, found.expires_at


def moment(world: World, seconds: float = 0) -> str:
    return to_timestamp(world.clock.wall_ns() + round(seconds * 10**9))


# --- the three modes --------------------------------------------------------------------------------------------------


async def test_a_keeper_that_follows_goes_at_once_when_what_it_follows_is_gone(world: World) -> None:
    followed = await world.config_map("followed")
    keeper = await keeper_of(world, followed, KeeperMode.FOLLOW_OBJECT)
    await world.live(hours=100, step=100 * HOUR)
    assert await status(world, keeper) == (KeeperPhase.TRACKING, None, None)
    await world.delete(followed)
    await world.rest()
    assert not await world.exists(keeper), "no time passes"
    (row,) = await world.journal_rows()
    assert (row.domain, row.address, row.reason) == ("keepers", "keeper/mine", "followed_lost")


async def test_the_ttl_of_a_keeper_counts_from_its_creation(world: World) -> None:
    keeper = await keeper_of(world, None, KeeperMode.TTL, ttl="2h")
    await world.settle()
    assert await status(world, keeper) == (KeeperPhase.EXPIRING, None, moment(world, 2 * HOUR))
    world.advance(2 * HOUR)
    await world.rest()
    assert await world.exists(keeper), "at the very end it is kept"
    world.advance(ns=1)
    await world.rest()
    assert not await world.exists(keeper)


async def test_a_keeper_that_follows_with_a_ttl_counts_from_the_loss(world: World) -> None:
    followed = await world.config_map("followed")
    keeper = await keeper_of(world, followed, KeeperMode.FOLLOW_OBJECT_WITH_TTL, ttl="2h")
    await world.live(hours=50, step=50 * HOUR)
    assert await status(world, keeper) == (KeeperPhase.TRACKING, None, None)
    await world.delete(followed)
    await world.settle()
    assert await status(world, keeper) == (KeeperPhase.EXPIRING, moment(world), moment(world, 2 * HOUR))
    world.advance(2 * HOUR)
    await world.rest()
    assert await world.exists(keeper)
    world.advance(ns=1)
    await world.rest()
    assert not await world.exists(keeper)
    (row,) = await world.journal_rows()
    assert (row.reason, row.anchor_ns) == ("ttl_expired", world.clock.wall_ns() - 2 * HOUR * 10**9 - 1)


async def test_a_keeper_without_end_stays(world: World) -> None:
    keeper = await keeper_of(world, None, KeeperMode.TTL, ttl="never")
    await world.live(hours=10_000, step=10_000 * HOUR)
    assert await world.exists(keeper)


async def test_with_the_mode_of_the_founding_document_artifacts_go_with_their_request(tmp_path: Path) -> None:
    async with opened(tmp_path, policy=RequestPolicy(keeper_mode=KeeperMode.FOLLOW_OBJECT)) as world:
        request = await done(world, snapshot)
        keeper = await world.keeper(request)
        assert (keeper.spec.mode, keeper.spec.ttl) == (KeeperMode.FOLLOW_OBJECT, None)
        await world.delete(request)
        await world.rest()
        assert not await world.exists(keeper)
        assert await world.all(VOLUME_SNAPSHOT_CONTENT) == []


# --- lostAt -----------------------------------------------------------------------------------------------------------


async def test_the_time_of_the_loss_is_set_once(world: World) -> None:
    followed = await world.config_map("followed")
    keeper = await keeper_of(world, followed, KeeperMode.FOLLOW_OBJECT_WITH_TTL, ttl="24h")
    await world.settle()
    await world.delete(followed)
    await world.settle()
    lost = (await status(world, keeper))[1]
    await world.live(hours=5, step=HOUR)
    await world.restart()
    await world.live(hours=5, step=HOUR)
    assert (await status(world, keeper))[1] == lost


async def test_the_time_of_the_loss_is_cleared_when_the_same_object_is_there_again(world: World) -> None:
    followed = await world.config_map("followed")
    keeper = await keeper_of(world, followed, KeeperMode.FOLLOW_OBJECT_WITH_TTL, ttl="2h")
    await world.settle()
    # A uid does not come back by itself; but what was written by mistake must not stay.
    await world.report(OBJECT_KEEPER, keeper.metadata.key, {"lostAt": moment(world), "phase": "Expiring"})
    await world.settle()
    assert await status(world, keeper) == (KeeperPhase.TRACKING, None, None)
    await world.live(hours=10, step=HOUR)
    assert await world.exists(keeper)


async def test_a_keeper_whose_object_is_there_is_not_ended_by_a_loss_that_was_written_down(world: World) -> None:
    followed = await world.config_map("followed")
    keeper = await keeper_of(world, followed, KeeperMode.FOLLOW_OBJECT_WITH_TTL, ttl="2h")
    await world.settle()
    world.advance(5 * HOUR)
    await world.report(OBJECT_KEEPER, keeper.metadata.key, {"lostAt": moment(world, -5 * HOUR)})
    await world.sweep()  # before any reconcile could correct it
    assert await world.exists(keeper)


async def test_another_object_of_the_same_name_is_a_loss(world: World) -> None:
    followed = await world.config_map("followed")
    keeper = await keeper_of(world, followed, KeeperMode.FOLLOW_OBJECT_WITH_TTL, ttl="2h")
    await world.settle()
    await world.delete(followed)
    await world.config_map("followed")
    await world.settle()
    assert (await status(world, keeper))[1] == moment(world)
    at_once = await keeper_of(world, followed, KeeperMode.FOLLOW_OBJECT, name="at-once")
    await world.rest()
    assert not await world.exists(at_once)


# --- doubt keeps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ForbiddenError(problem="configmaps is forbidden"),
        StoreUnavailableError(problem="away"),
        UnknownKindError(kind="ConfigMap", api_version="v1"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("mode", [KeeperMode.FOLLOW_OBJECT, KeeperMode.FOLLOW_OBJECT_WITH_TTL])
async def test_a_keeper_stays_while_what_it_follows_cannot_be_read_and_goes_when_it_can(
    world: World, mode: KeeperMode, error: Exception
) -> None:
    followed = await world.config_map("followed")
    keeper = await keeper_of(world, followed, mode, ttl="2h" if mode != KeeperMode.FOLLOW_OBJECT else None)
    await world.settle()

    def unreadable(call: Call) -> None:
        wanted = "resolve ConfigMap" if isinstance(error, UnknownKindError) else "get ConfigMap"
        if str(call) == wanted:
            raise error

    world.wire.before = unreadable
    await world.delete(followed)
    await world.live(hours=10, step=HOUR)
    assert await world.exists(keeper)
    found = (await world.fresh(keeper)).status
    assert found is not None
    assert found.lost_at is None
    world.wire.before = lambda _call: None
    await world.live(hours=4, step=600)
    assert not await world.exists(keeper)


@pytest.mark.parametrize("error", [ForbiddenError(problem="no"), StoreUnavailableError(problem="away")])
async def test_a_keeper_that_is_due_stays_while_the_sweep_cannot_confirm_it_and_goes_when_it_can(
    world: World, error: Exception
) -> None:
    followed = await world.config_map("followed")
    keeper = await keeper_of(world, followed, KeeperMode.FOLLOW_OBJECT_WITH_TTL, ttl="2h")
    await world.settle()
    await world.delete(followed)
    await world.settle()

    def unreadable(call: Call) -> None:
        if str(call) == "get ConfigMap":
            raise error

    world.wire.before = unreadable
    world.advance(2 * HOUR + 1)
    report = (await world.sweep())["keepers"]
    assert (report.unknown, report.failed) == ((1, 0) if isinstance(error, ForbiddenError) else (0, 1))
    assert await world.exists(keeper)
    world.wire.before = lambda _call: None
    await world.live(minutes=5, step=30)
    assert not await world.exists(keeper), "the doubt is over"


async def test_a_keeper_with_an_unreadable_ttl_stays(world: World) -> None:
    keeper = await keeper_of(world, None, KeeperMode.TTL, ttl="2h")
    await world.caught_up()
    informer = world.requests.caches.of(OBJECT_KEEPER)
    odd = await world.fresh(keeper)
    informer._put(_with_ttl(odd, "10minutes"))
    world.advance(1000 * HOUR)
    assert [page async for page in world.requests.keepers.due(UnixNs(world.clock.wall_ns()), size=1)] == []


def _with_ttl(keeper: ObjectKeeper, ttl: str) -> ObjectKeeper:
    body = OBJECT_KEEPER.body(keeper)
    body["spec"]["ttl"] = ttl
    body["metadata"]["resourceVersion"] = "999999"
    return OBJECT_KEEPER.convert(body)


# --- holds ------------------------------------------------------------------------------------------------------------


async def test_a_held_keeper_stays_until_it_is_released(world: World) -> None:
    keeper = await world.hold(await keeper_of(world, None, KeeperMode.TTL, ttl="1h"))
    await world.live(hours=5, step=600)
    assert await world.exists(keeper)
    assert [row.outcome for row in await world.journal_rows()] == [Outcome.HELD]
    await world.release(keeper)
    await world.live(minutes=11)
    assert not await world.exists(keeper)


async def test_a_hold_with_an_end_keeps_until_then(world: World) -> None:
    keeper = await keeper_of(world, None, KeeperMode.TTL, ttl="1h")
    await world.hold(keeper, until=moment(world, 3 * HOUR))
    await world.live(hours=2.9, step=600)
    assert await world.exists(keeper)
    await world.live(hours=0.4, step=300)
    assert not await world.exists(keeper)


@pytest.mark.parametrize("story", [snapshot, detach, manifests])
async def test_a_held_dependent_keeps_its_keeper_until_it_is_released(world: World, story: Any) -> None:  # noqa: ANN401
    request = await done(world, story)
    keeper = await world.keeper(request)
    kind = {snapshot: VOLUME_SNAPSHOT_CONTENT, detach: PERSISTENT_VOLUME, manifests: MANIFEST_CHUNK}[story]
    dependent: Any = (await world.all(kind))[0]  # type: ignore[arg-type]
    await world.hold(dependent)
    await world.live(hours=30, step=HOUR)
    assert not await world.exists(request)
    assert await world.exists(keeper)
    assert await world.exists(dependent)
    await world.release(dependent)
    await world.live(minutes=25, step=300)
    assert not await world.exists(keeper)
    assert not await world.exists(dependent)


async def test_a_hold_that_the_cache_has_not_seen_yet_keeps(world: World) -> None:
    request = await done(world, snapshot)
    keeper = await world.keeper(request)
    await world.live(minutes=15, step=300)
    assert not await world.exists(request)
    world.advance(25 * HOUR)
    await world.caught_up()
    filling = world._filling
    assert filling is not None
    filling.cancel()
    await world.hold((await world.all(VOLUME_SNAPSHOT_CONTENT))[0])
    report = await world.requests.loops[0].sweeps[0].run(proceed=lambda: True)
    assert (report.held, report.ended) == (1, 0)
    assert await world.exists(keeper)
    await world.stop()


async def test_a_held_followed_object_keeps_its_keeper(world: World) -> None:
    followed = await world.hold(await world.config_map("followed"))
    keeper = await keeper_of(world, followed, KeeperMode.FOLLOW_OBJECT_WITH_TTL, ttl="1h")
    await world.report(OBJECT_KEEPER, keeper.metadata.key, {"lostAt": moment(world)})
    world.advance(2 * HOUR)
    await world.sweep()
    assert await world.exists(keeper)
    await world.live(hours=5, step=HOUR)
    assert await world.exists(keeper)


# --- what goes with it ------------------------------------------------------------------------------------------------


async def test_the_handle_of_a_detached_volume_is_in_the_row_of_its_keeper(world: World) -> None:
    request = await done(world, detach)
    keeper = await world.keeper(request)
    await world.live(minutes=12)
    await world.live(hours=25, step=HOUR)
    assert await world.all(PERSISTENT_VOLUME) == []
    (row,) = await world.journal_rows(uid=keeper.metadata.uid)
    assert row.outcome is Outcome.ENDED
    assert row.details == {"volumeHandles": ["vol-data"]}


async def test_artifacts_that_are_no_volumes_leave_no_details(world: World) -> None:
    request = await done(world, snapshot)
    keeper = await world.keeper(request)
    await world.live(minutes=12)
    await world.live(hours=25, step=HOUR)
    (row,) = await world.journal_rows(uid=keeper.metadata.uid)
    assert row.details is None


async def test_a_keeper_without_a_request_left_is_found_after_a_restart(world: World) -> None:
    request = await done(world, snapshot)
    keeper = await world.keeper(request)
    await world.stop()
    await world.delete(request)
    world.advance(HOUR)
    await world.restart()
    await world.settle()
    lost = (await status(world, keeper))[1]
    assert lost == moment(world), "the loss counts from when it was seen: rather later than earlier"
    await world.live(hours=25, step=HOUR)
    assert not await world.exists(keeper)


async def test_a_dry_run_ends_no_keeper_and_says_so(world: World) -> None:
    keeper = await keeper_of(world, None, KeeperMode.TTL, ttl="1h")
    world.requests.executor.dry_run = True
    await world.live(hours=3, step=600)
    assert await world.exists(keeper)
    assert [row.outcome for row in await world.journal_rows()] == [Outcome.WOULD_END]


async def test_reconciling_keepers_whose_objects_are_there_costs_no_call(world: World) -> None:
    request = await done(world, snapshot)
    keeper = await world.keeper(request)
    await world.settle()
    world.wire.calls.clear()
    for _ in range(10):
        assert (await world.reconcile(keeper)).requeue_after == 60.0
    assert {str(call) for call in world.wire.calls} <= {"resolve VolumeCaptureRequest"}


async def test_the_policy_of_the_keeper_is_what_was_configured(tmp_path: Path) -> None:
    policy = replace(RequestPolicy(), keeper_ttl=Duration.parse("90m"))
    async with opened(tmp_path, policy=policy) as world:
        request = await world.completed(VOLUME_CAPTURE_REQUEST)
        keeper = await world.keeper(request)
        assert Duration.parse(keeper.spec.ttl or "") == Duration.parse("90m")
        await world.delete(request)
        await world.settle()
        assert from_timestamp((await status(world, keeper))[2] or "") == world.clock.wall_ns() + 5400 * 10**9
        await world.live(hours=2, step=600)
        assert not await world.exists(keeper)


async def test_a_keeper_follows_objects_of_kinds_that_nobody_watched_before(world: World) -> None:
    assert CONFIG_MAP not in world.requests.caches._informers
    followed = await world.config_map("followed")
    keeper = await keeper_of(world, followed, KeeperMode.FOLLOW_OBJECT)
    await world.settle()
    assert world.requests.caches.of(CONFIG_MAP).get(ObjectKey(NAMESPACE, "followed")) is not None
    await world.delete(followed)
    await world.rest()
    assert not await world.exists(keeper)
