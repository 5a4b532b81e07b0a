"""The policy that a document means: read once, with every path parsed, and then asked about many objects.

Reading fails as a whole: a policy of which a part cannot be understood does nothing, and its error names each part that
is wrong. Asking never fails: what an object does not have, or what cannot be read, is told to the decision as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from lapse.core.duration import Duration, DurationError
from lapse.core.errors import UsageError
from lapse.engine.domain import policy_hash
from lapse.engine.safety.extensions import extension_of
from lapse.engine.safety.holds import hold_of
from lapse.history.api.kinds import AGE_OF_RECORDS, NEVER, is_age_of_records
from lapse.history.policy.paths import FieldPath, FieldPathError
from lapse.history.retention.rules import RetainedObject, RetentionLimits
from lapse.kube.resources import ObjectMeta, OwnerReference

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from lapse.history.api.kinds import FieldIn, RetentionPolicy, RetentionSpec
    from lapse.history.retention.rules import Group
    from lapse.kube.resources import Json

CREATED: Final = FieldPath.parse("metadata.creationTimestamp")
SYSTEM_NAMESPACE: Final = "kube-system"
"""Left alone, as is our own namespace, by policies that do not name it."""
_READ_METADATA: Final = frozenset(ObjectMeta.__struct_encode_fields__)
T = TypeVar("T")


class RetentionPolicyError(UsageError, ValueError):
    """The retention policy {name} cannot be used: {problem}."""


@dataclass(frozen=True, slots=True)
class OneOf:
    """A path and the values that are wanted there."""

    path: FieldPath
    values: frozenset[str]

    def holds(self, document: Json) -> bool:
        """Whether a document has one of the values; one that has nothing there does not."""
        return self.path.text(document) in self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One retention policy; see the module."""

    name: str
    api_version: str
    kind: str
    namespaces: tuple[str, ...]
    """Empty: all of them, but those that are left alone."""
    labels: dict[str, str]
    limits: RetentionLimits
    group_by: tuple[FieldPath, ...]
    age_from: FieldPath
    only_when: tuple[OneOf, ...]
    keep_where: OneOf | None
    """Of which the last ones are kept; None: of all."""
    dry_run: bool
    is_trashed: bool = True
    """Whether what it ends can be brought back for a while."""

    @classmethod
    def read(cls, policy: RetentionPolicy) -> Policy:
        """Understand a policy; raises `RetentionPolicyError`, which names everything that is wrong with it."""
        problems: list[str] = []
        found = _parsed(policy.metadata.name, policy.spec, problems)
        # A server may have older definitions than ours, which let it pass.
        if not is_age_of_records(msgspec.to_builtins(policy.spec)):
            problems.append(f"spec.maxAge: {policy.spec.max_age} is too short; {AGE_OF_RECORDS}")
        if problems:
            raise RetentionPolicyError(name=policy.metadata.name, problem="; ".join(problems))
        return found

    @property
    def is_metadata_enough(self) -> bool:
        """Whether objects can be judged by what `ObjectMeta` has of them."""
        conditions = self.only_when if self.keep_where is None else (*self.only_when, self.keep_where)
        paths = (self.age_from, *self.group_by, *(one.path for one in conditions))
        return all(path.is_metadata and path.steps[1:2] and path.steps[1] in _READ_METADATA for path in paths)

    @property
    def digest(self) -> str:
        """A short name of this very policy, for the journal."""
        scope = (self.api_version, self.kind, self.namespaces, sorted(self.labels.items()), self.limits)
        conditions = [(str(one.path), sorted(one.values)) for one in self.only_when]
        kept = None if self.keep_where is None else (str(self.keep_where.path), sorted(self.keep_where.values))
        ways = (str(self.age_from), *map(str, self.group_by))
        said = (scope, ways, conditions, kept)
        return policy_hash(said) if self.is_trashed else policy_hash(said, NEVER)

    def covers(self, namespace: str | None, *, left_alone: Collection[str]) -> bool:
        """Whether it is about objects of a namespace; None is for objects of the whole cluster."""
        if self.namespaces:
            return namespace in self.namespaces
        return namespace is None or namespace not in left_alone

    def entry(self, document: Json) -> RetainedObject | None:
        """Return what the decision needs of an object; None for one that the policy is not about.

        That is one that ``only_when`` does not hold for, and one that is being deleted: it is going, and must not take
        the place of one that stays.
        """
        metadata: Json = document["metadata"]
        if metadata.get("deletionTimestamp") or not all(one.holds(document) for one in self.only_when):
            return None
        return RetainedObject(
            metadata.get("namespace"),
            metadata["name"],
            metadata["uid"],
            metadata["resourceVersion"],
            self.age_from.moment(document),
            self._group(document),
            self.limits.keep_last > 0 and (self.keep_where is None or self.keep_where.holds(document)),
            hold_of(metadata.get("annotations") or {}),
            msgspec.convert(metadata.get("ownerReferences") or (), tuple[OwnerReference, ...], strict=False),
            extension_of(metadata.get("annotations") or {}),
        )

    def _group(self, document: Json) -> Group | None:
        found = []
        for path in self.group_by:
            value = path.text(document)
            if value is None:
                return None
            found.append(value)
        return tuple(found)


