"""The process runtime: workspaces as process groups of this machine. One machine, one user, one trust domain.

A workspace has a directory, which is its volume and where its command runs, and a port on the loopback interface. It is
observed RUNNING from the moment its program has listened on that port until the program ends, STANDBY while there is a
volume otherwise, PENDING without one.

Guarantees, beyond those of the port. One runtime uses a folder at a time, by a lock that ends with its process. What a
Lapse that crashed has left running is known by pid and start time and ended before anything else is done (or taken
over, where programs are to outlive Lapse). Stopping is a polite signal to all processes of the workspace, and a firm
one to those that are left after the grace.

Not guaranteed: any protection of workspaces from each other or of this machine from them. They run as the user that
Lapse runs as: a person who may create one may run anything.

Output goes to a file, one run behind the other, with a line at the start of each. A file that has grown beyond
`LOG_BYTES` becomes the older one of two, in place of the one before; a line that is written at that moment may be lost.

Linux only, as /proc is where processes are known from.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from lapse.core.identity import owner_token
from lapse.core.log import get_logger
from lapse.core.timestamps import to_timestamp
from lapse.files.archive import remove, remove_leftovers, sync
from lapse.files.work import in_thread
from lapse.workspaces.model import Ms, ObservedStatus, WorkspaceId, how_it_ended, is_id
from lapse.workspaces.runtime import processes
from lapse.workspaces.runtime.archive import Archives
from lapse.workspaces.runtime.port import (
    ArchiveAbandonedError,
    CommandExitedError,
    CommandNotFoundError,
    OtherNodeError,
    ProgramExit,
    Progress,
    RuntimeBusyError,
    RuntimeUnavailableError,
    StopFailedError,
    Turns,
    VolumeMissingError,
)
from lapse.workspaces.runtime.program import (
    HOST,
    SOCKETS,
    ProgramRecord,
    ProgramRecords,
    begin_log,
    check_port,
    environment,
    find,
    last_words,
    not_listening,
    older,
    open_gate,
    rotate,
    socket_of,
    spawn,
    tail,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from lapse.core.clock import Clock
    from lapse.files.archive import Stop
    from lapse.workspaces.model import Workspace
    from lapse.workspaces.runtime.port import Confirm, Runtime

    T = TypeVar("T")

GRACE_SECONDS: Final = 10.0
"""What a program has to end by itself."""
EXIT_GRACE_SECONDS: Final = 4.0
"""The same when Lapse itself ends: less than a coordinator's grace."""
_KILL_SECONDS: Final = 10.0
_POLL: Final = (0.02, 0.05, 0.1, 0.25)
_CONNECT_SECONDS: Final = 2.0
_SOON_SECONDS: Final = 3.0
"""A program that does not listen after as long is told of, and looked at again as often."""
_MARK: Final = ".lapse-node"
_MS: Final = 1_000_000
_FOLDERS: Final = ("archives", "runs", SOCKETS)
_NS: Final = 1_000_000_000
_log = get_logger("lapse.workspaces.runtime")


@dataclass(slots=True)
class _Run:
    """A program that was started here, or found running."""

    record: ProgramRecord
    since_ns: int
    """Since when it is known here, in monotonic time."""
    child: subprocess.Popen[bytes] | None = None
    """None if an earlier Lapse started it."""
    log_from: int = 0
    """Where its output begins."""
    exit: ProgramExit | None = None

    @property
    def status(self) -> int | None:
        return self.child.poll() if self.child is not None else None


def adopt(root: Path, node: str) -> None:
    """Give the folders of a runtime that has never kept anything to another node; raises `OtherNodeError` otherwise.

    A state folder changes its node when it is given a database, or that is taken away, or the machine another name.
    """
    marks = [folder / _MARK for folder in (root / "volumes", root / "archives")]
    found = {mark.read_text() for mark in marks if mark.is_file()}
    if found <= {node}:
        return
    lock = _locked(root)
    try:
        for mark in marks:
            if any(entry != mark for entry in mark.parent.iterdir()):
                raise OtherNodeError(folder=mark.parent, found=found.pop(), node=node)
        for mark in [*marks, root / "node"]:
            _write(mark, node)
    finally:
        os.close(lock)


