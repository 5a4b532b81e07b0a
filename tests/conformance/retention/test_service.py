"""Retention put together, on both stores: policies as objects, their status, the hourly pass and completions.

The API server is one of its own: policies are of the whole cluster, and the history's own has one name. Each test ends
with no policy there.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import SystemClock, VirtualClock
from lapse.core.duration import DAY, HOUR, SECOND, Duration
from lapse.db.sqlite.file import Synchronous
from lapse.engine.journal.log import LogJournal
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.running.metrics import Metrics
from lapse.engine.safety.gate import OpenGate
from lapse.history.api.kinds import RETENTION_POLICY
from lapse.history.policy.default_policy import history_document, read_ttl
from lapse.history.records import record_completion
from lapse.history.service import Retention
from lapse.kube.api.client import KubeClient
from lapse.kube.auth.config import load_config
from lapse.kube.errors import InvalidError, NotFoundError, StoreUnavailableError
from lapse.kube.resources import ObjectKey, ready_condition
from lapse.objects.embedded import open_embedded
from lapse.objects.holds.cluster import ListedDependants, listed_holds
from lapse.objects.kubernetes import KubernetesStore
from tests.conformance.retention.product import Product
from tests.conformance.retention.registry import (
    EXPIRED,
    FAILURE,
    KINDS,
    RECORD,
    SUCCESS,
    TOO_MANY,
    WIDGET,
    Experiment,
    age,
    counted,
    hold,
    left,
    metric,
    widget,
)
from tests.conformance.retention.worlds import EmbeddedWorld, KubernetesWorld, Surroundings
from tests.policies import MemoryNotes, PolicyGate
from tests.servers import kube_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from lapse.history.api.kinds import RetentionPolicy, RetentionStatus
    from lapse.history.retention.passes import PassItem
    from lapse.kube.resources import Json
    from tests.servers import KubeServer

SEEDS_METRIC = 'chaos_experiment_history_ttl_deleted_total{reason="ttl_expired"}'
YEAR = 365 * DAY
PATIENCE_SECONDS = 30.0
FROM_SETTINGS = {"lapse.dev/from": "settings"}
ALL_KINDS = (*KINDS, RETENTION_POLICY)


class Scene:
    """A world, and the service of a process in it."""

    def __init__(self, world: EmbeddedWorld, around: Surroundings, home: str) -> None:
        self.world, self.home, self.around = world, home, around
        self.store, self.clock = world.store, world.clock
        self.notes = MemoryNotes()
        """What outlives a process."""

    def service(
        self,
        *,
        ttl: str = "720h",
        limit: int = 0,
        keep: int = 0,
        careful: bool = False,
        documents: Any = (),  # noqa: ANN401 - JSON
    ) -> Retention:
        around = self.around
        return Retention(
            around.store,
            history=history_document(namespace=self.home, ttl=read_ttl(ttl), limit=limit, keep_last_success=keep),
            documents=documents,
            journal=around.journal,
            metrics=around.metrics,
            holds=listed_holds(around.store, ListedDependants(around.store, (), clock=around.clock)),
            clock=around.clock,
            interval=Duration(HOUR),
            gate=self._policy_gate() if careful else OpenGate(),
        )

    def _policy_gate(self) -> PolicyGate:
        around = self.around
        return PolicyGate(self.notes, journal=around.journal, clock=around.clock, metrics=around.metrics)

    def restart(self) -> None:
        """Another process begins, with counters of its own."""
        self.around.metrics = Metrics("test")

    async def policy(self, name: str, **spec: Any) -> RetentionPolicy:  # noqa: ANN401 - as in a document
        """Store a policy of somebody's own about the widgets of this scene."""
        return await self.store.create(RETENTION_POLICY, self.document(name, **spec))

    def document(self, name: str, **spec: Any) -> Json:  # noqa: ANN401 - as in a document
        selector = {"apiVersion": WIDGET.api_version, "kind": WIDGET.kind, "namespaces": [self.home]}
        return RETENTION_POLICY.body(
            {"metadata": {"name": name}, "spec": {"selector": selector, "dryRun": False, **spec}}
        )

    async def status(self, name: str) -> RetentionStatus:
        found = (await self.store.get(RETENTION_POLICY, ObjectKey(None, name))).status
        assert found is not None, f"the policy {name} has no status"
        return found

    async def ready(self, name: str) -> tuple[str, str]:
        found = ready_condition((await self.status(name)).conditions)
        assert found is not None
        return found.status, found.reason

    async def records(self) -> list[str]:
        return await left(self.world, self.home)

    async def widgets(self) -> list[str]:
        return await left(self.world, self.home, WIDGET)

    async def age(self, name: str, ns: int) -> None:
        await age(self.world, self.home, name, ns)


