"""Noting: a row for every change of a verdict, and none for every look.

What was last written about an object is remembered, and read from the journal where it is not: so a restart, another
leader or a full memory does not write the same news again. Part of a journal, whichever database it lives in.

Not guaranteed: two processes that look at one object at the same time may both write the news, or, when they take
turns, leave one out.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lapse.engine.journal.port import Entry, Journal

_REMEMBERED: Final = 100_000
_Who = tuple[str, str]
_News = tuple[str, str, str]


class Noting:
    """The news of one journal, which calls `forget` for every row that it writes."""

    def __init__(self, journal: Journal, *, remembered: int = _REMEMBERED) -> None:
        """Remember what was said about this many objects; the oldest are looked up when they are needed again."""
        self._journal = journal
        self._remembered = remembered
        self._last: OrderedDict[_Who, _News | None] = OrderedDict()

    async def note(self, entry: Entry, *, unless_first: bool) -> bool:
        """See `Journal.note`."""
        last = await self._last_of(entry)
        if last == _news(entry) or (last is None and unless_first):
            return False
        await self._journal.append(entry)
        self._keep((entry.domain, entry.uid), _news(entry))
        return True

    def forget(self, entry: Entry) -> None:
        """Drop what is known about the object of a row that is being written."""
        self._last.pop((entry.domain, entry.uid), None)

    async def _last_of(self, entry: Entry) -> _News | None:
        who = (entry.domain, entry.uid)
        if who in self._last:
            return self._last[who]
        rows = await self._journal.entries(domain=entry.domain, uid=entry.uid, limit=1)
        return self._keep(who, _news(rows[0]) if rows else None)

    def _keep(self, who: _Who, news: _News | None) -> _News | None:
        self._last[who] = news
        self._last.move_to_end(who)
        if len(self._last) > self._remembered:
            self._last.popitem(last=False)
        return news


def _news(entry: Entry) -> _News:
    return entry.verdict, str(entry.reason), entry.outcome
