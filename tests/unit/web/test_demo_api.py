"""The demo over HTTP; what it makes and removes is tested in tests/unit/cli/test_demo.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2

    from tests.unit.web.conftest import API


async def test_it_is_shown_started_and_stopped(client: httpx2.AsyncClient) -> None:
    told = (await client.get("/api/v1/demo")).json()
    assert (told["running"], told["started_at"], told["things"]) == (False, None, {})

    started = await client.post("/api/v1/demo/start", json={})
    assert started.status_code == 200
    assert (started.json()["running"], started.json()["served"]) == (True, True)
    assert (await client.get("/api/v1/demo")).json() == started.json()

    stopped = await client.post("/api/v1/demo/stop", json={})
    assert stopped.status_code == 200
    assert not stopped.json()["running"]


async def test_who_may_only_look_may_not_start_or_stop_it(api: API) -> None:
    for scope in ("read", "monitor", "operate"):
        _, token = api.tokens.create(name=scope, scopes=[scope])
        asking = {"Authorization": f"Bearer {token}"}

        assert (await api.stranger.get("/api/v1/demo", headers=asking)).status_code == 200
        for verb in ("start", "stop"):
            refused = await api.stranger.post(f"/api/v1/demo/{verb}", headers=asking, json={})
            assert refused.status_code == 403


async def test_a_field_that_there_is_not_is_refused(client: httpx2.AsyncClient) -> None:
    assert (await client.post("/api/v1/demo/stop", json={"all": True})).status_code == 422
