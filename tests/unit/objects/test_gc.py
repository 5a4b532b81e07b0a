"""What nobody owns any more is collected, down the chain, and nothing else is."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.timestamps import to_timestamp
from lapse.kube.errors import NotFoundError, StoreUnavailableError
from lapse.kube.resources import EventType
from lapse.objects.embedded import open_embedded
from lapse.objects.gc import Collector, Step, collect_some
from lapse.objects.tables import ChangeRetention, Holds, Tables
from tests.unit.objects.kinds import BOX, KINDS, NOTE, SHELF, box, collected, key, owned_by, reference

if TYPE_CHECKING:
    from pathlib import Path

    import apsw

    from lapse.core.clock import VirtualClock
    from lapse.kube.resources import Document, Kind, Object, ObjectKey
    from lapse.objects.embedded import EmbeddedStore


async def shelf(store: EmbeddedStore, name: str = "s", *owners: Object) -> Document:
    return await store.create(SHELF, {"metadata": {"name": name, "ownerReferences": owned_by(SHELF, *owners)}})


async def exists(store: EmbeddedStore, kind: Kind[Any], wanted: ObjectKey) -> bool:
    try:
        await store.get(kind, wanted)
    except NotFoundError:
        return False
    return True


async def test_what_an_owner_leaves_is_collected_down_the_chain(store: EmbeddedStore) -> None:
    top = await shelf(store)
    middle = await store.create(BOX, box(ownerReferences=owned_by(SHELF, top)))
    await store.create(NOTE, box(ownerReferences=owned_by(BOX, middle)))
    await store.create(NOTE, box("free"))
    await store.delete(SHELF, key("s", None))
    await collected(store)
    assert [await exists(store, kind, key()) for kind in (BOX, NOTE)] == [False, False]
    assert await exists(store, NOTE, key("free"))
    assert store.database.read("SELECT * FROM owners") == []


async def test_another_living_owner_keeps_it_and_the_dead_one_is_struck_out(store: EmbeddedStore) -> None:
    first, second = await shelf(store, "one"), await shelf(store, "two")
    made = await store.create(BOX, {**box(ownerReferences=owned_by(SHELF, first, second)), "spec": {"size": 1}})
    await store.delete(SHELF, first.metadata.key)
    await collected(store)
    seen = await store.get(BOX, key())
    assert [owner.uid for owner in seen.metadata.owner_references] == [second.metadata.uid]
    assert seen.metadata.resource_version != made.metadata.resource_version
    assert (seen.metadata.generation, seen.spec) == (1, made.spec)
    await store.delete(SHELF, second.metadata.key)
    await collected(store)
    assert not await exists(store, BOX, key())


async def test_an_object_that_comes_after_its_owner_is_gone_is_collected(store: EmbeddedStore) -> None:
    await store.create(BOX, box(ownerReferences=[reference(SHELF, "s", "never-was")]))
    await collected(store)
    assert not await exists(store, BOX, key())


async def test_an_owner_of_the_same_name_but_another_uid_is_another_owner(store: EmbeddedStore) -> None:
    old = await shelf(store)
    await store.create(BOX, box(ownerReferences=owned_by(SHELF, old)))
    await store.delete(SHELF, key("s", None))
    await shelf(store)
    await collected(store)
    assert not await exists(store, BOX, key())


async def test_a_patch_gives_and_takes_owners(store: EmbeddedStore) -> None:
    first, second = await shelf(store, "one"), await shelf(store, "two")
    await store.create(BOX, box(ownerReferences=owned_by(SHELF, first)))
    await store.patch(BOX, key(), {"metadata": {"ownerReferences": owned_by(SHELF, second)}})
    await store.delete(SHELF, first.metadata.key)
    await collected(store)
    assert await exists(store, BOX, key())
    await store.patch(BOX, key(), {"metadata": {"ownerReferences": None}})
    await store.delete(SHELF, second.metadata.key)
    await collected(store)
    assert await exists(store, BOX, key()), "nobody owns it, so nobody's end ends it"
    await store.patch(BOX, key(), {"metadata": {"ownerReferences": owned_by(SHELF, second)}})
    await collected(store)
    assert not await exists(store, BOX, key())


async def test_a_removed_and_an_adopted_dependent_are_both_left_alone(store: EmbeddedStore) -> None:
    owner = await shelf(store)
    await store.create(BOX, box(ownerReferences=owned_by(SHELF, owner)))
    await store.delete(BOX, key())
    again = await store.create(BOX, box())
    await store.delete(SHELF, key("s", None))
    await collected(store)
    assert await store.get(BOX, key()) == again


async def test_watches_see_what_is_collected(store: EmbeddedStore) -> None:
    owner = await shelf(store)
    made = await store.create(BOX, box(ownerReferences=owned_by(SHELF, owner)))
    watch = store.watch(BOX, since=made.metadata.resource_version)
    reading = asyncio.ensure_future(anext(watch))
    await store.delete(SHELF, key("s", None))
    event = await asyncio.wait_for(reading, 10)
    while event.type is EventType.BOOKMARK:
        event = await asyncio.wait_for(anext(watch), 10)
    assert event.type is EventType.DELETED
    await watch.aclose()


async def test_what_a_process_left_to_collect_is_collected_by_the_next(tmp_path: Path, clock: VirtualClock) -> None:
    store = open_embedded(tmp_path / "o.db", kinds=KINDS, clock=clock)
    owner = await shelf(store)
    for number in range(250):
        await store.create(BOX, box(f"b{number}", ownerReferences=owned_by(SHELF, owner)))
    await store.delete(SHELF, key("s", None))
    await store.close()  # at once: the collector has hardly begun
    left = open_embedded(tmp_path / "o.db", kinds=KINDS, clock=clock)
    assert left.database.read("SELECT count(*) FROM garbage") == [(1,)]
    await left.list(BOX)
    await collected(left)
    assert (await left.list(BOX)).items == ()
    await left.close()


async def test_one_step_touches_a_bounded_number_of_dependents(store: EmbeddedStore, clock: VirtualClock) -> None:
    owner = await shelf(store)
    for number in range(25):
        await store.create(BOX, box(f"b{number:02}", ownerReferences=owned_by(SHELF, owner)))
    tables = Tables(ChangeRetention(1_000, 1_000_000))

    def remove(cursor: apsw.Cursor) -> None:
        # Not through the store, whose own collector would be quicker.
        cursor.execute("DELETE FROM objects WHERE uid = ?", (owner.metadata.uid,))
        cursor.execute("INSERT INTO garbage (owner) VALUES (?)", (owner.metadata.uid,))

    await store.database.write(remove)
    left = []
    while (await store.database.write(collect_some(tables, Holds(KINDS), clock, at_most=10))).more:
        left.append(store.database.read("SELECT count(*) FROM objects")[0][0])
    assert left == [15, 5, 0]


async def test_deleting_an_owner_of_thousands_does_not_keep_other_writers_waiting(store: EmbeddedStore) -> None:
    owner = await shelf(store)
    references = owned_by(SHELF, owner)
    await asyncio.gather(*(store.create(BOX, box(f"b{number}", ownerReferences=references)) for number in range(3_000)))
    await store.delete(SHELF, key("s", None))
    await store.create(NOTE, box())
    assert store.database.read("SELECT count(*) FROM objects WHERE kind LIKE '%Box'")[0][0] > 2_000
    await collected(store)
    assert (await store.list(BOX)).items == ()


@pytest.mark.parametrize("size", [1, 3])
async def test_a_ring_of_owners_stays_until_it_is_broken(store: EmbeddedStore, size: int) -> None:
    ring = [await shelf(store, f"s{number}") for number in range(size)]
    for number, one in enumerate(ring):
        owners = owned_by(SHELF, ring[number - 1])
        await store.patch(SHELF, one.metadata.key, {"metadata": {"ownerReferences": owners}})
    await collected(store)
    assert len((await store.list(SHELF)).items) == size
    await store.delete(SHELF, ring[0].metadata.key)
    await collected(store)
    assert (await store.list(SHELF)).items == ()


async def test_a_collector_that_fails_tries_again_later_and_says_so(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    answers: deque[Exception | Step] = deque(
        [StoreUnavailableError(problem="the disk is full"), KeyError("ours"), Step(frozenset(["k"]), more=True)]
    )
    touched: list[str] = []

    async def write(_: object) -> Step:
        answer = answers.popleft() if answers else Step(frozenset(), more=False)
        if isinstance(answer, Exception):
            raise answer
        return answer

    tables, holds = Tables(ChangeRetention(1, 1)), Holds(KINDS)
    collector = Collector(write, tables=tables, holds=holds, clock=clock, done=touched.append)
    collector.call()
    await clock.sleep(0)
    await clock.sleep(0)
    assert len(answers) == 2, "it waits before it tries again"
    while answers or not touched:
        clock.advance(1)
        await clock.sleep(0)
    assert touched == ["k"]
    assert [record.message for record in caplog.records] == ["garbage_collection_failed"] * 2
    await collector.close()


# --- what is held -----------------------------------------------------------------------------------------------------

HELD = {"lapse.dev/hold": "true"}
RELEASED = {"metadata": {"annotations": {"lapse.dev/hold": None}}}


async def names(store: EmbeddedStore) -> list[str]:
    await collected(store)
    return [one.metadata.name for one in (await store.list(BOX)).items]


async def test_what_is_held_stays_without_its_owner_and_goes_when_it_is_released(store: EmbeddedStore) -> None:
    references = owned_by(SHELF, await shelf(store))
    for number in range(250):  # more than a step has, before and after it
        await store.create(BOX, box(f"b{number}", ownerReferences=references))
    for name in ("b7", "b77"):
        await store.patch(BOX, key(name), {"metadata": {"annotations": HELD}})
    await store.delete(SHELF, key("s", None))
    assert await names(store) == ["b7", "b77"]
    await store.patch(BOX, key("b7"), RELEASED)
    assert await names(store) == ["b77"]


async def test_many_that_are_held_are_no_obstacle_to_the_others(store: EmbeddedStore) -> None:
    references = owned_by(SHELF, await shelf(store))
    for number in range(230):
        held = HELD if number < 220 else {}
        await store.create(BOX, box(f"b{number:03}", ownerReferences=references, annotations=held))
    await store.delete(SHELF, key("s", None))
    assert len(await names(store)) == 220


async def test_the_owner_of_what_is_held_stays_until_that_is_released(store: EmbeddedStore) -> None:
    between = await store.create(BOX, box("between", ownerReferences=owned_by(SHELF, await shelf(store))))
    await store.create(BOX, box("held", ownerReferences=owned_by(BOX, between), annotations=HELD))
    await store.delete(SHELF, key("s", None))
    assert await names(store) == ["between", "held"]
    await store.patch(BOX, key("held"), RELEASED)
    assert await names(store) == []


async def test_a_hold_whose_end_has_passed_saves_nothing(store: EmbeddedStore, clock: VirtualClock) -> None:
    over = {**HELD, "lapse.dev/hold-until": to_timestamp(clock.wall_ns() - 1_000_000_000)}
    references = owned_by(SHELF, await shelf(store))
    await store.create(BOX, box("over", ownerReferences=references, annotations=over))
    await store.delete(SHELF, key("s", None))
    assert await names(store) == []
