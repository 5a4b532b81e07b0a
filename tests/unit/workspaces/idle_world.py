"""A workspace, the proxies in front of it and a manager that ticks by the clock: a world that checks itself.

What is promised is checked at every tick, by what the world itself remembers of people and never by what the store says
about them: nobody is stopped while somebody is there, within its TTL, or while that is not known; and who is idle is
stopped in time.

Two clocks. Rows are written in wall time, which may jump; leases, timers and the interval are monotonic. After a jump
the TTL, the timer and the lease are counted anew before "in time" is asked for, as nobody can know how much of it was
the jump. That a jump ahead ends TTLs early is not looked at here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.core.clock import VirtualClock
from lapse.db.sqlite.database import Database
from lapse.db.sqlite.file import SQLiteFile, Synchronous
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.running.metrics import Metrics
from lapse.workspaces.activity.in_process import InProcessActivity
from lapse.workspaces.activity.port import ActivityUnavailableError
from lapse.workspaces.errors import WorkspaceStoreUnavailableError
from lapse.workspaces.model import DesiredBy, DesiredState, Ms, NewWorkspace, ObservedStatus, Workspace
from lapse.workspaces.store.sqlite import SqliteWorkspaceStore
from tests.conformance.ttl_manager.harness import Manager
from tests.conformance.workspaces.worlds import WITH_TABLES_BESIDE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from pathlib import Path

    from lapse.workspaces.activity.port import ConnectionId, Signal
    from lapse.workspaces.model import WorkspaceCandidate, WorkspaceId

LEASE, HEARTBEAT, ARCHIVE_TTL = 30, 10, 500
_STATUS: Final = {state: ObservedStatus(state.value) for state in DesiredState}


class Store:
    """The store as the manager sees it: away at times, and changed by somebody else in the middle of a tick."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - any store
        self.inner, self.away = inner, False
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.inner, name)

    async def standby_candidates(self, now: Ms, **how: Any) -> Sequence[Workspace]:  # noqa: ANN401
        if self.away:
            raise WorkspaceStoreUnavailableError(problem="it is away")
        found: Sequence[Workspace] = await self.inner.standby_candidates(now, **how)
        return found

    async def archive_candidates(self, now: Ms, **how: Any) -> Sequence[Workspace]:  # noqa: ANN401
        if self.away:
            raise WorkspaceStoreUnavailableError(problem="it is away")
        found: Sequence[Workspace] = await self.inner.archive_candidates(now, **how)
        return found

    async def to_standby(self, candidates: Sequence[WorkspaceCandidate], **how: Any) -> Any:  # noqa: ANN401
        if self.meanwhile is not None:
            await self.meanwhile()
        return await self.inner.to_standby(candidates, **how)


class Activity:
    """Who is there, as the manager sees it: unreachable at times."""

    def __init__(self, inner: InProcessActivity) -> None:
        self.inner, self.away = inner, False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.inner, name)

    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        await self.check()
        return await self.inner.read(workspaces)

    async def check(self) -> None:
        if self.away:
            raise ActivityUnavailableError(backend="redis://gone", problem="it is away")


