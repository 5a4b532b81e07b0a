"""A proxy with everything around it in memory: real sockets, real clients, and a small world to look at afterwards."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from lapse.core.clock import SystemClock
from lapse.core.errors import LapseError
from lapse.engine.running.metrics import Metrics
from lapse.proxy.limits import ProxyLimits
from lapse.proxy.ports import (
    ConnectionId,
    Destination,
    DirectResponse,
    Proof,
    UpstreamAddress,
    Visit,
    Visitor,
    WorkspaceId,
    WorkspaceReadiness,
)
from lapse.proxy.server import Options, Ports, Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

LOOPBACK = "127.0.0.1"
OWNER = "ann"
TOKEN = "lapse_token_of_ann"
COOKIE = "lapse_session"
SESSION = "session-of-ann"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
QUICK = ProxyLimits(sweep_seconds=0.02)


class StoreDownError(LapseError):
    """The activity store is away."""


@dataclass
class World:
    """All ports of a proxy, as plain as they can be."""

    places: dict[str, Destination] = field(default_factory=dict)
    people: dict[str, str] = field(default_factory=lambda: {TOKEN: OWNER, "lapse_token_of_bob": "bob"})
    sessions: dict[str, str] = field(default_factory=lambda: {SESSION: OWNER, "session-of-bob": "bob"})
    leases: dict[ConnectionId, WorkspaceId] = field(default_factory=dict)
    idle_timers: set[WorkspaceId] = field(default_factory=set)
    announced: Counter[WorkspaceId] = field(default_factory=Counter)
    accesses: Counter[WorkspaceId] = field(default_factory=Counter)
    woken: Counter[WorkspaceId] = field(default_factory=Counter)
    metrics: Metrics = field(default_factory=lambda: Metrics("test"))
    tokens_unknown: bool = False
    renewals: int = 0
    down: bool = False
    wakes_to: Destination | None = None
    revives: bool = False
    """What a workspace becomes when it is woken; None: it stays asleep."""

    def add(
        self, name: str, port: int, *, owner: str = OWNER, condition: WorkspaceReadiness = WorkspaceReadiness.READY
    ) -> Destination:
        """Put a workspace up."""
        address = UpstreamAddress(LOOPBACK, port) if condition is WorkspaceReadiness.READY else None
        place = Destination(WorkspaceId(f"id-{name}"), owner, condition, address)
        self.places[name] = place
        return place

    # Directory
    async def find(self, name: str) -> Destination | None:
        return self.places.get(name)

    # Authenticator
    async def identify(self, visit: Visit) -> Visitor | DirectResponse:
        scheme, _, token = visit.field(b"authorization").partition(" ")
        if scheme.lower() == "bearer" and token in self.people:
            return Visitor(self.people[token], Proof.TOKEN)
        for part in visit.field(b"cookie").split(";"):
            name, _, value = part.strip().partition("=")
            if name == COOKIE and value in self.sessions:
                return Visitor(self.sessions[value], Proof.COOKIE)
        return DirectResponse(401, "Who are you?", (("WWW-Authenticate", "Bearer"),))

    def still_admits(self, visitor: Visitor) -> bool:
        if self.tokens_unknown:
            raise StoreDownError
        return visitor.name in self.people.values()

    # Waker
    async def wake(self, workspace: WorkspaceId) -> None:
        self.woken[workspace] += 1
        if self.wakes_to is not None:
            for name, place in self.places.items():
                if place.workspace == workspace:
                    self.places[name] = replace(self.wakes_to, workspace=workspace)

    async def revive(self, workspace: WorkspaceId) -> bool:
        if self.revives:
            await self.wake(workspace)
        return self.revives

    async def connected(self, workspace: WorkspaceId) -> None:
        self.announced[workspace] += 1

    # Activity
    def _check(self) -> None:
        if self.down:
            raise StoreDownError

    async def connect(self, workspace: WorkspaceId, connection: ConnectionId, *, lease_seconds: float) -> bool:
        self._check()
        first = workspace not in self.leases.values()
        self.leases[connection] = workspace
        self.idle_timers.discard(workspace)
        return first

    async def renew(self, connections: Mapping[ConnectionId, WorkspaceId], lease_seconds: float) -> set[ConnectionId]:
        self._check()
        self.renewals += 1
        return {connection for connection in connections if connection not in self.leases}

    async def disconnect(self, workspace: WorkspaceId, connection: ConnectionId, *, idle_seconds: float) -> bool:
        self._check()
        last = self.leases.pop(connection, None) is not None and workspace not in self.leases.values()
        if last:
            self.idle_timers.add(workspace)
        return last

    # Access
    def note(self, workspace: WorkspaceId, at_ms: int, /) -> None:
        self.accesses[workspace] += 1

    def ports(self) -> Ports:
        """Return itself as everybody the proxy needs."""
        return Ports(
            directory=self,
            authenticator=self,
            waker=self,
            activity=self,
            access=self.note,
            clock=SystemClock(),
            metrics=self.metrics.proxy,
        )


@dataclass
class RunningProxy:
    """A running proxy."""

    world: World
    server: Proxy
    port: int

    def host(self, name: str) -> str:
        """Return the host name of a workspace, with the port."""
        return f"{name}.w.localhost:{self.port}"


@contextlib.asynccontextmanager
async def run_proxy(world: World, limits: ProxyLimits = QUICK, **options: object) -> AsyncIterator[RunningProxy]:
    """Run a proxy over this world."""
    server = Proxy(world.ports(), replace(Options(limits=limits), **options))  # type: ignore[arg-type]
    port = await server.start(LOOPBACK, 0)
    try:
        yield RunningProxy(world, server, port)
    finally:
        await server.stop(grace_seconds=0.5)


async def until(true: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    """Wait for an outcome."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not true():
        assert loop.time() < end, f"{what} did not happen within {seconds} s"
        await SystemClock().sleep(0.005)


