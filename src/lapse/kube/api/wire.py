"""Wire format of the Kubernetes API: paths, queries and bodies of requests, and objects out of responses. Pure.

Responses are read straight into the type of the kind, never into dictionaries first; only a `Document` is a dictionary.
What cannot be read is `StoreUnavailableError`: it proves nothing about the object.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast
from urllib.parse import quote, urlencode

import msgspec

from lapse.kube.api.failures import failure
from lapse.kube.errors import InvalidError, StoreUnavailableError
from lapse.kube.resources import (
    NO_LABELS,
    Document,
    Event,
    EventType,
    Json,
    Kind,
    Object,
    ObjectKey,
    Page,
    PartialObject,
    Struct,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

T = TypeVar("T", bound=Object)
I = TypeVar("I")  # noqa: E741 - an item
E = TypeVar("E", bound=Object)

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
_PARTIAL: Final = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1,application/json"
_API_VERSION: Final = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?/)?[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_NO_PART_OF_NAMES: Final = re.compile(r"[/%\x00-\x1f\x7f]")
_PAIR: Final = re.compile(r"[A-Za-z0-9._/-]+=[A-Za-z0-9._-]*")


class _ListMeta(Struct, frozen=True):
    resource_version: str
    continue_: str | None = msgspec.field(default=None, name="continue")


class _List(Struct, Generic[I], frozen=True):
    kind: str
    metadata: _ListMeta
    items: tuple[I, ...] | None  # null: an empty one, as some servers write it


class _Envelope(Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Version(Struct, frozen=True):
    resource_version: str = ""


class _Versioned(Struct, frozen=True):
    metadata: _Version = _Version()


# --- requests ---------------------------------------------------------------------------------------------------------


def is_api_version(text: str) -> bool:
    """Whether this can be a group and version: anything else might be an address of something else."""
    return _API_VERSION.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Whether an object can have this name: a server takes ``x/status`` for a part of x, also when it is encoded."""
    return text not in {"", ".", ".."} and not _NO_PART_OF_NAMES.search(text)


