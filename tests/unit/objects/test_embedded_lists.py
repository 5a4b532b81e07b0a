"""Lists of the embedded store show one moment, in pages too, whatever is written meanwhile."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from lapse.db.sqlite.database import Database
from lapse.db.sqlite.file import SQLiteFile, Synchronous
from lapse.kube.errors import GoneError, InvalidError
from lapse.objects.embedded import SCHEMA, EmbeddedStore
from lapse.objects.port import Deletion
from tests.unit.objects.kinds import BOX, KINDS, NOTE, SHELF, box, key

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lapse.core.clock import VirtualClock
    from lapse.kube.resources import Object


def names(items: Sequence[Object]) -> list[str]:
    return [str(item.metadata.key) for item in items]


async def make(store: EmbeddedStore, *keys: str, **metadata: object) -> None:
    for text in keys:
        namespace, _, name = text.partition("/")
        await store.create(BOX, box(name, namespace, **metadata))


async def test_a_list_is_ordered_by_namespace_and_name_and_may_be_of_one_namespace(store: EmbeddedStore) -> None:
    await make(store, "b/x", "a/z", "a-b/y", "a/b", "a/a")
    await store.create(NOTE, box("other", "a"))
    assert names((await store.list(BOX)).items) == ["a/a", "a/b", "a/z", "a-b/y", "b/x"]
    assert names((await store.list(BOX, namespace="a")).items) == ["a/a", "a/b", "a/z"]
    assert (await store.list(BOX, namespace="c")).items == ()


async def test_labels_choose_and_all_of_them_count(store: EmbeddedStore) -> None:
    await make(store, "n/a", labels={"x": "1"})
    await make(store, "n/b", labels={"x": "1", "y": "2"})
    await make(store, "n/c")
    assert names((await store.list(BOX, labels={"x": "1"})).items) == ["n/a", "n/b"]
    assert names((await store.list(BOX, labels={"x": "1", "y": "2"})).items) == ["n/b"]
    assert (await store.list(BOX, labels={"x": "2"})).items == ()


async def test_labels_that_were_changed_choose_as_they_are_now_and_as_they_were_then(store: EmbeddedStore) -> None:
    await make(store, "n/a", "n/b", "n/c", labels={"x": "1"})
    first = await store.list(BOX, labels={"x": "1"}, limit=1)
    await store.patch(BOX, key("b"), {"metadata": {"labels": {"x": "2"}}})
    await store.patch(BOX, key("c"), {"metadata": {"labels": {"x": None}}})
    assert names((await store.list(BOX, labels={"x": "1"})).items) == ["n/a"]
    assert names((await store.list(BOX, labels={"x": "2"})).items) == ["n/b"]
    rest = await store.list(BOX, labels={"x": "1"}, limit=5, after=first.next)
    assert names(rest.items) == ["n/b", "n/c"]


async def test_a_summary_counts_what_a_list_would_show(store: EmbeddedStore, clock: VirtualClock) -> None:
    await make(store, "n/a", "n/b", "m/a", labels={"x": "1", "y": "2"})
    clock.advance(60)
    await make(store, "n/c", "n/d", labels={"y": "2", "x": "1"})
    await make(store, "n/e", labels={"x": "12"})
    await make(store, "n/f")
    await store.delete(BOX, key("a"))
    whole = (await store.list(BOX)).items
    created = {one.metadata.name: one.metadata.creation_timestamp for one in whole}
    found = await store.summary(BOX, at_most=4)
    assert found is not None
    assert sorted(found, key=lambda one: (one.namespace or "", -one.how_many, not one.labels)) == [
        ("m", {"x": "1", "y": "2"}, 1, created["a"]),
        ("n", {"x": "1", "y": "2"}, 3, created["b"]),
        ("n", {"x": "12"}, 1, created["e"]),
        ("n", {}, 1, created["f"]),
    ]
    assert await store.summary(BOX, at_most=3) is None
    assert await store.summary(BOX, namespace="n", labels={"x": "1"}, at_most=9) == [
        ("n", {"x": "1", "y": "2"}, 3, created["b"])
    ]
    assert await store.summary(SHELF, at_most=9) == []


async def test_what_was_created_before_a_moment_is_listed_by_itself_as_it_was_when_the_list_began(
    store: EmbeddedStore, clock: VirtualClock
) -> None:
    await make(store, "n/a", "n/c", "m/a", labels={"x": "1"})
    await make(store, "n/d", labels={"x": "2"})
    clock.advance(60)
    await make(store, "n/b", labels={"x": "1"})
    moment = (await store.get(BOX, key("b"))).metadata.creation_timestamp
    assert moment is not None
    assert names((await store.list_created_before(BOX, moment)).items) == ["m/a", "n/a", "n/c", "n/d"]

    how: dict[str, Any] = {"namespace": "n", "labels": {"x": "1"}}
    first = await store.list_created_before(BOX, moment, limit=1, **how)
    await store.delete(BOX, key("b"))  # it was too young
    await store.delete(BOX, key("c"))
    rest = await store.list_created_before(BOX, moment, limit=1, after=first.next, **how)
    assert (names(first.items), names(rest.items), rest.next) == (["n/a"], ["n/c"], None)


async def test_a_file_of_an_older_version_learns_its_labels_when_it_is_opened(
    tmp_path: Path, clock: VirtualClock
) -> None:
    file = SQLiteFile(tmp_path / "old.db", synchronous=Synchronous.NORMAL)
    store = EmbeddedStore(Database(file, SCHEMA), kinds=KINDS, clock=clock)
    await make(store, "n/a", "n/b", labels={"x.y/z": "1", "b": ""})
    await make(store, "n/c")
    before = await store.summary(BOX, at_most=9)
    await store.close()
    with closing(apsw.Connection(str(file.path))) as old:
        old.execute("DROP INDEX objects_held").fetchall()
        old.execute("DROP INDEX journal_intents").fetchall()
        for column in ("labels", "created", "hold"):
            old.execute(f"ALTER TABLE objects DROP COLUMN {column}").fetchall()
        for table in ("safety_notes", "holds", "leases", "extensions", "plans"):
            old.execute(f"DROP TABLE {table}").fetchall()
        old.execute(f"PRAGMA user_version = {len(SCHEMA.scripts) - 8}").fetchall()
    store = EmbeddedStore(Database(file, SCHEMA), kinds=KINDS, clock=clock)
    try:
        assert await store.summary(BOX, at_most=9) == before
        assert names((await store.list(BOX, labels={"b": ""})).items) == ["n/a", "n/b"]
    finally:
        await store.close()


async def test_a_page_has_as_many_matches_as_were_asked_for(store: EmbeddedStore) -> None:
    for number in range(6):
        await make(store, f"n/b{number}", labels={"even": str(number % 2 == 0)})
    first = await store.list(BOX, labels={"even": "True"}, limit=2)
    assert (names(first.items), first.next is not None) == (["n/b0", "n/b2"], True)
    second = await store.list(BOX, labels={"even": "True"}, limit=2, after=first.next)
    assert (names(second.items), second.next) == (["n/b4"], None)


async def test_a_list_that_fits_exactly_has_no_next_page(store: EmbeddedStore) -> None:
    await make(store, "n/a", "n/b")
    assert (await store.list(BOX, limit=2)).next is None
    assert (await store.list(BOX, limit=1)).next is not None


async def test_all_pages_show_the_moment_of_the_first(store: EmbeddedStore) -> None:
    await make(store, "n/a", "n/b", "n/c", "n/d", "n/e")
    whole = await store.list(BOX)
    first = await store.list(BOX, limit=1)
    await store.patch(BOX, key("b"), {"spec": {"size": 1}})
    await store.patch(BOX, key("b"), {"spec": {"size": 2}})
    await store.delete(BOX, key("c"))
    await store.create(BOX, box("c"))
    await store.patch(BOX, key("c"), {"spec": {"size": 3}})
    await store.patch(BOX, key("d"), {"spec": {"size": 4}})
    await store.delete(BOX, key("d"))
    await store.create(BOX, box("bb"))
    await store.delete(BOX, key("a"))
    await store.patch(BOX, key("e"), {"spec": {"size": 5}})  # the one whose version is the moment itself
    items = list(first.items)
    page = first
    while page.next is not None:
        page = await store.list(BOX, limit=1, after=page.next)
        assert page.resource_version == first.resource_version
        items += page.items
    assert tuple(items) == whole.items


async def test_a_wrong_question_is_refused(store: EmbeddedStore) -> None:
    for ask in (
        store.list(BOX, after="nonsense"),
        store.list(BOX, after="x/n/a"),
        store.list(BOX, limit=-1),
        store.list(SHELF, namespace="n"),
    ):
        with pytest.raises(InvalidError):
            await ask


def short_store(tmp_path: Path, clock: VirtualClock, **kept: int) -> EmbeddedStore:
    file = SQLiteFile(tmp_path / "short.db", synchronous=Synchronous.NORMAL)
    return EmbeddedStore(Database(file, SCHEMA), kinds=KINDS, clock=clock, **kept)


async def write_many(store: EmbeddedStore, number: int) -> None:
    for size in range(number):
        await store.patch(NOTE, key("busy"), {"data": {"size": size, "content": "x" * 1_000}})


async def test_only_so_many_changes_are_kept_and_what_exists_stays_whole(tmp_path: Path, clock: VirtualClock) -> None:
    store = short_store(tmp_path, clock, changes_kept=100)
    try:
        await make(store, "n/a", "n/b")
        await store.create(NOTE, box("busy"))
        await store.create(NOTE, box("gone"))
        await store.delete(NOTE, key("gone"))
        first = await store.list(BOX, limit=1)
        await write_many(store, 1_000)
        with pytest.raises(GoneError):
            await store.list(BOX, limit=1, after=first.next)
        with pytest.raises(GoneError):
            await anext(store.watch(BOX, since=first.resource_version))
        kept = store.database.read("SELECT count(*) FROM changes")[0][0]
        assert 100 <= kept <= 100 + 2 * 64 + 3
        assert names((await store.list(BOX)).items) == ["n/a", "n/b"]
        assert (await store.get(NOTE, key("busy"))).body["data"]["size"] == 999
    finally:
        await store.close()


async def test_the_past_is_bounded_in_bytes_as_well(tmp_path: Path, clock: VirtualClock) -> None:
    store = short_store(tmp_path, clock, bytes_kept=50_000)
    try:
        await store.create(NOTE, box("busy"))
        await write_many(store, 500)
        size = store.database.read("SELECT sum(length(body)) FROM changes")[0][0]
        assert size < 50_000 + 64 * 2_000
        ((horizon, noted, counted),) = store.database.read("SELECT horizon, bytes, counted FROM log")
        sql = "SELECT sum(freed) FROM changes WHERE version > ? AND version <= ?"
        assert store.database.read(sql, (horizon, counted)) == [(noted,)]
    finally:
        await store.close()


async def test_versions_go_on_even_if_nothing_is_kept(tmp_path: Path, clock: VirtualClock) -> None:
    store = short_store(tmp_path, clock, changes_kept=0, bytes_kept=0)
    try:
        seen = 0
        for _ in range(100):
            made = await store.create(BOX, box())
            await store.delete(BOX, key())
            assert int(made.metadata.resource_version) > seen
            seen = int((await store.list(BOX)).resource_version)
            assert seen > int(made.metadata.resource_version)
    finally:
        await store.close()


async def test_many_deletions_at_once_trim_the_log_as_so_many_writes_do(tmp_path: Path, clock: VirtualClock) -> None:
    store = short_store(tmp_path, clock, changes_kept=10)
    made = [(await store.create(NOTE, box(f"b{number:03}"))).metadata for number in range(200)]
    deletions = [Deletion(NOTE, one.key, one.uid, one.resource_version) for one in made]

    assert await store.delete_all(deletions, also=lambda *_: None) == [None] * 200
    newest = int(made[-1].resource_version) + 200
    assert store.database.read("SELECT max(version) FROM changes") == [(newest,)]
    # Each 64 writes forget up to 128 changes, and there is nothing else in the log than these.
    assert store.database.read("SELECT count(*) FROM changes")[0][0] < 10 + 2 * 64
    await store.close()
