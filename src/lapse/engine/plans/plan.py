"""Plans: what will lapse, when and why, as a document that people read, approve and carry out.

An item holds a *fingerprint* of everything that its decision was made on: identity, rule, anchor, deadline, policy,
holds, and what it would take along. Not a version, which any write of a status changes. Who carries out a plan reads
each thing again, decides again, and compares: what was renewed, replaced, held or given another policy since then is
*drifted*, and stays.

A plan has a digest over all of it, by which it is approved, and an end. Where the place that made it has a secret, it
is signed, so that nobody changes its author. Pure: nothing is read or written here.
"""

from __future__ import annotations

from hashlib import sha256
from hmac import compare_digest, digest
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from lapse.core.decision import Due
from lapse.core.duration import short
from lapse.core.errors import UsageError
from lapse.engine.domain import DELETE
from lapse.engine.explanation import HoldFacts
from lapse.engine.view import Moment, decode, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lapse.core.decision import Decision
    from lapse.engine.domain import Candidate
    from lapse.engine.view import Columns

FORM: Final = 2
"""The version of the document's form."""
_ID_DIGITS: Final = 16
_COMPARED: Final = ("uid", "action", "reason", "anchor", "deadline", "policy", "hold", "takes along")


class PlanFormError(UsageError):
    """This is not a plan: {problem}. Expected a document that lapse plan --out has written."""


class PlanSignatureError(UsageError):
    """The plan {plan} was changed after it was made, or was made elsewhere. Make a new one with lapse plan --out."""


class PlanExpiredError(UsageError):
    """The plan {plan} has expired at {expires}. Make a new one with lapse plan --out."""


class PlanOfTheFutureError(UsageError):
    """The plan {plan} was made at {created}, which is still to come: a clock was wrong then, or is now.

    Make a new one with lapse plan.
    """


class PlanStep(Struct, frozen=True):
    """What lapses later, because of an item."""

    address: str
    action: str
    due_at: Moment


class PlanItem(Struct, frozen=True, kw_only=True):
    """One thing that will lapse."""

    domain: str
    address: str
    uid: str
    action: Annotated[str, Meta(description="What will be done: delete, or a word of the domain")]
    due: Annotated[bool, Meta(description="Whether its time is over now")]
    due_at: Annotated[Moment, Meta(description="When its time is over")]
    reason: Annotated[str, Meta(description="The rule that wins")]
    anchor: Annotated[Moment | None, Meta(description="What its time is counted from")]
    deadline: Moment | None
    policy: Annotated[str, Meta(description="A short hash of the policy that decides")]
    policy_name: Annotated[str, Meta(description="What that policy is called; empty where it has no name")] = ""
    hold: Annotated[HoldFacts | None, Meta(description="What holds it now: then it stays")]
    doubt: Annotated[
        str | None, Meta(description="Why it is not known whether it is due, although its time is over: it stays")
    ] = None
    waits_for: Annotated[
        str | None, Meta(description="What must happen before it is ended, although it is due: until then it stays")
    ] = None
    takes_along: Annotated[list[str], Meta(description="What ends with it")]
    then: Annotated[list[PlanStep], Meta(description="What lapses because of it, later and by the end of the plan")]
    not_undoable: Annotated[str | None, Meta(description="Why it cannot be brought back; null where it can")]
    fingerprint: Annotated[str, Meta(description="Of everything that the decision was made on")]

    def is_by(self, policy: str) -> bool:
        """Whether a policy decides about it, which is named by its name, by DOMAIN/NAME or by its hash."""
        return policy in {self.policy, self.policy_name, f"{self.domain}/{self.policy_name}"}


class PlanCount(Struct, frozen=True):
    """How many things lapse whose names are secrets."""

    domain: str
    scope: Annotated[str, Meta(description="What they are counted by: an application, for keys")]
    count: int
    first: Moment | None


class _Form(Struct, frozen=True):
    """What documents of every form have."""

    form: int


