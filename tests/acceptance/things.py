"""Things of every domain, made as in life or as if that were a while ago, and looked at past the commands.

Each class is one column of the table, and its things are over in so many seconds, or since so many. Times that a store
sets itself cannot be turned back on a cluster: there, what is over is so by a time that its writer tells, by its
number, or by a TTL of a second.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from lapse import open_keys
from lapse.app.record import open_store
from lapse.core.clock import SystemClock, VirtualClock
from lapse.core.timestamps import to_timestamp
from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, Execution, ExperimentRef, HistorySpec
from lapse.history.records import record
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import ObjectKey
from lapse.objects.trash.rules import is_in_trash
from lapse.requests.api.kinds import MANIFEST_CAPTURE_REQUEST, OBJECT_KEEPER, VOLUME_CAPTURE_REQUEST
from lapse.requests.api.upstream import CONFIG_MAP, VOLUME_SNAPSHOT_CONTENT
from lapse.workspaces.errors import UnknownWorkspaceError
from lapse.workspaces.model import DesiredBy, DesiredState, Ms, NewWorkspace, ObservedStatus, Operation, OpId
from lapse.workspaces.store.sqlite import open_sqlite_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from lapse.kube.resources import Kind, ObjectMeta
    from lapse.objects.port import ObjectStore

    Stores = Callable[[int | None], AbstractAsyncContextManager[ObjectStore]]

NAMESPACE, RECORDS = "default", "chaos-system"
MADE_AT = "example.org/made-at"
POLICY: dict[str, Any] = {
    "metadata": {"name": "maps"},
    "spec": {
        "selector": {"apiVersion": "v1", "kind": "ConfigMap", "labels": {"app": "maps"}},
        "maxAge": "1h",
        "ageFrom": f"metadata.annotations['{MADE_AT}']",
        "dryRun": False,
    },
}
"""Selects what the domain `retention` has here."""
HOUR = 3600
_SECOND = 1_000_000_000


@asynccontextmanager
async def folder_store(folder: Path, now: int | None) -> AsyncIterator[ObjectStore]:
    """Open the objects of a state folder, as any process may beside the one that serves it; ``now`` dates creations."""
    store = open_store(folder, clock=SystemClock() if now is None else VirtualClock(wall_ns=now))
    try:
        yield store
    finally:
        await store.close()


def anchor(left: int) -> int:
    """Return a time after which an hour is over in ``left`` seconds, or since so many."""
    return SystemClock().wall_ns() + (left - HOUR) * _SECOND


class Things(ABC):
    """Things of one domain in one place."""

    domain: ClassVar[str]

    @abstractmethod
    def make(self, name: str, left: int) -> str:
        """Make one that is over in ``left`` seconds, and return its address."""

    @abstractmethod
    def is_there(self, address: str) -> bool:
        """Whether it is there for everybody: neither ended nor in the trash."""

    def is_known(self, address: str) -> bool:
        """Whether the store has it at all, be it in the trash."""
        return self.is_there(address)

    def lapses_as(self, address: str) -> str:
        """Return the address under which a plan has it."""
        return address

    def is_back(self, address: str, told: str) -> bool:
        """Whether it was brought back, as what was ``told``."""
        return told == address and self.is_there(address)


# --- objects ----------------------------------------------------------------------------------------------------------


class Objects(Things):
    """Objects of one kind, in a state folder or on a cluster."""

    kind: Kind[Any]

    def __init__(self, stores: Stores, *, is_cluster: bool = False) -> None:
        self._stores, self.is_cluster = stores, is_cluster

    def make(self, name: str, left: int) -> str:
        key = self._at(lambda store: self.create(store, name, left), anchor(min(left, HOUR)))
        return str(self.kind.address(key))

    def is_there(self, address: str) -> bool:
        found = self._found(address)
        in_trash = found is not None and is_in_trash(self.kind.kind, found)
        return found is not None and not in_trash and found.deletion_timestamp is None

    def is_known(self, address: str) -> bool:
        return self._found(address) is not None

    def _found(self, address: str) -> ObjectMeta | None:
        *namespaced, name = address.split("/")[1:]
        key = ObjectKey(namespaced[0] if namespaced else None, name)

        async def look(store: ObjectStore) -> ObjectMeta | None:
            try:
                found: ObjectMeta = (await store.get(self.kind, key)).metadata
            except NotFoundError:
                return None
            return found

        looked: ObjectMeta | None = self._at(look)
        return looked

    def _at(self, work: Callable[[ObjectStore], Awaitable[Any]], now: int | None = None) -> Any:  # noqa: ANN401 - whatever the work returns
        async def run() -> Any:  # noqa: ANN401 - as above
            async with self._stores(now) as store:
                return await work(store)

        return asyncio.run(run())

    @abstractmethod
    async def create(self, store: ObjectStore, name: str, left: int) -> ObjectKey:
        """Create one in a store."""


class Requests(Objects):
    domain, kind = "requests", MANIFEST_CAPTURE_REQUEST

    async def create(self, store: ObjectStore, name: str, left: int) -> ObjectKey:
        done = to_timestamp(anchor(left))
        ready = {"type": "Ready", "status": "True", "reason": "Completed", "message": "", "lastTransitionTime": done}
        spec = {"targets": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}]}
        made = await store.create(self.kind, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
        status = {"conditions": [ready], "completionTimestamp": done}
        await store.patch_status(self.kind, made.metadata.key, status)
        return made.metadata.key


class Keepers(Objects):
    """Keepers whose request is gone, each of a snapshot of the same name."""

    domain = "keepers"
    kind: Kind[Any] = OBJECT_KEEPER

    async def create(self, store: ObjectStore, name: str, left: int) -> ObjectKey:
        kind, ttl = VOLUME_CAPTURE_REQUEST, HOUR
        if self.is_cluster:  # nothing can be lost before it was created, and that is now
            ttl, left = max(1, left), HOUR
        followed = {"apiVersion": kind.api_version, "kind": kind.kind, "namespace": NAMESPACE, "name": name}
        spec = {"mode": "FollowObjectWithTTL", "ttl": f"{ttl}s", "followObjectRef": {**followed, "uid": f"gone-{name}"}}
        keeper = await store.create(OBJECT_KEEPER, {"metadata": {"name": name}, "spec": spec})
        await store.patch_status(
            OBJECT_KEEPER, keeper.metadata.key, {"phase": "Expiring", "lostAt": to_timestamp(anchor(left))}
        )
        await store.create(VOLUME_SNAPSHOT_CONTENT, _snapshot(name, keeper.metadata.uid))
        return keeper.metadata.key

    def is_back(self, address: str, told: str) -> bool:
        """Whether what it kept has a new keeper."""
        return told.startswith("keeper/back-") and self.is_there(told)


def _snapshot(name: str, keeper: str) -> dict[str, Any]:
    owner = {"apiVersion": OBJECT_KEEPER.api_version, "kind": OBJECT_KEEPER.kind, "name": name, "uid": keeper}
    source = {"driver": "no.driver", "deletionPolicy": "Retain", "source": {"snapshotHandle": name}}
    return {
        "metadata": {"name": name, "ownerReferences": [{**owner, "controller": True}]},
        "spec": {**source, "volumeSnapshotRef": {"name": name, "namespace": NAMESPACE}},
    }


class Artifacts(Keepers):
    """Snapshots, which lapse with their keepers."""

    kind = VOLUME_SNAPSHOT_CONTENT

    def is_back(self, address: str, told: str) -> bool:
        return told.startswith("keeper/back-") and self.is_there(address)

    def lapses_as(self, address: str) -> str:
        return address.replace("snapshot/", "keeper/")


class Records(Objects):
    """History records; one is over because there are two newer ones, and the limit is two."""

    domain, kind = "history", CHAOS_EXPERIMENT_HISTORY

    async def create(self, store: ObjectStore, name: str, left: int) -> ObjectKey:
        first, *_ = [await self._record(store, name, number) for number in range(3 if left < HOUR else 1)]
        return first

    async def _record(self, store: ObjectStore, name: str, number: int) -> ObjectKey:
        ref = ExperimentRef(name=name, namespace="shop", uid=f"u-{name}")
        execution = Execution(start_time=f"2030-01-01T00:00:{number:02}Z", status="success", message=name)
        body = record(HistorySpec(experiment_ref=ref, execution=execution), namespace=RECORDS)
        return (await store.create(self.kind, body)).metadata.key


class Selected(Objects):
    """What a RetentionPolicy selects."""

    domain, kind = "retention", CONFIG_MAP

    async def create(self, store: ObjectStore, name: str, left: int) -> ObjectKey:
        annotations = {MADE_AT: to_timestamp(anchor(left))}
        metadata = {"name": name, "namespace": NAMESPACE, "labels": {"app": "maps"}, "annotations": annotations}
        return (await store.create(self.kind, {"metadata": metadata, "data": {"value": name}})).metadata.key


# --- others -----------------------------------------------------------------------------------------------------------


class Workspaces(Things):
    """Workspaces in standby, which are archived after an hour."""

    domain = "workspaces"

    def __init__(self, folder: Path) -> None:
        self._folder, self._ports = folder, iter(range(20_000, 30_000))

    def make(self, name: str, left: int) -> str:
        asyncio.run(self._make(name, Ms(anchor(left) // 1_000_000)))
        return f"workspace/{name}"

    async def _make(self, name: str, now: Ms) -> None:
        rows, op = open_sqlite_store(self._folder / "workspaces.db"), OpId(f"stopping-{name}")
        asked = NewWorkspace(
            name=name,
            owner="ann",
            command=("true",),
            port=next(self._ports),
            standby_ttl_seconds=60,
            archive_ttl_seconds=3600,
        )
        try:
            made = await rows.create(asked, now=now)
            await rows.observe({made.id: ObservedStatus.RUNNING}, now=now)
            await rows.set_desired(made.id, DesiredState.STANDBY, DesiredBy.TTL, now=now)
            assert await rows.claim(made.id, Operation.STOPPING, op, now=now)
            assert await rows.complete(made.id, op, now=now)
            await rows.observe({made.id: ObservedStatus.STANDBY}, now=now)
            volume = self._folder / "workspaces" / "volumes" / made.id
            volume.mkdir(parents=True, mode=0o700)
            (volume / "notes").write_text(name)
        finally:
            await rows.close()

    def is_there(self, address: str) -> bool:
        async def look() -> bool:
            rows = open_sqlite_store(self._folder / "workspaces.db")
            try:
                found = await rows.by_name(address.partition("/")[2])
            except UnknownWorkspaceError:
                return False
            finally:
                await rows.close()
            return found.desired_state is not DesiredState.PENDING and found.deleted_at is None

        return asyncio.run(look())


class Files(Things):
    """Files of the example domain, which go an hour after they were written."""

    domain = "scratch"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make(self, name: str, left: int) -> str:
        path, written = self._folder / name, anchor(left)
        path.write_text(name)
        os.utime(path, ns=(written, written))
        return f"scratch/{name}"

    def is_there(self, address: str) -> bool:
        return (self._folder / address.partition("/")[2]).exists()


class Keys(Things):
    """Keys of the application 7, in a store."""

    domain = "keys"

    def __init__(self, url: str) -> None:
        self._url = url

    def make(self, name: str, left: int) -> str:
        with open_keys(self._url) as keys:
            assert keys.app(7).insert_if_not_exists(f"secret-{name}", "value", ttl_seconds=left)
        return f"key/7/secret-{name}"

    def is_there(self, address: str) -> bool:
        with open_keys(self._url) as keys:
            return keys.app(7).ttl_get(address.rpartition("/")[2]) is not None