class Wire:
    """A client that sends exactly the bytes it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, port: int) -> Self:
        return cls(*await asyncio.open_connection(LOOPBACK, port))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> bytes:
        async with asyncio.timeout(30):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def status(self) -> int:
        return int((await self.head()).split()[1])

    async def rest(self) -> bytes:
        """Everything until the other side ends."""
        async with asyncio.timeout(30):
            return await self.reader.read()


def asking(host: str, *lines: str, method: str = "GET", target: str = "/", body: bytes = b"") -> bytes:
    """A request of the owner."""
    fields = [f"Host: {host}", f"Authorization: Bearer {TOKEN}", *lines]
    return "\r\n".join([f"{method} {target} HTTP/1.1", *fields, "", ""]).encode() + body


@dataclass
class Program:
    """A workspace's program made of bytes: keeps what it was sent, and answers as told."""

    port: int
    connections: list[bytearray] = field(default_factory=list)
    open: int = 0

    @property
    def received(self) -> bytes:
        """Everything from everybody."""
        return b"".join(bytes(each) for each in self.connections)


@contextlib.asynccontextmanager
async def program(answer: bytes | Callable[[bytes, asyncio.StreamWriter], None]) -> AsyncIterator[Program]:
    """Run a program that answers each head with these bytes, or calls a function with all that one connection sent."""
    ours = Program(0)
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got = bytearray()
        ours.connections.append(got)
        ours.open += 1
        writers.add(writer)
        try:
            while data := await reader.read(65_536):
                got += data
                if callable(answer):
                    answer(bytes(got), writer)
                elif data.endswith(b"\r\n\r\n"):
                    writer.write(answer)
        except ConnectionError:
            pass
        finally:
            ours.open -= 1
            writers.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, LOOPBACK, 0)
    ours.port = server.sockets[0].getsockname()[1]
    try:
        yield ours
    finally:
        server.close()
        for writer in tuple(writers):
            writer.transport.abort()
        await server.wait_closed()
        await until(lambda: not ours.open, "the end of the program's connections")


def ok(body: bytes = b"ok", *lines: str) -> bytes:
    """A plain answer."""
    fields = "".join(f"{line}\r\n" for line in (*lines, f"Content-Length: {len(body)}"))
    return f"HTTP/1.1 200 OK\r\n{fields}\r\n".encode() + body
