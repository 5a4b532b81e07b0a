"""A TCP relay that misbehaves on request, to stand between a client and a real server.

It forwards bytes unchanged (TLS passes through), and can go silent in one or both directions, cut connections, refuse
new ones, and delay. It counts what it forwarded. It runs its own event loop in a thread; all methods may be called from
any other thread and have taken effect when they return.

What silence means: bytes are held back, not lost, and flow again after `speak`, as after a network that was away for a
while. With only the way back silent, a request reaches the server and its answer does not reach the client; `cut` then
leaves the client in doubt.

Requests are counted by turns: bytes of the client that follow an answer, on the same connection. That is the number of
round trips wherever a connection carries one request at a time (HTTP, Redis; a pipeline is one). For Cassandra, whose
connections carry many at once, `CassandraFrames` counts by kind of request instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, TypeVar

from tests.servers.ports import LOOPBACK, reserved_port

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

CHUNK = 65536
T = TypeVar("T")


class RequestReader(Protocol):
    """Sees both directions of one connection and names the requests in it."""

    def sent(self, data: bytes) -> list[str]:
        """Take bytes of the client; returns the names of the requests that they begin or complete."""

    def answered(self, data: bytes) -> None:
        """Take bytes of the server."""


class Turns:
    """One request per change of direction."""

    def __init__(self) -> None:
        self._waiting = False

    def sent(self, data: bytes) -> list[str]:
        begins, self._waiting = not self._waiting, True
        return ["turn"] if begins else []

    def answered(self, data: bytes) -> None:
        self._waiting = False


class CassandraFrames:
    """One request per frame of Cassandra's protocol, versions 3 and 4, by the name of its kind."""

    NAMES: ClassVar[dict[int, str]] = {
        0x01: "STARTUP",
        0x05: "OPTIONS",
        0x07: "QUERY",
        0x09: "PREPARE",
        0x0A: "EXECUTE",
        0x0B: "REGISTER",
        0x0D: "BATCH",
        0x0F: "AUTH_RESPONSE",
    }
    HEADER = 9

    def __init__(self) -> None:
        self._rest = b""

    def sent(self, data: bytes) -> list[str]:
        self._rest += data
        names = []
        while len(self._rest) >= self.HEADER:
            length = int.from_bytes(self._rest[5:9])
            if len(self._rest) < self.HEADER + length:
                break
            names.append(self.NAMES.get(self._rest[4], f"opcode {self._rest[4]}"))
            self._rest = self._rest[self.HEADER + length :]
        return names

    def answered(self, data: bytes) -> None:
        """Answers say nothing about requests."""


@dataclass(frozen=True)
class Counts:
    """What was forwarded so far: `up` is from the client to the server, `down` the way back."""

    connections: int
    bytes_up: int
    bytes_down: int
    requests: int
    by_name: dict[str, int] = field(default_factory=dict)


class _Way:
    """One direction: its gate and what went through."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.bytes = 0


class Relay:
    """A relay to one server, from the beginning of a `with` block to its end."""

    def __init__(self, port: int, host: str = LOOPBACK, *, reader: Callable[[], RequestReader] = Turns) -> None:
        self.host = LOOPBACK
        self._target = (host, port)
        self._reader = reader
        self._delay = 0.0
        self._connections = 0
        self._requests: Counter[str] = Counter()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.port = self._stack.enter_context(reserved_port())
        self._loop = asyncio.new_event_loop()
        self._up, self._down = _Way(), _Way()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"relay-{self.port}", daemon=True)
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._stack.close()

    def _call(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    # --- what a test does ---------------------------------------------------------------------------------------------

    @property
    def counts(self) -> Counts:
        """A snapshot of all counters."""
        return self._call(self._snapshot())

    def silence(self, *, up: bool = True, down: bool = True) -> None:
        """Hold back what is sent from now on, in the directions named."""
        self._call(self._gate(up=up, down=down, opened=False))

    def speak(self) -> None:
        """Forward again, beginning with what was held back."""
        self._call(self._gate(up=True, down=True, opened=True))

    def delay(self, seconds: float) -> None:
        """Hold every piece of data that long, in each direction; 0 ends it."""
        self._call(self._set_delay(seconds))

    def cut(self, *, refuse: bool = False) -> None:
        """Reset every connection; `refuse` also closes the door until `accept`."""
        self._call(self._cut(refuse=refuse))

    def lead_to(self, port: int) -> None:
        """Forward to another port from now on; connections that are there stay with the old one until they are cut."""
        self._call(self._aim(port))

    def accept(self) -> None:
        """Open the door again after `cut(refuse=True)`, on the same port."""
        self._call(self._listen())

    # --- inside the loop ----------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, self.host, self.port, backlog=1024)

    async def _snapshot(self) -> Counts:
        total = self._requests.total()
        return Counts(self._connections, self._up.bytes, self._down.bytes, total, dict(self._requests))

    async def _gate(self, *, up: bool, down: bool, opened: bool) -> None:
        for way, wanted in ((self._up, up), (self._down, down)):
            if wanted:
                (way.open.set if opened else way.open.clear)()

    async def _set_delay(self, seconds: float) -> None:
        self._delay = seconds

    async def _aim(self, port: int) -> None:
        self._target = (self._target[0], port)

    async def _cut(self, *, refuse: bool) -> None:
        if refuse and self._listener is not None:
            listener, self._listener = self._listener, None
            for one in listener.sockets:
                self._loop.remove_reader(one.fileno())
            await asyncio.sleep(0)  # asyncio forgets a connection, open, that was accepted when its server is closed
            listener.close()
        for writer in list(self._writers):
            _reset(writer)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _close(self) -> None:
        await self._cut(refuse=True)
        await asyncio.sleep(0)  # those that were just accepted begin now
        await self._cut(refuse=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._join(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the server was not there, or the connection was cut
        finally:
            _reset(writer)  # nothing is left of one that ended in order
            self._tasks.discard(task)
            self._writers.discard(writer)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._writers.add(far_writer)
        requests = self._reader()

        def sent(data: bytes) -> None:
            self._requests.update(requests.sent(data))

        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, far_writer, way=self._up, seen=sent))
                both.create_task(self._pump(far_reader, writer, way=self._down, seen=requests.answered))
            writer.close()
            await writer.wait_closed()  # what is still buffered is delivered first
        except* OSError:
            _reset(writer)  # one end was reset: so must the other be
        finally:
            self._writers.discard(far_writer)
            far_writer.transport.abort()  # both directions ended in order, or nothing is worth delivering

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        way: _Way,
        seen: Callable[[bytes], None],
    ) -> None:
        while data := await reader.read(CHUNK):
            if self._delay:
                await asyncio.sleep(self._delay)
            await way.open.wait()
            seen(data)
            way.bytes += len(data)
            writer.write(data)
            await writer.drain()
        await way.open.wait()
        writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset instead of a farewell, dropping what was not sent."""
    connection: socket.socket | None = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
