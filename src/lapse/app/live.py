"""Sources of live changes: how each store of ``lapse up`` is asked whether it has changed. A composition root.

| topic | changes with |
|---|---|
| ``journal`` | every row |
| ``objects`` | every write to the object store, of any process |
| ``workspaces`` | what a person can see of a workspace (`lapse.workspaces.store.port`), and who is there: see below |
| ``keys`` | every write to a file; in memory the numbers of keys; nothing on a server, which cannot tell |
| ``status`` | leadership, a loop that begins or ceases to fail, a domain that is frozen or goes on |

Stores in files are asked when the kernel tells of a write: whether the file has another version, and only then what.
Those on a server are asked at times of their own. Who is there is told where this process counts it; Redis cannot tell.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Unpack

from lapse.engine.journal.port import Outcome
from lapse.web.live import LiveChanges, Source

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterator
    from pathlib import Path

    from lapse.core.clock import Clock
    from lapse.db.sqlite.data_version import DataVersion
    from lapse.db.sqlite.file import SQLiteFile
    from lapse.db.sqlite.writes import Writes
    from lapse.engine.journal.port import Journal, RowFilters, RowPosition
    from lapse.engine.running.coordinator import Coordinator
    from lapse.keys.port import Backend
    from lapse.objects.embedded import EmbeddedStore
    from lapse.workspaces.activity.port import Activity
    from lapse.workspaces.store.port import WorkspaceStore

_SERVER_SECONDS: Final = 0.5
_WORKSPACES_SECONDS: Final = 1.0
_STOPPING: Final = (Outcome.FROZEN, Outcome.RESUMED)
_HERE_SECONDS: Final = 0.5
_KEYS_SECONDS: Final = 2.0
"""Who is told of a change counts the keys, and that reads a file through."""


class _Rows:
    """Counts how often there were new rows of a kind: `Journal.end` may move without any."""

    def __init__(self, journal: Journal, **asked: Unpack[RowFilters]) -> None:
        self._journal, self._asked = journal, asked
        self._end: RowPosition | None = None
        self._number = 0

    async def version(self) -> int:
        before, end = self._end, await self._journal.end()
        if before is not None and end != before:
            rows = await self._journal.entries(after=before, limit=1, **self._asked)
            self._number += bool(rows)
        self._end = end
        return self._number


class _Files:
    """The files of the stores: one version for all stores that are in the same file."""

    def __init__(self) -> None:
        self._known: dict[Path, DataVersion] = {}

    def of(self, file: SQLiteFile) -> DataVersion:
        from lapse.db.sqlite.data_version import DataVersion

        return self._known.setdefault(file.path, DataVersion(file))

    def writes(self) -> Writes:
        from lapse.db.sqlite.writes import Writes

        return Writes(self._known)


def live_changes(
    *,
    journal: Journal,
    objects: EmbeddedStore,
    workspaces: WorkspaceStore | None,
    activity: Activity | None,
    keys: Backend,
    coordinator: Coordinator,
    clock: Clock,
    has_others: bool = False,
) -> LiveChanges:
    """Return what tells of changes of these stores, and of what the coordinator runs.

    ``has_others``: whether there are domains of other distributions, which nobody can ask whether they have changed.
    """
    from lapse.keys.backends.file import FileBackend

    files = _Files()
    sources = [
        *_journal_sources(journal, files),
        _object_source(objects, files),
        *([] if workspaces is None else [_workspace_source(workspaces, files)]),
        *_activity_sources(activity),
        *_key_sources(keys, files),
        Source("status", _awaited(partial(_running, coordinator))),
    ]
    # Of keys only a file tells all: the same number of keys may have other expiries.
    is_whole = isinstance(keys, FileBackend) and not has_others
    return LiveChanges(sources, clock=clock, is_whole=is_whole, writes=files.writes())


def _journal_sources(journal: Journal, files: _Files) -> Iterator[Source]:
    from lapse.engine.journal.sqlite import SQLiteJournal

    if journal.is_log:
        return
    kinds = [("journal", _Rows(journal)), *(("status", _Rows(journal, outcome=one)) for one in _STOPPING)]
    if not isinstance(journal, SQLiteJournal):
        yield from (Source(topic, rows.version, seconds=_SERVER_SECONDS, is_slow=True) for topic, rows in kinds)
        return
    written = files.of(journal.database.file)
    for topic, rows in kinds:
        yield Source(topic, rows.version, gate=written.read, close=written.close)


def _object_source(objects: EmbeddedStore, files: _Files) -> Source:
    written = files.of(objects.database.file)
    return Source("objects", _awaited(objects.last_change), gate=written.read, close=written.close)


def _workspace_source(store: WorkspaceStore, files: _Files) -> Source:
    from lapse.workspaces.store.sqlite import SqliteWorkspaceStore

    if not isinstance(store, SqliteWorkspaceStore):
        return Source("workspaces", store.fingerprint, seconds=_WORKSPACES_SECONDS, is_slow=True)
    written = files.of(store.database.file)
    return Source(
        "workspaces",
        store.fingerprint,
        gate=written.read,
        seconds=_HERE_SECONDS,
        is_slow=True,
        close=written.close,
    )


def _activity_sources(activity: Activity | None) -> Iterator[Source]:
    from lapse.workspaces.activity.in_process import InProcessActivity

    if isinstance(activity, InProcessActivity):
        yield Source("workspaces", _awaited(activity.fingerprint), seconds=_HERE_SECONDS)


def _key_sources(backend: Backend, files: _Files) -> Iterator[Source]:
    from lapse.keys.backends.base import EmbeddedBackend
    from lapse.keys.backends.file import FileBackend

    if isinstance(backend, FileBackend):
        written = files.of(backend.file)
        yield Source("keys", _awaited(written.read), seconds=_KEYS_SECONDS, close=written.close)
    elif isinstance(backend, EmbeddedBackend):
        yield Source("keys", _awaited(lambda: tuple(backend.counts())), seconds=_KEYS_SECONDS)


def _running(coordinator: Coordinator) -> Hashable:
    return coordinator.leading, tuple(loop.last_error for loop in coordinator.loops())


def _awaited(read: Callable[[], Hashable]) -> Callable[[], Awaitable[Hashable]]:
    async def version() -> Hashable:
        return read()

    return version
