"""Whatever ends things, and wherever the hold stands: what is held stays, and goes when it is released.

Each case runs twice: on the embedded store, which finds holds in its tables, and on a store that cannot, where owners
are read and dependants are found in caches, as on a cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.engine.journal.port import Outcome
from lapse.kube.errors import ForbiddenError
from lapse.kube.resources import ObjectKey
from lapse.requests.api.kinds import OBJECT_KEEPER, VOLUME_CAPTURE_REQUEST, KeeperMode
from lapse.requests.api.upstream import CONFIG_MAP, PERSISTENT_VOLUME, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.lifecycle.policy import RequestPolicy
from tests.conformance.holds.stage import DAY, HELD, HOUR, Elsewhere, Stage, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.integration.requests.world import Call

STORES = ["embedded", "elsewhere"]
WHO = [
    Stage.by_request_ttl,
    Stage.by_annotation,
    Stage.by_keeper_sweep,
    Stage.by_policy_on_keeper,
    Stage.by_policy_on_content,
    Stage.by_policy_on_request,
    Stage.by_history,
    Stage.by_detach,
    Stage.by_person,
]
WHERE = [
    Stage.on_itself,
    Stage.until_later,
    Stage.on_its_owner,
    Stage.on_the_owner_of_its_owner,
    Stage.on_a_dependant,
    Stage.on_a_dependant_of_a_dependant,
    Stage.in_a_note,
    Stage.in_a_note_on_a_dependant,
]
CASES = [
    *((who, where) for who in WHO for where in WHERE),
    (Stage.by_policy_on_following_keeper, Stage.on_what_is_followed),
    (Stage.by_policy_on_content, Stage.on_what_is_followed),
    (Stage.by_keeper_sweep, Stage.on_the_snapshot_of_the_keeper),
    (Stage.by_policy_on_keeper, Stage.on_the_snapshot_of_the_keeper),
]


@pytest.fixture(params=STORES)
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    async with opened(tmp_path, elsewhere=request.param == "elsewhere") as found:
        yield found


@pytest.mark.parametrize(("who", "where"), CASES, ids=lambda one: one.__name__)
async def test_what_is_held_stays_and_goes_when_it_is_released(stage: Stage, who: object, where: object) -> None:
    if who is Stage.by_person and isinstance(stage.world.wire.store, Elsewhere):
        pytest.skip("people delete requests of the embedded store only")
    target = await who(stage)  # type: ignore[operator]
    await where(stage, target)  # type: ignore[operator]
    await stage.act(target)
    assert await stage.exists(target)

    await stage.release()
    stage.world.advance(HOUR)
    await stage.act(target)
    assert not await stage.exists(target)


@pytest.mark.parametrize("who", WHO, ids=lambda one: one.__name__)
async def test_a_hold_whose_end_has_passed_holds_nothing(stage: Stage, who: object) -> None:
    target = await who(stage)  # type: ignore[operator]
    owner = await stage.volume("owner")
    over = {**HELD, "lapse.dev/hold-until": stage.moment(-1)}
    await stage.own(target.kind, target.obj, owner=(PERSISTENT_VOLUME, owner))
    await stage.mark(PERSISTENT_VOLUME, owner, over)
    await stage.mark(target.kind, target.obj, over)
    await stage.act(target)
    assert not await stage.exists(target)


async def test_of_what_an_owner_keeps_only_what_is_held_stays(stage: Stage) -> None:
    """A hold on one dependant keeps the owner, and says nothing about the other dependants."""
    target = await stage.by_policy_on_content()
    keeper = await stage.store.get(OBJECT_KEEPER, ObjectKey(None, "mine"))
    await stage.mark(CONFIG_MAP, await stage.map_of("other", (OBJECT_KEEPER, keeper), "shop"))
    await stage.act(target)
    assert not await stage.exists(target)


async def test_a_held_artifact_with_two_owners_keeps_both(stage: Stage) -> None:
    """Either of them would save it; but both may be due at the same moment."""
    await stage.keeper()
    content = await stage.store.get(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, "snap"))
    spec = {"mode": KeeperMode.TTL, "ttl": "1h"}
    second = await stage.store.create(OBJECT_KEEPER, {"metadata": {"name": "second"}, "spec": spec})
    await stage.own(VOLUME_SNAPSHOT_CONTENT, content, owner=(OBJECT_KEEPER, second))
    await stage.mark(VOLUME_SNAPSHOT_CONTENT, content)
    stage.world.advance(DAY)
    await stage.world.caught_up()
    await stage.world.sweep()
    assert await stage.world.names(OBJECT_KEEPER) == ["mine", "second"]
    assert await stage.world.names(VOLUME_SNAPSHOT_CONTENT) == ["snap"]


# --- the hold of a request outlives it --------------------------------------------------------------------------------


@pytest.fixture(params=STORES)
async def following(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    """Keepers go with their request."""
    policy = RequestPolicy(keeper_mode=KeeperMode.FOLLOW_OBJECT)
    async with opened(tmp_path, elsewhere=request.param == "elsewhere", policy=policy) as found:
        yield found


async def test_a_held_request_that_a_person_deletes_leaves_its_snapshot(following: Stage) -> None:
    world = following.world
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    await world.hold(request)
    await world.rest()
    await world.delete(request)
    await world.live(hours=50, step=HOUR)
    assert len(await world.names(VOLUME_SNAPSHOT_CONTENT)) == 1

    await world.release(await world.keeper(request))
    await world.live(hours=1, step=600)
    assert await world.names(VOLUME_SNAPSHOT_CONTENT) == []


async def test_a_request_that_is_held_and_deleted_at_once_leaves_its_snapshot(following: Stage) -> None:
    world = following.world
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    await world.hold(request)
    await world.caught_up()
    await world.delete(request)
    await world.live(hours=50, step=HOUR)
    assert len(await world.names(VOLUME_SNAPSHOT_CONTENT)) == 1


async def test_the_hold_on_the_keeper_follows_that_of_its_request(following: Stage) -> None:
    world = following.world
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    until = following.moment(DAY)
    await world.annotate(request, {**HELD, "lapse.dev/hold-reason": "audit", "lapse.dev/hold-until": until})
    await world.settle()
    found = (await world.keeper(request)).metadata.annotations
    assert found["lapse.dev/hold-reason"] == "audit"
    assert found["lapse.dev/hold-until"] == until

    await world.annotate(request, {"lapse.dev/hold-until": None})
    await world.settle()
    assert "lapse.dev/hold-until" not in (await world.keeper(request)).metadata.annotations

    await world.annotate(request, {"lapse.dev/hold": None, "lapse.dev/hold-reason": None})
    await world.settle()
    assert not [name for name in (await world.keeper(request)).metadata.annotations if name.startswith("lapse.dev/h")]


async def test_a_hold_of_the_keeper_itself_is_not_released_with_its_request(following: Stage) -> None:
    world = following.world
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    own = {**HELD, "lapse.dev/hold-reason": "mine"}
    await world.annotate(await world.keeper(request), own)
    await world.hold(request)
    await world.settle()
    await world.release(request)
    await world.settle()
    assert (await world.keeper(request)).metadata.annotations["lapse.dev/hold-reason"] == "mine"

    await world.annotate(await world.keeper(request), {"lapse.dev/hold": None, "lapse.dev/hold-reason": None})
    await world.hold(request)
    await world.settle()
    await world.annotate(await world.keeper(request), own)  # over one that was passed on
    await world.release(request)
    await world.settle()
    assert (await world.keeper(request)).metadata.annotations["lapse.dev/hold-reason"] == "mine"


@pytest.mark.parametrize("held", ["keeper", "snapshot"])
async def test_a_person_does_not_delete_a_request_that_takes_along_what_is_held(tmp_path: Path, held: str) -> None:
    async with opened(tmp_path, elsewhere=False, policy=RequestPolicy(keeper_mode=KeeperMode.FOLLOW_OBJECT)) as stage:
        target = await stage.by_person()
        if held == "keeper":
            await stage.mark(OBJECT_KEEPER, await stage.world.keeper(target.obj))
        else:
            await stage.mark(VOLUME_SNAPSHOT_CONTENT, (await stage.world.all(VOLUME_SNAPSHOT_CONTENT))[0])
        await stage.act(target)
        assert await stage.exists(target)
        await stage.release()
        await stage.act(target)
        assert not await stage.exists(target)


# --- between the verdict and the act ----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [Stage.on_itself, Stage.on_its_owner, Stage.on_a_dependant])
@pytest.mark.parametrize("who", [Stage.by_request_ttl, Stage.by_keeper_sweep, Stage.by_policy_on_content])
async def test_a_hold_that_is_placed_between_the_look_and_the_deletion_counts(
    tmp_path: Path, who: object, where: object
) -> None:
    async with opened(tmp_path, elsewhere=False) as stage:
        target = await who(stage)  # type: ignore[operator]
        await where(stage, target)  # type: ignore[operator]
        await stage.release()
        real, store, was_held = stage.store.delete_all, stage.store, False

        async def delete_all(*args: object, **how: object) -> object:
            nonlocal was_held
            was_held = True
            for kind, key in stage.marked:
                await store.patch(kind, key, {"metadata": {"annotations": HELD}})
            return await real(*args, **how)  # type: ignore[arg-type]

        vars(store)["delete_all"] = delete_all
        await stage.act(target)
        assert was_held
        assert await stage.exists(target)
        (row,) = await stage.world.journal_rows(uid=target.obj.metadata.uid)
        assert row.outcome is Outcome.HELD


# --- doubt ------------------------------------------------------------------------------------------------------------


async def test_what_has_an_owner_that_cannot_be_read_is_kept(tmp_path: Path) -> None:
    def before(call: Call) -> None:
        if call.method == "get" and call.kind == PERSISTENT_VOLUME.kind:
            raise ForbiddenError(kind=call.kind, problem="get is not allowed")

    async with opened(tmp_path, elsewhere=True) as stage:
        target = await stage.by_history()
        await stage.own(target.kind, target.obj, owner=(PERSISTENT_VOLUME, await stage.volume("owner")))
        stage.world.wire.before = before
        runs = await stage.retention().run_once()
        assert await stage.exists(target)
        assert "it is not known whether it is held" in runs["history"].message
        assert not runs["history"].is_ready


async def test_nothing_is_ended_while_what_holds_it_cannot_be_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lapse.requests.controllers.caches._SYNC_SECONDS", 0.01)
    async with opened(tmp_path, elsewhere=True) as stage:
        target = await stage.by_history()
        await stage.world.stop()
        stage.world._build(stage.world.policy, stage.world.wire)  # caches that nobody fills
        runs = await stage.retention().run_once()
        assert await stage.exists(target)
        assert "not filled yet" in runs["history"].message


async def test_a_process_that_does_not_lead_remembers_nothing_of_requests_that_are_gone(following: Stage) -> None:
    world = following.world
    request = await world.hold(await world.completed(VOLUME_CAPTURE_REQUEST))
    await world.settle()
    keeper = await world.keeper(request)
    await world.delete(await world.fresh(request))
    await world.caught_up()  # and no controller works
    assert world.requests.keeper._last_holds.keys() == {request.metadata.uid}
    await world.delete(keeper)
    await world.caught_up()
    assert world.requests.keeper._last_holds == {}


async def test_a_request_that_is_released_and_goes_at_once_leaves_no_hold_on_its_keeper(following: Stage) -> None:
    world = following.world
    request = await world.hold(await world.completed(VOLUME_CAPTURE_REQUEST))
    await world.settle()
    keeper = await world.keeper(request)
    assert "lapse.dev/hold" in keeper.metadata.annotations
    await world.release(request)
    await world.caught_up()  # the cache has seen the release, and no controller has worked since
    await world.delete(await world.fresh(request))
    await world.live(minutes=2)
    assert not await world.exists(keeper)