class World:
    """See the module. The workspace became RUNNING just now."""

    def __init__(self, folder: Path, *, ttl: int, idle: int, interval: float) -> None:
        self.clock, self.ttl, self.idle, self.interval = VirtualClock(), ttl, idle, interval
        file = SQLiteFile(folder / "workspaces.db", synchronous=Synchronous.NORMAL)
        self.store = Store(SqliteWorkspaceStore(Database(file, WITH_TABLES_BESIDE)))
        self.journal, self.metrics = SQLiteJournal(self.store.database), Metrics("test")
        self.alive: set[ConnectionId] = set()
        self.next_tick = interval
        self.timer_until = 0.0
        """In seconds of monotonic time, as the next two."""
        self.stored_from = 0.0
        self.lose_activity()

    @property
    def now(self) -> Ms:
        return Ms(self.clock.wall_ns() // 1_000_000)

    @property
    def passed(self) -> float:
        """Seconds of monotonic time."""
        return self.clock.monotonic_ns() / 1e9

    def lose_activity(self) -> None:
        """Start the activity store, empty."""
        self.activity = Activity(InProcessActivity(self.clock, lease_seconds=LEASE))
        self.known_from = self.passed + 2 * LEASE
        self.timer_until = 0.0
        self.restart_manager()

    def restart_manager(self) -> None:
        """Let another process take over: what a manager remembers is gone."""
        self.manager = self.new_manager()

    def new_manager(self) -> Manager:
        return Manager(self.store, self.activity, self.journal, clock=self.clock, metrics=self.metrics)

    async def begin(self) -> None:
        asked = NewWorkspace(
            name="notes",
            owner="ada",
            command=("serve",),
            port=1,
            standby_ttl_seconds=self.ttl,
            archive_ttl_seconds=ARCHIVE_TTL,
        )
        made = await self.store.create(asked, now=self.now)
        self.id, self.status = made.id, made.observed_status
        self.accessed = self.seen = self.counted_from = self.changed = self.now
        """When somebody asked for something; when somebody was there; since when time is even; when it came to its
        status."""
        await self.converge()

    async def row(self) -> Workspace:
        found: Workspace = await self.store.get(self.id)
        return found

    async def converge(self) -> None:
        """Do at once what the reconciler and the health monitor do in their time."""
        status = _STATUS[(await self.row()).desired_state]
        if status is not self.status:
            self.status, self.changed = status, self.now
        await self.store.observe({self.id: status}, now=self.now)

    # --- people -------------------------------------------------------------------------------------------------------

    async def connect(self, name: ConnectionId) -> None:
        await self.activity.connect(self.id, name, lease_seconds=LEASE)
        await self.store.connected(self.id, now=self.now)
        self.alive.add(name)
        self.timer_until = 0.0
        self._asked()

    async def disconnect(self, name: ConnectionId) -> None:
        await self.ask_for_a_page()
        if await self.activity.disconnect(self.id, name, idle_seconds=self.idle):
            self.timer_until = self.passed + self.idle
        self.alive.discard(name)

    async def ask_for_a_page(self) -> None:
        await self.store.flush_access({self.id: self.now})
        self._asked()

    async def want(self, state: DesiredState) -> None:
        await self.store.set_desired(self.id, state, DesiredBy.USER, now=self.now)
        if state is DesiredState.RUNNING:  # who wants it to rest does not use it
            self._asked()
        self.seen = self.now

    def crash(self, *names: ConnectionId) -> None:
        """Kill proxies, with these connections."""
        if self.alive & set(names):
            self.seen = self.now
        self.alive.difference_update(names)

    def _asked(self) -> None:
        self.accessed = self.seen = self.now

    # --- time ---------------------------------------------------------------------------------------------------------

    def jump(self, seconds: float, *, suspended: bool = False) -> None:
        """Move the wall clock; ``suspended``: as after a sleep, in which nothing ran."""
        before = self.now
        move = self.clock.suspend if suspended else self.clock.jump_wall
        move(seconds)
        self.counted_from = max(self.counted_from, before, self.now)

    async def wait(self, seconds: float) -> None:
        while seconds > 0:
            step = min(seconds, HEARTBEAT, self.next_tick)
            self.clock.advance(step)
            seconds, self.next_tick = seconds - step, self.next_tick - step
            if self.alive:
                await self.heartbeat()
            if self.next_tick <= 0:
                self.next_tick = self.interval
                await self.tick()

    async def heartbeat(self) -> None:
        """What a proxy does for those that live: renew, and connect anew what was lost."""
        for name in await self.activity.renew(dict.fromkeys(self.alive, self.id), LEASE):
            await self.connect(name)
            await self.converge()

    async def tick(self, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
        """Let the manager look, with something that happens between its decision and its change; and check."""
        before, people = await self.row(), self.accessed
        self.store.meanwhile = meanwhile
        try:
            await self.manager.tick()
        except WorkspaceStoreUnavailableError:
            assert self.store.away
        finally:
            self.store.meanwhile = None
        after = await self.row()
        if before.observed_status is ObservedStatus.RUNNING:
            self.check_standby(before, after)
        elif before.observed_status is ObservedStatus.STANDBY:
            self.check_archive(before, after)
        assert (
            after.desired_state is not before.desired_state
            or after.desired_by is before.desired_by
            or (people != self.accessed)
        ), "a tick changes who wants it only with what is wanted"
        if after.desired_state is not before.desired_state:
            await self.converge()

    # --- what is promised ---------------------------------------------------------------------------------------------

    def check_standby(self, before: Workspace, after: Workspace) -> None:
        wanted = before.desired_state is DesiredState.RUNNING
        stopped = wanted and after.desired_state is DesiredState.STANDBY
        if stopped:
            assert not self.alive, "somebody is there"
            assert self.passed >= self.timer_until, "somebody has just gone"
            assert self.now - max(self.accessed, self.changed) > self.ttl * 1000, "within its TTL"
            assert self.passed >= self.known_from, "nobody knows whether somebody is there"
            assert not self.activity.away
        if wanted and not self.alive and self._is_over(max(self.ttl, self.idle, LEASE), known=True):
            assert stopped, "idle for too long"

    def check_archive(self, before: Workspace, after: Workspace) -> None:
        wanted = before.desired_state is DesiredState.STANDBY
        archived = wanted and after.desired_state is DesiredState.PENDING
        if archived:
            assert self.now - max(self.accessed, self.changed) > ARCHIVE_TTL * 1000, "within its TTL"
        if wanted and self._is_over(ARCHIVE_TTL, known=False):
            assert archived, "forgotten for too long, whatever is known of connections"

    def _is_over(self, seconds: float, *, known: bool) -> bool:
        """Whether it must have been done by now: after so many seconds and one interval, while all could be known."""
        if self.store.away or (known and self.activity.away):
            return False
        since = max(self.seen, self.changed, self.counted_from)
        sure_from = max(self.stored_from, self.known_from if known else 0.0)
        within = self.interval * 1000
        return self.now > since + seconds * 1000 + within and self.passed > sure_from + self.interval
