"""Cases: a list shows what there is, selected and ordered, at one moment, also over several pages."""

from __future__ import annotations

from itertools import groupby

from lapse.kube.errors import GoneError, InvalidError
from lapse.kube.resources import ObjectKey
from tests.conformance.objects.registry import (
    CLUSTER_WIDGET,
    NARROW,
    WIDGET,
    Widget,
    World,
    case,
    changes_since,
    every_page,
    key_of,
    make,
    names,
    outcomes,
    refused,
    told,
    unique,
    widget,
)


@case
async def a_list_is_ordered_by_name(world: World) -> None:
    namespace = await world.namespace()
    wanted = ["a", "a-b", "a.b", "a0", "aa", "b", "0", "z9", "a-b.c"]
    made = {name: await make(world, namespace, name) for name in wanted}
    page = await world.store.list(WIDGET, namespace=namespace)
    assert names(page) == sorted(wanted)
    assert [item.body for item in page.items] == [made[name].body for name in sorted(wanted)]
    assert page.next is None
    assert page.resource_version


@case
async def a_list_of_nothing_is_empty(world: World) -> None:
    page = await world.store.list(WIDGET, namespace=await world.namespace())
    assert page.items == ()
    assert page.next is None
    assert page.resource_version


@case
async def a_list_without_a_namespace_shows_all_of_them(world: World) -> None:
    mark, spaces = unique("mark"), [await world.namespace() for _ in range(3)]
    for namespace in spaces:
        for name in ("b", "a"):
            await world.store.create(WIDGET, widget(namespace, name, labels={"mark": mark}))
    found = [key_of(item) for item in (await world.store.list(WIDGET, labels={"mark": mark})).items]
    assert sorted(found) == sorted(ObjectKey(namespace, name) for namespace in spaces for name in "ab")
    groups = [(space, [key.name for key in keys]) for space, keys in groupby(found, key=lambda key: key.namespace)]
    assert [members for _, members in groups] == [["a", "b"]] * 3, "each namespace in one piece, by name"
    one = await world.store.list(WIDGET, namespace=spaces[1], labels={"mark": mark})
    assert [key_of(item) for item in one.items] == [ObjectKey(spaces[1], "a"), ObjectKey(spaces[1], "b")]


@case
async def a_list_of_a_kind_of_the_whole_cluster(world: World) -> None:
    mark = unique("mark")
    for number in (2, 1):
        await world.store.create(CLUSTER_WIDGET, widget(None, f"{mark}-{number}", labels={"mark": mark}))
    page = await world.store.list(CLUSTER_WIDGET, labels={"mark": mark})
    assert names(page) == [f"{mark}-1", f"{mark}-2"]
    assert {item.metadata.namespace for item in page.items} == {None}


@case
async def labels_select_objects_that_have_all_of_them(world: World) -> None:
    namespace = await world.namespace()
    for name, labels in {
        "none": {},
        "red": {"colour": "red"},
        "red-big": {"colour": "red", "size": "big"},
        "blue-big": {"colour": "blue", "size": "big"},
        "prefixed": {"example.com/colour": "red"},
        "empty": {"colour": ""},
    }.items():
        await world.store.create(WIDGET, widget(namespace, name, labels=labels))

    async def selected(**labels: str) -> list[str]:
        return names(await world.store.list(WIDGET, namespace=namespace, labels=labels))

    assert await selected(colour="red") == ["red", "red-big"]
    assert await selected(colour="red", size="big") == ["red-big"]
    assert await selected(size="big") == ["blue-big", "red-big"]
    assert await selected(colour="green") == []
    assert await selected(colour="") == ["empty"]
    assert await selected(**{"example.com/colour": "red"}) == ["prefixed"]
    assert len(await selected()) == 6


@case
async def labels_select_by_what_they_are_now(world: World) -> None:
    namespace = await world.namespace()
    for name in ("a", "b", "c"):
        await world.store.create(WIDGET, widget(namespace, name, labels={"colour": "red"}))
    await world.store.patch(WIDGET, ObjectKey(namespace, "b"), {"metadata": {"labels": {"colour": "blue"}}})
    await world.store.patch(WIDGET, ObjectKey(namespace, "c"), {"metadata": {"labels": {"colour": None}}})
    assert names(await world.store.list(WIDGET, namespace=namespace, labels={"colour": "red"})) == ["a"]
    assert names(await world.store.list(WIDGET, namespace=namespace, labels={"colour": "blue"})) == ["b"]


@case
async def a_list_is_typed_as_it_was_asked_for(world: World) -> None:
    namespace = await world.namespace()
    await make(world, namespace, size=7, unknown=1)
    [narrow] = (await world.store.list(NARROW, namespace=namespace)).items
    assert isinstance(narrow, Widget)
    assert narrow.spec.size == 7
    assert narrow == await world.store.get(NARROW, key_of(narrow))


# --- pages ------------------------------------------------------------------------------------------------------------


async def _seven(world: World) -> str:
    namespace = await world.namespace()
    await outcomes(
        *(
            world.store.create(WIDGET, widget(namespace, f"w{n}", labels={"odd": "no" if n % 2 == 0 else "yes"}, n=n))
            for n in range(7)
        )
    )
    return namespace


