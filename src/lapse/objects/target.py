"""The target of all domains whose things are objects: ends an object by deleting it, or by moving it to the trash.

A deletion compares uid and version, so it removes exactly what was decided about, or nothing. In the embedded store
holds are looked for again in the transaction of the deletion. On Kubernetes each deletion is a call of its own.

With a trash (`lapse.objects.trash.moves`) what is ended is there before the act; an artifact is not deleted at all, and
the act gives it to the trash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from lapse.engine.domain import Result
from lapse.engine.journal.port import Outcome
from lapse.engine.safety.holds import HeldError
from lapse.kube.errors import ConflictError, NotFoundError, StoreUnavailableError
from lapse.objects.packing.checkpoints import some_at_once
from lapse.objects.port import Deletion
from lapse.objects.trash.rules import is_trash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lapse.core.clock import UnixNs
    from lapse.engine.domain import Action, Also
    from lapse.engine.safety.holds import Hold, HoldDoubt
    from lapse.kube.resources import Json, Kind, Object, ObjectKey, OwnerReference
    from lapse.objects.port import HoldLookup, ObjectStore, TransactionalStore
    from lapse.objects.trash.moves import ObjectTrash, PackedPage

_ENDED: Final = Result(Outcome.ENDED)
_TOGETHER: Final = 128
"""Deletions of one transaction: few enough that writers beside it wait for milliseconds."""
_PACKED_TOGETHER: Final = 500
"""Objects of one page of the trash: what it costs beside the deletions is then a small part of them."""
_AT_ONCE: Final = 64
"""Deletions that are under way at once, where each is a call of its own."""


class ObjectHandle(NamedTuple):
    """Which object it is, and who owned it when it was decided on (None: that was not read)."""

    kind: Kind[Any]
    key: ObjectKey
    owners: tuple[OwnerReference, ...] | None = None
    no_trash: str = ""
    """Why it does not go to the trash, if that is not wanted."""
    is_trash: bool = False
    """Whether it is a trash keeper, and so ends for good."""
    instead: Json | None = None
    """The merge patch that ends it in place of a deletion; set on its way to the trash."""
    page: PackedPage | None = None
    """The page of the trash that has a copy of it."""

    @classmethod
    def of(cls, kind: Kind[Any], obj: Object, *, no_trash: str = "") -> ObjectHandle:
        """Return the handle of an object as it was read."""
        meta = obj.metadata
        return cls(kind, meta.key, meta.owner_references, no_trash=no_trash, is_trash=is_trash(meta))


class ObjectTarget:
    """A `lapse.engine.domain.Target` over one store. Handles are `ObjectHandle`."""

    def __init__(self, store: ObjectStore, holds: HoldLookup, *, trash: ObjectTrash | None = None) -> None:
        """Delete in ``store`` what nothing in ``holds`` keeps; without a ``trash`` it is gone for good."""
        self._store, self._holds, self._trash = store, holds, trash
        self.database = store.database
        alone = 1 if store.database is None else _TOGETHER
        self.batch = alone if trash is None else _PACKED_TOGETHER

    async def holds_over(self, actions: Sequence[Action], now: UnixNs) -> Sequence[Hold | HoldDoubt | None]:
        """See `Target`."""
        return await self._holds.holds_over([_deletion(one) for one in actions], now)

    async def into_trash(self, actions: Sequence[Action], now: UnixNs) -> Sequence[Action | Exception]:
        """See `lapse.engine.trash.TrashingTarget`."""
        return actions if self._trash is None else await self._trash.take(actions, direct=self._store, now=now)

    async def apply(self, actions: Sequence[Action], *, also: Also | None) -> Sequence[Result]:
        """See `Target`. Of more than fit in one transaction, each part is one."""
        if also is not None:
            done = await self._apply_together(actions, also)
        elif len(actions) == 1:  # a sweep has workers of its own: a task for each would be for nothing
            done = [await self._end(actions[0])]
        else:
            done = await some_at_once(self._end, actions, most=_AT_ONCE)
        if self._trash is not None:
            await self._trash.note(actions, done)
        return done

    async def is_in_doubt(self, error: Exception) -> bool:
        """See `Target`."""
        return isinstance(error, StoreUnavailableError)

    async def _apply_together(self, actions: Sequence[Action], also: Also) -> list[Result]:
        store, done = cast("TransactionalStore", self._store), list[Result]()
        refusals: Sequence[Exception | None]
        for start in range(0, len(actions), _TOGETHER):
            deletions = [_deletion(one) for one in actions[start : start + _TOGETHER]]
            try:
                refusals = await store.delete_all(deletions, also=_shifted(also, start))
            except Exception as error:
                if not done:
                    raise
                # Earlier parts are carried out, and have their rows: only this one can be told to have failed.
                refusals = [error] * len(deletions)
            done += [_result(refusal) for refusal in refusals]
        return done

    async def _end(self, action: Action) -> Result:
        handle: ObjectHandle = action.handle
        try:
            if handle.instead is not None:
                await self._store.patch(handle.kind, handle.key, handle.instead, uid=action.uid, version=action.version)
            else:
                await self._store.delete(handle.kind, handle.key, uid=action.uid, version=action.version)
        except Exception as error:  # noqa: BLE001 - what came of one does not touch the others
            return _result(error)
        return _ENDED


def _shifted(also: Also, start: int) -> Also:
    """Return what writes beside a part of a batch that begins at ``start``."""
    return also if start == 0 else lambda cursor, places: also(cursor, [start + place for place in places])


def _result(refusal: Exception | None) -> Result:
    match refusal:
        case None:
            return _ENDED
        case NotFoundError():
            return Result(Outcome.GONE, refusal)
        case ConflictError():
            return Result(Outcome.CHANGED, refusal)
        case HeldError():
            return Result(Outcome.HELD, refusal)
    return Result(Outcome.FAILED, refusal)


def _deletion(action: Action) -> Deletion:
    handle: ObjectHandle = action.handle
    return Deletion(handle.kind, handle.key, action.uid, action.version, handle.owners, handle.instead)
