"""The live part of a page that several people look at, on virtual time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest
from starlette.responses import HTMLResponse, Response

from lapse.core.clock import SystemClock, VirtualClock
from lapse.web.live import LiveChanges, Source
from lapse.web.pages import shared
from lapse.web.pages.shared import SharedPages
from lapse.web.server.security import PRINCIPAL, Principal

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fastapi import Request


class World:
    """A store that changes, and a page that says how often it was made."""

    def __init__(self) -> None:
        self.clock, self.number, self.made = VirtualClock(), 0, 0
        self.live = LiveChanges([Source("objects", self.version)], clock=self.clock)
        self.pages = SharedPages(self.live)
        self.ready = asyncio.Event()
        self.ready.set()

    async def version(self) -> Hashable:
        return self.number

    async def make(self, csrf: str) -> Response:
        self.made += 1
        await self.ready.wait()
        return HTMLResponse(f"page {self.made} <{csrf}>", headers={"Vary": "HX-Request"})

    async def look(self, person: str = "ann", scopes: str = "read", *, url: str = "/", whole: bool = False) -> str:
        found = await self.pages.answer(request(person, scopes, url, whole=whole), self.make)
        assert found.headers["vary"] == "HX-Request"
        assert int(found.headers["content-length"]) == len(found.body)
        return bytes(found.body).decode()


def request(person: str, scopes: str, url: str, *, whole: bool) -> Request:
    from fastapi import Request

    headers = [] if whole else [(b"hx-request", b"true")]
    path, _, query = url.partition("?")
    return Request(
        {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": headers,
            "server": ("127.0.0.1", 80),
            PRINCIPAL: Principal(person, frozenset({scopes})),
        }
    )


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(
        shared, "csrf_of", lambda asked: f"token of {cast('Principal', asked.scope[PRINCIPAL]).token_id}"
    )
    return World()


async def test_all_who_look_at_once_get_one_page_each_with_their_own_token(world: World) -> None:
    world.ready.clear()
    asked = [asyncio.ensure_future(world.look(one)) for one in ("ann", "bob", "ann")]
    for _ in range(5):
        await SystemClock().sleep(0)
    world.ready.set()
    assert await asyncio.gather(*asked) == [
        "page 1 <token of ann>",
        "page 1 <token of bob>",
        "page 1 <token of ann>",
    ]
    assert world.made == 1


async def test_who_gives_up_takes_the_page_from_nobody(world: World) -> None:
    world.ready.clear()
    first, second = asyncio.ensure_future(world.look("ann")), asyncio.ensure_future(world.look("bob"))
    await SystemClock().sleep(0)
    first.cancel()
    await SystemClock().sleep(0)
    world.ready.set()
    assert await second == "page 1 <token of bob>"


async def test_other_scopes_and_another_question_get_a_page_of_their_own(world: World) -> None:
    await world.look()
    assert await world.look(scopes="admin") == "page 2 <token of ann>"
    assert await world.look(url="/?domain=keys") == "page 3 <token of ann>"
    assert await world.look() == "page 1 <token of ann>"


async def test_a_page_is_made_anew_after_a_change_after_a_form_and_after_a_moment(world: World) -> None:
    await world.look()
    world.pages.forget()
    assert await world.look() == "page 2 <token of ann>"
    world.live.tell("forecast")
    assert await world.look() == "page 3 <token of ann>"
    world.clock.advance(0.25)
    assert await world.look() == "page 4 <token of ann>"
    world.number = 1
    world.clock.advance(0.249)
    assert await world.look() == "page 4 <token of ann>"  # the store was looked at a moment ago
    world.clock.advance(0.001)
    assert await world.look() == "page 5 <token of ann>"


async def test_a_whole_page_is_made_for_each(world: World) -> None:
    assert await world.look(whole=True) == "page 1 <token of ann>"
    assert await world.look(whole=True) == "page 2 <token of ann>"
