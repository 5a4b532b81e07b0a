"""Request -> ObjectKeeper -> artifacts: the keeper is made first, and nothing is made before its uid is known.

The request never owns an artifact; the keeper is the controller owner. There are no finalizers: when the keeper goes,
ordinary garbage collection removes what it owns, and what has a second owner stays.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from lapse.core.errors import LapseError
from lapse.kube.errors import AlreadyExistsError, NotFoundError
from lapse.kube.resources import ObjectKey, OwnerReference
from lapse.requests.api.kinds import OBJECT_KEEPER, KeeperMode
from lapse.requests.events import EventReason, made
from lapse.requests.names import keeper_name

if TYPE_CHECKING:
    from lapse.kube.events import Recorder
    from lapse.kube.resources import Json, Kind
    from lapse.objects.port import ObjectStore
    from lapse.requests.api.kinds import ObjectKeeper
    from lapse.requests.finalise import Request
    from lapse.requests.policy import Policy

UID_BARRIER_SECONDS: Final = 1.0
"""How soon to look again for a keeper whose uid is not known yet."""


class KeeperRefusedError(LapseError):
    """The ObjectKeeper {name} is there already, but {problem}; it is not trusted with artifacts of this request."""


async def ensure_keeper(
    store: ObjectStore, kind: Kind[Any], request: Request, *, policy: Policy, recorder: Recorder
) -> ObjectKeeper | None:
    """Return the keeper of a request, made if it was not there; None while its uid is not known: come back in a second.

    ``recorder`` is told of one that was made. Raises `KeeperRefusedError` for one that follows something else or in
    another way.
    """
    key = ObjectKey(None, keeper_name(kind.short, request.metadata.uid))
    try:
        keeper = await store.get(OBJECT_KEEPER, key)
    except NotFoundError:
        with suppress(AlreadyExistsError):  # another process was quicker; what it made is judged like any other
            await store.create(OBJECT_KEEPER, _keeper(key.name, kind, request, policy))
            recorder.record(made(kind, request.metadata, EventReason.KEEPER_CREATED, key.name))
        keeper = await store.get(OBJECT_KEEPER, key)
    _judge(keeper, request, policy)
    return keeper if keeper.metadata.uid else None


def owned_by(keeper: ObjectKeeper) -> OwnerReference:
    """Return the reference that makes the keeper the controller owner of an artifact."""
    meta = keeper.metadata
    if not meta.uid:
        raise ValueError("a keeper without uid can own nothing")  # garbage collection would ignore or misread it
    return OwnerReference(
        api_version=OBJECT_KEEPER.api_version, kind=OBJECT_KEEPER.kind, name=meta.name, uid=meta.uid, controller=True
    )


def _keeper(name: str, kind: Kind[Any], request: Request, policy: Policy) -> Json:
    meta = request.metadata
    followed = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "namespace": meta.namespace,
        "name": meta.name,
        "uid": meta.uid,
    }
    spec: Json = {"mode": policy.keeper_mode, "followObjectRef": followed}
    if policy.keeper_mode is KeeperMode.FOLLOW_OBJECT_WITH_TTL:
        spec["ttl"] = policy.keeper_ttl.go()
    return {"metadata": {"name": name}, "spec": spec}


def _judge(keeper: ObjectKeeper, request: Request, policy: Policy) -> None:
    followed = keeper.spec.follow_object_ref
    if followed is None or followed.uid != request.metadata.uid:
        raise KeeperRefusedError(name=keeper.metadata.name, problem="it follows another object")
    if keeper.spec.mode != policy.keeper_mode:
        problem = f"its mode is {keeper.spec.mode} and not {policy.keeper_mode}"
        raise KeeperRefusedError(name=keeper.metadata.name, problem=problem)
