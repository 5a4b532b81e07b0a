"""The reconciler on virtual time: every step, failures and crashes between any two, two of them at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lapse.workspaces.errors import UnknownWorkspaceError, WorkspaceStoreUnavailableError
from lapse.workspaces.model import DesiredBy, DesiredState, ObservedStatus, Operation, OpId
from lapse.workspaces.runtime.port import CommandExitedError, PortTakenError, Progress
from tests.unit.workspaces.chain import Crashed, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from lapse.workspaces.model import Workspace

PENDING, STANDBY, RUNNING = DesiredState.PENDING, DesiredState.STANDBY, DesiredState.RUNNING


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    world.dead = False
    world.hurt = lambda _point: None
    await world.close()


def failing(point: str, error: Exception, *, times: int = 1_000) -> Callable[[str], None]:
    """Fail at a point, so many times."""
    left = [times]

    def hurt(here: str) -> None:
        if here == point and left[0]:
            left[0] -= 1
            raise error

    return hurt


async def test_a_workspace_goes_up_and_down_and_its_data_comes_along(world: World) -> None:
    workspace = await world.create()
    await world.run()
    assert (await world.get(workspace)).observed_status is ObservedStatus.RUNNING
    world.machine.volumes[workspace.id] = "work of a day"
    await world.brought_to(workspace, STANDBY)
    assert world.machine.programs == {}
    archived = await world.brought_to(workspace, PENDING)
    assert (world.machine.volumes, archived.archive_key) == ({}, "1")
    await world.brought_to(workspace, RUNNING)
    assert world.machine.volumes == {workspace.id: "work of a day"}
    await world.store.mark_deleted(workspace.id, now=world.now)
    await world.run()
    with pytest.raises(UnknownWorkspaceError):
        await world.get(workspace)
    assert (world.machine.volumes, world.machine.archives, world.machine.programs) == ({}, {}, {})


async def test_a_workspace_of_another_node_is_left_alone(world: World) -> None:
    ours, theirs = await world.create("ours", node_id="here"), await world.create("theirs", node_id="there")
    await world.run(seconds=5)
    assert (await world.get(ours)).observed_status is ObservedStatus.RUNNING
    assert (await world.get(theirs)).observed_at is None


async def test_a_failing_action_is_tried_three_times_and_then_stays_an_error(world: World) -> None:
    workspace = await world.create()
    world.hurt = failing("start:before", PortTakenError(workspace="notebook", port=8000, problem="taken"))
    await world.run(seconds=600)
    found = await world.get(workspace)
    assert (found.observed_status, found.operation) == (ObservedStatus.ERROR, Operation.NONE)
    assert found.error_reason == "port_taken"
    assert "cannot have port 8000: taken" in str(found.error_message)
    assert world.points.count("start:before") == 3
    world.hurt = lambda _point: None
    await world.run(seconds=3600)
    await world.health.look()
    assert (await world.get(workspace)).observed_status is ObservedStatus.ERROR, "nobody has acted"
    assert world.points.count("start:before") == 3
    await world.store.clear_error(workspace.id, now=world.now)
    await world.run()
    assert (await world.get(workspace)).observed_status is ObservedStatus.RUNNING


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        (PortTakenError(workspace="notebook", port=8000, problem="taken"), 0),
        (CommandExitedError(workspace="notebook", how="with status 1", port=1, output="It wrote nothing"), 0),
        (OSError("not today"), 3),
    ],
    ids=["port", "command", "machine"],
)
async def test_a_command_that_is_wrong_itself_is_not_counted_as_an_error_of_lapse(
    world: World, error: Exception, counted: int
) -> None:
    workspace = await world.create()
    world.hurt = failing("start:before", error)
    await world.run(seconds=600)
    assert (await world.get(workspace)).observed_status is ObservedStatus.ERROR
    assert len(world.errors) == counted


async def test_tries_are_apart_and_the_pauses_grow(world: World) -> None:
    await world.create()
    moments: list[int] = []

    def hurt(point: str) -> None:
        if point == "start:before":
            moments.append(world.clock.monotonic_ns() // 1_000_000)
            raise OSError("not today")

    world.hurt = hurt
    await world.run(seconds=60, step=0.1)
    first, second, third = moments
    assert 1_000 <= second - first <= 2_500
    assert second - first < third - second <= 4_500


async def test_an_action_that_fails_once_or_twice_is_no_error(world: World) -> None:
    workspace = await world.create()
    world.hurt = failing("start:before", OSError("not yet"), times=2)
    await world.run(seconds=120)
    found = await world.get(workspace)
    assert (found.observed_status, found.error_reason, found.op_tries) == (ObservedStatus.RUNNING, None, 0)


@pytest.mark.parametrize(("action", "limit"), [("start", 300), ("stop", 300), ("archive", 1800), ("restore", 1800)])
async def test_what_never_ends_is_an_error_when_its_time_is_over(
    world: World, action: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = await world.create()
    await world.run()
    to = {"start": (STANDBY, RUNNING), "stop": (STANDBY,), "archive": (STANDBY, PENDING)}
    *before, last = to.get(action, (STANDBY, PENDING, RUNNING))
    for state in before:
        await world.brought_to(workspace, state)

    with monkeypatch.context() as patch:
        patch.setattr(world.runtime, action, hang)
        await world.want(workspace, last)
        await world.run(seconds=limit - 10, step=limit / 20)
        busy = await world.get(workspace)
        assert (busy.operation is not Operation.NONE, busy.error_reason) == (True, None)
        await world.run(seconds=limit / 5, step=limit / 20)
    found = await world.get(workspace)
    assert (found.observed_status, found.error_reason) == (ObservedStatus.ERROR, "timed_out")
    assert f"{'after' if limit == 300 else 'no progress for'} {limit} seconds" in str(found.error_message)


async def hang(_workspace: Workspace, **_more: object) -> None:
    await asyncio.Event().wait()


STEPS = [
    (Operation.PROVISIONING, (), RUNNING),
    (Operation.STARTING, (STANDBY,), RUNNING),
    (Operation.STOPPING, (RUNNING,), STANDBY),
    (Operation.ARCHIVING, (STANDBY,), PENDING),
    (Operation.RESTORING, (STANDBY, PENDING), RUNNING),
    (Operation.DELETING, (RUNNING,), None),
]


@pytest.mark.parametrize(("operation", "before", "wanted"), STEPS)
async def test_time_during_which_no_lapse_ran_is_no_time_of_an_operation(
    world: World, operation: Operation, before: tuple[DesiredState, ...], wanted: DesiredState | None
) -> None:
    workspace = await world.create(desired_state=PENDING)
    for state in before:
        await world.brought_to(workspace, state)
    if wanted is None:
        await world.store.mark_deleted(workspace.id, now=world.now)
    else:
        await world.want(workspace, wanted)
    assert await world.store.claim(workspace.id, operation, OpId("of a Lapse that is gone"), now=world.now)
    world.clock.advance(7 * 86_400)
    world.live()
    await world.health.look()
    await world.run()
    if wanted is None:
        with pytest.raises(UnknownWorkspaceError):
            await world.get(workspace)
        return
    found = await world.get(workspace)
    assert (found.observed_status.value, found.error_reason) == (wanted.value, None)


async def test_a_lapse_that_takes_over_gives_an_operation_its_whole_time_and_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = await world.create(desired_state=STANDBY)
    await world.run()
    await world.want(workspace, RUNNING)
    assert await world.store.claim(workspace.id, Operation.STARTING, OpId("gone"), now=world.now)
    world.clock.advance(3600)
    monkeypatch.setattr(world.runtime, "start", hang)
    await world.run(seconds=290, step=10)
    assert (await world.get(workspace)).error_reason is None
    await world.run(seconds=20, step=10)
    assert (await world.get(workspace)).error_reason == "timed_out"


async def test_a_store_that_fails_does_not_give_an_operation_its_time_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = await world.create(desired_state=STANDBY)
    await world.run()
    monkeypatch.setattr(world.runtime, "start", hang)
    world.hurt = failing("fail:before", WorkspaceStoreUnavailableError(problem="for a moment"), times=1)
    await world.want(workspace, RUNNING)
    await world.run(seconds=330, step=5)
    assert (await world.get(workspace)).error_reason == "timed_out"


async def test_an_archive_may_take_as_long_as_it_makes_progress(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = await world.create()
    await world.run()
    monkeypatch.setattr(world.runtime, "archive", hang)
    await world.want(workspace, PENDING)
    for hours in range(24):
        world.runtime.far = Progress(marks=hours)
        await world.run(seconds=1_200, step=60)
        found = await world.get(workspace)
        assert (found.operation, found.error_reason) == (Operation.ARCHIVING, None)
    await world.run(seconds=1_900, step=60)
    assert (await world.get(workspace)).error_reason == "timed_out"


async def test_progress_gives_a_start_no_more_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = await world.create(desired_state=STANDBY)
    await world.run()
    monkeypatch.setattr(world.runtime, "start", hang)
    await world.want(workspace, RUNNING)
    for marks in range(35):
        world.runtime.far = Progress(marks=marks)
        await world.run(seconds=10, step=5)
    assert (await world.get(workspace)).error_reason == "timed_out"


async def test_what_is_to_be_known_of_a_start_is_told_within_seconds_and_goes_with_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = await world.create(desired_state=STANDBY)
    await world.run()
    with monkeypatch.context() as patch:
        patch.setattr(world.runtime, "start", hang)
        await world.want(workspace, RUNNING)
        world.runtime.far = Progress(note="It listens on 127.0.0.1:9001.")
        await world.run(seconds=3)
        assert (await world.get(workspace)).op_note == "It listens on 127.0.0.1:9001."
        await world.run(seconds=310, step=5)
    failed = await world.get(workspace)
    assert (failed.op_note, failed.error_reason) == (None, "timed_out")
    assert "It listens on 127.0.0.1:9001." in str(failed.error_message)


async def test_an_operation_whose_end_was_only_not_noted_is_complete_however_late(world: World) -> None:
    workspace = await world.create()
    await world.run()
    await world.want(workspace, STANDBY)
    assert await world.store.claim(workspace.id, Operation.STOPPING, OpId("gone"), now=world.now)
    world.machine.programs.clear()
    world.clock.advance(10_000)
    await world.run()
    found = await world.get(workspace)
    assert (found.observed_status, found.error_reason) == (ObservedStatus.STANDBY, None)


# --- unknown is not gone ---------------------------------------------------------------------------------------------


async def test_a_listing_that_fails_changes_nothing(world: World) -> None:
    workspace = await world.create()
    await world.run()
    world.hurt = failing("look", OSError("no such luck"))
    for _ in range(3):
        with pytest.raises(Exception, match="cannot be read"):
            await world.health.look()
        world.clock.advance(120)
        await world.tick()
    found = await world.get(workspace)
    assert (found.observed_status, found.operation) == (ObservedStatus.RUNNING, Operation.NONE)


async def test_an_operation_is_not_complete_before_its_target_is_seen(world: World) -> None:
    workspace = await world.create()
    world.hurt = failing("look", OSError("no such luck"))
    await world.run(seconds=5)
    assert (await world.get(workspace)).operation is Operation.PROVISIONING
    world.hurt = lambda _point: None
    await world.run()
    assert (await world.get(workspace)).observed_status is ObservedStatus.RUNNING


async def test_health_writes_changes_and_a_sign_of_life_each_minute_and_nothing_else(world: World) -> None:
    workspace = await world.create()
    await world.run()
    await world.health.look()
    world.points.clear()
    for _ in range(11):
        world.clock.advance(5)
        await world.health.look()
    assert world.points.count("observe:before") == 0
    world.clock.advance(5)
    await world.health.look()
    assert world.points.count("observe:before") == 1
    before = await world.get(workspace)
    world.machine.programs.clear()
    world.clock.advance(5)
    await world.health.look()
    after = await world.get(workspace)
    assert (before.observed_status, after.observed_status) == (ObservedStatus.RUNNING, ObservedStatus.STANDBY)
    assert after.status_changed_at == after.observed_at == world.now


async def test_a_volume_that_went_while_nobody_looked_is_seen_to_be_gone(world: World) -> None:
    workspace = await world.create(desired_state=STANDBY)
    await world.run()
    world.machine.volumes.clear()
    world.live()
    await world.health.look()
    assert (await world.get(workspace)).observed_status is ObservedStatus.PENDING


# --- who comes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["claim:before", "claim:after", "tried:after"])
async def test_who_comes_before_it_is_really_stopped_finds_it_running(world: World, moment: str) -> None:
    workspace = await world.create()
    await world.run()
    await world.want(workspace, STANDBY)
    call, _, side = moment.partition(":")
    real = getattr(world.store, call)

    async def interrupted(*args: Any, **more: Any) -> Any:  # noqa: ANN401
        if side == "before":
            await world.store.connected(workspace.id, now=world.now)
        result = await real(*args, **more)
        if side == "after":
            await world.store.connected(workspace.id, now=world.now)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.store, call, interrupted)
        await world.tick()
        await world.settle()
    await world.run()
    found = await world.get(workspace)
    assert (found.observed_status, found.operation) == (ObservedStatus.RUNNING, Operation.NONE)
    assert "stop:before" not in world.points
    assert world.machine.started == [workspace.id]


async def test_who_comes_while_it_is_stopped_has_it_started_again(world: World) -> None:
    workspace = await world.create()
    await world.run()
    await world.want(workspace, STANDBY)

    def hurt(point: str) -> None:
        if point == "stop:before":
            task = asyncio.ensure_future(
                world.store.set_desired(workspace.id, RUNNING, DesiredBy.ACCESS, now=world.now)
            )
            tasks.append(task)

    tasks: list[asyncio.Future[Workspace]] = []
    world.hurt = hurt
    await world.run()
    assert len(tasks) == 1
    await tasks[0]
    await world.run()
    assert (await world.get(workspace)).observed_status is ObservedStatus.RUNNING
    assert world.machine.started == [workspace.id, workspace.id]


async def crash_for(world: World, workspace: Workspace, *, seconds: int) -> None:
    """Let time pass in which the program of a workspace never stays for longer than a second."""
    for _ in range(seconds):
        if workspace.id in world.machine.programs:
            world.end_program(workspace)
        await world.health.look()
        await world.tick()
        world.clock.advance(1)


async def test_a_program_that_keeps_ending_is_started_more_and_more_slowly(world: World) -> None:
    workspace = await world.create()
    await world.run()
    began = (await world.get(workspace)).running_since
    await crash_for(world, workspace, seconds=600)
    assert 10 <= len(world.machine.started) <= 20, "a pause of a minute at most, and no more than one each minute"
    found = await world.get(workspace)
    assert found.error_reason is None
    assert found.restarts >= len(world.machine.started) - 1
    assert (found.exit_status, found.exit_output) == (3, "out of luck")
    assert found.exited_at is not None
    assert world.now - found.exited_at <= 70_000
    assert found.running_since == began, "a restart is no new RUNNING"


async def test_a_program_that_ends_as_soon_as_it_listens_is_an_error_that_says_how(world: World) -> None:
    workspace = await world.create()
    world.hurt = lambda point: world.end_program(workspace) if point == "start:after" else None
    await world.run(seconds=60)
    found = await world.get(workspace)
    assert found.error_reason == "command_exited"
    assert "ended with status 3 directly after it had listened. Its last output: out of luck." in str(
        found.error_message
    )
    assert world.points.count("start:before") == 3


async def test_a_program_that_ran_for_long_is_started_again_soon(world: World) -> None:
    workspace = await world.create()
    await world.run()
    await crash_for(world, workspace, seconds=300)
    await world.run(seconds=120)
    world.end_program(workspace, after=601)
    await world.health.look()
    await world.run(seconds=3)
    found = await world.get(workspace)
    assert (found.observed_status, found.restarts) == (ObservedStatus.RUNNING, 1)


@pytest.mark.parametrize("act", ["start", "stop"])
async def test_a_person_who_acts_ends_a_row_of_restarts(world: World, act: str) -> None:
    workspace = await world.create()
    await world.run()
    began = (await world.get(workspace)).running_since
    await crash_for(world, workspace, seconds=60)
    assert (await world.get(workspace)).observed_status is ObservedStatus.STANDBY
    if act == "stop":
        await world.brought_to(workspace, STANDBY)
    await world.want(workspace, RUNNING)
    await world.run(seconds=3)
    found = await world.get(workspace)
    assert (found.observed_status, found.restarts) == (ObservedStatus.RUNNING, 0), "at once, without the pause"
    assert found.running_since > began
    assert found.exit_status == 3, "what happened is still told"


async def test_an_exit_is_counted_once_however_often_the_write_of_it_fails(world: World) -> None:
    workspace = await world.create()
    await world.run()
    for point in ("note_exit:before", "note_exit:after", "stop:before"):
        before = (await world.get(workspace)).restarts
        await world.run(seconds=120)
        world.end_program(workspace)
        world.hurt = failing(point, WorkspaceStoreUnavailableError(problem="for a moment"), times=1)
        await world.health.look()
        await world.run(seconds=5)
        assert (await world.get(workspace)).restarts == before + 1, point
    assert (await world.get(workspace)).error_reason is None


# --- an archiving is abandoned when somebody comes -------------------------------------------------------------------


async def come(world: World, workspace: Workspace) -> None:
    await world.store.set_desired(workspace.id, RUNNING, DesiredBy.ACCESS, now=world.now)


async def with_data(world: World) -> Workspace:
    """Return a workspace in standby that has data and an older archive."""
    workspace = await world.create()
    await world.run()
    await world.brought_to(workspace, PENDING)
    await world.brought_to(workspace, RUNNING)
    world.machine.volumes[workspace.id] = "data"
    return await world.brought_to(workspace, STANDBY)


async def test_who_comes_while_it_is_packed_has_it_started_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = await with_data(world)
    with monkeypatch.context() as patch:
        patch.setattr(world.runtime, "archive", hang)
        await world.want(workspace, PENDING)
        await world.run(seconds=100, step=10)
        assert (await world.get(workspace)).operation is Operation.ARCHIVING
        await come(world, workspace)
        await world.run(seconds=3)
    found = await world.get(workspace)
    assert (found.observed_status, found.operation) == (ObservedStatus.RUNNING, Operation.NONE)
    assert world.machine.volumes == {workspace.id: "data"}
    assert world.points.count("restore:before") == 1, "the one of before"


async def test_a_user_may_start_what_is_being_archived(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = await with_data(world)
    with monkeypatch.context() as patch:
        patch.setattr(world.runtime, "archive", hang)
        await world.want(workspace, PENDING)
        await world.run(seconds=5)
        await world.want(workspace, RUNNING)
        await world.run(seconds=3)
    assert (await world.get(workspace)).observed_status is ObservedStatus.RUNNING


async def test_who_comes_does_not_wait_for_the_turn_of_an_archiving_that_was_taken_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = [await world.create(f"going-{number}") for number in range(5)]
    await world.run()
    for workspace in going:
        await world.brought_to(workspace, STANDBY)
        await world.want(workspace, PENDING)
        assert await world.store.claim(workspace.id, Operation.ARCHIVING, OpId("gone"), now=world.now)
    world.live()
    monkeypatch.setattr(world.runtime, "archive", hang)
    await world.tick()
    for workspace in going:
        await come(world, workspace)
    await world.run(seconds=3)
    assert {(await world.get(one)).observed_status for one in going} == {ObservedStatus.RUNNING}


@pytest.mark.parametrize("moment", ["archive:before", "archive:written", "archive:confirmed", "archive:after"])
async def test_who_comes_at_any_moment_of_an_archiving_finds_the_data(world: World, moment: str) -> None:
    workspace = await with_data(world)
    tasks = world.arriving

    def hurt(point: str) -> None:
        if point == moment and not tasks:
            tasks.append(asyncio.ensure_future(come(world, workspace)))

    world.hurt = hurt
    await world.want(workspace, PENDING)
    await world.run()
    await world.run()
    assert len(tasks) == 1
    found = await world.get(workspace)
    assert (found.observed_status, found.operation) == (ObservedStatus.RUNNING, Operation.NONE)
    assert world.machine.volumes == {workspace.id: "data"}
    if moment in {"archive:before", "archive:written"}:
        assert world.points.count("restore:before") == 1, "the volume was there all the time"


@pytest.mark.parametrize("crash", ["archive:written", "archive:confirmed", "archive:after", "complete:before"])
async def test_who_comes_after_a_crash_in_an_archiving_finds_the_data(world: World, crash: str) -> None:
    workspace = await with_data(world)
    world.points.clear()

    def hurt(point: str) -> None:
        if point == crash:
            raise Crashed

    world.hurt = hurt
    await world.want(workspace, PENDING)
    await world.run(seconds=5)
    assert world.dead
    await world.reconciler.end()
    world.hurt = lambda _point: None
    await come(world, workspace)
    world.clock.advance(86_400)
    world.live()
    await world.health.look()
    await world.run()
    found = await world.get(workspace)
    assert (found.observed_status, found.error_reason) == (ObservedStatus.RUNNING, None)
    assert world.machine.volumes == {workspace.id: "data"}


async def test_an_archiving_that_goes_wrong_after_the_volume_went_is_followed_by_a_restore(world: World) -> None:
    workspace = await with_data(world)
    tasks: list[asyncio.Future[None]] = []

    def hurt(point: str) -> None:
        if point == "archive:after" and not tasks:
            tasks.append(asyncio.ensure_future(come(world, workspace)))
            raise OSError("the disk went away")

    world.hurt = hurt
    await world.want(workspace, PENDING)
    await world.run(seconds=30)
    found = await world.get(workspace)
    assert (found.observed_status, found.error_reason) == (ObservedStatus.RUNNING, None)
    assert world.machine.volumes == {workspace.id: "data"}


# --- a visit is an act -----------------------------------------------------------------------------------------------


async def fail_to_archive(world: World) -> Workspace:
    workspace = await with_data(world)
    world.hurt = failing("archive:before", OSError("not today"))
    await world.want(workspace, PENDING)
    await world.run(seconds=120)
    world.hurt = lambda _point: None
    found = await world.get(workspace)
    assert found.error_reason == "internal"
    return found


async def test_an_error_tells_whether_the_data_is_in_place(world: World) -> None:
    workspace = await fail_to_archive(world)
    assert workspace.error_status is ObservedStatus.STANDBY
    world.machine.volumes.clear()
    await world.health.look()
    assert (await world.get(workspace)).error_status is ObservedStatus.PENDING


async def test_a_visit_clears_an_error_and_starts_where_the_data_is(world: World) -> None:
    workspace = await fail_to_archive(world)
    world.clock.advance(60)
    await world.health.look()
    assert await world.store.revive(workspace.id, before=world.now, seen=world.now, now=world.now) is not None
    await world.run(seconds=5)
    found = await world.get(workspace)
    assert (found.observed_status, found.desired_by) == (ObservedStatus.RUNNING, DesiredBy.ACCESS)
    assert world.machine.volumes == {workspace.id: "data"}


async def test_a_visit_clears_no_error_where_the_data_is_gone(world: World) -> None:
    workspace = await fail_to_archive(world)
    world.machine.volumes.clear()
    await world.health.look()
    assert await world.store.revive(workspace.id, before=world.now, seen=world.now, now=world.now) is None
    await world.run(seconds=60)
    assert (await world.get(workspace)).error_reason == "internal"
    assert world.machine.volumes == {}, "an older archive is not what the owner left"


# --- two at once, and crashes ----------------------------------------------------------------------------------------


async def test_two_reconcilers_at_once_make_each_step_once(world: World) -> None:
    workspaces = [await world.create(f"w{number}") for number in range(10)]
    _, other = world.another()
    for state in (RUNNING, STANDBY, PENDING, RUNNING):
        for workspace in workspaces:
            await world.want(workspace, state)
        await world.run(world.reconciler, other)
        assert {(await world.get(one)).observed_status.value for one in workspaces} == {state.value}
    await other.end()
    for action, count in (("provision", 10), ("start", 20), ("stop", 10), ("archive", 10), ("restore", 10)):
        assert world.points.count(f"{action}:before") == count


async def test_two_claims_of_one_step_have_one_winner(world: World) -> None:
    workspace = await world.create()
    claims = (world.store.claim(workspace.id, Operation.PROVISIONING, OpId(one), now=world.now) for one in "ab")
    assert sorted(await asyncio.gather(*claims)) == [False, True]


async def full_circle(world: World, workspace: Workspace) -> None:
    """Bring a workspace through all states; gives up when the process dies."""
    for state in (RUNNING, STANDBY, PENDING, RUNNING):
        if world.dead:
            return
        found = await world.get(workspace)
        if found.operation is Operation.NONE:
            await world.want(workspace, state)
        await world.run()
        if state is RUNNING and world.machine.volumes.get(workspace.id) == "":
            world.machine.volumes[workspace.id] = "data"
    if not world.dead:
        await world.store.mark_deleted(workspace.id, now=world.now)
        await world.run()


async def points_of_a_circle(folder: Path) -> int:
    world = World(folder)
    await full_circle(world, await world.create())
    await world.close()
    return len(world.points)


async def test_a_crash_between_any_two_steps_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    """Crash at each point there is, begin a new life, and go the whole way again."""
    (tmp_path / "whole").mkdir()
    count = await points_of_a_circle(tmp_path / "whole")
    assert count > 60
    for place in range(count):
        folder = tmp_path / str(place)
        folder.mkdir()
        await crash_at(World(folder), place)


async def crash_at(world: World, place: int) -> None:
    def hurt(_point: str) -> None:
        if len(world.points) == place + 1:
            raise Crashed

    workspace = await world.create()
    world.hurt = hurt
    await full_circle(world, workspace)
    assert world.dead, place
    await world.reconciler.end()
    had = [world.machine.volumes.get(workspace.id), *world.machine.archives.get(workspace.id, [])]
    world.hurt = lambda _point: None
    world.live()
    await world.health.look()
    await world.run()
    try:
        found = await world.get(workspace)
    except UnknownWorkspaceError:
        assert not world.machine.volumes
        assert not world.machine.archives
    else:
        where = (world.points[place], found)
        assert (found.operation, found.error_reason) == (Operation.NONE, None), where
        if found.deleted_at is None:
            await world.brought_to(workspace, RUNNING)
            kept = world.machine.volumes[workspace.id]
            assert kept == ("data" if "data" in had else ""), where
            await full_circle(world, workspace)
            assert (world.machine.volumes, world.machine.archives) == ({}, {}), where
    await world.close()


async def test_every_write_that_fails_is_made_good_at_a_later_look(tmp_path: Path) -> None:
    """The store is away for one call, before or after the write was made; nothing is lost and nothing is an error."""
    (tmp_path / "whole").mkdir()
    world = World(tmp_path / "whole")
    await full_circle(world, await world.create())
    names = list(world.points)
    await world.close()
    for place, name in enumerate(names):
        if name.split(":")[0] not in {"claim", "tried", "complete", "forget", "observe"}:
            continue
        folder = tmp_path / str(place)
        folder.mkdir()
        world = World(folder)
        workspace = await world.create()

        def hurt(_point: str, world: World = world, place: int = place) -> None:
            if len(world.points) == place + 1:
                raise WorkspaceStoreUnavailableError(problem="for a moment")

        world.hurt = hurt
        await full_circle(world, workspace)
        with pytest.raises(UnknownWorkspaceError):
            print(name, await world.get(workspace))  # noqa: T201 - shown if it fails
        await world.close()


async def test_an_operation_that_crashes_the_process_every_time_ends_as_an_error(world: World) -> None:
    workspace = await world.create(desired_state=STANDBY)
    await world.run()
    await world.want(workspace, RUNNING)

    def hurt(point: str) -> None:
        if point == "start:before":
            raise Crashed

    world.hurt = hurt
    for _ in range(5):
        await world.run(seconds=5)
        await world.reconciler.end()
        world.live()
    assert (await world.get(workspace)).error_reason == "interrupted"
    assert world.points.count("start:before") == 3


async def test_the_removal_of_a_deleted_one_is_tried_until_it_succeeds(world: World) -> None:
    workspace = await world.create()
    await world.run()
    await world.store.mark_deleted(workspace.id, now=world.now)
    world.hurt = failing("delete:before", OSError("busy"), times=4)
    await world.run(seconds=60)
    assert (await world.get(workspace)).error_reason == "internal"
    await world.run(seconds=600, step=10)
    with pytest.raises(UnknownWorkspaceError):
        await world.get(workspace)


async def test_one_bad_workspace_does_not_stop_the_others(world: World) -> None:
    bad, good = await world.create("bad"), await world.create("good")
    real = world.runtime.start

    async def start(workspace: Workspace) -> None:
        if workspace.id == bad.id:
            raise CommandExitedError(workspace="bad", how="with status 1", port=1, output="It wrote nothing")
        await real(workspace)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.runtime, "start", start)
        await world.run(seconds=120)
    assert (await world.get(bad)).error_reason == "command_exited"
    assert (await world.get(good)).observed_status is ObservedStatus.RUNNING


@pytest.mark.parametrize("kind", ["a new one", "an archived one"])
async def test_who_opens_a_workspace_does_not_wait_behind_those_whose_data_goes(
    world: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lapse.workspaces.runtime.reconciler._MOST_IN_LANE", 5)
    opened = await world.create("opened", desired_state=DesiredState.PENDING)
    if kind == "an archived one":
        await world.brought_to(opened, DesiredState.RUNNING)
        await world.brought_to(opened, DesiredState.PENDING)
    going = [await world.create(f"going-{number}") for number in range(20)]
    await world.run()
    never = asyncio.Event()

    async def archive(workspace: Workspace, **_more: object) -> str | None:
        await never.wait()
        return None

    monkeypatch.setattr(world.runtime, "archive", archive)
    for workspace in going:
        await world.want(workspace, DesiredState.PENDING)
    await world.run(seconds=5)
    await world.want(opened, DesiredState.RUNNING)
    await world.run(seconds=20)
    assert (await world.get(opened)).observed_status is ObservedStatus.RUNNING
    assert {(await world.get(workspace)).observed_status for workspace in going} == {ObservedStatus.STANDBY}


@pytest.mark.parametrize("moment", ["archive:written", "archive:after"])
async def test_an_archive_that_failed_half_way_is_not_forgotten_when_a_user_acts(world: World, moment: str) -> None:
    workspace = await world.create()
    await world.run()
    world.machine.volumes[workspace.id] = "data"
    await world.brought_to(workspace, STANDBY)
    world.hurt = failing(moment, OSError("the disk went away"))
    await world.want(workspace, PENDING)
    await world.run(seconds=120)
    failed = await world.get(workspace)
    assert (failed.error_reason, failed.archive_key) == ("internal", None)
    world.hurt = lambda _point: None
    await world.store.clear_error(workspace.id, now=world.now)
    await world.brought_to(workspace, RUNNING)
    assert world.machine.volumes == {workspace.id: "data"}
