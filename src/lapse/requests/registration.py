"""The registrations of the domains of requests, of keepers and of schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.core.address import AddressKind
from lapse.engine.registry import Noun, Registration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lapse.core.decision import Reason
    from lapse.core.errors import LapseError


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
    kinds=(
        AddressKind("vcr", "NAMESPACE", also=("VolumeCaptureRequest.storage.deckhouse.io",)),
        AddressKind("vrr", "NAMESPACE", also=("VolumeRestoreRequest.storage.deckhouse.io",)),
        AddressKind("mcr", "NAMESPACE", also=("ManifestCaptureRequest.state-snapshotter.deckhouse.io",)),
    ),
    reasons=_request_reasons,
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
    kinds=(
        AddressKind("keeper", also=("ObjectKeeper.deckhouse.io",)),
        AddressKind("snapshot", also=("VolumeSnapshotContent.snapshot.storage.k8s.io", "vsc")),
        AddressKind("volume", also=("PersistentVolume", "pv")),
        AddressKind("checkpoint", also=("ManifestCheckpoint.state-snapshotter.deckhouse.io", "mcp")),
    ),
    reasons=_keeper_reasons,
    is_on_cluster=True,
    budget_setting="keeper_deletion_budget",
    routes={Registration.LISTS: ("GET /keepers",)},
)
SCHEDULES: Final = Registration(
    name="schedules",
    kinds=(AddressKind("csched", "NAMESPACE", also=("CaptureSchedule.lapse.dev",)),),
    reasons=_schedule_reasons,
    is_on_cluster=True,
    budget_setting="schedule_deletion_budget",
    routes={Registration.LISTS: ("GET /schedules",)},
)
"""What it ends are keepers, of runs whose places newer ones have taken."""
DOMAINS: Final = (REQUESTS, KEEPERS, SCHEDULES)
