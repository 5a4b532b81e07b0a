"""The rights that retention policies need on a cluster, as roles to be applied by whoever may grant them. Pure.

The operator has rights on our own kinds only, so that nothing of somebody else's can be deleted before an
administrator has said so, kind by kind: in the namespaces that a policy names, or everywhere when it names none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.history.api.labels import short_hash
from lapse.history.known import resource_of
from lapse.kube.crd import to_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lapse.history.known import Resource
    from lapse.history.policy import Policy
    from lapse.kube.resources import Json, Kind

ACCOUNT: Final = "lapse"
"""The service account of the operator, as deploy/base has it."""
VERBS: Final = ("list", "delete")
_GROUP: Final = "rbac.authorization.k8s.io"
_PREFIX: Final = "lapse-retention-"
_LONGEST: Final = 253
_LABELS: Final = {"app.kubernetes.io/name": "lapse"}


def manifests(policy: Policy, resource: Resource, *, namespace: str) -> list[Json]:
    """Return roles and bindings for a policy; ``namespace`` is that of the operator's service account."""
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}
    rule = {"apiGroups": [resource.group], "resources": [resource.plural], "verbs": list(VERBS)}
    places: Iterable[str | None] = policy.namespaces if policy.namespaces and resource.namespaced else (None,)
    return [one for place in places for one in _granted(_name(policy.name), rule, subject, place)]


def to_text(policies: Iterable[Policy], *, namespace: str, kinds: Iterable[Kind[Any]] = ()) -> str:
    """Return the same for several policies as YAML with remarks; what ``kinds`` tell need not be guessed."""
    known, parts = tuple(kinds), []
    for policy in policies:
        resource = resource_of(policy.api_version, policy.kind, kinds=known)
        first, *rest = (to_yaml(one) for one in manifests(policy, resource, namespace=namespace))
        parts += ["".join(f"# {line}\n" for line in _remarks(policy, resource)) + first, *rest]
    return "---\n".join(parts)


def _remarks(policy: Policy, resource: Resource) -> Iterator[str]:
    named = policy.namespaces and resource.namespaced
    where = f"in {', '.join(policy.namespaces)}" if named else "everywhere: it names no namespaces"
    yield f"What the retention policy {policy.name} needs: {' and '.join(VERBS)} on {resource.plural}, {where}."
    if policy.dry_run:
        yield "It is a dry run, for which list is enough; delete is used once dryRun is false."
    if resource.guessed:
        yield f"The name {resource.plural} is a guess: compare it with kubectl api-resources, or ask with --cluster."


def _granted(name: str, rule: Json, subject: Json, namespace: str | None) -> Iterator[Json]:
    kind = "ClusterRole" if namespace is None else "Role"
    metadata = {"name": name, **({} if namespace is None else {"namespace": namespace}), "labels": _LABELS}
    yield {"apiVersion": f"{_GROUP}/v1", "kind": kind, "metadata": metadata, "rules": [rule]}
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
