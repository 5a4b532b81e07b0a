"""A legal hold that is placed between the look of a release and its write is not released by it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace as changed

from lapse.engine.safety.holds import LegalReleaseError
from lapse.engine.verbs.contract import HoldRequest, ReleaseRequest, WhyRequest
from tests.conformance.service.registry import ANN, BEN, DOMAIN
from tests.conformance.service.worlds import local_world

if TYPE_CHECKING:
    from pathlib import Path


class _Late:
    """A domain in which nobody sees a hold before something is written."""

    def __init__(self, domain: Any) -> None:  # noqa: ANN401 - any domain
        self._domain, self.target = domain, self

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any method
        return getattr(self._domain, name)

    async def find(self, address: Any) -> Any:  # noqa: ANN401 - as the real one
        found = await self._domain.find(address)
        return None if found is None else changed(found, hold=None)

    async def holds_over(self, actions: Any, now: Any) -> Any:  # noqa: ANN401 - as the real one
        return [None] * len(actions)


async def test_the_step_that_ends_a_hold_asks_whether_a_legal_one_is_meant(tmp_path: Path) -> None:
    async with local_world(tmp_path) as world:
        await world.things.add("a")
        await world.of(ANN).hold(HoldRequest(address="thing/a", reason="case 7", legal=True))
        honest = world.place
        world.place = replace(honest, domains={DOMAIN: _Late(honest.domains[DOMAIN])})
        with pytest.raises(LegalReleaseError, match="thing/a"):
            await world.of(BEN).release(ReleaseRequest(address="thing/a"))

        world.place = honest
        told = await world.of(BEN).why(WhyRequest(address="thing/a"))
        assert told.hold is not None
        assert told.hold.legal
