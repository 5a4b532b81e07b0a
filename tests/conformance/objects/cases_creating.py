"""Cases: what is created is there, once, with what the store fills in and without what it does not take."""

from __future__ import annotations

import copy
import re

from lapse.core.clock import SystemClock
from lapse.core.timestamps import from_timestamp
from lapse.kube.errors import AlreadyExistsError, InvalidError, NoSuchKindError, NotFoundError, UnknownKindError
from lapse.kube.resources import Document, ObjectKey, ObjectMeta
from tests.conformance.objects.registry import (
    CLUSTER_WIDGET,
    GROUP,
    NARROW,
    UNKNOWN,
    WIDGET,
    Widget,
    WidgetSpec,
    World,
    case,
    key_of,
    make,
    outcomes,
    refused,
    unique,
    version_of,
    widget,
)


@case
async def what_is_created_is_what_is_read(world: World) -> None:
    namespace = await world.namespace()
    made = await world.store.create(WIDGET, widget(namespace, "a", labels={"colour": "red"}, size=3))
    assert made.body["apiVersion"] == GROUP
    assert made.body["kind"] == "Widget"
    assert made.body["spec"] == {"size": 3}
    assert made.metadata.labels == {"colour": "red"}
    assert made.metadata.key == ObjectKey(namespace, "a")
    assert (await world.store.get(WIDGET, key_of(made))).body == made.body


@case
async def the_store_fills_in_who_and_when(world: World) -> None:
    namespace = await world.namespace()
    now = SystemClock().wall_ns()
    one, other = await make(world, namespace, "a"), await make(world, namespace, "b")
    assert one.metadata.uid
    assert one.metadata.uid != other.metadata.uid
    assert one.metadata.resource_version
    assert one.metadata.generation == 1
    assert one.metadata.deletion_timestamp is None
    created = one.metadata.creation_timestamp or ""
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", created), created
    assert abs((from_timestamp(created) or 0) - now) < 10_000_000_000, "created at another time"


@case
async def what_the_store_fills_in_is_not_taken_from_callers(world: World) -> None:
    namespace = await world.namespace()
    wanted = widget(namespace, "a")
    given = {
        "uid": "4f4e1b9a-0000-4000-8000-000000000001",
        "resourceVersion": "12345678901",
        "generation": 77,
        "creationTimestamp": "2001-02-03T04:05:06Z",
    }
    wanted["metadata"].update(given)
    made = (await world.store.create(WIDGET, wanted)).body["metadata"]
    assert {name: made[name] for name in given if made[name] == given[name]} == {}
    assert made["generation"] == 1


@case
async def status_is_not_stored_at_creation(world: World) -> None:
    namespace = await world.namespace()
    made = await world.store.create(WIDGET, {**widget(namespace, "a", size=1), "status": {"phase": "Done"}})
    assert "status" not in made.body
    assert "status" not in (await world.store.get(WIDGET, key_of(made))).body


@case
async def a_name_is_taken_once(world: World) -> None:
    namespace = await world.namespace()
    made = await make(world, namespace, size=1)
    with refused(AlreadyExistsError):
        await make(world, namespace, size=2)
    assert (await world.store.get(WIDGET, key_of(made))).body == made.body


@case
async def one_of_many_racing_creations_wins(world: World) -> None:
    namespace = await world.namespace()
    results = await outcomes(*(make(world, namespace, size=number) for number in range(16)))
    winners = [result for result in results if isinstance(result, Document)]
    assert len(winners) == 1, results
    assert sum(isinstance(result, AlreadyExistsError) for result in results) == 15, results
    assert (await world.store.get(WIDGET, key_of(winners[0]))).body == winners[0].body


@case
async def namespaces_and_kinds_keep_names_apart(world: World) -> None:
    one, other, name = await world.namespace(), await world.namespace(), unique()
    await make(world, one, name, place=1)
    await make(world, other, name, place=2)
    await world.store.create(CLUSTER_WIDGET, widget(None, name, place=3))
    assert (await world.store.get(WIDGET, ObjectKey(one, name))).body["spec"] == {"place": 1}
    assert (await world.store.get(WIDGET, ObjectKey(other, name))).body["spec"] == {"place": 2}
    assert (await world.store.get(CLUSTER_WIDGET, ObjectKey(None, name))).body["spec"] == {"place": 3}
    await world.store.delete(WIDGET, ObjectKey(one, name))
    await world.store.get(WIDGET, ObjectKey(other, name))
    await world.store.get(CLUSTER_WIDGET, ObjectKey(None, name))


@case
async def an_object_of_the_whole_cluster_has_no_namespace(world: World) -> None:
    name = unique()
    made = await world.store.create(CLUSTER_WIDGET, widget(None, name, size=1))
    assert made.metadata.namespace is None
    assert made.metadata.key == ObjectKey(None, name)
    assert (await world.store.get(CLUSTER_WIDGET, ObjectKey(None, name))).body == made.body


@case
async def a_name_used_again_is_another_object(world: World) -> None:
    namespace = await world.namespace()
    seen = []
    for _ in range(3):
        made = await make(world, namespace)
        await world.store.patch(WIDGET, key_of(made), {"spec": {"changed": True}})
        seen.append(made)
        await world.store.delete(WIDGET, key_of(made))
    assert len({made.metadata.uid for made in seen}) == 3
    assert len({version_of(made) for made in seen}) == 3
    assert [made.metadata.generation for made in seen] == [1, 1, 1]


@case
async def what_is_missing_is_not_found(world: World) -> None:
    key = ObjectKey(await world.namespace(), "missing")
    with refused(NotFoundError):
        await world.store.get(WIDGET, key)
    with refused(NotFoundError):
        await world.store.patch(WIDGET, key, {"spec": {"size": 1}})
    with refused(NotFoundError):
        await world.store.patch_status(WIDGET, key, {"phase": "Done"})
    with refused(NotFoundError):
        await world.store.delete(WIDGET, key)
    with refused(NotFoundError):
        await world.store.get(WIDGET, key)


