"""The clock guard: nothing is ended, in any domain, while it is not known what time it is.

One `ClockGuard` for a process, on the `BelievedClock` that all of its domains use, and a `GuardedGate` for each store
of freezes: the executor is given that gate, which looks at the clock before each act.

A clock in doubt is cleared by a *second source* that agrees with it (the time of a database or of an API server, the
kernel's word that its clock is synchronised), by a person who resumes a domain that was frozen for it, or by coming
back. Where no
second source can tell, all domains are frozen, with a row in the journal, until ``lapse resume``; from then on the
clock is believed as it is. While a second source is silent nothing is ended and nothing is frozen. With a second source
a clock that is wrong from the start is noticed, too.

What was believed is written down (the note `CLOCK`), so that a restart does not forget it. After a reboot nobody knows
for how long the machine was off: see `lapse.core.believed_clock` for what is dry then, and for what is not noticed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from lapse.core.believed_clock import Mark
from lapse.core.decision import UnknownReason
from lapse.core.duration import short
from lapse.core.errors import LapseError
from lapse.core.log import get_logger
from lapse.engine.safety.blast_radius import NoPolicies
from lapse.engine.safety.freeze import ABOUT_CLOCK, CLOCK, Freeze, FreezeReason, GateUnreadableError
from lapse.engine.safety.gate import Gate, Grant

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from lapse.core.believed_clock import BelievedClock
    from lapse.core.decision import Reason
    from lapse.engine.safety.blast_radius import PolicyChecks, PolicyGuard
    from lapse.engine.safety.freeze import GateStore, Notes
    from lapse.engine.safety.gate import SafetyGate

    Source = Callable[[], Awaitable[int | None]]
    """Returns Unix nanoseconds, None when it does not know; raises a `LapseError` while it is silent."""

REFRESH_SECONDS: Final = 300.0
"""How often it is written again where that costs next to nothing: after a crash, so much is not known."""
_RETRY_SECONDS: Final = 5.0
_NS: Final = 1_000_000_000
_NO_POLICIES: Final = NoPolicies()
_log = get_logger("lapse.engine.safety.clock_guard")


@dataclass(frozen=True, slots=True)
class ClockDoubt:
    """Why the clock is not believed."""

    off_ns: int = 0
    """How wrong it is; 0 while that is not known."""
    dry_ns: int = 0
    """For how long everything is dry instead."""


class ClockGuard:
    """See the module. Belongs to one event loop."""

    def __init__(
        self,
        clock: BelievedClock,
        *,
        notes: Notes,
        sources: Sequence[Source] = (),
        refresh_seconds: float | None = REFRESH_SECONDS,
    ) -> None:
        """Read nothing yet; with ``refresh_seconds`` of None a note is written only when something else is believed."""
        self.clock = clock
        self.notes, self._sources, self._refresh_seconds = notes, tuple(sources), refresh_seconds
        self._lock = asyncio.Lock()
        self._is_recalled = self._is_confirmed = False
        self.is_agreed = False
        """Whether a second source has agreed with the clock, and nothing has been in doubt since."""
        self._written: Mark | None = None
        self._said = ""

    async def prepare(self) -> None:
        """Go on from what was believed before, and ask the second sources, before anything is decided or dated.

        Writes nothing, so that a process which does not act may do it, too. Raises what the store of the notes raises.
        """
        async with self._lock:
            await self._recall()
            off = await self._off_by()
            if off is not None and abs(off) > self.clock.limit_ns:
                self.clock.distrust(off)

    async def doubt(self) -> ClockDoubt | None:
        """Return why the clock is not believed; None when it is, which costs no call of anything."""
        if self._is_confirmed and not self.clock.in_doubt():
            return None
        async with self._lock:
            try:
                await self._recall()
                off = await self._off_by()
            except LapseError as error:
                self._say("clock_in_doubt", problem=str(error))
                return ClockDoubt()
            return await self._judge(off)

    async def believe(self) -> None:
        """Take the clock for right, as it is now."""
        self.clock.believe()
        self._is_confirmed, self._said = True, ""
        await self.write()

    async def write(self) -> None:
        """Write down what is believed, unless that is known; what is in doubt is not."""
        if self.clock.jump_ns() or not self._is_recalled:
            return
        mark, known = self.clock.mark(), self._written
        if known is not None and not self._has_changed(mark, known):
            return
        try:
            await self.notes.write_note(CLOCK, msgspec.json.encode(mark).decode())
        except LapseError as error:  # what is not known after a restart is in doubt then
            _log.warning("clock_not_noted", problem=str(error))
        self._written = mark

    def forget_written(self) -> None:
        """Take note that who resumes a domain forgets what was written."""
        self._written = None

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _recall(self) -> None:
        if self._is_recalled:
            return
        self._written = read_mark(await self.notes.read_note(CLOCK))
        self.clock.recall(self._written, is_fresh_within=REFRESH_SECONDS)
        self._is_recalled = True

    async def _off_by(self) -> int | None:
        """Return how wrong the clock is by the second sources; None when none of them can tell."""
        silent: LapseError | None = None
        for source in self._sources:
            try:
                found = await source()
            except LapseError as error:
                silent = error
                continue
            if found is not None:
                return self.clock.machine.wall_ns() - found
        if silent is not None:
            raise silent
        return None

    async def _judge(self, off: int | None) -> ClockDoubt | None:
        clock = self.clock
        self.is_agreed = off is not None and abs(off) <= clock.limit_ns
        if self.is_agreed:
            await self.believe()
            return None
        if off is not None:
            clock.distrust(off)
        self._is_confirmed = True
        jump, dry = off or clock.jump_ns(), clock.dry_ns()
        if jump:
            return ClockDoubt(off_ns=jump)
        await self.write()
        if dry:
            self._say("dry_after_boot", seconds=round(dry / _NS))
        return ClockDoubt(dry_ns=dry) if dry else None

    def _has_changed(self, mark: Mark, known: Mark) -> bool:
        if (mark.boot_id, mark.dry_until_ns) != (known.boot_id, known.dry_until_ns):
            return True
        moved = (mark.wall_ns - mark.boottime_ns) - (known.wall_ns - known.boottime_ns)
        is_old = self._refresh_seconds is not None and (
            mark.boottime_ns - known.boottime_ns >= self._refresh_seconds * _NS
        )
        return is_old or abs(moved) > self.clock.limit_ns

    def _say(self, event: str, **details: object) -> None:
        if self._said != event:
            _log.warning(event, effect="nothing is ended", **details)
        self._said = event


def machine_mark(clock: BelievedClock) -> str:
    """Return the note that makes the machine's clock believed as it is: for a person who has looked at it."""
    return msgspec.json.encode(clock.machine_mark()).decode()


