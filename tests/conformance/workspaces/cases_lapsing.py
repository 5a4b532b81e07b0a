"""Cases: accesses, candidates, and the two transitions that change exactly those that are still as they were."""

from __future__ import annotations

from msgspec.structs import replace

from lapse.workspaces.model import (
    Changes,
    DesiredBy,
    DesiredState,
    Ms,
    ObservedStatus,
    Operation,
    OpId,
    Workspace,
    WorkspaceCandidate,
)
from tests.conformance.workspaces.registry import (
    ARCHIVE_TTL_MS,
    NOBODY,
    NOW,
    STANDBY_TTL_MS,
    World,
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

DUE = later(STANDBY_TTL_MS)
MUCH_LATER = later(10**10)


async def names_to_standby(world: World, now: int) -> list[str]:
    return [one.name for one in await world.store.standby_candidates(Ms(now))]


async def names_to_archive(world: World, now: int) -> list[str]:
    return [one.name for one in await world.store.archive_candidates(Ms(now))]


# --- accesses ---------------------------------------------------------------------------------------------------------


@case
async def a_first_connection_is_an_access_and_wakes(world: World) -> None:
    made = await standing_by(world)
    connected = await world.store.connected(made.id, now=later(50))
    assert connected == replace(
        made,
        last_access_at=later(50),
        version=made.version + 1,
        desired_state=DesiredState.RUNNING,
        desired_by=DesiredBy.ACCESS,
    )
    await unchanged(world, connected)


@case
async def a_flush_writes_the_access_time_and_nothing_else(world: World) -> None:
    first, second, third = [await running(world, name) for name in "abc"]
    await world.store.flush_access({first.id: later(10), second.id: later(20), NOBODY: later(30)})
    await unchanged(world, replace(first, last_access_at=later(10)))
    await unchanged(world, replace(second, last_access_at=later(20)))
    await unchanged(world, third)
    await world.store.flush_access({})


@case
async def an_access_time_never_moves_back(world: World) -> None:
    made = await running(world)
    await world.store.flush_access({made.id: later(10)})
    await world.store.flush_access({made.id: later(5)})
    assert (await world.store.get(made.id)).last_access_at == later(10)
    assert (await world.store.connected(made.id, now=later(7))).last_access_at == later(10)
    await world.store.claim(made.id, Operation.STOPPING, OpId("op-1"), now=NOW)
    await world.store.complete(made.id, OpId("op-1"), now=later(8))
    assert (await world.store.get(made.id)).last_access_at == later(10)


@case
async def of_racing_flushes_the_latest_time_stays(world: World) -> None:
    made, other = [await running(world, f"w{number}") for number in range(20)], await world.another()
    for turn in range(10):
        # In opposite orders, as two proxies would: neither may wait for the other for ever. Each is later for some.
        up = {one.id: later(turn * 100 + place) for place, one in enumerate(made)}
        down = {one.id: later(turn * 100 + 19 - place) for place, one in reversed(list(enumerate(made)))}
        await settled(world.store.flush_access(up), other.flush_access(down))
        for one in made:
            assert (await world.store.get(one.id)).last_access_at == max(up[one.id], down[one.id])


# --- candidates -------------------------------------------------------------------------------------------------------


@case
async def a_candidate_is_one_from_the_exact_instant_on(world: World) -> None:
    await running(world, "runs")
    assert await names_to_standby(world, DUE - 1) == []
    assert await names_to_standby(world, DUE) == ["runs"]
    await standing_by(world, "stands")
    assert await names_to_archive(world, NOW + ARCHIVE_TTL_MS - 1) == []
    assert await names_to_archive(world, NOW + ARCHIVE_TTL_MS) == ["stands"]


@case
async def each_workspace_has_its_own_time(world: World) -> None:
    await running(world, "slow", standby_ttl_seconds=7200)
    await running(world, "quick", standby_ttl_seconds=1)
    await standing_by(world, "kept", archive_ttl_seconds=86_400)
    await standing_by(world, "dropped", archive_ttl_seconds=60)
    assert await names_to_standby(world, later(1000)) == ["quick"]
    assert await names_to_standby(world, later(7_200_000)) == ["quick", "slow"]
    assert await names_to_archive(world, later(60_000)) == ["dropped"]


@case
async def only_those_that_are_where_they_should_be_and_at_rest_are_candidates(world: World) -> None:
    await make(world, "never-seen")
    deleted = await running(world, "deleted")
    await world.store.mark_deleted(deleted.id, now=NOW)
    stopping = await running(world, "stopping")
    await world.store.claim(stopping.id, Operation.STOPPING, OpId("op-1"), now=NOW)
    unwanted = await running(world, "unwanted")
    await user_wants(world.store, unwanted.id, DesiredState.STANDBY)
    waking = await standing_by(world, "waking")
    await world.store.connected(waking.id, now=NOW)
    failed = await running(world, "failed")
    await world.store.claim(failed.id, Operation.STOPPING, OpId("op-2"), now=NOW)
    await world.store.fail(failed.id, OpId("op-2"), reason="broken", message="", now=NOW)
    archiving = await standing_by(world, "archiving")
    await world.store.claim(archiving.id, Operation.ARCHIVING, OpId("op-3"), now=NOW)
    gone = await standing_by(world, "gone")
    await world.store.mark_deleted(gone.id, now=NOW)
    await running(world, "runs")
    await standing_by(world, "stands")
    assert await names_to_standby(world, MUCH_LATER) == ["runs"]
    assert await names_to_archive(world, MUCH_LATER) == ["stands"]


@case
async def workspaces_are_counted_by_what_is_seen_of_them(world: World) -> None:
    assert await world.store.count_by_status() == dict.fromkeys(ObservedStatus, 0)
    for name in ("one", "two"):
        await running(world, name)
    await standing_by(world, "stands")
    deleted = await standing_by(world, "deleted")
    await world.store.mark_deleted(deleted.id, now=NOW)
    failed = await running(world, "failed")
    await world.store.claim(failed.id, Operation.STOPPING, OpId("op-1"), now=NOW)
    await world.store.fail(failed.id, OpId("op-1"), reason="broken", message="", now=NOW)
    counted = {ObservedStatus.PENDING: 0, ObservedStatus.STANDBY: 1, ObservedStatus.RUNNING: 2, ObservedStatus.ERROR: 1}
    assert await world.store.count_by_status() == counted


@case
async def what_people_see_of_workspaces_changes_their_fingerprint_and_looks_do_not(world: World) -> None:
    seen = [await world.store.fingerprint()]

    async def changed() -> bool:
        seen.append(await world.store.fingerprint())
        return seen[-1] != seen[-2]

    one = await running(world, "one")
    assert await changed()
    assert not await changed()
    await world.store.observe({one.id: ObservedStatus.RUNNING}, now=Ms(NOW + 1000))
    assert not await changed()
    await world.store.hold(one.id, reason="audit", until=None, by="user ann", now=NOW)
    assert await changed()
    await world.store.claim(one.id, Operation.STOPPING, OpId("op-1"), now=NOW)
    assert await changed()
    await world.store.fail(one.id, OpId("op-1"), reason="broken", message="", now=NOW)
    assert await changed()


@case
async def candidates_come_in_pages_each_once_and_the_longest_due_first(world: World) -> None:
    for number in range(11):
        await running(world, f"r{number:02}", standby_ttl_seconds=20 - number // 3)
        await standing_by(world, f"s{number:02}", archive_ttl_seconds=20 - number // 3)
    for letter, candidates in (("r", world.store.standby_candidates), ("s", world.store.archive_candidates)):
        seen: list[Workspace] = []
        while page := await candidates(MUCH_LATER, limit=4, after=seen[-1].check_place if seen else None):
            assert len(page) <= 4
            assert len(seen) < 50, "the pages do not end"
            seen += page
        assert sorted(one.name for one in seen) == [f"{letter}{number:02}" for number in range(11)]
        assert seen == sorted(seen, key=lambda one: (one.check_after, one.id))


@case
async def a_check_is_put_off_and_never_moved_back(world: World) -> None:
    made = await running(world)
    await world.store.advance_checks({made.candidate: later(STANDBY_TTL_MS + 500)})
    assert await names_to_standby(world, later(STANDBY_TTL_MS + 499)) == []
    assert await names_to_standby(world, later(STANDBY_TTL_MS + 500)) == ["notes"]
    await world.store.advance_checks({made.candidate: NOW})
    await unchanged(world, replace(made, check_after=later(STANDBY_TTL_MS + 500)))
    await world.store.advance_checks({})


@case
async def a_check_is_not_put_off_by_what_was_computed_before_a_change(world: World) -> None:
    stale = await standing_by(world, "woken")
    await world.store.observe({stale.id: ObservedStatus.RUNNING}, now=later(1))
    shorter = await running(world, "shorter")
    await world.store.configure(shorter.id, Changes(standby_ttl_seconds=1), now=later(1))
    await world.store.advance_checks({stale.candidate: MUCH_LATER, shorter.candidate: MUCH_LATER})
    assert (await world.store.get(stale.id)).check_after == later(1 + STANDBY_TTL_MS)
    assert (await world.store.get(shorter.id)).check_after == later(1)


@case
async def an_access_does_not_keep_a_check_from_being_put_off(world: World) -> None:
    made = await running(world)
    await world.store.flush_access({made.id: later(77)})
    await world.store.advance_checks({made.candidate: MUCH_LATER})
    assert (await world.store.get(made.id)).check_after == MUCH_LATER


@case
async def a_shorter_ttl_and_a_release_are_looked_at_at_once(world: World) -> None:
    made = await running(world)
    held = await world.store.hold(made.id, "demo", now=NOW)
    await world.store.advance_checks({held.candidate: MUCH_LATER})
    await world.store.release(made.id, now=later(5))
    assert await names_to_standby(world, later(5)) == ["notes"]
    await world.store.advance_checks({(await world.store.get(made.id)).candidate: MUCH_LATER})
    await world.store.configure(made.id, Changes(standby_ttl_seconds=1), now=later(6))
    assert await names_to_standby(world, later(6)) == ["notes"]


# --- transitions ------------------------------------------------------------------------------------------------------


@case
async def a_transition_changes_what_is_wanted_and_nothing_else(world: World) -> None:
    runs, stands = await running(world, "runs"), await standing_by(world, "stands")
    assert await world.store.to_standby([runs.candidate], now=DUE) == {runs.id}
    assert await world.store.to_pending([stands.candidate], now=DUE) == {stands.id}
    by_ttl = {"desired_by": DesiredBy.TTL, "version": runs.version + 1}
    await unchanged(world, replace(runs, desired_state=DesiredState.STANDBY, **by_ttl))
    await unchanged(world, replace(stands, desired_state=DesiredState.PENDING, **by_ttl))
    assert await world.store.to_standby([], now=DUE) == set()


@case
async def a_transition_changes_exactly_those_that_are_as_they_were(world: World) -> None:
    for step, begin, state in (
        (world.store.to_standby, running, ObservedStatus.RUNNING),
        (world.store.to_pending, standing_by, ObservedStatus.STANDBY),
    ):
        mark = state.value.lower()
        made = {name: await begin(world, f"{mark}-{name}") for name in (*_MEANWHILE, "idle", "quiet")}
        for name, meanwhile in _MEANWHILE.items():
            await meanwhile(world, made[name])
        before = {name: await world.store.get(one.id) for name, one in made.items()}
        changed = await step([one.candidate for one in made.values()], now=DUE)
        assert changed == {made["idle"].id, made["quiet"].id}
        for name in _MEANWHILE:
            await unchanged(world, before[name])


async def _user_wants_it(world: World, one: Workspace) -> None:
    await user_wants(world.store, one.id, one.desired_state)


async def _user_wants_otherwise(world: World, one: Workspace) -> None:
    await user_wants(world.store, one.id, DesiredState.PENDING)


async def _connects(world: World, one: Workspace) -> None:
    await world.store.connected(one.id, now=later(1))


async def _access_is_flushed(world: World, one: Workspace) -> None:
    await world.store.flush_access({one.id: later(1)})


async def _is_held(world: World, one: Workspace) -> None:
    await world.store.hold(one.id, "demo", now=NOW)


async def _has_another_ttl(world: World, one: Workspace) -> None:
    await world.store.configure(one.id, Changes(standby_ttl_seconds=9_999, archive_ttl_seconds=9_999), now=NOW)


async def _is_deleted(world: World, one: Workspace) -> None:
    await world.store.mark_deleted(one.id, now=NOW)


async def _is_worked_on(world: World, one: Workspace) -> None:
    await world.store.claim(one.id, Operation.STARTING, OpId("op"), now=NOW)


async def _is_seen_elsewhere(world: World, one: Workspace) -> None:
    await world.store.observe({one.id: ObservedStatus.ERROR}, now=NOW)


async def _went_and_came_back(world: World, one: Workspace) -> None:
    await world.store.observe({one.id: ObservedStatus.PENDING}, now=later(1))
    await world.store.observe({one.id: one.observed_status}, now=later(2))


_MEANWHILE = {
    "wanted": _user_wants_it,
    "unwanted": _user_wants_otherwise,
    "connected": _connects,
    "accessed": _access_is_flushed,
    "held": _is_held,
    "other-ttl": _has_another_ttl,
    "deleted": _is_deleted,
    "worked-on": _is_worked_on,
    "elsewhere": _is_seen_elsewhere,
    "restarted": _went_and_came_back,
}


@case
async def a_workspace_that_is_just_like_another_is_not_taken_for_it(world: World) -> None:
    runs, stands = await running(world, "runs"), await standing_by(world, "stands")
    twins = [await running(world, "runs-too"), await standing_by(world, "stands-too")]
    assert await world.store.to_standby([runs.candidate], now=NOW) == {runs.id}
    await user_wants(world.store, runs.id, DesiredState.RUNNING)
    await world.store.flush_access({runs.id: later(1)})
    await world.store.advance_checks({runs.candidate: MUCH_LATER})
    await world.store.release((await world.store.hold(runs.id, "demo", now=NOW)).id, now=NOW)
    await world.store.configure(runs.id, Changes(standby_ttl_seconds=5, archive_ttl_seconds=5), now=NOW)
    assert await world.store.to_standby([(await world.store.get(runs.id)).candidate], now=NOW) == {runs.id}
    assert await world.store.to_pending([stands.candidate], now=NOW) == {stands.id}
    await world.store.connected(runs.id, now=later(2))
    await user_wants(world.store, runs.id, DesiredState.STANDBY)
    for twin in twins:
        await unchanged(world, twin)


@case
async def a_transition_is_not_for_workspaces_in_another_state(world: World) -> None:
    runs, stands = await running(world, "runs"), await standing_by(world, "stands")
    strangers = [runs.candidate, stands.candidate, WorkspaceCandidate(NOBODY, 1, NOW, NOW)]
    assert await world.store.to_standby(strangers, now=DUE) == {runs.id}
    assert await world.store.to_pending(strangers, now=DUE) == {stands.id}
    deleted = [await running(world, "runs-no-more"), await standing_by(world, "stands-no-more")]
    unwanted = [await running(world, "unwanted"), await standing_by(world, "archived-soon")]
    others = [await world.store.mark_deleted(one.id, now=NOW) for one in deleted]
    others += [await user_wants(world.store, one.id, DesiredState.PENDING) for one in unwanted]
    for step in (world.store.to_standby, world.store.to_pending):
        assert await step([one.candidate for one in others], now=DUE) == set()
    for one in others:
        await unchanged(world, one)


@case
async def what_is_written_beside_a_transition_tells_of_exactly_those_that_changed(world: World) -> None:
    made = [await running(world, f"w{number}") for number in range(5)]
    await world.store.connected(made[1].id, now=NOW)
    await world.store.connected(made[4].id, now=NOW)
    candidates = [one.candidate for one in sorted(made, key=lambda one: one.name)]
    await world.store.to_standby(candidates, now=DUE, also=world.beside("standby"))
    assert await world.written_beside() == ["standby [0, 2, 3]"]
    assert await world.store.to_standby(candidates, now=DUE, also=world.beside("nobody")) == set()
    assert await world.written_beside() == ["standby [0, 2, 3]"]


@case
async def a_transition_whose_record_fails_is_undone(world: World) -> None:
    made = await standing_by(world)
    with refused(ZeroDivisionError):
        await world.store.to_pending([made.candidate], now=DUE, also=world.beside("x", fails=True))
    await unchanged(world, made)
    assert await world.written_beside() == []
    assert await world.store.to_pending([made.candidate], now=DUE, also=world.beside("y")) == {made.id}
    assert await world.written_beside() == ["y [0]"]


# --- at the same moment -----------------------------------------------------------------------------------------------


@case
async def who_connects_at_the_moment_of_standby_stays(world: World) -> None:
    made, other = await running(world), await world.another()
    for turn in range(world.rounds):
        before, now = await world.store.get(made.id), later(turn + 1)
        standby = other.to_standby([before.candidate], now=now)
        connect = world.store.connected(made.id, now=now)
        if turn % 2:
            changed, connected = await settled(standby, connect)
        else:
            connected, changed = await settled(connect, standby)
        after = await world.store.get(made.id)
        assert after == connected
        assert (after.desired_state, after.desired_by) == (DesiredState.RUNNING, DesiredBy.ACCESS)
        # Whoever was first: a standby that came second did nothing, one that came first was undone by the connection.
        assert after.version == before.version + (2 if changed else 1)
        assert after.last_access_at == now


@case
async def a_user_who_wants_it_to_run_at_the_moment_of_standby_wins(world: World) -> None:
    made, other = await running(world), await world.another()
    for _ in range(world.rounds):
        before = await world.store.get(made.id)
        changed, wanted = await settled(
            other.to_standby([before.candidate], now=DUE), user_wants(world.store, made.id, DesiredState.RUNNING)
        )
        after = await world.store.get(made.id)
        assert after == wanted
        assert (after.desired_state, after.desired_by) == (DesiredState.RUNNING, DesiredBy.USER)
        assert after.version == before.version + (2 if changed else 1)


@case
async def an_access_at_the_moment_of_standby_is_first_or_second(world: World) -> None:
    made, other = await running(world), await world.another()
    for turn in range(world.rounds):
        before, now = await world.store.connected(made.id, now=later(turn)), later(turn + 1)
        changed, _ = await settled(
            other.to_standby([before.candidate], now=now), world.store.flush_access({made.id: now})
        )
        after = await world.store.get(made.id)
        assert after.last_access_at == now
        assert after.version == before.version + (1 if changed else 0)
        assert after.desired_state is (DesiredState.STANDBY if changed else DesiredState.RUNNING)


@case
async def two_managers_make_one_transition(world: World) -> None:
    made, other = [await running(world, f"w{number}") for number in range(8)], await world.another()
    for _ in range(max(1, world.rounds // 8)):
        candidates = [(await world.store.connected(one.id, now=NOW)).candidate for one in made]
        mine, theirs = await settled(
            world.store.to_standby(candidates, now=DUE), other.to_standby(candidates[::-1], now=DUE)
        )
        assert not mine & theirs
        assert mine | theirs == {one.id for one in made}
        for before in candidates:
            assert (await world.store.get(before.id)).version == before.version + 1
