"""The demo on a state folder in virtual time: what it makes, what it removes, and what it leaves alone."""

from __future__ import annotations

import json
import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec import to_builtins

from lapse.app.demo import making
from lapse.app.demo.control import LASTS
from lapse.app.demo.making import MOST, free_port
from lapse.app.demo.note import APP, KNOWN, LABEL, MARK, DemoMade
from lapse.app.demo.running import DemoLoop, demo_settings
from lapse.app.record import open_store
from lapse.cli import main
from lapse.cli.context import Context
from lapse.core.clock import VirtualClock
from lapse.domains import REGISTRY
from lapse.engine.journal.port import Outcome
from lapse.engine.service import LocalService
from lapse.engine.verbs.contract import DeleteRequest, FreezeRequest, HoldRequest, ReleaseRequest, UndoRequest
from lapse.engine.verbs.place import Caller
from lapse.engine.view import encode
from lapse.history.api.kinds import (
    CHAOS_EXPERIMENT_HISTORY,
    RETENTION_POLICY,
    Execution,
    ExperimentRef,
    HistorySpec,
)
from lapse.history.records import write_record
from lapse.kube.resources import ObjectMeta
from lapse.objects.trash.rules import BROUGHT_BACK
from lapse.requests.addresses import keeper_name, snapshot_name
from lapse.requests.api.kinds import OBJECT_KEEPER, TTL, VOLUME_CAPTURE_REQUEST, KeeperMode
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.controllers.ownership import owned_by
from lapse.requests.lifecycle.policy import TTLMode
from lapse.requests.local.places import DRIVER
from lapse.settings import load_settings
from lapse.workspaces.model import Ms, NewWorkspace
from tests.markdown import ROOT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.app.demo.control import Demo
    from lapse.app.demo.note import DemoContext
    from lapse.engine.safety.freeze import Notes
    from lapse.engine.verbs.demo import DemoView
    from lapse.kube.resources import Kind

BEGIN_NS = 1_700_000_000 * 10**9
HOUR = LASTS.seconds


@dataclass
class World:
    """A demo, and the one that leads and makes its things."""

    demo: Demo
    clock: VirtualClock
    caller: Caller
    loop: DemoLoop
    folder: Path

    async def pass_time(self, seconds: float) -> None:
        """Let time pass and the loop tick every five seconds."""
        for _ in range(round(seconds / 5)):
            self.clock.advance(5)
            await self.loop.tick()

    @property
    def context(self) -> DemoContext:
        return self.demo.context

    async def view(self) -> DemoView:
        return await self.demo.status()


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example domain, as if it were installed."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "domain"))
    points = [EntryPoint("scratch", "lapse_scratch:SCRATCH", "lapse.domains")]
    monkeypatch.setattr(REGISTRY, "_installed", lambda: points)
    monkeypatch.setitem(vars(REGISTRY), "_entry_points", {"scratch": points})  # what it has read of them is kept
    monkeypatch.setitem(vars(REGISTRY), "_loaded", {})


async def opened(folder: Path, clock: VirtualClock, stack: AsyncExitStack, **settings: str) -> World:
    given = {"state_dir": str(folder), "proxy_port": "0", **settings}
    context = Context(load_settings(given), stack, machine=clock)
    demo, loop = await context.demo(), DemoLoop(clock, domain="requests")
    loop.attach(demo)
    return World(demo, clock, await context.caller(), loop, folder)


@pytest.fixture
async def world(tmp_path: Path, scratch: None) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield await opened(tmp_path, VirtualClock(wall_ns=BEGIN_NS), stack)


# --- what it makes ----------------------------------------------------------------------------------------------------