@pytest.fixture(scope="module")
def own_kube() -> Iterator[KubeServer]:
    with kube_server() as server:
        yield server


@pytest.fixture(params=["embedded", pytest.param("kubernetes", marks=pytest.mark.server("kube", private=True))])
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    if request.param == "embedded":
        async with embedded(tmp_path) as found:
            yield found
    else:
        async with kubernetes(request.getfixturevalue("own_kube")) as found:
            yield found


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Scene]:
    clock = VirtualClock()
    store = open_embedded(folder / "objects.db", kinds=ALL_KINDS, clock=clock, synchronous=Synchronous.NORMAL)
    around = Surroundings(store, clock, SQLiteJournal(store.database))
    world = EmbeddedWorld(store, around, Product(around))
    try:
        yield Scene(world, around, await world.namespace())
    finally:
        await store.close()


@asynccontextmanager
async def kubernetes(server: KubeServer) -> AsyncIterator[Scene]:
    store = KubernetesStore(KubeClient(load_config(file=server.kubeconfig, environ={})), kinds=ALL_KINDS)
    around = Surroundings(store, VirtualClock(SystemClock().wall_ns()), LogJournal())
    world = KubernetesWorld(store, around, Product(around))
    try:
        yield Scene(world, around, await world.namespace())
        for policy in (await store.list(RETENTION_POLICY)).items:
            await store.delete(RETENTION_POLICY, policy.metadata.key)
    finally:
        await store.close()


async def tick(service: Retention) -> None:
    """Let an hour's pass happen."""
    (loop,) = service.loops
    await loop.tick()


# --- the hourly pass --------------------------------------------------------------------------------------------------


async def test_backdated_records_go_end_to_end_and_the_seeds_metric_tells(scene: Scene) -> None:
    experiment = Experiment(scene.world, scene.home)
    old = await experiment.runs(2)
    await scene.world.tick()
    young = await experiment.runs(3)
    service = scene.service(limit=2)
    assert metric(scene.world, SEEDS_METRIC) == 0
    assert SEEDS_METRIC in scene.around.metrics.exposition().decode(), "a series is there before its first event"
    await scene.age(old[-1], 720 * HOUR)
    await tick(service)
    assert await scene.records() == young[1:]
    assert (metric(scene.world, SEEDS_METRIC), counted(scene.world, EXPIRED), counted(scene.world, TOO_MANY)) == (
        0,
        0,
        3,
    )
    await scene.age(young[-1], 720 * HOUR + 1)
    await tick(service)
    assert await scene.records() == []
    assert (metric(scene.world, SEEDS_METRIC), counted(scene.world, EXPIRED), counted(scene.world, TOO_MANY)) == (
        2,
        2,
        3,
    )


async def test_the_metric_of_the_seed_counts_records_only(scene: Scene) -> None:
    name = await widget(scene.world, scene.home, "a")
    await scene.policy("old-widgets", maxAge="1h")
    await age(scene.world, scene.home, name, YEAR, kind=WIDGET)
    await tick(scene.service())
    assert await scene.widgets() == []
    assert (counted(scene.world, EXPIRED, domain="retention"), metric(scene.world, SEEDS_METRIC)) == (1, 0)


