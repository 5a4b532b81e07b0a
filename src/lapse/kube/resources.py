"""Objects as the Kubernetes API has them: kinds, metadata, owners, conditions, pages and watch events.

Objects are immutable values, because caches share them. A kind that we know is a msgspec structure with the fields we
need and no others; therefore nobody writes a whole object back, only patches, and fields unknown to us are never lost.
A kind that we do not know is a `Document`, which keeps everything.

Times are RFC 3339 text with whole seconds, in UTC, as Kubernetes writes them: see `lapse.core.timestamps`.

Conditions say what became of an object, as Kubernetes' own kinds do it. Which reasons there are, and which of them are
final, is the business of the domain that writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, NamedTuple, Protocol, TypeVar, cast

import msgspec
from msgspec import Meta

from lapse.core.address import Address
from lapse.kube.crd.rules import Time

if TYPE_CHECKING:
    from collections.abc import Iterable

Json = dict[str, Any]
"""A JSON object."""
Problems = Sequence[str]
"""What is wrong with a document, one clause each; empty when nothing is."""


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """Base of all that is read from and written to an API: camel case there, snake case here.

    A subclass says ``frozen=True`` again: msgspec inherits it, type checkers do not. Values made from JSON have no
    cycles, so the garbage collector need not walk over them: with 100 000 of them cached, that halves its longest
    pause, in which nothing else happens.
    """


class OwnerReference(Struct, frozen=True):
    """Who must exist for this object to exist. ``controller`` marks the one owner that manages it."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Struct, frozen=True):
    """What every object has. What the store fills in is empty before it did."""

    name: str = ""
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def key(self) -> ObjectKey:
        """Where it is found among the objects of its kind."""
        return ObjectKey(self.namespace, self.name)

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that manages it, if there is one."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class ObjectKey(NamedTuple):
    """The name of an object within its kind; ``namespace`` is None for kinds of the whole cluster."""

    namespace: str | None
    name: str

    def __str__(self) -> str:
        """Print as people write it."""
        return self.name if self.namespace is None else f"{self.namespace}/{self.name}"


class Object(Protocol):
    """Anything that a store holds."""

    @property
    def metadata(self) -> ObjectMeta:
        """See `ObjectMeta`."""
        ...


@dataclass(frozen=True)
class Document:
    """An object of any kind, complete and untyped."""

    body: Json

    @cached_property
    def metadata(self) -> ObjectMeta:
        """The metadata, typed."""
        return msgspec.convert(self.body.get("metadata", {}), ObjectMeta, strict=False)


T = TypeVar("T", bound=Object)
T_co = TypeVar("T_co", bound=Object, covariant=True)
Validate = Callable[[Json, "Json | None"], Problems]
"""Judges a document that is to be stored; the second argument is the one that it replaces, None for a new one."""


def _no_problems(_new: Json, _old: Json | None) -> Problems:
    return ()


@dataclass(frozen=True)
class Kind(Generic[T]):
    """One kind of objects: how the API names it and what it is read as."""

    api_version: str
    kind: str
    plural: str
    type: type[T]
    namespaced: bool = True
    status: bool = True
    """Whether status is a write path of its own. Kubernetes' own kinds have it wherever they have a status."""
    short: str = ""
    """What people type: vcr."""
    word: str = ""
    """How its addresses begin, where they begin with a word of ours: snapshot."""
    follows: tuple[str, ...] = ()
    """The path to the reference (apiVersion, kind, namespace, name, uid) of the object that one of these follows."""
    validate: Validate = field(default=_no_problems, repr=False, compare=False)

    def __hash__(self) -> int:
        """Kinds are the keys of many dictionaries."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.api_version, self.kind))

    @property
    def group(self) -> str:
        """The API group, empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def full_name(self) -> str:
        """``KIND.GROUP``, and ``KIND`` for the core group."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def address(self, key: ObjectKey) -> Address:
        """Return the address of an object of this kind."""
        return Address(self.word or self.full_name, key.namespace, key.name)

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[T]:
        return msgspec.json.Decoder(self.type, strict=False)

    def decode(self, raw: bytes) -> T:
        """Read one object from JSON."""
        if self.type is Document:
            return cast("T", Document(msgspec.json.decode(raw)))
        return self._decoder.decode(raw)

    def convert(self, body: Json) -> T:
        """Read one object from a decoded document."""
        if self.type is Document:
            return cast("T", Document(body))
        return msgspec.convert(body, self.type, strict=False)

    def body(self, obj: T | Json) -> Json:
        """Return an object as a document, with apiVersion and kind."""
        found: Json = obj if isinstance(obj, dict) else obj.body if isinstance(obj, Document) else _builtins(obj)
        return {"apiVersion": self.api_version, "kind": self.kind, **found}


def _builtins(obj: Any) -> Json:  # noqa: ANN401 - any structure of ours
    return cast("Json", msgspec.to_builtins(obj))


def untyped(api_version: str, kind: str, plural: str, *, namespaced: bool = True) -> Kind[Document]:
    """Name a kind that is read as it is."""
    return Kind(api_version, kind, plural, Document, namespaced=namespaced)


class PartialObject(Struct, frozen=True):
    """An object of which only the metadata was asked for."""

    metadata: ObjectMeta


def by_word(kinds: Iterable[Kind[Any]], word: str) -> Kind[Any] | None:
    """Return the kind whose addresses begin with ``word``; None when there is none."""
    return next((kind for kind in kinds if word in {kind.word or kind.full_name, kind.full_name}), None)


def words_of(kinds: Iterable[Kind[Any]]) -> list[str]:
    """Return the words that the addresses of these kinds begin with, in order."""
    return sorted(kind.word or kind.full_name for kind in kinds)


def metadata_only(kind: Kind[Any]) -> Kind[PartialObject]:
    """Name the same kind, read without spec and status: a server that can sends less than half."""
    return replace(kind, type=PartialObject)


class EventType(StrEnum):
    """What a watch reports."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    """Nothing happened up to this version: a later watch may start from it."""


@dataclass(frozen=True, slots=True)
class Event(Generic[T_co]):
    """One report of a watch; ``object`` is None for a bookmark, the last state for a deletion."""

    type: EventType
    object: T_co | None
    resource_version: str


@dataclass(frozen=True, slots=True)
class Page(Generic[T_co]):
    """A part of a list. All pages of one list show the same moment, the one named by ``resource_version``."""

    items: tuple[T_co, ...]
    resource_version: str
    next: str | None = None
    """Asks for the next page; None on the last one."""


NO_LABELS: Final[Mapping[str, str]] = {}


READY: Final = "Ready"
"""The only type of condition that our kinds have."""


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Struct, frozen=True):
    """One statement about an object."""

    # Status and reason are text: a reader must survive values that it does not know.
    type: Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 316})]
    status: Annotated[str, Meta(extra_json_schema={"enum": [*ConditionStatus]})]
    reason: Annotated[str, Meta(extra_json_schema={"maxLength": 1024})] = ""
    message: Annotated[str, Meta(extra_json_schema={"maxLength": 32768})] = ""
    last_transition_time: Time | None = None
    """When ``status`` last became what it is; a change of reason or message alone does not move it."""
    observed_generation: int | None = None


Conditions = Annotated[
    tuple[Condition, ...],
    Meta(
        extra_json_schema={
            "maxItems": 32,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        }
    ),
]


def ready_condition(conditions: Iterable[Condition] | None) -> Condition | None:
    """Return the Ready condition, if there is one."""
    for one in conditions or ():  # asked of everything that is listed: a generator would take twice the time
        if one.type == READY:
            return one
    return None
