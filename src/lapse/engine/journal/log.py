"""A journal without a database: every row is one log event, ``journal``, whose keys are those of an `Entry`.

For a process that has no database of its own, such as an operator in a cluster: whoever collects its log has the
journal. Intents and outcomes are both written, as by any journal that does not share a database with the objects. Rows
are written at any log level: a journal that a setting for something else turns off is none.

A row that cannot be written raises where the log is written as JSON, so an intent that is lost prevents its act.

Not guaranteed, and not possible here: that a row is durable before the act, because the log is not ours; that anything
can be read back (`LogJournal.entries` refuses); that the same change is not written again after a restart or by
the next leader, because what was last said about an object is kept in memory, for a bounded number of them.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Unpack

from msgspec.structs import asdict
from structlog.contextvars import get_contextvars

from lapse.core.errors import LapseError
from lapse.engine.journal.port import Entry, Outcome, noted_verdict
from lapse.engine.running.logs import JSONHandler

if TYPE_CHECKING:
    from lapse.engine.journal.port import HasDatabase, Journal, NotedVerdict, Row, RowFilters, RowPosition, Writer

LOGGER: Final = "lapse.journal"
_REMEMBERED: Final = 100_000
_OVER: Final = frozenset({Outcome.ENDED, Outcome.GONE})
_NS: Final = 1_000_000_000
_logger: Final = logging.getLogger(LOGGER)


class LogHasNoTransactionsError(LapseError):
    """A journal in the log cannot be written in a transaction."""


class JournalInLogError(LapseError):
    """The journal of this place is its log, which Lapse writes and cannot read.

    Look for the event journal where the log is collected; or set database_url, and the journal is kept in that
    database.
    """


class LogJournal:
    """See the module."""

    is_log: Final = True

    def __init__(self, *, remembered: int = _REMEMBERED) -> None:
        """Remember what was last said about this many objects."""
        _logger.setLevel(logging.INFO)
        self._remembered = remembered
        self._last: OrderedDict[tuple[str, str], NotedVerdict] = OrderedDict()

    async def append(self, *entries: Entry) -> None:
        """See `Journal`; but how durable a row is, is a matter of the log."""
        for entry in entries:
            log_row(entry)
            self._remember(entry)

    async def note(self, entry: Entry, *, unless_first: bool = False) -> bool:
        """See `Journal`; the last row is the last one of this process."""
        last = self._last.get((entry.domain, entry.uid))
        if last == noted_verdict(entry) or (last is None and unless_first):
            return False
        await self.append(entry)
        return True

    async def entries(
        self,
        *,
        limit: int = 100,
        before: RowPosition | None = None,
        after: RowPosition | None = None,
        **asked: Unpack[RowFilters],
    ) -> list[Row]:
        """Refuse: the rows are in the log, where this process cannot read them. Raises `JournalInLogError`."""
        raise JournalInLogError

    async def end(self) -> RowPosition:
        """Refuse, as `entries` does."""
        raise JournalInLogError

    async def unfinished(self, *, limit: int = 100) -> list[Row]:
        """Refuse, as `entries` does; in the log they are the intents whose ``attempt`` comes only once."""
        raise JournalInLogError

    def writer(self, *entries: Entry) -> Writer:
        """Refuse: see `shares`."""
        raise LogHasNoTransactionsError

    def shares(self, store: HasDatabase) -> bool:
        """Return False: a log shares a database with nobody."""
        return False

    def _remember(self, entry: Entry) -> None:
        who = (entry.domain, entry.uid)
        self._last.pop(who, None)
        if entry.outcome in _OVER:
            return
        self._last[who] = noted_verdict(entry)
        if len(self._last) > self._remembered:
            self._last.popitem(last=False)


def log_row(entry: Entry) -> None:
    """Log a row like any event; straight to the handler where it is ours and the only one."""
    fields = {**get_contextvars(), **asdict(entry)}
    handlers = logging.root.handlers
    if len(handlers) == 1 and isinstance(handlers[0], JSONHandler) and not _logger.handlers:
        handlers[0].write("journal", fields, logger=LOGGER, created=entry.time_ns / _NS)
        return
    # Without the search for who called: that costs more than all the rest of it.
    record = _logger.makeRecord(LOGGER, logging.INFO, "", 0, "journal", (), None)
    record.__dict__.update(fields)
    _logger.handle(record)


if TYPE_CHECKING:
    _conforms: type[Journal] = LogJournal
