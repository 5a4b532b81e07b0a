"""``lapse webhook`` asked by a real API server about volumes, by people with the roles of ``deploy/users``."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from lapse.core.identity import uuid
from lapse.requests.api.kinds import MANIFEST_CAPTURE_REQUEST, REQUEST_KINDS, VOLUME_CAPTURE_REQUEST
from tests.integration.webhook.conftest import DEPLOY, documents
from tests.servers.kube.server import KubectlError
from tests.servers.lapse_server import until

if TYPE_CHECKING:
    from tests.integration.webhook.conftest import Harness, Json, Webhook

pytestmark = pytest.mark.server("kube")
(CAPTURER,) = documents(DEPLOY / "users" / "capturer.yaml")
RESTORER, SOURCE_READER = documents(DEPLOY / "users" / "restorer.yaml")
OPERATOR, *_ = documents(DEPLOY / "base" / "cluster-role.yaml")
STORAGE = "storage.deckhouse.io"
LOOKING = {"apiGroups": [STORAGE], "resources": ["volumecapturerequests/status"], "verbs": ["get"]}
"""What kubectl does before it patches a status, and the operator does not."""
DENIED = 'admission webhook "requests.lapse.dev" denied the request: '
SNAPSHOT = ("snapshot.storage.k8s.io/v1", "VolumeSnapshotContent")
VOLUME = ("v1", "PersistentVolume")


def tenant(name: str) -> str:
    """A user whom the shared API server has never heard of."""
    return f"{name}-{uuid()}"


def capture(harness: Harness, user: str, claim: str, mode: str) -> str:
    """Ask for a capture; return what kubectl says, of success or of failure."""
    target = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim, "uid": "1"}
    return said(harness, user, "VolumeCaptureRequest", {"mode": mode, "target": target})


def restore(harness: Harness, user: str, kind: tuple[str, str], name: str) -> str:
    source = dict(zip(("apiVersion", "kind", "name"), (*kind, name), strict=True))
    spec = {"sourceRef": source, "pvcTemplate": {"metadata": {"name": "restored"}}}
    return said(harness, user, "VolumeRestoreRequest", spec)


def said(harness: Harness, user: str, kind: str, spec: Json) -> str:
    try:
        return harness.create(STORAGE, kind, spec, f"--as={user}")
    except KubectlError as error:
        return str(error)


def requests(harness: Harness, kind: str) -> int:
    return len(harness.kube.kubectl("get", f"{kind}.{STORAGE}", "-n", harness.name, "-o", "name").split())


def test_a_claim_is_detached_only_by_whoever_may_delete_it(harness: Harness, webhook: Webhook) -> None:
    ann = tenant("ann")
    harness.give(ann, CAPTURER)
    until(lambda: "created" in capture(harness, ann, "data", "Snapshot"))

    before = requests(harness, "volumecapturerequests")
    answer = capture(harness, ann, "data", "Detach")
    missing = f"{ann} may not delete persistentvolumeclaims/data in {harness.name}"
    assert f"{DENIED}{missing}; a Detach deletes the claim, so its author must be allowed to" in answer
    assert "Forbidden" in answer
    assert requests(harness, "volumecapturerequests") == before

    one = {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "resourceNames": ["data"], "verbs": ["delete"]}
    harness.allow({"kind": "User", "name": ann}, one)
    until(lambda: "created" in capture(harness, ann, "data", "Detach"))
    assert f"{DENIED}{ann} may not delete persistentvolumeclaims/other" in capture(harness, ann, "other", "Detach")
    assert requests(harness, "volumecapturerequests") == before + 1
    assert webhook.event("request_denied") is not None


def test_who_writes_a_schedule_is_asked_for_what_its_captures_take_also_when_it_is_changed(
    harness: Harness, webhook: Webhook
) -> None:
    ann = tenant("ann")
    harness.give(ann, CAPTURER)
    target = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data"}
    template: Json = {"volumeCapture": {"mode": "Snapshot", "target": target}}
    body = {
        "apiVersion": "lapse.dev/v1alpha1",
        "kind": "CaptureSchedule",
        "metadata": {"name": "nightly", "namespace": harness.name},
        "spec": {"schedule": "0 3 * * *", "template": template, "keep": {"last": 1}, "suspend": True},
    }

    def applied(**spec: object) -> str:
        changed = {**body, "spec": {**body["spec"], **spec}}  # type: ignore[dict-item]  # a document
        try:
            return harness.kube.kubectl("apply", "-f", "-", f"--as={ann}", stdin=json.dumps(changed))
        except KubectlError as error:
            return str(error)

    until(lambda: "nightly" in (answer := applied()) and "rror" not in answer)
    manifests = {"manifestCapture": {"targets": [{"apiVersion": "v1", "kind": "Secret", "name": "password"}]}}
    answer = applied(template={**manifests, "volumeCapture": None})
    assert f"{DENIED}{ann} may not get secrets/password in {harness.name}" in answer
    assert "configured" in applied(schedule="0 4 * * *")
    assert webhook.event("request_denied") is not None


def test_a_claim_that_one_may_not_read_is_not_captured(harness: Harness, webhook: Webhook) -> None:
    ann = tenant("ann")
    harness.give(ann, {**CAPTURER, "rules": [rule for rule in CAPTURER["rules"] if rule["apiGroups"] == [STORAGE]]})

    until(lambda: DENIED in capture(harness, ann, "data", "Snapshot"))
    answer = capture(harness, ann, "data", "Snapshot")
    assert f"{ann} may not get persistentvolumeclaims/data in {harness.name}; a capture may name only what" in answer


@pytest.mark.parametrize(
    ("kind", "resource"),
    [(SNAPSHOT, "volumesnapshotcontents.snapshot.storage.k8s.io"), (VOLUME, "persistentvolumes")],
    ids=["snapshot", "volume"],
)
def test_a_source_is_restored_only_by_whoever_may_read_it(
    harness: Harness, webhook: Webhook, kind: tuple[str, str], resource: str
) -> None:
    ann = tenant("ann")
    harness.give(ann, RESTORER)
    harness.give(ann, SOURCE_READER)  # in a namespace, where it says nothing about what has none
    until(lambda: DENIED in restore(harness, ann, kind, "one"))

    before = requests(harness, "volumerestorerequests")
    missing = f"{ann} may not get {resource}/one in the whole cluster"
    answer = restore(harness, ann, kind, "one")
    assert f"{DENIED}{missing}; a restore may name only a source that its author may read" in answer
    assert requests(harness, "volumerestorerequests") == before

    harness.give(ann, SOURCE_READER, everywhere=True)
    until(lambda: "created" in restore(harness, ann, kind, "one"))
    assert requests(harness, "volumerestorerequests") == before + 1


def test_one_source_can_be_granted_by_its_name(harness: Harness, webhook: Webhook) -> None:
    ann = tenant("ann")
    harness.give(ann, RESTORER)
    rules = [{**rule, "resourceNames": ["granted"]} for rule in SOURCE_READER["rules"]]
    harness.give(ann, {**SOURCE_READER, "rules": rules}, everywhere=True)

    until(lambda: "created" in restore(harness, ann, SNAPSHOT, "granted"))
    assert DENIED in restore(harness, ann, SNAPSHOT, "other")


def test_the_operator_writes_and_ends_requests_without_being_judged(harness: Harness, webhook: Webhook) -> None:
    """What the operator does goes on while no webhook answers; people create nothing then."""
    ann, operator = tenant("ann"), tenant("operator")
    harness.give(ann, CAPTURER)
    harness.give(operator, {**OPERATOR, "rules": [*OPERATOR["rules"], LOOKING]})
    second = harness.launch()
    try:
        until(lambda: "created" in capture(harness, ann, "data", "Snapshot"))
        harness.configure(second.url, "second")
        second.stop(signal.SIGKILL)
        assert 'failed calling webhook "second.lapse.dev"' in capture(harness, ann, "data", "Snapshot")
        made = {kind for kind in REQUEST_KINDS if may_create(harness, operator, f"{kind.plural}.{kind.group}")}
        assert made == {VOLUME_CAPTURE_REQUEST, MANIFEST_CAPTURE_REQUEST}, "runs of schedules, which were judged"

        names = f"volumecapturerequests.{STORAGE}", "-n", harness.name, "-o", "name"
        name = harness.kube.kubectl("get", *names).split()[0]
        us = ("-n", harness.name, f"--as={operator}")
        status = json.dumps({"status": {"observedGeneration": 1}})
        harness.kube.kubectl("annotate", name, "storage.deckhouse.io/ttl=10m", *us)
        harness.kube.kubectl("patch", name, "--subresource=status", "--type=merge", "-p", status, *us)
        harness.kube.kubectl("delete", name, *us)
        assert name not in harness.kube.kubectl("get", *names)
    finally:
        harness.forget("second")
        second.stop()


def may_create(harness: Harness, user: str, resource: str) -> bool:
    try:
        return "yes" in harness.kube.kubectl("auth", "can-i", "create", resource, "-n", harness.name, f"--as={user}")
    except KubectlError:
        return False  # how kubectl says no
