from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.engine.running.logins import FREE
from lapse.web.auth.sessions import OPEN_PATH, SESSION_SECONDS, TICKET_SECONDS

if TYPE_CHECKING:
    import httpx2

    from tests.unit.web.conftest import API

ORIGIN = {"Origin": "http://localhost:8750"}
PAGE = {"Accept": "text/html"}


async def enter(api: API, token_id: str | None = None) -> httpx2.Response:
    """Follow a link; the stranger's client keeps the cookie."""
    ticket = api.sessions.issue(token_id or api.owner_id)
    return await api.stranger.get(OPEN_PATH, params={"ticket": ticket}, headers=PAGE)


async def test_a_link_begins_a_session_and_leads_to_the_dashboard(api: API) -> None:
    entered = await enter(api)

    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    assert entered.headers["referrer-policy"] == "no-referrer"
    cookie = entered.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(cookie.split("; "))
    assert "Domain" not in cookie
    assert "What lapses next" in (await api.stranger.get("/", headers=PAGE)).text


async def test_a_ticket_works_once_and_for_ten_minutes(api: API) -> None:
    used, old = api.sessions.issue(api.owner_id), api.sessions.issue(api.owner_id)
    first = await api.stranger.get(OPEN_PATH, params={"ticket": used})
    api.stranger.cookies.clear()
    again = await api.stranger.get(OPEN_PATH, params={"ticket": used})
    api.clock.advance(TICKET_SECONDS)
    late = await api.stranger.get(OPEN_PATH, params={"ticket": old})

    assert [answer.status_code for answer in (first, again, late)] == [303, 401, 401]
    assert "set-cookie" not in again.headers
    assert "lapse open prints a new one" in again.text


async def test_a_used_link_leads_on_who_has_a_session_that_counts_and_nobody_else(api: API) -> None:
    token_id, _ = api.tokens.create("ann", ["read"])
    ticket = api.sessions.issue(token_id)

    async def reopened(**headers: str) -> httpx2.Response:
        return await api.stranger.get(OPEN_PATH, params={"ticket": ticket}, headers={**PAGE, **headers})

    entered = await reopened()
    again = await reopened()
    assert [one.status_code for one in (entered, again)] == [303, 303]
    assert again.headers["location"] == "/"
    assert "set-cookie" not in again.headers, "its session is neither renewed nor another one"
    assert 'lapse_login_failures_total{proof="ticket"} 1.0' in api.metrics.exposition().decode(), "it counts as before"

    api.clock.advance(SESSION_SECONDS)
    assert (await reopened()).status_code == 401, "a session that is over"
    api.stranger.cookies.clear()
    assert (await reopened()).status_code == 401
    assert (await reopened(Cookie="lapse_8750=owner.9999999999.AAAA")).status_code == 401, "a cookie of somebody's own"
    await enter(api, token_id)
    api.tokens.revoke(token_id)
    assert (await reopened()).status_code == 401, "a session whose token was revoked"


@pytest.mark.parametrize("query", ["", "?ticket=", "?ticket=x", f"?ticket={'a' * 43}", "?ticket=x&ticket=y"])
async def test_what_is_no_ticket_opens_nothing(api: API, query: str) -> None:
    refused = await api.stranger.get(f"{OPEN_PATH}{query}")

    assert refused.status_code == 401
    assert "set-cookie" not in refused.headers


async def test_a_ticket_is_stored_only_as_a_hash(api: API) -> None:
    ticket = api.sessions.issue(api.owner_id)
    stored = api.sessions.state.rows("redeem_ticket", ticket.encode(), 0)

    assert stored == []


async def test_a_session_ends(api: API) -> None:
    await enter(api)
    api.clock.advance(SESSION_SECONDS)
    api.stranger.cookies.clear()  # the browser does so by itself; what it still has is sent here by hand

    assert (await api.stranger.get("/api/v1/status")).status_code == 401


async def test_a_session_that_is_over_counts_no_longer_whatever_the_browser_sends(api: API) -> None:
    cookie = (await enter(api)).headers["set-cookie"].partition(";")[0]
    api.stranger.cookies.clear()
    assert (await api.stranger.get("/api/v1/status", headers={"Cookie": cookie})).status_code == 200
    api.clock.advance(SESSION_SECONDS)

    assert (await api.stranger.get("/api/v1/status", headers={"Cookie": cookie})).status_code == 401


