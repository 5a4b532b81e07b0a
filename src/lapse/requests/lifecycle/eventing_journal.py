"""A journal whose rows also become Kubernetes Events, few of them however many rows there are.

Deletions are never one Event each. Those of requests are tallied on their namespace, where somebody who misses a
request looks; those of keepers, which have no namespace, on the object that stands for the operator. That something
due is held is told on the object itself, when the journal notes it as a change, and not at every look.

For journals beside the objects. A row that is written in the transaction of a deletion (`writer`) tells nobody: where
that is possible there are no Events.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, Unpack

from lapse.core.decision import DueReason, UnknownReason
from lapse.core.timestamps import to_timestamp
from lapse.engine.journal.port import Outcome
from lapse.kube.events.event import Regarding, Report, about_key
from lapse.requests.addresses import PlaceError, locate
from lapse.requests.api.kinds import OBJECT_KEEPER, REQUEST_KINDS
from lapse.requests.lifecycle.events import EventAction, EventReason, held, invalid_ttl
from lapse.requests.lifecycle.keeper import KeeperReason
from lapse.requests.schedules.retention import ScheduledRunReason

if TYPE_CHECKING:
    from lapse.engine.journal.port import Entry, HasDatabase, Journal, Row, RowFilters, RowPosition, Writer
    from lapse.kube.events.event import Recorder
    from lapse.requests.addresses import Located

_REASONS: Final = {
    DueReason.TTL_EXPIRED.value: EventReason.TIME_TO_LIVE_EXPIRED,
    KeeperReason.FOLLOWED_LOST.value: EventReason.FOLLOWED_OBJECT_LOST,
    ScheduledRunReason.SUPERSEDED.value: EventReason.SUPERSEDED,
}
_NOTES: Final = {
    EventReason.TIME_TO_LIVE_EXPIRED: "deleted because their TTL was over",
    EventReason.FOLLOWED_OBJECT_LOST: "deleted because what they followed is gone",
    EventReason.SUPERSEDED: "deleted because newer runs of their schedule have taken their places",
}


class EventingJournal:
    """See the module; a `lapse.engine.journal.port.Journal` around another one."""

    def __init__(self, journal: Journal, recorder: Recorder) -> None:
        """Write to ``journal``, and tell ``recorder``."""
        self._journal, self._recorder = journal, recorder

    async def append(self, *entries: Entry) -> None:
        """See `Journal`."""
        await self._journal.append(*entries)
        for entry in entries:
            self._tell(entry)

    async def note(self, entry: Entry, *, unless_first: bool = False) -> bool:
        """See `Journal`."""
        is_change = await self._journal.note(entry, unless_first=unless_first)
        if is_change:
            self._tell(entry)
        return is_change

    async def entries(
        self,
        *,
        limit: int = 100,
        before: RowPosition | None = None,
        after: RowPosition | None = None,
        **asked: Unpack[RowFilters],
    ) -> list[Row]:
        """See `Journal`."""
        return await self._journal.entries(limit=limit, before=before, after=after, **asked)

    async def end(self) -> RowPosition:
        """See `Journal`."""
        return await self._journal.end()

    async def unfinished(self, *, limit: int = 100) -> list[Row]:
        """See `Journal`."""
        return await self._journal.unfinished(limit=limit)

    def writer(self, *entries: Entry) -> Writer:
        """See `Journal`."""
        return self._journal.writer(*entries)

    @property
    def is_log(self) -> bool:
        """See `Journal`."""
        return self._journal.is_log

    def shares(self, store: HasDatabase) -> bool:
        """See `Journal`."""
        return self._journal.shares(store)

    def _tell(self, entry: Entry) -> None:
        if entry.outcome is Outcome.ENDED:
            report = _deletions(entry.address.rpartition("/")[0], str(entry.reason))
            if report is not None:
                self._recorder.aggregate(report, entry.address)
            return
        if entry.outcome not in {Outcome.HELD, Outcome.NOTED}:
            return
        try:
            place = locate(entry.address)
        except PlaceError:  # a row of another domain
            return
        if entry.outcome is Outcome.HELD:
            self._recorder.record(_held(entry, place))
        elif entry.reason == UnknownReason.INVALID_TTL:
            self._recorder.record(invalid_ttl(about_key(place.kind, place.key, entry.uid)))


@lru_cache(maxsize=1_024)
def _deletions(collection: str, why: str) -> Report | None:
    """Return what the deletions in a collection (an address without its name) are tallied as; None for nothing.

    Remembered, because they come by the thousand.
    """
    reason = _REASONS.get(why)
    try:
        place = locate(f"{collection}/any")
    except PlaceError:  # a row of another domain
        return None
    namespace = place.key.namespace
    if reason is None:
        return None
    if place.kind in REQUEST_KINDS and namespace is not None:
        # Events of a namespace are kept in it. Its uid would cost a call, and helps nobody to find them.
        where = Regarding(api_version="v1", kind="Namespace", name=namespace, namespace=namespace)
        return Report(where, reason, EventAction.DELETE, f"requests {_NOTES[reason]}")
    if place.kind is OBJECT_KEEPER:
        return Report(None, reason, EventAction.DELETE, f"keepers {_NOTES[reason]}")
    return None


def _held(entry: Entry, place: Located) -> Report:
    details = entry.details or {}
    until = details.get("until_ns")
    regarding = about_key(place.kind, place.key, entry.uid)
    return held(regarding, why=str(details.get("hold") or ""), until=None if until is None else to_timestamp(until))


if TYPE_CHECKING:
    _conforms: type[Journal] = EventingJournal
