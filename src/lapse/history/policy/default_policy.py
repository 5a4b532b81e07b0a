"""The default policy: the history's own retention, a policy as any other, with its values filled in from flags.

Values of flags are checked before anything starts. The rule that a TTL is off or at least an hour is for a typing
error: ``30m`` for ``30d`` would empty a history of years.
"""

from __future__ import annotations

from typing import Final

import msgspec

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


class HistoryLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits for one question or one pass, in place of those of the settings; None is as the settings say."""

    ttl: Duration | None = None
    retention_limit: int | None = None
    keep_last_success: int | None = None

    @classmethod
    def read(
        cls, ttl: str | None = None, retention_limit: int | None = None, keep_last_success: int | None = None
    ) -> HistoryLimits:
        """Read what a request says; raises `HistorySettingError`, which names the field and the rule."""
        if retention_limit is not None:
            check_limit(retention_limit, name="retention_limit")
        if keep_last_success is not None:
            check_keep_last_success(keep_last_success, name="keep_last_success")
        return cls(None if ttl is None else read_ttl(ttl, name="ttl"), retention_limit, keep_last_success)

    @property
    def are_given(self) -> bool:
        """Whether there is one at all."""
        return self != NO_LIMITS

    def over(self, policy: RetentionPolicy) -> RetentionPolicy:
        """Return the history's own policy with these in place of its own."""
        own, keep = policy.spec, policy.spec.keep_last
        return history_document(
            namespace=own.selector.namespaces[0],
            ttl=Duration.parse(own.max_age or "0") if self.ttl is None else self.ttl,
            limit=(own.max_count or 0) if self.retention_limit is None else self.retention_limit,
            keep_last_success=(
                (0 if keep is None else keep.count) if self.keep_last_success is None else self.keep_last_success
            ),
            dry_run=own.dry_run,
        )


NO_LIMITS: Final = HistoryLimits()


def _label(name: str) -> str:
    return f"metadata.labels['{name}']"


# --- flags ------------------------------------------------------------------------------------------------------------


def read_ttl(text: str, *, name: str = TTL_FLAG) -> Duration:
    """Read the value of ``--history-ttl``; raises `HistorySettingError`, which names the flag and the rule."""
    try:
        ttl = Duration.parse(text)
    except DurationError as error:
        raise HistorySettingError(
            flag=name, given=repr(text), problem=error.details["problem"], expected=_TTL_RULE
        ) from error
    check_ttl(ttl, name=name)
    return ttl


def check_ttl(ttl: Duration, *, name: str = TTL_FLAG) -> None:
    """Refuse what is below zero, and what is above it and below an hour."""
    if ttl.nanoseconds is None or ttl.nanoseconds == 0 or ttl.nanoseconds >= HOUR:
        return
    problem = "it is below zero" if ttl.nanoseconds < 0 else "it is shorter than an hour"
    raise HistorySettingError(flag=name, given=ttl, problem=problem, expected=_TTL_RULE)


def ttl_warning(ttl: Duration) -> str | None:
    """Return what should be logged about a TTL that is allowed, and may still surprise; None when nothing should."""
    if ttl.nanoseconds is None or not 0 < ttl.nanoseconds < DAY:
        return None
    return f"history_ttl is {ttl}: records of experiments are deleted before they are a day old"


def check_limit(limit: int, *, name: str = LIMIT_FLAG) -> None:
    """Refuse a count limit below zero."""
    _check_count(name, limit, _LIMIT_RULE)


def check_keep_last_success(count: int, *, name: str = KEEP_FLAG) -> None:
    """Refuse to keep fewer than none."""
    _check_count(name, count, _KEEP_RULE)


def _check_count(flag: str, count: int, rule: str) -> None:
    if count < 0:
        raise HistorySettingError(flag=flag, given=count, problem="it is below zero", expected=rule)
