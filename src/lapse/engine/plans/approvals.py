"""Approvals: which plans may be carried out where ending needs one.

Where a domain or a policy acts *by plan* (the setting ``act_by_plan``), loops decide and tell, and end nothing
(`loop_gate`). What they would end is ended by an approved plan: another person than its author has said yes to its
digest. Approvals are notes beside the freezes, so that they outlive a process; on a cluster, a ConfigMap that is named
after the plan counts as well (`ApprovalSource`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from lapse.core.errors import LapseError, UsageError
from lapse.engine.safety.blast_radius import PolicyStanding
from lapse.engine.safety.gate import JudgingGate
from lapse.engine.verbs.contract import Approval
from lapse.engine.view import decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lapse.core.clock import UnixNs
    from lapse.engine.domain import Action
    from lapse.engine.plans.plan import Plan
    from lapse.engine.safety.blast_radius import PolicyChecks
    from lapse.engine.safety.freeze import Notes
    from lapse.engine.safety.gate import Gate

_NOTE: Final = "approval."
_ENDS: Final = ("expires_at", "expires")
"""The name of the end of an approval, and what it was called before; of both, the earlier one counts."""
_POLICY: Final = "policy/"


class OwnPlanError(UsageError):
    """The plan {plan} was made by {author}: another person must approve it."""

    status = 403


class ApprovalUnreadableError(LapseError):
    """The approval of the plan {plan} cannot be read. Approve it again."""


class ApprovalSource(Protocol):
    """Another place where plans are approved."""

    async def find(self, plan: Plan) -> Approval | None:
        """Return the approval of a plan; None when there is none. Raises a `LapseError` when that cannot be told."""
        ...


class Approvals:
    """The approvals of one place."""

    def __init__(self, notes: Notes, *sources: ApprovalSource) -> None:
        """Keep them in ``notes``, and ask ``sources`` as well."""
        self._notes, self._sources = notes, sources

    async def record(self, approval: Approval) -> None:
        """Keep an approval."""
        await self._notes.write_note(f"{_NOTE}{approval.plan}", encode(approval).decode())

    async def find(self, plan: Plan) -> Approval | None:
        """Return the approval of exactly this plan; None when there is none, or it is over."""
        text = await self._notes.read_note(f"{_NOTE}{plan.id}")
        found = _read(plan.id, text) if text else None
        sources = iter(self._sources)
        while found is None or found.digest != plan.digest:
            source = next(sources, None)
            if source is None:
                return None
            found = await source.find(plan)
        return found

    async def all(self) -> dict[str, Approval]:
        """Return the approvals that are kept here, by the ids of their plans; one that cannot be read is none."""
        found: dict[str, Approval] = {}
        for name, text in (await self._notes.list_notes(_NOTE)).items():
            plan = name.removeprefix(_NOTE)
            with suppress(ApprovalUnreadableError):
                found[plan] = _read(plan, text)
        return found


def _read(plan: str, text: str) -> Approval:
    try:
        stored = decode(text.encode(), dict[str, Any])
        ends = [stored.get(name) for name in _ENDS if name in stored] or [None]
        found = [decode(msgspec.json.encode({**stored, _ENDS[0]: end}), Approval) for end in ends]
        return min(found, key=lambda one: one.expires_at)
    except (msgspec.DecodeError, ValueError) as error:
        raise ApprovalUnreadableError(plan=plan) from error


class ByPlan:
    """What is ended by approved plans only: domains, and policies by their names."""

    def __init__(self, names: Iterable[str]) -> None:
        """Read the setting: names of domains, and ``policy/NAME``."""
        found = list(names)
        self.policies = frozenset(one.removeprefix(_POLICY) for one in found if one.startswith(_POLICY))
        self.domains = frozenset(one for one in found if not one.startswith(_POLICY))

    def covers(self, domain: str, policy: str) -> bool:
        """Whether a thing of this domain, that this policy decides about, needs an approved plan."""
        return domain in self.domains or (bool(policy) and policy in self.policies)

    def __bool__(self) -> bool:
        """Whether anything does."""
        return bool(self.domains or self.policies)


class PlanOnlyPolicies:
    """`PolicyChecks` for loops: what acts by plan is a dry run; all else is as the inner ones say."""

    def __init__(self, policies: PolicyChecks, by_plan: ByPlan) -> None:
        """Ask ``policies`` about the rest."""
        self._policies, self._by_plan = policies, by_plan

    def standing(self, action: Action, now: UnixNs) -> PolicyStanding:
        """See `PolicyChecks`."""
        found = self._policies.standing(action, now)
        is_ours = found is PolicyStanding.ACTS and action.actor is None  # what a person asks for is no loop's
        return PolicyStanding.DRY if is_ours and self._by_plan.covers(action.domain, action.policy_name) else found

    def needs_plan(self, domain: str, name: str) -> bool:
        """See `PolicyChecks`."""
        return self._by_plan.covers(domain, name)

    def apart(self, actor: str) -> PlanOnlyPolicies:
        """See `PolicyChecks`."""
        return PlanOnlyPolicies(self._policies.apart(actor), self._by_plan)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - every other method is the inner one's
        """Return a method of the inner ones."""
        return getattr(self._policies, name)


def loop_gate(gate: Gate, names: Iterable[str]) -> Gate:
    """Return the gate of loops, by the setting: what it names is told, and not ended."""
    by_plan = ByPlan(names)
    return JudgingGate(gate, PlanOnlyPolicies(gate.policies, by_plan)) if by_plan else gate
