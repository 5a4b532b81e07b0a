"""What retention must be allowed to do on a Kubernetes cluster: as the operator, and as the account for policies.

The operator reads and publishes policies. Everything that a policy selects is listed and deleted as another account
(`account_user`), which the operator impersonates: rights that the operator has for its own work never serve a policy.
That account has rights on records, for the history's own policy; for any other kind, the author of a policy grants
them as ``lapse retention rbac`` prints them. Nobody here creates records: the operator of experiments does.
"""

from __future__ import annotations

from typing import Final

from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, RETENTION_POLICY
from lapse.kube.auth.rights import Right, rights_on

ACCOUNT: Final = "lapse-retention"
"""The service account for policies, in the namespace of the operator, as deploy/base has it."""
NEEDED: Final[tuple[Right, ...]] = (
    *rights_on(RETENTION_POLICY, "get", "list", "create", "patch"),
    *rights_on(RETENTION_POLICY, "patch", subresource="status"),
)
"""The rights of the operator itself, beside `impersonation`."""
NEEDED_BY_ACCOUNT: Final[tuple[Right, ...]] = (*rights_on(CHAOS_EXPERIMENT_HISTORY, "list", "watch", "delete"),)
"""The rights of the account for policies, before any policy but that of the history."""


def impersonation(namespace: str, account: str = ACCOUNT) -> Right:
    """Return the right to act as the account for policies, and as nobody else."""
    return Right("impersonate", "", "serviceaccounts", namespace=namespace, name=account)


def account_user(namespace: str, account: str = ACCOUNT) -> str:
    """Return the user name of the account for policies, as an API server knows it."""
    return f"system:serviceaccount:{namespace}:{account}"
