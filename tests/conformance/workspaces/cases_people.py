"""Cases: what people ask for: creation, names, pages, versions, holds, deletion."""

from __future__ import annotations

from typing import Any

from lapse.workspaces.errors import (
    ChangedMeanwhileError,
    InvalidPageSizeError,
    InvalidWorkspaceError,
    OperationUnderWayError,
    UnknownWorkspaceError,
    WorkspaceExistsError,
)
from lapse.workspaces.model import (
    LARGEST_PAGE,
    Changes,
    DesiredBy,
    DesiredState,
    ObservedStatus,
    Operation,
    OpId,
    Workspace,
    WorkspaceId,
)
from tests.conformance.workspaces.registry import (
    NOBODY,
    NOW,
    World,
    all_refused,
    busy,
    case,
    later,
    make,
    new,
    refused,
    running,
    together,
    unchanged,
    user_wants,
)

# --- creation and names -----------------------------------------------------------------------------------------------


@case
async def a_new_workspace_is_as_it_was_asked_for(world: World) -> None:
    asked = new(node_id="node-7", standby_ttl_seconds=1, archive_ttl_seconds=315_360_000)
    made = await world.store.create(asked, now=NOW)

    assert made == Workspace(
        id=made.id,
        name="notes",
        owner="ada",
        command=("serve", "--all", "мир 'x'"),
        port=8080,
        node_id="node-7",
        desired_state=DesiredState.RUNNING,
        desired_by=DesiredBy.USER,
        version=1,
        observed_status=ObservedStatus.PENDING,
        observed_at=None,
        status_changed_at=NOW,
        operation=Operation.NONE,
        op_id=None,
        op_started_at=None,
        op_tries=0,
        archive_key=None,
        error_reason=None,
        error_message=None,
        standby_ttl_seconds=1,
        archive_ttl_seconds=315_360_000,
        last_access_at=NOW,
        check_after=NOW,
        created_at=NOW,
        deleted_at=None,
        hold_reason=None,
        hold_until=None,
    )
    assert await world.store.get(made.id) == made
    assert await world.store.by_name("notes") == made


@case
async def a_uid_that_is_given_is_its_id_and_a_name_that_is_taken_stays_taken(world: World) -> None:
    made = await world.store.create(new(), now=NOW, uid=NOBODY)
    assert made.id == NOBODY
    assert await world.store.get(NOBODY) == made

    other = WorkspaceId("00000000-0000-4000-8000-000000000007")
    with refused(WorkspaceExistsError):
        await world.store.create(new(), now=NOW, uid=other)
    with refused(UnknownWorkspaceError):
        await world.store.get(other)


@case
async def ids_are_never_the_same(world: World) -> None:
    assert len({(await make(world, f"w{number}")).id for number in range(20)}) == 20


@case
async def a_name_is_taken_once(world: World) -> None:
    first = await make(world)
    with refused(WorkspaceExistsError):
        await make(world, owner="bob")
    await unchanged(world, first)
    assert list(await world.store.list()) == [first]


@case
async def one_of_racing_creations_gets_the_name(world: World) -> None:
    other = await world.another()
    for number in range(10):
        asked = [new(f"w{number}", owner=f"owner-{place}") for place in range(4)]
        results = await together(
            *((world.store if place % 2 else other).create(one, now=NOW) for place, one in enumerate(asked))
        )
        made = [one for one in results if isinstance(one, Workspace)]
        assert len(made) == 1, results
        assert sum(isinstance(one, WorkspaceExistsError) for one in results) == 3, results
        assert await world.store.by_name(f"w{number}") == made[0]


