from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import VirtualClock
from lapse.web.auth.scopes import PLAIN, ScopeError, allowed, check_scope
from lapse.web.auth.state import StateDatabase, StateError
from lapse.web.auth.tokens import NoScopeError, NoSuchTokenError, SimilarTokenNameError, TokenNameError, TokenStore

if TYPE_CHECKING:
    from pathlib import Path

    import httpx2

    from tests.unit.web.conftest import API


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# --- scopes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", [*PLAIN, "keys:0", "keys:7", "keys:4294967295", "workspaces:alice@example.org"])
def test_a_scope_of_the_list_is_accepted(scope: str) -> None:
    assert check_scope(scope) == scope


@pytest.mark.parametrize(
    "scope",
    [
        "",
        "write",
        "admin:1",
        "keys",
        "keys:",
        "keys:*",
        "keys:07",
        "keys:-1",
        "keys:4294967296",
        "workspaces:",
        "read admin",
    ],
)
def test_any_other_scope_is_an_error_that_lists_the_valid_ones(scope: str) -> None:
    with pytest.raises(ScopeError, match="Expected admin, operate, approve, holds, legal, read, monitor, keys:APP"):
        check_scope(scope)


@pytest.mark.parametrize(
    ("scope", "method", "app", "expected"),
    [
        ("admin", "DELETE", "7", True),
        ("admin", "POST", None, True),
        ("read", "GET", None, True),
        ("read", "GET", "7", True),
        ("read", "PUT", "7", False),
        ("read", "POST", "7", False),
        ("keys:7", "GET", "7", True),
        ("keys:7", "DELETE", "7", True),
        ("keys:7", "GET", "8", False),
        ("keys:7", "GET", "07", False),
        ("keys:7", "GET", None, False),
        ("workspaces:alice", "GET", None, False),
        ("workspaces:alice", "GET", "7", False),
    ],
)
def test_a_scope_allows_exactly_what_it_says(scope: str, method: str, app: str | None, expected: bool) -> None:  # noqa: FBT001
    assert allowed({scope}, method, "/somewhere", app) is expected


# --- the store -------------------------------------------------------------------------------------------------------


def test_a_token_is_shown_once_and_stored_only_as_a_hash(tmp_path: Path) -> None:
    with StateDatabase(tmp_path) as state:
        token_id, token = TokenStore(state, clock=VirtualClock()).create("ci", ["read", "keys:7", "read"])
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())

    assert token.startswith(f"lapse_{token_id}_")
    assert token.encode() not in stored
    assert token.rpartition("_")[2].encode() not in stored
    assert token_id.encode() in stored


def test_tokens_are_listed_with_name_scopes_and_times(tmp_path: Path) -> None:
    clock = VirtualClock()
    with StateDatabase(tmp_path) as state:
        store = TokenStore(state, clock=clock)
        token_id, _ = store.create("ci", ["read", "keys:7"])
        clock.advance(60)
        store.revoke(token_id)
        (listed,) = store.list()

    assert (listed.id, listed.name, listed.scopes) == (token_id, "ci", ("read", "keys:7"))
    assert str(listed.created_at) == "2023-11-14T22:13:20Z"
    assert listed.revoked_at is not None
    assert listed.revoked_at - listed.created_at == 60_000_000_000


def test_what_makes_no_token_is_an_error_that_says_so(tmp_path: Path) -> None:
    with StateDatabase(tmp_path) as state:
        store = TokenStore(state, clock=VirtualClock())
        with pytest.raises(NoScopeError):
            store.create("ci", [])
        with pytest.raises(TokenNameError):
            store.create("", ["read"])
        with pytest.raises(TokenNameError):
            store.create("two\nlines", ["read"])
        with pytest.raises(NoSuchTokenError, match="no token abc"):
            store.revoke("abc")
        assert store.list() == []


@pytest.mark.parametrize("name", ["leg ", " leg", "user root", "User root", "user", "uѕer root", "l\u200beg", "\u3164"])
def test_a_name_that_is_no_name_of_a_person_is_refused(tmp_path: Path, name: str) -> None:
    with StateDatabase(tmp_path) as state, pytest.raises(TokenNameError):
        TokenStore(state, clock=VirtualClock()).create(name, ["legal"])


@pytest.mark.parametrize("name", ["Ann Lee", "ann  lee", "аnn lее", "ann lee\ufe0f", "\uff41nn lee", "ánn lee"])
def test_a_name_that_looks_like_another_one_is_refused(tmp_path: Path, name: str) -> None:
    with StateDatabase(tmp_path) as state:
        store = TokenStore(state, clock=VirtualClock())
        token_id, _ = store.create("ann lee", ["legal"])
        with pytest.raises(SimilarTokenNameError, match="looks like 'ann lee'"):
            store.create(name, ["legal"])
        store.revoke(token_id)
        with pytest.raises(SimilarTokenNameError):
            store.create(name, ["legal"])
        store.create("ann lee", ["approve"])
        store.create("ann li", ["legal"])
        assert store.persons("legal") == {"ann li"}


