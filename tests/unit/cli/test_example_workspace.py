"""The workspace of ``lapse up --example``: there once, whoever starts it and how often."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from lapse.app.up import ensure_example, free_port
from lapse.app.workspaces import user_name
from lapse.core.clock import VirtualClock
from lapse.settings import load_settings
from lapse.workspaces.model import Ms, NewWorkspace
from lapse.workspaces.store.sqlite import open_sqlite_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.settings import Settings
    from lapse.workspaces.store.port import WorkspaceStore

NOW = Ms(1_700_000_000_000)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    given = {"state_dir": str(tmp_path), "proxy_port": "0", "default_standby_ttl": "20s"}
    return load_settings(given).settings


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[WorkspaceStore]:
    opened = open_sqlite_store(tmp_path / "workspaces.db")
    yield opened
    await opened.close()


async def test_it_runs_the_example_for_the_user_with_the_ttls_of_the_settings(
    store: WorkspaceStore, settings: Settings
) -> None:
    assert await ensure_example(store, settings, VirtualClock())
    made = await store.by_name("example")

    assert made.command == (sys.executable, "-m", "lapse.workspaces.example")
    assert made.owner == user_name()
    assert (made.standby_ttl_seconds, made.archive_ttl_seconds) == (20, 86_400)


async def test_it_is_made_once_however_often_and_by_however_many_it_is_asked_for(
    store: WorkspaceStore, settings: Settings
) -> None:
    clock = VirtualClock()
    assert all(await asyncio.gather(*(ensure_example(store, settings, clock) for _ in range(5))))
    made = await store.by_name("example")
    assert await ensure_example(store, settings, clock)

    assert await store.list() == [made]


async def test_once_deleted_it_does_not_come_back(store: WorkspaceStore, settings: Settings) -> None:
    clock = VirtualClock()
    await ensure_example(store, settings, clock)
    await store.mark_deleted((await store.by_name("example")).id, now=NOW)

    assert not await ensure_example(store, settings, clock)
    assert await store.list() == []


async def test_a_workspace_of_that_name_stays_what_it_is(store: WorkspaceStore, settings: Settings) -> None:
    mine = await store.create(NewWorkspace(name="example", owner="ann", command=("mine",), port=1), now=NOW)

    assert await ensure_example(store, settings, VirtualClock())
    assert await store.by_name("example") == mine


def test_a_port_that_is_taken_or_beyond_the_last_one_is_replaced_by_a_free_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert 0 < free_port(port) != port
    assert 0 < free_port(65_536) < 65_536
