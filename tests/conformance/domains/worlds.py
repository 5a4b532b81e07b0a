"""The worlds of the domains that there are: those of Lapse itself, as ``lapse up`` wires them, and the example."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lapse.app.domains import ManagedOwnDomain, OwnDomain, Section
from lapse.app.service import SharedObjects, record_domains, request_domains, steering_of
from lapse.core.address import Address
from lapse.core.clock import SystemClock, UnixNs
from lapse.core.duration import Duration
from lapse.core.timestamps import to_timestamp
from lapse.domains import REGISTRY
from lapse.engine.registry import DomainContext, DomainParts
from lapse.engine.safety.holds import Hold, PlacedExtension, PlacedHold
from lapse.engine.safety.sqlite import SQLiteHolds
from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, Execution, ExperimentRef, HistorySpec
from lapse.history.policy.default_policy import history_document
from lapse.history.records import write_record
from lapse.history.service import Retention
from lapse.kube.resources import ObjectKey
from lapse.objects.holds.cluster import ListedDependants
from lapse.requests.api.kinds import CAPTURE_SCHEDULE, MANIFEST_CAPTURE_REQUEST, OBJECT_KEEPER, RUN, SCHEDULED_AT
from lapse.requests.api.upstream import CONFIG_MAP
from lapse.requests.lifecycle.policy import RequestPolicy
from lapse.requests.service import Requests
from lapse.workspaces.activity.in_process import InProcessActivity
from lapse.workspaces.managed import ManagedWorkspaces
from lapse.workspaces.model import DesiredBy, DesiredState, Ms, NewWorkspace, ObservedStatus, Operation, OpId
from lapse.workspaces.store.sqlite import open_sqlite_store
from lapse.workspaces.ttl_manager import ttl_loop, ttl_sweeps
from tests.conformance.domains.kit import LIFETIME, BadItemError
from tests.conformance.domains.memory import Memory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager

    from lapse.core.decision import Reason
    from lapse.engine.domain import Action, Also, ManagedDomain, Result, Target
    from lapse.engine.registry import Registration
    from lapse.kube.resources import Json, Kind
    from lapse.objects.port import Deletion
    from lapse.requests.api.kinds import CaptureSchedule
    from lapse.workspaces.model import Workspace
    from tests.conformance.domains.kit import Kit, Opener

TTL = Duration.of_seconds(LIFETIME)
NAMESPACE, RECORDS = "default", "chaos-system"
NOT_SET = "1970-01-01T00:00:00Z"
HELD = {"metadata": {"annotations": {"lapse.dev/hold": "true"}}}
EXAMPLE = Path(__file__).parents[3] / "examples" / "domain" / "lapse_scratch.py"
_REAL = SystemClock()


class _Base:
    """What all worlds have."""

    shares_journal = True
    can_doubt = True
    has_first_pass = True

    def __init__(self, kit: Kit, domain: str) -> None:
        self.kit, self.domain = kit, domain
        self.reasons: Iterable[Reason] = tuple(REGISTRY.get(domain).reasons()) if domain != "scratch" else ()
        self.doubtful, self.bad = False, set[str]()
        self.before_act: Callable[[], Awaitable[None]] | None = None

    @property
    def registration(self) -> Registration:
        return REGISTRY.get(self.domain)

    def named(self, name: str) -> str:
        return name

    async def hold_late(self, name: str) -> None:
        async def hold() -> None:
            self.before_act = None
            await self.hold(name)

        self.before_act = hold

    async def hold(self, name: str) -> None:
        raise NotImplementedError

    async def happen(self, names: Iterable[str]) -> None:
        """Let happen what a case wants before an act on these things."""
        if self.before_act is not None:
            await self.before_act()
        if self.bad.intersection(names):
            raise BadItemError


# --- objects ----------------------------------------------------------------------------------------------------------


class _Store:
    """The object store, to which things happen."""

    def __init__(self, world: _Objects) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - stands for any method
        return getattr(self._world.kit.store, name)

    async def holds_over(self, deletions: Sequence[Deletion], now: UnixNs) -> Any:  # noqa: ANN401 - as the real one
        if self._world.doubtful:
            raise TimeoutError
        return await self._world.kit.store.holds_over(deletions, now)

    async def delete_all(self, deletions: Sequence[Deletion], *, also: Any) -> Any:  # noqa: ANN401 - as the real one
        await self._world.happen([self._world.name_of(one.key) for one in deletions])
        return await self._world.kit.store.delete_all(deletions, also=also)


class _Objects(_Base):
    """A domain whose things are objects of one kind."""

    kind: Kind[Any]

    def __init__(self, kit: Kit, domain: str) -> None:
        super().__init__(kit, domain)
        self.store: Any = _Store(self)

    def key(self, name: str) -> ObjectKey:
        return ObjectKey(NAMESPACE, name)

    @property
    def objects(self) -> SharedObjects:
        """What a managed domain over objects is built with."""
        steering = steering_of(self.store, ListedDependants(self.kit.store, (), clock=self.kit.clock), self.kit.clock)
        return {
            "store": self.store, "holds": self.store, "steering": steering, "clock": self.kit.clock, "trash": None,
        }  # fmt: skip

    def name_of(self, key: ObjectKey) -> str:
        return key.name

    async def left(self) -> set[str]:
        return {self.name_of(one.metadata.key) for one in (await self.kit.store.list(self.kind)).items}

    async def hold(self, name: str) -> None:
        await self.kit.store.patch(self.kind, self.key(name), HELD)

    async def extend(self, name: str, until: UnixNs) -> None:
        await self._write_extension(name, to_timestamp(until))

    async def spoil_extension(self, name: str) -> None:
        await self._write_extension(name, "0001-01-01T00:00:00Z")

    async def _write_extension(self, name: str, text: str) -> None:
        changes = {"metadata": {"annotations": {"lapse.dev/extended-until": text}}}
        await self.kit.store.patch(self.kind, self.key(name), changes)

    async def change(self, name: str) -> None:
        await self.kit.store.patch(self.kind, self.key(name), {"metadata": {"annotations": {"changed": "yes"}}})

    async def forget_time(self, name: str) -> None:
        """Write it past the store, which sets the time of a creation itself, and let everybody see the change."""
        place = (f"{self.kind.api_version}/{self.kind.kind}", self.key(name).namespace or "", self.key(name).name)

        def write(cursor: Any) -> None:  # noqa: ANN401 - of the driver
            cursor.execute(
                "UPDATE changes"
                " SET body = CAST(json_set(CAST(body AS TEXT), '$.metadata.creationTimestamp', ?) AS BLOB)"
                " WHERE version = (SELECT version FROM objects WHERE kind = ? AND namespace = ? AND name = ?)",
                (NOT_SET, *place),
            )

        await self.kit.store.database.write(write)
        await self.change(name)
        assert (await self.kit.store.get(self.kind, self.key(name))).metadata.creation_timestamp == NOT_SET

    async def remove(self, name: str) -> None:
        await self.kit.store.delete(self.kind, self.key(name))


class _Cached(_Objects):
    """Requests and keepers: the sweep looks at caches, which follow the store."""

    loop: str
    policy = RequestPolicy(request_ttl=TTL, request_deadline=Duration.parse("1000h"), keeper_ttl=TTL)

    def __init__(self, kit: Kit, domain: str) -> None:
        super().__init__(kit, domain)
        self.requests = Requests(self.store, policy=self.policy, **kit.shared)

    @property
    def beside(self) -> dict[str, ManagedDomain[Any]]:
        """The domains that are about the same kinds."""
        return request_domains(self.requests, self.objects)

    def managed(self) -> ManagedDomain[Any]:
        return self.beside[self.domain]

    async def caught_up(self) -> None:
        caches = self.requests.caches
        async with asyncio.timeout(20):
            while {one.metadata.resource_version for one in caches.of(self.kind).items()} != {
                one.metadata.resource_version for one in (await self.kit.store.list(self.kind)).items
            }:
                await _REAL.sleep(0)

    async def sweep(self) -> None:
        await self.caught_up()
        (loop,) = [one for one in self.requests.loops if one.name == self.loop]
        await loop.tick()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[_Cached]:
        filling = asyncio.create_task(self.requests.caches.run())
        try:
            await self.requests.caches.wait_until_synced()
            yield self
        finally:
            filling.cancel()
            await asyncio.wait([filling])


class RequestsWorld(_Cached):
    kind = MANIFEST_CAPTURE_REQUEST
    loop = "request-ttl"

    async def add(self, name: str) -> None:
        done = to_timestamp(self.kit.now)
        ready = {"type": "Ready", "status": "True", "reason": "Completed", "message": "", "lastTransitionTime": done}
        spec = {"targets": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}]}
        await self.kit.store.create(self.kind, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
        status = {"conditions": [ready], "completionTimestamp": done}
        await self.kit.store.patch_status(self.kind, self.key(name), status)

    async def forget_time(self, name: str) -> None:
        await self.kit.store.patch_status(self.kind, self.key(name), {"completionTimestamp": NOT_SET})


class KeepersWorld(_Cached):
    kind = OBJECT_KEEPER
    loop = "keepers"

    def key(self, name: str) -> ObjectKey:
        return ObjectKey(None, name)

    async def add(self, name: str) -> None:
        await self.kit.store.create(self.kind, {"metadata": {"name": name}, "spec": {"mode": "TTL", "ttl": str(TTL)}})


class SchedulesWorld(KeepersWorld):
    """Keepers of runs that came to nothing: of these, time alone decides."""

    loop = "schedules"
    has_first_pass = False
    policy = RequestPolicy(
        request_ttl=Duration.parse("never"), request_deadline=Duration.parse("never"), keeper_ttl=TTL
    )
    place = ObjectKey(NAMESPACE, "nightly")

    async def schedule(self) -> CaptureSchedule:
        if not (await self.kit.store.list(CAPTURE_SCHEDULE)).items:
            targets = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}]
            template = {"manifestCapture": {"targets": targets}}
            spec = {"schedule": "0 3 * * *", "template": template, "keep": {"last": 1}}
            body = {"metadata": {"name": self.place.name, "namespace": NAMESPACE}, "spec": spec}
            await self.kit.store.create(CAPTURE_SCHEDULE, body)
        return await self.kit.store.get(CAPTURE_SCHEDULE, self.place)

    async def add(self, name: str) -> None:
        meta, kind = (await self.schedule()).metadata, CAPTURE_SCHEDULE
        followed = {"apiVersion": kind.api_version, "kind": kind.kind, "namespace": NAMESPACE, "name": meta.name}
        spec = {"mode": "FollowObjectWithTTL", "ttl": str(TTL), "followObjectRef": {**followed, "uid": meta.uid}}
        annotations = {SCHEDULED_AT: to_timestamp(self.kit.now), RUN: f"mcr/{NAMESPACE}/{name}"}
        await self.kit.store.create(self.kind, {"metadata": {"name": name, "annotations": annotations}, "spec": spec})

    async def sweep(self) -> None:
        await self.caught_up()
        self.requests.superseded.look(await self.schedule())
        await super().sweep()


class _Passed(_Objects):
    """What retention policies end."""

    documents: Sequence[Json] = ()

    def __init__(self, kit: Kit, domain: str) -> None:
        super().__init__(kit, domain)
        self.retention = Retention(
            self.store,
            history=history_document(ttl=TTL),
            documents=self.documents,
            interval=TTL,
            holds=self.store,
            **kit.shared,
        )

    def managed(self) -> ManagedDomain[Any]:
        return record_domains(self.retention, self.objects)[self.domain]

    async def sweep(self) -> None:
        (loop,) = self.retention.loops
        await loop.tick()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[_Passed]:
        yield self


class HistoryWorld(_Passed):
    kind = CHAOS_EXPERIMENT_HISTORY

    def __init__(self, kit: Kit, domain: str) -> None:
        super().__init__(kit, domain)
        self._keys: dict[str, ObjectKey] = {}

    def named(self, name: str) -> str:
        return next((one for one, key in self._keys.items() if key.name == name), name)

    def key(self, name: str) -> ObjectKey:
        return self._keys[name]

    def name_of(self, key: ObjectKey) -> str:
        return next(name for name, known in self._keys.items() if known == key)

    async def add(self, name: str) -> None:
        ref = ExperimentRef(name=name, namespace="shop", uid="u")
        execution = Execution(start_time=to_timestamp(self.kit.now), status="success")
        spec = HistorySpec(experiment_ref=ref, execution=execution)
        made, _ = await write_record(self.kit.store, spec, namespace=RECORDS)
        self._keys[name] = made.metadata.key


class RetentionWorld(_Passed):
    kind = CONFIG_MAP
    documents = (
        {
            "metadata": {"name": "maps"},
            "spec": {"selector": {"apiVersion": "v1", "kind": "ConfigMap"}, "maxAge": str(TTL), "dryRun": False},
        },
    )

    async def add(self, name: str) -> None:
        await self.kit.store.create(self.kind, {"metadata": {"name": name, "namespace": NAMESPACE}})


# --- workspaces -------------------------------------------------------------------------------------------------------


class _Workspaces:
    """The store of workspaces, to which things happen."""

    def __init__(self, world: WorkspacesWorld) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - stands for any method
        return getattr(self._world.rows, name)

    async def to_pending(self, candidates: Sequence[Any], **how: Any) -> Any:  # noqa: ANN401 - as the real one
        await self._world.happen([self._world.names[one.id] for one in candidates])
        return await self._world.rows.to_pending(candidates, **how)


class WorkspacesWorld(_Base):
    """Workspaces at rest, which are archived by their rows alone: whether somebody is there plays no part."""

    shares_journal = False
    can_doubt = False

    def __init__(self, kit: Kit, domain: str) -> None:
        super().__init__(kit, domain)
        self.rows = open_sqlite_store(kit.folder / "workspaces.db")
        self.names: dict[str, str] = {}
        store: Any = _Workspaces(self)
        self._activity = InProcessActivity(kit.clock, lease_seconds=60)
        self._loop = ttl_loop(ttl_sweeps(store, self._activity, **kit.shared), interval=60)

    def managed(self) -> ManagedDomain[Any]:
        return ManagedWorkspaces(self.rows, self._activity, clock=self.kit.clock, lease_seconds=60)

    @property
    def now(self) -> Ms:
        return Ms(self.kit.now // 1_000_000)

    async def add(self, name: str) -> None:
        rows, op = self.rows, OpId(f"stopping-{name}")
        asked = NewWorkspace(
            name=name,
            owner="ada",
            command=("serve",),
            port=8080 + len(self.names),
            standby_ttl_seconds=60,
            archive_ttl_seconds=LIFETIME,
        )
        made = await rows.create(asked, now=self.now)
        self.names[made.id] = name
        await rows.observe({made.id: ObservedStatus.RUNNING}, now=self.now)
        await rows.set_desired(made.id, DesiredState.STANDBY, DesiredBy.TTL, now=self.now)
        assert await rows.claim(made.id, Operation.STOPPING, op, now=self.now)
        assert await rows.complete(made.id, op, now=self.now)
        await rows.observe({made.id: ObservedStatus.STANDBY}, now=self.now)

    async def _row(self, name: str) -> Workspace:
        return await self.rows.get(next(one for one, known in self.names.items() if known == name))  # type: ignore[arg-type]  # an id is a text

    async def left(self) -> set[str]:
        rows = [await self._row(name) for name in self.names.values()]
        return {row.name for row in rows if row.desired_state is DesiredState.STANDBY and row.deleted_at is None}

    async def hold(self, name: str) -> None:
        await self.rows.hold((await self._row(name)).id, "mine", now=self.now)

    async def extend(self, name: str, until: UnixNs) -> None:
        await self.rows.extend((await self._row(name)).id, Ms(until // 1_000_000), now=self.now)

    async def spoil_extension(self, name: str) -> None:
        def write(cursor: Any) -> None:  # noqa: ANN401 - of the driver
            cursor.execute("UPDATE workspaces SET extended_until = 0 WHERE name = ?", (name,))

        database: Any = self.rows.database
        await database.write(write)

    async def change(self, name: str) -> None:
        await self.hold(name)
        await self.rows.release((await self._row(name)).id, now=self.now)

    async def forget_time(self, name: str) -> None:
        def write(cursor: Any) -> None:  # noqa: ANN401 - of the driver
            cursor.execute("UPDATE workspaces SET last_access_at = 0, status_changed_at = 0 WHERE name = ?", (name,))

        database: Any = self.rows.database
        await database.write(write)

    async def remove(self, name: str) -> None:
        await self.rows.mark_deleted((await self._row(name)).id, now=self.now)

    async def sweep(self) -> None:
        await self._loop.tick()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[WorkspacesWorld]:
        try:
            yield self
        finally:
            await self.rows.close()


# --- the example ------------------------------------------------------------------------------------------------------


def example() -> Any:  # noqa: ANN401 - a module
    """Import the example from its file: here it is not installed."""
    spec = util.spec_from_file_location("lapse_scratch", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Files:
    """The target of the example, to which things happen."""

    def __init__(self, target: Target, world: ScratchWorld) -> None:
        self._target, self._world = target, world
        self.batch, self.database = target.batch, target.database

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - stands for any method
        return getattr(self._target, name)

    async def apply(self, actions: Sequence[Action], *, also: Also | None) -> Sequence[Result]:
        await self._world.happen([one.address.name for one in actions])
        return await self._target.apply(actions, also=also)


class _Holds(SQLiteHolds):
    """The engine's holds, which may not be readable."""

    def __init__(self, world: ScratchWorld) -> None:
        super().__init__(world.kit.store.database)
        self._world = world

    async def held(self, domain: str, uids: Sequence[str]) -> dict[str, Hold]:
        if self._world.doubtful:
            raise TimeoutError
        found = await super().held(domain, uids)
        if self._world.held_late is not None:
            late, self._world.held_late = self._world.held_late, None
            await self._world.hold(late)
        return found


