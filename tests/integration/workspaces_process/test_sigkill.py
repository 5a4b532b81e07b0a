"""The whole chain in a process of its own that is killed again and again: nothing is doubled, nothing is lost."""

from __future__ import annotations

import contextlib
import os
import random  # noqa: TID251 - a seeded generator
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lapse.workspaces.errors import OperationUnderWayError, UnknownWorkspaceError
from lapse.workspaces.model import DesiredBy, DesiredState, Ms, NewWorkspace, Operation
from lapse.workspaces.runtime.processes import MARK
from lapse.workspaces.store.sqlite import open_sqlite_store
from tests.integration.workspaces_process.machine import (
    CLOCK,
    PATIENCE,
    command,
    host,
    is_there,
    kill,
    pids,
    until,
)
from tests.servers.ports import kept_port

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncIterator

    from lapse.workspaces.model import Workspace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are known from /proc")
PENDING, STANDBY, RUNNING = DesiredState.PENDING, DesiredState.STANDBY, DesiredState.RUNNING


class Chain:
    """A hosted workspace, seen through the database and the disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = open_sqlite_store(folder / "workspaces.db")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def now(self) -> Ms:
        return Ms(CLOCK.wall_ns() // 1_000_000)

    async def create(self, *manners: str) -> Workspace:
        new = NewWorkspace(name="notebook", owner="ada", command=command(*manners), port=kept_port())
        return await self.store.create(new, now=self.now)

    def live(self, *words: str) -> None:
        self.process = host(self.folder, *words)

    def log(self) -> str:
        return (self.folder / "host.log").read_text()[-2000:]

    def die(self) -> None:
        if self.process is not None:
            kill(self.process)

    async def want(self, workspace: Workspace, state: DesiredState) -> None:
        """Ask until nothing is under way that forbids it."""
        end = CLOCK.monotonic_ns() + PATIENCE * 1_000_000_000
        while True:
            try:
                await self.store.set_desired(workspace.id, state, DesiredBy.USER, now=self.now)
                return
            except OperationUnderWayError:
                assert CLOCK.monotonic_ns() < end
                await CLOCK.sleep(0.05)

    async def reached(self, workspace: Workspace, state: DesiredState) -> Workspace:
        end = CLOCK.monotonic_ns() + PATIENCE * 1_000_000_000
        while True:
            found = await self.store.get(workspace.id)
            if (found.observed_status.value, found.operation) == (state.value, Operation.NONE):
                return found
            assert CLOCK.monotonic_ns() < end, (found, self.log())
            assert found.error_reason is None, found
            await CLOCK.sleep(0.05)

    async def gone(self, workspace: Workspace) -> None:
        end = CLOCK.monotonic_ns() + PATIENCE * 1_000_000_000
        with contextlib.suppress(UnknownWorkspaceError):
            while True:
                await self.store.get(workspace.id)
                assert CLOCK.monotonic_ns() < end
                await CLOCK.sleep(0.05)

    def traces(self, workspace: Workspace) -> list[Path]:
        return [path for path in self.folder.rglob("*") if workspace.id in str(path)]

    def volume(self, workspace: Workspace) -> Path:
        return self.folder / "run" / "volumes" / workspace.id


@pytest.fixture
async def chain(tmp_path: Path) -> AsyncIterator[Chain]:
    chain = Chain(tmp_path)
    yield chain
    chain.die()
    await chain.store.close()
    kill_strays(tmp_path)


def kill_strays(folder: Path) -> None:
    """End what a killed host has left; the mark tells that it is one of ours."""
    for path in (*folder.rglob("starts"), *folder.rglob("children")):
        for pid in filter(is_there, pids(path)):
            if f"{MARK}=".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(pid, signal.SIGKILL)


async def test_a_hosted_workspace_goes_up_and_down_for_real(chain: Chain) -> None:
    workspace = await chain.create("family")
    chain.live()
    await chain.reached(workspace, RUNNING)
    (chain.volume(workspace) / "work").write_text("of a day")
    for state in (STANDBY, PENDING):
        await chain.want(workspace, state)
        await chain.reached(workspace, state)
    assert not chain.volume(workspace).exists()
    await chain.want(workspace, RUNNING)
    await chain.reached(workspace, RUNNING)
    assert (chain.volume(workspace) / "work").read_text() == "of a day"
    await chain.store.mark_deleted(workspace.id, now=chain.now)
    await chain.gone(workspace)
    assert chain.traces(workspace) == []


async def test_stopping_the_host_stops_the_program_and_says_so(chain: Chain) -> None:
    workspace = await chain.create()
    chain.live()
    await chain.reached(workspace, RUNNING)
    (pid,) = pids(chain.volume(workspace) / "starts")
    assert chain.process is not None
    chain.process.send_signal(signal.SIGTERM)
    assert chain.process.wait(PATIENCE) == 0
    assert not is_there(pid)
    found = await chain.store.get(workspace.id)
    assert (found.observed_status.value, found.desired_state) == ("STANDBY", RUNNING)
    chain.live()
    await chain.reached(workspace, RUNNING)


async def test_a_program_that_is_to_outlive_its_host_does(chain: Chain) -> None:
    workspace = await chain.create()
    for _ in range(2):
        chain.live("stay")
        await chain.reached(workspace, RUNNING)
        assert chain.process is not None
        chain.process.send_signal(signal.SIGTERM)
        chain.process.wait(PATIENCE)
    (pid,) = pids(chain.volume(workspace) / "starts")
    assert is_there(pid)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_a_host_that_is_killed_at_any_moment_loses_nothing_and_doubles_nothing(chain: Chain, seed: int) -> None:
    chance = random.Random(seed)
    workspace = await chain.create("family")
    chain.live()
    await chain.reached(workspace, RUNNING)
    volume = chain.volume(workspace)
    for written in range(6):
        known = len(pids(volume / "starts"))
        state = chance.choice([RUNNING, STANDBY, PENDING])
        await chain.want(workspace, state)
        await CLOCK.sleep(chance.random() * 1.5)
        chain.die()
        chain.live()
        await chain.want(workspace, RUNNING)
        # The row may still say what the killed one saw; a new start says that the new one is at work.
        await until(lambda known=known: len(pids(volume / "starts")) > known, "it was started again")  # type: ignore[misc]
        await chain.reached(workspace, RUNNING)
        assert not (volume / "doubled").exists()
        assert written == 0 or (volume / "work").read_text() == str(written)
        (volume / "work").write_text(str(written + 1))
        alive = [pid for pid in pids(volume / "starts") if is_there(pid)]
        assert len(alive) == 1
