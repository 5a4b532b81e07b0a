"""What retention must be allowed to do on a Kubernetes cluster: on records and policies, and on nothing else.

Any other kind that a policy selects is not here: whoever writes the policy gives these rights, as ``lapse retention
rbac`` prints them. Nor is the making of records: that is for whoever runs experiments.
"""

from __future__ import annotations

from typing import Final

from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, RETENTION_POLICY
from lapse.kube.rights import Right, rights_on

NEEDED: Final[tuple[Right, ...]] = (
    *rights_on(CHAOS_EXPERIMENT_HISTORY, "list", "watch", "delete"),
    *rights_on(RETENTION_POLICY, "get", "list", "create", "patch"),
    *rights_on(RETENTION_POLICY, "patch", subresource="status"),
)
