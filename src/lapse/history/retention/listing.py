"""The listing of a pass: what policies of one kind are about, read from a store in pages, one listing for all of them.

`Listing` reads pages, and `ObjectReader` makes entries of their objects: each object is read once, and for each policy
that is about it there is an entry. Metadata is all that is asked for where the policies need no more, and of whole
objects no more than entries are kept. Metadata is read as it came from the store, by functions that are made once for a
listing; whole documents are asked path by path. Both find the same. Records without our labels are read whole.

A listing shows one moment per namespace that the policies name, or one for all of them. A store that can no longer show
that moment (`GoneError`) is asked anew, and what was yielded before is not yielded again: then each object is as it was
at some time during the listing. A caller that needs one moment says so, and gets the error.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import structs

from lapse.core.timestamps import from_timestamp
from lapse.engine.safety.extensions import extension_of
from lapse.engine.safety.holds import hold_of
from lapse.history.policy.paths import as_text
from lapse.history.policy.policy import SYSTEM_NAMESPACE
from lapse.history.records import is_about_records, is_labelled, labelled
from lapse.history.retention.rules import RetainedObject
from lapse.kube.errors import GoneError
from lapse.kube.resources import Document, ObjectMeta, metadata_only
from lapse.objects.trash.rules import is_in_trash, may_be_in_trash

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence

    from lapse.core.clock import Clock
    from lapse.history.policy.paths import FieldPath
    from lapse.history.policy.policy import OneOf, Policy
    from lapse.history.retention.policy_set import Views
    from lapse.history.retention.rules import Group
    from lapse.kube.resources import Json, Kind, ObjectKey, PartialObject
    from lapse.objects.port import Reader

    Get = Callable[[ObjectMeta], object]

PAGE: Final = 500
"""Objects of one page: what an API server sends without effort."""
LEFT_ALONE: Final[frozenset[str]] = frozenset({SYSTEM_NAMESPACE})
ATTEMPTS: Final = 3
"""The most times that a listing is begun, when its moment is gone before its end."""
_ATTRIBUTES: Final = dict(zip(ObjectMeta.__struct_encode_fields__, ObjectMeta.__struct_fields__, strict=True))
_TEXTS: Final = frozenset({"name", "namespace", "uid", "resourceVersion", "creationTimestamp"})
# Objects are often created many in a second, and read in the order of names that begin with a time.
_moment: Final = lru_cache(4096)(from_timestamp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One listing for some policies; see the module."""

    policies: Sequence[Policy]
    kind: Kind[Any]
    direct: Reader
    clock: Clock
    labels: Mapping[str, str]
    """Beside those of the policies."""
    left_alone: Collection[str] = LEFT_ALONE
    page: int = PAGE

    async def pages(
        self,
        proceed: Callable[[], bool],
        *,
        of_one_moment: bool = False,
        is_outdated: Callable[[], bool] = lambda: False,
    ) -> AsyncIterator[list[Views]]:
        """Yield what the policies are about; ``proceed`` is asked before each page. Raises what the store answers.

        By pages, so that there is one step of an asynchronous iterator for each page and not for each object. Whoever
        deleted much since the last page says that the moment is outdated: to show it on and on would cost a store more
        and more.
        """
        for namespace in self.namespaces():
            listed, left = _Listed(), ATTEMPTS
            while left:
                try:
                    async with aclosing(self._attempt(namespace, listed, proceed)) as attempt:
                        async for page in attempt:
                            yield page
                            if is_outdated():
                                break
                        else:
                            break
                except GoneError:
                    left -= 1
                    if of_one_moment or not left:
                        raise
                listed.is_again = True

    async def _attempt(
        self, namespace: str | None, listed: _Listed, proceed: Callable[[], bool]
    ) -> AsyncGenerator[list[Views], None]:
        reading, labels = self.reading(), self.asked_labels()
        pages = read_pages(
            self.direct, self.kind, reading, namespace=namespace, labels=labels, limit=self.page, proceed=proceed
        )
        async with aclosing(pages):
            async for found in pages:
                yield [views for one in listed.new(found) if any(views := reading.views(one))]
                await self.clock.sleep(0)  # a page of an embedded store waits for nothing: others have their turn

    def namespaces(self) -> tuple[str | None, ...]:
        """Return the namespaces to list, one after the other; None is for all of them."""
        if not self.kind.namespaced or not all(policy.namespaces for policy in self.policies):
            return (None,)
        return tuple(sorted({namespace for policy in self.policies for namespace in policy.namespaces}))

    def asked_labels(self) -> dict[str, str]:
        """Return the labels to ask for: those that all policies want; what one wants beyond them is looked at here."""
        common = set.intersection(*(set(policy.labels.items()) for policy in self.policies))
        return {**dict(common), **self.labels}

    def reading(self) -> ObjectReader:
        """Return the reader that makes entries of objects that have these labels."""
        return ObjectReader(self.policies, asked=self.asked_labels(), left_alone=self.left_alone)


