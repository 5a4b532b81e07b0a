"""One program: found, started behind a gate, looked after by a record on disk.

The gate. Between the start of a process and the note of its pid on disk, a crash would leave a process that nobody
knows of. So what is started first is a shell that waits on its standard input; it becomes the program when told that
the record is written, and ends when the process that would have told it is gone. Its pid and start time are the
program's.

The environment of a program is made for it: a few variables that every program needs, and what it has to know. Nothing
else of ours is passed on, because addresses of stores with passwords may be there.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from lapse.files.archive import sync
from lapse.files.descriptors import given_limit
from lapse.workspaces.runtime.port import CommandNotFoundError, PortTakenError, RuntimeUnavailableError
from lapse.workspaces.runtime.processes import MARK, Identity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lapse.workspaces.model import Workspace

HOST: Final = "127.0.0.1"
"""Where programs listen: on this machine only. The way to them leads through the proxy."""
_GATE: Final = 'read -r go || exit 0; ulimit -S -n "$0" 2>/dev/null; exec "$@" </dev/null'
_PASSED_ON: Final = frozenset(
    {"PATH", "LANG", "LANGUAGE", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR", "LD_LIBRARY_PATH"}
)
SOCKETS: Final = "sockets"
_LONGEST_SOCKET: Final = 107
_TAIL: Final = 1_000
LOG_BYTES: Final = 8 * 1024 * 1024
"""As much output of a workspace is kept in one file, and as much in the older one."""


class ProgramRecord(msgspec.Struct, frozen=True):
    """What is on disk about a program that runs."""

    leader: Identity
    mark: str
    ready: bool = False
    """Whether it has listened on its port since it was started."""


class ProgramRecords:
    """The records of all programs, a file each. Whole or not there."""

    def __init__(self, folder: Path) -> None:
        """Touch nothing yet."""
        self._folder = folder

    def write(self, workspace: str, record: ProgramRecord) -> None:
        """Write one, or replace it."""
        part = self._folder / f".{workspace}.part"
        part.write_bytes(msgspec.json.encode(record))
        sync(part)  # a power cut could leave an empty file of that name otherwise, and nothing starts beside one
        part.replace(self._folder / f"{workspace}.json")

    def remove(self, workspace: str) -> None:
        """Remove one, if it is there."""
        (self._folder / f"{workspace}.json").unlink(missing_ok=True)

    def read_all(self) -> dict[str, ProgramRecord]:
        """Return all of them. Raises for one that cannot be read: what it is about may run."""
        return {path.stem: _read(path) for path in self._folder.glob("*.json") if not path.name.startswith(".")}


def _read(path: Path) -> ProgramRecord:
    try:
        return msgspec.json.decode(path.read_bytes(), type=ProgramRecord)
    except msgspec.MsgspecError as error:
        problem = f"{path} is damaged ({error}); make sure that no program of that workspace runs, then remove the file"
        raise RuntimeUnavailableError(problem=problem) from error


def socket_of(root: Path, workspace: str) -> Path | None:
    """Return where a program may listen instead of on its port: in a folder that is its user's alone.

    None where the path would be too long for a socket.
    """
    path = root / SOCKETS / workspace
    return path if len(os.fsencode(path)) <= _LONGEST_SOCKET else None


def environment(workspace: Workspace, volume: Path, mark: str, *, listens_at: Path | None = None) -> dict[str, str]:
    """Return what a workspace's program gets to know; ``listens_at`` is a socket that may replace its port."""
    given = {name: text for name, text in os.environ.items() if name in _PASSED_ON or name.startswith("LC_")}
    if listens_at is not None:
        given["LAPSE_WORKSPACE_SOCKET"] = str(listens_at)
    return {
        "PATH": os.defpath,
        **given,
        "HOME": str(volume),
        "HOST": HOST,
        "PORT": str(workspace.port),
        "LAPSE_WORKSPACE": workspace.name,
        MARK: mark,
    }


def find(workspace: Workspace, volume: Path, path: str) -> str:
    """Return the program of a command as an absolute path."""
    program = workspace.command[0]
    found = shutil.which(volume / program) if "/" in program else shutil.which(program, path=path)
    if found is None:
        problem = "there is no such program" if "/" in program else "there is no such program in PATH"
        raise CommandNotFoundError(workspace=workspace.name, problem=problem)
    return os.path.abspath(found)  # noqa: PTH100 - links stay: a program may go by what it was called


def check_port(workspace: Workspace) -> None:
    """Raise unless a program could listen on the workspace's port now."""
    problem = port_problem(workspace.port)
    if problem is not None:
        raise PortTakenError(workspace=workspace.name, port=workspace.port, problem=problem)


def port_problem(port: int) -> str | None:
    """Say why no program could listen on a port of this machine now; None: one could."""
    with socket.socket() as probe:
        # A connection of the one before that has not quite ended is no obstacle; a listener is one in any case.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return os.strerror(error.errno) if error.errno else str(error)
    return None


def spawn(
    program: str, command: tuple[str, ...], *, volume: Path, env: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start a program in a process group of its own, behind the gate."""
    with log.open("ab") as output:  # to append: it is shortened while the program writes
        return subprocess.Popen(  # noqa: S603 - to run the owner's command is what this is for
            ["/bin/sh", "-c", _GATE, str(given_limit()), program, *command[1:]],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=volume,
            env=dict(env),
            start_new_session=True,
        )


def open_gate(process: subprocess.Popen[bytes]) -> None:
    """Let the program begin."""
    if process.stdin is not None:
        with suppress(BrokenPipeError), process.stdin as gate:
            gate.write(b"go\n")


def older(log: Path) -> Path:
    """Return the file that holds what was written before."""
    return log.with_name(f"{log.name}.1")


def begin_log(log: Path, now: str) -> int:
    """Put a line at the start of a run behind what earlier runs wrote; return where the run's own output begins."""
    rotate(log)
    with log.open("ab") as file:
        file.write(f"--- started at {now} ---\n".encode())
        return file.tell()


def rotate(log: Path) -> None:
    """Move what a file holds to the older one when it is too much; the writer goes on in the same file."""
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return
    if size <= LOG_BYTES:
        return
    part = log.with_name(f".{log.name}.part")
    with log.open("rb+") as file, part.open("wb") as kept:
        file.seek(size - LOG_BYTES)
        shutil.copyfileobj(file, kept)
        file.truncate(0)
    part.replace(older(log))


def tail(log: Path, start: int = 0) -> str:
    """Return the end of a program's output; ``start`` is where it began, unless the file was shortened since."""
    try:
        with log.open("rb") as file:
            size = log.stat().st_size
            file.seek(max(start if start <= size else 0, size - _TAIL))
            return file.read(_TAIL).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def last_words(log: Path, start: int = 0) -> str:
    """Return the end of a program's output, as a sentence without its full stop."""
    text = tail(log, start)
    return f"Its last output: {text.rstrip('.')}" if text else "It wrote nothing"


def not_listening(port: int, found: Sequence[str]) -> str:
    """Say that a program runs and cannot be reached, and where it listens instead."""
    where = f"It listens on {', '.join(found)}" if found else "It does not listen on any port"
    return (
        f"The program runs, but it does not listen on port {port} of {HOST}. {where}. "
        "Its address is in its environment: HOST and PORT."
    )
