"""What the tests of the process runtime stand on: workspaces on free ports, and looks at real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lapse.core.clock import SystemClock
from lapse.core.identity import uuid
from lapse.workspaces.model import WorkspaceId
from lapse.workspaces.runtime.process import ProcessRuntime
from tests.servers.ports import kept_port
from tests.unit.workspaces.test_eligibility import RUNNING

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.workspaces.model import Workspace

PROGRAM = Path(__file__).with_name("program.py")
HOST = Path(__file__).with_name("host.py")
ROOT = Path(__file__).parents[3]
CLOCK = SystemClock()
PATIENCE = 60.0


def command(*manners: str) -> tuple[str, ...]:
    return (sys.executable, "-I", str(PROGRAM), *manners)


def workspace(*manners: str, **changes: Any) -> Workspace:  # noqa: ANN401
    given = {"id": WorkspaceId(uuid()), "command": command(*manners), "port": kept_port(), **changes}
    return msgspec.structs.replace(RUNNING, **given)


def runtime_in(folder: Path, **more: Any) -> ProcessRuntime:  # noqa: ANN401
    return ProcessRuntime(folder, **{"node": "here", "clock": CLOCK, "grace_seconds": 5, **more})


async def yes() -> bool:
    """Confirm what is to be confirmed."""
    return True


def is_there(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def pids(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


async def until(true: Callable[[], object], what: str) -> None:
    """Wait for something to become true."""
    end = CLOCK.monotonic_ns() + PATIENCE * 1_000_000_000
    while not true():
        assert CLOCK.monotonic_ns() < end, f"waited in vain until {what}"
        await CLOCK.sleep(0.02)


def host(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a Lapse of its own."""
    with (folder / "host.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(HOST), str(folder), *words],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )


def kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE)
