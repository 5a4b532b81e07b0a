"""The safety gate: a frozen domain ends nothing, and a domain that ends more than its budget is frozen.

The executor asks before every act (`SafetyGate.allow`). Nearly always the answer is a subtraction: acts are taken in
*blocks* from the ledger, and a block is spent in memory. The freezes are read again when the last reading is
``trust_seconds`` old and something is to be ended; with nothing to end nothing is read.

Guarantees. In no window is more done than the budget allows, over any number of restarts and of leaders, and by any
number of processes at once, as long as nobody resumes; resuming begins a new count. A block is reserved in the store
before it is spent, in one step that compares what others have taken. **Doubt means keep**: while the store cannot be
read, or written where it must be, nothing is ended, and it is asked again with back-off.

Who waits for what others have reserved has nothing reserved itself, so no two wait for each other. A process that ends
gives back what it has left, and one that is killed has its reservation for a slice more at most.

Not guaranteed: that the last block of a budget is shared out: what one process has reserved (a tenth of the budget, or
a batch) and does not need, another cannot have before its slice is over. Nor that people, whom no budget stops, leave
room for what was reserved before. Nor that a freeze stops what is under way, or what begins within ``trust_seconds``.
An act whose outcome is unknown counts as done, and so does what a crash leaves of a block, where the store keeps what
was spent; where it is counted from the journal, the rows tell.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from lapse.core.clock import UnixNs
from lapse.core.decision import Reason, UnknownReason
from lapse.core.errors import LapseError
from lapse.core.identity import owner_token
from lapse.core.jitter import Chance, backoff, chance
from lapse.core.log import get_logger
from lapse.engine.safety.blast_radius import NoPolicies
from lapse.engine.safety.budget import TOTAL, added
from lapse.engine.safety.freeze import (
    ALL,
    Freeze,
    FreezeReason,
    GateConflictError,
    GateState,
    GateStore,
    freeze_row,
    resume_row,
)
from lapse.engine.view import Moment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lapse.core.clock import Clock
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.blast_radius import PolicyChecks
    from lapse.engine.safety.budget import BudgetRoom, Budgets, Charge, Ledger, Reservation

TRUST_SECONDS: Final = 5.0
"""How long a look at what is frozen is good for."""
_ATTEMPTS: Final = 10
"""Writes that lost against somebody else's before it is called a failure."""
_LONGEST_RETRY_SECONDS: Final = 60.0
_CLOSE_SECONDS: Final = 2.0
"""How long a process that ends tries to give back what it has taken."""
_NS: Final = 1_000_000_000
_log = get_logger("lapse.engine.safety.gate")


@dataclass(slots=True)
class Block:
    """Acts that were taken from the ledger: so many are left, and so many under way."""

    domain: str
    charge: Charge
    left: int
    under_way: int = 0

    @property
    def outstanding(self) -> int:
        """How many of them may still be done."""
        return self.left + self.under_way


@dataclass(slots=True)
class Grant:
    """How many acts may be done; fewer than asked for when the budget ends."""

    count: int
    refusal: Reason | None = None
    """Why none may be done."""
    domain: str = ""
    block: Block | None = None
    is_dry: bool = False
    """Whether what would be done is to be told instead; then the count is 0."""
    told: str = ""
    """For people, why none may be done and what lets it go on; empty where no more than the refusal is known."""


class Gate(Protocol):
    """The port through which the executor asks whether it may act."""

    @property
    def policies(self) -> PolicyChecks:
        """What says whether a policy may act, before a budget is asked."""
        ...

    async def allow(self, domain: str, count: int = 1) -> Grant:
        """Return the right to do up to ``count`` acts now.

        `done` must follow, whatever happens, and before the same piece of work asks again: the answer may wait for it.
        """
        ...

    def done(self, grant: Grant, *, ended: int) -> None:
        """Take note that the acts are over, and that ``ended`` of them were, or may have been, done."""
        ...

    async def release(self, domain: str) -> None:
        """Let other processes know what is done; nothing happens before a block is used up."""
        ...

    async def objection(self, domain: str) -> Reason | None:
        """Return why nothing of ``domain`` may be ended now, without taking anything."""
        ...

    def pause(self, domain: str) -> float | None:
        """Return after how many seconds to ask again, if the last answer was no."""
        ...

    def forget(self) -> None:
        """Read anew what is frozen before the next answer: somebody has just changed it."""
        ...


