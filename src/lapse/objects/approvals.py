"""Approvals of plans as ConfigMaps of a cluster: for teams that approve by merging a change (GitOps).

A ConfigMap ``lapse-plan-ID`` in the namespace of the operator approves the plan of that id if its ``data.digest`` is
that of the plan. Nobody can tell who made a ConfigMap, so it counts only where the person who carries the plan out
could not have made it: who may create, update or patch it is refused. ``lapse.dev/approved-by`` names a person for
people who read it, and proves nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.core.errors import LapseError
from lapse.core.timestamps import from_timestamp
from lapse.engine.verbs.contract import Approval
from lapse.engine.view import Moment
from lapse.kube.auth.access import Right
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import ObjectKey
from lapse.objects.config_map_gate import CONFIG_MAP

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lapse.engine.plans.plan import Plan
    from lapse.objects.port import Reader

APPROVED_BY: Final = "lapse.dev/approved-by"
_PREFIX: Final = "lapse-plan-"
_SOMEBODY: Final = "a ConfigMap"
_MAKING: Final = ("create", "update", "patch")


class UnprovenApprovalError(LapseError):
    """The ConfigMap {name} may be your own: you may {right}. Have another person apply or approve the plan."""

    status = 403


class ConfigMapApprovals:
    """A `lapse.engine.plans.approvals.ApprovalSource`."""

    def __init__(self, direct: Reader, namespace: str, *, may: Callable[[Right], Awaitable[bool]]) -> None:
        """Look in ``namespace``; ``may`` tells what the person who carries plans out is allowed."""
        self._direct, self._namespace, self._may = direct, namespace, may
        self._proven: set[str] = set()

    async def find(self, plan: Plan) -> Approval | None:
        """See `ApprovalSource`. Raises `UnprovenApprovalError` for one that the same person may have made."""
        name = f"{_PREFIX}{plan.id}"
        try:
            found = await self._direct.get(CONFIG_MAP, ObjectKey(self._namespace, name))
        except NotFoundError:
            return None
        digest = (found.data or {}).get("digest", "")
        if digest != plan.digest:
            return None
        await self._demand_of_another(name)
        meta = found.metadata
        made = from_timestamp(meta.creation_timestamp or "")
        return Approval(
            plan=plan.id,
            digest=digest,
            by=meta.annotations.get(APPROVED_BY) or _SOMEBODY,
            at=Moment(plan.created_at if made is None else made),
            expires_at=plan.expires_at,
        )

    async def _demand_of_another(self, name: str) -> None:
        if name in self._proven:
            return
        for verb in _MAKING:
            right = Right(verb, CONFIG_MAP.group, CONFIG_MAP.plural, namespace=self._namespace, name=name)
            if await self._may(right):
                raise UnprovenApprovalError(name=name, right=right)
        self._proven.add(name)
