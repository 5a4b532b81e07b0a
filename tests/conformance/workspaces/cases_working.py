"""Cases: the reconciler's claims and the health monitor's observations."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from lapse.workspaces.errors import InvalidWorkspaceError, OperationUnderWayError
from lapse.workspaces.model import DesiredBy, DesiredState, ObservedStatus, Operation, OpId
from tests.conformance.workspaces.registry import (
    ARCHIVE_TTL_MS,
    NOBODY,
    NOW,
    STANDBY_TTL_MS,
    World,
    busy,
    case,
    later,
    make,
    refused,
    running,
    settled,
    standing_by,
    unchanged,
    user_wants,
)

OP, STALE = OpId("op-1"), OpId("op-0")


# --- claims -----------------------------------------------------------------------------------------------------------


@case
async def a_claim_is_kept_with_who_and_when(world: World) -> None:
    made = await running(world)
    assert await world.store.claim(made.id, Operation.STOPPING, OP, now=later(5))
    await unchanged(world, replace(made, operation=Operation.STOPPING, op_id=OP, op_started_at=later(5)))


@case
async def one_operation_at_a_time(world: World) -> None:
    made = await busy(world)
    for operation in (Operation.STOPPING, Operation.STARTING, Operation.ARCHIVING):
        assert not await world.store.claim(made.id, operation, OpId("op-2"), now=NOW)
    await unchanged(world, made)
    assert not await world.store.claim(NOBODY, Operation.STARTING, OP, now=NOW)
    with refused(InvalidWorkspaceError):
        await world.store.claim(made.id, Operation.NONE, OP, now=NOW)


@case
async def one_of_racing_claims_wins(world: World) -> None:
    made, other = await running(world), await world.another()
    for turn in range(20):
        ops = [OpId(f"op-{turn}-{place}") for place in range(4)]
        won = await settled(
            *(
                (world.store if place % 2 else other).claim(made.id, Operation.STOPPING, op, now=NOW)
                for place, op in enumerate(ops)
            )
        )
        assert won.count(True) == 1, won
        assert (await world.store.get(made.id)).op_id == ops[won.index(True)]
        assert await world.store.complete(made.id, ops[won.index(True)], now=NOW)


@case
async def a_plan_from_before_a_change_of_mind_is_not_claimed(world: World) -> None:
    made = await running(world)
    planned = await user_wants(world.store, made.id, DesiredState.STANDBY)
    connected = await world.store.connected(made.id, now=NOW)
    assert not await world.store.claim(made.id, Operation.STOPPING, OP, version=planned.version, now=NOW)
    await unchanged(world, connected)
    assert await world.store.claim(made.id, Operation.STARTING, OP, version=connected.version, now=NOW)


@case
async def who_connects_at_the_moment_of_a_claim_is_seen_by_it_or_finds_it(world: World) -> None:
    made, other = await running(world), await world.another()
    for turn in range(world.rounds):
        planned, op = await user_wants(world.store, made.id, DesiredState.STANDBY), OpId(f"op-{turn}")
        claim = other.claim(made.id, Operation.STOPPING, op, version=planned.version, now=NOW)
        claimed, connected = await asyncio.gather(claim, world.store.connected(made.id, now=NOW))
        assert connected.operation is (Operation.STOPPING if claimed else Operation.NONE)
        assert connected.desired_state is DesiredState.RUNNING
        assert await other.complete(made.id, op, now=NOW) is claimed


@case
async def a_deleted_workspace_can_only_be_deleted_and_no_other_can(world: World) -> None:
    made = await running(world)
    assert not await world.store.claim(made.id, Operation.DELETING, OP, now=NOW)
    await world.store.mark_deleted(made.id, now=NOW)
    assert not await world.store.claim(made.id, Operation.STOPPING, OP, now=NOW)
    assert await world.store.claim(made.id, Operation.DELETING, OP, now=NOW)


@case
async def tries_are_counted_for_each_claim(world: World) -> None:
    made = await busy(world)
    assert [await world.store.tried(made.id, OP) for _ in range(3)] == [1, 2, 3]
    assert (await world.store.get(made.id)).op_tries == 3
    await world.store.complete(made.id, OP, now=NOW)
    await world.store.claim(made.id, Operation.STARTING, OpId("op-2"), now=NOW)
    assert (await world.store.get(made.id)).op_tries == 0


@case
async def a_stale_claim_does_nothing(world: World) -> None:
    made = await busy(world)
    assert await world.store.tried(made.id, STALE) is None
    assert not await world.store.complete(made.id, STALE, now=later(9), archive_key="k")
    assert not await world.store.fail(made.id, STALE, reason="broken", message="", now=later(9))
    assert not await world.store.forget(made.id, STALE)
    await unchanged(world, made)
    assert await world.store.complete(made.id, OP, now=NOW)
    done = await world.store.get(made.id)
    assert not await world.store.complete(made.id, OP, now=later(9))
    assert not await world.store.fail(made.id, OP, reason="broken", message="", now=later(9))
    await unchanged(world, done)


@case
async def the_end_of_an_operation_leaves_nothing_of_it(world: World) -> None:
    made = await running(world)
    for operation in (Operation.STARTING, Operation.RESTORING, Operation.PROVISIONING, Operation.ARCHIVING):
        assert await world.store.claim(made.id, operation, OP, now=later(5))
        await world.store.tried(made.id, OP)
        assert await world.store.complete(made.id, OP, now=later(9))
        await unchanged(world, made)


@case
async def the_end_of_stopping_is_an_access(world: World) -> None:
    made = await busy(world, Operation.STOPPING)
    await world.store.complete(made.id, OP, now=later(9))
    assert (await world.store.get(made.id)).last_access_at == later(9)


@case
async def an_archive_key_is_set_kept_and_removed(world: World) -> None:
    made = await standing_by(world)
    keys = []
    for operation, key in ((Operation.ARCHIVING, {"archive_key": "a/1"}), (Operation.RESTORING, {}), *_REMOVED):
        await world.store.claim(made.id, operation, OP, now=NOW)
        await world.store.complete(made.id, OP, now=NOW, **key)
        keys.append((await world.store.get(made.id)).archive_key)
    assert keys == ["a/1", "a/1", None]


_REMOVED = ((Operation.RESTORING, {"archive_key": None}),)


@case
async def only_a_workspace_that_is_being_deleted_is_forgotten(world: World) -> None:
    made, other = await busy(world), await running(world, "other")
    assert not await world.store.forget(made.id, OP)
    await world.store.complete(made.id, OP, now=NOW)
    await world.store.mark_deleted(made.id, now=NOW)
    await world.store.claim(made.id, Operation.DELETING, OP, now=NOW)
    assert not await world.store.forget(made.id, STALE)
    assert await world.store.forget(made.id, OP)
    assert not await world.store.forget(made.id, OP)
    assert list(await world.store.pending_work()) == []
    assert list(await world.store.list()) == [other]


@case
async def an_operation_of_one_workspace_is_not_that_of_another(world: World) -> None:
    made, twin = [await running(world, name) for name in ("one", "twin")]
    # Fresh ids never meet; that nothing relies on it costs one comparison.
    for one in (made, twin):
        assert await world.store.claim(one.id, Operation.STARTING, OP, now=NOW)
    busy_twin = await world.store.get(twin.id)
    assert await world.store.tried(made.id, OP) == 1
    assert await world.store.complete(made.id, OP, now=NOW)
    assert await world.store.claim(made.id, Operation.STARTING, OP, now=NOW)
    assert await world.store.fail(made.id, OP, reason="broken", message="", now=NOW)
    await unchanged(world, busy_twin)
    assert await world.store.fail(twin.id, OP, reason="broken", message="", now=NOW)
    await world.store.clear_error(made.id, now=NOW)
    assert (await world.store.get(twin.id)).error_reason == "broken"
    for one in (made, twin):
        await world.store.mark_deleted(one.id, now=NOW)
        assert await world.store.claim(one.id, Operation.DELETING, OP, now=NOW)
    assert await world.store.forget(made.id, OP)
    assert (await world.store.get(twin.id)).operation is Operation.DELETING


# --- errors -----------------------------------------------------------------------------------------------------------


@case
async def an_error_stays_until_it_is_cleared(world: World) -> None:
    made = await running(world)
    await world.store.claim(made.id, Operation.STOPPING, OP, now=later(5))
    await world.store.tried(made.id, OP)
    assert await world.store.fail(made.id, OP, reason="timed_out", message="no answer", now=later(9))
    failed = await world.store.get(made.id)
    assert failed == replace(
        made,
        observed_status=ObservedStatus.ERROR,
        observed_at=later(9),
        status_changed_at=later(9),
        error_reason="timed_out",
        error_message="no answer",
    )
    assert await world.store.observe({made.id: ObservedStatus.RUNNING}, now=later(10)) == set()
    await unchanged(world, replace(failed, observed_at=later(10), error_status=ObservedStatus.RUNNING))
    assert not await world.store.claim(made.id, Operation.STARTING, OP, now=NOW)
    cleared = await world.store.clear_error(made.id, now=later(11))
    assert (cleared.error_reason, cleared.error_message, cleared.error_status) == (None, None, None)
    assert cleared.observed_status is ObservedStatus.ERROR
    assert await world.store.observe({made.id: ObservedStatus.STANDBY}, now=later(12)) == {made.id}
    assert (await world.store.get(made.id)).status_changed_at == later(12)


@case
async def a_message_of_any_program_can_be_kept(world: World) -> None:
    made = await busy(world)
    message = "exit \0 \ud800 ' \" % %s :now " + "x" * 100_000
    assert await world.store.fail(made.id, OP, reason="exited", message=message, now=NOW)
    kept = (await world.store.get(made.id)).error_message
    assert kept is not None
    assert kept.startswith("exit \N{REPLACEMENT CHARACTER} ")
    assert len(kept) < 10_000


# --- observations -----------------------------------------------------------------------------------------------------


@case
async def a_status_counts_from_when_it_changed(world: World) -> None:
    first, second, unseen = await running(world, "a"), await standing_by(world, "b"), await running(world, "c")
    seen = {first.id: ObservedStatus.RUNNING, second.id: ObservedStatus.RUNNING, NOBODY: ObservedStatus.RUNNING}
    assert await world.store.observe(seen, now=later(50)) == {second.id}
    await unchanged(world, replace(first, observed_at=later(50)))
    await unchanged(
        world,
        replace(
            second,
            observed_status=ObservedStatus.RUNNING,
            observed_at=later(50),
            status_changed_at=later(50),
            running_since=later(50),
            check_after=later(50 + STANDBY_TTL_MS),
        ),
    )
    await unchanged(world, unseen)
    assert await world.store.observe({}, now=later(60)) == set()


@case
async def a_change_of_status_says_when_to_look(world: World) -> None:
    made = await running(world)
    await world.store.advance_checks({made.candidate: later(10**12)})
    await world.store.observe({made.id: ObservedStatus.STANDBY}, now=later(1))
    assert (await world.store.get(made.id)).check_after == later(1 + ARCHIVE_TTL_MS)
    await world.store.observe({made.id: ObservedStatus.RUNNING}, now=later(2))
    assert (await world.store.get(made.id)).check_after == later(2 + STANDBY_TTL_MS)
    await world.store.observe({made.id: ObservedStatus.STANDBY}, now=later(3))
    assert (await world.store.get(made.id)).check_after == later(2 + STANDBY_TTL_MS), "it is to run: no later than then"
    await user_wants(world.store, made.id, DesiredState.STANDBY)
    await world.store.observe({made.id: ObservedStatus.RUNNING}, now=later(4))
    await world.store.observe({made.id: ObservedStatus.STANDBY}, now=later(5))
    assert (await world.store.get(made.id)).check_after == later(5 + ARCHIVE_TTL_MS)


# --- programs that end by themselves ----------------------------------------------------------------------------------


async def crashed(world: World, at: int) -> int | None:
    """Let the program of a running workspace end, and note it."""
    made = await world.store.by_name("notes")
    await world.store.observe({made.id: ObservedStatus.STANDBY}, now=later(at))
    return await world.store.note_exit(made.id, status=-9, output="out \0 of \ud800 luck", at=later(at), steady=False)


@case
async def an_exit_is_noted_and_counted_once(world: World) -> None:
    made = await running(world)
    assert await crashed(world, 10) == 1
    assert await crashed(world, 10) is None, "the same"
    noted = await world.store.get(made.id)
    assert (noted.restarts, noted.exit_status, noted.exited_at) == (1, -9, later(10))
    assert noted.exit_output == "out \N{REPLACEMENT CHARACTER} of ? luck"
    assert await crashed(world, 20) == 2
    assert await world.store.note_exit(made.id, status=None, output="", at=later(30), steady=True) == 1
    assert await world.store.claim(made.id, Operation.STARTING, OP, now=later(31))
    assert await world.store.note_exit(made.id, status=0, output="", at=later(40), steady=False) is None, "too late"
    assert await world.store.note_exit(NOBODY, status=0, output="", at=later(40), steady=False) is None


@case
async def a_restart_is_no_new_running_until_a_person_acts(world: World) -> None:
    made = await running(world)
    assert made.running_since == NOW
    await crashed(world, 10)
    await world.store.observe({made.id: ObservedStatus.RUNNING}, now=later(20))
    again = await world.store.get(made.id)
    assert (again.running_since, again.status_changed_at) == (NOW, later(20))
    assert again.check_after <= later(STANDBY_TTL_MS), "its time goes on, and so does the next look"
    assert (await user_wants(world.store, made.id, DesiredState.RUNNING)).restarts == 0
    await world.store.observe({made.id: ObservedStatus.STANDBY}, now=later(30))
    await world.store.observe({made.id: ObservedStatus.RUNNING}, now=later(40))
    assert (await world.store.get(made.id)).running_since == later(40)


@case
async def the_end_of_stopping_ends_a_row_of_restarts(world: World) -> None:
    made = await running(world)
    await crashed(world, 10)
    assert await world.store.claim(made.id, Operation.STOPPING, OP, now=later(11))
    assert await world.store.complete(made.id, OP, now=later(12))
    assert (await world.store.get(made.id)).restarts == 0


@case
async def one_that_waits_for_a_restart_is_a_candidate_for_standby(world: World) -> None:
    made = await running(world)
    asked = await make(world, "asked")
    await world.store.observe({asked.id: ObservedStatus.STANDBY}, now=NOW)
    await crashed(world, 10)
    due = await world.store.standby_candidates(later(2 * STANDBY_TTL_MS))
    assert [one.name for one in due] == ["notes"], "one that was only not started yet is none"
    assert await world.store.to_standby([due[0].candidate], now=NOW) == {made.id}
    assert (await world.store.get(made.id)).desired_state is DesiredState.STANDBY


@case
async def what_is_to_be_known_of_an_operation_ends_with_it(world: World) -> None:
    made = await busy(world)
    assert not await world.store.note_operation(made.id, STALE, "late")
    assert await world.store.note_operation(made.id, OP, "it does not listen")
    await unchanged(world, replace(made, op_note="it does not listen"))
    assert await world.store.complete(made.id, OP, now=later(9))
    assert (await world.store.get(made.id)).op_note is None


# --- a visit is an act ------------------------------------------------------------------------------------------------


@case
async def a_visit_clears_an_error_only_where_the_data_is_in_place(world: World) -> None:
    made = await busy(world, Operation.ARCHIVING)
    assert await world.store.fail(made.id, OP, reason="timed_out", message="no answer", now=later(9))
    assert await world.store.revive(made.id, before=later(20), seen=NOW, now=later(20)) is None, "nobody has looked"
    await world.store.observe({made.id: ObservedStatus.PENDING}, now=later(9))
    assert await world.store.revive(made.id, before=later(20), seen=NOW, now=later(20)) is None, "there is no volume"
    await world.store.observe({made.id: ObservedStatus.STANDBY}, now=later(9))
    assert await world.store.revive(made.id, before=later(8), seen=NOW, now=later(20)) is None, (
        "it has only just failed"
    )
    assert await world.store.revive(made.id, before=later(9), seen=later(10), now=later(20)) is None, "seen long ago"
    failed = await world.store.get(made.id)
    revived = await world.store.revive(made.id, before=later(9), seen=later(9), now=later(20))
    assert revived == replace(
        failed,
        error_reason=None,
        error_message=None,
        error_status=None,
        last_access_at=later(20),
        desired_state=DesiredState.RUNNING,
        desired_by=DesiredBy.ACCESS,
        version=failed.version + 1,
    )
    await unchanged(world, revived)
    assert await world.store.revive(made.id, before=later(30), seen=NOW, now=later(30)) is None, "there is no error"
    assert await world.store.revive(NOBODY, before=later(30), seen=NOW, now=later(30)) is None


@case
async def a_user_may_start_what_is_being_archived_and_nothing_else(world: World) -> None:
    made = await busy(world, Operation.ARCHIVING)
    with refused(OperationUnderWayError):
        await user_wants(world.store, made.id, DesiredState.STANDBY)
    assert (await user_wants(world.store, made.id, DesiredState.RUNNING)).operation is Operation.ARCHIVING


# --- work -------------------------------------------------------------------------------------------------------------


@case
async def work_is_what_is_not_where_it_should_be_or_deleted_or_worked_on(world: World) -> None:
    await running(world, "content")
    await standing_by(world, "asleep")
    await make(world, "new")
    await world.store.mark_deleted((await running(world, "deleted")).id, now=NOW)
    await world.store.claim((await running(world, "busy")).id, Operation.STARTING, OP, now=NOW)
    await world.store.connected((await standing_by(world, "waking")).id, now=NOW)
    failed = await make(world, "failed")
    await world.store.claim(failed.id, Operation.STARTING, OP, now=NOW)
    await world.store.fail(failed.id, OP, reason="broken", message="", now=NOW)
    expected = {"new", "deleted", "busy", "waking"}
    assert {one.name for one in await world.store.pending_work()} == expected
    await world.store.clear_error(failed.id, now=NOW)
    assert {one.name for one in await world.store.pending_work()} == {*expected, "failed"}


@case
async def work_comes_in_pages_each_once(world: World) -> None:
    made = {(await make(world, f"w{number}")).id for number in range(7)}
    seen = list(await world.store.pending_work(limit=3))
    while page := await world.store.pending_work(limit=3, after=seen[-1].id):
        assert len(page) <= 3
        assert len(seen) < 50, "the pages do not end"
        seen += page
    assert [one.id for one in seen] == sorted(made)


@case
async def a_store_says_that_it_answers(world: World) -> None:
    await world.store.check()
    await (await world.another()).check()
