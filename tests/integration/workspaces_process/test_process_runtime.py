"""The process runtime with real processes: started once, stopped whole, recognised after a crash, never mistaken."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from lapse.workspaces.model import ObservedStatus
from lapse.workspaces.runtime import processes
from lapse.workspaces.runtime.port import (
    ArchiveFailedError,
    CommandExitedError,
    CommandNotFoundError,
    PortTakenError,
    RuntimeBusyError,
    RuntimeUnavailableError,
    VolumeMissingError,
)
from lapse.workspaces.runtime.process import ProcessRuntime
from lapse.workspaces.runtime.program import ProgramRecord, ProgramRecords
from tests.integration.workspaces_process.machine import (
    CLOCK,
    ROOT,
    is_there,
    pids,
    runtime_in,
    until,
    workspace,
    yes,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.workspaces.model import Workspace, WorkspaceId

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are known from /proc")
STANDBY, RUNNING = ObservedStatus.STANDBY, ObservedStatus.RUNNING


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    runtime = runtime_in(tmp_path)
    await runtime.open()
    yield runtime
    await runtime.close()


def volume_of(folder: Path, found: Workspace) -> Path:
    return folder / "volumes" / found.id


def traces(folder: Path, found: Workspace) -> list[Path]:
    return [path for path in folder.rglob("*") if found.id in str(path)]


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True)


async def started(runtime: ProcessRuntime, *manners: str) -> Workspace:
    found = workspace(*manners)
    await runtime.provision(found)
    await runtime.start(found)
    return found


async def test_a_command_runs_in_its_directory_on_its_port(
    runtime: ProcessRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAPSE_DATABASE_PASSWORD", "hunter2")
    found = await started(runtime)
    socket.create_connection(("127.0.0.1", found.port)).close()
    assert await runtime.look() == {found.id: RUNNING}
    (pid,) = pids(volume_of(tmp_path, found) / "starts")
    assert os.getpgid(pid) == pid, "a group of its own"
    known = (volume_of(tmp_path, found) / "environment").read_text().split()
    assert {"HOME", "HOST", "PORT", "PATH", "LAPSE_WORKSPACE"} <= set(known)
    assert "LAPSE_DATABASE_PASSWORD" not in known


async def test_it_is_asked_to_end_before_it_is_made_to(runtime: ProcessRuntime, tmp_path: Path) -> None:
    found = await started(runtime)
    await runtime.stop(found)
    await runtime.stop(found)
    volume = volume_of(tmp_path, found)
    assert (volume / "asked").exists()
    assert not any(is_there(pid) for pid in pids(volume / "starts"))
    assert await runtime.look() == {found.id: STANDBY}
    assert list((tmp_path / "runs").iterdir()) == []


async def test_one_that_does_not_listen_to_signals_is_killed(tmp_path: Path) -> None:
    runtime = runtime_in(tmp_path, grace_seconds=0.3)
    await runtime.open()
    found = await started(runtime, "stubborn")
    (pid,) = pids(volume_of(tmp_path, found) / "starts")
    await runtime.stop(found)
    assert not is_there(pid)
    await runtime.close()


async def test_its_whole_family_ends_with_it_even_who_left_the_group(runtime: ProcessRuntime, tmp_path: Path) -> None:
    found = await started(runtime, "family")
    family = pids(volume_of(tmp_path, found) / "children")
    assert len(family) == 2
    assert all(is_there(pid) for pid in family)
    await runtime.stop(found)
    assert not any(is_there(pid) for pid in family)


async def test_a_suspended_one_ends_as_well(runtime: ProcessRuntime, tmp_path: Path) -> None:
    found = await started(runtime)
    (pid,) = pids(volume_of(tmp_path, found) / "starts")
    os.kill(pid, signal.SIGSTOP)
    await runtime.stop(found)
    assert (volume_of(tmp_path, found) / "asked").exists()
    assert not is_there(pid)


async def test_starting_twice_runs_it_once(runtime: ProcessRuntime, tmp_path: Path) -> None:
    found = await started(runtime)
    await runtime.start(found)
    assert len(pids(volume_of(tmp_path, found) / "starts")) == 1


async def test_one_that_ends_is_in_standby_and_its_children_are_ended_before_the_next(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    found = await started(runtime, "fainting")
    volume = volume_of(tmp_path, found)
    (pid,) = pids(volume / "starts")
    with socket.create_connection(("127.0.0.1", found.port)) as visitor:
        visitor.sendall(b"!")
    await until(lambda: not is_there(pid), "the program has ended")
    assert await runtime.look() == {found.id: STANDBY}
    orphans = pids(volume / "children")
    assert all(is_there(orphan) for orphan in orphans)
    await runtime.stop(found)
    assert not any(is_there(orphan) for orphan in orphans)


# --- bad commands and ports ------------------------------------------------------------------------------------------


async def test_a_command_that_exits_at_once_says_how_and_its_last_words(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    found = workspace("brief")
    await runtime.provision(found)
    with pytest.raises(CommandExitedError) as caught:
        await runtime.start(found)
    assert "ended with status 3 before it listened" in str(caught.value)
    assert "I have better things to do" in str(caught.value)
    assert list((tmp_path / "runs").iterdir()) == []
    assert await runtime.look() == {found.id: STANDBY}


async def test_a_port_that_is_taken_is_a_clear_error_and_nothing_is_started(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = workspace(port=taken.getsockname()[1])
        await runtime.provision(found)
        with pytest.raises(PortTakenError, match="already in use"):
            await runtime.start(found)
    assert list(volume_of(tmp_path, found).iterdir()) == []


async def test_two_workspaces_on_one_port_do_not_get_each_others_visitors(runtime: ProcessRuntime) -> None:
    first = await started(runtime)
    second = workspace(port=first.port)
    await runtime.provision(second)
    with pytest.raises(PortTakenError):
        await runtime.start(second)
    assert await runtime.look() == {first.id: RUNNING, second.id: STANDBY}


@pytest.mark.parametrize("program", ["no-such-program-anywhere", "/no/such/program", "./not-here", "/etc/passwd"])
async def test_a_program_that_cannot_be_run_is_a_clear_error(runtime: ProcessRuntime, program: str) -> None:
    found = workspace(command=(program, "--token=secret"))
    await runtime.provision(found)
    with pytest.raises(CommandNotFoundError) as caught:
        await runtime.start(found)
    assert "secret" not in str(caught.value)


async def test_a_program_of_its_own_directory_can_be_run(runtime: ProcessRuntime, tmp_path: Path) -> None:
    found = workspace(command=("./mine",))
    await runtime.provision(found)
    mine = volume_of(tmp_path, found) / "mine"
    mine.write_text("#!/bin/sh\necho mine; exit 7\n")
    mine.chmod(0o755)
    with pytest.raises(CommandExitedError, match=r"status 7.*mine"):
        await runtime.start(found)


async def test_words_of_a_command_are_words_and_not_shell(runtime: ProcessRuntime, tmp_path: Path) -> None:
    words = ("$(touch pwned)", "; touch pwned", "two words", "", "-x", "*", "`id`")
    found = workspace(command=(sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(1)", *words))
    await runtime.provision(found)
    with pytest.raises(CommandExitedError) as caught:
        await runtime.start(found)
    assert str(list(words)) in str(caught.value)
    assert list(volume_of(tmp_path, found).iterdir()) == []


async def test_a_start_that_is_given_up_leaves_nothing_running(runtime: ProcessRuntime, tmp_path: Path) -> None:
    found = workspace("silent")
    await runtime.provision(found)
    starting = asyncio.create_task(runtime.start(found))
    starts = volume_of(tmp_path, found) / "starts"
    await until(lambda: pids(starts), "it has begun")
    assert await runtime.look() == {found.id: STANDBY}, "it has not listened yet"
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not any(is_there(pid) for pid in pids(starts))


async def test_one_without_a_volume_is_not_started(runtime: ProcessRuntime) -> None:
    with pytest.raises(VolumeMissingError):
        await runtime.start(workspace())


# --- after a crash ---------------------------------------------------------------------------------------------------


async def abandoned(folder: Path, *manners: str) -> tuple[Workspace, int]:
    """Start a program by a Lapse that then is killed."""
    found = workspace(*manners)
    script = f"""
