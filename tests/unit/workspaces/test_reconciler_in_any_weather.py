"""Random wishes, visitors, failures, crashes and pauses: data is never lost, and calm always brings what is wanted."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.workspaces.errors import OperationUnderWayError, WorkspaceStoreUnavailableError
from lapse.workspaces.model import DesiredState, Ms, Operation
from tests.examples import examples
from tests.unit.workspaces.chain import Crashed, World

WISHES = st.tuples(st.just("want"), st.sampled_from(list(DesiredState)))
VISITS = st.tuples(st.just("visit"), st.just(0))
WORK = st.tuples(st.just("work"), st.integers(1, 1000))
PAUSES = st.tuples(st.just("pause"), st.sampled_from([0.5, 3.0, 20.0]))
CRASHES = st.tuples(st.just("crash"), st.integers(0, 12))
FAILURES = st.tuples(st.just("fail"), st.integers(0, 12))
ENDS = st.tuples(st.just("program ends"), st.just(0))
EVENTS = st.one_of(WISHES, WISHES, VISITS, WORK, PAUSES, PAUSES, CRASHES, FAILURES, ENDS)


class Weather:
    """One workspace, and all that may happen to it."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self.written = ""

    async def go(self, events: list[tuple[str, Any]]) -> None:
        self.workspace = await self.world.create()
        for what, how in events:
            await getattr(self, what.replace(" ", "_"))(how)
            await self.world.tick()
            if self.world.dead:
                await self.begin_again()
            self.nothing_is_lost()
        await self.calm()

    async def want(self, state: DesiredState) -> None:
        try:
            await self.world.want(self.workspace, state)
        except OperationUnderWayError:
            assert (await self.world.get(self.workspace)).operation is not Operation.NONE

    async def visit(self, _: int) -> None:
        found = await self.world.get(self.workspace)
        if found.error_reason is None:
            await self.world.store.connected(self.workspace.id, now=self.world.now)
        else:
            await self.world.store.revive(self.workspace.id, before=self.world.now, seen=Ms(0), now=self.world.now)

    async def work(self, text: int) -> None:
        """What a running program writes."""
        if self.workspace.id in self.world.machine.programs:
            self.world.machine.volumes[self.workspace.id] = self.written = str(text)

    async def pause(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        await self.world.tick()
        if not self.world.dead:
            with contextlib.suppress(Crashed, WorkspaceStoreUnavailableError):
                await self.world.health.look()

    async def crash(self, after: int) -> None:
        self.hurt_after(after, Crashed())

    async def fail(self, after: int) -> None:
        self.hurt_after(after, WorkspaceStoreUnavailableError(problem="for a moment"))

    async def program_ends(self, _: int) -> None:
        if self.workspace.id in self.world.machine.programs:
            self.world.end_program(self.workspace)

    def hurt_after(self, count: int, error: BaseException) -> None:
        place = len(self.world.points) + count

        def hurt(_point: str) -> None:
            if len(self.world.points) == place + 1:
                raise error

        self.world.hurt = hurt

    async def begin_again(self) -> None:
        await self.world.reconciler.end()
        self.world.hurt = lambda _point: None
        self.world.live()
        await self.world.health.look()

    def nothing_is_lost(self) -> None:
        """The newest of what is there is what was last written."""
        machine, one = self.world.machine, self.workspace.id
        there = [*machine.archives.get(one, []), *([machine.volumes[one]] if one in machine.volumes else [])]
        assert (there[-1] if there else "") == self.written

    async def calm(self) -> None:
        """Nothing bad happens any more: what is wanted comes, an error only if somebody has to act."""
        self.world.hurt = lambda _point: None
        await self.world.health.look()
        await self.world.run(seconds=300)
        found = await self.world.get(self.workspace)
        if found.error_reason is not None:
            await self.world.store.clear_error(self.workspace.id, now=self.world.now)
            await self.world.run(seconds=300)
            found = await self.world.get(self.workspace)
        assert (found.observed_status.value, found.operation) == (found.desired_state.value, Operation.NONE)
        self.nothing_is_lost()


@settings(max_examples=examples(40))
@given(events=st.lists(EVENTS, max_size=25))
def test_in_any_weather_nothing_is_lost_and_what_is_wanted_comes(events: list[tuple[str, Any]]) -> None:
    async def one() -> None:
        with tempfile.TemporaryDirectory() as folder:
            weather = Weather(Path(folder))
            try:
                await weather.go(events)
            finally:
                await weather.world.reconciler.end()
                await weather.world.store.close()

    asyncio.run(one())
