"""Retention of the journal itself: rows that are older than ``journal_ttl`` are removed.

A loop for a leader. Rows are removed oldest first, in short transactions with a pause between them, so that nobody who
writes waits for longer than one of them. What was removed is one row of the audit for each run over the journal.

What stays, whatever its age: a row whose details name a time until which its act can be undone (`UNDO_UNTIL`), until
then, or for ever where that cannot be read; a row that a deletion budget counts. While the clock is in doubt nothing is
removed.

In a database that several machines share, the one that leads removes rows of all of them, by its own settings: those of
a folder that is no more would stay for ever otherwise. Not guaranteed: that the space is returned to the disk at once,
because databases use it for the next rows; that a process which is killed in a run has told what it removed in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from lapse.core.log import get_logger
from lapse.engine.journal.port import UNDO_UNTIL, AuditReason, audit_row

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lapse.core.clock import Clock
    from lapse.core.duration import Duration
    from lapse.engine.journal.port import DatabaseJournal, OldRow, RowPosition
    from lapse.engine.running.coordinator import Turn

NAME: Final = "journal-retention"
ADDRESS: Final = "journal"
"""What its rows are about."""
INTERVAL_SECONDS: Final = 3_600.0
BATCH: Final = 500
"""Rows of one transaction: some milliseconds, which is about what a commit takes."""
_PAUSE_SECONDS: Final = 0.02
"""Between two transactions: most of the time the database is free for others."""
_BATCHES_PER_TICK: Final = 100
_log = get_logger("lapse.engine.journal.retention")


class JournalRetention:
    """A `lapse.engine.running.coordinator.Loop`. See the module."""

    name: Final = NAME
    interval: Final = INTERVAL_SECONDS
    leader_only: Final = True
    of_engine: Final = True

    def __init__(
        self,
        journal: DatabaseJournal[Any],
        *,
        ttl: Duration,
        counted_ns: int,
        clock: Clock,
        doubt: Callable[[], Awaitable[object | None]],
        domain: str,
    ) -> None:
        """Remove what is older than ``ttl``, and than ``counted_ns``, which is how far back budgets count.

        ``doubt`` returns why the clock is not believed, None when it is. Failures are those of ``domain``.
        """
        self._journal, self._ttl, self._clock, self._doubt = journal, ttl, clock, doubt
        self._counted_ns, self.domain = counted_ns, domain
        self._proceed: Callable[[], bool] = lambda: True
        self._behind: RowPosition | None = None
        """How far this run over the journal has come; None between two of them."""
        self._removed = 0
        """What no row tells yet."""

    def begin(self, turn: Turn) -> None:
        """See `lapse.engine.running.coordinator.Steered`."""
        self._proceed, self._behind = turn.proceed, None

    async def tick(self) -> float | None:
        """Remove some batches; return at once where there are more of them."""
        if self._ttl.nanoseconds is None or await self._doubt() is not None:
            return None
        more = False
        try:
            more = await self._remove_some(self._clock.wall_ns())
        finally:
            if not more:
                await self._tell()
        return _PAUSE_SECONDS if more else None

    async def _remove_some(self, now: int) -> bool:
        """Remove batches of what is old at ``now``; return whether there may be more."""
        until = now - max(self._ttl.nanoseconds or 0, self._counted_ns)
        for _ in range(_BATCHES_PER_TICK):
            if not self._proceed():
                break
            rows = await self._journal.oldest(until_ns=until, behind=self._behind, limit=BATCH)
            ids = [row.id for row in rows if not is_needed(row, now)]
            if ids:
                self._removed += await self._journal.remove(ids)
            if len(rows) < BATCH:
                break
            self._behind = rows[-1].place
            await self._clock.sleep(_PAUSE_SECONDS)
        else:
            return True
        self._behind = None
        return False

    async def _tell(self) -> None:
        """Write down what was removed."""
        removed = self._removed
        if not removed:
            return
        _log.info("journal_rows_removed", rows=removed, ttl=str(self._ttl))
        details, now = {"rows": removed, "ttl": str(self._ttl)}, self._clock.wall_ns()
        row = audit_row(AuditReason.JOURNAL_REMOVED, address=ADDRESS, actor=NAME, time_ns=now, details=details)
        await self._journal.append(row)
        self._removed -= removed


def is_needed(row: OldRow, now: int) -> bool:
    """Whether an act can still be undone by its row; one whose details cannot be read is taken to be needed."""
    if row.details is None or UNDO_UNTIL not in row.details:
        return False
    try:
        until = msgspec.json.decode(row.details).get(UNDO_UNTIL)
    except (msgspec.MsgspecError, UnicodeError, AttributeError):
        return True
    return until is not None and (not isinstance(until, int) or isinstance(until, bool) or until > now)
