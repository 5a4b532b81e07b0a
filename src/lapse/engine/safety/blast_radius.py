"""The policy guard: a policy that is new or changed ends nothing by surprise.

Two rules, for every domain and every way to act. What a policy is called, and the hash of what it says, its domain
tells (`lapse.engine.domain.DomainRules.policies`).

- **First pass.** From the moment at which a policy is first seen on a store, it is dry for a whole interval about
  everything whose time began to count before that moment. What comes later was made under the policy, so a store that
  is as new as its policies has no first pass. A restart neither ends it nor begins it anew.
- **Blast radius.** When the hash of a policy is another one than the one that was in force, or there was none, what is
  due under it at once is counted, before anything of it is ended. Is that more than `MOST` and more than a quarter of
  what it governs, nothing of it goes: the policy *waits* until a person approves it (`PolicyApprovals`) or the old one
  is back. Otherwise it is in force, and never counted again: much that is due by an unchanged policy goes at once.

What is known of a policy is a note beside the freezes, so that a restart does not forget it. A policy that is in force
costs one read of its note per process. Doubt keeps: while a note cannot be read or written, or things cannot be
counted, nothing of the policy is ended.

Not guaranteed: that a policy which ends little at once, and much a day later, waits. Nor that one is noticed that was
changed and changed back while no process looked. Of two processes with different settings on one store, each counts the
policy of the other as a change.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from lapse.core.clock import UnixNs
from lapse.core.decision import Due
from lapse.core.duration import HOUR, SECOND
from lapse.core.errors import LapseError, UsageError
from lapse.core.log import get_logger
from lapse.engine.domain import decided, policy_hash
from lapse.engine.journal.port import Entry, Outcome
from lapse.engine.safety.freeze import FreezeReason
from lapse.engine.view import Moment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

    from lapse.core.clock import Clock
    from lapse.engine.domain import Action, DomainRules
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.freeze import Notes

    Counting = Callable[[], Awaitable["PolicyCount"]]

MOST: Final = 100
"""So much may be due at once by any policy."""
_PART: Final = 4
"""Of what a policy governs, one in so many may be due at once."""
SHOWN: Final = 20
"""How many of those that are due are told by name."""
NOTE: Final = "policy."
"""Begins the name of the note about a policy."""
_LOOK_AGAIN_SECONDS: Final = 5.0
"""How long a note that says that a policy waits is good for."""
_LOGGED: Final = 5
"""How many of them a line of the log names."""
_PAGE: Final = 1_000
_LONGEST_NAME: Final = 150
_SAFE: Final = re.compile(r"[^A-Za-z0-9.-]")
_NS: Final = 1_000_000_000
_log = get_logger("lapse.engine.safety.blast_radius")


class PolicyWaitingError(LapseError):
    """{address} is kept: the policy {name} is new or changed, and would end {due} at once. {advice}."""


class NoSuchWaitingPolicyError(UsageError):
    """No policy {name} waits for approval. Waiting: {waiting}."""


class PolicyChangedError(LapseError):
    """The policy {name} has changed since: it would end {due} now. Nothing was approved.

    Look at it again with lapse plan --policy {name}; its hash is {hash}.
    """

    status = 412


class PolicyCount(NamedTuple):
    """What a policy governs, and what of it is due now."""

    governed: int | None
    """None where nobody knows: then the number alone counts."""
    due: int
    sample: Sequence[str] = ()
    """Addresses of some that are due."""

    @property
    def is_too_much(self) -> bool:
        """Whether that is more than a policy may end at once when it is new."""
        return self.due > MOST and (self.governed is None or self.due * _PART > self.governed)


class WaitingPolicy(msgspec.Struct, frozen=True):
    """A policy that ends nothing until somebody approves it, as people see it."""

    domain: str
    name: str
    hash: str
    previous_hash: str | None
    """Of the policy that was in force; null where there was none."""
    due: int
    governed: int | None
    since: Moment
    sample: list[str]
    """Addresses of some that are due."""


class FirstPass(NamedTuple):
    """A first pass that is under way."""

    domain: str
    policy: str
    seen: UnixNs
    """When the policy was first seen: what is older is only told of."""
    ends: UnixNs

    def keeps(self, domain: str, policy: str, anchor_ns: int | None) -> bool:
        """Whether loops do not end a thing yet that a policy decides about, and whose time counts from a moment."""
        return (self.domain, self.policy) == (domain, policy) and _is_older(anchor_ns, self.seen)


class PolicyFacts(NamedTuple):
    """What keeps policies of a place from acting."""

    waiting: Sequence[WaitingPolicy] = ()
    first_passes: Sequence[FirstPass] = ()

    def is_waiting(self, domain: str, policy: str) -> bool:
        """Whether a policy waits for a person."""
        return any((one.domain, one.name) == (domain, policy) for one in self.waiting)

    def first_pass_ends(self, domain: str, policy: str, anchor_ns: int | None) -> UnixNs | None:
        """Return until when a first pass keeps a thing, by what its time counts from; None where none does."""
        return next((one.ends for one in self.first_passes if one.keeps(domain, policy, anchor_ns)), None)


class _Waiting(msgspec.Struct, frozen=True):
    hash: str
    since_ns: int
    due: int
    governed: int | None
    sample: list[str]


class PolicyNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What outlives a process of one policy on one store."""

    domain: str
    name: str
    seen_ns: int
    """When it was first seen."""
    hash: str | None = None
    """Of the policy that is in force; None while none is."""
    is_proved: bool = False
    """Whether its first pass is over, whatever the time: it has acted before, or a person has approved it."""
    waiting: _Waiting | None = None

    def first_pass(self, now: int, *, interval_ns: int) -> FirstPass | None:
        """Return the first pass of the policy; None where it is over."""
        ends = UnixNs(self.seen_ns + interval_ns)
        is_over = self.is_proved or now >= ends
        return None if is_over else FirstPass(self.domain, self.name, UnixNs(self.seen_ns), ends)

    def view(self) -> WaitingPolicy | None:
        """Return it as people see it; None while nothing waits."""
        one = self.waiting
        if one is None:
            return None
        return WaitingPolicy(
            domain=self.domain,
            name=self.name,
            hash=one.hash,
            previous_hash=self.hash,
            due=one.due,
            governed=one.governed,
            since=Moment(one.since_ns),
            sample=one.sample,
        )


