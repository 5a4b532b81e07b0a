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
from tests.conformance.holds.harness import DAY, HELD, HOUR, Elsewhere, Harness, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from tests.conformance.holds.harness import Target
    from tests.integration.requests.world import Call

    Who = Callable[[Harness], Awaitable[Target]]
    Where = Callable[[Harness, Target], Awaitable[object]]

STORES = ["embedded", "elsewhere"]
WHO = [
    Harness.by_request_ttl,
    Harness.by_annotation,
    Harness.by_keeper_sweep,
    Harness.by_policy_on_keeper,
    Harness.by_policy_on_content,
    Harness.by_policy_on_request,
    Harness.by_history,
    Harness.by_detach,
    Harness.by_schedule,
    Harness.by_person,
]
WHERE = [
    Harness.on_itself,
    Harness.until_later,
    Harness.on_its_owner,
    Harness.on_the_owner_of_its_owner,
    Harness.on_a_dependant,
    Harness.on_a_dependant_of_a_dependant,
    Harness.in_a_note,
    Harness.in_a_note_on_a_dependant,
    Harness.on_a_dependant_that_nobody_watches,
]
SWEPT = (Harness.by_request_ttl, Harness.by_annotation, Harness.by_keeper_sweep)
"""What has a moment of its own, unlike a pass over everything."""
CASES = [
    *((who, where) for who in WHO for where in WHERE),
    (Harness.by_policy_on_following_keeper, Harness.on_what_is_followed),
    (Harness.by_policy_on_content, Harness.on_what_is_followed),
    (Harness.by_keeper_sweep, Harness.on_the_snapshot_of_the_keeper),
    (Harness.by_policy_on_keeper, Harness.on_the_snapshot_of_the_keeper),
]


@pytest.fixture(params=STORES)
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    async with opened(tmp_path, elsewhere=request.param == "elsewhere") as found:
        yield found


@pytest.mark.parametrize(("who", "where"), CASES, ids=lambda one: one.__name__)
async def test_what_is_held_stays_and_goes_when_it_is_released(harness: Harness, who: Who, where: Where) -> None:
    if who is Harness.by_person and isinstance(harness.world.wire.store, Elsewhere):
        pytest.skip("people delete requests of the embedded store only")
    target = await who(harness)
    await where(harness, target)
    await harness.act(target)
    assert await harness.exists(target)

    await harness.release()
    harness.world.advance(HOUR)
    await harness.act(target)
    assert not await harness.exists(target)


@pytest.mark.parametrize(("who", "where"), [one for one in CASES if one[0] in SWEPT], ids=lambda one: one.__name__)
async def test_what_is_released_goes_at_once(harness: Harness, who: Who, where: Where) -> None:
    """Wherever the hold stood: nothing waits for the look that is made every ten minutes."""
    target = await who(harness)
    await where(harness, target)
    await harness.act(target)
    await harness.world.rest()  # nothing is left to do that would look at it by chance
    await harness.world.rest()
    assert await harness.exists(target)
    harness.world.advance(1)
    await harness.release()
    await harness.world.rest()
    assert not await harness.exists(target)


async def test_what_a_held_object_has_kept_goes_when_that_is_gone(harness: Harness) -> None:
    target = await harness.by_keeper_sweep()
    one = await harness.map_of("below", (OBJECT_KEEPER, target.obj), "shop")
    await harness.mark(CONFIG_MAP, one)
    await harness.world.rest()
    await harness.world.rest()
    assert await harness.exists(target)
    await harness.store.delete(CONFIG_MAP, one.metadata.key)
    await harness.world.rest()
    assert not await harness.exists(target)


@pytest.mark.parametrize("who", WHO, ids=lambda one: one.__name__)
async def test_a_hold_whose_end_has_passed_holds_nothing(harness: Harness, who: Who) -> None:
    target = await who(harness)
    owner = await harness.volume("owner")
    over = {**HELD, "lapse.dev/hold-until": harness.moment(-1)}
    await harness.own(target.kind, target.obj, owner=(PERSISTENT_VOLUME, owner))
    await harness.mark(PERSISTENT_VOLUME, owner, over)
    await harness.mark(target.kind, target.obj, over)
    await harness.act(target)
    assert not await harness.exists(target)


async def test_of_what_an_owner_keeps_only_what_is_held_stays(harness: Harness) -> None:
    """A hold on one dependant keeps the owner, and says nothing about the other dependants."""
    target = await harness.by_policy_on_content()
    keeper = await harness.store.get(OBJECT_KEEPER, ObjectKey(None, "mine"))
    await harness.mark(CONFIG_MAP, await harness.map_of("other", (OBJECT_KEEPER, keeper), "shop"))
    await harness.act(target)
    assert not await harness.exists(target)


async def test_a_held_artifact_with_two_owners_keeps_both(harness: Harness) -> None:
    """Either of them would save it; but both may be due at the same moment."""
    await harness.keeper()
    content = await harness.store.get(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, "snap"))
    spec = {"mode": KeeperMode.TTL, "ttl": "1h"}
    second = await harness.store.create(OBJECT_KEEPER, {"metadata": {"name": "second"}, "spec": spec})
    await harness.own(VOLUME_SNAPSHOT_CONTENT, content, owner=(OBJECT_KEEPER, second))
    await harness.mark(VOLUME_SNAPSHOT_CONTENT, content)
    harness.world.advance(DAY)
    await harness.world.caught_up()
    await harness.world.sweep()
    assert await harness.world.names(OBJECT_KEEPER) == ["mine", "second"]
    assert await harness.world.names(VOLUME_SNAPSHOT_CONTENT) == ["snap"]


