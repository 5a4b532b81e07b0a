"""The keepers domain of the sweep: keepers that count down, by deadline, and those whose followed object is lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.decision import DueReason
from lapse.engine.deadlines import Deadlines
from lapse.engine.domain import Candidate, Settled, decided
from lapse.engine.safety.extensions import extension_of
from lapse.engine.safety.holds import hold_of
from lapse.objects.target import ObjectHandle
from lapse.requests.api.kinds import (
    BEFORE_RESTORE,
    OBJECT_KEEPER,
    VOLUME_RESTORE_REQUEST,
    KeeperMode,
    ObjectKeeper,
)
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, PersistentVolume
from lapse.requests.controllers.claims import is_awaited
from lapse.requests.lifecycle.keeper import Followed, Follower, KeeperReason, KeeperState, decide, state_of, with_loss
from lapse.requests.registration import KEEPERS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

    from lapse.core.clock import Clock
    from lapse.core.decision import Decision, Reason
    from lapse.kube.resources import ObjectKey
    from lapse.objects.port import Reader
    from lapse.requests.controllers.caches import Caches
    from lapse.requests.lifecycle.policy import RequestPolicy

DOMAIN: Final = KEEPERS.name
POLICY: Final = "keeper-ttl"
"""The policy that decides about keepers."""
_POLICIES: Final = {POLICY: "each its own"}


class Keepers:
    """See the module. Belongs to one event loop."""

    name = DOMAIN
    is_indexed = True
    reasons: tuple[Reason, ...] = (DueReason.TTL_EXPIRED, KeeperReason.FOLLOWED_LOST)

    def __init__(self, caches: Caches, *, direct: Reader, policy: RequestPolicy, clock: Clock) -> None:
        """Begin to follow the cache of keepers."""
        self._policy, self._clock, self._direct = policy.digest, clock, direct
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
            deadline = decided(self, self._candidate(new, Followed.UNKNOWN), UnixNs(self._clock.wall_ns())).deadline
            if deadline is None:
                self.deadlines.discard(new.metadata.key)
            else:
                self.deadlines.set(new.metadata.key, UnixNs(deadline + 1))

    def _state(self, keeper: ObjectKeeper, followed: Followed) -> KeeperState:
        return with_loss(state_of(keeper, followed), self._lost.get(keeper.metadata.uid))

    def due(self, now: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[KeeperState]], None]:
        """See `Domain`. What is followed counts as lost until `refresh` has looked."""
        return self.deadlines.pages(now, size=size, find=self._find)

    def until(self, moment: UnixNs) -> Iterator[Candidate[KeeperState]]:
        """Yield what may be due by a moment, as far as the caches know; the index stays as it is."""
        return (found for key in self.deadlines.until(moment) if (found := self._find(key)) is not None)

    def _find(self, key: ObjectKey) -> Candidate[KeeperState] | None:
        keeper = self._caches.of(OBJECT_KEEPER).get(key)
        return None if keeper is None else self._candidate(keeper, Followed.LOST)

    def _candidate(
        self, keeper: ObjectKeeper, followed: Followed, *, is_needed: bool = False
    ) -> Candidate[KeeperState]:
        meta = keeper.metadata
        return Candidate(
            address=Address("keeper", None, meta.name),
            uid=meta.uid,
            version=meta.resource_version,
            state=replace(self._state(keeper, followed), is_needed=is_needed),
            handle=ObjectHandle.of(OBJECT_KEEPER, keeper),
            hold=hold_of(meta.annotations),
            extended=extension_of(meta.annotations),
        )

    def next_deadline(self) -> UnixNs | None:
        """See `Domain`."""
        return self.deadlines.next()

    def decide(self, candidate: Candidate[KeeperState], now: UnixNs) -> Decision:
        """See `Domain`."""
        return decide(candidate.state, now)

    async def refresh(self, candidates: Sequence[Candidate[KeeperState]]) -> Sequence[Candidate[KeeperState] | None]:
        """Read what the deletion does not compare: what is followed. Holds are looked for where it is ended."""
        if len(candidates) == 1:  # a task for each would be for nothing
            return [await self._fresh(candidates[0])]
        return await asyncio.gather(*[self._fresh(one) for one in candidates])

    async def _fresh(self, candidate: Candidate[KeeperState]) -> Candidate[KeeperState] | None:
        keeper = await self._caches.read(OBJECT_KEEPER, candidate.handle.key)
        return None if keeper is None or keeper.metadata.uid != candidate.uid else await self.fresh(keeper)

    async def fresh(self, keeper: ObjectKeeper) -> Candidate[KeeperState]:
        """Return a keeper that was just read, with what the deletion does not compare read now."""
        followed = Followed.UNKNOWN
        if keeper.spec.mode != KeeperMode.TTL:
            followed = await self._follower.look_directly(keeper.spec.follow_object_ref)
        return self._candidate(keeper, followed, is_needed=await self._is_needed(keeper))

    async def _is_needed(self, keeper: ObjectKeeper) -> bool:
        """Whether a restore still needs its keeper: its claim has no volume yet, or the volume is not let go."""
        ref = keeper.spec.follow_object_ref
        if ref is None or ref.kind != VOLUME_RESTORE_REQUEST.kind or not ref.uid:
            return False
        await self._caches.prepare(PERSISTENT_VOLUME)  # one that is not filled yet would say that it owns nothing
        owned = self._caches.owned_by(keeper.metadata.uid)
        if any(kind is PERSISTENT_VOLUME and BEFORE_RESTORE in obj.metadata.annotations for kind, obj in owned):
            return True
        # Past the cache: a claim that it has not seen yet would lose the snapshot that it is filled from. All of the
        # namespace: a label can be taken off.
        claims = await self._direct.list(PERSISTENT_VOLUME_CLAIM, namespace=ref.namespace)
        return any(is_awaited(one, ref.uid) for one in claims.items)

    def policy(self, candidate: Candidate[KeeperState]) -> str:
        """See `Domain`."""
        return self._policy

    def policy_name(self, candidate: Candidate[KeeperState]) -> str:
        """See `Domain`."""
        return POLICY

    def policies(self) -> Mapping[str, str]:
        """See `Domain`: each keeper carries its own TTL, and another keeper_ttl is for keepers to come."""
        return _POLICIES

    async def governed(self, *, size: int) -> AsyncGenerator[Sequence[Candidate[KeeperState]], None]:
        """See `Domain`: all keepers, from the cache; what is followed is there unless it is known to be lost."""
        self._caches.demand_synced()
        found = [self._candidate(one, self._as_noted(one)) for one in self._caches.of(OBJECT_KEEPER).items()]
        for start in range(0, len(found), size):
            yield found[start : start + size]

    def _as_noted(self, keeper: ObjectKeeper) -> Followed:
        lost = self._state(keeper, Followed.UNKNOWN).lost
        return Followed.PRESENT if lost is None else Followed.LOST

    def details(self, candidate: Candidate[KeeperState]) -> dict[str, Any] | None:
        """Name the volumes that go with the keeper, so that their data can be found after their object is gone."""
        volumes = [obj for kind, obj in self._caches.owned_by(candidate.uid) if kind is PERSISTENT_VOLUME]
        return {"volumeHandles": [_handle(volume) for volume in volumes]} if volumes else None

    async def settle(self, settled: Sequence[Settled[KeeperState]]) -> None:
        """See `Domain`."""
        for one in settled:
            one.note(self.deadlines, one.candidate.handle.key)


def _handle(volume: PersistentVolume) -> str | None:
    return volume.spec.csi.volume_handle if volume.spec.csi is not None else None
