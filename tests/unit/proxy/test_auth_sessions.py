from __future__ import annotations

import pytest

from lapse.proxy.auth import COOKIES, SESSION_SECONDS, Sessions
from lapse.proxy.ports import WorkspaceId

A, B = WorkspaceId("aaaaaaaa-0000-4000-8000-000000000000"), WorkspaceId("bbbbbbbb-0000-4000-8000-000000000000")
NOW = 1_700_000_000
TOKEN = "0123456789ab"
OURS = Sessions(b"k" * 32)


def cookie(workspace: WorkspaceId = A, sessions: Sessions = OURS) -> str:
    """What a browser sends back."""
    return sessions.set_cookie(workspace, TOKEN, now_seconds=NOW).partition(";")[0]


def is_open(field: str, workspace: WorkspaceId = A, *, later: int = 0, sessions: Sessions = OURS) -> bool:
    return TOKEN in sessions.tokens(field, workspace, now_seconds=NOW + later)


def test_a_session_is_open_until_its_time_is_over() -> None:
    assert is_open(cookie())
    assert is_open(cookie(), later=SESSION_SECONDS - 1)
    assert not is_open(cookie(), later=SESSION_SECONDS)


def test_a_cookie_is_for_one_host_and_for_no_script() -> None:
    first, *attributes = OURS.set_cookie(A, TOKEN, now_seconds=NOW).split("; ")

    assert first.startswith("lapse_session=")
    assert sorted(attributes) == ["HttpOnly", f"Max-Age={SESSION_SECONDS}", "Path=/", "SameSite=Lax"]


def test_over_tls_it_is_secure_and_a_browser_takes_it_from_the_very_host_only() -> None:
    field = Sessions(b"k" * 32, "https").set_cookie(A, TOKEN, now_seconds=NOW)

    assert field.startswith("__Host-lapse_session=")
    assert field.endswith("; Secure")
    assert {field.partition("=")[0], cookie().partition("=")[0]} == COOKIES


def test_the_cookie_of_one_workspace_opens_no_other() -> None:
    assert not is_open(cookie(A), B)


def test_a_cookie_of_another_secret_opens_nothing() -> None:
    assert not is_open(cookie(sessions=Sessions(b"x" * 32)))


def test_a_planted_cookie_beside_the_right_one_does_no_harm() -> None:
    assert is_open(f"other=1; {cookie(B)}; {cookie(A)}; lapse_session=x")


@pytest.mark.parametrize("at", range(0, 91, 5))
def test_no_character_can_be_changed(at: int) -> None:
    name, _, value = cookie().partition("=")
    changed = value[:at] + ("A" if value[at] != "A" else "B") + value[at + 1 :]

    assert not is_open(f"{name}={changed}")


@pytest.mark.parametrize(
    "value",
    [
        "",
        ".",
        "..",
        "...",
        f"{A}.{NOW + 9}.",
        f"{A}.{NOW + 9}.====",
        f"{A}.{NOW + 9}.é",
        f"{A}.-1.x",
        f"{A}.²³.x",
        f"{A}.{'9' * 190}.x",
        "x" * 10_000,
    ],
)
def test_what_is_no_session_is_refused(value: str) -> None:
    assert not is_open(f"lapse_session={value}")


def test_a_later_end_needs_another_signature() -> None:
    name, _, value = cookie().partition("=")
    workspace, token, until, signature = value.split(".")

    assert not is_open(f"{name}={workspace}.{token}.{int(until) + 1}.{signature}")
    assert not is_open(f"{name}={workspace}{token}..{until}.{signature}")
