"""Who makes the claim of a restore, and what follows for the claims and sources that count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import OBJECT_KEEPER, RESTORE_TO, RESTORED_FROM, VOLUME_RESTORE_REQUEST
from lapse.requests.api.upstream import PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.bridge.removal import BridgeReason
from lapse.requests.lifecycle.policy import RestoreExecutor
from tests.integration.requests.cluster import BRIDGED
from tests.integration.requests.test_bridge import captured, go_on
from tests.integration.requests.world import NAMESPACE, opened

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.requests.api.upstream import PersistentVolumeClaim
    from tests.integration.requests.world import World

EXTERNAL = {"restore_executor": RestoreExecutor.EXTERNAL}
OFF = {"restore_executor": RestoreExecutor.OFF}


async def foreign_claim(world: World, **annotations: str) -> PersistentVolumeClaim:
    """A bound claim as a provisioner makes it that knows nothing of our marks."""
    metadata = {"namespace": NAMESPACE, "name": "restored", "annotations": annotations}
    status = {"phase": "Bound"}
    return await world.apply(PERSISTENT_VOLUME_CLAIM, {"metadata": metadata, "spec": {}, "status": status})


async def test_a_foreign_provisioner_need_not_know_our_annotation(tmp_path: Path) -> None:
    async with opened(tmp_path, services=EXTERNAL) as world:
        request = await world.restore("one", await world.snapshot())
        await world.settle()
        assert await world.names(PERSISTENT_VOLUME_CLAIM) == []
        claim = await foreign_claim(world)
        await world.settle()
        assert await world.reason(request) == ConditionReason.COMPLETED
        found = await world.store.get(VOLUME_RESTORE_REQUEST, request.metadata.key)
        assert found.status is not None
        assert found.status.pvc_ref is not None
        assert found.status.pvc_ref.uid == claim.metadata.uid
        assert found.status.progress is None


async def test_an_end_that_the_cache_has_not_seen_yet_is_not_written_again(tmp_path: Path) -> None:
    async with opened(tmp_path, services=EXTERNAL) as world:
        request = await world.restore("one", await world.snapshot())
        await world.settle()
        await foreign_claim(world)
        await world.caught_up()
        await world.stop()  # the caches hear of nothing any more
        await world.reconcile(request)
        assert await world.reason(request) == ConditionReason.COMPLETED
        calls = len(world.wire.calls)
        await world.reconcile(request)
        assert world.wire.calls[calls:] == []


async def test_restores_at_the_same_moment_read_their_class_once(tmp_path: Path) -> None:
    async with opened(tmp_path, services=BRIDGED) as world:
        content = await captured(world)
        calls = len(world.wire.calls)
        requests = [await world.restore(name, content, claim=name) for name in ("one", "two", "three")]
        await go_on(world)
        assert [await world.reason(one) for one in requests] == [ConditionReason.COMPLETED] * 3
        assert [str(call) for call in world.wire.calls[calls:]].count("get StorageClass") == 1


async def test_a_claim_older_than_its_request_is_not_that_of_a_foreign_provisioner(tmp_path: Path) -> None:
    async with opened(tmp_path, services=EXTERNAL) as world:
        await foreign_claim(world)
        world.advance(5)
        request = await world.restore("one", await world.snapshot())
        await world.settle()
        assert await world.reason(request) == ConditionReason.INCOMPATIBLE


async def test_whose_source_it_may_be_is_for_a_foreign_provisioner_to_judge(tmp_path: Path) -> None:
    async with opened(tmp_path, services=EXTERNAL) as world:
        request = await world.restore("one", await world.snapshot(namespace="other"))
        await world.settle()
        await foreign_claim(world)
        await world.settle()
        assert await world.reason(request) == ConditionReason.COMPLETED


@pytest.mark.parametrize("services", [{}, {"restore_executor": RestoreExecutor.BRIDGE}], ids=["local", "bridge"])
async def test_elsewhere_a_claim_that_does_not_say_so_is_no_restore(tmp_path: Path, services: dict[str, Any]) -> None:
    async with opened(tmp_path, services=services) as world:
        request = await world.restore("one", await world.snapshot())
        await foreign_claim(world, **{RESTORED_FROM: "somebody-else"})
        await world.settle()
        assert await world.reason(request) == ConditionReason.INCOMPATIBLE


async def test_what_a_restore_clears_away_is_in_the_journal_by_its_one_address(tmp_path: Path) -> None:
    async with opened(tmp_path, services=BRIDGED) as world:
        request = await world.restore("one", await captured(world))
        await go_on(world)
        rows = [row for row in await world.journal_rows() if row.reason == BridgeReason.RESTORE_OVER]
        name = f"restore-{request.metadata.uid}"
        assert sorted({row.address for row in rows}) == [
            f"VolumeSnapshot.snapshot.storage.k8s.io/{NAMESPACE}/{name}",
            f"snapshot/{name}",
        ]


async def test_where_restores_are_off_each_ends_at_once_and_makes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path, services=OFF) as world:
        request = await world.restore("one", await world.snapshot())
        await world.settle()
        assert await world.reason(request) == ConditionReason.FAILED
        assert "restore_executor=off" in await world.message(request)
        assert await world.names(OBJECT_KEEPER) == []
        assert await world.names(PERSISTENT_VOLUME_CLAIM) == []


@pytest.mark.parametrize(("grant", "allowed"), [(None, False), ("nobody", False), (f"nobody, {NAMESPACE}", True)])
async def test_on_one_machine_too_a_source_of_another_namespace_takes_a_grant(
    world: World, grant: str | None, *, allowed: bool
) -> None:
    source = await world.snapshot(namespace="other")
    changes = {"metadata": {"annotations": {RESTORE_TO: grant}}}
    await world.store.patch(VOLUME_SNAPSHOT_CONTENT, source.metadata.key, changes)
    request = await world.restore("one", source)
    await world.settle()
    if allowed:
        await world.provision(request)
        await world.settle()
    assert await world.reason(request) == (ConditionReason.COMPLETED if allowed else ConditionReason.INVALID_SOURCE)
