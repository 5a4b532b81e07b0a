"""The linter of retention policies: limits that never take effect, groups that are one, overlaps, broad selections.

Pure, and about the documents alone: what is stored is not looked at. An *error* is what makes a policy useless, or
different from what it says; a *warning* is what most people do not mean; a *note* is what they should know.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lapse.core.duration import HOUR, Duration
from lapse.history.api.kinds import RETENTION_POLICY, RetentionPolicy
from lapse.history.policy.default_policy import POLICY_NAME
from lapse.history.policy.documents import name_of, problems_of
from lapse.history.policy.paths import FieldPath, FieldPathError
from lapse.history.policy.policy import SYSTEM_NAMESPACE, Policy, RetentionPolicyError
from lapse.history.policy.rbac import group_of, groups_with, plural_of, resource_of
from lapse.objects.metadata_rules import namespace_problems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lapse.history.api.kinds import RetentionSpec
    from lapse.kube.resources import Json

_NAMESPACE: Final = FieldPath.parse("metadata.namespace")
_NAME: Final = FieldPath.parse("metadata.name")
_UNIQUE: Final = frozenset(map(FieldPath.parse, ("metadata.uid", "metadata.resourceVersion")))
_NO_TIMES: Final = frozenset({"name", "namespace", "uid", "resourceVersion", "generation", "labels", "ownerReferences"})
"""Fields of the metadata that are never a time; a label cannot be one, for it may hold no colon."""
_NO_TIMES_ANYWHERE: Final = frozenset({"phase", "reason", "message", "replicas", "kind", "apiVersion"})
_TAKES_ALONG: Final[dict[tuple[str, str], str]] = {
    ("", "Namespace"): "everything in a namespace goes with it",
    ("apiextensions.k8s.io", "CustomResourceDefinition"): "all objects of a kind go with its definition",
    ("", "PersistentVolume"): "the data of a volume may go with it",
    ("", "PersistentVolumeClaim"): "the data of its volume may go with a claim",
    ("snapshot.storage.k8s.io", "VolumeSnapshotContent"): "the snapshot itself may go with its content",
    ("", "Node"): "all pods of a node go with it",
    ("", "Secret"): "programs stop without their passwords and certificates, which cannot be restored",
}
"""Kinds of which a wrong deletion costs most, by group and kind."""
_DELETED: Final = ("metadata", "deletionTimestamp")


class Severity(StrEnum):
    """The severity of a finding; see the module."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Finding(NamedTuple):
    """One thing that is odd about a policy."""

    severity: Severity
    policy: str
    place: str
    what: str
    advice: str

    def as_json(self) -> dict[str, str]:
        """Return the form for programs."""
        return {name: str(value) for name, value in self._asdict().items()}


class _Remark(NamedTuple):
    """A finding, before it is known which policy it is about."""

    severity: Severity
    place: str
    what: str
    advice: str


def lint(documents: Sequence[object], *, interval: int = HOUR) -> list[Finding]:
    """Judge policies as they are written, each by itself and each pair; ``interval`` is the time between passes.

    One that cannot be read is not compared with the others.
    """
    found: list[Finding] = []
    subjects: list[_Subject] = []
    for document in documents:
        remarks = list(_unreadable(document))
        if not remarks:
            subject = _Subject.of(RETENTION_POLICY.convert(_mapping(document)))
            subjects.append(subject)
            remarks = [one for check in _CHECKS for one in check(subject)]
            remarks += _short_age(subject, interval)
        found += [Finding(one.severity, name_of(document), one.place, one.what, one.advice) for one in remarks]
    return [*found, *_same_names(documents), *_overlaps(subjects)]


def _mapping(document: object) -> Json:
    assert isinstance(document, dict)  # noqa: S101 - anything else was found unreadable
    return document


# --- reading ----------------------------------------------------------------------------------------------------------


def _unreadable(document: object) -> Iterator[_Remark]:
    """Yield what makes a policy unusable."""
    problems = list(problems_of(RETENTION_POLICY, document))
    yield from (
        _Remark(Severity.ERROR, one.place, one.what, "Nothing is deleted until it is corrected.") for one in problems
    )
    if problems:
        return
    policy = RETENTION_POLICY.convert(_mapping(document))
    wrong = list(_wrong_paths(policy.spec))
    yield from wrong
    if not wrong:
        try:
            Policy.read(policy)
        except RetentionPolicyError as error:
            yield _Remark(
                Severity.ERROR, "spec", str(error.details["problem"]), "Correct it; until then the policy does nothing."
            )


