"""Processes of this machine, told apart for good: by pid, start time and boot.

A pid alone says nothing, because pids are used again. A process is known by its pid *and* the moment it started, as the
kernel counts it in /proc, and by the boot that this moment is counted from. A signal goes through a descriptor of the
process that was opened before the comparison, so it cannot reach a stranger that took the pid in between.

A descendant of a program is found by its process group, its session, or the mark in its environment, which
children inherit; a daemon that left the group still has that. Not found: one that left the group *and* cleared its
environment.

Linux only: everything comes from /proc.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MARK: Final = "LAPSE_RUN"
"""The environment variable that all processes of a run have."""
_PROC: Final = Path("/proc")
_GONE: Final = (FileNotFoundError, ProcessLookupError)
_DEAD: Final = frozenset("ZXx")
_LISTENS: Final = "0A"
_BYTES_OF_IPV4: Final = 4


class Identity(msgspec.Struct, frozen=True):
    """One process, of all that ever were."""

    pid: int
    started: int
    """Clock ticks from boot to its start."""
    boot: str


class Stat(NamedTuple):
    """What of it counts here."""

    state: str
    group: int
    session: int
    started: int


def boot_id() -> str:
    """Return the identity of the time since the machine was started; raises `OSError` where there is no /proc."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int, boot: str) -> Identity | None:
    """Return the process that has this pid now."""
    found = _stat(pid)
    return Identity(pid, found.started, boot) if found is not None else None


def is_alive(process: Identity, boot: str) -> bool:
    """Whether this process, not just one with its pid, is there and has not ended."""
    found = _stat(process.pid) if process.boot == boot else None
    return found is not None and found.started == process.started and found.state not in _DEAD


def members(leader: Identity, mark: str, boot: str) -> list[Identity]:
    """Return all living processes of a run: of its group, of its session, or with its mark."""
    marked = f"{MARK}={mark}".encode()
    # The kernel keeps the number of a group from being used again only as long as somebody is in it.
    known = _stat(leader.pid) if leader.boot == boot else None
    holds_group = known is not None and known.started == leader.started
    found = []
    for pid in _pids():
        seen = _stat(pid)
        if seen is None or seen.state in _DEAD:
            continue
        in_group = holds_group and leader.pid in {pid, seen.group, seen.session}
        if in_group or marked in _environment(pid):
            found.append(Identity(pid, seen.started, boot))
    return found


def listening(group: Sequence[Identity]) -> list[str]:
    """Return the addresses that processes listen on for TCP, as far as the system tells."""
    inodes = {inode for process in group for inode in _sockets(process.pid)}
    found = {address for process in group[:1] for inode, address in _listeners(process.pid) if inode in inodes}
    return sorted(found)


def send(process: Identity, number: signal.Signals, boot: str) -> bool:
    """Signal this process and no other; return whether it was there."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except _GONE:
        return False
    try:
        if not is_alive(process, boot):
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except _GONE:
        return False
    finally:
        os.close(descriptor)


def parse_stat(text: str) -> Stat:
    """Read what the kernel says about a process."""
    # The name of the program stands in parentheses and may hold anything, even some of its own.
    fields = text.rpartition(")")[2].split()
    return Stat(fields[0], int(fields[2]), int(fields[3]), int(fields[19]))


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(_PROC) if name.isdecimal())  # noqa: PTH208 - thousands of names, no paths


def _stat(pid: int) -> Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except _GONE:
        return None
    return parse_stat(text)


def _sockets(pid: int) -> Iterator[str]:
    """Yield the inodes of the sockets that a process has open."""
    with suppress(OSError):
        for name in os.listdir(_PROC / str(pid) / "fd"):  # noqa: PTH208 - names, no paths
            with suppress(OSError):
                target = os.readlink(_PROC / str(pid) / "fd" / name)  # noqa: PTH115 - no path: socket:[inode]
                if target.startswith("socket:["):
                    yield target[8:-1]


def _listeners(pid: int) -> Iterator[tuple[str, str]]:
    """Yield inode and address of all that listens in the network of a process."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError, ValueError):
            for line in (_PROC / str(pid) / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS:
                    yield fields[9], _address(fields[1])


def _address(text: str) -> str:
    """Return an address as people write it: the kernel writes words of 32 bits in its own byte order."""
    host, _, port = text.partition(":")
    packed = b"".join(int(host[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(host), 8))
    family = socket.AF_INET if len(packed) == _BYTES_OF_IPV4 else socket.AF_INET6
    shown = socket.inet_ntop(family, packed)
    return f"{shown}:{int(port, 16)}" if family == socket.AF_INET else f"[{shown}]:{int(port, 16)}"


def _environment(pid: int) -> frozenset[bytes]:
    # Of others' processes it cannot be read, and those are none of ours.
    with suppress(*_GONE, PermissionError):
        return frozenset((_PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    return frozenset()