def test_two_processes_on_one_database_use_the_same_secret(tmp_path: Path) -> None:
    with StateDatabase(tmp_path) as one, StateDatabase(tmp_path) as other:
        assert one.secret("etag") == other.secret("etag")
        assert one.secret("other") != one.secret("etag")


def test_a_state_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StateError, match=r"file/state/lapse\.db cannot be used"):
        StateDatabase(tmp_path / "file" / "state")


def test_the_state_folder_and_its_file_are_for_this_user_only(tmp_path: Path) -> None:
    StateDatabase(tmp_path / "state").close()

    assert (tmp_path / "state").stat().st_mode & 0o077 == 0
    assert (tmp_path / "state" / "lapse.db").stat().st_mode & 0o077 == 0


# --- admission -------------------------------------------------------------------------------------------------------


EVERYWHERE = ("/", "/api/v1/status", "/api/v1/openapi.json", "/api/v1/apps/7/keys", "/api/v1/workspaces", "/no")


@pytest.mark.parametrize("path", EVERYWHERE)
async def test_without_a_token_nobody_may_call_not_even_on_this_machine(api: API, path: str) -> None:
    refused = await api.stranger.get(path)

    assert (refused.status_code, refused.json()["code"]) == (401, "TokenMissingError")
    assert refused.headers["www-authenticate"] == "Bearer"


async def test_without_a_token_nothing_can_be_changed(api: API) -> None:
    asked = {"name": "lab", "owner": "ann", "command": ["true"], "port": 9000}
    refused = [
        await api.stranger.post("/api/v1/workspaces", json=asked),
        await api.stranger.put("/api/v1/apps/7/keys/a", json={"value": "x", "ttl_seconds": 9}),
    ]

    assert [answer.status_code for answer in refused] == [401, 401]
    assert (await api.client.get("/api/v1/workspaces")).json()["items"] == []
    assert await api.keys.app(7).ttl_get("a") is None


@pytest.mark.parametrize("path", EVERYWHERE)
async def test_the_owner_s_token_may_do_everything_and_another_admin_s_too(api: API, path: str) -> None:
    _, token = api.tokens.create("ci", ["admin"])

    assert (await api.client.get(path)).status_code in {200, 404}
    assert (await api.stranger.get(path, headers=bearer(token))).status_code in {200, 404}


async def test_a_token_that_was_revoked_is_useless_with_the_next_request(client: httpx2.AsyncClient, api: API) -> None:
    token_id, token = api.tokens.create("ci", ["admin"])
    assert (await client.get("/api/v1/status", headers=bearer(token))).status_code == 200

    api.tokens.revoke(token_id)
    refused = await client.get("/api/v1/status", headers=bearer(token))
    assert (refused.status_code, refused.json()["code"]) == (401, "TokenInvalidError")


async def test_a_token_that_was_never_made_is_refused_in_every_shape(client: httpx2.AsyncClient, api: API) -> None:
    token_id, token = api.tokens.create("ci", ["admin"])
    wrong = [
        "",
        "x",
        token[:-1],
        token + "x",
        token.upper(),
        f"lapse_{token_id}_",
        f"lapse_{token_id}_{'A' * 43}",
        "__",
    ]
    for text in wrong:
        response = await client.get("/api/v1/status", headers=bearer(text))
        assert (response.status_code, response.json()["code"]) == (401, "TokenInvalidError"), text


async def test_a_token_of_one_application_opens_that_one_only(client: httpx2.AsyncClient, api: API) -> None:
    _, token = api.tokens.create("app 7", ["keys:7"])
    body = {"value": "x", "ttl_seconds": 9}

    assert (await client.put("/api/v1/apps/7/keys/a", json=body, headers=bearer(token))).status_code == 200
    for path in ("/api/v1/apps/8/keys/a", "/api/v1/apps/07/keys/a"):
        refused = await client.put(path, json=body, headers=bearer(token))
        assert (refused.status_code, refused.json()["code"]) == (403, "ScopeMissingError")
    assert (await client.get("/api/v1/status", headers=bearer(token))).status_code == 403


async def test_a_token_for_reading_changes_nothing(client: httpx2.AsyncClient, api: API) -> None:
    _, token = api.tokens.create("monitor", ["read"])
    url, headers = "/api/v1/apps/7/keys/a", bearer(token)
    changes = [
        await client.put(url, json={"value": "x", "ttl_seconds": 9}, headers=headers),
        await client.patch(url, json={"ttl_seconds": 9}, headers=headers),
        await client.delete(url, headers=headers),
        await client.post("/api/v1/apps/7/keys", json={"items": []}, headers=headers),
    ]

    assert [response.status_code for response in changes] == [403] * 4
    assert (await client.get("/api/v1/apps/7/keys", headers=headers)).json()["items"] == []