class PolicyStanding(Enum):
    """Whether a policy may end a thing now."""

    ACTS = "acts"
    DRY = "dry"
    """It is to be told what would be done: a dry run, or a first pass."""
    WAITS = "waits"
    UNKNOWN = "unknown"
    """It was not looked at, or could not be."""


class PolicyChecks(Protocol):
    """What the executor and the sweep ask about policies."""

    def standing(self, action: Action, now: UnixNs) -> PolicyStanding:
        """Say whether the policy of an action may act, by what the last look found; asks no store."""
        ...

    def refusal(self, action: Action) -> LapseError:
        """Return what tells that the policy of an action waits."""
        ...

    def needs_plan(self, domain: str, name: str) -> bool:
        """Whether what a policy of ``domain`` decides on is ended by an approved plan only."""
        ...

    async def look(self, domain: DomainRules[Any], *, settings: str = "") -> None:
        """Look at the policies of a domain, before anything of it is ended. Costs nothing while they are as they were.

        ``settings`` is a hash of the settings of a domain that names no policies.
        """
        ...

    def pause(self, domain: str) -> float | None:
        """Return after how many seconds a first pass of ``domain`` ends; None when none is under way."""
        ...

    def first_pass_ends(self, domain: str) -> UnixNs | None:
        """Return when the next first pass of ``domain`` ends; None when none is under way."""
        ...

    async def see(self, domain: str, name: str) -> None:
        """Take note that there is a policy, also one that is not to act: its first pass begins."""
        ...

    async def judge(self, domain: str, name: str, digest: str, count: Counting, *, once: bool = False) -> bool:
        """Return whether a policy may act, its first pass aside; it is counted before, if it is new or changed.

        ``once`` is for a person's own command: the policy that was in force stays that.
        """
        ...

    async def prove(self, domain: str, name: str) -> None:
        """Take note that a person has let a policy act: its first pass is over."""
        ...

    async def is_proved(self, domain: str, name: str) -> bool:
        """Whether the first pass of a policy is over; what cannot be read counts as no."""
        ...

    def apart(self, actor: str) -> PolicyChecks:
        """Return checks for a command of a person that says other limits than those in force.

        They look for themselves, as a command in a process of its own does: these go on with what they have found.
        """
        ...


