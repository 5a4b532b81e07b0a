"""A crash between any two calls of the store, then a restart: the same end, nothing twice, nothing lost.

Systematically: the process ends at its first call, at its second, and so on until it gets through; once before the
store has done what was asked, once after it but before the answer came.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from lapse.kube.resources import ObjectKey
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import OBJECT_KEEPER, KeeperMode
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM
from lapse.requests.lifecycle.policy import RequestPolicy, RestoreOwnership, TTLMode
from tests.integration.requests.stories import answer, detach, manifests, restore, snapshot
from tests.integration.requests.world import NO_SERVICES, Crash, Wire, World, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from lapse.requests.api.kinds import VolumeCaptureRequest
    from tests.integration.requests.stories import Ask

every_story = pytest.mark.parametrize("ask", [snapshot, detach, restore, manifests])
either_side = pytest.mark.parametrize("applied", [False, True], ids=["before", "answer-lost"])
SEED_001 = RequestPolicy(
    keeper_mode=KeeperMode.FOLLOW_OBJECT,
    restore_ownership=RestoreOwnership.KEEPER,
    request_ttl_mode=TTLMode.ANNOTATION,
)
_DIFFERS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{12,}|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]+Z")
_LEFT_OUT = frozenset({"resourceVersion", "data", "sizeBytes", "totalSizeBytes"})
_MOST_CALLS = 100


class Story:
    """A request from its creation to its good end; goes on from wherever it was interrupted."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.request: Any = None
        self._answered = False

    async def prepare(self, world: World) -> None:
        """Do what comes before any crash."""

    async def tell(self, world: World) -> None:
        if self.request is None:
            self.request = await self._ask(world)
        if not self._answered:
            await world.live(3, step=1)
            await answer(world, self.request)
            self._answered = True
        await world.live(3, step=1)
        assert await world.reason(self.request) == ConditionReason.COMPLETED


class Lapse(Story):
    """What happens to a finished request, and then to its keeper."""

    async def prepare(self, world: World) -> None:
        await super().tell(world)
        self._over = world.clock.wall_ns() + 11 * 60 * 10**9

    async def tell(self, world: World) -> None:
        for hours in (0, 25):
            world.advance(ns=max(0, self._over + hours * 3600 * 10**9 - world.clock.wall_ns()))
            for _ in range(3):
                await world.rest()
                world.advance(60)
        assert await world.all(OBJECT_KEEPER) == []


async def crashing(
    folder: Path,
    make: Callable[[], Story],
    *,
    applied: bool,
    policy: RequestPolicy | None = None,
    services: Mapping[str, Any] = NO_SERVICES,
) -> tuple[int, list[str]]:
    """Tell a story again and again, with a crash one call later each time.

    Returns after how many calls it got through, and what was left at its end.
    """
    expected: list[str] = []
    for number in range(_MOST_CALLS):
        place = folder / str(number)
        place.mkdir()
        async with opened(place, policy=policy, services=services) as world:
            one = make()
            await one.prepare(world)
            world.wire.applied = applied
            world.wire.crash_at = len(world.wire.calls) + number if number else None
            crashed = await _is_cut_off(one, world)
            if number and not crashed:
                return number - 1, expected
            expected = expected or await normal(world)
            left = await normal(world)
            assert left == expected, (f"after a crash at call {number}", set(left) ^ set(expected))
    raise AssertionError("the story never gets through")


async def _is_cut_off(one: Story, world: World) -> bool:
    """Tell a story; if there was a crash, restart and tell the rest."""
    try:
        await one.tell(world)
    except (Crash, BaseExceptionGroup):
        assert world.wire.dead
        await check_moment(world)
        await world.restart(wire=Wire(world.store))
        await one.tell(world)
        return True
    return False


async def check_moment(world: World) -> None:
    """What holds at any moment, also of a detachment: the volume is there, and known if its claim is gone."""
    volumes = await world.all(PERSISTENT_VOLUME)
    requests = await world.all(world.requests.capture.kind)
    for request in requests:
        if request.spec.mode == "Detach":
            assert volumes
            if not await world.all(PERSISTENT_VOLUME_CLAIM):
                assert request.status.artifact_ref.uid == volumes[0].metadata.uid


async def normal(world: World) -> list[str]:
    """The store and the journal, without what differs from run to run."""
    found = [json.dumps(_without(body), sort_keys=True) for body in (await world.state()).values()]
    found += [f"{row.address} {row.outcome} {row.reason}" for row in await world.journal_rows()]
    return sorted(_DIFFERS.sub("*", one) for one in found)


def _without(value: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        return {name: _without(part) for name, part in value.items() if name not in _LEFT_OUT}
    return [_without(part) for part in value] if isinstance(value, list | tuple) else value


@every_story
@either_side
async def test_a_crash_between_any_two_calls_of_a_request_changes_nothing_about_its_end(
    tmp_path: Path, ask: Ask, *, applied: bool
) -> None:
    calls, _ = await crashing(tmp_path, lambda: Story(ask), applied=applied)
    assert calls > 5, "there are so many steps at least"


@every_story
async def test_a_crash_changes_nothing_where_the_founding_document_is_taken_to_the_letter(
    tmp_path: Path, ask: Ask
) -> None:
    calls, _ = await crashing(tmp_path, lambda: Story(ask), applied=True, policy=SEED_001)
    assert calls > 5


@every_story
@either_side
async def test_a_crash_while_things_lapse_changes_nothing_about_what_is_left(
    tmp_path: Path, ask: Ask, *, applied: bool
) -> None:
    calls, left = await crashing(tmp_path, lambda: Lapse(ask), applied=applied)
    assert calls >= 4, "request, lostAt, what the keeper follows, keeper"
    ended = [one for one in left if " ended " in one]
    assert len(ended) == (3 if ask is detach else 2), "each once: request, keeper and the claim that was detached"
    assert not [one for one in left if '"ownerReferences"' in one]


async def test_a_crash_right_after_the_claim_is_gone_still_ends_with_the_volume_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        request: VolumeCaptureRequest = await detach(world)

        def crash(call: Any, found: Any) -> Any:  # noqa: ANN401
            if str(call) == "delete PersistentVolumeClaim":
                raise Crash
            return found

        world.wire.after = crash
        with pytest.raises(Crash):
            await world.live(10, step=1)
        assert await world.all(PERSISTENT_VOLUME_CLAIM) == []
        await world.restart()
        await world.live(5, step=1)
        assert await world.reason(request) == ConditionReason.COMPLETED
        volume = await world.store.get(PERSISTENT_VOLUME, ObjectKey(None, "pv-data"))
        assert volume.metadata.controller is not None
        assert len(await world.journal_rows()) == 1
