"""Cases: patches merge, lose against what they did not know of, and touch only what they may."""

from __future__ import annotations

import contextlib

from lapse.kube.errors import ConflictError, InvalidError, NotFoundError, ObjectError
from lapse.kube.resources import Document, Json, ObjectKey
from tests.conformance.objects.registry import (
    NARROW,
    WIDGET,
    World,
    case,
    key_of,
    make,
    names,
    outcomes,
    refused,
    version_of,
    widget,
)

# --- merging ----------------------------------------------------------------------------------------------------------


@case
async def a_patch_merges_and_returns_the_new_state(world: World) -> None:
    made = await make(world, await world.namespace(), kept=1, changed=1, inner={"kept": 1, "changed": 1})
    new = await world.store.patch(WIDGET, key_of(made), {"spec": {"changed": 2, "inner": {"changed": 2}, "new": {}}})
    assert new.body["spec"] == {"kept": 1, "changed": 2, "inner": {"kept": 1, "changed": 2}, "new": {}}
    assert new.metadata.uid == made.metadata.uid
    assert new.metadata.creation_timestamp == made.metadata.creation_timestamp
    assert version_of(new) != version_of(made)
    assert (await world.store.get(WIDGET, key_of(made))).body == new.body


@case
async def null_removes_and_lists_are_replaced(world: World) -> None:
    made = await make(world, await world.namespace(), a=1, b={"c": 1, "d": 2}, e=[1, 2, 3], f={"g": {"h": 1}})
    new = await world.store.patch(WIDGET, key_of(made), {"spec": {"a": None, "b": {"c": None}, "e": [9], "f": None}})
    assert new.body["spec"] == {"b": {"d": 2}, "e": [9]}


@case
async def null_inside_something_new_leaves_nothing_behind(world: World) -> None:
    made = await make(world, await world.namespace(), a=1)
    new = await world.store.patch(WIDGET, key_of(made), {"spec": {"new": {"x": None, "y": 1}, "a": {"z": None}}})
    assert new.body["spec"] == {"new": {"y": 1}, "a": {}}


@case
async def labels_and_annotations_merge_one_by_one(world: World) -> None:
    namespace = await world.namespace()
    made = await world.store.create(WIDGET, widget(namespace, "a", labels={"a": "1", "b": "2"}))
    changes = {"metadata": {"labels": {"a": None, "c": "3"}, "annotations": {"lapse.dev/hold": "Größe"}}}
    new = await world.store.patch(WIDGET, key_of(made), changes)
    assert new.metadata.labels == {"b": "2", "c": "3"}
    assert new.metadata.annotations == {"lapse.dev/hold": "Größe"}
    gone = await world.store.patch(WIDGET, key_of(made), {"metadata": {"labels": None, "annotations": None}})
    assert gone.metadata.labels == {}
    assert gone.metadata.annotations == {}


@case
async def patches_without_preconditions_all_merge(world: World) -> None:
    made = await make(world, await world.namespace(), first=True)
    fields = {f"field{number}": number for number in range(8)}
    await_all = [world.store.patch(WIDGET, key_of(made), {"spec": {name: value}}) for name, value in fields.items()]
    results = await outcomes(*await_all)
    assert [result for result in results if not isinstance(result, Document)] == []
    final = await world.store.get(WIDGET, key_of(made))
    assert final.body["spec"] == {"first": True, **fields}
    assert final.metadata.generation == 9


@case
async def fields_unknown_to_a_narrow_reader_survive_its_patch(world: World) -> None:
    namespace = await world.namespace()
    made = await make(world, namespace, size=1, unknown={"kept": [1, {"two": 3}]})
    await world.store.patch_status(WIDGET, key_of(made), {"phase": "Done"})
    new = await world.store.patch(NARROW, key_of(made), {"spec": {"size": 2}, "metadata": {"labels": {"x": "y"}}})
    assert new.spec.size == 2
    whole = (await world.store.get(WIDGET, key_of(made))).body
    assert whole["spec"] == {"size": 2, "unknown": {"kept": [1, {"two": 3}]}}
    assert whole["status"] == {"phase": "Done"}


# --- optimistic conflicts ---------------------------------------------------------------------------------------------


