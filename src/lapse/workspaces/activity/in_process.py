"""Activity of one process: for a Lapse that is its own proxy, and for tests.

Monotonic time decides, so that leases survive a clock that jumps and a laptop that sleeps. What is known ends with the
process; a new one begins, like a server that lost its memory, with two lease periods in which it believes nothing.
Where several processes may serve workspaces in turn, ``since`` tells since when it is this one: before that it knows
nothing, and then the two periods begin.

Not for threads: all calls belong to one event loop. None of them suspends, so each is atomic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.workspaces.activity.port import (
    DEFAULT_LEASE_SECONDS,
    ActivityClosedError,
    ActivityDoubt,
    ActivityUnknown,
    Connected,
    Quiet,
    Timer,
    milliseconds_of_lease,
    milliseconds_of_timer,
    settling_milliseconds,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lapse.core.clock import Clock
    from lapse.workspaces.activity.port import ConnectionId, Signal
    from lapse.workspaces.model import WorkspaceId

_MS: Final = 1_000_000
_SECOND: Final = 1_000_000_000


class InProcessActivity:
    """See the module."""

    def __init__(
        self,
        clock: Clock,
        *,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        since: Callable[[], int | None] | None = None,
    ) -> None:
        """Begin; see `Activity.lease_seconds`."""
        self.lease_seconds = lease_seconds
        self._clock = clock
        begun = clock.monotonic_ns()
        self._since = since or (lambda: begun)
        self._settling = settling_milliseconds(lease_seconds) * _MS
        self._leases: dict[WorkspaceId, dict[ConnectionId, int]] = {}
        self._timers: dict[WorkspaceId, int] = {}
        """Ends, in the order in which they were set: with one length for all, those that are over stand first."""
        self._changes = 0
        self._closed = False

    async def connect(self, workspace: WorkspaceId, connection: ConnectionId, *, lease_seconds: float) -> bool:
        """See `Activity`."""
        lease = milliseconds_of_lease(lease_seconds, self.lease_seconds)
        now = self._now()
        leases = self._live(workspace, now)
        leases[connection] = max(leases.get(connection, 0), now + lease * _MS)
        self._leases[workspace] = leases
        self._timers.pop(workspace, None)
        self._changes += 1
        return len(leases) == 1

    async def renew(self, connections: Mapping[ConnectionId, WorkspaceId], lease_seconds: float) -> set[ConnectionId]:
        """See `Activity`."""
        lease = milliseconds_of_lease(lease_seconds, self.lease_seconds)
        now = self._now()
        end = now + lease * _MS
        lost = set()
        for connection, workspace in connections.items():
            leases = self._leases.get(workspace, {})
            held = leases.get(connection, now)
            if held > now:
                leases[connection] = max(held, end)
            else:
                lost.add(connection)
        return lost

    async def disconnect(self, workspace: WorkspaceId, connection: ConnectionId, *, idle_seconds: float) -> bool:
        """See `Activity`."""
        idle = milliseconds_of_timer(idle_seconds)
        now = self._now()
        leases = self._live(workspace, now)
        leases.pop(connection, None)
        self._changes += 1
        if leases:
            return False
        self._leases.pop(workspace, None)
        self._timers.pop(workspace, None)
        if idle:
            self._timers[workspace] = now + idle * _MS
        self._drop_old_timers(now)
        return True

    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        """See `Activity`."""
        now = self._now()
        if not self._is_settled(now):
            return dict.fromkeys(workspaces, ActivityUnknown(ActivityDoubt.EPOCH_YOUNG))
        return {workspace: self._signal(workspace, now) for workspace in workspaces}

    def fingerprint(self) -> tuple[int, bool]:
        """Return what is another one after somebody came or went, and once it is known who is there."""
        return self._changes, self._is_settled(self._now())

    async def check(self) -> None:
        """See `Activity`."""
        self._now()

    async def close(self) -> None:
        """See `Activity`. Here everything that was known is gone."""
        self._closed = True
        self._leases.clear()
        self._timers.clear()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _now(self) -> int:
        if self._closed:
            raise ActivityClosedError
        return self._clock.monotonic_ns()

    def _is_settled(self, now: int) -> bool:
        """Whether it has run for so long that everybody who is there has said so."""
        since = self._since()
        return since is not None and now >= since + self._settling

    def _live(self, workspace: WorkspaceId, now: int) -> dict[ConnectionId, int]:
        """Return the leases of a workspace without those that are over; kept so, if there were any."""
        leases = self._leases.get(workspace)
        if leases is None:
            return {}
        for ended in [connection for connection, end in leases.items() if end <= now]:
            del leases[ended]
        return leases

    def _signal(self, workspace: WorkspaceId, now: int) -> Signal:
        leases = self._live(workspace, now)
        if leases:
            return Connected(len(leases))
        self._leases.pop(workspace, None)
        left = self._timers.get(workspace, now) - now
        return Timer(left / _SECOND) if left > 0 else Quiet()

    def _drop_old_timers(self, now: int) -> None:
        """Forget timers that are over, so that a workspace that is gone leaves nothing behind."""
        while self._timers:
            first = next(iter(self._timers))
            if self._timers[first] > now:
                return
            del self._timers[first]
