"""Workspaces on the dashboard: state, use and next step of each in plain words.

The words are made by functions of a row, a signal and the time. A store that cannot be read is part of the page, not an
error; so is activity that does not answer.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lapse.core.duration import short
from lapse.core.errors import LapseError
from lapse.workspaces.activity.port import Activity, ActivityUnavailableError, Connected, Quiet, Signal, Timer
from lapse.workspaces.model import Ms, ObservedStatus, Workspace, WorkspaceId
from lapse.workspaces.store.port import WorkspaceStore
from lapse.workspaces.view import in_words, next_words, problem_words, view_of, without_values


def span(seconds: float) -> str:
    """Print a length of time, finer than `short` where that matters: 224 ms, 2.5 s; then 45s, 3m20s, 12d3h."""
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))} ms"
    if seconds < 10:  # noqa: PLR2004 - from ten seconds on nobody reads tenths
        return f"{seconds:.1f} s"
    return short(int(seconds) * 1_000_000_000)


MOST: Final = 100
"""Shown at most, by name; the command line lists all."""
_MOST_OF_AN_ERROR: Final = 300


@dataclass(frozen=True, slots=True)
class WorkspaceLine:
    """One workspace."""

    name: str
    state: str
    mood: str
    """good, bad or quiet."""
    in_use: str
    next: str
    problem: str | None
    """What is wrong with it."""
    failed: bool
    openable: bool = True
    """Whether the caller can open it."""


@dataclass(frozen=True, slots=True)
class Overview:
    """What the page tells of workspaces."""

    lines: Sequence[WorkspaceLine] = ()
    more: bool = False
    problem: str | None = None
    """Why the store could not be read."""


async def overview(
    store: WorkspaceStore, activity: Activity | None, *, now: Ms, openable: Container[str], with_values: bool = True
) -> Overview:
    """Look at the first workspaces, and who is connected to them; ``openable`` are owners.

    Without values nothing is shown that an owner or a program has written, but names.
    """
    try:
        found = await store.list(limit=MOST + 1)
    except LapseError as error:
        return Overview(problem=str(error))
    signals = await _signals(activity, [one.id for one in found if one.observed_status is ObservedStatus.RUNNING])
    lines = [
        line(one, signals.get(one.id), now, openable=one.owner in openable, with_values=with_values)
        for one in found[:MOST]
    ]
    return Overview(lines, len(found) > MOST)


async def _signals(activity: Activity | None, running: Sequence[WorkspaceId]) -> Mapping[WorkspaceId, Signal]:
    if activity is None or not running:
        return {}
    try:
        return await activity.read(running)
    except ActivityUnavailableError:
        return {}


def line(
    workspace: Workspace, signal: Signal | None, now: Ms, *, openable: bool = True, with_values: bool = True
) -> WorkspaceLine:
    """Say how one is. ``signal`` is None where nobody could be asked."""
    failed = workspace.error_reason is not None
    running = workspace.observed_status is ObservedStatus.RUNNING
    view = view_of(workspace, now)
    told = problem_words(view if with_values else without_values(view))
    return WorkspaceLine(
        name=workspace.name,
        state=in_words(workspace),
        mood="bad" if failed or workspace.awaits_restart else "good" if running else "quiet",
        in_use=_in_use(signal) if running else "",
        next=next_words(view, signal, now * 1_000_000, length=lambda nanoseconds: span(nanoseconds / 1e9)),
        problem=f"{told[:_MOST_OF_AN_ERROR]}..." if len(told) > _MOST_OF_AN_ERROR else told or None,
        failed=failed,
        openable=openable,
    )


def _in_use(signal: Signal | None) -> str:
    match signal:
        case Connected(count=count):
            return "1 connection" if count == 1 else f"{count} connections"
        case Timer():
            return "until a moment ago"
        case Quiet():
            return "no connections"
        case _:
            return "not known yet"
