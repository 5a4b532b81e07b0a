"""A watch of the embedded store reports every change once, in order, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lapse.kube.errors import GoneError, InvalidError
from lapse.kube.resources import EventType
from lapse.objects.embedded import open_embedded
from tests.unit.objects.kinds import BOX, KINDS, NOTE, SHELF, Box, box, key

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from lapse.core.clock import VirtualClock
    from lapse.kube.resources import Event
    from lapse.objects.embedded import EmbeddedStore

ADDED, MODIFIED, DELETED, BOOKMARK = EventType


async def take(watch: AsyncGenerator[Event[Box], None], number: int) -> list[tuple[EventType, str]]:
    found: list[tuple[EventType, str]] = []
    while len(found) < number:
        event = await asyncio.wait_for(anext(watch), 10)
        if event.object is not None:
            assert event.object.metadata.resource_version == event.resource_version
            found.append((event.type, event.object.metadata.name))
    return found


async def history(store: EmbeddedStore) -> str:
    """Make some history; return the version before it."""
    since = (await store.list(BOX)).resource_version
    await store.create(BOX, box("a"))
    await store.create(NOTE, box("x"))
    await store.create(BOX, box("b", "m"))
    await store.patch(BOX, key("a"), {"spec": {"size": 1}})
    await store.patch_status(BOX, key("a"), {"phase": "x"})
    await store.patch(BOX, key("a"), {})
    await store.delete(BOX, key("a"))
    return since


HISTORY = [(ADDED, "a"), (ADDED, "b"), (MODIFIED, "a"), (MODIFIED, "a"), (DELETED, "a")]


async def test_a_watch_reports_what_happened_before_it_began_and_after_its_version(store: EmbeddedStore) -> None:
    since = await history(store)
    watch = store.watch(BOX, since=since)
    assert await take(watch, 5) == HISTORY
    await watch.aclose()


async def test_a_watch_reports_what_happens_as_soon_as_it_happens(store: EmbeddedStore, clock: VirtualClock) -> None:
    watch = store.watch(BOX, since=(await store.list(BOX)).resource_version)
    reading = asyncio.ensure_future(take(watch, 5))
    await history(store)
    assert await reading == HISTORY, "although the clock, and with it the poller, stands still"
    await watch.aclose()


async def test_a_watch_can_be_of_one_namespace(store: EmbeddedStore) -> None:
    since = await history(store)
    watch = store.watch(BOX, namespace="m", since=since)
    assert await take(watch, 1) == [(ADDED, "b")]
    await watch.aclose()


async def test_a_watch_resumes_from_every_version_without_loss_or_repetition(store: EmbeddedStore) -> None:
    since = await history(store)
    for seen in range(1, 5):
        watch = store.watch(BOX, since=since)
        await take(watch, seen - 1)
        event = await anext(watch)
        await watch.aclose()
        rest = store.watch(BOX, since=event.resource_version)
        assert await take(rest, 5 - seen) == HISTORY[seen:]
        await rest.aclose()


async def test_a_deletion_shows_the_last_state(store: EmbeddedStore) -> None:
    since = await history(store)
    watch = store.watch(BOX, since=since)
    *_, last = [await anext(watch) for _ in range(5)]
    assert last.object is not None
    assert (last.object.spec.size, last.object.status.phase) == (1, "x")
    await watch.aclose()


async def test_changes_of_other_kinds_move_a_bookmark(store: EmbeddedStore) -> None:
    before = (await store.list(BOX)).resource_version
    other = await store.create(NOTE, box())
    watch = store.watch(BOX, since=before)
    event = await asyncio.wait_for(anext(watch), 10)
    assert (event.type, event.object) == (BOOKMARK, None)
    assert event.resource_version == other.metadata.resource_version
    await store.create(BOX, box())
    assert await take(watch, 1) == [(ADDED, "a")]
    await watch.aclose()


async def test_bookmarks_come_only_now_and_then(store: EmbeddedStore, clock: VirtualClock) -> None:
    await store.create(NOTE, box())
    watch = store.watch(BOX, since="1")
    assert (await anext(watch)).type is BOOKMARK
    await store.create(NOTE, box("b"))
    next_event = asyncio.ensure_future(anext(watch))
    await store.create(BOX, box())
    event = await next_event
    assert event.type is ADDED, "no second bookmark at the same moment"
    await watch.aclose()


async def test_commits_of_others_are_noticed_within_a_tenth_of_a_second(
    store: EmbeddedStore, clock: VirtualClock, tmp_path: Path
) -> None:
    other = open_embedded(tmp_path / "objects.db", kinds=KINDS, clock=clock)
    watch = store.watch(BOX, since="1")
    reading = asyncio.ensure_future(take(watch, 1))
    await other.create(SHELF, {"metadata": {"name": "s"}})
    await other.create(BOX, box())
    assert not reading.done()
    clock.advance(0.1)
    assert await asyncio.wait_for(reading, 10) == [(ADDED, "a")]
    await watch.aclose()
    await other.close()


async def test_a_closed_watch_leaves_no_task_behind(store: EmbeddedStore) -> None:
    before = asyncio.all_tasks()
    await store.create(BOX, box())
    first, second = store.watch(BOX, since="1"), store.watch(BOX, since="1")
    await take(first, 1)
    await take(second, 1)
    assert len(asyncio.all_tasks() - before) == 1, "one poller for all"
    await first.aclose()
    assert len(asyncio.all_tasks() - before) == 1
    await second.aclose()
    assert asyncio.all_tasks() == before


async def test_a_watch_that_is_cancelled_while_it_waits_leaves_no_task_behind(
    store: EmbeddedStore, clock: VirtualClock
) -> None:
    before = asyncio.all_tasks()
    watch = store.watch(BOX, since="1")
    waiting = asyncio.ensure_future(watch.__anext__())
    while len(asyncio.all_tasks() - before) < 2:  # until it waits, and the poller runs
        await clock.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asyncio.all_tasks() == before


async def test_a_watch_ends_when_the_store_is_closed(store: EmbeddedStore) -> None:
    watch = store.watch(BOX, since="1")
    waiting = asyncio.ensure_future(take(watch, 1))
    await store.create(SHELF, {"metadata": {"name": "s"}})
    await store.close()
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(waiting, 10)


async def test_a_version_of_another_history_is_refused(store: EmbeddedStore) -> None:
    for since in ("0", "99"):
        with pytest.raises(GoneError):
            await anext(store.watch(BOX, since=since))
    for since in ("", "x", "-1"):
        with pytest.raises(InvalidError):
            await anext(store.watch(BOX, since=since))


async def test_a_long_backlog_is_read_in_pieces_and_completely(store: EmbeddedStore) -> None:
    await asyncio.gather(*(store.create(BOX, box(f"b{number}")) for number in range(1_203)))
    watch = store.watch(BOX, since="1")
    versions = [int((await anext(watch)).resource_version) for _ in range(1_203)]
    assert versions == list(range(2, 1_205))
    await watch.aclose()