def _locked(root: Path) -> int:
    """Return the open lock of a runtime's folder; raises `RuntimeBusyError` where another process has it."""
    lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise RuntimeBusyError(folder=root) from None
    return lock


class ProcessRuntime:
    """See the module. Belongs to one event loop; `open` before anything else."""

    def __init__(
        self,
        root: Path,
        *,
        node: str,
        clock: Clock,
        stop_on_exit: bool = True,
        grace_seconds: float = GRACE_SECONDS,
        variables: Callable[[Workspace], Mapping[str, str]] = lambda _workspace: {},
    ) -> None:
        """Touch nothing yet.

        ``stop_on_exit``: whether programs end with Lapse. ``variables``: what else a program finds in its environment.
        """
        self._variables = variables
        self.node = node
        self._root, self._clock, self._grace, self._stop_on_exit = root, clock, grace_seconds, stop_on_exit
        self._volumes, self._logs = root / "volumes", root / "logs"
        self._archives, self._records = Archives(root / "archives"), ProgramRecords(root / "runs")
        self._runs: dict[WorkspaceId, _Run] = {}
        self._marks: Counter[WorkspaceId] = Counter()
        self._notes: dict[WorkspaceId, str] = {}
        self._turns = Turns()
        self._lock: int | None = None
        self._boot = ""

    # --- from open to close ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Take the folder, and deal with what an earlier Lapse left."""
        try:
            self._boot = processes.boot_id()
            self._take()
            await in_thread(lambda _stop: self._remove_leftover_files())
            found = self._records.read_all()
            now = self._clock.monotonic_ns()
            self._runs = {WorkspaceId(one): _Run(record, now) for one, record in found.items() if is_id(one)}
            await self._end_leftovers()
        except OSError as error:
            self._release()
            raise RuntimeUnavailableError(problem=f"{error} ({self._root})") from error
        except BaseException:
            self._release()
            raise

    async def _end_leftovers(self) -> None:
        """All at once: with a grace for each, many stubborn ones would keep everybody waiting for minutes."""
        left = [one for one in self._runs if self._stop_on_exit or not self._is_ready(one)]
        ends = await asyncio.gather(*(self._end(one, self._grace) for one in left), return_exceptions=True)
        for workspace, failed in zip(left, ends, strict=True):
            if failed is not None:
                raise failed
            _log.info("leftover_ended", workspace=workspace)

    async def close(self) -> None:
        """End all programs, unless they are to outlive Lapse, and give the folder back. Idempotent."""
        try:
            if self._stop_on_exit and self._lock is not None:
                grace = min(self._grace, EXIT_GRACE_SECONDS)
                ended = await asyncio.gather(
                    *(self._end(workspace, grace) for workspace in tuple(self._runs)), return_exceptions=True
                )
                for error in ended:
                    if isinstance(error, BaseException):
                        _log.warning("program_not_ended", error=str(error))
        finally:
            if self._stop_on_exit:
                self._kill_all()  # those that are left when even this was cancelled
            self._release()

    def _take(self) -> None:
        for folder in (self._root, self._volumes, self._logs, *(self._root / name for name in _FOLDERS)):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _locked(self._root)
        self._mark()

    def _mark(self) -> None:
        """Mark the folders of data once; from then on, one without its mark is not the one that it was."""
        begun = self._root / "node"
        for folder in (self._volumes, self._root / "archives"):
            if not begun.exists() and not (folder / _MARK).exists():
                _write(folder / _MARK, self.node)
        self._check_places()
        _write(begun, self.node)

    def _check_places(self) -> None:
        """Raise unless the data is where it was: a disk that is not mounted looks like an empty folder."""
        for folder in (self._volumes, self._root / "archives"):
            try:
                found = (folder / _MARK).read_text()
            except OSError as error:
                problem = f"{folder} has no {_MARK}, as if its disk was not there ({error.strerror})"
                raise RuntimeUnavailableError(problem=problem) from error
            if found != self.node:
                problem = f"{folder} belongs to the node {found!r}, and this is {self.node!r}"
                raise RuntimeUnavailableError(problem=problem)

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _remove_leftover_files(self) -> None:
        for folder in (self._volumes, self._root / "runs", self._logs):
            remove_leftovers(folder)
        self._archives.remove_leftovers()

    def _kill_all(self) -> None:
        for run in self._runs.values():
            with suppress(OSError):
                for process in processes.members(run.record.leader, run.record.mark, self._boot):
                    processes.send(process, signal.SIGKILL, self._boot)

    # --- looking -----------------------------------------------------------------------------------------------------

    def turn(self, workspace: WorkspaceId) -> AbstractContextManager[bool]:
        """See `Runtime`."""
        return self._turns.turn(workspace)

    async def look(self) -> Mapping[WorkspaceId, ObservedStatus | None]:
        """See `Runtime`."""
        try:
            return await asyncio.to_thread(self._look)
        except OSError as error:
            raise RuntimeUnavailableError(problem=f"{error.strerror or error} ({self._volumes})") from error

    def _look(self) -> Mapping[WorkspaceId, ObservedStatus | None]:
        self._check_places()
        for workspace in tuple(self._runs):
            with suppress(OSError):  # a full disk is no reason not to look
                rotate(self._log_of(workspace))
        with os.scandir(self._volumes) as entries:
            return {WorkspaceId(entry.name): self._status(entry) for entry in entries if is_id(entry.name)}

    def _status(self, entry: os.DirEntry[str]) -> ObservedStatus | None:
        try:
            if not entry.is_dir(follow_symlinks=False):
                return None
            return ObservedStatus.RUNNING if self._is_ready(WorkspaceId(entry.name)) else ObservedStatus.STANDBY
        except OSError:
            return None

    def _is_ready(self, workspace: WorkspaceId) -> bool:
        run = self._runs.get(workspace)
        return run is not None and run.record.ready and self._is_alive(run)

    def _is_alive(self, run: _Run) -> bool:
        # Asking a child for its status also buries it.
        return run.status is None and processes.is_alive(run.record.leader, self._boot)

    def progress(self, workspace: WorkspaceId) -> Progress:
        """See `Runtime`."""
        return Progress(self._marks[workspace], self._notes.get(workspace))

    def exit_of(self, workspace: WorkspaceId) -> ProgramExit | None:
        """See `Runtime`."""
        run = self._runs.get(workspace)
        if run is None or not run.record.ready or self._is_alive(run):
            return None
        if run.exit is None:
            now = Ms(self._clock.wall_ns() // _MS)
            seconds = (self._clock.monotonic_ns() - run.since_ns) / _NS
            run.exit = ProgramExit(run.status, now, seconds, tail(self._log_of(workspace), run.log_from))
        return run.exit

    # --- acting ------------------------------------------------------------------------------------------------------
    # What changes files is waited for even when it is cancelled: a thread that comes late would meet the next action.

    async def provision(self, workspace: Workspace) -> str | None:
        """See `Runtime`."""
        if self._volume(workspace).exists():
            return None
        newest = await asyncio.to_thread(self._archives.newest, workspace.id)
        if newest is not None:
            _log.warning("archive_found", workspace=workspace.id, archive=newest.file)
            return await self.restore(workspace)
        await in_thread(lambda _stop: self._make(self._volume(workspace)))
        return None

    async def restore(self, workspace: Workspace) -> str:
        """See `Runtime`."""
        volume = self._volume(workspace)
        if volume.exists() and workspace.archive_key is not None:
            return workspace.archive_key  # whole, as it has its name
        restore = partial(self._archives.restore, workspace.id, volume, expected=workspace.archive_key)
        return str(await self._marking(workspace, lambda stop: restore(stop=stop)))

    async def start(self, workspace: Workspace) -> None:
        """See `Runtime`."""
        if self._is_ready(workspace.id):
            return
        await self._end(workspace.id, self._grace)
        volume = self._volume(workspace)
        if not volume.is_dir():
            raise VolumeMissingError(workspace=workspace.name)
        check_port(workspace)
        try:
            run = self._spawn(workspace, volume)
            try:
                await self._until_it_listens(workspace, run)
            finally:
                self._notes.pop(workspace.id, None)
            run.record = msgspec.structs.replace(run.record, ready=True)
            self._records.write(workspace.id, run.record)
        except BaseException:
            await asyncio.shield(self._end(workspace.id, 0.0))
            raise
        _log.info("program_started", workspace=workspace.id, pid=run.record.leader.pid, port=workspace.port)

    async def stop(self, workspace: Workspace) -> None:
        """See `Runtime`."""
        await self._end(workspace.id, self._grace)

    async def archive(self, workspace: Workspace, *, confirm: Confirm) -> str | None:
        """See `Runtime`."""
        await self._end(workspace.id, self._grace)
        volume = self._volume(workspace)
        if volume.is_dir():
            key = await self._marking(workspace, lambda stop: self._archives.keep(workspace.id, volume, stop=stop))
            if not await confirm():
                await in_thread(lambda _stop: self._archives.discard(key))
                raise ArchiveAbandonedError(workspace=workspace.name)
            await self._marking(workspace, lambda stop: remove(volume, mark=stop))
            return str(key)
        newest = await asyncio.to_thread(self._archives.newest, workspace.id)
        if newest is None:
            return None
        await self._marking(workspace, lambda stop: self._archives.check(newest, stop=stop))
        return str(newest)

    async def _marking(self, workspace: Workspace, work: Callable[[Stop], T]) -> T:
        """Do long work in a thread; each time that it asks whether to stop, it has made progress."""

        def marked(stop: Stop) -> T:
            def asked() -> bool:
                self._marks[workspace.id] += 1
                return stop()

            return work(asked)

        return await in_thread(marked)

    async def tidy(self, workspace: Workspace) -> None:
        """See `Runtime`."""
        await in_thread(lambda _stop: self._archives.prune(workspace.id))

    async def delete(self, workspace: Workspace) -> None:
        """See `Runtime`."""
        await self._end(workspace.id, self._grace)
        await self._marking(workspace, lambda stop: remove(self._volume(workspace), mark=stop))
        await in_thread(lambda _stop: self._archives.forget(workspace.id))
        for log in (self._log_of(workspace.id), older(self._log_of(workspace.id))):
            log.unlink(missing_ok=True)
        self._marks.pop(workspace.id, None)
        (self._root / SOCKETS / workspace.id).unlink(missing_ok=True)

    def _volume(self, workspace: Workspace) -> Path:
        if not is_id(workspace.id):  # it becomes a path
            raise RuntimeUnavailableError(problem=f"{workspace.id!r} is not the id of a workspace")
        self._check_places()
        return self._volumes / workspace.id

    def _make(self, volume: Path) -> None:
        volume.mkdir(mode=0o700)
        sync(self._volumes)

    def _log_of(self, workspace: WorkspaceId) -> Path:
        return log_path(self._root, workspace)

    # --- programs ----------------------------------------------------------------------------------------------------

    def _spawn(self, workspace: Workspace, volume: Path) -> _Run:
        """Start a program and know of it on disk before it begins."""
        mark = owner_token()
        listens_at = socket_of(self._root, workspace.id)
        if listens_at is not None:
            listens_at.unlink(missing_ok=True)  # of the program before
        env = {**environment(workspace, volume, mark, listens_at=listens_at), **self._variables(workspace)}
        program = find(workspace, volume, env["PATH"])
        log = self._log_of(workspace.id)
        try:
            log_from = begin_log(log, to_timestamp(self._clock.wall_ns()))
            child = spawn(program, workspace.command, volume=volume, env=env, log=log)
        except OSError as error:
            raise CommandNotFoundError(workspace=workspace.name, problem=error.strerror or str(error)) from error
        leader = processes.identify(child.pid, self._boot)
        if leader is None:  # it cannot be gone, as nobody has asked for its status
            raise RuntimeUnavailableError(problem=f"the process {child.pid} is not in /proc")
        record, now = ProgramRecord(leader, mark), self._clock.monotonic_ns()
        run = self._runs[workspace.id] = _Run(record, now, child, log_from)
        self._records.write(workspace.id, run.record)
        open_gate(child)
        return run

    async def _until_it_listens(self, workspace: Workspace, run: _Run) -> None:
        tries, told_ns = 0, run.since_ns
        while True:
            listens_at = socket_of(self._root, workspace.id)
            has_socket = listens_at is not None and listens_at.is_socket()
            listens = await _listens(workspace.port, listens_at if has_socket else None)
            if not self._is_alive(run):
                raise CommandExitedError(
                    workspace=workspace.name,
                    how=how_it_ended(run.status),
                    port=workspace.port,
                    output=last_words(self._log_of(workspace.id), run.log_from),
                )
            if listens:
                return
            if self._clock.monotonic_ns() - told_ns >= _SOON_SECONDS * _NS:
                told_ns = self._clock.monotonic_ns()
                found = await asyncio.to_thread(processes.listening, await self._members(run))
                self._notes[workspace.id] = not_listening(workspace.port, found)
            await self._clock.sleep(_POLL[min(tries, len(_POLL) - 1)])
            tries += 1

    async def _end(self, workspace: WorkspaceId, grace: float) -> None:
        """End all processes of a workspace and forget its run. Does nothing if there is none."""
        run = self._runs.get(workspace)
        if run is None:
            return
        begun, tries = self._clock.monotonic_ns(), 0
        asked: set[processes.Identity] = set()
        while left := await self._members(run):
            spent = (self._clock.monotonic_ns() - begun) / _NS
            if spent >= grace + _KILL_SECONDS:
                raise StopFailedError(workspace=workspace, pids=sorted(process.pid for process in left))
            self._ask_to_end(left, asked, firmly=spent >= grace)
            await self._clock.sleep(_POLL[min(tries, len(_POLL) - 1)])
            tries += 1
        if run.child is not None:
            run.child.poll()
            if run.child.stdin is not None:
                run.child.stdin.close()
        self._records.remove(workspace)
        if self._runs.get(workspace) is run:
            del self._runs[workspace]

    async def _members(self, run: _Run) -> list[processes.Identity]:
        try:
            return await asyncio.to_thread(processes.members, run.record.leader, run.record.mark, self._boot)
        except OSError as error:
            raise RuntimeUnavailableError(problem=f"{error.strerror or error} (/proc)") from error

    def _ask_to_end(self, left: list[processes.Identity], asked: set[processes.Identity], *, firmly: bool) -> None:
        for process in left:
            if firmly:
                processes.send(process, signal.SIGKILL, self._boot)
            elif process not in asked:  # once: many programs take a second signal for impatience
                asked.add(process)
                processes.send(process, signal.SIGTERM, self._boot)
                processes.send(process, signal.SIGCONT, self._boot)  # one that is suspended hears nothing else


def log_path(root: Path, workspace: WorkspaceId) -> Path:
    """Return the file of a workspace's output, in the folder of a runtime."""
    return root / "logs" / f"{workspace}.log"


def is_hosted(root: Path) -> bool:
    """Whether a runtime of a living process uses a folder."""
    try:
        lock = os.open(root / "lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _write(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)


async def _listens(port: int, path: Path | None) -> bool:
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            if path is None:
                _, writer = await asyncio.open_connection(HOST, port)
            else:
                _, writer = await asyncio.open_unix_connection(path)
    except OSError:  # also what a timeout is
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True


if TYPE_CHECKING:
    _conforms: type[Runtime] = ProcessRuntime
