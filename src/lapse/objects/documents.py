"""The rules of the API server for documents, without a database: new objects, and JSON merge patches. Pure.

The store's own fields (uid, resource version, generation, times) come from the arguments and from the old object, never
from the caller. Documents are kept as JSON with sorted keys, so that two are equal when their bytes are. A merge patch
(RFC 7386) is the only way in which objects are changed; arguments are never modified, and what did not change is shared
between the old document and the new one.

Raises `InvalidError` for what cannot be stored, and `ConflictError` when a patch itself names another uid or resource
version than the object has, as clients of Kubernetes may do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from lapse.kube.errors import ConflictError, InvalidError
from lapse.kube.resources import Document
from lapse.objects.metadata_rules import metadata_problems, namespace_problems

if TYPE_CHECKING:
    from lapse.kube.resources import Json, Kind

LARGEST_DOCUMENT: Final = 1536 * 1024
"""1.5 MiB, what etcd takes. It is no limit of ours, but what works here must work on Kubernetes."""
_STAMPS_SIZE: Final = 256
"""More than what the store adds to a new document."""
_FILLED_IN: Final = ("uid", "resourceVersion", "generation", "creationTimestamp")
_NEVER_STORED: Final = ("deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink")
_EMPTY_IS_ABSENT: Final = ("labels", "annotations", "ownerReferences", "finalizers")
_encoder: Final = msgspec.json.Encoder(order="deterministic")
encode: Final = _encoder.encode
decode: Final = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class Draft:
    """A new object, checked, that lacks only what is known when it is stored."""

    metadata: Json
    rest: dict[str, Any]
    """Encoded already: a large document must not be encoded while others wait for the write lock."""
    owners: list[str]

    def encode(self, *, uid: str, version: int, created: str) -> bytes:
        """Return the stored form."""
        stamps = {"uid": uid, "resourceVersion": str(version), "generation": 1, "creationTimestamp": created}
        return encode({**self.rest, "metadata": {**self.metadata, **stamps}})


def draft(kind: Kind[Any], obj: Any) -> Draft:  # noqa: ANN401 - an object of the kind, or a document
    """Check a new object and take from it what is the caller's to say."""
    name = _name_of(obj)
    body = as_json(kind, name, kind.body(obj))
    metadata = _metadata(kind, name, body)
    for field in _FILLED_IN:
        metadata.pop(field, None)
    if kind.status:
        body.pop("status", None)
    body["metadata"] = metadata
    _check(kind, name, body, None)
    rest = {field: msgspec.Raw(encode(value)) for field, value in body.items() if field != "metadata"}
    size = sum(len(bytes(value)) for value in rest.values()) + len(encode(metadata)) + _STAMPS_SIZE
    check_size(kind, name, size)
    return Draft(metadata=metadata, rest=rest, owners=owners_of(body))


def patched(kind: Kind[Any], old: Json, changes: Json) -> Json:
    """Return ``old`` with ``changes`` to anything but the status, and with the generation that follows."""
    was = old["metadata"]
    name = was["name"]
    new: Json = merge(old, changes)
    if kind.status:
        new.pop("status", None)
        if "status" in old:
            new["status"] = old["status"]
    metadata = _metadata(kind, name, new)
    _check_identity(kind, metadata, was)
    for field in (*_FILLED_IN, "name", "namespace"):
        metadata.pop(field, None)
        if field in was:
            metadata[field] = was[field]
    new["metadata"] = metadata
    if _desired(kind, new) != _desired(kind, old):
        metadata["generation"] = was.get("generation", 0) + 1
    _check(kind, name, new, old)
    return new


def with_status(kind: Kind[Any], old: Json, changes: Json) -> Json:
    """Return ``old`` with ``changes`` to the status alone."""
    new = {**old, "status": merge(old.get("status"), changes)}
    if problems := kind.validate(new, old):
        _refuse(kind, old["metadata"]["name"], "; ".join(problems))
    _check_readable(kind, old["metadata"]["name"], new)
    return new


def without_owners(old: Json, gone: set[str]) -> Json:
    """Return ``old`` without references to the uids in ``gone``."""
    references = [owner for owner in old["metadata"].get("ownerReferences", ()) if owner["uid"] not in gone]
    metadata = {**old["metadata"], "ownerReferences": references}
    if not references:
        del metadata["ownerReferences"]
    return {**old, "metadata": metadata}