@case
async def a_patch_on_a_stale_version_loses(world: World) -> None:
    made = await make(world, await world.namespace(), size=1)
    newer = await world.store.patch(WIDGET, key_of(made), {"spec": {"size": 2}}, version=version_of(made))
    with refused(ConflictError):
        await world.store.patch(WIDGET, key_of(made), {"spec": {"size": 3}}, version=version_of(made))
    assert (await world.store.get(WIDGET, key_of(made))).body == newer.body
    last = await world.store.patch(WIDGET, key_of(made), {"spec": {"size": 4}}, version=version_of(newer))
    assert last.body["spec"] == {"size": 4}


@case
async def a_stale_version_loses_also_when_nothing_would_change(world: World) -> None:
    made = await make(world, await world.namespace(), size=1)
    newer = await world.store.patch(WIDGET, key_of(made), {"spec": {"size": 2}})
    with refused(ConflictError):
        await world.store.patch(WIDGET, key_of(made), {"spec": {"size": 2}}, version=version_of(made))
    with refused(ConflictError):
        await world.store.patch_status(WIDGET, key_of(made), {"absent": None}, version=version_of(made))
    assert (await world.store.get(WIDGET, key_of(made))).body == newer.body


@case
async def a_patch_meant_for_another_uid_loses(world: World) -> None:
    namespace = await world.namespace()
    first = await make(world, namespace, size=1)
    await world.store.delete(WIDGET, key_of(first))
    second = await make(world, namespace, size=1)
    with refused(ConflictError):
        await world.store.patch(WIDGET, key_of(second), {"spec": {"size": 2}}, uid=first.metadata.uid)
    with refused(ConflictError):
        await world.store.patch_status(WIDGET, key_of(second), {"phase": "Done"}, uid=first.metadata.uid)
    with refused(ConflictError):
        await world.store.patch(
            WIDGET, key_of(second), {"spec": {"size": 2}}, uid=first.metadata.uid, version=version_of(second)
        )
    assert (await world.store.get(WIDGET, key_of(second))).body == second.body
    right = await world.store.patch(WIDGET, key_of(second), {"spec": {"size": 2}}, uid=second.metadata.uid)
    assert right.body["spec"] == {"size": 2}


@case
async def uid_and_version_together_must_both_be_right(world: World) -> None:
    made = await make(world, await world.namespace(), size=1)
    uid = made.metadata.uid
    newer = await world.store.patch(WIDGET, key_of(made), {"spec": {"size": 2}}, uid=uid, version=version_of(made))
    assert newer.body["spec"] == {"size": 2}
    with refused(ConflictError):
        await world.store.patch(WIDGET, key_of(made), {"spec": {"size": 3}}, uid=uid, version=version_of(made))
    assert (await world.store.get(WIDGET, key_of(made))).body == newer.body


@case
async def a_precondition_on_a_missing_object_is_not_found(world: World) -> None:
    namespace = await world.namespace()
    made = await make(world, namespace)
    await world.store.delete(WIDGET, key_of(made))
    for uid, version in ((made.metadata.uid, None), (None, version_of(made)), (made.metadata.uid, version_of(made))):
        with refused(NotFoundError):
            await world.store.patch(WIDGET, key_of(made), {"spec": {"size": 2}}, uid=uid, version=version)
        with refused(NotFoundError):
            await world.store.patch_status(WIDGET, key_of(made), {"phase": "Done"}, uid=uid, version=version)
        with refused(NotFoundError):
            await world.store.delete(WIDGET, key_of(made), uid=uid, version=version)


async def _race(world: World, workers: int) -> None:
    made = await make(world, await world.namespace(), winner=-1)
    results = await outcomes(
        *(
            world.store.patch(WIDGET, key_of(made), {"spec": {"winner": worker}}, version=version_of(made))
            for worker in range(workers)
        )
    )
    winners = [result for result in results if isinstance(result, Document)]
    assert len(winners) == 1, results
    assert sum(isinstance(result, ConflictError) for result in results) == workers - 1, results
    assert (await world.store.get(WIDGET, key_of(made))).body == winners[0].body


@case
async def one_of_two_racing_patches_wins(world: World) -> None:
    for _ in range(5):
        await _race(world, 2)


@case
async def one_of_many_racing_patches_wins(world: World) -> None:
    await _race(world, 32)


