"""Reading answers of an HTTP/1.1 server, piece by piece as they arrive. Pure.

As much of the protocol as an API server and what stands before it speak: a length, chunks, or an end of the connection;
plain or gzip. Whatever is not understood is `UnreadableError`, never a guess: an answer proves something.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Final

_HEAD_END: Final = b"\r\n\r\n"
_LINE_END: Final = b"\r\n"
_LONGEST_HEAD: Final = 65_536
_INFORMATION: Final = range(100, 200)
_WITHOUT_BODY: Final = frozenset({204, 304})
_GZIP: Final = 16 + zlib.MAX_WBITS
_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,16}")
_FIELDS: Final = re.compile(
    rb"^(connection|content-encoding|content-length|date|retry-after|transfer-encoding):(.*)$",
    re.IGNORECASE | re.MULTILINE,
)
"""What is looked at, of the dozen that a server sends."""
_NO_HEADERS: Final[dict[bytes, bytes]] = {}


class UnreadableError(ConnectionError):
    """What came is no answer."""


@dataclass(frozen=True, slots=True)
class RawResponse:
    """One answer. ``keep`` says whether the connection may be used again; ``headers`` are those of `_FIELDS`."""

    status: int
    headers: dict[bytes, bytes]
    content: bytes
    keep: bool


class ResponseReader:
    """One answer on its way."""

    __slots__ = ("_chunks", "_data", "_headers", "_keep", "_length", "_status")

    def __init__(self) -> None:
        """Begin with nothing."""
        self._data = bytearray()
        self._status = 0
        self._headers = _NO_HEADERS
        self._length: int | None = None
        self._chunks: list[bytes] | None = None
        self._keep = True

    @property
    def begun(self) -> bool:
        """Whether anything came."""
        return bool(self._data) or self._status > 0

    def feed(self, data: bytes) -> RawResponse | None:
        """Take a piece; return the answer when it is complete."""
        self._data += data
        while not self._status:
            end = self._data.find(_HEAD_END)
            if end < 0:
                if len(self._data) > _LONGEST_HEAD:
                    raise UnreadableError("its head has no end")
                return None
            self._read_head(bytes(self._data[:end]))
            del self._data[: end + len(_HEAD_END)]
        if self._chunks is not None:
            return self._take_chunks(self._chunks)
        if self._length is None or len(self._data) < self._length:
            return None
        content = bytes(self._data[: self._length])
        return self._reply(content, left=len(self._data) - self._length)

    def end(self) -> RawResponse | None:
        """Take note that nothing more comes; return the answer if that is how it ends."""
        if not self._status or self._chunks is not None or self._length is not None:
            return None
        self._keep = False
        return self._reply(bytes(self._data), left=0)

    def _read_head(self, head: bytes) -> None:
        first, _, lines = head.partition(_LINE_END)
        version, _, rest = first.partition(b" ")
        code = rest[:3]
        if version not in {b"HTTP/1.1", b"HTTP/1.0"} or len(code) < 3 or not code.isdigit():  # noqa: PLR2004 - digits of a status
            raise UnreadableError("its head is not that of HTTP/1")
        status = int(code)
        if status in _INFORMATION:  # what counts comes after it
            return
        headers = {name.lower(): value.strip() for name, value in _FIELDS.findall(lines)}
        self._status, self._headers = status, headers
        connection = headers.get(b"connection", b"").lower()
        self._keep = b"close" not in connection and (version == b"HTTP/1.1" or b"keep-alive" in connection)
        self._find_length(headers)

    def _find_length(self, headers: dict[bytes, bytes]) -> None:
        coding, length = headers.get(b"transfer-encoding", b"").lower(), headers.get(b"content-length")
        if coding:
            if coding != b"chunked":
                raise UnreadableError("it comes in a coding that was not asked for")
            self._chunks = []
        elif self._status in _WITHOUT_BODY:
            self._length = 0
        elif length is not None:
            if not length.isdigit():
                raise UnreadableError("its length is not a number")
            self._length = int(length)

    def _take_chunks(self, chunks: list[bytes]) -> RawResponse | None:
        while (end := self._data.find(_LINE_END)) >= 0:
            size = _size(bytes(self._data[:end]))
            if size == 0:
                return self._take_trailers(chunks)
            start, whole = end + 2, end + 2 + size + 2
            if len(self._data) < whole:
                return None
            if self._data[whole - 2 : whole] != _LINE_END:
                raise UnreadableError("a piece is longer than it says")
            chunks.append(bytes(self._data[start : whole - 2]))
            del self._data[:whole]
        if len(self._data) > _LONGEST_HEAD:
            raise UnreadableError("a piece does not say how long it is")
        return None

    def _take_trailers(self, chunks: list[bytes]) -> RawResponse | None:
        start = self._data.find(_LINE_END)
        end = self._data.find(_HEAD_END, start)  # right there, unless there are trailers
        return None if end < 0 else self._reply(b"".join(chunks), left=len(self._data) - end - len(_HEAD_END))

    def _reply(self, content: bytes, *, left: int) -> RawResponse:
        coding = self._headers.get(b"content-encoding", b"").lower()
        if coding == b"gzip":
            try:
                content = zlib.decompress(content, _GZIP)
            except zlib.error as error:
                raise UnreadableError("it cannot be unpacked") from error
        elif coding not in {b"", b"identity"}:
            raise UnreadableError("it is packed in a way that was not asked for")
        return RawResponse(self._status, self._headers, content, self._keep and not left)


def _size(line: bytes) -> int:
    size = line.partition(b";")[0].strip()
    if not _SIZE.fullmatch(size):
        raise UnreadableError("a piece does not say how long it is")
    return int(size, 16)