class ScratchWorld(_Base):
    """The example, with holds that the engine keeps."""

    shares_journal = False

    def __init__(self, kit: Kit, domain: str) -> None:
        super().__init__(kit, domain)
        self._module = example()
        self._folder = kit.folder / "files"
        self._folder.mkdir()
        self.reasons = self.registration.reasons()
        self._own = self._built()
        self._holds = _Holds(self)
        self.held_late: str | None = None
        self._loop = self._own.loop(holds=self._holds, **kit.shared)

    @property
    def registration(self) -> Registration:
        found: Registration = self._module.SCRATCH
        return found

    def _built(self) -> OwnDomain:
        settings = self._module.ScratchSettings(folder=self._folder, max_age=TTL)
        assert self.registration.build is not None
        parts = self.registration.build(DomainContext(self.kit.clock, self.kit.folder, settings))
        target: Any = _Files(parts.target, self)
        return OwnDomain(self.registration, Section(), DomainParts(parts.domain, target))

    def managed(self) -> ManagedDomain[Any]:
        return ManagedOwnDomain(self._built(), self._holds, clock=self.kit.clock)

    async def add(self, name: str) -> None:
        await self._write(name, name)

    async def _write(self, name: str, text: str) -> None:
        path, made = self._folder / name, self.kit.now
        made = UnixNs(path.stat().st_mtime_ns) if path.exists() else made
        path.write_text(text)
        os.utime(path, ns=(made, made))

    async def left(self) -> set[str]:
        return {path.name for path in self._folder.iterdir()}

    async def hold(self, name: str) -> None:
        found = await self._own.find(Address("scratch", None, name))
        assert found is not None
        hold = Hold("mine", None)
        await self._holds.hold(PlacedHold("scratch", found.uid, str(found.address), hold, UnixNs(self.kit.now)))

    async def hold_late(self, name: str) -> None:
        self.held_late = name

    async def extend(self, name: str, until: UnixNs) -> None:
        found = await self._own.find(Address("scratch", None, name))
        assert found is not None
        await self._holds.extend(PlacedExtension("scratch", found.uid, str(found.address), until, self.kit.now, "ann"))

    async def spoil_extension(self, name: str) -> None:
        await self.extend(name, UnixNs(0))

    async def change(self, name: str) -> None:
        await self._write(name, "another text of the same age")

    async def forget_time(self, name: str) -> None:
        os.utime(self._folder / name, ns=(0, 0))

    async def remove(self, name: str) -> None:
        (self._folder / name).unlink()

    async def sweep(self) -> None:
        await self._loop.tick()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ScratchWorld]:
        yield self


class _Open:
    """Opens the world of a domain."""

    def __init__(self, domain: str, world: Any) -> None:  # noqa: ANN401 - any of the classes above
        self.domain, self._world = domain, world

    def __call__(self, kit: Kit) -> AbstractAsyncContextManager[Any]:
        running: AbstractAsyncContextManager[Any] = self._world(kit, self.domain).running()
        return running


WORLDS: dict[str, Opener] = {
    "requests": _Open("requests", RequestsWorld),
    "keepers": _Open("keepers", KeepersWorld),
    "schedules": _Open("schedules", SchedulesWorld),
    "history": _Open("history", HistoryWorld),
    "retention": _Open("retention", RetentionWorld),
    "workspaces": _Open("workspaces", WorkspacesWorld),
    "scratch": _Open("scratch", ScratchWorld),
    "memory": Memory(),
}
