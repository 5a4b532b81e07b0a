"""Users, connections, crashes, stores that fail and clocks that jump, in any order: who is there stays, who is idle
goes in time. And managers that are broken in one way each, which this notices."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from lapse.workspaces.activity.port import ActivityUnavailableError, ActivityUnknown, ConnectionId, Quiet, Timer
from lapse.workspaces.model import DesiredState, Ms, WorkspaceId
from tests.conformance.ttl_manager.harness import Manager, TickReport
from tests.examples import examples
from tests.unit.workspaces.idle_world import ARCHIVE_TTL, World

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from lapse.workspaces.activity.port import Signal
    from lapse.workspaces.model import Workspace, WorkspaceCandidate

T = TypeVar("T")
A, B, C = (ConnectionId(name) for name in "abc")
NAMES = st.sampled_from([A, B, C])
SECONDS = st.sampled_from([0.001, 1, 4.999, 10, 29.999, 60, 301])


class Flow(RuleBasedStateMachine):
    """Anything in any order; the world checks itself at every tick."""

    world_of = World

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.world: World | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        with ExitStack() as stack:
            stack.callback(self.folder.cleanup)
            stack.callback(self.loop.close)
            stack.callback(lambda: self.run(self.loop.shutdown_default_executor()))
            if self.world is not None:
                stack.callback(lambda: self.run(self.here.store.close()))
                self.run(self.world.wait(max(self.world.ttl, ARCHIVE_TTL) + 2 * self.world.interval))

    @property
    def here(self) -> World:
        assert self.world is not None
        return self.world

    @initialize(
        ttl=st.sampled_from([1, 7, 25, 40, 300]), idle=st.sampled_from([0, 5, 300]), interval=st.sampled_from([7, 60])
    )
    def begin(self, ttl: int, idle: int, interval: int) -> None:
        self.world = self.world_of(Path(self.folder.name), ttl=ttl, idle=idle, interval=interval)
        self.run(self.world.begin())

    # --- people -------------------------------------------------------------------------------------------------------

    @rule(name=NAMES)
    def somebody_comes(self, name: ConnectionId) -> None:
        self.run(self.here.connect(name))
        self.run(self.here.converge())

    @rule(name=NAMES)
    def somebody_comes_between_the_decision_of_a_tick_and_its_change(self, name: ConnectionId) -> None:
        self.run(self.here.tick(meanwhile=lambda: self.here.connect(name)))

    @rule(name=NAMES)
    def somebody_goes(self, name: ConnectionId) -> None:
        if name in self.here.alive:
            self.run(self.here.disconnect(name))

    @rule()
    def somebody_asks_for_a_page(self) -> None:
        self.run(self.here.ask_for_a_page())

    @rule()
    def somebody_asks_for_a_page_between_the_decision_of_a_tick_and_its_change(self) -> None:
        self.run(self.here.tick(meanwhile=self.here.ask_for_a_page))

    @rule(state=st.sampled_from(DesiredState), seconds=st.sampled_from([0, 10, 301]))
    def a_user_wants_something_and_gets_it_after_a_while(self, state: DesiredState, seconds: float) -> None:
        self.run(self.here.want(state))
        self.run(self.here.wait(seconds))
        self.run(self.here.converge())

    # --- what fails ---------------------------------------------------------------------------------------------------

    @rule(name=NAMES)
    def a_proxy_crashes(self, name: ConnectionId) -> None:
        self.here.crash(name)

    @rule()
    def all_proxies_crash(self) -> None:
        self.here.crash(A, B, C)

    @rule()
    def the_manager_crashes(self) -> None:
        self.here.restart_manager()

    @rule()
    def the_activity_store_is_lost(self) -> None:
        self.here.lose_activity()

    @rule(seconds=SECONDS)
    def the_manager_cannot_reach_the_activity_store_for_a_while(self, seconds: float) -> None:
        self.here.activity.away = True
        self.run(self.here.wait(seconds))
        self.here.activity.away = False
        self.here.known_from = max(self.here.known_from, self.here.passed)

    @rule(seconds=SECONDS)
    def the_manager_cannot_reach_the_database_for_a_while(self, seconds: float) -> None:
        self.here.store.away = True
        self.run(self.here.wait(seconds))
        self.here.store.away = False
        self.here.stored_from = self.here.passed

    # --- time ---------------------------------------------------------------------------------------------------------

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.run(self.here.wait(seconds))

    @rule(seconds=st.sampled_from([-3600, -31, -0.001, 0.001, 31, 3600]))
    def the_clock_jumps(self, seconds: float) -> None:
        self.here.jump(seconds)

    @rule(seconds=st.sampled_from([31, 3600]))
    def the_machine_sleeps(self, seconds: float) -> None:
        self.here.jump(seconds, suspended=True)


TestFlow = Flow.TestCase
TestFlow.settings = settings(max_examples=examples(50), stateful_step_count=25, deadline=None)


# --- what it would notice ---------------------------------------------------------------------------------------------


class Around:
    """Everything as it was."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401
        self.inner = inner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.inner, name)


