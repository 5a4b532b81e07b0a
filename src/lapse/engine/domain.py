"""The domain interface: what a domain tells the engine, and what the engine asks of it.

A *domain* knows one sort of temporary thing: what there is (`Domain.due`), when it lapses (`Domain.decide`, pure), and
how it is ended (`Target.apply`). The engine does the rest, once for all domains: it finds what is due, decides, reads
again and decides again, looks at holds, budgets, freezes and the clock, writes the journal and counts.

The way of a thing: a page of `Candidate` -> `decide` -> `refresh` -> `decide` -> `Action` -> `Executor` -> `Target`.

No type of Kubernetes appears here. What a domain needs to find its thing again is its own: `Candidate.handle`.
`SimpleDomain` has defaults for everything but what makes a domain one.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.decision import Due, Reason, with_extension, without_unset_anchor
from lapse.core.errors import LapseError
from lapse.engine.journal.port import DeletionReason, Outcome
from lapse.engine.safety.holds import Hold

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence

    from lapse.core.decision import Decision
    from lapse.engine.deadlines import Deadlines
    from lapse.engine.explanation import Grounds
    from lapse.engine.plans.plan import PlanCount
    from lapse.engine.safety.blast_radius import PolicyChecks
    from lapse.engine.safety.holds import HoldDoubt

    Also = Callable[[Any, Sequence[int]], Awaitable[None] | None]
    """Writes on the cursor of a transaction, told the places of those actions that were carried out in it."""

S = TypeVar("S")
K = TypeVar("K")
DELETE: Final = "delete"
_HASH_DIGITS: Final = 12
_STILL_DUE: Final = frozenset({Outcome.WOULD_END, Outcome.REFUSED, Outcome.HELD, Outcome.CHANGED, Outcome.FAILED})
_LATEST: Final = UnixNs(2**63 - 1)


class SignalUnavailableError(LapseError):
    """Something that decisions depend on cannot be read now: {problem}."""


class Candidate(msgspec.Struct, Generic[S], frozen=True, kw_only=True, gc=False):
    """Something that may be due, as it was last seen."""

    address: Address
    uid: str
    version: str
    """What the act compares."""
    state: S
    """What the domain decides on."""
    handle: Any
    """What the domain's target needs to find it; opaque to the engine."""
    hold: Hold | None = None
    """A hold on the thing itself. Holds on others that keep it are found by `Target.holds_over`."""
    extended: UnixNs | None = None
    """Until when a person has given it time, whatever its rules say; None: nobody has."""
    dry_run: bool = False
    """Whether it is only to be told what would be done."""

    def __post_init__(self) -> None:
        """Refuse an identity that is no text: holds are found by it, and the act compares it."""
        uid: object = self.uid  # whatever a domain of somebody else's gave
        version: object = self.version
        if not (isinstance(uid, str) and uid and isinstance(version, str)):
            raise TypeError(f"{self.address} has the uid {uid!r} and the version {version!r}: expected text, and a uid")


