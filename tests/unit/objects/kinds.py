"""Kinds that exist only in tests, and what is needed to work with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from lapse.core.clock import VirtualClock
from lapse.kube.resources import Document, Json, Kind, ObjectKey, ObjectMeta, Problems, Struct, untyped

if TYPE_CHECKING:
    from lapse.kube.resources import Object
    from lapse.objects.embedded import EmbeddedStore


class BoxSpec(Struct, frozen=True):
    size: int = 0
    content: str = ""


class BoxStatus(Struct, frozen=True):
    phase: str = ""
    weight: int | None = None


class Box(Struct, frozen=True):
    """A namespaced kind with a type."""

    metadata: ObjectMeta
    spec: BoxSpec = msgspec.field(default_factory=BoxSpec)
    status: BoxStatus = msgspec.field(default_factory=BoxStatus)


def size_never_shrinks(new: Json, old: Json | None) -> Problems:
    before = 0 if old is None else old.get("spec", {}).get("size", 0)
    now = new.get("spec", {}).get("size", 0)
    return [f"spec.size is {now}; expected at least {before}"] if isinstance(now, int) and now < before else []


BOX: Final = Kind("test.lapse.dev/v1", "Box", "boxes", Box, validate=size_never_shrinks)
SHELF: Final = untyped("test.lapse.dev/v1", "Shelf", "shelves", namespaced=False)
NOTE: Final[Kind[Document]] = Kind("v1", "Note", "notes", Document, status=False)
KINDS: Final[tuple[Kind[Any], ...]] = (BOX, SHELF, NOTE)


def box(name: str = "a", namespace: str = "n", **metadata: object) -> Json:
    return {"metadata": {"name": name, "namespace": namespace, **metadata}}


def key(name: str = "a", namespace: str | None = "n") -> ObjectKey:
    return ObjectKey(namespace, name)


def owned_by(kind: Kind[Any], *owners: Object, **more: object) -> list[Json]:
    return [reference(kind, owner.metadata.name, owner.metadata.uid, **more) for owner in owners]


def reference(kind: Kind[Any], name: str, uid: str, **more: object) -> Json:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "name": name, "uid": uid, **more}


async def collected(store: EmbeddedStore) -> None:
    """Wait until the collector has nothing left to do."""
    pause = VirtualClock()
    while store.database.read("SELECT EXISTS (SELECT 1 FROM garbage)")[0][0]:
        await pause.sleep(0)