async def test_the_status_shows_the_last_run_what_went_what_was_kept_and_the_next_run(scene: Scene) -> None:
    experiment = Experiment(scene.world, scene.home)
    names = [*await experiment.runs(1, SUCCESS), *await experiment.runs(4, FAILURE)]
    await hold(scene.world, scene.home, names[1])
    await tick(scene.service(limit=2, keep=1))
    status = await scene.status("history")
    assert await scene.ready("history") == ("True", "Completed")
    assert (status.matched, status.deleted, status.dry_run) == (5, {TOO_MANY: 1}, False)
    assert status.kept == {"keep_last": 1, "held": 1, "not_yet": 2}
    assert status.last_run is not None
    assert status.next_run is not None
    assert status.last_run < status.next_run
    assert await scene.records() == [names[0], names[1], *names[3:]]


async def test_the_pass_is_hourly_and_only_where_the_process_leads(scene: Scene) -> None:
    (loop,) = scene.service().loops
    assert (loop.interval, loop.leader_only) == (3600.0, True)


async def test_passes_by_a_policy_that_is_new_on_a_store_are_dry_for_an_interval_and_then_are_not(scene: Scene) -> None:
    names = await Experiment(scene.world, scene.home).runs(3)
    await scene.age(names[-1], YEAR)
    service = scene.service(careful=True)
    await tick(service)
    assert await scene.records() == names
    status = await scene.status("history")
    assert (status.dry_run, status.deleted, status.matched) == (True, {EXPIRED: 3}, 3)
    assert counted(scene.world, EXPIRED) == 0
    scene.restart()
    await tick(scene.service(careful=True))
    assert await scene.records() == names
    scene.clock.advance(ns=HOUR + SECOND)
    await tick(service)
    assert await scene.records() == []
    assert (await scene.status("history")).dry_run is False


async def test_a_store_that_was_passed_over_before_has_no_dry_pass_again(scene: Scene) -> None:
    await tick(scene.service(careful=True))
    scene.clock.advance(ns=HOUR + SECOND)
    await tick(scene.service(careful=True))
    names = await Experiment(scene.world, scene.home).runs(2)
    await scene.age(names[-1], YEAR)
    scene.restart()
    await tick(scene.service(careful=True))
    assert await scene.records() == []


async def test_a_dry_run_names_the_records_that_the_real_run_then_takes(scene: Scene) -> None:
    experiment = Experiment(scene.world, scene.home)
    old = await experiment.runs(2)
    await scene.world.tick()
    await experiment.runs(4)
    await scene.age(old[-1], 720 * HOUR + 1)
    service = scene.service(limit=2)
    before = await scene.records()
    would: list[PassItem] = []
    await service.run_once(only={"history"}, dry_run=True, on_item=would.append)
    assert await scene.records() == before
    real: list[PassItem] = []
    await service.run_once(only={"history"}, on_item=real.append)
    named = [sorted((str(one.address), str(one.verdict.reason)) for one in told) for told in (would, real)]
    assert named[0] == named[1]
    assert {name for name in before if name not in await scene.records()} == {one.entry.name for one in real}
    assert len(real) == 4


# --- completions ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def leading(service: Retention) -> AsyncIterator[None]:
    """Run what a leader runs beside its loops."""
    stopping = asyncio.Event()
    tasks = [asyncio.create_task(one.run(stopping)) for one in service.leader_services]
    try:
        yield
    finally:
        stopping.set()
        await asyncio.gather(*tasks)


async def until(scene: Scene, check: Callable[[], Awaitable[bool]]) -> None:
    """Wait for an outcome, while both clocks go on."""
    clock = SystemClock()
    end = clock.monotonic_ns() + int(PATIENCE_SECONDS * 1_000_000_000)
    while not await check():
        assert clock.monotonic_ns() < end, f"not in {PATIENCE_SECONDS:g} s"
        scene.clock.advance(0.1)
        await clock.sleep(0.05)


async def test_a_completed_run_prunes_its_own_experiment_and_no_other(scene: Scene) -> None:
    mine = Experiment(scene.world, scene.home, name="mine")
    others = await Experiment(scene.world, scene.home, name="other", uid="u-2").runs(3)
    names: list[str] = []

    async def pruned() -> bool:
        if len(names) > 2 and len(await scene.records()) == 5:
            return True
        names.append(await mine.run())  # again and again: the watch may have begun after the last one
        return False

    async with leading(scene.service(limit=2)):
        await until(scene, pruned)
    assert await scene.records() == [*names[-2:], *others]
    assert counted(scene.world, TOO_MANY) == len(names) - 2


