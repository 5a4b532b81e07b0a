"""The retention policies of a store: read before each pass, published from the settings, checked for conflicts.

Every policy that is in force is an object, also the history's own and those that stand in the settings, so that there
is one place to look at and one status. What is published carries a label that says so. An object of the same name
without that label is somebody's own: it is never touched, and stays in force.

Reading takes one policy at a time: what cannot be understood is told beside those that can. Publishing is idempotent
and may happen in two processes at once: the second finds it done. `PolicyOverlay` shows a store as it would be with
other policies in it, for a pass by a policy that is not stored, or a changed one.

**Conflicts.** What one policy keeps as the last ones no other deletes; that needs both to be judged together. Two
cannot be:

- policies about one kind in two versions of its API, because an object is the same in every version, but its fields
  need not be;
- one that cannot be understood, because it is not known then what it would keep.

Doubt means keep: a policy that could delete what such a policy keeps deletes nothing, and its status says why. It still
protects what it keeps itself. All others go on, and so do all where the policy that cannot be understood has no
``keepLast``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from lapse.history.api.kinds import RETENTION_POLICY, RetentionPolicy, RetentionSpec, RetentionStatus, Selector
from lapse.history.policy.documents import DocumentError, name_of
from lapse.history.policy.documents import read_document as read_strictly
from lapse.history.policy.policy import Policy, RetentionPolicyError
from lapse.history.policy.rbac import group_of
from lapse.kube.errors import AlreadyExistsError, ConflictError, ForbiddenError, InvalidError, NotFoundError
from lapse.kube.resources import NO_LABELS, Document, Json, Object, ObjectMeta, untyped

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from lapse.kube.resources import Kind, ObjectKey, Page
    from lapse.objects.port import ObjectStore, Reader

    T = TypeVar("T", bound=Object)

FROM: Final = "lapse.dev/from"
SETTINGS: Final = "settings"
"""A label and its value: this policy is as the settings say."""
_PAGE: Final = 500
_ANY_FORM: Final = untyped(
    RETENTION_POLICY.api_version, RETENTION_POLICY.kind, RETENTION_POLICY.plural, namespaced=False
)
"""Read as they are: one that has another form than ours must not hide the others."""
_UNREADABLE: Final = RetentionSpec(selector=Selector(api_version="", kind=""))


StoredPolicy = tuple[RetentionPolicy, Policy]
"""The object, and what it means."""


@dataclass(frozen=True, slots=True)
class LoadedPolicies:
    """The policies that there are, sorted by whether they can be understood."""

    policies: list[StoredPolicy] = field(default_factory=list)
    broken: list[tuple[RetentionPolicy, RetentionPolicyError]] = field(default_factory=list)


async def load_policies(direct: Reader) -> LoadedPolicies:
    """Return all policies, in the order of their names. Raises what the store answers when it cannot be listed."""
    loaded = LoadedPolicies()
    for document in await _all(direct):
        policy = None
        try:
            policy = _typed(document.metadata.name, document.body)
            loaded.policies.append((policy, Policy.read(policy)))
        except RetentionPolicyError as error:
            loaded.broken.append((policy or unreadable(document.metadata, document.body.get("status")), error))
    return loaded


class SettingsPolicies:
    """The policies of the settings: the history's own, and documents, of which some may be unusable."""

    def __init__(self, history: RetentionPolicy, documents: Sequence[Json] = ()) -> None:
        """Read them; what is wrong with one is told where policies are loaded."""
        self.wanted = [history]
        self.unusable: dict[str, RetentionPolicyError] = {}
        for document in documents:
            try:
                self.wanted.append(read_document(document))
            except RetentionPolicyError as error:
                self.unusable[str(error.details["name"])] = error

    async def load(self, direct: Reader) -> LoadedPolicies:
        """Return the policies of a store, and these where they are not published there, in the order of their names.

        What is published wins over our own settings: a command that was told something else than the process that
        published, or nothing, must not delete by that. Raises what the store answers when it cannot be listed.
        """
        loaded = await load_policies(direct)
        found = LoadedPolicies(broken=list(loaded.broken))
        for policy, read in loaded.policies:
            error = self.unusable.get(read.name) if is_published(policy.metadata) else None
            if error is None:
                found.policies.append((policy, read))
            else:  # the settings say something else by now, and nobody can read what
                found.broken.append((policy, error))
        there = {policy.metadata.name for policy, _ in (*loaded.policies, *loaded.broken)}
        found.broken.extend(
            (unreadable(ObjectMeta(name=name)), error) for name, error in self.unusable.items() if name not in there
        )
        for wanted in self.wanted:
            if wanted.metadata.name not in there:
                try:
                    found.policies.append((wanted, Policy.read(wanted)))
                except RetentionPolicyError as error:
                    found.broken.append((wanted, error))
        return found


