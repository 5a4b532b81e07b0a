"""Retention put together, on the embedded store and in virtual time."""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lapse.core.clock import SystemClock, UnixNs, VirtualClock
from lapse.core.duration import Duration
from lapse.core.timestamps import to_timestamp
from lapse.db.sqlite.file import Synchronous
from lapse.engine.journal.log import LogJournal
from lapse.engine.journal.port import Outcome
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.plans.approvals import loop_gate
from lapse.engine.running.coordinator import Turn
from lapse.engine.running.metrics import Metrics
from lapse.engine.safety.blast_radius import PolicyApprovals
from lapse.engine.safety.budget import Budgets
from lapse.engine.safety.freeze import FreezeReason
from lapse.engine.safety.gate import Grant, OpenGate
from lapse.engine.safety.sqlite import SQLiteGateStore
from lapse.history.api.kinds import (
    CHAOS_EXPERIMENT_HISTORY,
    OUR_KINDS,
    RETENTION_POLICY,
    Execution,
    ExperimentRef,
    HistorySpec,
    RetentionPolicy,
)
from lapse.history.policy.default_policy import HistoryLimits, history_document
from lapse.history.policy.policies import FROM, SETTINGS, PolicyOverlay
from lapse.history.records import experiment_labels, record_completion, write_record
from lapse.history.retention.runs import RunReason
from lapse.history.service import Retention
from lapse.kube.errors import ForbiddenError, StoreUnavailableError
from lapse.kube.resources import Kind, ObjectKey, ready_condition, untyped
from lapse.objects.embedded import EmbeddedStore, open_embedded
from tests.policies import MemoryNotes, PolicyGate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from lapse.engine.journal.port import Journal
    from lapse.engine.safety.freeze import Notes
    from lapse.history.retention.runs import PolicyRun

WIDGET = untyped("test.lapse.dev/v1", "Widget", "widgets")
GADGET = untyped("test.lapse.dev/v1", "Gadget", "gadgets")
NAMESPACE = "chaos-system"
HOUR = 3600.0
GATE = {Outcome.FROZEN, Outcome.RESUMED}


def policy(name: str, kind: str = "Widget", **spec: Any) -> dict[str, Any]:  # noqa: ANN401 - any field
    selector = {"apiVersion": "test.lapse.dev/v1", "kind": kind}
    return {"metadata": {"name": name}, "spec": {"selector": selector, "dryRun": False, **spec}}


@dataclass
class World:
    """A store with records, and what retention needs beside it."""

    store: EmbeddedStore
    clock: VirtualClock
    journal: Journal
    metrics: Metrics = field(default_factory=lambda: Metrics("test"))
    before_list: Callable[[Kind[Any]], Awaitable[object]] | None = None
    notes: Notes = field(default_factory=MemoryNotes)
    """What outlives a process."""

    def retention(self, **how: Any) -> Retention:  # noqa: ANN401 - those of the class
        history = how.pop("history", {"limit": 3})
        return Retention(
            self.store,
            history=history_document(**history),
            journal=self.journal,
            metrics=how.pop("metrics", self.metrics),
            holds=self.store,
            clock=self.clock,
            interval=Duration.parse(how.pop("interval", "1h")),
            direct=self,
            chance=lambda: 0.5,
            **how,
        )

    def careful(self, notes: Notes | None = None, **how: Any) -> Retention:  # noqa: ANN401 - as above
        """Return one as in a process that starts now, which looks at its policies first."""
        kept = self.notes if notes is None else notes
        gate = PolicyGate(kept, journal=self.journal, clock=self.clock, metrics=self.metrics)
        return self.retention(gate=gate, **how)

    def spec(self, experiment: str = "kill", *, namespace: str = "shop", status: str = "success") -> HistorySpec:
        ref = ExperimentRef(name=experiment, namespace=namespace, uid=f"u-{namespace}-{experiment}")
        execution = Execution(start_time=to_timestamp(self.clock.wall_ns()), status=status)
        return HistorySpec(experiment_ref=ref, execution=execution)

    async def run(self, experiment: str = "kill", **how: str) -> str:
        found, is_new = await write_record(self.store, self.spec(experiment, **how), namespace=NAMESPACE)
        assert is_new
        return found.metadata.name

    async def runs(self, count: int, experiment: str = "kill", *, hours: float = 1, **how: str) -> list[str]:
        names = []
        for _ in range(count):
            names.append(await self.run(experiment, **how))
            self.clock.advance(hours * HOUR)
        return names

    async def things(self, kind: Kind[Any], count: int) -> None:
        for number in range(count):
            await self.store.create(kind, {"metadata": {"name": f"x{number}", "namespace": "default"}})
            self.clock.advance(1)

    async def left(self, kind: Kind[Any] = CHAOS_EXPERIMENT_HISTORY) -> list[str]:
        return [one.metadata.name for one in (await self.store.list(kind)).items]

    async def policy(self, name: str = "history") -> RetentionPolicy:
        return await self.store.get(RETENTION_POLICY, ObjectKey(None, name))

    async def reason(self, name: str) -> str:
        found = await self.policy(name)
        condition = ready_condition(found.status.conditions if found.status else ())
        return condition.reason if condition else "none"

    async def last_run(self, name: str) -> str | None:
        found = await self.policy(name)
        return found.status.last_run if found.status else None

    async def outcomes(self) -> list[str]:
        return [row.outcome for row in reversed(await self.journal.entries(limit=1000))]

    def metric(self, name: str, **labels: str) -> float:
        pairs = ",".join(f'{label}="{value}"' for label, value in labels.items())
        found = re.search(rf"^{re.escape(name)}{{{re.escape(pairs)}}} (\S+)$", self.text(), re.MULTILINE)
        assert found is not None, f"{name} {pairs}"
        return float(found[1])

    def text(self) -> str:
        return self.metrics.exposition().decode()

    # What a `Reader` does, with a look at it.

    async def get(self, kind: Kind[Any], key: ObjectKey) -> Any:  # noqa: ANN401 - any object
        return await self.store.get(kind, key)

    async def list(self, kind: Kind[Any], **question: Any) -> Any:  # noqa: ANN401 - as it is asked
        if self.before_list is not None:
            await self.before_list(kind)
        return await self.store.list(kind, **question)

    async def resolve(self, api_version: str, kind: str) -> Kind[Any]:
        return await self.store.resolve(api_version, kind)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[World]:
    clock = VirtualClock()
    kinds = (*OUR_KINDS, WIDGET, GADGET)
    store = open_embedded(folder / "objects.db", kinds=kinds, clock=clock, synchronous=Synchronous.NORMAL)
    try:
        yield World(store, clock, SQLiteJournal(store.database))
    finally:
        await store.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path) as found:
        yield found


