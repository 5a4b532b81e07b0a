"""A hundred restores at once: all are bound with their data, nothing is left, and each takes so many calls at most."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lapse.requests.api.kinds import VOLUME_RESTORE_REQUEST
from lapse.requests.api.upstream import PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from tests.integration.operator.deployed import USER
from tests.integration.operator.own import Own, own_cluster
from tests.integration.operator.restores import KEPT, RESTORE, VOLUME_SNAPSHOT, Captured, Tenant
from tests.integration.operator.steps import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from lapse.objects.kubernetes import KubernetesStore

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

    await asyncio.gather(*map(tenant.completed, requests))
    await asyncio.gather(*(tenant.until_clean(one, source) for one, (_, source) in zip(requests, pairs, strict=True)))

    asked = calls_of_operator(own, mark)
    for name, source in pairs:
        assert await tenant.data(name) == source.data
    assert own.kube.storage.snapshots() == snapshots
    assert (await store.list(VOLUME_SNAPSHOT)).items == ()
    contents = (await store.list(VOLUME_SNAPSHOT_CONTENT)).items
    assert [one.metadata.name for one in contents if RESTORE in one.metadata.labels] == []
    claims = (await store.list(PERSISTENT_VOLUME_CLAIM, namespace=tenant.namespace)).items
    assert len(claims) == sources + MANY
    told = "\n".join(f"{count:5} {what}" for what, count in sorted(asked.items()))
    assert sum(asked.values()) <= MOST_CALLS * MANY, f"calls of the operator:\n{told}"

    async def none_left() -> bool:
        return not (await store.list(VOLUME_RESTORE_REQUEST, namespace=tenant.namespace)).items

    await asyncio.gather(*(store.delete(VOLUME_RESTORE_REQUEST, one.metadata.key) for one in requests))
    await until(none_left)
