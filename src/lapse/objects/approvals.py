"""Approvals of plans as ConfigMaps of a cluster: for teams that approve by merging a change (GitOps).

A ConfigMap ``lapse-plan-ID`` in the namespace of the operator approves the plan of that id if its ``data.digest`` is
that of the plan. Who may create it there may approve: the namespace is an administrator's. ``lapse.dev/approved-by``
names the person, for the journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.core.timestamps import from_timestamp
from lapse.engine.verbs.contract import Approval
from lapse.engine.view import Moment
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import ObjectKey
from lapse.objects.config_map_gate import CONFIG_MAP

if TYPE_CHECKING:
    from lapse.engine.plans.plan import Plan
    from lapse.objects.port import Reader

APPROVED_BY: Final = "lapse.dev/approved-by"
_PREFIX: Final = "lapse-plan-"
_SOMEBODY: Final = "a ConfigMap"


class ConfigMapApprovals:
    """A `lapse.engine.plans.approvals.ApprovalSource`."""

    def __init__(self, direct: Reader, namespace: str) -> None:
        """Look in ``namespace``."""
        self._direct, self._namespace = direct, namespace

    async def find(self, plan: Plan) -> Approval | None:
        """See `ApprovalSource`."""
        try:
            found = await self._direct.get(CONFIG_MAP, ObjectKey(self._namespace, f"{_PREFIX}{plan.id}"))
        except NotFoundError:
            return None
        meta = found.metadata
        made = from_timestamp(meta.creation_timestamp or "")
        return Approval(
            plan=plan.id,
            digest=(found.data or {}).get("digest", ""),
            by=meta.annotations.get(APPROVED_BY) or _SOMEBODY,
            at=Moment(plan.created if made is None else made),
            expires=plan.expires,
        )
