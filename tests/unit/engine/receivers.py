"""A real HTTP receiver of webhooks on loopback, which misbehaves as it is told, and an outbox on virtual time."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lapse.engine.journal.outbox import Outbox, WebhookLoop
from lapse.engine.journal.port import Entry, Outcome
from lapse.engine.journal.webhook import Receiver, Webhook

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from lapse.core.clock import VirtualClock
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.coordinator import Loop
    from lapse.engine.running.metrics import Metrics

    Answer = Callable[["Delivery", asyncio.StreamWriter], Awaitable[None]]

SECRET = "whsec_" + "bGFwc2UtdGVzdC1zZWNyZXQtMDAwMDAx"
NS = 1_000_000_000
PATIENCE = 20.0


@dataclass(frozen=True)
class Delivery:
    """One request as it came."""

    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def subject(self) -> str:
        return str(self.event.get("subject", ""))


def says(status: int, *lines: str, body: bytes = b"") -> Answer:
    head = "".join(f"{line}\r\n" for line in (*lines, f"Content-Length: {len(body)}"))

    async def answer(delivery: Delivery, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + body)

    return answer


async def hangs(delivery: Delivery, writer: asyncio.StreamWriter) -> None:
    await asyncio.get_running_loop().create_future()


async def cuts(delivery: Delivery, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Le")
    writer.close()


async def babbles(delivery: Delivery, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")


async def floods(delivery: Delivery, writer: asyncio.StreamWriter) -> None:
    """Say yes, and then more than anybody wants to hear."""
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
        await writer.drain()


async def trails_off(delivery: Delivery, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfive.")
    await asyncio.get_running_loop().create_future()


OK = says(200, body=b"thanks")


@dataclass
class Hook:
    """What receives. ``answers`` are used up first, then ``answer`` for ever."""

    answer: Answer = OK
    answers: list[Answer] = field(default_factory=list)
    got: list[Delivery] = field(default_factory=list)
    taken: list[Delivery] = field(default_factory=list)
    connections: int = 0
    at_once: int = 0
    most_at_once: int = 0
    port: int = 0
    _came: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks/lapse?team=ops"

    @property
    def subjects(self) -> list[str]:
        return [one.subject for one in self.taken]

    async def came(self, count: int) -> None:
        """Wait until so many requests have come."""
        async with asyncio.timeout(PATIENCE), self._came:
            await self._came.wait_for(lambda: len(self.got) >= count)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
                body = await reader.readexactly(int(headers["content-length"]))
                await self._take(Delivery(head[0].split()[1], headers, body), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _take(self, delivery: Delivery, writer: asyncio.StreamWriter) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            async with self._came:
                self.got.append(delivery)
                self._came.notify_all()
            answer = self.answers.pop(0) if self.answers else self.answer
            if answer is OK:
                self.taken.append(delivery)
            await answer(delivery, writer)
        finally:
            self.at_once -= 1


@asynccontextmanager
async def listening(hook: Hook, *, context: ssl.SSLContext | None = None) -> AsyncIterator[Hook]:
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            await hook.serve(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            serving.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", hook.port, ssl=context)
    hook.port = server.sockets[0].getsockname()[1]
    try:
        yield hook
    finally:
        server.close()
        for task in tuple(serving):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


@dataclass
class MemoryNotes:
    """Notes, of which a write can be made to fail, as at the moment of a crash."""

    texts: dict[str, str] = field(default_factory=dict)
    broken: bool = False

    async def read_note(self, name: str) -> str | None:
        return self.texts.get(name)

    async def list_notes(self, prefix: str) -> dict[str, str]:
        return {name: text for name, text in self.texts.items() if name.startswith(prefix)}

    async def write_note(self, name: str, text: str) -> None:
        if self.broken:
            raise KilledError
        self.texts[name] = text


class KilledError(Exception):
    """The process was killed."""


def entry(name: str, *, outcome: Outcome = Outcome.ENDED, time_ns: int = 1_700_000_000 * NS, **other: Any) -> Entry:  # noqa: ANN401 - fields
    number = other.pop("number", 0)
    values: dict[str, Any] = {
        "domain": "requests",
        "uid": f"uid-{name}",
        "version": str(number),
        "verdict": "due",
        "reason": "ttl_expired",
        "anchor_ns": None,
        "policy": "p1",
        "actor": "lapse",
    }
    return Entry(time_ns=time_ns, address=f"vcr/default/{name}", outcome=outcome, **(values | other))


@dataclass
class OutboxHarness:
    """All that a webhook loop is made of, so that it can be made again, as after a restart."""

    journal: Journal
    clock: VirtualClock
    metrics: Metrics
    folder: Path
    notes: MemoryNotes = field(default_factory=MemoryNotes)
    receivers: list[Receiver] = field(default_factory=list)

    def webhook(self, hook: Hook, **given: Any) -> Webhook:  # noqa: ANN401 - fields
        secret = self.folder / "secret"
        if not secret.exists():
            secret.write_text(SECRET)
            secret.chmod(0o600)
        values: dict[str, Any] = {"name": "ops", "url": hook.url, "secret_file": str(secret)}
        return Webhook.read(values | given)

    async def loop(self, webhook: Webhook, **given: Any) -> WebhookLoop:  # noqa: ANN401 - arguments of an outbox
        """Make a loop that has read where it goes on."""
        receiver = Receiver(webhook, clock=self.clock, user_agent="lapse/test")
        self.receivers.append(receiver)
        outbox = Outbox(self.journal, self.notes, **{"record": "r1", "source": "r1"} | given)
        return WebhookLoop(webhook, receiver, outbox, clock=self.clock, metrics=self.metrics, chance=lambda: 0.999)

    def close(self) -> None:
        for receiver in self.receivers:
            receiver.close()


async def settle(loop: Loop) -> float | None:
    """Tick until nothing is left to do at once; return the wait that is asked for."""
    for _ in range(1_000):
        wait = await loop.tick()
        if wait != 0.0:
            return wait
    raise AssertionError("it never rests")


def times(hook: Hook) -> Counter[str]:
    return Counter(one.subject for one in hook.taken)
