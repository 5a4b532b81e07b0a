"""What is frozen and what was spent, on PostgreSQL: one word and one count for all machines."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from lapse.core.clock import UnixNs, VirtualClock
from lapse.db.postgres.pool import Postgres
from lapse.engine.journal.port import Entry, Outcome
from lapse.engine.journal.postgres import PostgresJournal
from lapse.engine.running.metrics import Metrics
from lapse.engine.safety.budget import Budget, Budgets
from lapse.engine.safety.freeze import ALL, CLOCK, Freeze, FreezeReason, freeze_row, resume_row
from lapse.engine.safety.gate import SafetyGate
from lapse.engine.safety.postgres import PostgresGateStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.server("postgres")
SHARED = "others"
"""A domain whose things are in the database."""
DOMAINS = ("things", SHARED)


class Machine:
    """One of those that share a database."""

    def __init__(self, database: Postgres, clock: VirtualClock, budgets: Budgets, folder: str) -> None:
        self.clock, self.journal = clock, PostgresJournal(database, store=folder, shared=[SHARED])
        self.store = PostgresGateStore(self.journal, budgets=budgets, domains=DOMAINS)
        self.gate = SafetyGate(
            self.store,
            budgets=budgets,
            domains=DOMAINS,
            clock=clock,
            metrics=Metrics("test"),
            actor="lapse",
            trust_seconds=0,
        )

    async def end(self, count: int, domain: str = "things", *, actor: str = "lapse") -> int:
        """End as many as are allowed of ``count``."""
        grant = await self.gate.allow(domain, count)
        if grant.count:
            await self.journal.append(*[self.row(domain, actor)] * grant.count)
        self.gate.done(grant, ended=grant.count)
        await self.gate.release(domain)
        return grant.count

    def row(self, domain: str, actor: str) -> Entry:
        return Entry(
            time_ns=self.clock.wall_ns(),
            domain=domain,
            address="workspace/a",
            uid="a",
            version="1",
            verdict="due",
            reason="standby_ttl_expired",
            anchor_ns=None,
            policy="",
            actor=actor,
            outcome=Outcome.ENDED,
        )


class Machines:
    """Several, one after the other."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self._url, self._stack = url, stack
        self.clock = VirtualClock()

    async def another(self, budgets: Budgets, folder: str = "") -> Machine:
        database = Postgres(self._url, connections=2)
        await database.open()
        self._stack.push_async_callback(database.close)
        return Machine(database, self.clock, budgets, folder)


@pytest.fixture
async def machines(database: str) -> AsyncIterator[Machines]:
    async with AsyncExitStack() as stack:
        yield Machines(database, stack)


FEW = Budgets(domains={"things": Budget.parse("5/1h")})


async def test_two_machines_spend_one_budget_and_a_restart_does_not_fill_it(machines: Machines) -> None:
    one, other = await machines.another(FEW), await machines.another(FEW)

    assert [await one.end(2), await other.end(2)] == [2, 2]
    assert await (await machines.another(FEW)).end(9) == 1
    assert (await other.gate.allow("things")).refusal is FreezeReason.BUDGET_SPENT
    assert await one.gate.objection("things") is FreezeReason.FROZEN, "all of them see it"
    assert await one.gate.objection("others") is None
    assert [row.reason for row in await one.journal.entries(domain="things", limit=1)] == ["budget_spent"]


async def test_machines_with_a_rest_each_do_not_wait_for_each_other(machines: Machines) -> None:
    budgets = Budgets(domains={"things": Budget.parse("100/1h")})
    one, other = await machines.another(budgets), await machines.another(budgets)
    counts = [await machine.end(7) for machine in (one, other)]
    await one.journal.append(*[one.row("things", "cli (ann)")] * 80)

    assert counts + [await machine.end(7) for machine in (one, other, one)] == [7, 7, 3, 3, 0]
    assert await one.gate.objection("things") is FreezeReason.FROZEN


async def test_a_machine_that_stops_gives_back_what_it_has_not_done(machines: Machines) -> None:
    budgets = Budgets(domains={"things": Budget.parse("100/1h")})
    for _ in range(10):
        one = await machines.another(budgets)
        assert await one.end(1) == 1
        await one.gate.close()

    assert await (await machines.another(budgets)).end(100) == 90


async def test_what_was_spent_comes_back_when_the_window_is_over(machines: Machines) -> None:
    one = await machines.another(FEW)
    assert await one.end(5) == 5
    machines.clock.advance(2 * 3600)

    assert await one.end(5) == 5


async def test_the_total_counts_all_domains_and_what_people_do_themselves(machines: Machines) -> None:
    one = await machines.another(Budgets(Budget.parse("5/1h")))
    await one.journal.append(one.row("things", "cli (ann)"))

    assert [await one.end(3, "things"), await one.end(3, "others")] == [3, 1]


async def test_of_what_is_in_a_folder_each_folder_has_its_own_budget_and_its_own_freezes(machines: Machines) -> None:
    budgets = Budgets(domains={"things": Budget.parse("5/1h"), "others": Budget.parse("5/1h")})
    one, other = await machines.another(budgets, folder="a"), await machines.another(budgets, folder="b")

    assert [await one.end(9, "things"), await other.end(9, "things")] == [5, 5]
    assert [await one.end(3, SHARED), await other.end(9, SHARED)] == [3, 2], "what is in the database is for all"
    assert (await one.gate.allow("things")).refusal is FreezeReason.BUDGET_SPENT
    assert set((await other.store.load(machines.clock.wall_ns())).frozen) == set()
    assert {row.address for row in await one.journal.entries(domain="things")} == {"workspace/a", ""}
    assert len(await one.journal.entries(domain=SHARED)) == len(await other.journal.entries(domain=SHARED)) == 5
    assert len(await other.journal.entries(domain="things")) == 5, "none of the other folder"


