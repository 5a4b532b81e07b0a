"""The hourly pass, as the coordinator runs it: publish the policies of the settings, pass over everything, wait.

First passes: a limit that nobody chose ends nothing for a whole interval after it was first seen on a store.

When that was is written down beside what is frozen, so that a restart neither ends it nor begins it anew. A policy that
has acted, by a pass over everything or by a person's own command, is past it for good. Doubt keeps: while it cannot be
read or written, the pass is dry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from lapse.core.clock import UnixNs
from lapse.core.duration import HOUR, SECOND
from lapse.core.errors import LapseError
from lapse.core.jitter import Chance, around
from lapse.core.log import get_logger
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.engine.running.metrics import ErrorKind
from lapse.history.retention.passes import RETENTION
from lapse.history.retention.runs import RunReason
from lapse.kube.errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.core.clock import Clock
    from lapse.core.duration import Duration
    from lapse.engine.running.coordinator import Turn
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.freeze import Notes
    from lapse.history.api.kinds import RetentionPolicy
    from lapse.history.retention.runs import PolicyRun

_ACTED: Final = "acted"


class MemoryNotes:
    """`Notes` that end with the process: for where nothing outlives it."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._texts: dict[str, str] = {}

    async def read_note(self, name: str) -> str | None:
        """See `Notes`."""
        return self._texts.get(name)

    async def write_note(self, name: str, text: str) -> None:
        """See `Notes`."""
        self._texts[name] = text


class FirstPasses:
    """See the module."""

    def __init__(self, notes: Notes, *, interval: Duration, clock: Clock) -> None:
        """Read nothing yet; where no pass is made regularly, an hour is the interval."""
        self._notes, self._clock = notes, clock
        self._interval_ns = interval.nanoseconds or HOUR
        self._acted: set[str] = set()
        self.ends: UnixNs | None = None
        """When the last one that was found to be under way ends."""

    async def is_under_way(self, policy: RetentionPolicy) -> bool:
        """Whether ``policy`` has to be dry still; from the first time that this is asked."""
        name, now = policy.metadata.name, self._clock.wall_ns()
        self.ends = None
        if await self.has_acted(policy):
            return False
        try:
            seen = from_timestamp(await self._notes.read_note(_key(name)) or "")
            if seen is None or seen > now + SECOND:  # a clock that was ahead has written the latter
                await self._notes.write_note(_key(name), to_timestamp(now))
                seen = UnixNs(now)
        except LapseError as error:
            _log.warning("first_pass_unknown", policy=name, effect="the pass is dry", problem=str(error))
            return True
        ends = UnixNs(seen + self._interval_ns)
        self.ends = ends if now < ends else None
        return now < ends

    async def has_acted(self, policy: RetentionPolicy) -> bool:
        """Whether ``policy`` was ever more than dry on this store; what cannot be read counts as no."""
        name, status = policy.metadata.name, policy.status
        if name in self._acted or (status is not None and status.last_run is not None and not status.dry_run):
            return True
        try:
            return await self._notes.read_note(_key(name)) == _ACTED
        except LapseError:
            return False

    async def acted(self, name: str) -> None:
        """Take note that a policy was more than dry."""
        if name in self._acted:
            return
        self._acted.add(name)
        try:
            await self._notes.write_note(_key(name), _ACTED)
        except LapseError as error:  # its status tells as well, where it has one
            _log.warning("first_pass_unknown", policy=name, effect="the next pass may be dry", problem=str(error))


def _key(policy: str) -> str:
    return f"first-pass.{policy}"


RETRY_SECONDS: Final = 60.0
"""How long a store that did not answer is left alone before the next pass."""
_NS: Final = 1_000_000_000
_log = get_logger("lapse.history")


class Passing(Protocol):
    """What is to be done each time."""

    async def publish(self) -> None:
        """Make the policies of the settings objects of the store; raises `StoreUnavailableError`."""
        ...

    async def pass_over(self, *, proceed: Callable[[], bool], next_run: UnixNs) -> dict[str, PolicyRun]:
        """Let every policy pass; raises `StoreUnavailableError`."""
        ...

    def first_pass_ends(self) -> UnixNs | None:
        """Return when a pass that is dry today would not be any more."""
        ...


class RetentionLoop:
    """A `lapse.engine.running.coordinator.Loop`: passes over everything, where this process leads."""

    name = "retention"
    domain = RETENTION
    leader_only = True

    def __init__(self, retention: Passing, interval: float, *, clock: Clock, metrics: Metrics, chance: Chance) -> None:
        """Pass every ``interval`` seconds."""
        self.interval, self._metrics = interval, metrics
        self._retention, self._clock, self._chance = retention, clock, chance
        self._turn: Turn | None = None

    def begin(self, turn: Turn) -> None:
        """See `lapse.engine.running.coordinator.Steered`."""
        self._turn = turn

    async def tick(self) -> float:
        """Pass; return the seconds to the next time."""
        wait = around(self.interval, chance=self._chance)
        next_run = self._clock.wall_ns() + round(wait * _NS)
        retry = min(wait, RETRY_SECONDS)
        try:
            await self._retention.publish()
            runs = await self._retention.pass_over(proceed=self._proceed, next_run=UnixNs(next_run))
        except StoreUnavailableError as error:
            _log.warning("retention_postponed", seconds=retry, reason=str(error))
            self._metrics.failed(RETENTION, ErrorKind.TICK)
            return retry
        if any(run.reason is RunReason.STORE_UNAVAILABLE for run in runs.values()):
            return retry
        ends = self._retention.first_pass_ends()
        again = next_run if ends is None else min(next_run, ends)
        return max(0.0, (again - self._clock.wall_ns()) / _NS)

    def _proceed(self) -> bool:
        return self._turn is None or self._turn.proceed()
