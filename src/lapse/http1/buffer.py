"""Receive buffer of one connection: bytes that have arrived and are not used yet. Pure.

Work and copies grow with the bytes that came, not with how they came: a head that drips is not searched again from its
beginning, and a hundred requests in one piece are not moved a hundred times. Whoever feeds it keeps it
small, by not reading on.
"""

from __future__ import annotations

from lapse.http1.heads import END, check_lines


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