@case
async def what_breaks_a_rule_is_refused_before_anything_is_kept(world: World) -> None:
    broken: list[dict[str, Any]] = [
        {"name": "Notes"},
        {"name": "-a"},
        {"name": "a" * 64},
        {"name": ""},
        {"owner": ""},
        {"owner": "a\nb"},
        {"command": ()},
        {"command": ("",)},
        {"command": ("a\0b",)},
        {"command": ("a", "\ud800")},
        {"command": ("a" * 70_000,)},
        {"port": 0},
        {"port": 65_536},
        {"port": True},
        {"standby_ttl_seconds": 0},
        {"standby_ttl_seconds": -1},
        {"archive_ttl_seconds": 0},
        {"archive_ttl_seconds": 100 * 365 * 86_400},
    ]
    for changes in broken:
        with refused(InvalidWorkspaceError):
            await world.store.create(new(**changes), now=NOW)
    assert list(await world.store.list()) == []


@case
async def what_is_not_there_is_unknown_whatever_it_is_called(world: World) -> None:
    await running(world)
    for odd in (NOBODY, WorkspaceId(""), WorkspaceId("a\0b"), WorkspaceId("\ud800"), WorkspaceId("' OR 1=1")):
        with refused(UnknownWorkspaceError):
            await world.store.get(odd)
        with refused(UnknownWorkspaceError):
            await world.store.by_name(odd)
        with refused(UnknownWorkspaceError):
            await world.store.connected(odd, now=NOW)
        with refused(UnknownWorkspaceError):
            await user_wants(world.store, odd, DesiredState.RUNNING)


# --- pages ------------------------------------------------------------------------------------------------------------


@case
async def pages_show_every_workspace_once_in_the_order_of_names(world: World) -> None:
    names = ["b", "a", "a-1", "a0", "zz", "0", "b-b", "bb"]
    for number, name in enumerate(names):
        await make(world, name, owner="ada" if number % 2 else "bob")
    for owner, expected in ((None, sorted(names)), ("ada", sorted(names[1::2])), ("bob", sorted(names[::2]))):
        seen: list[str] = []
        while page := await world.store.list(owner=owner, limit=3, after=seen[-1] if seen else None):
            assert len(page) <= 3
            assert len(seen) < 50, "the pages do not end"
            seen += [one.name for one in page]
        assert seen == expected
    assert list(await world.store.list(owner="nobody")) == []


@case
async def a_limit_that_is_none_is_refused(world: World) -> None:
    for limit in (0, -1, LARGEST_PAGE + 1, True):
        with refused(InvalidPageSizeError):
            await world.store.list(limit=limit)
        with refused(InvalidPageSizeError):
            await world.store.standby_candidates(NOW, limit=limit)
        with refused(InvalidPageSizeError):
            await world.store.pending_work(limit=limit)


# --- versions ---------------------------------------------------------------------------------------------------------


@case
async def every_change_of_mind_is_one_version(world: World) -> None:
    made = await running(world)
    changed = [
        await user_wants(world.store, made.id, DesiredState.STANDBY),
        await world.store.configure(made.id, Changes(standby_ttl_seconds=60), now=NOW),
        await world.store.hold(made.id, "demo", now=NOW),
        await world.store.release(made.id, now=NOW),
        await world.store.connected(made.id, now=NOW),
        await world.store.mark_deleted(made.id, now=NOW),
    ]
    assert [one.version for one in changed] == [2, 3, 4, 5, 6, 7]


@case
async def what_nobody_wanted_is_no_version(world: World) -> None:
    made, op = await running(world), OpId("op-1")
    await world.store.flush_access({made.id: later(9)})
    await world.store.advance_checks({made.candidate: later(10**9)})
    await world.store.claim(made.id, Operation.STOPPING, op, now=NOW)
    await world.store.tried(made.id, op)
    await world.store.complete(made.id, op, now=NOW)
    await world.store.observe({made.id: ObservedStatus.STANDBY}, now=NOW)
    await world.store.claim(made.id, Operation.ARCHIVING, op, now=NOW)
    await world.store.fail(made.id, op, reason="broken", message="it broke", now=NOW)
    await world.store.clear_error(made.id, now=NOW)
    assert (await world.store.get(made.id)).version == made.version


