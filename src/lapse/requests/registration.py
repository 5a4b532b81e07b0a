"""The registrations of the domains of requests, of keepers and of schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.core.address import AddressKind
from lapse.engine.registry import NOT_EXPLAINED, DomainVerb, Noun, Registration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lapse.core.decision import Reason
    from lapse.core.errors import LapseError

_UNSUPPORTED: Final = {
    DomainVerb.HOLD: "Objects are held by an annotation, lapse.dev/hold=true",
    DomainVerb.WHY: NOT_EXPLAINED,
}


def _request_reasons() -> Iterable[Reason]:
    from lapse.requests.bridge.removal import BridgeReason
    from lapse.requests.controllers.detach import DetachReason
    from lapse.requests.expiry import FinishedRequests

    return (*FinishedRequests.reasons, DetachReason.DETACHED, *BridgeReason)


def _keeper_reasons() -> Iterable[Reason]:
    from lapse.requests.lifecycle.keepers import Keepers

    return Keepers.reasons


def _schedule_reasons() -> Iterable[Reason]:
    from lapse.requests.schedules.retention import SupersededRuns

    return SupersededRuns.reasons


def _definitions() -> Iterable[Any]:
    from lapse.requests.api.kinds import definitions

    return definitions()


def _object_kinds() -> Iterable[Any]:
    from lapse.requests.api.upstream import ALL_KINDS

    return ALL_KINDS


def _errors() -> tuple[type[LapseError], ...]:
    from lapse.kube.errors import ObjectError

    return (ObjectError,)


REQUESTS: Final = Registration(
    name="requests",
    kinds=tuple(AddressKind(kind, "NAMESPACE") for kind in ("vcr", "vrr", "mcr")),
    reasons=_request_reasons,
    unsupported=_UNSUPPORTED,
    is_on_cluster=True,
    object_kinds=_object_kinds,
    definitions=_definitions,
    errors=_errors,
    budget_setting="request_deletion_budget",
    routes={Registration.LISTS: ("GET /requests/{kind}", "GET /claims", "GET /artifacts/{kind}")},
    noun=Noun("lapse.cli.commands.requests:app", "Capture and restore; see what lapses when."),
)
KEEPERS: Final = Registration(
    name="keepers",
    kinds=(AddressKind("keeper"),),
    reasons=_keeper_reasons,
    unsupported=_UNSUPPORTED,
    is_on_cluster=True,
    budget_setting="keeper_deletion_budget",
    routes={Registration.LISTS: ("GET /keepers",)},
)
SCHEDULES: Final = Registration(
    name="schedules",
    kinds=(AddressKind("csched", "NAMESPACE"),),
    reasons=_schedule_reasons,
    unsupported=_UNSUPPORTED,
    is_on_cluster=True,
    budget_setting="schedule_deletion_budget",
)
"""What it ends are keepers, of runs whose places newer ones have taken."""
DOMAINS: Final = (REQUESTS, KEEPERS, SCHEDULES)
