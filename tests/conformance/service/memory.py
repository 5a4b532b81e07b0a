"""A domain made for the contract of the verbs: things in memory, whose holds the engine keeps, with a trash."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from lapse.core.address import Address, AddressKind
from lapse.engine.domain import Candidate, Result
from lapse.engine.journal.port import Outcome
from lapse.engine.registry import DomainVerb, Registration, Registry
from lapse.engine.trash import BroughtBack, NotInTrashError, PlaceTakenError, TrashEntry
from lapse.engine.view import Moment
from tests.conformance.domains.memory import MemoryDomain, Thing
from tests.conformance.service.registry import DOMAIN, HOUR

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from lapse.app.domains import ManagedOwnDomain
    from lapse.core.clock import UnixNs
    from lapse.engine.domain import Action
    from tests.conformance.domains.kit import Kit

THINGS = Registration(name=DOMAIN, kinds=(AddressKind(DOMAIN),), reasons=tuple)
SECRETS = Registration(
    name="secrets",
    kinds=(AddressKind("secret", "APP"),),
    reasons=tuple,
    unsupported=dict.fromkeys(DomainVerb, "Secrets are over by themselves"),
)
REGISTRY = Registry([THINGS, SECRETS], installed=tuple)


class Things(MemoryDomain):
    """What there is: a thing that is added again under its name has another uid."""

    domain = name = DOMAIN

    def __init__(self, kit: Kit) -> None:
        super().__init__(kit)
        self.uids: dict[str, str] = {}
        self.trashed: dict[str, tuple[str, Moment]] = {}
        """By uid: which name it had, and when it was ended."""
        self._numbers = count(1)

    async def add(self, name: str) -> None:
        await super().add(name)
        self.uids[name] = f"u-{next(self._numbers)}"

    def _seen(self, thing: Thing) -> Candidate[UnixNs]:
        return Candidate(
            address=Address(DOMAIN, None, thing.name),
            uid=self.uids[thing.name],
            version=str(thing.version),
            state=thing.made,
            handle=thing.name,
        )

    def renew(self, name: str) -> None:
        """Let its time begin anew."""
        self.things[name].made = self.kit.now
        self.things[name].version += 1

    def end(self, action: Action) -> Result:
        thing = self.things.get(action.handle)
        result = super().end(action)
        if thing is not None and result.outcome is Outcome.ENDED:
            self.trashed[self.uids[thing.name]] = (thing.name, Moment(self.kit.now))
        return result

    @property
    def registration(self) -> Registration:
        return THINGS

    def managed(self) -> ManagedOwnDomain:
        managed = super().managed()
        managed.not_undoable = None  # the place has a trash for it
        return managed


class MemoryTrash:
    """What was ended: `lapse.engine.trash.Trash`."""

    name = "memory"

    def __init__(self, things: Things) -> None:
        self._things = things

    async def entries(self, *, after: str | None = None) -> AsyncGenerator[Sequence[TrashEntry], None]:
        shown = [self._entry(uid) for uid in sorted(self._things.trashed)]
        yield [one for one in shown if after is None or one.id > after]

    async def bring_back(self, entry: TrashEntry, *, by: str) -> BroughtBack:
        if entry.uid not in self._things.trashed:
            raise NotInTrashError(address=entry.address)
        name, _ = self._things.trashed[entry.uid]
        if name in self._things.things:
            raise PlaceTakenError(address=entry.address)
        del self._things.trashed[entry.uid]
        await self._things.add(name)
        return BroughtBack(address=entry.address, uid=self._things.uids[name], says="Its time begins anew.")

    async def empty(self, entries: Sequence[TrashEntry], *, by: str) -> Sequence[Result]:
        for one in entries:
            del self._things.trashed[one.uid]
        return [Result(Outcome.ENDED)] * len(entries)

    def _entry(self, uid: str) -> TrashEntry:
        name, ended = self._things.trashed[uid]
        return TrashEntry(
            id=f"{self.name}/{uid}",
            address=str(Address(DOMAIN, None, name)),
            uid=uid,
            domain=DOMAIN,
            ended_at=ended,
            expires_at=Moment(ended + 24 * HOUR * 1_000_000_000),
            bytes=12,
            comes_back="as it was",
        )