class Action(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One act: what is to be done to which thing, in which state, and why."""

    domain: str
    address: Address
    uid: str
    version: str
    handle: Any
    action: str
    """What is to be done: ``delete``, or a word of the domain."""
    reason: Reason
    since: UnixNs
    """When it became due."""
    anchor_ns: int | None
    """What its time was counted from; None for what a person asked for."""
    policy: str
    """A short hash of the policy that decided."""
    policy_name: str = ""
    """What that policy is called; empty where none decided that can be new or changed."""
    hold: Hold | None = None
    details: dict[str, Any] | None = None
    """What the journal is to remember of it."""
    dry_run: bool = False
    actor: str | None = None
    """The person who asked for it; None when a policy did."""


class Settled(NamedTuple, Generic[S]):
    """What came of a candidate. After ENDED and GONE it can be forgotten."""

    candidate: Candidate[S]
    outcome: Outcome
    next_check: UnixNs | None
    """When to look again; None: only when something about it changes."""
    problem: Exception | None = None
    """The error that says why it was not ended, where there is one."""

    def note(self, deadlines: Deadlines[K], key: K) -> None:
        """Write down in an index when to look again. What stays although it is due is found by a plan nevertheless."""
        look = deadlines.put_off if self.outcome in _STILL_DUE else deadlines.look_again
        look(key, self.next_check)


class Result(NamedTuple):
    """What came of an action, and the error that says why, unless it was ENDED."""

    outcome: Outcome
    problem: Exception | None = None


class Consequence(NamedTuple):
    """What happens to a thing because another one has ended, some time after that."""

    address: str
    action: str
    at: UnixNs


class Target(Protocol):
    """Where the things of a domain are. Compares and acts, and decides nothing."""

    @property
    def batch(self) -> int:
        """How many actions are best handed to `apply` at once: 1 where each is a call of its own."""
        ...

    @property
    def database(self) -> object | None:
        """The database of the things, if it is one of ours: the journal may share it."""
        ...

    async def holds_over(self, actions: Sequence[Action], now: UnixNs) -> Sequence[Hold | HoldDoubt | None]:
        """Return for each a hold that is active at ``now``, wherever it stands; None when there is none."""
        ...

    async def apply(self, actions: Sequence[Action], *, also: Also | None) -> Sequence[Result]:
        """Carry out what is still as it was decided on; return what came of each.

        Compared in the same step: uid, version, and all else that the decision was made on. Outcomes are ENDED, GONE
        (was not there any more), CHANGED (is another one by now, so nothing was done), HELD (with a `HeldError`: was
        held meanwhile) and FAILED. ``also`` is written in the transaction of the acts, and given only where the journal
        shares `database`.

        An exception of the call itself is about the whole batch: nothing of it was done, or that is not known
        (`is_in_doubt`).
        """
        ...

    async def is_in_doubt(self, error: Exception) -> bool:
        """Whether a batch that failed like this may have been carried out, or would fail in smaller parts as well."""
        ...


class DomainRules(Protocol[S]):
    """What decides about the things of a domain."""

    @property
    def name(self) -> str:
        """A label of metrics and a column of the journal."""
        ...

    def decide(self, candidate: Candidate[S], now: UnixNs) -> Decision:
        """Decide. Pure.

        The decision carries the anchor that was counted from, in nanoseconds since 1970: what is due since a time that
        means 'not set' (before 1971, or beyond 64 bits) is unknown to the engine, and stays; so does what is due since
        a moment that is still to come.
        """
        ...

    def policy(self, candidate: Candidate[S]) -> str:
        """Return a short hash of the policy that decides about it, for the journal."""
        ...

    def policy_name(self, candidate: Candidate[S]) -> str:
        """Return the name of the policy that decides about it; empty for none that could be new or changed."""
        ...

    def policies(self) -> Mapping[str, str] | None:
        """Return the policies that there are now, by name: a hash of what decides about things that exist already.

        What a thing carries itself, such as its own TTL, is no part of it. None: the settings of the domain are its
        only policy, and its name is that of the domain. Asked before everything that is ended, so it must cost little.
        """
        ...

    def governed(self, *, size: int) -> AsyncGenerator[Sequence[Candidate[S]], None]:
        """Yield pages of everything that the policies decide about, due or not.

        Asked for when a policy is new or changed, before anything of it is ended. Raises a `LapseError` when not
        everything can be seen: then nothing is ended.
        """
        ...

    def details(self, candidate: Candidate[S]) -> dict[str, Any] | None:
        """Return what the journal is to remember of something that is ended."""
        ...


class Domain(DomainRules[S], Protocol[S]):
    """What a domain knows about the things that lapse in it."""

    @property
    def reasons(self) -> Iterable[Reason]:
        """Every reason for which something can be due: labels that start at zero."""
        ...

    @property
    def is_indexed(self) -> bool:
        """Whether `next_deadline` is known; otherwise the domain is swept at every interval."""
        ...

    def due(self, now: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[S]], None]:
        """Yield pages of what may be due, earliest deadline first, of at most ``size``.

        Where there is an index by deadline the cost is that of what is due, and no call to a store. Candidates are
        settled while the generator runs; what was yielded and not settled must be yielded again next time. One that is
        closed early goes on where it was, the next time, where there is no index.
        """
        ...

    def next_deadline(self) -> UnixNs | None:
        """Return when something may next be due; None when that is not known, or nothing is."""
        ...

    async def refresh(self, candidates: Sequence[Candidate[S]]) -> Sequence[Candidate[S] | None]:
        """Read fresh what the act does not compare; None for what is gone.

        One answer for each, about the thing with the same uid: a candidate itself when there is nothing to read for it.
        Each is then decided again, at a fresh moment. Raises `SignalUnavailableError` when nothing
        can be said about any of them: then the run ends, and nothing is noted.
        """
        ...

    async def settle(self, settled: Sequence[Settled[S]]) -> None:
        """Take note of what came of candidates, a page at a time, and when to look at each again."""
        ...


class FindableDomain(Domain[S], Protocol[S]):
    """A domain whose things can be looked up by their address."""

    async def find(self, address: Address) -> Candidate[S] | None:
        """Return one thing as it is now; None when there is none. Raises a `LapseError` when that cannot be told."""
        ...


class ManagedDomain(DomainRules[S], Protocol[S]):
    """A domain whose things people see and steer in one place: a running process, a state folder or a cluster.

    What people ask for comes from `lapse.engine.service`, for every domain. Everything here reads fresh, or says what
    it was read from; nothing but `hold`, `release` and `extend` changes anything.
    """

    @property
    def target(self) -> Target:
        """Where its things are ended."""
        ...

    @property
    def is_indexed(self) -> bool:
        """Whether `upcoming` costs what is upcoming, and not what there is."""
        ...

    @property
    def not_undoable(self) -> str | None:
        """Why nothing of it can be brought back once it is ended; None where something can."""
        ...

    async def find(self, address: Address) -> Candidate[S] | None:
        """Return one thing as it is now; None when there is none. Raises a `LapseError` when that cannot be told."""
        ...

    async def find_all(self, addresses: Sequence[Address]) -> Sequence[Candidate[S] | None]:
        """Return the same of several, where one look serves for all of them."""
        ...

    async def refresh(self, candidates: Sequence[Candidate[S]]) -> Sequence[Candidate[S] | None]:
        """See `Domain`: read fresh what the act does not compare."""
        ...

    def upcoming(self, until: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[S]], None]:
        """Yield pages of what is due now or will be by ``until``, as far as is known now; more is not wrong.

        Where there is an index by deadline the cost is that of what is yielded, not of what there is. Nothing about the
        candidates changes by it.
        """
        ...

    def explain(self, candidate: Candidate[S], decision: Decision, now: UnixNs) -> Grounds:
        """Return the grounds of what was decided about it at ``now``. Pure."""
        ...

    async def look_at_policies(self, guard: PolicyChecks) -> None:
        """Let ``guard`` look at what decides, before anything is ended by it."""
        ...

    async def takes_along(self, candidate: Candidate[S]) -> Sequence[str]:
        """Return the addresses of what would end with it; empty for nothing."""
        ...

    async def leads_to(self, candidate: Candidate[S], end: UnixNs) -> Sequence[Consequence]:
        """Return what will lapse later because it ends at ``end``, as far as is known; empty for nothing."""
        ...

    async def deletion_target(self, candidate: Candidate[S]) -> Target:
        """Return what ends it where a person asks for that; raises a `UsageError` where people do not delete it."""
        ...

    async def hold(self, candidate: Candidate[S], hold: Hold, *, replace: bool) -> None:
        """Keep it from lapsing. A decision that was made before loses its compare, or finds the hold in time.

        Raises `WeakerHoldError` where a stronger hold stands, unless it is to be replaced; and never replaces a legal
        hold.
        """
        ...

    async def release(self, candidate: Candidate[S], *, by: str, legal: bool, only: str | None = None) -> Hold | None:
        """End the hold that stands on the thing itself, and return it; None when there was none.

        What `demand_releasable` asks is compared in the step that ends it: a legal hold that came in between stays, and
        with ``only``, the hash of the hold that is meant, any other one.
        """
        ...

    async def extend(self, candidate: Candidate[S], until: UnixNs, *, by: str) -> None:
        """Give it time until then. That it is later, and not too late, was looked at before."""
        ...


@runtime_checkable
class CountedDomain(Protocol):
    """A managed domain whose names are secrets: a plan tells how many of its things lapse, and not which."""

    @property
    def name(self) -> str:
        """See `DomainRules`."""
        ...

    async def counts(self, until: UnixNs) -> list[PlanCount] | None:
        """Return how many are due by ``until``, by what they are counted by; None where that cannot be told."""
        ...

    async def counts_between(self, edges: Sequence[UnixNs], until: UnixNs) -> list[int] | None:
        """Return how many lapse before the first edge, from each edge to the next, and from the last to ``until``.

        Of all together, in one look; what lapses at the instant of an edge is behind it. None: that cannot be told.
        """
        ...


@runtime_checkable
class StoredPolicies(Protocol):
    """A managed domain whose policies are things that have to be read; those of others are told by `policies`."""

    async def policy_names(self) -> Sequence[str]:
        """Return what the policies in force are called."""
        ...


class SimpleDomain(Generic[S]):
    """What most domains have in common: a base for a `FindableDomain` and its `Target` in one object.

    For things that have no index by deadline, no place for holds and no database of ours, and whose `Target.apply`
    compares everything that a decision looks at. To be added: ``name``, ``reasons``, ``due``, ``decide``, ``policy``,
    ``find`` and ``apply``. Whatever does not fit is defined anew.
    """

    name: str
    is_indexed: bool = False
    batch: int = 1
    database: object | None = None

    if TYPE_CHECKING:

        def due(self, now: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[S]], None]:
            """See `Domain`."""

    def next_deadline(self) -> UnixNs | None:
        """See `Domain`: nobody knows without an index."""
        return None

    async def refresh(self, candidates: Sequence[Candidate[S]]) -> Sequence[Candidate[S] | None]:
        """See `Domain`: there is nothing that the act does not compare."""
        return candidates

    def policy_name(self, candidate: Candidate[S]) -> str:
        """See `Domain`: there is one, with the name of the domain."""
        return self.name

    def policies(self) -> Mapping[str, str] | None:
        """See `Domain`: the settings of the domain."""
        return None

    def governed(self, *, size: int) -> AsyncGenerator[Sequence[Candidate[S]], None]:
        """See `Domain`: all that may be due at the end of time."""
        return self.due(_LATEST, size=size)

    def details(self, candidate: Candidate[S]) -> dict[str, Any] | None:
        """See `Domain`: nothing."""
        return None

    async def settle(self, settled: Sequence[Settled[S]]) -> None:
        """See `Domain`: there is no index that could be wrong."""

    async def holds_over(self, actions: Sequence[Action], now: UnixNs) -> Sequence[Hold | HoldDoubt | None]:
        """See `Target`: none. The engine keeps holds on things that have no place for them."""
        return [None] * len(actions)

    async def is_in_doubt(self, error: Exception) -> bool:
        """See `Target`: no. Smaller parts are tried, and each thing is compared again."""
        return False


def policy_hash(*parts: object) -> str:
    """Return a short hash of what a policy says, for `Domain.policy`."""
    return sha256("\0".join(map(str, parts)).encode()).hexdigest()[:_HASH_DIGITS]


def deletion_by_person(
    *,
    domain: str,
    address: Address,
    uid: str,
    version: str,
    handle: object,
    hold: Hold | None,
    actor: str,
    now: int,
) -> Action:
    """Return the deletion that somebody asked for: nothing is due, and no policy has decided."""
    return Action(
        domain=domain,
        address=address,
        uid=uid,
        version=version,
        handle=handle,
        action=DELETE,
        reason=DeletionReason.BY_PERSON,
        since=UnixNs(now),
        anchor_ns=None,
        policy="",
        hold=hold,
        actor=actor,
    )


def decided(domain: DomainRules[S], candidate: Candidate[S], now: UnixNs) -> Decision:
    """Decide about a candidate as the engine does, for sweeps and for people alike."""
    return believed(domain.decide(candidate, now), candidate, now)


def believed(decision: Decision, candidate: Candidate[S], now: UnixNs) -> Decision:
    """Return what the engine makes of a domain's decision.

    A time that means 'not set' is no anchor, and what a person has given more time is not due before that is over.
    """
    return with_extension(without_unset_anchor(decision), candidate.extended, now)


def action_of(domain: DomainRules[S], candidate: Candidate[S], decision: Decision) -> Action:
    """Return the act on a candidate that is due, as it was seen."""
    verdict = decision.verdict
    if not isinstance(verdict, Due):
        raise TypeError("only what is due is acted on")
    return Action(
        domain=domain.name,
        address=candidate.address,
        uid=candidate.uid,
        version=candidate.version,
        handle=candidate.handle,
        action=verdict.action,
        reason=verdict.reason,
        since=verdict.since,
        anchor_ns=decision.anchor,
        policy=domain.policy(candidate),
        policy_name=domain.policy_name(candidate),
        hold=candidate.hold,
        details=domain.details(candidate),
        dry_run=candidate.dry_run,
    )
