"""What goes into the trash of objects, and in which way. Pure.

There are two ways. An *artifact* stays as it is: a trash keeper becomes its owner. Everything else is *packed*: copied
into a checkpoint that a trash keeper owns, and then deleted. A trash keeper is a keeper in mode TTL, which the engine
sweeps like any other.

What does not come back, and why, can be asked before anything is ended (`why_not_undoable`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lapse.kube.resources import Kind, ObjectMeta, OwnerReference
    from lapse.objects.packing.checkpoints import CheckpointKinds

T = TypeVar("T")
TRASH: Final = "lapse.dev/trash"
"""A label of trash keepers."""
IN_TRASH: Final = "true"
"""Its value."""
TRASH_CONTENTS: Final = "lapse.dev/trash-contents"
"""On a trash keeper: what it was made for, as the JSON of `TrashContents`."""
TRASH_STATE: Final = "lapse.dev/trash-state"
"""On a trash keeper of packed things: the JSON of `TrashState`."""
BROUGHT_BACK: Final = "lapse.dev/brought-back"
"""On an object that came back from the trash: the uid that it had first, before it was ever there."""
MADE_FOR: Final = "lapse.dev/made-for"
"""On a keeper that was made when artifacts came back: the namespace of the request that had made them."""
_KEEPER: Final = "ObjectKeeper"
_IN_TRASH: Final = frozenset(
    {_KEEPER, "ManifestCheckpoint", "ManifestCheckpointContentChunk", "VolumeSnapshotContent", "PersistentVolume"}
)
_PREFIX: Final = "trash-"
_RUNS_AGAIN: Final = "it would run again"
_HAS_DATA: Final = "its data is not in its manifest"
_NEVER: Final[Mapping[tuple[str, str], str]] = {
    ("", "Secret"): "Secrets are never copied",
    ("", "Namespace"): "what was in it is gone with it",
    ("", "PersistentVolumeClaim"): _HAS_DATA,
    ("", "PersistentVolume"): _HAS_DATA,
    ("snapshot.storage.k8s.io", "VolumeSnapshot"): _HAS_DATA,
    ("snapshot.storage.k8s.io", "VolumeSnapshotContent"): _HAS_DATA,
    ("", "Pod"): _RUNS_AGAIN,
    ("batch", "Job"): _RUNS_AGAIN,
}
"""By group and kind: why objects are not packed. Artifacts among them need not be."""


class TrashReason(StrEnum):
    """Reasons for which a thing does not come back, beside its kind."""

    OWNS_OTHERS = "it owns other objects, which go with it"
    KEEPS_NOTHING = "it is a keeper that keeps no artifact"
    IS_TRASH = "it is the trash itself"


class TrashWay(StrEnum):
    """How things lie in the trash."""

    KEPT = "kept"
    """Artifacts that a trash keeper owns."""
    PACKED = "packed"
    """Copies in a checkpoint."""


class TrashItem(msgspec.Struct, frozen=True):
    """One thing that a trash keeper was made for."""

    address: str
    uid: str


class TrashContents(msgspec.Struct, frozen=True):
    """What a trash keeper was made for; packed things in the order of their checkpoint."""

    way: TrashWay
    domain: str
    items: list[TrashItem]


class UndoClaim(msgspec.Struct, frozen=True):
    """That somebody has begun to bring something back."""

    id: str
    """Of this undo: others may be at the same thing."""
    place: int
    since: str
    """When, as a timestamp."""


class TrashState(msgspec.Struct, frozen=True):
    """What came of packed things."""

    ended: str = ""
    """When, as a timestamp; empty while it is not known what was ended."""
    out: list[int] = msgspec.field(default_factory=list)
    """The places of those that are not in the trash: not ended after all, brought back, or emptied."""
    claims: list[UndoClaim] = msgspec.field(default_factory=list)
    """What somebody has begun to bring back: it is not emptied meanwhile."""
    packed: str = ""
    """The name of the checkpoint that has them; empty for the first one, which has the name of the keeper."""


def _unknown(_kind: Kind[Any], _obj: Any) -> None:  # noqa: ANN401 - an object of the kind
    return None


@dataclass(frozen=True, slots=True)
class TrashKinds:
    """The kinds that a trash of objects is made of; they belong to the domain that defines them."""

    keeper: Kind[Any]
    checkpoints: CheckpointKinds
    artifacts: tuple[Kind[Any], ...]
    """What keepers own, and what goes to the trash as it is."""
    records: tuple[Kind[Any], ...] = ()
    """What comes back with its status, so that nobody carries it out again."""
    size_of: Callable[[Kind[Any], Any], int | None] = field(default=_unknown)
    """Returns the bytes that an artifact costs; None where that is not known."""
    made_for: Callable[[Kind[Any], Any], str | None] = field(default=_unknown)
    """Returns the namespace of the request that has made an artifact; None where that is not known."""

    def is_keeper(self, kind: Kind[Any]) -> bool:
        """Whether objects of a kind are keepers."""
        return is_one_of(kind, (self.keeper,))

    def is_artifact(self, kind: Kind[Any], owners: Iterable[OwnerReference] | None) -> bool:
        """Whether an object is an artifact of a keeper."""
        known = (self.keeper.api_version, self.keeper.kind)
        return is_one_of(kind, self.artifacts) and any(
            (owner.api_version, owner.kind) == known for owner in owners or ()
        )


def is_one_of(kind: Kind[Any], kinds: Iterable[Kind[Any]]) -> bool:
    """Whether a kind is one of several, whatever it is read as."""
    return any((one.api_version, one.kind) == (kind.api_version, kind.kind) for one in kinds)


def first_uid(meta: ObjectMeta) -> str:
    """Return the uid that an object had before it was ever in the trash; what it made is named after that."""
    return meta.annotations.get(BROUGHT_BACK) or meta.uid


def trash_name(uid: str) -> str:
    """Name the trash keeper of what has this uid."""
    return f"{_PREFIX}{uid}"


def is_trash(keeper: ObjectMeta) -> bool:
    """Whether a keeper is one of the trash. Its label tells: keepers are not written by tenants."""
    return keeper.labels.get(TRASH) == IN_TRASH


def is_packed(group: str, kind: str) -> bool:
    """Whether objects of a kind that is no artifact are copied before they are ended, unless they own others."""
    return (group, kind) not in _NEVER


def may_be_in_trash(kind: str) -> bool:
    """Whether objects of a kind may belong to the trash, and so are nobody's candidates."""
    return kind in _IN_TRASH


