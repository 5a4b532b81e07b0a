"""A hundred restores at once: all are bound with their data, nothing is left, and each takes so many calls at most."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lapse.kube.resources import ready_condition
from lapse.requests.api.conditions import is_final
from lapse.requests.api.kinds import OBJECT_KEEPER, VOLUME_RESTORE_REQUEST
from lapse.requests.api.upstream import PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.controllers.finalise import conditions_of
from tests.integration.operator.deployed import USER
from tests.integration.operator.own import Own, own_cluster
from tests.integration.operator.restores import KEPT, RESTORE, VOLUME_SNAPSHOT, Captured, Tenant
from tests.integration.operator.steps import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from lapse.objects.kubernetes import KubernetesStore
    from lapse.requests.api.kinds import VolumeRestoreRequest

pytestmark = [pytest.mark.server("kube", private=True), pytest.mark.timeout(300)]
MANY = 100
MOST_CALLS = 25
"""Of the operator, for each restore, from the request to the last of what it clears away; its Lease is not counted."""


@pytest.fixture(scope="module")
def own() -> Iterator[Own]:
    with own_cluster() as own:
        yield own


@pytest.fixture
async def store(own: Own) -> AsyncIterator[KubernetesStore]:
    store = own.store()
    yield store
    await store.close()


def calls_of_operator(own: Own, since: int) -> dict[str, int]:
    """How often it asked for what, without its Lease and its watches."""
    asked: dict[str, int] = {}
    for call in own.audit.calls(since):
        if call.user == USER and call.verb != "watch" and call.target.resource != "leases":
            what = f"{call.verb} {call.target.resource} {call.code}"
            asked[what] = asked.get(what, 0) + 1
    return asked


async def requests_of(tenant: Tenant) -> tuple[VolumeRestoreRequest, ...]:
    return (await tenant.store.list(VOLUME_RESTORE_REQUEST, namespace=tenant.namespace)).items


async def until_all_ended(tenant: Tenant) -> None:
    """One list for all: whoever waits must not take the API server from those who are waited for."""

    async def ended() -> bool:
        return all(is_final(conditions_of(one)) for one in await requests_of(tenant))

    await until(ended)


async def until_all_clean(tenant: Tenant) -> None:
    """Wait until nothing of any bridge is left, and no source is pinned."""

    async def left() -> list[str]:
        snapshots = (await tenant.store.list(VOLUME_SNAPSHOT)).items
        contents = (await tenant.store.list(VOLUME_SNAPSHOT_CONTENT)).items
        bridges = [one.metadata.name for one in contents if RESTORE in one.metadata.labels]
        owners = [owner.name for one in contents for owner in one.metadata.owner_references]
        return [one.metadata.name for one in snapshots] + bridges + [one for one in owners if "ret-vrr-" in one]

    async def clean() -> bool:
        return not await left()

    try:
        await until(clean, seconds=60)
    except TimeoutError:
        pytest.fail(f"left of the restores: {await left()}")


@pytest.mark.parametrize("sources", [MANY, 1], ids=["of a hundred snapshots", "of one snapshot"])
async def test_a_hundred_restores_at_once_are_all_bound_and_leave_nothing(
    own: Own, store: KubernetesStore, sources: int
) -> None:
    await asyncio.to_thread(own.operator, *KEPT)
    tenant = await Tenant.move_in(own, store)
    turn = asyncio.Semaphore(16)

    async def capture(number: int) -> Captured:
        async with turn:
            return await tenant.capture(f"data-{number}")

    captured = await asyncio.gather(*map(capture, range(sources)))
    mark, snapshots = own.audit.mark(), own.kube.storage.snapshots()
    pairs = [(f"restored-{number}", captured[number % sources]) for number in range(MANY)]
    requests = await asyncio.gather(*(tenant.ask(source, name=name, claim=name) for name, source in pairs))

    await until_all_ended(tenant)
    await until_all_clean(tenant)

    asked = calls_of_operator(own, mark)
    ends = [ready_condition(conditions_of(one)) for one in await requests_of(tenant)]
    assert [one for one in ends if one is None or one.reason != "Completed"] == []
    for name, source in pairs:
        assert await tenant.data(name) == source.data
    assert own.kube.storage.snapshots() == snapshots
    claims = (await store.list(PERSISTENT_VOLUME_CLAIM, namespace=tenant.namespace)).items
    assert len(claims) == sources + MANY
    told = "\n".join(f"{count:5} {what}" for what, count in sorted(asked.items()))
    assert sum(asked.values()) <= MOST_CALLS * MANY, f"calls of the operator:\n{told}"

    async def none_left() -> bool:
        keepers = [one.metadata.name for one in (await store.list(OBJECT_KEEPER)).items]
        return not await requests_of(tenant) and not [name for name in keepers if name.startswith("ret-vrr-")]

    await asyncio.gather(*(store.delete(VOLUME_RESTORE_REQUEST, one.metadata.key) for one in requests))
    await until(none_left)
