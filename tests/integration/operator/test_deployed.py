"""`deploy/base` at work: its rights are enough for all that the operator does, and none is for nothing.

What the operator asked for is told by the API server, in its audit log.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, Execution, ExperimentRef, HistorySpec
from lapse.history.policy.rbac import NEEDED as NEEDED_BY_HISTORY
from lapse.history.policy.rbac import NEEDED_BY_ACCOUNT
from lapse.history.records import record
from lapse.kube.auth.access import Right
from lapse.kube.controller.lease import LEASE
from lapse.requests.admission import NEEDED, NEEDED_BY_BRIDGE, rights_on_gate, rights_on_lease
from lapse.requests.api.kinds import LAPSE
from lapse.requests.controllers.caches import WATCHED
from lapse.requests.lifecycle.policy import TTLMode
from tests.integration.operator.audit import Audit
from tests.integration.operator.deployed import NAMESPACE, POLICIES_USER, USER, apply_base, start_operator
from tests.servers import Relay, kube_server
from tests.servers.kube.csi import CLASS
from tests.servers.lapse_server import PLAIN, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.operator.conftest import Operator
    from tests.servers import KubeServer

pytestmark = [pytest.mark.server("kube", private=True), pytest.mark.timeout(300)]
Json = dict[str, Any]
STORAGE, STATE, SNAPSHOTS = (
    "storage.deckhouse.io/v1alpha1",
    "state-snapshotter.deckhouse.io/v1alpha1",
    "snapshot.storage.k8s.io/v1",
)
HELD = {"lapse.dev/hold": "true"}
WAIT = "--timeout=50s"
NOBODY = "00000000-0000-4000-8000-000000000000"
MISTAKEN: list[tuple[str, str, Json]] = [
    (
        STORAGE,
        "VolumeCaptureRequest",
        {
            "mode": "Snapshot",
            "target": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "none", "uid": NOBODY},
        },
    ),
    (
        STORAGE,
        "VolumeRestoreRequest",
        {
            "sourceRef": {"apiVersion": SNAPSHOTS, "kind": "VolumeSnapshotContent", "name": "none"},
            "pvcTemplate": {"metadata": {"name": "none"}},
        },
    ),
    (STATE, "ManifestCaptureRequest", {"targets": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "none"}]}),
]
"""Requests that end at once, because what they name is not there."""
EVERYBODY = {Right("create", "authorization.k8s.io", "selfsubjectaccessreviews")}
"""What any authenticated user may, by the roles that a cluster is born with."""
GIVEN_LATER = {Right("get", "", "configmaps")}
"""What the administrator allows to be captured, by a role with a label."""
BY_CHANCE = {("get", kind.plural): "past a cache that is behind" for kind in WATCHED} | {
    ("get", "volumesnapshots"): "past a cache that is behind",
    ("patch", "events"): "told again within minutes",
    ("get", "retentionpolicies"): "one that is changed during its pass",
    ("patch", "volumesnapshotcontents"): "a snapshotter that overlooks a deletion (test_chain)",
    ("get", "chaosexperimenthistories"): "a record whose keeper is about to go (test_holds)",
    ("patch", "chaosexperimenthistories"): "a hold on one whose end has passed (test_holds)",
    ("patch", "captureschedules"): "a hold on one, or on what it owns, whose end has passed (test_holds)",
    ("patch", "manifestcheckpointcontentchunks"): "a hold on one whose end has passed (test_holds)",
    ("list", "events"): "a claim that waits long for its provisioner (test_events)",
}
"""What the operator needs only at moments that a test cannot bring about, and why."""


def rights_used(audit: Audit, acting_as: str | None = None) -> set[Right]:
    """What it took to be answered, without those that nobody need give; by itself, or acting as another account."""
    events = [event for event in audit.events(user=USER) if "objectRef" in event]
    used = {_right(event) for event in events if event.get("impersonatedUser", {}).get("username") == acting_as}
    return used - EVERYBODY - GIVEN_LATER


def _right(event: Json) -> Right:
    about = event["objectRef"]
    group, resource, part = (about.get(name, "") for name in ("apiGroup", "resource", "subresource"))
    # The roles give these in one namespace; other ConfigMaps are what is captured.
    shared = resource == LEASE.plural or (resource, about.get("namespace")) == ("configmaps", NAMESPACE)
    return Right(event["verb"], group, resource, part, about.get("namespace") if shared else None)


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    return Audit(tmp_path_factory.mktemp("audit"))


@pytest.fixture(scope="module")
def kube(audit: Audit) -> Iterator[KubeServer]:
    with kube_server(csi=True, apiserver_flags=audit.flags) as server:
        apply_base(server)
        rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}
        label = {"lapse.dev/aggregate-to-manifest-reader": "true"}
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": [rule]}
        create(server, {**role, "metadata": {"name": "capture-configmaps", "labels": label}})
        server.kubectl("wait", "clusterrole/lapse-manifest-reader", "--for=jsonpath={.rules[0].verbs[0]}=get", WAIT)
        yield server


# --- steps ------------------------------------------------------------------------------------------------------------


def create(kube: KubeServer, manifest: Json) -> Json:
    made: Json = json.loads(kube.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(manifest)))
    return made


def get(kube: KubeServer, what: str, namespace: str = "default") -> Json:
    found: Json = json.loads(kube.kubectl("get", what, "-n", namespace, "-o", "json"))
    return found


def make_claim(kube: KubeServer, name: str) -> Json:
    """A claim of the driver's with a volume."""
    spec = {"storageClassName": CLASS, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    create(kube, {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec})
    kube.kubectl("wait", f"pvc/{name}", "--for=jsonpath={.status.phase}=Bound", WAIT)
    return get(kube, f"pvc/{name}")


def request(kube: KubeServer, kind: str, name: str, spec: Json, *, group: str = STORAGE) -> None:
    """Ask for something that stays until it is let go."""
    meta = {"name": name, "annotations": HELD}
    create(kube, {"apiVersion": group, "kind": kind, "metadata": meta, "spec": spec})


def completed(kube: KubeServer, what: str) -> Json:
    kube.kubectl("wait", what, "--for=condition=Ready", WAIT)
    return get(kube, what)


def capture(kube: KubeServer, name: str, claim: Json, *, mode: str = "Snapshot") -> Json:
    meta = claim["metadata"]
    target = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": meta["name"], "uid": meta["uid"]}
    request(kube, "VolumeCaptureRequest", name, {"mode": mode, "target": target})
    return completed(kube, f"vcr/{name}")


def restore(kube: KubeServer, name: str, content: Json) -> Json:
    """Ask for a restore; of the class it is not known what was captured, so the operator looks for the only one."""
    kube.kubectl("annotate", f"volumesnapshotcontent/{content['metadata']['name']}", "lapse.dev/source-class-")
    source = {"apiVersion": SNAPSHOTS, "kind": "VolumeSnapshotContent", "name": content["metadata"]["name"]}
    request(kube, "VolumeRestoreRequest", name, {"sourceRef": source, "pvcTemplate": {"metadata": {"name": name}}})
    return completed(kube, f"vrr/{name}")


def detach(kube: KubeServer, name: str) -> Json:
    claim = make_claim(kube, name)
    keep = {"spec": {"persistentVolumeReclaimPolicy": "Retain"}}
    kube.kubectl("patch", "pv", claim["spec"]["volumeName"], "--type=merge", "-p", json.dumps(keep))
    return capture(kube, name, claim, mode="Detach")


def capture_manifests(kube: KubeServer, name: str) -> Json:
    create(kube, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}})
    targets = [{"apiVersion": "v1", "kind": "ConfigMap", "name": name}]
    request(kube, "ManifestCaptureRequest", name, {"targets": targets}, group=STATE)
    return completed(kube, f"mcr/{name}")