import asyncio, os, signal
from pathlib import Path
import msgspec
from lapse.workspaces.model import Workspace
from tests.integration.workspaces_process.machine import runtime_in
async def main():
    found = msgspec.json.decode({msgspec.json.encode(found)!r}, type=Workspace)
    runtime = runtime_in(Path({str(folder)!r}))
    await runtime.open()
    await runtime.provision(found)
    await runtime.start(found)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    (pid,) = pids(volume_of(folder, found) / "starts")
    assert is_there(pid)
    return found, pid


async def test_what_a_killed_lapse_left_running_is_ended(tmp_path: Path) -> None:
    found, pid = await abandoned(tmp_path, "family")
    family = pids(volume_of(tmp_path, found) / "children")
    runtime = runtime_in(tmp_path)
    await runtime.open()
    assert not any(is_there(one) for one in (pid, *family))
    assert await runtime.look() == {found.id: STANDBY}
    await runtime.start(found)
    assert len(pids(volume_of(tmp_path, found) / "starts")) == 2
    assert not (volume_of(tmp_path, found) / "doubled").exists()
    await runtime.close()


async def test_what_is_to_outlive_lapse_is_taken_over_and_not_doubled(tmp_path: Path) -> None:
    found, pid = await abandoned(tmp_path)
    runtime = runtime_in(tmp_path, stop_on_exit=False)
    await runtime.open()
    assert await runtime.look() == {found.id: RUNNING}
    await runtime.start(found)
    assert pids(volume_of(tmp_path, found) / "starts") == [pid]
    await runtime.close()
    assert is_there(pid)
    again = runtime_in(tmp_path, stop_on_exit=False)
    await again.open()
    await again.stop(found)
    assert not is_there(pid)
    await again.close()