# --- the hold of a request outlives it --------------------------------------------------------------------------------


@pytest.fixture(params=STORES)
async def following(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    """Keepers go with their request."""
    policy = RequestPolicy(keeper_mode=KeeperMode.FOLLOW_OBJECT)
    async with opened(tmp_path, elsewhere=request.param == "elsewhere", policy=policy) as found:
        yield found


async def test_a_request_that_is_released_takes_its_keeper_along_at_once(following: Harness) -> None:
    world = following.world
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    await world.hold(request)
    await world.live(hours=50, step=HOUR)
    await world.rest()
    assert len(await world.names(VOLUME_SNAPSHOT_CONTENT)) == 1

    await world.release(request)
    for _ in range(3):  # the request goes, its keeper is told, the keeper goes
        await world.rest()
    assert await world.names(VOLUME_CAPTURE_REQUEST) == await world.names(OBJECT_KEEPER) == []
    assert await world.names(VOLUME_SNAPSHOT_CONTENT) == []


async def test_a_held_request_that_a_person_deletes_leaves_its_snapshot(following: Harness) -> None:
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


async def test_a_request_that_is_held_and_deleted_at_once_leaves_its_snapshot(following: Harness) -> None:
    world = following.world
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    await world.hold(request)
    await world.caught_up()
    await world.delete(request)
    await world.live(hours=50, step=HOUR)
    assert len(await world.names(VOLUME_SNAPSHOT_CONTENT)) == 1


async def test_the_hold_on_the_keeper_follows_that_of_its_request(following: Harness) -> None:
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


async def test_a_hold_of_the_keeper_itself_is_not_released_with_its_request(following: Harness) -> None:
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
    async with opened(tmp_path, elsewhere=False, policy=RequestPolicy(keeper_mode=KeeperMode.FOLLOW_OBJECT)) as harness:
        target = await harness.by_person()
        if held == "keeper":
            await harness.mark(OBJECT_KEEPER, await harness.world.keeper(target.obj))
        else:
            await harness.mark(VOLUME_SNAPSHOT_CONTENT, (await harness.world.all(VOLUME_SNAPSHOT_CONTENT))[0])
        await harness.act(target)
        assert await harness.exists(target)
        await harness.release()
        await harness.act(target)
        assert not await harness.exists(target)


# --- between the verdict and the act ----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [Harness.on_itself, Harness.on_its_owner, Harness.on_a_dependant])
@pytest.mark.parametrize("who", [Harness.by_request_ttl, Harness.by_keeper_sweep, Harness.by_policy_on_content])
async def test_a_hold_that_is_placed_between_the_look_and_the_deletion_counts(
    tmp_path: Path, who: Who, where: Where
) -> None:
    async with opened(tmp_path, elsewhere=False) as harness:
        target = await who(harness)
        await where(harness, target)
        await harness.release()
        real, store, was_held = harness.store.delete_all, harness.store, False

        async def delete_all(*args: object, **how: object) -> object:
            nonlocal was_held
            was_held = True
            for kind, key in harness.marked:
                await store.patch(kind, key, {"metadata": {"annotations": HELD}})
            return await real(*args, **how)  # type: ignore[arg-type]

        vars(store)["delete_all"] = delete_all
        await harness.act(target)
        assert was_held
        assert await harness.exists(target)
        (row,) = await harness.world.journal_rows(uid=target.obj.metadata.uid)
        assert row.outcome is Outcome.HELD


# --- doubt ------------------------------------------------------------------------------------------------------------


async def test_what_has_an_owner_that_cannot_be_read_is_kept(tmp_path: Path) -> None:
    def before(call: Call) -> None:
        if call.method == "get" and call.kind == PERSISTENT_VOLUME.kind:
            raise ForbiddenError(kind=call.kind, problem="get is not allowed")

    async with opened(tmp_path, elsewhere=True) as harness:
        target = await harness.by_history()
        await harness.own(target.kind, target.obj, owner=(PERSISTENT_VOLUME, await harness.volume("owner")))
        harness.world.wire.before = before
        runs = await harness.retention().run_once()
        assert await harness.exists(target)
        assert "it is not known whether it is held" in runs["history"].message
        assert not runs["history"].is_ready


async def test_nothing_is_ended_while_what_holds_it_cannot_be_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lapse.requests.controllers.caches._SYNC_SECONDS", 0.01)
    async with opened(tmp_path, elsewhere=True) as harness:
        target = await harness.by_history()
        await harness.world.stop()
        harness.world._build(harness.world.policy, harness.world.wire)  # caches that nobody fills
        runs = await harness.retention().run_once()
        assert await harness.exists(target)
        assert "not filled yet" in runs["history"].message


async def test_a_process_that_does_not_lead_remembers_nothing_of_requests_that_are_gone(following: Harness) -> None:
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


async def test_a_request_that_is_released_and_goes_at_once_leaves_no_hold_on_its_keeper(following: Harness) -> None:
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