async def read_pages(
    direct: Reader,
    kind: Kind[Any],
    reading: ObjectReader,
    *,
    namespace: str | None,
    labels: Mapping[str, str],
    limit: int,
    proceed: Callable[[], bool] = lambda: True,
) -> AsyncGenerator[Sequence[Any], None]:
    """Yield the objects of a kind, as far as policies need them: their metadata, or whole; ask before each page.

    A page of records of which some lack our labels is read again, whole, and the next one at once: page by page, so
    that a store is asked for no more than there are. All pages show one moment.
    """
    bare: Kind[Any] = metadata_only(kind)
    whole: Kind[Any] = replace(kind, type=Document)
    asked = bare if reading.is_metadata_enough else whole
    after: str | None = None
    while proceed():
        found = await direct.list(asked, namespace=namespace, labels=labels, limit=limit, after=after)
        if reading.is_metadata_enough:
            is_lacking = any(map(reading.lacks_labels, found.items))
            if is_lacking and asked is bare:
                found = await direct.list(whole, namespace=namespace, labels=labels, limit=limit, after=after)
            asked = whole if is_lacking else bare
        yield found.items
        after = found.next
        if after is None:
            return


@dataclass(slots=True)
class _Listed:
    """The objects that a listing has yielded: those of each namespace that it has passed, and names up to one."""

    is_again: bool = False
    _passed: set[str | None] = field(default_factory=set)
    _last: ObjectKey | None = None

    def new(self, page: Sequence[Any]) -> Sequence[Any]:
        """Return those that were not yielded before, and remember them."""
        found = [one for one in page if self._is_new(one.metadata.key)] if self.is_again else page
        if found:
            self._passed.update([one.metadata.namespace for one in found])
            self._last = found[-1].metadata.key
        return found

    def _is_new(self, key: ObjectKey) -> bool:
        if self._last is not None and key.namespace == self._last.namespace:
            return key.name > self._last.name
        return key.namespace not in self._passed


# --- entries ----------------------------------------------------------------------------------------------------------


class ObjectReader:
    """Reads objects for some policies; of what has all of ``asked``, their labels included, no more is checked."""

    def __init__(self, policies: Sequence[Policy], *, asked: Mapping[str, str], left_alone: Collection[str]) -> None:
        """Make the functions."""
        self._scopes = [_Scope(policy, asked, left_alone) for policy in policies]
        self._fast = [_fast_entry(policy) for policy in policies]
        self._is_about_records = is_about_records(policies)
        self._kind = next((policy.kind for policy in policies if may_be_in_trash(policy.kind)), None)
        self.is_metadata_enough = all(policy.is_metadata_enough for policy in policies)

    def views(self, found: PartialObject | Document) -> Views:
        """Return an object as each policy sees it."""
        if self._kind is not None and is_in_trash(self._kind, found.metadata):
            return (None,) * len(self._scopes)
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
        return tuple([None if one is None else structs.replace(one, is_unlabelled=True) for one in views])

    def of_document(self, document: Json) -> Views:
        """Return a document as each policy sees it."""
        namespace, labels = document["metadata"].get("namespace"), document["metadata"].get("labels") or {}
        return tuple(
            [scope.policy.entry(document) if scope.covers(namespace, labels) else None for scope in self._scopes]
        )


class _Scope:
    """The objects that a policy selects, among those that are asked for."""

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
        extended = extension_of(metadata.annotations) if metadata.annotations else None
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
            extended,
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
