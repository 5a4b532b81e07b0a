"""Bodies of HTTP/1.1 messages, which end by a length, by chunks, or with the connection. Pure.

A reader is fed what arrives and gives back what belongs to the body, so that it can be written on at once; nothing is
collected. Chunks are taken apart, extensions and trailers left out, and whoever passes a body on makes chunks of its
own: two parties that disagree about a chunk are how requests are smuggled.

A piece may hold tens of thousands of chunks. Not all of them are read at once, because nobody else is served meanwhile:
``more`` says that some are left, for another turn.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from lapse.http1.heads import CHUNKED, UNTIL_CLOSE, RejectedError, check_trailer

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*)?")
_LONGEST_LINE: Final = 4096
_TRAILERS: Final = 16_384
_TURN: Final = 512
"""Chunks that are read in one turn: about two milliseconds."""
LAST_CHUNK: Final = b"0\r\n\r\n"


class Body(Protocol):
    """Reads one body. After ``done``, ``rest`` is what came behind it."""

    done: bool
    rest: bytes
    endless: bool
    """Whether the end of the connection is its right end."""
    more: bool
    """Whether some of what arrived is not read yet: feed it nothing, in another turn."""

    def feed(self, data: bytes) -> bytes:
        """Take what arrived; return what of it belongs to the body. Raises `RejectedError`."""
        ...


class Counted:
    """A body of so many bytes."""

    __slots__ = ("_left", "done", "rest")
    endless = more = False

    def __init__(self, length: int) -> None:
        """Expect that many."""
        self._left, self.done, self.rest = length, length == 0, b""

    def feed(self, data: bytes) -> bytes:
        """See `Body`."""
        if len(data) > self._left:
            data, self.rest = data[: self._left], data[self._left :]
        self._left -= len(data)
        self.done = self._left == 0
        return data


class Endless:
    """A body that ends with the connection."""

    __slots__ = ("done", "rest")
    endless, more = True, False

    def __init__(self) -> None:
        """Expect anything."""
        self.done, self.rest = False, b""

    def feed(self, data: bytes) -> bytes:
        """See `Body`."""
        return data


class Chunked:
    """A body in chunks."""

    __slots__ = ("_before", "_left", "_trailers", "done", "more", "rest")
    endless = False

    def __init__(self) -> None:
        """Expect the first size."""
        self._before = b""  # a line that has not ended yet, or what is left for another turn
        self._left = 0  # of the chunk at hand, its CRLF included; 0: a size comes next
        self._trailers = -1  # bytes of trailers so far; negative: none have begun
        self.done, self.more, self.rest = False, False, b""

    def feed(self, data: bytes) -> bytes:
        """See `Body`."""
        pieces: list[bytes] = []
        if self._before:
            data, self._before = self._before + data, b""
        at = chunks = 0
        self.more = False
        while at < len(data) and not self.done:
            if self._trailers >= 0:
                at = self._trailer(data, at)
            elif self._left:
                at = self._content(data, at, pieces)
            elif chunks == _TURN:
                self._before, self.more = data[at:], True
                break
            else:
                chunks += 1
                at = self._size(data, at)
        if self.done:
            self.rest = data[at:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _content(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        if self._left > 2:  # noqa: PLR2004 - the CRLF behind it
            piece = data[at : at + self._left - 2]
            pieces.append(piece)
            self._left -= len(piece)
            return at + len(piece)
        end = data[at : at + self._left]
        if end != b"\r\n"[2 - self._left :][: len(end)]:
            raise RejectedError(400, "A chunk is not as long as it says.")
        self._left -= len(end)
        return at + len(end)

    def _size(self, data: bytes, at: int) -> int:
        line, after = self._line(data, at)
        if line is None:
            return after
        match = _SIZE.fullmatch(line)
        if match is None:
            raise RejectedError(400, "A chunk does not say how long it is.")
        size = int(match[1], 16)
        if size:
            self._left = size + 2
        else:
            self._trailers = 0
        return after

    def _trailer(self, data: bytes, at: int) -> int:
        line, after = self._line(data, at)
        if line is not None:
            self._trailers += len(line) + 2
            self.done = not line
            if self._trailers > _TRAILERS:
                raise RejectedError(400, "The trailer after the last chunk is too long.")
            if line:
                check_trailer(line)
        return after

    def _line(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        end = data.find(b"\r\n", at)
        if end >= 0:
            return data[at:end], end + 2
        if len(data) - at > _LONGEST_LINE or b"\n" in data[at:]:
            raise RejectedError(400, "A chunk does not say how long it is.")
        self._before = data[at:]
        return None, len(data)


def body_of(length: int) -> Body:
    """Return the reader for a body of this length, as a head says it."""
    if length == CHUNKED:
        return Chunked()
    return Endless() if length == UNTIL_CLOSE else Counted(length)


def chunk(data: bytes) -> bytes:
    """Return one chunk; data may not be empty, which would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
