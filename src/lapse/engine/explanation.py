"""Explanations: why a thing is kept or lapses, and what would save it. One form for every domain.

A domain gives the `Grounds` of its decision: the rules, the one that wins first, and in words what only it knows. The
engine adds what is the same everywhere: the verdict, holds, what stops the domain, the way back, and what the journal
tells. The rule that wins is the one that the sweep would apply, because both ask the same decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from lapse.core.decision import Due, Keep, KeepReason
from lapse.core.duration import short
from lapse.engine.journal.view import JournalRowView, row_line
from lapse.engine.view import FreezeView, Moment, known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lapse.core.clock import UnixNs
    from lapse.core.decision import Decision, Verdict
    from lapse.engine.domain import Candidate, ManagedDomain
    from lapse.engine.view import DetailRow


class RuleVerdict(Struct, frozen=True, kw_only=True):
    """What one rule says about a thing."""

    rule: Annotated[str, Meta(description="In words, with its limit")]
    action: Annotated[str, Meta(description="What it would do")]
    wins: bool
    verdict: Annotated[str, Meta(description="keep, due or unknown")]
    reason: str
    since: Annotated[Moment | None, Meta(description="Since when it is due")] = None
    look_again: Moment | None = None
    policy: Annotated[str | None, Meta(description="The name of the policy whose rule it is, where it has one")] = None


class AnchorView(Struct, frozen=True):
    """What its time is counted from."""

    at: Moment
    source: Annotated[str, Meta(description="Which of its times that is")]


class HoldFacts(Struct, frozen=True):
    """A hold that keeps a thing, wherever it stands."""

    reason: str
    until: Moment | None
    legal: bool = False
    by: str | None = None
    hash: Annotated[str | None, Meta(description="Which hold it is, for its release; null where that is not known")] = (
        None
    )


class Grounds(Struct, frozen=True, kw_only=True):
    """What a domain says of its decision about one thing."""

    rules: tuple[RuleVerdict, ...]
    """The one that wins first."""
    because: str
    """The winning reason as a sentence without its end."""
    anchor_source: str = ""
    activity: str | None = None
    """The last activity and its source, where that plays a part."""
    trouble: str | None = None
    """What is wrong with it."""
    facts: dict[str, str] | None = None
    """More that only this domain has."""
    saved_by: tuple[str, ...] = ()
    """What would keep it, beside a hold and an extension: those the engine names itself."""
    next_check: int | None = None
    not_undoable: str | None = None
    """Why it cannot be brought back once it is ended; None where it can."""
    is_in_trash: bool = False
    """Whether it is there only because it lies in the trash."""


class TrashFacts(Struct, frozen=True):
    """Where a thing lies that was ended and can be brought back."""

    since: Moment | None
    until: Annotated[Moment | None, Meta(description="When it leaves the trash for good")]
    by: Annotated[str | None, Meta(description="Who ended it, where the journal tells")]
    entry: Annotated[str, Meta(description="The address of what was ended, which may be its keeper")]
    uid: Annotated[str, Meta(description="The uid of that")]


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a thing is kept or lapses."""

    address: str
    domain: str
    uid: str | None
    at: Annotated[Moment, Meta(description="The time that is answered for")]
    verdict: Annotated[str, Meta(description="keep, due, unknown, or gone for what is not there any more")]
    reason: str
    because: str
    rules: Annotated[list[RuleVerdict], Meta(description="The one that wins first, then those that lost")]
    anchor: AnchorView | None
    deadline: Annotated[Moment | None, Meta(description="After which it is due, if nothing changes")]
    extended_until: Annotated[Moment | None, Meta(description="The time that a person has given it")]
    activity: Annotated[str | None, Meta(description="The last activity, and where that is known from")]
    trouble: Annotated[str | None, Meta(description="What is wrong with it")]
    facts: dict[str, str]
    hold: Annotated[HoldFacts | None, Meta(description="What holds it now, wherever that stands")]
    next_check: Moment | None
    saved_by: Annotated[list[str], Meta(description="What would keep it from lapsing")]
    trash: Annotated[TrashFacts | None, Meta(description="What lies in the trash of it; null where nothing does")]
    undo: Annotated[str | None, Meta(description="How it comes back, or why it cannot")]
    waits_for: Annotated[str | None, Meta(description="What must happen before it is ended, although it is due")]
    frozen: FreezeView | None
    journal: Annotated[list[JournalRowView], Meta(description="The last rows about it, the newest first")]


def verdict_word(verdict: Verdict) -> str:
    """Return keep, due or unknown."""
    return type(verdict).__name__.lower()


def single_rule(decision: Decision, rule: str, *, action: str, policy: str | None = None) -> RuleVerdict:
    """Return what a domain's only rule says, as it was decided."""
    verdict = decision.verdict
    return RuleVerdict(
        rule=rule,
        action=action,
        wins=True,
        verdict=verdict_word(verdict),
        reason=verdict.reason.value,
        since=Moment(verdict.since) if isinstance(verdict, Due) else None,
        look_again=None if isinstance(verdict, Due) else Moment.of(verdict.next_check),
        policy=policy,
    )


