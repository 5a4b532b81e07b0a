"""Following objects until something happens to them, with an end in time.

Nothing is missed: what was there is reported first, then every change after it. If the store no longer keeps the
changes since, what is there is reported again. The changes of one kind come in their order; those of two kinds that
happen at nearly the same moment may cross.

Waiting for what was asked for: the options that commands share, and what is said when it takes too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

from cyclopts import Parameter

from lapse.cli.desk import Desk
from lapse.core.errors import LapseError, UsageError
from lapse.kube.errors import GoneError
from lapse.kube.resources import Event, EventType, Kind
from lapse.requests.addresses import Located
from lapse.requests.api.kinds import REQUEST_KINDS
from lapse.requests.view import Summary

Wait = Annotated[bool, Parameter(help="Wait until it is done, or has failed.", show_default=False)]
Timeout = Annotated[
    str,
    Parameter(metavar="DURATION", help="How long to wait at most; never for no limit.", allow_leading_hyphen=True),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Waiting:
    """Whether to wait for the outcome."""

    wait: Wait = False
    timeout: Timeout = "60s"

    def check(self) -> None:
        """Raise a usage error unless the timeout can be meant: before anything is asked for."""
        timeout_seconds(self.timeout)


NO_WAIT: Final = Waiting()


class StillWaitingError(LapseError):
    """{address} is {state} after {timeout}. {hint}"""  # noqa: D400 - a sentence follows


class TimeoutValueError(UsageError):
    """The timeout is {given}; expected a duration above zero, such as 30s, or never."""


def timeout_seconds(text: str) -> float | None:
    """Read a timeout; None is no end."""
    from lapse.core.duration import Duration

    duration = Duration.parse(text)
    if duration.nanoseconds is not None and duration.nanoseconds <= 0:
        raise TimeoutValueError(given=text)
    return None if duration.is_never else duration.seconds


class GoneMeanwhileError(LapseError):
    """{address} was deleted before it was ready."""


class What(StrEnum):
    """What is reported of an object."""

    THERE = "there"
    """It was there when the watch began."""
    APPEARED = "appeared"
    CHANGED = "changed"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """Something that happened to an object; of one that is gone, its last state."""

    what: What
    kind: Kind[Any]
    object: Any
    summary: Summary


_WHAT = {EventType.ADDED: What.APPEARED, EventType.MODIFIED: What.CHANGED, EventType.DELETED: What.GONE}


async def follow(
    desk: Desk, kinds: Sequence[Kind[Any]], namespace: str | None, report: Callable[[ObjectChange], None]
) -> None:
    """Report what is there and then what happens, for ever; kinds without namespaces are always included."""
    await asyncio.gather(*(_follow_kind(desk, kind, namespace if kind.namespaced else None, report) for kind in kinds))


async def _follow_kind(
    desk: Desk, kind: Kind[Any], namespace: str | None, report: Callable[[ObjectChange], None]
) -> None:
    while True:
        page = await desk.store.list(kind, namespace=namespace)
        for one in page.items:
            report(ObjectChange(What.THERE, kind, one, desk.summary(kind, one)))
        async for event in _changes(desk, kind, namespace, page.resource_version):
            report(ObjectChange(_WHAT[event.type], kind, event.object, desk.summary(kind, event.object)))


async def _changes(desk: Desk, kind: Kind[Any], namespace: str | None, since: str) -> AsyncIterator[Event[Any]]:
    """Give every change; ends when the store no longer keeps the changes since the last one."""
    with suppress(GoneError):
        while True:
            async for event in desk.store.watch(kind, namespace=namespace, since=since):
                since = event.resource_version
                if event.object is not None:
                    yield event


async def _states(desk: Desk, place: Located) -> AsyncIterator[Any]:
    """Give an object as it is and as it becomes, None while it is not there."""
    while True:
        page = await desk.store.list(place.kind, namespace=place.key.namespace)
        yield next((one for one in page.items if one.metadata.key == place.key), None)
        async for event in _changes(desk, place.kind, place.key.namespace, page.resource_version):
            if event.object is not None and event.object.metadata.key == place.key:
                yield None if event.type is EventType.DELETED else event.object


async def until_ready(desk: Desk, place: Located, limit: str) -> Summary:
    """Return the state of an object once it is known whether it is ready."""
    seconds = timeout_seconds(limit)
    await desk.read(place)  # says so when it is not there
    try:
        async with asyncio.timeout(seconds):
            async for state in _states(desk, place):
                if state is None:
                    raise GoneMeanwhileError(address=place)
                summary = desk.summary(place.kind, state)
                if summary.state.ready is not None:
                    return summary
    except TimeoutError:
        pass
    raise StillWaitingError(address=place, state="not ready", timeout=limit, hint=await _hint(desk, place))


async def until_gone(desk: Desk, place: Located, limit: str) -> bool:
    """Return when an object is not there, or not any more; whether it was there at first."""
    was_there = False
    try:
        async with asyncio.timeout(timeout_seconds(limit)):
            async for state in _states(desk, place):
                if state is None:
                    return was_there
                was_there = True
    except TimeoutError:
        pass
    raise StillWaitingError(address=place, state="still there", timeout=limit, hint=await _hint(desk, place))


async def _hint(desk: Desk, place: Located) -> str:
    """Say what may be the matter: a request that nobody has touched is one that nobody looks at."""
    running = f"Is lapse up running with --state-dir {desk.folder}?"
    found = await desk.read_or_none(place.kind, place.key)
    if found is None or place.kind not in REQUEST_KINDS or await desk.keeper_of(place, found.metadata.uid) is None:
        return running
    return f"It goes on by itself; look with lapse requests get {place}."