@case
async def a_structure_is_created_as_its_fields(world: World) -> None:
    namespace = await world.namespace()
    wanted = Widget(metadata=ObjectMeta(name="a", namespace=namespace, labels={"x": "y"}), spec=WidgetSpec(size=4))
    made = await world.store.create(NARROW, wanted)
    assert made.spec == wanted.spec
    assert made.metadata.uid
    assert made == await world.store.get(NARROW, key_of(made))
    whole = await world.store.get(WIDGET, key_of(made))
    assert whole.body["spec"] == {"size": 4}
    assert whole.metadata == made.metadata


@case
async def a_kind_is_read_whole_although_the_store_knows_a_narrow_type(world: World) -> None:
    namespace = await world.namespace()
    made = await make(world, namespace, size=1, unknown={"deep": [1, 2]})
    assert (await world.store.get(WIDGET, key_of(made))).body["spec"]["unknown"] == {"deep": [1, 2]}
    assert (await world.store.get(NARROW, key_of(made))).spec == WidgetSpec(size=1)
    [listed] = (await world.store.list(WIDGET, namespace=namespace)).items
    assert listed.body["spec"] == {"size": 1, "unknown": {"deep": [1, 2]}}


@case
async def values_come_back_as_they_are(world: World) -> None:
    namespace = await world.namespace()
    spec = {
        "text": "Größe 大きさ размер 크기 🐋 \u202e\u0301 \\ \" ' \n\t",
        "words": {"ключ": "значение", "": "empty key", "a.b/c": "odd key"},
        "numbers": [0, -1, 2**53 - 1, -(2**53) + 1, 2**62, 1.5, -0.25],
        "flags": [True, False],
        "empty": {"list": [], "map": {}, "text": ""},
        "deep": {"a": [{"b": [{"c": [[[]]]}]}]},
    }
    made = await world.store.create(WIDGET, {**widget(namespace, "a"), "spec": spec})
    assert made.body["spec"] == spec
    assert (await world.store.get(WIDGET, key_of(made))).body["spec"] == spec


@case
async def an_object_of_a_million_characters_is_stored(world: World) -> None:
    namespace, data = await world.namespace(), "x" * 1_048_576
    made = await make(world, namespace, data=data)
    assert (await world.store.get(WIDGET, key_of(made))).body["spec"]["data"] == data


@case
async def an_object_of_four_million_characters_is_refused(world: World) -> None:
    namespace = await world.namespace()
    with refused(InvalidError):
        await make(world, namespace, data="x" * 4_000_000)
    made = await make(world, namespace, size=1)
    with refused(InvalidError):
        await world.store.patch(WIDGET, key_of(made), {"spec": {"data": "x" * 4_000_000}})
    assert (await world.store.get(WIDGET, key_of(made))).body == made.body


@case
async def the_store_shares_no_value_with_its_callers(world: World) -> None:
    namespace = await world.namespace()
    wanted = widget(namespace, "a", inner={"size": 1})
    before = copy.deepcopy(wanted)
    made = await world.store.create(WIDGET, wanted)
    assert wanted == before, "the caller's document was changed"
    wanted["spec"]["inner"]["size"] = 2
    made.body["spec"]["inner"]["size"] = 3
    read = await world.store.get(WIDGET, ObjectKey(namespace, "a"))
    assert read.body["spec"] == {"inner": {"size": 1}}
    read.body["spec"]["inner"]["size"] = 4
    assert (await world.store.get(WIDGET, ObjectKey(namespace, "a"))).body["spec"] == {"inner": {"size": 1}}


@case
async def known_kinds_are_resolved(world: World) -> None:
    narrow = await world.store.resolve(GROUP, "Widget")
    assert (narrow.plural, narrow.namespaced, narrow.status) == ("widgets", True, True)
    assert narrow.type is Widget, "the store was told the type"
    cluster = await world.store.resolve(GROUP, "ClusterWidget")
    assert (cluster.plural, cluster.namespaced, cluster.type) == ("clusterwidgets", False, Document)
    namespace = await world.namespace()
    made = await world.store.create(narrow, widget(namespace, "a", size=5))
    assert made.spec == WidgetSpec(size=5)


@case
async def unknown_kinds_are_refused(world: World) -> None:
    for api_version, kind in ((GROUP, "Gadget"), ("nowhere.lapse.dev/v1", "Widget"), ("test.lapse.dev/v9", "Widget")):
        with refused(UnknownKindError):
            await world.store.resolve(api_version, kind)
    namespace = await world.namespace()
    with refused(UnknownKindError):
        await world.store.get(UNKNOWN, ObjectKey(namespace, "a"))
    with refused(UnknownKindError):
        await world.store.create(UNKNOWN, widget(namespace, "a"))
    with refused(UnknownKindError):
        await world.store.list(UNKNOWN, namespace=namespace)
    with refused(UnknownKindError):
        await world.store.delete(UNKNOWN, ObjectKey(namespace, "a"))


@case
async def a_word_of_no_kind_is_wrong_input(world: World) -> None:
    assert (await world.store.resolve_word("Widget.test.lapse.dev")).kind == "Widget"
    for word in ("Gadget.test.lapse.dev", "Widget.nowhere.lapse.dev", "Gadget"):
        with refused(NoSuchKindError):
            await world.store.resolve_word(word)


@case
async def a_store_answers_until_it_is_closed_and_may_be_closed_twice(world: World) -> None:
    await world.store.check()
    await world.store.close()
    await world.store.close()