def read_document(document: Json) -> RetentionPolicy:
    """Read a policy that somebody wrote; raises `RetentionPolicyError` with everything that is wrong with its form.

    A field that there is not is wrong as well: where ``keeplast`` is ignored, ``keepLast`` does not protect.
    """
    form = {"apiVersion": RETENTION_POLICY.api_version, "kind": RETENTION_POLICY.kind}
    try:
        return read_strictly(RETENTION_POLICY, {**form, **document, "status": None})
    except DocumentError as error:
        raise RetentionPolicyError(name=name_of(document), problem=error.details["problem"]) from error


def _typed(name: str, body: Json) -> RetentionPolicy:
    try:
        return RETENTION_POLICY.convert(body)
    except msgspec.ValidationError as error:
        raise RetentionPolicyError(name=name, problem=str(error)) from None


def unreadable(metadata: ObjectMeta, status: object = None) -> RetentionPolicy:
    """Return a policy that has another form, as far as it can be read: its name and its status."""
    found = None
    with suppress(msgspec.ValidationError):
        found = msgspec.convert(status, RetentionStatus | None, strict=False)
    return RetentionPolicy(metadata=metadata, spec=_UNREADABLE, status=found)


async def _all(direct: Reader) -> list[Document]:
    found: list[Document] = []
    after: str | None = None
    while True:
        page = await direct.list(_ANY_FORM, limit=_PAGE, after=after)
        found += page.items
        after = page.next
        if after is None:
            return found


# --- publishing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Published:
    """The rest of the work after publishing."""

    failed: dict[str, RetentionPolicyError] = field(default_factory=dict)
    """Policies that could not be published, by name, and why."""
    outdated: list[ObjectMeta] = field(default_factory=list)
    """Policies that were published earlier, and are no longer in the settings."""


async def publish(
    store: ObjectStore, documents: Sequence[RetentionPolicy], *, leave: Collection[str] = ()
) -> Published:
    """Make the published policies as ``documents`` say; those that ``leave`` names stay as they are.

    Nothing is removed here. Raises `StoreUnavailableError`; then some may be published and some not, and the next
    attempt goes on.
    """
    there = {one.metadata.name: one for one in await _all(store)}
    wanted = {*leave, *(document.metadata.name for document in documents)}
    outdated = [one.metadata for name, one in there.items() if name not in wanted and is_published(one.metadata)]
    done = Published(outdated=outdated)
    for document in documents:
        name = document.metadata.name
        try:
            await _publish_one(store, document, there.get(name))
        except (InvalidError, ForbiddenError) as error:
            problem = f"it cannot be stored: {str(error).rstrip('.')}"
            done.failed[name] = RetentionPolicyError(name=name, problem=problem)
        except RetentionPolicyError as error:
            done.failed[name] = error
        except (AlreadyExistsError, ConflictError, NotFoundError):
            pass  # another process does the same at this moment; the next look tells
    return done


def is_published(metadata: ObjectMeta) -> bool:
    """Whether a policy is as the settings of some process say."""
    return metadata.labels.get(FROM) == SETTINGS


async def _publish_one(store: ObjectStore, document: RetentionPolicy, there: Document | None) -> None:
    name = document.metadata.name
    spec: Json = msgspec.to_builtins(document.spec)
    if there is None:
        labels = {**document.metadata.labels, FROM: SETTINGS}
        metadata = {"name": name, "labels": labels, "annotations": document.metadata.annotations}
        await store.create(RETENTION_POLICY, {"metadata": metadata, "spec": spec})
    elif not is_published(there.metadata):
        problem = (
            f"there is another policy of this name, without the label {FROM}: {SETTINGS}, and that policy is in force"
        )
        raise RetentionPolicyError(name=name, problem=problem)
    elif not _is_same(there, document):
        changes = {"spec": _difference(there.body.get("spec") or {}, spec)}
        meta = there.metadata
        await store.patch(RETENTION_POLICY, meta.key, changes, uid=meta.uid, version=meta.resource_version)


