"""``GET /events``: a stream of server-sent events for live views: rows of the journal, and what has changed.

| event | id | data |
|---|---|---|
| ``hello`` | the position that the stream begins at | `HelloEvent`; first of all |
| ``row`` | its position | a row, as ``GET /journal`` shows it to the same caller |
| ``changed`` | none | `ChangedEvent`: which stores were written, by whomever |

Guarantees: who resumes with ``Last-Event-ID`` or ``after`` gets every row behind that position once, in the order of
the journal. A stream holds no rows: it reads them from the journal when its client takes them. One that takes nothing
for as long as the listener allows is ended (`lapse.web.server.connections`) and holds nobody up meanwhile. The token or
session is checked again every few seconds, and the stream ends when it would not be let in any more, or when the
process stops. A comment comes every `HEARTBEAT_SECONDS`.

Where the journal is a log, which cannot be read back, there are no rows and no positions.

Not guaranteed: that ``changed`` comes once for each change (`lapse.web.live`). That a stream ends because its browser
has forgotten the cookie of its session: a session ends with its time, or with its token.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lapse import __version__
from lapse.core.clock import Clock
from lapse.core.errors import LapseError
from lapse.core.log import get_logger
from lapse.engine.journal.log import JournalInLogError
from lapse.engine.journal.view import END, without_details
from lapse.engine.verbs.contract import JournalRequest, Verbs
from lapse.engine.verbs.events import (
    CHANGED,
    HEARTBEAT_SECONDS,
    HELLO,
    PATH,
    ROW,
    ChangedEvent,
    HelloEvent,
    write_event,
)
from lapse.engine.view import Moment
from lapse.web.api.errors import RequestError
from lapse.web.api.forms import verbs_of
from lapse.web.auth.login import Admission
from lapse.web.auth.scopes import allowed, sees_values
from lapse.web.live import CHECK_SECONDS, LiveChanges, Subscription
from lapse.web.server.security import PRINCIPAL, WITHOUT_BODY, Head, Principal

_RETRY_MS: Final = 2000
_PAGE: Final = 100
_PAGES_KEPT: Final = 64
_NS: Final = 1_000_000_000
_SILENT_NS: Final = round((HEARTBEAT_SECONDS - CHECK_SECONDS) * _NS)
"""Looked at every `CHECK_SECONDS`, so that no silence is longer than promised."""
_RESUME: Final = "last-event-id"
_log = get_logger("lapse.web.api.events")


class RowPages:
    """Pages of rows as events, written once for all streams that stand at the same place.

    A page that is not empty stays what it is: rows come behind it, never into it.
    """

    def __init__(self) -> None:
        """Keep none yet."""
        self._kept: OrderedDict[tuple[str, str | None, bool], tuple[bytes, str]] = OrderedDict()

    async def read(self, verbs: Verbs, after: str, domain: str | None, *, with_values: bool) -> tuple[bytes, str]:
        """Return the events of the rows behind a position, and where they end; raises what the journal raises."""
        known = (after, domain, with_values)
        kept = self._kept.get(known)
        if kept is not None:
            return kept
        page = await verbs.journal(JournalRequest(after=after, domain=domain, limit=_PAGE))
        rows = page.items if with_values else [*map(without_details, page.items)]
        found = b"".join(write_event(ROW, row, row.place) for row in rows), page.next or after
        if rows and after != END:
            self._kept[known] = found
            if len(self._kept) > _PAGES_KEPT:
                self._kept.popitem(last=False)
        return found


class EventStream(Response):
    """The answer to one caller: it begins with rows behind a position, and has no end of its own."""

    media_type = "text/event-stream"

    def __init__(self, request: Request, *, after: str | None, domain: str | None) -> None:
        """Begin ``after`` a position; None: with what comes from now on."""
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        state = request.app.state
        self._live: LiveChanges = state.live
        self._pages: RowPages = state.row_pages
        self._clock: Clock = state.sessions.clock
        self._verbs, self._admit = verbs_of(request), Admission(state.sessions)
        self._principal: Principal = request.scope[PRINCIPAL]
        self._route: str = request.scope["route"].path
        self._head = Head.of(request.scope)
        self._domain, self._place, self._after = domain, after or END, after
        self._has_rows = True
        self._is_behind = True
        self._checked_ns = self._spoken_ns = self._clock.monotonic_ns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write until the client goes, or may not read any more, or the process stops; raises before the first byte."""
        if scope.get(WITHOUT_BODY):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        async with self._live.subscribe(self._principal.token_id) as changes:
            begun = await self._begin()
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            writing = asyncio.create_task(self._write(send, changes, begun))
            leaving = asyncio.create_task(_left(receive))
            try:
                await asyncio.wait([writing, leaving], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (writing, leaving):
                    task.cancel()
                await asyncio.gather(writing, leaving, return_exceptions=True)
        if not writing.cancelled():
            writing.result()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self) -> bytes:
        """Return the first events, which tell the position that the stream begins at."""
        try:
            rows, place = await self._read()
        except JournalInLogError:
            if self._after is not None:
                raise
            self._has_rows, rows, place = False, b"", None
        start = place if self._after in {None, END} else self._after
        hello = HelloEvent(now=Moment(self._clock.wall_ns()), version=__version__, topics=dict(self._live.versions))
        self._move(place)
        self._is_behind = bool(rows)
        return b"retry: %d\n\n%b%b" % (_RETRY_MS, write_event(HELLO, hello, start), rows)

    async def _write(self, send: Send, changes: Subscription, begun: bytes) -> None:
        await self._put(send, begun)
        topics: frozenset[str] = frozenset()
        while not changes.closed and self._may_go_on():
            if topics:
                await self._put(send, write_event(CHANGED, ChangedEvent(topics=sorted(topics))))
            elif self._clock.monotonic_ns() - self._spoken_ns >= _SILENT_NS:
                await self._put(send, b":\n\n")
            self._is_behind = self._has_rows and (self._is_behind or "journal" in topics)
            if await self._put_rows(send):
                topics = frozenset()
                await self._clock.sleep(0)  # a long way to catch up is no reason to hold others up
            else:
                topics = await anext(changes, frozenset())

    async def _put_rows(self, send: Send) -> bool:
        """Write a page of the rows that the client has not seen; return whether there was any."""
        if not self._is_behind:
            return False
        try:
            rows, place = await self._read()
        except LapseError as error:  # it stays behind, and the next reminder or change tries again
            _log.warning("rows_unread", reason=str(error))
            return False
        self._move(place)
        self._is_behind = bool(rows)
        if rows:
            await self._put(send, rows)
        return self._is_behind

    async def _read(self) -> tuple[bytes, str]:
        with_values = sees_values(self._principal.scopes)
        return await self._pages.read(self._verbs, self._place, self._domain, with_values=with_values)

    def _move(self, place: str | None) -> None:
        self._place = place or self._place

    async def _put(self, send: Send, events: bytes) -> None:
        await send({"type": "http.response.body", "body": events, "more_body": True})
        self._spoken_ns = self._clock.monotonic_ns()

    def _may_go_on(self) -> bool:
        """Whether the caller would still be let in; looked up every `CHECK_SECONDS`, like any other request."""
        now = self._clock.monotonic_ns()
        if now - self._checked_ns < CHECK_SECONDS * _NS:
            return True
        self._checked_ns = now
        try:
            self._principal = self._admit(self._head)
        except RequestError:
            return False
        return allowed(self._principal.scopes, self._head.method, self._route, None)


