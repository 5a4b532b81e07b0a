"""Policies as objects of the store: read directly before each pass, and published there from the settings.

Every policy that is in force is such an object, also the history's own and those that stand in the settings, so that
there is one place to look at and one status. What is published carries a label that says so. An object of the same name
without that label is somebody's own: it is never touched, and stays in force.

Reading takes one policy at a time: what cannot be understood is told beside those that can. Publishing is idempotent
and may happen in two processes at once: whoever comes second finds it done.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lapse.history.api.kinds import RETENTION_POLICY, RetentionPolicy, RetentionSpec, RetentionStatus, Selector
from lapse.history.errors import RetentionPolicyError
from lapse.history.policy.documents import DocumentError, name_of
from lapse.history.policy.documents import read_document as read_strictly
from lapse.history.policy.policy import Policy
from lapse.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
)
from lapse.kube.resources import Document, ObjectMeta, untyped

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lapse.kube.resources import Json
    from lapse.objects.port import ObjectStore, Reader

FROM: Final = "lapse.dev/from"
SETTINGS: Final = "settings"
"""A label and its value: this policy is as the settings say."""
_PAGE: Final = 500
_ANY_FORM: Final = untyped(
    RETENTION_POLICY.api_version, RETENTION_POLICY.kind, RETENTION_POLICY.plural, namespaced=False
)
"""Read as they are: one that has another form than ours must not hide the others."""
_UNREADABLE: Final = RetentionSpec(selector=Selector(api_version="", kind=""))


@dataclass(frozen=True, slots=True)
class Loaded:
    """What there is, sorted by whether it can be understood."""

    policies: list[tuple[RetentionPolicy, Policy]] = field(default_factory=list)
    broken: list[tuple[RetentionPolicy, RetentionPolicyError]] = field(default_factory=list)


async def load_policies(direct: Reader) -> Loaded:
    """Return all policies, in the order of their names. Raises what the store answers when it cannot be listed."""
    loaded = Loaded()
    for document in await _all(direct):
        policy = None
        try:
            policy = _typed(document.metadata.name, document.body)
            loaded.policies.append((policy, Policy.read(policy)))
        except RetentionPolicyError as error:
            loaded.broken.append((policy or unreadable(document.metadata, document.body.get("status")), error))
    return loaded


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
    """Return what can be told of a policy that has another form: its name, and what was said about it before."""
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
    """What is left to do after publishing."""

    failed: dict[str, RetentionPolicyError] = field(default_factory=dict)
    """What could not be published, by name, and why."""
    outdated: list[ObjectMeta] = field(default_factory=list)
    """What was published earlier, and is no longer in the settings."""


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
