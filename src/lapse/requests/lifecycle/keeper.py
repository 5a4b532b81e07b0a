"""Keepers: how long artifacts are kept after the request that asked for them.

FollowObject: as long as what it follows. TTL: counted from creation. FollowObjectWithTTL: counted from ``lostAt``,
which is set once when what it follows is lost and cleared if that is there again, with the same uid, or as a schedule
that came back from the trash. A TTL of ``never`` is
never over: such a keeper stays until somebody deletes it.

Doubt keeps. An object that the cache does not have is looked for directly; only 'not there' and 'another uid' mean that
it is lost. Any other answer (a refusal, a kind that the store no longer knows) means that nothing is known; that may
last, and is asked again every minute. No answer at all (a timeout, an overload) is an error, and soon asked for again.
A keeper is not ended while it, what it follows, or anything it owns is held; the hold of what it follows is written on
the keeper, so that it outlives the followed object (`lapse.objects.holds.passed_on`). The keeper is ended by the
engine's sweep; garbage collection then removes what it owns, except what has another owner.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from lapse.core.clock import UnixNs
from lapse.core.decision import Decision, Due, Keep, KeepReason, Reason, Unknown, UnknownReason, decide_by_ttl
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.engine.domain import DELETE
from lapse.engine.safety.extensions import extension_of
from lapse.engine.view import Expiry
from lapse.kube.controller.controller import ReconcileResult, require
from lapse.kube.errors import ForbiddenError, NotFoundError, UnknownKindError
from lapse.kube.resources import ObjectKey, metadata_only
from lapse.objects.holds.passed_on import hold_marks, passed_on
from lapse.objects.holds.steering import ObjectPlace
from lapse.objects.trash.rules import BROUGHT_BACK, first_uid, is_one_of
from lapse.requests.addresses import keeper_name
from lapse.requests.api.kinds import (
    CAPTURE_SCHEDULE,
    OBJECT_KEEPER,
    REQUEST_KINDS,
    SCHEDULE,
    KeeperMode,
    KeeperPhase,
)
from lapse.requests.controllers.ownership import artifact_of, is_followed, is_keeper_of
from lapse.requests.lifecycle.policy import InvalidTTLAnnotationError, ttl_of

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.core.duration import Duration
    from lapse.kube.resources import Json, Kind, Object, ObjectMeta
    from lapse.objects.holds.steering import Followers
    from lapse.objects.port import ObjectStore, Reader
    from lapse.requests.api.kinds import KeeperStatus, ObjectKeeper, ObjectRef
    from lapse.requests.controllers.caches import Caches
    from lapse.requests.lifecycle.keepers import Keepers

FOLLOWS: Final = "follows"
"""The index of the keepers' cache that finds who follows an object."""
_BACKSTOP_SECONDS: Final = 60.0
_LOOK_AGAIN_NS: Final = 60_000_000_000
"""A keeper that was due but for what it follows: the sweep looks again, as nothing about the keeper itself changes."""


class KeeperReason(Reason):
    """Why a keeper stays or goes, beside its TTL."""

    FOLLOWED_PRESENT = "followed_present"
    FOLLOWED_LOST = "followed_lost"
    RESTORE_PENDING = "restore_pending"


class Followed(StrEnum):
    """What is known about the object that a keeper follows."""

    PRESENT = "present"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class KeeperState:
    """What the decision about a keeper looks at."""

    mode: str
    followed: Followed
    created: UnixNs | None
    lost: UnixNs | None
    """Since when the followed object is lost; None when it is not, or not known to be."""
    ttl: Duration | None
    """None when there is none or it cannot be read."""
    is_needed: bool = False
    """Whether it is the keeper of a restore whose claim still waits for its volume."""


