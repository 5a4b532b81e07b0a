"""The TTL of finished requests: one policy, two modes.

Mode *scanner*: the policy's TTL counts from the completion; a sweep looks at what is due, from the caches, and no
reconcile knows of it. Mode *annotation*: the annotation on the request decides, and is looked at whenever the finished
request is reconciled, before anything else.

Both end a request in the same way, by the engine, with the uid and the version that the decision was made on. A request
without a completion timestamp never lapses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.jitter import Chance, around, chance
from lapse.core.timestamps import from_timestamp
from lapse.core.verdict import Due, DueReason, Keep, KeepReason, Unknown, UnknownReason, Verdict
from lapse.engine.deadlines import Deadlines
from lapse.engine.holds import hold_of
from lapse.engine.journal import Outcome
from lapse.engine.sweep import Candidate
from lapse.kube.controller import Result
from lapse.requests.api.annotations import TTL
from lapse.requests.api.conditions import is_final
from lapse.requests.api.kinds import REQUEST_KINDS
from lapse.requests.finalise import Finaliser, R, Request, conditions_of
from lapse.requests.policy import InvalidTTLError, ttl_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.core.clock import Clock
    from lapse.core.duration import Duration
    from lapse.core.verdict import Reason
    from lapse.engine.ending import Ender
    from lapse.kube.resources import Kind, ObjectKey
    from lapse.requests.caches import Caches
    from lapse.requests.policy import Policy

DOMAIN: Final = "requests"
DELETE: Final = "delete"
_LONGEST_WAIT_SECONDS: Final = 60.0
_SHORTEST_WAIT_SECONDS: Final = 30.0
_SHOWN: Final = 200
"""How much of an unreadable annotation is repeated in a message."""
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Finished:
    """What the decision about a request looks at."""

    final: bool
    completed: UnixNs | None
    """None when it is missing or cannot be read."""
    ttl: Duration | None
    """None when it cannot be read."""


def decide(request: Finished, now: UnixNs) -> Verdict:
    """Say whether a request is due: strictly after completion plus TTL, and never in doubt."""
    if not request.final:
        return Keep(KeepReason.NOT_YET)
    if request.completed is None:
        return Unknown(UnknownReason.MISSING_ANCHOR)
    if request.ttl is None:
        return Unknown(UnknownReason.INVALID_TTL)
    if request.ttl.nanoseconds is None:
        return Keep(KeepReason.NO_LIMIT)
    over = UnixNs(request.completed + request.ttl.nanoseconds)
    if now <= over:
        return Keep(KeepReason.NOT_YET, next_check=UnixNs(over + 1))
    return Due(DELETE, DueReason.TTL_EXPIRED, since=over)


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
    reasons: tuple[Reason, ...] = (DueReason.TTL_EXPIRED,)

    def __init__(self, caches: Caches, *, policy: Policy) -> None:
        """Begin to follow the caches."""
        self.policy = policy.digest
        self.deadlines: Deadlines[tuple[Kind[Any], ObjectKey]] = Deadlines()
        self._caches, self._ttl = caches, policy.request_ttl
        for kind in REQUEST_KINDS:
            caches.of(kind).subscribe(partial(self._changed, kind))

    def _changed(self, kind: Kind[Any], old: Request | None, new: Request | None) -> None:
        if new is None:
            if old is not None:
                self.deadlines.discard((kind, old.metadata.key))
            return
        # Far in the past everything is "not yet", so that the verdict tells when it will be due.
        verdict = decide(finished(new, self._ttl), UnixNs(0))
        when = verdict.next_check if isinstance(verdict, Keep) else None
        if when is None:
            self.deadlines.discard((kind, new.metadata.key))
        else:
            self.deadlines.set((kind, new.metadata.key), when)

    def due(self, now: UnixNs) -> Iterator[Candidate[Finished]]:
        """See `Domain`."""
        for kind, key in self.deadlines.due(now):
            request = self._caches.of(kind).get(key)
            if request is not None:
                yield candidate(kind, request, self._ttl)

    def next_deadline(self) -> UnixNs | None:
        """See `Domain`."""
        return self.deadlines.next()

    def decide(self, candidate: Candidate[Finished], now: UnixNs) -> Verdict:
        """See `Domain`."""
        return decide(candidate.state, now)

    async def refresh(self, candidate: Candidate[Finished]) -> Candidate[Finished] | None:
        """Read nothing: all that the decision looks at is in the object, whose version the deletion compares."""
        return candidate

    def anchor(self, candidate: Candidate[Finished]) -> UnixNs | None:
        """See `Domain`."""
        return candidate.state.completed

    def details(self, candidate: Candidate[Finished]) -> dict[str, Any] | None:
        """See `Domain`."""
        return None

    def settled(self, candidate: Candidate[Finished], outcome: Outcome, next_check: UnixNs | None) -> None:
        """See `Domain`."""
        place = (candidate.kind, candidate.key)
        if next_check is None:
            self.deadlines.discard(place)
        elif place in self.deadlines:  # not, if the cache has forgotten it meanwhile
            self.deadlines.set(place, next_check)


def candidate(kind: Kind[Any], request: Request, ttl: Duration | None) -> Candidate[Finished]:
    """Return a request as the sweep sees it."""
    meta = request.metadata
    return Candidate(
        address=Address(kind.short, meta.namespace, meta.name),
        kind=kind,
        key=meta.key,
        uid=meta.uid,
        version=meta.resource_version,
        state=finished(request, ttl),
        hold=hold_of(meta.annotations),
        owners=meta.owner_references,
    )


class AnnotationTTL:
    """Mode annotation: looked at whenever a finished request is reconciled."""

    def __init__(
        self, *, ender: Ender, finaliser: Finaliser, policy: Policy, clock: Clock, chance: Chance = chance
    ) -> None:
        """End requests by ``ender``, write what is wrong by ``finaliser``."""
        self._ender, self._finaliser, self._clock, self._chance = ender, finaliser, clock, chance
        self._policy = policy.digest
        self._default = policy.request_ttl.go()

    async def apply(self, kind: Kind[R], request: R) -> Result:
        """End a finished request whose TTL is over, or say when to look again."""
        request = await self._finaliser.annotate(kind, request)
        text = request.metadata.annotations.get(TTL, self._default)
        try:
            ttl = ttl_of(text)
        except InvalidTTLError as error:
            message = f"Invalid TTL annotation format: {text[:_SHOWN]} (error: {str(error)[:_SHOWN]})"
            await self._finaliser.declare_invalid_ttl(kind, request, message)
            return Result()
        considered = candidate(kind, request, ttl)
        verdict = decide(considered.state, UnixNs(self._clock.wall_ns()))
        if isinstance(verdict, Due):
            return await self._end(considered, verdict)
        if verdict.next_check is None:
            return Result()
        return Result(requeue_after=self._wait((verdict.next_check - self._clock.wall_ns()) / _NS))

    async def _end(self, considered: Candidate[Finished], verdict: Due) -> Result:
        """End it; there is nothing to read again, because the version covers all that was decided on."""
        completed = considered.state.completed
        ending = considered.ending(verdict, domain=DOMAIN, policy=self._policy, anchor_ns=completed)
        if await self._ender.end(ending) in {Outcome.ENDED, Outcome.GONE}:
            return Result()
        return Result(requeue_after=self._wait(_LONGEST_WAIT_SECONDS))

    def _wait(self, left: float) -> float:
        return max(_SHORTEST_WAIT_SECONDS, around(min(left, _LONGEST_WAIT_SECONDS), chance=self._chance))
