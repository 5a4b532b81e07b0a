"""Whatever is asked of them, both stores give the same answers and end with the same rows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lapse.workspaces.errors import WorkspaceError
from lapse.workspaces.model import (
    Changes,
    DesiredBy,
    DesiredState,
    Ms,
    NewWorkspace,
    ObservedStatus,
    Operation,
    OpId,
    Workspace,
    WorkspaceId,
)
from tests.conformance.workspaces.worlds import postgres_database, postgres_world, sqlite_world

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lapse.workspaces.store.port import WorkspaceStore
    from tests.servers import Server

NAMES = ("a", "b", "c")
STEP_MS = 100_000
"""Some of these are a standby TTL: so times meet, and all comparisons see equal ones."""

name = st.sampled_from(NAMES)
names = st.lists(name, min_size=1, unique=True)
op_id = st.sampled_from([OpId("op-1"), OpId("op-2")])
operation = st.sampled_from([one for one in Operation if one is not Operation.NONE])
stale = st.booleans()
EVERYBODY = [("create", one, DesiredState.RUNNING, 300) for one in NAMES]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), name, st.sampled_from(DesiredState), st.sampled_from([100, 300])),
        st.tuples(st.just("want"), name, st.sampled_from(DesiredState), st.sampled_from(DesiredBy), stale),
        st.tuples(st.just("ttls"), name, st.sampled_from([None, 100, 200]), st.sampled_from([None, 100])),
        st.tuples(st.just("hold"), name, st.sampled_from([None, 1, 3]), stale),
        st.tuples(st.just("release"), name),
        st.tuples(st.just("delete"), name),
        st.tuples(st.just("clear"), name),
        st.tuples(st.just("connect"), name),
        st.tuples(st.just("flush"), names, st.integers(-2, 2)),
        st.tuples(st.just("observe"), names, st.sampled_from(ObservedStatus)),
        st.tuples(st.just("remember"), names),
        st.tuples(st.just("advance"), names, st.integers(-1, 4)),
        st.tuples(st.just("standby"), names),
        st.tuples(st.just("pending"), names),
        st.tuples(st.just("claim"), name, operation, op_id),
        st.tuples(st.just("tried"), name, op_id),
        st.tuples(st.just("complete"), name, op_id, st.booleans()),
        st.tuples(st.just("fail"), name, op_id),
        st.tuples(st.just("forget"), name, op_id),
        st.tuples(st.just("wait"), st.integers(1, 3)),
    ),
    min_size=10,
    max_size=60,
)


class Actor:
    """Does the steps to one store, and speaks of workspaces by their number, as ids differ."""

    def __init__(self, store: WorkspaceStore) -> None:
        self.store = store
        self.now = 1_700_000_000_000
        self.ids: dict[str, WorkspaceId] = {}
        self.numbers: dict[WorkspaceId, int] = {}
        self.seen: dict[str, Workspace] = {}

    async def do(self, step: tuple[Any, ...]) -> object:
        kind, *details = step
        if kind not in {"create", "wait"} and not self._known(details[0]):
            return "nobody"
        try:
            return self._plain(await getattr(self, kind)(*details))
        except WorkspaceError as error:
            return type(error)

    async def state(self) -> object:
        """All that can be seen now."""
        now = Ms(self.now)
        pages = [
            await self.store.list(),
            await self.store.standby_candidates(now),
            await self.store.archive_candidates(now),
            await self.store.pending_work(),
        ]
        return [sorted((self._plain(one) for one in page), key=repr) for page in pages]

    def _known(self, named: str | list[str]) -> bool:
        return all(one in self.ids for one in ([named] if isinstance(named, str) else named))

    def _plain(self, answer: Any) -> Any:  # noqa: ANN401
        if isinstance(answer, Workspace):
            return replace(answer, id=WorkspaceId(str(self.numbers[answer.id])))
        return {self.numbers[one] for one in answer} if isinstance(answer, set | frozenset) else answer

    def _version(self, named: str, stale: bool) -> int | None:  # noqa: FBT001
        return self.seen[named].version if stale and named in self.seen else None

    async def create(self, named: str, state: DesiredState, ttl: int) -> Workspace:
        asked = NewWorkspace(
            name=named, owner="ada", command=("x",), port=1, desired_state=state, standby_ttl_seconds=ttl
        )
        made = await self.store.create(asked, now=Ms(self.now))
        self.numbers[made.id] = len(self.numbers)
        self.ids[named] = made.id
        return made

    async def want(self, named: str, state: DesiredState, by: DesiredBy, stale: bool) -> Workspace:  # noqa: FBT001
        version = self._version(named, stale)
        return await self.store.set_desired(self.ids[named], state, by, version=version, now=Ms(self.now))

    async def ttls(self, named: str, standby: int | None, archive: int | None) -> Workspace:
        changes = Changes(standby_ttl_seconds=standby, archive_ttl_seconds=archive)
        return await self.store.configure(self.ids[named], changes, now=Ms(self.now))

    async def hold(self, named: str, steps: int | None, stale: bool) -> Workspace:  # noqa: FBT001
        until = None if steps is None else Ms(self.now + steps * STEP_MS)
        version = self._version(named, stale)
        return await self.store.hold(self.ids[named], "demo", until=until, version=version, now=Ms(self.now))

    async def release(self, named: str) -> Workspace:
        return await self.store.release(self.ids[named], now=Ms(self.now))

    async def delete(self, named: str) -> Workspace:
        return await self.store.mark_deleted(self.ids[named], now=Ms(self.now))

    async def clear(self, named: str) -> Workspace:
        return await self.store.clear_error(self.ids[named], now=Ms(self.now))

    async def connect(self, named: str) -> Workspace:
        return await self.store.connected(self.ids[named], now=Ms(self.now))

    async def flush(self, named: list[str], steps: int) -> None:
        await self.store.flush_access({self.ids[one]: Ms(self.now + steps * STEP_MS) for one in named})

    async def observe(self, named: list[str], status: ObservedStatus) -> object:
        return await self.store.observe({self.ids[one]: status for one in named}, now=Ms(self.now))

    async def remember(self, named: list[str]) -> None:
        self.seen |= {one: await self.store.get(self.ids[one]) for one in named}

    async def advance(self, named: list[str], steps: int) -> None:
        seen = [self.seen[one].candidate for one in named if one in self.seen]
        await self.store.advance_checks({one: Ms(self.now + steps * STEP_MS) for one in seen})

    async def standby(self, named: list[str]) -> object:
        seen = [self.seen[one].candidate for one in named if one in self.seen]
        return await self.store.to_standby(seen, now=Ms(self.now))

    async def pending(self, named: list[str]) -> object:
        seen = [self.seen[one].candidate for one in named if one in self.seen]
        return await self.store.to_pending(seen, now=Ms(self.now))

    async def claim(self, named: str, operation: Operation, op: OpId) -> bool:
        return await self.store.claim(self.ids[named], operation, op, now=Ms(self.now))

    async def tried(self, named: str, op: OpId) -> int | None:
        return await self.store.tried(self.ids[named], op)

    async def complete(self, named: str, op: OpId, archived: bool) -> bool:  # noqa: FBT001
        key = {"archive_key": f"key-{self.now}"} if archived else {}
        return await self.store.complete(self.ids[named], op, now=Ms(self.now), **key)

    async def fail(self, named: str, op: OpId) -> bool:
        return await self.store.fail(self.ids[named], op, reason="broken", message="it broke", now=Ms(self.now))

    async def forget(self, named: str, op: OpId) -> bool:
        return await self.store.forget(self.ids[named], op)

    async def wait(self, steps: int) -> None:
        self.now += steps * STEP_MS


@pytest.fixture(scope="module")
def database(shared_postgres: Server) -> Iterator[str]:
    with postgres_database(shared_postgres) as url:
        yield url


@given(steps=STEPS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_both_stores_answer_alike(steps: list[tuple[Any, ...]], database: str, tmp_path_factory: Any) -> None:  # noqa: ANN401
    asyncio.run(_compare(steps, database, tmp_path_factory.mktemp("alike")))


async def _compare(steps: list[tuple[Any, ...]], url: str, folder: Path) -> None:
    async with sqlite_world(folder) as embedded, postgres_world(url) as served:
        one, other = Actor(embedded.store), Actor(served.store)
        for step in [*EVERYBODY, *steps]:
            assert await one.do(step) == await other.do(step), step
        assert await one.state() == await other.state()
