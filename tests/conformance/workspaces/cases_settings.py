"""Cases: what people set about a workspace without losing its data: command, port, owner, TTLs, probe."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from lapse.workspaces.errors import ChangedMeanwhileError, InvalidWorkspaceError, OperationUnderWayError
from lapse.workspaces.model import Changes, ObservedStatus, Operation, OpId, ProbeAnswer
from tests.conformance.workspaces.registry import (
    NOW,
    STANDBY_TTL_MS,
    World,
    busy,
    case,
    later,
    make,
    new,
    refused,
    running,
    standing_by,
    unchanged,
)


@case
async def what_is_set_changes_and_the_rest_stays(world: World) -> None:
    made = await standing_by(world, probe="/alive")
    changes: list[dict[str, Any]] = [
        {"owner": "bob"},
        {"command": ("other", "мир")},
        {"port": 9001},
        {"standby_ttl_seconds": 60},
        {"archive_ttl_seconds": 61},
        {"probe": "jupyter"},
    ]
    for one in changes:
        before = await world.store.get(made.id)
        changed = await world.store.configure(made.id, Changes(**one), version=before.version, now=later(-5))
        expected = replace(before, version=before.version + 1, check_after=later(-5), **one)
        assert changed == expected, one
        await unchanged(world, changed)
    assert (await world.store.configure(made.id, Changes(probe=""), now=NOW)).probe is None


@case
async def a_new_workspace_has_the_probe_that_was_asked_for(world: World) -> None:
    made = await world.store.create(new(probe="jupyter"), now=NOW)
    assert (made.probe, made.probed_at, made.probe_error, made.next_port) == ("jupyter", None, None, None)


@case
async def what_breaks_a_rule_is_not_set(world: World) -> None:
    made = await running(world)
    wrong: list[dict[str, Any]] = [
        {"owner": ""},
        {"command": ()},
        {"port": 0},
        {"port": 70_000},
        {"standby_ttl_seconds": 0},
        {"probe": "http://other.example/"},
        {"probe": "/a b"},
        {"probe": "/a\r\nHost: b"},
        {"probe": "alive"},
    ]
    for changes in wrong:
        with refused(InvalidWorkspaceError):
            await world.store.configure(made.id, Changes(**changes), now=NOW)
    await unchanged(world, made)


@case
async def settings_are_compared_by_version(world: World) -> None:
    made = await running(world)
    current = await world.store.configure(made.id, Changes(owner="bob"), version=made.version, now=NOW)
    with refused(ChangedMeanwhileError):
        await world.store.configure(made.id, Changes(owner="eve"), version=made.version, now=NOW)
    await unchanged(world, current)


@case
async def command_and_port_wait_for_an_operation_and_the_rest_does_not(world: World) -> None:
    made = await busy(world)
    for changes in (Changes(port=9001), Changes(command=("other",))):
        with refused(OperationUnderWayError):
            await world.store.configure(made.id, changes, now=NOW)
    await unchanged(world, made)
    changed = await world.store.configure(made.id, Changes(owner="bob", standby_ttl_seconds=9, probe="/x"), now=NOW)
    assert (changed.owner, changed.standby_ttl_seconds, changed.probe) == ("bob", 9, "/x")


@case
async def the_port_of_a_program_that_runs_changes_when_it_has_ended(world: World) -> None:
    made = await running(world)
    changed = await world.store.configure(made.id, Changes(port=9001), now=NOW)
    assert (changed.port, changed.next_port) == (8080, 9001)
    await world.store.observe({made.id: ObservedStatus.RUNNING}, now=later(1))
    assert (await world.store.get(made.id)).port == 8080
    await world.store.observe({made.id: ObservedStatus.STANDBY}, now=later(2))
    ended = await world.store.get(made.id)
    assert (ended.port, ended.next_port) == (9001, None)


@case
async def a_port_that_was_set_back_is_no_change(world: World) -> None:
    made = await running(world)
    await world.store.configure(made.id, Changes(port=9001), now=NOW)
    back = await world.store.configure(made.id, Changes(port=8080), now=NOW)
    assert (back.port, back.next_port) == (8080, None)
    kept = await world.store.configure(made.id, Changes(owner="bob"), now=NOW)
    assert (kept.port, kept.next_port) == (8080, None)


@case
async def after_an_error_the_port_waits_until_it_is_known_that_nothing_runs(world: World) -> None:
    made, op = await running(world), OpId("op-1")
    await world.store.claim(made.id, Operation.STOPPING, op, now=NOW)
    await world.store.fail(made.id, op, reason="stop_failed", message="still there", now=NOW)
    changed = await world.store.configure(made.id, Changes(port=9001), now=NOW)
    assert (changed.port, changed.next_port) == (8080, 9001)
    await world.store.clear_error(made.id, now=NOW)
    await world.store.observe({made.id: ObservedStatus.RUNNING}, now=later(1))
    assert (await world.store.get(made.id)).port == 8080
    await world.store.observe({made.id: ObservedStatus.STANDBY}, now=later(2))
    assert (await world.store.get(made.id)).port == 9001


@case
async def those_at_a_port_are_found_with_those_that_will_be(world: World) -> None:
    here = await make(world, "here", port=9001, node_id="a")
    moves = await running(world, "moves", port=9002, node_id="a")
    await make(world, "elsewhere", port=9001, node_id="b")
    gone = await make(world, "gone", port=9001, node_id="a")
    await world.store.mark_deleted(gone.id, now=NOW)
    await world.store.configure(moves.id, Changes(port=9001), now=NOW)

    assert [one.name for one in await world.store.at_port(9001, node="a")] == ["here", "moves"]
    assert [one.name for one in await world.store.at_port(9002, node="a")] == ["moves"]
    assert [one.name for one in await world.store.at_port(9001, node=None)] == ["elsewhere", "here", "moves"]
    assert list(await world.store.at_port(9003, node="a")) == []
    assert here.port == 9001


@case
async def what_a_program_answers_to_its_probe_is_kept(world: World) -> None:
    made = await running(world, probe="/alive")
    await world.store.probed({made.id: ProbeAnswer("/alive", later(5))})
    answered = await world.store.get(made.id)
    assert answered == replace(made, probed_at=later(5))
    await world.store.probed({made.id: ProbeAnswer("/alive", None, "no answer")})
    failed = await world.store.get(made.id)
    assert failed == replace(made, probed_at=later(5), probe_error="no answer")
    await world.store.probed({made.id: ProbeAnswer("/other", later(9))})
    await unchanged(world, failed)
    other = await world.store.configure(made.id, Changes(probe="jupyter"), now=NOW)
    assert (other.probe, other.probed_at, other.probe_error) == ("jupyter", None, None)


@case
async def a_program_that_did_not_answer_meanwhile_is_not_put_to_standby(world: World) -> None:
    made = await running(world, probe="/alive")
    await world.store.probed({made.id: ProbeAnswer("/alive", None, "no answer")})
    assert await world.store.to_standby([made.candidate], now=later(STANDBY_TTL_MS)) == set()
    await world.store.probed({made.id: ProbeAnswer("/alive", later(5))})
    assert await world.store.to_standby([made.candidate], now=later(STANDBY_TTL_MS)) == {made.id}
