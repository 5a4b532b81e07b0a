"""Plans that pages have shown, for a while: what is kept of one is exactly what a person has looked at.

In memory, and few: a plan that is not here any more is shown again. A plan is signed, and names its author; whoever
else finds one by its id cannot propose it.
"""

from __future__ import annotations

from typing import Final

from lapse.engine.plans.plan import Plan

MOST_ITEMS: Final = 5_000
"""Of a plan that is shown; one with more is made on the command line."""
_MOST: Final = 32


class PlanPreviews:
    """See the module."""

    def __init__(self) -> None:
        """Begin with none."""
        self._plans: dict[str, Plan] = {}

    def keep(self, plan: Plan) -> None:
        """Remember a plan that is shown, and forget the oldest of too many."""
        self._plans[plan.id] = plan
        while len(self._plans) > _MOST:
            del self._plans[next(iter(self._plans))]

    def find(self, plan: str) -> Plan | None:
        """Return one by its id; None where it is not here any more."""
        return self._plans.get(plan)