class NoPolicies:
    """A guard that lets every policy act."""

    def standing(self, action: Action, now: UnixNs) -> PolicyStanding:
        """See `PolicyChecks`."""
        return PolicyStanding.ACTS

    def refusal(self, action: Action) -> LapseError:
        """See `PolicyChecks`: nothing is refused."""
        raise NotImplementedError

    def needs_plan(self, domain: str, name: str) -> bool:
        """See `PolicyChecks`."""
        return False

    async def look(self, domain: DomainRules[Any], *, settings: str = "") -> None:
        """See `PolicyChecks`."""

    def pause(self, domain: str) -> float | None:
        """See `PolicyChecks`."""
        return None

    def first_pass_ends(self, domain: str) -> UnixNs | None:
        """See `PolicyChecks`."""
        return None

    async def see(self, domain: str, name: str) -> None:
        """See `PolicyChecks`."""

    async def judge(self, domain: str, name: str, digest: str, count: Counting, *, once: bool = False) -> bool:
        """See `PolicyChecks`."""
        return True

    async def prove(self, domain: str, name: str) -> None:
        """See `PolicyChecks`."""

    async def is_proved(self, domain: str, name: str) -> bool:
        """See `PolicyChecks`."""
        return True

    def apart(self, actor: str) -> PolicyChecks:
        """See `PolicyChecks`."""
        return self


@dataclass(slots=True)
class _Known:
    """A policy as it was last looked at."""

    note: PolicyNote
    digest: str
    """Of what the policy says here; it acts while that is in force."""
    read_ns: int
    """When the note was read, by the monotonic clock."""

    @property
    def is_in_force(self) -> bool:
        return self.note.hash == self.digest