async def test_before_the_first_pass_is_over_no_completion_deletes_what_is_older(scene: Scene) -> None:
    experiment = Experiment(scene.world, scene.home)
    names = await experiment.runs(3)
    await scene.age(names[-1], SECOND)
    service = scene.service(limit=1, careful=True)
    await tick(service)
    assert (await scene.status("history")).dry_run
    made: list[str] = []

    async def ended() -> bool:
        made.append(await experiment.run())
        return bool(set(made) - set(await scene.records()))  # what is younger than the policy goes at once

    async with leading(service):
        await until(scene, ended)
    assert set(names) <= set(await scene.records())
    scene.clock.advance(ns=HOUR + SECOND)
    await tick(service)
    assert await scene.records() == made[-1:]


async def test_a_record_that_cannot_be_written_never_fails_the_experiment(scene: Scene) -> None:
    class Broken:
        async def create(self, *_: object) -> object:
            raise StoreUnavailableError(kind="ChaosExperimentHistory", name="x", problem="it is away")

    spec = Experiment(scene.world, scene.home).spec()
    broken: Any = Broken()
    assert await record_completion(broken, spec, namespace=scene.home, metrics=scene.around.metrics) is None
    found = await record_completion(scene.store, spec, namespace=scene.home, metrics=scene.around.metrics)
    assert found is not None
    assert await scene.records() == [found.metadata.name]


async def test_a_record_never_changes(scene: Scene) -> None:
    name = await Experiment(scene.world, scene.home).run(FAILURE)
    key = ObjectKey(scene.home, name)
    before = await scene.store.get(RECORD, key)
    with pytest.raises(InvalidError):
        await scene.store.patch(RECORD, key, {"spec": {"execution": {"status": SUCCESS}}})
    assert await scene.store.get(RECORD, key) == before


# --- policies ---------------------------------------------------------------------------------------------------------


async def test_policies_are_read_anew_for_each_pass(scene: Scene) -> None:
    for name in ("a", "b", "c"):
        await widget(scene.world, scene.home, name)
    made = await scene.policy("few-widgets", maxCount=3)
    service = scene.service()
    await tick(service)
    assert await scene.widgets() == ["a", "b", "c"]
    await scene.store.patch(RETENTION_POLICY, made.metadata.key, {"spec": {"maxCount": 2}})
    await tick(service)
    assert await scene.widgets() == ["b", "c"]
    await scene.store.delete(RETENTION_POLICY, made.metadata.key)
    await widget(scene.world, scene.home, "d")
    await tick(service)
    assert await scene.widgets() == ["b", "c", "d"]


async def test_a_policy_is_dry_until_it_is_set_to_false_and_its_status_tells_what_would_go(scene: Scene) -> None:
    for name in ("a", "b", "c"):
        await widget(scene.world, scene.home, name)
    body = scene.document("few-widgets", maxCount=1)
    del body["spec"]["dryRun"]
    made = await scene.store.create(RETENTION_POLICY, body)
    service = scene.service()
    await tick(service)
    assert await scene.widgets() == ["a", "b", "c"]
    status = await scene.status("few-widgets")
    assert (status.dry_run, status.matched, status.deleted) == (True, 3, {TOO_MANY: 2})
    await scene.store.patch(RETENTION_POLICY, made.metadata.key, {"spec": {"dryRun": False}})
    await tick(service)
    assert await scene.widgets() == ["c"]


