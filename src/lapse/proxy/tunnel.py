"""Tunnel after an upgrade: bytes from one side to the other as they are, in both directions, with back-pressure.

Frames are not looked at: texts, binaries, pings, close codes, extensions and subprotocols are the peers' own, and a
live connection is somebody there whatever its frames say. Reading frames costs three times the processor time and ten
times the memory. An end of one side is passed on as such (half-close); an end by error ends both at once. A peer that
vanishes without a word is noticed by the kernel's keep-alive, within two minutes.

The price: a tunnel that the proxy ends itself (because it stops) ends without a close frame, as its place in the stream
of frames is not known.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.proxy.ports import ConnectionId, Visitor, WorkspaceId

_WATCHFUL: Final = (
    ("TCP_KEEPIDLE", 60),
    ("TCP_KEEPINTVL", 15),
    ("TCP_KEEPCNT", 4),
    ("TCP_USER_TIMEOUT", 120_000),
)


class Half(asyncio.Protocol):
    """One side of a tunnel: what it receives goes to the other."""

    __slots__ = ("_write", "ended", "other", "transport", "tunnel")

    def __init__(self, transport: asyncio.Transport, tunnel: Tunnel) -> None:
        """Take over one side."""
        self.transport, self.tunnel = transport, tunnel
        self.ended = False
        self.other: Half = self

    def join(self, other: Half) -> None:
        """Name the other side."""
        self.other = other
        self._write = other.transport.write

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self.tunnel.moved = True
        self._write(data)

    def eof_received(self) -> bool:
        """See `asyncio.Protocol`; the other direction goes on."""
        self.ended = True
        self.tunnel.half_ended(self.other)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.tunnel.lost(self, exc)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`: this side is slow, so the other is not read."""
        if not self.other.transport.is_closing():
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        if not self.other.transport.is_closing():
            self.other.transport.resume_reading()


class Tunnel:
    """Two sides that are one connection."""

    __slots__ = ("_left", "_on_end", "client", "connection", "half_since", "moved", "upstream", "visitor", "workspace")

    def __init__(
        self,
        workspace: WorkspaceId,
        connection: ConnectionId,
        on_end: Callable[[Tunnel], None],
        *,
        visitor: Visitor | None = None,
    ) -> None:
        """Begin with no sides; ``on_end`` is called once, when both have ended. ``visitor`` is who was let in."""
        self.workspace, self.connection, self.visitor = workspace, connection, visitor
        self.moved = True
        """Whether anything came since somebody last looked."""
        self.half_since: float | None = None
        """When it was first seen with one direction ended."""
        self.client: Half = cast("Half", None)
        self.upstream: Half = cast("Half", None)
        self._left = 2
        self._on_end = on_end

    def join(self, client: asyncio.Transport, upstream: asyncio.Transport) -> None:
        """Take over both connections; from now on bytes flow."""
        self.client, self.upstream = Half(client, self), Half(upstream, self)
        self.client.join(self.upstream)
        self.upstream.join(self.client)
        for half in (self.client, self.upstream):
            _be_watchful(half.transport)
            half.transport.set_protocol(half)

    waits_for_request: Final = False

    @property
    def is_half(self) -> bool:
        """Whether a direction has ended, so that what is left has to end soon."""
        return self.client.ended or self.upstream.ended

    def half_ended(self, other: Half) -> None:
        """Pass the end of one direction on; with both ended, the tunnel is over."""
        if other.ended:
            self.close()
        else:
            end_writing(other.transport)

    def lost(self, half: Half, exc: Exception | None) -> None:
        """Take note that one side is gone."""
        half.ended = True
        self._left -= 1
        if not self._left:
            self._on_end(self)
        elif exc is not None:
            half.other.transport.abort()
        elif not half.other.transport.is_closing():
            half.other.transport.close()  # what is on its way still gets there

    def close(self) -> None:
        """End both sides after what is on its way."""
        for half in (self.client, self.upstream):
            half.ended = True
            if not half.transport.is_closing():
                half.transport.close()

    def abort(self) -> None:
        """End both sides at once."""
        for half in (self.client, self.upstream):
            half.transport.abort()


def end_writing(transport: asyncio.Transport) -> None:
    """End one direction, after what was written; a connection that has broken meanwhile needs no end."""
    if not transport.is_closing():
        with suppress(OSError):
            transport.write_eof()


def _be_watchful(transport: asyncio.Transport) -> None:
    made = transport.get_extra_info("socket")
    with suppress(OSError):  # a connection that has just broken; its end is about to be told
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _WATCHFUL:
            if hasattr(socket, option):  # not every system has all of them
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
