"""Workspaces on the dashboard: every state in words, and what the page says when there is nothing to show."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from lapse.web.pages.workspaces import MOST, WorkspaceLine, line, overview
from lapse.workspaces.activity.in_process import InProcessActivity
from lapse.workspaces.activity.port import (
    ActivityDoubt,
    ActivityUnavailableError,
    ActivityUnknown,
    Connected,
    Quiet,
    Signal,
    Timer,
)
from lapse.workspaces.errors import WorkspaceStoreUnavailableError
from lapse.workspaces.model import (
    DesiredBy,
    DesiredState,
    Ms,
    NewWorkspace,
    ObservedStatus,
    Operation,
    Workspace,
    WorkspaceId,
)
from lapse.workspaces.view import in_words
from tests.unit.web.test_workspaces_api import bearer, create, now, observe

if TYPE_CHECKING:
    from tests.unit.web.conftest import API

NOW = Ms(1_700_000_000_000)


def workspace(observed: str = "RUNNING", desired: str = "RUNNING", operation: str = "NONE", **more: Any) -> Workspace:  # noqa: ANN401 - columns of any kind
    columns: dict[str, Any] = {
        "id": WorkspaceId("w"),
        "name": "lab",
        "owner": "ann",
        "command": ("run",),
        "port": 1,
        "node_id": None,
        "desired_state": DesiredState(desired),
        "desired_by": DesiredBy.USER,
        "version": 1,
        "observed_status": ObservedStatus(observed),
        "observed_at": NOW,
        "status_changed_at": NOW,
        "operation": Operation(operation),
        "op_id": None,
        "op_started_at": None,
        "op_tries": 0,
        "archive_key": None,
        "error_reason": None,
        "error_message": None,
        "standby_ttl_seconds": 300,
        "archive_ttl_seconds": 86_400,
        "last_access_at": NOW,
        "check_after": NOW,
        "created_at": NOW,
        "deleted_at": None,
        "hold_reason": None,
        "hold_until": None,
    }
    return Workspace(**{**columns, **more})


@pytest.mark.parametrize(
    ("observed", "desired", "operation", "key", "words"),
    [
        ("RUNNING", "RUNNING", "NONE", None, "running"),
        ("RUNNING", "STANDBY", "NONE", None, "going to standby"),
        ("RUNNING", "PENDING", "NONE", None, "going to standby"),
        ("RUNNING", "STANDBY", "STOPPING", None, "going to standby"),
        ("STANDBY", "STANDBY", "NONE", None, "in standby"),
        ("STANDBY", "RUNNING", "NONE", None, "starting"),
        ("STANDBY", "RUNNING", "STARTING", None, "starting"),
        ("STANDBY", "PENDING", "NONE", None, "going to the archive"),
        ("STANDBY", "PENDING", "ARCHIVING", None, "going to the archive"),
        ("PENDING", "PENDING", "NONE", None, "not started"),
        ("PENDING", "PENDING", "NONE", "key", "archived"),
        ("PENDING", "RUNNING", "NONE", None, "starting"),
        ("PENDING", "RUNNING", "PROVISIONING", None, "starting"),
        ("PENDING", "RUNNING", "NONE", "key", "coming back from the archive"),
        ("PENDING", "RUNNING", "RESTORING", "key", "coming back from the archive"),
        ("ERROR", "RUNNING", "NONE", None, "error"),
    ],
)
def test_every_state_has_words(observed: str, desired: str, operation: str, key: str | None, words: str) -> None:
    assert in_words(workspace(observed, desired, operation, archive_key=key)) == words


@pytest.mark.parametrize(
    ("signal", "in_use", "then"),
    [
        (Connected(1), "1 connection", "standby when nobody is connected"),
        (Connected(3), "3 connections", "standby when nobody is connected"),
        (Timer(400.0), "until a moment ago", "standby in 6m40s"),
        (Timer(1.0), "until a moment ago", "standby in 5m"),
        (Quiet(), "no connections", "standby in 5m"),
        (ActivityUnknown(ActivityDoubt.EPOCH_YOUNG), "not known yet", "standby in 5m"),
        (None, "not known yet", "standby in 5m"),
    ],
)
def test_who_is_there_decides_what_comes_next(signal: Signal | None, in_use: str, then: str) -> None:
    shown = line(workspace(), signal, NOW)
    assert (shown.in_use, shown.next, shown.mood) == (in_use, then, "good")


def test_what_is_due_waits_for_the_next_look_and_what_is_held_for_nothing() -> None:
    late = Ms(NOW + 301_000)
    assert line(workspace(), Quiet(), late).next == "standby at the next look"
    assert line(workspace(hold_reason="mine"), Quiet(), NOW).next == "standby (held)"
    assert line(workspace("STANDBY", "STANDBY"), None, NOW) == WorkspaceLine(
        "lab", "in standby", "quiet", "", "archive in 1d", None, failed=False
    )
    assert line(workspace("PENDING", "PENDING", archive_key="key"), None, NOW).next == ""
    young = line(workspace(), ActivityUnknown(ActivityDoubt.EPOCH_YOUNG), late).next
    assert young == "standby when it is known that nobody is connected", "two leases of doubt remain"
    assert line(workspace(), None, late).next == "standby at the next look, unless a user is connected"
    assert line(workspace(), Connected(1), late).next == "standby when nobody is connected"


def test_an_error_is_shown_by_its_message_and_not_endlessly() -> None:
    failed = line(workspace("ERROR", error_reason="exited", error_message="It ended. " * 100), None, NOW)
    assert (failed.mood, failed.problem is not None and len(failed.problem)) == ("bad", 303)
    told = line(workspace("ERROR", error_reason="exited", error_message="Why."), None, NOW)
    assert (told.problem, told.failed) == ("It has failed (exited): Why.", True)


def test_a_program_that_keeps_ending_is_told_of() -> None:
    crashed: dict[str, Any] = {"restarts": 4, "exit_status": 7, "exited_at": NOW, "exit_output": "out of luck"}
    waits = line(workspace("STANDBY", "RUNNING", **crashed), Quiet(), NOW)
    assert (waits.state, waits.mood, waits.next) == ("starting again", "bad", "standby in 5m")
    assert waits.problem is not None
    assert waits.problem.startswith("The program ended by itself 4 times in a row, the last time with status 7, and")
    assert waits.problem.endswith("Its last output: out of luck.")
    assert line(workspace(**crashed), Quiet(), NOW).problem == waits.problem, "also while it runs again"
    slow = line(workspace("STANDBY", "RUNNING", "STARTING", op_note="It listens elsewhere."), None, NOW)
    assert (slow.problem, slow.failed) == ("It listens elsewhere.", False)


# --- on the page ------------------------------------------------------------------------------------------------------


async def page(api: API, **headers: str) -> str:
    text = (await api.client.get("/workspaces", headers={"HX-Request": "true", **headers})).text
    return re.sub(r"\s+", " ", text)


async def test_without_workspaces_the_page_tells_how_to_create_one(api: API) -> None:
    shown = await page(api)
    assert "There are no workspaces" in shown
    assert "lapse workspaces create" in shown


async def test_a_workspace_is_shown_with_its_state_and_a_button_that_opens_it(api: API) -> None:
    made = await create(api)
    assert '<span class="quiet">starting</span>' in await page(api)
    await observe(api, made["id"], ObservedStatus.RUNNING)
    shown = await page(api)
    assert '<span class="good">running</span>' in shown
    assert "standby in 10m" in shown
    assert 'aria-label="Open lab"' in shown


async def test_where_every_request_needs_a_token_the_command_opens_instead_of_a_button(api: API) -> None:
    await create(api)
    shown = await page(api, **bearer(api, "read"))
    assert "<button" not in shown
    assert "lapse workspaces open NAME" in shown


async def test_a_store_that_cannot_be_read_is_said_and_breaks_nothing(
    api: API, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreadable(*_: object, **__: object) -> None:
        raise WorkspaceStoreUnavailableError(problem="the disk is gone")

    monkeypatch.setattr(type(api.workspaces), "list", unreadable)
    shown = await page(api)
    assert "Cannot be read now." in shown
    assert "the disk is gone" in shown


async def test_a_server_without_workspaces_says_why(api: API) -> None:
    application: Any = api.client._transport.app.app._app  # type: ignore[attr-defined]  # behind the guard
    application.state.workspaces = None
    assert "workspaces_beyond_loopback" in await page(api)


async def test_no_more_than_a_page_of_them_is_shown_and_that_is_said(api: API) -> None:
    for number in range(MOST + 1):
        new = NewWorkspace(name=f"w{number:03}", owner="ann", command=("run",), port=1)
        await api.workspaces.create(new, now=now(api))
    shown = await page(api)
    assert shown.count('action="/act/open"') == MOST
    assert f"The first {MOST} by name" in shown


async def test_activity_that_does_not_answer_is_not_known_yet(api: API, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> None:
        raise ActivityUnavailableError(backend="redis://", problem="refused")

    made = await create(api)
    await observe(api, made["id"], ObservedStatus.RUNNING)
    activity = InProcessActivity(api.clock)
    monkeypatch.setattr(activity, "read", away)
    [shown] = (await overview(api.workspaces, activity, now=now(api), openable=())).lines
    assert shown.in_use == "not known yet"