async def _left(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


_EXAMPLE: Final = """\
retry: 2000

event: hello
id: 0.41.0
data: {"now":"2026-01-31T02:00:00Z","version":"1.0.0","topics":{"journal":1769824800000,"objects":1769824800000}}

event: changed
data: {"topics":["journal","objects"]}

"""
_DESCRIBED: Final[dict[str, Any]] = {
    "parameters": [
        {
            "name": "Last-Event-ID",
            "in": "header",
            "schema": {"type": "string"},
            "description": "The id of the last event that was seen: the stream goes on behind it. Wins over after",
        }
    ]
}
"""The framework does not see a header that a route reads itself."""
_ANSWERED: Final[dict[str, Any]] = {
    "description": "Server-sent events: hello, row and changed",
    "content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE}},
}

router = APIRouter(tags=["events"])


@router.get(
    PATH,
    operation_id="events",
    summary="Live events",
    responses={200: _ANSWERED},
    openapi_extra=_DESCRIBED,
    response_class=Response,
)
async def events(
    request: Request,
    domain: Annotated[str | None, Query(description="Rows of this domain only")] = None,
    after: Annotated[
        str | None, Query(description="Rows behind this position, which an id or the place of a row is")
    ] = None,
) -> Response:
    """Follow rows of the journal as they are written, and be told which stores change; it does not end by itself."""
    return EventStream(request, after=request.headers.get(_RESUME) or after, domain=domain)
