"""The CustomResourceDefinitions of records and policies, and what ``kubectl get`` shows of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.history.api.kinds import RULES
from lapse.kube.crd.definition import AGE, column, definition
from lapse.kube.resources import READY

if TYPE_CHECKING:
    from lapse.kube.resources import Json, Kind

_COLUMNS: Final[dict[str, tuple[Json, ...]]] = {
    "ChaosExperimentHistory": (
        column("From", ".spec.experimentRef.namespace"),
        column("Experiment", ".spec.experimentRef.name"),
        column("Status", ".spec.execution.status"),
        column("Started", ".spec.execution.startTime"),
        AGE,
    ),
    "RetentionPolicy": (
        column("Kind", ".spec.selector.kind"),
        column("Max age", ".spec.maxAge"),
        column("Max count", ".spec.maxCount", "integer"),
        column("Dry run", ".spec.dryRun", "boolean"),
        column("Ready", f".status.conditions[?(@.type=='{READY}')].status"),
        column("Matched", ".status.matched", "integer"),
        column("Last run", ".status.lastRun", "date"),
        AGE,
    ),
}


def crd(kind: Kind[Any]) -> Json:
    """Return the definition of a kind of this domain."""
    return definition(kind, rules=RULES[kind.kind], columns=_COLUMNS[kind.kind])
