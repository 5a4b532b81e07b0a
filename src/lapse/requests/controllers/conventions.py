"""What a snapshotter wants to see on a VolumeSnapshotContent that nobody asked for by a VolumeSnapshot.

The stock external-snapshotter works on contents that are made directly, under conditions that were found by watching it
(see the README of the test servers): without its own marks a deleted content is kept for ever, or its physical snapshot
is left behind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lapse.requests.api.upstream import VolumeSnapshotContent

_PREFIX: Final = "snapshot.storage.kubernetes.io/"
_BEING_CREATED: Final = f"{_PREFIX}volumesnapshot-being-created"


@dataclass(frozen=True, slots=True)
class Conventions:
    """Marks that a content is made with."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    finalizers: tuple[str, ...] = ()


PLAIN: Final = Conventions()
"""For the local executor, which needs no marks."""
STOCK: Final = Conventions(
    # Says that no VolumeSnapshot stands in the way of a deletion. Has no effect before there is one.
    annotations={f"{_PREFIX}volumesnapshot-being-deleted": "yes"},
    # The snapshotter's own, which it adds by itself and takes away when the physical snapshot is gone. Made with it, a
    # content that is deleted at once leaks nothing; without it, half of them did.
    finalizers=(f"{_PREFIX}volumesnapshotcontent-bound-protection",),
)
"""For the external-snapshotter of Kubernetes, version 8."""


def is_ready(content: VolumeSnapshotContent) -> bool:
    """Whether the snapshotter has finished: the snapshot is usable and it has no more to write about it.

    A content that is deleted while the snapshotter still has something to write may hang.
    """
    status = content.status
    return bool(status is not None and status.ready_to_use) and _BEING_CREATED not in content.metadata.annotations
