"""An operator that is killed between two of its calls: the next one finishes the restore as if nothing had happened.

The operator speaks through a proxy that knows each write on the way. At the one that a test names, the process is
killed: before the write has reached the API server, or after it was carried out and before the operator knows. So it
ends exactly there, whatever the machine does meanwhile.
"""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from lapse.requests.api.kinds import OBJECT_KEEPER, VOLUME_RESTORE_REQUEST
from lapse.requests.api.upstream import PERSISTENT_VOLUME
from tests.integration.operator.deployed import NAMESPACE
from tests.integration.operator.own import Own, own_cluster
from tests.integration.operator.restores import (
    KEPT,
    RESTORED_FROM,
    Captured,
    Detached,
    Tenant,
    keeper_of,
    operator_behind_proxy,
    volume_handle,
)
from tests.integration.operator.steps import until, until_gone
from tests.servers.api_proxy import ApiProxy, Asked, CutError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from lapse.objects.kubernetes import KubernetesStore
    from lapse.requests.api.kinds import VolumeRestoreRequest
    from tests.integration.operator.conftest import Operator

pytestmark = [pytest.mark.server("kube", private=True), pytest.mark.timeout(300)]
KILL_SECONDS = 60


@pytest.fixture(scope="module")
def own() -> Iterator[Own]:
    with own_cluster() as own:
        yield own


@pytest.fixture
async def store(own: Own) -> AsyncIterator[KubernetesStore]:
    store = own.store()
    yield store
    await store.close()


@dataclass(frozen=True)
class Write:
    """A call of the operator: by its method, the end of its path, and what its body has and has not."""

    method: str
    path: str
    has: bytes = b""
    lacks: bytes = b"\0"

    def is_it(self, asked: Asked, source: str) -> bool:
        pattern = self.path.replace("SOURCE", re.escape(source)) + r"(\?.*)?$"
        return (
            asked.method == self.method
            and re.search(pattern, asked.path) is not None
            and self.has in asked.body
            and self.lacks not in asked.body
        )


KEEPER = Write("POST", "/objectkeepers", has=b"ret-vrr-")
PIN = Write("PATCH", "/volumesnapshotcontents/SOURCE", has=b"ret-vrr-")
SNAPSHOT = Write("POST", "/volumesnapshots")
CONTENT = Write("POST", "/volumesnapshotcontents")
CLAIM = Write("POST", "/persistentvolumeclaims")
COMPLETED = Write("PATCH", "/volumerestorerequests/back/status", has=b"completionTimestamp")
SNAPSHOT_ENDED = Write("DELETE", "/volumesnapshots/restore-[-0-9a-f]+")
CONTENT_ENDED = Write("DELETE", "/volumesnapshotcontents/restore-[-0-9a-f]+")
UNPIN = Write("PATCH", "/volumesnapshotcontents/SOURCE", has=b"ownerReferences", lacks=b"ret-vrr-")
ADOPT = Write("PATCH", "/persistentvolumes/SOURCE", has=b"ret-vrr-")
LET_GO = Write("PATCH", "/persistentvolumes/SOURCE", has=b"ownerReferences", lacks=b"ret-vrr-")


@dataclass
class Kill:
    """Ends an operator at a write; `done` is set when it is dead."""

    proxy: ApiProxy
    operator: Operator
    write: Write
    source: str
    done: threading.Event = field(default_factory=threading.Event)

    def before(self) -> None:
        """From now on: when the write is about to be passed on."""
        self.proxy.before = self._strike

    def after(self) -> None:
        """From now on: when the write was carried out."""
        self.proxy.before = self._cut_off
        self.proxy.after = lambda asked, _code: self._strike(asked)

    def _cut_off(self, _asked: Asked) -> None:
        """Nothing that it has sent besides gets through after its end."""
        if self.done.is_set():
            raise CutError

    def _strike(self, asked: Asked) -> None:
        self._cut_off(asked)
        if self.write.is_it(asked, self.source):
            self.operator.process.kill()
            self.operator.process.wait()
            self.done.set()
            raise CutError

    async def until_done(self) -> None:
        if not await asyncio.to_thread(self.done.wait, KILL_SECONDS):
            calls = [f"{one.method} {one.path}" for one in self.proxy.asked if one.method != "GET"]
            pytest.fail(f"the operator never came to {self.write}:\n" + "\n".join(calls[-40:]))