class NobodyIsEverThere(Around):
    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        return dict.fromkeys(await self.inner.read(workspaces), Quiet())


class TimersAreNothing(Around):
    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        found = await self.inner.read(workspaces)
        return {one: Quiet() if isinstance(signal, Timer) else signal for one, signal in found.items()}


class DoubtIsAbsence(Around):
    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        found = await self.inner.read(workspaces)
        return {one: Quiet() if isinstance(signal, ActivityUnknown) else signal for one, signal in found.items()}


class SilenceIsAbsence(Around):
    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        try:
            found: dict[WorkspaceId, Signal] = await self.inner.read(workspaces)
        except ActivityUnavailableError:
            return dict.fromkeys(workspaces, Quiet())
        return found


class WhoeverCameNeverGoes(Around):
    """As the plain counter of a proxy that crashed."""

    seen: dict[WorkspaceId, Signal]

    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        self.seen = getattr(self, "seen", {})
        for one, signal in (await self.inner.read(workspaces)).items():
            if isinstance(self.seen.setdefault(one, signal), Quiet | ActivityUnknown):
                self.seen[one] = signal
        return self.seen


class ComparesNothing(Around):
    async def to_standby(self, candidates: Sequence[WorkspaceCandidate], **how: Any) -> Any:  # noqa: ANN401
        await self.inner.to_standby([], **how)  # what happens meanwhile
        fresh = [(await self.inner.get(one.id)).candidate for one in candidates]
        return await self.inner.inner.to_standby(fresh, **how)


class ComparesNoAccess(Around):
    async def to_standby(self, candidates: Sequence[WorkspaceCandidate], **how: Any) -> Any:  # noqa: ANN401
        await self.inner.to_standby([], **how)
        fresh = [(await self.inner.get(one.id)).candidate for one in candidates]
        same = [new for old, new in zip(candidates, fresh, strict=True) if old.version == new.version]
        return await self.inner.inner.to_standby(same, **how)


FAR = 10**9
"""So much ahead everything is looked at."""


EARLY = 1_000_000_000_000
"""Long before everything here, and a time nevertheless."""


class CountsFromTheAccessAlone(Around):
    async def standby_candidates(self, now: Ms, **how: Any) -> Sequence[Workspace]:  # noqa: ANN401
        page = await self.inner.standby_candidates(Ms(now + FAR), **how)
        early = {"status_changed_at": EARLY, "running_since": EARLY}
        return [msgspec.structs.replace(one, **early) for one in page]

    async def to_standby(self, candidates: Sequence[WorkspaceCandidate], **how: Any) -> Any:  # noqa: ANN401
        whole = [(await self.inner.get(one.id)).candidate for one in candidates]
        return await self.inner.to_standby(whole, **how)


class OneTtlForAll(Around):
    async def standby_candidates(self, now: Ms, **how: Any) -> Sequence[Workspace]:  # noqa: ANN401
        page = await self.inner.standby_candidates(now, **how)
        return [msgspec.structs.replace(one, standby_ttl_seconds=300) for one in page]


class PutsOffForTooLong(Around):
    async def advance_checks(self, checks: dict[WorkspaceCandidate, Ms]) -> None:
        await self.inner.advance_checks({one: Ms(look + 400_000) for one, look in checks.items()})


class NeverStopsAnybody(Around):
    async def standby_candidates(self, now: Ms, **how: Any) -> Sequence[Workspace]:  # noqa: ANN401
        return []


class ArchivesTooEarly(Around):
    async def archive_candidates(self, now: Ms, **how: Any) -> Sequence[Workspace]:  # noqa: ANN401
        page = await self.inner.archive_candidates(Ms(now + FAR), **how)
        return [msgspec.structs.replace(one, archive_ttl_seconds=1) for one in page]


class GivesUpAfterAFailure(Manager):
    """Whose loop ends with the first error."""

    gave_up = False

    async def tick(self, **how: Any) -> TickReport:  # noqa: ANN401 - passed on
        if self.gave_up:
            return TickReport()
        try:
            return await super().tick(**how)
        except Exception:
            self.gave_up = True
            raise


