"""Ports on loopback that stay ours from the choice to the end of the server, also while the server is down.

The kernel's own choice (bind to port 0) lost: it comes from the range of outgoing connections, so that any client on
the machine may take the port while a server restarts. Ours lie below that range, and a file lock keeps concurrent runs
of the same user apart. Not guaranteed: that no foreign program takes the port between the choice and the server's
start.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LOW, HIGH = 20_000, 32_000
LOOPBACK = "127.0.0.1"
_KEPT = contextlib.ExitStack()
atexit.register(_KEPT.close)


def _range() -> range:
    with contextlib.suppress(OSError, ValueError):
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
        if first > LOW + 1000:
            return range(LOW, min(HIGH, first))
    return range(LOW, HIGH)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))  # all interfaces: one of our servers listens on them
        except OSError:
            return False
    return True


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port that no other run of this harness will choose until the block ends."""
    folder = Path(tempfile.gettempdir()) / f"lapse-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    choice = random.Random()
    while True:
        port = choice.choice(_range())
        with (folder / str(port)).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if _is_free(port):
                yield port
                return


def kept_port() -> int:
    """A port that no other run of this harness will choose until this process ends."""
    return _KEPT.enter_context(reserved_port())


def listening(pid: int) -> set[tuple[str, str]]:
    """Address and port, as /proc writes them, of what a process listens on."""
    sockets = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                address, port = words[1].split(":")
                found.add((address, port))
    return found