def schedule(kube: KubeServer, name: str, template: Json) -> None:
    spec = {"schedule": "* * * * *", "template": template, "keep": {"last": 1}}
    create(kube, {"apiVersion": LAPSE, "kind": "CaptureSchedule", "metadata": {"name": name}, "spec": spec})


def schedules(kube: KubeServer) -> None:
    """Let a volume and a manifest be captured by the minute."""
    make_claim(kube, "scheduled")
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "scheduled"}
    schedule(kube, "volumes", {"volumeCapture": {"mode": "Snapshot", "target": claim}})
    create(kube, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "scheduled"}, "data": {"a": "b"}})
    target = {"apiVersion": "v1", "kind": "ConfigMap", "name": "scheduled"}
    schedule(kube, "maps", {"manifestCapture": {"targets": [target]}})


def has_run(kube: KubeServer, name: str) -> bool:
    return bool(get(kube, f"csched/{name}").get("status", {}).get("lastSuccessfulTime"))


def record_runs(kube: KubeServer, count: int) -> None:
    kube.kubectl("create", "namespace", "chaos-system")
    for number in range(count):
        ref = ExperimentRef(name="kill", namespace="default", uid=NOBODY)
        execution = Execution(start_time=f"2030-01-01T00:00:0{number}Z", status="success")
        made = record(HistorySpec(experiment_ref=ref, execution=execution), namespace="chaos-system")
        create(kube, CHAOS_EXPERIMENT_HISTORY.body(made))


