"""Requests, keepers, their artifacts and schedules as people see and steer them: `lapse.engine.domain.ManagedDomain`.

What decides is what the sweeps of this package decide by; here it is put into words. Upcoming ends come from the
indexes of the sweeps, which the caches fill: in a running process they are filled already, a command fills them when
it first needs them (`RequestObjects.ready`). Single objects are read straight from the store, so that a person needs no
more rights than to read them.

A keeper of a scheduled run is decided about by two domains, keepers and schedules: what either would end is due. An
artifact lapses with its keeper and has no time of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from lapse.core.decision import Decision, Due, Keep, KeepReason, Reason, with_extension
from lapse.core.errors import LapseError
from lapse.core.timestamps import to_timestamp
from lapse.engine.domain import DELETE, Candidate, Consequence
from lapse.engine.explanation import Grounds, RuleVerdict, single_rule, words
from lapse.engine.safety.extensions import extension_of
from lapse.engine.safety.holds import hold_of
from lapse.engine.service import NothingThereError
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import ObjectKey
from lapse.objects.holds.cluster import Dependants, goes_with
from lapse.objects.managed import ManagedObjects, in_pages
from lapse.objects.target import ObjectHandle
from lapse.objects.trash.rules import TrashReason
from lapse.requests.addresses import ARTIFACT_KINDS, Located, keeper_name
from lapse.requests.api.kinds import (
    CAPTURE_SCHEDULE,
    MANIFEST_CHUNK,
    OBJECT_KEEPER,
    REQUEST_KINDS,
    RUN,
    VOLUME_RESTORE_REQUEST,
    KeeperMode,
)
from lapse.requests.expiry import FinishedRequests, candidate, demand_unheld, hold_on
from lapse.requests.lifecycle.keeper import Followed, KeeperReason, is_for_ever, state_of, with_loss
from lapse.requests.lifecycle.keeper import decide as decide_keeper
from lapse.requests.registration import KEEPERS, REQUESTS, SCHEDULES
from lapse.requests.schedules.retention import RunState, ScheduledRunReason, SupersededRuns
from lapse.requests.submission import demand_unfollowing
from lapse.requests.view import followed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from lapse.core.address import Address
    from lapse.core.clock import Clock, UnixNs
    from lapse.engine.domain import Target
    from lapse.kube.resources import Kind, ObjectMeta
    from lapse.objects.holds.steering import Steering
    from lapse.objects.port import HoldLookup, ObjectStore
    from lapse.objects.trash.moves import ObjectTrash
    from lapse.requests.api.kinds import ObjectKeeper
    from lapse.requests.controllers.caches import Caches
    from lapse.requests.expiry import Finished
    from lapse.requests.lifecycle.keeper import KeeperState
    from lapse.requests.lifecycle.keepers import Keepers
    from lapse.requests.lifecycle.policy import RequestPolicy

_WORDS: Final = {
    KeeperReason.FOLLOWED_PRESENT.value: "what it follows is there",
    KeeperReason.FOLLOWED_LOST.value: "what it follows is gone",
    KeeperReason.RESTORE_PENDING.value: "a restore still needs it",
    ScheduledRunReason.SUPERSEDED.value: "newer runs of its schedule have taken its place",
    ScheduledRunReason.NOT_USABLE.value: "it came to nothing: it has no artifact that is ready",
    ScheduledRunReason.HAS_PLACE.value: "its schedule keeps it",
    ScheduledRunReason.SUSPENDED.value: "its schedule is suspended, gone or cannot be read",
    ScheduledRunReason.GOES_ON.value: "its request is not finished",
}


class InTrashError(NothingThereError):
    """{address} is in the trash already. To bring it back: lapse undo {address}; to remove it: lapse trash empty."""


class ArtifactReason(Reason):
    """Why an artifact stays."""

    KEPT = "kept_by_keeper"


class RequestObjects(NamedTuple):
    """What the domains of this package share in one place."""

    store: ObjectStore
    holds: HoldLookup
    steering: Steering
    trash: ObjectTrash | None
    """Into which what is ended goes; None: nowhere."""
    caches: Caches
    finished: FinishedRequests
    keepers: Keepers
    superseded: SupersededRuns
    policy: RequestPolicy
    clock: Clock
    ready: Callable[[], Awaitable[None]]
    """Returns when caches and indexes know what there is."""


def managed_domains(shared: RequestObjects) -> list[ManagedRequests | ManagedKeepers | ManagedSchedules]:
    """Return the managed domains of this package."""
    return [ManagedRequests(shared), ManagedKeepers(shared), ManagedSchedules(shared)]


class ManagedRequests(ManagedObjects["Finished"]):
    """Requests that are carried out once."""

    name = REQUESTS.name

    def __init__(self, shared: RequestObjects) -> None:
        """Steer the requests of one place."""
        super().__init__(shared.store, shared.holds, shared.steering, trash=shared.trash, clock=shared.clock)
        self._shared, self._rule = shared, shared.policy.ttl_rule

    async def find(self, address: Address) -> Candidate[Finished] | None:
        """See `ManagedDomain`."""
        kind = _kind(address, REQUEST_KINDS)
        found = await _read(self.store, kind, address)
        return None if found is None else candidate(kind, found, self._rule.ttl(found.metadata.annotations))

    async def upcoming(self, until: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[Finished]], None]:
        """See `ManagedDomain`."""
        await self._shared.ready()
        async for page in in_pages(self._shared.finished.until(until), size):
            yield page

    def decide(self, candidate: Candidate[Finished], now: UnixNs) -> Decision:
        """See `ManagedDomain`."""
        return self._shared.finished.decide(candidate, now)

    def policy(self, candidate: Candidate[Finished]) -> str:
        """See `ManagedDomain`."""
        return self._shared.finished.policy(candidate)

    def policy_name(self, candidate: Candidate[Finished]) -> str:
        """See `ManagedDomain`."""
        return self._shared.finished.policy_name(candidate)

    def policies(self) -> Mapping[str, str] | None:
        """See `ManagedDomain`."""
        return self._shared.finished.policies()

    async def governed(self, *, size: int) -> AsyncGenerator[Sequence[Candidate[Finished]], None]:
        """See `ManagedDomain`."""
        await self._shared.ready()
        async for page in self._shared.finished.governed(size=size):
            yield page

    def details(self, candidate: Candidate[Finished]) -> dict[str, Any] | None:
        """See `ManagedDomain`."""
        return self._shared.finished.details(candidate)

    def explain(self, candidate: Candidate[Finished], decision: Decision, now: UnixNs) -> Grounds:
        """See `ManagedDomain`."""
        state = candidate.state
        rule = f"delete {state.ttl} after completion" if state.ttl is not None else "delete some time after completion"
        because = words(decision.verdict.reason.value) if state.final else "it is not finished, and no time counts yet"
        return Grounds(
            rules=(single_rule(decision, rule, action="delete"),),
            because=because,
            anchor_source="its completion",
        )

    async def takes_along(self, candidate: Candidate[Finished]) -> Sequence[str]:
        """Return the keeper that follows it without a time of its own, and what that keeps."""
        keeper = await self._keeper(candidate)
        if keeper is None or keeper.spec.mode != KeeperMode.FOLLOW_OBJECT:
            return ()
        return [f"{OBJECT_KEEPER.word}/{keeper.metadata.name}", *await _kept(self._shared, keeper.metadata.uid)]

    async def leads_to(self, candidate: Candidate[Finished], end: UnixNs) -> Sequence[Consequence]:
        """Return the keeper that stays for its TTL after it, and what that keeps, unless they are held."""
        keeper = await self._keeper(candidate)
        if (
            keeper is None
            or keeper.spec.mode != KeeperMode.FOLLOW_OBJECT_WITH_TTL
            or RUN in keeper.metadata.annotations
        ):
            return ()
        state = with_loss(state_of(keeper, Followed.LOST), end)
        deadline = with_extension(decide_keeper(state, end), extension_of(keeper.metadata.annotations), end).deadline
        if deadline is None or await hold_on(keeper, self._shared.holds, self.now) is not None:
            return ()
        going = [f"{OBJECT_KEEPER.word}/{keeper.metadata.name}", *await _kept(self._shared, keeper.metadata.uid)]
        return [Consequence(one, DELETE, deadline) for one in going]

    async def deletion_target(self, candidate: Candidate[Finished]) -> Target:
        """See `ManagedDomain`: refused where a keeper goes along that is held, or keeps what is."""
        keeper = await self._keeper(candidate)
        if keeper is not None and keeper.spec.mode == KeeperMode.FOLLOW_OBJECT:
            await demand_unheld(keeper, self._shared.holds, address=candidate.address, now=self.now)
        return self.target

    async def _keeper(self, candidate: Candidate[Finished]) -> ObjectKeeper | None:
        key = ObjectKey(None, keeper_name(candidate.handle.kind.short, candidate.uid))
        found: ObjectKeeper | None = await self._shared.caches.find(OBJECT_KEEPER, key)
        return found


class SeenKeeper(NamedTuple):
    """A keeper as both domains see it, or the artifact that one keeps."""

    keeper: Candidate[KeeperState] | None
    """None for an artifact that no keeper owns."""
    run: Candidate[RunState] | None = None
    """Where it is the keeper of a scheduled run."""
    words: str = ""
    """What it is, for rules in words."""
    artifact: str = ""
    """The address, where an artifact is meant and not its keeper."""
    is_in_trash: bool = False
    """Whether it is a trash keeper, or what one keeps."""


class ManagedKeepers(ManagedObjects[SeenKeeper]):
    """Keepers, and the artifacts that they keep."""

    name = KEEPERS.name

    def __init__(self, shared: RequestObjects) -> None:
        """Steer the keepers of one place."""
        super().__init__(shared.store, shared.holds, shared.steering, trash=shared.trash, clock=shared.clock)
        self._shared = shared

    async def find(self, address: Address) -> Candidate[SeenKeeper] | None:
        """See `ManagedDomain`."""
        kind = _kind(address, (OBJECT_KEEPER, *ARTIFACT_KINDS))
        found = await _read(self.store, kind, address)
        if found is None:
            return None
        if kind is OBJECT_KEEPER:
            return await self._seen(found)
        return await self._seen_artifact(kind, found)

    async def upcoming(self, until: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[SeenKeeper]], None]:
        """See `ManagedDomain`."""
        await self._shared.ready()
        async for page in in_pages(self._shared.keepers.until(until), size):
            fresh = await self._shared.keepers.refresh(page)
            yield [_seen(one) for one in fresh if one is not None]

    async def _seen(self, keeper: ObjectKeeper) -> Candidate[SeenKeeper]:
        ref = keeper.spec.follow_object_ref
        if RUN in keeper.metadata.annotations or (ref is not None and ref.kind == VOLUME_RESTORE_REQUEST.kind):
            await self._shared.ready()  # whether it is needed depends on others
        plain = await self._shared.keepers.fresh(keeper)
        run = await self._shared.superseded.fresh(keeper) if RUN in keeper.metadata.annotations else None
        return _seen(plain, run=run, said=_rule_words(keeper))

    async def _seen_artifact(self, kind: Kind[Any], found: Any) -> Candidate[SeenKeeper]:  # noqa: ANN401 - of that kind
        keeper, meta = await self._living_keeper(found.metadata), found.metadata
        seen = SeenKeeper(None) if keeper is None else (await self._seen(keeper)).state
        return Candidate(
            address=kind.address(meta.key),
            uid=meta.uid,
            version=meta.resource_version,
            state=seen._replace(artifact=str(kind.address(meta.key))),
            handle=ObjectHandle.of(kind, found),
            hold=hold_of(meta.annotations),
            extended=None if seen.keeper is None else seen.keeper.extended,
        )

    async def _living_keeper(self, artifact: ObjectMeta) -> ObjectKeeper | None:
        """Return the keeper that an artifact goes with: of several the one that manages it; None when there is none."""
        owners = [one for one in artifact.owner_references if one.kind == OBJECT_KEEPER.kind]
        for owner in sorted(owners, key=lambda one: not one.controller):
            keeper = await self._shared.caches.read(OBJECT_KEEPER, ObjectKey(None, owner.name))
            if keeper is not None and keeper.metadata.uid == owner.uid:
                return keeper
        return None

    def decide(self, candidate: Candidate[SeenKeeper], now: UnixNs) -> Decision:
        """See `ManagedDomain`: what either domain would end is due; an artifact stays as long as its keeper."""
        decision = self._decide_keeper(candidate.state, now)
        if not candidate.state.artifact:
            return decision
        kept = KeepReason.NO_LIMIT if candidate.state.keeper is None else ArtifactReason.KEPT
        return Decision(Keep(kept), decision.anchor, decision.deadline)

    def _decide_keeper(self, seen: SeenKeeper, now: UnixNs) -> Decision:
        if seen.keeper is None:
            return Decision(Keep(KeepReason.NO_LIMIT))
        decision = self._shared.keepers.decide(seen.keeper, now)
        if seen.run is None or isinstance(decision.verdict, Due):
            return decision
        by_schedule = self._shared.superseded.decide(seen.run, now)
        return by_schedule if by_schedule.deadline is not None or isinstance(by_schedule.verdict, Due) else decision

    def policy(self, candidate: Candidate[SeenKeeper]) -> str:
        """See `ManagedDomain`."""
        seen = candidate.state
        return "" if seen.keeper is None else self._shared.keepers.policy(seen.keeper)

    def policy_name(self, candidate: Candidate[SeenKeeper]) -> str:
        """See `ManagedDomain`."""
        seen = candidate.state
        return "" if seen.keeper is None else self._shared.keepers.policy_name(seen.keeper)

    def policies(self) -> Mapping[str, str] | None:
        """See `ManagedDomain`."""
        return self._shared.keepers.policies()

    async def governed(self, *, size: int) -> AsyncGenerator[Sequence[Candidate[SeenKeeper]], None]:
        """See `ManagedDomain`."""
        await self._shared.ready()
        async for page in self._shared.keepers.governed(size=size):
            yield [_seen(one) for one in page]

    def details(self, candidate: Candidate[SeenKeeper]) -> dict[str, Any] | None:
        """See `ManagedDomain`."""
        seen = candidate.state
        return None if seen.keeper is None or seen.artifact else self._shared.keepers.details(seen.keeper)

    def explain(self, candidate: Candidate[SeenKeeper], decision: Decision, now: UnixNs) -> Grounds:
        """See `ManagedDomain`."""
        seen = candidate.state
        if seen.artifact:
            return self._explain_artifact(seen, decision)
        rules = [single_rule(self._shared.keepers.decide(_some(seen.keeper), now), seen.words, action="delete")]
        if seen.run is not None:
            rules.append(_run_rule(self._shared.superseded.decide(seen.run, now), seen.run))
        rules.sort(key=lambda one: one.reason != decision.verdict.reason.value)
        ours = tuple([one if place == 0 else replace(one, wins=False) for place, one in enumerate(rules)])
        not_undoable = TrashReason.IS_TRASH.value if seen.is_in_trash else None
        source = _source(seen.keeper)
        return Grounds(rules=ours, because=_because(decision), anchor_source=source, not_undoable=not_undoable)

    def _explain_artifact(self, seen: SeenKeeper, decision: Decision) -> Grounds:
        if seen.keeper is None:
            rule, because = "kept until somebody deletes it", "no keeper of Lapse owns it"
        else:
            rule = f"goes with {seen.keeper.address}"
            because = f"{seen.keeper.address} keeps it"
        rules = (single_rule(decision, rule, action="delete"),)
        return Grounds(rules=rules, because=because, anchor_source=_source(seen.keeper), is_in_trash=seen.is_in_trash)

    async def takes_along(self, candidate: Candidate[SeenKeeper]) -> Sequence[str]:
        """Return what it owns and no other owner keeps."""
        return () if candidate.state.artifact else await _kept(self._shared, candidate.uid)

    async def deletion_target(self, candidate: Candidate[SeenKeeper]) -> Target:
        """See `ManagedDomain`: a keeper not before its request is gone, an artifact whenever a person says so."""
        if candidate.state.is_in_trash:
            raise InTrashError(address=candidate.address)
        place = Located(candidate.handle.kind, candidate.handle.key)
        if place.kind is OBJECT_KEEPER:
            keeper = await self.store.get(OBJECT_KEEPER, place.key)
            rule = self._shared.policy.ttl_rule
            await demand_unfollowing(self.store, place, keeper, holds=self._shared.holds, rule=rule, now=self.now)
        return self.target

    async def extend(self, candidate: Candidate[SeenKeeper], until: UnixNs, *, by: str) -> None:
        """See `ManagedDomain`: an artifact has no time of its own, so its keeper is extended."""
        seen = candidate.state
        meant: Candidate[Any] = seen.keeper if seen.artifact and seen.keeper is not None else candidate
        await super().extend(meant, until, by=by)


class ManagedSchedules(ManagedObjects[Any]):
    """Schedules themselves, which never lapse, and the keepers of their runs, which do."""

    name = SCHEDULES.name

    def __init__(self, shared: RequestObjects) -> None:
        """Steer the schedules of one place."""
        super().__init__(shared.store, shared.holds, shared.steering, trash=shared.trash, clock=shared.clock)
        self._shared = shared

    async def find(self, address: Address) -> Candidate[Any] | None:
        """See `ManagedDomain`."""
        kind = _kind(address, (CAPTURE_SCHEDULE, OBJECT_KEEPER))
        found = await _read(self.store, kind, address)
        if found is None:
            return None
        if kind is OBJECT_KEEPER:
            await self._shared.ready()
            return await self._shared.superseded.fresh(found)
        meta = found.metadata
        return Candidate(
            address=address,
            uid=meta.uid,
            version=meta.resource_version,
            state=None,
            handle=ObjectHandle.of(kind, found),
            hold=hold_of(meta.annotations),
        )

    async def upcoming(self, until: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[Any]], None]:
        """See `ManagedDomain`."""
        await self._shared.ready()
        async for page in in_pages(self._shared.superseded.until(until), size):
            yield [one for one in await self._shared.superseded.refresh(page) if one is not None]

    def decide(self, candidate: Candidate[Any], now: UnixNs) -> Decision:
        """See `ManagedDomain`."""
        if candidate.state is None:
            return Decision(Keep(KeepReason.NO_LIMIT))
        return self._shared.superseded.decide(candidate, now)

    def policy(self, candidate: Candidate[Any]) -> str:
        """See `ManagedDomain`."""
        return "" if candidate.state is None else self._shared.superseded.policy(candidate)

    def policy_name(self, candidate: Candidate[Any]) -> str:
        """See `ManagedDomain`."""
        return "" if candidate.state is None else self._shared.superseded.policy_name(candidate)

    def policies(self) -> Mapping[str, str] | None:
        """See `ManagedDomain`."""
        return self._shared.superseded.policies()

    async def governed(self, *, size: int) -> AsyncGenerator[Sequence[Candidate[Any]], None]:
        """See `ManagedDomain`."""
        await self._shared.ready()
        async for page in self._shared.superseded.governed(size=size):
            yield page

    def details(self, candidate: Candidate[Any]) -> dict[str, Any] | None:
        """See `ManagedDomain`."""
        return None if candidate.state is None else self._shared.superseded.details(candidate)

    def explain(self, candidate: Candidate[Any], decision: Decision, now: UnixNs) -> Grounds:
        """See `ManagedDomain`."""
        if candidate.state is None:
            rule = "kept until somebody deletes it"
            return Grounds(rules=(single_rule(decision, rule, action="delete"),), because="a schedule does not lapse")
        return Grounds(
            rules=(_run_rule(decision, candidate),), because=_because(decision), anchor_source="its scheduled time"
        )

    async def takes_along(self, candidate: Candidate[Any]) -> Sequence[str]:
        """See `ManagedDomain`: what a keeper keeps."""
        return () if candidate.state is None else await _kept(self._shared, candidate.uid)


# --- words ------------------------------------------------------------------------------------------------------------


def _because(decision: Decision) -> str:
    reason = decision.verdict.reason.value
    return _WORDS.get(reason) or words(reason)


def _rule_words(keeper: ObjectKeeper) -> str:
    """Say how long a keeper stays."""
    match keeper.spec.mode:
        case KeeperMode.FOLLOW_OBJECT:
            return f"delete when {followed(keeper)} is gone"
        case _ if is_for_ever(keeper):
            return "kept until somebody deletes it"
        case KeeperMode.TTL:
            return f"delete {keeper.spec.ttl} after its creation"
        case _:
            return f"delete {keeper.spec.ttl} after {followed(keeper)} is gone"


def _run_rule(decision: Decision, run: Candidate[RunState]) -> RuleVerdict:
    tiers = ", ".join(tier.value for tier in run.state.tiers)
    rule = f"kept by its schedule as {tiers}" if tiers else "delete when its schedule does not keep it"
    return single_rule(decision, rule, action="delete")


def _source(keeper: Candidate[KeeperState] | None) -> str:
    if keeper is None:
        return ""
    if keeper.state.mode == KeeperMode.TTL:
        return "its creation"
    lost = keeper.state.lost
    return "the loss of what it follows" if lost is None else f"the loss of what it follows ({to_timestamp(lost)})"


# --- reading ----------------------------------------------------------------------------------------------------------


def _seen(
    plain: Candidate[KeeperState], *, run: Candidate[RunState] | None = None, said: str = ""
) -> Candidate[SeenKeeper]:
    return Candidate(
        address=plain.address,
        uid=plain.uid,
        version=plain.version,
        state=SeenKeeper(plain, run, said or "delete when its time is over", is_in_trash=plain.handle.is_trash),
        handle=plain.handle,
        hold=plain.hold,
        extended=plain.extended,
        dry_run=plain.dry_run,
    )


def _some(keeper: Candidate[KeeperState] | None) -> Candidate[KeeperState]:
    assert keeper is not None  # noqa: S101 - only an artifact may have none
    return keeper


def _kind(address: Address, kinds: Sequence[Kind[Any]]) -> Kind[Any]:
    return next(kind for kind in kinds if kind.word == address.kind)


async def _read(store: ObjectStore, kind: Kind[Any], address: Address) -> Any:  # noqa: ANN401 - of that kind
    """Return the object of an address, None if there is none."""
    try:
        return await store.get(kind, ObjectKey(address.scope, address.name))
    except NotFoundError:
        return None


async def _kept(shared: RequestObjects, uid: str) -> list[str]:
    """Return the addresses of what goes with a keeper; nothing where what it owns cannot be read, for then it stays.

    Chunks are parts of their checkpoint, and not told.
    """
    dependants = shared.store if isinstance(shared.store, Dependants) else shared.steering.dependants
    try:
        owned = await goes_with(dependants, OBJECT_KEEPER, uid)
    except LapseError:
        return []
    return [str(kind.address(obj.metadata.key)) for kind, obj in owned if kind.kind != MANIFEST_CHUNK.kind]
