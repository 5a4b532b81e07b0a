"""Heads of HTTP/1.1 requests and responses, read strictly or rejected, and the buffer that they arrive in. Pure.

Two parties that read one head differently are how requests are smuggled. So nothing doubtful passes: a line ends in
CRLF and only there, a name is a token with its colon right behind, no line is continued, a length is one number, and a
body has a length or is in chunks, never both. Whatever is accepted here, llhttp and h11 read as the same messages if
they accept it (`tests/unit/http1/test_differential.py`).

Why no library reads them: see docs/explanation/decisions, "One HTTP/1.1 codec".

In the receive buffer of a connection, work and copies grow with the bytes that came, not with how they came: a head
that drips is not searched again from its beginning, and a hundred requests in one piece are not moved a hundred times.
Whoever feeds it keeps it small, by not reading on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_VALUE: Final = rb"[^\x00-\x08\x0a-\x1f\x7f]*"
# The target is a path: neither another server's address nor a fragment. It is passed on as it is, never resolved.
_REQUEST_LINE: Final = re.compile(rb"(%s) (/[\x21\x22\x24-\x7e]*) HTTP/1\.([01])" % _TOKEN)
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
# Blanks around a value are stripped, not matched: there would be many ways to match them, and all would be tried.
_FIELD: Final = re.compile(rb"(%s):(%s)" % (_TOKEN, _VALUE))
# All lines in one go: a line that is no field is left out, which its number shows.
_FIELDS: Final = re.compile(rb"\r\n((%s):(%s))(?=\r\n|\Z)" % (_TOKEN, _VALUE))
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
_BARE: Final = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)")
_ONCE: Final = frozenset(
    {
        *_FRAMING,
        *(b"host", b"authorization", b"origin", b"upgrade"),
        *(b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-accept"),
    }
)
_NOT_BY_US: Final = frozenset({b"CONNECT", b"TRACE"})
# Named in `Connection`, these would vanish for the workspace although somebody has already relied on them.
_NEVER_HOP_BY_HOP: Final = frozenset(
    {
        *_FRAMING,
        *(b"host", b"origin", b"cookie", b"authorization"),
        *(b"sec-websocket-key", b"sec-websocket-version"),
    }
)

END: Final = b"\r\n\r\n"
CHUNKED: Final = -1
UNTIL_CLOSE: Final = -2
_NO_BODY_STATUS: Final = frozenset({204, 304})


class RejectedError(Exception):
    """A message that goes no further. ``status`` is what a client is answered; ``words`` say what was wrong."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status, self.words = status, words


Field = tuple[bytes, bytes, bytes]
"""Lower-case name, value, and the line as it came."""


@dataclass(slots=True)
class RequestHead:
    """The head of a request. ``length`` is that of the body, or `CHUNKED`."""

    method: bytes
    target: bytes
    minor: int
    fields: list[Field]
    values: dict[bytes, bytes]
    options: frozenset[bytes]
    """What `Connection` names, in lower case."""
    length: int
    host: bytes
    """As it came, in lower case."""

    @property
    def keep(self) -> bool:
        """Whether the client may send another request; HTTP/1.0 with its own ways to say so is not worth it."""
        return self.minor == 1 and b"close" not in self.options

    @property
    def for_person(self) -> bool:
        """Whether a person will see the response: a page is asked for, in a way that can be repeated."""
        return self.method in {b"GET", b"HEAD"} and b"text/html" in self.values.get(b"accept", b"")

    @property
    def upgrade(self) -> bool:
        """Whether it asks for a websocket. Other upgrades (HTTP/2 in the clear) are not offered, and not passed on."""
        return (
            b"upgrade" in self.options and self.minor == 1 and self.values.get(b"upgrade", b"").lower() == b"websocket"
        )


@dataclass(slots=True)
class ResponseHead:
    """The head of a response. ``length`` is that of the body, `CHUNKED`, or `UNTIL_CLOSE`."""

    status: int
    reason: bytes
    fields: list[Field]
    values: dict[bytes, bytes]
    options: frozenset[bytes]
    length: int
    keep: bool


_NOTHING: Final[frozenset[bytes]] = frozenset()


def check_lines(data: bytes | bytearray, start: int) -> None:
    """Reject a head whose end has not come if one of its lines, from ``start`` on, never can be right."""
    if _BARE.search(data, start):
        raise RejectedError(400, "A line of a head must end in CRLF, with no CR or LF before.")


def request_head(data: bytes, *, most_fields: int) -> RequestHead:
    """Read a request's head, given without the empty line at its end."""
    first, _, _ = data.partition(b"\r\n")
    match = _REQUEST_LINE.fullmatch(first)
    if first.partition(b" ")[0] in _NOT_BY_US:  # CONNECT names no path
        raise RejectedError(501, "This method is not passed on.")
    if match is None:
        raise RejectedError(400, "The first line is not METHOD /path HTTP/1.1.")
    method, target, minor = match.groups()
    fields, values = _fields(data, len(first), most_fields)
    host = values.get(b"host")
    if host is None:
        raise RejectedError(400, "A request must name its host once.")
    options = _options(values)
    length = _request_length(values, minor)
    return RequestHead(method, target, minor[0] - 48, fields, values, options, length, host.lower())