def explanation_of(
    domain: ManagedDomain[Any], candidate: Candidate[Any], decision: Decision, *, hold: HoldFacts | None, now: UnixNs
) -> Explanation:
    """Return what is told of a decision, as far as the domain and the thing know; what stops the domain is added."""
    grounds: Grounds = domain.explain(candidate, decision, now)
    verdict = decision.verdict if hold is None else Keep(KeepReason.HELD)
    is_ours = hold is not None or verdict.reason is KeepReason.EXTENDED
    look_again = None if isinstance(verdict, Due) else verdict.next_check
    return Explanation(
        address=str(candidate.address),
        domain=domain.name,
        uid=candidate.uid,
        at=Moment(now),
        verdict=verdict_word(verdict),
        reason=verdict.reason.value,
        because=words(verdict.reason.value) if is_ours else grounds.because,
        rules=list(grounds.rules),
        anchor=None if decision.anchor is None else AnchorView(Moment(decision.anchor), grounds.anchor_source),
        deadline=Moment.of(decision.deadline),
        extended_until=Moment.of(candidate.extended),
        activity=grounds.activity,
        trouble=grounds.trouble,
        facts=grounds.facts or {},
        hold=hold,
        next_check=Moment.of(look_again if grounds.next_check is None else grounds.next_check),
        saved_by=[] if hold is not None else list(grounds.saved_by),  # it is saved
        trash=None,
        undo=f"no: {grounds.not_undoable}" if grounds.not_undoable else None,
        waits_for=None,
        frozen=None,
        journal=[],
    )


def explanation_rows(told: Explanation) -> list[DetailRow]:
    """Return an explanation for people."""
    won, lost = told.rules[:1], told.rules[1:]
    return known(
        [
            ("address", told.address),
            ("verdict", f"{told.verdict}: {told.because}" if told.because else told.verdict),
            ("waits for", told.waits_for or ""),
            ("trouble", told.trouble or ""),
            *(("rule", _rule(one)) for one in won),
            *(("lost", f"{_rule(one)}: {one.verdict}, {words(one.reason)}") for one in lost),
            ("counted from", "" if told.anchor is None else _anchor(told.anchor, told.at)),
            ("over", "" if told.deadline is None else distance(told.deadline, told.at)),
            ("extended", "" if told.extended_until is None else f"until {told.extended_until}"),
            ("activity", told.activity or ""),
            *told.facts.items(),
            ("held", "" if told.hold is None else hold_words(told.hold)),
            ("frozen", "" if told.frozen is None else str(told.frozen)),
            ("next look", "" if told.next_check is None else f"at the first tick after {told.next_check}"),
            ("saved by", "; ".join(told.saved_by)),
            ("in the trash", "" if told.trash is None else _trash(told.trash)),
            ("undo", told.undo or ""),
            *(("journal", row_line(row, names=False)) for row in told.journal),
        ]
    )


def hold_words(hold: HoldFacts) -> str:
    """Say why a thing is held, by whom and until when."""
    legal = "legal hold: " if hold.legal else ""
    by = f" (by {hold.by})" if hold.by else ""
    return f"{legal}{hold.reason or 'yes'}{by}{'' if hold.until is None else f' until {hold.until}'}"


def distance(moment: Moment, now: int) -> str:
    """Print a moment, and how far it is from ``now``."""
    far = short(abs(moment - now))
    return f"{moment} ({f'in {far}' if moment > now else f'{far} ago'})"


def words(reason: str) -> str:
    """Say in words why a thing is kept or due, for the reasons that every domain has."""
    return _WORDS.get(reason, reason.replace("_", " "))


def shown_rules(rules: Sequence[RuleVerdict]) -> list[RuleVerdict]:
    """Return rules with the one that wins first."""
    return sorted(rules, key=lambda one: not one.wins)


_WORDS = {
    KeepReason.NOT_YET.value: "its time is not over",
    KeepReason.HELD.value: "it is held",
    KeepReason.EXTENDED.value: "it was given more time",
    KeepReason.NO_LIMIT.value: "nothing limits it",
    "ttl_expired": "its time is over",
    "missing_anchor": "the time that its age would be counted from is not set",
    "unreadable_signal": "something that decides about it cannot be read",
    "invalid_ttl": "its TTL cannot be read",
    "clock_jumped": "the clock is in doubt",
    "leadership_lost": "another process leads",
}


def _rule(rule: RuleVerdict) -> str:
    return rule.rule if rule.policy is None else f"{rule.rule} ({rule.policy})"


def _trash(trash: TrashFacts) -> str:
    since = "" if trash.since is None else f"since {trash.since}"
    by = f"by {trash.by}" if trash.by else ""
    until = "" if trash.until is None else f"until {trash.until}"
    return ", ".join(filter(None, (since, by, until))) or "yes"


def _anchor(anchor: AnchorView, now: int) -> str:
    source = f"{anchor.source}, " if anchor.source else ""
    return f"{source}{anchor.at.and_age(now)}"
