"""What people do with requests, keepers and artifacts: plan, why, hold, extend and undo of what lapsed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.duration import Duration
from lapse.core.errors import LapseError
from lapse.engine.explanation import TrashFacts, explanation_rows
from lapse.engine.journal.log import LogJournal
from lapse.engine.plans.plan import COLUMNS, PlanStep
from lapse.engine.verbs.contract import (
    ApplyRequest,
    DeleteRequest,
    ExtendRequest,
    HoldRequest,
    PlanRequest,
    ReleaseRequest,
    TrashRequest,
    UndoRequest,
    WhyRequest,
)
from lapse.engine.view import Moment, row
from lapse.kube.resources import ObjectKey
from lapse.objects.holds.steering import DependantsHeldError, PassedOnHoldError
from lapse.objects.trash.rules import BROUGHT_BACK
from lapse.requests.addresses import Located
from lapse.requests.api.kinds import (
    EXPIRES_AT,
    MANIFEST_CAPTURE_REQUEST,
    OBJECT_KEEPER,
    VOLUME_CAPTURE_REQUEST,
    VOLUME_RESTORE_REQUEST,
    KeeperMode,
)
from lapse.requests.api.upstream import PERSISTENT_VOLUME, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.lifecycle.policy import RequestPolicy
from lapse.requests.submission import Restore, SourceError
from lapse.requests.view import read_views, with_held_keepers
from tests.integration.requests.people import person
from tests.integration.requests.world import World, content_key, kind_of, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.kube.resources import Kind

SERVICES = {"trash_ttl": Duration.parse("7d")}
FOLLOWING = RequestPolicy(keeper_mode=KeeperMode.FOLLOW_OBJECT)
DAY = 86_400


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path, services=SERVICES) as found:
        yield found


def address(obj: Any) -> str:  # noqa: ANN401 - any object
    return str(Located(kind_of(obj), obj.metadata.key).address)


async def shown(world: World) -> dict[str, Any]:
    """What a list of the namespace shows, by address."""
    views = await read_views(world.store, (), "shop", now=world.clock.wall_ns(), rule=world.policy.ttl_rule)
    return {one.address: one for one in views}


# --- extend -----------------------------------------------------------------------------------------------------------


async def test_a_list_and_the_status_show_the_end_that_a_person_has_given(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    ann = person(world)
    extended = await ann.extend(ExtendRequest(address=address(request), time="2h"))
    await world.settle()
    assert (await shown(world))[address(request)].expires_at == extended.deadline
    assert (await world.fresh(request)).metadata.annotations[EXPIRES_AT] == str(extended.deadline)

    await world.live(hours=3, step=600)
    keeper = await world.keeper(request)
    snapshot = f"snapshot/{content_key(request).name}"
    told = await ann.extend(ExtendRequest(address=snapshot, time="5h"))
    await world.settle()
    assert (await shown(world))[address(keeper)].expires_at == told.deadline
    status = (await world.keeper(request)).status
    assert status is not None
    assert status.expires_at == str(told.deadline)
    await world.live(hours=26, step=600)
    assert await world.exists(keeper), "its keeper stays with it, because an artifact has no time of its own"
    await world.live(hours=4, step=600)
    assert not await world.exists(keeper)


# --- hold of what came back -------------------------------------------------------------------------------------------


async def test_a_hold_on_a_request_that_came_back_covers_its_old_keeper_and_artifact(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    keeper, content = await world.keeper(request), await world.store.get(VOLUME_SNAPSHOT_CONTENT, content_key(request))
    await world.live(minutes=11)
    ann = person(world)
    (back,) = (await ann.undo(UndoRequest(address=address(request)))).items
    assert address(keeper) in (back.says or "")
    assert back.hold is not None
    for one in (keeper, content):
        told = await ann.why(WhyRequest(address=address(one)))
        assert told.hold == back.hold, "the hold that an undo places counts for them, too"

    await ann.release(ReleaseRequest(address=address(request)))
    assert (await ann.why(WhyRequest(address=address(keeper)))).hold is None
    await ann.hold(HoldRequest(address=address(request), reason="audit"))
    await world.live(hours=10 * 24, step=DAY / 4)
    await world.requests.upkeep.tick()
    assert await world.exists(keeper)
    assert await world.exists(content)
    told = await ann.why(WhyRequest(address=address(content)))
    assert (told.verdict, told.hold and told.hold.reason) == ("keep", "audit")
    with pytest.raises(PassedOnHoldError, match="done"):
        await ann.release(ReleaseRequest(address=address(keeper)))

    await ann.release(ReleaseRequest(address=address(request)))
    await world.live(hours=1, step=600)
    assert not await world.exists(keeper)


async def test_a_list_says_of_an_artifact_that_its_keeper_is_held(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    snapshot = f"snapshot/{content_key(request).name}"
    assert (await shown(world))[snapshot].expires == "with its keeper"
    await person(world).hold(HoldRequest(address=address(request), reason="audit"))
    listed = {one.address: one for one in with_held_keepers(list((await shown(world)).values()))}
    keeper = listed[address(await world.keeper(request))]
    assert (keeper.held, listed[snapshot].expires) == (True, "with its keeper, which is held")


async def test_what_keeps_an_owner_is_named_by_its_address(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    keeper, snapshot = await world.keeper(request), f"snapshot/{content_key(request).name}"
    ann = person(world)
    await ann.hold(HoldRequest(address=snapshot, reason="audit"))
    told = await ann.why(WhyRequest(address=address(keeper)))
    assert told.hold is not None
    assert told.hold.reason == f"it owns objects that are held: {snapshot}"
    with pytest.raises(DependantsHeldError, match=f"^{address(keeper)} itself is not held"):
        await ann.release(ReleaseRequest(address=address(keeper)))


@pytest.mark.parametrize("legal", [False, True], ids=["plain", "legal"])
async def test_a_hold_on_a_request_that_came_back_covers_its_artifact_in_the_trash_and_out_of_it(
    tmp_path: Path,
    legal: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    async with opened(tmp_path, policy=FOLLOWING, services=SERVICES) as world:
        request = await world.completed(MANIFEST_CAPTURE_REQUEST)
        keeper = await world.keeper(request)
        checkpoint = f"checkpoint/{request.status.checkpoint_name}"
        await world.live(minutes=12)
        assert not await world.exists(keeper)
        ann, ben = person(world), person(world, "ben")
        await ann.undo(UndoRequest(address=address(request)))
        await ann.hold(HoldRequest(address=address(request), reason="audit", legal=legal, replace=True))
        await world.live(hours=10 * 24, step=DAY / 4)
        assert (await ann.trash(TrashRequest(domain="keepers"))).items, "it stays in the trash past its time"

        (back,) = (await ann.undo(UndoRequest(address=checkpoint))).items
        assert (await ann.why(WhyRequest(address=back.address))).hold is not None
        await world.live(hours=10 * 24, step=DAY / 4)
        await world.requests.upkeep.tick()
        assert (await ann.why(WhyRequest(address=checkpoint))).hold is not None
        await ben.release(ReleaseRequest(address=address(request), legal=legal))
        await world.live(hours=1, step=600)
        assert (await ann.why(WhyRequest(address=back.address))).verdict == "gone"
        assert not [one for one in await world.all(OBJECT_KEEPER) if "lapse.dev/hold" in one.metadata.annotations]


async def test_a_hold_that_came_back_again_covers_what_was_made_under_the_first_uid(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    ann = person(world)
    for _ in range(2):
        await world.live(minutes=11)
        await ann.undo(UndoRequest(address=address(request)))
        await ann.release(ReleaseRequest(address=address(request)))
    await world.hold(await world.store.get(VOLUME_CAPTURE_REQUEST, request.metadata.key))
    await world.caught_up()
    await world.requests.upkeep.tick()
    told = await ann.why(WhyRequest(address=f"snapshot/{content_key(request).name}"))
    assert told.hold is not None, "also a hold that somebody wrote by hand"


async def test_no_hold_is_passed_on_to_what_another_request_has_made(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    keeper = await world.keeper(request)
    forged = await world.store.create(
        VOLUME_CAPTURE_REQUEST,
        {
            "metadata": {"namespace": "other", "name": "done", "annotations": {BROUGHT_BACK: request.metadata.uid}},
            "spec": VOLUME_CAPTURE_REQUEST.body(request)["spec"],
        },
    )
    await world.store.patch_status(
        VOLUME_CAPTURE_REQUEST, forged.metadata.key, VOLUME_CAPTURE_REQUEST.body(request)["status"]
    )
    await person(world).hold(HoldRequest(address=address(forged), reason="mine now"))
    assert "lapse.dev/hold" not in (await world.fresh(keeper)).metadata.annotations
    restore = Restore.checked("r", namespace="other", source=address(forged), to=None, claim=None)
    with pytest.raises(SourceError, match="was not made for it"):
        await restore.ask(world.store)


# --- restore ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["the request", "the request and the keeper", "the request, and the keeper came back"])
async def test_a_request_that_came_back_can_be_restored_from_as_long_as_its_artifact_is_there(
    world: World, ends: str
) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    keeper, content = await world.keeper(request), await world.store.get(VOLUME_SNAPSHOT_CONTENT, content_key(request))
    await world.live(minutes=11)
    ann = person(world)
    if ends != "the request":
        await world.live(hours=25, step=600)
        assert not await world.exists(keeper)
    await ann.undo(UndoRequest(address=address(request)))
    if "came back" in ends:
        await ann.undo(UndoRequest(address=address(content)))
    await Restore.checked("r", namespace="shop", source=address(request), to=None, claim=None).ask(world.store)
    restore = await world.store.get(VOLUME_RESTORE_REQUEST, ObjectKey("shop", "r"))
    assert (restore.spec.source_ref.name, restore.spec.source_ref.uid) == (content.metadata.name, content.metadata.uid)
    await world.settle()
    await world.provision(restore)
    await world.settle()
    assert await world.reason(restore) == "Completed"


async def test_a_detached_volume_that_came_back_can_be_restored(world: World) -> None:
    claim = await world.volume("data")
    request = await world.capture("detach", claim, mode="Detach")
    await world.settle()
    await world.report(PERSISTENT_VOLUME, ObjectKey(None, "pv-data"), {"phase": "Released"})
    await world.live(hours=26, step=600)
    ann = person(world)
    await ann.undo(UndoRequest(address="volume/pv-data"))
    await ann.undo(UndoRequest(address=address(request)))
    await Restore.checked("r", namespace="shop", source=address(request), to=None, claim=None).ask(world.store)
    await world.settle()
    restore = await world.store.get(VOLUME_RESTORE_REQUEST, ObjectKey("shop", "r"))
    assert await world.reason(restore) is None, "it waits for its claim, and is not refused"


# --- what came back is found ------------------------------------------------------------------------------------------


async def test_what_an_undo_brought_back_is_in_the_lists_and_in_a_plan_with_its_end(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    snapshot = f"snapshot/{content_key(request).name}"
    await world.live(hours=26, step=600)
    ann = person(world)
    (back,) = (await ann.undo(UndoRequest(address=snapshot))).items
    await world.caught_up()
    assert back.address.startswith("keeper/back-")
    assert snapshot in (back.says or "")
    assert back.deadline == (await shown(world))[back.address].expires_at is not None
    assert snapshot in await shown(world)
    plan = await ann.plan(PlanRequest(within="8d"))
    (item,) = [one for one in plan.items if one.address == back.address]
    assert (item.takes_along, item.due_at) == ([snapshot], back.deadline)


# --- why --------------------------------------------------------------------------------------------------------------


async def test_of_a_snapshot_in_the_trash_it_is_told_who_ended_it_when_and_how_it_comes_back(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    keeper, snapshot = await world.keeper(request), f"snapshot/{content_key(request).name}"
    await world.live(minutes=11)
    ann = person(world)
    await ann.delete(DeleteRequest(address=address(keeper)))
    (entry,) = (await ann.trash(TrashRequest(domain="keepers"))).items
    await world.caught_up()

    told = await ann.why(WhyRequest(address=snapshot))
    assert told.trash == TrashFacts(entry.ended_at, entry.expires_at, "user ann", address(keeper), entry.uid)
    assert told.verdict == "gone"
    assert "it is in the trash" in told.because
    assert "user ann" in told.because
    assert told.undo == f"lapse undo {snapshot}, until {entry.expires_at}"
    assert "in the trash" in dict(explanation_rows(told))
    assert (told.saved_by, told.next_check) == ([], None), "a hold or an extension would bring nothing back"
    assert [row.address for row in told.journal] == [address(keeper)]

    (back,) = (await ann.undo(UndoRequest(address=snapshot))).items
    await world.caught_up()
    kept = await ann.why(WhyRequest(address=snapshot))
    assert (kept.verdict, kept.trash, kept.undo, kept.deadline) == ("keep", None, None, back.deadline)
    gone = await ann.why(WhyRequest(address=address(keeper)))
    assert (gone.verdict, gone.trash) == ("gone", None)
    assert (gone.undo or "").startswith("no: it is not in the trash any more")


async def test_that_a_snapshot_was_brought_back_is_told_of_the_snapshot_and_names_its_new_keeper(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    snapshot = f"snapshot/{content_key(request).name}"
    ann = person(world)
    await ann.delete(DeleteRequest(address=snapshot))
    await world.caught_up()
    (back,) = (await ann.undo(UndoRequest(address=snapshot))).items
    await world.caught_up()
    told = await ann.why(WhyRequest(address=snapshot))
    last = told.journal[0]
    assert (last.reason, last.address, last.uid) == ("brought_back", snapshot, told.uid)
    assert last.details == {"was": told.uid, "keeper": back.address, "domain": "keepers"}


async def test_a_plan_says_that_the_trash_itself_does_not_come_back(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    await world.live(hours=26, step=600)
    ann = person(world)
    (trash,) = [one for one in (await ann.plan(PlanRequest(within="8d"))).items if request.metadata.uid not in one.uid][
        :1
    ]
    assert trash.address.startswith("keeper/trash-")
    assert trash.not_undoable == "it is the trash itself"


async def test_why_answers_from_the_trash_where_the_journal_cannot_be_read(world: World) -> None:
    request = await world.completed(MANIFEST_CAPTURE_REQUEST)
    await world.live(minutes=11)
    ann = person(world, journal=LogJournal())
    told = await ann.why(WhyRequest(address=address(request)))
    assert told.trash is not None
    assert (told.verdict, told.trash.by, told.journal) == ("gone", None, [])
    assert (told.undo or "").startswith(f"lapse undo {address(request)}, until ")
    with pytest.raises(LapseError, match="database_url"):
        await ann.why(WhyRequest(address="vcr/shop/never-there"))


# --- plan -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [VOLUME_CAPTURE_REQUEST, MANIFEST_CAPTURE_REQUEST], ids=lambda kind: kind.short)
async def test_a_plan_tells_what_goes_with_a_request_and_with_a_keeper(tmp_path: Path, kind: Kind[Any]) -> None:
    async with opened(tmp_path, policy=FOLLOWING, services=SERVICES) as world:
        request = await world.completed(kind)
        keeper, artifact = await world.keeper(request), made_by(request)
        ann = person(world)
        plan = await ann.plan(PlanRequest(within="1h"))
        (item,) = plan.items
        assert (item.address, item.takes_along, item.then) == (
            address(request),
            sorted([artifact, address(keeper)]),
            [],
        )
        assert plan.following == 2


@pytest.mark.parametrize("kind", [VOLUME_CAPTURE_REQUEST, MANIFEST_CAPTURE_REQUEST], ids=lambda kind: kind.short)
async def test_a_plan_tells_what_a_keeper_lets_go_later_because_its_request_has_ended(
    world: World, kind: Kind[Any]
) -> None:
    request = await world.completed(kind)
    keeper, artifact = await world.keeper(request), made_by(request)
    ann = person(world)
    assert [one.then for one in (await ann.plan(PlanRequest(within="24h"))).items] == [[]], "that is before its TTL"
    plan = await ann.plan(PlanRequest(within="25h"))
    (item,) = plan.items
    end = Moment(item.due_at + DAY * 10**9)
    assert item.takes_along == []
    assert item.then == [PlanStep(address(keeper), "delete", end), PlanStep(artifact, "delete", end)]
    assert plan.following == 2
    shown = row(item, COLUMNS, plan.created_at)
    assert f"{artifact} (in 1d" in shown[[*COLUMNS].index("takes along")]
    assert shown[[*COLUMNS].index("undo")] == "yes"

    await ann.hold(HoldRequest(address=artifact, reason="audit"))
    (item,) = (await ann.plan(PlanRequest(within="25h"))).items
    assert item.then == [], "what is held stays"
    await ann.release(ReleaseRequest(address=artifact))
    await ann.extend(ExtendRequest(address=address(request), time="30m"))
    world.advance(3600)
    done = await ann.apply(ApplyRequest(plan=await ann.plan(PlanRequest(within="30h"))))
    assert [(one.address, one.outcome) for one in done.items] == [(address(request), "ended")]
    await world.live(seconds=120)
    assert await world.exists(keeper)
    later = await ann.plan(PlanRequest(within="25h"))
    (item,) = later.items
    assert (item.address, item.takes_along) == (address(keeper), [artifact])


def made_by(request: Any) -> str:  # noqa: ANN401 - a capture
    if kind_of(request) is MANIFEST_CAPTURE_REQUEST:
        return f"checkpoint/{request.status.checkpoint_name}"
    return f"snapshot/{content_key(request).name}"