def root(api_version: str) -> str:
    """Where the kinds of a version are found."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


@lru_cache(maxsize=1024)
def collection(kind: Kind[Any], namespace: str | None) -> str:
    """Where all objects of a kind are found, of one namespace or of all."""
    space = "" if namespace is None else f"/namespaces/{quote(namespace, safe='')}"
    return f"{root(kind.api_version)}{space}/{kind.plural}"


def address(kind: Kind[Any], key: ObjectKey, part: str = "") -> str:
    """Where one object is found; raises `InvalidError` for a key that would mean a collection or something else."""
    space_fits = key.namespace is None if not kind.namespaced else key.namespace is not None and is_name(key.namespace)
    if not space_fits or not is_name(key.name):
        need = "a namespace and a name" if kind.namespaced else "a name and no namespace"
        raise InvalidError(kind=kind.kind, name=key, problem=f"{kind.kind} needs {need} that an object can have")
    return f"{collection(kind, key.namespace)}/{quote(key.name, safe='')}{part}"


def list_query(
    kind: Kind[Any],
    *,
    labels: Mapping[str, str],
    fields: Mapping[str, str] = NO_LABELS,
    limit: int | None,
    after: str | None,
) -> str:
    """Ask for a page."""
    chosen, looked_at = _selector(kind, labels), _selector(kind, fields)
    asked = {"labelSelector": chosen, "fieldSelector": looked_at, "limit": limit, "continue": after}
    return urlencode({name: value for name, value in asked.items() if value})


def _selector(kind: Kind[Any], wanted: Mapping[str, str]) -> str:
    selector = [f"{name}={value}" for name, value in wanted.items()]
    for one in selector:
        if not _PAIR.fullmatch(one):  # a comma would make another question of it
            raise InvalidError(kind=kind.kind, name="list", problem=f"{one} is not a label or field with a value")
    return ",".join(selector)


def watch_query(since: str, seconds: int) -> str:
    """Ask for changes, with bookmarks, for so long."""
    return urlencode({"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": since, "timeoutSeconds": seconds})


def accept(kind: Kind[Any], suffix: str = "") -> str:
    """Say what we can read: of a `metadata_only` kind rather the metadata, and the whole where that is all there is."""
    return _PARTIAL.format(suffix) if kind.type is PartialObject else JSON


def with_preconditions(changes: Json, *, uid: str | None, version: str | None) -> Json:
    """Make a patch fail unless the object is that one, in that state."""
    given = {name: value for name, value in (("uid", uid), ("resourceVersion", version)) if value is not None}
    metadata = changes.get("metadata", {})
    if not given or not isinstance(metadata, dict):  # then the server has something to say about it
        return changes
    return {**changes, "metadata": {**metadata, **given}}


def delete_options(*, uid: str | None, version: str | None, propagation: str) -> bytes:
    """Ask for a deletion of that object, in that state."""
    given = {name: value for name, value in (("uid", uid), ("resourceVersion", version)) if value is not None}
    return msgspec.json.encode({"propagationPolicy": propagation, "preconditions": given})


def new_object(kind: Kind[T], obj: T | Json) -> tuple[ObjectKey, Json]:
    """Return where a new object goes and what is sent; raises `InvalidError`."""
    body = kind.body(obj)
    metadata = body.get("metadata")
    if not isinstance(metadata, dict):
        raise InvalidError(kind=kind.kind, name="?", problem="metadata is not an object")
    space, name = metadata.get("namespace"), metadata.get("name")
    if kind.namespaced and not (isinstance(space, str) and space):
        raise InvalidError(kind=kind.kind, name=name, problem="it names no namespace")
    sent = {field: value for field, value in metadata.items() if field != "resourceVersion"}  # refused, not ignored
    return ObjectKey(space if kind.namespaced else None, str(name)), {**body, "metadata": sent}


# --- responses --------------------------------------------------------------------------------------------------------


def read_object(kind: Kind[T], content: bytes, *, name: str | None = None) -> T:
    """Read one object, which must be the one asked for if that had a name."""
    try:
        found = kind.decode(content)
        if name is None or found.metadata.name == name:
            return found
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError) as error:  # a document may be any JSON
        raise unreadable(kind, error) from None
    raise unreadable(kind)


@lru_cache(maxsize=256)
def _list_decoder(item: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_List[dict[str, Any] if item is Document else item], strict=False)  # type: ignore[misc]  # chosen at run time


def read_page(kind: Kind[T], content: bytes) -> Page[T]:
    """Read a page of a list. Nothing less than a list will do: from an empty one follows that all objects are gone."""
    try:
        found = _list_decoder(kind.type).decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise unreadable(kind, error) from None
    if not found.kind.endswith("List") or not found.metadata.resource_version:
        raise unreadable(kind)
    items = found.items or ()
    if kind.type is Document:  # the items of built-in kinds do not say what they are
        items = tuple(cast("T", Document(kind.body(item))) for item in items)
    return Page(items, found.metadata.resource_version, found.metadata.continue_ or None)


def read_event(kind: Kind[E], line: bytes, *, since: str) -> Event[E]:
    """Read one line of a watch; raises what an ERROR means."""
    try:
        told = msgspec.json.decode(line, type=_Envelope)
        if told.type == "ERROR":
            code = msgspec.json.decode(told.object, type=_Code).code
            raise failure(code, bytes(told.object), kind=kind, name=since)
        if told.type == "BOOKMARK":
            version = msgspec.json.decode(told.object, type=_Versioned).metadata.resource_version
            return Event(EventType.BOOKMARK, None, version)
        obj = kind.decode(bytes(told.object))
        return Event(EventType(told.type), obj, obj.metadata.resource_version)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, AttributeError) as error:
        raise unreadable(kind, error) from None


class _Code(Struct, frozen=True):
    code: int = 500


def unreadable(kind: Kind[Any], error: Exception | None = None) -> StoreUnavailableError:
    """Say that an answer is not what it should be; where, but not what stands there."""
    where = f": {error}" if isinstance(error, msgspec.ValidationError) else ""
    return StoreUnavailableError(
        problem=f"it answered with something that is not a {kind.kind} of {kind.api_version}{where}"
    )


class Lines:
    """Cuts a stream into lines. Costs what it is given, also when a line comes in many pieces."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Return the lines that are complete now; empty ones are left out."""
        first, *rest = data.split(b"\n")
        self._pieces.append(first)
        for piece in rest:
            line = b"".join(self._pieces)
            self._pieces = [piece]
            if line.strip():
                yield line
