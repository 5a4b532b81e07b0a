"""Deleted workspaces in the trash: archived, brought back, or gone when their time is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from lapse.core.clock import UnixNs
from lapse.core.decision import Due, Keep, KeepReason, Unknown
from lapse.core.duration import Duration
from lapse.db.sqlite.database import Database
from lapse.db.sqlite.file import Schema, SQLiteFile
from lapse.engine.executor import Executor
from lapse.engine.journal.port import Outcome
from lapse.engine.journal.sqlite import SCHEMA_SCRIPTS, SQLiteJournal
from lapse.engine.running.metrics import Metrics
from lapse.engine.sweep import Sweep
from lapse.engine.trash import NotInTrashError, PlaceTakenError, TrashBin
from lapse.workspaces.expiry import REMOVE, LapseReason, decide_removal
from lapse.workspaces.model import DesiredState, Ms, ObservedStatus, Operation
from lapse.workspaces.target import WorkspaceTarget, delete_by_person
from lapse.workspaces.trash import TrashedWorkspaces, TrashRule
from tests.unit.workspaces.chain import Crashed, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.workspaces.model import Workspace

WEEK = Duration.parse("7d")
WEEK_MS = (WEEK.nanoseconds or 0) // 1_000_000


class Scene:
    """A machine with a workspace that has data, and a journal."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.world = World(folder)
        self.database = Database(SQLiteFile(folder / "journal.db"), Schema(1, SCHEMA_SCRIPTS))
        self.journal = SQLiteJournal(self.database)

    async def close(self) -> None:
        await self.world.close()
        self.database.close()

    @property
    def trash(self) -> TrashBin:
        found = TrashedWorkspaces(
            self.world.store,
            journal=self.journal,
            clock=self.world.clock,
            size_of=lambda row: sum(map(len, self.world.machine.archives.get(row.id, []))),
        )
        return TrashBin(found)

    async def running(self, data: str = "precious") -> Workspace:
        made = await self.world.create()
        found = await self.world.brought_to(made, DesiredState.RUNNING)
        self.world.machine.volumes[made.id] = data
        return found

    async def delete(self, workspace: Workspace) -> Workspace:
        seen = await self.world.get(workspace)
        return await delete_by_person(
            self.world.store, self.journal, seen, actor="ann", clock=self.world.clock, trash_ttl=WEEK
        )

    async def undo(self) -> str:
        found = self.trash
        return (await found.bring_back(await found.find("workspace/notebook"), by="ann")).says

    async def sweep(self) -> None:
        clock, metrics = self.world.clock, Metrics("test")
        target = WorkspaceTarget(self.world.store, clock=clock)
        executor = Executor(target, self.journal, clock=clock, metrics=metrics, actor="lapse")
        sweep = Sweep(TrashRule(self.world.store), executor, journal=self.journal, clock=clock, metrics=metrics)
        await sweep.run(proceed=lambda: True)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path / "scene")
    yield made
    await made.close()


async def test_a_deleted_workspace_is_stopped_and_archived_and_rests(scene: Scene) -> None:
    made = await scene.running()
    await scene.delete(made)
    await scene.world.run()
    found = await scene.world.get(made)
    assert (found.observed_status, found.operation) == (ObservedStatus.PENDING, Operation.NONE)
    assert scene.world.machine.archives[made.id] == ["precious"]
    assert made.id not in scene.world.machine.volumes
    assert made.id not in scene.world.machine.programs
    assert list(await scene.world.store.pending_work()) == []
    (entry,) = (await scene.trash.page()).items
    assert (entry.address, entry.uid, entry.bytes) == ("workspace/notebook", made.id, len("precious"))
    (row,) = [one for one in await scene.journal.entries(uid=made.id) if one.outcome is Outcome.ENDED]
    assert row.details is not None
    assert row.details["undo_until_ns"] // 1_000_000 == found.trash_until


async def test_undo_brings_it_back_with_its_data(scene: Scene) -> None:
    made = await scene.running()
    await scene.delete(made)
    await scene.world.run()
    await scene.undo()
    await scene.world.run()
    found = await scene.world.store.by_name("notebook")
    assert (found.id, found.observed_status) == (made.id, ObservedStatus.STANDBY)
    assert scene.world.machine.volumes[made.id] == "precious"
    assert (await scene.trash.page()).items == []
    with pytest.raises(NotInTrashError):
        await scene.undo()