@case
async def a_desired_state_is_kept_with_who_wants_it(world: World) -> None:
    made = await running(world)
    for state, by in ((DesiredState.STANDBY, DesiredBy.USER), (DesiredState.RUNNING, DesiredBy.ACCESS)):
        changed = await world.store.set_desired(made.id, state, by, now=NOW)
        assert (changed.desired_state, changed.desired_by) == (state, by)
        await unchanged(world, changed)


@case
async def a_change_on_a_stale_version_does_nothing(world: World) -> None:
    made = await running(world)
    current = await user_wants(world.store, made.id, DesiredState.STANDBY, version=made.version)
    stale = made.version
    await all_refused(
        ChangedMeanwhileError,
        user_wants(world.store, made.id, DesiredState.PENDING, version=stale),
        world.store.configure(made.id, Changes(standby_ttl_seconds=60), version=stale, now=NOW),
        world.store.hold(made.id, "demo", version=stale, now=NOW),
        world.store.extend(made.id, later(9), version=stale, now=NOW),
        world.store.release(made.id, version=stale, now=NOW),
        world.store.mark_deleted(made.id, version=stale, now=NOW),
    )
    await unchanged(world, current)


@case
async def a_version_that_none_can_have_is_stale_as_well(world: World) -> None:
    made = await running(world)
    for version in (0, -1, 2**63, 10**30):
        with refused(ChangedMeanwhileError):
            await user_wants(world.store, made.id, DesiredState.STANDBY, version=version)
    await unchanged(world, made)


@case
async def one_of_racing_changes_on_one_version_wins(world: World) -> None:
    made, other = await running(world), await world.another()
    for _ in range(10):
        before = await world.store.get(made.id)
        states = [DesiredState.RUNNING, DesiredState.STANDBY, DesiredState.PENDING, DesiredState.STANDBY]
        results = await together(
            *(
                user_wants(world.store if place % 2 else other, made.id, state, version=before.version)
                for place, state in enumerate(states)
            )
        )
        won = [one for one in results if isinstance(one, Workspace)]
        assert len(won) == 1, results
        assert sum(isinstance(one, ChangedMeanwhileError) for one in results) == 3, results
        await unchanged(world, won[0])


@case
async def a_person_waits_while_an_operation_is_under_way(world: World) -> None:
    made = await busy(world)
    for state in DesiredState:
        with refused(OperationUnderWayError):
            await user_wants(world.store, made.id, state)
    with refused(OperationUnderWayError):
        await world.store.mark_deleted(made.id, now=NOW)
    await unchanged(world, made)
    assert await world.store.complete(made.id, OpId("op-1"), now=NOW)
    assert (await user_wants(world.store, made.id, DesiredState.PENDING)).desired_state is DesiredState.PENDING


@case
async def access_does_not_wait_for_an_operation(world: World) -> None:
    made = await busy(world)
    woken = await world.store.set_desired(made.id, DesiredState.RUNNING, DesiredBy.ACCESS, now=NOW)
    assert (woken.desired_by, woken.operation) == (DesiredBy.ACCESS, Operation.STOPPING)
    connected = await world.store.connected(made.id, now=later(7))
    assert (connected.version, connected.last_access_at) == (woken.version + 1, later(7))


# --- TTLs and holds ---------------------------------------------------------------------------------------------------


@case
async def one_ttl_changes_without_the_other(world: World) -> None:
    made = await running(world)
    first = await world.store.configure(made.id, Changes(standby_ttl_seconds=60), now=NOW)
    assert (first.standby_ttl_seconds, first.archive_ttl_seconds) == (60, made.archive_ttl_seconds)
    second = await world.store.configure(made.id, Changes(archive_ttl_seconds=61), now=NOW)
    assert (second.standby_ttl_seconds, second.archive_ttl_seconds) == (60, 61)
    for wrong in (Changes(standby_ttl_seconds=0), Changes(archive_ttl_seconds=10**10)):
        with refused(InvalidWorkspaceError):
            await world.store.configure(made.id, wrong, now=NOW)
    await unchanged(world, second)