def read_mark(text: str | None) -> Mark | None:
    """Read a note; one that cannot be read is none."""
    try:
        return None if text is None else msgspec.json.decode(text, type=Mark)
    except (msgspec.MsgspecError, UnicodeError):
        return None


class Watched(Protocol):
    """What `ClockLoop` looks after."""

    async def watch(self) -> None:
        """See `GuardedGate.watch`."""
        ...


class GuardedGate:
    """A `SafetyGate` that looks at the clock before it allows anything; a `Gate`."""

    def __init__(self, gate: SafetyGate, guard: ClockGuard, policies: PolicyGuard | None = None) -> None:
        """Ask ``guard`` first; several of these may share one. Without ``policies`` every policy acts at once."""
        self._gate, self._guard, self._policies = gate, guard, policies
        self.policies: PolicyChecks = _NO_POLICIES if policies is None else policies
        self._freezing = asyncio.Lock()
        self._stopped: set[str] = set()
        """Domains that were frozen while the clock was in doubt."""
        self._written: dict[str, str] = {}
        """Those of them that were frozen here, and why."""

    async def allow(self, domain: str, count: int = 1) -> Grant:
        """See `Gate`."""
        doubt = await self._guard.doubt()
        if doubt is None:
            return await self._gate.allow(domain, count)
        if doubt.dry_ns:
            against = await self._gate.objection(domain)
            return Grant(0, against, domain, is_dry=against is None, told=self._gate.told(domain, against))
        against = await self._against(domain, doubt)
        if against is None:
            return await self.allow(domain, count)
        return Grant(0, against, told=self._gate.told(domain, against))

    def done(self, grant: Grant, *, ended: int) -> None:
        """See `Gate`."""
        self._gate.done(grant, ended=ended)

    async def release(self, domain: str) -> None:
        """See `Gate`."""
        await self._gate.release(domain)

    async def close(self) -> None:
        """See `SafetyGate`."""
        await self._gate.close()

    async def objection(self, domain: str) -> Reason | None:
        """See `Gate`."""
        doubt = await self._guard.doubt()
        if doubt is not None and not doubt.dry_ns:
            against = await self._against(domain, doubt)
            if against is not None:
                return against
        return await self._gate.objection(domain)

    def pause(self, domain: str) -> float | None:
        """See `Gate`."""
        dry_ns = self._guard.clock.dry_ns()
        if dry_ns:
            return dry_ns / _NS
        pause = self._gate.pause(domain)
        if pause is None and self._guard.clock.in_doubt():
            return _RETRY_SECONDS
        return self.policies.pause(domain) if pause is None else pause

    def forget(self) -> None:
        """See `Gate`."""
        self._gate.forget()

    async def look(self) -> None:
        """Read what is frozen and which policies wait, for the metrics, and look at the clock."""
        await self._gate.look()
        if self._policies is not None:
            await self._policies.refresh()
        await self.watch()

    async def watch(self) -> None:
        """Look at the clock, and freeze, or go on, where nothing is to be ended. Without doubt no store is asked."""
        doubt = await self._guard.doubt()
        if doubt is None:
            await self._thaw()
            await self._guard.write()
        elif not doubt.dry_ns:
            for domain in self._gate.domains:
                if await self._against(domain, doubt) is None:
                    return

    async def _against(self, domain: str, doubt: ClockDoubt) -> Reason | None:
        """Freeze a domain, unless it is frozen; return None when a person has resumed it, so that the clock counts."""
        if not doubt.off_ns:
            return UnknownReason.CLOCK_JUMPED
        async with self._freezing:  # loops see a jump at the same moment, and one row tells of it
            return await self._frozen(domain, doubt)

    async def _frozen(self, domain: str, doubt: ClockDoubt) -> Reason | None:
        against = await self._gate.objection(domain)
        if against is FreezeReason.FROZEN and self._gate.frozen_for(domain).startswith(ABOUT_CLOCK):
            self._stopped.add(domain)  # who ends a freeze for another reason has not looked at the clock
        if against is not None:
            return against
        if domain in self._stopped:
            self._stopped.clear()
            await self._guard.believe()
            return None
        why = _jump_words(doubt.off_ns)
        try:
            await self._gate.freeze(domain, why, reason=FreezeReason.CLOCK_JUMPED)
        except LapseError as error:
            _log.warning("clock_in_doubt", effect="nothing is ended", problem=str(error))
            return UnknownReason.CLOCK_JUMPED
        self._stopped.add(domain)
        self._written[domain] = why
        return FreezeReason.CLOCK_JUMPED

    async def _thaw(self) -> None:
        """Let go on what was frozen here, where a second source has agreed with the clock since."""
        while self._written and self._guard.is_agreed:
            domain, why = next(iter(self._written.items()))
            try:
                await self._gate.thaw(domain, why)
            except LapseError as error:
                _log.warning("domain_not_resumed", domain=domain, problem=str(error))
                return
            del self._written[domain]
            self._guard.forget_written()