def decide(keeper: KeeperState, now: UnixNs) -> Decision:
    """Say whether a keeper is due.

    The deadline is that of its own time, also while what it follows is there, or nobody knows: then it is the earliest
    moment at which a look is worth it.
    """
    again = UnixNs(now + _LOOK_AGAIN_NS)
    if keeper.is_needed:
        return Decision(Keep(KeeperReason.RESTORE_PENDING, next_check=again), keeper.lost)
    if keeper.mode == KeeperMode.TTL:
        return decide_by_ttl(keeper.created, keeper.ttl, now, action=DELETE)
    if keeper.mode not in {KeeperMode.FOLLOW_OBJECT, KeeperMode.FOLLOW_OBJECT_WITH_TTL}:
        return Decision(Unknown(UnknownReason.UNREADABLE_SIGNAL, next_check=again), keeper.lost)
    alone = _decide_after_loss(keeper, now)
    match keeper.followed:
        case Followed.LOST:
            return alone
        case Followed.PRESENT:
            return Decision(Keep(KeeperReason.FOLLOWED_PRESENT, next_check=again), alone.anchor, alone.deadline)
        case Followed.UNKNOWN:
            return Decision(Unknown(UnknownReason.UNREADABLE_SIGNAL, next_check=again), alone.anchor, alone.deadline)


def _decide_after_loss(keeper: KeeperState, now: UnixNs) -> Decision:
    """Say what holds of a keeper without what it follows."""
    if keeper.mode == KeeperMode.FOLLOW_OBJECT:
        since = now if keeper.lost is None else min(keeper.lost, now)
        return Decision(Due(DELETE, KeeperReason.FOLLOWED_LOST, since=since), keeper.lost, keeper.lost)
    if keeper.lost is None:
        return Decision(Keep(KeepReason.NOT_YET))  # until its loss is written down, no time is counted
    return decide_by_ttl(keeper.lost, keeper.ttl, now, action=DELETE)


def state_of(keeper: ObjectKeeper, followed: Followed) -> KeeperState:
    """Return what is to be decided on."""
    return KeeperState(
        mode=keeper.spec.mode,
        followed=followed,
        created=from_timestamp(keeper.metadata.creation_timestamp or ""),
        lost=_lost(keeper),
        ttl=_ttl(keeper.spec.ttl),
    )


def _lost(keeper: ObjectKeeper) -> UnixNs | None:
    """Return since when what is followed is lost; not from before the keeper was made, which a wrong clock wrote."""
    lost = from_timestamp(keeper.status.lost_at or "") if keeper.status is not None else None
    created = from_timestamp(keeper.metadata.creation_timestamp or "")
    return lost if lost is None or created is None else max(lost, created)


def _ttl(text: str | None) -> Duration | None:
    try:
        return ttl_of(text or "")
    except InvalidTTLAnnotationError:
        return None


def is_for_ever(keeper: ObjectKeeper) -> bool:
    """Whether a keeper never goes by its own time: it stays until somebody deletes it."""
    ttl = _ttl(keeper.spec.ttl)
    return ttl is not None and ttl.is_never


def follow_key(api_version: str, kind: str, key: ObjectKey) -> str:
    """Return the value of the index `FOLLOWS` for an object."""
    return f"{api_version}/{kind}/{key}"


def followed_by(keeper: ObjectKeeper) -> list[str]:
    """Return what a keeper follows, for the index `FOLLOWS`."""
    ref = keeper.spec.follow_object_ref
    return [] if ref is None else [follow_key(ref.api_version, ref.kind, ObjectKey(ref.namespace, ref.name))]


class Follower:
    """Looks whether what is followed is there; raises `StoreUnavailableError` when the store gives no answer."""

    def __init__(self, direct: Reader, caches: Caches) -> None:
        """Ask ``caches`` first, and ``direct`` before anything is concluded."""
        self._direct, self._caches = direct, caches

    async def kind(self, ref: ObjectRef) -> Kind[Any]:
        """Return the kind of what is followed; raises `UnknownKindError`."""
        return await self._direct.resolve(ref.api_version, ref.kind)

    async def look(self, ref: ObjectRef | None) -> tuple[Followed, Object | None]:
        """Look in the cache, which can only say yes, then directly; return the object, too, if it is there."""
        if ref is None:
            return Followed.UNKNOWN, None
        try:
            kind = await self.kind(ref)
            key = ObjectKey(ref.namespace, ref.name)
            found = await self._caches.find(kind, key, suits=lambda cached: is_followed(ref, cached.metadata))
        except (ForbiddenError, UnknownKindError):
            return Followed.UNKNOWN, None
        is_there = found is not None and is_followed(ref, found.metadata)
        return (Followed.PRESENT, found) if is_there else (Followed.LOST, None)

    async def look_directly(self, ref: ObjectRef | None) -> Followed:
        """Look past the cache."""
        if ref is None:
            return Followed.UNKNOWN
        try:
            found = await self._caches.read(await self.kind(ref), ObjectKey(ref.namespace, ref.name))
        except (ForbiddenError, UnknownKindError):
            return Followed.UNKNOWN
        return Followed.PRESENT if found is not None and is_followed(ref, found.metadata) else Followed.LOST


