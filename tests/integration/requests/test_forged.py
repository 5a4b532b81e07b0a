"""What others can write is checked before it is trusted: keepers made beforehand, references written into a status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.duration import Duration
from lapse.kube.resources import ObjectKey
from lapse.requests.addresses import checkpoint_name
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import MANIFEST_CHECKPOINT, OBJECT_KEEPER, VOLUME_CAPTURE_REQUEST, KeeperMode
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.lifecycle.policy import RequestPolicy
from tests.integration.requests.stories import detach, manifests, restore, snapshot
from tests.integration.requests.world import NAMESPACE, World, keeper_key, kind_of

if TYPE_CHECKING:
    from lapse.kube.resources import Json
    from tests.integration.requests.stories import Ask

every_request = pytest.mark.parametrize("ask", [snapshot, detach, restore, manifests])
ARTIFACTS = (VOLUME_SNAPSHOT_CONTENT, MANIFEST_CHECKPOINT)
HOUR = 3600


def honest(request: Any) -> Json:  # noqa: ANN401 - any request
    """The keeper that Lapse itself would make."""
    kind, meta = kind_of(request), request.metadata
    followed = {"apiVersion": kind.api_version, "kind": kind.kind, "namespace": NAMESPACE, "name": meta.name}
    spec = {"mode": KeeperMode.FOLLOW_OBJECT_WITH_TTL, "ttl": "24h", "followObjectRef": {**followed, "uid": meta.uid}}
    return {"metadata": {"name": keeper_key(request).name}, "spec": spec}


# --- keepers ----------------------------------------------------------------------------------------------------------


@every_request
@pytest.mark.parametrize(
    ("forged", "problem"),
    [
        ({"ttl": "1s"}, "its ttl is 1s and not 1d"),
        ({"ttl": "never"}, "its ttl is never and not 1d"),
        ({"followObjectRef": {"name": "another"}}, "it follows another object"),
        ({"followObjectRef": {"namespace": "elsewhere"}}, "it follows another object"),
        ({"followObjectRef": {"kind": "ConfigMap", "apiVersion": "v1"}}, "it follows another object"),
    ],
)
async def test_a_keeper_made_beforehand_is_trusted_only_as_a_whole(
    world: World, ask: Ask, forged: Json, problem: str
) -> None:
    request = await ask(world)
    body = honest(request)
    followed = {**body["spec"]["followObjectRef"], **forged.get("followObjectRef", {})}
    body["spec"] |= {**forged, "followObjectRef": followed}
    await world.store.create(OBJECT_KEEPER, body)
    await world.settle()
    outcome = await world.outcome(request)
    assert outcome is not None
    assert outcome[0] == ConditionReason.INTERNAL_ERROR
    assert problem in outcome[1]
    assert [name for kind in ARTIFACTS for name in await world.names(kind)] == (["snap"] if ask is restore else [])
    assert len(await world.all(PERSISTENT_VOLUME_CLAIM)) == (0 if ask in {restore, manifests} else 1)


@every_request
async def test_a_keeper_that_goes_with_something_else_is_refused(world: World, ask: Ask) -> None:
    request = await ask(world)
    other = await world.config_map("lever")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "lever", "uid": other.metadata.uid}
    body = honest(request)
    body["metadata"]["ownerReferences"] = [owner]
    await world.store.create(OBJECT_KEEPER, body)
    await world.settle()
    outcome = await world.outcome(request)
    assert outcome is not None
    assert outcome[0] == ConditionReason.INTERNAL_ERROR
    assert "it is owned by the ConfigMap lever" in outcome[1]


@every_request
async def test_a_keeper_as_lapse_makes_it_is_used_whoever_wrote_it(world: World, ask: Ask) -> None:
    request = await ask(world)
    body = honest(request)
    body["spec"]["ttl"] = "1440m"
    await world.store.create(OBJECT_KEEPER, body)
    await world.settle()
    assert await world.reason(request) in {None, ConditionReason.COMPLETED}


# --- Detach -----------------------------------------------------------------------------------------------------------


async def recorded(world: World, request: Any, *, name: str, kind: Any = PERSISTENT_VOLUME) -> None:  # noqa: ANN401
    """Write into the status what somebody with the right to do so may write."""
    found = await world.store.get(kind, ObjectKey(None, name))
    reference = {"apiVersion": kind.api_version, "kind": kind.kind, "name": name, "uid": found.metadata.uid}
    await world.store.patch_status(VOLUME_CAPTURE_REQUEST, request.metadata.key, {"artifactRef": reference})


@pytest.mark.parametrize("when", ["before", "in-between", "after"])
async def test_a_volume_that_somebody_wrote_into_the_status_is_not_taken(world: World, when: str) -> None:
    claim, other = await world.volume(), await world.volume("other")
    request = await world.capture("one", claim, mode="Detach")
    if when != "before":
        await world.reconcile(request)  # its own volume is recorded; the claim goes with the next one
    if when == "after":
        await world.delete(claim)
    await recorded(world, request, name="pv-other")
    await world.live(5, step=1)
    outcome = await world.outcome(request)
    assert outcome is not None
    assert outcome[0] == ConditionReason.INCOMPATIBLE
    assert "pv-other" in outcome[1]
    assert await world.exists(claim) == (when != "after")
    assert await world.exists(other)
    await world.live(hours=48, step=HOUR)
    for name in ("pv-data", "pv-other"):
        volume = await world.store.get(PERSISTENT_VOLUME, ObjectKey(None, name))
        assert volume.metadata.owner_references == ()


async def test_a_released_volume_of_somebody_else_is_not_taken_through_the_status(world: World) -> None:
    claim, other = await world.volume(), await world.volume("other")
    await world.delete(other)
    request = await world.capture("one", claim, mode="Detach")
    await world.reconcile(request)
    await world.delete(claim)
    await recorded(world, request, name="pv-other")
    await world.live(5, step=1)
    assert await world.reason(request) == ConditionReason.INCOMPATIBLE
    volume = await world.store.get(PERSISTENT_VOLUME, ObjectKey(None, "pv-other"))
    assert volume.metadata.owner_references == ()


@pytest.mark.parametrize(
    "policy", [RequestPolicy(keeper_mode=KeeperMode.FOLLOW_OBJECT), RequestPolicy(keeper_ttl=Duration.parse("1h"))]
)
async def test_the_keeper_is_judged_before_the_claim_is_deleted(world: World, policy: RequestPolicy) -> None:
    claim = await world.volume()
    request = await world.capture("one", claim, mode="Detach")
    await world.reconcile(request)  # keeper made, volume recorded; then the settings change
    await world.restart(policy=policy)
    await world.live(5, step=1)
    assert await world.reason(request) == ConditionReason.INTERNAL_ERROR
    assert await world.exists(claim)


# --- Snapshot and manifests -------------------------------------------------------------------------------------------


async def test_a_snapshot_that_somebody_wrote_into_the_status_is_not_the_outcome(world: World) -> None:
    request = await snapshot(world)
    foreign = await world.snapshot("foreign")
    await world.settle()
    await recorded(world, request, name=foreign.metadata.name, kind=VOLUME_SNAPSHOT_CONTENT)
    await world.settle()
    outcome = await world.outcome(request)
    assert outcome is not None
    assert outcome[0] == ConditionReason.INCOMPATIBLE
    assert "foreign" in outcome[1]
    assert await world.exists(foreign)


async def test_a_snapshot_of_the_right_name_and_another_keeper_is_not_the_outcome(world: World) -> None:
    request = await snapshot(world)
    await world.settle()
    name = (await world.names(VOLUME_SNAPSHOT_CONTENT))[0]
    stranger = await world.store.create(
        OBJECT_KEEPER, {"metadata": {"name": "stranger"}, "spec": {"mode": "TTL", "ttl": "1h"}}
    )
    owner = {"apiVersion": OBJECT_KEEPER.api_version, "kind": OBJECT_KEEPER.kind, "controller": True}
    owners = [{**owner, "name": "stranger", "uid": stranger.metadata.uid}]
    await world.store.patch(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, name), {"metadata": {"ownerReferences": owners}})
    await world.snapshot_ready(request)
    await world.live(minutes=2)
    assert await world.reason(request) == ConditionReason.INCOMPATIBLE


async def test_a_complete_checkpoint_of_a_keeper_that_does_not_exist_is_not_the_outcome(world: World) -> None:
    request = await manifests(world)
    owner = {"apiVersion": OBJECT_KEEPER.api_version, "kind": OBJECT_KEEPER.kind, "controller": True}
    made_up = {**owner, "name": keeper_key(request).name, "uid": "made-up"}
    key = ObjectKey(None, checkpoint_name(request.metadata.uid))
    keeper = await world.store.create(OBJECT_KEEPER, honest(request))
    second = {**owner, "controller": False, "name": keeper.metadata.name, "uid": keeper.metadata.uid}
    await world.store.create(
        MANIFEST_CHECKPOINT, {"metadata": {"name": key.name, "ownerReferences": [made_up, second]}}
    )
    conditions = [{"type": "Ready", "status": "True", "reason": "Completed"}]
    await world.store.patch_status(MANIFEST_CHECKPOINT, key, {"conditions": conditions})
    await world.settle()
    assert await world.reason(request) == ConditionReason.INTERNAL_ERROR


# --- late is late -----------------------------------------------------------------------------------------------------


@every_request
async def test_a_request_that_is_first_looked_at_after_its_deadline_makes_nothing(world: World, ask: Ask) -> None:
    await world.stop()  # nobody looks while the deadline passes
    request = await ask(world)
    before = {kind.kind: await world.names(kind) for kind in ARTIFACTS}
    world.advance(24 * HOUR + 1)
    await world.restart()
    await world.live(5, step=1)
    assert await world.reason(request) == ConditionReason.DEADLINE_EXCEEDED
    assert await world.all(OBJECT_KEEPER) == []
    assert {kind.kind: await world.names(kind) for kind in ARTIFACTS} == before
    assert len(await world.all(PERSISTENT_VOLUME_CLAIM)) == (0 if ask in {restore, manifests} else 1)
