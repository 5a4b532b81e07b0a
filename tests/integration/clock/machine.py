"""A machine whose clocks can be set, and a process on it with all domains, wired as ``lapse up`` wires them.

Everything is real but the time and the loops: `Process.work` does once what controllers, sweeps, passes and the TTL
manager do. `Process.stands` says, for each domain, whether what it may end is still there.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lapse.app.domains import OwnDomain, Section
from lapse.app.record import ProcessRecord, open_store
from lapse.core.believed_clock import BelievedClock
from lapse.core.clock import SystemClock, VirtualClock
from lapse.core.duration import Duration
from lapse.core.timestamps import to_timestamp
from lapse.engine.journal.port import Outcome
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.registry import DomainContext
from lapse.engine.running.metrics import Metrics
from lapse.engine.safety.clock_guard import machine_mark
from lapse.engine.safety.freeze import ALL, resume_row
from lapse.engine.safety.sqlite import SQLiteHolds
from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, Execution, ExperimentRef, HistorySpec
from lapse.history.policy.default_policy import history_document
from lapse.history.records import write_record
from lapse.history.service import Retention
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import Kind, ObjectKey
from lapse.requests.api.kinds import (
    CAPTURE_SCHEDULE,
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    OBJECT_KEEPER,
    SCHEDULED_AT,
)
from lapse.requests.api.upstream import CONFIG_MAP
from lapse.requests.lifecycle.policy import RequestPolicy
from lapse.requests.service import Requests
from lapse.workspaces.activity.in_process import InProcessActivity
from lapse.workspaces.model import DesiredBy, DesiredState, Ms, NewWorkspace, ObservedStatus, Operation, OpId
from lapse.workspaces.store.sqlite import open_sqlite_store
from lapse.workspaces.ttl_manager import ttl_loop, ttl_sweeps
from tests.conformance.domains.worlds import example

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from lapse.engine.safety.clock_guard import GuardedGate, Source
    from lapse.objects.embedded import EmbeddedStore
    from lapse.workspaces.store.port import WorkspaceStore

DOMAINS = ("requests", "keepers", "schedules", "history", "retention", "workspaces", "scratch")
SHORT = Duration.parse("1h")
"""How long everything lives, but for what is about deadlines."""
NAMESPACE, RECORDS = "default", "chaos-system"
_WATCHED: tuple[Kind[Any], ...] = (OBJECT_KEEPER, MANIFEST_CAPTURE_REQUEST, MANIFEST_CHECKPOINT)
_REAL = SystemClock()
KEPT, FOLLOWER, OLDER = ObjectKey(None, "kept"), ObjectKey(None, "follows"), ObjectKey(None, "older")
_MAP = ObjectKey(NAMESPACE, "settings")


@dataclass
class Machine:
    """See the module."""

    folder: Path
    clock: VirtualClock

    @asynccontextmanager
    async def process(self, sources: Sequence[Source] = ()) -> AsyncIterator[Process]:
        """Start a process on the state folder, and end it."""
        clock, metrics = BelievedClock(self.clock, dry_seconds=SHORT.seconds), Metrics("test")
        store = open_store(self.folder, clock=clock)
        workspaces = open_sqlite_store(self.folder / "workspaces.db")
        record = ProcessRecord.in_folder(store)
        gate = record.gate(await record.guard(clock, sources=sources), metrics=metrics, domains=DOMAINS)
        files = self.folder / "files"
        files.mkdir(exist_ok=True)
        process = Process(store, workspaces, clock, metrics, gate, files)
        filling = asyncio.create_task(process.requests.caches.run())
        try:
            await process.requests.caches.wait_until_synced()
            yield process
        finally:
            filling.cancel()
            await asyncio.wait([filling])
            await workspaces.close()
            await store.close()


class Process:
    """See the module."""

    def __init__(
        self,
        store: EmbeddedStore,
        workspaces: WorkspaceStore,
        clock: BelievedClock,
        metrics: Metrics,
        gate: GuardedGate,
        files: Path,
    ) -> None:
        self._files = files
        self.store, self.workspaces, self.clock, self.metrics, self.gate = store, workspaces, clock, metrics, gate
        self.journal = SQLiteJournal(store.database)
        shared: dict[str, Any] = {"journal": self.journal, "metrics": metrics, "clock": clock, "gate": gate}
        policy = RequestPolicy(request_ttl=SHORT, request_deadline=SHORT, keeper_ttl=SHORT)
        self.requests = Requests(store, policy=policy, **shared)
        maps = {"selector": {"apiVersion": "v1", "kind": "ConfigMap"}, "maxAge": "1h", "dryRun": False}
        self.retention = Retention(
            store,
            history=history_document(ttl=SHORT),
            documents=[{"metadata": {"name": "maps"}, "spec": maps}],
            interval=SHORT,
            holds=store,
            **shared,
        )
        activity = InProcessActivity(clock, lease_seconds=60)
        sweeps = ttl_sweeps(workspaces, activity, self.journal, clock=clock, metrics=metrics, gate=gate)
        self.ttl_loop = ttl_loop(sweeps, interval=60)
        module = example()
        settings = module.ScratchSettings(folder=files, max_age=SHORT)
        parts = module.SCRATCH.build(DomainContext(clock, files, settings))
        own = OwnDomain(module.SCRATCH, Section(), parts)
        self.own_loop = own.loop(holds=SQLiteHolds(store.database), **shared)

    @property
    def now(self) -> Ms:
        return Ms(self.clock.wall_ns() // 1_000_000)

    # --- what there is ------------------------------------------------------------------------------------------------

    async def fill(self) -> None:
        """Make one thing for each domain, which lives for an hour from now, all at once."""
        done = to_timestamp(self.clock.wall_ns())
        ready = {"type": "Ready", "status": "True", "reason": "Completed", "message": "", "lastTransitionTime": done}
        target = {"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}
        await self._create(MANIFEST_CAPTURE_REQUEST, "finished", {"targets": [target]})
        status = {"conditions": [ready], "completionTimestamp": done}
        await self.store.patch_status(MANIFEST_CAPTURE_REQUEST, ObjectKey(NAMESPACE, "finished"), status)
        await self.store.create(OBJECT_KEEPER, {"metadata": {"name": KEPT.name}, "spec": {"mode": "TTL", "ttl": "1h"}})
        ref = ExperimentRef(name="kill", namespace="shop", uid="u")
        spec = HistorySpec(experiment_ref=ref, execution=Execution(start_time=done, status="success"))
        await write_record(self.store, spec, namespace=RECORDS)
        await self.store.create(CONFIG_MAP, {"metadata": {"name": "settings", "namespace": NAMESPACE}})
        await self._runs(ready)
        await self._workspace()
        (self._files / "a").touch()
        os.utime(self._files / "a", ns=(self.clock.wall_ns(), self.clock.wall_ns()))

    async def _runs(self, ready: dict[str, str]) -> None:
        """Two runs of a schedule that keeps one: that of an hour from now supersedes that of now."""
        target, kind = {"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}, CAPTURE_SCHEDULE
        spec = {"schedule": "0 0 1 1 *", "template": {"manifestCapture": {"targets": [target]}}, "keep": {"last": 1}}
        await self._create(kind, "nightly", spec)
        meta = (await self.store.get(kind, ObjectKey(NAMESPACE, "nightly"))).metadata
        followed = {"apiVersion": kind.api_version, "kind": kind.kind, "namespace": NAMESPACE, "name": meta.name}
        keeping = {"mode": "FollowObjectWithTTL", "ttl": "1h", "followObjectRef": {**followed, "uid": meta.uid}}
        for run, seconds in ((OLDER.name, 0), ("newer", 3600)):
            annotations = {SCHEDULED_AT: to_timestamp(self.clock.wall_ns() + seconds * 10**9)}
            body = {"metadata": {"name": run, "annotations": annotations}, "spec": keeping}
            keeper = (await self.store.create(OBJECT_KEEPER, body)).metadata
            owner = {"apiVersion": OBJECT_KEEPER.api_version, "kind": OBJECT_KEEPER.kind, "name": run}
            owners = [{**owner, "uid": keeper.uid, "controller": True}]
            await self.store.create(MANIFEST_CHECKPOINT, {"metadata": {"name": run, "ownerReferences": owners}})
            await self.store.patch_status(MANIFEST_CHECKPOINT, ObjectKey(None, run), {"conditions": [ready]})

    async def lose(self) -> None:
        """Make a keeper whose followed object is lost."""
        gone = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "namespace": NAMESPACE, "uid": "u-1"}
        spec = {"mode": "FollowObjectWithTTL", "ttl": "10h", "followObjectRef": gone}
        await self.store.create(OBJECT_KEEPER, {"metadata": {"name": FOLLOWER.name}, "spec": spec})

    async def _create(self, kind: Any, name: str, spec: Any) -> None:  # noqa: ANN401 - any kind, any document
        await self.store.create(kind, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})

    async def _workspace(self) -> None:
        """One at rest, which is archived by its row alone."""
        asked = NewWorkspace(
            name="notes", owner="ada", command=("serve",), port=8080, standby_ttl_seconds=60, archive_ttl_seconds=3600
        )
        made, op = await self.workspaces.create(asked, now=self.now), OpId("stopping")
        await self.workspaces.observe({made.id: ObservedStatus.RUNNING}, now=self.now)
        await self.workspaces.set_desired(made.id, DesiredState.STANDBY, DesiredBy.TTL, now=self.now)
        assert await self.workspaces.claim(made.id, Operation.STOPPING, op, now=self.now)
        assert await self.workspaces.complete(made.id, op, now=self.now)
        await self.workspaces.observe({made.id: ObservedStatus.STANDBY}, now=self.now)

    # --- what is done -------------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """Do once what every loop and every controller would."""
        await self._caught_up()
        controllers: tuple[tuple[Kind[Any], Any], ...] = (
            (OBJECT_KEEPER, self.requests.keeper),
            (MANIFEST_CAPTURE_REQUEST, self.requests.manifests),
        )
        for kind, controller in controllers:
            for one in (await self.store.list(kind)).items:
                await controller.reconcile(one.metadata.key)
        await self._caught_up()
        for schedule in (await self.store.list(CAPTURE_SCHEDULE)).items:
            self.requests.superseded.look(schedule)
        loops: list[Any] = [*self.requests.loops, *self.retention.loops, self.ttl_loop, self.own_loop]
        for loop in loops:
            await loop.tick()
        await self._caught_up()

    async def _caught_up(self) -> None:
        caches = self.requests.caches
        async with asyncio.timeout(20):
            for kind in _WATCHED:
                while {one.metadata.resource_version for one in caches.of(kind).items()} != {
                    one.metadata.resource_version for one in (await self.store.list(kind)).items
                }:
                    await _REAL.sleep(0)

    async def resume(self) -> None:
        """Do what a person does with ``lapse resume all``."""
        row = resume_row(ALL, by="ann", now=self.clock.wall_ns())
        assert await ProcessRecord.in_folder(self.store).safety.resume(ALL, row, mark=machine_mark(self.clock))

    # --- what came of it ----------------------------------------------------------------------------------------------

    async def stands(self) -> dict[str, bool]:
        """Return, by domain, whether its thing is still there."""
        return {
            "requests": await self._has(MANIFEST_CAPTURE_REQUEST, ObjectKey(NAMESPACE, "finished")),
            "keepers": await self._has(OBJECT_KEEPER, KEPT),
            "schedules": await self._has(OBJECT_KEEPER, OLDER),
            "history": bool((await self.store.list(CHAOS_EXPERIMENT_HISTORY)).items),
            "retention": await self._has(CONFIG_MAP, _MAP),
            "workspaces": (await self.workspaces.by_name("notes")).desired_state is DesiredState.STANDBY,
            "scratch": (self._files / "a").exists(),
        }

    async def _has(self, kind: Any, key: ObjectKey) -> bool:  # noqa: ANN401 - any kind
        try:
            await self.store.get(kind, key)
        except NotFoundError:
            return False
        return True

    async def lost_at(self) -> str | None:
        """Return since when the keeper's object is lost, as it stands there."""
        keeper = await self.store.get(OBJECT_KEEPER, FOLLOWER)
        return keeper.status.lost_at if keeper.status else None

    def frozen(self) -> list[str]:
        """Return the domains that the metrics call frozen."""
        lines = self.metrics.exposition().decode().splitlines()
        return [domain for domain in DOMAINS if f'lapse_frozen{{domain="{domain}"}} 1.0' in lines]

    async def told(self) -> list[tuple[str, str, str]]:
        """Return what the journal says about whole domains."""
        rows = await self.journal.entries(limit=1_000)
        gate = {Outcome.FROZEN, Outcome.RESUMED}
        return sorted((row.domain, row.outcome, row.reason) for row in rows if row.outcome in gate)

    async def would_end(self) -> set[str]:
        """Return the domains of which the journal says what would be ended."""
        return {row.domain for row in await self.journal.entries(limit=1_000) if row.outcome is Outcome.WOULD_END}