async def test_it_makes_things_in_every_domain_at_once_and_all_of_them_are_marked(world: World) -> None:
    await world.demo.start()
    await world.loop.tick()

    told = await world.view()
    assert told.running
    assert told.things.keys() == {"history", "requests", "retention", "scratch", "workspaces"}
    assert told.keys == 9
    assert sum(map(len, told.things.values())) + told.keys <= MOST
    names = [one.rpartition("/")[2] for addresses in told.things.values() for one in addresses]
    assert all(name.startswith("demo-") for name in names)
    kinds: list[Kind[Any]] = [CHAOS_EXPERIMENT_HISTORY, RETENTION_POLICY, VOLUME_CAPTURE_REQUEST]
    for kind in (*kinds, PERSISTENT_VOLUME_CLAIM):
        found = (await world.context.objects.list(kind)).items
        assert found
        assert all(one.metadata.labels[LABEL] == "true" for one in found)
    (policy,) = (await world.context.objects.list(RETENTION_POLICY)).items
    assert policy.spec.selector.labels == {LABEL: "true"}, "it governs nothing else"
    assert policy.spec.max_age is None


async def test_names_of_keys_are_not_shown(world: World) -> None:
    await world.demo.start()
    await world.loop.tick()

    (first, *_) = await world.context.keys.app(APP).scan("demo-")
    assert first.key not in encode(await world.view()).decode()


async def test_the_workspace_is_the_example_with_a_short_ttl_and_an_owner_of_its_own(world: World) -> None:
    await world.demo.start()
    await world.loop.tick()

    assert world.context.workspaces is not None
    made = await world.context.workspaces.by_name("demo-notebook")
    assert made.command == (sys.executable, "-m", "lapse.workspaces.example")
    assert made.owner == "demo"
    assert made.standby_ttl_seconds <= 60


async def test_files_are_so_old_that_the_first_of_them_are_over_within_half_a_minute(world: World) -> None:
    await world.demo.start()
    await world.loop.tick()

    domain = await world.context.place.domain("scratch")
    ends = []
    for address in (await world.view()).things["scratch"]:
        found = await domain.find(REGISTRY.parse(address))
        assert found is not None
        ends.append((domain.decide(found, world.context.place.now).deadline or 0) - BEGIN_NS)
    assert 0 < min(ends) <= 30 * 10**9
    assert max(ends) > 60 * 10**9