async def killed(
    own: Own, tenant: Tenant, source: Captured | Detached, folder: Path, moment: str, write: Write
) -> VolumeRestoreRequest:
    """Ask for a restore whose operator ends at a write; then another one takes over, and finishes it."""
    name = source.reference["name"]
    async with operator_behind_proxy(own, folder, *KEPT) as (proxy, operator):
        kill = Kill(proxy, operator, write, name)
        (kill.before if moment == "before" else kill.after)()
        request = await tenant.ask(source)
        await kill.until_done()
    # It holds its Lease for some seconds more, dead as it is.
    await tenant.kubectl("delete", "lease", "lapse-operator", "-n", NAMESPACE)
    await asyncio.to_thread(own.operator, *KEPT)
    return await tenant.completed(request)


STEPS = {
    "before the keeper": ("before", KEEPER),
    "after the keeper": ("after", KEEPER),
    "after the pin": ("after", PIN),
    "after the VolumeSnapshot": ("after", SNAPSHOT),
    "after the content": ("after", CONTENT),
    "when the snapshot is ready, before the claim": ("before", CLAIM),
    "after the claim": ("after", CLAIM),
    "when the claim is bound, before it says so": ("before", COMPLETED),
    "after it said so": ("after", COMPLETED),
    "before the clearing up": ("before", SNAPSHOT_ENDED),
    "after the end of the VolumeSnapshot": ("after", SNAPSHOT_ENDED),
    "after the end of the content": ("after", CONTENT_ENDED),
    "before the unpinning": ("before", UNPIN),
    "after the unpinning": ("after", UNPIN),
}


@pytest.mark.parametrize(("moment", "write"), STEPS.values(), ids=STEPS)
async def test_a_restore_whose_operator_is_killed_ends_the_same(
    own: Own, store: KubernetesStore, tmp_path: Path, moment: str, write: Write
) -> None:
    await asyncio.to_thread(own.operator, *KEPT)
    tenant = await Tenant.move_in(own, store)
    source = await tenant.capture()
    volumes, snapshots = own.kube.storage.volumes(), own.kube.storage.snapshots()

    done = await killed(own, tenant, source, tmp_path, moment, write)

    assert await tenant.data() == source.data
    await tenant.until_clean(done, source)
    (claim,) = await tenant.claims_for(done)
    assert (claim.metadata.name, claim.metadata.annotations[RESTORED_FROM]) == ("restored", done.metadata.uid)
    assert own.kube.storage.snapshots() == snapshots
    assert own.kube.storage.volumes() - volumes == {volume_handle(await tenant.volume(claim))}
    await store.delete(VOLUME_RESTORE_REQUEST, done.metadata.key)
    await until_gone(store, OBJECT_KEEPER, keeper_of(done, "vrr"))
    await tenant.until_clean(done, source)
    assert await tenant.data() == source.data


ADOPTION = {
    "before the volume is reserved": ("before", ADOPT),
    "after the volume is reserved": ("after", ADOPT),
    "before the claim": ("before", CLAIM),
    "after the claim": ("after", CLAIM),
    "when the claim is bound, before it says so": ("before", COMPLETED),
    "after it said so": ("after", COMPLETED),
    "before the volume is let go": ("before", LET_GO),
    "after the volume is let go": ("after", LET_GO),
}


@pytest.mark.parametrize(("moment", "write"), ADOPTION.values(), ids=ADOPTION)
async def test_an_adoption_whose_operator_is_killed_ends_the_same(
    own: Own, store: KubernetesStore, tmp_path: Path, moment: str, write: Write
) -> None:
    await asyncio.to_thread(own.operator, *KEPT)
    tenant = await Tenant.move_in(own, store)
    detached = await tenant.detach()
    volumes = own.kube.storage.volumes()

    done = await killed(own, tenant, detached, tmp_path, moment, write)

    claim = await tenant.until_bound()
    assert claim.spec.volume_name == detached.volume.metadata.name
    assert await tenant.data() == detached.data
    assert own.kube.storage.volumes() == volumes

    async def nobodys() -> bool:
        return not (await store.get(PERSISTENT_VOLUME, detached.volume.metadata.key)).metadata.owner_references

    await until(nobodys)
    await tenant.end_capture(detached)
    await store.delete(VOLUME_RESTORE_REQUEST, done.metadata.key)
    await until_gone(store, OBJECT_KEEPER, keeper_of(done, "vrr"))
    left = await store.get(PERSISTENT_VOLUME, detached.volume.metadata.key)
    assert (left.metadata.owner_references, left.metadata.deletion_timestamp) == ((), None)
    assert await tenant.data() == detached.data
