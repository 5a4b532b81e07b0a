from __future__ import annotations

from lapse.kube.controller.informer import Index
from tests.unit.kube.scripted import Thing, names, thing


def test_a_value_that_no_object_has_any_more_takes_no_room() -> None:
    index: Index[Thing] = Index(lambda obj: [obj.metadata.uid, obj.metadata.name])
    for number in range(100):
        index.replace(None, thing("a", 1, uid=str(number)))
        index.replace(thing("a", 1, uid=str(number)), None)

    assert len(index) == 0


def test_an_object_is_found_by_each_of_its_values() -> None:
    index: Index[Thing] = Index(lambda obj: obj.owner.split())
    index.replace(None, thing("a", 1, owner="x y"))
    index.replace(None, thing("b", 1, owner="y"))
    index.replace(thing("a", 1, owner="x y"), thing("a", 2, owner="y z"))

    assert index.find("x") == []
    assert names(index.find("y")) == ["a", "b"]
    assert index.find("z") == [thing("a", 2, owner="y z")]


def test_what_was_returned_does_not_change_with_the_index() -> None:
    index: Index[Thing] = Index(lambda obj: [obj.owner])
    index.replace(None, thing("a", 1, owner="x"))
    found = index.find("x")
    index.replace(thing("a", 1, owner="x"), None)

    assert found == [thing("a", 1, owner="x")]