async def test_undo_at_any_moment_of_its_way_to_the_archive_finds_the_data(tmp_path: Path) -> None:
    first = Scene(tmp_path / "first")
    made = await first.running()
    first.world.points.clear()
    await first.delete(made)
    await first.world.run()
    points = len(first.world.points)
    await first.close()
    assert points > 10
    for number in range(points):
        scene = Scene(tmp_path / f"{number}")
        made = await scene.running()
        await scene.delete(made)
        left = [number]

        def crash(_point: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Crashed

        scene.world.hurt = crash
        await scene.world.run()
        await scene.world.reconciler.end()
        scene.world.hurt = lambda _point: None
        scene.world.live()
        await scene.undo()
        await scene.world.run()
        found = await scene.world.store.by_name("notebook")
        assert found.observed_status is ObservedStatus.STANDBY, f"crashed at point {number}"
        assert scene.world.machine.volumes[made.id] == "precious", f"crashed at point {number}"
        await scene.close()


async def test_a_name_that_is_taken_by_now_is_said_and_nothing_is_lost(scene: Scene) -> None:
    made = await scene.running()
    await scene.delete(made)
    await scene.world.run()
    other = await scene.world.create()
    with pytest.raises(PlaceTakenError, match="another one has its place"):
        await scene.undo()
    await scene.world.store.mark_deleted(other.id, now=scene.world.now)
    said = await scene.undo()
    assert "in place" in said


async def test_it_is_gone_when_its_time_is_over_and_not_before(scene: Scene) -> None:
    made = await scene.running()
    deleted = await scene.delete(made)
    await scene.world.run()
    assert deleted.trash_until is not None
    scene.world.clock.advance(ns=deleted.trash_until * 1_000_000 - scene.world.clock.wall_ns())
    await scene.sweep()
    assert (await scene.world.get(made)).trash_until is not None, "at the very moment it is not over yet"
    scene.world.clock.advance(ns=1_000_000)
    await scene.sweep()
    await scene.world.run()
    assert made.id not in scene.world.machine.archives
    assert list(await scene.world.store.trashed()) == []
    rows = [row for row in await scene.journal.entries(uid=made.id) if row.reason == LapseReason.TRASH_TTL_EXPIRED]
    assert [row.outcome for row in rows] == [Outcome.ENDED, Outcome.INTENT]


async def test_emptying_removes_it_at_once(scene: Scene) -> None:
    made = await scene.running()
    await scene.delete(made)
    await scene.world.run()
    ((entry, result),) = await scene.trash.empty(by="bob")
    assert (entry.uid, result.outcome) == (made.id, Outcome.ENDED)
    await scene.world.run()
    assert made.id not in scene.world.machine.archives
    rows = await scene.journal.entries(uid=made.id)
    assert (rows[0].actor, rows[0].reason) == ("bob", "deleted_by_person")


async def test_an_archive_that_cannot_be_written_is_tried_again_and_keeps_the_data(scene: Scene) -> None:
    made = await scene.running()
    await scene.delete(made)

    def fail(point: str) -> None:
        if point == "archive:before":
            raise OSError("the disk is full")

    scene.world.hurt = fail
    await scene.world.run(seconds=120)
    found = await scene.world.get(made)
    assert (found.error_reason, scene.world.machine.volumes[made.id]) == (None, "precious")
    scene.world.hurt = lambda _point: None
    await scene.world.run(seconds=900, step=30)
    assert scene.world.machine.archives[made.id] == ["precious"]


async def test_the_decision_about_the_trash_is_by_its_row(scene: Scene) -> None:
    made = await scene.running()
    deleted = await scene.delete(made)
    assert deleted.trash_until is not None
    over = Ms(deleted.trash_until + 1)
    decided = decide_removal(deleted, over)
    assert decided.verdict == Due(REMOVE, LapseReason.TRASH_TTL_EXPIRED, UnixNs(deleted.trash_until * 1_000_000))
    assert decide_removal(deleted, deleted.trash_until).verdict.reason is KeepReason.NOT_YET
    assert isinstance(decide_removal(made, over).verdict, Keep)
    held = msgspec.structs.replace(deleted, hold_reason="audit")
    assert decide_removal(held, over).verdict == Keep(KeepReason.HELD)
    spoilt = msgspec.structs.replace(deleted, trash_until=Ms(0))
    assert isinstance(decide_removal(spoilt, over).verdict, Unknown)
