"""A host of workspaces with real programs: crash loops, wrong ports, abandoned archives, time without a Lapse."""

from __future__ import annotations

import asyncio
import sys
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.identity import secret_bytes
from lapse.files import archive
from lapse.workspaces.model import DesiredBy, DesiredState, Ms, NewWorkspace, ObservedStatus, Operation, OpId
from lapse.workspaces.runtime import program
from lapse.workspaces.runtime.host import WorkspaceHost
from lapse.workspaces.runtime.port import ArchiveAbandonedError
from lapse.workspaces.runtime.process import is_hosted
from lapse.workspaces.store.sqlite import open_sqlite_store
from tests.integration.workspaces_process.machine import CLOCK, PATIENCE, command, runtime_in, until, workspace
from tests.servers.ports import kept_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from lapse.workspaces.model import Workspace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are known from /proc")
DAY_MS = 86_400_000


def now() -> Ms:
    return Ms(CLOCK.wall_ns() // 1_000_000)


class Machine:
    """A store and a folder, with a host of workspaces from `host` to `end`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.exits = folder, 0
        self.store = open_sqlite_store(folder / "workspaces.db")
        self._running: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    def host(self) -> None:
        runtime = runtime_in(self.folder / "run")
        host = WorkspaceHost(self.store, runtime, clock=CLOCK, on_exit=self._ended)
        self._stopping = asyncio.Event()
        self._running = asyncio.create_task(host.run(self._stopping))

    def _ended(self) -> None:
        self.exits += 1

    async def end(self) -> None:
        if self._running is not None:
            self._stopping.set()
            await self._running
            self._running = None

    async def create(self, *manners: str, **more: Any) -> Workspace:  # noqa: ANN401
        asked = NewWorkspace(name="lab", owner="ada", command=command(*manners), port=kept_port(), **more)
        return await self.store.create(asked, now=now())

    async def until(self, made: Workspace, true: Callable[[Workspace], object], what: str) -> Workspace:
        end = CLOCK.monotonic_ns() + PATIENCE * 1_000_000_000
        while not true(found := await self.store.get(made.id)):
            assert CLOCK.monotonic_ns() < end, f"waited in vain until {what}: {found}"
            await CLOCK.sleep(0.05)
        return found

    async def until_at(self, made: Workspace, status: ObservedStatus) -> Workspace:
        def arrived(found: Workspace) -> bool:
            assert found.error_reason is None, found
            return found.observed_status is status and found.operation is Operation.NONE

        return await self.until(made, arrived, f"it is {status.value}")

    def log_of(self, made: Workspace) -> Path:
        return self.folder / "run" / "logs" / f"{made.id}.log"


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    await machine.end()
    await machine.store.close()


async def test_a_crash_loop_is_counted_told_and_slowed_down_and_idle_time_goes_on(machine: Machine) -> None:
    made = await machine.create("crashing", standby_ttl_seconds=10)
    machine.host()
    first = await machine.until(made, lambda found: found.observed_status is ObservedStatus.RUNNING, "it runs")
    found = await machine.until(made, lambda found: found.restarts >= 2, "it has ended twice")
    assert (found.exit_status, found.running_since) == (7, first.running_since)
    assert found.exit_output is not None
    assert found.exit_output.startswith("I crash, ")
    assert "\n" not in found.exit_output, "of the last run only"
    await until(lambda: machine.exits >= 2, "both are counted")
    starts = machine.log_of(made).read_text().count("--- started at ")
    assert starts >= 2, "the output of earlier runs is kept"
    assert found.error_reason is None


async def test_a_program_that_listens_elsewhere_is_told_of_within_seconds(machine: Machine) -> None:
    made = await machine.create("elsewhere")
    machine.host()
    begun = CLOCK.monotonic_ns()
    found = await machine.until(made, lambda found: found.op_note, "it is told")
    assert (CLOCK.monotonic_ns() - begun) / 1e9 < 20
    port = (machine.folder / "run" / "volumes" / made.id / "port").read_text()
    assert found.operation is Operation.STARTING
    assert f"does not listen on port {made.port}" in str(found.op_note)
    assert f"It listens on 127.0.0.1:{port}" in str(found.op_note)


async def test_who_comes_while_it_is_packed_finds_it_running_and_no_archive_is_left(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await machine.create()
    machine.host()
    await machine.until_at(made, ObservedStatus.RUNNING)
    volume = machine.folder / "run" / "volumes" / made.id
    (volume / "work").write_bytes(secret_bytes(1_000_000))
    packing = slow_packing(monkeypatch)
    await machine.store.set_desired(made.id, DesiredState.PENDING, DesiredBy.USER, now=now())
    await until(lambda: packing, "it is packed")
    archives = machine.folder / "run" / "archives" / made.id
    await until(lambda: archives.is_dir() and list(archives.iterdir()), "half an archive is there")
    begun = CLOCK.monotonic_ns()
    await machine.store.set_desired(made.id, DesiredState.RUNNING, DesiredBy.ACCESS, now=now())
    await machine.until_at(made, ObservedStatus.RUNNING)
    assert (CLOCK.monotonic_ns() - begun) / 1e9 < 20
    assert (volume / "work").stat().st_size == 1_000_000
    assert list(archives.iterdir()) == []


def slow_packing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the packing of a volume last for minutes; return where its beginning is noted."""
    begun: list[str] = []

    def slow(directory: Path, target: Path, *, stop: Callable[[], bool]) -> archive.Archive:
        begun.append(directory.name)
        return archive.pack(directory, target, stop=lambda: Event().wait(0.5) or stop())

    monkeypatch.setattr("lapse.workspaces.runtime.archive.pack", slow)
    return begun


@pytest.mark.parametrize("operation", [Operation.ARCHIVING, Operation.STARTING])
async def test_a_day_without_a_lapse_is_no_time_of_an_operation(machine: Machine, operation: Operation) -> None:
    made = await machine.create(desired_state=DesiredState.STANDBY)
    machine.host()
    await machine.until_at(made, ObservedStatus.STANDBY)
    await machine.end()
    state = DesiredState.PENDING if operation is Operation.ARCHIVING else DesiredState.RUNNING
    await machine.store.set_desired(made.id, state, DesiredBy.USER, now=now())
    assert await machine.store.claim(made.id, operation, OpId("of a Lapse that is gone"), now=Ms(now() - DAY_MS))
    machine.host()
    await machine.until_at(made, ObservedStatus(state.value))


async def test_an_archive_that_is_not_confirmed_is_discarded_and_the_volume_stays(tmp_path: Path) -> None:
    runtime, found = runtime_in(tmp_path), workspace(archive_key=None)
    await runtime.open()
    try:
        await runtime.provision(found)
        (tmp_path / "volumes" / found.id / "work").write_text("of a day")
        seen: list[int] = []

        async def no() -> bool:
            seen.append(len(list((tmp_path / "archives" / found.id).iterdir())))
            return False

        with pytest.raises(ArchiveAbandonedError):
            await runtime.archive(found, confirm=no)
        assert seen == [1], "it was complete, and had its name, when that was asked"
        assert list((tmp_path / "archives" / found.id).iterdir()) == []
        assert (tmp_path / "volumes" / found.id / "work").read_text() == "of a day"
        assert runtime.progress(found.id).marks > 0
    finally:
        await runtime.close()


async def test_the_output_of_a_program_that_writes_without_end_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "LOG_BYTES", 10_000)
    log = tmp_path / "a.log"
    start = program.begin_log(log, "now")
    with log.open("ab") as writer:
        for number in range(10_000):
            writer.write(b"line %d\n" % number)
            writer.flush()
            if number % 500 == 0:
                program.rotate(log)
    program.rotate(log)
    kept = program.older(log).read_bytes() + log.read_bytes()
    assert kept.endswith(b"line 9999\n")
    assert len(kept) <= 30_000
    assert program.tail(log, start).endswith("line 9999")


async def test_whether_a_folder_is_used_is_known_to_others(tmp_path: Path) -> None:
    assert not is_hosted(tmp_path)
    runtime = runtime_in(tmp_path)
    await runtime.open()
    assert is_hosted(tmp_path)
    await runtime.close()
    assert not is_hosted(tmp_path)
    await runtime.open()
    await runtime.close()