async def test_without_the_example_domain_there_are_no_files_and_it_says_so(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        world = await opened(tmp_path, VirtualClock(wall_ns=BEGIN_NS), stack)
        told = await world.demo.start()
        await world.loop.tick()

        assert "scratch" not in (await world.view()).things
        assert any("No scratch files" in note for note in told.notes)


async def test_new_things_come_and_never_more_than_so_many_are_there(world: World) -> None:
    await world.demo.start()
    await world.loop.tick()
    before = sum(map(len, (await world.view()).things.values()))
    await world.pass_time(60)
    assert sum(map(len, (await world.view()).things.values())) > before

    await world.pass_time(600)  # nothing lapses but keys, as no other loop runs

    told = await world.view()
    assert before < sum(map(len, told.things.values())) + told.keys <= MOST


def test_what_is_remembered_is_bounded() -> None:
    made = DemoMade()
    for number in range(5):
        made.know(f"{number}-{one}" for one in range(1000))
    made.know(["4-999"])

    assert len(made.uids) == KNOWN
    assert made.uids[-1] == "4-999"


async def test_nothing_is_made_in_a_domain_that_is_frozen(world: World) -> None:
    await LocalService(world.context.place, world.caller).freeze(FreezeRequest(domain="history"))
    await world.demo.start()
    await world.loop.tick()

    told = await world.view()
    assert "history" not in told.things
    assert told.things["requests"]


async def test_a_small_deletion_budget_is_not_spent_on_it(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        clock = VirtualClock(wall_ns=BEGIN_NS)
        world = await opened(tmp_path, clock, stack, history_deletion_budget="50/1h")
        await world.demo.start()
        await world.loop.tick()

        assert "history" not in (await world.view()).things


# --- start, stop, and again -------------------------------------------------------------------------------------------


async def test_started_twice_it_is_one_demo(world: World) -> None:
    first = await world.demo.start()
    await world.loop.tick()
    made = (await world.view()).things
    world.clock.advance(1)
    second = await world.demo.start()

    assert second.started_at == first.started_at
    await world.loop.tick()
    assert len((await world.view()).things["workspaces"]) == 1
    assert {*made["history"]} <= {*(await world.view()).things["history"]}


async def test_stop_removes_everything_of_it_and_tells_the_journal_who_did(world: World) -> None:
    await world.demo.start()
    await world.loop.tick()
    await world.pass_time(120)
    told = await world.demo.stop(world.caller)

    assert not told.running
    assert told.is_empty
    assert told.problems == {}
    trash = await world.context.place.open_trash() if world.context.place.open_trash is not None else None
    assert trash is not None
    assert {one.domain for one in (await trash.page()).items} <= {"workspaces"}, "which is archived before"
    assert not (world.folder / "demo").exists()
    rows = await world.context.place.journal.entries(outcome=Outcome.ENDED, limit=1000)
    ended = {row.address for row in rows if row.actor == world.caller.name}
    assert "workspace/demo-notebook" in ended
    assert any(one.startswith("history/") for one in ended)
    assert any(one.startswith("scratch/") for one in ended)


async def with_similar_names(world: World) -> dict[str, Any]:
    """Let a user have things that are called like those of the demo; return what finds them again."""
    context, store = world.context, world.context.workspaces
    assert store is not None
    spec = HistorySpec(
        experiment_ref=ExperimentRef(name="kill-pods", namespace="demo"),
        execution=Execution(start_time="2023-11-14T00:00:00Z", status="failure"),
    )
    await write_record(context.objects, spec, namespace="chaos-system", given=ObjectMeta(name="demo-kill-pods-9999"))
    metadata = {"name": "demo-capture-9999", "namespace": "default", "annotations": {LABEL: "true"}}
    target = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "demo-notes-of-mine", "uid": "mine"}
    await context.objects.create(
        VOLUME_CAPTURE_REQUEST, {"metadata": metadata, "spec": {"mode": "Snapshot", "target": target}}
    )
    await context.objects.create(
        PERSISTENT_VOLUME_CLAIM, {"metadata": {"name": "demo-mine", "namespace": "default"}, "spec": {}}
    )
    await context.keys.app(APP).put("demo-0001x", "mine", 3600)
    mine = NewWorkspace(name="demo-lab", owner="demo", command=("mine",), port=1)
    await store.create(mine, now=Ms(BEGIN_NS // 10**6))
    (world.folder / "scratch").mkdir(exist_ok=True)
    (world.folder / "scratch" / "demo-9999.txt").write_text(f"not {MARK}")
    return {
        "records": [one.metadata.uid for one in (await context.objects.list(CHAOS_EXPERIMENT_HISTORY)).items],
        "requests": [one.metadata.uid for one in (await context.objects.list(VOLUME_CAPTURE_REQUEST)).items],
        "claims": [one.metadata.uid for one in (await context.objects.list(PERSISTENT_VOLUME_CLAIM)).items],
        "workspaces": [one.id for one in await store.list()],
    }


async def test_stop_leaves_alone_what_others_have_made_also_under_such_names(world: World) -> None:
    mine = await with_similar_names(world)
    await world.demo.start()
    await world.loop.tick()
    await world.demo.stop(world.caller)
    await world.pass_time(30)

    context = world.context
    assert context.workspaces is not None
    assert {
        "records": [one.metadata.uid for one in (await context.objects.list(CHAOS_EXPERIMENT_HISTORY)).items],
        "requests": [one.metadata.uid for one in (await context.objects.list(VOLUME_CAPTURE_REQUEST)).items],
        "claims": [one.metadata.uid for one in (await context.objects.list(PERSISTENT_VOLUME_CLAIM)).items],
        "workspaces": [one.id for one in await context.workspaces.list()],
    } == mine
    assert [one.value for one in await context.keys.app(APP).scan()] == ["mine"]
    assert [one.name for one in (world.folder / "scratch").iterdir()] == ["demo-9999.txt"]


async def test_a_workspace_of_its_name_that_is_a_users_stays_what_it_is(world: World) -> None:
    assert world.context.workspaces is not None
    new = NewWorkspace(name="demo-notebook", owner="ann", command=("mine",), port=1)
    mine = await world.context.workspaces.create(new, now=Ms(BEGIN_NS // 10**6))
    await world.demo.start()
    await world.loop.tick()
    await world.demo.stop(world.caller)

    assert await world.context.workspaces.by_name("demo-notebook") == mine


async def test_what_somebody_puts_into_its_directory_stays(world: World) -> None:
    await world.demo.start()
    await world.loop.tick()
    (world.folder / "demo" / "mine.txt").write_text("mine")
    await world.demo.stop(world.caller)

    assert [one.name for one in (world.folder / "demo").iterdir()] == ["mine.txt"]


async def records(world: World) -> dict[str, ObjectMeta]:
    """The records that are there, by their addresses."""
    found = (await world.context.objects.list(CHAOS_EXPERIMENT_HISTORY)).items
    return {str(CHAOS_EXPERIMENT_HISTORY.address(one.metadata.key)): one.metadata for one in found}


async def recorded_by_hand(world: World, copied: ObjectMeta) -> str:
    """Let a person record a run under the name, the labels and the annotations of a record that is gone."""
    spec = HistorySpec(
        experiment_ref=ExperimentRef(name="mine", namespace="shop"),
        execution=Execution(start_time="2023-11-14T00:00:00Z", status="success", message="my own record"),
    )
    given = ObjectMeta(name=copied.name, labels=copied.labels, annotations=copied.annotations)
    record, is_new = await write_record(world.context.objects, spec, namespace="chaos-system", given=given)
    assert is_new
    return record.metadata.uid


async def test_a_record_that_a_person_makes_under_the_name_and_the_label_of_one_that_went_stays(world: World) -> None:
    service = LocalService(world.context.place, world.caller)
    await world.demo.start()
    await world.loop.tick()
    (first, second, again, *_), made = (await world.view()).things["history"], await records(world)
    for address in (first, second):
        await service.delete(DeleteRequest(address=address))
    mine = {address: await recorded_by_hand(world, made[address]) for address in (first, second)}
    await service.hold(HoldRequest(address=second, reason="mine"))

    # What an undo leaves on an object is copied with its document, and makes it nobody else's.
    await service.delete(DeleteRequest(address=again))
    await service.undo(UndoRequest(address=again))
    copied = (await records(world))[again]
    await service.release(ReleaseRequest(address=again))
    await service.delete(DeleteRequest(address=again))
    mine[again] = await recorded_by_hand(world, copied)
    assert BROUGHT_BACK in (await records(world))[again].annotations
    held = (await records(world))[second].annotations

    assert not {*mine} & {*(await world.view()).things["history"]}
    assert (await world.demo.stop(world.caller)).problems == {}
    await world.pass_time(30)
    left = await records(world)
    assert {address: one.uid for address, one in left.items()} == mine
    assert left[second].annotations == held, "its hold is not released"
    assert (await world.view()).is_empty


@pytest.mark.parametrize("times", [1, 2])
async def test_what_came_back_from_the_trash_is_removed_under_its_new_uid(world: World, times: int) -> None:
    service = LocalService(world.context.place, world.caller)
    await world.demo.start()
    await world.loop.tick()
    address = (await world.view()).things["history"][0]
    uids = {(await records(world))[address].uid}
    for _ in range(times):
        await service.release(ReleaseRequest(address=address))
        await service.delete(DeleteRequest(address=address))
        await service.undo(UndoRequest(address=address))
        uids.add((await records(world))[address].uid)
    assert len(uids) == times + 1
    assert address in (await world.view()).things["history"]

    assert (await world.demo.stop(world.caller)).is_empty
    assert await records(world) == {}


async def test_a_file_that_a_person_writes_under_the_name_and_with_the_mark_of_one_that_went_stays(
    world: World,
) -> None:
    await world.demo.start()
    await world.loop.tick()
    path = min((world.folder / "scratch").iterdir())
    path.rename(world.folder / "kept.txt")
    path.write_bytes((world.folder / "kept.txt").read_bytes())

    assert f"scratch/{path.name}" not in (await world.view()).things["scratch"]
    await world.demo.stop(world.caller)
    assert [*(world.folder / "scratch").iterdir()] == [path]


class KilledError(Exception):
    """The process is gone."""


@dataclass
class KillingNotes:
    """Notes of a process that is killed when it writes down for the ``left``-th time what was made."""

    inner: Notes
    left: int

    async def read_note(self, name: str) -> str | None:
        return await self.inner.read_note(name)

    async def write_note(self, name: str, text: str) -> None:
        if name == "demo.made":
            self.left -= 1
            if self.left == 0:
                raise KilledError
        await self.inner.write_note(name, text)


async def carry_out(world: World) -> None:
    """Do what controllers do for claims and captures, and let the captures go, as when their time is over."""
    store = world.context.objects
    for claim in (await store.list(PERSISTENT_VOLUME_CLAIM)).items:
        body: dict[str, Any] = {"metadata": {"name": f"local-{claim.metadata.uid}"}, "spec": {}}
        await store.create(PERSISTENT_VOLUME, body)
    for request in (await store.list(VOLUME_CAPTURE_REQUEST)).items:
        uid, claim_uid = request.metadata.uid, str(request.spec.target.uid)
        follow = {"apiVersion": VOLUME_CAPTURE_REQUEST.api_version, "kind": VOLUME_CAPTURE_REQUEST.kind, "uid": uid}
        follow |= {"namespace": request.metadata.namespace or "", "name": request.metadata.name}
        spec: dict[str, Any] = {"mode": KeeperMode.FOLLOW_OBJECT_WITH_TTL, "followObjectRef": follow, "ttl": "1h"}
        body = {"metadata": {"name": keeper_name("vcr", uid)}, "spec": spec}
        keeper = await store.create(OBJECT_KEEPER, body)
        spec = {"driver": DRIVER, "deletionPolicy": "Delete", "source": {"volumeHandle": str(world.folder / "demo")}}
        spec |= {"volumeSnapshotRef": {"name": "s", "namespace": "default"}}
        body = {
            "metadata": {"name": snapshot_name(uid, claim_uid), "ownerReferences": [to_builtins(owned_by(keeper))]},
            "spec": spec,
        }
        await store.create(VOLUME_SNAPSHOT_CONTENT, body)
        await store.delete(VOLUME_CAPTURE_REQUEST, request.metadata.key)


async def left_in(world: World) -> list[str]:
    """What is left of a demo on a folder on which there was nothing else, keys, files and artifacts among it."""
    context, folder = world.context, world.folder
    kinds: list[Kind[Any]] = [VOLUME_CAPTURE_REQUEST, PERSISTENT_VOLUME_CLAIM, CHAOS_EXPERIMENT_HISTORY]
    kinds += [RETENTION_POLICY, OBJECT_KEEPER, VOLUME_SNAPSHOT_CONTENT, PERSISTENT_VOLUME]
    left = [f"{kind.kind}/{one.metadata.name}" for kind in kinds for one in (await context.objects.list(kind)).items]
    assert context.workspaces is not None
    left += [one.name for one in await context.workspaces.list()]
    left += [one.key for one in await context.keys.app(APP).scan()]
    return left + [str(path) for name in ("demo", "scratch") for path in folder.glob(f"{name}/**/*")]


@pytest.mark.parametrize("what", sorted(making._DOMAINS))
async def test_a_process_that_is_killed_before_any_of_its_notes_leaves_nothing_that_stop_does_not_know(
    tmp_path: Path, scratch: None, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(making, "_FIRST", (what,))
    kills = 0
    for number in count(1):
        (folder := tmp_path / str(number)).mkdir()
        clock, is_killed = VirtualClock(wall_ns=BEGIN_NS), False
        async with AsyncExitStack() as stack:
            world = await opened(folder, clock, stack)
            world.context.notes = cast("Notes", KillingNotes(world.context.notes, number))
            await world.demo.start()
            try:
                await world.loop.tick()
            except KilledError:
                is_killed = True
            kills += is_killed and bool(await left_in(world))
        async with AsyncExitStack() as stack:
            world = await opened(folder, clock, stack)
            await carry_out(world)
            assert (await world.demo.stop(world.caller)).problems == {}
            await world.pass_time(10)  # what a keeper kept is garbage
            assert await left_in(world) == []
        if not is_killed:
            break
    assert kills, "it was killed after it had made something"


async def test_a_stop_that_is_killed_before_any_of_its_notes_is_gone_on_with_by_the_next_one(
    tmp_path: Path, scratch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "_FIRST", ("capture", "record"))
    for number in count(1):
        (folder := tmp_path / str(number)).mkdir()
        clock, is_killed = VirtualClock(wall_ns=BEGIN_NS), False
        async with AsyncExitStack() as stack:
            world = await opened(folder, clock, stack)
            await world.demo.start()
            await world.loop.tick()
            await carry_out(world)
            service, (address,) = LocalService(world.context.place, world.caller), await records(world)
            await service.delete(DeleteRequest(address=address))
            await service.undo(UndoRequest(address=address))
            world.context.notes = cast("Notes", KillingNotes(world.context.notes, number))
            try:
                await world.demo.stop(world.caller)
            except KilledError:
                is_killed = True
        async with AsyncExitStack() as stack:
            world = await opened(folder, clock, stack)
            await world.demo.stop(world.caller)
            await world.pass_time(10)
            assert await left_in(world) == [], "trash keepers are among it"
        if not is_killed:
            break
    assert number > 1


async def test_what_is_held_of_it_is_released_and_goes(world: World) -> None:
    await world.demo.start()
    await world.loop.tick()
    told = await world.view()
    service = LocalService(world.context.place, world.caller)
    for domain in ("history", "requests", "scratch", "workspaces"):
        address = next(one for one in told.things[domain] if not one.startswith("Persistent"))
        await service.hold(HoldRequest(address=address, reason="to see it stay"))

    assert (await world.demo.stop(world.caller)).is_empty


async def test_what_a_legal_hold_keeps_is_told_with_its_reason_as_long_as_it_is_there(world: World) -> None:
    world.context.place = replace(world.context.place, persons=lambda _scope, _domain: None)
    await world.demo.start()
    await world.loop.tick()
    address = next(one for one in (await world.view()).things["history"] if one.startswith("history/"))
    service = LocalService(world.context.place, world.caller)
    await service.hold(HoldRequest(address=address, reason="a lawsuit", legal=True))
    assert (await world.view()).problems == {}

    stopped = await world.demo.stop(world.caller)
    assert stopped.problems.keys() == {address}
    assert "a lawsuit" in stopped.problems[address]
    await world.pass_time(60)
    told = await world.view()
    assert told.things == {"history": [address]}
    assert told.problems.keys() == {address}
    assert "a lawsuit" in told.problems[address]

    await world.demo.start()
    assert (await world.view()).problems == {}, "it runs, and nothing is to be removed"
    await world.demo.stop(world.caller)
    await LocalService(world.context.place, Caller.token("ben")).release(ReleaseRequest(address=address, legal=True))
    await world.pass_time(30)
    told = await world.view()
    assert told.is_empty
    assert told.problems == {}


async def test_what_is_made_while_it_is_stopped_elsewhere_is_removed_at_the_next_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        other = await opened(world.folder, world.clock, stack)
        make, stopped = world.demo.maker._make_capture, []

        async def stop_first(made: DemoMade) -> None:
            stopped.append(await other.demo.stop(other.caller))
            await make(made)

        await world.demo.start()
        monkeypatch.setattr(world.demo.maker, "_make_capture", stop_first)
        await world.loop.tick()
        assert stopped
        assert not (await world.view()).is_empty, "it was made after the stop"

        await world.pass_time(10)
        assert (await world.view()).is_empty


async def test_after_an_hour_it_stops_by_itself_and_leaves_nothing(world: World) -> None:
    await world.demo.start()
    await world.loop.tick()
    await world.pass_time(60)
    world.clock.advance(HOUR - 70)
    await world.loop.tick()
    assert (await world.view()).running

    await world.pass_time(30)
    told = await world.view()
    assert not told.running
    assert told.is_empty


async def test_lapse_up_demo_starts_it_and_goes_on_with_it_and_starts_it_anew_when_its_time_was_over(
    world: World,
) -> None:
    await world.demo.resume()
    first = await world.view()
    world.clock.advance(60)
    await world.demo.resume()
    assert (await world.view()).started_at == first.started_at

    world.clock.advance(HOUR)
    await world.demo.resume()
    again = await world.view()
    assert again.running
    assert (again.started_at or 0) > (first.started_at or 0)


async def test_lapse_up_demo_does_not_start_again_what_a_person_has_stopped(world: World) -> None:
    await world.demo.resume()
    await world.demo.stop(world.caller)
    world.clock.advance(2 * HOUR)
    await world.demo.resume()
    assert not (await world.view()).running

    assert (await world.demo.start()).running


async def test_stop_without_a_demo_does_nothing(world: World) -> None:
    assert not (await world.demo.stop(world.caller)).running
    world.clock.advance(1)
    await world.demo.resume()
    assert (await world.view()).running, "nobody has stopped one"


# --- the settings of lapse up --demo ----------------------------------------------------------------------------------


async def test_it_looks_more_often_where_nobody_has_said_how_often(tmp_path: Path, scratch: None) -> None:
    loaded = load_settings({"state_dir": str(tmp_path), "ttl_manager_interval": "7m"})
    found, told = await demo_settings(loaded, VirtualClock())

    assert found.settings.retention_interval == loaded.settings.retention_interval, "it is also the first dry pass"
    assert str(found.settings.ttl_manager_interval) == "7m"
    assert found.settings.request_ttl_mode is TTLMode.ANNOTATION
    assert found.settings.domains == {"scratch": {"interval": "5s"}}
    assert not any("ttl_manager_interval" in one for one in told)


async def test_no_ttl_of_the_settings_is_another_one(tmp_path: Path) -> None:
    loaded = load_settings({"state_dir": str(tmp_path)})
    found, _ = await demo_settings(loaded, VirtualClock())

    for key in ("request_ttl", "keeper_ttl", "history_ttl", "trash_ttl", "default_standby_ttl", "idle_timer"):
        assert getattr(found.settings, key) == getattr(loaded.settings, key)


@pytest.mark.parametrize(("annotation", "mode"), [("1m", TTLMode.SCANNER), ("10m", TTLMode.ANNOTATION)])
async def test_annotations_do_not_count_where_a_request_of_a_user_would_go_earlier_by_its_own(
    tmp_path: Path, annotation: str, mode: TTLMode
) -> None:
    store = open_store(tmp_path, clock=VirtualClock())
    metadata = {"name": "nightly", "namespace": "default", "annotations": {TTL: annotation}}
    target = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data", "uid": "data"}
    await store.create(VOLUME_CAPTURE_REQUEST, {"metadata": metadata, "spec": {"mode": "Snapshot", "target": target}})
    await store.close()

    found, _ = await demo_settings(load_settings({"state_dir": str(tmp_path)}), VirtualClock())
    assert found.settings.request_ttl_mode is mode


def test_a_port_that_is_taken_or_beyond_the_last_one_is_replaced_by_a_free_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert 0 < free_port(port) != port
    assert 0 < free_port(65_536) < 65_536


# --- commands ---------------------------------------------------------------------------------------------------------


def test_without_a_server_the_demo_does_not_claim_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = f"--state-dir={tmp_path / 'state'}"

    def said(command: str) -> str:
        assert main(["demo", command, place]) == 0
        told = capsys.readouterr()
        return told.out + told.err

    assert said("status").endswith("The demo does not run.\n")
    for command in ("start", "status"):
        told = said(command)
        assert "The demo is on, until " in told
        assert "no lapse up runs on this folder" in told
        assert "It goes on when lapse up runs again." in told
        assert "The demo runs" not in told
    assert main(["demo", "status", place, "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["running"], told["served"]) == (True, False)


def test_beside_a_server_of_the_folder_the_demo_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lapse.cli.remote.server_of", lambda _folder: "http://127.0.0.1:8750")
    assert main(["demo", "start", f"--state-dir={tmp_path / 'state'}"]) == 0
    assert "The demo runs, until " in capsys.readouterr().out
