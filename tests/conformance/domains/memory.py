"""A domain made for the test: things in memory, with a hold of their own."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lapse.app.domains import ManagedOwnDomain, OwnDomain, Section
from lapse.core.address import Address, AddressKind
from lapse.core.clock import UnixNs
from lapse.core.decision import Decision, DueReason, Reason, decide_by_ttl
from lapse.core.duration import Duration
from lapse.engine.domain import DELETE, Candidate, Result
from lapse.engine.journal.port import Outcome
from lapse.engine.registry import DomainParts, Registration
from lapse.engine.safety.holds import Hold, PlacedExtension, held_error
from lapse.engine.safety.sqlite import SQLiteHolds
from tests.conformance.domains.kit import LIFETIME, BadItemError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

    from lapse.engine.domain import Action, Also, Settled
    from lapse.engine.safety.holds import HoldDoubt
    from tests.conformance.domains.kit import Kit

NAME = "memory"
TTL = Duration.of_seconds(LIFETIME)


@dataclass
class Thing:
    """Something in memory."""

    name: str
    made: UnixNs
    version: int = 1
    hold: Hold | None = None


class MemoryDomain:
    """Domain, target and world in one."""

    domain = name = NAME
    reasons: tuple[Reason, ...] = (DueReason.TTL_EXPIRED,)
    is_indexed = False
    batch = 10
    database: object | None = None
    shares_journal = False
    can_doubt = True
    has_first_pass = True

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.things: dict[str, Thing] = {}
        self.doubtful, self.bad = False, set[str]()
        self.before_act: Callable[[], Awaitable[None]] | None = None
        self.loop: Any = None

    # --- the world ----------------------------------------------------------------------------------------------------

    @property
    def registration(self) -> Registration:
        return Registration(name=NAME, kinds=(AddressKind(NAME),), reasons=lambda: self.reasons)

    @property
    def own(self) -> OwnDomain:
        return OwnDomain(self.registration, Section(), DomainParts(self, self))

    def managed(self) -> ManagedOwnDomain:
        """Return the domain as people steer it."""
        return ManagedOwnDomain(self.own, SQLiteHolds(self.kit.store.database), clock=self.kit.clock)

    def named(self, name: str) -> str:
        return name

    async def add(self, name: str) -> None:
        self.things[name] = Thing(name, self.kit.now)

    async def left(self) -> set[str]:
        return set(self.things)

    async def hold(self, name: str) -> None:
        self.things[name].hold = Hold("mine", None)

    async def hold_late(self, name: str) -> None:
        async def hold() -> None:
            self.before_act = None
            await self.hold(name)

        self.before_act = hold

    async def extend(self, name: str, until: UnixNs) -> None:
        placed = PlacedExtension(NAME, f"u-{name}", f"{NAME}/{name}", until, self.kit.now, "ann")
        await SQLiteHolds(self.kit.store.database).extend(placed)

    async def spoil_extension(self, name: str) -> None:
        await self.extend(name, UnixNs(0))

    async def change(self, name: str) -> None:
        self.things[name].version += 1

    async def forget_time(self, name: str) -> None:
        self.things[name].made = UnixNs(0)

    async def remove(self, name: str) -> None:
        del self.things[name]

    async def sweep(self) -> None:
        await self.loop.tick()

    # --- the domain ---------------------------------------------------------------------------------------------------

    async def due(self, now: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[UnixNs]], None]:
        names = list(self.things)
        for start in range(0, len(names), size):
            yield [self._seen(self.things[one]) for one in names[start : start + size] if one in self.things]

    def _seen(self, thing: Thing) -> Candidate[UnixNs]:
        address = Address(NAME, None, thing.name)
        return Candidate(
            address=address, uid=f"u-{thing.name}", version=str(thing.version), state=thing.made, handle=thing.name
        )

    def next_deadline(self) -> UnixNs | None:
        return None

    def decide(self, candidate: Candidate[UnixNs], now: UnixNs) -> Decision:
        return decide_by_ttl(candidate.state, TTL, now, action=DELETE)

    async def refresh(self, candidates: Sequence[Candidate[UnixNs]]) -> Sequence[Candidate[UnixNs] | None]:
        return candidates

    def policy(self, candidate: Candidate[UnixNs]) -> str:
        return "test"

    def policy_name(self, candidate: Candidate[UnixNs]) -> str:
        return self.name

    def policies(self) -> dict[str, str]:
        return {self.name: "test"}

    def governed(self, *, size: int) -> AsyncGenerator[Sequence[Candidate[UnixNs]], None]:
        return self.due(self.kit.now, size=size)

    def details(self, candidate: Candidate[UnixNs]) -> dict[str, Any] | None:
        return None

    async def settle(self, settled: Sequence[Settled[UnixNs]]) -> None: ...

    async def find(self, address: Address) -> Candidate[UnixNs] | None:
        thing = self.things.get(address.name)
        return None if thing is None else self._seen(thing)

    # --- the target ---------------------------------------------------------------------------------------------------

    async def holds_over(self, actions: Sequence[Action], now: UnixNs) -> Sequence[Hold | HoldDoubt | None]:
        return [self.look_for_hold(one) for one in actions]

    def look_for_hold(self, action: Action) -> Hold | HoldDoubt | None:
        if self.doubtful:
            raise TimeoutError
        thing = self.things.get(action.handle)
        return None if thing is None else thing.hold

    async def apply(self, actions: Sequence[Action], *, also: Also | None) -> Sequence[Result]:
        if self.before_act is not None:
            await self.before_act()
        if any(one.handle in self.bad for one in actions):
            raise BadItemError
        return [self.end(one) for one in actions]

    def end(self, action: Action) -> Result:
        thing = self.things.get(action.handle)
        if thing is None:
            return Result(Outcome.GONE)
        if str(thing.version) != action.version:
            return Result(Outcome.CHANGED)
        if (hold := self.look_for_hold(action)) is not None:
            assert isinstance(hold, Hold)
            return Result(Outcome.HELD, held_error(action.address, hold))
        del self.things[thing.name]
        return Result(Outcome.ENDED)

    async def is_in_doubt(self, error: Exception) -> bool:
        return False


class Memory:
    """Opens a domain in memory: the right one, or a broken one."""

    domain = NAME

    def __init__(self, kind: type[MemoryDomain] = MemoryDomain) -> None:
        self._kind = kind

    @asynccontextmanager
    async def __call__(self, kit: Kit) -> AsyncIterator[MemoryDomain]:
        world = self._kind(kit)
        world.loop = world.own.loop(holds=SQLiteHolds(kit.store.database), **kit.shared)
        yield world
