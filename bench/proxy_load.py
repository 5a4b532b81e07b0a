"""Both ends of a proxy under test: a program behind it, and clients before it. Neither does more than it must.

The program answers every GET with one kilobyte, and every upgrade as a websocket server would; then it sends back what
it gets. Clients and program look at no frames, so that what is measured is the proxy.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import uvloop

LOOPBACK: Final = "127.0.0.1"
KEY: Final = base64.b64encode(bytes(16))
_ACCEPT: Final = base64.b64encode(hashlib.sha1(KEY + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())  # noqa: S324 - what the protocol asks for
PAGE: Final = b"x" * 1024
_PAGE_ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1024\r\n\r\n" + PAGE
_UPGRADED: Final = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %b\r\n\r\n"
    % _ACCEPT
)
# A masked text frame of 512 bytes, with a mask of zeros.
MESSAGE: Final = b"\x81\xfe\x02\x00" + bytes(4) + b"m" * 512
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Program(asyncio.Protocol):
    """The program behind the proxy."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._write = cast("asyncio.Transport", transport).write
        self._before = b""
        self._echo = False

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._echo:
            self._write(data)
            return
        data = self._before + data
        if not data.endswith(b"\r\n\r\n"):
            self._before = data
            return
        self._before = b""
        self._echo = b"websocket" in data
        self._write(_UPGRADED if self._echo else _PAGE_ANSWER)


async def run_program(port: int) -> None:
    """Serve until the process ends."""
    server = await asyncio.get_running_loop().create_server(Program, LOOPBACK, port, backlog=4096)
    await server.serve_forever()


class Pinger(asyncio.Protocol):
    """A client that sends something, waits for as many bytes as must come back, and sends again."""

    def __init__(self, host: str, *, upgrade: bool) -> None:
        """Ask for this host."""
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()
        self._upgrade = upgrade
        extra = (
            b""
            if not upgrade
            else (
                b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n"
                % KEY
            )
        )
        self._request = (
            b"GET /page?with=query HTTP/1.1\r\nHost: %b\r\nAuthorization: Bearer bench\r\n"
            b"User-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: text/html,application/json\r\n"
            b"Accept-Language: en\r\nAccept-Encoding: gzip\r\nCookie: theme=dark; lapse_session=abc\r\n%b\r\n"
        ) % (host.encode(), extra)
        self._message = MESSAGE if upgrade else self._request
        self._left, self._missing, self._got = 0, 0, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self.transport = cast("asyncio.Transport", transport)
        self._write = self.transport.write
        self._write(self._request)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if not self.ready.done():
            self._begin(data)
            return
        self._missing -= len(data)
        if self._missing <= 0:
            self._again()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        for future in (self.ready, self.done):
            if not future.done():
                future.set_exception(ConnectionError("the proxy ended a connection"))
                future.exception()

    def _begin(self, data: bytes) -> None:
        self._got += data
        end = self._got.find(b"\r\n\r\n")
        if end < 0 or (not self._upgrade and len(self._got) < end + 4 + len(PAGE)):
            return
        wanted = b" 101 " if self._upgrade else b" 200 "
        assert wanted in self._got[:20], self._got[:200]
        # Every later answer is as long as the first; node writes chunks, whose framing is as long each time.
        self._size = len(MESSAGE) if self._upgrade else len(self._got)
        self.ready.set_result(None)

    def start(self, count: int) -> asyncio.Future[None]:
        """Do so many round trips."""
        self.done = asyncio.get_running_loop().create_future()
        self._left = count
        self._again()
        return self.done

    def _again(self) -> None:
        if not self._left:
            if not self.done.done():
                self.done.set_result(None)
            return
        self._left -= 1
        self._missing = self._size
        self._write(self._message)


async def pingers(port: int, host: str, count: int, *, upgrade: bool) -> list[Pinger]:
    """Connect so many clients, a few at a time."""
    loop = asyncio.get_running_loop()
    made: list[Pinger] = []
    while len(made) < count:
        few = [
            loop.create_connection(lambda: Pinger(host, upgrade=upgrade), LOOPBACK, port)
            for _ in range(min(50, count - len(made)))
        ]
        protocols = [protocol for _, protocol in await asyncio.gather(*few)]
        await asyncio.wait_for(asyncio.gather(*(each.ready for each in protocols)), 30)
        made += protocols
    return made


@dataclass(frozen=True, slots=True)
class Figures:
    """One measurement."""

    per_second: float
    cpu_us: float
    """Of the proxy's process, per round trip."""


async def drive(clients: list[Pinger], trips: int, pids: list[int]) -> Figures:
    """Let every client do so many round trips."""
    cpu, start = cpu_seconds(pids), time.perf_counter()
    await asyncio.wait_for(asyncio.gather(*(each.start(trips) for each in clients)), 120)
    passed, used = time.perf_counter() - start, cpu_seconds(pids) - cpu
    total = trips * len(clients)
    return Figures(total / passed, used / total * 1e6)


def cpu_seconds(pids: list[int]) -> float:
    """Return the processor time of these processes so far."""
    total = 0
    for pid in pids:
        words = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
        total += int(words[11]) + int(words[12])
    return total / _TICKS


def resident_bytes(pids: list[int]) -> int:
    """Return the memory of these processes that is their own."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
            if line.startswith(("Private_Clean:", "Private_Dirty:")):
                total += int(line.split()[1]) * 1024
    return total


if __name__ == "__main__":
    uvloop.run(run_program(int(sys.argv[1])))