class ArchivesOnlyWhatItKnows(Manager):
    """Which lets the archive wait for the activity store, too."""

    async def tick(self, **how: Any) -> TickReport:  # noqa: ANN401 - passed on
        try:
            ((_, signal),) = (await self.activity.read([WorkspaceId("nobody")])).items()
        except ActivityUnavailableError:
            return TickReport()
        return TickReport() if isinstance(signal, ActivityUnknown) else await super().tick(**how)


Script = Sequence[tuple[Any, ...]]
START, LONG, SHORT = ("begin", 40, 0, 7), ("begin", 300, 300, 60), ("begin", 1, 300, 7)
"""With a TTL, an idle timer and an interval."""
SETTLED: tuple[Any, ...] = ("time_passes", 60)
COMES, GOES = ("somebody_comes", A), ("somebody_goes", A)
BROKEN: dict[type[Any], tuple[str, Script, str]] = {
    NobodyIsEverThere: ("activity", [START, COMES, ("time_passes", 301)], "somebody is there"),
    TimersAreNothing: ("activity", [SHORT, SETTLED, COMES, GOES, ("time_passes", 60)], "somebody has just gone"),
    DoubtIsAbsence: ("activity", [START, ("the_activity_store_is_lost",), SETTLED], "nobody knows"),
    SilenceIsAbsence: (
        "activity",
        [START, COMES, ("the_manager_cannot_reach_the_activity_store_for_a_while", 301)],
        "somebody is there",
    ),
    WhoeverCameNeverGoes: (
        "activity",
        [START, SETTLED, COMES, ("time_passes", 60), ("all_proxies_crash",), ("time_passes", 301)],
        "idle for too long",
    ),
    ComparesNothing: (
        "store",
        [LONG, ("time_passes", 301), ("somebody_comes_between_the_decision_of_a_tick_and_its_change", A)],
        "somebody is there",
    ),
    ComparesNoAccess: (
        "store",
        [LONG, ("time_passes", 301), ("somebody_asks_for_a_page_between_the_decision_of_a_tick_and_its_change",)],
        "within its TTL",
    ),
    CountsFromTheAccessAlone: (
        "store",
        [
            LONG,
            ("a_user_wants_something_and_gets_it_after_a_while", DesiredState.STANDBY, 0),
            ("a_user_wants_something_and_gets_it_after_a_while", DesiredState.RUNNING, 301),
            ("time_passes", 60),
        ],
        "within its TTL",
    ),
    OneTtlForAll: ("store", [START, ("time_passes", 301)], "idle for too long"),
    PutsOffForTooLong: ("store", [START, ("time_passes", 10), COMES, GOES, ("time_passes", 301)], "idle for too long"),
    NeverStopsAnybody: ("store", [START, ("time_passes", 301)], "idle for too long"),
    ArchivesTooEarly: ("store", [START, ("time_passes", 301)], "within its TTL"),
    GivesUpAfterAFailure: (
        "manager",
        [START, ("the_manager_cannot_reach_the_database_for_a_while", 10), ("time_passes", 301)],
        "idle for too long",
    ),
    ArchivesOnlyWhatItKnows: (
        "manager",
        [
            START,
            ("a_user_wants_something_and_gets_it_after_a_while", DesiredState.STANDBY, 0),
            *2 * [("the_manager_cannot_reach_the_activity_store_for_a_while", 301)],
        ],
        "forgotten for too long",
    ),
}


def play(script: Script, part: str | None = None, broken: Callable[..., Any] | None = None) -> None:
    """Do these steps, as the machine would have chosen them, with a manager of which one part is broken."""

    class Spoilt(World):
        def new_manager(self) -> Manager:
            make: Callable[..., Manager] = broken if broken and part == "manager" else Manager
            parts: dict[str, Any] = {"store": self.store, "activity": self.activity}
            if broken and part in parts:
                parts[part] = broken(parts[part])
            return make(*parts.values(), self.journal, clock=self.clock, metrics=self.metrics)

    class Played(Flow):
        world_of = Spoilt

    machine = Played()
    try:
        for name, *arguments in script:
            getattr(Flow, name)(machine, *arguments)
    finally:
        machine.teardown()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_manager_is_noticed(broken: type[Any]) -> None:
    part, script, message = BROKEN[broken]
    play(script)
    with pytest.raises(AssertionError, match=message):
        play(script, part, broken)


def test_every_broken_one_is_tried() -> None:
    here = {one for one in globals().values() if isinstance(one, type) and issubclass(one, Around | Manager)}
    assert set(BROKEN) == here - {Around, Manager}
