"""Looks of the status at a domain without an index: a running process waits for one only a moment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import UnixNs
from lapse.core.errors import LapseError
from lapse.engine.plans import planner
from lapse.engine.plans.planner import Planner
from lapse.engine.verbs.place import Ahead, Caller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MINUTE = 60 * 10**9


class Gone(LapseError):  # noqa: N818 - an error of the test
    """The store is gone."""


class SlowDomain:
    """A domain without an index, whose candidates come when the test says so."""

    is_indexed = False
    name = "slow"

    def __init__(self) -> None:
        self.looks, self.done, self.problem = 0, asyncio.Event(), False

    async def upcoming(self, until: UnixNs, *, size: int) -> AsyncIterator[list[Any]]:
        self.looks += 1
        await self.done.wait()
        if self.problem:
            raise Gone
        yield []


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "_LOOK_PATIENCE_SECONDS", 0.01)


def opened(domain: SlowDomain, *, is_process: bool = True) -> tuple[Planner, Any]:
    async def find(_: str) -> SlowDomain:
        return domain

    place: Any = SimpleNamespace(
        domain=find, now=UnixNs(0), looks={}, looking={}, process=(lambda: None) if is_process else None
    )
    return Planner(place, Caller("user ann")), place


async def test_a_process_tells_that_nobody_knows_yet_and_what_was_found_when_it_was_found() -> None:
    domain = SlowDomain()
    made, place = opened(domain)

    assert await made.ahead("slow") == Ahead(None, None, None, None)
    assert await made.ahead("slow") == Ahead(None, None, None, None)
    assert domain.looks == 1, "one look, however many ask"
    domain.done.set()
    await place.looking["slow"]
    assert await made.ahead("slow") == Ahead(None, None, 0, 0)
    assert not place.looking


async def test_what_was_found_before_is_told_while_a_new_look_is_under_way() -> None:
    domain = SlowDomain()
    made, place = opened(domain)
    domain.done.set()
    assert await made.ahead("slow") == Ahead(None, None, 0, 0)

    domain.done.clear()
    place.now = UnixNs(MINUTE)
    assert await made.ahead("slow") == Ahead(None, None, 0, 0)
    assert domain.looks == 2
    domain.done.set()
    await place.looking["slow"]


async def test_a_look_that_failed_is_made_again_and_who_waits_is_told() -> None:
    domain = SlowDomain()
    made, place = opened(domain)
    domain.problem = True
    assert (await made.ahead("slow")).due is None
    domain.done.set()
    await asyncio.wait({place.looking["slow"]})
    with pytest.raises(Gone):
        await made.ahead("slow")
    domain.problem = False
    assert (await made.ahead("slow")).due == 0


async def test_a_command_waits_for_the_whole_look() -> None:
    domain = SlowDomain()
    made, _ = opened(domain, is_process=False)
    asking = asyncio.create_task(made.ahead("slow"))
    for _ in range(5):
        await asyncio.sleep(0)  # noqa: TID251 - lets others run, and takes no time
    assert not asking.done()
    domain.done.set()
    assert (await asking).due == 0
