"""The target of all domains whose things are objects: ends an object by deleting it.

A deletion compares uid and version, so it removes exactly what was decided about, or nothing. In the embedded store
holds are looked for again in the transaction of the deletion. On Kubernetes each deletion is a call of its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from lapse.engine.domain import Result
from lapse.engine.journal.port import Outcome
from lapse.engine.safety.holds import HeldError
from lapse.kube.errors import ConflictError, NotFoundError, StoreUnavailableError
from lapse.objects.port import Deletion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lapse.core.clock import UnixNs
    from lapse.engine.domain import Action, Also
    from lapse.engine.safety.holds import Hold, HoldDoubt
    from lapse.kube.resources import Kind, Object, ObjectKey, OwnerReference
    from lapse.objects.port import HoldLookup, ObjectStore, TransactionalStore

_ENDED: Final = Result(Outcome.ENDED)
_TOGETHER: Final = 128
"""Deletions of one transaction: few enough that writers beside it wait for milliseconds."""


class ObjectHandle(NamedTuple):
    """Which object it is, and who owned it when it was decided on (None: that was not read)."""

    kind: Kind[Any]
    key: ObjectKey
    owners: tuple[OwnerReference, ...] | None = None

    @classmethod
    def of(cls, kind: Kind[Any], obj: Object) -> ObjectHandle:
        """Return the handle of an object as it was read."""
        return cls(kind, obj.metadata.key, obj.metadata.owner_references)


class ObjectTarget:
    """A `lapse.engine.domain.Target` over one store. Handles are `ObjectHandle`."""

    def __init__(self, store: ObjectStore, holds: HoldLookup) -> None:
        """Delete in ``store`` what nothing in ``holds`` keeps."""
        self._store, self._holds = store, holds
        self.database = store.database
        self.batch = 1 if store.database is None else _TOGETHER

    async def holds_over(self, actions: Sequence[Action], now: UnixNs) -> Sequence[Hold | HoldDoubt | None]:
        """See `Target`."""
        return await self._holds.holds_over([_deletion(one) for one in actions], now)

    async def apply(self, actions: Sequence[Action], *, also: Also | None) -> Sequence[Result]:
        """See `Target`."""
        if also is not None:
            store = cast("TransactionalStore", self._store)
            refusals = await store.delete_all([_deletion(one) for one in actions], also=also)
            return [_result(refusal) for refusal in refusals]
        if len(actions) == 1:  # a sweep has workers of its own: a task for each would be for nothing
            return [await self._delete(actions[0])]
        return await asyncio.gather(*[self._delete(one) for one in actions])

    async def is_in_doubt(self, error: Exception) -> bool:
        """See `Target`."""
        return isinstance(error, StoreUnavailableError)

    async def _delete(self, action: Action) -> Result:
        handle: ObjectHandle = action.handle
        try:
            await self._store.delete(handle.kind, handle.key, uid=action.uid, version=action.version)
        except Exception as error:  # noqa: BLE001 - what came of one does not touch the others
            return _result(error)
        return _ENDED


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
    return Deletion(handle.kind, handle.key, action.uid, action.version, handle.owners)