class OpenGate:
    """A gate that allows everything."""

    policies: PolicyChecks = NoPolicies()

    async def allow(self, domain: str, count: int = 1) -> Grant:
        """See `Gate`."""
        return Grant(count)

    def done(self, grant: Grant, *, ended: int) -> None:
        """See `Gate`."""

    async def release(self, domain: str) -> None:
        """See `Gate`."""

    async def objection(self, domain: str) -> Reason | None:
        """See `Gate`."""
        return None

    def pause(self, domain: str) -> float | None:
        """See `Gate`."""
        return None

    def forget(self) -> None:
        """See `Gate`."""


class JudgingGate:
    """A `Gate` with other policies: all else is as the inner one says."""

    def __init__(self, gate: Gate, policies: PolicyChecks) -> None:
        """Let ``policies`` say whether a policy may act."""
        self._gate = gate
        self.policies: PolicyChecks = policies

    async def allow(self, domain: str, count: int = 1) -> Grant:
        """See `Gate`."""
        return await self._gate.allow(domain, count)

    def done(self, grant: Grant, *, ended: int) -> None:
        """See `Gate`."""
        self._gate.done(grant, ended=ended)

    async def release(self, domain: str) -> None:
        """See `Gate`."""
        await self._gate.release(domain)

    async def objection(self, domain: str) -> Reason | None:
        """See `Gate`."""
        return await self._gate.objection(domain)

    def pause(self, domain: str) -> float | None:
        """See `Gate`."""
        return self._gate.pause(domain)

    def forget(self) -> None:
        """See `Gate`."""
        self._gate.forget()


