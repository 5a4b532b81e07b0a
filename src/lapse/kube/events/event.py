"""Events (events.k8s.io/v1): what ``kubectl describe`` shows below an object, as a value, on the wire, and read back.

Events are for people. A cluster keeps them for about an hour and may lose them, so nothing of ours is decided by one
that we wrote, and whoever has something to tell hands it to a `Recorder` and goes on: telling never waits, never fails
and is not guaranteed. `lapse.kube.events.recorder` writes to a cluster; `NO_RECORDER` is for where there is none.

Nearly all fields of an Event can never be changed; its series (how often, and when last) can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from lapse.core.timestamps import from_timestamp, to_micro_timestamp
from lapse.kube.resources import Kind, ObjectKey, ObjectMeta, Struct

if TYPE_CHECKING:
    from lapse.core.clock import UnixNs
    from lapse.kube.api.client import KubeClient
    from lapse.kube.resources import Json

CONTROLLER: Final = "lapse.dev/operator"
"""Who reports, in the column From."""
_LONGEST_NOTE: Final = 1024
"""Bytes that an API server takes."""
_LONGEST_INSTANCE: Final = 128
_LONGEST_PREFIX: Final = 200
"""Of the 253 characters of a name."""
_CUT: Final = "..."
_NO_NAMESPACE: Final = "default"
"""Where the Events of objects of the whole cluster are kept."""
_MOST: Final = 500
"""Events of one object that are read; a correlator on the other side leaves it a handful."""


class Regarding(Struct, frozen=True):
    """The object that an Event is about. Without its uid, only people who look at all Events will find it."""

    api_version: str
    kind: str
    name: str
    namespace: str | None = None
    uid: str | None = None


def about(kind: Kind[Any], meta: ObjectMeta) -> Regarding:
    """Name an object."""
    return about_key(kind, meta.key, meta.uid)


def about_key(kind: Kind[Any], key: ObjectKey, uid: str) -> Regarding:
    """Name an object that is not at hand."""
    return Regarding(api_version=kind.api_version, kind=kind.kind, name=key.name, namespace=key.namespace, uid=uid)


@dataclass(frozen=True, slots=True)
class Report:
    """What is to be told. Two equal ones are one thing that happened twice."""

    regarding: Regarding | None
    """None: the process that reports, whatever stands for it."""
    reason: str
    """One word in CamelCase, for filters."""
    action: str
    """What was done: one word, for programs."""
    note: str
    warning: bool = False


class Recorder(Protocol):
    """Tells people. Both methods return at once and never raise."""

    def record(self, report: Report) -> None:
        """Tell it."""
        ...

    def aggregate(self, report: Report, item: str) -> None:
        """Count ``item`` under this report; how many there were, and some of them, is told after a while, at once."""
        ...


class NoRecorder:
    """Tells nobody: where there are no Events, and nobody who would look for them."""

    def record(self, report: Report) -> None:
        """See `Recorder`."""

    def aggregate(self, report: Report, item: str) -> None:
        """See `Recorder`."""


NO_RECORDER: Final = NoRecorder()


# --- on the wire ------------------------------------------------------------------------------------------------------


class Series(Struct, frozen=True):
    """How often it happened so far."""

    count: int = 1
    last_observed_time: str | None = None


class EventObject(Struct, frozen=True):
    """An Event, in either of the two ways in which its time is written. Anything may be missing."""

    metadata: ObjectMeta
    regarding: Regarding | None = None
    type: str | None = None
    reason: str | None = None
    action: str | None = None
    note: str | None = None
    event_time: str | None = None
    series: Series | None = None
    reporting_controller: str | None = None
    deprecated_count: int | None = None
    deprecated_first_timestamp: str | None = None
    deprecated_last_timestamp: str | None = None

    @property
    def last_seen(self) -> UnixNs | None:
        """When it happened last; None when that cannot be read."""
        told = self.series.last_observed_time if self.series is not None else None
        return from_timestamp(told or self.deprecated_last_timestamp or self.event_time or "")


EVENT: Final = Kind("events.k8s.io/v1", "Event", "events", EventObject, status=False)


@dataclass(frozen=True, slots=True)
class Times:
    """When and how often something happened."""

    first_ns: int
    last_ns: int
    count: int = 1


def event_key(regarding: Regarding, token: str) -> ObjectKey:
    """Return where the Event is kept: beside its object, under a name that tells which one it is."""
    prefix = regarding.name.lower()[:_LONGEST_PREFIX].rstrip(".-")
    return ObjectKey(regarding.namespace or _NO_NAMESPACE, f"{prefix}.{token}")


def event_body(key: ObjectKey, report: Report, times: Times, *, regarding: Regarding, instance: str) -> Json:
    """Return a new Event."""
    body: Json = {
        "metadata": {"name": key.name, "namespace": key.namespace},
        "regarding": msgspec.to_builtins(regarding),
        "type": "Warning" if report.warning else "Normal",
        "reason": report.reason,
        "action": report.action,
        "note": clipped(report.note),
        "eventTime": to_micro_timestamp(times.first_ns),
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:_LONGEST_INSTANCE],
    }
    return {**body, "series": series(times)} if times.count > 1 else body


def series(times: Times) -> Json:
    """Return how often it happened; only for more than once."""
    return {"count": times.count, "lastObservedTime": to_micro_timestamp(times.last_ns)}


def clipped(note: str) -> str:
    """Return as much of a text as an Event takes."""
    raw = note.encode(errors="replace")
    if len(raw) <= _LONGEST_NOTE:
        return raw.decode()
    return raw[: _LONGEST_NOTE - len(_CUT)].decode(errors="ignore") + _CUT


async def events_about(client: KubeClient, namespace: str, uid: str) -> tuple[EventObject, ...]:
    """Return the Events of one object, in no order. One call; nothing is watched."""
    page = await client.list(EVENT, namespace=namespace, fields={"regarding.uid": uid}, limit=_MOST)
    return page.items