@case
async def one_of_racing_patches_of_status_and_spec_wins(world: World) -> None:
    made = await make(world, await world.namespace())
    results = await outcomes(
        *(world.store.patch(WIDGET, key_of(made), {"spec": {"x": n}}, version=version_of(made)) for n in range(4)),
        *(world.store.patch_status(WIDGET, key_of(made), {"x": n}, version=version_of(made)) for n in range(4)),
    )
    assert sum(isinstance(result, Document) for result in results) == 1, results


@case
async def no_increment_of_a_counter_is_lost(world: World) -> None:
    made = await make(world, await world.namespace(), count=0)

    async def increment() -> None:
        while True:
            read = await world.store.get(WIDGET, key_of(made))
            with contextlib.suppress(ConflictError):
                changes = {"spec": {"count": read.body["spec"]["count"] + 1}}
                await world.store.patch(WIDGET, key_of(made), changes, version=version_of(read))
                return

    assert await outcomes(*(increment() for _ in range(8))) == [None] * 8
    assert (await world.store.get(WIDGET, key_of(made))).body["spec"] == {"count": 8}


# --- status -----------------------------------------------------------------------------------------------------------


@case
async def a_patch_never_touches_status(world: World) -> None:
    made = await make(world, await world.namespace(), size=1)
    await world.store.patch_status(WIDGET, key_of(made), {"phase": "Done"})
    new = await world.store.patch(WIDGET, key_of(made), {"spec": {"size": 2}, "status": {"phase": "No", "more": 1}})
    assert new.body["spec"] == {"size": 2}
    assert new.body["status"] == {"phase": "Done"}
    kept = await world.store.patch(WIDGET, key_of(made), {"status": None})
    assert kept.body == new.body, "a patch of the status alone is a patch of nothing"


@case
async def a_patch_of_status_touches_nothing_else(world: World) -> None:
    namespace = await world.namespace()
    made = await world.store.create(WIDGET, widget(namespace, "a", labels={"x": "y"}, size=1))
    changes = {"phase": "Done", "spec": {"size": 9}, "metadata": {"labels": {"x": "z"}}}
    new = await world.store.patch_status(WIDGET, key_of(made), changes)
    assert new.body["status"] == changes
    assert new.body["spec"] == {"size": 1}
    assert new.metadata.labels == {"x": "y"}
    assert new.metadata.generation == 1
    assert version_of(new) != version_of(made)
    assert (await world.store.get(WIDGET, key_of(made))).body == new.body


@case
async def status_merges_and_null_removes(world: World) -> None:
    made = await make(world, await world.namespace())
    first = {"kept": 1, "gone": 1, "inner": {"changed": 1, "kept": 1}, "conditions": [{"type": "X"}]}
    await world.store.patch_status(WIDGET, key_of(made), first)
    changes: Json = {"gone": None, "inner": {"changed": 2}, "conditions": []}
    new = await world.store.patch_status(WIDGET, key_of(made), changes)
    assert new.body["status"] == {"kept": 1, "inner": {"changed": 2, "kept": 1}, "conditions": []}


@case
async def a_patch_of_status_on_a_stale_version_loses(world: World) -> None:
    made = await make(world, await world.namespace(), size=1)
    done = await world.store.patch_status(WIDGET, key_of(made), {"phase": "A"}, version=version_of(made))
    with refused(ConflictError):
        await world.store.patch_status(WIDGET, key_of(made), {"phase": "B"}, version=version_of(made))
    with refused(ConflictError):
        await world.store.patch(WIDGET, key_of(made), {"spec": {"size": 2}}, version=version_of(made))
    assert (await world.store.get(WIDGET, key_of(made))).body == done.body
    both = {"uid": made.metadata.uid, "version": version_of(done)}
    assert (await world.store.patch_status(WIDGET, key_of(made), {"phase": "C"}, **both)).body["status"] == {
        "phase": "C"
    }


# --- generation and version -------------------------------------------------------------------------------------------


