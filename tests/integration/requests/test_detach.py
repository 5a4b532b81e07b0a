"""Capture by detachment: what is refused, what is waited for, and that the volume is never lost."""

from __future__ import annotations

from typing import Any

import pytest

from lapse.core.duration import Duration
from lapse.engine.journal.port import Outcome
from lapse.kube.errors import StoreUnavailableError
from lapse.kube.resources import ObjectKey
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import OBJECT_KEEPER
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, PersistentVolume
from lapse.requests.lifecycle.policy import RequestPolicy
from tests.integration.requests.world import NAMESPACE, Call, World

VOLUME = ObjectKey(None, "pv-data")


async def volume(world: World) -> PersistentVolume:
    return await world.store.get(PERSISTENT_VOLUME, VOLUME)


async def pod(world: World, name: str, *, phase: str = "Running", ephemeral: bool = False) -> Any:  # noqa: ANN401
    spec = {"name": "scratch", "ephemeral": {}} if ephemeral else {"persistentVolumeClaim": {"claimName": "data"}}
    body = {"metadata": {"namespace": NAMESPACE, "name": name}, "spec": {"volumes": [spec]}, "status": {"phase": phase}}
    return await world.apply(POD, body)


async def test_a_detached_volume_is_released_from_its_claim_and_kept_by_the_keeper(world: World) -> None:
    claim = await world.volume()
    request = await world.capture("one", claim, mode="Detach")
    await world.live(5, step=1)
    assert await world.outcome(request) == (ConditionReason.COMPLETED, "the PersistentVolume pv-data is detached")
    assert not await world.exists(claim)
    found = await volume(world)
    assert [owner.uid for owner in found.metadata.owner_references] == [(await world.keeper(request)).metadata.uid]
    reference = (await world.fresh(request)).status
    assert reference is not None
    assert reference.artifact_ref is not None
    assert (reference.artifact_ref.kind, reference.artifact_ref.uid) == ("PersistentVolume", found.metadata.uid)


@pytest.mark.parametrize("policy", ["Delete", "Recycle"])
async def test_a_volume_that_is_not_retained_is_incompatible_and_nothing_is_touched(world: World, policy: str) -> None:
    claim = await world.volume(reclaim=policy)
    request = await world.capture("one", claim, mode="Detach")
    await world.live(minutes=2, step=10)
    assert await world.outcome(request) == (
        ConditionReason.INCOMPATIBLE,
        f"the PersistentVolume pv-data would go with its claim: its reclaim policy is {policy}, expected Retain",
    )
    assert await world.exists(claim)
    assert await world.all(OBJECT_KEEPER) == []


@pytest.mark.parametrize("cached", [True, False], ids=["seen", "not-seen-by-the-cache"])
async def test_a_volume_that_is_no_longer_retained_right_before_the_deletion_is_not_lost(
    world: World, *, cached: bool
) -> None:
    claim = await world.volume()
    request = await world.capture("one", claim, mode="Detach")
    await world.reconcile(request)  # recorded; the claim goes with the next one
    if not cached:
        await world.caught_up()
        await world.stop()
    await world.store.patch(PERSISTENT_VOLUME, VOLUME, {"spec": {"persistentVolumeReclaimPolicy": "Delete"}})
    await world.reconcile(request)
    assert await world.reason(request) == ConditionReason.INCOMPATIBLE
    assert await world.exists(claim)


async def test_a_claim_in_use_by_a_pod_is_not_deleted_until_the_pod_is_gone(world: World) -> None:
    claim = await world.volume()
    user = await pod(world, "app")
    request = await world.capture("one", claim, mode="Detach")
    await world.live(minutes=10)
    assert await world.exists(claim)
    assert await world.outcome(request) is None
    await world.delete(user)
    await world.live(minutes=2)
    assert not await world.exists(claim)
    assert await world.reason(request) == ConditionReason.COMPLETED


async def test_a_pod_that_is_over_and_a_pod_of_another_claim_do_not_count(world: World) -> None:
    claim = await world.volume()
    await pod(world, "done", phase="Succeeded")
    await pod(world, "failed", phase="Failed")
    await pod(world, "other", ephemeral=True)
    request = await world.capture("one", claim, mode="Detach")
    await world.live(5, step=1)
    assert await world.reason(request) == ConditionReason.COMPLETED


async def test_an_ephemeral_claim_of_a_running_pod_is_in_use(world: World) -> None:
    claim = await world.volume("app-scratch")
    await pod(world, "app", ephemeral=True)
    request = await world.capture("one", claim, mode="Detach")
    await world.live(minutes=5)
    assert await world.exists(claim)
    assert await world.outcome(request) is None


async def test_a_held_claim_is_not_deleted_until_it_is_released(world: World) -> None:
    claim = await world.hold(await world.volume())
    request = await world.capture("one", claim, mode="Detach")
    await world.live(hours=1)
    assert await world.exists(claim)
    assert await world.outcome(request) is None
    assert [row.outcome for row in await world.journal_rows(uid=claim.metadata.uid)] == [Outcome.HELD]
    await world.release(claim)
    await world.live(minutes=2)
    assert not await world.exists(claim)
    assert await world.reason(request) == ConditionReason.COMPLETED


