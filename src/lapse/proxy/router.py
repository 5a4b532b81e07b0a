"""Who gets in: from a request's head to the workspace it is for, or to what is answered instead.

The order is part of it. Who asks is found out before whether the workspace exists, so that a stranger learns nothing;
the answer for somebody else's workspace is that for none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lapse.proxy import pages
from lapse.proxy.hosts import workspace_of
from lapse.proxy.origins import is_foreign
from lapse.proxy.ports import Condition, Destination, Reply, Visit

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.http1.heads import RequestHead
    from lapse.proxy.limits import Limits
    from lapse.proxy.ports import Directory, Doorkeeper, Visitor, Waker

_LOOK_SECONDS: Final = 0.25
_SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Reception:
    """Decides about requests. ``suffix`` and ``scheme`` are those of the addresses that people type."""

    directory: Directory
    doorkeeper: Doorkeeper
    waker: Waker
    clock: Clock
    limits: Limits
    suffix: str
    scheme: str

    async def receive(self, head: RequestHead, peer: bytes) -> tuple[Visitor, Destination | Reply] | Reply:
        """Return who asks and the workspace, ready, or what to answer. A websocket waits until its workspace is up."""
        name = self._name(head)
        if name is None:
            return pages.NOT_FOUND
        visit = _visit(head, peer)
        visitor = await self.doorkeeper.identify(visit)
        if isinstance(visitor, Reply):
            return visitor
        found = await self.directory.find(name)
        if found is None or found.owner != visitor.name:
            return pages.NOT_FOUND
        if is_foreign(head.values, host=visit.host, scheme=self.scheme, proof=visitor.proof, upgrade=visit.upgrade):
            return pages.FOREIGN
        if found.condition is Condition.READY:
            return visitor, found
        return visitor, await self.wake(head, found)

    async def wake(self, head: RequestHead, found: Destination) -> Destination | Reply:
        """Let a workspace come up: a websocket waits for it, everybody else is asked to come again."""
        name = self._name(head) or ""  # never, as it was found by its name
        if found.condition is not Condition.FAILED:
            await self.waker.wake(found.workspace)
        elif not await self.waker.revive(found.workspace):
            return pages.failed(found.trouble)
        if not head.upgrade:
            seconds = self.limits.retry_seconds
            return pages.waiting(name, seconds=seconds, for_person=head.for_person, trouble=found.trouble)
        end_ns = self.clock.monotonic_ns() + self.limits.wake_seconds * _SECOND_NS
        while self.clock.monotonic_ns() < end_ns:
            await self.clock.sleep(_LOOK_SECONDS)
            again = await self.directory.find(name)
            if again is None or again.owner != found.owner:
                return pages.NOT_FOUND
            if again.condition is Condition.READY:
                return again
            if again.condition is Condition.FAILED:
                return pages.failed(again.trouble)
        return pages.waiting(name, seconds=self.limits.retry_seconds, for_person=False)

    def _name(self, head: RequestHead) -> str | None:
        return workspace_of(head.host, self.suffix.encode())


def _visit(head: RequestHead, peer: bytes) -> Visit:
    return Visit(
        method=head.method.decode("ascii"),
        host=head.host.decode("latin-1"),
        target=head.target.decode("ascii"),
        fields=head.values,
        peer=peer.decode("latin-1"),
        upgrade=head.upgrade,
    )
