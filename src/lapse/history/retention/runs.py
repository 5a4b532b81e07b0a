"""Runs of a policy: what came of a pass, worded for its status, for the log and for people.

A status is about passes over everything. A pass that could not be made changes the condition and nothing else: what the
last one found stays true of that one. ``lastRun`` is only set by a pass that looked at everything. Wording is pure;
`StatusWriter` writes. The log has a warning when something becomes wrong or is wrong in another way, and no more than a
line at info as long as it stays so. A status that cannot be written is no reason to stop anything.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lapse.core.clock import UnixNs
from lapse.core.decision import KeepReason, UnknownReason
from lapse.core.errors import LapseError
from lapse.core.log import get_logger
from lapse.core.timestamps import to_timestamp
from lapse.engine.executor import HoldUnknownError
from lapse.engine.journal.port import Outcome
from lapse.engine.running.metrics import ErrorKind
from lapse.history.api.kinds import RETENTION_POLICY, RetentionStatus
from lapse.history.retention.rules import DoubtReason
from lapse.kube.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    ObjectError,
    StoreUnavailableError,
    UnknownKindError,
)
from lapse.kube.resources import READY, Condition, ConditionStatus, ready_condition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lapse.core.clock import Clock
    from lapse.engine.running.metrics import Metrics
    from lapse.history.api.kinds import RetentionPolicy
    from lapse.history.policy.policy import RetentionPolicyError
    from lapse.history.retention.passes import PassItem, PassReport
    from lapse.kube.resources import Json
    from lapse.objects.port import ObjectStore

GRANT: Final = (
    "policies act as a service account of their own, and have its rights only; an administrator grants them with"
    " lapse retention rbac POLICY.yaml | kubectl apply -f - (to act as that account, the operator needs deploy/base)"
)
"""Advice about a right that is missing on a cluster."""
_LONGEST_MESSAGE: Final = 1024
_GOES: Final = frozenset({Outcome.ENDED, Outcome.WOULD_END})
_log = get_logger("lapse.history")


class RunReason(StrEnum):
    """Reasons for which a policy is ready or not, as conditions have them."""

    COMPLETED = "Completed"
    INVALID_POLICY = "InvalidPolicy"
    UNKNOWN_KIND = "UnknownKind"
    FORBIDDEN = "Forbidden"
    STORE_UNAVAILABLE = "StoreUnavailable"
    FROZEN = "Frozen"
    WAITING = "WaitingForApproval"
    """It is new or changed, and would end much at once."""
    BY_PLAN = "NeedsApprovedPlan"
    """Nothing is wrong, but only an approved plan ends what is due."""
    INCOMPLETE = "Incomplete"
    FAILED = "Failed"


_READY: Final = frozenset({RunReason.COMPLETED, RunReason.BY_PLAN})
_STOPPED: Final = frozenset({RunReason.FROZEN, RunReason.WAITING})


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRun:
    """The result of a pass for one policy."""

    name: str
    domain: str
    reason: RunReason
    message: str
    dry_run: bool = False
    matched: int | None = None
    """None: nothing was looked at."""
    deleted: dict[str, int] = field(default_factory=dict)
    """By reason: what went or, in a dry run, would go."""
    kept: dict[str, int] = field(default_factory=dict)
    """By rule."""
    unlabelled: int = 0
    """Records among ``matched`` that another operator wrote, without our labels."""
    is_whole: bool = False
    """Whether everything was looked at."""

    @property
    def is_ready(self) -> bool:
        """Whether nothing was wrong."""
        return self.reason in _READY


class OutcomeCounts:
    """Counts what comes of what is due, by policy and reason; and how many failed in a row."""

    def __init__(self) -> None:
        """Count nothing yet."""
        self.deleted: dict[str, Counter[str]] = {}
        self.failed_in_a_row = 0
        self.last_problem: Exception | None = None

    def add(self, item: PassItem) -> None:
        """Count one."""
        self.failed_in_a_row = self.failed_in_a_row + 1 if item.outcome is Outcome.FAILED else 0
        if item.outcome is Outcome.FAILED or isinstance(item.problem, HoldUnknownError):
            self.last_problem = item.problem
        if item.outcome in _GOES:
            for name in item.policies:
                self.deleted.setdefault(name, Counter())[item.verdict.reason] += 1


def of_report(
    name: str,
    report: PassReport,
    *,
    domain: str,
    dry_run: bool,
    deleted: Mapping[str, int],
    problem: Exception | None,
    advice: str = "",
    age_from: str = "",
) -> PolicyRun:
    """Return the run of a pass that was made; ``problem`` is the last that was against a deletion.

    ``advice`` says what to do where a right is missing; ``age_from`` is the field that ages are counted from.
    """
    dry_run = dry_run or report.outcomes[Outcome.WOULD_END] > 0  # also where the clock guard has made it dry
    reason, message = _verdict_on(report, domain=domain, dry_run=dry_run, problem=problem)
    message = _with_advice(message + _in_doubt(report, age_from), reason, advice)
    # What is held by a hold of its own was never due; what another object holds is found when it is to be ended.
    kept = report.kept + Counter({KeepReason.HELD: report.outcomes[Outcome.HELD]})
    return PolicyRun(
        name=name,
        domain=domain,
        reason=reason,
        message=message[:_LONGEST_MESSAGE],
        dry_run=dry_run,
        matched=report.matched,
        deleted={str(why): count for why, count in deleted.items()},
        kept={str(why): count for why, count in kept.items() if count},
        unlabelled=report.unlabelled,
        is_whole=report.is_complete,
    )


def _verdict_on(report: PassReport, *, domain: str, dry_run: bool, problem: Exception | None) -> tuple[RunReason, str]:
    gone = sum(report.outcomes[outcome] for outcome in _GOES)
    done = f"{'would delete' if dry_run else 'deleted'} {gone} of {report.matched}"
    failed, refused = report.outcomes[Outcome.FAILED], report.outcomes[Outcome.REFUSED]
    if failed:
        reason = RunReason.FORBIDDEN if isinstance(problem, ForbiddenError) else RunReason.INCOMPLETE
        return reason, f"{done}; {failed} could not be deleted: {_words(problem)}"
    if refused and isinstance(problem, HoldUnknownError):
        return RunReason.INCOMPLETE, f"{done}; {refused} are kept: {_words(problem)}"
    if refused:
        return RunReason.FROZEN, f"{done}; {refused} must wait until lapse resume {domain} is run"
    if not report.is_complete:
        return RunReason.INCOMPLETE, f"{done}; it ended before it had looked at everything"
    return RunReason.COMPLETED, done


def _in_doubt(report: PassReport, age_from: str) -> str:
    """Return how many objects lack a field or a label, and what follows from it, as a part of the message."""
    text = ""
    if report.unlabelled:
        text += f"; {report.unlabelled} of another operator, without labels of Lapse, were grouped by experimentRef"
    if ageless := report.kept[UnknownReason.MISSING_ANCHOR]:
        text += f"; {ageless} kept: {age_from} is missing, or not set to a time, in {'it' if ageless == 1 else 'them'}"
    if ungrouped := report.kept[DoubtReason.UNKNOWN_GROUP]:
        text += f"; {ungrouped} kept: a field of groupBy is missing in {'it' if ungrouped == 1 else 'them'}"
    return text


def of_waiting(run: PolicyRun) -> PolicyRun:
    """Return the run of a policy that was dry because it waits for a person."""
    message = f"{run.message}; that is much at once for a policy that is new or changed, so nothing of it goes until"
    message += f" lapse resume --policy {run.name} is run"
    return replace(run, reason=RunReason.WAITING, message=message[:_LONGEST_MESSAGE])


def of_by_plan(run: PolicyRun) -> PolicyRun:
    """Return the run of a policy that was dry because only an approved plan ends what is due."""
    message = f"{run.message}; to end it: lapse plan --out FILE, lapse approve FILE by another person, lapse apply FILE"
    return replace(run, reason=RunReason.BY_PLAN, message=message[:_LONGEST_MESSAGE])


def of_error(name: str, error: Exception, *, domain: str, advice: str = "") -> PolicyRun:
    """Return the run of a pass that could not be made; ``advice`` says what to do where a right is missing."""
    match error:
        case UnknownKindError():
            reason = RunReason.UNKNOWN_KIND
        case ForbiddenError():
            reason = RunReason.FORBIDDEN
        case StoreUnavailableError():
            reason = RunReason.STORE_UNAVAILABLE
        case ObjectError():
            reason = RunReason.INCOMPLETE
        case _:
            reason = RunReason.FAILED
    message = _with_advice(_words(error), reason, advice)
    return PolicyRun(name=name, domain=domain, reason=reason, message=message[:_LONGEST_MESSAGE])


def of_broken(error: RetentionPolicyError, *, domain: str) -> PolicyRun:
    """Return the run of a policy that cannot be used."""
    name, message = str(error.details["name"]), str(error.details["problem"])[:_LONGEST_MESSAGE]
    return PolicyRun(name=name, domain=domain, reason=RunReason.INVALID_POLICY, message=message)


def _with_advice(message: str, reason: RunReason, advice: str) -> str:
    if not advice or reason is not RunReason.FORBIDDEN:
        return message
    return f"{message[: _LONGEST_MESSAGE - len(advice) - 2]}; {advice}"


def _words(error: Exception | None) -> str:
    # Only our own messages are known to hold no secret.
    return str(error).rstrip(".") if isinstance(error, LapseError) else "an error of Lapse itself; see its log"


# --- status -----------------------------------------------------------------------------------------------------------


def status_changes(run: PolicyRun, policy: RetentionPolicy, *, now: UnixNs, next_run: UnixNs | None) -> Json:
    """Return the patch that writes a run into a status."""
    old = policy.status or RetentionStatus()
    generation = policy.metadata.generation
    changes: Json = {
        "observedGeneration": generation,
        "conditions": [msgspec.to_builtins(_condition(run, old, generation=generation, now=now))],
    }
    if next_run is not None:
        changes["nextRun"] = to_timestamp(next_run)
    if run.matched is None or not run.is_whole:
        return changes
    return changes | {
        "lastRun": to_timestamp(now),
        "dryRun": run.dry_run,
        "matched": run.matched,
        "unlabelled": run.unlabelled or None,
        "deleted": _replaced(old.deleted, run.deleted),
        "kept": _replaced(old.kept, run.kept),
    }


def _condition(run: PolicyRun, old: RetentionStatus, *, generation: int, now: UnixNs) -> Condition:
    status = ConditionStatus.TRUE if run.is_ready else ConditionStatus.FALSE
    before = ready_condition(old.conditions)
    since = before.last_transition_time if before is not None and before.status == status else None
    return Condition(
        type=READY,
        status=status,
        reason=run.reason,
        message=run.message,
        last_transition_time=since or to_timestamp(now),
        observed_generation=generation,
    )


def _replaced(old: Mapping[str, int], new: Mapping[str, int]) -> dict[str, int | None]:
    """Return the merge patch that leaves nothing of the old: what is not named would stay."""
    return {**dict.fromkeys(old), **new}


class StatusWriter:
    """Writes runs to the log, to the metrics and to the status of the policy."""

    def __init__(self, store: ObjectStore, *, metrics: Metrics, clock: Clock) -> None:
        """Write nothing yet."""
        self._store, self._metrics, self._clock = store, metrics, clock
        self._logged: dict[str, tuple[RunReason, str]] = {}

    async def write(
        self, run: PolicyRun, policy: RetentionPolicy, *, in_status: bool, next_run: UnixNs | None = None
    ) -> None:
        """Write one run; ``in_status`` also there, if the policy is stored."""
        self._log_run(run)
        if in_status and policy.metadata.uid:
            await self._write_status(run, policy, next_run=next_run)

    def _log_run(self, run: PolicyRun) -> None:
        before, self._logged[run.name] = self._logged.get(run.name), (run.reason, run.message)
        if run.is_ready:
            found: dict[str, Any] = {"matched": run.matched, "kept": run.kept, "dry_run": run.dry_run}
            _log.info("policy_passed", policy=run.name, deleted=run.deleted, **found)
            return
        if run.reason not in _STOPPED:  # which have metrics of their own, and are no failures
            self._metrics.failed(run.domain, ErrorKind.POLICY)
        log = _log.info if before == (run.reason, run.message) else _log.warning
        log("policy_failed", policy=run.name, reason=run.reason, problem=run.message)

    async def _write_status(self, run: PolicyRun, policy: RetentionPolicy, *, next_run: UnixNs | None) -> None:
        changes = status_changes(run, policy, now=UnixNs(self._clock.wall_ns()), next_run=next_run)
        meta = policy.metadata
        patch = partial(self._store.patch_status, RETENTION_POLICY, meta.key, changes, uid=meta.uid)
        try:
            try:
                await patch(version=meta.resource_version)
            except ConflictError:  # changed during the pass: the status names the generation that it is about
                await patch()
        except (ConflictError, NotFoundError, InvalidError):
            pass  # gone, or another one by now, or one that the store would not take any more: the log tells
        except ObjectError as error:
            self._metrics.failed(run.domain, ErrorKind.POLICY)
            _log.warning("status_not_written", policy=run.name, error=type(error).__name__, reason=str(error))
