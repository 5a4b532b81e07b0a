"""The hourly pass, as the coordinator runs it: publish the policies of the settings, pass over everything, wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from lapse.core.clock import UnixNs
from lapse.core.jitter import Chance, around
from lapse.core.log import get_logger
from lapse.engine.running.metrics import ErrorKind
from lapse.history.retention.passes import RETENTION
from lapse.history.retention.runs import RunReason
from lapse.kube.errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.core.clock import Clock
    from lapse.engine.running.coordinator import Turn
    from lapse.engine.running.metrics import Metrics
    from lapse.history.retention.runs import PolicyRun

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