@contextmanager
def capture_logs() -> Iterator[list[dict[str, Any]]]:
    """Collect what is logged, with its keys."""
    found: list[dict[str, Any]] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append({**vars(record), "event": record.getMessage(), "log_level": record.levelname.lower()})

    logger, handler = logging.getLogger("lapse.history"), Collector()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


async def tick(retention: Retention) -> float:
    return await retention.loops[0].tick()


async def passed(retention: Retention) -> dict[str, PolicyRun]:
    """Do what the loop does each hour; return what came of it."""
    await retention.publish()
    return await retention.pass_over(proceed=lambda: True, next_run=UnixNs(0))


@asynccontextmanager
async def served(retention: Retention) -> AsyncIterator[None]:
    """Run what watches for completions."""
    stopping = asyncio.Event()
    (service,) = retention.leader_services
    running = asyncio.create_task(service.run(stopping))

    async def is_watching() -> bool:
        return service.is_watching

    await until(is_watching)
    try:
        yield
    finally:
        stopping.set()
        await running


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():
            await SystemClock().sleep(0.01)


# --- records ----------------------------------------------------------------------------------------------------------


async def test_a_retried_run_has_one_record_and_does_not_reset_its_age(world: World) -> None:
    spec = world.spec()
    first, is_new = await write_record(world.store, spec, namespace=NAMESPACE)
    world.clock.advance(HOUR)
    second, is_new_again = await write_record(world.store, spec, namespace=NAMESPACE)

    assert (is_new, is_new_again) == (True, False)
    assert second == first
    assert len(await world.left()) == 1


