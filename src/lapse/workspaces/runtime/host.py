"""The workspace host: runtime, health monitor and reconciler of one machine, from start to stop, in order.

First the runtime is opened, which ends what a crashed Lapse left; then everything is looked at; then the reconciler
works. At the end the other way round: no new step, programs stopped (unless they are to outlive Lapse), and a last look
written down, so that nobody is sent to a program that has gone.

Of several processes on one folder, one is the host; another waits for its turn, and takes over when the folder is free.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from lapse.core.errors import LapseError
from lapse.core.jitter import around
from lapse.core.log import get_logger
from lapse.engine.running.coordinator import first_of
from lapse.workspaces.activity.probes import INTERVAL_SECONDS as PROBE_SECONDS
from lapse.workspaces.activity.probes import Prober, by_port
from lapse.workspaces.runtime.port import INTERVAL_SECONDS, HealthMonitor, RuntimeBusyError
from lapse.workspaces.runtime.reconciler import Reconciler

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.core.clock import Clock
    from lapse.workspaces.activity.probes import Reach
    from lapse.workspaces.model import Workspace
    from lapse.workspaces.runtime.process import ProcessRuntime
    from lapse.workspaces.store.port import WorkspaceStore

_BUSY_SECONDS: Final = 1.0
_log = get_logger("lapse.workspaces.runtime.host")


class WorkspaceHost:
    """A service of the coordinator; one per machine, leader or not: a workspace is where its data is."""

    name = "workspaces"

    def __init__(
        self,
        store: WorkspaceStore,
        runtime: ProcessRuntime,
        *,
        clock: Clock,
        on_error: Callable[[Exception], None] = lambda _error: None,
        on_exit: Callable[[], None] = lambda: None,
        probes: Callable[[bool], None] = lambda _up: None,
        reach: Callable[[Workspace], Reach] = by_port,
    ) -> None:
        """Touch nothing yet.

        ``on_error`` is told of each step and each look that failed, ``on_exit`` of programs that ended by themselves,
        ``probes`` whether all programs that were asked by their probes have answered. ``reach`` says how these are
        reached.
        """
        self._runtime, self._clock, self._on_error = runtime, clock, on_error
        self.since_ns: int | None = None
        """Since when, in monotonic time, the workspaces are this process's; None while they are not."""
        self._health = HealthMonitor(store, runtime, clock=clock)
        self._prober = Prober(store, node=runtime.node, clock=clock, signal=probes, reach=reach)
        self._reconciler = Reconciler(store, runtime, self._health, clock=clock, on_error=on_error, on_exit=on_exit)

    def wake(self) -> None:
        """Look for work now: somebody in this process has just asked for something. For use on the event loop."""
        self._reconciler.wake()

    async def run(self, stopping: asyncio.Event) -> None:
        """See `lapse.engine.running.coordinator.Service`."""
        if not await self._open(stopping):
            return
        try:
            self.since_ns = self._clock.monotonic_ns()
            await self._look()
            looking = asyncio.create_task(self._keep_looking(), name="lapse-workspaces-health")
            asking = asyncio.create_task(self._keep_asking(), name="lapse-workspaces-probes")
            try:
                await self._reconciler.run(stopping)
            finally:
                for task in (looking, asking):
                    task.cancel()
                await asyncio.gather(looking, asking, return_exceptions=True)
        finally:
            self.since_ns = None
            await self._runtime.close()
            await self._look()

    async def _open(self, stopping: asyncio.Event) -> bool:
        """Take the folder as soon as nobody else has it; return whether that was before the end."""
        waits = False
        while not stopping.is_set():
            try:
                await self._runtime.open()
            except RuntimeBusyError as error:
                if not waits:
                    _log.info("waiting_for_the_folder", reason=str(error))
                waits = True
                await first_of(stopping.wait(), self._clock.sleep(_BUSY_SECONDS))
            else:
                return True
        return False

    async def _keep_looking(self) -> None:
        while True:
            await self._clock.sleep(around(INTERVAL_SECONDS))
            await self._look()
            self._reconciler.wake()

    async def _keep_asking(self) -> None:
        while True:
            await self._clock.sleep(around(PROBE_SECONDS))
            try:
                await self._prober.round()
            except Exception as error:  # noqa: BLE001 - one bad round must not be the last one
                _log.warning("probes_failed", **_about(error))
                self._on_error(error)

    async def _look(self) -> None:
        try:
            await self._health.look()
        except Exception as error:  # noqa: BLE001 - one bad look must not be the last one
            _log.warning("look_failed", **_about(error))
            self._on_error(error)


def _about(error: Exception) -> dict[str, Any]:
    """Return what a log line tells of an error: a defect needs its traceback."""
    return {"error": type(error).__name__, "reason": str(error), "exc_info": not isinstance(error, LapseError)}
