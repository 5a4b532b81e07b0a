"""Policies beside others whose ``keepLast`` cannot be weighed: which of them must not delete. Pure.

What one policy keeps as the last ones no other deletes; that needs both to be judged together. Two cannot be:

- policies about one kind in two versions of its API, because an object is the same in every version, but its fields
  need not be;
- one that cannot be understood, because nobody knows then what it would keep.

Doubt means keep: whoever could delete what such a policy keeps deletes nothing, and is told why. It still protects what
it keeps itself. All others go on, and so do all where the policy that cannot be understood has no ``keepLast``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lapse.history.errors import RetentionPolicyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lapse.history.policy.policies import Loaded
    from lapse.history.policy.policy import Policy


@dataclass(frozen=True, slots=True)
class _Keeper:
    """Somebody who keeps the last ones."""

    name: str
    api_version: str
    kind: str
    namespaces: tuple[str, ...]
    is_understood: bool

    def keeps_from(self, policy: Policy) -> bool:
        """Whether it may keep what another policy would delete, and cannot be weighed against it."""
        if policy.name == self.name or (self.is_understood and self.api_version == policy.api_version):
            return False
        if (_group(self.api_version), self.kind) != (_group(policy.api_version), policy.kind):
            return False
        deletes = policy.limits.max_age is not None or policy.limits.max_count is not None
        apart = self.namespaces and policy.namespaces and not set(self.namespaces) & set(policy.namespaces)
        return deletes and not apart

    def problem_for(self, policy: Policy) -> str:
        """Say why the other one must not delete."""
        if not self.is_understood:
            return (
                f"the policy {self.name} keeps the last ones of this kind, and cannot be used, so it is not known "
                f"which these are; correct {self.name}, or remove its keepLast"
            )
        return (
            f"spec.selector.apiVersion: the policy {self.name} keeps the last ones of this kind as {self.api_version}, "
            f"which cannot be compared with {policy.api_version}; name the same version in both"
        )


def blocked(loaded: Loaded) -> dict[str, RetentionPolicyError]:
    """Return the policies that must not delete, by name, and why."""
    keepers = _keepers(loaded)
    found = {}
    for _, policy in loaded.policies:
        keeper = next((one for one in keepers if one.keeps_from(policy)), None)
        if keeper is not None:
            found[policy.name] = RetentionPolicyError(name=policy.name, problem=keeper.problem_for(policy))
    return found


def _keepers(loaded: Loaded) -> Sequence[_Keeper]:
    understood = [
        _Keeper(one.name, one.api_version, one.kind, one.namespaces, is_understood=True)
        for _, one in loaded.policies
        if one.limits.keep_last > 0
    ]
    broken = [
        _Keeper(one.metadata.name, selector.api_version, selector.kind, selector.namespaces, is_understood=False)
        for one, _ in loaded.broken
        if one.spec.keep_last is not None and one.spec.keep_last.count != 0
        for selector in (one.spec.selector,)
    ]
    return [*broken, *understood]


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]
