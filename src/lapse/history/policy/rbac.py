"""Rights of retention policies on a cluster: those that Lapse has from the start, and roles for an administrator. Pure.

The operator reads and publishes policies. Everything that a policy selects is listed and deleted as another account
(`account_user`), which the operator impersonates: rights that the operator has for its own work never serve a policy.
That account has rights on records, for the history's own policy. For any other kind an administrator grants them, kind
by kind: in the namespaces that a policy names, or everywhere when it names none. ``lapse retention rbac`` prints the
roles (`to_text`). Records are created by the operator of experiments, and nothing here needs that right.

Roles name a kind by the plural of its paths. Where no API server can be asked for it, it comes from a table of the
kinds that every cluster has; for others it is guessed, and the output says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, RETENTION_POLICY, short_hash
from lapse.kube.auth.access import Right, rights_on
from lapse.kube.crd.definition import to_yaml
from lapse.objects.trash.rules import is_packed, may_be_in_trash

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lapse.history.policy.policy import Policy
    from lapse.kube.resources import Json, Kind

ACCOUNT: Final = "lapse-retention"
"""The service account for policies, in the namespace of the operator, as deploy/base has it."""
NEEDED: Final[tuple[Right, ...]] = (
    *rights_on(RETENTION_POLICY, "get", "list", "watch", "create", "patch"),
    *rights_on(RETENTION_POLICY, "patch", subresource="status"),
    *rights_on(CHAOS_EXPERIMENT_HISTORY, "get", "list", "watch", "patch"),
)
"""The rights of the operator itself, beside `impersonation`. Those on records are for their holds: none is deleted."""
NEEDED_BY_ACCOUNT: Final[tuple[Right, ...]] = (*rights_on(CHAOS_EXPERIMENT_HISTORY, "get", "list", "watch", "delete"),)
"""The rights of the account for policies, before any policy but that of the history."""


def impersonation(namespace: str, account: str = ACCOUNT) -> Right:
    """Return the right to act as the account for policies, and as nobody else."""
    return Right("impersonate", "", "serviceaccounts", namespace=namespace, name=account)


def account_user(namespace: str, account: str = ACCOUNT) -> str:
    """Return the user name of the account for policies, as an API server knows it."""
    return f"system:serviceaccount:{namespace}:{account}"


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


VERBS: Final = ("list", "delete")
_GROUP: Final = "rbac.authorization.k8s.io"
_PREFIX: Final = "lapse-retention-"
_LONGEST: Final = 253
_APPS: Final = ("apps", ("daemonsets", "deployments", "replicasets", "statefulsets"))
_OWNERS: Final[Mapping[tuple[str, str], Sequence[tuple[str, Sequence[str]]]]] = {
    ("batch", "jobs"): [("batch", ("cronjobs",))],
    ("", "pods"): [_APPS, ("batch", ("cronjobs", "jobs"))],
    ("", "persistentvolumeclaims"): [("apps", ("statefulsets",))],
    ("apps", "replicasets"): [("apps", ("deployments",))],
    ("apps", "controllerrevisions"): [("apps", ("daemonsets", "statefulsets"))],
}
"""The usual owners of objects of a kind. A hold on an owner covers them, so what cannot be read keeps them."""
_LABELS: Final = {"app.kubernetes.io/name": "lapse"}


def manifests(policy: Policy, resource: Resource, *, namespace: str, account: str = ACCOUNT) -> list[Json]:
    """Return roles and bindings for a policy; ``namespace`` and ``account`` are those of the account for policies."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    rule = {"apiGroups": [resource.group], "resources": [resource.plural], "verbs": _verbs(policy, resource.group)}
    places: Iterable[str | None] = policy.namespaces if policy.namespaces and resource.namespaced else (None,)
    owners = [
        {"apiGroups": [group], "resources": list(plurals), "verbs": ["get"]}
        for group, plurals in _OWNERS.get((resource.group, resource.plural), ())
    ]
    return [one for place in places for one in _granted(_name(policy.name), [rule, *owners], subject, place)]


def _verbs(policy: Policy, group: str) -> list[str]:
    """Return what a policy does with objects: for the trash, they are read whole before, or patched instead."""
    into_trash: tuple[str, ...] = ()
    if policy.is_trashed and may_be_in_trash(policy.kind):
        into_trash = ("get", "patch")
    elif policy.is_trashed and is_packed(group, policy.kind):
        into_trash = ("get",)
    return [*into_trash, *VERBS]


def to_text(
    policies: Iterable[Policy], *, namespace: str, account: str = ACCOUNT, kinds: Iterable[Kind[Any]] = ()
) -> str:
    """Return the same for several policies as YAML with remarks; what ``kinds`` tell need not be guessed."""
    known, parts = tuple(kinds), []
    for policy in policies:
        resource = resource_of(policy.api_version, policy.kind, kinds=known)
        first, *rest = (to_yaml(one) for one in manifests(policy, resource, namespace=namespace, account=account))
        parts += ["".join(f"# {line}\n" for line in _remarks(policy, resource)) + first, *rest]
    return "---\n".join(parts)


def _remarks(policy: Policy, resource: Resource) -> Iterator[str]:
    named = policy.namespaces and resource.namespaced
    where = f"in {', '.join(policy.namespaces)}" if named else "everywhere: it names no namespaces"
    *verbs, last = _verbs(policy, resource.group)
    rights = f"{', '.join(verbs)} and {last}"
    yield f"What the retention policy {policy.name} needs: {rights} on {resource.plural}, {where}."
    if (resource.group, resource.plural) in _OWNERS:
        yield "A hold on an owner covers what it owns: get reads the usual owners; add other kinds of owners."
    if policy.dry_run:
        yield "It is a dry run, for which list is enough; delete is used once dryRun is false."
    if resource.guessed:
        yield f"The name {resource.plural} is a guess: compare it with kubectl api-resources, or ask with --cluster."


def _granted(name: str, rules: Sequence[Json], subject: Json, namespace: str | None) -> Iterator[Json]:
    kind = "ClusterRole" if namespace is None else "Role"
    metadata = {"name": name, **({} if namespace is None else {"namespace": namespace}), "labels": _LABELS}
    yield {"apiVersion": f"{_GROUP}/v1", "kind": kind, "metadata": metadata, "rules": list(rules)}
    yield {
        "apiVersion": f"{_GROUP}/v1",
        "kind": f"{kind}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": _GROUP, "kind": kind, "name": name},
        "subjects": [subject],
    }


def _name(policy: str) -> str:
    name = f"{_PREFIX}{policy}"
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 11].rstrip('.-')}-{short_hash(policy)}"
