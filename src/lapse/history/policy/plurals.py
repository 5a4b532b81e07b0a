"""What a kind is called in the paths of an API server, for those who cannot ask one. Pure.

A table of the kinds that a cluster has by itself; for others the usual way to make a plural, and it is said that this
was a guess.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lapse.kube.resources import Kind


class Resource(NamedTuple):
    """A kind as rights name it."""

    group: str
    plural: str
    namespaced: bool = True
    guessed: bool = False


_OF_NAMESPACES: Final[dict[str, str]] = {
    "": "ConfigMap Endpoints Event LimitRange PersistentVolumeClaim Pod PodTemplate ReplicationController ResourceQuota"
    " Secret Service ServiceAccount",
    "apps": "ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet",
    "autoscaling": "HorizontalPodAutoscaler",
    "batch": "CronJob Job",
    "coordination.k8s.io": "Lease",
    "discovery.k8s.io": "EndpointSlice",
    "events.k8s.io": "Event",
    "networking.k8s.io": "Ingress NetworkPolicy",
    "policy": "PodDisruptionBudget",
    "rbac.authorization.k8s.io": "Role RoleBinding",
    "snapshot.storage.k8s.io": "VolumeSnapshot",
    "storage.k8s.io": "CSIStorageCapacity",
}
_OF_CLUSTERS: Final[dict[str, str]] = {
    "": "Namespace Node PersistentVolume",
    "apiextensions.k8s.io": "CustomResourceDefinition",
    "certificates.k8s.io": "CertificateSigningRequest",
    "networking.k8s.io": "IngressClass",
    "rbac.authorization.k8s.io": "ClusterRole ClusterRoleBinding",
    "scheduling.k8s.io": "PriorityClass",
    "snapshot.storage.k8s.io": "VolumeSnapshotClass VolumeSnapshotContent",
    "storage.k8s.io": "CSIDriver CSINode StorageClass VolumeAttachment",
}
_ODD_PLURALS: Final = {"Endpoints": "endpoints"}


def plural_of(kind: str) -> str:
    """Return the plural that most kinds of that name would have."""
    word = kind.lower()
    if kind in _ODD_PLURALS:
        return _ODD_PLURALS[kind]
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return f"{word}es"
    return f"{word[:-1]}ies" if word.endswith("y") and word[-2:-1] not in set("aeiou") else f"{word}s"


_KNOWN: Final[dict[tuple[str, str], Resource]] = {
    (group, kind): Resource(group, plural_of(kind), namespaced)
    for table, namespaced in ((_OF_NAMESPACES, True), (_OF_CLUSTERS, False))
    for group, kinds in table.items()
    for kind in kinds.split()
}


def group_of(api_version: str) -> str:
    """Return the API group, empty for the core group."""
    return api_version.rpartition("/")[0]


def groups_with(kind: str) -> list[str]:
    """Return the groups that have a kind of that name on every cluster."""
    return [group for group, name in _KNOWN if name == kind]


def resource_of(api_version: str, kind: str, *, kinds: Iterable[Kind[Any]] = ()) -> Resource:
    """Return how rights name a kind: by ``kinds``, by the table, or else by a guess that says so."""
    group = group_of(api_version)
    for one in kinds:
        if (one.group, one.kind) == (group, kind):
            return Resource(group, one.plural, one.namespaced)
    return _KNOWN.get((group, kind)) or Resource(group, plural_of(kind), guessed=True)
