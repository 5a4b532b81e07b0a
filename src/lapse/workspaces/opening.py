"""Stores and activity by URL: which there are, and which can be shared.

| URL | what | shared with |
|---|---|---|
| ``file:///path/workspaces.db`` | workspaces in SQLite | processes of this machine |
| ``postgresql://host/database`` | workspaces in PostgreSQL | everybody |
| nothing | activity in this process | nobody |
| ``redis://host``, ``rediss://host`` | activity on Redis or Valkey | everybody |

A URL is checked without touching what it names; opening does the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from lapse.core.errors import UsageError
from lapse.db.postgres.url import PostgresURL, is_postgres
from lapse.db.urls import missing_driver, take_apart
from lapse.workspaces.activity.port import ActivityURLError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.core.clock import Clock
    from lapse.workspaces.activity.port import Activity
    from lapse.workspaces.activity.redis import RedisActivity
    from lapse.workspaces.store.port import WorkspaceStore

_FILE: Final = "file://"


class WorkspacesURLError(UsageError, ValueError):
    """The workspaces URL {url} cannot be used: {problem}."""


def check_workspaces_url(url: str) -> None:
    """Raise a usage error unless it names a store."""
    if is_postgres(url):
        PostgresURL.parse(url)
    else:
        path_of(url)


async def open_workspaces(url: str) -> WorkspaceStore:
    """Open the store that a URL names; a file, and its folder, are made where they are not there."""
    if is_postgres(url):
        from lapse.workspaces.store.postgres import open_postgres_store

        return await open_postgres_store(url)
    from lapse.workspaces.store.sqlite import open_sqlite_store

    path = path_of(url)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        problem = f"its folder cannot be made: {error.strerror}"
        raise WorkspacesURLError(url=f"{_FILE}{path}", problem=problem) from error
    return open_sqlite_store(path)


def check_activity_url(url: str) -> None:
    """Raise a usage error unless it names an activity store; the empty one is this process."""
    if url:
        _redis_activity().at(url)


def open_activity(
    url: str, *, clock: Clock, lease_seconds: float, since: Callable[[], int | None] | None = None
) -> Activity:
    """Return the activity store that a URL names; it connects when it is first used.

    ``since`` is for the one in this process: see `lapse.workspaces.activity.in_process`.
    """
    if not url:
        from lapse.workspaces.activity.in_process import InProcessActivity

        return InProcessActivity(clock, lease_seconds=lease_seconds, since=since)
    return _redis_activity().at(url, lease_seconds=lease_seconds)


def path_of(url: str) -> Path:
    """Return the file that a URL names; raises `WorkspacesURLError`."""
    expected = "expected file:///absolute/path/workspaces.db or postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
    if not url.startswith(_FILE):
        scheme = url.partition("://")[0]
        shown = f"{scheme}://..." if "://" in url and scheme.isalnum() else "given"
        raise WorkspacesURLError(url=shown, problem=f"it is neither a file nor a PostgreSQL database; {expected}")
    parts = take_apart(url, schemes=("file",), options_of=lambda _: {}, refusal=WorkspacesURLError)
    path = parts.path
    if parts.location or not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise WorkspacesURLError(url=str(parts), problem=f"it names no file; {expected}")
    return Path(path)


def _redis_activity() -> type[RedisActivity]:
    try:
        from lapse.workspaces.activity.redis import RedisActivity
    except ModuleNotFoundError as error:
        raise ActivityURLError(url="redis://...", problem=missing_driver(error, "redis")) from error
    return RedisActivity