def let_go(kube: KubeServer, *what: str) -> None:
    for one in what:
        kube.kubectl("annotate", one, "lapse.dev/hold-")
    for one in what:
        kube.kubectl("wait", one, "--for=delete", WAIT)


def is_gone(kube: KubeServer, what: str) -> bool:
    return not kube.kubectl("get", what, "--ignore-not-found")


# --- tests ------------------------------------------------------------------------------------------------------------


def test_the_deployed_rights_are_enough_for_all_that_the_operator_does_and_each_is_used(
    kube: KubeServer, audit: Audit, tmp_path: Path
) -> None:
    first = start_operator(kube, tmp_path)  # publishes its policy of records, and the next one changes it
    try:
        until(lambda: not is_gone(kube, "retentionpolicy/history"))
    finally:
        first.stop()
    times = ("--request-ttl=2s", "--keeper-ttl=2s", "--trash-ttl=5s")
    flags = (*times, "--restore-ownership=keeper", "--schedule-manifests=admitted")
    operator = start_operator(kube, tmp_path, *flags, "--history-retention-limit=1", "--history-ttl=720h")
    try:
        schedules(kube)
        captured = capture(kube, "nightly", make_claim(kube, "data"))
        content = get(kube, f"volumesnapshotcontent/{captured['status']['artifactRef']['name']}")
        restored = restore(kube, "restored", content)
        detached = detach(kube, "detached")
        manifests = capture_manifests(kube, "settings")
        owners = get(kube, "pvc/restored")["metadata"]["ownerReferences"]
        assert [owner["name"] for owner in owners] == [f"ret-vrr-{restored['metadata']['uid']}"]
        assert is_gone(kube, "pvc/detached")

        let_go(kube, "vcr/nightly", "vrr/restored", "vcr/detached", "mcr/settings")
        made = [
            f"volumesnapshotcontent/{content['metadata']['name']}",
            "pvc/restored",
            f"manifestcheckpoint/{manifests['status']['checkpointName']}",
            f"pv/{detached['status']['artifactRef']['name']}",
        ]
        until(lambda: all(is_gone(kube, one) for one in made))
        until(lambda: has_run(kube, "volumes") and has_run(kube, "maps"), seconds=150)
        kube.kubectl("delete", "csched", "--all")
        until(lambda: is_gone(kube, "objectkeepers"))
        record_runs(kube, 2)
        until(lambda: len(json.loads(kube.kubectl("get", "cehist", "-A", "-o", "json"))["items"]) == 1)
    finally:
        operator.stop()
    answers = [(event["requestURI"], event["responseStatus"]["code"]) for event in audit.events(user=USER)]
    assert [uri for uri, code in answers if code == 403] == []
    assert [line for line in operator.log if '"level": "warning"' in line or '"level": "error"' in line] == []

    # Those of the roles: see tests/unit/deploy.
    granted = {*NEEDED, *NEEDED_BY_BRIDGE, *NEEDED_BY_HISTORY, *rights_on_lease(NAMESPACE), *rights_on_gate(NAMESPACE)}
    assert rights_used(audit) - granted == set()
    assert {right for right in granted - rights_used(audit) if (right.verb, right.resource) not in BY_CHANCE} == set()
    # As the account for policies, and as nobody else, it does what that account may.
    assert rights_used(audit, POLICIES_USER) == set(NEEDED_BY_ACCOUNT)
    others = {event["impersonatedUser"]["username"] for event in audit.events(user=USER) if "impersonatedUser" in event}
    assert others == {POLICIES_USER}


