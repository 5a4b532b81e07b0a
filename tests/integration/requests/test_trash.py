"""The trash of requests, keepers and artifacts: what lapses comes back as it was, whenever the process is killed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lapse.app.trash import trashed_objects
from lapse.core.duration import Duration
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.engine.journal.port import Outcome
from lapse.engine.safety.extensions import EXTENDED_UNTIL
from lapse.engine.trash import NotInTrashError, PlaceTakenError, TrashBin
from lapse.kube.errors import ForbiddenError, NotFoundError
from lapse.kube.resources import ObjectKey
from lapse.objects.trash.rules import BROUGHT_BACK, TRASH, TRASH_STATE, is_in_trash
from lapse.requests.addresses import Located
from lapse.requests.api.kinds import (
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    MANIFEST_CHUNK,
    OBJECT_KEEPER,
    VOLUME_CAPTURE_REQUEST,
    VOLUME_RESTORE_REQUEST,
)
from lapse.requests.api.upstream import PERSISTENT_VOLUME, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.controllers.manifests import read_checkpoint
from lapse.requests.expiry import delete_by_person
from tests.integration.requests.world import Crash, Wire, World, content_key, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.engine.trash import TrashEntry
    from lapse.kube.resources import Kind
    from lapse.objects.trash.contents import TrashedObjects

WEEK = Duration.parse("7d")
DAY = 86_400
SERVICES = {"trash_ttl": WEEK}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path, services=SERVICES) as found:
        yield found


def trash_of(world: World) -> TrashBin:
    return TrashBin(
        trashed_objects(
            world.store, holds=world.store, dependants=world.store, journal=world.journal, clock=world.clock
        )
    )


async def listed(world: World) -> list[TrashEntry]:
    return (await trash_of(world).page()).items


async def undo(world: World, address: str) -> Any:  # noqa: ANN401 - what came back
    found = trash_of(world)
    return await found.bring_back(await found.find(address), by="ann")


async def lapsed(world: World, request: Any) -> Any:  # noqa: ANN401 - a keeper
    """Let a request lapse, and then its keeper; return the keeper as it was last."""
    keeper = await world.keeper(request)
    await world.live(hours=26, step=600)
    assert not await world.exists(request)
    assert not await world.exists(keeper)
    return keeper


# --- artifacts --------------------------------------------------------------------------------------------------------


async def test_a_snapshot_outlives_its_keeper_in_the_trash_and_undo_gives_it_a_fresh_one(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    content = await world.store.get(VOLUME_SNAPSHOT_CONTENT, content_key(request))
    await world.report(VOLUME_SNAPSHOT_CONTENT, content_key(request), {"restoreSize": 4096})
    keeper = await lapsed(world, request)
    kept = await world.fresh(content)
    (owner,) = kept.metadata.owner_references
    assert (owner.name, owner.controller) == (f"trash-{keeper.metadata.uid}", False)
    entry = next(one for one in await listed(world) if one.domain == "keepers")
    assert (entry.address, entry.uid, entry.bytes) == (f"keeper/{keeper.metadata.name}", keeper.metadata.uid, 4096)
    assert entry.contains == [str(Located(VOLUME_SNAPSHOT_CONTENT, content.metadata.key).address)]
    assert entry.ended_at is not None
    assert entry.expires_at == entry.ended_at + (WEEK.nanoseconds or 0)

    back = await undo(world, entry.contains[0])
    await world.settle()
    restored = await world.fresh(content)
    assert msgspec.structs.replace(restored, metadata=content.metadata, status=content.status) == content
    (owner,) = restored.metadata.owner_references
    assert (owner.uid, owner.controller) == (back.uid, True)
    assert not is_in_trash("VolumeSnapshotContent", restored.metadata)
    assert [one.domain for one in await listed(world)] == ["requests"]
    with pytest.raises(NotInTrashError):
        await undo(world, entry.address)
    await world.live(hours=6 * 24, step=DAY)
    assert await world.exists(content)
    await world.live(hours=2 * 24, step=DAY)
    assert (await world.fresh(content)).metadata.owner_references[0].name == f"trash-{back.uid}"


async def test_what_is_in_the_trash_is_gone_when_its_time_is_over_and_a_row_says_so(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    content = await world.store.get(VOLUME_SNAPSHOT_CONTENT, content_key(request))
    await lapsed(world, request)
    trash = next(one for one in await world.all(OBJECT_KEEPER) if not one.metadata.annotations.get(TRASH_STATE))
    created = from_timestamp(trash.metadata.creation_timestamp or "")
    assert created is not None
    world.advance(ns=created + (WEEK.nanoseconds or 0) - world.clock.wall_ns())
    await world.rest()
    assert await world.exists(content), "at the very moment it is not over yet"
    world.advance(ns=1)
    await world.rest()
    assert not await world.exists(content)
    assert await listed(world) == []
    rows = [row for row in await world.journal_rows(uid=trash.metadata.uid) if row.outcome is Outcome.ENDED]
    assert [(row.domain, row.address) for row in rows] == [("keepers", f"keeper/{trash.metadata.name}")]
    assert rows[0].details == {"not_undoable": "it is the trash itself"}


async def test_rows_say_until_when_something_can_be_brought_back(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    keeper = await lapsed(world, request)
    for uid in (request.metadata.uid, keeper.metadata.uid):
        (row,) = [row for row in await world.journal_rows(uid=uid) if row.outcome is Outcome.ENDED]
        assert row.details is not None
        assert row.details["undo_until_ns"] == row.time_ns + (WEEK.nanoseconds or 0)


async def test_manifests_come_back_with_all_their_chunks(world: World) -> None:
    request = await world.completed(MANIFEST_CAPTURE_REQUEST)
    name = request.status.checkpoint_name
    before = await read_checkpoint(world.store, name)
    await lapsed(world, request)
    assert await read_checkpoint(world.store, name) == before
    await undo(world, f"checkpoint/{name}")
    await world.settle()
    assert await read_checkpoint(world.store, name) == before


async def test_a_detached_volume_comes_back(world: World) -> None:
    claim = await world.volume("data")
    request = await world.capture("detach", claim, mode="Detach")
    await world.settle()
    await world.report(PERSISTENT_VOLUME, ObjectKey(None, "pv-data"), {"phase": "Released"})
    await world.live(seconds=120)
    assert await world.reason(request) == "Completed"
    keeper = await lapsed(world, request)
    back = await undo(world, f"keeper/{keeper.metadata.name}")
    volume = await world.store.get(PERSISTENT_VOLUME, ObjectKey(None, "pv-data"))
    assert [owner.uid for owner in volume.metadata.owner_references] == [back.uid]
    (row,) = [row for row in await world.journal_rows(uid=claim.metadata.uid) if row.outcome is Outcome.ENDED]
    assert row.details is not None
    assert row.details["not_undoable"] == "its data is not in its manifest"


async def test_a_held_snapshot_stays_in_the_trash(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    content = await world.store.get(VOLUME_SNAPSHOT_CONTENT, content_key(request))
    await lapsed(world, request)
    await world.hold(content)
    found = trash_of(world)
    (_, result), *_ = await found.empty(by="ann", domain="keepers")
    assert result.outcome is Outcome.HELD
    await world.live(hours=9 * 24, step=DAY)
    assert await world.exists(content)
    await world.release(content)
    await world.live(hours=24, step=3600)
    assert not await world.exists(content)


async def test_emptying_ends_for_good_and_is_a_persons_deletion(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    content = await world.store.get(VOLUME_SNAPSHOT_CONTENT, content_key(request))
    await lapsed(world, request)
    before = world.clock.wall_ns()
    done = await trash_of(world).empty(by="ann")
    await world.caught_up()
    assert {result.outcome for _, result in done} == {Outcome.ENDED}
    assert not await world.exists(content)
    assert await listed(world) == []
    rows = [row for row in await world.journal_rows() if row.time_ns >= before and row.outcome is Outcome.ENDED]
    assert {(row.actor, row.reason) for row in rows} == {("ann", "deleted_by_person")}
    assert {row.domain for row in rows} == {"keepers", "requests"}


async def test_a_trash_keeper_that_is_older_than_the_act_is_not_trusted(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    keeper = await world.keeper(request)
    old = await world.store.create(
        OBJECT_KEEPER,
        {
            "metadata": {"name": f"trash-{keeper.metadata.uid}", "labels": {TRASH: "true"}},
            "spec": {"mode": "TTL", "ttl": "168h"},
        },
    )
    await lapsed(world, request)
    content = await world.store.get(VOLUME_SNAPSHOT_CONTENT, content_key(request))
    (owner,) = content.metadata.owner_references
    assert owner.name == f"trash-{keeper.metadata.uid}-2"
    assert owner.uid != old.metadata.uid


async def test_a_keeper_without_artifacts_leaves_nothing_in_the_trash(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST, fail=True)
    with suppress(NotFoundError):
        await world.store.delete(VOLUME_SNAPSHOT_CONTENT, content_key(request))
    keeper = await lapsed(world, request)
    (row,) = [row for row in await world.journal_rows(uid=keeper.metadata.uid) if row.outcome is Outcome.ENDED]
    assert row.details == {"not_undoable": "it is a keeper that keeps no artifact"}
    assert [one.domain for one in await listed(world)] == ["requests"]


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [VOLUME_CAPTURE_REQUEST, VOLUME_RESTORE_REQUEST, MANIFEST_CAPTURE_REQUEST], ids=lambda kind: kind.short
)
async def test_a_request_comes_back_as_a_record_and_is_never_carried_out_again(world: World, kind: Kind[Any]) -> None:
    request = await world.completed(kind)
    await world.live(minutes=11)
    assert not await world.exists(request)
    before = {name: body for name, body in (await world.state()).items() if not name.startswith("ObjectKeeper")}
    address = str(Located(kind, request.metadata.key).address)
    back = await undo(world, address)
    await world.live(minutes=30)
    again = await world.store.get(kind, request.metadata.key)
    assert again.metadata.uid == back.uid != request.metadata.uid
    assert (again.spec, again.status) == (request.spec, request.status)
    assert again.metadata.annotations[BROUGHT_BACK] == request.metadata.uid
    after = {name: body for name, body in (await world.state()).items() if not name.startswith("ObjectKeeper")}
    assert set(after) - set(before) == {f"{kind.kind}/{request.metadata.key}"}, "nothing was made for it"


async def test_no_controller_carries_out_a_request_whose_status_is_still_to_come(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    await world.live(minutes=11)

    def cut_off(call: Any, answer: Any) -> Any:  # noqa: ANN401 - as the wire has it
        if str(call) == "create VolumeCaptureRequest":
            raise Crash
        return answer

    wire = Wire(world.store, after=cut_off)
    cut = TrashBin(
        trashed_objects(wire, holds=world.store, dependants=world.store, journal=world.journal, clock=world.clock)
    )
    address = f"vcr/shop/{request.metadata.name}"
    with pytest.raises(Crash):
        await cut.bring_back(await cut.find(address), by="ann")
    names = await world.names(VOLUME_SNAPSHOT_CONTENT)
    keepers = await world.names(OBJECT_KEEPER)
    await world.live(hours=2, step=600)
    half = await world.store.get(VOLUME_CAPTURE_REQUEST, request.metadata.key)
    assert half.status is None
    assert await world.names(VOLUME_SNAPSHOT_CONTENT) == names
    assert await world.names(OBJECT_KEEPER) == keepers
    back = await undo(world, address)
    assert back.uid == half.metadata.uid, "it is gone on with"
    assert (await world.fresh(half)).status == request.status


async def test_another_request_of_the_same_name_is_not_touched(world: World) -> None:
    request = await world.completed(MANIFEST_CAPTURE_REQUEST, "same")
    await world.live(minutes=11)
    other = await world.completed(MANIFEST_CAPTURE_REQUEST, "same")
    with pytest.raises(PlaceTakenError):
        await undo(world, f"mcr/shop/{request.metadata.name}")
    assert await world.fresh(other) == other


async def test_what_a_person_deletes_goes_to_the_trash(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    await delete_by_person(
        world.store,
        Located(VOLUME_CAPTURE_REQUEST, request.metadata.key),
        request,
        keeper=None,
        holds=world.store,
        journal=world.journal,
        actor="bob",
        clock=world.clock,
        trash=world.requests.trash,
    )
    assert [(one.address, one.domain) for one in await listed(world)] == [("vcr/shop/done", "requests")]
    await undo(world, "vcr/shop/done")
    assert (await world.store.get(VOLUME_CAPTURE_REQUEST, request.metadata.key)).status == request.status


async def test_one_of_several_is_emptied_and_the_others_can_still_come_back(world: World) -> None:
    requests = [await world.completed(MANIFEST_CAPTURE_REQUEST, f"r{number}") for number in range(3)]
    await world.live(minutes=11)
    found = trash_of(world)
    ((entry, result),) = await found.empty(by="ann", address="mcr/shop/r1")
    assert (entry.address, result.outcome) == ("mcr/shop/r1", Outcome.ENDED)
    await world.caught_up()
    assert sorted(one.address for one in await listed(world)) == ["mcr/shop/r0", "mcr/shop/r2"]
    expires = {one.expires_at for one in await listed(world)}
    assert all(abs((one or 0) - (entry.expires_at or 0)) <= 10**9 for one in expires), "their time goes on"
    with pytest.raises(NotInTrashError):
        await undo(world, "mcr/shop/r1")
    for number in (0, 2):
        await undo(world, f"mcr/shop/r{number}")
        again = await world.store.get(MANIFEST_CAPTURE_REQUEST, requests[number].metadata.key)
        assert (again.spec, again.status) == (requests[number].spec, requests[number].status)


async def _page_of(world: World, count: int = 3) -> Any:  # noqa: ANN401 - a keeper
    """Let some requests lapse together; return the trash keeper that has them."""
    for number in range(count):
        await world.completed(MANIFEST_CAPTURE_REQUEST, f"r{number}")
    await world.live(minutes=11)
    entries = [one for one in await listed(world) if one.domain == "requests"]
    (name,) = {one.id.split("/")[1] for one in entries}
    assert len(entries) == count
    return await world.store.get(OBJECT_KEEPER, ObjectKey(None, name))


async def _in_trash(world: World) -> list[str]:
    return sorted(one.address for one in await listed(world) if one.domain == "requests")


async def _packed_names(world: World, page: Any) -> list[str]:  # noqa: ANN401 - a keeper
    """Return the uids of all objects that chunks of a page hold, wherever they are."""
    await world.caught_up()
    names = []
    for one in await world.all(MANIFEST_CHECKPOINT):
        if any(owner.uid == page.metadata.uid for owner in one.metadata.owner_references):
            names += [found["metadata"]["name"] for found in await read_checkpoint(world.store, one.metadata.name)]
    chunks = [one for one in await world.all(MANIFEST_CHUNK) if one.metadata.name.startswith("trash-")]
    assert sum(one.spec.objects_count for one in chunks) == len(names), "nothing else is left of them"
    return sorted(names)


async def test_the_bytes_of_what_is_emptied_go_and_the_page_stays(world: World) -> None:
    page = await _page_of(world)
    await trash_of(world).empty(by="ann", address="mcr/shop/r1")
    assert await _in_trash(world) == ["mcr/shop/r0", "mcr/shop/r2"]
    assert await _packed_names(world, page) == ["r0", "r2"]
    (row,) = [row for row in await world.journal_rows() if (row.actor, row.outcome) == ("ann", Outcome.ENDED)]
    assert (row.address, row.reason) == ("mcr/shop/r1", "deleted_by_person")
    for number in (0, 2):
        await trash_of(world).empty(by="ann", address=f"mcr/shop/r{number}")
    await world.caught_up()
    assert not await world.exists(page)
    assert await _packed_names(world, page) == []


async def test_emptying_at_the_same_time_copies_nothing(world: World) -> None:
    page = await _page_of(world, 4)
    bins = [trash_of(world) for _ in range(4)]
    numbers = (0, 1, 1, 2)
    done = await asyncio.gather(
        *[one.empty(by="ann", address=f"mcr/shop/r{number}") for one, number in zip(bins, numbers, strict=True)]
    )
    outcomes = [result.outcome for found in done for _, result in found]
    assert outcomes.count(Outcome.ENDED) == 3
    assert set(outcomes) <= {Outcome.ENDED, Outcome.GONE}
    assert await _in_trash(world) == ["mcr/shop/r3"]
    assert await _packed_names(world, page) == ["r3"]


@pytest.mark.parametrize("call", ["create ManifestCapture", "get ManifestCheckpoint", "patch ObjectKeeper"])
async def test_what_is_emptied_beside_an_undo_comes_back_or_is_emptied_never_both(world: World, call: str) -> None:
    await _page_of(world)
    emptied: list[Outcome] = []

    class Beside(Wire):
        def __getattr__(self, method: str) -> Any:  # noqa: ANN401 - stands for any method
            real = super().__getattr__(method)

            async def act(kind: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the method has it
                if not emptied and f"{method} {getattr(kind, 'kind', kind)}".startswith(call):
                    emptied.append(Outcome.INTENT)
                    for address in ("mcr/shop/r1", "mcr/shop/r2"):
                        ((_, result),) = await trash_of(world).empty(by="bob", address=address)
                        emptied.append(result.outcome)
                return await real(kind, *args, **kwargs)

            return act if method in {"create", "get", "patch"} else real

    wire = Beside(world.store)
    found = TrashBin(
        trashed_objects(wire, holds=world.store, dependants=world.store, journal=world.journal, clock=world.clock)
    )
    entry = await trash_of(world).find("mcr/shop/r1")
    came_back = True
    try:
        await found.bring_back(entry, by="ann")
    except NotInTrashError:
        came_back = False
    assert emptied[2] is Outcome.ENDED, "what nobody brings back is emptied"
    assert came_back is (emptied[1] is not Outcome.ENDED)
    await world.caught_up()
    names = await world.names(MANIFEST_CAPTURE_REQUEST)
    assert any(name.endswith("r1") for name in map(str, names)) is came_back
    assert await _in_trash(world) == ["mcr/shop/r0"]


async def test_a_held_page_is_not_emptied_and_not_copied(world: World) -> None:
    page = await _page_of(world)
    await world.hold(page)
    before = await listed(world)
    ((_, result),) = await trash_of(world).empty(by="ann", address="mcr/shop/r1")
    assert result.outcome is Outcome.HELD
    assert await listed(world) == before
    assert all(one.held for one in before if one.domain == "requests")
    assert await _packed_names(world, page) == ["r0", "r1", "r2"]


async def test_an_extended_page_keeps_its_time_when_one_of_it_is_emptied(world: World) -> None:
    page = await _page_of(world)
    until = to_timestamp(world.clock.wall_ns() + 20 * DAY * 10**9)
    body = {"metadata": {"annotations": {EXTENDED_UNTIL: until}}}
    await world.store.patch(OBJECT_KEEPER, page.metadata.key, body)
    before = {one.address: one.expires_at for one in await listed(world) if one.domain == "requests"}
    assert str(before["mcr/shop/r0"]) == until
    await trash_of(world).empty(by="ann", address="mcr/shop/r1")
    after = {one.address: one.expires_at for one in await listed(world) if one.domain == "requests"}
    assert after == {address: at for address, at in before.items() if address != "mcr/shop/r1"}


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
async def test_a_kill_at_any_call_of_emptying_neither_copies_nor_loses(tmp_path: Path, applied: bool) -> None:  # noqa: FBT001 - a parameter of the test
    for step in range(1, 60):
        folder = tmp_path / f"{step}"
        folder.mkdir()
        async with opened(folder, services=SERVICES) as world:
            page = await _page_of(world)
            wire = Wire(world.store, crash_at=step, applied=applied)
            cut = trashed_objects(
                wire, holds=world.store, dependants=world.store, journal=world.journal, clock=world.clock
            )
            entry = await trash_of(world).find("mcr/shop/r1")
            with suppress(Crash, BaseExceptionGroup):
                await cut.empty([entry], by="ann")
            left = await _in_trash(world)
            assert left in (["mcr/shop/r0", "mcr/shop/r1", "mcr/shop/r2"], ["mcr/shop/r0", "mcr/shop/r2"]), step
            if "mcr/shop/r1" not in left:
                with pytest.raises(NotInTrashError):
                    await trash_of(world).bring_back(entry, by="bob")
            await trash_of(world).empty(by="bob", address="mcr/shop/r1")
            await trash_of(world).empty(by="bob", address="mcr/shop/r2")
            assert await _in_trash(world) == ["mcr/shop/r0"]
            assert await _packed_names(world, page) == ["r0"], f"killed at call {step}"
            await undo(world, "mcr/shop/r0")
            if not wire.dead:
                return
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
async def test_an_undo_that_was_killed_at_any_call_is_in_nobodys_way(tmp_path: Path, applied: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """What has not come back can be emptied an hour later, what has is a leftover, and no only copy is lost."""
    seen = set()
    for step in range(1, 60):
        folder = tmp_path / f"{step}"
        folder.mkdir()
        async with opened(folder, services=SERVICES) as world:
            await _page_of(world)
            entry = await trash_of(world).find("mcr/shop/r1")
            wire = Wire(world.store, crash_at=step, applied=applied)
            cut = trashed_objects(
                wire, holds=world.store, dependants=world.store, journal=world.journal, clock=world.clock
            )
            with suppress(Crash, BaseExceptionGroup):
                await cut.bring_back(entry, by="ann")
            back = [one for one in await world.all(MANIFEST_CAPTURE_REQUEST) if one.metadata.name == "r1"]
            is_listed = "mcr/shop/r1" in await _in_trash(world)
            assert is_listed or back[0].status is not None, f"killed at {step}"
            if is_listed:
                world.advance(61 * 60)
                ((_, result),) = await trash_of(world).empty(by="bob", address="mcr/shop/r1")
                is_half = bool(back) and back[0].status is None
                expected = Outcome.REFUSED if is_half else Outcome.GONE if back else Outcome.ENDED
                assert result.outcome is expected, f"killed at {step}: {result}"
                seen.add(result.outcome)
                if is_half:
                    await undo(world, "mcr/shop/r1")
                    assert (await world.fresh(back[0])).status is not None
            assert await _in_trash(world) == ["mcr/shop/r0", "mcr/shop/r2"]
            await undo(world, "mcr/shop/r0")
            if not wire.dead:
                assert seen == {Outcome.ENDED, Outcome.REFUSED, Outcome.GONE}
                return
    raise AssertionError("it never came to an end")


async def _claimed(world: World, call: str = "create ManifestCaptureRequest") -> TrashEntry:
    """Let the process of an undo end before a call; return what it was about to bring back."""

    def cut_off(made: Any) -> None:  # noqa: ANN401 - as the wire has it
        if str(made) == call:
            raise Crash

    wire = Wire(world.store, before=cut_off)
    entry = await trash_of(world).find("mcr/shop/r1")
    cut = trashed_objects(wire, holds=world.store, dependants=world.store, journal=world.journal, clock=world.clock)
    with pytest.raises(Crash):
        await cut.bring_back(entry, by="ann")
    return entry


async def test_what_may_be_coming_back_is_not_emptied_for_an_hour(world: World) -> None:
    await _page_of(world)
    await _claimed(world)
    for minutes in (0, 59):
        world.advance(minutes * 60)
        ((entry, result),) = await trash_of(world).empty(by="bob", address="mcr/shop/r1")
        assert result.outcome is Outcome.REFUSED
        assert f"lapse undo mcr/shop/r1 --uid {entry.uid}" in str(result.problem)
    await _claimed(world)  # tried once more: the hour begins again
    world.advance(2 * 60)
    ((_, result),) = await trash_of(world).empty(by="bob", address="mcr/shop/r1")
    assert result.outcome is Outcome.REFUSED
    await undo(world, "mcr/shop/r1")
    assert await _in_trash(world) == ["mcr/shop/r0", "mcr/shop/r2"]


def _forbidding(world: World, *calls: str) -> TrashedObjects:
    """Return the trash of somebody who may not make some calls."""

    def refused(made: Any) -> None:  # noqa: ANN401 - as the wire has it
        if str(made) in calls:
            raise ForbiddenError(problem=f"no {made}")

    wire = Wire(world.store, before=refused)
    return trashed_objects(wire, holds=world.store, dependants=world.store, journal=world.journal, clock=world.clock)


async def test_the_only_copy_of_a_status_stays_where_an_undo_has_failed_after_half_of_it(world: World) -> None:
    await _page_of(world)
    entry = await trash_of(world).find("mcr/shop/r1")
    with pytest.raises(ForbiddenError):
        await _forbidding(world, "patch_status ManifestCaptureRequest").bring_back(entry, by="ann")
    with pytest.raises(ForbiddenError):  # tried once more, by somebody who may do even less
        await _forbidding(world, "create ManifestCaptureRequest").bring_back(entry, by="eve")
    for hours in (0, 2):
        world.advance(hours * 3600)
        ((_, result),) = await trash_of(world).empty(by="bob", address="mcr/shop/r1")
        assert result.outcome is Outcome.REFUSED
        assert "only copy" in str(result.problem)
    await undo(world, "mcr/shop/r1")
    (back,) = [one for one in await world.all(MANIFEST_CAPTURE_REQUEST) if one.metadata.name == "r1"]
    assert back.status is not None
    assert await _in_trash(world) == ["mcr/shop/r0", "mcr/shop/r2"]


async def test_what_did_not_come_back_because_it_was_refused_can_be_emptied_at_once(world: World) -> None:
    await _page_of(world)
    entry = await trash_of(world).find("mcr/shop/r1")
    with pytest.raises(ForbiddenError):
        await _forbidding(world, "create ManifestCaptureRequest").bring_back(entry, by="eve")
    ((_, result),) = await trash_of(world).empty(by="bob", address="mcr/shop/r1")
    assert result.outcome is Outcome.ENDED


async def test_an_undo_that_is_refused_does_not_end_the_claim_of_another_one(world: World) -> None:
    await _page_of(world)
    entry = await _claimed(world)  # ann is at it
    with pytest.raises(ForbiddenError):
        await _forbidding(world, "create ManifestCaptureRequest").bring_back(entry, by="eve")
    ((_, result),) = await trash_of(world).empty(by="bob", address="mcr/shop/r1")
    assert result.outcome is Outcome.REFUSED


async def test_an_undo_that_was_killed_does_not_keep_its_page_past_its_time(world: World) -> None:
    page = await _page_of(world)
    await _claimed(world)
    await world.live(hours=7 * 24 + 1, step=6 * 3600)
    assert not await world.exists(page)
    assert await _in_trash(world) == []


async def test_whoever_cannot_look_for_what_came_back_empties_nothing(world: World) -> None:
    await _page_of(world)
    entry = await _claimed(world)
    world.advance(2 * 3600)

    def refused(made: Any) -> None:  # noqa: ANN401 - as the wire has it
        if str(made) == "get ManifestCaptureRequest":
            raise ForbiddenError(problem="no get")

    wire = Wire(world.store, before=refused)
    blind = trashed_objects(wire, holds=world.store, dependants=world.store, journal=world.journal, clock=world.clock)
    (result,) = await blind.empty([entry], by="bob")
    assert result.outcome is Outcome.FAILED
    assert "mcr/shop/r1" in await _in_trash(world)


# --- killed anywhere --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
async def test_a_kill_at_any_call_of_an_end_loses_nothing(tmp_path: Path, applied: bool) -> None:  # noqa: FBT001 - a parameter of the test
    (tmp_path / "first").mkdir()
    async with opened(tmp_path / "first", services=SERVICES) as world:
        request, name = await _ready_to_end(world)
        calls = len(world.wire.calls)
        await world.sweep()
        steps = len(world.wire.calls) - calls
        assert steps > 5
    for step in range(1, steps + 1):
        folder = tmp_path / f"{step}"
        folder.mkdir()
        async with opened(folder, services=SERVICES) as world:
            request, name = await _ready_to_end(world)
            manifests = await read_checkpoint(world.store, name)
            keeper = await world.keeper(request)
            wire = Wire(world.store, crash_at=step, applied=applied)
            await world.restart(wire=wire)
            with suppress(Crash, BaseExceptionGroup):
                await world.sweep()
            assert wire.dead
            await world.restart()
            await world.live(minutes=10)
            assert not await world.exists(keeper), "the next process ends it"
            assert await read_checkpoint(world.store, name) == manifests, f"killed at call {step}"
            entries = [one for one in await listed(world) if one.address == f"keeper/{keeper.metadata.name}"]
            assert len(entries) == 1, f"killed at call {step}"
            await undo(world, entries[0].address)
            assert await read_checkpoint(world.store, name) == manifests


async def _ready_to_end(world: World) -> tuple[Any, str]:
    request = await world.completed(MANIFEST_CAPTURE_REQUEST)
    await world.live(hours=24, step=3600)
    await world.live(minutes=9)
    keeper = await world.keeper(request)
    assert keeper.status is not None
    world.advance(ns=(from_timestamp(keeper.status.expires_at or "") or 0) - world.clock.wall_ns() + 1)
    return request, request.status.checkpoint_name


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
async def test_a_kill_at_any_call_while_requests_are_packed_loses_none(tmp_path: Path, applied: bool) -> None:  # noqa: FBT001 - a parameter of the test
    for step in range(1, 40):
        folder = tmp_path / f"{step}"
        folder.mkdir()
        async with opened(folder, services=SERVICES) as world:
            requests = [await world.completed(MANIFEST_CAPTURE_REQUEST, f"r{number}") for number in range(3)]
            world.advance(11 * 60)
            wire = Wire(world.store, crash_at=step, applied=applied)
            await world.restart(wire=wire)
            with suppress(Crash, BaseExceptionGroup):
                await world.sweep()
            is_over = not wire.dead
            await world.restart()
            alive = [one for one in requests if await world.exists(one)]
            gone = {one.metadata.uid for one in requests} - {one.metadata.uid for one in alive}
            assert {one.uid for one in await listed(world) if one.domain == "requests"} == gone, f"killed at {step}"
            await world.live(minutes=5)
            for number, request in enumerate(requests):
                assert not await world.exists(request)
                await undo(world, f"mcr/shop/r{number}")
                again = await world.store.get(MANIFEST_CAPTURE_REQUEST, request.metadata.key)
                assert (again.spec, again.status) == (request.spec, request.status)
            if is_over:
                return
    raise AssertionError("it never came to an end")


async def test_two_processes_that_end_one_keeper_leave_its_artifact_in_the_trash_once(world: World) -> None:
    other = World(world.store, world.clock, world.folder, policy=world.policy, services=SERVICES)
    await other.start()
    request, name = await _ready_to_end(world)
    manifests = await read_checkpoint(world.store, name)
    keeper = await world.keeper(request)
    await asyncio.gather(world.sweep(), other.sweep())
    await other.stop()
    assert not await world.exists(keeper)
    assert await read_checkpoint(world.store, name) == manifests
    entries = [found for found in await listed(world) if found.domain == "keepers"]
    assert [entry.address for entry in entries] == [f"keeper/{keeper.metadata.name}"]


# --- nobody else's business -------------------------------------------------------------------------------------------


async def test_without_a_trash_everything_goes_as_before(tmp_path: Path) -> None:
    async with opened(tmp_path, services={"trash_ttl": Duration.parse("never")}) as world:
        request = await world.completed(MANIFEST_CAPTURE_REQUEST)
        await lapsed(world, request)
        for kind in (OBJECT_KEEPER, MANIFEST_CHECKPOINT, MANIFEST_CHUNK):
            assert await world.names(kind) == []