class Plan(Struct, frozen=True, kw_only=True):
    """What will lapse until a moment, as it was known when the plan was made."""

    form: int
    id: str
    place: Annotated[str, Meta(description="The name of the record that it is about")]
    author: str
    created_at: Moment
    expires_at: Moment
    until: Annotated[Moment, Meta(description="What is over by then is in it")]
    domains: list[str]
    items: Annotated[list[PlanItem], Meta(description="In the order in which their times are over")]
    counts: list[PlanCount]
    problems: Annotated[dict[str, str], Meta(description="Domains that could not be read, and why")]
    digest: str = ""
    signature: str = ""

    @property
    def following(self) -> int:
        """How many more things lapse with what is in it, or because of that; what stays takes nothing along.

        A later step of the same thing, such as the archive after standby, is no further thing.
        """
        ending = [one for one in self.items if one.hold is None and one.doubt is None and one.waits_for is None]
        others = (step for one in ending for step in one.then if step.address != one.address)
        return sum(len(one.takes_along) for one in ending) + sum(1 for _ in others)

    @property
    def is_due(self) -> bool:
        """Whether something is due that is not held, also if that waits for a person."""
        return any(one.due and one.hold is None for one in self.items)


COLUMNS: Final[Columns] = {
    "address": "address",
    "action": "action",
    "due": lambda one, now: ("waits" if one.waits_for else "now") if one.due else _words(one, now),
    "rule": "reason",
    "held": lambda one, _: None if one.hold is None else one.hold.reason or "yes",
    "takes along": lambda one, now: ", ".join((*one.takes_along, *(_later(step, now) for step in one.then))) or None,
    "undo": lambda one, _: "yes" if one.not_undoable is None else "no",
}
"""Of a table for people."""


def fingerprint(
    candidate: Candidate[Any],
    decision: Decision,
    *,
    policy: str,
    hold: HoldFacts | None,
    takes_along: Sequence[str],
) -> str:
    """Return the fingerprint of a decision's inputs."""
    verdict = decision.verdict
    action, reason = (verdict.action, verdict.reason.value) if isinstance(verdict, Due) else ("", "")
    held = None if hold is None else (hold.reason, None if hold.until is None else int(hold.until), hold.legal)
    inputs = (candidate.uid, action, reason, decision.anchor, decision.deadline, policy, held, sorted(takes_along))
    return sha256(msgspec.json.encode(inputs)).hexdigest()


def differences(item: PlanItem, now: PlanItem) -> list[str]:
    """Name what is another one than in the plan; what is shown by second may differ in less than that."""
    before = (item.uid, item.action, item.reason, item.anchor, item.deadline, item.policy, item.hold, item.takes_along)
    after = (now.uid, now.action, now.reason, now.anchor, now.deadline, now.policy, now.hold, now.takes_along)
    shown = [(str(old), str(new)) for old, new in zip(before, after, strict=True)]
    found = [name for name, (old, new) in zip(_COMPARED, shown, strict=True) if old != new]
    return found or ["something that is not shown"]


def sealed(plan: Plan, secret: bytes | None) -> Plan:
    """Return the plan with its digest and, where there is a secret, its signature."""
    found = _digest(plan)
    signature = "" if secret is None else digest(secret, found.encode(), "sha256").hex()
    return msgspec.structs.replace(plan, id=plan.id or found[:_ID_DIGITS], digest=found, signature=signature)


def demand_genuine(plan: Plan, secret: bytes | None) -> None:
    """Raise `PlanSignatureError` unless the plan is as it was made; without a secret, as its digest says."""
    expected = sealed(plan, secret)
    if not _is_same(expected.digest, plan.digest) or plan.id != plan.digest[:_ID_DIGITS]:
        raise PlanSignatureError(plan=plan.id)
    if not _is_same(expected.signature, plan.signature):
        raise PlanSignatureError(plan=plan.id)


def _is_same(expected: str, given: str) -> bool:
    return compare_digest(expected.encode(), given.encode("utf-8", "surrogatepass"))


def read_plan(text: bytes) -> Plan:
    """Read a plan that was written to a file; raises `PlanFormError`."""
    try:
        form = decode(text, _Form).form
        if form != FORM:
            raise PlanFormError(problem=f"its form is {form}, and this Lapse knows {FORM}")
        return decode(text, Plan)
    except (msgspec.DecodeError, ValueError) as error:
        raise PlanFormError(problem=str(error).rstrip(".")) from error


def _digest(plan: Plan) -> str:
    bare = msgspec.structs.replace(plan, id="", digest="", signature="")
    return sha256(encode(bare)).hexdigest()


def _words(item: PlanItem, now: int) -> str:
    return f"not known: {item.doubt}" if item.doubt else f"in {short(max(0, item.due_at - now))}"


def _later(step: PlanStep, now: int) -> str:
    action = "" if step.action == DELETE else f"{step.action} "
    return f"{step.address} ({action}in {short(max(0, step.due_at - now))})"
