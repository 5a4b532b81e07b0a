"""An undo of a plan looks at what came back together: where a limit by number decides, one look reads a whole group."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lapse.engine.domain import SignalUnavailableError
from lapse.engine.verbs.contract import ApplyRequest, PlanRequest, UndoRequest, WhyRequest
from tests.conformance.service.registry import ANN, DOMAIN, HOUR
from tests.conformance.service.worlds import LocalWorld, local_world

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class _Watched:
    """A domain that says how often it was looked at, and for how many things; or that cannot be looked at."""

    def __init__(self, domain: Any, *, is_readable: bool = True) -> None:  # noqa: ANN401 - any domain
        self._domain, self._is_readable = domain, is_readable
        self.looks: list[int] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any method
        return getattr(self._domain, name)

    async def find(self, address: Any) -> Any:  # noqa: ANN401 - as the real one
        return (await self.find_all([address]))[0]

    async def find_all(self, addresses: Sequence[Any]) -> Any:  # noqa: ANN401 - as the real one
        self.looks.append(len(addresses))
        if not self._is_readable:
            raise SignalUnavailableError(problem="nobody knows")
        return await self._domain.find_all(addresses)


async def ended_by_plan(world: LocalWorld, number: int) -> str:
    for one in range(number):
        await world.things.add(f"n{one}")
    plan = await world.of(ANN).plan(PlanRequest())
    world.elapse(HOUR + 1)
    assert (await world.of(ANN).apply(ApplyRequest(plan=plan))).ended == number
    return plan.id


@pytest.mark.parametrize(("at_once", "looks"), [(1_000, [40]), (25, [25, 15])])
async def test_what_a_plan_has_ended_comes_back_with_few_looks_and_is_told_with_its_end(
    at_once: int, looks: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lapse.engine.service._LOOKED_AT", at_once)
    async with local_world(tmp_path) as world:
        plan = await ended_by_plan(world, 40)
        watched: Any = _Watched(world.place.domains[DOMAIN])
        await world.settings(domains={DOMAIN: watched})
        done = await world.of(ANN).undo(UndoRequest(plan=plan))
        assert watched.looks == looks

        assert (len(done.items), done.problems) == (40, {})
        for one in done.items[:3]:
            told = await world.of(ANN).why(WhyRequest(address=one.address))
            assert (one.uid, one.deadline, one.hold) == (told.uid, told.deadline, told.hold)
            assert one.deadline is not None


async def test_what_came_back_is_told_also_where_its_end_cannot_be_read(tmp_path: Path) -> None:
    async with local_world(tmp_path) as world:
        plan = await ended_by_plan(world, 3)
        unreadable: Any = _Watched(world.place.domains[DOMAIN], is_readable=False)
        world.place = replace(world.place, domains={DOMAIN: unreadable})
        done = await world.of(ANN).undo(UndoRequest(plan=plan))
        assert sorted(one.address for one in done.items) == ["thing/n0", "thing/n1", "thing/n2"]
        assert [one.deadline for one in done.items] == [None] * 3
        assert await world.things.left() == {"n0", "n1", "n2"}
