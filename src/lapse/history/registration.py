"""The registrations of the domains of records (history) and of what retention policies select."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.core.address import AddressKind
from lapse.engine.registry import Noun, Registration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lapse.core.decision import Reason


def _history_reasons() -> Iterable[Reason]:
    from lapse.history.retention.passes import REASONS

    return REASONS


def _retention_reasons() -> Iterable[Reason]:
    from lapse.history.service import PublishReason

    return (*_history_reasons(), PublishReason.WITHDRAWN)


def _definitions() -> Iterable[Any]:
    from lapse.history.api.kinds import definitions

    return definitions()


def _object_kinds() -> Iterable[Any]:
    from lapse.history.api.kinds import OUR_KINDS

    return OUR_KINDS


HISTORY: Final = Registration(
    name="history",
    kinds=(AddressKind("history", "NAMESPACE", also=("ChaosExperimentHistory.chaos.gushchin.dev", "cehist")),),
    reasons=_history_reasons,
    is_on_cluster=True,
    object_kinds=_object_kinds,
    definitions=_definitions,
    budget_setting="history_deletion_budget",
    routes={Registration.LISTS: ("GET /history",), "operate": ("POST /history/prune",)},
    noun=Noun("lapse.cli.commands.history:app", "Records of what experiments did, and how long they stay."),
)
RETENTION: Final = Registration(
    name="retention",
    has_foreign_kinds=True,
    reasons=_retention_reasons,
    is_on_cluster=True,
    budget_setting="retention_deletion_budget",
    routes={
        Registration.LISTS: ("GET /retention",),
        "operate": ("POST /retention/lint", "POST /retention/{name}/run"),
    },
    noun=Noun("lapse.cli.commands.retention:app", "Limit the age and the number of objects of any kind."),
)
DOMAINS: Final = (HISTORY, RETENTION)