async def test_broken_policies_beside_good_ones_are_told_and_the_good_ones_go_on(scene: Scene) -> None:
    for name in ("a", "b", "c"):
        await widget(scene.world, scene.home, name, spec={"colour": "red"})
    unknown = {"apiVersion": "nowhere.example.org/v1", "kind": "Unicorn"}
    await scene.policy("bad-path", groupBy=["spec..colour"], maxCount=1)
    await scene.policy("bad-kind", selector=unknown, maxCount=1)
    await scene.policy("no-time", ageFrom="spec.colour", maxAge="1h")
    await scene.policy("no-field", groupBy=["spec.nothing"], maxCount=1)
    await scene.policy("zz-good", maxCount=2)
    await age(scene.world, scene.home, "c", YEAR, kind=WIDGET)
    await tick(scene.service())
    assert await scene.widgets() == ["b", "c"]
    assert await scene.ready("bad-path") == ("False", "InvalidPolicy")
    assert await scene.ready("bad-kind") == ("False", "UnknownKind")
    assert await scene.ready("zz-good") == ("True", "Completed")
    assert await scene.ready("history") == ("True", "Completed")
    assert (await scene.status("no-time")).kept == {"missing_anchor": 3}
    assert (await scene.status("no-time")).deleted == (await scene.status("no-field")).deleted == {}
    assert (await scene.status("bad-path")).last_run is None


@pytest.mark.parametrize("spec", [{"maxAge": "-1h"}, {"maxAge": "soon"}, {"maxCount": -1}, {"keepLast": {"count": -1}}])
async def test_no_store_takes_a_policy_with_limits_that_are_none(scene: Scene, spec: Json) -> None:
    with pytest.raises(InvalidError):
        await scene.policy("broken", **spec)
    with pytest.raises(NotFoundError):
        await scene.store.get(RETENTION_POLICY, ObjectKey(None, "broken"))


async def test_two_policies_on_one_object_are_judged_together(scene: Scene) -> None:
    for name, state in (("a", "good"), ("b", "good"), ("c", "bad"), ("d", "bad")):
        await widget(scene.world, scene.home, name, spec={"state": state})
    keeping = {"count": 1, "where": {"fieldPath": "spec.state", "in": ["good"]}}
    await scene.policy("zz-keeps", keepLast=keeping)
    await scene.policy("limits", maxCount=1)
    await hold(scene.world, scene.home, "a", kind=WIDGET)
    await tick(scene.service())
    assert await scene.widgets() == ["a", "b", "d"]
    status = await scene.status("limits")
    assert (status.deleted, status.kept) == ({TOO_MANY: 1}, {"held": 1, "keep_last": 1, "not_yet": 1})


async def test_what_the_settings_say_becomes_objects_and_goes_when_they_no_longer_say_it(scene: Scene) -> None:
    for name in ("a", "b", "c"):
        await widget(scene.world, scene.home, name)
    await tick(scene.service(documents=[scene.document("few-widgets", maxCount=2)]))
    assert await scene.widgets() == ["b", "c"]
    found = await scene.store.get(RETENTION_POLICY, ObjectKey(None, "few-widgets"))
    assert found.metadata.labels == FROM_SETTINGS
    scene.restart()
    await tick(scene.service(documents=[scene.document("few-widgets", maxCount=1)]))
    assert await scene.widgets() == ["c"]
    scene.restart()
    await tick(scene.service())
    with pytest.raises(NotFoundError):
        await scene.store.get(RETENTION_POLICY, ObjectKey(None, "few-widgets"))


async def test_a_policy_of_somebodys_own_is_not_replaced_by_one_of_the_settings(scene: Scene) -> None:
    for name in ("a", "b", "c"):
        await widget(scene.world, scene.home, name)
    await scene.policy("few-widgets", maxCount=2)
    await tick(scene.service(documents=[scene.document("few-widgets", maxCount=1)]))
    assert await scene.widgets() == ["b", "c"]
    found = await scene.store.get(RETENTION_POLICY, ObjectKey(None, "few-widgets"))
    assert (found.spec.max_count, found.metadata.labels) == (2, {})


async def test_a_deletion_that_fails_is_told_and_the_rest_go_on(scene: Scene) -> None:
    names = await Experiment(scene.world, scene.home).runs(4)
    scene.around.meddler.failing.add(names[1])
    await tick(scene.service(limit=1))
    assert await scene.records() == [names[1], names[3]]
    status, reason = await scene.ready("history")
    assert (status, reason) == ("False", "Incomplete")
    errors = metric(scene.world, 'lapse_errors_total{domain="history",kind="item"}')
    assert errors == 1