async def test_children_of_a_leader_that_died_with_lapse_are_found_by_their_mark(tmp_path: Path) -> None:
    found, pid = await abandoned(tmp_path, "family")
    family = pids(volume_of(tmp_path, found) / "children")
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not is_there(pid), "the leader is gone")
    assert all(is_there(one) for one in family)
    runtime = runtime_in(tmp_path)
    await runtime.open()
    assert not any(is_there(one) for one in family)
    await runtime.close()


@pytest.mark.parametrize("difference", ["start time", "boot"])
async def test_a_stranger_that_has_the_pid_now_is_left_alone(tmp_path: Path, difference: str) -> None:
    stranger = sleeper()
    try:
        boot = processes.boot_id()
        leader = processes.identify(stranger.pid, boot)
        assert leader is not None
        changed = {"started": leader.started - 1} if difference == "start time" else {"boot": "another"}
        (tmp_path / "runs").mkdir()
        record = ProgramRecord(msgspec.structs.replace(leader, **changed), mark="of another")
        ProgramRecords(tmp_path / "runs").write(workspace().id, record)
        runtime = runtime_in(tmp_path)
        await runtime.open()
        assert is_there(stranger.pid)
        assert list((tmp_path / "runs").iterdir()) == []
        await runtime.close()
    finally:
        stranger.kill()
        stranger.wait()


