"""Cases: what Kubernetes refuses of names, labels, annotations and owners is refused, and what it takes is taken."""

from __future__ import annotations

import contextlib

from lapse.kube.errors import InvalidError, NotFoundError
from lapse.kube.resources import Json, ObjectKey
from tests.conformance.objects.registry import (
    CLUSTER_WIDGET,
    WIDGET,
    World,
    case,
    key_of,
    make,
    names,
    refused,
    unique,
    widget,
)

LONGEST_NAME = 253
ANNOTATION_BYTES = 262_144
LONG_PREFIX = ".".join(["a" * 63] * 3 + ["b" * 61])


async def _refused_with(world: World, **metadata: object) -> None:
    """Create with this metadata, which must be refused and leave nothing behind."""
    namespace = await world.namespace()
    wanted: Json = {"metadata": {"name": "a", "namespace": namespace, **metadata}, "spec": {}}
    try:
        with refused(InvalidError):
            await world.store.create(WIDGET, wanted)
    except AssertionError as error:
        raise AssertionError(f"{error}: {str(metadata)[:200]}") from None
    assert names(await world.store.list(WIDGET, namespace=namespace)) == []


@case
async def odd_names_are_names(world: World) -> None:
    namespace = await world.namespace()
    wanted = [
        "0",
        "a",
        "9z",
        "a.b.c",
        "a-b.c-d",
        "x--y",
        "n" * LONGEST_NAME,
        ".".join(["ab"] * 84),
        "con",
        "nul",
        "1.0",
    ]
    for name in wanted:
        made = await make(world, namespace, name, size=1)
        assert made.metadata.name == name
        assert (await world.store.get(WIDGET, ObjectKey(namespace, name))).body == made.body
    assert names(await world.store.list(WIDGET, namespace=namespace)) == sorted(wanted)
    for name in wanted:
        await world.store.patch(WIDGET, ObjectKey(namespace, name), {"spec": {"size": 2}})
        await world.store.delete(WIDGET, ObjectKey(namespace, name))
    assert names(await world.store.list(WIDGET, namespace=namespace)) == []


@case
async def names_that_are_none_are_refused(world: World) -> None:
    bad = [
        "A",
        "a_b",
        "-a",
        "a-",
        ".a",
        "a.",
        "a..b",
        "a b",
        "a/b",
        "ä",
        "a\n",
        "a%2fb",
        "a:b",
        "n" * 254,
        "..",
        "a-.b",
    ]
    for name in bad:
        await _refused_with(world, name=name)


@case
async def an_object_without_a_name_is_refused(world: World) -> None:
    namespace = await world.namespace()
    for metadata in ({}, {"name": ""}, {"name": None}, {"name": 5}):
        with refused(InvalidError):
            await world.store.create(WIDGET, {"metadata": {"namespace": namespace, **metadata}, "spec": {}})
    assert names(await world.store.list(WIDGET, namespace=namespace)) == []


@case
async def a_namespace_that_is_none_is_refused(world: World) -> None:
    for namespace in ("Not-Valid", "a_b", "n" * 64, "a.b"):
        with refused(InvalidError, NotFoundError):  # Kubernetes: there is no such namespace, nor can there be
            await make(world, namespace)


@case
async def an_object_is_where_its_kind_lives(world: World) -> None:
    with refused(InvalidError):
        await world.store.create(WIDGET, widget(None, "a"))
    name = unique()
    with contextlib.suppress(InvalidError):  # Kubernetes takes it and drops the namespace
        await world.store.create(CLUSTER_WIDGET, widget(await world.namespace(), name))
        assert (await world.store.get(CLUSTER_WIDGET, ObjectKey(None, name))).metadata.namespace is None


@case
async def an_object_of_another_kind_is_refused(world: World) -> None:
    namespace = await world.namespace()
    for other in ({"kind": "ClusterWidget"}, {"apiVersion": "test.lapse.dev/v2"}):
        with refused(InvalidError):
            await world.store.create(WIDGET, {**widget(namespace, "a"), **other})
    assert names(await world.store.list(WIDGET, namespace=namespace)) == []