def test_probes_of_an_operator_that_talks_to_its_cluster_cost_no_call(
    kube: KubeServer, audit: Audit, tmp_path: Path
) -> None:
    operator = start_operator(kube, tmp_path)
    try:
        until(lambda: is_ready(operator))
        assert all(is_ready(operator) for _ in range(20))
    finally:
        operator.stop()
    paths = [event["requestURI"] for event in audit.events(user=USER)]
    assert paths.count("/readyz") < 10  # none, unless the machine stood still for as long as an answer counts


def test_an_operator_whose_cluster_falls_silent_is_not_ready_until_it_speaks_again(
    kube: KubeServer, tmp_path: Path
) -> None:
    with Relay(kube.port) as relay:
        operator = start_operator(kube, tmp_path, url=f"https://127.0.0.1:{relay.port}")
        try:
            until(lambda: is_ready(operator))
            relay.silence()
            until(lambda: not is_ready(operator))
            relay.speak()
            until(lambda: is_ready(operator))
        finally:
            operator.stop()


def is_ready(operator: Operator) -> bool:
    return httpx2.get(f"{operator.probes}/readyz", trust_env=False, verify=PLAIN).status_code == 200


@pytest.mark.parametrize("mode", TTLMode)
def test_kubectl_shows_when_each_finished_request_goes(mode: TTLMode, kube: KubeServer, tmp_path: Path) -> None:
    space = f"expires-{mode}"
    kube.kubectl("create", "namespace", space)
    operator = start_operator(kube, tmp_path, "--request-ttl=1h", f"--request-ttl-mode={mode}")
    try:
        for name, annotations in (("plain", {}), ("own", {"storage.deckhouse.io/ttl": "3h"})):
            meta = {"name": name, "namespace": space, "annotations": annotations}
            for group, kind, spec in MISTAKEN:
                create(kube, {"apiVersion": group, "kind": kind, "metadata": meta, "spec": spec})
        for short in ("vcr", "vrr", "mcr"):
            ready = "--for=jsonpath={.status.conditions[?(@.type=='Ready')].status}=False"
            kube.kubectl("wait", short, "--all", "-n", space, ready, WAIT)
            for row in table(kube, "get", short, "-n", space):
                assert (row["READY"], row["REASON"]) == ("False", "NotFound")
                found = get(kube, f"{short}/{row['NAME']}", space)["status"]["completionTimestamp"]
                hours = 3 if mode is TTLMode.ANNOTATION and row["NAME"] == "own" else 1
                lasts = datetime.fromisoformat(row["EXPIRES"]) - datetime.fromisoformat(found)
                assert (row["NAME"], lasts) == (row["NAME"], timedelta(hours=hours))
    finally:
        operator.stop()


def table(kube: KubeServer, *command: str) -> list[dict[str, str]]:
    """What kubectl shows, which is what the API server made of the definition's columns."""
    header, *lines = kube.kubectl(*command).splitlines()
    starts = [column.start() for column in re.finditer(r"\S+", header)]
    ends = [*starts[1:], None]
    return [
        {header[start:end].strip(): line[start:end].strip() for start, end in zip(starts, ends, strict=True)}
        for line in lines
    ]
