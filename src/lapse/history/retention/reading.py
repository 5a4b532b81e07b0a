"""Objects as policies see them: each object read once, and for each policy that is about it an entry made of it.

Metadata, which is all that most policies need, is read as it came from the store, by functions that are made once for a
listing; whole documents are asked path by path. Both find the same.
"""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from lapse.core.timestamps import from_timestamp
from lapse.engine.safety.holds import hold_of
from lapse.history.policy.paths import as_text
from lapse.history.records import is_about_records, is_labelled, labelled
from lapse.history.retention.rules import RetainedObject
from lapse.kube.resources import Document, ObjectMeta

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from lapse.history.policy.paths import FieldPath
    from lapse.history.policy.policy import OneOf, Policy
    from lapse.history.retention.policy_set import Views
    from lapse.history.retention.rules import Group
    from lapse.kube.resources import Json, PartialObject

    Get = Callable[[ObjectMeta], object]

_ATTRIBUTES: Final = dict(zip(ObjectMeta.__struct_encode_fields__, ObjectMeta.__struct_fields__, strict=True))
_TEXTS: Final = frozenset({"name", "namespace", "uid", "resourceVersion", "creationTimestamp"})
# Objects are often created many in a second, and read in the order of names that begin with a time.
_moment: Final = lru_cache(4096)(from_timestamp)


class ObjectReader:
    """Reads objects for some policies; of what has all of ``asked``, their labels included, no more is checked."""

    def __init__(self, policies: Sequence[Policy], *, asked: Mapping[str, str], left_alone: Collection[str]) -> None:
        """Make the functions."""
        self._scopes = [_Scope(policy, asked, left_alone) for policy in policies]
        self._fast = [_fast_entry(policy) for policy in policies]
        self._is_about_records = is_about_records(policies)
        self.is_metadata_enough = all(policy.is_metadata_enough for policy in policies)

    def views(self, found: PartialObject | Document) -> Views:
        """Return an object as each policy sees it."""
        if isinstance(found, Document):
            return self._of_record(found.body) if self.lacks_labels(found) else self.of_document(found.body)
        metadata, document = found.metadata, None
        views: list[RetainedObject | None] = []
        for scope, fast in zip(self._scopes, self._fast, strict=True):
            if not scope.covers(metadata.namespace, metadata.labels):
                views.append(None)
            elif fast is not None:
                views.append(fast(metadata))
            else:
                document = document or {"metadata": msgspec.to_builtins(metadata)}
                views.append(scope.policy.entry(document))
        return tuple(views)

    def lacks_labels(self, found: PartialObject | Document) -> bool:
        """Whether an object is a record whose labels do not say enough, so that it has to be read whole."""
        if not self._is_about_records:
            return False
        if isinstance(found, Document):
            return not is_labelled(found.body["metadata"].get("labels") or {})
        return not is_labelled(found.metadata.labels)

    def _of_record(self, document: Json) -> Views:
        views = self.of_document(labelled(document))
        return tuple([None if one is None else replace(one, is_unlabelled=True) for one in views])

    def of_document(self, document: Json) -> Views:
        """Return a document as each policy sees it."""
        namespace, labels = document["metadata"].get("namespace"), document["metadata"].get("labels") or {}
        return tuple(
            [scope.policy.entry(document) if scope.covers(namespace, labels) else None for scope in self._scopes]
        )


class _Scope:
    """Which objects a policy selects, beside those that are not asked for at all."""

    def __init__(self, policy: Policy, asked: Mapping[str, str], left_alone: Collection[str]) -> None:
        self.policy = policy
        self._labels, self._left_alone = policy.labels.items() - asked.items(), left_alone
        self._known: dict[str | None, bool] = {}

    def covers(self, namespace: str | None, labels: Mapping[str, str]) -> bool:
        """Whether it selects an object with these."""
        found = self._known.get(namespace)
        if found is None:
            found = self._known[namespace] = self.policy.covers(namespace, left_alone=self._left_alone)
        return found and (not self._labels or self._labels <= labels.items())


def _fast_entry(policy: Policy) -> Callable[[ObjectMeta], RetainedObject | None] | None:
    """Return what does with metadata what `Policy.entry` does with documents; None where paths go deeper."""
    group, only_when = [_getter(path) for path in policy.group_by], [_test(one) for one in policy.only_when]
    age, kept = _getter(policy.age_from), _always if policy.keep_where is None else _test(policy.keep_where)
    if age is None or kept is None or None in group or None in only_when:
        return None
    return _entry_maker(
        age,
        [one for one in group if one is not None],
        [one for one in only_when if one is not None],
        kept if policy.limits.keep_last > 0 else _never,
    )


def _entry_maker(
    age: Get,
    group: Sequence[Get],
    only_when: Sequence[Callable[[ObjectMeta], bool]],
    kept: Callable[[ObjectMeta], bool],
) -> Callable[[ObjectMeta], RetainedObject | None]:
    def entry(metadata: ObjectMeta) -> RetainedObject | None:
        if metadata.deletion_timestamp:
            return None
        for holds in only_when:
            if not holds(metadata):
                return None
        since: Any = age(metadata)
        texts: Any = tuple([get(metadata) for get in group])
        found: Group | None = None if None in texts else texts
        hold = hold_of(metadata.annotations) if metadata.annotations else None
        anchor = None if since is None else _moment(since)
        return RetainedObject(
            metadata.namespace,
            metadata.name,
            metadata.uid,
            metadata.resource_version,
            anchor,
            found,
            kept(metadata),
            hold,
            metadata.owner_references,
        )

    return entry


def _getter(path: FieldPath) -> Get | None:
    """Return what follows a path that leads to a text; None for any other path."""
    match path.steps:
        case ("metadata", str(name)) if name in _TEXTS:
            return attrgetter(_ATTRIBUTES[name])
        case ("metadata", "labels", str(key)):
            return lambda metadata: metadata.labels.get(key)
        case ("metadata", "annotations", str(key)):
            return lambda metadata: metadata.annotations.get(key)
    return None


def _test(one: OneOf) -> Callable[[ObjectMeta], bool] | None:
    get, values = _getter(one.path), one.values
    return None if get is None else lambda metadata: as_text(get(metadata)) in values


def _always(_metadata: ObjectMeta) -> bool:
    return True


def _never(_metadata: ObjectMeta) -> bool:
    return False
