"""Rights of the controllers on a Kubernetes cluster.

A start-up check asks for these, so that a missing right is one line at the start and not an error in the middle of a
capture. Left out: reading what manifest captures name, which may be any kind, and so is given by the administrator.
"""

from __future__ import annotations

from typing import Final

from lapse.kube.auth.access import Right, rights_on
from lapse.kube.controller.lease import LEASE
from lapse.kube.events.event import EVENT
from lapse.objects.config_map_gate import CONFIG_MAP
from lapse.requests.api.kinds import (
    MANIFEST_CHECKPOINT,
    MANIFEST_CHUNK,
    OBJECT_KEEPER,
    REQUEST_KINDS,
)
from lapse.requests.api.upstream import (
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    STORAGE_CLASS,
    VOLUME_SNAPSHOT_CLASS,
    VOLUME_SNAPSHOT_CONTENT,
)

_WATCHED: Final = ("get", "list", "watch")

SHARED: Final = ("get", "create", "patch")
"""What replicas do with what they share: the Lease, and the ConfigMap that says what is frozen."""


NEEDED: Final[tuple[Right, ...]] = (
    *(right for kind in REQUEST_KINDS for right in rights_on(kind, *_WATCHED, "patch", "delete")),
    *(right for kind in REQUEST_KINDS for right in rights_on(kind, "patch", subresource="status")),
    *rights_on(OBJECT_KEEPER, *_WATCHED, "create", "patch", "delete"),
    *rights_on(OBJECT_KEEPER, "patch", subresource="status"),
    *rights_on(MANIFEST_CHECKPOINT, *_WATCHED, "create"),
    *rights_on(MANIFEST_CHECKPOINT, "patch", subresource="status"),
    *rights_on(MANIFEST_CHUNK, *_WATCHED, "create"),
    *rights_on(VOLUME_SNAPSHOT_CONTENT, *_WATCHED, "create", "patch"),
    *rights_on(PERSISTENT_VOLUME_CLAIM, *_WATCHED, "patch", "delete"),
    *rights_on(PERSISTENT_VOLUME, *_WATCHED, "patch"),
    *rights_on(POD, "list"),
    *rights_on(STORAGE_CLASS, "get"),
    *rights_on(VOLUME_SNAPSHOT_CLASS, "get"),
    *rights_on(EVENT, "create", "patch", "list"),
)

HOLDING: Final = _WATCHED
"""What is done with the kinds that hold_kinds names: their metadata is watched, and read before something is ended."""

REVIEWING: Final[tuple[Right, ...]] = (Right("create", "authorization.k8s.io", "subjectaccessreviews"),)
"""What the admission webhook needs. It reads no object itself."""


def rights_on_lease(namespace: str | None) -> list[Right]:
    """Return what leading takes, beside `NEEDED`; only in the namespace of the Lease."""
    return rights_on(LEASE, *SHARED, namespace=namespace)


def rights_on_gate(namespace: str | None) -> list[Right]:
    """Return what it takes to freeze and to be frozen; in the same namespace."""
    return rights_on(CONFIG_MAP, *SHARED, namespace=namespace)