async def test_a_session_has_the_scopes_of_its_token(api: API) -> None:
    token_id, _ = api.tokens.create("app 7", ["keys:7"])
    await enter(api, token_id)

    assert (await api.stranger.get("/api/v1/apps/7/keys")).status_code == 200
    assert (await api.stranger.get("/api/v1/apps/8/keys")).status_code == 403
    assert (await api.stranger.get("/")).status_code == 403


async def test_a_change_by_a_session_must_name_our_own_origin(api: API) -> None:
    await enter(api)
    body = {"value": "x", "ttl_seconds": 9}
    url = "/api/v1/apps/7/keys/a"
    answers = [
        await api.stranger.put(url, json=body),
        await api.stranger.put(url, json=body, headers={"Origin": "http://localhost:9999"}),
        await api.stranger.put(url, json=body, headers=ORIGIN),
    ]

    assert [answer.status_code for answer in answers] == [403, 403, 200]


async def test_a_person_with_a_token_logs_in_and_out(api: API) -> None:
    _, token = api.tokens.create("ann", ["read"])
    wrong = await api.stranger.post("/api/v1/session", json={"token": "lapse_a_b"}, headers=ORIGIN)
    right = await api.stranger.post("/api/v1/session", json={"token": token}, headers=ORIGIN)
    inside = await api.stranger.get("/")
    out = await api.stranger.delete("/api/v1/session", headers=ORIGIN)
    outside = await api.stranger.get("/")

    assert [answer.status_code for answer in (wrong, right, inside, out, outside)] == [401, 204, 200, 204, 401]
    assert token not in right.headers["set-cookie"]


async def test_a_foreign_page_logs_nobody_in(api: API) -> None:
    _, token = api.tokens.create("mallory", ["admin"])
    foreign = {"Origin": "http://evil.example.org"}
    answers = [
        await api.stranger.post("/api/v1/session", json={"token": token}, headers=foreign),
        await api.stranger.post("/api/v1/session", content=b"token=x", headers=ORIGIN),
    ]

    assert [answer.status_code for answer in answers] == [403, 415]


@pytest.mark.parametrize("value", ["", "x", "a.b.c", "owner.9999999999.AAAA", "é"])
async def test_a_cookie_that_was_not_made_here_is_no_session(api: API, value: str) -> None:
    refused = await api.stranger.get("/api/v1/status", headers={b"Cookie": f"lapse_8750={value}".encode()})

    assert refused.status_code == 401


# --- revoking ---------------------------------------------------------------------------------------------------------


async def test_revoking_a_token_ends_its_sessions_and_its_tickets(api: API) -> None:
    token_id, _ = api.tokens.create("ann", ["read"])
    await enter(api, token_id)
    ticket = api.sessions.issue(token_id)
    assert (await api.stranger.get("/api/v1/status")).status_code == 200
    api.tokens.revoke(token_id)

    assert (await api.stranger.get("/api/v1/status")).status_code == 401
    assert (await api.stranger.get(OPEN_PATH, params={"ticket": ticket})).status_code == 401


# --- failing ----------------------------------------------------------------------------------------------------------


async def test_wrong_tokens_tickets_and_sessions_are_counted_and_put_off_and_a_right_one_never_is(api: API) -> None:
    wrong = {"Authorization": "Bearer lapse_a_b"}
    for _ in range(FREE - 2):
        assert (await api.stranger.get("/api/v1/status", headers=wrong)).status_code == 401
    await api.stranger.get(OPEN_PATH, params={"ticket": "x" * 43})
    await api.stranger.get("/api/v1/status", headers={"Cookie": "lapse_8750=a.1.b"})
    nothing = await api.stranger.get("/api/v1/status")
    answers = [
        await api.stranger.get("/api/v1/status", headers=wrong),
        await api.stranger.get("/api/v1/status", headers=wrong | PAGE),
        await api.stranger.post("/api/v1/session", json={"token": "x"}, headers=ORIGIN),
        await api.stranger.get(OPEN_PATH, params={"ticket": "x" * 43}),
    ]

    assert [answer.status_code for answer in answers] == [429] * 4
    assert [answer.headers["retry-after"] for answer in answers] == ["1"] * 4
    assert answers[0].json()["code"] == "TooManyFailuresError"
    assert "<html" in answers[1].text
    assert nothing.status_code == 401, "who shows nothing has guessed nothing"
    assert (await api.client.get("/api/v1/status")).status_code == 200, "a right token from the very same address"
    assert (await enter(api)).status_code == 303
    text = api.metrics.exposition().decode()
    counts = {"token": FREE + 1, "ticket": 2, "session": 1}
    for proof, count in counts.items():
        assert f'lapse_login_failures_total{{proof="{proof}"}} {count}.0' in text