class PolicyGuard:
    """See the module. Belongs to one event loop."""

    def __init__(  # noqa: PLR0913 - all of them named, one per dependency
        self,
        notes_of: Callable[[str], Notes],
        *,
        journal: Journal,
        clock: Clock,
        metrics: Metrics,
        actor: str,
        domains: Iterable[str],
        interval_seconds: float = HOUR / SECOND,
        dry: Collection[str] = (),
        run: str = "lapse resume",
    ) -> None:
        """Read nothing yet.

        ``notes_of`` returns where the notes about a domain are: with its things. The domains in ``dry`` are only to
        tell what they would do; ``run`` is the command that approves.
        """
        self._notes_of, self._journal, self._clock, self._metrics = notes_of, journal, clock, metrics
        self._actor, self._run = actor, run
        self._interval_ns = round(interval_seconds * _NS)
        self.dry = frozenset(dry)
        self._domains = tuple(domains)
        self._known: dict[tuple[str, str], _Known] = {}
        self._lock = asyncio.Lock()
        self._said: dict[tuple[str, str], str] = {}
        metrics.expect_waiting(self._domains)

    # --- asked for each act -------------------------------------------------------------------------------------------

    def standing(self, action: Action, now: UnixNs) -> PolicyStanding:
        """See `PolicyChecks`."""
        if action.domain in self.dry:
            return PolicyStanding.DRY
        if not action.policy_name:
            return PolicyStanding.ACTS
        known = self._known.get((action.domain, action.policy_name))
        if known is None:
            return PolicyStanding.UNKNOWN
        first = known.note.first_pass(now, interval_ns=self._interval_ns)
        is_asked = action.actor is not None  # who asks for it by name knows what it is
        if first is not None and not is_asked and first.keeps(action.domain, action.policy_name, action.anchor_ns):
            return PolicyStanding.DRY
        return PolicyStanding.ACTS if known.is_in_force else PolicyStanding.WAITS

    def refusal(self, action: Action) -> LapseError:
        """See `PolicyChecks`."""
        waiting = self._known[action.domain, action.policy_name].note.waiting
        return PolicyWaitingError(
            address=action.address,
            name=action.policy_name,
            due="much" if waiting is None else waiting.due,
            advice=f"To approve it, run {self._run} --policy {action.policy_name}",
        )

    def needs_plan(self, domain: str, name: str) -> bool:
        """See `PolicyChecks`; where plans are needed, `lapse.engine.plans.approvals` says so."""
        return False

    def pause(self, domain: str) -> float | None:
        """See `PolicyChecks`."""
        ends = self.first_pass_ends(domain)
        return None if ends is None else max(1.0, (ends - self._clock.wall_ns()) / _NS)

    def first_pass_ends(self, domain: str) -> UnixNs | None:
        """See `PolicyChecks`."""
        now = UnixNs(self._clock.wall_ns())
        notes = [one.note for (owner, _), one in self._known.items() if owner == domain]
        found = [note.first_pass(now, interval_ns=self._interval_ns) for note in notes]
        return min((one.ends for one in found if one is not None), default=None)

    # --- looking ------------------------------------------------------------------------------------------------------

    async def look(self, domain: DomainRules[Any], *, settings: str = "") -> None:
        """See `PolicyChecks`."""
        found = domain.policies()
        for name, digest in ({domain.name: settings} if found is None else found).items():
            known = self._known.get((domain.name, name))
            if known is None or known.digest != digest or not known.is_in_force:
                await self.judge(domain.name, name, digest, lambda name=name: self._count(domain, name))  # type: ignore[misc]  # bound now

    async def see(self, domain: str, name: str) -> None:
        """See `PolicyChecks`."""
        try:
            await self._seen(domain, name)
        except LapseError as error:
            self._doubt(domain, name, error)

    async def judge(self, domain: str, name: str, digest: str, count: Counting, *, once: bool = False) -> bool:
        """See `PolicyChecks`."""
        async with self._lock:
            known = self._known.get((domain, name))
            if known is not None and known.digest == digest and self._is_fresh(known):
                return known.is_in_force
            try:
                note = await self._judged(await self._seen(domain, name), digest, count, once=once)
            except Exception as error:  # noqa: BLE001 - whatever it was: what is not known to be in force does not act
                self._doubt(domain, name, error)
                return False
            self._said.pop((domain, name), None)
            found = self._known[domain, name] = _Known(note, digest, self._clock.monotonic_ns())
            self._tell_metrics(domain)
            return found.is_in_force

    async def prove(self, domain: str, name: str) -> None:
        """See `PolicyChecks`."""
        try:
            note = await self._seen(domain, name)
            if not note.is_proved:
                await self._write(msgspec.structs.replace(note, is_proved=True))
            if known := self._known.get((domain, name)):
                known.note = msgspec.structs.replace(known.note, is_proved=True)
        except LapseError as error:
            self._doubt(domain, name, error)

    async def is_proved(self, domain: str, name: str) -> bool:
        """See `PolicyChecks`."""
        try:
            note = await self._read(domain, name)
        except LapseError:
            return False
        if note is None:
            return await self._has_acted(domain, name)
        return note.first_pass(self._clock.wall_ns(), interval_ns=self._interval_ns) is None

    def apart(self, actor: str) -> PolicyGuard:
        """See `PolicyChecks`; the metrics are told by this one."""
        return PolicyGuard(
            self._notes_of,
            journal=self._journal,
            clock=self._clock,
            metrics=self._metrics,
            actor=actor,
            domains=(),
            interval_seconds=self._interval_ns / _NS,
            dry=self.dry,
            run=self._run,
        )

    async def refresh(self) -> None:
        """Tell the metrics which policies wait, where a look costs next to nothing; doubt is told by the log."""
        found = dict.fromkeys(self._domains, 0)
        for notes in {id(one): one for one in map(self._notes_of, self._domains)}.values():
            for note in await _all_notes(notes):
                if note.waiting is not None and note.domain in found:
                    found[note.domain] += 1
        for domain, number in found.items():
            self._metrics.waiting(domain, number)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _is_fresh(self, known: _Known) -> bool:
        """Whether a note need not be read again: it says what is in force, or was read just now."""
        age_ns = self._clock.monotonic_ns() - known.read_ns
        return known.is_in_force or age_ns < _LOOK_AGAIN_SECONDS * _NS

    async def _seen(self, domain: str, name: str) -> PolicyNote:
        """Return what is known of a policy; what is seen for the first time is written down."""
        note, now = await self._read(domain, name), self._clock.wall_ns()
        if note is not None and note.seen_ns <= now + SECOND:
            return note
        if self._clock.in_doubt():  # the moment would be wrong, and it counts for a whole interval
            raise PolicyUnseenError(name=name)
        if note is not None:  # a clock that was ahead has written it
            note = msgspec.structs.replace(note, seen_ns=now)
        else:
            note = PolicyNote(domain, name, now, is_proved=await self._has_acted(domain, name))
        await self._write(note)
        return note

    async def _has_acted(self, domain: str, name: str) -> bool:
        """Whether the journal knows of an act of a policy that there is no note about, from before there were notes."""
        try:
            rows = await self._journal.entries(domain=domain, limit=_PAGE)
        except LapseError:  # a journal that cannot be read proves nothing
            return False
        acts = [row for row in rows if row.outcome is Outcome.ENDED]
        if any((row.details or {}).get("policy") == name for row in acts):
            return True
        return bool(acts) and not await self._notes_of(domain).list_notes(note_name(domain, ""))

    async def _judged(self, note: PolicyNote, digest: str, count: Counting, *, once: bool) -> PolicyNote:
        if note.hash == digest:
            return note if note.waiting is None else await self._back(note)
        if note.waiting is not None and note.waiting.hash == digest:
            return note
        found = await count()
        if not found.is_too_much:
            note = msgspec.structs.replace(note, hash=digest, waiting=None)
            if not once:
                await self._write(note)
            return note
        return await self._wait(note, digest, found)

    async def _wait(self, note: PolicyNote, digest: str, found: PolicyCount) -> PolicyNote:
        waiting = _Waiting(digest, self._clock.wall_ns(), found.due, found.governed, list(found.sample))
        note = msgspec.structs.replace(note, waiting=waiting)
        await self._write(note)
        run = f"{self._run} --policy {note.name}"
        told = {"due": found.due, "governed": found.governed, "sample": waiting.sample[:_LOGGED]}
        _log.warning("policy_waits", domain=note.domain, policy=note.name, effect="nothing of it ends", run=run, **told)
        await self._append(policy_row(note, FreezeReason.POLICY_WAITS, by=self._actor, now=waiting.since_ns))
        return note

    async def _back(self, note: PolicyNote) -> PolicyNote:
        after = msgspec.structs.replace(note, waiting=None)
        await self._write(after)
        _log.info("policy_is_back", domain=note.domain, policy=note.name)
        row = policy_row(note, FreezeReason.POLICY_RESTORED, by=self._actor, now=self._clock.wall_ns())
        await self._append(row)
        return after

    async def _append(self, row: Entry) -> None:
        try:
            await self._journal.append(row)
        except LapseError as error:  # the note is what counts
            _log.error("not_journalled", domain=row.domain, outcome=row.outcome, error=type(error).__name__)

    async def _count(self, domain: DomainRules[Any], name: str) -> PolicyCount:
        """Count what a policy governs, and what of it is due, page by page."""
        governed, due, sample = 0, 0, list[str]()
        async for page in domain.governed(size=_PAGE):
            now = UnixNs(self._clock.wall_ns())
            for one in page:
                if domain.policy_name(one) != name:
                    continue
                governed += 1
                if isinstance(decided(domain, one, now).verdict, Due):
                    due += 1
                    if len(sample) < SHOWN:
                        sample.append(str(one.address))
            await self._clock.sleep(0)  # the rest of the process has its turn
        return PolicyCount(governed, due, sample)

    async def _read(self, domain: str, name: str) -> PolicyNote | None:
        return read_policy_note(await self._notes_of(domain).read_note(note_name(domain, name)))

    async def _write(self, note: PolicyNote) -> None:
        await _write(self._notes_of(note.domain), note)

    def _tell_metrics(self, domain: str) -> None:
        if domain in self._domains:
            waiting = [one for (owner, _), one in self._known.items() if owner == domain and one.note.waiting]
            self._metrics.waiting(domain, len(waiting))

    def _doubt(self, domain: str, name: str, error: Exception) -> None:
        self._known.pop((domain, name), None)
        defect = None if isinstance(error, LapseError) else error
        problem = str(error) if defect is None else type(error).__name__
        if self._said.get((domain, name)) != problem:
            effect = "nothing of it is ended"
            _log.warning("policy_unknown", domain=domain, policy=name, effect=effect, problem=problem, exc_info=defect)
        self._said[domain, name] = problem


