"""The admission policy of `deploy/components/hold-policy` on a real API server: what is held is deleted by nobody.

People are administrators here: the policy is not about rights.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import SystemClock
from lapse.domains import object_kinds
from lapse.engine.safety.holds import Hold, own_hold_of
from lapse.kube.api.client import KubeClient
from lapse.kube.auth.config import acting_as, load_config
from lapse.kube.resources import ObjectKey
from lapse.objects.holds.cluster import ListedDependants
from lapse.objects.holds.steering import ObjectPlace, Steering
from lapse.objects.kubernetes import KubernetesStore
from lapse.requests.api.kinds import OBJECT_KEEPER
from lapse.requests.api.upstream import CONFIG_MAP
from lapse.requests.lifecycle.keeper import keepers_of
from tests.integration.operator.deployed import POLICIES_USER, USER
from tests.servers import KubectlError, kube_server
from tests.servers.lapse_server import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import KubeServer

pytestmark = [pytest.mark.server("kube", private=True), pytest.mark.timeout(300)]
COMPONENT = Path(__file__).parents[3] / "deploy" / "components" / "hold-policy"
ANN, BOB = "ann", "bob"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def kube() -> Iterator[KubeServer]:
    with kube_server() as server:
        for name in ("policy.yaml", "binding.yaml"):
            server.kubectl("apply", "-f", str(COMPONENT / name))
        server.kubectl("create", "configmap", "probe")
        server.kubectl("annotate", "configmap", "probe", "lapse.dev/hold=true")
        until(lambda: refusal(server, ANN, "delete", "configmap", "probe", "--dry-run=server"))
        yield server


def as_person(kube: KubeServer, person: str, *words: str) -> str:
    return kube.kubectl(*words, f"--as={person}", "--as-group=system:masters")


def refusal(kube: KubeServer, person: str, *words: str) -> str:
    """Return why something is refused; empty if it is done."""
    try:
        as_person(kube, person, *words)
    except KubectlError as error:
        return str(error)
    return ""


def make(kube: KubeServer, name: str, *marks: str, owner: str = "") -> None:
    kube.kubectl("create", "configmap", name)
    if owner:
        uid = kube.kubectl("get", "configmap", owner, "-o", "jsonpath={.metadata.uid}")
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid}
        patch = json.dumps({"metadata": {"ownerReferences": [reference]}})
        kube.kubectl("patch", "configmap", name, "--type=merge", "-p", patch)
    if marks:
        kube.kubectl("annotate", "configmap", name, *marks)


def there(kube: KubeServer, name: str, *where: str) -> bool:
    return bool(kube.kubectl("get", "configmap", name, "--ignore-not-found", "-o", "name", *where))


def test_the_component_belongs_to_the_overlay_of_an_installation(kube: KubeServer, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    (overlay / "component").symlink_to(COMPONENT)
    (overlay / "kustomization.yaml").write_text("components: [./component]\n")
    built = kube.kubectl("kustomize", str(overlay), "--load-restrictor=LoadRestrictionsNone")
    assert "ValidatingAdmissionPolicyBinding" in built


def test_what_is_held_is_deleted_by_nobody_until_it_is_released(kube: KubeServer) -> None:
    make(kube, "one", "lapse.dev/hold=true", "lapse.dev/hold-reason=audit 7")
    assert "held (audit 7)" in refusal(kube, ANN, "delete", "configmap", "one")
    assert "held" in refusal(kube, ANN, "delete", "configmaps", "--field-selector=metadata.name=one")
    kube.kubectl("annotate", "configmap", "one", "lapse.dev/hold=false", "--overwrite")
    assert refusal(kube, ANN, "delete", "configmap", "one") == ""


def test_what_is_not_held_is_not_touched_by_it(kube: KubeServer) -> None:
    make(kube, "free")
    assert refusal(kube, ANN, "annotate", "configmap", "free", "a=b") == ""
    assert refusal(kube, ANN, "delete", "configmap", "free") == ""


def test_an_owner_with_a_note_of_held_dependants_is_deleted_by_nobody(kube: KubeServer) -> None:
    make(kube, "owner", 'lapse.dev/held-dependents=[{"uid":"u-1","object":"v1/ConfigMap/shop/a"}]')
    assert "v1/ConfigMap/shop/a" in refusal(kube, ANN, "delete", "configmap", "owner")
    kube.kubectl("annotate", "configmap", "owner", "lapse.dev/held-dependents-")
    assert refusal(kube, ANN, "delete", "configmap", "owner") == ""


def test_garbage_collection_does_not_take_what_is_held_of_a_kind_that_nobody_watches(kube: KubeServer) -> None:
    make(kube, "root")
    make(kube, "kept", "lapse.dev/hold=true", owner="root")
    make(kube, "taken", owner="root")
    kube.kubectl("delete", "configmap", "root")
    until(lambda: not there(kube, "taken"))
    assert there(kube, "kept")
    kube.kubectl("annotate", "configmap", "kept", "lapse.dev/hold-")
    until(lambda: not there(kube, "kept"), seconds=120)


@pytest.mark.parametrize("account", [USER, POLICIES_USER])
def test_lapse_itself_ends_what_was_held_because_it_has_a_clock(kube: KubeServer, account: str) -> None:
    name = account.rpartition(":")[2]
    make(kube, name, "lapse.dev/hold=true", "lapse.dev/hold-until=2020-01-01T00:00:00Z")
    assert refusal(kube, ANN, "delete", "configmap", name)
    assert refusal(kube, account, "delete", "configmap", name) == ""


def test_nobody_holds_in_the_name_of_somebody_else(kube: KubeServer) -> None:
    make(kube, "named")
    said = refusal(kube, BOB, "annotate", "configmap", "named", "lapse.dev/hold=true", "lapse.dev/hold-by=ann")
    assert "expected bob" in said
    assert refusal(kube, BOB, "annotate", "configmap", "named", "lapse.dev/hold=legal")
    assert refusal(kube, BOB, "annotate", "configmap", "named", "lapse.dev/hold=true", "lapse.dev/hold-by=bob") == ""
    assert refusal(kube, ANN, "label", "configmap", "named", "a=b") == "", "what is not about the hold"
    assert refusal(kube, USER, "annotate", "configmap", "named", "lapse.dev/hold-by=ann", "--overwrite") == ""


def test_nobody_prepares_a_hold_in_the_name_of_somebody_else(kube: KubeServer) -> None:
    make(kube, "prepared")
    forged = 'lapse.dev/hold-replaced={"lapse.dev/hold":"true","lapse.dev/hold-by":"ann"}'
    for mark in ("lapse.dev/hold-replaced=x", forged):
        assert "hold-replaced" in refusal(kube, BOB, "annotate", "configmap", "prepared", mark)
    legal = ("lapse.dev/hold=legal", "lapse.dev/hold-by=bob")
    assert "hold-replaced" in refusal(kube, BOB, "annotate", "configmap", "prepared", *legal, forged)
    own = ("lapse.dev/hold=true", "lapse.dev/hold-by=carl")
    assert refusal(kube, "carl", "annotate", "configmap", "prepared", *own) == ""
    assert "hold-replaced" in refusal(kube, BOB, "annotate", "configmap", "prepared", "--overwrite", *legal, forged)
    true = forged.replace("ann", "carl")
    assert refusal(kube, BOB, "annotate", "configmap", "prepared", "--overwrite", *legal, true) == ""
    back = ("lapse.dev/hold=true", "lapse.dev/hold-replaced-")
    said = refusal(kube, ANN, "annotate", "configmap", "prepared", "--overwrite", *back, "lapse.dev/hold-by=dora")
    assert "expected ann" in said, "only the person who held it before"
    carls = (*back, "lapse.dev/hold-by=carl")
    assert refusal(kube, ANN, "annotate", "configmap", "prepared", "--overwrite", *carls) == ""


def test_nobody_holds_by_the_name_that_an_older_hold_has_left(kube: KubeServer) -> None:
    make(kube, "left")
    assert refusal(kube, ANN, "annotate", "configmap", "left", "lapse.dev/hold=true", "lapse.dev/hold-by=ann") == ""
    assert refusal(kube, ANN, "annotate", "configmap", "left", "lapse.dev/hold-") == ""
    assert "expected bob" in refusal(kube, BOB, "annotate", "configmap", "left", "lapse.dev/hold=true")
    assert refusal(kube, BOB, "label", "configmap", "left", "a=b") == ""


def test_a_legal_hold_is_released_by_another_person_only_and_changed_by_nobody(kube: KubeServer) -> None:
    make(kube, "case")
    assert refusal(kube, ANN, "annotate", "configmap", "case", "lapse.dev/hold=legal", "lapse.dev/hold-by=ann") == ""
    release = ("annotate", "configmap", "case", "lapse.dev/hold-", "lapse.dev/hold-by-")
    assert "legal hold of ann" in refusal(kube, ANN, *release)
    end, replaced = "lapse.dev/hold-until=2030-01-01T00:00:00Z", "lapse.dev/hold-replaced=x"
    for change in ("lapse.dev/hold=true", "lapse.dev/hold-reason=none", "lapse.dev/hold-by=carl", end, replaced):
        assert refusal(kube, ANN, "annotate", "configmap", "case", change, "--overwrite")
    assert refusal(kube, BOB, "annotate", "configmap", "case", "lapse.dev/hold-by=bob", "--overwrite")
    assert refusal(kube, ANN, "annotate", "configmap", "case", "note=mine") == ""
    assert refusal(kube, ANN, "delete", "configmap", "case")
    assert refusal(kube, BOB, "delete", "configmap", "case")
    assert refusal(kube, BOB, *release) == ""
    assert refusal(kube, ANN, "delete", "configmap", "case") == ""


def test_a_namespace_with_a_legal_hold_in_it_stays_terminating_until_it_is_released(kube: KubeServer) -> None:
    kube.kubectl("create", "namespace", "old")
    kube.kubectl("create", "configmap", "case", "-n", "old")
    marks = ("lapse.dev/hold=legal", "lapse.dev/hold-by=ann")
    as_person(kube, ANN, "annotate", "configmap", "case", "-n", "old", *marks)
    kube.kubectl("delete", "namespace", "old", "--wait=false")
    until(lambda: kube.kubectl("get", "namespace", "old", "-o", "jsonpath={.status.phase}") == "Terminating")
    assert there(kube, "case", "-n", "old")
    as_person(kube, BOB, "annotate", "configmap", "case", "-n", "old", "lapse.dev/hold-", "lapse.dev/hold-by-")
    until(lambda: not kube.kubectl("get", "namespace", "old", "--ignore-not-found", "-o", "name"), seconds=120)


async def test_what_lapse_writes_for_people_passes_the_policy(kube: KubeServer) -> None:
    """Ann holds a keeper with an artifact that Carl holds; Bob releases it, and Carl's hold is back."""
    admin = store_of(kube, "carl")
    spec = {"mode": "TTL", "ttl": "9999h"}
    made = await admin.create(OBJECT_KEEPER, {"metadata": {"name": "kept"}, "spec": spec})
    keeper = ObjectPlace(OBJECT_KEEPER, ObjectKey(None, "kept"), made.metadata.uid)
    owner = {"apiVersion": OBJECT_KEEPER.api_version, "kind": OBJECT_KEEPER.kind, "name": "kept", "uid": keeper.uid}
    metadata = {"name": "artifact", "namespace": "default", "ownerReferences": [owner]}
    below = await admin.create(CONFIG_MAP, {"metadata": metadata})
    artifact = ObjectPlace(CONFIG_MAP, below.metadata.key, below.metadata.uid)
    legal, own = Hold("case 7", None, ANN, is_legal=True), Hold("mine", None, "carl")

    await steering(admin).hold(artifact, own)
    ann, bob = store_of(kube, ANN), store_of(kube, BOB)
    await steering(ann).hold(keeper, legal)
    for one in (keeper, artifact):
        assert own_hold_of((await admin.get(one.kind, one.key)).metadata.annotations) == legal
    assert refusal(kube, BOB, "delete", "objectkeeper", "kept")
    await steering(bob).release(keeper, by=BOB)
    assert own_hold_of((await admin.get(artifact.kind, artifact.key)).metadata.annotations) == own
    assert "owns objects that are held" in refusal(kube, BOB, "delete", "objectkeeper", "kept")
    await steering(bob).release(artifact, by=BOB)
    assert refusal(kube, BOB, "delete", "objectkeeper", "kept") == ""
    for store in (admin, ann, bob):
        await store.close()


def store_of(kube: KubeServer, person: str) -> KubernetesStore:
    config = acting_as(load_config(file=kube.kubeconfig, environ={}), person)
    config = replace(config, user=replace(config.user, groups=("system:masters",)))
    return KubernetesStore(KubeClient(config), kinds=object_kinds())


def steering(store: KubernetesStore) -> Steering:
    listed = ListedDependants(store, [CONFIG_MAP], clock=SystemClock())
    return Steering(store, dependants=listed, followers=keepers_of(store), clock=SystemClock())
