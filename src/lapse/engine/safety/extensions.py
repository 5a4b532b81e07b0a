"""Extensions: a later deadline for one thing, on the word of a person.

An extension stands with the thing: in the annotation `EXTENDED_UNTIL` of an object, in the row of a workspace, or in
the engine's own store for domains that have no place for it (`ExtendedDomain` reads them from there). What it changes
about a decision is said in `lapse.core.decision.with_extension`: the later of both deadlines counts.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from msgspec.structs import replace

from lapse.core.decision import UNREADABLE_EXTENSION
from lapse.core.timestamps import from_timestamp, is_moment

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

    from lapse.core.clock import UnixNs
    from lapse.core.decision import Decision, Reason
    from lapse.engine.domain import Candidate, Domain, Settled
    from lapse.engine.safety.holds import HoldStore

S = TypeVar("S")

EXTENDED_UNTIL: Final = "lapse.dev/extended-until"
"""RFC 3339."""


def extension_of(annotations: Mapping[str, str]) -> UnixNs | None:
    """Return until when an object with these annotations is extended; None when it is not.

    Doubt keeps: a text that is no time, and a time that means 'not set', is `UNREADABLE_EXTENSION`.
    """
    text = annotations.get(EXTENDED_UNTIL)
    if text is None:
        return None
    found = from_timestamp(text)
    return UNREADABLE_EXTENSION if found is None else found


class ExtendedDomain(Generic[S]):
    """A `Domain` whose things are extended in a store of the engine's; all else is the inner domain's."""

    def __init__(self, domain: Domain[S], holds: HoldStore) -> None:
        """Read nothing yet."""
        self._domain, self._holds = domain, holds
        self.name: str = domain.name
        self.reasons: Iterable[Reason] = domain.reasons
        self.is_indexed: bool = domain.is_indexed

    async def due(self, now: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[S]], None]:
        """See `Domain`."""
        async with aclosing(self._domain.due(now, size=size)) as pages:
            async for page in pages:
                yield await self._extended(page)

    def next_deadline(self) -> UnixNs | None:
        """See `Domain`: that of the domain itself, which may be earlier than an extension."""
        return self._domain.next_deadline()

    def decide(self, candidate: Candidate[S], now: UnixNs) -> Decision:
        """See `Domain`."""
        return self._domain.decide(candidate, now)

    async def refresh(self, candidates: Sequence[Candidate[S]]) -> Sequence[Candidate[S] | None]:
        """See `Domain`. What stands in the store is read fresh as well."""
        found = await self._domain.refresh(candidates)
        fresh = {one.uid: one for one in await self._extended([one for one in found if one is not None])}
        return [None if one is None else fresh[one.uid] for one in found]

    def policy(self, candidate: Candidate[S]) -> str:
        """See `Domain`."""
        return self._domain.policy(candidate)

    def policy_name(self, candidate: Candidate[S]) -> str:
        """See `Domain`."""
        return self._domain.policy_name(candidate)

    def policies(self) -> Mapping[str, str] | None:
        """See `Domain`."""
        return self._domain.policies()

    async def governed(self, *, size: int) -> AsyncGenerator[Sequence[Candidate[S]], None]:
        """See `Domain`."""
        async with aclosing(self._domain.governed(size=size)) as pages:
            async for page in pages:
                yield await self._extended(page)

    def details(self, candidate: Candidate[S]) -> dict[str, Any] | None:
        """See `Domain`."""
        return self._domain.details(candidate)

    async def settle(self, settled: Sequence[Settled[S]]) -> None:
        """See `Domain`."""
        await self._domain.settle(settled)

    async def _extended(self, candidates: Sequence[Candidate[S]]) -> Sequence[Candidate[S]]:
        if not candidates:
            return candidates
        found = await self._holds.extended(self.name, [one.uid for one in candidates])
        return [replace(one, extended=_read(found[one.uid])) if one.uid in found else one for one in candidates]


def _read(until: UnixNs) -> UnixNs:
    return until if is_moment(until) else UNREADABLE_EXTENSION
