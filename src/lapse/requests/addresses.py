"""Addresses and names of kinds and objects: ``vcr``, ``v1:ConfigMap``, ``vcr/default/nightly``, ``ret-vcr-UID``. Pure.

Addresses are those of `lapse.core.address`. Where people type them, the short names of Kubernetes' kinds do as well:
``pvc/default/data`` is ``PersistentVolumeClaim/default/data``. Whether something exists is for the store to say.

Names of what controllers make are deterministic: a second reconcile finds what the first one made, also after a crash
in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from lapse.core.address import Address, AddressError
from lapse.core.errors import UsageError
from lapse.kube.resources import ObjectKey
from lapse.requests.api.kinds import (
    MANIFEST_CHECKPOINT,
    MANIFEST_CHUNK,
    REQUEST_KINDS,
)
from lapse.requests.api.upstream import ALL_KINDS, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lapse.kube.resources import Kind


def keeper_name(short: str, request_uid: str) -> str:
    """Name the keeper of a request; ``short`` is vcr, vrr or mcr."""
    return f"ret-{short}-{request_uid}"


def snapshot_name(request_uid: str, target_uid: str) -> str:
    """Name the VolumeSnapshotContent that captures one claim for one request."""
    return f"snapshot-{request_uid}-{_hex(target_uid, 12)}"


def checkpoint_name(request_uid: str) -> str:
    """Name the checkpoint of a manifest capture."""
    return f"mcp-{_hex(request_uid, 16)}"


def _hex(text: str, digits: int) -> str:
    return sha256(text.encode()).hexdigest()[:digits]


KEEPER: Final = "keeper"
DEFAULT_NAMESPACE: Final = "default"
ARTIFACT_KINDS: Final[tuple[Kind[Any], ...]] = (VOLUME_SNAPSHOT_CONTENT, MANIFEST_CHECKPOINT, PERSISTENT_VOLUME)
"""What a keeper may own; the chunks of a checkpoint belong to the checkpoint."""
_GROUPS: Final[dict[str, tuple[Kind[Any], ...]]] = {
    "requests": REQUEST_KINDS,
    "artifacts": ARTIFACT_KINDS,
    "claims": (PERSISTENT_VOLUME_CLAIM,),
    "checkpoints": (MANIFEST_CHECKPOINT,),
    "chunks": (MANIFEST_CHUNK,),
}
LISTED: Final = ("vcr", "vrr", "mcr", "csched", KEEPER, "snapshot", "checkpoint", "volume", "pvc")
"""The words that a message about a wrong one offers; others are understood too."""


class UnknownNameError(UsageError, ValueError):
    """{given!r} is not a kind. Expected {known}."""


class PlaceError(AddressError):
    """{text!r} is not the address of a request or of something that it made: {problem}.

    Expected KIND/NAMESPACE/NAME as in vcr/default/nightly, or KIND/NAME as in keeper/NAME; kinds: {known}.
    """


class OtherNamespaceError(UsageError):
    """{text} names another namespace than --namespace {namespace}. Leave one of the two out."""


def short_name(kind: Kind[Any]) -> str:
    """Return what a kind is called in lists and in addresses as people type them."""
    return kind.word or kind.short or kind.kind


def find_kinds(words: Iterable[str]) -> tuple[Kind[Any], ...]:
    """Return the kinds that words name, each once: short names, plurals, kind names, requests, artifacts, claims."""
    found: dict[Kind[Any], None] = {}
    for word in words:
        group = _GROUPS.get(word.lower())
        found.update(dict.fromkeys(group or (_kind(word, known=", ".join((*LISTED, "requests", "artifacts"))),)))
    return tuple(found)


def find_target_kind(text: str) -> Kind[Any]:
    """Return the kind that a target names, as ``ConfigMap``, ``cm`` or ``v1:ConfigMap``."""
    known = ", ".join(f"{kind.kind} ({short_name(kind)})" for kind in ALL_KINDS)
    api_version, colon, name = text.rpartition(":")
    kind = _kind(name, known=known, given=text)
    if colon and kind.api_version != api_version:
        raise UnknownNameError(given=text, known=f"{kind.api_version}:{kind.kind}, or one of {known}")
    return kind


def _kind(word: str, *, known: str, given: str | None = None) -> Kind[Any]:
    wanted = word.lower()
    for kind in ALL_KINDS:
        names = {kind.kind.lower(), kind.plural, kind.short, short_name(kind).lower(), f"{short_name(kind).lower()}s"}
        if wanted and wanted in names:
            return kind
    raise UnknownNameError(given=word if given is None else given, known=known)


@dataclass(frozen=True, slots=True)
class Located:
    """Where an object is."""

    kind: Kind[Any]
    key: ObjectKey

    @property
    def address(self) -> Address:
        """The one spelling for programs, the journal and HTTP."""
        return self.kind.address(self.key)

    def __str__(self) -> str:
        """Print it short, as people type it."""
        return str(Address(short_name(self.kind), self.key.namespace, self.key.name))


def locate(text: str, namespace: str | None = None) -> Located:
    """Read an address; raises `PlaceError` for what is none, or does not fit its kind.

    Where ``namespace`` is given, an address may leave its own out: ``vcr/nightly``.
    """
    word, _, rest = text.partition("/")
    kind = _addressed(word)
    if kind is None:
        raise _wrong(text, f"{word!r} is not a kind")
    if kind.namespaced and namespace is not None and rest and "/" not in rest:
        rest = f"{namespace}/{rest}"
    try:
        address = Address.parse(f"{kind.kind}/{rest}")
    except AddressError as error:
        raise _wrong(text, str(error.details["problem"])) from error
    if kind.namespaced and address.scope is None:
        raise _wrong(text, f"{word} takes NAMESPACE/NAME, as in {word}/default/{address.name}")
    if not kind.namespaced and address.scope is not None:
        raise _wrong(text, f"{word} takes one NAME: it has no namespace")
    return Located(kind, ObjectKey(address.scope, address.name))


def locate_in(namespace: str, text: str) -> Located:
    """Read what was typed beside ``--namespace``; raises `OtherNamespaceError` where the two contradict each other."""
    place = locate(text, namespace)
    if namespace not in {DEFAULT_NAMESPACE, place.key.namespace} and place.key.namespace is not None:
        raise OtherNamespaceError(text=text, namespace=namespace)
    return place


def _wrong(text: str, problem: str) -> PlaceError:
    return PlaceError(text=text, problem=problem, known=", ".join(LISTED))


def _addressed(word: str) -> Kind[Any] | None:
    """Return the kind of an address. Exact, unlike the words for lists: an address has one spelling."""
    name, _, group = word.partition(".")
    for kind in ALL_KINDS:
        if word in {short_name(kind), kind.short} or (name, group) == (kind.kind, kind.group):
            return kind
    return None
