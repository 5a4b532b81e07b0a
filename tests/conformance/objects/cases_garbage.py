"""Cases: what has owners goes when the last of them is gone, and not before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lapse.core.clock import SystemClock
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import Document, EventType, Json, Kind, ObjectKey
from tests.conformance.objects.registry import (
    CLUSTER_WIDGET,
    WIDGET,
    World,
    case,
    eventually,
    key_of,
    make,
    unique,
    watching,
    widget,
)

if TYPE_CHECKING:
    from lapse.kube.resources import Object

NOBODY = "4f4e1b9a-0000-4000-8000-00000000dead"
"""The uid of an object that never was."""
LONG_ENOUGH_SECONDS = 0.3
"""How much longer than a doomed neighbour a survivor is watched: what is wrongly collected goes at the same time."""


def owner(obj: Document, **more: object) -> Json:
    """Refer to an owner."""
    named = {"apiVersion": obj.body["apiVersion"], "kind": obj.body["kind"], "name": obj.metadata.name}
    return {**named, "uid": obj.metadata.uid, **more}


async def owned(world: World, namespace: str | None, name: str, *owners: Json) -> Document:
    """Create a widget that belongs to others."""
    wanted = widget(namespace, name)
    wanted["metadata"]["ownerReferences"] = list(owners)
    return await world.store.create(WIDGET if namespace else CLUSTER_WIDGET, wanted)


async def exists(world: World, obj: Object, kind: Kind[Document] = WIDGET) -> bool:
    """Whether this very object is there."""
    try:
        found = await world.store.get(kind, key_of(obj))
    except NotFoundError:
        return False
    return found.metadata.uid == obj.metadata.uid


async def goes(world: World, *objects: Object, kind: Kind[Document] = WIDGET) -> None:
    """Wait until these are gone."""
    for obj in objects:

        async def gone(obj: Object = obj) -> bool:
            return not await exists(world, obj, kind)

        await eventually(world, gone, f"the collection of {key_of(obj)}")


async def stays(world: World, *objects: Object) -> None:
    """See that these are there, now and a while after: whoever calls this has seen a neighbour go."""
    namespace = objects[0].metadata.namespace
    assert namespace is not None
    await goes(world, await owned(world, namespace, unique("doomed"), {**_nobody(), "uid": NOBODY}))
    await SystemClock().sleep(LONG_ENOUGH_SECONDS)
    assert [key_of(obj) for obj in objects if not await exists(world, obj)] == []


def _nobody() -> Json:
    return {"apiVersion": WIDGET.api_version, "kind": "Widget", "name": "nobody", "uid": NOBODY}


@case
async def what_is_owned_goes_with_its_owner(world: World) -> None:
    namespace = await world.namespace()
    parent, free = await make(world, namespace, "parent"), await make(world, namespace, "free")
    child = await owned(world, namespace, "child", owner(parent, controller=True, blockOwnerDeletion=True))
    assert child.metadata.controller is not None
    await stays(world, parent, child, free)
    await world.store.delete(WIDGET, key_of(parent))
    await goes(world, child)
    await stays(world, free)


@case
async def what_has_another_living_owner_stays(world: World) -> None:
    namespace = await world.namespace()
    one, other = await make(world, namespace, "one"), await make(world, namespace, "other")
    shared = await owned(world, namespace, "shared", owner(one), owner(other))
    single = await owned(world, namespace, "single", owner(one))
    await world.store.delete(WIDGET, key_of(one))
    await goes(world, single)
    await stays(world, shared, other)
    owners = (await world.store.get(WIDGET, key_of(shared))).metadata.owner_references
    assert other.metadata.uid in {reference.uid for reference in owners}
    await world.store.delete(WIDGET, key_of(other))
    await goes(world, shared)


@case
async def what_belonged_to_several_goes_with_the_last(world: World) -> None:
    namespace = await world.namespace()
    owners = [await make(world, namespace, f"owner{number}") for number in range(3)]
    shared = await owned(world, namespace, "shared", *(owner(one) for one in owners))
    for one in owners:
        assert await exists(world, shared)
        await world.store.delete(WIDGET, key_of(one))
    await goes(world, shared)


@case
async def garbage_goes_down_the_chain(world: World) -> None:
    namespace = await world.namespace()
    root = await make(world, namespace, "level0")
    chain = [root]
    for level in (1, 2, 3):
        chain.append(await owned(world, namespace, f"level{level}", owner(chain[-1])))
    side = await owned(world, namespace, "side", owner(chain[1]))
    await world.store.delete(WIDGET, key_of(root))
    await goes(world, *chain[1:], side)


@case
async def a_chain_breaks_at_what_has_another_owner(world: World) -> None:
    namespace = await world.namespace()
    root, living = await make(world, namespace, "root"), await make(world, namespace, "living")
    middle = await owned(world, namespace, "middle", owner(root), owner(living))
    leaf = await owned(world, namespace, "leaf", owner(middle))
    single = await owned(world, namespace, "single", owner(root))
    await world.store.delete(WIDGET, key_of(root))
    await goes(world, single)
    await stays(world, middle, leaf)


@case
async def an_owner_made_again_is_another_owner(world: World) -> None:
    namespace = await world.namespace()
    first = await make(world, namespace, "owner")
    old = await owned(world, namespace, "old", owner(first))
    await world.store.delete(WIDGET, key_of(first))
    second = await make(world, namespace, "owner")
    new = await owned(world, namespace, "new", owner(second))
    await goes(world, old)
    await stays(world, second, new)


@case
async def what_is_born_without_a_living_owner_goes(world: World) -> None:
    namespace = await world.namespace()
    living = await make(world, namespace, "living")
    never = await owned(world, namespace, "never", _nobody())
    same_name = await owned(world, namespace, "same-name", owner(living) | {"uid": NOBODY})
    both = await owned(world, namespace, "both", _nobody(), owner(living))
    await goes(world, never, same_name)
    await stays(world, both, living)


@case
async def an_owner_of_the_whole_cluster_owns_objects_in_namespaces(world: World) -> None:
    namespace = await world.namespace()
    keeper = await world.store.create(CLUSTER_WIDGET, widget(None, unique("keeper")))
    other = await world.store.create(CLUSTER_WIDGET, widget(None, unique("other")))
    child = await owned(world, namespace, "child", owner(keeper, controller=True))
    cousin = await owned(world, namespace, "cousin", owner(other))
    sibling = await owned(world, None, unique("sibling"), owner(keeper))
    await stays(world, child, cousin)
    await world.store.delete(CLUSTER_WIDGET, key_of(keeper))
    await goes(world, child)
    await goes(world, sibling, kind=CLUSTER_WIDGET)
    await stays(world, cousin)


@case
async def what_was_released_before_its_owner_went_stays(world: World) -> None:
    namespace = await world.namespace()
    parent = await make(world, namespace, "parent")
    child = await owned(world, namespace, "child", owner(parent))
    released = await owned(world, namespace, "released", owner(parent))
    await world.store.patch(WIDGET, key_of(released), {"metadata": {"ownerReferences": None}})
    await world.store.delete(WIDGET, key_of(parent))
    await goes(world, child)
    await stays(world, released)


@case
async def what_was_adopted_goes_with_its_new_owner(world: World) -> None:
    namespace = await world.namespace()
    parent, child = await make(world, namespace, "parent"), await make(world, namespace, "child")
    new = await world.store.patch(WIDGET, key_of(child), {"metadata": {"ownerReferences": [owner(parent)]}})
    assert [reference.uid for reference in new.metadata.owner_references] == [parent.metadata.uid]
    assert new.metadata.generation == 1
    await world.store.delete(WIDGET, key_of(parent))
    await goes(world, child)


@case
async def what_was_given_to_a_dead_owner_goes(world: World) -> None:
    namespace = await world.namespace()
    child = await make(world, namespace, "child")
    await world.store.patch(WIDGET, key_of(child), {"metadata": {"ownerReferences": [_nobody()]}})
    await goes(world, child)


@case
async def the_end_of_garbage_is_reported(world: World) -> None:
    namespace = await world.namespace()
    parent = await make(world, namespace, "parent")
    child = await owned(world, namespace, "child", owner(parent))
    since = (await world.store.list(WIDGET, namespace=namespace)).resource_version
    await world.store.delete(WIDGET, key_of(parent))
    async with watching(world, since, namespace=namespace) as watch:
        events = [await watch.next(), await watch.next()]
    assert [(event.type, event.object.metadata.uid) for event in events] == [
        (EventType.DELETED, parent.metadata.uid),
        (EventType.DELETED, child.metadata.uid),
    ]


@case
async def an_object_made_again_after_its_collection_is_left_alone(world: World) -> None:
    namespace = await world.namespace()
    parent = await make(world, namespace, "parent")
    child = await owned(world, namespace, "child", owner(parent))
    await world.store.delete(WIDGET, key_of(parent))
    await goes(world, child)
    again = await make(world, namespace, "child")
    assert key_of(again) == ObjectKey(namespace, "child")
    await stays(world, again)
