"""``spec.artifactTTL``: how long what a request made is kept after the request is gone, if the operator allows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.duration import Duration
from lapse.kube.resources import ObjectKey
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import (
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    OBJECT_KEEPER,
    VOLUME_CAPTURE_REQUEST,
    KeeperMode,
)
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.lifecycle.policy import RequestPolicy
from tests.integration.requests.world import NAMESPACE, World, keeper_key, opened

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from lapse.kube.resources import Json

    Ask = Callable[[World, str | None], Awaitable[Any]]

TO_THE_LETTER = RequestPolicy(keeper_mode=KeeperMode.FOLLOW_OBJECT)
ANY = RequestPolicy(artifact_ttl_max=Duration.parse("never"))


async def snapshot(world: World, ttl: str | None, mode: str = "Snapshot") -> Any:  # noqa: ANN401 - a request
    claim = await world.volume("data")
    target = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data", "uid": claim.metadata.uid}
    return await world.store.create(VOLUME_CAPTURE_REQUEST, asked({"mode": mode, "target": target}, ttl))


async def detach(world: World, ttl: str | None) -> Any:  # noqa: ANN401 - a request
    return await snapshot(world, ttl, "Detach")


async def manifests(world: World, ttl: str | None) -> Any:  # noqa: ANN401 - a request
    await world.config_map("settings")
    targets = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}]
    return await world.store.create(MANIFEST_CAPTURE_REQUEST, asked({"targets": targets}, ttl))


def asked(spec: Json, ttl: str | None) -> Json:
    kept = {} if ttl is None else {"artifactTTL": ttl}
    return {"metadata": {"namespace": NAMESPACE, "name": "nightly"}, "spec": spec | kept}


every_capture = pytest.mark.parametrize("ask", [snapshot, detach, manifests])


async def completed(world: World, ask: Ask, ttl: str | None) -> Any:  # noqa: ANN401 - a request
    request = await ask(world, ttl)
    await world.settle()
    if ask is snapshot:
        await world.snapshot_ready(request)
    await world.live(minutes=2)
    assert await world.reason(request) == ConditionReason.COMPLETED
    return request


async def artifacts(world: World) -> list[str]:
    kinds: tuple[Any, ...] = (VOLUME_SNAPSHOT_CONTENT, MANIFEST_CHECKPOINT)
    volumes = [one.metadata.name for one in await world.all(PERSISTENT_VOLUME) if one.metadata.controller is not None]
    return [*volumes, *[name for kind in kinds for name in await world.names(kind)]]


@every_capture
async def test_what_a_request_asks_for_counts_and_not_the_setting(world: World, ask: Ask) -> None:
    request = await completed(world, ask, "3d")
    keeper = await world.keeper(request)
    assert (keeper.spec.mode, keeper.spec.ttl) == (KeeperMode.FOLLOW_OBJECT_WITH_TTL, "72h")
    await world.live(hours=1, step=600)
    assert not await world.exists(request)
    await world.live(hours=71, step=3600)
    assert await artifacts(world)
    await world.live(hours=2, step=600)
    assert not await world.all(OBJECT_KEEPER)
    assert not await artifacts(world)


@every_capture
async def test_where_keepers_go_with_their_request_what_the_user_asked_for_still_counts(
    tmp_path: Path, ask: Ask
) -> None:
    async with opened(tmp_path, policy=TO_THE_LETTER) as world:
        request = await completed(world, ask, "2h")
        keeper = await world.keeper(request)
        assert (keeper.spec.mode, keeper.spec.ttl) == (KeeperMode.FOLLOW_OBJECT_WITH_TTL, "2h")
        await world.live(hours=2, step=600)
        assert not await world.exists(request)
        assert await artifacts(world)
        await world.live(hours=1, step=600)
        assert not await artifacts(world)


@every_capture
async def test_never_is_kept_until_somebody_deletes_the_keeper(tmp_path: Path, ask: Ask) -> None:
    async with opened(tmp_path, policy=ANY) as world:
        request = await completed(world, ask, "never")
        keeper = await world.keeper(request)
        assert keeper.spec.ttl == "never"
        await world.live(hours=24 * 400, step=24 * 3600)
        assert not await world.exists(request)
        assert await artifacts(world)
        status = (await world.fresh(keeper)).status
        assert status is not None
        assert (status.phase, status.expires_at) == ("Expiring", None)
        await world.delete(keeper)
        await world.settle()
        assert not await artifacts(world)


@every_capture
@pytest.mark.parametrize(
    ("ttl", "policy", "says"),
    [
        ("31d", RequestPolicy(), "'31d', which is longer than 30d; expected at most 30d"),
        ("never", RequestPolicy(), "'never', which the operator does not allow; expected at most 30d"),
        ("61d", RequestPolicy(keeper_ttl=Duration.parse("60d")), "which is longer than 60d"),
        (
            "31d",
            RequestPolicy(keeper_mode=KeeperMode.FOLLOW_OBJECT, keeper_ttl=Duration.parse("60d")),
            "which is longer than 30d",
        ),
    ],
)
async def test_more_than_the_operator_allows_ends_the_request_before_anything_is_made(
    tmp_path: Path, ask: Ask, ttl: str, policy: RequestPolicy, says: str
) -> None:
    async with opened(tmp_path, policy=policy) as world:
        request = await ask(world, ttl)
        await world.settle()
        outcome = await world.outcome(request)
        assert outcome is not None
        assert outcome[0] == ConditionReason.INVALID_TTL
        assert says in outcome[1]
        assert "make a new request" in outcome[1]
        assert f"start lapse up with --artifact-ttl-max {ttl}; on a cluster" in outcome[1]
        assert ".." not in outcome[1]
        assert not await world.all(OBJECT_KEEPER)
        assert not await artifacts(world)


@pytest.mark.parametrize("ttl", ["30days", "0s", "-1h", ""])
async def test_what_is_no_ttl_ends_the_request_also_where_the_store_took_it(world: World, ttl: str) -> None:
    """As by an older definition on a cluster, which knows no such field."""
    request = await manifests(world, None)
    stored = MANIFEST_CAPTURE_REQUEST.convert({**asked({"targets": [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}]}, ttl), "metadata": {
            "namespace": NAMESPACE, "name": "nightly", "uid": request.metadata.uid}})  # fmt: skip
    step = await world.requests.manifests._step(stored)
    assert getattr(step, "reason", None) == ConditionReason.INVALID_TTL
    assert "expected a duration above zero, such as 12h or 30d, or never" in str(getattr(step, "message", ""))
    assert not await world.all(OBJECT_KEEPER)


async def test_what_everybody_gets_is_never_too_much_to_ask_for(tmp_path: Path) -> None:
    async with opened(tmp_path, policy=RequestPolicy(keeper_ttl=Duration.parse("60d"))) as world:
        await completed(world, manifests, "60d")


@every_capture
async def test_a_keeper_made_beforehand_must_have_the_ttl_that_the_request_asks_for(world: World, ask: Ask) -> None:
    request = await ask(world, "3d")
    kind = MANIFEST_CAPTURE_REQUEST if ask is manifests else VOLUME_CAPTURE_REQUEST
    followed = {"apiVersion": kind.api_version, "kind": kind.kind, "namespace": NAMESPACE, "name": "nightly"}
    spec = {"mode": "FollowObjectWithTTL", "ttl": "24h", "followObjectRef": {**followed, "uid": request.metadata.uid}}
    await world.store.create(OBJECT_KEEPER, {"metadata": {"name": keeper_key(request).name}, "spec": spec})
    await world.settle()
    outcome = await world.outcome(request)
    assert outcome is not None
    assert outcome[0] == ConditionReason.INTERNAL_ERROR
    assert "its ttl is 1d and not 3d" in outcome[1]
    assert not await artifacts(world)


async def test_a_bound_that_is_lowered_fails_nothing_that_has_begun(world: World) -> None:
    request = await detach(world, "20d")
    for _ in range(200):
        found = await world.fresh(request)
        if found.status is not None and found.status.artifact_ref is not None:
            break
        assert await world.work_once()
    await world.restart(policy=RequestPolicy(artifact_ttl_max=Duration.parse("1h")))
    await world.live(minutes=2)
    assert await world.reason(request) == ConditionReason.COMPLETED
    assert (await world.keeper(request)).spec.ttl == "480h"


async def test_a_status_that_others_wrote_does_not_get_around_the_longest_ttl(world: World) -> None:
    claim = await world.volume()
    volume = await world.store.get(PERSISTENT_VOLUME, ObjectKey(None, "pv-data"))
    target = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data", "uid": claim.metadata.uid}
    body = {
        "metadata": {"namespace": NAMESPACE, "name": "away"},
        "spec": {"mode": "Detach", "artifactTTL": "never", "target": target},
    }
    request = await world.store.create(VOLUME_CAPTURE_REQUEST, body)
    await world.live(2, step=1)
    assert await world.reason(request) == ConditionReason.INVALID_TTL
    forged = {"apiVersion": "v1", "kind": "PersistentVolume", "name": "pv-data", "uid": volume.metadata.uid}
    changes = {"conditions": [], "artifactRef": forged}
    await world.store.patch_status(VOLUME_CAPTURE_REQUEST, request.metadata.key, changes)
    await world.live(5, step=1)
    assert await world.reason(request) == ConditionReason.INVALID_TTL
    assert await world.names(OBJECT_KEEPER) == []
    assert await world.names(PERSISTENT_VOLUME_CLAIM) == ["data"]
