"""Cases: a deletion takes the object that was meant, in the state that was meant, or nothing."""

from __future__ import annotations

from lapse.kube.errors import ConflictError, NotFoundError
from lapse.kube.resources import Document
from tests.conformance.objects.registry import WIDGET, World, case, key_of, make, names, outcomes, refused, version_of


@case
async def what_is_deleted_is_gone(world: World) -> None:
    namespace = await world.namespace()
    made, other = await make(world, namespace, "a"), await make(world, namespace, "b")
    await world.store.delete(WIDGET, key_of(made))
    with refused(NotFoundError):
        await world.store.get(WIDGET, key_of(made))
    with refused(NotFoundError):
        await world.store.delete(WIDGET, key_of(made))
    assert names(await world.store.list(WIDGET, namespace=namespace)) == ["b"]
    assert (await world.store.get(WIDGET, key_of(other))).body == other.body


@case
async def a_deletion_meant_for_another_uid_leaves_the_object(world: World) -> None:
    namespace = await world.namespace()
    first = await make(world, namespace)
    await world.store.delete(WIDGET, key_of(first), uid=first.metadata.uid)
    second = await make(world, namespace)
    with refused(ConflictError):
        await world.store.delete(WIDGET, key_of(second), uid=first.metadata.uid)
    assert (await world.store.get(WIDGET, key_of(second))).body == second.body
    await world.store.delete(WIDGET, key_of(second), uid=second.metadata.uid)
    with refused(NotFoundError):
        await world.store.get(WIDGET, key_of(second))


@case
async def a_deletion_on_a_stale_version_leaves_the_object(world: World) -> None:
    made = await make(world, await world.namespace())
    newer = await world.store.patch(WIDGET, key_of(made), {"metadata": {"annotations": {"a": "b"}}})
    with refused(ConflictError):
        await world.store.delete(WIDGET, key_of(made), version=version_of(made))
    newest = await world.store.patch_status(WIDGET, key_of(made), {"phase": "Done"})
    with refused(ConflictError):
        await world.store.delete(WIDGET, key_of(made), version=version_of(newer))
    assert (await world.store.get(WIDGET, key_of(made))).body == newest.body
    await world.store.delete(WIDGET, key_of(made), version=version_of(newest))
    with refused(NotFoundError):
        await world.store.get(WIDGET, key_of(made))


@case
async def a_deletion_with_uid_and_version_needs_both_right(world: World) -> None:
    namespace = await world.namespace()
    first = await make(world, namespace)
    await world.store.delete(WIDGET, key_of(first))
    second = await make(world, namespace)
    with refused(ConflictError):
        await world.store.delete(WIDGET, key_of(second), uid=first.metadata.uid, version=version_of(second))
    newer = await world.store.patch(WIDGET, key_of(second), {"spec": {"size": 2}})
    with refused(ConflictError):
        await world.store.delete(WIDGET, key_of(second), uid=second.metadata.uid, version=version_of(second))
    assert (await world.store.get(WIDGET, key_of(second))).body == newer.body
    await world.store.delete(WIDGET, key_of(second), uid=second.metadata.uid, version=version_of(newer))
    with refused(NotFoundError):
        await world.store.get(WIDGET, key_of(second))


@case
async def one_of_racing_deletions_wins(world: World) -> None:
    made = await make(world, await world.namespace())
    results = await outcomes(*(world.store.delete(WIDGET, key_of(made), uid=made.metadata.uid) for _ in range(8)))
    assert results.count(None) == 1, results
    assert sum(isinstance(result, NotFoundError) for result in results) == 7, results


@case
async def a_deletion_and_a_patch_on_one_version_exclude_each_other(world: World) -> None:
    namespace = await world.namespace()
    for turn in range(6):
        made = await make(world, namespace, f"a{turn}")
        deletion = world.store.delete(WIDGET, key_of(made), uid=made.metadata.uid, version=version_of(made))
        patch = world.store.patch(WIDGET, key_of(made), {"spec": {"size": 2}}, version=version_of(made))
        [patched, deleted] = await outcomes(patch, deletion)
        if deleted is None:
            assert isinstance(patched, NotFoundError | ConflictError), patched
            with refused(NotFoundError):
                await world.store.get(WIDGET, key_of(made))
        else:
            assert isinstance(deleted, ConflictError), deleted
            assert isinstance(patched, Document), patched
            assert (await world.store.get(WIDGET, key_of(made))).body == patched.body
