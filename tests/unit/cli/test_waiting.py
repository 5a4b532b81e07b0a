"""Waiting for a workspace: until it is there, or it is known why not."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from lapse.app.workspaces import FOLDER
from lapse.cli.context import Context
from lapse.cli.waiting import (
    DeletedMeanwhileError,
    StillWaitingError,
    WantedOtherwiseError,
    until_as_wanted,
    until_removed,
)
from lapse.cli.workspaces import StoreWorkspaces, WorkspacePlace
from lapse.core.clock import SystemClock, VirtualClock
from lapse.settings import load_settings
from lapse.workspaces.errors import UnknownWorkspaceError
from lapse.workspaces.model import (
    DesiredBy,
    DesiredState,
    NewWorkspace,
    ObservedStatus,
    Operation,
    OpId,
    Workspace,
)
from lapse.workspaces.runtime.process import ProcessRuntime
from lapse.workspaces.view import view_of
from tests.unit.cli.test_workspaces import Person, now

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from lapse.workspaces.store.port import WorkspaceStore
    from lapse.workspaces.view import WorkspaceView

OP = OpId("op")


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[Context]:
    async with AsyncExitStack() as stack:
        yield Context(load_settings({"state_dir": str(tmp_path)}), stack, machine=VirtualClock())


async def make(context: Context) -> Workspace:
    return await (await context.workspaces()).create(
        NewWorkspace(name="lab", owner="ann", command=("serve",), port=1), now=context.now
    )


def place(context: Context) -> WorkspacePlace:
    return WorkspacePlace(StoreWorkspaces(context), context.machine, context)


def seen(context: Context, found: Workspace) -> WorkspaceView:
    return view_of(found, context.now)


async def look(context: Context, until: Callable[[], bool] = lambda: False, *, times: int = 20) -> None:
    """Let the one who waits look again and again."""
    assert isinstance(context.machine, VirtualClock)
    for _ in range(times):
        if until():
            return
        await SystemClock().sleep(0.005)
        context.machine.advance(0.2)


async def test_it_is_there_when_it_is_observed_and_nothing_is_under_way(context: Context) -> None:
    made, store = await make(context), await context.workspaces()
    waiting = asyncio.create_task(until_as_wanted(place(context), seen(context, made), "60s"))
    await store.claim(made.id, Operation.STARTING, OP, now=context.now)
    await store.observe({made.id: ObservedStatus.RUNNING}, now=context.now)
    await look(context)
    assert not waiting.done(), "an operation is under way"
    await store.complete(made.id, OP, now=context.now)
    await look(context, waiting.done, times=10_000)
    found = await waiting

    assert (found.observed_status, found.operation) == (ObservedStatus.RUNNING, Operation.NONE)


async def test_what_is_there_already_is_not_waited_for(context: Context) -> None:
    made = await make(context)
    await (await context.workspaces()).observe({made.id: ObservedStatus.RUNNING}, now=context.now)

    assert (await until_as_wanted(place(context), seen(context, made), "60s")).observed_status == ObservedStatus.RUNNING


async def test_an_error_ends_the_wait_and_is_told(context: Context) -> None:
    made = await make(context)
    await (await context.workspaces()).claim(made.id, Operation.PROVISIONING, OP, now=context.now)
    await (await context.workspaces()).fail(made.id, OP, reason="failed", message="no such program", now=context.now)
    found = await until_as_wanted(place(context), seen(context, made), "60s")

    assert (found.error_reason, found.error_message) == ("failed", "no such program")


async def test_one_who_is_wanted_otherwise_is_not_waited_for(context: Context) -> None:
    made = await make(context)
    await (await context.workspaces()).set_desired(made.id, DesiredState.PENDING, DesiredBy.USER, now=context.now)

    with pytest.raises(
        WantedOtherwiseError, match="will not be RUNNING: meanwhile user set the wanted state to PENDING"
    ):
        await until_as_wanted(place(context), seen(context, made), "60s")


async def test_one_that_is_deleted_is_not_waited_for(context: Context) -> None:
    made = await make(context)
    await (await context.workspaces()).mark_deleted(made.id, now=context.now)

    with pytest.raises(DeletedMeanwhileError, match="was deleted before it was RUNNING"):
        await until_as_wanted(place(context), seen(context, made), "60s")


async def test_a_deleted_one_is_gone_when_nothing_is_left(context: Context) -> None:
    made = await make(context)
    deleted = await (await context.workspaces()).mark_deleted(made.id, now=context.now)
    waiting = asyncio.create_task(until_removed(place(context), seen(context, deleted), "60s"))
    await (await context.workspaces()).claim(made.id, Operation.DELETING, OP, now=context.now)
    await look(context)
    assert not waiting.done()
    await (await context.workspaces()).forget(made.id, OP)
    await look(context, waiting.done, times=10_000)
    await waiting

    with pytest.raises(UnknownWorkspaceError):
        await (await context.workspaces()).get(made.id)


async def test_who_waits_too_long_is_told_what_may_be_the_matter(context: Context) -> None:
    made = await make(context)
    nobody = "No lapse up runs here with the state folder .*: start it, and it goes on"
    with pytest.raises(StillWaitingError, match=f"PENDING and not RUNNING after 10ms. {nobody}"):
        await until_as_wanted(place(context), seen(context, made), "10ms")
    await (await context.workspaces()).claim(made.id, Operation.PROVISIONING, OP, now=context.now)
    with pytest.raises(StillWaitingError, match=rf"PENDING \(PROVISIONING\) and not RUNNING.*{nobody}"):
        await until_as_wanted(place(context), seen(context, made), "10ms")
    runtime = ProcessRuntime(context.settings.state_dir / FOLDER, node="local", clock=context.machine)
    await runtime.open()
    try:
        with pytest.raises(StillWaitingError, match=r"It goes on by itself, as long as lapse up runs\."):
            await until_as_wanted(place(context), seen(context, made), "10ms")
        await (await context.workspaces()).note_operation(made.id, OP, "It does not listen.")
        with pytest.raises(StillWaitingError, match=r"after 10ms\. It does not listen\."):
            await until_as_wanted(place(context), seen(context, made), "10ms")
    finally:
        await runtime.close()


async def test_a_deletion_that_fails_is_told_when_the_time_is_over(context: Context) -> None:
    made = await make(context)
    deleted = await (await context.workspaces()).mark_deleted(made.id, now=context.now)
    await (await context.workspaces()).claim(made.id, Operation.DELETING, OP, now=context.now)
    await (await context.workspaces()).fail(
        made.id, OP, reason="failed", message="the disk is read-only", now=context.now
    )

    with pytest.raises(StillWaitingError, match=r"The last try failed \(failed\): the disk is read-only"):
        await until_removed(place(context), seen(context, deleted), "10ms")


# --- at the command line ----------------------------------------------------------------------------------------------


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Person:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAPSE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return Person(tmp_path, capsys)


def beside(person: Person, version: int, work: Callable[[WorkspaceStore, Workspace], Awaitable[object]]) -> Thread:
    """Do something as soon as the workspace lab is at a version, beside the command."""

    async def wait_and_work(store: WorkspaceStore) -> None:
        for _ in range(6_000):
            found = await store.by_name("lab")
            if found.version == version:
                await work(store, found)
                return
            await SystemClock().sleep(0.01)

    thread = Thread(target=person.on_store, args=(wait_and_work,))
    thread.start()
    return thread


def test_one_that_comes_up_is_told_of_and_exits_with_0(person: Person) -> None:
    person.create("lab", "--no-start")
    thread = beside(person, 2, lambda store, one: store.observe({one.id: ObservedStatus.RUNNING}, now=now()))
    said = person.run("start", "lab", "--wait", "--timeout", "60s")
    thread.join()

    assert said == ("Started: workspace/lab. It is RUNNING.\n", "")


def test_one_that_fails_is_told_of_with_its_message_and_exits_with_1(person: Person) -> None:
    person.create("lab", "--no-start")

    async def failing(store: WorkspaceStore, one: Workspace) -> None:
        await store.claim(one.id, Operation.PROVISIONING, OP, now=now())
        await store.fail(one.id, OP, reason="exited", message="it ended at once, with 3", now=now())

    thread = beside(person, 2, failing)
    said = person.run("start", "lab", "--wait", "--timeout", "60s", code=1)
    thread.join()

    assert said == (
        "",
        "workspace/lab has failed (exited: it ended at once, with 3). To try again: lapse workspaces start lab\n",
    )


def test_nothing_is_waited_for_that_is_not_to_be_started(person: Person) -> None:
    made = person.create("lab", "--no-start", "--wait")

    assert made["observed_status"] == "PENDING"


def test_nobody_at_work_is_a_timeout_and_exits_with_1(person: Person) -> None:
    person.create()
    err = person.run("start", "lab", "--wait", "--timeout", "10ms", code=1)[1]

    assert "workspace/lab is PENDING and not RUNNING after 10ms" in err
    assert "No lapse up runs here" in err


@pytest.mark.parametrize("verb", ["start", "stop", "archive", "delete"])
def test_a_timeout_that_cannot_be_meant_is_refused_before_anything_is_done(person: Person, verb: str) -> None:
    before = person.create()
    err = person.run(verb, "lab", "--wait", "--timeout", "0s", code=64)[1]

    assert "The timeout is 0s; expected a duration above zero, such as 30s, or never." in err
    assert person.json("show", "lab") == before
