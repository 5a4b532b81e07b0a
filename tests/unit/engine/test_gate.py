"""The safety gate on both stores: a table beside the journal, and a ConfigMap (in the embedded store)."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lapse.core.clock import SystemClock, UnixNs, VirtualClock
from lapse.core.decision import UnknownReason
from lapse.db.sqlite.file import Synchronous
from lapse.engine.journal.port import Outcome
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.running.metrics import Metrics
from lapse.engine.safety.budget import Budget, Budgets
from lapse.engine.safety.freeze import ALL, Freeze, FreezeReason, freeze_row, resume_row
from lapse.engine.safety.gate import TRUST_SECONDS, Grant, SafetyGate
from lapse.engine.safety.sqlite import SQLiteGateStore
from lapse.kube.errors import StoreUnavailableError
from lapse.kube.resources import ObjectKey
from lapse.objects.config_map_gate import CONFIG_MAP, NAME, ConfigMapGateStore
from lapse.objects.embedded import EmbeddedStore, open_embedded
from tests.examples import examples
from tests.unit.engine.harness import NS, play, series

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.engine.safety.freeze import GateStore

DOMAINS = ("things", "others")
KEY = ObjectKey("lapse-system", NAME)
SMALL = Budgets(Budget(20, 100 * NS))


class World:
    """One store, and the processes that use it one after the other."""

    def __init__(self, form: str, objects: EmbeddedStore, clock: VirtualClock) -> None:
        self.form, self.objects, self.clock = form, objects, clock
        self.metrics = Metrics("test")
        self.journal = SQLiteJournal(objects.database)
        self.acts: list[int] = []

    def store(self, budgets: Budgets = SMALL) -> GateStore:
        if self.form == "table":
            return SQLiteGateStore(self.journal, budgets=budgets, domains=DOMAINS)
        return ConfigMapGateStore(self.objects, KEY, domains=DOMAINS, clock=self.clock, journal=self.journal)

    def process(self, budgets: Budgets = SMALL, *, store: GateStore | None = None) -> SafetyGate:
        return SafetyGate(
            store or self.store(budgets),
            budgets=budgets,
            domains=DOMAINS,
            clock=self.clock,
            metrics=self.metrics,
            actor="lapse",
        )

    async def act(self, gate: SafetyGate, domain: str = "things") -> Grant:
        """End something, if it is allowed."""
        grant = await gate.allow(domain)
        if grant.refusal is None:
            await self.ended(domain)
        gate.done(grant, ended=grant.count)
        await gate.release(domain)
        return grant

    async def ended(self, domain: str = "things", *, by: str = "lapse") -> None:
        self.acts.append(self.clock.wall_ns())
        row = freeze_row(domain, Freeze(None, "", by), reason=FreezeReason.BY_PERSON, now=self.clock.wall_ns())
        values = {name: getattr(row, name) for name in row.__struct_fields__}
        await self.journal.append(type(row)(**values | {"outcome": Outcome.ENDED, "uid": f"u{len(self.acts)}"}))

    async def act_until_refused(self, gate: SafetyGate, domain: str = "things") -> int:
        count = 0
        while (await self.act(gate, domain)).refusal is None:
            count += 1
            assert count < 10_000
        return count

    async def freeze(self, name: str, reason: str = "") -> None:
        freeze = Freeze(UnixNs(self.clock.wall_ns()), reason, "cli")
        row = freeze_row(name, freeze, reason=FreezeReason.BY_PERSON, now=self.clock.wall_ns())
        await self.store().freeze(name, freeze, row)

    async def resume(self, name: str) -> list[str]:
        return await self.store().resume(name, resume_row(name, by="cli", now=self.clock.wall_ns()))

    async def thaw(self, name: str) -> None:
        """Take a freeze away behind the product's back, and leave what was spent."""
        if self.form == "table":
            await self.objects.database.write(
                lambda cursor: cursor.execute("UPDATE brakes SET since_ns = NULL WHERE name = ?", (name,))
            )
        else:
            await self.store().load(0)  # makes it, if nobody has
            await self.objects.patch(CONFIG_MAP, KEY, {"data": {f"frozen.{name}": None}})

    def frozen(self, domain: str = "things") -> float:
        return series(self.metrics)[f'lapse_frozen{{domain="{domain}"}}']

    async def rows(self) -> list[tuple[str, str, str, str]]:
        rows = [row for row in reversed(await self.journal.entries()) if row.outcome is not Outcome.ENDED]
        return [(row.domain, row.outcome, row.reason, row.actor) for row in rows]