def keepers_of(direct: Reader) -> Followers:
    """Return what finds the keeper of a request, for `lapse.objects.holds.steering`: it outlives the request.

    What a request has made that came back from the trash may have another keeper by now, or lie in the trash. Of a
    schedule that came back, the keepers of its runs are found; those of others hear of a hold by their controller.
    """

    async def find(kind: Kind[Any], obj: Object) -> list[ObjectPlace]:
        if is_one_of(kind, (CAPTURE_SCHEDULE,)) and BROUGHT_BACK in obj.metadata.annotations:
            return await _keepers_of_schedule(direct, obj.metadata)
        known = next((one for one in REQUEST_KINDS if is_one_of(kind, (one,))), None)
        if known is None:
            return []
        if BROUGHT_BACK in obj.metadata.annotations:
            return await _keepers_of_record(direct, known, obj.metadata)
        name = keeper_name(known.short, obj.metadata.uid)
        found = await _read(direct, metadata_only(OBJECT_KEEPER), ObjectKey(None, name))
        return [] if found is None else [_place_of(found)]

    return find


async def _keepers_of_schedule(direct: Reader, meta: ObjectMeta) -> list[ObjectPlace]:
    """Return the keepers of the runs of a schedule, also of those from before it came back."""
    followed = follow_key(CAPTURE_SCHEDULE.api_version, CAPTURE_SCHEDULE.kind, meta.key)
    found = await direct.list(OBJECT_KEEPER, labels={SCHEDULE: first_uid(meta)})
    return [
        _place_of(one)
        for one in found.items
        if (ref := one.spec.follow_object_ref) is not None and followed in followed_by(one) and is_followed(ref, meta)
    ]


async def _keepers_of_record(direct: Reader, kind: Kind[Any], meta: ObjectMeta) -> list[ObjectPlace]:
    """Return the keepers of what a request has made that came back, each once."""
    request = await _read(direct, kind, meta.key)
    if request is None or request.metadata.uid != meta.uid:
        return []
    found: dict[str, ObjectPlace] = {}
    keeper = await _read(direct, OBJECT_KEEPER, ObjectKey(None, keeper_name(kind.short, first_uid(meta))))
    if keeper is not None and is_keeper_of(keeper, kind, request):
        found[keeper.metadata.uid] = _place_of(keeper)
    artifact = await artifact_of(direct, request)
    for owner in () if artifact is None else artifact.metadata.owner_references:
        if (owner.api_version, owner.kind) == (OBJECT_KEEPER.api_version, OBJECT_KEEPER.kind):
            keeper = await _read(direct, metadata_only(OBJECT_KEEPER), ObjectKey(None, owner.name))
            if keeper is not None and keeper.metadata.uid == owner.uid:
                found[owner.uid] = _place_of(keeper)
    return list(found.values())


def _place_of(keeper: Object) -> ObjectPlace:
    return ObjectPlace(OBJECT_KEEPER, keeper.metadata.key, keeper.metadata.uid)


async def _read(direct: Reader, kind: Kind[Any], key: ObjectKey) -> Any:  # noqa: ANN401 - an object of ``kind``
    try:
        return await direct.get(kind, key)
    except NotFoundError:
        return None


