"""A store with everything that ends things on it, and every place where a hold can stand."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lapse.cli.commands.requests import delete_in_folder
from lapse.cli.context import Context
from lapse.core.clock import VirtualClock
from lapse.core.duration import Duration
from lapse.core.timestamps import to_timestamp
from lapse.db.sqlite.file import Synchronous
from lapse.domains import object_kinds
from lapse.engine.safety.holds import HeldError, Hold
from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, Execution, ExperimentRef, HistorySpec
from lapse.history.policy.default_policy import history_document
from lapse.history.records import write_record
from lapse.history.service import Retention
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import Json, Kind, Object, ObjectKey
from lapse.objects.embedded import EmbeddedStore, open_embedded
from lapse.objects.holds.steering import ObjectPlace
from lapse.requests.addresses import Located
from lapse.requests.api.kinds import (
    CAPTURE_SCHEDULE,
    OBJECT_KEEPER,
    RUN,
    SCHEDULED_AT,
    VOLUME_CAPTURE_REQUEST,
    KeeperMode,
)
from lapse.requests.api.upstream import CONFIG_MAP, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.lifecycle.policy import RequestPolicy, TTLMode
from lapse.settings import load_settings
from tests.integration.requests.world import Wire, World, keeper_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

HOUR = 3600
DAY = 24 * HOUR
HISTORY = "chaos-system"
HELD: dict[str, str | None] = {"lapse.dev/hold": "true"}
RELEASED = {"lapse.dev/hold": None, "lapse.dev/hold-until": None, "lapse.dev/held-dependents": None}


class Elsewhere:
    """The same store, but as one that cannot tell what is held, and has no transaction to share: a cluster is so."""

    database = None

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - stands for any method
        if name in {"holds_over", "delete_all"}:
            raise AttributeError(name)
        return getattr(self._store, name)


@dataclass
class Target:
    """What is to be ended, and what ends it."""

    kind: Kind[Any]
    obj: Any
    act: Callable[[], Awaitable[object]]


@dataclass
class Harness:
    """See the module."""

    world: World
    marked: list[tuple[Kind[Any], ObjectKey]] = field(default_factory=list)
    """What carries a hold, or a note of one."""
    steered: list[ObjectPlace] = field(default_factory=list)
    """What was held by a person's command."""

    @property
    def store(self) -> EmbeddedStore:
        return self.world.store

    async def exists(self, target: Target) -> bool:
        try:
            found = await self.store.get(target.kind, target.obj.metadata.key)
        except NotFoundError:
            return False
        return bool(found.metadata.uid == target.obj.metadata.uid)

    async def mark(self, kind: Kind[Any], obj: Object, annotations: Json | None = None) -> None:
        await self.store.patch(kind, obj.metadata.key, {"metadata": {"annotations": annotations or HELD}})
        self.marked.append((kind, obj.metadata.key))

    async def release(self) -> None:
        for kind, key in self.marked:
            await self.store.patch(kind, key, {"metadata": {"annotations": RELEASED}})
        for place in self.steered:
            await self.world.requests.steering.release(place, by="bob")

    async def own(self, kind: Kind[Any], obj: Any, *, owner: tuple[Kind[Any], Object]) -> None:  # noqa: ANN401
        """Give an object one owner more."""
        before = (await self.store.get(kind, obj.metadata.key)).metadata.owner_references
        found = [{"apiVersion": one.api_version, "kind": one.kind, "name": one.name, "uid": one.uid} for one in before]
        owners = [*found, reference(*owner)]
        await self.store.patch(kind, obj.metadata.key, {"metadata": {"ownerReferences": owners}})

    async def volume(self, name: str) -> Any:  # noqa: ANN401 - a volume
        return await self.store.create(PERSISTENT_VOLUME, {"metadata": {"name": name}})

    async def map_of(self, name: str, owner: tuple[Kind[Any], Object], namespace: str | None) -> Any:  # noqa: ANN401 - a document
        metadata = {"name": name, "namespace": namespace or "shop", "ownerReferences": [reference(*owner)]}
        return await self.store.create(CONFIG_MAP, {"metadata": metadata})

    async def act(self, target: Target) -> None:
        await self.world.caught_up()
        await target.act()
        await self.world.caught_up()

    # --- who acts -----------------------------------------------------------------------------------------------------

    async def by_request_ttl(self) -> Target:
        request = await self.world.completed(VOLUME_CAPTURE_REQUEST)
        self.world.advance(HOUR)
        return Target(VOLUME_CAPTURE_REQUEST, request, self.world.sweep)

    async def by_annotation(self) -> Target:
        await self.world.restart(policy=RequestPolicy(request_ttl_mode=TTLMode.ANNOTATION), wire=self.world.wire)
        request = await self.world.completed(VOLUME_CAPTURE_REQUEST)
        self.world.advance(HOUR)
        return Target(VOLUME_CAPTURE_REQUEST, request, lambda: self.world.reconcile(request))

    async def keeper(self, *, followed: bool = False) -> Any:  # noqa: ANN401 - a keeper
        """A keeper whose time is over, and which owns a snapshot."""
        spec: Json = {"mode": KeeperMode.TTL, "ttl": "1h"}
        if followed:
            one = await self.store.create(CONFIG_MAP, {"metadata": {"name": "followed", "namespace": "shop"}})
            spec = {"mode": KeeperMode.FOLLOW_OBJECT_WITH_TTL, "ttl": "1h"}
            spec["followObjectRef"] = {**reference(CONFIG_MAP, one), "namespace": "shop"}
        keeper = await self.store.create(OBJECT_KEEPER, {"metadata": {"name": "mine"}, "spec": spec})
        if followed:
            await self.store.patch_status(OBJECT_KEEPER, keeper.metadata.key, {"lostAt": self.moment()})
        await self.world.snapshot()
        content = await self.store.get(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, "snap"))
        await self.own(VOLUME_SNAPSHOT_CONTENT, content, owner=(OBJECT_KEEPER, keeper))
        self.world.advance(DAY)
        return keeper

    def moment(self, seconds: float = 0) -> str:
        return to_timestamp(self.world.clock.wall_ns() + round(seconds * 10**9))

    async def by_keeper_sweep(self) -> Target:
        return Target(OBJECT_KEEPER, await self.keeper(), self.world.sweep)

    async def by_policy_on_keeper(self) -> Target:
        return Target(OBJECT_KEEPER, await self.keeper(), lambda: self.run_policy(OBJECT_KEEPER))

    async def by_policy_on_following_keeper(self) -> Target:
        return Target(OBJECT_KEEPER, await self.keeper(followed=True), lambda: self.run_policy(OBJECT_KEEPER))

    async def by_policy_on_content(self) -> Target:
        await self.keeper(followed=True)
        content = await self.store.get(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, "snap"))
        return Target(VOLUME_SNAPSHOT_CONTENT, content, lambda: self.run_policy(VOLUME_SNAPSHOT_CONTENT))

    async def by_policy_on_request(self) -> Target:
        request = await self.world.completed(VOLUME_CAPTURE_REQUEST)
        self.world.advance(DAY)
        return Target(VOLUME_CAPTURE_REQUEST, request, lambda: self.run_policy(VOLUME_CAPTURE_REQUEST))

    async def by_history(self) -> Target:
        ref = ExperimentRef(name="kill", namespace="shop", uid="u")
        spec = HistorySpec(experiment_ref=ref, execution=Execution(start_time="2026-01-31T12:00:00Z", status="success"))
        made, _ = await write_record(self.store, spec, namespace=HISTORY)
        self.world.advance(1000 * HOUR)
        return Target(CHAOS_EXPERIMENT_HISTORY, made, lambda: self.retention().run_once())

    async def by_detach(self) -> Target:
        claim = await self.world.volume()
        await self.world.capture("one", claim, mode="Detach")
        return Target(PERSISTENT_VOLUME_CLAIM, claim, lambda: self.world.live(120, step=20))

    async def by_schedule(self) -> Target:
        """The keeper of a run that came to nothing, whose time is over."""
        kind, targets = CAPTURE_SCHEDULE, [{"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}]
        spec: Json = {"schedule": "0 3 * * *", "template": {"manifestCapture": {"targets": targets}}}
        body = {"metadata": {"name": "nightly", "namespace": "shop"}, "spec": {**spec, "keep": {"last": 1}}}
        schedule = await self.store.create(kind, body)
        followed = {**reference(kind, schedule), "namespace": "shop"}
        annotations = {SCHEDULED_AT: self.moment(), RUN: "mcr/shop/gone"}
        spec = {"mode": KeeperMode.FOLLOW_OBJECT_WITH_TTL, "ttl": "9999h", "followObjectRef": followed}
        keeper = await self.store.create(
            OBJECT_KEEPER, {"metadata": {"name": "of-a-run", "annotations": annotations}, "spec": spec}
        )
        self.world.advance(1000 * HOUR)

        async def sweep() -> None:
            self.world.requests.superseded.look(schedule)
            await self.world.sweep()

        return Target(OBJECT_KEEPER, keeper, sweep)

    async def by_person(self) -> Target:
        request = await self.world.completed(VOLUME_CAPTURE_REQUEST)
        place = Located(VOLUME_CAPTURE_REQUEST, request.metadata.key)
        loaded = load_settings({"state_dir": str(self.world.folder)})
        context = Context(loaded, AsyncExitStack(), machine=self.world.clock)
        context.embedded = self.store

        async def delete() -> None:
            try:
                await delete_in_folder(context, place)
            except HeldError:
                await self.store.get(OBJECT_KEEPER, keeper_key(request))

        return Target(VOLUME_CAPTURE_REQUEST, request, delete)

    def retention(self, *documents: Json) -> Retention:
        store: Any = self.world.wire
        return Retention(
            store,
            history=history_document(),
            documents=documents,
            journal=self.world.journal,
            metrics=self.world.metrics,
            holds=self.world.requests.holds,
            clock=self.world.clock,
            interval=Duration.parse("1h"),
        )

    async def run_policy(self, kind: Kind[Any]) -> None:
        selector = {"apiVersion": kind.api_version, "kind": kind.kind}
        spec = {"selector": selector, "maxAge": "1h", "dryRun": False}
        await self.retention({"metadata": {"name": "old"}, "spec": spec}).run_once()

    # --- where a hold stands ------------------------------------------------------------------------------------------

    async def on_itself(self, target: Target) -> None:
        await self.mark(target.kind, target.obj)

    async def until_later(self, target: Target) -> None:
        await self.mark(target.kind, target.obj, {**HELD, "lapse.dev/hold-until": self.moment(300 * DAY)})

    async def on_its_owner(self, target: Target) -> None:
        owner = await self.volume("owner")
        await self.own(target.kind, target.obj, owner=(PERSISTENT_VOLUME, owner))
        await self.mark(PERSISTENT_VOLUME, owner)

    async def on_the_owner_of_its_owner(self, target: Target) -> None:
        above, owner = await self.volume("above"), await self.volume("owner")
        await self.own(PERSISTENT_VOLUME, owner, owner=(PERSISTENT_VOLUME, above))
        await self.own(target.kind, target.obj, owner=(PERSISTENT_VOLUME, owner))
        await self.mark(PERSISTENT_VOLUME, above)

    async def on_a_dependant(self, target: Target) -> None:
        one = await self.map_of("below", (target.kind, target.obj), target.obj.metadata.namespace)
        await self.mark(CONFIG_MAP, one)

    async def on_a_dependant_of_a_dependant(self, target: Target) -> None:
        one = await self.map_of("between", (target.kind, target.obj), target.obj.metadata.namespace)
        two = await self.map_of("below", (CONFIG_MAP, one), one.metadata.namespace)
        await self.mark(CONFIG_MAP, two)

    async def in_a_note(self, target: Target) -> None:
        await self.mark(target.kind, target.obj, {"lapse.dev/held-dependents": "3b0c-of-a-kind-that-nobody-watches"})

    async def in_a_note_on_a_dependant(self, target: Target) -> None:
        one = await self.map_of("between", (target.kind, target.obj), target.obj.metadata.namespace)
        await self.mark(CONFIG_MAP, one, {"lapse.dev/held-dependents": "3b0c"})

    async def on_a_dependant_that_nobody_watches(self, target: Target) -> None:
        """Held by a person's command, which leaves a note on the owners."""
        ref = ExperimentRef(name="kill", namespace="shop", uid="u")
        execution = Execution(start_time="2026-01-31T12:00:00Z", status="success")
        spec = HistorySpec(experiment_ref=ref, execution=execution)
        below, _ = await write_record(self.store, spec, namespace=target.obj.metadata.namespace or HISTORY)
        await self.own(CHAOS_EXPERIMENT_HISTORY, below, owner=(target.kind, target.obj))
        place = ObjectPlace(CHAOS_EXPERIMENT_HISTORY, below.metadata.key, below.metadata.uid)
        await self.world.requests.steering.hold(place, Hold("audit", None, "ann"))
        self.steered.append(place)

    async def on_what_is_followed(self, _target: Target) -> None:
        found = await self.store.get(CONFIG_MAP, ObjectKey("shop", "followed"))
        await self.mark(CONFIG_MAP, found)

    async def on_the_snapshot_of_the_keeper(self, _target: Target) -> None:
        found = await self.store.get(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, "snap"))
        await self.mark(VOLUME_SNAPSHOT_CONTENT, found)


def reference(kind: Kind[Any], obj: Object) -> Json:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "name": obj.metadata.name, "uid": obj.metadata.uid}


@asynccontextmanager
async def opened(folder: Path, *, elsewhere: bool, policy: RequestPolicy | None = None) -> AsyncIterator[Harness]:
    clock = VirtualClock()
    store = open_embedded(folder / "objects.db", kinds=object_kinds(), clock=clock, synchronous=Synchronous.NORMAL)
    world = World(
        store,
        clock,
        folder,
        policy=policy or RequestPolicy(),
        wire=Wire(Elsewhere(store) if elsewhere else store),
        services={"hold_kinds": [CONFIG_MAP]},
    )
    try:
        await world.start()
        yield Harness(world)
    finally:
        await world.stop()
        await store.close()
