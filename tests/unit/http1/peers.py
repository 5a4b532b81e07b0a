"""Three readers of HTTP/1.1 side by side: ours, llhttp (of Node, by httptools) and h11. Each says what it sees.

A `Reading` is the messages that were complete, and how it ended: ``open`` waits for the next one, ``partial`` is in the
middle of one, ``over`` reads nothing more of this connection, because something was rejected or the connection ends.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import h11
import httptools

from lapse.http1.bodies import body_of
from lapse.http1.heads import ReceiveBuffer, RejectedError, request_head
from lapse.http1.responses import ResponseReader

if TYPE_CHECKING:
    from lapse.http1.bodies import Body

MOST_FIELDS = 100
METHODS = frozenset({b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"DELETE", b"PATCH"})
"""Those of the tests; llhttp has a list, and knows no others."""


@dataclass
class Reading:
    messages: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)
    """Method, target and body of requests; nothing, status and body of responses."""
    end: str = "open"

    @property
    def is_over(self) -> bool:
        return self.end == "over"


def disagree(ours: Reading, other: Reading) -> str:
    """Say how two parties see different messages in the same bytes; nothing if none can be slipped past one of them."""
    common = min(len(ours.messages), len(other.messages))
    if ours.messages[:common] != other.messages[:common]:
        return "the messages differ"
    if len(ours.messages) > common and not other.is_over:
        return "we see a message that the other does not"
    if len(other.messages) > common and not ours.is_over:
        return "the other sees a message that we do not"
    if len(ours.messages) == len(other.messages) and {ours.end, other.end} == {"open", "partial"}:
        return "one of us waits for the rest of a message"
    return ""


# --- requests ---------------------------------------------------------------------------------------------------------


def requests_by_us(data: bytes) -> Reading:
    """As the proxy reads them (`lapse.proxy.client_connection`)."""
    buffer, reading = ReceiveBuffer(), Reading(end="partial")
    buffer.feed(data)
    with suppress(RejectedError):
        while True:
            if reading.messages:
                buffer.skip_line_end()
            raw = buffer.take_head()
            if raw is None:
                return Reading(reading.messages, "partial" if buffer else "open")
            head = request_head(raw, most_fields=MOST_FIELDS)
            body, content = body_of(head.length), b""
            waiting = not body.done
            if waiting:
                content, waiting = _body(body, buffer.take())
            if waiting:
                return reading
            if body.rest:
                buffer.feed(body.rest)
            reading.messages.append((head.method, head.target, content))
            if head.upgrade or not head.keep:
                break
    return Reading(reading.messages, "over")


def _body(body: Body, data: bytes) -> tuple[bytes, bool]:
    """Return what belongs to the body, and whether more of it must come."""
    content = body.feed(data)
    while body.more:
        content += body.feed(b"")
    return content, not body.done


class _Events:
    """What httptools calls."""

    def __init__(self) -> None:
        self.parser: Any = None
        self.reading = Reading()
        self._target = self._body = b""

    def on_message_begin(self) -> None:
        self.reading.end, self._target, self._body = "partial", b"", b""

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        method, target = b"", self._target
        if isinstance(self.parser, httptools.HttpRequestParser):
            method = self.parser.get_method()
        else:
            target = b"%d" % self.parser.get_status_code()
        self.reading.messages.append((method, target, self._body))
        self.reading.end = "open"


def _by_llhttp(kind: type[Any], data: bytes) -> Reading:
    events = _Events()
    events.parser = kind(events)
    try:
        events.parser.feed_data(data)
    except httptools.HttpParserUpgrade:  # offered: it leaves the body to whoever decides about that
        events.reading = Reading(events.reading.messages[:-1], "over")
    except httptools.HttpParserError:
        events.reading.end = "over"
    return events.reading


def requests_by_llhttp(data: bytes) -> Reading:
    return _by_llhttp(httptools.HttpRequestParser, data)


def requests_by_h11(data: bytes) -> Reading:
    connection, reading, at_hand = h11.Connection(h11.SERVER), Reading(), [b"", b"", b""]
    connection.receive_data(data)
    with suppress(h11.RemoteProtocolError, h11.LocalProtocolError):
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                begun = connection.their_state is not h11.IDLE or connection.trailing_data[0]
                reading.end = "partial" if begun else "open"
                return reading
            if isinstance(event, h11.Request):
                at_hand = [event.method, event.target, b""]
            elif isinstance(event, h11.Data):
                at_hand[2] += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                reading.messages.append((at_hand[0], at_hand[1], at_hand[2]))
                connection.send(h11.Response(status_code=204, headers=[]))
                connection.send(h11.EndOfMessage())
                connection.start_next_cycle()
            else:
                break
    reading.end = "over"
    return reading


# --- responses to one GET ---------------------------------------------------------------------------------------------


def response_by_us(data: bytes) -> Reading:
    reader = ResponseReader(b"GET")
    try:
        content = reader.feed(data)
        ended = not reader.done and reader.end()  # nothing more comes
    except RejectedError:
        return Reading([], "over")
    if not reader.done or reader.head is None:
        return Reading([], "partial")
    return Reading([(b"", b"%d" % reader.head.status, content)], "over" if ended or not reader.keep else "open")


def response_by_llhttp(data: bytes) -> Reading:
    reading = _by_llhttp(httptools.HttpResponseParser, data)
    reading.messages = [each for each in reading.messages if not each[1].startswith(b"1")]
    return reading


def response_by_h11(data: bytes) -> Reading:
    connection, status, body = h11.Connection(h11.CLIENT), b"", b""
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    with suppress(h11.RemoteProtocolError):
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(b"")
            elif isinstance(event, h11.Response):
                status = b"%d" % event.status_code
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return Reading([(b"", status, body)], "over")
            elif not isinstance(event, h11.InformationalResponse):
                break
    return Reading([], "over")
