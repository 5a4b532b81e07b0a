"""What is known of policies and of their passes: for lists, for people who ask about one, and for HTTP. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from lapse.core.duration import SECOND, Duration, DurationError, short
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.history.api.kinds import RETENTION_POLICY, RetentionStatus
from lapse.kube.conditions import ready_condition

if TYPE_CHECKING:
    from lapse.history.api.kinds import RetentionPolicy
    from lapse.history.retention.passes import PassItem
    from lapse.history.retention.runs import PolicyRun

COLUMNS: Final = (
    "name",
    "kind",
    "max age",
    "max count",
    "dry run",
    "ready",
    "reason",
    "matched",
    "deleted",
    "last run",
    "next run",
)


def summary(policy: RetentionPolicy) -> dict[str, Any]:
    """Return the form for programs: the facts, and the document."""
    status, ready = policy.status or RetentionStatus(), _ready(policy)
    return {
        "name": policy.metadata.name,
        "kind": policy.spec.selector.kind,
        "api_version": policy.spec.selector.api_version,
        "dry_run": policy.spec.dry_run,
        "ready": {"True": True, "False": False}.get(ready[0]),
        "reason": ready[1] or None,
        "message": ready[2] or None,
        "last_run": status.last_run,
        "next_run": status.next_run,
        "last_run_was_dry": status.dry_run,
        "matched": status.matched,
        "deleted": status.deleted,
        "kept": status.kept,
        "object": RETENTION_POLICY.body(msgspec.to_builtins(policy)),
    }


def told_json(one: PassItem) -> dict[str, Any]:
    """Return one thing that was due in a pass, for programs."""
    return {
        "address": str(one.address),
        "namespace": one.entry.namespace,
        "name": one.entry.name,
        "uid": one.entry.uid,
        "reason": str(one.verdict.reason),
        "since": to_timestamp(one.verdict.since),
        "policies": list(one.policies),
        "outcome": str(one.outcome),
    }


def run_json(run: PolicyRun) -> dict[str, Any]:
    """Return what came of one policy in a pass, for programs."""
    return {
        "name": run.name,
        "ready": run.is_ready,
        "reason": str(run.reason),
        "message": run.message,
        "dry_run": run.dry_run,
        "matched": run.matched,
        "deleted": run.deleted,
        "kept": run.kept,
    }


def row(policy: RetentionPolicy, now: int) -> tuple[str, ...]:
    """Return the cells under `COLUMNS`."""
    status, spec, ready = policy.status or RetentionStatus(), policy.spec, _ready(policy)
    cells = (
        policy.metadata.name,
        spec.selector.kind,
        _max_age(policy),
        str(spec.max_count or ""),
        "yes" if spec.dry_run else "no",
        ready[0],
        ready[1],
        "" if status.matched is None else str(status.matched),
        _counts(status.deleted, dry_run=status.dry_run),
        _when(status.last_run, now),
        _when(status.next_run, now),
    )
    return tuple(cell or "-" for cell in cells)


def facts(policy: RetentionPolicy, now: int) -> list[tuple[str, str]]:
    """Tell everything about one policy that a person may ask for."""
    status, spec, ready = policy.status or RetentionStatus(), policy.spec, _ready(policy)
    selector, age = spec.selector, _max_age(policy)
    told = [
        ("name", policy.metadata.name),
        ("selects", f"{selector.kind} ({selector.api_version})"),
        ("namespaces", ", ".join(selector.namespaces) or "all except the system's and the operator's"),
        ("labels", ", ".join(f"{name}={value}" for name, value in selector.labels.items())),
        ("only when", "; ".join(f"{one.field_path} is {' or '.join(one.values)}" for one in spec.only_when)),
        ("group by", ", ".join(spec.group_by)),
        ("max age", f"{age} from {spec.age_from or 'metadata.creationTimestamp'}" if age else "none"),
        ("max count", str(spec.max_count or "none")),
        ("keep last", _keep_last(policy)),
        ("dry run", "yes: nothing is deleted until dryRun is false" if spec.dry_run else "no"),
        ("ready", " ".join(filter(None, (ready[0], f"({ready[1]})" if ready[1] else "")))),
        ("message", ready[2]),
        ("last run", _last_run(status, now)),
        ("next run", f"{status.next_run} ({_when(status.next_run, now)})" if status.next_run else ""),
        ("matched", "" if status.matched is None else str(status.matched)),
        ("would delete" if status.dry_run else "deleted", _counts(status.deleted)),
        ("kept", _counts(status.kept)),
    ]
    return [(name, text) for name, text in told if text]


def _ready(policy: RetentionPolicy) -> tuple[str, str, str]:
    found = ready_condition(policy.status.conditions) if policy.status is not None else None
    return ("", "", "") if found is None else (found.status, found.reason, found.message)


def _max_age(policy: RetentionPolicy) -> str:
    text = policy.spec.max_age or ""
    try:
        return text if Duration.parse(text).nanoseconds else ""
    except DurationError:
        return text  # the message tells what is wrong with it


def _keep_last(policy: RetentionPolicy) -> str:
    keep = policy.spec.keep_last
    if keep is None or not keep.count:
        return "none"
    where = keep.where
    return f"{keep.count}" + ("" if where is None else f" with {where.field_path} {' or '.join(where.values)}")


def _counts(counts: dict[str, int], *, dry_run: bool | None = False) -> str:
    told = ", ".join(f"{number} {reason}" for reason, number in counts.items() if number)
    return f"would: {told}" if told and dry_run else told


def _last_run(status: RetentionStatus, now: int) -> str:
    if status.last_run is None:
        return "not yet"
    # Not always what the policy says: the first pass over records is a dry one where nobody chose a TTL.
    return f"{status.last_run} ({_when(status.last_run, now)}{', a dry run' if status.dry_run else ''})"


def _when(text: str | None, now: int) -> str:
    """Say how far a moment is from now."""
    moment = from_timestamp(text or "")
    if moment is None:
        return ""
    apart = abs(moment - now)
    if apart < SECOND:  # times are rounded up to a second: what just happened seems to be ahead
        return "now"
    return f"in {short(apart)}" if moment > now else f"{short(apart)} ago"
