"""The domain of the sweep for keepers: those that count down, by deadline, and those whose followed object is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.verdict import DueReason, Keep, Verdict
from lapse.engine.deadlines import Deadlines
from lapse.engine.holds import hold_of
from lapse.engine.sweep import Candidate
from lapse.requests.api.kinds import OBJECT_KEEPER, KeeperMode, ObjectKeeper
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PersistentVolume
from lapse.requests.keeper import Followed, Follower, KeeperReason, KeeperState, decide, state_of, with_loss

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.core.verdict import Reason
    from lapse.engine.journal import Outcome
    from lapse.kube.resources import ObjectKey
    from lapse.objects.port import Reader
    from lapse.requests.caches import Caches
    from lapse.requests.policy import Policy

DOMAIN: Final = "keepers"


class Keepers:
    """See the module. Belongs to one event loop."""

    name = DOMAIN
    reasons: tuple[Reason, ...] = (DueReason.TTL_EXPIRED, KeeperReason.FOLLOWED_LOST)

    def __init__(self, caches: Caches, *, direct: Reader, policy: Policy) -> None:
        """Begin to follow the cache of keepers."""
        self.policy = policy.digest
        self.deadlines: Deadlines[ObjectKey] = Deadlines()
        self._caches = caches
        self._follower = Follower(direct, caches)
        self._lost: dict[str, UnixNs] = {}
        """By uid: since when the object of a keeper without a TTL is lost. Not stored, as it is found again at once."""
        caches.of(OBJECT_KEEPER).subscribe(self._changed)

    def lost(self, keeper: ObjectKeeper, now: UnixNs) -> None:
        """Take note that what a keeper without a TTL follows is lost."""
        self._lost.setdefault(keeper.metadata.uid, now)
        self.deadlines.set(keeper.metadata.key, now)

    def found(self, keeper: ObjectKeeper) -> None:
        """Take note that what a keeper follows is there."""
        self._lost.pop(keeper.metadata.uid, None)
        self.deadlines.discard(keeper.metadata.key)

    def _changed(self, old: ObjectKeeper | None, new: ObjectKeeper | None) -> None:
        if new is None:
            if old is not None:
                self._lost.pop(old.metadata.uid, None)
                self.deadlines.discard(old.metadata.key)
        elif new.spec.mode != KeeperMode.FOLLOW_OBJECT:
            verdict = decide(self._state(new, Followed.LOST), UnixNs(0))
            when = verdict.next_check if isinstance(verdict, Keep) else None
            if when is None:
                self.deadlines.discard(new.metadata.key)
            else:
                self.deadlines.set(new.metadata.key, when)

    def _state(self, keeper: ObjectKeeper, followed: Followed) -> KeeperState:
        return with_loss(state_of(keeper, followed), self._lost.get(keeper.metadata.uid))

    def due(self, now: UnixNs) -> Iterator[Candidate[KeeperState]]:
        """See `Domain`. What is followed counts as lost until `refresh` has looked."""
        for key in self.deadlines.due(now):
            keeper = self._caches.of(OBJECT_KEEPER).get(key)
            if keeper is not None:
                yield self._candidate(keeper, Followed.LOST)

    def _candidate(self, keeper: ObjectKeeper, followed: Followed) -> Candidate[KeeperState]:
        meta = keeper.metadata
        return Candidate(
            address=Address("keeper", None, meta.name),
            kind=OBJECT_KEEPER,
            key=meta.key,
            uid=meta.uid,
            version=meta.resource_version,
            state=self._state(keeper, followed),
            hold=hold_of(meta.annotations),
            owners=meta.owner_references,
        )

    def next_deadline(self) -> UnixNs | None:
        """See `Domain`."""
        return self.deadlines.next()

    def decide(self, candidate: Candidate[KeeperState], now: UnixNs) -> Verdict:
        """See `Domain`."""
        return decide(candidate.state, now)

    async def refresh(self, candidate: Candidate[KeeperState]) -> Candidate[KeeperState] | None:
        """Read what the deletion does not compare: what is followed. Holds are looked for where it is ended."""
        keeper = await self._caches.read(OBJECT_KEEPER, candidate.key)
        if keeper is None or keeper.metadata.uid != candidate.uid:
            return None
        followed = Followed.UNKNOWN
        if keeper.spec.mode != KeeperMode.TTL:
            followed = await self._follower.look_directly(keeper.spec.follow_object_ref)
        return self._candidate(keeper, followed)

    def anchor(self, candidate: Candidate[KeeperState]) -> UnixNs | None:
        """See `Domain`."""
        return candidate.state.created if candidate.state.mode == KeeperMode.TTL else candidate.state.lost

    def details(self, candidate: Candidate[KeeperState]) -> dict[str, Any] | None:
        """Name the volumes that go with the keeper, so that their data can be found after their object is gone."""
        volumes = [obj for kind, obj in self._caches.owned_by(candidate.uid) if kind is PERSISTENT_VOLUME]
        return {"volumeHandles": [_handle(volume) for volume in volumes]} if volumes else None

    def settled(self, candidate: Candidate[KeeperState], outcome: Outcome, next_check: UnixNs | None) -> None:
        """See `Domain`."""
        if next_check is None:
            self.deadlines.discard(candidate.key)
        elif candidate.key in self.deadlines:
            self.deadlines.set(candidate.key, next_check)


def _handle(volume: PersistentVolume) -> str | None:
    return volume.spec.csi.volume_handle if volume.spec.csi is not None else None
