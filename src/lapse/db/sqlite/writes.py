"""Writes to SQLite files, told by the kernel (inotify), so that who waits for a change of any process need not poll.

Guarantees: `Writes.pause` returns soon after a commit of any process to one of the files, and after ``most`` seconds
at the latest; where the kernel tells nothing (another system, too many watches), it sleeps for ``least``: polling.

Not guaranteed: that anything was committed: a write may be rolled back, or be one of the caller's own. Who is woken
asks the file, for example for its `lapse.db.sqlite.data_version`. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from lapse.core.clock import Clock

_NS: Final = 1_000_000_000
_LOG: Final = "-wal"
"""Behind the name of a file: where commits are written first."""
# <sys/inotify.h>
_MODIFY, _MOVED_TO, _CREATE = 0x2, 0x80, 0x100
_OVERFLOW, _IGNORED, _ONLY_FOLDERS = 0x4000, 0x8000, 0x0100_0000
_EVENT: Final = struct.Struct("iIII")
"""Watch, mask, cookie, and the length of the name that follows."""
_AT_ONCE: Final = 64 * 1024


class Writes:
    """See the module. Nothing is open before the first `pause`."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Take the database files to look at."""
        self._paths = [path.resolve() for path in paths]
        self._names = {os.fsencode(name) for path in self._paths for name in (path.name, path.name + _LOG)}
        self._written = asyncio.Event()
        self._descriptor: int | None = None
        self._is_begun = False

    @property
    def is_told(self) -> bool:
        """Whether the kernel tells of writes; known after the first `pause`."""
        return self._descriptor is not None

    async def pause(self, clock: Clock, *, least: float, most: float) -> None:
        """Sleep until a file was written since the last call returned: ``least`` seconds at least, ``most`` at most."""
        self._begin()
        began = clock.monotonic_ns()
        if self.is_told and not self._written.is_set():
            await self._told(clock, most)
        left = least - (clock.monotonic_ns() - began) / _NS
        if left > 0:
            await clock.sleep(left)
        self._written.clear()  # before the caller looks: what is written from now on wakes the next call

    async def _told(self, clock: Clock, most: float) -> None:
        timer = asyncio.create_task(clock.sleep(most), name="lapse-writes-timer")
        timer.add_done_callback(lambda done: None if done.cancelled() else self._written.set())
        try:
            await self._written.wait()
        finally:
            timer.cancel()

    def close(self) -> None:
        """Be told no more; the next `pause` begins anew. Idempotent."""
        descriptor, self._descriptor, self._is_begun = self._descriptor, None, False
        if descriptor is not None:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)

    def _begin(self) -> None:
        if self._is_begun:
            return
        self._is_begun = True
        self._written.set()  # what was written before is seen by the first look
        with suppress(OSError):  # no watches are left, or there is no such folder: it is polled
            self._descriptor = _watch({path.parent for path in self._paths})
        if self._descriptor is not None:
            try:
                asyncio.get_running_loop().add_reader(self._descriptor, self._read, self._descriptor)
            except NotImplementedError:  # a loop without files
                os.close(self._descriptor)
                self._descriptor = None

    def _read(self, descriptor: int) -> None:
        try:
            told = os.read(descriptor, _AT_ONCE)
        except BlockingIOError:
            return
        for mask, name in _events(told):
            if mask & _IGNORED:  # the folder has gone, or its file system
                self._written.set()
                self.close()
                self._is_begun = True  # polled from now on
                return
            if mask & _OVERFLOW or name in self._names:
                self._written.set()


def _watch(folders: Iterable[Path]) -> int | None:
    """Return a descriptor that tells of writes to files in these folders; None where the system has no inotify."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    _check(descriptor)
    try:
        for folder in folders:
            wanted = _MODIFY | _CREATE | _MOVED_TO | _ONLY_FOLDERS
            _check(libc.inotify_add_watch(descriptor, os.fsencode(folder), wanted))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _events(told: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the mask of each event, and the name in its folder."""
    at = 0
    while at < len(told):
        _, mask, _, length = _EVENT.unpack_from(told, at)
        at += _EVENT.size
        yield mask, told[at : at + length].rstrip(b"\0")
        at += length