@case
async def a_hold_is_kept_until_it_is_released(world: World) -> None:
    made = await running(world)
    for_good = await world.store.hold(made.id, "still", now=NOW)
    assert (for_good.hold_reason, for_good.hold_until) == ("still", None)
    assert for_good.held(later(10**12))
    held = await world.store.hold(made.id, "Präsentation", until=later(100), now=NOW)
    assert (held.hold_reason, held.hold_until) == ("Präsentation", later(100))
    assert held.held(later(99))
    assert not held.held(later(100))
    released = await world.store.release(made.id, now=NOW)
    assert (released.hold_reason, released.hold_until) == (None, None)
    assert not released.held(NOW)


@case
async def a_hold_names_its_person_and_a_legal_one_has_no_end(world: World) -> None:
    made = await running(world)
    held = await world.store.hold(made.id, "demo", until=later(100), by="ann", now=NOW)
    assert (held.hold_by, held.hold_is_legal) == ("ann", False)
    legal = await world.store.hold(made.id, "case 7", until=later(100), by="ann", is_legal=True, now=NOW)
    assert (legal.hold_by, legal.hold_is_legal) == ("ann", True)
    assert legal.held(later(10**12))
    assert await world.store.get(made.id) == legal
    released = await world.store.release(made.id, now=NOW)
    assert (released.hold_by, released.hold_is_legal) == (None, False)


@case
async def an_extension_is_never_shortened_and_makes_decisions_of_before_stale(world: World) -> None:
    made = await running(world)
    extended = await world.store.extend(made.id, later(100), now=NOW)
    assert (made.extended_until, extended.extended_until) == (None, later(100))
    assert (extended.version, extended.check_after) == (made.version + 1, made.check_after)
    assert await world.store.to_standby([made.candidate], now=later(10**6)) == set()
    again = await world.store.extend(made.id, later(50), now=NOW)
    assert again.extended_until == later(100)
    assert (await world.store.extend(made.id, later(150), now=NOW)).extended_until == later(150)
    for wrong in (NOW, later(-1), later(10**18)):
        with refused(InvalidWorkspaceError):
            await world.store.extend(made.id, wrong, now=NOW)


@case
async def a_hold_without_reason_or_over_already_is_refused(world: World) -> None:
    made = await running(world)
    for reason, until in (
        ("", None),
        (" ", None),
        ("demo", NOW),
        ("demo", later(-1)),
        ("demo", later(10**18)),
        ("a\0", None),
    ):
        with refused(InvalidWorkspaceError):
            await world.store.hold(made.id, reason, until=until, now=NOW)
    await unchanged(world, made)


# --- deletion ---------------------------------------------------------------------------------------------------------


@case
async def a_deleted_workspace_is_unknown_to_people_and_its_name_is_free(world: World) -> None:
    made = await running(world)
    deleted = await world.store.mark_deleted(made.id, now=later(3))
    assert deleted.deleted_at == later(3)
    await unchanged(world, deleted)
    with refused(UnknownWorkspaceError):
        await world.store.by_name("notes")
    await all_refused(
        UnknownWorkspaceError,
        world.store.mark_deleted(made.id, now=NOW),
        world.store.connected(made.id, now=NOW),
        world.store.configure(made.id, Changes(standby_ttl_seconds=5), now=NOW),
        world.store.hold(made.id, "demo", now=NOW),
        world.store.extend(made.id, later(9), now=NOW),
        world.store.release(made.id, now=NOW),
        world.store.clear_error(made.id, now=NOW),
        user_wants(world.store, made.id, DesiredState.RUNNING),
    )
    await unchanged(world, deleted)
    assert list(await world.store.list()) == []
    again = await make(world)
    assert again.id != made.id
    assert list(await world.store.list(owner="ada")) == [again]