@case
async def odd_labels_are_labels(world: World) -> None:
    namespace = await world.namespace()
    labels = {
        "a": "",
        "A.b_C-9": "A.b_C-9",
        "k" * 63: "v" * 63,
        "example.com/x": "1",
        f"{LONG_PREFIX}/x": "true",
    }
    made = await world.store.create(WIDGET, widget(namespace, "a", labels=labels))
    assert made.metadata.labels == labels
    for name, value in labels.items():
        assert names(await world.store.list(WIDGET, namespace=namespace, labels={name: value})) == ["a"]


@case
async def label_values_that_are_none_are_refused(world: World) -> None:
    for value in ("v" * 64, "-a", "a-", ".a", "a b", "ä", "a/b", "a\n", 5, True, ["a"], {"a": "b"}):
        await _refused_with(world, labels={"a": value})


@case
async def label_names_that_are_none_are_refused(world: World) -> None:
    for name in ("", "k" * 64, "-a", "a/b/c", "/a", "a/", "a b", "ä", "UPPER.example/x", f"{LONG_PREFIX}b/x"):
        await _refused_with(world, labels={name: "a"})
        if name != "UPPER.example/x":  # case does not count in the names of annotations
            await _refused_with(world, annotations={name: "a"})
    await _refused_with(world, labels=["a"])
    await _refused_with(world, annotations={"a": 5})


@case
async def annotations_hold_any_text(world: World) -> None:
    namespace = await world.namespace()
    text = {"a": "", "example.com/Note": "Größe 大きさ 🐋\n\t\"'", "b": "{}", "UPPER.example/x": "y"}
    wanted = widget(namespace, "a")
    wanted["metadata"]["annotations"] = text
    made = await world.store.create(WIDGET, wanted)
    assert made.metadata.annotations == text
    assert (await world.store.get(WIDGET, key_of(made))).metadata.annotations == text


@case
async def annotations_have_a_limit_in_bytes(world: World) -> None:
    namespace = await world.namespace()
    wanted = widget(namespace, "a")
    wanted["metadata"]["annotations"] = {
        "a": "ä" * ((ANNOTATION_BYTES - 4) // 2),
        "b": "xy"[: ANNOTATION_BYTES % 2 + 2],
    }
    made = await world.store.create(WIDGET, wanted)
    size = sum(len(name.encode()) + len(value.encode()) for name, value in made.metadata.annotations.items())
    assert size == ANNOTATION_BYTES, "the case itself is wrong"
    with refused(InvalidError):
        await world.store.patch(WIDGET, key_of(made), {"metadata": {"annotations": {"c": ""}}})
    assert (await world.store.get(WIDGET, key_of(made))).body == made.body
    await _refused_with(world, annotations={"a": "x" * ANNOTATION_BYTES})


@case
async def owners_that_cannot_be_are_refused(world: World) -> None:
    good = {"apiVersion": "v1", "kind": "Widget", "name": "a", "uid": "4f4e1b9a-0000-4000-8000-000000000001"}
    for field in good:
        await _refused_with(world, ownerReferences=[{name: value for name, value in good.items() if name != field}])
        await _refused_with(world, ownerReferences=[{**good, field: ""}])
    other = {**good, "uid": "4f4e1b9a-0000-4000-8000-000000000002", "controller": True}
    await _refused_with(world, ownerReferences=[{**good, "controller": True}, other])
    await _refused_with(world, ownerReferences=good)


@case
async def a_document_that_is_no_object_is_refused(world: World) -> None:
    namespace = await world.namespace()
    for metadata in ("a", ["a"], 5):
        with refused(InvalidError):
            await world.store.create(WIDGET, {"metadata": metadata, "spec": {}})
    assert names(await world.store.list(WIDGET, namespace=namespace)) == []
