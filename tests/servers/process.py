"""Child processes that do not outlive the run that started them.

Each stands under a small supervising process (see `supervise.py`), so that it is ended even when this process is killed
with SIGKILL. A `Supervised` is safe to use from several threads.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Set while this process gives up what it waits for, so that an interrupt need not wait for a download to end.
INTERRUPTED = threading.Event()
SUPERVISOR = Path(__file__).with_name("supervise.py")


@dataclass(frozen=True, kw_only=True)
class Account:
    """Whom a child runs as, when not as ourselves."""

    uid: int
    gid: int


class Supervised:
    """One command under supervision. Not running until `start`, and gone after `close`.

    `remove` names a folder that is deleted when the supervision ends, also after a crash of this process.
    """

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        log: Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        account: Account | None = None,
        remove: Path | None = None,
        end_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        spec = {
            "argv": [str(word) for word in argv],
            "log": str(log),
            "cwd": None if cwd is None else str(cwd),
            "user": None if account is None else account.uid,
            "group": None if account is None else account.gid,
            "remove": None if remove is None else str(remove),
            "end_signal": int(end_signal),
            "end_seconds": 5.0,
        }
        self._lock = threading.Lock()
        with log.open("ab") as errors:
            # A session of its own: an interrupt typed at the terminal must reach pytest, which then ends us in order.
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR), str(os.getpid()), json.dumps(spec)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=None if env is None else {**os.environ, **env},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def supervisor_pid(self) -> int:
        """The supervising process, for tests that kill it."""
        return self._supervisor.pid

    def _ask(self, line: str) -> tuple[str, str]:
        pipes = self._supervisor
        assert pipes.stdin is not None
        assert pipes.stdout is not None
        with self._lock:
            if pipes.stdin.closed:
                return "idle", ""
            pipes.stdin.write(f"{line}\n".encode())
            pipes.stdin.flush()
            answer = pipes.stdout.readline().decode().strip()
        state, _, rest = answer.partition(" ")
        if state in {"failed", ""}:
            raise OSError(rest or "the supervising process has ended")
        return state, rest

    def start(self) -> int:
        """Start the command, unless it runs; returns its process id."""
        state, rest = self._ask("start")
        if state != "running":
            return -1  # ended at once: the caller reads the log and `exit_code`
        return int(rest)

    def exit_code(self) -> int | None:
        """None while it runs; the negative signal number when a signal ended it."""
        state, rest = self._ask("state")
        return int(rest) if state == "exited" else None

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the command and all its descendants."""
        self._ask(f"signal {int(number)}")

    def stop(self, number: signal.Signals = signal.SIGTERM, *, seconds: float = 20) -> None:
        """Ask the command to end, and kill it after that many seconds."""
        self._ask(f"stop {int(number)} {seconds}")

    def close(self) -> None:
        """End everything and wait until it is so. Harmless when repeated."""
        with self._lock:
            assert self._supervisor.stdin is not None
            assert self._supervisor.stdout is not None
            if not self._supervisor.stdin.closed:
                try:
                    # Said in words, too: a process that was forked here meanwhile may keep the pipe open.
                    self._supervisor.stdin.write(b"end\n")
                    self._supervisor.stdin.close()
                except BrokenPipeError:
                    pass
            self._supervisor.wait()
            self._supervisor.stdout.close()


def check_interrupted() -> None:
    """Raise `InterruptedError` when there is no more use in waiting."""
    if INTERRUPTED.is_set():
        raise InterruptedError("the run was interrupted")


def run_command(
    argv: Sequence[str | Path],
    *,
    log: Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    account: Account | None = None,
    every_second: Callable[[], None] = lambda: None,
) -> int:
    """Run a command to its end, supervised; returns its exit code, its output is in `log`."""
    with Supervised(argv, log=log, cwd=cwd, env=env, account=account) as command:
        command.start()
        told = time.monotonic()
        while (code := command.exit_code()) is None:
            check_interrupted()
            time.sleep(0.02)
            if time.monotonic() - told >= 1:
                told = time.monotonic()
                every_second()
    return code