class Broken:
    """A store that fails in one way."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def create(self, *_: object) -> None:
        raise self.error


@pytest.mark.parametrize("error", [StoreUnavailableError(problem="gone"), ForbiddenError(problem="no"), OSError("x")])
async def test_a_record_that_cannot_be_written_never_fails_the_experiment(world: World, error: Exception) -> None:
    world.retention()
    store: Any = Broken(error)
    with capture_logs() as logs:
        found = await record_completion(store, world.spec(), namespace=NAMESPACE, metrics=world.metrics)

    assert found is None
    assert [(line["event"], line["experiment"]) for line in logs] == [("record_not_written", "shop/kill")]
    assert world.metric("lapse_errors_total", domain="history", kind="record") == 1


async def test_a_record_that_is_written_is_returned(world: World) -> None:
    found = await record_completion(world.store, world.spec(), namespace=NAMESPACE, metrics=world.metrics)
    assert found is not None
    assert await world.left() == [found.metadata.name]


# --- each hour --------------------------------------------------------------------------------------------------------


async def test_an_hourly_pass_ends_what_is_too_old_or_too_many_and_says_so(world: World) -> None:
    names = await world.runs(6)
    await world.run("slow", status="failure")
    retention = world.retention(history={"limit": 3, "ttl": Duration.parse("5h")})
    wait = await tick(retention)

    assert wait == HOUR
    assert await world.left() == [*names[3:], *[name for name in await world.left() if name.startswith("slow")]]
    found = (await world.policy()).status
    assert found is not None
    assert (found.matched, found.deleted) == (7, {"ttl_expired": 1, "retention_limit": 2})
    assert (found.kept, found.dry_run) == ({"not_yet": 4}, False)
    assert found.last_run == to_timestamp(world.clock.wall_ns())
    assert found.next_run == to_timestamp(world.clock.wall_ns() + 3600 * 10**9)
    assert await world.reason("history") == "Completed"
    assert world.metric("lapse_deletions_total", domain="history", reason="retention_limit") == 2
    assert world.metric("lapse_deletions_total", domain="history", reason="ttl_expired") == 1
    assert world.metric("chaos_experiment_history_ttl_deleted_total", reason="ttl_expired") == 1
    assert world.metric("lapse_decisions_total", domain="history", verdict="due") == 3
    assert world.metric("lapse_decisions_total", domain="history", verdict="keep") == 4
    next_pass = world.metric("lapse_next_expiry_timestamp_seconds", domain="history")
    assert next_pass == world.clock.wall_ns() / 10**9 + HOUR
    assert world.metric("lapse_next_expiry_timestamp_seconds", domain="retention") == 0, "there is no policy"


async def test_the_next_pass_is_no_next_expiry_where_it_can_end_nothing(world: World) -> None:
    documents = [policy("all-go", maxAge="1s"), policy("none-goes", "Gadget")]
    await world.things(WIDGET, 3)
    await world.things(GADGET, 3)
    retention = world.retention(documents=documents)
    await tick(retention)
    assert await world.left(WIDGET) == []
    for domain in ("history", "retention"):
        assert world.metric("lapse_next_expiry_timestamp_seconds", domain=domain) == 0

    await world.things(WIDGET, 1)
    await tick(world.retention(documents=[policy("all-go", maxAge="1d")]))
    next_pass = world.metric("lapse_next_expiry_timestamp_seconds", domain="retention")
    assert next_pass == world.clock.wall_ns() / 10**9 + HOUR


async def test_numbers_of_an_earlier_pass_do_not_stay_in_the_status(world: World) -> None:
    await world.runs(4)
    retention = world.retention()
    await tick(retention)
    await tick(retention)

    found = (await world.policy()).status
    assert found is not None
    assert (found.matched, found.deleted, found.kept) == (3, {}, {"not_yet": 3})


async def test_every_series_stands_at_zero_before_the_first_pass(world: World) -> None:
    world.retention()
    for domain in ("history", "retention"):
        for reason in ("ttl_expired", "retention_limit"):
            assert world.metric("lapse_deletions_total", domain=domain, reason=reason) == 0
        for verdict in ("due", "keep", "unknown"):
            assert world.metric("lapse_decisions_total", domain=domain, verdict=verdict) == 0
    assert world.metric("chaos_experiment_history_ttl_deleted_total", reason="ttl_expired") == 0
    assert 'ttl_deleted_total{reason="retention_limit"}' not in world.text()


async def test_a_pass_that_must_stop_tells_nothing_and_the_next_leader_goes_on(world: World) -> None:
    await world.runs(6)
    retention = world.retention()
    (loop,) = retention.loops
    loop.begin(Turn(lambda: False, lambda: None))
    await loop.tick()

    assert len(await world.left()) == 6
    assert (await world.policy()).status is None
    loop.begin(Turn(lambda: True, lambda: None))
    await loop.tick()
    assert len(await world.left()) == 3


# --- the first time ---------------------------------------------------------------------------------------------------


async def test_a_policy_that_is_new_on_a_store_with_records_is_dry_for_a_whole_interval_over_restarts(
    world: World,
) -> None:
    await world.runs(5)
    notes = SQLiteGateStore(SQLiteJournal(world.store.database), budgets=Budgets(), domains=[])
    with capture_logs() as logs:
        await tick(world.careful(notes))

    assert len(await world.left()) == 5
    found = (await world.policy()).status
    assert found is not None
    assert (found.dry_run, found.deleted) == (True, {"retention_limit": 2})
    assert [line["would_delete"] for line in logs if line["event"] == "first_pass_was_dry"] == [{"retention_limit": 2}]
    assert await world.outcomes() == [Outcome.WOULD_END] * 2
    for _ in range(3):
        world.clock.advance(HOUR / 4)
        await tick(world.careful(notes))
        assert len(await world.left()) == 5, "a restart does not end it"

    world.clock.advance(HOUR / 4)
    await tick(world.careful(notes))
    assert len(await world.left()) == 3


async def test_a_store_that_is_as_new_as_its_policy_has_no_first_pass(world: World) -> None:
    await tick(world.careful())
    await world.runs(5, hours=0.1)
    await tick(world.careful())
    assert len(await world.left()) == 3


async def test_a_policy_that_was_a_dry_run_for_an_interval_is_meant_when_it_is_none(world: World) -> None:
    await world.things(WIDGET, 3)
    for dry_run, left in ((True, 3), (False, 0)):
        world.clock.advance(HOUR)
        await tick(world.careful(documents=[policy("mine", maxAge="1m", dryRun=dry_run)]))
        assert len((await world.store.list(WIDGET)).items) == left


async def test_the_loop_comes_back_when_the_first_interval_is_over(world: World) -> None:
    await world.runs(5)
    (loop,) = world.careful().loops
    loop.begin(Turn(lambda: True, lambda: None))
    world.clock.advance(await loop.tick() / 2)
    world.clock.advance(await loop.tick())
    await loop.tick()
    assert len(await world.left()) == 3


async def test_a_first_interval_that_cannot_be_written_down_goes_on(world: World) -> None:
    class Away(MemoryNotes):
        async def read_note(self, name: str) -> str | None:
            raise StoreUnavailableError(problem=name)

    await world.runs(5)
    retention = world.careful(Away())
    for _ in range(3):
        await tick(retention)
        world.clock.advance(HOUR)
    assert len(await world.left()) == 5


async def test_no_completion_deletes_what_is_older_than_the_policy_before_its_first_pass_is_over(world: World) -> None:
    await world.runs(5)
    retention = world.careful()
    await tick(retention)
    async with served(retention):
        await world.run()
        world.clock.advance(1)
        await until(partial(_noted, world, at_least=3))
    assert len(await world.left()) == 6

    world.clock.advance(HOUR)
    await tick(retention)
    assert len(await world.left()) == 3


async def _noted(world: World, *, at_least: int, seconds: int = 0) -> bool:
    """Whether there are so many outcomes; otherwise time passes, in which an experiment rests after a pass."""
    if len(await world.outcomes()) >= at_least:
        return True
    world.clock.advance(seconds)
    return False


async def test_a_person_who_runs_a_pass_means_it(world: World) -> None:
    await world.runs(5)
    retention = world.careful(history_ttl_is_default=True)
    assert await retention.is_unproved(["history"]), "and is asked before, by whoever runs it for them"
    dry = await retention.run_once(dry_run=True)
    assert len(await world.left()) == 5
    real = await retention.run_once()

    assert dry["history"].deleted == real["history"].deleted == {"retention_limit": 2}
    assert len(await world.left()) == 3
    assert not await retention.is_unproved(["history"])
    await world.runs(2)
    await tick(retention)
    assert len(await world.left()) == 3, "what a person has begun goes on"


# --- the blast radius -------------------------------------------------------------------------------------------------


async def test_a_ttl_shortened_by_mistake_ends_nothing_until_it_is_approved(world: World) -> None:
    await tick(world.careful(history={"ttl": Duration.parse("720h")}))
    for number in range(150):
        await world.run(f"e{number}")
    world.clock.advance(2 * HOUR)
    short = {"ttl": Duration.parse("1h")}
    for _ in range(2):  # a restart does not forget it
        runs = await passed(world.careful(history=short))
        assert len(await world.left()) == 150
        assert runs["history"].reason is RunReason.WAITING
        world.clock.advance(HOUR)

    approvals = PolicyApprovals([world.notes], journal=world.journal, clock=world.clock)
    (waiting,) = await approvals.waiting()
    assert (waiting.domain, waiting.name, waiting.due, waiting.governed) == ("history", "history", 150, 150)
    assert waiting.previous_hash not in {None, waiting.hash}
    assert set(waiting.sample) <= {f"history/{NAMESPACE}/{name}" for name in await world.left()}
    assert 'lapse_policies_waiting{domain="history"} 1.0' in world.text()
    retention = world.careful(history=short)
    await tick(retention)
    await approvals.approve("history", by="ann")
    world.clock.advance(10)
    await tick(retention)
    assert await world.left() == []
    told = [row.reason for row in await world.journal.entries(limit=1_000) if row.outcome in GATE]
    assert told == ["policy_approved", "policy_waits"]
    assert 'lapse_policies_waiting{domain="history"} 0.0' in world.text()


async def test_a_selector_that_matches_everything_waits_and_the_old_policy_goes_on_when_it_is_back(
    world: World,
) -> None:
    narrow, wide = policy("mine", maxAge="1h"), policy("mine", maxAge="1h")
    narrow["spec"]["selector"] = {**narrow["spec"]["selector"], "labels": {"keep": "no"}}
    await tick(world.careful(documents=[narrow]))
    await world.things(WIDGET, 120)
    await world.store.create(WIDGET, {"metadata": {"name": "mine", "namespace": "default", "labels": {"keep": "no"}}})
    world.clock.advance(2 * HOUR)

    assert (await passed(world.careful(documents=[wide])))["mine"].reason is RunReason.WAITING
    assert len((await world.store.list(WIDGET)).items) == 121
    assert (await passed(world.careful(documents=[narrow])))["mine"].deleted == {"ttl_expired": 1}
    assert len((await world.store.list(WIDGET)).items) == 120
    assert not await PolicyApprovals([world.notes], journal=world.journal, clock=world.clock).waiting()


async def test_much_that_is_due_by_an_unchanged_policy_goes_at_once(world: World) -> None:
    documents = [policy("mine", maxAge="1h")]
    await tick(world.careful(documents=documents))
    await world.things(WIDGET, 150)
    world.clock.advance(2 * HOUR)
    await tick(world.careful(documents=documents))
    assert not (await world.store.list(WIDGET)).items


async def test_a_person_s_pass_by_another_limit_waits_as_well_and_leaves_the_policy_in_force(world: World) -> None:
    await tick(world.careful(history={"limit": 0}))
    await world.runs(130, hours=0.001)
    shorter = world.careful(history={"limit": 3})
    await shorter.publish()
    assert (await shorter.run_once())["history"].reason is RunReason.WAITING
    assert len(await world.left()) == 130


LIMITS = HistoryLimits(retention_limit=3)


def asked_of_the_process(_: World, running: Retention) -> Retention:
    return running.for_person("token ann", LIMITS)


def asked_of_the_store(world: World, _: Retention) -> Retention:
    """Return what a command makes in a process of its own."""
    found = world.careful(history={"limit": 0}, actor="token ann")
    found._direct = PolicyOverlay(world.store, [history_document(limit=3)])
    return found


@pytest.mark.parametrize("asked", [asked_of_the_process, asked_of_the_store])
async def test_a_pass_by_limits_of_a_person_s_own_waits_and_the_loop_goes_on_by_its_policy(
    world: World, asked: Callable[[World, Retention], Retention]
) -> None:
    running = world.careful(history={"limit": 0})
    await tick(running)
    await world.runs(130, hours=0.001)
    approvals = PolicyApprovals([world.notes], journal=world.journal, clock=world.clock)
    for _ in range(2):
        done = await asked(world, running).run_for_person({"history"}, dry_run=False, confirmed=True)
        assert (done.runs["history"].reason, done.runs["history"].dry_run) == (RunReason.WAITING, True)
        await tick(running)
        assert await world.reason("history") == "Completed"
        (waiting,) = await approvals.waiting()
        assert (waiting.name, waiting.due, waiting.governed) == ("history", 127, 130)
    assert len(await world.left()) == 130

    await approvals.approve("history", by="ann")
    done = await asked(world, running).run_for_person({"history"}, dry_run=False, confirmed=True)
    assert done.runs["history"].deleted == {"retention_limit": 127}
    ended = [row for row in await world.journal.entries(limit=1_000) if row.outcome is Outcome.ENDED]
    assert {row.actor for row in ended} == {"token ann"}
    await world.runs(4)
    await tick(running)
    assert len(await world.left()) == 7, "the limits were for that pass"


async def test_other_limits_than_the_ttl_that_nobody_chose_do_not_take_the_place_of_a_yes(world: World) -> None:
    await world.runs(5)
    running = world.careful(history_ttl_is_default=True)
    by_number = running.for_person("token ann", HistoryLimits(retention_limit=2))
    done = await by_number.run_for_person({"history"}, dry_run=False, confirmed=False)
    assert (done.waits, len(done.items), len(await world.left())) == (True, 3, 5)
    by_age = running.for_person("token ann", HistoryLimits(ttl=Duration.parse("150m"), retention_limit=0))
    done = await by_age.run_for_person({"history"}, dry_run=False, confirmed=False)
    assert (done.waits, done.runs["history"].deleted) == (False, {"ttl_expired": 3})
    assert not await running.is_unproved(["history"])


async def test_what_is_ended_by_approved_plans_only_is_not_ended_by_other_limits(world: World) -> None:
    await world.runs(5)
    gate = PolicyGate(world.notes, journal=world.journal, clock=world.clock, metrics=world.metrics)
    running = world.retention(gate=loop_gate(gate, ["history"]))
    done = await running.for_person("token ann", LIMITS).run_for_person({"history"}, dry_run=False, confirmed=True)
    assert (done.runs["history"].reason, len(await world.left())) == (RunReason.BY_PLAN, 5)


async def test_a_dry_run_and_the_real_one_name_the_same_records(world: World) -> None:
    await world.runs(6)
    await world.runs(5, "other")
    retention = world.retention()
    would: list[str] = []
    did: list[str] = []
    await retention.run_once(dry_run=True, on_item=lambda told: would.append(str(told.address)))
    await retention.run_once(on_item=lambda told: did.append(str(told.address)))

    assert sorted(would) == sorted(did)
    assert len(did) == 5


# --- completions ------------------------------------------------------------------------------------------------------


async def test_a_completion_ends_what_is_too_many_of_that_experiment_alone(world: World) -> None:
    others = await world.runs(5, "other")
    names = await world.runs(4)
    retention = world.retention()
    async with served(retention):
        newest = await world.run()
        await until(lambda: _left_is(world, [*names[2:], newest, *others]))


async def _left_is(world: World, names: list[str]) -> bool:
    return await world.left() == sorted(names)


async def test_experiments_of_the_same_name_in_two_namespaces_do_not_share_a_limit(world: World) -> None:
    retention = world.retention()
    async with served(retention):
        for _ in range(3):
            await world.run(namespace="one")
            await world.run(namespace="two")
            world.clock.advance(HOUR)
        await world.run(namespace="one")
        await until(lambda: _noted(world, at_least=1, seconds=1))
    assert len(await world.left()) == 6


async def test_concurrent_completions_and_passes_never_delete_twice_or_below_the_limit(world: World) -> None:
    names = await world.runs(40, hours=0.01)
    labels = experiment_labels(world.spec().experiment_ref)
    twins = [world.retention(metrics=Metrics(str(number))) for number in range(4)]
    await asyncio.gather(
        *(one.run_once(only={"history"}, labels=labels) for one in twins), *(one.run_once() for one in twins)
    )

    assert await world.left() == names[-3:]
    assert (await world.outcomes()).count(Outcome.ENDED) == 37


async def test_without_hourly_passes_completions_still_count(world: World) -> None:
    retention = world.retention(interval="never")
    assert retention.loops == []
    await world.runs(3)
    async with served(retention):
        await world.run()
        await until(lambda: _noted(world, at_least=1, seconds=1))
    assert len(await world.left()) == 3


async def test_a_record_of_somebody_else_without_labels_is_no_completion_and_no_trouble(world: World) -> None:
    retention = world.retention()
    async with served(retention):
        body = {"metadata": {"name": "odd", "namespace": NAMESPACE}, "spec": _bare()}
        await world.store.create(CHAOS_EXPERIMENT_HISTORY, body)
        await world.runs(4)
        await until(lambda: _noted(world, at_least=1, seconds=1))
    assert "odd" in await world.left()


def _bare() -> dict[str, Any]:
    ref = {"name": "x", "namespace": "y"}
    return {"experimentRef": ref, "execution": {"startTime": "2030-01-01T00:00:00Z", "status": "success"}}


# --- records of other operators ---------------------------------------------------------------------------------------


async def _foreign(world: World, name: str, *, experiment: str = "kill", status: str = "success") -> str:
    """Let another operator write a record: the same kind, without labels of ours."""
    spec = msgspec.to_builtins(world.spec(experiment, status=status))
    await world.store.create(
        CHAOS_EXPERIMENT_HISTORY, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
    )
    world.clock.advance(HOUR)
    return name


async def test_records_without_labels_are_limited_by_number_and_counted_in_the_status(world: World) -> None:
    theirs = [await _foreign(world, f"theirs-{number}") for number in range(5)]
    other = [await _foreign(world, f"other-{number}", experiment="net") for number in range(2)]
    ours = await world.runs(2)  # of the same experiment: they share its limit
    await tick(world.retention())

    assert set(await world.left()) == {theirs[-1], *other, *ours}
    found = (await world.policy()).status
    assert found is not None
    assert (found.matched, found.unlabelled, found.deleted) == (9, 7, {"retention_limit": 4})
    assert found.conditions[0].message == (
        "deleted 4 of 9; 7 of another operator, without labels of Lapse, were grouped by experimentRef"
    )
    await tick(world.retention())
    found = (await world.policy()).status
    assert found is not None
    assert (found.matched, found.unlabelled, found.deleted) == (5, 3, {})


async def test_of_records_without_labels_the_last_success_stays_and_the_others_go(world: World) -> None:
    first = await _foreign(world, "a-success")
    last = await _foreign(world, "b-success")
    failures = [await _foreign(world, f"c-failure-{number}", status="failure") for number in range(2)]
    world.clock.advance(1000 * HOUR)
    await tick(world.retention(history={"limit": 0, "ttl": Duration.parse("720h"), "keep_last_success": 1}))

    left = await world.left()
    assert left == [last]
    assert not {first, *failures} & set(left)


# --- times that mean 'not set' ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "zero", ["0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1969-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]
)
async def test_times_that_are_not_set_are_kept_counted_told_and_never_stop_a_pass(world: World, zero: str) -> None:
    for number in range(300):  # more than a pass has patience for
        await _timed(world, f"a{number:03}", zero)
    await _timed(world, "young", to_timestamp(world.clock.wall_ns()))
    await _timed(world, "z-old", "2020-01-01T00:00:00Z")
    retention = world.retention(documents=[policy("widgets", ageFrom="spec.when", maxAge="1h")])
    await tick(retention)

    assert sorted(await world.left(WIDGET)) == [*(f"a{number:03}" for number in range(300)), "young"]
    found = (await world.policy("widgets")).status
    assert found is not None
    assert (found.matched, found.deleted) == (302, {"ttl_expired": 1})
    assert found.kept == {"missing_anchor": 300, "not_yet": 1}
    (condition,) = found.conditions
    assert (condition.reason, condition.message) == (
        "Completed",
        "deleted 1 of 302; 300 kept: spec.when is missing, or not set to a time, in them",
    )


async def _timed(world: World, name: str, when: str) -> None:
    body = {"metadata": {"name": name, "namespace": "default"}, "spec": {"when": when}}
    await world.store.create(WIDGET, body)


# --- one beside others ------------------------------------------------------------------------------------------------


async def test_one_broken_policy_an_unknown_kind_and_a_forbidden_list_do_not_stop_the_others(world: World) -> None:
    await world.things(WIDGET, 5)
    await world.runs(5)
    documents = [
        policy("bad-path", ageFrom="metadata..x"),
        policy("good", maxCount=2),
        policy("no-such-kind", kind="Nonsense", maxCount=1),
        policy("not-allowed", kind="Gadget", maxCount=1),
        policy("wrong-form", maxCount="many"),
        policy("odd-field", maxCount=1, keeplast={"count": 1}),
        {**policy("odd-labels"), "metadata": {"name": "odd-labels", "labels": "x"}},
        {**policy("other-kind"), "kind": "Policy"},
        {"metadata": {"name": "empty"}},
    ]

    async def refuse(kind: Kind[Any]) -> None:
        if kind.kind == "Gadget":
            raise ForbiddenError(problem="gadgets is forbidden")

    world.before_list = refuse
    retention = world.retention(documents=documents)
    with capture_logs() as first:
        await tick(retention)
    with capture_logs() as second:
        await tick(retention)

    assert await world.left(WIDGET) == ["x3", "x4"]
    assert len(await world.left()) == 3
    assert await world.reason("good") == "Completed"
    assert await world.reason("bad-path") == "InvalidPolicy"
    assert await world.reason("no-such-kind") == "UnknownKind"
    assert await world.reason("not-allowed") == "Forbidden"
    unusable = ["empty", "odd-field", "odd-labels", "other-kind", "wrong-form"]
    failed = sorted(["bad-path", "no-such-kind", "not-allowed", *unusable])
    for logs, level in ((first, "warning"), (second, "info")):
        said = [(line["policy"], line["log_level"]) for line in logs if line["event"] == "policy_failed"]
        assert sorted(said) == [(name, level) for name in failed]
    problems = {line["policy"]: line["problem"] for line in first if line["event"] == "policy_failed"}
    assert "spec.maxCount: must be of type integer" in problems["wrong-form"]
    assert "spec.keeplast: there is no such field" in problems["odd-field"]
    assert "spec.ageFrom" in problems["bad-path"]
    assert world.metric("lapse_errors_total", domain="retention", kind="policy") == 2 * len(failed)


async def test_beside_a_keeper_that_cannot_be_understood_nothing_of_its_kind_is_deleted(world: World) -> None:
    await world.things(WIDGET, 5)
    names = await world.runs(5)
    keep = {"count": 1, "where": {"fieldPath": "status..phase", "in": ["Good"]}}
    selector = {"apiVersion": CHAOS_EXPERIMENT_HISTORY.api_version, "kind": CHAOS_EXPERIMENT_HISTORY.kind}
    documents = [
        policy("keeps", keepLast=keep),
        policy("ends", maxCount=2),
        policy("keeps-records", selector=selector, keepLast=keep),
    ]
    retention = world.retention(documents=documents)
    await tick(retention)
    async with served(retention):
        names.append(await world.run())
        await retention.run_once()

        assert len(await world.left(WIDGET)) == 5
        assert await world.left() == names
    assert await world.reason("ends") == await world.reason("history") == "InvalidPolicy"

    keep["where"] = {"fieldPath": "status.phase", "in": ["Good"]}
    await tick(world.retention(documents=documents))

    assert len(await world.left(WIDGET)) == 2
    assert len(await world.left()) == 3


async def test_a_store_that_fails_on_one_kind_is_asked_again_soon(world: World) -> None:
    await world.runs(5)
    is_down = True

    async def fail(kind: Kind[Any]) -> None:
        if kind.kind == "Widget" and is_down:
            raise StoreUnavailableError(problem="overloaded")

    world.before_list = fail
    retention = world.retention(documents=[policy("widgets", maxCount=1)])
    assert await tick(retention) == 60
    assert await world.reason("widgets") == "StoreUnavailable"
    assert await world.last_run("widgets") is None
    assert len(await world.left()) == 3
    is_down = False
    assert await tick(retention) == HOUR
    assert await world.reason("widgets") == "Completed"


async def test_a_store_that_cannot_be_listed_at_all_postpones_everything(world: World) -> None:
    async def fail(_kind: Kind[Any]) -> None:
        raise StoreUnavailableError(problem="down")

    retention = world.retention()
    await tick(retention)
    world.before_list = fail
    with capture_logs() as logs:
        assert await tick(retention) == 60
    assert [line["event"] for line in logs] == ["retention_postponed"]
    assert world.metric("lapse_errors_total", domain="retention", kind="tick") == 1


async def test_a_defect_in_one_kind_is_told_with_its_traceback_and_the_others_go_on(world: World) -> None:
    await world.runs(5)

    async def fail(kind: Kind[Any]) -> None:
        if kind.kind == "Widget":
            raise ZeroDivisionError

    world.before_list = fail
    with capture_logs() as logs:
        await tick(world.retention(documents=[policy("widgets", maxCount=1)]))
    assert await world.reason("widgets") == "Failed"
    assert [line for line in logs if line["event"] == "pass_failed" and line["exc_info"]]
    assert len(await world.left()) == 3


class Denying:
    """The store as somebody sees it who may not delete."""

    database = None

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self.attempts = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        return getattr(self._store, name)

    async def delete(self, *_: object, **__: object) -> None:
        self.attempts += 1
        raise ForbiddenError(problem="cannot delete resource widgets")


async def test_who_may_not_delete_is_told_so_and_does_not_try_everything(world: World) -> None:
    await world.things(WIDGET, 400)
    store: Any = Denying(world.store)
    world.store = store
    world.journal = LogJournal()
    await tick(world.retention(documents=[policy("widgets", maxCount=1)]))

    assert store.attempts == 128
    assert await world.reason("widgets") == "Forbidden"
    assert "cannot delete resource widgets" in str((await world.policy("widgets")).status)
    assert await world.reason("history") == "Completed"


class Frozen(OpenGate):
    """A gate that refuses everything."""

    async def allow(self, domain: str, count: int = 1) -> Grant:
        del domain, count
        return Grant(0, refusal=FreezeReason.FROZEN)


async def test_a_frozen_domain_deletes_nothing_and_the_status_says_what_to_run(world: World) -> None:
    await world.runs(5)
    await tick(world.retention(gate=Frozen()))

    assert len(await world.left()) == 5
    assert await world.reason("history") == "Frozen"
    assert "lapse resume history" in str((await world.policy()).status)


# --- policies of the settings -----------------------------------------------------------------------------------------


async def test_policies_of_the_settings_are_published_changed_and_withdrawn(world: World) -> None:
    await tick(world.retention(documents=[policy("a", maxCount=1, groupBy=["metadata.name"]), policy("b", maxCount=1)]))
    before = await world.policy("a")
    assert before.metadata.labels == {FROM: SETTINGS}
    await tick(world.retention(documents=[policy("a", maxAge="5h")]))
    after = await world.policy("a")

    assert (after.spec.max_count, after.spec.group_by, after.spec.max_age) == (None, (), "5h")
    assert after.metadata.uid == before.metadata.uid
    assert await world.left(RETENTION_POLICY) == ["a", "history"]


async def test_what_is_published_already_is_not_written_again(world: World) -> None:
    documents = [policy("a", maxCount=1, groupBy=["metadata.name"])]
    retention = world.retention(documents=documents)
    await retention.publish()
    version = (await world.policy("a")).metadata.resource_version
    await retention.publish()
    assert (await world.policy("a")).metadata.resource_version == version


async def test_an_object_of_somebody_else_with_the_same_name_is_never_touched_and_stays_in_force(world: World) -> None:
    await world.things(WIDGET, 5)
    theirs = await world.store.create(RETENTION_POLICY, policy("a", maxCount=4))
    retention = world.retention(documents=[policy("a", maxCount=1)])
    with capture_logs() as logs:
        await tick(retention)
        await tick(retention)

    assert (await world.policy("a")).spec == theirs.spec
    assert len(await world.left(WIDGET)) == 4
    said = [(line["policy"], line["log_level"]) for line in logs if line["event"] == "policy_not_published"]
    assert said == [("a", "error"), ("a", "info")]
    await tick(world.retention(metrics=Metrics("2")))
    assert await world.left(RETENTION_POLICY) == ["a", "history"]


async def test_a_policy_that_became_unreadable_in_the_settings_deletes_nothing_by_what_it_said_before(
    world: World,
) -> None:
    await tick(world.retention(documents=[policy("a", maxCount=1)]))
    await world.things(WIDGET, 3)
    await tick(world.retention(documents=[policy("a", maxCount="1")]))

    assert len(await world.left(WIDGET)) == 3
    assert await world.reason("a") == "InvalidPolicy"


async def test_a_stored_policy_of_another_form_does_not_hide_the_others(world: World, tmp_path: Path) -> None:
    await world.things(WIDGET, 3)
    loose = untyped("lapse.dev/v1alpha1", "RetentionPolicy", "retentionpolicies", namespaced=False)
    older = open_embedded(tmp_path / "objects.db", kinds=[loose], clock=world.clock)
    await older.create(loose, policy("odd", maxCount=[]))
    await older.close()
    with capture_logs() as logs:
        runs = await world.retention(documents=[policy("good", maxCount=1)]).run_once()

    assert len(await world.left(WIDGET)) == 1
    assert runs["odd"].reason == "InvalidPolicy"
    assert [line["policy"] for line in logs if line["log_level"] == "warning"] == ["odd"]


async def test_several_processes_publish_at_once_without_an_error(world: World) -> None:
    documents = [policy(f"p{number}", maxCount=1) for number in range(5)]
    many = [world.retention(documents=documents) for number in range(4)]
    await asyncio.gather(*(one.publish() for one in many))
    assert len(await world.left(RETENTION_POLICY)) == 6


async def test_a_policy_that_is_changed_during_its_pass_has_a_status_of_the_generation_that_was_used(
    world: World,
) -> None:
    await world.things(WIDGET, 3)
    retention = world.retention(documents=[policy("a", maxCount=2)])
    await retention.publish()

    async def change(kind: Kind[Any]) -> None:
        if kind.kind == "Widget":
            world.before_list = None
            await world.store.patch(RETENTION_POLICY, ObjectKey(None, "a"), {"spec": {"maxCount": 1}})

    world.before_list = change
    await retention.run_once()
    found = await world.policy("a")
    assert found.status is not None
    assert (found.metadata.generation, found.status.observed_generation) == (2, 1)


async def test_a_policy_that_is_removed_during_its_pass_is_no_error(world: World) -> None:
    await world.things(WIDGET, 3)
    await world.store.create(RETENTION_POLICY, policy("a", maxCount=2))

    async def remove(kind: Kind[Any]) -> None:
        if kind.kind == "Widget":
            world.before_list = None
            await world.store.delete(RETENTION_POLICY, ObjectKey(None, "a"))

    world.before_list = remove
    with capture_logs() as logs:
        await world.retention().run_once()
    assert not [line for line in logs if line["log_level"] in {"warning", "error"}]
