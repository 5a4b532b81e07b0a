"""Rows of a journal on the terminal of a process that stays: a `Loop` that follows the journal and logs what is new.

Only where people read the log: there every act is one line, whoever did it (a loop, a person over HTTP, a command on
the same state folder), in the order in which rows were committed. Programs have the journal itself, and the events that
they had before.

Not guaranteed: a line for a row that was written while the process stops.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from lapse.engine.journal.log import log_row
from lapse.engine.running.console import ACT_OUTCOMES, ConsoleHandler

if TYPE_CHECKING:
    from lapse.engine.journal.port import Journal, RowPosition

_PAGE: Final = 500
_AGAIN_SECONDS: Final = 0.05
"""While there are more rows than one page: others get their turn in between."""


class JournalLines:
    """See the module."""

    name: Final = "journal-lines"
    interval: Final = 1.0
    leader_only: Final = False
    of_engine: Final = True

    def __init__(self, journal: Journal, place: RowPosition, *, domain: str) -> None:
        """Begin behind a place; failures are those of ``domain``."""
        self._journal, self._place, self.domain = journal, place, domain

    @classmethod
    async def open(cls, journal: Journal, *, domain: str) -> list[JournalLines]:
        """Return what follows a journal from now on; nothing where the log is not for people."""
        handlers = [one for one in logging.getLogger().handlers if isinstance(one, ConsoleHandler)]
        if not handlers or journal.is_log:
            return []
        for one in handlers:
            one.follows_journal = True
        return [cls(journal, await journal.end(), domain=domain)]

    async def tick(self) -> float | None:
        """Log a page of new rows."""
        rows = await self._journal.entries(limit=_PAGE, after=self._place)
        for row in rows:
            if row.outcome in ACT_OUTCOMES:
                log_row(row)
        if rows:
            self._place = rows[-1].place
        return _AGAIN_SECONDS if len(rows) == _PAGE else None