# --- reading ----------------------------------------------------------------------------------------------------------


def _parsed(name: str, spec: RetentionSpec, problems: list[str]) -> Policy:
    """Return the policy, and add to ``problems`` what is wrong; with problems, what is returned means nothing."""
    keep, selector = spec.keep_last, spec.selector
    kept = 0 if keep is None else keep.count
    where = None if keep is None or keep.where is None else _one_of("spec.keepLast.where", keep.where, problems)
    return Policy(
        name=name,
        api_version=selector.api_version,
        kind=selector.kind,
        namespaces=selector.namespaces,
        labels=selector.labels,
        limits=RetentionLimits(
            max_age=_max_age(spec.max_age, problems),
            max_count=_at_least_zero("spec.maxCount", spec.max_count or 0, problems) or None,
            keep_last=_at_least_zero("spec.keepLast.count", kept, problems),
        ),
        group_by=tuple(_path(f"spec.groupBy[{at}]", text, problems) for at, text in enumerate(spec.group_by)),
        age_from=CREATED if spec.age_from is None else _path("spec.ageFrom", spec.age_from, problems),
        only_when=tuple(_one_of(f"spec.onlyWhen[{at}]", one, problems) for at, one in enumerate(spec.only_when)),
        keep_where=where,
        dry_run=spec.dry_run,
        is_trashed=spec.trash != NEVER,
    )


def _path(place: str, text: str, problems: list[str]) -> FieldPath:
    return _or(CREATED, lambda: FieldPath.parse(text), place, problems)


def _one_of(place: str, given: FieldIn, problems: list[str]) -> OneOf:
    return OneOf(_path(f"{place}.fieldPath", given.field_path, problems), frozenset(given.values))


def _max_age(text: str | None, problems: list[str]) -> int | None:
    """Return nanoseconds; None for no limit, which is also what never and 0 say."""
    if text is None:
        return None
    found = _or(Duration(0), lambda: Duration.parse(text), "spec.maxAge", problems).nanoseconds
    return None if found is None else _at_least_zero("spec.maxAge", found, problems, given=text) or None


def _at_least_zero(place: str, number: int, problems: list[str], *, given: Any = None) -> int:  # noqa: ANN401 - as written
    if number < 0:
        # Less than nothing must never be taken for a limit that everything exceeds.
        problems.append(f"{place}: {number if given is None else given} is below zero; 0 is for no limit")
    return max(0, number)


def _or(otherwise: T, read: Callable[[], T], place: str, problems: list[str]) -> T:
    try:
        return read()
    except (FieldPathError, DurationError) as error:
        problems.append(f"{place}: {str(error).rstrip('.')}")
        return otherwise
