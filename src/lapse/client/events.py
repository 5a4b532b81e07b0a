"""Events of a running Lapse, over one connection after another: rows of the journal, and which stores have changed.

Guarantees: rows come once and in the order of the journal, also when connections are lost or the server is started
again, as long as the journal still has them. Between connections there are pauses that grow. A stream that is silent
for longer than a server ever is counts as lost.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec

from lapse.client.calls import SUCCESS
from lapse.client.errors import AnswerMissingError, NotLapseError, NotTextError, ServerUnreachableError
from lapse.client.transport import NOT_NOW, ServerAnswer
from lapse.core.jitter import backoff
from lapse.engine.journal.view import JournalRowView
from lapse.engine.verbs.events import CHANGED, HEARTBEAT_SECONDS, HELLO, PATH, ROW, ChangedEvent, HelloEvent, RowEvent
from lapse.engine.verbs.operations import API
from lapse.engine.view import decode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from lapse.client.calls import ApiCalls
    from lapse.client.transport import ServerStream, ServerTransport

LiveEvent = RowEvent | ChangedEvent
T = TypeVar("T")
_ATTEMPTS: Final = 3
"""To reach a server that was never reached."""
_LONGEST_PAUSE: Final = 10.0
_SILENCE_SECONDS: Final = 3 * HEARTBEAT_SECONDS
_MOST_BYTES: Final = 64 << 20
_MOST_ERROR_BYTES: Final = 1 << 20


class WrittenEvent(NamedTuple):
    """An event as it stands in a stream."""

    name: str
    position: str | None
    data: bytes


class EventParser:
    """Takes a stream apart as its pieces come; what is no event is passed over."""

    def __init__(self) -> None:
        """Nothing has come yet."""
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[WrittenEvent]:
        """Take a piece; return the events that are complete."""
        *blocks, self._rest = (self._rest + piece).split(b"\n\n")
        for block in blocks:
            fields = dict(_field(line) for line in block.split(b"\n"))
            if b"event" in fields and b"data" in fields:
                position = fields.get(b"id")
                name = fields[b"event"].decode("ascii", "replace")
                yield WrittenEvent(name, None if position is None else position.decode("ascii"), fields[b"data"])

    @property
    def waiting(self) -> int:
        """How many bytes of an event have come that is not complete."""
        return len(self._rest)


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name, value.removeprefix(b" ")


async def follow(
    transport: ServerTransport, calls: ApiCalls, *, domain: str | None, after: str | None
) -> AsyncGenerator[LiveEvent, None]:
    """See `lapse.client.aio.AsyncClient.events`."""
    following = _Following(transport, calls, domain=domain, after=after)
    attempt = 0
    while True:
        try:
            async with aclosing(following.connection()) as found:
                async for event in found:
                    attempt = 0
                    if event is not None:
                        yield event
        except (ServerUnreachableError, AnswerMissingError):
            if not following.was_there and attempt == _ATTEMPTS - 1:
                raise
        await transport.clock.sleep(backoff(attempt, first=0.2, longest=_LONGEST_PAUSE))
        attempt += 1


class _Following:
    """What is remembered from connection to connection."""

    def __init__(self, transport: ServerTransport, calls: ApiCalls, *, domain: str | None, after: str | None) -> None:
        self._transport, self._calls = transport, calls
        self._domain, self._after = domain, after
        self.was_there = False

    async def connection(self) -> AsyncGenerator[LiveEvent | None, None]:
        """Yield what comes over one connection; None for what is nobody's business."""
        async with self._transport.stream(self._target(), {"Accept": "text/event-stream"}) as stream:
            await self._demand_stream(stream)
            parser = EventParser()
            while piece := await stream.read(_SILENCE_SECONDS):
                for written in parser.feed(piece):
                    yield self._read(written)
                if parser.waiting > _MOST_BYTES:
                    raise self._not_lapse("an event is too large")

    def _target(self) -> str:
        given = {"domain": self._domain, "after": self._after}
        try:
            query = urlencode({name: value for name, value in given.items() if value is not None})
        except UnicodeEncodeError as error:
            raise NotTextError from error
        return f"{API}{PATH}?{query}" if query else f"{API}{PATH}"

    async def _demand_stream(self, stream: ServerStream) -> None:
        """Raise what the server says, unless it has begun a stream."""
        if stream.status in SUCCESS:
            return
        if stream.status in NOT_NOW:
            raise AnswerMissingError(server=self._transport.server, problem=f"its status is {stream.status}")
        told = b""
        while (piece := await stream.read(self._transport.limits.read)) and len(told) < _MOST_ERROR_BYTES:
            told += piece
        raise self._calls.error(ServerAnswer(stream.status, told))

    def _read(self, written: WrittenEvent) -> LiveEvent | None:
        if written.position is not None:
            self._after = written.position
        if written.name == ROW:
            return RowEvent(position=written.position or "", row=self._decode(written.data, JournalRowView))
        if written.name == CHANGED:
            return self._decode(written.data, ChangedEvent)
        if written.name != HELLO:
            return None
        hello, was_there = self._decode(written.data, HelloEvent), self.was_there
        self.was_there = True
        return ChangedEvent(topics=sorted(hello.topics)) if was_there else None

    def _decode(self, data: bytes, kind: type[T]) -> T:
        try:
            return decode(data, kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._not_lapse("an event has another form") from error

    def _not_lapse(self, problem: str) -> NotLapseError:
        return NotLapseError(server=self._transport.server, problem=problem)
