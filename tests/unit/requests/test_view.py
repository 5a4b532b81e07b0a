from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.duration import Duration
from lapse.core.timestamps import from_timestamp
from lapse.engine.safety.extensions import EXTENDED_UNTIL
from lapse.engine.view import to_json
from lapse.kube.resources import ObjectKey
from lapse.requests.addresses import Located
from lapse.requests.api.kinds import MANIFEST_CAPTURE_REQUEST, OBJECT_KEEPER, TTL, VOLUME_CAPTURE_REQUEST
from lapse.requests.api.upstream import (
    CONFIG_MAP,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    STORAGE_CLASS,
    VOLUME_SNAPSHOT_CONTENT,
)
from lapse.requests.lifecycle.policy import TTLRule
from lapse.requests.view import ObjectView, ReadyState, view_of

if TYPE_CHECKING:
    from lapse.kube.resources import Kind

NOON = from_timestamp("2030-01-01T12:00:00Z") or 0
SECOND = 1_000_000_000
SCANNER = TTLRule(Duration.parse("10m"), annotated=False)
ANNOTATION = TTLRule(Duration.parse("10m"))
SPEC = {"mode": "Snapshot", "target": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data", "uid": "u"}}
KEEPER_OWNER = {
    "apiVersion": "deckhouse.io/v1alpha1",
    "kind": "ObjectKeeper",
    "name": "k",
    "uid": "1",
    "controller": True,
}


def look(
    kind: Kind[Any], *, rule: TTLRule = SCANNER, meta: dict[str, Any] | None = None, **parts: object
) -> ObjectView:
    metadata = {"name": "x", **({"namespace": "default"} if kind.namespaced else {}), "uid": "1", **(meta or {})}
    return view_of(kind, kind.convert({"metadata": metadata, **parts}), now=NOON, rule=rule)


def capture(
    *, ready: str | None = "True", reason: str = "Completed", rule: TTLRule = SCANNER, **meta: object
) -> ObjectView:
    condition = {"type": "Ready", "status": ready, "reason": reason, "message": "m"}
    status = {"conditions": [condition], "completionTimestamp": "2030-01-01T11:59:00Z"} if ready else None
    return look(VOLUME_CAPTURE_REQUEST, rule=rule, meta=meta, spec=SPEC, status=status)


def keeper(status: dict[str, Any] | None = None, **spec: object) -> ObjectView:
    follow = {"apiVersion": VOLUME_CAPTURE_REQUEST.api_version, "kind": "VolumeCaptureRequest", "namespace": "default",
              "name": "nightly", "uid": "u"}  # fmt: skip
    return look(OBJECT_KEEPER, spec={"followObjectRef": follow, **spec}, status=status)


@pytest.mark.parametrize(
    ("view", "state", "expires"),
    [
        (capture(), ReadyState(True, "Completed", "m"), "in 9m"),
        (capture(ready="False", reason="NotFound"), ReadyState(False, "NotFound", "m"), "in 9m"),
        (capture(ready="False", reason="Running"), ReadyState(None, "Running", "m"), ""),
        (capture(ready="Perhaps", reason="Odd"), ReadyState(None, "Odd", "m"), ""),
        (capture(ready=None), ReadyState(), ""),
        (capture(rule=TTLRule(Duration.parse("never"))), ReadyState(True, "Completed", "m"), "never"),
        (capture(rule=TTLRule(Duration.parse("30s"))), ReadyState(True, "Completed", "m"), "now"),
        (capture(annotations={TTL: "1h"}), ReadyState(True, "Completed", "m"), "in 9m"),
        (capture(annotations={TTL: "1h"}, rule=ANNOTATION), ReadyState(True, "Completed", "m"), "in 59m"),
        (capture(annotations={TTL: "10minutes"}, rule=ANNOTATION), ReadyState(True, "Completed", "m"),
         "unknown (invalid_ttl)"),
        (capture(annotations={"lapse.dev/hold": "yes"}), ReadyState(True, "Completed", "m"), "held"),
        (capture(annotations={"lapse.dev/hold": "yes", "lapse.dev/hold-until": "2030-01-01T11:00:00Z"}),
         ReadyState(True, "Completed", "m"), "in 9m"),
        (capture(annotations={EXTENDED_UNTIL: "2030-01-01T14:00:00Z"}), ReadyState(True, "Completed", "m"), "in 2h"),
        (capture(annotations={EXTENDED_UNTIL: "2030-01-01T12:00:30Z"}), ReadyState(True, "Completed", "m"), "in 9m"),
        (capture(annotations={EXTENDED_UNTIL: "soon"}), ReadyState(True, "Completed", "m"),
         "unknown (unreadable_signal)"),
        (keeper(mode="FollowObject"), ReadyState(), "with vcr/default/nightly"),
        (look(OBJECT_KEEPER, meta={"creationTimestamp": "2030-01-01T11:00:00Z"}, spec={"mode": "TTL", "ttl": "24h"}),
         ReadyState(), "in 23h"),
        (look(OBJECT_KEEPER, meta={"annotations": {EXTENDED_UNTIL: "2030-01-03T12:00:00Z"}},
              spec={"mode": "TTL", "ttl": "24h"}, status={"phase": "Expiring", "expiresAt": "2030-01-02T12:00:00Z"}),
         ReadyState(None, "Expiring"), "in 2d"),
        (keeper({"phase": "Tracking"}, mode="FollowObjectWithTTL", ttl="24h"), ReadyState(None, "Tracking"),
         "24h after vcr/default/nightly"),
        (keeper({"phase": "Expiring", "expiresAt": "2030-01-02T13:30:00Z"}, mode="FollowObjectWithTTL", ttl="24h"),
         ReadyState(None, "Expiring"), "in 1d1h"),
        (look(VOLUME_SNAPSHOT_CONTENT, meta={"ownerReferences": [KEEPER_OWNER]}), ReadyState(), "with its keeper"),
        (look(VOLUME_SNAPSHOT_CONTENT, status={"readyToUse": True}), ReadyState(True, "ReadyToUse"), ""),
        (look(VOLUME_SNAPSHOT_CONTENT, status={"error": {"message": "full"}}), ReadyState(False, "Failed", "full"), ""),
        (look(PERSISTENT_VOLUME_CLAIM, status={"phase": "Bound"}), ReadyState(True, "Bound"), ""),
        (look(PERSISTENT_VOLUME_CLAIM, status={"phase": "Pending"}), ReadyState(None, "Pending"), ""),
        (look(PERSISTENT_VOLUME, status={"phase": "Released"}), ReadyState(None, "Released"), ""),
        (look(STORAGE_CLASS), ReadyState(), ""),
        (look(CONFIG_MAP), ReadyState(), ""),
    ],
)  # fmt: skip
def test_an_object_at_a_glance(view: ObjectView, state: ReadyState, expires: str) -> None:
    assert (view.ready, view.reason or "", view.message or "") == state
    assert view.expiry(NOON) == expires


def test_a_claim_that_could_not_be_bound_has_failed_with_the_message_of_the_provisioner() -> None:
    condition = {"type": "ProvisioningFailed", "status": "True", "reason": "ProvisioningFailed", "message": "no"}
    view = look(PERSISTENT_VOLUME_CLAIM, status={"phase": "Pending", "conditions": [condition]})

    assert (view.ready, view.reason, view.message) == (False, "ProvisioningFailed", "no")


def test_programs_get_moments_and_the_full_address() -> None:
    told = to_json(capture(creationTimestamp="2030-01-01T11:58:00Z", ownerReferences=[KEEPER_OWNER]))

    assert told == {
        "address": "vcr/default/x",
        "kind": "VolumeCaptureRequest",
        "namespace": "default",
        "name": "x",
        "uid": "1",
        "ready": True,
        "reason": "Completed",
        "message": "m",
        "created_at": "2030-01-01T11:58:00Z",
        "completed_at": "2030-01-01T11:59:00Z",
        "expires_at": "2030-01-01T12:09:00Z",
        "expires": None,
        "held": False,
        "keeper": "keeper/k",
    }


def test_what_is_not_finished_does_not_expire() -> None:
    targets = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "c"}]
    view = look(MANIFEST_CAPTURE_REQUEST, spec={"targets": targets})

    assert view.place == Located(MANIFEST_CAPTURE_REQUEST, ObjectKey("default", "x"))
    assert to_json(view)["expires_at"] is None
