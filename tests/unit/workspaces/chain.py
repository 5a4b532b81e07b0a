"""A machine with workspaces, in memory: the real store, health monitor and reconciler on a runtime that can be hurt.

The runtime keeps to the port; every call and every point within one goes through `World.at`, where a test lets it fail
or the whole process crash. Time is virtual; what is on the machine survives a crash, programs included, until the next
life of the runtime ends them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lapse.core.clock import VirtualClock
from lapse.db.sqlite.file import Synchronous
from lapse.workspaces.model import DesiredBy, DesiredState, Ms, NewWorkspace, ObservedStatus, Operation
from lapse.workspaces.runtime.port import (
    ArchiveAbandonedError,
    ArchiveMissingError,
    HealthMonitor,
    ProgramExit,
    Progress,
    RuntimeUnavailableError,
    Turns,
)
from lapse.workspaces.runtime.reconciler import Reconciler
from lapse.workspaces.store.sqlite import open_sqlite_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from lapse.workspaces.model import Workspace, WorkspaceId
    from lapse.workspaces.runtime.port import Confirm
    from lapse.workspaces.store.port import WorkspaceStore

NODE = "here"
_STILL = 30
"""Turns of the event loop without a write after which everybody waits for the clock."""
WRITES = ("claim", "tried", "complete", "fail", "forget", "observe", "note_exit", "note_operation")


class Crashed(BaseException):
    """The process is dead: whatever it does from now on, it does not."""


@dataclass
class Machine:
    """What a crash of Lapse leaves as it is."""

    volumes: dict[WorkspaceId, str] = field(default_factory=dict)
    archives: dict[WorkspaceId, list[str]] = field(default_factory=dict)
    programs: dict[WorkspaceId, int] = field(default_factory=dict)
    started: list[WorkspaceId] = field(default_factory=list)
    ended: dict[WorkspaceId, ProgramExit] = field(default_factory=dict)
    """Programs that ended by themselves."""


class World:
    """The machine, the database and the present life of Lapse."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.machine = Machine()
        self.points: list[str] = []
        self.writing: set[asyncio.Future[Any]] = set()
        """Writes under way: those take real time."""
        self.arriving: list[asyncio.Future[Any]] = []
        """Visitors: an archive takes longer than they need to write that they are there."""
        self.hurt: Callable[[str], None] = lambda _point: None
        self.errors: list[Exception] = []
        """What was counted as an error of Lapse."""
        self.store = open_sqlite_store(folder / "workspaces.db", synchronous=Synchronous.NORMAL)
        self.live()

    def live(self) -> None:
        """Begin a life of Lapse: what an earlier one left running is ended."""
        self.dead = False
        self.machine.programs.clear()
        self.machine.ended.clear()
        self.runtime = MemoryRuntime(self)
        self.health, self.reconciler = self.another()

    def another(self) -> tuple[HealthMonitor, Reconciler]:
        """Return a reconciler more, on the same runtime."""
        store: Any = Watched(self.store, self)
        health = HealthMonitor(store, self.runtime, clock=self.clock)
        return health, Reconciler(
            store, self.runtime, health, clock=self.clock, on_error=self.errors.append, chance=lambda: 0.5
        )

    async def close(self) -> None:
        await self.reconciler.end()
        await self.store.close()

    def at(self, point: str) -> None:
        """Pass a point where something may happen."""
        if self.dead:
            raise Crashed
        self.points.append(point)
        try:
            self.hurt(point)
        except Crashed:
            self.dead = True
            raise

    @property
    def now(self) -> Ms:
        return Ms(self.clock.wall_ns() // 1_000_000)

    async def create(self, name: str = "notebook", **more: Any) -> Workspace:  # noqa: ANN401
        new = NewWorkspace(name=name, owner="ada", command=("run",), port=8000, **more)
        return await self.store.create(new, now=self.now)

    async def want(self, workspace: Workspace, state: DesiredState) -> None:
        await self.store.set_desired(workspace.id, state, DesiredBy.USER, now=self.now)

    async def tick(self, *reconcilers: Reconciler) -> None:
        """Let everybody look for work, and let the work come to where only the clock can bring it on."""
        for reconciler in reconcilers or (self.reconciler,):
            await reconciler.tick()
        still = 0
        while still < _STILL:
            await self.clock.sleep(0)
            still = 0 if self.writing else still + 1
            if self.writing:
                await asyncio.wait(self.writing)

    async def settle(self) -> None:
        """Wait for what was taken up."""
        while working := tuple(work.task for work in self.reconciler._working.values()):
            await asyncio.wait(working)

    async def run(self, *reconcilers: Reconciler, seconds: float = 60, step: float = 1.0) -> None:
        """Let time pass until nothing is to be done any more, for at most so long."""
        end = self.clock.monotonic_ns() + round(seconds * 1_000_000_000)
        while self.clock.monotonic_ns() < end and not self.dead:
            await self.tick(*reconcilers)
            if not await self.store.pending_work() and not self.reconciler._working:
                return
            self.clock.advance(step)

    async def get(self, workspace: Workspace) -> Workspace:
        return await self.store.get(workspace.id)

    def end_program(self, workspace: Workspace, *, after: float = 5.0, status: int = 3) -> None:
        """Let the program of a workspace end by itself."""
        del self.machine.programs[workspace.id]
        self.machine.ended[workspace.id] = ProgramExit(status, self.now, after, "out of luck")

    async def brought_to(self, workspace: Workspace, state: DesiredState) -> Workspace:
        """Want a state and see to it that it is reached."""
        await self.want(workspace, state)
        await self.run()
        found = await self.get(workspace)
        assert (found.observed_status.value, found.operation) == (state.value, Operation.NONE), found
        return found


class Watched:
    """A store whose writes can fail or crash, before they are made or after."""

    def __init__(self, store: WorkspaceStore, world: World) -> None:
        self._store, self._world = store, world

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        real = getattr(self._store, name)
        if name not in WRITES:
            return real

        async def call(*args: Any, **more: Any) -> Any:  # noqa: ANN401
            self._world.at(f"{name}:before")
            write = asyncio.ensure_future(real(*args, **more))
            self._world.writing.add(write)
            write.add_done_callback(self._world.writing.discard)
            result = await asyncio.shield(write)
            self._world.at(f"{name}:after")
            return result

        return call


class MemoryRuntime:
    """A `Runtime` on a `Machine`."""

    node = NODE

    def __init__(self, world: World) -> None:
        self._world, self._turns = world, Turns()
        self.far = Progress()

    @property
    def _machine(self) -> Machine:
        return self._world.machine

    def turn(self, workspace: WorkspaceId) -> AbstractContextManager[bool]:
        return self._turns.turn(workspace)

    def progress(self, workspace: WorkspaceId) -> Progress:
        return self.far

    def exit_of(self, workspace: WorkspaceId) -> ProgramExit | None:
        return self._machine.ended.get(workspace)

    async def look(self) -> Mapping[WorkspaceId, ObservedStatus | None]:
        try:
            self._world.at("look")
        except OSError as error:
            raise RuntimeUnavailableError(problem="the listing failed") from error
        running, standby = ObservedStatus.RUNNING, ObservedStatus.STANDBY
        return {one: running if one in self._machine.programs else standby for one in self._machine.volumes}

    async def provision(self, workspace: Workspace) -> str | None:
        self._world.at("provision:before")
        key = None
        if workspace.id not in self._machine.volumes:
            if self._machine.archives.get(workspace.id):
                key = await self.restore(workspace)
            else:
                self._machine.volumes[workspace.id] = ""
        self._world.at("provision:after")
        return key

    async def restore(self, workspace: Workspace) -> str:
        self._world.at("restore:before")
        kept = self._machine.archives.get(workspace.id)
        if not kept:
            raise ArchiveMissingError(workspace=workspace.name, archive=workspace.archive_key)
        self._machine.volumes.setdefault(workspace.id, kept[-1])
        self._world.at("restore:after")
        return str(len(kept))

    async def start(self, workspace: Workspace) -> None:
        self._world.at("start:before")
        if workspace.id not in self._machine.programs:
            assert workspace.id in self._machine.volumes
            self._machine.programs[workspace.id] = 1
            self._machine.ended.pop(workspace.id, None)
            self._machine.started.append(workspace.id)
        self._world.at("start:after")

    async def stop(self, workspace: Workspace) -> None:
        self._world.at("stop:before")
        self._machine.programs.pop(workspace.id, None)
        self._machine.ended.pop(workspace.id, None)
        self._world.at("stop:after")

    async def archive(self, workspace: Workspace, *, confirm: Confirm) -> str | None:
        self._world.at("archive:before")
        kept = self._machine.archives.setdefault(workspace.id, [])
        self._machine.programs.pop(workspace.id, None)
        if workspace.id in self._machine.volumes:
            kept.append(self._machine.volumes[workspace.id])
            self._world.at("archive:written")
            await asyncio.gather(*self._world.arriving)
            if not await confirm():
                kept.pop()
                raise ArchiveAbandonedError(workspace=workspace.name)
            self._world.at("archive:confirmed")
            del self._machine.volumes[workspace.id]
        self._world.at("archive:after")
        return str(len(kept)) if kept else None

    async def tidy(self, workspace: Workspace) -> None:
        self._world.at("tidy")

    async def delete(self, workspace: Workspace) -> None:
        self._world.at("delete:before")
        self._machine.programs.pop(workspace.id, None)
        self._machine.volumes.pop(workspace.id, None)
        self._world.at("delete:volume gone")
        self._machine.archives.pop(workspace.id, None)
        self._world.at("delete:after")