def _is_same(there: Document, document: RetentionPolicy) -> bool:
    # As we read them: a server fills in defaults that we leave out.
    try:
        return _typed(there.metadata.name, there.body).spec == document.spec
    except RetentionPolicyError:
        return False


def _difference(old: Any, new: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return the merge patch that makes ``new`` of ``old``."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    changed = {name: _difference(old.get(name), value) for name, value in new.items() if old.get(name) != value}
    return changed | {name: None for name in old if name not in new}


# --- conflicts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Protector:
    """A policy that keeps the last ones."""

    name: str
    api_version: str
    kind: str
    namespaces: tuple[str, ...]
    is_understood: bool

    def keeps_from(self, policy: Policy) -> bool:
        """Whether it may keep what another policy would delete, and cannot be weighed against it."""
        if policy.name == self.name or (self.is_understood and self.api_version == policy.api_version):
            return False
        if (group_of(self.api_version), self.kind) != (group_of(policy.api_version), policy.kind):
            return False
        deletes = policy.limits.max_age is not None or policy.limits.max_count is not None
        apart = self.namespaces and policy.namespaces and not set(self.namespaces) & set(policy.namespaces)
        return deletes and not apart

    def problem_for(self, policy: Policy) -> str:
        """Return why the other policy must not delete."""
        if not self.is_understood:
            return (
                f"the policy {self.name} keeps the last ones of this kind, and cannot be used, so it is not known "
                f"which these are; correct {self.name}, or remove its keepLast"
            )
        return (
            f"spec.selector.apiVersion: the policy {self.name} keeps the last ones of this kind as {self.api_version}, "
            f"which cannot be compared with {policy.api_version}; name the same version in both"
        )


def conflicts(loaded: LoadedPolicies) -> dict[str, RetentionPolicyError]:
    """Return the policies that must not delete, by name, and why."""
    protectors = _protectors(loaded)
    found = {}
    for _, policy in loaded.policies:
        protector = next((one for one in protectors if one.keeps_from(policy)), None)
        if protector is not None:
            found[policy.name] = RetentionPolicyError(name=policy.name, problem=protector.problem_for(policy))
    return found


def _protectors(loaded: LoadedPolicies) -> Sequence[_Protector]:
    understood = [
        _Protector(one.name, one.api_version, one.kind, one.namespaces, is_understood=True)
        for _, one in loaded.policies
        if one.limits.keep_last > 0
    ]
    broken = [
        _Protector(one.metadata.name, selector.api_version, selector.kind, selector.namespaces, is_understood=False)
        for one, _ in loaded.broken
        if one.spec.keep_last is not None and one.spec.keep_last.count != 0
        for selector in (one.spec.selector,)
    ]
    return [*broken, *understood]


# --- overlay ----------------------------------------------------------------------------------------------------------


class PolicyOverlay:
    """Reads like ``direct``, but for the policies: those of the same names are hidden behind ``documents``."""

    def __init__(self, direct: Reader, documents: Sequence[RetentionPolicy]) -> None:
        """Take ``documents`` as if they were stored; what a store fills in is left out of them."""
        self._direct = direct
        self._bodies = {one.metadata.name: _as_stored(one) for one in documents}

    async def get(self, kind: Kind[T], key: ObjectKey) -> T:
        """See `Reader`."""
        return await self._direct.get(kind, key)

    async def resolve(self, api_version: str, kind: str) -> Kind[Any]:
        """See `Reader`."""
        return await self._direct.resolve(api_version, kind)

    async def list(
        self,
        kind: Kind[T],
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] = NO_LABELS,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[T]:
        """See `Reader`; the policies that are not stored are on the last page."""
        page = await self._direct.list(kind, namespace=namespace, labels=labels, limit=limit, after=after)
        if (kind.api_version, kind.kind) != (RETENTION_POLICY.api_version, RETENTION_POLICY.kind):
            return page
        items = [one for one in page.items if one.metadata.name not in self._bodies]
        if page.next is None:
            items += [kind.convert(body) for body in self._bodies.values()]
        return replace(page, items=tuple(items))


def _as_stored(policy: RetentionPolicy) -> Json:
    bare = RetentionPolicy(metadata=ObjectMeta(name=policy.metadata.name), spec=policy.spec)
    body: Json = msgspec.to_builtins(bare)
    return RETENTION_POLICY.body(body)
