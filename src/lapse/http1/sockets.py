"""Client sockets for uvloop: each is closed once, and notices when the other end is gone.

For libraries that take a ``socket_factory`` (aiohappyeyeballs, aiobotocore) and hand the socket to the event
loop. When a connection is reset or given up at that moment, uvloop closes the file descriptor and leaves the socket
object as it was. Collected, that would close the number a second time: by then it may be another connection's, whose
data is mixed up with this one's, or libuv aborts the process. `tests/unit/http1/test_sockets.py` shows it.

Not covered: clients that let the event loop make the socket itself do not have that problem, and need nothing of this.
"""

from __future__ import annotations

import socket
from typing import Any, Final

_KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 30),
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 60_000),
)


class _UncollectedSocket(socket.socket):
    """A socket that its maker closes, or the event loop that took it over, and never the garbage collector."""

    def __del__(self) -> None:
        """Replace the finalizer of `socket.socket`, which closes."""


def new_socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket for an entry of `getaddrinfo`, which notices within two minutes that the other end is gone."""
    made = _UncollectedSocket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        if hasattr(socket, option):  # not every system has all of them
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
