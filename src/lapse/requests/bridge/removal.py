"""Removal of what the bridge made: by the engine's one path, as everything that Lapse ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.core.clock import UnixNs
from lapse.core.decision import Reason
from lapse.engine.domain import DELETE, Action
from lapse.engine.journal.port import Outcome
from lapse.engine.safety.holds import hold_of
from lapse.objects.target import ObjectHandle
from lapse.requests.addresses import Located
from lapse.requests.expiry import DOMAIN

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.engine.executor import Executor
    from lapse.kube.resources import Kind, Object

_GONE: Final = frozenset({Outcome.ENDED, Outcome.GONE})


class BridgeReason(Reason):
    """Why something that was made for a restore is ended."""

    RESTORE_OVER = "restore_over"
    SNAPSHOT_REPLACED = "snapshot_replaced"


class Removal:
    """Ends objects that were made for restores."""

    def __init__(self, executor: Executor, *, clock: Clock, policy: str) -> None:
        """Hand everything to ``executor``; ``policy`` is for the journal."""
        self._executor, self._clock, self._policy = executor, clock, policy
        self._ended: dict[str, str] = {}
        """By the uid of the restore: the uid of what was ended last."""

    async def remove(self, kind: Kind[Any], obj: Object, reason: BridgeReason, *, uid: str) -> bool:
        """End an object of the restore with ``uid``; return whether it is on its way, and not held or refused."""
        meta, now = obj.metadata, UnixNs(self._clock.wall_ns())
        if meta.deletion_timestamp or self._ended.get(uid) == meta.uid:
            return True  # the cache has not heard of it yet
        action = Action(
            domain=DOMAIN,
            address=Located(kind, meta.key).address,
            uid=meta.uid,
            version=meta.resource_version,
            handle=ObjectHandle.of(kind, obj, no_trash="it was made for a restore that is over"),
            action=DELETE,
            reason=reason,
            since=now,
            anchor_ns=now,
            policy=self._policy,
            hold=hold_of(meta.annotations),
            details={"restore": uid},
        )
        (result,) = await self._executor.execute([action])
        if result.outcome in _GONE:
            self._ended[uid] = meta.uid
        return result.outcome in _GONE or result.outcome is Outcome.CHANGED

    def forget(self, uid: str) -> None:
        """Drop what is known about a restore of which nothing is left."""
        self._ended.pop(uid, None)
