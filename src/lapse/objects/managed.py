"""The part of a managed domain that is the same wherever its things are objects: how they are held and extended.

Holds and extensions are annotations, written under the uid and the version that were read, so that a decision made
before loses its compare. See `lapse.objects.holds.steering` for how a hold reaches the owners of an object.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from lapse.core.clock import UnixNs
from lapse.objects.holds.steering import ObjectPlace, Steering
from lapse.objects.target import ObjectTarget

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from lapse.core.address import Address
    from lapse.core.clock import Clock
    from lapse.engine.domain import Candidate, Consequence, DomainRules, Target
    from lapse.engine.safety.blast_radius import PolicyChecks
    from lapse.engine.safety.holds import Hold
    from lapse.objects.port import HoldLookup, ObjectStore
    from lapse.objects.trash.moves import ObjectTrash

S = TypeVar("S")


class ManagedObjects(ABC, Generic[S]):
    """A base for a `lapse.engine.domain.ManagedDomain` over one object store. Handles are `ObjectHandle`."""

    is_indexed: bool = True
    not_undoable: str | None = None

    def __init__(
        self, store: ObjectStore, holds: HoldLookup, steering: Steering, *, trash: ObjectTrash | None, clock: Clock
    ) -> None:
        """Steer objects of ``store`` by ``steering``; ``holds`` finds what keeps them, and ``trash`` has what ends."""
        self.store, self._steering, self._clock = store, steering, clock
        self.target: Target = ObjectTarget(store, holds, trash=trash)

    @property
    def now(self) -> UnixNs:
        """The time, as it is believed here."""
        return UnixNs(self._clock.wall_ns())

    @abstractmethod
    async def find(self, address: Address) -> Candidate[S] | None:
        """See `ManagedDomain`."""

    async def find_all(self, addresses: Sequence[Address]) -> Sequence[Candidate[S] | None]:
        """See `ManagedDomain`."""
        return await asyncio.gather(*map(self.find, addresses))

    async def refresh(self, candidates: Sequence[Candidate[S]]) -> Sequence[Candidate[S] | None]:
        """See `ManagedDomain`: all that a decision looks at is in the object, whose version the deletion compares."""
        return candidates

    async def look_at_policies(self, guard: PolicyChecks) -> None:
        """See `ManagedDomain`."""
        await guard.look(cast("DomainRules[S]", self))

    async def takes_along(self, candidate: Candidate[S]) -> Sequence[str]:
        """See `ManagedDomain`: nothing."""
        return ()

    async def leads_to(self, candidate: Candidate[S], end: UnixNs) -> Sequence[Consequence]:
        """See `ManagedDomain`: nothing."""
        return ()

    async def deletion_target(self, candidate: Candidate[S]) -> Target:
        """See `ManagedDomain`: the same as for what lapses."""
        return self.target

    async def hold(self, candidate: Candidate[S], hold: Hold, *, replace: bool) -> None:
        """See `ManagedDomain`."""
        await self._steering.hold(_place(candidate), hold, replace=replace)

    async def release(self, candidate: Candidate[S], *, by: str, legal: bool, only: str | None = None) -> Hold | None:
        """See `ManagedDomain`."""
        return await self._steering.release(_place(candidate), by=by, legal=legal, only=only)

    async def extend(self, candidate: Candidate[S], until: UnixNs, *, by: str) -> None:
        """See `ManagedDomain`."""
        await self._steering.extend(_place(candidate), until)


def _place(candidate: Candidate[Any]) -> ObjectPlace:
    return ObjectPlace(candidate.handle.kind, candidate.handle.key, candidate.uid)


async def in_pages(found: Iterator[Any], size: int) -> AsyncGenerator[Sequence[Any], None]:
    """Yield what is found in pages, each looked for when it is asked for."""
    while page := list(islice(found, size)):
        yield page