async def test_a_crash_before_the_pid_is_on_disk_leaves_nothing_running(tmp_path: Path) -> None:
    """The process that was started waits for a word that never comes, and ends."""
    found = workspace()
    script = f"""
import asyncio, os
from pathlib import Path
import msgspec
from lapse.workspaces.model import Workspace
from lapse.workspaces.runtime.program import ProgramRecords
from tests.integration.workspaces_process.machine import runtime_in
def die(self, workspace, record):
    Path({str(tmp_path / "pid")!r}).write_text(str(record.leader.pid))
    os._exit(9)
async def main():
    found = msgspec.json.decode({msgspec.json.encode(found)!r}, type=Workspace)
    runtime = runtime_in(Path({str(tmp_path)!r}))
    await runtime.open()
    await runtime.provision(found)
    ProgramRecords.write = die
    await runtime.start(found)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=False, timeout=60)  # noqa: ASYNC221 - nothing else to do
    assert done.returncode == 9, done.stderr
    (pid,) = pids(tmp_path / "pid")
    await until(lambda: not is_there(pid), "the gate has noticed")
    assert not (volume_of(tmp_path, found) / "starts").exists(), "the program never began"


async def test_one_folder_has_one_runtime(runtime: ProcessRuntime, tmp_path: Path) -> None:
    with pytest.raises(RuntimeBusyError, match="Another Lapse"):
        await runtime_in(tmp_path).open()
    assert await runtime.look() == {}


async def test_stopping_lapse_stops_the_programs(tmp_path: Path) -> None:
    runtime = runtime_in(tmp_path)
    await runtime.open()
    found = [await started(runtime), await started(runtime, "family"), await started(runtime)]
    await runtime.close()
    await runtime.close()
    assert not any(is_there(pid) for one in found for pid in pids(volume_of(tmp_path, one) / "starts"))


# --- what cannot be told ---------------------------------------------------------------------------------------------


async def test_a_folder_that_is_not_the_one_it_was_is_unknown_and_not_empty(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    found = workspace()
    await runtime.provision(found)
    (tmp_path / "volumes").rename(tmp_path / "elsewhere")
    with pytest.raises(RuntimeUnavailableError, match="cannot be read"):
        await runtime.look()
    (tmp_path / "volumes").mkdir()
    with pytest.raises(RuntimeUnavailableError, match="cannot be read"):
        await runtime.look()
    await runtime.close()
    with pytest.raises(RuntimeUnavailableError, match="as if its disk was not there"):
        await runtime_in(tmp_path).open()
    with pytest.raises(RuntimeUnavailableError, match="as if its disk was not there"):
        await runtime.provision(workspace())
    (tmp_path / "volumes").rmdir()
    (tmp_path / "elsewhere").rename(tmp_path / "volumes")
    assert await runtime.look() == {found.id: STANDBY}


async def test_the_volumes_of_another_node_are_not_touched(runtime: ProcessRuntime, tmp_path: Path) -> None:
    await runtime.close()
    with pytest.raises(RuntimeUnavailableError, match="belongs to the node 'here'"):
        await runtime_in(tmp_path, node="there").open()


async def test_something_odd_instead_of_a_volume_is_unknown(runtime: ProcessRuntime, tmp_path: Path) -> None:
    odd, link = workspace(), workspace()
    volume_of(tmp_path, odd).touch()
    volume_of(tmp_path, link).symlink_to("/")
    (tmp_path / "volumes" / "no-id").mkdir()
    assert await runtime.look() == {odd.id: None, link.id: None}


async def test_a_record_that_cannot_be_read_is_not_taken_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    record = tmp_path / "runs" / f"{workspace().id}.json"
    record.write_text("{")
    with pytest.raises(RuntimeUnavailableError, match=re.escape(str(record))):
        await runtime_in(tmp_path).open()


async def test_leftovers_are_ended_side_by_side(tmp_path: Path) -> None:
    class Counting(ProcessRuntime):
        ending = most = 0

        async def _end(self, workspace: WorkspaceId, grace: float) -> None:
            self.ending += 1
            self.most = max(self.most, self.ending)
            await super()._end(workspace, grace)
            self.ending -= 1

    before, left = runtime_in(tmp_path, stop_on_exit=False), [workspace(), workspace()]
    await before.open()
    for found in left:
        await before.provision(found)
        await before.start(found)
    await before.close()
    runtime = Counting(tmp_path, node="here", clock=CLOCK)
    await runtime.open()
    assert not any(is_there(pid) for found in left for pid in pids(volume_of(tmp_path, found) / "starts"))
    assert runtime.most == len(left)
    await runtime.close()
    assert set((await before.look()).values()) == {STANDBY}  # whose children they were, which it buries by looking


# --- archives --------------------------------------------------------------------------------------------------------


async def test_a_volume_goes_to_the_archive_and_comes_back(runtime: ProcessRuntime, tmp_path: Path) -> None:
    found = await started(runtime)
    volume = volume_of(tmp_path, found)
    (volume / "work").write_text("of a day")
    key = await runtime.archive(found, confirm=yes)
    assert await runtime.look() == {}
    assert not volume.exists()
    assert await runtime.archive(found, confirm=yes) == key, "a second time there is nothing to be done"
    archived = msgspec.structs.replace(found, archive_key=key)
    assert await runtime.restore(archived) == key
    assert await runtime.restore(archived) == key
    assert (volume / "work").read_text() == "of a day"
    await runtime.delete(archived)
    await runtime.delete(archived)
    assert traces(tmp_path, found) == []


async def test_an_archive_that_the_database_does_not_know_is_not_forgotten(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    found = workspace()
    await runtime.provision(found)
    (volume_of(tmp_path, found) / "work").write_text("of a day")
    key = await runtime.archive(found, confirm=yes)
    assert await runtime.provision(found) == key
    assert (volume_of(tmp_path, found) / "work").read_text() == "of a day"


async def test_an_archive_that_fails_leaves_the_volume(
    runtime: ProcessRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = workspace()
    await runtime.provision(found)
    (volume_of(tmp_path, found) / "work").write_text("of a day")

    def full(_descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ArchiveFailedError, match="No space left"):
            await runtime.archive(found, confirm=yes)
    assert (volume_of(tmp_path, found) / "work").read_text() == "of a day"
    assert await runtime.look() == {found.id: STANDBY}


async def test_a_wrong_checksum_is_a_clear_error_and_the_data_stays(runtime: ProcessRuntime, tmp_path: Path) -> None:
    found = workspace()
    await runtime.provision(found)
    (volume_of(tmp_path, found) / "work").write_text("of a day")
    key = await runtime.archive(found, confirm=yes)
    path = tmp_path / "archives" / str(key)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(ArchiveFailedError, match=r"checksum is not the one noted\.$"):
        await runtime.restore(msgspec.structs.replace(found, archive_key=key))
    assert path.exists()
    assert await runtime.look() == {}
