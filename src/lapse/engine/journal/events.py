"""Events: rows of the journal as CloudEvents 1.0, in the JSON form (structured mode).

The id of an event is made of what its row says, so it is the same however often, from which process and from which
database the event is delivered: receivers that have seen it leave it out. ``source`` is the store that the thing is in,
``subject`` its address, and ``data`` the row as people see it, whose ``id`` and ``place`` are those of its database.

Not every row is an event: an intent is half of an act, whose outcome follows; what is said of deliveries themselves is
not delivered. Rows hold no secrets. Keys are never named, and nothing about them is journalled, so there are no events
about keys. Pure.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from lapse.core.timestamps import to_micro_timestamp
from lapse.engine.journal.port import AUDIT, AuditReason, Outcome, entry_values
from lapse.engine.journal.view import JournalRowView, row_view

if TYPE_CHECKING:
    from lapse.engine.journal.port import Row

CONTENT_TYPE: Final = "application/cloudevents+json"
PREFIX: Final = "dev.lapse."
"""Begins the type of every event."""
_NO_EVENTS: Final = frozenset({Outcome.INTENT, Outcome.DONE, Outcome.UNDELIVERED})
NAMES: Final = (
    *(one.value for one in Outcome if one not in _NO_EVENTS),
    *(f"{AUDIT}.{reason.value}" for reason in AuditReason),
)
"""What a webhook may ask for: the types of events without `PREFIX`."""


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event; the names of the fields are those of the specification."""

    specversion: str = "1.0"
    id: str
    source: str
    type: str
    subject: str | msgspec.UnsetType = msgspec.UNSET
    """The address; left out where a row is about a whole domain."""
    time: str
    datacontenttype: str = "application/json"
    data: JournalRowView


def event_name(row: Row) -> str | None:
    """Return the type of a row's event without `PREFIX`; None where there is none."""
    if row.domain == AUDIT:
        return f"{AUDIT}.{row.reason}"
    return None if row.outcome in _NO_EVENTS else row.outcome.value


def event_id(row: Row) -> str:
    """Return what tells the event of a row from all others."""
    return blake2b(msgspec.json.encode(entry_values(row)), digest_size=16).hexdigest()


def event_of(row: Row, *, record: str) -> CloudEvent:
    """Return the event of a row; ``record`` is the name of the record that the row is in."""
    return CloudEvent(
        id=event_id(row),
        source=f"urn:uuid:{record}",
        type=f"{PREFIX}{event_name(row)}",
        subject=row.address or msgspec.UNSET,
        time=to_micro_timestamp(row.time_ns),
        data=row_view(row),
    )


def item_of(row: Row) -> str:
    """Return what a row is about: events about the same are delivered in their order."""
    return row.uid or row.address or row.domain
