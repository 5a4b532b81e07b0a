"""Servers of this user that run on this machine: the state folder and the certificate of each, by its port.

``lapse up`` notes where it listens in a file of the user's own folder, so that a command finds the owner's token
whatever settings the server was started with, and knows the certificate that such a server shows. A note holds no
secret: it names the state folder, in which the token lies in a file that only its user can read.

Not guaranteed: that what a note says is so. A server that was killed leaves its note, and the next one on its port
writes another; whoever reads a note looks whose program listens there before a token is sent.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_FOLDER: Final = "running"
_LONGEST: Final = 8_192


@dataclass(frozen=True, slots=True)
class NotedServer:
    """What a server has noted of itself."""

    folder: Path
    """Its state folder."""
    certificate: Path | None = None
    """The file with the certificate that it shows; None: it speaks plain HTTP."""


def note_server(own: Path, port: int, state_dir: Path, certificate: Path | None = None) -> None:
    """Write down what the server of a port has; where that cannot be written, nobody finds it there."""
    path = own / _FOLDER / str(port)
    fresh = path.with_name(f"{port}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh.unlink(missing_ok=True)  # of a process that was killed
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            parts = [state_dir.absolute()] + ([certificate.absolute()] if certificate is not None else [])
            file.write(b"\0".join(map(os.fsencode, parts)))
        fresh.replace(path)


def forget_server(own: Path, port: int, state_dir: Path) -> None:
    """Remove the note of a server that ends, unless another one has written its own meanwhile."""
    if noted_folder(own, port) == state_dir.absolute():
        with suppress(OSError):
            (own / _FOLDER / str(port)).unlink(missing_ok=True)


def noted_ports(own: Path, state_dir: Path) -> list[int]:
    """Return the ports of the servers that have noted a state folder; a server of another port may have it too."""
    with suppress(OSError):
        ports = sorted(int(one.name) for one in (own / _FOLDER).iterdir() if one.name.isdecimal())
        return [port for port in ports if noted_folder(own, port) == state_dir.absolute()]
    return []


def noted_folder(own: Path, port: int) -> Path | None:
    """Return the state folder of the server of a port, as it was noted; None where nothing is, or not by this user."""
    noted = noted_server(own, port)
    return None if noted is None else noted.folder


def noted_server(own: Path, port: int) -> NotedServer | None:
    """Return what the server of a port has noted; None where nothing is, or not by this user."""
    path = own / _FOLDER / str(port)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return None
        text = os.read(descriptor, _LONGEST)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    folder, *rest = (type(own)(os.fsdecode(one)) for one in text.split(b"\0"))
    if len(rest) > 1 or not all(one.is_absolute() for one in (folder, *rest)):
        return None
    return NotedServer(folder, *rest)