class SafetyGate:
    """See the module. Belongs to one event loop; two processes that work by turns share a store."""

    policies: PolicyChecks = NoPolicies()

    def __init__(  # noqa: PLR0913 - all of them named, one per dependency
        self,
        store: GateStore,
        *,
        budgets: Budgets,
        domains: Iterable[str],
        clock: Clock,
        metrics: Metrics,
        actor: str,
        trust_seconds: float = TRUST_SECONDS,
        run: str = "lapse resume",
        chance: Chance = chance,
    ) -> None:
        """Read nothing yet; ``domains`` are those of this process, and ``run`` is what a person is to run."""
        self._run = run
        self._store, self._budgets, self.domains = store, budgets, tuple(domains)
        self._clock, self._metrics, self._actor, self._chance = clock, metrics, actor, chance
        self._trust_ns = round(trust_seconds * _NS)
        self._holder = owner_token()
        """What tells this process from others that take from the same budgets."""
        self._lock = asyncio.Lock()
        self._moved = asyncio.Event()
        """Set when an act came to nothing, or none is under way."""
        self._state: GateState | None = None
        self._good_until_ns = 0
        self._blocks: dict[str, Block] = {}
        self._retired: list[Block] = []
        """Blocks that another one has taken the place of, and of which something may come back."""
        self._under_way: Counter[str] = Counter()
        self._any_under_way = 0
        """The sum, as every act asks for it."""
        self._counted = False
        """Whether the ledger was read for the question at hand, and with nothing under way that may come to nothing."""
        self._failures = 0
        self._retry_ns = 0
        self._refusals: dict[str, Reason] = {}
        metrics.expect_frozen(self.domains)
        for account in (*self.domains, TOTAL):
            most = budgets.of(account).most
            if most is not None:
                metrics.watch_budget(account, most, partial(self._left, account))

    async def allow(self, domain: str, count: int = 1) -> Grant:
        """See `Gate`."""
        block = self._usable(domain, count)
        if block is None:
            async with self._lock:
                found = self._usable(domain, count) or await self._ask(domain, count)
            if not isinstance(found, Block):
                return Grant(0, found, told=self.told(domain, found))
            block = found
        granted = min(count, block.left)
        block.left -= granted
        block.under_way += granted
        self._under_way[domain] += granted
        self._any_under_way += granted
        return Grant(granted, None, domain, block)

    def done(self, grant: Grant, *, ended: int) -> None:
        """See `Gate`."""
        if grant.block is not None:
            self._under_way[grant.domain] -= grant.count
            self._any_under_way -= grant.count
            grant.block.under_way -= grant.count
            grant.block.left += grant.count - ended
            if ended < grant.count or not self._any_under_way:
                self._moved.set()

    async def release(self, domain: str) -> None:
        """See `Gate`. What cannot be written is given back by time."""
        block = self._blocks.get(domain)
        if self._store.keeps_spending or block is None or block.outstanding or not block.charge.slices:
            return
        async with self._lock:
            if self._blocks.get(domain) is not block or block.outstanding:
                return
            del self._blocks[domain]
            try:
                await self._give_back([])
            except LapseError as error:
                _log.warning("block_not_released", domain=domain, problem=str(error))

    async def close(self) -> None:
        """Give back what was taken and not done, as the process ends; what cannot be written comes back by time."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS), self._lock:
                await self._give_back_all()
        except (LapseError, TimeoutError) as error:
            _log.warning("blocks_not_given_back", problem=str(error) or type(error).__name__)

    async def objection(self, domain: str) -> Reason | None:
        """See `Gate`."""
        if self._usable(domain, 0) is not None:
            return None
        async with self._lock:
            found = await self._ask(domain, 0)
        return found if isinstance(found, Reason) else None

    def frozen_for(self, domain: str) -> str:
        """Return why ``domain`` is frozen, by what was read last; empty where it is not."""
        freeze = None if self._state is None else self._state.freeze_of(domain)
        return "" if freeze is None else freeze.reason

    def told(self, domain: str, refusal: Reason | None) -> str:
        """Say what has frozen ``domain`` and how it goes on, by what was read last; empty where that is not why."""
        freeze = None if self._state is None else self._state.freeze_of(domain)
        if self._state is None or freeze is None or not isinstance(refusal, FreezeReason):
            return ""
        since = "" if freeze.since is None else f" since {Moment(freeze.since)}"
        why = f" ({freeze.reason})" if freeze.reason else ""
        name = ALL if ALL in self._state.frozen else domain
        return f"{domain} is frozen{since}{why}; to let it go on: {self._run} {name}"

    def pause(self, domain: str) -> float | None:
        """See `Gate`."""
        if domain not in self._refusals:
            return None
        wait_ns = max(self._retry_ns, self._good_until_ns) - self._clock.monotonic_ns()
        return max(1.0, wait_ns / _NS)

    def forget(self) -> None:
        """See `Gate`."""
        self._good_until_ns = 0

    async def freeze(self, domain: str, why: str, *, reason: FreezeReason) -> None:
        """Let nothing of ``domain`` be ended until somebody resumes it; raises what the store raises."""
        async with self._lock:
            await self._stop(self._state or GateState(), domain, why, reason)

    async def thaw(self, domain: str, why: str) -> None:
        """Let ``domain`` go on, if it is frozen for ``why``; raises what the store raises."""
        async with self._lock:
            self._good_until_ns = 0
            freeze = (await self._fresh()).frozen.get(domain)
            if freeze is not None and freeze.reason == why:
                row = resume_row(domain, by=self._actor, now=self._clock.wall_ns(), reason=FreezeReason.CLOCK_CONFIRMED)
                await self._store.resume(domain, row)
                self._good_until_ns = 0

    async def look(self) -> None:
        """Read what is frozen, for the metrics; doubt is told by the log."""
        async with self._lock:
            for domain in self.domains:
                await self._ask(domain, 0)

    # --- the slow way, one at a time ----------------------------------------------------------------------------------

    def _usable(self, domain: str, count: int) -> Block | None:
        block = self._blocks.get(domain)
        if block is None or block.left < count or self._clock.monotonic_ns() >= self._good_until_ns:
            return None
        return block if _lasts(block, self._clock.wall_ns()) else None

    async def _ask(self, domain: str, count: int) -> Block | Reason | None:
        """Return a block that has something left, or why there is none; with a ``count`` of 0 perhaps nothing."""
        if self._clock.monotonic_ns() < self._retry_ns:
            return self._refused(domain, UnknownReason.UNREADABLE_SIGNAL)
        self._counted = False  # somebody may have frozen or resumed since the last reading: none freezes by that
        try:
            found = await self._decide(domain, count)
        except Exception as error:  # noqa: BLE001 - whatever it was: who does not know whether it may, may not
            self._failed(error)
            return self._refused(domain, UnknownReason.UNREADABLE_SIGNAL)
        if self._failures:
            _log.info("brakes_readable_again")
        self._failures = 0
        if isinstance(found, Reason):
            return self._refused(domain, found)
        self._refusals.pop(domain, None)
        return found

    async def _decide(self, domain: str, count: int) -> Block | Reason | None:
        for _ in range(_ATTEMPTS - 1):
            try:
                return await self._decide_once(domain, count)
            except GateConflictError:  # somebody wrote meanwhile, perhaps a freeze: what was known is nothing
                self._good_until_ns = 0
        return await self._decide_once(domain, count)

    async def _decide_once(self, domain: str, count: int) -> Block | Reason | None:
        state = await self._fresh()
        if state.freeze_of(domain) is not None:
            return FreezeReason.FROZEN
        if count == 0:
            return None
        now, old = self._clock.wall_ns(), self._blocks.get(domain)
        if old is not None and old.left >= count and _lasts(old, now):
            return old
        given_up = [*self._retired, *([old] if old is not None else [])]
        ledger = self._without_rests(state.spent, given_up)
        room = self._budgets.room(added(ledger, state.reserved), domain, now)
        if room.most == 0:
            if await self._learns_more(domain):
                return await self._decide_once(domain, count)
            return await self._spent(state, ledger, domain, given_up)
        size = self._budgets.block(domain, count)
        size = size if room.most is None else min(size, room.most)
        ledger, charge = self._budgets.charge(ledger, domain, size, now=now)
        block = Block(domain, charge, size)
        self._state = await self._take(state, ledger, given_up, block) if charge.slices else state
        self._blocks[domain] = block
        return block

    async def _spent(self, state: GateState, ledger: Ledger, domain: str, given_up: list[Block]) -> Block | Reason:
        """Freeze a domain whose budget is spent; what others have reserved only, may come back.

        Who waits for that has nothing left that others could wait for: it does what it has taken itself, and gives back
        what it does not need. What others have reserved is counted with what they have done of it already, so two that
        kept a rest would wait for each other.
        """
        now, old = self._clock.wall_ns(), self._blocks.get(domain)
        room = self._budgets.room(ledger, domain, now)
        if room.most == 0:
            return await self._freeze(state, domain, room)
        if old is not None and old.left and _lasts(old, now):
            old.left = old.left if room.most is None else min(old.left, room.most)
            return old
        self._good_until_ns = 0
        if any(block.left for block in given_up):
            await self._give_back(given_up)
        return FreezeReason.BUDGET_RESERVED

    async def _give_back(self, blocks: Iterable[Block]) -> None:
        """Let others have what is left of these blocks; raises what the store raises."""
        for block in blocks:
            block.left = 0  # nobody may spend what is being given back
        await self._store.release(self._holder, self._reservations(), now=self._clock.wall_ns())

    async def _learns_more(self, domain: str) -> bool:
        """Before anybody is disturbed: wait for what is under way, which may come to nothing, and count again."""
        idle = [name for name, block in self._blocks.items() if name != domain and block.left]
        if idle:  # what other domains have taken, and do not need now
            self._retired += [self._blocks.pop(name) for name in idle]
            return True
        if self._any_under_way:
            self._moved.clear()
            await self._moved.wait()
            return True
        if not self._counted:
            self._good_until_ns = 0
            return True
        return False

    async def _give_back_all(self) -> None:
        if not self._store.keeps_spending:
            blocks = [*self._retired, *self._blocks.values()]
            if any(block.charge.slices for block in blocks):
                await self._give_back(blocks)
            return
        while any(block.left and block.charge.slices for block in (*self._retired, *self._blocks.values())):
            self._good_until_ns = 0
            state = await self._fresh()  # forgets what was taken before somebody has resumed
            blocks = [*self._retired, *self._blocks.values()]
            with suppress(GateConflictError):
                self._state = await self._take(state, self._without_rests(state.spent, blocks), blocks)

    def _without_rests(self, ledger: Ledger, blocks: Iterable[Block]) -> Ledger:
        """Return what is spent when the rests of these blocks are given back."""
        for block in blocks:
            ledger = self._budgets.give_back(ledger, block.charge, block.left)
        return ledger

    async def _take(self, state: GateState, ledger: Ledger, given_up: list[Block], *new: Block) -> GateState:
        rests = [block.left for block in given_up]
        for block in given_up:
            block.left = 0  # nobody may spend what is being given back
        mine, now = self._reservations(*new), self._clock.wall_ns()
        try:
            taken = await self._store.spend(state, ledger, holder=self._holder, mine=mine, now=now)
        except GateConflictError:  # nothing was written; after any other failure it may have been
            for block, rest in zip(given_up, rests, strict=True):
                block.left += rest
            raise
        self._retired = [block for block in given_up if block.under_way or block.left]
        return taken

    async def _fresh(self) -> GateState:
        if self._state is not None and self._clock.monotonic_ns() < self._good_until_ns:
            return self._state
        asked_ns, known = self._clock.monotonic_ns(), self._state
        # Before it is read: what is done meanwhile may be in the rows or not, and is better counted twice.
        mine, under_way = self._outstanding(), self._under_way.copy()
        found = await self._store.load(self._clock.wall_ns(), holder=self._holder)
        is_resumed = known is not None and known.epoch != found.epoch
        if self._store.keeps_spending:
            self._blocks = {
                name: block for name, block in self._blocks.items() if not is_resumed and _is_in(block, found)
            }
            self._retired = [block for block in self._retired if not is_resumed and _is_in(block, found)]
            self._counted = True
        elif not is_resumed:
            self._counted = not self._any_under_way
            self._drop_outdated()
            found = replace(found, spent=added(found.spent, mine))
        else:  # somebody has resumed, and what was taken before does not count any more
            self._blocks.clear()
            self._retired.clear()
            self._counted = True
            found = replace(found, spent=self._with(found.spent, under_way))
        for name in [name for name in self._blocks if found.freeze_of(name) is not None]:
            del self._blocks[name]
        self._tell(found)
        self._state, self._good_until_ns = found, asked_ns + self._trust_ns
        return found

    def _with(self, ledger: Ledger, under_way: Mapping[str, int]) -> Ledger:
        for domain, count in under_way.items():
            ledger, _ = self._budgets.charge(ledger, domain, count, now=self._clock.wall_ns())
        return ledger

    def _drop_outdated(self) -> None:
        """Give up what was taken in slices that are over, and was not done."""
        now = self._clock.wall_ns()
        over = [name for name, block in self._blocks.items() if not _lasts(block, now)]
        self._retired += [self._blocks.pop(name) for name in over]
        self._retired = [block for block in self._retired if block.under_way or _lasts(block, now)]

    def _outstanding(self) -> Ledger:
        """Return what this process has taken, and of which the journal knows nothing yet."""
        found: Ledger = {}
        for block in (*self._retired, *self._blocks.values()):
            found = added(found, {name: {end: block.outstanding} for name, end in block.charge.slices})
        return found

    def _reservations(self, *further: Block) -> list[Reservation]:
        blocks = (*self._retired, *self._blocks.values(), *further)
        return [
            self._budgets.reservation(one.domain, one.charge, one.outstanding)
            for one in blocks
            if one.outstanding and one.charge.slices
        ]

    async def _freeze(self, state: GateState, domain: str, room: BudgetRoom) -> Reason:
        budget = self._budgets.of(room.account)
        which = "in total" if room.account != domain else f"of {domain}"
        why = f"the deletion budget {which}, {budget}, is spent"
        return await self._stop(state, domain, why, FreezeReason.BUDGET_SPENT)

    async def _stop(self, state: GateState, domain: str, why: str, reason: FreezeReason) -> FreezeReason:
        now = UnixNs(self._clock.wall_ns())
        freeze = Freeze(now, why, self._actor)
        await self._store.freeze(domain, freeze, freeze_row(domain, freeze, reason=reason, now=now))
        frozen = replace(state, frozen={**state.frozen, domain: freeze})
        self._tell(frozen)
        self._state, self._good_until_ns = frozen, 0  # its version is another one now
        return reason

    # --- log and metrics --------------------------------------------------------------------------------------------

    def _refused(self, domain: str, reason: Reason) -> Reason:
        self._refusals[domain] = reason
        return reason

    def _failed(self, error: Exception) -> None:
        wait = backoff(self._failures, first=1.0, longest=_LONGEST_RETRY_SECONDS, chance=self._chance)
        self._failures += 1
        self._retry_ns = self._clock.monotonic_ns() + round(wait * _NS)
        self._good_until_ns = 0
        defect = not isinstance(error, LapseError)
        _log.warning(
            "brakes_unreadable",
            effect="nothing is ended until the freezes can be read",
            problem=type(error).__name__ if defect else str(error),
            again_seconds=round(wait, 1),
            exc_info=error if defect else None,
        )

    def _left(self, account: str) -> int:
        """Return what is left of a budget by what was read last and was done since."""
        ledger: Ledger = {} if self._state is None else self._state.spent
        ledger = self._without_rests(ledger, (*self._blocks.values(), *self._retired))
        return self._budgets.left(ledger, account, self._clock.wall_ns())

    def _tell(self, found: GateState) -> None:
        for domain in self.domains:
            before = None if self._state is None else self._state.freeze_of(domain)
            after = found.freeze_of(domain)
            self._metrics.frozen(domain, frozen=after is not None)
            if after is not None and before is None:
                name = ALL if ALL in found.frozen else domain
                run = f"{self._run} {name}"
                _log.warning("domain_frozen", domain=domain, reason=after.reason, by=after.by, run=run)
            elif before is not None and after is None:
                _log.info("domain_resumed", domain=domain)


class Looked(Protocol):
    """A gate that `GateLoop` reads."""

    async def look(self) -> None:
        """Read what is frozen, for the metrics."""
        ...


class GateLoop:
    """A `lapse.engine.running.coordinator.Loop` that keeps the metrics right while nothing is to be ended."""

    interval: Final = 10.0
    leader_only: Final = False
    of_engine: Final = True

    def __init__(self, gate: Looked, *, domain: str, name: str = "brakes") -> None:
        """Look at ``gate``, where a look costs next to nothing; failures are those of ``domain``."""
        self._gate, self.domain, self.name = gate, domain, name

    async def tick(self) -> float | None:
        """Look once."""
        await self._gate.look()
        return None


def _lasts(block: Block, now: int) -> bool:
    return block.charge.until is None or now <= block.charge.until


def _is_in(block: Block, state: GateState) -> bool:
    """Whether a stored ledger still holds what was taken: not, when somebody has deleted it."""
    return all(state.spent.get(name, {}).get(end, 0) >= block.left for name, end in block.charge.slices)


if TYPE_CHECKING:
    _conforms: tuple[type[Gate], type[Gate]] = (SafetyGate, OpenGate)