def _wrong_paths(spec: RetentionSpec) -> Iterator[_Remark]:
    for place, text in _paths(spec):
        try:
            FieldPath.parse(text)
        except FieldPathError as error:
            problem = f"{text!r} is not a field path: {error.details['problem']}"
            yield _Remark(
                Severity.ERROR, place, problem, "Write names with dots, odd ones as in metadata.labels['a.b/c']."
            )


def _paths(spec: RetentionSpec) -> Iterator[tuple[str, str]]:
    yield from ((f"spec.groupBy[{at}]", text) for at, text in enumerate(spec.group_by))
    yield from ((f"spec.onlyWhen[{at}].fieldPath", one.field_path) for at, one in enumerate(spec.only_when))
    if spec.keep_last is not None and spec.keep_last.where is not None:
        yield "spec.keepLast.where.fieldPath", spec.keep_last.where.field_path
    if spec.age_from is not None:
        yield "spec.ageFrom", spec.age_from


# --- one policy -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Subject:
    """A policy that can be read, and what is known about everything that it selects."""

    spec: RetentionSpec
    policy: Policy

    @classmethod
    def of(cls, document: RetentionPolicy) -> _Subject:
        return cls(document.spec, Policy.read(document))

    @property
    def is_limited(self) -> bool:
        return self.policy.limits.max_age is not None or self.policy.limits.max_count is not None

    @property
    def is_namespaced(self) -> bool:
        return resource_of(self.policy.api_version, self.policy.kind).namespaced

    @cached_property
    def pinned(self) -> dict[FieldPath, frozenset[str]]:
        """Return for every path that the policy itself limits to certain values, which ones are left."""
        policy = self.policy
        found = {FieldPath(("kind",)): frozenset({policy.kind})}
        found |= {FieldPath(("metadata", "labels", name)): frozenset({value}) for name, value in policy.labels.items()}
        if policy.namespaces:
            found[_NAMESPACE] = frozenset(policy.namespaces)
        for one in policy.only_when:
            found[one.path] = found.get(one.path, one.values) & one.values
        return found

    def is_constant(self, path: FieldPath) -> bool:
        """Whether all that the policy selects has the same value there."""
        return path.steps == ("apiVersion",) or len(self.pinned.get(path, ("", ""))) == 1

    @property
    def is_unique(self) -> bool:
        """Whether every group has one object at most."""
        by = set(self.policy.group_by)
        in_one_namespace = _NAMESPACE in by or self.is_constant(_NAMESPACE) or not self.is_namespaced
        return bool(by & _UNIQUE) or (_NAME in by and in_one_namespace)

    @property
    def keeps_all_alike(self) -> bool:
        """Whether ``keepLast`` keeps the newest of whatever the policy selects, not only of some."""
        where = self.policy.keep_where
        return where is None or self.pinned.get(where.path, frozenset({""})) <= where.values


def _limits(subject: _Subject) -> Iterator[_Remark]:
    limits = subject.policy.limits
    if not subject.is_limited and limits.keep_last:
        yield _Remark(
            Severity.NOTE,
            "spec",
            "it has no limit: it only protects from other policies",
            "Nothing to do, if that is intended.",
        )
    elif not subject.is_limited:
        advice = "Set maxAge, such as 90d, or maxCount; 0 and never set no limit."
        yield _Remark(Severity.ERROR, "spec", "it has neither maxAge nor maxCount, so nothing is ever deleted", advice)
    if limits.max_count is not None and subject.is_unique:
        what = f"no two objects share a group, so maxCount {limits.max_count} is never exceeded"
        yield _Remark(
            Severity.ERROR, "spec.groupBy", what, "Group by something that several objects share, such as a label."
        )


