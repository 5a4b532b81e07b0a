"""One table of good and bad documents of our kinds.

It runs against the embedded store with its validators and against a real API server with the CRDs; both judge alike.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, RETENTION_POLICY
from lapse.objects.packing.chunks import MAX_CHUNK_CHARACTERS
from lapse.requests.api.kinds import (
    CAPTURE_SCHEDULE,
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    MANIFEST_CHUNK,
    OBJECT_KEEPER,
    VOLUME_CAPTURE_REQUEST,
    VOLUME_RESTORE_REQUEST,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.kube.resources import Json, Kind

NO_DURATION = "must be a duration such as 10m, 1h30m, 7d or PT10M, or never"
ZERO = "must be longer than zero"
IMMUTABLE = "spec is immutable"
FIVE_FIELDS = "must be five fields with one space between two, such as 0 3 * * *"
EXACTLY_ONE = "must have exactly one of volumeCapture and manifestCapture"
MISSING: Any = object()
"""As a value: take the field away."""


@dataclass(frozen=True)
class Case:
    """A document, and whether it is good. With ``old`` it is what becomes of that one."""

    name: str
    kind: Kind[Any]
    document: Json
    wrong: str | None = None
    """The place that both sides must name; None for a good document."""
    says: str = ""
    """What both sides must say about it, where the words are ours."""
    old: Json | None = None


# --- one good document of each kind -----------------------------------------------------------------------------------

CLAIM = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data", "uid": "0b0e1f7a-claim"}
CHECKSUM = "0123456789abcdef" * 4
READY = {
    "type": "Ready",
    "status": "True",
    "reason": "Completed",
    "message": "The snapshot is ready.",
    "lastTransitionTime": "2030-01-31T12:00:00Z",
    "observedGeneration": 1,
}


def document(kind: Kind[Any], spec: Json | None, status: Json | None = None) -> Json:
    found: Json = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "one"}}
    return found | ({} if spec is None else {"spec": spec}) | ({} if status is None else {"status": status})


CAPTURE = document(VOLUME_CAPTURE_REQUEST, {"mode": "Snapshot", "target": CLAIM})
RESTORE = document(
    VOLUME_RESTORE_REQUEST,
    {
        "sourceRef": {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "name": "snap"},
        "pvcTemplate": {
            "metadata": {"name": "restored"},
            "spec": {
                "storageClassName": "fast",
                "volumeMode": "Filesystem",
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        },
    },
)
MANIFESTS = document(
    MANIFEST_CAPTURE_REQUEST, {"targets": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}]}
)
CHECKPOINT = document(MANIFEST_CHECKPOINT, {"sourceNamespace": "default"})
CHUNK = document(
    MANIFEST_CHUNK,
    {"checkpointName": "mcp-1", "index": 0, "data": "W10=", "objectsCount": 0, "checksum": CHECKSUM},
)
FOLLOWED = {**CLAIM, "namespace": "default"}
FOLLOWS = document(OBJECT_KEEPER, {"mode": "FollowObject", "followObjectRef": FOLLOWED})
LASTS = document(OBJECT_KEEPER, {"mode": "TTL", "ttl": "10m"})
BOTH = document(OBJECT_KEEPER, {"mode": "FollowObjectWithTTL", "followObjectRef": FOLLOWED, "ttl": "24h"})

SCHEDULED = document(
    CAPTURE_SCHEDULE,
    {
        "schedule": "0 3 * * MON-FRI",
        "timeZone": "Europe/Berlin",
        "suspend": False,
        "template": {
            "volumeCapture": {"mode": "Snapshot", "target": {key: CLAIM[key] for key in ("apiVersion", "kind", "name")}}
        },
        "keep": {"last": 3, "hourly": 24, "daily": 7, "weekly": 4, "monthly": 12},
        "startingDeadline": "1h",
    },
    {
        "lastScheduleTime": "2030-01-31T03:00:00Z",
        "nextScheduleTime": "2030-02-01T03:00:00Z",
        "lastSuccessfulTime": "2030-01-31T03:00:00Z",
        "active": 0,
        "kept": 3,
        "conditions": [READY],
        "observedGeneration": 1,
        "observedSchedule": "0 3 * * MON-FRI Europe/Berlin",
        "notBefore": "2030-01-30T12:00:00Z",
    },
)
RECORD = document(
    CHAOS_EXPERIMENT_HISTORY,
    {
        "experimentRef": {"name": "kill-pods", "namespace": "shop", "uid": "u-1"},
        "experimentSpec": {"action": "pod-kill", "selector": {"app": "shop"}, "count": 2, "odd": [1, {"a": None}]},
        "execution": {
            "startTime": "2030-01-31T12:00:00Z",
            "endTime": "2030-01-31T12:00:05Z",
            "status": "failure",
            "message": "One of two pods was killed.",
        },
        "affectedResources": [{"kind": "Pod", "name": "shop-1", "namespace": "shop", "action": "deleted"}],
        "audit": {"initiatedBy": "kim", "scheduledExecution": True, "dryRun": False, "retryCount": 1},
        "error": {"message": "not found", "code": "404", "lastError": "not found", "failureReason": "NotFound"},
    },
)
POLICY = document(
    RETENTION_POLICY,
    {
        "selector": {"apiVersion": "batch/v1", "kind": "Job", "namespaces": ["shop"], "labels": {"app": "shop"}},
        "groupBy": ["metadata.namespace", "metadata.labels['job']"],
        "maxAge": "90d",
        "maxCount": 10,
        "keepLast": {"where": {"fieldPath": "status.succeeded", "in": ["1"]}, "count": 1},
        "ageFrom": "status.completionTime",
        "onlyWhen": [{"fieldPath": "status.active", "in": ["0"]}],
        "dryRun": False,
    },
    {
        "conditions": [READY],
        "observedGeneration": 1,
        "lastRun": "2030-01-31T12:00:00Z",
        "nextRun": "2030-01-31T13:00:00Z",
        "dryRun": False,
        "matched": 12,
        "deleted": {"ttl_expired": 1},
        "kept": {"not_yet": 10, "keep_last": 1},
    },
)
SMALLEST = document(RETENTION_POLICY, {"selector": {"apiVersion": "v1", "kind": "ConfigMap"}})


def changed(original: Json, place: str, value: object) -> Json:
    """Return a copy with another value at a place such as ``spec.targets.0.name``."""
    result = deepcopy(original)
    at: Any = result
    *way, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    for part in way:
        at = at.setdefault(part, {}) if isinstance(at, dict) else at[part]
    if value is MISSING:
        del at[last]
    else:
        at[last] = value
    return result


def capture(name: str, place: str, value: object, wrong: str | None = None) -> Case:
    return Case(f"capture: {name}", VOLUME_CAPTURE_REQUEST, changed(CAPTURE, place, value), wrong)


def restore(name: str, place: str, value: object, wrong: str | None = None) -> Case:
    return Case(f"restore: {name}", VOLUME_RESTORE_REQUEST, changed(RESTORE, place, value), wrong)


def manifests(name: str, place: str, value: object, wrong: str | None = None) -> Case:
    return Case(f"manifests: {name}", MANIFEST_CAPTURE_REQUEST, changed(MANIFESTS, place, value), wrong)


def chunk(name: str, place: str, value: object, wrong: str | None = None) -> Case:
    return Case(f"chunk: {name}", MANIFEST_CHUNK, changed(CHUNK, place, value), wrong)


def keeper(name: str, found: Json, wrong: str | None = None, says: str = "") -> Case:
    return Case(f"keeper: {name}", OBJECT_KEEPER, found, wrong, says)


def ttl(text: str, says: str | None = None) -> Case:
    return keeper(f"ttl {text!r}", changed(LASTS, "spec.ttl", text), None if says is None else "spec.ttl", says or "")


def artifact_ttl(original: Json, kind: Kind[Any], text: object, says: str | None = None) -> Case:
    document = changed(original, "spec.artifactTTL", text)
    wrong = None if says is None else "spec.artifactTTL"
    return Case(f"{kind.short}: kept for {text!r}", kind, document, wrong, says or "")


def schedule(name: str, place: str, value: object, wrong: str | None = None, says: str = "") -> Case:
    return Case(f"schedule: {name}", CAPTURE_SCHEDULE, changed(SCHEDULED, place, value), wrong, says)


def record(name: str, place: str, value: object, wrong: str | None = None) -> Case:
    return Case(f"record: {name}", CHAOS_EXPERIMENT_HISTORY, changed(RECORD, place, value), wrong)


def policy(name: str, place: str, value: object, wrong: str | None = None, says: str = "") -> Case:
    return Case(f"policy: {name}", RETENTION_POLICY, changed(POLICY, place, value), wrong, says)


def max_age(text: str, says: str | None = None) -> Case:
    return policy(f"an age of {text!r}", "spec.maxAge", text, None if says is None else "spec.maxAge", says or "")


def becomes(name: str, kind: Kind[Any], old: Json, new: Json, wrong: str | None = None, says: str = "") -> Case:
    return Case(f"change: {name}", kind, new, wrong, says, old=old)


# --- the table --------------------------------------------------------------------------------------------------------

GOOD = [
    Case("capture: a snapshot", VOLUME_CAPTURE_REQUEST, CAPTURE),
    capture("a detachment", "spec.mode", "Detach"),
    # What a controller must judge is no matter of shape: the answer is a condition, not a refusal.
    capture("a target of a kind that cannot be captured", "spec.target.kind", "Secret"),
    capture("a TTL annotation that nobody can read", "metadata.annotations", {"storage.deckhouse.io/ttl": "10minutes"}),
    capture("a target's name of 253 characters", "spec.target.name", "a" * 253),
    capture("a name of 253 characters", "metadata.name", "a" * 253),
    capture("a name with dots", "metadata.name", "a.b-c.9"),
    capture("a field that nobody knows", "spec.colour", "green"),
    capture("a status of null", "status", None),
    capture("a final status", "status", {"completionTimestamp": "2030-01-31T12:00:00Z", "conditions": [READY]}),
    capture("a time with a fraction and an offset", "status.completionTimestamp", "2030-01-31T12:00:00.5+02:00"),
    capture("two conditions", "status.conditions", [READY, {"type": "Other", "status": "Unknown"}]),
    capture("a condition with a reason that nobody knows", "status.conditions", [{**READY, "reason": "Odd"}]),
    capture("an artifact", "status.artifactRef", {"apiVersion": "v1", "kind": "PersistentVolume", "name": "pv"}),
    capture("an observed generation", "status.observedGeneration", 3),
    Case("restore: a snapshot", VOLUME_RESTORE_REQUEST, RESTORE),
    restore("a source of a kind that cannot be restored", "spec.sourceRef.kind", "Secret"),
    restore("a source with a uid", "spec.sourceRef.uid", "u-1"),
    restore("a template with nothing but a name", "spec.pvcTemplate.spec", MISSING),
    restore("an amount as a number", "spec.pvcTemplate.spec.resources.requests.storage", 1024),
    restore("an amount with a fraction", "spec.pvcTemplate.spec.resources.requests.storage", "1.5Gi"),
    restore("a volume class of null", "spec.pvcTemplate.spec.storageClassName", None),
    restore("a claim in status", "status.pvcRef", FOLLOWED),
    Case("manifests: one target", MANIFEST_CAPTURE_REQUEST, MANIFESTS),
    manifests("a name of a checkpoint", "status.checkpointName", "mcp-0123456789abcdef"),
    manifests("five hundred targets", "spec.targets", MANIFESTS["spec"]["targets"] * 500),
    manifests("a target with a name that only RBAC knows", "spec.targets.0.name", "system:node"),
    Case("checkpoint: a namespace", MANIFEST_CHECKPOINT, CHECKPOINT),
    Case("checkpoint: no spec", MANIFEST_CHECKPOINT, document(MANIFEST_CHECKPOINT, None)),
    Case(
        "checkpoint: chunks",
        MANIFEST_CHECKPOINT,
        changed(
            CHECKPOINT,
            "status",
            {
                "chunks": [{"name": "mcp-1-0", "index": 0, "objectsCount": 2, "sizeBytes": 90, "checksum": CHECKSUM}],
                "totalObjects": 2,
                "totalSizeBytes": 90,
                "conditions": [READY],
            },
        ),
    ),
    Case("chunk: no objects", MANIFEST_CHUNK, CHUNK),
    chunk("as much data as there may be", "spec.data", "A" * MAX_CHUNK_CHARACTERS),
    keeper("follows an object", FOLLOWS),
    keeper("follows an object of the cluster", changed(FOLLOWS, "spec.followObjectRef.namespace", MISSING)),
    keeper("lasts for a time", LASTS),
    keeper("follows an object and lasts for a time", BOTH),
    keeper("a ttl of null where there is none", changed(FOLLOWS, "spec.ttl", None)),
    keeper("a status", changed(BOTH, "status", {"phase": "Expiring", "lostAt": "2030-01-31T12:00:00Z"})),
    *map(
        ttl,
        ("1ns", "1h30m", "1.5s", ".5s", "1.s", "90us", "90µs", "90μs", "0.5ms", "7d", "2w", "1m1h", "0h1s", "never"),
    ),
    *map(ttl, ("PT10M", "P1D", "P2W", "P1DT12H", "PT1H30M", "PT0.5S", "PT0,5S", "P1DT1H1M1S", "106751d")),
    *(artifact_ttl(CAPTURE, VOLUME_CAPTURE_REQUEST, text) for text in ("1ns", "12h", "30d", "P30D", "never", None)),
    *(artifact_ttl(MANIFESTS, MANIFEST_CAPTURE_REQUEST, text) for text in ("12h", "30d", "never", None)),
    Case("schedule: everything", CAPTURE_SCHEDULE, SCHEDULED),
    schedule("manifests", "spec.template", {"manifestCapture": MANIFESTS["spec"]}),
    schedule("a claim by its uid", "spec.template.volumeCapture.target.uid", "u-1"),
    schedule("one tier", "spec.keep", {"weekly": 1}),
    schedule("tiers of null and zero beside one", "spec.keep", {"last": 0, "hourly": None, "daily": 1}),
    schedule("no zone", "spec.timeZone", MISSING),
    schedule("no deadline", "spec.startingDeadline", "never"),
    schedule("a name of 52 characters", "metadata.name", "a" * 52),
    # What only a controller can judge is told in the status, beside schedules that go on.
    schedule("a minute that there is not", "spec.schedule", "99 3 * * *"),
    schedule("a zone that there is not", "spec.timeZone", "Europe/Atlantis"),
    schedule("steps, lists and ranges", "spec.schedule", "*/15,3 1-5/2 L * 1#2"),
    Case("record: a failure", CHAOS_EXPERIMENT_HISTORY, RECORD),
    *(record(f"a {status}", "spec.execution.status", status) for status in ("success", "partial", "cancelled")),
    record("an experiment without a uid", "spec.experimentRef.uid", MISSING),
    record("an experiment's name of 253 characters", "spec.experimentRef.name", "a" * 253),
    record("no experiment's spec", "spec.experimentSpec", MISSING),
    record("nothing affected", "spec.affectedResources", []),
    record("nobody asked", "spec.audit", MISSING),
    record("no error", "spec.error", None),
    Case("policy: everything", RETENTION_POLICY, POLICY),
    Case("policy: nothing but a kind", RETENTION_POLICY, SMALLEST),
    # What only a controller can judge is told in the status, beside policies that go on.
    policy("a path that nobody can read", "spec.ageFrom", "status..when"),
    policy("a kind that does not exist", "spec.selector.kind", "Unicorn"),
    policy("no limit of numbers", "spec.maxCount", 0),
    policy("the last ones, whatever they are", "spec.keepLast", {"count": 3}),
    *map(max_age, ("0", "0s", "PT0S", "never", "1ns", "720h", "106751d")),
]

BAD = [
    capture("a mode that nobody knows", "spec.mode", "Zap", "spec.mode"),
    capture("no mode", "spec.mode", MISSING, "spec.mode"),
    capture("a mode of null", "spec.mode", None, "spec.mode"),
    capture("a mode in other letters", "spec.mode", "snapshot", "spec.mode"),
    capture("no target", "spec.target", MISSING, "spec.target"),
    capture("a target of null", "spec.target", None, "spec.target"),
    capture("a target that is a text", "spec.target", "data", "spec.target"),
    capture("a target without a uid", "spec.target.uid", MISSING, "spec.target.uid"),
    capture("a target with an empty uid", "spec.target.uid", "", "spec.target.uid"),
    capture("a target without a name", "spec.target.name", MISSING, "spec.target.name"),
    capture("a target without a kind", "spec.target.kind", MISSING, "spec.target.kind"),
    capture("a target with an empty name", "spec.target.name", "", "spec.target.name"),
    capture("a target's name of 254 characters", "spec.target.name", "a" * 254, "spec.target.name"),
    capture("a target's name that is a number", "spec.target.name", 7, "spec.target.name"),
    capture("no spec", "spec", MISSING, "spec"),
    capture("a name of 254 characters", "metadata.name", "a" * 254, "metadata.name"),
    capture("a name in capitals", "metadata.name", "One", "metadata.name"),
    capture("a name that ends with a dash", "metadata.name", "one-", "metadata.name"),
    capture("a name with a newline at its end", "metadata.name", "one\n", "metadata.name"),
    capture("a time in other words", "status.completionTimestamp", "yesterday", "status.completionTimestamp"),
    capture("a time without a zone", "status.completionTimestamp", "2030-01-31T12:00:00", "status.completionTimestamp"),
    capture("a 32nd of January", "status.completionTimestamp", "2030-01-32T12:00:00Z", "status.completionTimestamp"),
    capture("a time that is a list", "status.completionTimestamp", ["a"], "status.completionTimestamp"),
    capture(
        "a time on two lines", "status.completionTimestamp", "2030-01-31T12:00:00Z\n", "status.completionTimestamp"
    ),
    capture("a generation beyond 64 bits", "status.observedGeneration", 2**63, "status.observedGeneration"),
    capture("two conditions of one type", "status.conditions", [READY, READY], "status.conditions"),
    capture("conditions that are no list", "status.conditions", READY, "status.conditions"),
    capture(
        "a condition neither true nor false",
        "status.conditions",
        [{**READY, "status": "true"}],
        "status.conditions[0].status",
    ),
    capture(
        "a condition without a type",
        "status.conditions",
        [{"status": "True"}],
        "status.conditions[0].type",
    ),
    capture("a generation that is a text", "status.observedGeneration", "3", "status.observedGeneration"),
    capture("a generation that is a truth", "status.observedGeneration", True, "status.observedGeneration"),
    *(
        artifact_ttl(document, kind, text, says)
        for document, kind in ((CAPTURE, VOLUME_CAPTURE_REQUEST), (MANIFESTS, MANIFEST_CAPTURE_REQUEST))
        for text, says in (
            ("30", NO_DURATION),
            ("30days", NO_DURATION),
            ("-1h", NO_DURATION),
            ("Never", NO_DURATION),
            ("", NO_DURATION),
            ("0s", ZERO),
            ("200000d", "must be at most 292 years; write never for no limit"),
            (30, ""),
            ("1h" * 51, ""),
        )
    ),
    schedule("no schedule", "spec.schedule", MISSING, "spec.schedule"),
    *(
        schedule(f"the schedule {text!r}", "spec.schedule", text, "spec.schedule", FIVE_FIELDS)
        for text in ("@midnight", "* * * * * *", "0  3 * * *", "0 3 * * *\n", "0 3 * * ;", "every morning at 3")
    ),
    schedule("a schedule of 101 characters", "spec.schedule", "0 3 * * " + "1," * 46 + "1", "spec.schedule"),
    schedule(
        "a zone with a blank", "spec.timeZone", "Europe Berlin", "spec.timeZone", "must be the name of a time zone"
    ),
    schedule("a zone that is a path", "spec.timeZone", "../../etc", "spec.timeZone", "must be the name of a time zone"),
    schedule("an empty zone", "spec.timeZone", "", "spec.timeZone"),
    schedule("no template", "spec.template", MISSING, "spec.template"),
    schedule("nothing to capture", "spec.template", {}, "spec.template", EXACTLY_ONE),
    schedule("both to capture", "spec.template.manifestCapture", MANIFESTS["spec"], "spec.template", EXACTLY_ONE),
    schedule(
        "a detachment",
        "spec.template.volumeCapture.mode",
        "Detach",
        "spec.template.volumeCapture",
        "must have the mode Snapshot: a schedule that detaches would delete the claim at its first run",
    ),
    schedule(
        "a TTL of a snapshot",
        "spec.template.volumeCapture.artifactTTL",
        "1h",
        "spec.template.volumeCapture",
        "must have no artifactTTL: spec.keep says what stays",
    ),
    schedule(
        "a TTL of manifests",
        "spec.template",
        {"manifestCapture": {**MANIFESTS["spec"], "artifactTTL": "1h"}},
        "spec.template.manifestCapture",
        "must have no artifactTTL: spec.keep says what stays",
    ),
    schedule(
        "a claim without a name",
        "spec.template.volumeCapture.target.name",
        MISSING,
        "spec.template.volumeCapture.target.name",
    ),
    schedule(
        "no targets", "spec.template", {"manifestCapture": {"targets": []}}, "spec.template.manifestCapture.targets"
    ),
    schedule("nothing said about what stays", "spec.keep", MISSING, "spec.keep"),
    schedule("nothing stays", "spec.keep", {}, "spec.keep", "must keep something"),
    schedule("zero stay", "spec.keep", {"last": 0, "daily": 0}, "spec.keep", "must keep something"),
    schedule("fewer than none stay", "spec.keep.last", -1, "spec.keep.last"),
    schedule("more than a thousand stay", "spec.keep.hourly", 1001, "spec.keep.hourly"),
    schedule("a number that is a text", "spec.keep.daily", "7", "spec.keep.daily"),
    schedule("suspended in words", "spec.suspend", "yes", "spec.suspend"),
    schedule(
        "no deadline that anybody can read", "spec.startingDeadline", "1hour", "spec.startingDeadline", NO_DURATION
    ),
    schedule("a deadline of zero", "spec.startingDeadline", "0s", "spec.startingDeadline", ZERO),
    schedule("a name of 53 characters", "metadata.name", "a" * 53, "", "metadata.name must have at most 52 characters"),
    schedule("a time in other words", "status.notBefore", "now", "status.notBefore"),
    restore("no source", "spec.sourceRef", MISSING, "spec.sourceRef"),
    restore("a source without a name", "spec.sourceRef.name", MISSING, "spec.sourceRef.name"),
    restore("no template", "spec.pvcTemplate", MISSING, "spec.pvcTemplate"),
    restore("a claim without a name", "spec.pvcTemplate.metadata.name", MISSING, "spec.pvcTemplate.metadata.name"),
    restore(
        "a volume mode that nobody knows",
        "spec.pvcTemplate.spec.volumeMode",
        "Tape",
        "spec.pvcTemplate.spec.volumeMode",
    ),
    restore(
        "an access mode that nobody knows",
        "spec.pvcTemplate.spec.accessModes",
        ["ReadWriteOnce", "Read"],
        "spec.pvcTemplate.spec.accessModes[1]",
    ),
    restore(
        "an amount that is a list",
        "spec.pvcTemplate.spec.resources.requests.storage",
        [],
        "spec.pvcTemplate.spec.resources.requests.storage",
    ),
    restore(
        "an amount in words",
        "spec.pvcTemplate.spec.resources.requests.storage",
        "much",
        "spec.pvcTemplate.spec.resources.requests.storage",
    ),
    manifests("no targets", "spec.targets", MISSING, "spec.targets"),
    manifests("an empty list of targets", "spec.targets", [], "spec.targets"),
    manifests("a target without a kind", "spec.targets.0.kind", MISSING, "spec.targets[0].kind"),
    manifests("a target that is a text", "spec.targets", ["settings"], "spec.targets[0]"),
    Case(
        "checkpoint: a chunk with a negative index",
        MANIFEST_CHECKPOINT,
        changed(
            CHECKPOINT,
            "status.chunks",
            [{"name": "c", "index": -1, "objectsCount": 0, "sizeBytes": 0, "checksum": CHECKSUM}],
        ),
        "status.chunks[0].index",
    ),
    chunk("more data than there may be", "spec.data", "A" * (MAX_CHUNK_CHARACTERS + 1), "spec.data"),
    chunk("no data", "spec.data", MISSING, "spec.data"),
    chunk("a negative index", "spec.index", -1, "spec.index"),
    chunk("an index that is a text", "spec.index", "0", "spec.index"),
    chunk("a checksum in capitals", "spec.checksum", CHECKSUM.upper(), "spec.checksum"),
    chunk("a checksum that is too short", "spec.checksum", CHECKSUM[:-1], "spec.checksum"),
    chunk("a checksum with a newline at its end", "spec.checksum", f"{CHECKSUM}\n", "spec.checksum"),
    keeper("a mode that nobody knows", changed(LASTS, "spec.mode", "Forever"), "spec.mode"),
    keeper(
        "a time and nothing to last",
        changed(FOLLOWS, "spec.ttl", "10m"),
        "spec",
        "ttl is not allowed in mode FollowObject",
    ),
    keeper(
        "lasts for no time that anybody said",
        changed(LASTS, "spec.ttl", MISSING),
        "spec",
        "ttl is required in all modes but FollowObject",
    ),
    keeper(
        "follows for no time that anybody said",
        changed(BOTH, "spec.ttl", None),
        "spec",
        "ttl is required in all modes but FollowObject",
    ),
    keeper(
        "follows nothing",
        changed(FOLLOWS, "spec.followObjectRef", MISSING),
        "spec",
        "followObjectRef is required in all modes but TTL",
    ),
    keeper(
        "follows nothing and lasts for a time",
        changed(BOTH, "spec.followObjectRef", MISSING),
        "spec",
        "followObjectRef is required in all modes but TTL",
    ),
    keeper(
        "follows although it only lasts",
        changed(LASTS, "spec.followObjectRef", FOLLOWED),
        "spec",
        "followObjectRef is not allowed in mode TTL",
    ),
    keeper(
        "follows any object of a name",
        changed(FOLLOWS, "spec.followObjectRef.uid", MISSING),
        "spec.followObjectRef.uid",
    ),
    keeper("a phase that nobody knows", changed(LASTS, "status.phase", "Gone"), "status.phase"),
    *(
        ttl(text, NO_DURATION)
        for text in (
            *("10minutes", "-1h", "+1h", "600", "", " 10m", "10m ", "10m\n", "ten", "1h 30m", "1,5h", "1e3s", "١s"),
            *("P", "PT", "P1DT", "P1Y", "P1M", "PT1.5H30M", "P1W1D", "pt10m", "10M", "Never", "0.5ns", "1.0000000001s"),
        )
    ),
    *(ttl(text, ZERO) for text in ("0s", "0h0m", "0.000s", "PT0S", "P0D", "0ns")),
    *(ttl(text, "must be at most 292 years") for text in ("106752d", "9223372037s", "100000d100000d", "P20000W")),
    keeper("a ttl of 101 characters", changed(LASTS, "spec.ttl", "1m" * 50 + "1"), "spec.ttl"),
    keeper("a ttl that is a number", changed(LASTS, "spec.ttl", 600), "spec.ttl"),
    record("no experiment", "spec.experimentRef", MISSING, "spec.experimentRef"),
    record("an experiment without a name", "spec.experimentRef.name", MISSING, "spec.experimentRef.name"),
    record("an experiment without a namespace", "spec.experimentRef.namespace", "", "spec.experimentRef.namespace"),
    record("no start", "spec.execution.startTime", MISSING, "spec.execution.startTime"),
    record("a start in other words", "spec.execution.startTime", "yesterday", "spec.execution.startTime"),
    record("no outcome", "spec.execution.status", MISSING, "spec.execution.status"),
    record("an outcome that nobody knows", "spec.execution.status", "Success", "spec.execution.status"),
    record("fewer attempts than none", "spec.audit.retryCount", -1, "spec.audit.retryCount"),
    record("an experiment's spec that is a text", "spec.experimentSpec", "kill", "spec.experimentSpec"),
    policy("no selector", "spec.selector", MISSING, "spec.selector"),
    policy("no kind", "spec.selector.kind", MISSING, "spec.selector.kind"),
    policy("an empty path", "spec.ageFrom", "", "spec.ageFrom"),
    policy("a group that is a text", "spec.groupBy", "metadata.namespace", "spec.groupBy"),
    policy("fewer than none", "spec.maxCount", -1, "spec.maxCount"),
    policy("the last fewer than none", "spec.keepLast.count", -1, "spec.keepLast.count"),
    policy("the last without a number", "spec.keepLast.count", MISSING, "spec.keepLast.count"),
    policy("the last of those with no value", "spec.keepLast.where.in", [], "spec.keepLast.where.in"),
    policy("a value that is a number", "spec.keepLast.where.in", [1], "spec.keepLast.where.in[0]"),
    policy("a condition without a path", "spec.onlyWhen", [{"in": ["a"]}], "spec.onlyWhen[0].fieldPath"),
    policy("a dry run that is a text", "spec.dryRun", "no", "spec.dryRun"),
    policy("an age that is a number", "spec.maxAge", 720, "spec.maxAge"),
    *(max_age(text, NO_DURATION) for text in ("-1h", "10minutes", "600", " 10m", "00", "-0")),
    max_age("106752d", "must be at most 292 years"),
]

CHANGES = [
    becomes("a label of a request", VOLUME_CAPTURE_REQUEST, CAPTURE, changed(CAPTURE, "metadata.labels", {"a": "b"})),
    becomes("the status of a request", VOLUME_CAPTURE_REQUEST, CAPTURE, changed(CAPTURE, "status.conditions", [READY])),
    becomes("nothing of a keeper", OBJECT_KEEPER, BOTH, BOTH),
    becomes("a schedule is suspended", CAPTURE_SCHEDULE, SCHEDULED, changed(SCHEDULED, "spec.suspend", True)),
    becomes("another time", CAPTURE_SCHEDULE, SCHEDULED, changed(SCHEDULED, "spec.schedule", "30 4 * * *")),
    becomes(
        "a schedule that begins to detach",
        CAPTURE_SCHEDULE,
        SCHEDULED,
        changed(SCHEDULED, "spec.template.volumeCapture.mode", "Detach"),
        "spec.template.volumeCapture",
        "must have the mode Snapshot",
    ),
    becomes(
        "the mode of a capture",
        VOLUME_CAPTURE_REQUEST,
        CAPTURE,
        changed(CAPTURE, "spec.mode", "Detach"),
        "spec",
        IMMUTABLE,
    ),
    becomes(
        "the target of a capture",
        VOLUME_CAPTURE_REQUEST,
        CAPTURE,
        changed(CAPTURE, "spec.target.uid", "another"),
        "spec",
        IMMUTABLE,
    ),
    becomes(
        "the claim of a restore",
        VOLUME_RESTORE_REQUEST,
        RESTORE,
        changed(RESTORE, "spec.pvcTemplate.metadata.name", "another"),
        "spec",
        IMMUTABLE,
    ),
    becomes(
        "one target more of a manifest capture",
        MANIFEST_CAPTURE_REQUEST,
        MANIFESTS,
        changed(MANIFESTS, "spec.targets", MANIFESTS["spec"]["targets"] * 2),
        "spec",
        IMMUTABLE,
    ),
    becomes(
        "the namespace of a checkpoint",
        MANIFEST_CHECKPOINT,
        CHECKPOINT,
        changed(CHECKPOINT, "spec.sourceNamespace", "another"),
        "",
        IMMUTABLE,
    ),
    becomes(
        "a spec for a checkpoint that had none",
        MANIFEST_CHECKPOINT,
        document(MANIFEST_CHECKPOINT, None),
        CHECKPOINT,
        "",
        IMMUTABLE,
    ),
    becomes(
        "no spec for a checkpoint that had one",
        MANIFEST_CHECKPOINT,
        CHECKPOINT,
        document(MANIFEST_CHECKPOINT, None),
        "",
        IMMUTABLE,
    ),
    becomes("the data of a chunk", MANIFEST_CHUNK, CHUNK, changed(CHUNK, "spec.data", "W11="), "spec", IMMUTABLE),
    becomes("the ttl of a keeper", OBJECT_KEEPER, BOTH, changed(BOTH, "spec.ttl", "48h"), "spec", IMMUTABLE),
    becomes("the mode of a keeper", OBJECT_KEEPER, BOTH, {**BOTH, "spec": FOLLOWS["spec"]}, "spec", IMMUTABLE),
    becomes(
        "the outcome of a record",
        CHAOS_EXPERIMENT_HISTORY,
        RECORD,
        changed(RECORD, "spec.execution.status", "success"),
        "spec",
        IMMUTABLE,
    ),
    becomes("the age of a policy", RETENTION_POLICY, POLICY, changed(POLICY, "spec.maxAge", "30d")),
    becomes("no spec for a keeper that had one", OBJECT_KEEPER, BOTH, document(OBJECT_KEEPER, None), "spec"),
]

CASES = [*GOOD, *BAD, *CHANGES]

# --- every field with every kind of nonsense --------------------------------------------------------------------------

NONSENSE = ["", 0, -1, True, [], ["a"], {}, {"a": 1}, "x" * 400, 2**63, "never", MISSING]


def nonsense(original: Json) -> Iterator[Json]:
    """Yield the document with each of its fields, one at a time, replaced by what does not belong there."""
    for place in _places({name: original[name] for name in ("spec", "status") if name in original}):
        yield from (changed(original, place, value) for value in NONSENSE)


def _places(found: object, before: str = "") -> Iterator[str]:
    parts = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for name, part in parts:
        yield f"{before}{name}"
        yield from _places(part, f"{before}{name}.")