class PolicyUnseenError(LapseError):
    """The policy {name} is seen for the first time, and the clock is in doubt."""


def _is_older(anchor_ns: int | None, moment: int) -> bool:
    """Whether the time of a thing began to count before a moment.

    Compared by whole seconds, because that is how clusters write times: what is made in the second of the moment is not
    older.
    """
    return anchor_ns is None or anchor_ns < moment - moment % SECOND


# --- people -----------------------------------------------------------------------------------------------------------


class PolicyApprovals:
    """What keeps policies of a place from acting, and a person's word that one of them is meant."""

    def __init__(
        self, stores: Iterable[Notes], *, journal: Journal, clock: Clock, interval_seconds: float = HOUR / SECOND
    ) -> None:
        """Read nothing yet; ``stores`` are where notes about policies are, and a first pass takes the interval."""
        self._stores, self._journal, self._clock = tuple(stores), journal, clock
        self._interval_ns = round(interval_seconds * _NS)

    async def facts(self) -> PolicyFacts:
        """Return which policies wait, in the order of domains and names, and which have their first pass.

        Raises what the stores raise.
        """
        notes, now = [note for store in self._stores for note in await _all_notes(store)], self._clock.wall_ns()
        waiting = [one for note in notes if (one := note.view()) is not None]
        found = [note.first_pass(now, interval_ns=self._interval_ns) for note in notes]
        first_passes = [one for one in found if one is not None]
        return PolicyFacts(sorted(waiting, key=lambda one: (one.domain, one.name)), first_passes)

    async def waiting(self) -> list[WaitingPolicy]:
        """Return those that wait for a person; raises what the stores raise."""
        return list((await self.facts()).waiting)

    async def approve(self, name: str, *, by: str, only: str | None = None) -> WaitingPolicy:
        """Let a policy act that waits; return it as it waited. Raises `NoSuchWaitingPolicyError`.

        ``name`` is that of the policy, or DOMAIN/NAME where two domains have one of that name. ``only`` is the hash of
        the policy that was looked at, and with another one nothing is approved (`PolicyChangedError`). What is approved
        is the hash that is compared here, and no other: if the policy changes while this is under way, its new hash is
        not the one in force, and it is counted again.
        """
        found = [(notes, note) for notes in self._stores for note in await _all_notes(notes) if note.waiting]
        chosen = [(notes, note) for notes, note in found if name in {note.name, f"{note.domain}/{note.name}"}]
        if len(chosen) != 1:
            names = ", ".join(sorted(f"{note.domain}/{note.name}" for _, note in found)) or "none"
            raise NoSuchWaitingPolicyError(name=name, waiting=names)
        (notes, note), now = chosen[0], self._clock.wall_ns()
        view, waiting = note.view(), note.waiting
        assert view is not None and waiting is not None  # noqa: S101, PT018 - it was chosen for that
        if only not in {None, waiting.hash}:
            raise PolicyChangedError(name=name, due=waiting.due, hash=waiting.hash)
        await _write(notes, msgspec.structs.replace(note, hash=waiting.hash, is_proved=True, waiting=None))
        await self._journal.append(policy_row(note, FreezeReason.POLICY_APPROVED, by=by, now=now))
        return view


