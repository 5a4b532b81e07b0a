"""Cases: a watch reports every change after its start, each once and in order, and says so when it cannot."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lapse.core.clock import SystemClock
from lapse.kube.errors import GoneError, ObjectError
from lapse.kube.resources import EventType, Json, ObjectKey
from tests.conformance.objects.registry import (
    CLUSTER_WIDGET,
    NARROW,
    POLL_SECONDS,
    WIDGET,
    Change,
    Watch,
    Widget,
    World,
    case,
    change,
    changes_since,
    key_of,
    make,
    patiently,
    refused,
    told,
    unique,
    version_of,
    watching,
    widget,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from lapse.kube.resources import Event, Page


async def _now(world: World, namespace: str) -> str:
    return (await world.store.list(WIDGET, namespace=namespace)).resource_version


@case
async def a_watch_reports_what_happens_after_the_list(world: World) -> None:
    namespace = await world.namespace()
    await make(world, namespace, "before")
    since = await _now(world, namespace)
    made = await make(world, namespace, "a", size=1)
    patched = await world.store.patch(WIDGET, key_of(made), {"spec": {"size": 2}})
    labelled = await world.store.patch(WIDGET, key_of(made), {"metadata": {"labels": {"x": "y"}}})
    done = await world.store.patch_status(WIDGET, key_of(made), {"phase": "Done"})
    await world.store.delete(WIDGET, ObjectKey(namespace, "before"))
    events = await changes_since(world, since, namespace)
    assert told(events) == [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("MODIFIED", "a"),
        ("MODIFIED", "a"),
        ("DELETED", "before"),
    ]
    assert [event.object.body for event in events[:4]] == [state.body for state in (made, patched, labelled, done)]
    assert [event.resource_version for event in events[:4]] == [
        version_of(state) for state in (made, patched, labelled, done)
    ]


@case
async def a_watch_reports_what_happens_while_it_is_open(world: World) -> None:
    namespace = await world.namespace()
    async with watching(world, await _now(world, namespace), namespace=namespace) as watch:
        waiting = asyncio.ensure_future(watch.next())
        await SystemClock().sleep(POLL_SECONDS)
        made = await make(world, namespace, "a", size=1)
        assert (await waiting).object.body == made.body
        new = await world.store.patch(WIDGET, key_of(made), {"spec": {"size": 2}})
        event = await watch.next()
        assert (event.type, event.object.body) == (EventType.MODIFIED, new.body)
        await world.store.delete(WIDGET, key_of(made))
        assert (await watch.next()).type is EventType.DELETED


@case
async def what_changed_nothing_is_not_reported(world: World) -> None:
    namespace = await world.namespace()
    made = await make(world, namespace, "a", size=1)
    await world.store.patch_status(WIDGET, key_of(made), {"phase": "Done"})
    since = await _now(world, namespace)
    await world.store.patch(WIDGET, key_of(made), {"spec": {"size": 1}})
    await world.store.patch_status(WIDGET, key_of(made), {"absent": None})
    await world.store.patch(WIDGET, key_of(made), {"status": {"phase": "Not this way"}})
    assert told(await changes_since(world, since, namespace)) == []


@case
async def a_deletion_is_reported_with_the_last_state(world: World) -> None:
    namespace = await world.namespace()
    made = await make(world, namespace, "a", size=1)
    since = await _now(world, namespace)
    last = await world.store.patch(WIDGET, key_of(made), {"spec": {"size": 2}, "metadata": {"labels": {"x": "y"}}})
    await world.store.delete(WIDGET, key_of(made))
    [_, event] = await changes_since(world, since, namespace)
    assert event.type is EventType.DELETED
    assert event.object.body["spec"] == {"size": 2}
    assert event.object.metadata.labels == {"x": "y"}
    assert event.object.metadata.uid == made.metadata.uid
    assert event.resource_version != version_of(last), "a deletion is a change, with a version of its own"
    assert told(await changes_since(world, event.resource_version, namespace)) == []
    assert told(await changes_since(world, version_of(last), namespace))[0] == ("DELETED", "a")


@case
async def a_watch_resumes_from_any_version_in_the_middle(world: World) -> None:
    namespace = await world.namespace()
    since = await _now(world, namespace)
    one = await make(world, namespace, "a", size=0)
    two = await make(world, namespace, "b", size=0)
    for size in (1, 2, 3):
        await world.store.patch(WIDGET, key_of(one), {"spec": {"size": size}})
        await world.store.patch_status(WIDGET, key_of(two), {"size": size})
    await world.store.delete(WIDGET, key_of(one))
    await make(world, namespace, "a", size=9)
    whole = await changes_since(world, since, namespace)
    assert len(whole) == 10
    for seen in (0, 1, 2, 5, 8, 9):
        rest = await changes_since(world, whole[seen].resource_version, namespace)
        assert [(event.type, event.object.body) for event in rest] == [
            (event.type, event.object.body) for event in whole[seen + 1 :]
        ]


@case
async def a_watch_of_one_namespace_reports_no_other(world: World) -> None:
    here, elsewhere = await world.namespace(), await world.namespace()
    since = await _now(world, here)
    await make(world, elsewhere, "a")
    await make(world, here, "b")
    await make(world, elsewhere, "c")
    await world.store.delete(WIDGET, ObjectKey(elsewhere, "a"))
    assert told(await changes_since(world, since, here)) == [("ADDED", "b")]


@case
async def a_watch_of_all_namespaces_reports_each(world: World) -> None:
    spaces = [await world.namespace() for _ in range(3)]
    since = (await world.store.list(WIDGET)).resource_version
    for namespace in spaces:
        await make(world, namespace, "a")
    last = unique("last")
    await make(world, spaces[0], last)
    async with watching(world, since, namespace=None) as watch:
        events = await watch.until(last)
    ours = [event.object.metadata.namespace for event in events if event.object.metadata.namespace in spaces]
    assert ours == spaces


@case
async def a_watch_reports_one_kind_only(world: World) -> None:
    namespace, name = await world.namespace(), unique()
    since = (await world.store.list(CLUSTER_WIDGET)).resource_version
    await make(world, namespace, "a")
    await world.store.create(CLUSTER_WIDGET, widget(None, name))
    async with watching(world, since, namespace=None, kind=CLUSTER_WIDGET) as watch:
        events = await watch.until(name)
    assert [event for event in events if event.object.body["kind"] != "ClusterWidget"] == []


@case
async def a_watch_is_typed_as_it_was_asked_for(world: World) -> None:
    namespace = await world.namespace()
    since = await _now(world, namespace)
    await make(world, namespace, "a", size=7)
    async with watching(world, since, namespace=namespace, kind=NARROW) as watch:
        event = await watch.next()
    assert isinstance(event.object, Widget)
    assert event.object.spec.size == 7
    assert event.resource_version == version_of(event.object)


@case
async def every_change_of_racing_writers_is_reported_once_and_in_order(world: World) -> None:
    namespace = await world.namespace()
    since = await _now(world, namespace)

    async def write(name: str) -> list[str]:
        made = await make(world, namespace, name)
        versions = [version_of(made)]
        for size in range(10):
            new = await world.store.patch(WIDGET, key_of(made), {"spec": {"size": size}})
            versions.append(version_of(new))
        return versions

    async with watching(world, since, namespace=namespace) as watch:
        reading = asyncio.ensure_future(watch.until("last"))
        written = dict(zip("abcdef", await asyncio.gather(*(write(name) for name in "abcdef")), strict=True))
        await make(world, namespace, "last")
        events = await reading
    seen: dict[str, list[str]] = {name: [] for name in written}
    for event in events:
        seen[event.object.metadata.name].append(event.resource_version)
    assert seen == written
    again = await changes_since(world, since, namespace)
    assert [event.resource_version for event in again[: len(events)]] == [event.resource_version for event in events]


def _apply(state: dict[str, Json], events: list[Change]) -> dict[str, Json]:
    for event in events:
        name = event.object.metadata.name
        if event.type is EventType.DELETED:
            assert name in state, f"{name} was deleted and was not there"
            del state[name]
        else:
            assert (event.type is EventType.ADDED) == (name not in state), f"{event.type} of {name}"
            state[name] = event.object.body
    return state


async def _come_and_go(world: World, namespace: str, name: str) -> None:
    for turn in range(5):
        made = await make(world, namespace, name, turn=turn)
        await world.store.patch(WIDGET, key_of(made), {"spec": {"more": turn}})
        if turn < 4:
            await world.store.delete(WIDGET, key_of(made))


@case
async def a_list_and_the_events_after_it_make_the_present(world: World) -> None:
    namespace = await world.namespace()
    lists: list[Page[Any]] = []
    writing = asyncio.gather(*(_come_and_go(world, namespace, name) for name in "abcd"))
    while not writing.done():
        lists.append(await world.store.list(WIDGET, namespace=namespace))
    await writing
    await make(world, namespace, "last")
    present = {item.metadata.name: item.body for item in (await world.store.list(WIDGET, namespace=namespace)).items}
    del present["last"]
    for page in lists[:: len(lists) // 10 + 1]:
        async with watching(world, page.resource_version, namespace=namespace) as watch:
            events = await watch.until("last")
        state = {item.metadata.name: item.body for item in page.items}
        assert _apply(state, events) == present


@case
async def two_watches_both_report_everything(world: World) -> None:
    namespace = await world.namespace()
    since = await _now(world, namespace)
    async with (
        watching(world, since, namespace=namespace) as one,
        watching(world, since, namespace=namespace) as other,
    ):
        readings = [asyncio.ensure_future(watch.until("last")) for watch in (one, other)]
        for name in ("a", "b", "c", "last"):
            await make(world, namespace, name)
        assert [told(await reading) for reading in readings] == [[("ADDED", name) for name in "abc"]] * 2


@case
async def a_slow_reader_misses_nothing(world: World) -> None:
    namespace = await world.namespace()
    since = await _now(world, namespace)
    async with watching(world, since, namespace=namespace) as watch:
        await make(world, namespace, "first")
        assert told([await watch.next()]) == [("ADDED", "first")]
        await asyncio.gather(*(make(world, namespace, f"w{number}", data="x" * 1000) for number in range(100)))
        await make(world, namespace, "last")
        events = await watch.until("last")
    assert sorted(event.object.metadata.name for event in events) == sorted(f"w{number}" for number in range(100))


@case
async def a_watch_from_too_long_ago_is_gone(world: World) -> None:
    namespace = await world.namespace()
    since = await _now(world, namespace)
    await make(world, namespace, "a")
    old = await world.age_version(since)
    watch = world.store.watch(WIDGET, namespace=namespace, since=old)
    with refused(GoneError):
        async with patiently(world):
            while (await anext(watch)).type is EventType.BOOKMARK:
                pass
    now = await _now(world, namespace)
    assert told(await changes_since(world, now, namespace)) == [], "a new list gives a version to watch from"


@case
async def a_version_that_is_none_is_refused(world: World) -> None:
    watch = world.store.watch(WIDGET, namespace=await world.namespace(), since="nonsense")
    with refused(ObjectError):  # Kubernetes answers 500 here, as if the fault were its own
        async with patiently(world):
            await anext(watch)


async def _bookmark(world: World, watch: Watch, elsewhere: str) -> Event[Any]:
    """Wait for a bookmark while something happens that the watch does not report: without that there need be none."""
    busy = await make(world, elsewhere, unique("busy"))
    waiting = asyncio.ensure_future(watch.any_event())
    turn = 0
    while not (await asyncio.wait([waiting], timeout=10 * POLL_SECONDS))[0]:
        turn += 1
        await world.store.patch(WIDGET, key_of(busy), {"spec": {"turn": turn}})
    event = await waiting
    assert event.type is EventType.BOOKMARK, told([change(event)])
    return event


@case
async def a_bookmark_is_a_version_to_resume_from(world: World) -> None:
    namespace, elsewhere = await world.namespace(), await world.namespace()
    async with watching(world, await _now(world, namespace), namespace=namespace) as watch:
        await make(world, namespace, "a")
        await make(world, namespace, "b")
        assert told([await watch.next(), await watch.next()]) == [("ADDED", "a"), ("ADDED", "b")]
        bookmark = await _bookmark(world, watch, elsewhere)
    assert bookmark.object is None
    await make(world, namespace, "c")
    rest = await changes_since(world, bookmark.resource_version, namespace)
    assert told(rest) == [("ADDED", "c")], "a bookmark names nothing older than what was reported before it"


async def _first(world: World, watch: AsyncGenerator[Event[Any], None]) -> Change:
    async with patiently(world):
        while (event := await anext(watch)).type is EventType.BOOKMARK:
            pass
        return change(event)


@case
async def a_closed_watch_reports_nothing_more(world: World) -> None:
    namespace = await world.namespace()
    since = await _now(world, namespace)
    unused = world.store.watch(WIDGET, namespace=namespace, since=since)
    await unused.aclose()
    used = world.store.watch(WIDGET, namespace=namespace, since=since)
    await make(world, namespace, "a")
    assert told([await _first(world, used)]) == [("ADDED", "a")]
    await used.aclose()
    await make(world, namespace, "b")
    for watch in (unused, used):
        with refused(StopAsyncIteration):
            await anext(watch)
    assert told(await changes_since(world, since, namespace)) == [("ADDED", "a"), ("ADDED", "b")]


@case
async def a_watch_that_waits_can_be_cancelled(world: World) -> None:
    namespace = await world.namespace()
    watch = world.store.watch(WIDGET, namespace=namespace, since=await _now(world, namespace))
    waiting = asyncio.ensure_future(_first(world, watch))
    await SystemClock().sleep(10 * POLL_SECONDS)
    waiting.cancel()
    async with patiently(world):
        await asyncio.wait([waiting])
    assert waiting.cancelled()
    await watch.aclose()
    await make(world, namespace, "still-works")


@case
async def every_change_since_a_bookmark_is_reported(world: World) -> None:
    namespace = await world.namespace()
    since = await _now(world, namespace)
    expected: list[tuple[str, str]] = []
    for turn in range(5):
        made = await make(world, namespace, f"w{turn}")
        await world.store.patch(WIDGET, key_of(made), {"spec": {"turn": turn}})
        expected += [("ADDED", f"w{turn}"), ("MODIFIED", f"w{turn}")]
    await make(world, namespace, "last")
    seen: list[Change] = []
    while not seen or seen[-1].object.metadata.name != "last":
        async with watching(world, since, namespace=namespace) as watch:
            while (event := await watch.any_event()).type is not EventType.BOOKMARK:
                seen.append(change(event))
                if seen[-1].object.metadata.name == "last":
                    break
        since = event.resource_version
    assert told(seen[:-1]) == expected, "a bookmark hid what was not yet reported"
