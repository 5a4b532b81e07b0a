"""Webhooks where the record is in PostgreSQL: each row is told by the leader of the store that it is about."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import pytest

from lapse.app.record import ProcessRecord, open_server, open_store
from lapse.app.webhooks import Webhooks
from lapse.core.clock import SystemClock
from lapse.engine.running.metrics import Metrics
from lapse.settings import Settings
from tests.conformance.workspaces.worlds import postgres_database
from tests.unit.engine.receivers import SECRET, Hook, entry, listening, settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from lapse.engine.journal.port import Journal
    from lapse.engine.running.coordinator import Loop
    from tests.servers import Server

pytestmark = [pytest.mark.server("postgres"), pytest.mark.timeout(300)]
CLOCK = SystemClock()


@pytest.fixture
def database(shared_postgres: Server) -> Iterator[str]:
    with postgres_database(shared_postgres) as url:
        yield url


@pytest.fixture
async def hook(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hook]:
    monkeypatch.setenv("OPS_SECRET", SECRET)
    async with listening(Hook()) as hook:
        yield hook


class Loops(NamedTuple):
    """Those of the leaders of a folder and of a database."""

    folder: list[Loop]
    database: list[Loop]


@asynccontextmanager
async def process(folder: Path, hook: Hook, database: str = "") -> AsyncIterator[tuple[Journal, Loops]]:
    """What a ``lapse up`` on this folder has of webhooks."""
    webhook = {"name": "ops", "url": hook.url, "secret_env": "OPS_SECRET"}
    settings = Settings(state_dir=folder, database_url=database, webhooks=(webhook,))  # type: ignore[arg-type]  # as in a file
    async with AsyncExitStack() as stack:
        store = open_store(folder, clock=CLOCK)
        stack.push_async_callback(store.close)
        server = await open_server(settings, stack)
        record = await ProcessRecord.open(settings, store, server, joins=True)
        webhooks = Webhooks(settings, stack, machine=CLOCK, clock=CLOCK, metrics=Metrics("test"))
        loops = Loops(await webhooks.of_folder(record, store, {}), await webhooks.of_database(record))
        for loop in (*loops.folder, *loops.database):
            await settle(loop)
        yield record.journal, loops


def now() -> int:
    return CLOCK.wall_ns()


async def test_rows_of_a_folder_and_rows_of_the_database_are_told_once_by_their_own_leaders(
    tmp_path: Path, hook: Hook, database: str
) -> None:
    async with (
        process(tmp_path / "one", hook, database) as (journal, one),
        process(tmp_path / "two", hook, database) as (_, two),
    ):
        await journal.append(entry("of-folder", time_ns=now()), entry("shared", domain="workspaces", time_ns=now()))
        for loop in (*one.folder, *two.folder):
            await settle(loop)
        assert hook.subjects == ["vcr/default/of-folder"]
        await settle(two.database[0])  # whichever machine leads there
        await settle(one.database[0])

    assert hook.subjects[:2] == ["vcr/default/of-folder", "vcr/default/shared"]
    assert len({one.headers["webhook-id"] for one in hook.taken}) == 2


async def test_a_folder_that_joins_a_database_goes_on_where_it_was(tmp_path: Path, hook: Hook, database: str) -> None:
    async with process(tmp_path / "one", hook) as (journal, loops):
        assert loops.database == []
        await journal.append(entry("a", time_ns=now()))
        await settle(loops.folder[0])
        source = hook.taken[0].event["source"]
        await journal.append(entry("b", time_ns=now()))  # while the receiver, or Lapse, was down

    async with process(tmp_path / "one", hook, database):
        pass
    assert {*hook.subjects} == {"vcr/default/a", "vcr/default/b"}
    assert len({one.headers["webhook-id"] for one in hook.taken}) == 2
    assert {one.event["source"] for one in hook.taken} == {source}

    told = len(hook.taken)
    async with process(tmp_path / "one", hook, database) as (journal, loops):
        await journal.append(entry("c", time_ns=now()))
        await settle(loops.folder[0])
    assert [one.subject for one in hook.taken[told:]] == ["vcr/default/c"]
