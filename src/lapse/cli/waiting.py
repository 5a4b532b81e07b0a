"""Waiting with an end in time: for requests and workspaces to become what was asked for, and for changes to print.

Nothing is decided here; what is waited for was asked for before. Requests are followed: what was there is reported
first, then every change after it, and if the store no longer keeps the changes since, what is there is reported again.
Changes of one kind come in their order; those of two kinds that happen at nearly the same moment may cross. A workspace
is looked at a few times a second: stores and servers answer that from memory, and no store can tell of changes across
machines.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from lapse.cli.output import stderr
from lapse.core.errors import LapseError, UsageError

if TYPE_CHECKING:
    from lapse.cli.context import Context
    from lapse.cli.workspaces import WorkspacePlace
    from lapse.engine.plans.plan import Plan
    from lapse.engine.verbs.contract import AppliedItem, AppliedPlan, Verbs
    from lapse.kube.resources import Event, Kind
    from lapse.requests.addresses import Located
    from lapse.requests.view import ObjectView
    from lapse.workspaces.view import WorkspaceView

_LOOK_SECONDS: Final = 0.2
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


# --- plans ------------------------------------------------------------------------------------------------------------


async def applied_when_due(verbs: Verbs, plan: Plan) -> AppliedPlan:
    """Carry out a plan, each item at its own deadline; return what came of each, the last time it was tried.

    It ends when nothing is left that may still become due before the plan expires.
    """
    from lapse.core.clock import SystemClock
    from lapse.engine.plans.planner import NOT_DUE
    from lapse.engine.verbs.contract import AppliedPlan, ApplyRequest

    clock = SystemClock()
    done: dict[str, AppliedItem] = {}
    left: list[str] | None = None
    while True:
        came = await verbs.apply(ApplyRequest(plan=plan, only=left))
        done |= {one.address: one for one in came.items}
        waits = [one for one in came.items if one.outcome == NOT_DUE and one.due_at is not None]
        moments = sorted(one.due_at for one in waits if one.due_at is not None and one.due_at < plan.expires_at)
        if not moments:
            items = [done[one.address] for one in plan.items]
            ended = sum(one.outcome == "ended" for one in items)
            return AppliedPlan(plan=plan.id, items=items, ended=ended, left=_left(items))
        left = [one.address for one in waits]
        await clock.sleep(max(0.2, (moments[0] - clock.wall_ns()) / 1e9 + 0.01))


def _left(items: Sequence[AppliedItem]) -> int:
    return sum(one.outcome not in {"ended", "gone"} for one in items)


# --- requests ---------------------------------------------------------------------------------------------------------


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
    view: ObjectView


def _what(event: Event[Any]) -> What:
    """Say what a change of the store is for people."""
    from lapse.kube.resources import EventType

    known = {EventType.ADDED: What.APPEARED, EventType.MODIFIED: What.CHANGED, EventType.DELETED: What.GONE}
    return known[event.type]


async def follow(
    context: Context, kinds: Sequence[Kind[Any]], namespace: str | None, report: Callable[[ObjectChange], None]
) -> None:
    """Report what is there and then what happens, for ever; kinds without namespaces are always included."""
    await asyncio.gather(
        *(_follow_kind(context, kind, namespace if kind.namespaced else None, report) for kind in kinds)
    )


async def _follow_kind(
    context: Context, kind: Kind[Any], namespace: str | None, report: Callable[[ObjectChange], None]
) -> None:
    while True:
        page = await context.store.list(kind, namespace=namespace)
        for one in page.items:
            report(ObjectChange(What.THERE, kind, one, context.object_view(kind, one)))
        async for event in _changes(context, kind, namespace, page.resource_version):
            report(ObjectChange(_what(event), kind, event.object, context.object_view(kind, event.object)))


async def _changes(context: Context, kind: Kind[Any], namespace: str | None, since: str) -> AsyncIterator[Event[Any]]:
    """Give every change; ends when the store no longer keeps the changes since the last one."""
    from lapse.kube.errors import GoneError

    with suppress(GoneError):
        while True:
            async for event in context.store.watch(kind, namespace=namespace, since=since):
                since = event.resource_version
                if event.object is not None:
                    yield event


async def _states(context: Context, place: Located) -> AsyncIterator[Any]:
    """Give an object as it is and as it becomes, None while it is not there."""
    from lapse.kube.resources import EventType
    from lapse.requests.view import read_or_none

    while context.is_remote:
        yield await read_or_none(context.store, place.kind, place.key)
        await context.machine.sleep(_LOOK_SECONDS)
    while True:
        page = await context.store.list(place.kind, namespace=place.key.namespace)
        yield next((one for one in page.items if one.metadata.key == place.key), None)
        async for event in _changes(context, place.kind, place.key.namespace, page.resource_version):
            if event.object is not None and event.object.metadata.key == place.key:
                yield None if event.type is EventType.DELETED else event.object


async def until_ready(context: Context, place: Located, limit: str) -> ObjectView:
    """Return the state of an object once it is known whether it is ready."""
    seconds = timeout_seconds(limit)
    await context.store.get(place.kind, place.key)  # says so when it is not there
    try:
        async with asyncio.timeout(seconds):
            async for state in _states(context, place):
                if state is None:
                    raise GoneMeanwhileError(address=place)
                view = context.object_view(place.kind, state)
                if view.ready is not None:
                    return view
    except TimeoutError:
        pass
    raise StillWaitingError(address=place, state="not ready", timeout=limit, hint=await _request_hint(context, place))


async def until_gone(context: Context, place: Located, limit: str) -> bool:
    """Return when an object is not there, or not any more; whether it was there at first."""
    was_there = False
    try:
        async with asyncio.timeout(timeout_seconds(limit)):
            async for state in _states(context, place):
                if state is None:
                    return was_there
                was_there = True
    except TimeoutError:
        pass
    raise StillWaitingError(address=place, state="still there", timeout=limit, hint=await _request_hint(context, place))


async def _request_hint(context: Context, place: Located) -> str:
    """Say what may be the matter: a request that nobody has touched is one that nobody looks at."""
    from lapse.requests.view import keeper_of, read_or_none

    running = f"Is lapse up running with --state-dir {context.name}?"
    found = await read_or_none(context.store, place.kind, place.key)
    if found is None or await keeper_of(context.store, place.kind, found.metadata.uid) is None:
        return running
    return f"It goes on by itself; look with lapse requests show {place}."


# --- workspaces -------------------------------------------------------------------------------------------------------


class WantedOtherwiseError(LapseError):
    """{address} will not be {waited}: meanwhile {by} set the wanted state to {wanted}. Nothing was done about it."""


class DeletedMeanwhileError(LapseError):
    """{address} was deleted before it was {waited}."""


async def until_as_wanted(place: WorkspacePlace, asked: WorkspaceView, limit: str) -> WorkspaceView:
    """Return the workspace when it is in the state that was asked for, or has an error, which is for the caller."""
    from lapse.workspaces.model import Operation

    def settled(found: WorkspaceView | None) -> bool:
        if found is None or found.deleted_at is not None:
            raise DeletedMeanwhileError(address=asked.address, waited=asked.desired_state)
        if found.desired_state != asked.desired_state:
            waited, wanted, by = asked.desired_state, found.desired_state, found.desired_by
            raise WantedOtherwiseError(address=asked.address, waited=waited, wanted=wanted, by=by)
        arrived = found.observed_status == asked.desired_state
        return found.error_reason is not None or (arrived and found.operation == Operation.NONE)

    return await _until(place, asked, settled, limit=limit, goal=asked.desired_state) or asked


async def until_removed(place: WorkspacePlace, deleted: WorkspaceView, limit: str) -> None:
    """Return when nothing is left of a workspace that was deleted, or it rests in the trash.

    An error is tried again, so it is waited out. Not on a server, which does not tell of what was deleted.
    """
    from lapse.workspaces.model import ObservedStatus, Operation

    def settled(found: WorkspaceView | None) -> bool:
        if found is None or found.trash_until is None:
            return found is None
        return found.observed_status == ObservedStatus.PENDING and found.operation == Operation.NONE

    goal = "gone" if deleted.trash_until is None else "in the trash"
    await _until(place, deleted, settled, limit=limit, goal=goal)


async def _until(
    place: WorkspacePlace,
    asked: WorkspaceView,
    settled: Callable[[WorkspaceView | None], bool],
    *,
    limit: str,
    goal: str,
) -> WorkspaceView | None:
    seconds, console, found = timeout_seconds(limit), stderr(), await place.look(asked)
    told = f"Waiting for {asked.address} to be {goal}"
    with console.status(told) if console.is_terminal else nullcontext() as shown:
        try:
            async with asyncio.timeout(seconds):
                while not settled(found):
                    if shown is not None and found is not None:
                        shown.update(f"{told}: {_state(found)}")
                    await place.clock.sleep(_LOOK_SECONDS)
                    found = await place.look(asked)
                return found
        except TimeoutError:
            pass
    state = "gone" if found is None else _state(found)
    raise StillWaitingError(
        address=asked.address,
        state=f"{state} and not {goal}",
        timeout=limit,
        hint=_workspace_hint(place.context, asked, found),
    )


def _state(found: WorkspaceView) -> str:
    """Say what is seen, and what is being done about it."""
    from lapse.workspaces.model import Operation

    busy = "" if found.operation == Operation.NONE else f" ({found.operation})"
    return f"{found.observed_status}{busy}"


def _workspace_hint(context: Context | None, asked: WorkspaceView, found: WorkspaceView | None) -> str:
    """Say what may be the matter: a workspace that nobody has touched is one that nobody looks at."""
    from lapse.app.workspaces import FOLDER, node_of
    from lapse.workspaces.model import Operation
    from lapse.workspaces.runtime.process import is_hosted
    from lapse.workspaces.view import problem_words

    if found is not None and found.error_reason is not None:
        return f"The last try failed ({found.error_reason}): {found.error_message}. It is tried again."
    where = "" if asked.node_id is None else f" on {asked.node_id}"
    if context is not None:
        if asked.node_id in {None, node_of(context.settings)}:
            folder, where = context.settings.state_dir, ""
            if not is_hosted(folder / FOLDER):
                return f"No lapse up runs here with the state folder {folder}: start it, and it goes on."
        untouched = found is not None and found.operation == Operation.NONE and found.observed_at == asked.observed_at
        if untouched:
            return f"Is lapse up running{where}, with the same database_url?"
    told = problem_words(found) if found is not None else ""
    return told or f"It goes on by itself, as long as lapse up runs{where}."
