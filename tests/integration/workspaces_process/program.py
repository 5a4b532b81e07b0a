"""A workspace's program, as good or bad as it is told to be. It notices when it is not alone in its directory.

python program.py [manner ...]: stubborn (does not hear SIGTERM), family (has children in its group and a daemon out of
it), silent (never listens), brief (says something and ends), fainting (ends without its children when it is spoken to),
crashing (listens, says something and ends soon after), elsewhere (listens on a port of its own choice).
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

SLEEP = ["/bin/sleep", "1000"]


def be_alone() -> None:
    """Hold a lock in the directory for as long as this lives; leave a note if somebody else has it."""
    lock = os.open("alone", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        Path("doubled").touch()


def main(manners: set[str]) -> None:
    be_alone()
    with Path("starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    if "brief" in manners:
        print("I have better things to do.", flush=True)  # noqa: T201
        sys.exit(3)
    if manners & {"family", "fainting"}:
        children = [subprocess.Popen(SLEEP), subprocess.Popen(SLEEP, start_new_session=True)]
        Path("children").write_text(" ".join(str(child.pid) for child in children))
    signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in manners else polite)
    if "silent" in manners:
        signal.pause()
    port = 0 if "elsewhere" in manners else int(os.environ["PORT"])
    if "crashing" in manners:
        threading.Timer(0.3, crash).start()
    with socket.create_server((os.environ["HOST"], port)) as server:
        Path("port").write_text(str(server.getsockname()[1]))
        Path("environment").write_text("\n".join(sorted(os.environ)))
        while True:
            with server.accept()[0] as visitor:
                if visitor.recv(1) and "fainting" in manners:
                    os._exit(1)


def crash() -> None:
    print(f"I crash, {os.getpid()}.", flush=True)  # noqa: T201
    os._exit(7)


def polite(_number: int, _frame: object) -> None:
    Path("asked").touch()
    os._exit(0)


if __name__ == "__main__":
    main(set(sys.argv[1:]))