def _selection(subject: _Subject) -> Iterator[_Remark]:
    for path, values in subject.pinned.items():
        if not values:
            what = f"no object can have all the values demanded of {path}, so the policy selects nothing"
            yield _Remark(Severity.ERROR, "spec.onlyWhen", what, "Demand values that one object can have.")
    for at, namespace in enumerate(subject.policy.namespaces):
        for problem in namespace_problems(namespace, namespaced=True):
            what = f"no namespace can have this name: {problem.removeprefix('metadata.')}"
            yield _Remark(
                Severity.ERROR, f"spec.selector.namespaces[{at}]", what, "Write its name; there are no wildcards."
            )
    where = subject.policy.keep_where
    if where is not None and subject.pinned.get(where.path, where.values).isdisjoint(where.values):
        what = f"nothing that the policy selects has such a {where.path}, so keepLast keeps nothing"
        yield _Remark(Severity.WARNING, "spec.keepLast.where", what, "Name values that onlyWhen and selector allow.")
    group, kind = group_of(subject.policy.api_version), subject.policy.kind
    known = groups_with(kind)
    if known and group not in known and not group.count("."):
        what = f"{kind} is not of {subject.policy.api_version}: it is of {' and '.join(one or 'v1' for one in known)}"
        yield _Remark(Severity.WARNING, "spec.selector.apiVersion", what, "Look it up with kubectl api-resources.")


def _age(subject: _Subject) -> Iterator[_Remark]:
    steps = subject.policy.age_from.steps
    if steps[:2] == _DELETED:
        what = "an object with a deletionTimestamp is being deleted already, and the policy ignores it"
    elif (
        (steps[0] == "metadata" and (len(steps) == 1 or steps[1] in _NO_TIMES))
        or steps[-1] in _NO_TIMES_ANYWHERE
        or isinstance(steps[-1], int)
        or len(steps) == 1
    ):
        what = f"{subject.policy.age_from} is not a time, so no age is known, and nothing is deleted"
    else:
        return
    yield _Remark(Severity.ERROR, "spec.ageFrom", what, "Name a time, such as status.completionTime, or leave it out.")


def _groups(subject: _Subject) -> Iterator[_Remark]:
    limits, by = subject.policy.limits, subject.policy.group_by
    counted = [
        f"{name} {number}"
        for name, number in (("maxCount", limits.max_count), ("keepLast", limits.keep_last))
        if number
    ]
    same = [path for path in by if subject.is_constant(path)]
    if not counted:
        if by:
            what = "only maxCount and keepLast use groups, and the policy has neither"
            yield _Remark(Severity.NOTE, "spec.groupBy", what, "Leave it out, or set maxCount.")
    elif len(same) == len(by):
        why = f"{', '.join(map(str, same))} is the same for all" if by else "groupBy is empty"
        what = f"{why}, so everything is one group: {' and '.join(counted)} is for all of it together"
        yield _Remark(
            Severity.WARNING, "spec.groupBy", what, "Group by something that differs between owners, such as a label."
        )
    elif same:
        what = f"{', '.join(map(str, same))} is the same for all that is selected, and does not separate groups"
        yield _Remark(Severity.NOTE, "spec.groupBy", what, "Leave it out.")
    if counted and not subject.is_unique and _NAME in by:
        what = "objects of one name in several namespaces are one group"
        yield _Remark(Severity.WARNING, "spec.groupBy", what, "Add metadata.namespace, or group by a label.")


def _keep_last(subject: _Subject) -> Iterator[_Remark]:
    limits = subject.policy.limits
    if limits.max_count is None or limits.keep_last < limits.max_count or not subject.keeps_all_alike:
        return
    if limits.keep_last > limits.max_count:
        what = f"keepLast keeps {limits.keep_last} of each group, so maxCount {limits.max_count} never takes effect"
        yield _Remark(
            Severity.WARNING, "spec.keepLast.count", what, "Make it smaller than maxCount, or give it a where."
        )
    if limits.max_age is not None:
        what = (
            f"the newest {limits.keep_last} stay at any age, and all others exceed maxCount: maxAge never takes effect"
        )
        yield _Remark(
            Severity.WARNING, "spec.maxAge", what, "Make keepLast smaller than maxCount, or leave maxAge out."
        )
    elif limits.keep_last == limits.max_count:
        what = "it keeps what maxCount keeps anyway"
        yield _Remark(
            Severity.NOTE, "spec.keepLast", what, "Leave it out, unless other policies select the same objects."
        )