def response_head(data: bytes, *, method: bytes, most_fields: int) -> ResponseHead:
    """Read the head of a response to ``method``."""
    first, _, _ = data.partition(b"\r\n")
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise RejectedError(502, "It is not HTTP/1.")
    fields, values = _fields(data, len(first), most_fields)
    length = _response_length(values, int(match[2]), method)
    connection = values.get(b"connection")
    options = _NOTHING if connection is None else _names(connection)
    keep = match[1] == b"1" and b"close" not in options and length != UNTIL_CLOSE
    return ResponseHead(int(match[2]), match[3] or b"", fields, values, options, length, keep)


def _fields(data: bytes, start: int, most: int) -> tuple[list[Field], dict[bytes, bytes]]:
    count = data.count(b"\r\n", start)
    if count > most:
        raise RejectedError(431, f"A head may have {most} fields.")
    found = _FIELDS.findall(data, start)
    if len(found) != count:
        raise RejectedError(400, "A line of the head is not Name: value.")
    fields: list[Field] = []
    values: dict[bytes, bytes] = {}
    for line, name, raw in found:
        lower, value = name.lower(), raw.strip(b" \t")
        if lower in values:
            if lower in _ONCE:
                raise RejectedError(400, f"{lower.decode()} is given twice.")
            value_before = values[lower]
            values[lower] = value_before + (b"; " if lower == b"cookie" else b", ") + value
        else:
            values[lower] = value
        fields.append((lower, value, line))
    return fields, values


def check_trailer(line: bytes) -> None:
    """Reject a line after the last chunk that is no field, or one that would say where a body ends."""
    match = _FIELD.fullmatch(line)
    if match is None or match[1].lower() in _FRAMING:
        raise RejectedError(400, "The trailer after the last chunk is wrong.")


def _names(connection: bytes) -> frozenset[bytes]:
    return frozenset(name.strip().lower() for name in connection.split(b","))


def _options(values: dict[bytes, bytes]) -> frozenset[bytes]:
    connection = values.get(b"connection")
    if connection is None:
        return _NOTHING
    options = _names(connection)
    if options & _NEVER_HOP_BY_HOP:
        raise RejectedError(400, "Connection names a field that must be passed on.")
    return options


def _length(value: bytes) -> int:
    if not _LENGTH.fullmatch(value):
        raise RejectedError(400, "content-length must be one number.")
    return int(value)


def _request_length(values: dict[bytes, bytes], minor: bytes) -> int:
    coding, length = values.get(b"transfer-encoding"), values.get(b"content-length")
    if coding is None:
        return 0 if length is None else _length(length)
    if length is not None:
        raise RejectedError(400, "A body has a content-length or a transfer-encoding, not both.")
    if minor != b"1":
        raise RejectedError(400, "HTTP/1.0 has no transfer-encoding.")
    if coding.lower() != b"chunked":
        raise RejectedError(501, "The only transfer-encoding here is chunked.")
    return CHUNKED


def _response_length(values: dict[bytes, bytes], status: int, method: bytes) -> int:
    coding, length = values.get(b"transfer-encoding"), values.get(b"content-length")
    if coding is not None and length is not None:
        raise RejectedError(502, "A body has a content-length or a transfer-encoding, not both.")
    if coding is not None and coding.lower() != b"chunked":
        raise RejectedError(502, "The only transfer-encoding here is chunked.")
    known = None if length is None else _length(length)
    if method == b"HEAD" or status in _NO_BODY_STATUS or status < 200:  # noqa: PLR2004 - interim responses have none
        return 0
    if method == b"CONNECT" and status < 300:  # noqa: PLR2004 - what follows is the tunnel
        return 0
    if coding is not None:
        return CHUNKED
    return UNTIL_CLOSE if known is None else known


class ReceiveBuffer:
    """What one connection has sent ahead of its use."""

    __slots__ = ("_at", "_data", "_searched")

    def __init__(self) -> None:
        """Begin with nothing."""
        self._data: bytes | bytearray = b""
        self._at = 0
        """Where the unused part begins."""
        self._searched = 0
        """Up to where there is no end of a head."""

    def __len__(self) -> int:
        """How many bytes wait."""
        return len(self._data) - self._at

    def feed(self, data: bytes) -> None:
        """Add what arrived."""
        if self._at == len(self._data):
            self._data, self._at, self._searched = data, 0, 0
            return
        if isinstance(self._data, bytearray):
            del self._data[: self._at]  # moves its beginning, not its content
        else:
            self._data = bytearray(memoryview(self._data)[self._at :])
        self._searched = max(0, self._searched - self._at)
        self._at = 0
        self._data += data

    def take_head(self) -> bytes | None:
        """Return the next head without the empty line at its end; None while that has not come.

        Raises `RejectedError` for the part of a head that can never become a right one.
        """
        data = self._data
        end = data.find(END, max(self._at, self._searched - 3))
        if end < 0:
            check_lines(data, max(self._at, self._searched - 1))
            self._searched = len(data)
            return None
        head = bytes(data[self._at : end])
        self._at = self._searched = end + len(END)
        return head

    def skip_line_end(self) -> None:
        """Leave out a CRLF before a head: some clients end a body so, and it ends no head."""
        if self._data.startswith(b"\r\n", self._at):
            self._at += 2

    def take(self) -> bytes:
        """Return all that waits."""
        data, at = self._data, self._at
        self._data, self._at, self._searched = b"", 0, 0
        return data if isinstance(data, bytes) and not at else bytes(data[at:])