@case
async def pages_show_everything_once_in_order(world: World) -> None:
    namespace = await _seven(world)
    whole = names(await world.store.list(WIDGET, namespace=namespace))
    assert whole == [f"w{n}" for n in range(7)]
    for limit, sizes in ((1, [1] * 7), (2, [2, 2, 2, 1]), (3, [3, 3, 1]), (6, [6, 1]), (7, [7]), (8, [7])):
        pages = await every_page(world, WIDGET, limit, namespace=namespace)
        assert [len(page.items) for page in pages] == sizes
        assert [name for page in pages for name in names(page)] == whole
        assert len({page.resource_version for page in pages}) == 1


@case
async def pages_of_a_selection_show_all_of_it(world: World) -> None:
    namespace = await _seven(world)
    pages = await every_page(world, WIDGET, 1, namespace=namespace, labels={"odd": "yes"})
    assert [name for page in pages for name in names(page)] == ["w1", "w3", "w5"]


@case
async def pages_over_several_namespaces_show_everything_once(world: World) -> None:
    mark = unique("mark")
    wanted = []
    for _ in range(3):
        namespace = await world.namespace()
        for name in ("a", "b", "c"):
            made = await world.store.create(WIDGET, widget(namespace, name, labels={"mark": mark}))
            wanted.append(key_of(made))
    pages = await every_page(world, WIDGET, 2, labels={"mark": mark})
    assert sorted(key_of(item) for page in pages for item in page.items) == sorted(wanted)


@case
async def pages_show_one_moment_while_writes_go_on(world: World) -> None:
    namespace = await _seven(world)
    before = await world.store.list(WIDGET, namespace=namespace)
    first = await world.store.list(WIDGET, namespace=namespace, limit=2)
    await world.store.patch(WIDGET, ObjectKey(namespace, "w0"), {"spec": {"n": 100}})
    await world.store.patch(WIDGET, ObjectKey(namespace, "w3"), {"spec": {"n": 103}})
    await world.store.patch_status(WIDGET, ObjectKey(namespace, "w5"), {"phase": "Late"})
    await world.store.delete(WIDGET, ObjectKey(namespace, "w4"))
    await make(world, namespace, "w3-late")
    second = await world.store.list(WIDGET, namespace=namespace, limit=2, after=first.next)
    await world.store.delete(WIDGET, ObjectKey(namespace, "w6"))
    await make(world, namespace, "w9-late")
    third = await world.store.list(WIDGET, namespace=namespace, limit=10, after=second.next)
    shown = [item.body for page in (first, second, third) for item in page.items]
    assert shown == [item.body for item in before.items]
    assert third.next is None
    assert {second.resource_version, third.resource_version} == {first.resource_version}
    now = await world.store.list(WIDGET, namespace=namespace)
    assert names(now) == ["w0", "w1", "w2", "w3", "w3-late", "w5", "w9-late"]


@case
async def a_selection_over_pages_shows_the_labels_of_that_moment(world: World) -> None:
    namespace = await _seven(world)
    first = await world.store.list(WIDGET, namespace=namespace, labels={"odd": "yes"}, limit=1)
    await world.store.patch(WIDGET, ObjectKey(namespace, "w3"), {"metadata": {"labels": {"odd": "no"}}})
    await world.store.patch(WIDGET, ObjectKey(namespace, "w4"), {"metadata": {"labels": {"odd": "yes"}}})
    rest = await world.store.list(WIDGET, namespace=namespace, labels={"odd": "yes"}, limit=5, after=first.next)
    assert names(first) + names(rest) == ["w1", "w3", "w5"]


@case
async def a_watch_from_the_moment_of_the_pages_reports_what_they_do_not_show(world: World) -> None:
    namespace = await _seven(world)
    first = await world.store.list(WIDGET, namespace=namespace, limit=2)
    await world.store.delete(WIDGET, ObjectKey(namespace, "w6"))
    await make(world, namespace, "w0-late")
    rest = await world.store.list(WIDGET, namespace=namespace, limit=10, after=first.next)
    assert names(first) + names(rest) == [f"w{n}" for n in range(7)]
    seen = told(await changes_since(world, rest.resource_version, namespace))
    assert seen == [("DELETED", "w6"), ("ADDED", "w0-late")]


@case
async def a_page_asked_for_too_late_is_gone(world: World) -> None:
    namespace = await _seven(world)
    first = await world.store.list(WIDGET, namespace=namespace, limit=2)
    assert first.next is not None
    late = await world.age_page(first.next)
    with refused(GoneError):
        await world.store.list(WIDGET, namespace=namespace, limit=2, after=late)
    assert len(await every_page(world, WIDGET, 2, namespace=namespace)) == 4, "a new list begins anew"


@case
async def a_page_that_nobody_handed_out_is_refused(world: World) -> None:
    namespace = await _seven(world)
    with refused(InvalidError):
        await world.store.list(WIDGET, namespace=namespace, limit=2, after="nonsense")


@case
async def a_list_shows_what_was_just_written(world: World) -> None:
    namespace = await world.namespace()
    for number in range(10):
        await make(world, namespace, f"w{number}")
        assert len((await world.store.list(WIDGET, namespace=namespace)).items) == number + 1
    for number in range(10):
        await world.store.delete(WIDGET, ObjectKey(namespace, f"w{number}"))
        assert len((await world.store.list(WIDGET, namespace=namespace)).items) == 9 - number