def is_in_trash(kind: str, meta: ObjectMeta) -> bool:
    """Whether an object belongs to the trash: it is a trash keeper, or one owns it and no other keeper does.

    For a moment after a keeper has ended its artifacts still name it. Until garbage collection has taken that away,
    they count as not in the trash, as before.
    """
    if not may_be_in_trash(kind):
        return False
    if kind == _KEEPER:
        return is_trash(meta)
    keepers = [owner.name for owner in meta.owner_references if owner.kind == _KEEPER]
    return bool(keepers) and all(name.startswith(_PREFIX) for name in keepers)


def why_not_undoable(
    kinds: TrashKinds, kind: Kind[Any], owners: Iterable[OwnerReference] | None = (), *, owns_others: bool = False
) -> str | None:
    """Say why an object does not come back once it is ended; None when it does.

    Whether a keeper has anything to bring back is not asked here.
    """
    if kinds.is_keeper(kind) or kinds.is_artifact(kind, owners):
        return None
    never = _NEVER.get((kind.group, kind.kind))
    if never is None and is_one_of(kind, (*kinds.checkpoints, *kinds.artifacts)):
        never = _HAS_DATA
    return never or (TrashReason.OWNS_OTHERS.value if owns_others else None)


def contents_of(keeper: ObjectMeta) -> TrashContents | None:
    """Return what a trash keeper was made for; None when it says nothing that can be read."""
    return _read(keeper.annotations.get(TRASH_CONTENTS), TrashContents)


def state_of(keeper: ObjectMeta) -> TrashState:
    """Return what is known of the packed things of a trash keeper."""
    return _read(keeper.annotations.get(TRASH_STATE), TrashState) or TrashState()


def to_text(value: msgspec.Struct) -> str:
    """Return what stands in an annotation."""
    return msgspec.json.encode(value).decode()


def _read(text: str | None, kind: type[T]) -> T | None:
    try:
        return None if text is None else msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError:
        return None
