"""Holding and releasing a workspace: a hold is never weakened in silence, and a legal one needs two people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from lapse.core.clock import UnixNs
from lapse.core.decision import Due, Keep
from lapse.engine.domain import believed
from lapse.engine.safety.holds import (
    AnotherHoldError,
    Hold,
    LegalHoldError,
    LegalReleaseError,
    SecondPersonError,
    WeakerHoldError,
)
from lapse.workspaces.errors import ChangedMeanwhileError
from lapse.workspaces.expiry import STANDBY
from lapse.workspaces.model import Ms, NewWorkspace, ObservedStatus
from lapse.workspaces.opening import open_workspaces
from lapse.workspaces.ttl_manager import candidate_of, decide_seen
from lapse.workspaces.verbs import hold, release
from lapse.workspaces.view import hold_of, view_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.workspaces.model import Workspace
    from lapse.workspaces.store.port import WorkspaceStore

NOW = Ms(1_700_000_000_000)
LEGAL = Hold("case 7", None, "ann", is_legal=True)


def until(hours: int) -> UnixNs:
    return UnixNs((NOW + hours * 3_600_000) * 1_000_000)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[WorkspaceStore]:
    found = await open_workspaces(f"file://{tmp_path}/workspaces.db")
    yield found
    await found.close()


async def create(store: WorkspaceStore) -> Workspace:
    return await store.create(NewWorkspace(name="lab", owner="ann", command=("serve",), port=9000), now=NOW)


async def test_a_weaker_hold_is_refused_unless_it_replaces_the_other(store: WorkspaceStore) -> None:
    long, short = Hold("long", until(9), "ann"), Hold("short", until(1), "bob")
    held = await hold(store, await create(store), long, now=NOW)
    with pytest.raises(WeakerHoldError):
        await hold(store, held, short, now=NOW)
    assert hold_of(await hold(store, held, short, replace=True, now=NOW)) == short


async def test_a_legal_hold_is_weakened_by_nobody_and_released_by_another_person(store: WorkspaceStore) -> None:
    held = await hold(store, await create(store), LEGAL, now=NOW)
    assert hold_of(held) == LEGAL
    with pytest.raises(LegalHoldError):
        await hold(store, held, Hold("plain", None, "bob"), replace=True, now=NOW)
    with pytest.raises(SecondPersonError):
        await release(store, held, by="ann", now=NOW)
    with pytest.raises(LegalReleaseError):
        await release(store, held, by="bob", legal=False, now=NOW)
    assert hold_of(await store.get(held.id)) == LEGAL
    assert await release(store, held, by="bob", now=NOW) == LEGAL
    assert hold_of(await store.get(held.id)) is None


async def test_what_somebody_else_did_meanwhile_is_looked_at_again(store: WorkspaceStore) -> None:
    seen = await create(store)
    await hold(store, seen, LEGAL, now=NOW)
    with pytest.raises(LegalHoldError):
        await hold(store, seen, Hold("plain", None, "bob"), replace=True, now=NOW)
    with pytest.raises(SecondPersonError):
        await release(store, seen, by="ann", now=NOW)
    with pytest.raises(ChangedMeanwhileError):
        await release(store, seen, by="bob", version=seen.version, now=NOW)
    assert await release(store, seen, by="bob", now=NOW) == LEGAL
    assert await release(store, seen, by="bob", now=NOW) is None


async def test_a_legal_hold_that_came_in_between_is_not_released_for_the_one_that_was_seen(
    store: WorkspaceStore,
) -> None:
    seen = await hold(store, await create(store), Hold("plain", None, "ann"), now=NOW)

    class Meanwhile:
        """The store, in which somebody places a legal hold between the look and the change."""

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any method
            return getattr(store, name)

        async def release(self, *given: Any, **how: Any) -> Any:  # noqa: ANN401 - as the real one
            await hold(store, await store.get(seen.id), LEGAL, now=NOW)
            return await store.release(*given, **how)

    with pytest.raises(LegalReleaseError):
        await release(cast("Any", Meanwhile()), seen, by="bob", legal=False, now=NOW)
    assert hold_of(await store.get(seen.id)) == LEGAL


async def test_another_hold_that_came_in_between_is_not_released_for_the_one_that_was_seen(
    store: WorkspaceStore,
) -> None:
    mine, theirs = Hold("mine", None, "ann"), Hold("evidence", None, "bob")
    seen = await hold(store, await create(store), mine, now=NOW)

    class Meanwhile:
        """The store, in which somebody places another hold between the look and the change."""

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any method
            return getattr(store, name)

        async def release(self, *given: Any, **how: Any) -> Any:  # noqa: ANN401 - as the real one
            await hold(store, await store.get(seen.id), theirs, now=NOW)
            return await store.release(*given, **how)

    with pytest.raises(AnotherHoldError, match="evidence, by bob"):
        await release(cast("Any", Meanwhile()), seen, by="ann", only=mine.hash, now=NOW)
    assert hold_of(await store.get(seen.id)) == theirs
    assert await release(store, seen, by="ann", only=theirs.hash, now=NOW) == theirs


async def test_people_see_that_it_is_extended(store: WorkspaceStore) -> None:
    made = await create(store)
    later = Ms(NOW + 10**9)
    await store.observe({made.id: ObservedStatus.RUNNING}, now=NOW)
    seen = await store.extend(made.id, later, now=NOW)
    assert view_of(seen, NOW).next_at == later * 1_000_000
    for moment, verdict in ((later - 1, Keep), (later + 1, Due)):
        candidate, now = candidate_of(seen), UnixNs(moment * 1_000_000)
        decision = decide_seen(candidate.state, now, action=STANDBY, lease_seconds=30)
        assert isinstance(believed(decision, candidate, now).verdict, verdict)
