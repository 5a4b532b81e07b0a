"""The trash of requests, keepers and artifacts: of which kinds it is made, and what artifacts cost there.

The same kinds serve the trash of everything else that is an object: see `lapse.objects.trash`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.kube.quantity import units
from lapse.objects.trash.moves import ObjectTrash
from lapse.objects.trash.rules import TrashKinds
from lapse.requests.addresses import ARTIFACT_KINDS
from lapse.requests.api.kinds import CHECKPOINT_KINDS, OBJECT_KEEPER, REQUEST_KINDS
from lapse.requests.api.upstream import PERSISTENT_VOLUME, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.controllers.ownership import requested_from

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.core.duration import Duration
    from lapse.kube.resources import Kind
    from lapse.objects.holds.cluster import Dependants
    from lapse.objects.port import ObjectStore


def _size_of(kind: Kind[Any], artifact: Any) -> int | None:  # noqa: ANN401 - an object of ``kind``
    """Return the bytes that an artifact costs, as far as its object tells."""
    if kind is PERSISTENT_VOLUME:
        return units((artifact.spec.capacity or {}).get("storage"))
    if artifact.status is None:
        return None
    size: int | None = (
        artifact.status.restore_size if kind is VOLUME_SNAPSHOT_CONTENT else artifact.status.total_size_bytes
    )
    return size


TRASH_KINDS: Final = TrashKinds(
    keeper=OBJECT_KEEPER,
    checkpoints=CHECKPOINT_KINDS,
    artifacts=ARTIFACT_KINDS,
    records=REQUEST_KINDS,
    size_of=_size_of,
    made_for=requested_from,
)


def trash_of(store: ObjectStore, ttl: Duration, *, dependants: Dependants, clock: Clock) -> ObjectTrash | None:
    """Return the trash of an object store; None where nothing is kept."""
    if ttl.is_never:
        return None
    return ObjectTrash(store, kinds=TRASH_KINDS, ttl=ttl, dependants=dependants, clock=clock)