class KeeperController:
    """Keeps the status of keepers true, and tells the sweep of those whose followed object is lost."""

    def __init__(self, *, store: ObjectStore, direct: Reader, caches: Caches, keepers: Keepers, clock: Clock) -> None:
        """Take what is needed, all of it."""
        require(self, store=store, direct=direct, caches=caches, keepers=keepers, clock=clock)
        self._store, self._caches, self._keepers, self._clock = store, caches, keepers, clock
        self._follower = Follower(direct, caches)
        self._last_holds: dict[str, tuple[str, dict[str, str]]] = {}
        """By the uid that a followed object had first: the uid that it had when it went, and what held it then, if
        anything did; until its keeper is told, or gone, too."""

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        """Look at one keeper. Costs no call of the store while the caches know that all is well."""
        keeper = self._caches.of(OBJECT_KEEPER).get(key)
        if keeper is None:
            return ReconcileResult()
        if keeper.spec.mode == KeeperMode.TTL:
            await self._write(keeper, phase=KeeperPhase.EXPIRING, anchor=state_of(keeper, Followed.UNKNOWN).created)
            return ReconcileResult()
        followed, obj = await self._follower.look(keeper.spec.follow_object_ref)
        keeper = await self._pass_on(keeper, obj)
        if followed is Followed.PRESENT:
            self._keepers.found(keeper)
            await self._write(keeper, phase=KeeperPhase.TRACKING)
        elif followed is Followed.LOST:
            await self._lost(keeper)
        return ReconcileResult(requeue_after=_BACKSTOP_SECONDS)

    def gone(self, followed: Object) -> None:
        """Take note that a followed object is gone: its last state is known here only, and its hold outlives it."""
        meta = followed.metadata
        self._last_holds[first_uid(meta)] = meta.uid, hold_marks(meta.annotations)

    def forget(self, keeper: ObjectKeeper) -> None:
        """Take note that the last keeper of a followed object is gone: there is nobody to tell any more."""
        ref = keeper.spec.follow_object_ref
        self._last_holds.pop("" if ref is None else ref.uid or "", None)

    async def _pass_on(self, keeper: ObjectKeeper, followed: Object | None) -> ObjectKeeper:
        """Let the keeper have the hold of what it follows, before anything is concluded; return it as it is then."""
        ref, meta = keeper.spec.follow_object_ref, keeper.metadata
        uid = "" if ref is None else ref.uid or ""
        told = self._last_holds.get(uid)
        if followed is not None:
            told = followed.metadata.uid, followed.metadata.annotations
        if not uid or told is None:
            return keeper
        if needed := passed_on(meta.annotations, told[1], uid=told[0]):
            body: Json = {"metadata": {"annotations": needed}}
            keeper = await self._store.patch(OBJECT_KEEPER, meta.key, body, uid=meta.uid, version=meta.resource_version)
        self._last_holds.pop(uid, None)
        return keeper

    async def _lost(self, keeper: ObjectKeeper) -> None:
        if keeper.spec.mode == KeeperMode.FOLLOW_OBJECT:
            self._keepers.lost(keeper, UnixNs(self._clock.wall_ns()))
            return
        known = keeper.status.lost_at if keeper.status is not None else None
        if known is None and self._clock.in_doubt():
            return  # the TTL would count from a moment that nobody knows; it is looked at again soon
        lost_at = known or to_timestamp(self._clock.wall_ns())
        await self._write(keeper, phase=KeeperPhase.EXPIRING, lost_at=lost_at, anchor=from_timestamp(lost_at))

    async def _write(
        self, keeper: ObjectKeeper, *, phase: KeeperPhase, lost_at: str | None = None, anchor: UnixNs | None = None
    ) -> None:
        """Write the status if it is not that already; a race is lost, and looked at again."""
        ttl = _ttl(keeper.spec.ttl)
        expires_at = None
        if anchor is not None and ttl is not None and ttl.nanoseconds is not None:
            at = Expiry(anchor + ttl.nanoseconds).extended(extension_of(keeper.metadata.annotations)).at
            expires_at = None if at is None else to_timestamp(at)
        status: Json = {"phase": phase, "lostAt": lost_at, "expiresAt": expires_at}
        if _shown(keeper.status) == status:
            return
        meta = keeper.metadata
        await self._store.patch_status(OBJECT_KEEPER, meta.key, status, uid=meta.uid, version=meta.resource_version)


def _shown(status: KeeperStatus | None) -> Json:
    if status is None:
        return {}
    return {"phase": status.phase, "lostAt": status.lost_at, "expiresAt": status.expires_at}


def with_loss(state: KeeperState, lost: UnixNs | None) -> KeeperState:
    """Return the state with the moment of a loss that is not written in the status."""
    return state if lost is None else replace(state, lost=lost)
