"""The rights that retention policies need on a cluster, as roles for an administrator to apply. Pure.

Policies act as a service account of their own, which has rights on records only. So a policy deletes nothing before an
administrator has granted it, kind by kind: in the namespaces that a policy names, or everywhere when it names none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.history.api.labels import short_hash
from lapse.history.policy.plurals import resource_of
from lapse.history.policy.rights import ACCOUNT
from lapse.kube.crd.definition import to_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lapse.history.policy.plurals import Resource
    from lapse.history.policy.policy import Policy
    from lapse.kube.resources import Json, Kind

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
"""What usually owns objects of a kind. A hold on an owner covers them, so what cannot be read keeps them."""
_LABELS: Final = {"app.kubernetes.io/name": "lapse"}


def manifests(policy: Policy, resource: Resource, *, namespace: str, account: str = ACCOUNT) -> list[Json]:
    """Return roles and bindings for a policy; ``namespace`` and ``account`` are those of the account for policies."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    rule = {"apiGroups": [resource.group], "resources": [resource.plural], "verbs": list(VERBS)}
    places: Iterable[str | None] = policy.namespaces if policy.namespaces and resource.namespaced else (None,)
    owners = [
        {"apiGroups": [group], "resources": list(plurals), "verbs": ["get"]}
        for group, plurals in _OWNERS.get((resource.group, resource.plural), ())
    ]
    return [one for place in places for one in _granted(_name(policy.name), [rule, *owners], subject, place)]


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
    yield f"What the retention policy {policy.name} needs: {' and '.join(VERBS)} on {resource.plural}, {where}."
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
