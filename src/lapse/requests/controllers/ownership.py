"""Ownership of artifacts: request -> ObjectKeeper -> artifacts. Nothing is made before the keeper's uid is known.

The request never owns an artifact; the keeper is the controller owner. There are no finalizers: when the keeper goes,
ordinary garbage collection removes what it owns, and what has a second owner stays.

Names follow from the request's uid, so anybody may have made a keeper of that name before. One that is there is
compared as a whole with the one that Lapse would make; what differs is refused, and nothing is given to it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from lapse.core.duration import Duration, DurationError
from lapse.core.errors import LapseError
from lapse.kube.errors import AlreadyExistsError, NotFoundError
from lapse.kube.resources import ObjectKey, OwnerReference
from lapse.objects.trash.rules import MADE_FOR, first_uid
from lapse.requests.addresses import Located, checkpoint_name, keeper_name, snapshot_name
from lapse.requests.api.kinds import (
    CAPTURE_SCHEDULE,
    MANIFEST_CHECKPOINT,
    OBJECT_KEEPER,
    RUN,
    SCHEDULE,
    SCHEDULED_AT,
    KeeperMode,
    ManifestCheckpoint,
)
from lapse.requests.api.upstream import (
    PERSISTENT_VOLUME,
    VOLUME_SNAPSHOT_CONTENT,
    ObjectReference,
    PersistentVolume,
    VolumeSnapshotContent,
)
from lapse.requests.lifecycle.events import EventReason, made
from lapse.requests.lifecycle.policy import artifact_ttl

if TYPE_CHECKING:
    from lapse.kube.events.event import Recorder
    from lapse.kube.resources import Json, Kind, ObjectMeta
    from lapse.objects.port import ObjectStore, Reader
    from lapse.requests.api.kinds import CaptureSchedule, ObjectKeeper, ObjectRef
    from lapse.requests.controllers.caches import Caches
    from lapse.requests.controllers.finalise import Request
    from lapse.requests.lifecycle.policy import RequestPolicy

_SOURCES: Final[dict[str, Kind[Any]]] = {one.kind: one for one in (VOLUME_SNAPSHOT_CONTENT, PERSISTENT_VOLUME)}
UID_BARRIER_SECONDS: Final = 1.0
"""How soon to look again for a keeper whose uid is not known yet."""


class KeeperRefusedError(LapseError):
    """The ObjectKeeper {name} is there already, but {problem}; it is not trusted with artifacts of this request."""


async def ensure_keeper(
    store: ObjectStore,
    kind: Kind[Any],
    request: Request,
    *,
    policy: RequestPolicy,
    recorder: Recorder,
    schedule: CaptureSchedule | None = None,
    is_new: bool = False,
) -> ObjectKeeper | None:
    """Return the keeper of a request, made if it was not there; None while its uid is not known: come back in a second.

    The request's own artifact TTL counts, if it has one. The keeper of a run follows its ``schedule``, which must have
    been compared with the request, and stays for keeper_ttl after that is gone. ``recorder`` is told of a keeper that
    was made; with ``is_new`` it is made without looking for one first. Raises `KeeperRefusedError` for one that differs
    from what would be made.
    """
    key = keeper_key(kind, request)
    wanted = _keeper(kind, request, policy) if schedule is None else _keeper_of_run(kind, request, policy, schedule)
    keeper = None
    if not is_new:
        with suppress(NotFoundError):
            keeper = await store.get(OBJECT_KEEPER, key)
    if keeper is None:
        with suppress(AlreadyExistsError):  # another process was quicker; what it made is judged like any other
            await store.create(OBJECT_KEEPER, wanted)
            recorder.record(made(kind, request.metadata, EventReason.KEEPER_CREATED, key.name))
        keeper = await store.get(OBJECT_KEEPER, key)
    _judge(keeper, OBJECT_KEEPER.convert(wanted))
    return keeper if keeper.metadata.uid else None


def known_keeper(caches: Caches, kind: Kind[Any], request: Request, *, policy: RequestPolicy) -> ObjectKeeper | None:
    """Return the keeper of a request if the cache has one as it would be made; None says nothing."""
    keeper = caches.of(OBJECT_KEEPER).get(keeper_key(kind, request))
    if keeper is None or not keeper.metadata.uid:
        return None
    wanted = OBJECT_KEEPER.convert(_keeper(kind, request, policy))
    return keeper if _difference(keeper, wanted) is None else None


def keeper_key(kind: Kind[Any], request: Request) -> ObjectKey:
    """Return where the keeper of a request is found."""
    return ObjectKey(None, keeper_name(kind.short, request.metadata.uid))


def owned_by(keeper: ObjectKeeper, *, controller: bool = True) -> OwnerReference:
    """Return the reference that makes the keeper an owner of an artifact, the one that manages it unless said."""
    meta = keeper.metadata
    if not meta.uid:
        raise ValueError("a keeper without uid can own nothing")  # garbage collection would ignore or misread it
    return OwnerReference(
        api_version=OBJECT_KEEPER.api_version,
        kind=OBJECT_KEEPER.kind,
        name=meta.name,
        uid=meta.uid,
        controller=controller,
    )


def _keeper(kind: Kind[Any], request: Request, policy: RequestPolicy) -> Json:
    followed = _followed(kind, request.metadata)
    # Whether it is too long was judged before anything was made: a bound that is lowered later fails nothing half-way.
    asked = artifact_ttl(getattr(request.spec, "artifact_ttl", None))
    spec: Json = {"mode": policy.keeper_mode, "followObjectRef": followed}
    if asked is not None or policy.keeper_mode is KeeperMode.FOLLOW_OBJECT_WITH_TTL:
        spec |= {"mode": KeeperMode.FOLLOW_OBJECT_WITH_TTL, "ttl": (asked or policy.keeper_ttl).go()}
    return {"metadata": {"name": keeper_key(kind, request).name}, "spec": spec}


def _keeper_of_run(kind: Kind[Any], request: Request, policy: RequestPolicy, schedule: CaptureSchedule) -> Json:
    """Return the keeper of a run; its annotations are what is known of the run after the request has lapsed.

    It follows the schedule under the uid that this had first, however often that came back from the trash.
    """
    meta, uid = request.metadata, first_uid(schedule.metadata)
    return {
        "metadata": {
            "name": keeper_key(kind, request).name,
            "labels": {SCHEDULE: uid},
            "annotations": {SCHEDULED_AT: meta.annotations[SCHEDULED_AT], RUN: str(Located(kind, meta.key))},
        },
        "spec": {
            "mode": KeeperMode.FOLLOW_OBJECT_WITH_TTL,
            "followObjectRef": {**_followed(CAPTURE_SCHEDULE, schedule.metadata), "uid": uid},
            "ttl": policy.keeper_ttl.go(),
        },
    }


def _followed(kind: Kind[Any], meta: ObjectMeta) -> Json:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "namespace": meta.namespace,
        "name": meta.name,
        "uid": meta.uid,
    }


def is_kept_by(keeper: ObjectKeeper | None, artifact: ObjectMeta) -> bool:
    """Whether a keeper is the controller owner of an artifact."""
    owner = artifact.controller
    return keeper is not None and owner is not None and owner.uid == keeper.metadata.uid


def is_made_for(request: Request, artifact: Any) -> bool:  # noqa: ANN401 - of one of the kinds of artifacts
    """Whether an artifact says itself that a capture has made it, whoever owns it by now.

    Its name follows from the uid under which the capture was carried out, and it names the namespace of the capture; a
    volume names the claim. None of it is a tenant's to write.
    """
    uid, spec = first_uid(request.metadata), artifact.spec
    target = getattr(request.spec, "target", None)
    namespace: str | None
    named: str | None
    match artifact:
        case VolumeSnapshotContent():
            namespace, named = spec.volume_snapshot_ref.namespace, snapshot_name(uid, (target and target.uid) or "")
        case ManifestCheckpoint():
            namespace, named = spec and spec.source_namespace, checkpoint_name(uid)
        case PersistentVolume():
            claimed = spec.claim_ref or ObjectReference()
            named = artifact.metadata.name if target is not None and target.uid == claimed.uid else None
            namespace = claimed.namespace
        case _:
            return False
    return (namespace, named) == (request.metadata.namespace, artifact.metadata.name)


async def artifact_of(direct: Reader, request: Request) -> Any:  # noqa: ANN401 - of one of the kinds of artifacts
    """Return the artifact that the status of a capture names; None where there is none that was made for it."""
    status = request.status
    ref, checkpoint = getattr(status, "artifact_ref", None), getattr(status, "checkpoint_name", None)
    kind = MANIFEST_CHECKPOINT if ref is None else _SOURCES.get(ref.kind)
    name = checkpoint if ref is None else ref.name
    if kind is None or not name:
        return None
    try:
        found = await direct.get(kind, ObjectKey(None, name))
    except NotFoundError:
        return None
    return found if is_made_for(request, found) else None


def is_keeper_of(keeper: ObjectKeeper, kind: Kind[Any], request: Request) -> bool:
    """Whether a keeper was made for a request, which may have come back from the trash since."""
    meta, ref = request.metadata, keeper.spec.follow_object_ref
    if keeper.metadata.annotations.get(RUN) == str(Located(kind, meta.key)):
        return True
    followed = None if ref is None else (ref.kind, ref.namespace, ref.name, ref.uid)
    return followed == (kind.kind, meta.namespace, meta.name, first_uid(meta))


def is_followed(ref: ObjectRef, meta: ObjectMeta) -> bool:
    """Whether an object, found where a keeper says, is what it follows; a schedule that came back is the same one."""
    return ref.uid == meta.uid or (ref.kind == CAPTURE_SCHEDULE.kind and ref.uid == first_uid(meta))


def requested_from(kind: Kind[Any], obj: Any) -> str | None:  # noqa: ANN401 - an object of ``kind``
    """Return the namespace of the request that an object without one was made for."""
    source: str | None
    match kind.kind:
        case OBJECT_KEEPER.kind:
            ref = obj.spec.follow_object_ref
            source = obj.metadata.annotations.get(MADE_FOR) if ref is None else ref.namespace
        case VOLUME_SNAPSHOT_CONTENT.kind:
            source = obj.spec.volume_snapshot_ref.namespace
        case PERSISTENT_VOLUME.kind:
            source = obj.spec.claim_ref and obj.spec.claim_ref.namespace
        case MANIFEST_CHECKPOINT.kind:
            source = obj.spec and obj.spec.source_namespace
        case _:
            source = None
    return source


def _judge(keeper: ObjectKeeper, wanted: ObjectKeeper) -> None:
    problem = _difference(keeper, wanted)
    if problem is not None:
        raise KeeperRefusedError(name=keeper.metadata.name, problem=problem)


def _difference(keeper: ObjectKeeper, wanted: ObjectKeeper) -> str | None:
    """Say how a keeper differs from the one that would be made; None when it does not."""
    if keeper.spec.follow_object_ref != wanted.spec.follow_object_ref:
        return "it follows another object"
    if keeper.spec.mode != wanted.spec.mode:
        return f"its mode is {keeper.spec.mode} and not {wanted.spec.mode}"
    ttl, expected = _lasts(keeper.spec.ttl), _lasts(wanted.spec.ttl)
    if ttl != expected:
        return f"its ttl is {ttl} and not {expected}"
    for name in (SCHEDULED_AT, RUN):
        given, right = keeper.metadata.annotations.get(name), wanted.metadata.annotations.get(name)
        if right is not None and given != right:
            return f"its annotation {name} is {given} and not {right}"
    if keeper.metadata.owner_references:
        owner = keeper.metadata.owner_references[0]
        return f"it is owned by the {owner.kind} {owner.name}, and would go with it"
    return "it is being deleted" if keeper.metadata.deletion_timestamp else None


def _lasts(ttl: str | None) -> Duration | str | None:
    """Return a TTL so that two ways to write the same one are equal."""
    try:
        return None if ttl is None else Duration.parse(ttl)
    except DurationError:
        return ttl
