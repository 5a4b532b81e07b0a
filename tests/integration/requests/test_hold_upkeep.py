"""Marks of holds that say what is no longer so are removed, and legal holds reach what is made later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import UnixNs
from lapse.core.timestamps import to_timestamp
from lapse.engine.safety.holds import Hold, hold_of, own_hold_of
from lapse.objects.holds.steering import ObjectPlace
from lapse.requests.api.kinds import OBJECT_KEEPER, VOLUME_CAPTURE_REQUEST
from lapse.requests.api.upstream import CONFIG_MAP, VOLUME_SNAPSHOT_CONTENT
from tests.integration.requests.world import World, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.kube.resources import Kind, Object, ObjectKey

HOUR = 3600
ANN, BOB = "ann", "bob"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path) as found:
        yield found


def place(kind: Kind[Any], obj: Object) -> ObjectPlace:
    return ObjectPlace(kind, obj.metadata.key, obj.metadata.uid)


def end(world: World, hours: float) -> UnixNs:
    return UnixNs(round(world.clock.wall_ns() // 10**9 + hours * HOUR) * 10**9)


async def marks_on(world: World, kind: Kind[Any], key: ObjectKey) -> dict[str, str]:
    return dict((await world.store.get(kind, key)).metadata.annotations)


async def tick(world: World) -> float | None:
    await world.caught_up()
    wait = await world.requests.upkeep.tick()
    await world.caught_up()
    return wait


async def owned(world: World) -> tuple[Any, Any]:
    """A keeper, and a map that it owns, of a kind that nobody watches."""
    spec = {"mode": "TTL", "ttl": "9999h"}
    keeper = await world.store.create(OBJECT_KEEPER, {"metadata": {"name": "mine"}, "spec": spec})
    owner = {"apiVersion": OBJECT_KEEPER.api_version, "kind": OBJECT_KEEPER.kind, "name": "mine"}
    owners = [{**owner, "uid": keeper.metadata.uid}]
    body = {"metadata": {"name": "below", "namespace": "shop", "ownerReferences": owners}}
    return keeper, await world.store.create(CONFIG_MAP, body)


async def test_a_hold_is_removed_when_its_end_has_passed_and_not_before(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    held = place(VOLUME_CAPTURE_REQUEST, request)
    await world.requests.steering.hold(held, Hold("audit", end(world, 1), ANN))
    wait = await tick(world)
    assert wait is not None
    assert wait <= 600
    assert "lapse.dev/hold" in await marks_on(world, held.kind, held.key)

    world.advance(HOUR + 1)
    await tick(world)
    await world.settle()
    for kind, key in ((held.kind, held.key), (OBJECT_KEEPER, (await world.keeper(request)).metadata.key)):
        assert not [name for name in await marks_on(world, kind, key) if name.startswith("lapse.dev/ho")]


async def test_nothing_is_removed_while_the_clock_is_in_doubt(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    held = place(VOLUME_CAPTURE_REQUEST, request)
    await world.requests.steering.hold(held, Hold("audit", end(world, 1), ANN))
    world.advance(2 * HOUR)
    monkeypatch.setattr(world.clock, "in_doubt", lambda: True)
    await tick(world)
    assert "lapse.dev/hold" in await marks_on(world, held.kind, held.key)


async def test_a_hold_that_was_made_longer_meanwhile_stays(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    held = place(VOLUME_CAPTURE_REQUEST, request)
    await world.requests.steering.hold(held, Hold("audit", end(world, 1), ANN))
    await world.caught_up()
    world.advance(2 * HOUR)
    longer = Hold("more", end(world, 1), ANN)
    await world.requests.steering.hold(held, longer)
    await world.requests.upkeep.tick()  # by a cache that has not heard of it yet
    assert own_hold_of(await marks_on(world, held.kind, held.key)) == longer


async def test_the_note_of_an_object_that_is_gone_is_removed_and_that_of_a_held_one_stays(world: World) -> None:
    keeper, below = await owned(world)
    await world.requests.steering.hold(place(CONFIG_MAP, below), Hold("audit", None, ANN))
    await tick(world)
    assert hold_of(await marks_on(world, OBJECT_KEEPER, keeper.metadata.key)) is not None

    await world.store.delete(CONFIG_MAP, below.metadata.key)
    await tick(world)
    assert hold_of(await marks_on(world, OBJECT_KEEPER, keeper.metadata.key)) is None


async def test_the_note_of_a_hold_that_was_removed_by_hand_or_has_ended_is_removed(world: World) -> None:
    keeper, below = await owned(world)
    steering = world.requests.steering
    await steering.hold(place(CONFIG_MAP, below), Hold("audit", None, ANN))
    by_hand = {"metadata": {"annotations": {"lapse.dev/hold": None}}}
    await world.store.patch(CONFIG_MAP, below.metadata.key, by_hand)
    await tick(world)
    assert hold_of(await marks_on(world, OBJECT_KEEPER, keeper.metadata.key)) is None

    await steering.hold(place(CONFIG_MAP, below), Hold("audit", end(world, 1), ANN))
    world.advance(2 * HOUR)
    await tick(world)
    assert "lapse.dev/held-dependents" not in await marks_on(world, OBJECT_KEEPER, keeper.metadata.key)


async def test_a_note_that_was_written_by_hand_stays(world: World) -> None:
    keeper, _ = await owned(world)
    note = {"metadata": {"annotations": {"lapse.dev/held-dependents": "3b0c"}}}
    await world.store.patch(OBJECT_KEEPER, keeper.metadata.key, note)
    await tick(world)
    assert hold_of(await marks_on(world, OBJECT_KEEPER, keeper.metadata.key)) is not None


async def test_a_legal_hold_reaches_artifacts_that_are_made_later(world: World) -> None:
    claim = await world.volume()
    request = await world.capture("nightly", claim)
    legal = Hold("case 7", None, ANN, is_legal=True)
    await world.requests.steering.hold(place(VOLUME_CAPTURE_REQUEST, request), legal)
    await world.settle()
    await world.snapshot_ready(request)
    await world.settle()
    await tick(world)
    (content,) = await world.all(VOLUME_SNAPSHOT_CONTENT)
    assert own_hold_of(content.metadata.annotations) == legal

    await tick(world)
    (content,) = await world.all(VOLUME_SNAPSHOT_CONTENT)
    assert own_hold_of(content.metadata.annotations) == legal, "as long as its keeper has it"
    await world.requests.steering.release(place(VOLUME_CAPTURE_REQUEST, request), by=BOB)
    await world.settle()
    (content,) = await world.all(VOLUME_SNAPSHOT_CONTENT)
    assert own_hold_of(content.metadata.annotations) is None


async def test_what_a_released_legal_hold_has_left_on_artifacts_is_taken_back(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    legal = Hold("case 7", None, ANN, is_legal=True)
    await world.requests.steering.hold(place(VOLUME_CAPTURE_REQUEST, request), legal)
    await world.settle()
    await world.annotate(request, {"lapse.dev/hold": None, "lapse.dev/hold-by": None, "lapse.dev/hold-reason": None})
    await world.settle()
    assert own_hold_of((await world.keeper(request)).metadata.annotations) is None, "by the controller of keepers"
    (content,) = await world.all(VOLUME_SNAPSHOT_CONTENT)
    assert own_hold_of(content.metadata.annotations) == legal
    await tick(world)
    (content,) = await world.all(VOLUME_SNAPSHOT_CONTENT)
    assert own_hold_of(content.metadata.annotations) is None


async def test_a_held_request_that_is_created_so_passes_its_hold_on(world: World) -> None:
    claim = await world.volume()
    held = {"lapse.dev/hold": "true", "lapse.dev/hold-until": to_timestamp(end(world, 99))}
    request = await world.capture("nightly", claim, annotations=held)
    await world.settle()
    assert own_hold_of((await world.keeper(request)).metadata.annotations) == Hold("", end(world, 99))