@case
async def generation_rises_with_the_spec_only(world: World) -> None:
    made = await make(world, await world.namespace(), size=1)
    key = key_of(made)
    steps = [
        (await world.store.patch(WIDGET, key, {"spec": {"size": 2}}), 2),
        (await world.store.patch(WIDGET, key, {"metadata": {"labels": {"a": "b"}}}), 2),
        (await world.store.patch(WIDGET, key, {"metadata": {"annotations": {"a": "b"}}}), 2),
        (await world.store.patch_status(WIDGET, key, {"phase": "Done"}), 2),
        (await world.store.patch(WIDGET, key, {"spec": {"size": 3}, "metadata": {"labels": {"a": "c"}}}), 3),
        (await world.store.patch(WIDGET, key, {"spec": {"size": None}}), 4),
        (await world.store.patch(WIDGET, key, {"spec": {"size": None}}), 4),
    ]
    assert [new.metadata.generation for new, _ in steps] == [expected for _, expected in steps]


@case
async def every_change_has_a_version_of_its_own(world: World) -> None:
    made = await make(world, await world.namespace(), size=1)
    key = key_of(made)
    states: list[Document] = [
        made,
        await world.store.patch(WIDGET, key, {"spec": {"size": 2}}),
        await world.store.patch(WIDGET, key, {"metadata": {"labels": {"a": "b"}}}),
        await world.store.patch_status(WIDGET, key, {"phase": "Done"}),
        await world.store.patch(WIDGET, key, {"spec": {"size": 1}}),
    ]
    assert len({version_of(state) for state in states}) == 5


@case
async def what_changes_nothing_keeps_the_version(world: World) -> None:
    namespace = await world.namespace()
    await world.store.create(WIDGET, widget(namespace, "a", labels={"x": "y"}, size=1, inner={"a": [1]}))
    key = ObjectKey(namespace, "a")
    made = await world.store.patch_status(WIDGET, key, {"phase": "Done"})
    same: list[Document] = [
        await world.store.patch(WIDGET, key, {}),
        await world.store.patch(WIDGET, key, {"spec": {"size": 1, "inner": {"a": [1]}}}),
        await world.store.patch(WIDGET, key, {"metadata": {"labels": {"x": "y", "absent": None}}}),
        await world.store.patch(WIDGET, key, {"spec": {"absent": None}}),
        await world.store.patch_status(WIDGET, key, {"phase": "Done"}),
        await world.store.patch_status(WIDGET, key, {}),
        await world.store.patch(WIDGET, key, {"spec": {"size": 1}}, uid=made.metadata.uid, version=version_of(made)),
    ]
    assert {version_of(new) for new in same} == {version_of(made)}
    assert all(new.body == made.body for new in same)


@case
async def what_the_store_fills_in_cannot_be_patched(world: World) -> None:
    made = await make(world, await world.namespace(), size=1)
    for field, value in (
        ("uid", "4f4e1b9a-0000-4000-8000-000000000001"),
        ("generation", 77),
        ("creationTimestamp", "2001-02-03T04:05:06Z"),
    ):
        with contextlib.suppress(ObjectError):  # whether it is refused or ignored is the store's choice
            await world.store.patch(WIDGET, key_of(made), {"metadata": {field: value}})
        with contextlib.suppress(ObjectError):
            await world.store.patch(WIDGET, key_of(made), {"metadata": {field: None}})
    read = (await world.store.get(WIDGET, key_of(made))).metadata
    assert read.uid == made.metadata.uid
    assert read.generation == made.metadata.generation
    assert read.creation_timestamp == made.metadata.creation_timestamp


@case
async def an_object_cannot_become_another(world: World) -> None:
    namespace = await world.namespace()
    made = await make(world, namespace, size=1)
    changes: list[Json] = [
        {"metadata": {"name": "b"}},
        {"metadata": {"namespace": "elsewhere"}},
        {"metadata": None},
        {"kind": "Gadget"},
    ]
    for change in changes:
        with refused(InvalidError):
            await world.store.patch(WIDGET, key_of(made), change)
    assert names(await world.store.list(WIDGET, namespace=namespace)) == ["a"]
    assert (await world.store.get(WIDGET, key_of(made))).body == made.body


@case
async def an_invalid_patch_changes_nothing(world: World) -> None:
    made = await make(world, await world.namespace(), size=1)
    for metadata in (
        {"labels": {"a": "not valid!"}},
        {"labels": {"a": 5}},
        {"annotations": {"not valid!": "a"}},
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Widget", "name": "a"}]},
    ):
        with refused(InvalidError):
            await world.store.patch(WIDGET, key_of(made), {"spec": {"size": 2}, "metadata": metadata})
    assert (await world.store.get(WIDGET, key_of(made))).body == made.body
