"""Domains that are broken on purpose, each with the cases that must notice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lapse.core.clock import UnixNs
from lapse.core.decision import Decision, Due, DueReason, Keep, KeepReason, Reason
from lapse.engine.domain import DELETE, Result
from lapse.engine.journal.port import Outcome
from tests.conformance.domains.memory import TTL, MemoryDomain

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from lapse.engine.domain import Action, Also, Candidate
    from lapse.engine.safety.holds import Hold, HoldDoubt
    from tests.conformance.domains.kit import Kit


class EndsWhatItFinds(MemoryDomain):
    """Ends things before anybody has decided: past dry runs, holds, freezes, budgets and the clock."""

    async def due(self, now: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[UnixNs]], None]:
        for name in [name for name, thing in self.things.items() if thing.made + (TTL.nanoseconds or 0) < now]:
            del self.things[name]
        async for page in super().due(now, size=size):
            yield page


class EndsWhenItReadsAgain(MemoryDomain):
    """Ends things between the two decisions."""

    async def refresh(self, candidates: Sequence[Candidate[UnixNs]]) -> Sequence[Candidate[UnixNs] | None]:
        for one in candidates:
            self.things.pop(one.handle, None)
        return candidates


class IgnoresItsHolds(MemoryDomain):
    """Has holds and does not look at them."""

    def look_for_hold(self, action: Action) -> Hold | HoldDoubt | None:
        return None


class TakesDoubtForNo(MemoryDomain):
    """Calls what it could not read not held."""

    def look_for_hold(self, action: Action) -> Hold | HoldDoubt | None:
        try:
            return super().look_for_hold(action)
        except TimeoutError:
            return None


class IgnoresVersions(MemoryDomain):
    """Ends whatever has the name."""

    def end(self, action: Action) -> Result:
        return Result(Outcome.ENDED if self.things.pop(action.handle, None) else Outcome.GONE)


class CallsGoneEnded(MemoryDomain):
    """Takes the credit for what somebody else did."""

    def end(self, action: Action) -> Result:
        return Result(Outcome.ENDED) if action.handle not in self.things else super().end(action)


class SaysSoAndDoesNot(MemoryDomain):
    """Reports an end that did not take place."""

    def end(self, action: Action) -> Result:
        return Result(Outcome.ENDED)


class DecidesTooEarly(MemoryDomain):
    """Calls everything due."""

    def decide(self, candidate: Candidate[UnixNs], now: UnixNs) -> Decision:
        return Decision(Due(DELETE, DueReason.TTL_EXPIRED, since=candidate.state), candidate.state)


class HidesItsAnchor(MemoryDomain):
    """Counts from whatever it finds, and does not say from what: nobody can see that it was not set."""

    def decide(self, candidate: Candidate[UnixNs], now: UnixNs) -> Decision:
        over = UnixNs(candidate.state + (TTL.nanoseconds or 0))
        if now <= over:
            return Decision(Keep(KeepReason.NOT_YET, over))
        return Decision(Due(DELETE, DueReason.TTL_EXPIRED, since=over), None, over)


class OtherReason(Reason):
    UNHEARD_OF = "unheard_of"


class HidesItsReasons(MemoryDomain):
    """Ends things for a reason that it did not tell of, so its metric does not start at zero."""

    def decide(self, candidate: Candidate[UnixNs], now: UnixNs) -> Decision:
        found = super().decide(candidate, now)
        if not isinstance(found.verdict, Due):
            return found
        return Decision(Due(DELETE, OtherReason.UNHEARD_OF, since=found.verdict.since), found.anchor, found.deadline)


class GivesUpTheBatch(MemoryDomain):
    """Calls a whole batch failed because of one."""

    async def apply(self, actions: Sequence[Action], *, also: Also | None) -> Sequence[Result]:
        try:
            return await super().apply(actions, also=also)
        except Exception as error:  # noqa: BLE001 - what is wrong with it
            return [Result(Outcome.FAILED, error)] * len(actions)


class LosesResults(MemoryDomain):
    """Tells of the first only."""

    async def apply(self, actions: Sequence[Action], *, also: Also | None) -> Sequence[Result]:
        return (await super().apply(actions, also=also))[:1]


class ForgetsTheRows(MemoryDomain):
    """Says that it shares the journal's database, and does not write its rows."""

    shares_journal = True

    def __init__(self, kit: Kit) -> None:
        super().__init__(kit)
        self.database: Any = kit.store.database


class UsesAnotherName(MemoryDomain):
    """Is registered and frozen under one name, and counted and journalled under another."""

    @property
    def name(self) -> str:  # type: ignore[override]  # what is wrong with it
        return "other"


class HidesItsPolicy(MemoryDomain):
    """Says of nothing that a policy decides about it."""

    def policy_name(self, candidate: Candidate[UnixNs]) -> str:
        return ""


class ChangesItsPolicy(MemoryDomain):
    """Calls its policy another one whenever it is asked."""

    def policies(self) -> dict[str, str]:
        return {self.name: f"after {self.kit.now}"}


BROKEN: dict[type[MemoryDomain], Sequence[str]] = {
    EndsWhatItFinds: (
        "a_dry_run_tells_what_would_be_ended_and_ends_nothing",
        "what_is_held_is_kept",
        "what_is_extended_is_kept_until_then_and_ended_after_it",
        "what_has_an_extension_that_cannot_be_read_is_kept",
        "a_budget_that_is_spent_freezes_the_domain",
        "a_journal_that_fails_prevents_the_act",
    ),
    EndsWhenItReadsAgain: (
        "a_dry_run_tells_what_would_be_ended_and_ends_nothing",
        "what_is_due_is_ended_once_and_not_a_moment_before",
    ),
    IgnoresItsHolds: ("what_is_held_is_kept", "what_is_held_between_the_decision_and_the_act_is_kept"),
    TakesDoubtForNo: ("what_may_be_held_is_kept",),
    IgnoresVersions: ("what_was_changed_after_the_decision_is_kept",),
    CallsGoneEnded: ("what_somebody_else_removed_is_not_counted_as_ended",),
    SaysSoAndDoesNot: ("what_is_due_is_ended_once_and_not_a_moment_before",),
    DecidesTooEarly: ("what_is_due_is_ended_once_and_not_a_moment_before",),
    HidesItsAnchor: ("what_has_a_time_that_means_not_set_is_kept",),
    HidesItsReasons: ("every_metric_starts_at_zero", "the_journal_tells_the_intent_and_the_outcome_or_both_in_one"),
    GivesUpTheBatch: ("one_bad_item_does_not_stop_the_rest",),
    LosesResults: ("what_is_due_is_ended_once_and_not_a_moment_before",),
    ForgetsTheRows: (
        "the_journal_tells_the_intent_and_the_outcome_or_both_in_one",
        "a_journal_that_fails_prevents_the_act",
    ),
    HidesItsPolicy: (
        "what_is_older_than_its_policy_stays_for_an_interval",
        "a_policy_that_is_new_and_would_end_much_at_once_waits_for_a_person",
    ),
    ChangesItsPolicy: ("much_that_is_due_at_once_by_an_unchanged_policy_goes_at_once",),
    UsesAnotherName: (
        "what_is_due_is_ended_once_and_not_a_moment_before",
        "every_metric_starts_at_zero",
        "nothing_of_a_frozen_domain_is_ended_until_it_is_resumed",
    ),
}