def policy_row(note: PolicyNote, reason: FreezeReason, *, by: str, now: int) -> Entry:
    """Return the journal row about a policy that waits, or does so no more."""
    waiting, is_over = note.waiting, reason is not FreezeReason.POLICY_WAITS
    about = {} if waiting is None else {"due": waiting.due, "governed": waiting.governed, "sample": waiting.sample}
    return Entry(
        time_ns=now,
        domain=note.domain,
        address="",
        uid="",
        version="",
        verdict="keep" if is_over else "unknown",
        reason=reason,
        anchor_ns=None,
        policy=(note.hash or "") if waiting is None else waiting.hash,
        actor=by,
        outcome=Outcome.RESUMED if is_over else Outcome.FROZEN,
        details={"policy": note.name, "previous": note.hash, **about},
    )


def note_name(domain: str, name: str) -> str:
    """Return the name of the note about a policy, in letters that every store takes."""
    safe = _SAFE.sub(lambda found: f"_{ord(found[0]):x}_", name)
    short = safe if len(safe) <= _LONGEST_NAME else f"{safe[:_LONGEST_NAME]}_{policy_hash(name)}"
    return f"{NOTE}{domain}.{short}"


def read_policy_note(text: str | None) -> PolicyNote | None:
    """Read a note; raises `PolicyNoteError` for one that cannot be read."""
    try:
        return None if text is None else msgspec.json.decode(text, type=PolicyNote)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise PolicyNoteError(problem=str(error)) from error


class PolicyNoteError(LapseError):
    """What was noted about a policy cannot be read: {problem}. Until that note is gone, nothing of it is ended."""


async def _all_notes(notes: Notes) -> list[PolicyNote]:
    found = [read_policy_note(text) for text in (await notes.list_notes(NOTE)).values()]
    return [note for note in found if note is not None]


async def _write(notes: Notes, note: PolicyNote) -> None:
    await notes.write_note(note_name(note.domain, note.name), msgspec.json.encode(note).decode())


if TYPE_CHECKING:
    _conforms: tuple[type[PolicyChecks], type[PolicyChecks]] = (PolicyGuard, NoPolicies)
