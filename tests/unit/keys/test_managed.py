"""Keys in the verbs of every domain: explained, extended and counted, never named; the rest is refused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lapse
from lapse.core.believed_clock import BelievedClock
from lapse.core.clock import UnixNs, VirtualClock
from lapse.core.decision import Due, DueReason, Keep, KeepReason
from lapse.core.timestamps import to_timestamp
from lapse.domains import REGISTRY
from lapse.engine.domain import decided
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.plans.plan import PlanCount
from lapse.engine.plans.planner import NoSuchPolicyError, NotCountedError
from lapse.engine.registry import DomainVerb, UnsupportedVerbError
from lapse.engine.running.metrics import Metrics
from lapse.engine.safety.budget import Budgets
from lapse.engine.safety.gate import OpenGate
from lapse.engine.safety.holds import Hold
from lapse.engine.safety.sqlite import SQLiteGateStore
from lapse.engine.service import AnotherThingError, ExtensionError, LocalService, NothingThereError
from lapse.engine.verbs.contract import (
    ApplyRequest,
    DeleteRequest,
    ExtendRequest,
    ForecastRequest,
    FreezeRequest,
    HoldRequest,
    PlanRequest,
    ReleaseRequest,
    WhyRequest,
)
from lapse.engine.verbs.place import Caller, Place
from lapse.engine.view import Moment, encode
from lapse.keys.backends.layout import Prefix
from lapse.keys.errors import InvalidTTLError
from lapse.keys.managed import KeyOverError, ManagedKeys
from tests.unit.engine.harness import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.engine.domain import Candidate, ManagedDomain
    from lapse.keys.aio import AsyncAppKeys, AsyncKeys

SECOND = 10**9
HOUR = 3600
NAME, VALUE = "alpha:ABC123", "device:XYZ789"
ADDRESS = f"key/7/{NAME}"


class World(NamedTuple):
    """A store with keys, and the verbs on it."""

    keys: AsyncKeys
    domain: ManagedKeys
    verbs: LocalService
    clock: VirtualClock
    store_clock: VirtualClock
    journal: SQLiteJournal

    @property
    def app(self) -> AsyncAppKeys:
        return self.keys.app(7)

    @property
    def now(self) -> int:
        return self.clock.wall_ns()

    async def found(self) -> Candidate[UnixNs]:
        candidate = await self.domain.find(REGISTRY.parse(ADDRESS))
        assert candidate is not None
        return candidate


@pytest.fixture(params=["memory://", "memory://?buckets=3", "file://{folder}/keys.db?sync=normal"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    clock, store_clock = VirtualClock(), VirtualClock()
    record = open_store(tmp_path / "record.db", clock)
    journal = SQLiteJournal(record.database)
    async with lapse.open_keys_async(request.param.format(folder=tmp_path), clock=store_clock, sweep=False) as keys:
        domain = ManagedKeys(keys)
        managed: ManagedDomain[UnixNs] = domain
        place = Place(
            name="here",
            id="1",
            clock=BelievedClock(clock),
            registry=REGISTRY,
            domains={"keys": managed},
            journal=journal,
            gate=OpenGate(),
            freezes=SQLiteGateStore(journal, budgets=Budgets(), domains=["requests"]),
            metrics=Metrics("test"),
        )
        yield World(keys, domain, LocalService(place, Caller("user ann")), clock, store_clock, journal)
    await record.close()


# --- why --------------------------------------------------------------------------------------------------------------


async def test_a_live_key_is_explained_without_its_value(world: World) -> None:
    await world.app.put(NAME, VALUE, HOUR)

    told = await world.verbs.why(WhyRequest(address=ADDRESS))

    assert (told.verdict, told.because, told.deadline) == ("keep", "its time is not over", world.now + HOUR * SECOND)
    assert [(rule.rule, rule.action, rule.wins) for rule in told.rules] == [
        ("absent from the end of its TTL on", "expire", True)
    ]
    assert told.saved_by == [f"lapse extend {ADDRESS} 2h"]
    assert told.undo == "no: names and values of keys are secrets, of which no copy is kept"
    assert told.facts == {"clock": world.keys.backend.capabilities.clock}
    assert (told.anchor, told.hold, told.next_check, told.journal) == (None, None, None, [])
    assert VALUE.encode() not in encode(told)


async def test_a_key_is_due_at_the_instant_of_its_expiry(world: World) -> None:
    await world.app.put(NAME, VALUE, 10)
    candidate = await world.found()
    expiry = world.now + 10 * SECOND

    before = decided(world.domain, candidate, UnixNs(expiry - 1))
    at = decided(world.domain, candidate, UnixNs(expiry))

    assert (before.verdict, before.deadline) == (Keep(KeepReason.NOT_YET), expiry)
    assert (at.verdict, at.deadline) == (Due("expire", DueReason.TTL_EXPIRED, UnixNs(expiry)), expiry)
    assert (await world.verbs.why(WhyRequest(address=ADDRESS, at="10s"))).verdict == "due"


@pytest.mark.parametrize("passed", [None, 10])
async def test_a_key_that_is_absent_or_over_is_not_there(world: World, passed: int | None) -> None:
    if passed is not None:
        await world.app.put(NAME, VALUE, passed)
        world.store_clock.advance(passed)

    for ask in (
        lambda: world.verbs.why(WhyRequest(address=ADDRESS)),
        lambda: world.verbs.extend(ExtendRequest(address=ADDRESS, time="2h")),
    ):
        with pytest.raises(NothingThereError):
            await ask()


async def test_what_identifies_a_key_tells_nothing_of_it_and_changes_with_its_expiry(world: World) -> None:
    await world.app.put(NAME, VALUE, 10)
    first = await world.found()
    await world.app.touch(NAME, 20)
    second = await world.found()
    await world.keys.app(8).put("another", "value", 20)
    other = await world.domain.find(REGISTRY.parse("key/8/another"))

    assert other is not None
    assert first.uid != second.uid == other.uid


async def test_a_key_that_has_got_another_expiry_is_not_extended_for_the_one_that_was_seen(world: World) -> None:
    await world.app.put(NAME, VALUE, HOUR)
    seen = (await world.verbs.why(WhyRequest(address=ADDRESS))).uid
    await world.app.touch(NAME, 2 * HOUR)
    now = await world.found()

    with pytest.raises(AnotherThingError, match=ADDRESS):
        await world.verbs.extend(ExtendRequest(address=ADDRESS, time="2h", uid=seen))
    assert await world.found() == now
    await world.verbs.extend(ExtendRequest(address=ADDRESS, time="2h", uid=now.uid))
    assert await world.found() != now


async def test_a_key_is_not_called_frozen_when_everything_is(world: World) -> None:
    await world.app.put(NAME, VALUE, HOUR)
    await world.verbs.freeze(FreezeRequest(domain="all", reason="audit"))

    assert (await world.verbs.why(WhyRequest(address=ADDRESS))).frozen is None


# --- extend -----------------------------------------------------------------------------------------------------------


async def expiry_of(world: World) -> int:
    item = await world.app.get_item(NAME)
    assert item is not None
    assert item.value == VALUE
    return item.expires_ms * 1_000_000


async def test_an_extension_moves_the_expiry_and_leaves_the_value(world: World) -> None:
    await world.app.put(NAME, VALUE, HOUR)
    before = await expiry_of(world)
    world.clock.advance(100)
    world.store_clock.advance(100)

    told = await world.verbs.extend(ExtendRequest(address=ADDRESS, time="2h"))

    assert told.deadline == await expiry_of(world) == before + 2 * HOUR * SECOND


async def test_what_an_extension_tells_is_what_the_key_has_and_why_tells(world: World) -> None:
    world.clock.advance(ns=SECOND * 3 // 10)
    world.store_clock.advance(ns=SECOND * 3 // 10)
    await world.app.put(NAME, VALUE, HOUR)
    told = await world.verbs.extend(ExtendRequest(address=ADDRESS, time="2h"))
    why = await world.verbs.why(WhyRequest(address=ADDRESS))

    assert told.deadline == told.extended_until == why.deadline == await expiry_of(world)


async def test_status_gives_keys_no_budget_because_nothing_ends_them(world: World) -> None:
    (told,) = (await world.verbs.status()).domains
    assert (told.name, told.budget) == ("keys", None)


@given(written=st.integers(0, 3 * SECOND), passed=st.integers(0, 9 * SECOND), more=st.integers(1, 10**15))
def test_an_extension_ends_less_than_a_second_after_what_was_asked(written: int, passed: int, more: int) -> None:
    async def check() -> None:
        clock = VirtualClock()
        async with lapse.open_keys_async("memory://", clock=clock, sweep=False) as keys:
            clock.advance(ns=written)
            await keys.app(7).put(NAME, VALUE, 10)
            domain = ManagedKeys(keys)
            candidate = await domain.find(REGISTRY.parse(ADDRESS))
            assert candidate is not None
            clock.advance(ns=passed)
            until = UnixNs(candidate.state + more)

            await domain.extend(candidate, until, by="ann")

            after = await domain.find(REGISTRY.parse(ADDRESS))
            assert after is not None
            assert until <= after.state < until + SECOND + 1_000_000

    asyncio.run(check())


@pytest.mark.parametrize("ahead", [-1800, 1800])
async def test_an_extension_counts_by_the_clock_of_the_store(world: World, ahead: int) -> None:
    world.clock.jump_wall(ahead)
    await world.app.put(NAME, VALUE, HOUR)
    before = await expiry_of(world)

    await world.verbs.extend(ExtendRequest(address=ADDRESS, time="1m"))

    assert await expiry_of(world) == before + 60 * SECOND


async def test_an_extension_is_never_an_earlier_end(world: World) -> None:
    await world.app.put(NAME, VALUE, HOUR)
    seen = await world.found()
    until = UnixNs(world.now + 2 * HOUR * SECOND)
    await world.app.touch(NAME, 5 * HOUR)

    await world.domain.extend(seen, until, by="ann")
    assert await expiry_of(world) == world.now + 5 * HOUR * SECOND

    with pytest.raises(ExtensionError, match="never an earlier one"):
        await world.verbs.extend(ExtendRequest(address=ADDRESS, time=to_timestamp(until)))
    assert await expiry_of(world) == world.now + 5 * HOUR * SECOND


async def test_a_key_that_goes_meanwhile_is_not_revived(world: World) -> None:
    await world.app.put(NAME, VALUE, 10)
    seen = await world.found()
    world.store_clock.advance(10)

    with pytest.raises(KeyOverError):
        await world.domain.extend(seen, UnixNs(world.now + HOUR * SECOND), by="ann")
    assert await world.app.ttl_get(NAME) is None


async def test_no_key_lives_longer_than_a_year(world: World) -> None:
    await world.app.put(NAME, VALUE, 31_536_000)
    before = await expiry_of(world)

    with pytest.raises(InvalidTTLError):
        await world.verbs.extend(ExtendRequest(address=ADDRESS, time="1d"))
    assert await expiry_of(world) == before


# --- what is refused --------------------------------------------------------------------------------------------------


async def test_what_makes_no_sense_for_keys_is_refused_with_the_reason(world: World) -> None:
    await world.app.put(NAME, VALUE, HOUR)
    before, verbs = await expiry_of(world), world.verbs
    refused = [
        (verbs.hold(HoldRequest(address=ADDRESS, reason="mine")), "Keys cannot be held: .* lapse extend"),
        (verbs.release(ReleaseRequest(address=ADDRESS)), "Keys cannot be held"),
        (verbs.delete(DeleteRequest(address=ADDRESS)), "Keys are deleted with lapse keys delete"),
        (verbs.freeze(FreezeRequest(domain="keys")), "Keys cannot be frozen"),
    ]

    for asked, reason in refused:
        with pytest.raises(UnsupportedVerbError, match=reason):
            await asked
    with pytest.raises(UnsupportedVerbError, match="Keys cannot be brought back"):
        REGISTRY.demand(DomainVerb.UNDO, REGISTRY.parse(ADDRESS))
    assert await expiry_of(world) == before


async def test_the_domain_itself_holds_and_ends_nothing(world: World) -> None:
    await world.app.put(NAME, VALUE, HOUR)
    found, domain = await world.found(), world.domain

    for asked in (
        domain.hold(found, Hold("mine", None), replace=False),
        domain.release(found, by="ann", legal=False),
        domain.deletion_target(found),
        domain.target.apply([], also=None),
    ):
        with pytest.raises(UnsupportedVerbError):
            await asked
    assert await world.app.ttl_get(NAME) == VALUE


# --- plan -------------------------------------------------------------------------------------------------------------


async def test_a_plan_counts_live_keys_by_application_and_names_none(world: World) -> None:
    start = world.now
    for number in range(5):
        await world.app.put(f"{NAME}:{number}", VALUE, 60 + number)
    await world.app.put("later", VALUE, 2 * HOUR)
    await world.keys.app(0).put(NAME, VALUE, HOUR)
    await world.keys.app(9).put(NAME, VALUE, HOUR + 1)
    world.keys.backend.space(Prefix.LEADER_ELECTION, 7).put("lock:job", "holder", 60)

    plan = await world.verbs.plan(PlanRequest(within="1h"))

    assert plan.counts == [
        PlanCount("keys", "0", 1, Moment(start + HOUR * SECOND)),
        PlanCount("keys", "7", 5, Moment(start + 60 * SECOND)),
    ]
    assert (plan.items, plan.problems) == ([], {})
    assert not any(secret.encode() in encode(plan) for secret in (NAME, VALUE, "later", "job"))
    assert (await world.verbs.plan(PlanRequest(within="1h", domains=["keys"]))).counts == plan.counts
    with pytest.raises(NoSuchPolicyError, match=r"There is no policy 'nightly'\. Known: none\."):
        await world.verbs.plan(PlanRequest(within="1h", policy="nightly"))


async def test_a_plan_of_keys_alone_cannot_be_carried_out(world: World) -> None:
    plan = await world.verbs.plan(PlanRequest(domains=["keys"]))

    with pytest.raises(UnsupportedVerbError, match="Keys are ended by no plan"):
        await world.verbs.apply(ApplyRequest(plan=plan))


async def test_a_store_that_cannot_count_is_left_out_of_a_plan_unless_it_is_what_is_asked_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.keys.backend, "expiring", lambda *_moments: None)

    plan = await world.verbs.plan(PlanRequest())
    assert (plan.counts, plan.problems) == ([], {})
    with pytest.raises(NotCountedError, match="how many keys lapse"):
        await world.verbs.plan(PlanRequest(domains=["keys"]))


async def test_the_longest_plan_counts_all(world: World) -> None:
    await world.app.put(NAME, VALUE, 31_536_000)

    assert [one.count for one in (await world.verbs.plan(PlanRequest(within="15000w"))).counts] == [1]


async def test_a_store_that_cannot_be_read_is_named_by_the_plan(world: World) -> None:
    await world.keys.close()

    plan = await world.verbs.plan(PlanRequest())

    assert (list(plan.problems), plan.counts) == (["keys"], [])


# --- forecast ---------------------------------------------------------------------------------------------------------


async def test_a_forecast_counts_live_keys_of_all_applications_by_step_and_names_none(world: World) -> None:
    for ttl in (1, 1799, 1800, 1801, HOUR, HOUR + 1):
        await world.app.put(f"{NAME}:{ttl}", VALUE, ttl)
    await world.keys.app(9).put(NAME, VALUE, 900)
    world.keys.backend.space(Prefix.LEADER_ELECTION, 7).put("lock:job", "holder", 60)

    told = await world.verbs.forecast(ForecastRequest(within="1h", steps=2))

    (keys,) = told.domains
    assert keys.counts == [3, 3], "what ends at the instant of a step is in it, and at the end in the last one"
    assert (keys.overdue, keys.held, keys.budget, keys.problem) == (0, 0, None, None)
    assert (told.items, told.next, told.problems) == ([], None, {})
    assert not any(secret.encode() in encode(told) for secret in (NAME, VALUE, "job"))


async def test_without_keys_a_forecast_has_none_in_each_step(world: World) -> None:
    assert (await world.verbs.forecast(ForecastRequest(steps=3))).domains[0].counts == [0, 0, 0]


async def test_a_forecast_says_that_a_store_cannot_count(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.keys.backend, "expiring", lambda *_moments: None)

    told = await world.verbs.forecast(ForecastRequest(domains=["keys"]))
    assert (told.domains[0].counts, told.problems) == ([], {})
    assert "how many keys lapse" in (told.domains[0].problem or "")


async def test_a_store_that_cannot_be_read_is_named_by_the_forecast(world: World) -> None:
    await world.keys.close()

    told = await world.verbs.forecast(ForecastRequest())
    assert (list(told.problems), told.domains[0].counts) == (["keys"], [])
    assert told.domains[0].problem == told.problems["keys"]


async def test_the_journal_tells_who_extended_a_key_of_which_application_and_not_which_key(world: World) -> None:
    await world.app.put(NAME, VALUE, HOUR)
    await world.verbs.why(WhyRequest(address=ADDRESS))
    told = await world.verbs.extend(ExtendRequest(address=ADDRESS, time="2h"))
    await world.verbs.plan(PlanRequest())

    (row,) = await world.journal.entries()
    assert (row.reason, row.actor, row.address, row.uid) == ("deadline_extended", "user ann", "", "")
    assert row.details == {"domain": "keys", "scope": "7", "until_ns": told.deadline}


async def test_one_extension_of_a_key_is_at_most_extend_max(world: World) -> None:
    await world.app.put(NAME, VALUE, HOUR)
    with pytest.raises(ExtensionError, match="extend_max is 30d"):
        await world.verbs.extend(ExtendRequest(address=ADDRESS, time="31d"))
