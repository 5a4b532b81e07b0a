"""Policies about one kind in two versions of its API: which of them must not delete. Pure.

An object is the same in every version, but its fields need not be: policies that name different versions read different
documents and are not judged together. So what one of them keeps as the last ones, the other would not know of. Doubt
means keep: whoever could delete what another version's policy keeps deletes nothing, and is told why. It still protects
what it keeps itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lapse.history.errors import RetentionPolicyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lapse.history.policy import Policy


def blocked(policies: Sequence[Policy]) -> dict[str, RetentionPolicyError]:
    """Return the policies that must not delete, by name, and why."""
    keeping = [policy for policy in policies if policy.limits.keep_last > 0]
    found = {}
    for policy in policies:
        keeper = next((one for one in keeping if _keeps_from(one, policy)), None)
        if keeper is not None:
            problem = (
                f"spec.selector.apiVersion: the policy {keeper.name} keeps the last ones of this kind as "
                f"{keeper.api_version}, which cannot be compared with {policy.api_version}; "
                "name the same version in both"
            )
            found[policy.name] = RetentionPolicyError(name=policy.name, problem=problem)
    return found


def _keeps_from(keeper: Policy, policy: Policy) -> bool:
    """Whether one may keep what the other, of another version, would delete."""
    if keeper.api_version == policy.api_version or _group_and_kind(keeper) != _group_and_kind(policy):
        return False
    deletes = policy.limits.max_age is not None or policy.limits.max_count is not None
    apart = keeper.namespaces and policy.namespaces and not set(keeper.namespaces) & set(policy.namespaces)
    return deletes and not apart


def _group_and_kind(policy: Policy) -> tuple[str, str]:
    return policy.api_version.rpartition("/")[0], policy.kind
