"""Events of live views: what a stream of server-sent events tells, as the server writes it and the client reads it.

Pure: nothing is sent or received here.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from lapse.engine.journal.view import JournalRowView
from lapse.engine.view import Moment, encode

PATH: Final = "/events"
"""Under `lapse.engine.verbs.operations.API`."""
HEARTBEAT_SECONDS: Final = 15.0
"""How long a stream is silent at most."""
HELLO: Final = "hello"
ROW: Final = "row"
CHANGED: Final = "changed"


class HelloEvent(Struct, frozen=True, kw_only=True):
    """The first event of a stream."""

    now: Moment
    version: Annotated[str, Meta(description="Of Lapse")]
    topics: Annotated[
        dict[str, int],
        Meta(description="By topic, a number that goes up with every change, and is another one after a restart"),
    ]


class RowEvent(Struct, frozen=True, kw_only=True):
    """A row that was written to the journal."""

    position: str
    """Where it stands: a stream ``after`` it begins with the next row."""
    row: JournalRowView


class ChangedEvent(Struct, frozen=True, kw_only=True):
    """Something has changed."""

    topics: Annotated[list[str], Meta(description="Of journal, objects, workspaces, keys and status")]


def write_event(name: str, data: Struct, position: str | None = None) -> bytes:
    """Return an event as it stands in a stream; JSON has no line ends, so its data are one line."""
    place = b"" if position is None else f"id: {position}\n".encode()
    return b"event: %b\n%bdata: %b\n\n" % (name.encode(), place, encode(data))