def merge(target: Any, patch: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return ``target`` with ``patch`` merged in: objects member by member, null removes, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def stamped(body: Json, version: int) -> bytes:
    """Return the stored form of a changed object at its new version."""
    return encode({**body, "metadata": {**body["metadata"], "resourceVersion": str(version)}})


def check_size(kind: Kind[Any], name: object, size: int) -> None:
    """Refuse a document that is too large."""
    if size > LARGEST_DOCUMENT:
        _refuse(kind, name, f"it has {size} bytes; expected at most {LARGEST_DOCUMENT}")


def owners_of(body: Json) -> list[str]:
    """Return the uids of the owners, each once."""
    return list(dict.fromkeys(owner["uid"] for owner in body["metadata"].get("ownerReferences", ())))


def as_json(kind: Kind[Any], name: object, value: Any) -> Json:  # noqa: ANN401 - whatever a caller gave
    """Return ``value`` as a JSON object of its own, which nobody else holds."""
    try:
        found = decode(encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        _refuse(kind, name, f"it cannot be written as JSON ({error})")
    if not isinstance(found, dict):
        _refuse(kind, name, "it is not a JSON object")
    return found


def check_namespace(kind: Kind[Any], name: object, namespace: str | None) -> None:
    """Refuse a namespace where there is none, and the lack of one where there is; nothing is said about its form.

    Where nothing can be, nothing is found: that is an answer, not a mistake.
    """
    if bool(namespace) is not kind.namespaced:
        _refuse(kind, name, "; ".join(namespace_problems(namespace, namespaced=kind.namespaced)))


def _metadata(kind: Kind[Any], name: object, body: Json) -> Json:
    """Return a copy of the metadata without what is never stored."""
    for field, expected in (("apiVersion", kind.api_version), ("kind", kind.kind)):
        if body.get(field) != expected:
            _refuse(kind, name, f"{field} is {body.get(field)!r}; expected {expected!r}")
    found = body.get("metadata") or {}
    if not isinstance(found, dict):
        _refuse(kind, name, "metadata is not a JSON object")
    metadata = {field: value for field, value in found.items() if field not in _NEVER_STORED}
    for field in _EMPTY_IS_ABSENT:
        if not metadata.get(field, True):
            del metadata[field]
    if not metadata.get("namespace", True):
        del metadata["namespace"]
    if "finalizers" in metadata:
        _refuse(kind, name, "metadata.finalizers is set; expected none, as the embedded store has no finalizers")
    return metadata


def _check_identity(kind: Kind[Any], metadata: Json, was: Json) -> None:
    for field in ("name", "namespace"):
        # As Kubernetes has it, a namespace may be left out, the name not.
        if (said := metadata.get(field)) != was.get(field) and (field == "name" or said is not None):
            _refuse(kind, was["name"], f"the patch makes metadata.{field} {said!r}; it cannot be changed")
    for field in ("uid", "resourceVersion"):
        if (said := metadata.get(field)) and said != was[field]:
            problem = f"the patch says that its {field} is {said}, it is {was[field]}"
            raise ConflictError(kind=kind.kind, name=was["name"], problem=problem)


def _check(kind: Kind[Any], name: object, body: Json, old: Json | None) -> None:
    problems = [*metadata_problems(body["metadata"], namespaced=kind.namespaced)]
    problems += kind.validate(body, old)
    if problems:
        _refuse(kind, name, "; ".join(problems))
    _check_readable(kind, name, body)


def _check_readable(kind: Kind[Any], name: object, body: Json) -> None:
    """Refuse what its own kind could not read again: one such object would break every list."""
    try:
        found = kind.convert(body)
        if isinstance(found, Document):
            _ = found.metadata
    except msgspec.ValidationError as error:
        _refuse(kind, name, str(error))


def _desired(kind: Kind[Any], body: Json) -> bytes:
    """Return what a change of raises the generation: as bytes, because Python takes 1 and true for the same."""
    apart = ("metadata", "status") if kind.status else ("metadata",)
    return encode({field: value for field, value in body.items() if field not in apart})


def _name_of(obj: Any) -> object:  # noqa: ANN401 - an object of the kind, or a document
    body = obj.body if isinstance(obj, Document) else obj
    if isinstance(body, dict):
        metadata = body.get("metadata")
        return metadata.get("name", "") if isinstance(metadata, dict) else ""
    return body.metadata.name


def _refuse(kind: Kind[Any], name: object, problem: str) -> NoReturn:
    raise InvalidError(kind=kind.kind, name=name, problem=problem)
