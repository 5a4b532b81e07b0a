"""The output of a workspace's program, as the process runtime writes it to a file of the state folder.

A file may be replaced while it is followed: what is left of the old one is printed, then the new one from its start. On
a terminal, characters that could steer it are shown as escapes; elsewhere bytes come as they are.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, Final

from lapse.cli.output import OutputError
from lapse.core.errors import LapseError
from lapse.core.masking import printable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

_BLOCK: Final = 64 * 1024
LOOK_SECONDS: Final = 0.25


class LogUnreadableError(LapseError):
    """The output in {path} cannot be read: {problem}."""


async def print_log(path: Path, *, tail: int | None, pause: Callable[[], Awaitable[None]] | None) -> bool:
    """Print a log, its last ``tail`` lines or all of it; with ``pause`` go on for ever, pausing between looks.

    Returns whether there was anything to read.
    """
    file = _open(path)
    found = file is not None
    try:
        if file is not None and tail is not None:
            _skip_to_the_last(file, tail)
        _print(file)
        while pause is not None:
            await pause()
            if file is None or _is_replaced(file, path):
                _print(file)  # what was written between the last look and the end
                if file is not None:
                    file.close()
                file = _open(path)
            _print(file)
    finally:
        if file is not None:
            file.close()
    return found


def _open(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LogUnreadableError(path=path, problem=error.strerror or type(error).__name__) from error


def _is_replaced(file: BinaryIO, path: Path) -> bool:
    """Whether the path leads to another file now, or to this one, emptied."""
    mine = os.fstat(file.fileno())
    with suppress(FileNotFoundError):
        there = path.stat()
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino) or there.st_size < file.tell()
    return False  # between two files: the next look finds the new one


def _skip_to_the_last(file: BinaryIO, lines: int) -> None:
    """Move to the start of the last lines, reading from the end only as far as they reach."""
    size = file.seek(0, os.SEEK_END)
    start, breaks = size, 0
    for offset, block in _backwards(file, size):
        for at in range(len(block) - 1, -1, -1):
            if block[at : at + 1] == b"\n" and offset + at + 1 < size:
                breaks += 1
                if breaks == lines:
                    file.seek(offset + at + 1)
                    return
        start = offset
    file.seek(size if lines == 0 else start)


def _backwards(file: BinaryIO, size: int) -> Iterator[tuple[int, bytes]]:
    end = size
    while end:
        begin = max(0, end - _BLOCK)
        file.seek(begin)
        yield begin, file.read(end - begin)
        end = begin


def _print(file: BinaryIO | None) -> None:
    if file is None:
        return
    raw = getattr(sys.stdout, "buffer", None)
    try:
        while block := file.read(_BLOCK):
            if raw is None or sys.stdout.isatty():
                sys.stdout.write(_shown(block))
            else:
                raw.write(block)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(problem=error.strerror) from error


def _shown(block: bytes) -> str:
    text = block.decode("utf-8", "replace").replace("\r\n", "\n")
    return printable(text, keep="\n\t")