async def test_what_a_person_freezes_for_all_stops_all_machines_and_anybody_resumes_it(machines: Machines) -> None:
    one, other = await machines.another(FEW, folder="a"), await machines.another(FEW, folder="b")
    now = machines.clock.wall_ns()
    freeze = Freeze(UnixNs(now), "stop", "ann")
    await one.store.freeze(ALL, freeze, freeze_row(ALL, freeze, reason=FreezeReason.BY_PERSON, now=now))

    assert await other.gate.objection("things") is FreezeReason.FROZEN
    assert await other.store.resume(ALL, resume_row(ALL, by="bob", now=now)) == [ALL]
    assert await one.gate.objection("things") is None


async def test_the_clock_of_a_machine_stops_that_machine_and_is_resumed_from_there(machines: Machines) -> None:
    one, other = await machines.another(FEW, folder="a"), await machines.another(FEW, folder="b")
    now = machines.clock.wall_ns()
    await one.gate.freeze(SHARED, "the clock is 3d ahead", reason=FreezeReason.CLOCK_JUMPED)
    await one.store.write_note(CLOCK, "mine")

    assert await other.gate.objection(SHARED) is None
    assert await other.store.read_note(CLOCK) is None
    assert await other.store.resume(ALL, resume_row(ALL, by="ann", now=now)) == []
    assert await one.gate.objection(SHARED) is FreezeReason.FROZEN
    assert await one.store.resume(SHARED, resume_row(SHARED, by="ann", now=now)) == [SHARED]
    assert await one.gate.objection(SHARED) is None
    assert await one.store.read_note(CLOCK) is None


async def test_a_freeze_of_a_person_stays_when_the_clock_is_confirmed(machines: Machines) -> None:
    one = await machines.another(FEW, folder="a")
    now = machines.clock.wall_ns()
    await one.gate.freeze(SHARED, "the clock is 3d ahead", reason=FreezeReason.CLOCK_JUMPED)
    freeze = Freeze(UnixNs(now), "audit", "ann")
    await one.store.freeze(SHARED, freeze, freeze_row(SHARED, freeze, reason=FreezeReason.BY_PERSON, now=now))

    await one.gate.thaw(SHARED, "the clock is 3d ahead")
    assert (await one.store.load(now)).frozen[SHARED].reason == "audit"


@pytest.mark.parametrize(
    ("outcome", "counted"), [(None, 5), (Outcome.FAILED, 5), (Outcome.ENDED, 5), (Outcome.CHANGED, 0)]
)
async def test_what_may_have_been_done_is_counted(machines: Machines, outcome: Outcome | None, counted: int) -> None:
    one = await machines.another(FEW, folder="a")
    for number in range(5):
        begun = replace(one.row("things", "lapse"), outcome=Outcome.INTENT, attempt=f"t{number}")
        await one.journal.append(begun, *([] if outcome is None else [replace(begun, outcome=outcome)]))

    assert await one.end(9, "things") == 5 - counted


async def test_the_budget_of_a_domain_counts_what_people_do_themselves_in_it(machines: Machines) -> None:
    one = await machines.another(FEW)
    await one.journal.append(
        one.row("things", "cli (ann)"), one.row("things", "http token 7"), one.row("others", "cli")
    )

    assert await one.end(9) == 3


async def test_a_freeze_is_seen_by_all_until_it_is_resumed_and_then_acts_count_anew(machines: Machines) -> None:
    one, other = await machines.another(FEW), await machines.another(FEW)
    assert await one.end(5) == 5
    now = machines.clock.wall_ns()
    freeze = Freeze(UnixNs(now), "enough", "ann")
    await one.store.freeze("things", freeze, freeze_row("things", freeze, reason=FreezeReason.BY_PERSON, now=now))

    assert await other.gate.objection("things") is FreezeReason.FROZEN
    assert (await other.store.load(now)).frozen == {"things": freeze}
    assert await other.store.resume("others", resume_row("others", by="ann", now=now)) == []
    assert await other.store.resume("things", resume_row("things", by="ann", now=now)) == ["things"]
    assert await one.end(9) == 5
    outcomes = [row.outcome for row in await one.journal.entries() if row.outcome is not Outcome.ENDED]
    assert outcomes == [Outcome.RESUMED, Outcome.FROZEN]


async def test_all_is_every_domain(machines: Machines) -> None:
    one = await machines.another(FEW)
    now = machines.clock.wall_ns()
    freeze = Freeze(UnixNs(now), "", "ann")
    await one.store.freeze(ALL, freeze, freeze_row(ALL, freeze, reason=FreezeReason.BY_PERSON, now=now))

    assert [await one.gate.objection(domain) for domain in DOMAINS] == [FreezeReason.FROZEN] * 2
    assert await one.store.resume(ALL, resume_row(ALL, by="ann", now=now)) == [ALL]
    assert await one.gate.objection("things") is None