def _general(subject: _Subject) -> Iterator[_Remark]:
    policy = subject.policy
    if policy.name == POLICY_NAME:
        what = f"the name {POLICY_NAME} is that of the policy that the settings make for records of experiments"
        yield _Remark(Severity.WARNING, "metadata.name", what, "Take another name, or use the settings history_*.")
    yield from _broad_selection(subject)
    if not policy.namespaces and subject.is_namespaced:
        what = f"it selects from all namespaces except {SYSTEM_NAMESPACE} and that of the operator"
        yield _Remark(Severity.NOTE, "spec.selector.namespaces", what, "Name these two, if they are intended too.")
    if policy.dry_run:
        what = "it is a dry run: it tells what it would delete, and deletes nothing"
        yield _Remark(Severity.NOTE, "spec.dryRun", what, "Set it to false once these are the objects to delete.")


def _broad_selection(subject: _Subject) -> Iterator[_Remark]:
    """Warn of a policy that really deletes, where one mistake takes much along."""
    policy = subject.policy
    if policy.dry_run or not subject.is_limited:
        return
    takes = _TAKES_ALONG.get((group_of(policy.api_version), policy.kind))
    if takes is not None:
        what = f"it deletes {plural_of(policy.kind)}, and {takes}"
        yield _Remark(
            Severity.WARNING, "spec.selector.kind", what, "Select few by labels, and look at a dry run first."
        )
    if not policy.namespaces and not policy.labels and not policy.only_when:
        where = "in all namespaces" if subject.is_namespaced else "of the whole cluster"
        what = f"it deletes, and selects every {policy.kind} {where}: neither namespaces nor labels limit it"
        yield _Remark(
            Severity.WARNING, "spec.selector", what, "Name namespaces or labels, or set dryRun to true first."
        )


def _short_age(subject: _Subject, interval: int) -> Iterator[_Remark]:
    age = subject.policy.limits.max_age
    if age is not None and age < interval:
        what = f"maxAge {Duration(age)} is shorter than the {Duration(interval)} between passes, so objects stay longer"
        yield _Remark(Severity.WARNING, "spec.maxAge", what, "Set a shorter retention_interval, or accept it.")


_CHECKS: Final[tuple[Callable[[_Subject], Iterator[_Remark]], ...]] = (
    _selection,
    _limits,
    _age,
    _groups,
    _keep_last,
    _general,
)

# --- several ----------------------------------------------------------------------------------------------------------


def _same_names(documents: Sequence[object]) -> Iterator[Finding]:
    names: Counter[Any] = Counter(name_of(one) for one in documents if isinstance(one, dict) and one.get("metadata"))
    for name, times in names.items():
        if times > 1:
            what = f"{times} policies have this name, and a cluster can store only one of them"
            yield Finding(Severity.ERROR, name, "metadata.name", what, "Give each a name of its own.")


def _overlaps(subjects: Sequence[_Subject]) -> Iterator[Finding]:
    for one, other in combinations(subjects, 2):
        if not _may_share(one, other):
            continue
        name, kind = one.policy.name, one.policy.kind
        if one.policy.api_version != other.policy.api_version:
            what = f"{other.policy.name} selects the same {kind}, in the version {other.policy.api_version}"
            advice = "Name the same apiVersion in both: otherwise keepLast of the one does not protect from the other."
            yield Finding(Severity.WARNING, name, "spec.selector.apiVersion", what, advice)
        elif not (one.is_limited and other.is_limited):
            what = f"{other.policy.name} may select the same {kind}, and one of the two only protects"
            yield Finding(Severity.NOTE, name, "spec.selector", what, "Nothing to do, if that is intended.")
        else:
            what = f"{other.policy.name} may select the same {kind}: an object is deleted when either policy says so"
            advice = "Separate them by namespaces, labels or onlyWhen. What keepLast of either keeps, stays."
            yield Finding(Severity.WARNING, name, "spec.selector", what, advice)


def _may_share(one: _Subject, other: _Subject) -> bool:
    """Whether an object can be selected by both."""
    kinds = {(group_of(each.policy.api_version), each.policy.kind) for each in (one, other)}
    if len(kinds) > 1:
        return False
    for named, unnamed in ((one.policy, other.policy), (other.policy, one.policy)):
        # Who names no namespace leaves this one alone.
        if set(named.namespaces) == {SYSTEM_NAMESPACE} and not unnamed.namespaces:
            return False
    shared = one.pinned.keys() & other.pinned.keys()
    return all(one.pinned[path] & other.pinned[path] for path in shared)