@case
async def one_in_the_trash_is_unknown_to_people_and_comes_back_as_it_was(world: World) -> None:
    made = await running(world)
    deleted = await world.store.mark_deleted(made.id, trash_until=later(9), now=later(3))
    assert (deleted.deleted_at, deleted.trash_until) == (later(3), later(9))
    assert deleted.desired_state is DesiredState.PENDING
    with refused(UnknownWorkspaceError):
        await world.store.by_name("notes")
    assert list(await world.store.list()) == []
    assert list(await world.store.trashed()) == [deleted]
    assert list(await world.store.trashed(before=later(9))) == []
    assert list(await world.store.trashed(before=later(10))) == [deleted]
    assert list(await world.store.trashed(after=made.id)) == []
    back = await world.store.bring_back(made.id, now=later(5))
    assert (back.deleted_at, back.trash_until, back.version) == (None, None, deleted.version + 1)
    assert back.desired_state is DesiredState.STANDBY
    assert (await world.store.by_name("notes")) == back
    with refused(UnknownWorkspaceError):
        await world.store.bring_back(made.id, now=later(5))


@case
async def a_name_that_is_taken_keeps_one_in_the_trash(world: World) -> None:
    made = await make(world)
    deleted = await world.store.mark_deleted(made.id, trash_until=later(9), now=NOW)
    other = await make(world)
    with refused(WorkspaceExistsError):
        await world.store.bring_back(made.id, now=later(1))
    await unchanged(world, deleted)
    await world.store.mark_deleted(other.id, now=later(2))
    back = await world.store.bring_back(made.id, now=later(3))
    assert back.desired_state is DesiredState.PENDING, "it has no data that could be put in place"


@case
async def one_that_leaves_the_trash_for_good_does_not_come_back(world: World) -> None:
    made = await make(world)
    deleted = await world.store.mark_deleted(made.id, trash_until=later(9), now=NOW)
    assert await world.store.to_removal([made.candidate], now=later(10)) == set(), "another version"
    assert list(await world.store.pending_work()) == [], "at rest, it is no work for anybody"
    assert await world.store.to_removal([deleted.candidate], now=later(10)) == {made.id}
    with refused(UnknownWorkspaceError):
        await world.store.bring_back(made.id, now=later(11))
    assert [one.id for one in await world.store.pending_work()] == [made.id]


@case
async def only_the_way_to_the_archive_is_open_in_the_trash(world: World) -> None:
    made = await running(world)
    await world.store.mark_deleted(made.id, trash_until=later(9), now=NOW)
    for number, operation in enumerate(Operation):
        if operation is Operation.NONE:
            continue
        op_id = OpId(f"op-{number}")
        claimed = await world.store.claim(made.id, operation, op_id, now=NOW)
        assert claimed == (operation in {Operation.STOPPING, Operation.ARCHIVING}), operation
        if claimed:
            assert await world.store.to_removal([(await world.store.get(made.id)).candidate], now=NOW) == set()
            await world.store.complete(made.id, op_id, now=NOW)


# --- two at once, and again -------------------------------------------------------------------------------------------


@case
async def what_one_connection_writes_another_reads_at_once(world: World) -> None:
    other = await world.another()
    for number in range(10):
        made = await make(world, f"w{number}")
        assert await other.get(made.id) == made
        changed = await user_wants(other, made.id, DesiredState.STANDBY)
        assert await world.store.by_name(made.name) == changed


@case
async def a_restart_changes_nothing(world: World) -> None:
    await running(world, "a")
    await user_wants(world.store, (await running(world, "b")).id, DesiredState.PENDING)
    held = await world.store.hold((await make(world, "c")).id, "demo", until=later(9), now=NOW)
    await world.store.claim(held.id, Operation.PROVISIONING, OpId("op-1"), now=NOW)
    before = await world.store.list()
    store = await world.restart()
    assert await store.list() == before
    assert len(before) == 3
    assert await store.complete(held.id, OpId("op-1"), now=NOW)