def open_objects(path: Path, clock: VirtualClock) -> EmbeddedStore:
    return open_embedded(path, kinds=[CONFIG_MAP], clock=clock, synchronous=Synchronous.NORMAL)


@pytest.fixture(params=["table", "config map"])
async def world(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> AsyncIterator[World]:
    objects = open_objects(tmp_path / "gate.db", clock)
    yield World(request.param, objects, clock)
    await objects.close()


@pytest.fixture
async def mapped(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[World]:
    objects = open_objects(tmp_path / "gate.db", clock)
    yield World("config map", objects, clock)
    await objects.close()


# --- the budget ------------------------------------------------------------------------------------------------------


async def test_past_the_budget_the_domain_is_frozen_and_says_so(world: World, caplog: pytest.LogCaptureFixture) -> None:
    gate = world.process()
    assert world.frozen() == 0
    assert await world.act_until_refused(gate) == 20

    assert world.frozen() == 1
    assert await world.rows() == [("things", "frozen", "budget_spent", "lapse")]
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    told: Any = warning
    assert (warning.msg, told.domain, told.run) == ("domain_frozen", "things", "lapse resume things")
    assert told.reason == "the deletion budget in total, 20/1m40s, is spent"


async def test_a_frozen_domain_waits_for_a_person_and_not_for_the_end_of_the_window(world: World) -> None:
    gate = world.process()
    await world.act_until_refused(gate)
    world.clock.advance(10_000)

    grant = await world.act(gate)
    assert grant.refusal is FreezeReason.FROZEN
    assert await world.resume("things") == ["things"]
    world.clock.advance(TRUST_SECONDS)
    assert await world.act_until_refused(gate) == 20
    assert [row[1] for row in await world.rows()] == ["frozen", "resumed", "frozen"]


async def test_who_was_told_to_forget_sees_a_freeze_and_its_end_at_once(world: World) -> None:
    gate = world.process()
    assert (await world.act(gate)).refusal is None
    await world.process().freeze("things", "look", reason=FreezeReason.BY_PERSON)
    gate.forget()
    assert (await world.act(gate)).refusal is FreezeReason.FROZEN
    await world.resume("things")
    gate.forget()
    assert (await world.act(gate)).refusal is None


@pytest.mark.parametrize("most", [20, 100, 1_000])
@pytest.mark.parametrize("batch", [1, 3, 7])
async def test_processes_that_end_things_at_the_same_moment_never_exceed_a_budget(
    world: World, batch: int, most: int
) -> None:
    gates = [world.process(Budgets(Budget(most, 100 * NS))) for _ in range(4)]

    async def work(gate: SafetyGate) -> None:
        while True:
            grant = await gate.allow("things", batch)
            if grant.refusal is not None and grant.refusal is not FreezeReason.BUDGET_RESERVED:
                return
            await SystemClock().sleep(0)  # the others have their turn between the right and the act
            for _ in range(grant.count):
                await world.ended()
            gate.done(grant, ended=grant.count)
            await gate.release("things")

    await asyncio.wait_for(asyncio.gather(*map(work, gates)), 30)
    # A ledger does not tell what is spent from what was only taken: the rests of other processes are lost there.
    assert len(world.acts) == most if world.form == "table" else most - 3 * batch < len(world.acts) <= most
    assert world.frozen() == 1


async def test_what_another_process_has_reserved_is_waited_for_and_freezes_nothing(tmp_path: Path) -> None:
    clock = VirtualClock()
    objects = open_objects(tmp_path / "gate.db", clock)
    world = World("table", objects, clock)
    dead, gate = world.process(), world.process()
    assert (await dead.allow("things", 15)).count == 15  # and nobody hears of it again
    assert await world.act_until_refused(gate) == 5
    grant = await gate.allow("things")
    assert (grant.refusal, world.frozen()) == (FreezeReason.BUDGET_RESERVED, 0)
    clock.advance(20)  # the slice in which they were taken, and one more
    assert await world.act_until_refused(gate) == 15
    assert world.frozen() == 1
    await objects.close()


async def test_two_processes_with_a_rest_each_do_not_wait_for_each_other(tmp_path: Path) -> None:
    clock = VirtualClock()
    objects = open_objects(tmp_path / "gate.db", clock)
    world, budgets = World("table", objects, clock), Budgets(Budget(100, 100 * NS))
    gates = [world.process(budgets) for _ in range(2)]
    # Of a block of ten: the other process counts what is done of it, and all of it as reserved.
    counts = [await act_together(world, gate, 7) for gate in gates]
    for _ in range(80):
        await world.ended(by="somebody")
    clock.advance(TRUST_SECONDS)
    counts += [await act_together(world, gate, 7) for gate in (*gates, *gates)]

    assert counts == [7, 7, 3, 3, 0, 0]
    assert (len(world.acts), world.frozen()) == (100, 1)
    await objects.close()


async def test_who_waits_gives_back_what_another_domain_does_not_need(tmp_path: Path) -> None:
    clock = VirtualClock()
    objects = open_objects(tmp_path / "gate.db", clock)
    world, budgets = World("table", objects, clock), Budgets(Budget(100, 100 * NS))
    gates = [world.process(budgets) for _ in range(2)]
    for gate in gates:
        assert await act_together(world, gate, 7, domain="others") == 7
    for _ in range(80):
        await world.ended(by="somebody")
    clock.advance(TRUST_SECONDS)
    counts = [await act_together(world, gate, 7) for gate in (*gates, *gates, *gates)]

    assert counts == [0, 3, 0, 3, 0, 0]
    assert (len(world.acts), world.frozen()) == (100, 1)
    await objects.close()


async def act_together(world: World, gate: SafetyGate, count: int, *, domain: str = "things") -> int:
    """End so many at once, or as many as are allowed; return how many."""
    grant = await gate.allow(domain, count)
    for _ in range(grant.count):
        await world.ended(domain)
    gate.done(grant, ended=grant.count)
    await gate.release(domain)
    return grant.count


async def test_a_process_that_ends_gives_back_what_it_has_not_done(world: World) -> None:
    budgets = Budgets(Budget(100, 100 * NS))
    for _ in range(20):  # commands, each of which takes a block of ten for one act
        command = world.process(budgets)
        assert (await world.act(command)).refusal is None
        await command.close()
        await command.close()

    assert await world.act_until_refused(world.process(budgets)) == 80


async def test_what_is_under_way_as_a_process_ends_is_not_given_back(world: World) -> None:
    gate = world.process()
    grant = await gate.allow("things", 15)
    await gate.close()
    other = world.process()
    assert await world.act_until_refused(other) == 5
    gate.done(grant, ended=15)


async def test_a_rest_from_before_a_resume_is_not_given_back_after_it(world: World) -> None:
    budgets = Budgets(Budget(100, 100 * NS))
    before, after = world.process(budgets), world.process(budgets)
    await world.act(before)
    await world.freeze("things")
    await world.resume("things")
    for _ in range(5):
        await world.act(after)
    await before.close()
    await after.close()

    assert await world.act_until_refused(world.process(budgets)) == 95


async def test_nothing_is_frozen_by_a_reading_from_before_a_resume(world: World) -> None:
    gate, other = world.process(), world.process()
    for _ in range(20):
        await world.act(gate)
    await other.look()
    assert (await world.act(gate)).refusal is FreezeReason.BUDGET_SPENT
    await world.resume("things")

    assert (await world.act(other)).refusal is None
    assert [row[1] for row in await world.rows()] == ["frozen", "resumed"]


async def test_a_freeze_takes_the_place_of_no_other_that_was_not_seen_yet(world: World) -> None:
    gate, other = world.process(), world.process()
    for _ in range(20):
        await world.act(gate)
    await other.look()
    await world.freeze("things", "look at it")

    assert (await world.act(other)).refusal is FreezeReason.FROZEN
    state = await world.store().load(world.clock.wall_ns())
    assert state.frozen["things"].reason == "look at it"


async def test_a_restart_neither_thaws_nor_refills(world: World) -> None:
    gate = world.process()
    for _ in range(12):
        await world.act(gate)
    again = world.process()
    spent = await world.act_until_refused(again)

    # Where what was taken is written down, a crash loses the rest of a block, which is two here.
    assert spent == 8 if world.form == "table" else 6 <= spent <= 8
    assert (await world.act(world.process())).refusal is FreezeReason.FROZEN


async def test_resuming_begins_a_new_count_at_once(world: World) -> None:
    gate = world.process()
    await world.act_until_refused(gate)
    await world.resume("things")
    world.clock.advance(TRUST_SECONDS)

    assert await world.act_until_refused(gate) == 20
    assert await world.act_until_refused(world.process(), "others") == 0  # the total is spent again
    assert await world.resume(ALL) == ["others", "things"]
    assert await world.act_until_refused(world.process(), "others") == 20


async def test_the_budget_of_a_domain_does_not_stop_another(world: World) -> None:
    gate = world.process(budgets := Budgets(Budget(30, 100 * NS), {"things": Budget(10, 100 * NS)}))
    assert await world.act_until_refused(gate) == 10
    assert await world.act_until_refused(gate, "others") == 20

    assert (world.frozen("things"), world.frozen("others")) == (1, 1)
    state = await world.store(budgets).load(world.clock.wall_ns())
    assert state.frozen["things"].reason == "the deletion budget of things, 10/1m40s, is spent"
    assert state.frozen["others"].reason == "the deletion budget in total, 30/1m40s, is spent"


async def test_without_a_budget_nothing_is_counted_or_written(world: World) -> None:
    gate = world.process(Budgets())
    for _ in range(5_000):
        gate.done(await gate.allow("things"), ended=1)

    assert (await world.store(Budgets()).load(0)).spent == {}


async def test_what_was_spent_comes_back_when_its_slice_has_left_the_window(world: World) -> None:
    start = SMALL.total.slice_end(world.clock.wall_ns()) + 1
    world.clock.advance(ns=start - world.clock.wall_ns())
    assert await world.act_until_refused(world.process()) == 20
    await world.thaw("things")
    world.clock.advance(109, ns=NS - 2)  # a slice is ten seconds: its last moment is still in the window
    assert await world.act_until_refused(world.process()) == 0
    await world.thaw("things")
    world.clock.advance(ns=1)

    assert await world.act_until_refused(world.process()) == 20


async def test_what_came_to_nothing_is_not_spent(world: World) -> None:
    gate = world.process()
    for _ in range(100):
        grant = await gate.allow("things")
        assert grant.refusal is None
        gate.done(grant, ended=0)

    assert await world.act_until_refused(gate) == 20


async def test_a_batch_gets_what_is_left_and_the_next_one_nothing(world: World) -> None:
    gate = world.process()
    first = await gate.allow("things", 15)
    second = await gate.allow("things", 15)
    waiting = asyncio.create_task(gate.allow("things", 15))
    await world.clock.sleep(0)
    for grant in (first, second):
        for _ in range(grant.count):
            await world.ended()
        assert not waiting.done()
        gate.done(grant, ended=grant.count)
    third = await waiting

    assert [first.count, second.count, third.count] == [15, 5, 0]
    assert third.refusal is FreezeReason.BUDGET_SPENT


async def test_nobody_is_disturbed_while_what_is_under_way_may_come_to_nothing(world: World) -> None:
    gate = world.process()
    grants = [await gate.allow("things") for _ in range(20)]
    waiting = [asyncio.create_task(gate.allow("things")) for _ in range(5)]
    await world.clock.sleep(0)
    for grant in grants[:4]:  # from blocks that others have taken the place of
        gate.done(grant, ended=0)
    for grant in grants[4:]:
        await world.ended()
        gate.done(grant, ended=1)
    for task in asyncio.as_completed(waiting[:4]):
        grant = await task
        assert grant.refusal is None
        await world.ended()
        gate.done(grant, ended=1)

    assert (await waiting[4]).refusal is FreezeReason.BUDGET_SPENT
    assert len(world.acts) == 20


async def test_acts_under_way_are_counted_before_the_journal_knows_them(world: World) -> None:
    gate = world.process()
    grants = [await gate.allow("things") for _ in range(15)]
    world.clock.advance(TRUST_SECONDS)  # everything is read again
    for _ in range(5):
        assert (await world.act(gate)).refusal is None
    one_more = asyncio.create_task(world.act(gate))
    for grant in grants:
        await world.clock.sleep(0)
        assert not one_more.done()
        await world.ended()
        gate.done(grant, ended=1)

    assert (await one_more).refusal is FreezeReason.BUDGET_SPENT


async def test_many_at_once_get_no_more_than_the_budget(world: World) -> None:
    gate = world.process()
    grants = await asyncio.gather(*(world.act(gate) for _ in range(200)))

    assert sum(grant.count for grant in grants) == 20
    assert len(await world.rows()) == 1


async def test_a_trickle_does_not_use_up_blocks(world: World) -> None:
    budgets = Budgets(Budget(1_000, 100 * NS))
    gate = world.process(budgets)
    for _ in range(100):  # one every ten seconds: each in a slice of its own, each with a block of its own
        assert (await world.act(gate)).refusal is None
        world.clock.advance(10)


@pytest.mark.parametrize("budgets", [SMALL, Budgets(domains={"things": Budget(20, 100 * NS)})])
async def test_what_people_do_themselves_counts_where_the_journal_does(world: World, budgets: Budgets) -> None:
    for by in ("cli (ann)", "http token 7", "cli"):
        await world.ended(by=by)

    # On a cluster no journal can be read, and what operators have ended is counted in the ConfigMap.
    assert await world.act_until_refused(world.process(budgets)) == (17 if world.form == "table" else 20)


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    form=st.sampled_from(["table", "config map"]),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("act"), st.sampled_from([1, 2, 29, 40])),
            st.tuples(st.just("wait"), st.sampled_from([1, 5, 9, 10, 11, 50, 85, 90, 95, 99, 100])),
            st.tuples(st.just("restart"), st.just(0)),
            st.tuples(st.just("vanish"), st.integers(1, 5)),
        ),
        min_size=5,
        max_size=40,
    ),
)
async def test_in_no_window_is_more_done_than_allowed_over_any_restarts(
    form: str, steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    clock, budget = VirtualClock(), Budget(30, 100 * NS)
    objects = open_objects(tmp_path_factory.mktemp("gate") / "o.db", clock)
    try:
        world = World(form, objects, clock)
        gate = world.process(Budgets(budget))
        for what, number in steps:
            if what == "act":
                for _ in range(number):
                    await world.act(gate)
            elif what == "wait":
                clock.advance(number, ns=number)
            elif what == "restart":
                gate = world.process(Budgets(budget))
            else:  # it dies after the act and, where these are one, its row, and before it could take note
                for _ in range((await gate.allow("things", number)).count):
                    await world.ended()
                gate = world.process(Budgets(budget))
            await world.thaw("things")  # by hand, so that only the count can stop it
    finally:
        await objects.close()
    for end in world.acts:
        assert sum(end - budget.window_ns < act <= end for act in world.acts) <= 30


# --- freezing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["things", ALL])
async def test_a_freeze_by_a_person_is_seen_while_it_works(world: World, name: str) -> None:
    gate = world.process(Budgets())
    assert (await world.act(gate)).refusal is None
    await world.freeze(name, "look at this first")
    world.clock.advance(TRUST_SECONDS)

    assert (await world.act(gate)).refusal is FreezeReason.FROZEN
    assert await gate.objection("things") is FreezeReason.FROZEN
    assert gate.pause("things") == TRUST_SECONDS
    assert (await world.act(gate, "others")).refusal is (FreezeReason.FROZEN if name == ALL else None)
    assert (world.frozen("things"), world.frozen("others")) == (1, name == ALL)


async def test_a_frozen_domain_stays_so_while_another_one_works(world: World) -> None:
    gate = world.process()
    await world.act(gate)
    await world.freeze("things")
    world.clock.advance(TRUST_SECONDS)
    assert (await world.act(gate, "others")).refusal is None  # which has read everything again

    assert (await world.act(gate)).refusal is FreezeReason.FROZEN


async def test_what_is_frozen_twice_goes_on_when_both_are_resumed(world: World) -> None:
    await world.freeze("things")
    await world.freeze(ALL)
    assert await world.resume("things") == ["things"]
    assert (await world.act(world.process())).refusal is FreezeReason.FROZEN
    assert await world.resume("others") == []
    assert await world.resume(ALL) == [ALL]

    assert (await world.act(world.process())).refusal is None


async def test_a_look_shows_in_the_metrics_what_is_frozen(world: World) -> None:
    await world.freeze(ALL)
    gate = world.process()
    await gate.look()
    assert (world.frozen("things"), world.frozen("others")) == (1, 1)
    await world.resume(ALL)
    world.clock.advance(TRUST_SECONDS)
    await gate.look()

    assert (world.frozen("things"), world.frozen("others")) == (0, 0)


async def test_what_is_left_of_a_budget_is_told_and_comes_back_with_time_alone(world: World) -> None:
    gate = world.process(Budgets(Budget(40, 100 * NS), {"things": Budget(20, 100 * NS)}))

    def left() -> dict[str, float]:
        prefix = "lapse_deletion_budget_remaining"
        return {name.removeprefix(prefix): value for name, value in series(world.metrics).items() if prefix in name}

    both = {'{domain="things"}': 20, '{domain="all"}': 40}
    assert left() == both  # nothing for what has no limit, and nothing is spent before the first look
    assert series(world.metrics)['lapse_deletion_budget{domain="things"}'] == 20

    for _ in range(3):
        await world.act(gate)
    assert left() == {'{domain="things"}': 17, '{domain="all"}': 37}
    await world.act_until_refused(gate)
    assert left() == {'{domain="things"}': 0, '{domain="all"}': 20}

    world.clock.advance(110)
    assert left() == both


async def test_nothing_is_read_while_a_block_lasts(world: World) -> None:
    store, looks = world.store(big := Budgets(Budget(10_000, 100 * NS))), 0
    load = store.load

    async def counted(now: int, **how: str) -> Any:  # noqa: ANN401 - as the original
        nonlocal looks
        looks += 1
        return await load(now, **how)

    play(store, load=counted)
    gate = world.process(big, store=store)
    for _ in range(1_000):
        await gate.objection("things")
        gate.done(await gate.allow("things"), ended=1)

    assert looks == 1


# --- doubt -----------------------------------------------------------------------------------------------------------


async def test_what_cannot_be_read_ends_nothing_and_is_asked_again_with_back_off(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    store, asked, broken = world.store(), 0, True
    load = store.load

    async def failing(now: int, **how: str) -> Any:  # noqa: ANN401 - as the original
        nonlocal asked
        asked += 1
        if broken:
            raise StoreUnavailableError(problem="it restarts")
        return await load(now, **how)

    play(store, load=failing)
    gate = world.process(store=store)
    for _ in range(60):
        assert (await world.act(gate)).refusal is UnknownReason.UNREADABLE_SIGNAL
        pause = gate.pause("things")
        assert pause is not None
        assert pause >= 1
        world.clock.advance(1)
    assert 5 <= asked <= 9
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == asked
    told: Any = warnings[0]
    assert (told.msg, told.effect) == ("brakes_unreadable", "nothing is ended until the freezes can be read")

    broken = False
    world.clock.advance(60)
    assert (await world.act(gate)).refusal is None
    assert gate.pause("things") is None


async def put(world: World, data: dict[str, str]) -> None:
    meta = {"name": KEY.name, "namespace": KEY.namespace}
    await world.objects.create(CONFIG_MAP, {"metadata": meta, "data": data})


@pytest.mark.parametrize(
    "data", [{}, {"frozen.things": ""}, {"frozen.things": "False"}, {"spent": "{}"}, {"spent": ""}]
)
async def test_a_config_map_that_freezes_nothing(mapped: World, data: dict[str, str]) -> None:
    await put(mapped, data)

    assert (await mapped.act(mapped.process())).refusal is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"frozen.things": "disk is full"}, "disk is full"),
        ({"frozen.things": "true"}, "true"),
        ({"frozen.all": '{"reason": "mine"}'}, '{"reason": "mine"}'),
        ({"frozen.thigns": "x"}, "frozen.thigns in the ConfigMap lapse-system/lapse-brakes names no domain"),
    ],
)
async def test_a_person_freezes_with_any_text(mapped: World, data: dict[str, str], reason: str) -> None:
    await put(mapped, data)

    assert (await mapped.act(mapped.process())).refusal is FreezeReason.FROZEN
    freeze = (await mapped.store().load(0)).freeze_of("things")
    assert freeze is not None
    assert freeze.reason.startswith(reason)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"freeze.things": "x"}, "it has the key freeze.things, expected frozen.DOMAIN or spent"),
        ({"spent": "20"}, "spent is not a ledger"),
        ({"spent": '{"all": {"soon": 1}}'}, "spent is not a ledger"),
        ({"spent": '{"all": {"1": -5}}'}, "spent holds a number below zero"),
    ],
)
async def test_a_config_map_that_is_not_understood_ends_nothing_until_it_is_written_anew(
    mapped: World, data: dict[str, str], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    await put(mapped, data)
    assert (await mapped.act(mapped.process())).refusal is UnknownReason.UNREADABLE_SIGNAL
    told: Any = caplog.records[-1]
    assert problem in told.problem
    assert told.problem.endswith("try lapse resume --cluster all.")

    await mapped.resume(ALL)
    assert (await mapped.act(mapped.process())).refusal is None


async def test_of_two_processes_that_both_work_none_spends_what_the_other_has(mapped: World) -> None:
    first, second = mapped.process(), mapped.process()
    counts = [0, 0]
    for _ in range(30):
        for number, gate in enumerate((first, second)):
            counts[number] += (await mapped.act(gate)).refusal is None

    assert sum(counts) == 20
    assert min(counts) > 0


async def test_a_write_that_always_comes_too_late_ends_nothing(mapped: World) -> None:
    store: Any = mapped.store()
    spend = store.spend

    async def too_late(state: Any, spent: Any, **how: Any) -> Any:  # noqa: ANN401 - as the original
        await mapped.objects.patch(CONFIG_MAP, KEY, {"metadata": {"annotations": {"n": str(len(writes))}}})
        writes.append(1)
        return await spend(state, spent, **how)

    writes: list[int] = []
    store.spend = too_late
    gate = mapped.process(store=store)

    assert (await mapped.act(gate)).refusal is UnknownReason.UNREADABLE_SIGNAL
    assert 2 <= len(writes) <= 20


async def test_what_comes_to_nothing_while_a_block_is_taken_is_not_lost(world: World) -> None:
    store: Any = world.store()
    spend = store.spend
    grants: list[Grant] = []

    async def slow(state: Any, spent: Any, **how: Any) -> Any:  # noqa: ANN401 - as the original
        answer = await spend(state, spent, **how)
        while grants:
            gate.done(grants.pop(), ended=0)
        return answer

    store.spend = slow
    gate = world.process(store=store)
    for _ in range(200):
        grant = await gate.allow("things")
        assert grant.refusal is None
        grants.append(grant)
    while grants:
        gate.done(grants.pop(), ended=0)

    assert await world.act_until_refused(gate) == 20


async def test_a_block_is_not_spent_beyond_its_slice(mapped: World) -> None:
    end = SMALL.total.slice_end(mapped.clock.wall_ns())
    mapped.clock.advance(ns=end - mapped.clock.wall_ns())
    gate = mapped.process()
    await mapped.act(gate)  # one of a block of two
    mapped.clock.advance(ns=1)
    await mapped.act(gate)

    spent = (await mapped.store().load(0)).spent["all"]
    assert spent == {end: 1, end + 10 * NS: 2}


async def test_a_freeze_is_written_for_people_too(mapped: World) -> None:
    await mapped.freeze("things", "look at this first")

    found = await mapped.objects.get(CONFIG_MAP, KEY)
    assert found.data is not None
    assert json.loads(found.data["frozen.things"]) == {
        "since": "2023-11-14T22:13:20Z", "reason": "look at this first", "by": "cli",
    }  # fmt: skip


async def test_a_config_map_that_is_deleted_is_made_anew(mapped: World) -> None:
    gate = mapped.process()
    await mapped.act(gate)
    await mapped.objects.delete(CONFIG_MAP, KEY)

    assert await mapped.act_until_refused(gate) >= 18
    assert mapped.frozen() == 1
