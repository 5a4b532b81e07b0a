"""What creations, patches and deletions do to an object of the embedded store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lapse.core.identity import uuid
from lapse.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    NotFoundError,
    StoreUnavailableError,
    UnknownKindError,
)
from lapse.kube.resources import Document, Json, ObjectMeta, untyped
from lapse.objects.documents import LARGEST_DOCUMENT
from tests.unit.objects.kinds import BOX, NOTE, SHELF, Box, BoxSpec, BoxStatus, box, key, reference

if TYPE_CHECKING:
    import apsw

    from lapse.core.clock import VirtualClock
    from lapse.objects.embedded import EmbeddedStore


async def test_the_store_fills_in_what_is_its_own(store: EmbeddedStore, clock: VirtualClock) -> None:
    clock.advance(ns=999_999_999)
    made = await store.create(
        BOX,
        box(
            uid="mine",
            resourceVersion="999",
            generation=7,
            creationTimestamp="2001-01-01T00:00:00Z",
            deletionTimestamp="x",
        ),
    )
    assert made.metadata.uid not in {"", "mine"}
    assert made.metadata.generation == 1
    assert made.metadata.creation_timestamp == "2023-11-14T22:13:20Z", "whole seconds, cut off"
    assert made.metadata.deletion_timestamp is None
    assert made.metadata.resource_version not in {"", "999"}
    assert await store.get(BOX, key()) == made


async def test_a_caller_who_notes_the_uid_before_gives_it(store: EmbeddedStore) -> None:
    uid = uuid()
    assert (await store.create(BOX, box(uid="mine"), uid=uid)).metadata.uid == uid
    assert (await store.get(BOX, key())).metadata.uid == uid
    with pytest.raises(AlreadyExistsError):
        await store.create(BOX, box(), uid=uuid())


async def test_a_typed_object_can_be_created_and_comes_back_as_one(store: EmbeddedStore) -> None:
    made = await store.create(BOX, Box(metadata=ObjectMeta(name="a", namespace="n"), spec=BoxSpec(size=3)))
    assert isinstance(made, Box)
    assert made.spec == BoxSpec(size=3)


async def test_fields_that_the_type_does_not_know_survive_a_patch(store: EmbeddedStore) -> None:
    await store.create(BOX, {**box(), "spec": {"size": 1, "colour": "red"}, "extra": [1]})
    await store.patch(BOX, key(), {"spec": {"size": 2}})
    seen = await store.get(untyped(BOX.api_version, BOX.kind, BOX.plural), key())
    assert seen.body["spec"] == {"size": 2, "colour": "red"}
    assert seen.body["extra"] == [1]


async def test_a_second_object_of_the_same_name_is_refused(store: EmbeddedStore) -> None:
    made = await store.create(BOX, box())
    with pytest.raises(AlreadyExistsError):
        await store.create(BOX, box())
    await store.create(BOX, box(namespace="other"))
    assert await store.get(BOX, key()) == made


@pytest.mark.parametrize(
    "wrong",
    [
        {"metadata": {"namespace": "n"}},
        {"metadata": {"name": "a"}},
        {"metadata": {"name": "A", "namespace": "n"}},
        {"metadata": {"name": "a", "namespace": "N"}},
        {"metadata": []},
        {},
        box(finalizers=["example.com/wait"]),
        box(labels={"a": "not valid"}),
        box(annotations={"a": "x" * 300_000}),
        box(ownerReferences=[{"uid": "u"}]),
        {**box(), "kind": "Shelf"},
        {**box(), "apiVersion": "v1"},
        {**box(), "spec": {"size": "large"}},
        {**box(), "spec": {"size": -1}},
        {**box(), "spec": {"content": "x" * LARGEST_DOCUMENT}},
        {**box(), "spec": {"content": {1, 2}}},
        {**box(), "spec": {"content": object()}},
        {**box(), "spec": {"content": "\ud800"}},
    ],
)
async def test_what_is_not_valid_is_not_stored(store: EmbeddedStore, wrong: Json) -> None:
    with pytest.raises(InvalidError):
        await store.create(BOX, wrong)
    assert (await store.list(BOX)).items == ()


async def test_a_document_may_be_as_large_as_etcd_takes_it(store: EmbeddedStore) -> None:
    content = "x" * (LARGEST_DOCUMENT - 1_000)
    made = await store.create(BOX, {**box(), "spec": {"content": content}})
    assert made.spec.content == content
    with pytest.raises(InvalidError):
        await store.patch(BOX, key(), {"metadata": {"annotations": {"a": "x" * 1_000}}})


async def test_kinds_of_the_whole_cluster_have_no_namespace(store: EmbeddedStore) -> None:
    await store.create(SHELF, {"metadata": {"name": "s"}})
    assert (await store.get(SHELF, key("s", None))).metadata.namespace is None
    with pytest.raises(InvalidError):
        await store.create(SHELF, {"metadata": {"name": "t", "namespace": "n"}})
    for ask in (store.get(SHELF, key("s")), store.get(BOX, key("s", None)), store.delete(BOX, key("s", None))):
        with pytest.raises(InvalidError):
            await ask


async def test_names_that_nothing_can_have_are_simply_not_found(store: EmbeddedStore) -> None:
    for wanted in (key("No Such"), key("a", "No Such")):
        with pytest.raises(NotFoundError):
            await store.get(BOX, wanted)


async def test_a_kind_that_was_not_registered_is_unknown(store: EmbeddedStore) -> None:
    other = untyped("v1", "Secret", "secrets")
    for ask in (store.get(other, key()), store.create(other, box()), store.list(other), store.resolve("v1", "Secret")):
        with pytest.raises(UnknownKindError):
            await ask
    assert await store.resolve("test.lapse.dev/v1", "Box") is BOX


async def test_a_change_of_the_spec_raises_the_generation_and_a_change_of_metadata_does_not(
    store: EmbeddedStore,
) -> None:
    await store.create(BOX, {**box(), "spec": {"size": 1}})
    assert (await store.patch(BOX, key(), {"spec": {"size": 2}})).metadata.generation == 2
    assert (await store.patch(BOX, key(), {"metadata": {"labels": {"a": "b"}}})).metadata.generation == 2
    assert (await store.patch_status(BOX, key(), {"phase": "x"})).metadata.generation == 2
    assert (await store.patch(BOX, key(), {"spec": {"content": "x"}, "extra": True})).metadata.generation == 3
    assert (await store.patch(BOX, key(), {"extra": 1})).metadata.generation == 4, "1 is not true"


@pytest.mark.parametrize(
    "nothing",
    [
        {},
        {"spec": {"size": 1}},
        {"spec": {"content": None}},
        {"metadata": {"labels": {}}},
        {"metadata": {"labels": None}},
        {"metadata": {"generation": 9, "creationTimestamp": None, "managedFields": []}},
        {"status": {"phase": "done"}},
        {"metadata": {"namespace": None, "uid": None, "resourceVersion": None}},
    ],
)
async def test_a_patch_that_changes_nothing_is_no_change(store: EmbeddedStore, nothing: Json) -> None:
    made = await store.create(BOX, {**box(), "spec": {"size": 1}})
    assert await store.patch(BOX, key(), nothing) == made
    assert (await store.list(BOX)).resource_version == made.metadata.resource_version


async def test_status_has_a_path_of_its_own(store: EmbeddedStore) -> None:
    made = await store.create(BOX, {**box(), "spec": {"size": 1}, "status": {"phase": "made up"}})
    assert made.status == BoxStatus()
    status = await store.patch_status(BOX, key(), {"phase": "one", "weight": 5})
    assert status.metadata.resource_version != made.metadata.resource_version
    await store.patch(BOX, key(), {"status": {"phase": "two"}, "spec": {"size": 2}})
    seen = await store.patch_status(BOX, key(), {"weight": None})
    assert (seen.status, seen.spec) == (BoxStatus(phase="one"), BoxSpec(size=2))
    assert await store.patch_status(BOX, key(), {"phase": "one"}) == seen, "nothing changed"
    assert (await store.patch(BOX, key(), {"status": None})).status == seen.status
    with pytest.raises(InvalidError):
        await store.patch_status(BOX, key(), {"weight": "heavy"})


async def test_a_kind_without_that_path_has_status_like_any_field(store: EmbeddedStore) -> None:
    made = await store.create(NOTE, {**box(), "status": {"a": 1}})
    assert made.body["status"] == {"a": 1}
    seen = await store.patch(NOTE, key(), {"status": {"a": 2}})
    assert (seen.body["status"], seen.metadata.generation) == ({"a": 2}, 2)
    with pytest.raises(InvalidError):
        await store.patch_status(NOTE, key(), {"a": 3})


@pytest.mark.parametrize(
    "wrong",
    [
        {"spec": {"size": 0}},
        {"spec": {"size": "large"}},
        {"metadata": {"name": "b"}},
        {"metadata": {"name": None}},
        {"metadata": None},
        {"kind": None},
        {"metadata": {"namespace": "m"}},
        {"metadata": {"labels": {"a": 1}}},
        {"metadata": {"finalizers": ["x"]}},
        {"metadata": "none"},
        {"kind": "Shelf"},
        {"spec": {"content": object()}},
    ],
)
async def test_a_patch_that_would_make_it_invalid_changes_nothing(store: EmbeddedStore, wrong: Json) -> None:
    made = await store.create(BOX, {**box(), "spec": {"size": 1}})
    with pytest.raises(InvalidError):
        await store.patch(BOX, key(), wrong)
    assert await store.get(BOX, key()) == made


async def test_preconditions_let_nothing_happen_to_another_object_or_version(store: EmbeddedStore) -> None:
    made = await store.create(BOX, box())
    uid, version = made.metadata.uid, made.metadata.resource_version
    for wrong in ({"uid": "other"}, {"version": "1"}, {"version": "x"}, {"uid": uid, "version": "0" + version}):
        for ask in (
            store.patch(BOX, key(), {"spec": {"size": 9}}, **wrong),
            store.patch_status(BOX, key(), {"phase": "x"}, **wrong),
        ):
            with pytest.raises(ConflictError):
                await ask
    for other_uid, other_version in (("other", None), (None, "1"), (None, "x"), ("other", version)):
        with pytest.raises(ConflictError):
            await store.delete(BOX, key(), uid=other_uid, version=other_version)
    assert await store.get(BOX, key()) == made
    changed = await store.patch(BOX, key(), {"spec": {"size": 1}}, uid=uid, version=version)
    await store.delete(BOX, key(), uid=uid, version=changed.metadata.resource_version)


async def test_a_patch_that_names_its_object_is_held_to_it(store: EmbeddedStore) -> None:
    made = await store.create(BOX, box())
    for said in ({"uid": "other"}, {"resourceVersion": "1"}):
        with pytest.raises(ConflictError):
            await store.patch(BOX, key(), {"metadata": said, "spec": {"size": 1}})
    said = {"uid": made.metadata.uid, "resourceVersion": made.metadata.resource_version, "name": "a"}
    assert (await store.patch(BOX, key(), {"metadata": said, "spec": {"size": 1}})).spec.size == 1


async def test_what_is_not_there_is_not_found(store: EmbeddedStore) -> None:
    for ask in (
        store.get(BOX, key()),
        store.patch(BOX, key(), {"spec": {}}, uid="any"),
        store.patch_status(BOX, key(), {}),
        store.delete(BOX, key(), uid="any", version="1"),
    ):
        with pytest.raises(NotFoundError):
            await ask


async def test_a_deleted_object_is_gone_and_its_name_is_free(store: EmbeddedStore) -> None:
    made = await store.create(BOX, box())
    await store.delete(BOX, key())
    with pytest.raises(NotFoundError):
        await store.get(BOX, key())
    again = await store.create(BOX, box())
    assert again.metadata.uid != made.metadata.uid


async def test_what_is_written_beside_a_deletion_is_there_only_if_the_object_was_removed(store: EmbeddedStore) -> None:
    await store.database.write(lambda cursor: cursor.execute("CREATE TABLE beside (n INTEGER)").fetchall())

    def note(cursor: apsw.Cursor) -> None:
        cursor.execute("INSERT INTO beside VALUES (1)")

    def fail(cursor: apsw.Cursor) -> None:
        note(cursor)
        raise KeyError

    made = await store.create(BOX, box())
    with pytest.raises(ConflictError):
        await store.delete(BOX, key(), uid="other", also=note)
    with pytest.raises(NotFoundError):
        await store.delete(BOX, key("b"), also=note)
    with pytest.raises(KeyError):
        await store.delete(BOX, key(), also=fail)
    assert await store.get(BOX, key()) == made
    assert store.database.read("SELECT count(*) FROM beside") == [(0,)]
    await store.delete(BOX, key(), also=note)
    assert store.database.read("SELECT count(*) FROM beside") == [(1,)]


async def test_of_many_who_patch_the_same_version_one_wins(store: EmbeddedStore) -> None:
    made = await store.create(BOX, box())
    version = made.metadata.resource_version
    asks = [store.patch(BOX, key(), {"spec": {"size": n}}, version=version) for n in range(1, 21)]
    answers = await asyncio.gather(*asks, return_exceptions=True)
    (winner,) = [answer for answer in answers if isinstance(answer, Box)]
    assert all(isinstance(answer, ConflictError) for answer in answers if answer is not winner)
    assert await store.get(BOX, key()) == winner


async def test_a_caller_cannot_change_what_it_gave_or_got(store: EmbeddedStore) -> None:
    given = {**box(), "data": {"a": "1"}}
    made = await store.create(NOTE, given)
    given["data"]["a"] = "2"
    made.body["data"]["a"] = "3"
    assert (await store.get(NOTE, key())).body["data"] == {"a": "1"}
    assert (await store.create(NOTE, Document(box("b")))).metadata.name == "b"


async def test_structures_may_stand_in_a_patch(store: EmbeddedStore) -> None:
    await store.create(BOX, box())
    owner = reference(SHELF, "s", "nobody")
    seen = await store.patch(BOX, key(), {"spec": BoxSpec(size=2), "metadata": {"ownerReferences": (owner,)}})
    assert (seen.spec.size, seen.metadata.owner_references[0].uid) == (2, "nobody")


async def test_a_closed_store_says_so(store: EmbeddedStore) -> None:
    await store.check()
    await store.close()
    await store.close()
    for ask in (store.check(), store.get(BOX, key()), store.create(BOX, box()), store.list(BOX)):
        with pytest.raises(StoreUnavailableError, match="it is closed"):
            await ask
