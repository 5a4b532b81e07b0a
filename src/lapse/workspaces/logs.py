"""What the program of a workspace wrote: its log, read in pages, by its owner's right.

A log is a file on the machine that runs the workspace; its runtime shortens it when it grows too long
(`lapse.workspaces.runtime.program`). A page begins at a place in the file, and tells where the next one begins.

Guarantees: who asks for each page behind the one before gets what was written, once and in its order. A character is
told when all of it is written; what is no UTF-8 is told as U+FFFD. A page holds at most `MOST_BYTES`. Of a log that was
shortened since, the next page begins at its start.

Not guaranteed: what was written just before a log was shortened, and was not read by then.
"""

from __future__ import annotations

import os
from codecs import getincrementaldecoder
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

from msgspec import Meta, Struct

from lapse.core.errors import LapseError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_BYTES: Final = 256 * 1024
_BLOCK: Final = 64 * 1024


class LogElsewhereError(LapseError):
    """{address} runs on {node}, and its output is there; ask on that machine."""

    status = 409


class LogUnreadableError(LapseError):
    """The output of {address} cannot be read: {problem}."""

    status = 503


class LogPage(Struct, frozen=True):
    """A part of what the program of a workspace wrote."""

    text: str
    next: Annotated[int, Meta(description="Where the following page begins; 0: it has written nothing yet")]
    more: Annotated[bool, Meta(description="Whether more was written already")]


def read_log(path: Path, address: str, *, tail: int | None = None, after: int = 0) -> LogPage:
    """Return a page ``after`` the one before; the first begins with the log, or with its last ``tail`` lines.

    ``address`` is for messages. Blocks for a read from the disk. Raises `LogUnreadableError`.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if after:
                start = after if after <= size else 0
            else:
                start = 0 if tail is None else _start_of_the_last(file, size, tail)
            file.seek(start)
            found = file.read(min(MOST_BYTES, size - start))
    except FileNotFoundError:
        return LogPage("", 0, more=False)
    except OSError as error:
        raise LogUnreadableError(address=address, problem=error.strerror or type(error).__name__) from error
    decoder = getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(found)
    unfinished, _ = decoder.getstate()
    end = start + len(found)
    return LogPage(text, end - len(unfinished), more=end < size)


def _start_of_the_last(file: BinaryIO, size: int, lines: int) -> int:
    """Return where the last lines begin, reading from the end only as far as they reach."""
    if lines == 0:
        return size
    breaks = 0
    for offset, block in _backwards(file, size):
        for at in range(len(block) - 1, -1, -1):
            if block[at : at + 1] == b"\n" and offset + at + 1 < size:
                breaks += 1
                if breaks == lines:
                    return offset + at + 1
    return 0


def _backwards(file: BinaryIO, size: int) -> Iterator[tuple[int, bytes]]:
    end = size
    while end:
        begin = max(0, end - _BLOCK)
        file.seek(begin)
        yield begin, file.read(end - begin)
        end = begin
