"""The end of requests: by the TTL of finished ones, in two modes, or by a person before that.

Mode *scanner*: the policy's TTL counts from the completion; a sweep looks at what is due, from the caches, and no
reconcile knows of it. Mode *annotation*: the annotation on the request decides, and is looked at whenever the finished
request is reconciled, before anything else.

All end a request in the same way, by the engine, with the uid and the version that the decision was made on. A request
without a completion timestamp never lapses. People delete requests, the claims that they made for them, and keepers
that never go by themselves, and nothing else: other keepers go by their own rule, and an artifact with its keeper.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.decision import Decision, Due, DueReason, Keep, KeepReason, decide_by_ttl
from lapse.core.duration import Duration
from lapse.core.errors import UsageError
from lapse.core.jitter import Chance, around, chance
from lapse.core.timestamps import from_timestamp
from lapse.engine import executor
from lapse.engine.deadlines import Deadlines
from lapse.engine.domain import DELETE, Candidate, Settled, action_of, decided, deletion_by_person
from lapse.engine.executor import HoldUnknownError
from lapse.engine.journal.port import Outcome
from lapse.engine.safety.extensions import extension_of
from lapse.engine.safety.holds import HoldDoubt, held_error, hold_of
from lapse.engine.verbs.contract import SteeredView
from lapse.kube.controller.controller import ReconcileResult
from lapse.objects.port import Deletion
from lapse.objects.target import ObjectHandle, ObjectTarget
from lapse.requests.api.conditions import is_final
from lapse.requests.api.kinds import CAPTURE_SCHEDULE, OBJECT_KEEPER, REQUEST_KINDS, TTL, KeeperMode
from lapse.requests.api.upstream import PERSISTENT_VOLUME_CLAIM
from lapse.requests.controllers.finalise import Finaliser, R, Request, conditions_of
from lapse.requests.lifecycle.policy import InvalidTTLAnnotationError, ttl_of
from lapse.requests.registration import KEEPERS, REQUESTS, SCHEDULES

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from lapse.core.clock import Clock
    from lapse.core.decision import Reason
    from lapse.engine.executor import Executor
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.holds import Hold
    from lapse.kube.resources import Kind, Object, ObjectKey
    from lapse.objects.port import HoldLookup, ObjectStore
    from lapse.objects.trash.moves import ObjectTrash
    from lapse.requests.addresses import Located
    from lapse.requests.api.kinds import ObjectKeeper
    from lapse.requests.controllers.caches import Caches
    from lapse.requests.lifecycle.policy import RequestPolicy

DOMAIN: Final = REQUESTS.name
POLICY: Final = "request-ttl"
"""The policy that decides about finished requests."""
_LONGEST_WAIT_SECONDS: Final = 60.0
_SHORTEST_WAIT_SECONDS: Final = 30.0
_SHOWN: Final = 200
"""How much of an unreadable annotation is repeated in a message."""
_NS: Final = 1_000_000_000


class Finished(Struct, frozen=True, gc=False):
    """What the decision about a request looks at."""

    final: bool
    completed: UnixNs | None
    """None when it is missing or cannot be read."""
    ttl: Duration | None
    """None when it cannot be read."""


def decide(request: Finished, now: UnixNs) -> Decision:
    """Say whether a request is due: strictly after completion plus TTL, and never in doubt."""
    if not request.final:
        return Decision(Keep(KeepReason.NOT_YET))
    return decide_by_ttl(request.completed, request.ttl, now, action=DELETE)


def finished(request: Request, ttl: Duration | None) -> Finished:
    """Return what is to be decided on; ``ttl`` is the one that counts in the mode at hand."""
    completed = request.status.completion_timestamp if request.status is not None else None
    return Finished(is_final(conditions_of(request)), from_timestamp(completed or ""), ttl)


class FinishedRequests:
    """The domain of the sweep: finished requests by deadline, fed by the caches, for either mode.

    ``ttl`` says which TTL counts for a request: the policy's, or the one on the request. Only in mode scanner does the
    sweep look for what is due; in mode annotation a reconcile brings a request forward (`candidate`).
    """

    name = DOMAIN
    is_indexed = True
    reasons: tuple[Reason, ...] = (DueReason.TTL_EXPIRED,)

    def __init__(self, caches: Caches, *, policy: RequestPolicy, clock: Clock) -> None:
        """Begin to follow the caches."""
        self._policy, self._rule = policy.digest, policy.ttl_rule
        self._policies = {POLICY: policy.ttl_digest}
        self.deadlines: Deadlines[tuple[Kind[Any], ObjectKey]] = Deadlines()
        self._caches, self._rule, self._clock = caches, policy.ttl_rule, clock
        for kind in REQUEST_KINDS:
            caches.of(kind).subscribe(partial(self._changed, kind))

    def _changed(self, kind: Kind[Any], old: Request | None, new: Request | None) -> None:
        if new is None:
            if old is not None:
                self.deadlines.discard((kind, old.metadata.key))
            return
        seen = candidate(kind, new, self._rule.ttl(new.metadata.annotations))
        deadline = decided(self, seen, UnixNs(self._clock.wall_ns())).deadline
        if deadline is None:
            self.deadlines.discard((kind, new.metadata.key))
        else:
            self.deadlines.set((kind, new.metadata.key), UnixNs(deadline + 1))

    def due(self, now: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[Finished]], None]:
        """See `Domain`."""
        return self.deadlines.pages(now, size=size, find=self._find)

    def _find(self, place: tuple[Kind[Any], ObjectKey]) -> Candidate[Finished] | None:
        kind, key = place
        request = self._caches.of(kind).get(key)
        return None if request is None else candidate(kind, request, self._rule.ttl(request.metadata.annotations))

    def until(self, moment: UnixNs) -> Iterator[Candidate[Finished]]:
        """Yield what may be due by a moment, as far as the caches know; the index stays as it is."""
        return (found for place in self.deadlines.until(moment) if (found := self._find(place)) is not None)

    def next_deadline(self) -> UnixNs | None:
        """See `Domain`."""
        return self.deadlines.next()

    def decide(self, candidate: Candidate[Finished], now: UnixNs) -> Decision:
        """See `Domain`."""
        return decide(candidate.state, now)

    async def refresh(self, candidates: Sequence[Candidate[Finished]]) -> Sequence[Candidate[Finished]]:
        """Read nothing: all that the decision looks at is in the object, whose version the deletion compares."""
        return candidates

    def policy(self, candidate: Candidate[Finished]) -> str:
        """See `Domain`."""
        return self._policy

    def policy_name(self, candidate: Candidate[Finished]) -> str:
        """See `Domain`."""
        return POLICY

    def policies(self) -> dict[str, str]:
        """See `Domain`: the TTL of finished requests."""
        return self._policies

    async def governed(self, *, size: int) -> AsyncGenerator[Sequence[Candidate[Finished]], None]:
        """See `Domain`: all finished requests, from the caches."""
        self._caches.demand_synced()
        found = [
            candidate(kind, one, self._rule.ttl(one.metadata.annotations))
            for kind in REQUEST_KINDS
            for one in self._caches.of(kind).items()
            if is_final(conditions_of(one))
        ]
        for start in range(0, len(found), size):
            yield found[start : start + size]

    def details(self, candidate: Candidate[Finished]) -> dict[str, Any] | None:
        """See `Domain`."""
        return None

    async def settle(self, settled: Sequence[Settled[Finished]]) -> None:
        """See `Domain`."""
        for one in settled:
            one.note(self.deadlines, (one.candidate.handle.kind, one.candidate.handle.key))


def candidate(kind: Kind[Any], request: Request, ttl: Duration | None) -> Candidate[Finished]:
    """Return a request as the sweep sees it."""
    meta = request.metadata
    return Candidate(
        address=Address(kind.short, meta.namespace, meta.name),
        uid=meta.uid,
        version=meta.resource_version,
        state=finished(request, ttl),
        handle=ObjectHandle.of(kind, request),
        hold=hold_of(meta.annotations),
        extended=extension_of(meta.annotations),
    )


class AnnotationTTL:
    """Mode annotation: looked at whenever a finished request is reconciled."""

    def __init__(
        self,
        requests: FinishedRequests,
        *,
        executor: Executor,
        finaliser: Finaliser,
        policy: RequestPolicy,
        clock: Clock,
        chance: Chance = chance,
    ) -> None:
        """End requests by ``executor``, write what is wrong by ``finaliser``."""
        self._requests, self._executor = requests, executor
        self._finaliser, self._clock, self._chance = finaliser, clock, chance
        self._default = policy.request_ttl.go()

    async def look(self, kind: Kind[R], request: R) -> ReconcileResult:
        """End a finished request whose TTL is over, or say when to look again."""
        request = await self._finaliser.annotate(kind, request)
        text = request.metadata.annotations.get(TTL, self._default)
        try:
            ttl = ttl_of(text)
        except InvalidTTLAnnotationError as error:
            message = f"Invalid TTL annotation format: {text[:_SHOWN]} (error: {str(error)[:_SHOWN]})"
            await self._finaliser.declare_invalid_ttl(kind, request, message)
            return ReconcileResult()
        considered = candidate(kind, request, ttl)
        decision = decided(self._requests, considered, UnixNs(self._clock.wall_ns()))
        verdict = decision.verdict
        if isinstance(verdict, Due):
            return await self._end(considered, decision)
        if verdict.next_check is None:
            return ReconcileResult()
        return ReconcileResult(requeue_after=self._wait((verdict.next_check - self._clock.wall_ns()) / _NS))

    async def _end(self, considered: Candidate[Finished], decision: Decision) -> ReconcileResult:
        """End it; there is nothing to read again, because the version covers all that was decided on."""
        await self._executor.gate.policies.look(self._requests)
        (result,) = await self._executor.execute([action_of(self._requests, considered, decision)])
        if result.outcome in {Outcome.ENDED, Outcome.GONE}:
            return ReconcileResult()
        return ReconcileResult(requeue_after=self._wait(_LONGEST_WAIT_SECONDS))

    def _wait(self, left: float) -> float:
        return max(_SHORTEST_WAIT_SECONDS, around(min(left, _LONGEST_WAIT_SECONDS), chance=self._chance))


# --- deletion by a person ---------------------------------------------------------------------------------------------


DELETABLE: Final[tuple[Kind[Any], ...]] = (*REQUEST_KINDS, PERSISTENT_VOLUME_CLAIM, OBJECT_KEEPER, CAPTURE_SCHEDULE)


_DOMAINS: Final[dict[Kind[Any], str]] = {OBJECT_KEEPER: KEEPERS.name, CAPTURE_SCHEDULE: SCHEDULES.name}
"""Whose a deletion is in the journal, where it is not that of a request or a claim."""


def deleted_view(place: Located, uid: str, said: str) -> SteeredView:
    """Return the view of an object that a person has deleted, with what is said of it."""
    return SteeredView(address=str(place.address), domain=_DOMAINS.get(place.kind, DOMAIN), uid=uid, says=said or None)


class NotDeletableError(UsageError):
    """{address} is not deleted by hand: a keeper goes some time after its request, an artifact goes with its keeper.

    Delete the request (vcr, vrr or mcr) to begin that. Once it is gone, lapse requests list shows when the rest goes,
    and the keeper may be deleted sooner, by lapse requests delete keeper/NAME; to keep the data for longer, restore it
    with lapse requests restore NAME --from SNAPSHOT --to PATH.
    """


def demand_deletable(place: Located) -> None:
    """Refuse what people do not delete, by its kind."""
    if place.kind not in DELETABLE:
        raise NotDeletableError(address=place)


async def hold_on(keeper: ObjectKeeper, holds: HoldLookup, now: int) -> Hold | HoldDoubt | None:
    """Return what keeps a keeper: its own hold, or one of what it follows or keeps."""
    meta = keeper.metadata
    kept = Deletion(OBJECT_KEEPER, meta.key, meta.uid, meta.resource_version, meta.owner_references)
    (held,) = await holds.holds_over([kept], UnixNs(now))
    return held


async def demand_unheld(keeper: ObjectKeeper, holds: HoldLookup, *, address: object, now: int) -> None:
    """Refuse the deletion of ``address`` because of its keeper; raises `HeldError` and `HoldUnknownError`."""
    held = await hold_on(keeper, holds, now)
    if isinstance(held, HoldDoubt):
        raise HoldUnknownError(address=address, problem=held.problem)
    if held is not None:
        raise held_error(address, held)


async def delete_by_person(  # noqa: PLR0913 - all but the object named
    store: ObjectStore,
    place: Located,
    obj: Object,
    *,
    keeper: ObjectKeeper | None,
    holds: HoldLookup,
    journal: Journal,
    actor: str,
    clock: Clock,
    trash: ObjectTrash | None = None,
    metrics: Metrics | None = None,
) -> None:
    """Delete an object as it was read, unless it is held, or takes along what is; into the ``trash``, if there is one.

    A ``keeper`` without a TTL goes with the request that it follows. Raises `HeldError`, and what the store raises.
    """
    now = clock.wall_ns()
    if keeper is not None and keeper.spec.mode == KeeperMode.FOLLOW_OBJECT:
        await demand_unheld(keeper, holds, address=place, now=now)
    action = deletion_by_person(
        domain=_DOMAINS.get(place.kind, DOMAIN),
        address=place.address,
        uid=obj.metadata.uid,
        version=obj.metadata.resource_version,
        handle=ObjectHandle.of(place.kind, obj),
        hold=hold_of(obj.metadata.annotations),
        actor=actor,
        now=now,
    )
    target = ObjectTarget(store, holds, trash=trash)
    await executor.delete_by_person(target, journal, action, clock=clock, metrics=metrics)
