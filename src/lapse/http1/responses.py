"""Reader of one HTTP/1.1 response on the client's side: its head, then its body as it arrives. Pure.

Chunks and gzip are taken off; interim responses (100 Continue) are left out. A response is complete with its last byte,
or with the end of the connection if its head says so, and never otherwise. What is not understood is `RejectedError`,
never a guess: a response proves something.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from lapse.http1.bodies import body_of
from lapse.http1.heads import ReceiveBuffer, RejectedError, response_head

if TYPE_CHECKING:
    from lapse.http1.bodies import Body
    from lapse.http1.heads import ResponseHead

_HEAD_BYTES: Final = 65_536
_FIELDS: Final = 100
_FINAL: Final = 200
_SWITCHING: Final = 101
_GZIP: Final = 16 + zlib.MAX_WBITS
_PLAIN: Final = frozenset({b"", b"identity"})


class ResponseReader:
    """The response to one request with this method."""

    __slots__ = ("_body", "_buffer", "_inflater", "_inflates", "_method", "_surplus", "begun", "done", "head")

    def __init__(self, method: bytes, *, inflates: bool = True) -> None:
        """Begin with nothing. Unless it ``inflates``, a body is left as it comes: little can become very much."""
        self._method, self._inflates = method, inflates
        self._buffer = ReceiveBuffer()
        self._body: Body | None = None
        self._inflater: zlib._Decompress | None = None
        self._surplus = False
        self.head: ResponseHead | None = None
        """None until all of it has come."""
        self.begun = False
        """Whether anything came."""
        self.done = False
        """Whether the response is complete."""

    @property
    def keep(self) -> bool:
        """Whether the connection may carry another request, once the response is complete."""
        return self.head is not None and self.head.keep and not self._surplus

    def feed(self, data: bytes) -> bytes:
        """Take what arrived; return what of it belongs to the body."""
        self.begun = True
        if self._body is None:
            self._buffer.feed(data)
            self._body = self._begin()
            if self._body is None:
                return b""
            data = self._buffer.take()
        return self._take(self._body, data)

    def end(self) -> bool:
        """Take note that nothing more comes; return whether the response is complete."""
        if self._body is not None and self._body.endless and not self.done:
            self._finish()
        return self.done

    def _begin(self) -> Body | None:
        while (raw := self._buffer.take_head()) is not None:
            if len(raw) > _HEAD_BYTES:
                break
            head = response_head(raw, method=self._method, most_fields=_FIELDS)
            if head.status == _SWITCHING:
                raise RejectedError(502, "It switches protocols without being asked to.")
            if head.status >= _FINAL:
                self._check_coding(head)
                self.head = head
                return body_of(head.length)
        if raw is not None or len(self._buffer) > _HEAD_BYTES:
            raise RejectedError(502, "Its head is too long.")
        return None

    def _check_coding(self, head: ResponseHead) -> None:
        if not self._inflates:
            return
        coding = head.values.get(b"content-encoding", b"").lower()
        if coding == b"gzip":
            self._inflater = zlib.decompressobj(_GZIP)
        elif coding not in _PLAIN:
            raise RejectedError(502, "It is compressed in a way that was not asked for.")

    def _take(self, body: Body, data: bytes) -> bytes:
        if self.done:
            self._surplus = self._surplus or bool(data)
            return b""
        if body.done:  # there is none
            self._surplus, self.done = bool(data), True
            return b""
        return self._read(body, data)

    def _read(self, body: Body, data: bytes) -> bytes:
        taken = body.feed(data)
        while body.more:
            taken += body.feed(b"")
        if self._inflater is not None and taken:
            taken = self._inflate(self._inflater, taken)
        if body.done:
            self._surplus = bool(body.rest)
            self._finish()
        return taken

    def _inflate(self, inflater: zlib._Decompress, data: bytes) -> bytes:
        try:
            return inflater.decompress(data)
        except zlib.error as error:
            raise RejectedError(502, "It cannot be decompressed.") from error

    def _finish(self) -> None:
        if self._inflater is not None and (not self._inflater.eof or self._inflater.unused_data):
            raise RejectedError(502, "It cannot be decompressed.")
        self.done = True
