"""The default policy: the history's own retention, a policy as any other, with its values filled in from flags.

Values of flags are checked before anything starts. The rule that a TTL is off or at least an hour is for a typing
error: ``30m`` for ``30d`` would empty a history of years.
"""

from __future__ import annotations

from typing import Final

from lapse.core.duration import DAY, HOUR, Duration, DurationError
from lapse.core.errors import UsageError
from lapse.history.api.kinds import (
    CHAOS_EXPERIMENT_HISTORY,
    EXPERIMENT_NAME,
    EXPERIMENT_NAMESPACE,
    EXPERIMENT_UID,
    STATUS,
    ExecutionStatus,
    FieldIn,
    KeepLast,
    RetentionPolicy,
    RetentionSpec,
    Selector,
)
from lapse.kube.resources import ObjectMeta

POLICY_NAME: Final = "history"
DEFAULT_NAMESPACE: Final = "chaos-system"
DEFAULT_TTL: Final = Duration.parse("720h")
DEFAULT_LIMIT: Final = 100
TTL_FLAG: Final = "--history-ttl"
LIMIT_FLAG: Final = "--history-retention-limit"
KEEP_FLAG: Final = "--history-keep-last-success"
_TTL_RULE: Final = "0 to keep records of any age, or 1h or more, such as 720h"
_LIMIT_RULE: Final = "0 for no limit, or a whole number above 0, such as 100"
_KEEP_RULE: Final = "0 to keep none, or a whole number above 0, such as 1"


class HistorySettingError(UsageError, ValueError):
    """{flag} cannot be {given}: {problem}. Expected {expected}."""


def history_document(
    *,
    namespace: str = DEFAULT_NAMESPACE,
    ttl: Duration = DEFAULT_TTL,
    limit: int = DEFAULT_LIMIT,
    keep_last_success: int = 0,
    dry_run: bool = False,
) -> RetentionPolicy:
    """Return the policy for records, as it is stored; raises `HistorySettingError` for values that no flag may have.

    Records are counted where they live, in ``namespace``, and per experiment: its namespace, its name and its uid.
    """
    check_ttl(ttl)
    check_limit(limit)
    check_keep_last_success(keep_last_success)
    success = FieldIn(field_path=_label(STATUS), values=(ExecutionStatus.SUCCESS,))
    kind = CHAOS_EXPERIMENT_HISTORY
    spec = RetentionSpec(
        selector=Selector(api_version=kind.api_version, kind=kind.kind, namespaces=(namespace,)),
        group_by=tuple(map(_label, (EXPERIMENT_NAMESPACE, EXPERIMENT_NAME, EXPERIMENT_UID))),
        max_age=str(ttl) if ttl.nanoseconds else None,
        max_count=limit or None,
        keep_last=KeepLast(count=keep_last_success, where=success) if keep_last_success else None,
        dry_run=dry_run,
    )
    return RetentionPolicy(metadata=ObjectMeta(name=POLICY_NAME), spec=spec)


def _label(name: str) -> str:
    return f"metadata.labels['{name}']"


# --- flags ------------------------------------------------------------------------------------------------------------


def read_ttl(text: str) -> Duration:
    """Read the value of ``--history-ttl``; raises `HistorySettingError`, which names the flag and the rule."""
    try:
        ttl = Duration.parse(text)
    except DurationError as error:
        raise HistorySettingError(
            flag=TTL_FLAG, given=repr(text), problem=error.details["problem"], expected=_TTL_RULE
        ) from error
    check_ttl(ttl)
    return ttl


def check_ttl(ttl: Duration) -> None:
    """Refuse what is below zero, and what is above it and below an hour."""
    if ttl.nanoseconds is None or ttl.nanoseconds == 0 or ttl.nanoseconds >= HOUR:
        return
    problem = "it is below zero" if ttl.nanoseconds < 0 else "it is shorter than an hour"
    raise HistorySettingError(flag=TTL_FLAG, given=ttl, problem=problem, expected=_TTL_RULE)


def ttl_warning(ttl: Duration) -> str | None:
    """Return what should be logged about a TTL that is allowed, and may still surprise; None when nothing should."""
    if ttl.nanoseconds is None or not 0 < ttl.nanoseconds < DAY:
        return None
    return f"history_ttl is {ttl}: records of experiments are deleted before they are a day old"


def check_limit(limit: int) -> None:
    """Refuse a count limit below zero."""
    _check_count(LIMIT_FLAG, limit, _LIMIT_RULE)


def check_keep_last_success(count: int) -> None:
    """Refuse to keep fewer than none."""
    _check_count(KEEP_FLAG, count, _KEEP_RULE)


def _check_count(flag: str, count: int, rule: str) -> None:
    if count < 0:
        raise HistorySettingError(flag=flag, given=count, problem="it is below zero", expected=rule)