async def test_the_end_of_a_claim_is_journalled_with_its_volume(world: World) -> None:
    claim = await world.volume()
    await world.capture("one", claim, mode="Detach")
    await world.live(5, step=1)
    (row,) = await world.journal_rows(uid=claim.metadata.uid)
    assert (row.outcome, row.reason) == (Outcome.ENDED, "detached")
    assert row.address == "PersistentVolumeClaim/shop/data"
    assert row.details == {"request": "shop/one", "volume": "pv-data"}


async def test_a_volume_that_somebody_else_manages_is_refused(world: World) -> None:
    claim = await world.volume()
    other = await world.config_map("operator")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "operator", "uid": other.metadata.uid, "controller": True}
    await world.store.patch(PERSISTENT_VOLUME, VOLUME, {"metadata": {"ownerReferences": [owner]}})
    request = await world.capture("one", claim, mode="Detach")
    await world.live(minutes=2, step=10)
    assert await world.outcome(request) == (
        ConditionReason.INCOMPATIBLE,
        "the PersistentVolume pv-data is managed by the ConfigMap operator already",
    )
    assert await world.exists(claim), "what can be known before is known before the claim is gone"
    assert [found.uid for found in (await volume(world)).metadata.owner_references] == [other.metadata.uid]


async def test_a_plain_owner_of_the_volume_stays_beside_the_keeper(world: World) -> None:
    claim = await world.volume()
    other = await world.config_map("friend")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "friend", "uid": other.metadata.uid}
    await world.store.patch(PERSISTENT_VOLUME, VOLUME, {"metadata": {"ownerReferences": [owner]}})
    request = await world.capture("one", claim, mode="Detach")
    await world.live(5, step=1)
    assert await world.reason(request) == ConditionReason.COMPLETED
    assert {found.uid for found in (await volume(world)).metadata.owner_references} == {
        other.metadata.uid,
        (await world.keeper(request)).metadata.uid,
    }


async def test_a_volume_that_another_claim_has_by_now_is_not_taken_from_it(world: World) -> None:
    claim = await world.volume()
    request = await world.capture("one", claim, mode="Detach")
    await world.reconcile(request)
    await world.delete(claim)
    await world.volume()  # the same volume, bound to a new claim of the same name
    await world.live(5, step=1)
    assert await world.reason(request) == ConditionReason.INCOMPATIBLE
    assert (await volume(world)).metadata.owner_references == ()
    assert len(await world.all(PERSISTENT_VOLUME_CLAIM)) == 1


async def test_a_claim_of_another_uid_with_the_same_name_is_not_deleted(world: World) -> None:
    claim = await world.volume()
    request = await world.capture("one", claim, mode="Detach")
    await world.reconcile(request)
    await world.delete(claim)
    body = {"metadata": {"namespace": NAMESPACE, "name": "data"}, "spec": {}}
    newcomer = await world.store.create(PERSISTENT_VOLUME_CLAIM, body)
    await world.live(5, step=1)
    assert await world.reason(request) == ConditionReason.COMPLETED
    assert await world.exists(newcomer)


async def test_after_the_deadline_no_claim_is_deleted_any_more(world: World) -> None:
    await world.restart(policy=RequestPolicy(request_deadline=Duration.parse("1h")))
    claim = await world.volume()
    user = await pod(world, "app")
    request = await world.capture("one", claim, mode="Detach")
    await world.live(minutes=5)
    await world.stop()  # nobody looks while the deadline passes
    await world.delete(user)
    world.advance(3600)
    await world.restart()
    await world.live(minutes=2)
    assert await world.reason(request) == ConditionReason.DEADLINE_EXCEEDED
    assert await world.exists(claim)
    assert (await volume(world)).metadata.owner_references == ()


async def test_a_claim_that_was_deleted_in_time_is_detached_although_the_deadline_passed_meanwhile(
    world: World,
) -> None:
    await world.restart(policy=RequestPolicy(request_deadline=Duration.parse("1h")))
    claim = await world.volume()
    request = await world.capture("one", claim, mode="Detach")

    def stuck(call: Call) -> None:
        if str(call) == "patch PersistentVolume":
            raise StoreUnavailableError(problem="away")

    world.wire.before = stuck
    await world.live(5, step=1)
    assert not await world.exists(claim)
    await world.stop()
    world.advance(2 * 3600)
    await world.restart()
    await world.live(5, step=1)
    assert await world.reason(request) == ConditionReason.COMPLETED
    assert len((await volume(world)).metadata.owner_references) == 1


async def test_a_claim_that_changes_under_our_hands_is_looked_at_again(world: World) -> None:
    claim = await world.volume()
    request = await world.capture("one", claim, mode="Detach")

    async def delete_all(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        await world.hold(claim)
        return await world.store.delete_all(*args, **kwargs)

    world.wire.store = _With(world.store, delete_all)
    await world.live(10, step=1)
    assert await world.exists(claim), "the hold came before the deletion, so the deletion lost"
    outcomes = [row.outcome for row in await world.journal_rows(uid=claim.metadata.uid)]
    assert outcomes[0] == Outcome.HELD
    assert Outcome.ENDED not in outcomes
    assert await world.outcome(request) is None


class _With:
    """A store with another way to delete."""

    def __init__(self, store: Any, delete_all: Any) -> None:  # noqa: ANN401
        self._store, self.delete_all = store, delete_all

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._store, name)
