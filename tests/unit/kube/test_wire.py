from __future__ import annotations

import pytest

from lapse.kube.api.wire import address, is_api_version
from lapse.kube.errors import InvalidError
from lapse.kube.resources import ObjectKey, untyped

POD = untyped("v1", "Pod", "pods")
NODE = untyped("v1", "Node", "nodes", namespaced=False)


@pytest.mark.parametrize("name", ["", ".", "..", "x/status", "a/../b", "x%2Fstatus", "x\n"])
def test_a_name_that_means_another_address_is_refused(name: str) -> None:
    with pytest.raises(InvalidError):
        address(POD, ObjectKey("shop", name))
    with pytest.raises(InvalidError):
        address(POD, ObjectKey(name, "web"))
    with pytest.raises(InvalidError):
        address(NODE, ObjectKey(None, name))


@pytest.mark.parametrize("name", ["web", "system:node", "Web_1", "a.b"])
def test_a_name_that_an_object_can_have_is_one_segment(name: str) -> None:
    assert (
        address(POD, ObjectKey("shop", name)).count("/") == len(["", "api", "v1", "namespaces", "shop", "pods", ""]) - 1
    )


def test_a_namespace_is_there_exactly_for_kinds_that_have_one() -> None:
    for kind, key in ((POD, ObjectKey(None, "web")), (NODE, ObjectKey("shop", "web"))):
        with pytest.raises(InvalidError):
            address(kind, key)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("v1", True),
        ("apps/v1", True),
        ("storage.deckhouse.io/v1alpha1", True),
        ("", False),
        ("v1/namespaces/shop", False),
        ("../v1", False),
        ("apps/v1?watch=1", False),
        ("apps/", False),
    ],
)
def test_what_is_no_group_and_version_is_no_address(text: str, *, is_one: bool) -> None:
    assert is_api_version(text) is is_one
