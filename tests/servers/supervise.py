"""Owns one child process on behalf of another process, and ends it when that other process is gone.

Runs as a program of its own (`python -I -S supervise.py PARENT SPEC`), knows nothing of Lapse, and is told by lines on
its standard input: `start`, `signal NUMBER`, `stop NUMBER SECONDS`, `state`. Each is answered by one line: `idle`,
`running PID`, `exited CODE` or `failed TEXT`.

Guarantees: when the parent ends in whatever way, SIGKILL included, the child and everything it started are ended and
the folder named in the spec is removed. The end of the parent is seen by the end of the input and by its pidfd: a
process that the parent forked may hold the other end of the pipe open. When this process itself is killed, the kernel
kills the child (PR_SET_PDEATHSIG counts from the thread that started it: here there is only one); then the folder
stays. Signals go only to processes that descend from this one, before they are reaped: never to a number that may mean
another process by now.

Not guaranteed: grandchildren that made themselves daemons survive if this process is killed with SIGKILL as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.01


def prctl(option: int, value: int) -> None:
    """Ask the kernel, where it is Linux; elsewhere the pipe alone must do."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def children(pid: int) -> list[int]:
    """The direct children of a process, those of all its threads."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # the process ended while we looked
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread ended while we looked
                found.extend(int(word) for word in (task / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """Children, their children and so on, parents first."""
    found = children(pid)
    for child in found:  # grows while we walk it
        found.extend(children(child))
    return found


def send(pid: int, number: int) -> None:
    """Signal one process, which may have ended by itself."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Supervisor:
    """One child at a time, started again on request with the same arguments."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.child: subprocess.Popen[bytes] | None = None

    def state(self) -> str:
        if self.child is None:
            return "idle"
        code = self.child.poll()
        return f"running {self.child.pid}" if code is None else f"exited {code}"

    def start(self) -> str:
        if self.state().startswith("running"):
            return self.state()
        user = self.spec["user"]
        with Path(self.spec["log"]).open("ab") as log:
            self.child = subprocess.Popen(
                self.spec["argv"],
                cwd=self.spec["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=user,
                group=self.spec["group"],
                extra_groups=None if user is None else [],
                process_group=0,
                # Runs after the change of user, which would clear it. One thread here, so a fork is safe.
                preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509
            )
        return self.state()

    def signal(self, number: int) -> str:
        """Signal the child and all below it; returns when a stop has happened or a kill is over."""
        if self.child is None or self.child.poll() is not None:
            return self.state()
        for pid in [self.child.pid, *descendants(self.child.pid)]:
            send(pid, number)
        if number == signal.SIGKILL:
            self.child.wait()
            self.end_orphans()  # a connection is open as long as one of them is alive
        elif number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return self.state()

    def stop(self, number: int, seconds: float) -> str:
        """Ask the child to end, then kill what is left of it."""
        if self.child is not None and self.child.poll() is None:
            family = descendants(self.child.pid)
            send(self.child.pid, number)
            for pid in [self.child.pid, *family]:
                send(pid, signal.SIGCONT)  # a stopped process would hear of nothing but SIGKILL
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(timeout=seconds)
            self.signal(signal.SIGKILL)
        self.end_orphans()
        return self.state()

    @staticmethod
    def end_orphans() -> None:
        """End what the child left behind: as subreaper this process became its parent."""
        deadline = time.monotonic() + 5
        while (orphans := descendants(os.getpid())) and time.monotonic() < deadline:
            for pid in orphans:
                send(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(POLL_SECONDS)

    def finish(self) -> None:
        self.stop(self.spec["end_signal"], self.spec["end_seconds"])
        if self.spec["remove"] is not None:
            shutil.rmtree(self.spec["remove"], ignore_errors=True)

    def obey(self, line: str) -> str:
        word, *arguments = line.split()
        try:
            if word == "start":
                return self.start()
            if word == "signal":
                return self.signal(int(arguments[0]))
            if word == "stop":
                return self.stop(int(arguments[0]), float(arguments[1]))
        except OSError as error:
            return f"failed {error}"
        return self.state()


def serve(supervisor: Supervisor, parent: int) -> None:
    """Obey line by line until the input or the parent ends."""
    watch = selectors.DefaultSelector()
    watch.register(0, selectors.EVENT_READ)
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            watch.register(os.pidfd_open(parent), selectors.EVENT_READ, "parent")
    received = b""
    while os.getppid() == parent:
        if any(key.data == "parent" for key, _ in watch.select()):
            return
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, received = (received + chunk).split(b"\n")
        for line in lines:
            if line == b"end":
                return
            os.write(1, supervisor.obey(line.decode()).encode() + b"\n")


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    supervisor = Supervisor(json.loads(sys.argv[2]))
    try:
        serve(supervisor, int(sys.argv[1]))
    finally:
        supervisor.finish()


if __name__ == "__main__":
    main()