async def freeze_of(store: GateStore, domain: str, clock: BelievedClock) -> Freeze | None:
    """Return what stops ``domain`` now, for people: a freeze that is written, or a clock that is in doubt here."""
    try:
        found = (await store.load(clock.wall_ns())).freeze_of(domain)
    except GateUnreadableError as error:  # then nothing is ended either
        return Freeze(None, str(error), "")
    jump, dry = clock.jump_ns(), clock.dry_ns()
    if found is None and jump:
        return Freeze(None, _jump_words(jump), "")
    if found is None and dry:
        return Freeze(None, f"nobody knows for how long the machine was off; all is dry for another {short(dry)}", "")
    return found


def _jump_words(off_ns: int) -> str:
    way = "ahead" if off_ns > 0 else "behind"
    return f"{ABOUT_CLOCK}{short(abs(off_ns))} {way} of what was expected; set it right, then resume"


class ClockLoop:
    """A `lapse.engine.running.coordinator.Loop` that looks at the clock where nothing else does regularly."""

    name: Final = "clock"
    interval: Final = 10.0
    leader_only: Final = True
    of_engine: Final = True

    def __init__(self, gate: Watched, *, domain: str) -> None:
        """Look at the clock of ``gate``; failures are those of ``domain``."""
        self._gate, self.domain = gate, domain

    async def tick(self) -> float | None:
        """Look once."""
        await self._gate.watch()
        return None


if TYPE_CHECKING:
    _conforms: type[Gate] = GuardedGate
