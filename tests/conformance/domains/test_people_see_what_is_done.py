"""What people are shown of a domain is what its sweep then does: plan, why, status and warnings, for every domain."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.core.timestamps import to_timestamp
from lapse.domains import REGISTRY
from lapse.engine.journal.expiring import ExpiryWarnings
from lapse.engine.journal.port import Outcome
from lapse.engine.registry import Registry
from lapse.engine.service import LocalService
from lapse.engine.verbs.contract import ApplyRequest, ForecastRequest, PlanRequest, WhyRequest
from lapse.engine.verbs.place import Caller, Place
from tests.conformance.domains.kit import FIRST_PASS, HOUR, LIFETIME, open_fixture
from tests.conformance.domains.worlds import WORLDS
from tests.examples import examples

if TYPE_CHECKING:
    from lapse.engine.explanation import Explanation
    from lapse.engine.plans.plan import Plan, PlanItem
    from lapse.engine.verbs.contract import DomainStatus, Forecast
    from tests.conformance.domains.kit import DomainFixture, Opener

NS = 1_000_000_000
_BUILT_IN = {one.name for one in REGISTRY.built_in}


class _People:
    """Somebody who asks about the things of a world."""

    def __init__(self, fixture: DomainFixture) -> None:
        kit, world = fixture.kit, fixture.world
        own = [] if fixture.name in _BUILT_IN else [world.registration]
        notes: Any = kit.notes
        place = Place(
            name="here",
            id="record",
            clock=kit.clock,
            registry=Registry([*REGISTRY.built_in, *own], installed=tuple),
            domains={**getattr(world, "beside", {}), fixture.name: world.managed()},
            journal=kit.journal,
            gate=kit.gate,
            freezes=notes,
            metrics=kit.metrics,
            policies=fixture.approvals,
        )
        self._fixture, self.verbs = fixture, LocalService(place, Caller("ann"))

    async def plan(self, within: str = "24h") -> dict[str, PlanItem]:
        plan: Plan = await self.verbs.plan(PlanRequest(within=within, domains=[self._fixture.name]))
        assert plan.problems == {}
        return {self._fixture.world.named(one.address.rpartition("/")[2]): one for one in plan.items}

    async def forecast(self) -> Forecast:
        return await self.verbs.forecast(ForecastRequest(domains=[self._fixture.name]))

    async def status(self) -> DomainStatus:
        return next(one for one in (await self.verbs.status()).domains if one.name == self._fixture.name)

    async def why(self, address: str, at: str | None = None) -> Explanation:
        return await self.verbs.why(WhyRequest(address=address, at=at))


# --- warnings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", WORLDS)
async def test_what_is_near_its_deadline_is_told_of_once(domain: str, tmp_path: Path) -> None:
    async with open_fixture(tmp_path, WORLDS[domain]) as fixture:
        kit = fixture.kit
        warnings = ExpiryWarnings(
            [fixture.world.managed()],
            before=HOUR / 4,
            journal=kit.journal,
            clock=kit.clock,
            metrics=kit.metrics,
            actor="lapse",
        )
        await fixture.fill("a", "held")
        await fixture.world.hold("held")
        for seconds in (LIFETIME / 2, LIFETIME * 3 / 8, LIFETIME / 16):
            kit.machine.advance(seconds)
            await fixture.world.sweep()
            await warnings.tick()

        rows = [row for row in await fixture.rows() if row[1] == Outcome.EXPIRING]
        assert [name for name, *_ in rows] == ["a"]


# --- holds in a plan --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", WORLDS)
async def test_what_is_held_is_in_the_plan_as_held(domain: str, tmp_path: Path) -> None:
    async with open_fixture(tmp_path, WORLDS[domain]) as fixture:
        people = _People(fixture)
        await fixture.fill("a", "b")
        await fixture.world.hold("a")
        await fixture.world.sweep()
        planned = await people.plan()
        assert {name: one.hold is not None for name, one in planned.items()} == {"a": True, "b": False}

        assert await fixture.sweep_when_due() == {"a"}
        (held,) = (await people.plan("1m")).values()
        assert (held.due, held.hold is not None) == (True, True)
        told = await people.why(held.address)
        assert (told.verdict, told.reason) == ("keep", "held")
        assert told.hold == held.hold


# --- first passes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", WORLDS)
async def test_what_a_first_pass_keeps_says_so_everywhere_and_goes_when_it_is_over(domain: str, tmp_path: Path) -> None:
    async with open_fixture(tmp_path, WORLDS[domain], is_new=False) as fixture:
        if not fixture.world.has_first_pass:
            pytest.skip("what it decides about follows the policy, and is younger")
        people, kit = _People(fixture), fixture.kit
        await fixture.fill("a")
        assert await fixture.sweep_when_due() == {"a"}
        ends = kit.now + FIRST_PASS * NS
        await fixture.fill("younger")
        kit.machine.advance(LIFETIME + 60)
        await fixture.world.sweep()
        assert await fixture.world.left() == {"a"}

        waits = (
            f"the end of the first pass at {to_timestamp(ends)}: until then only what would end is told;"
            " lapse apply ends it"
        )
        (item,) = (await people.plan("1m")).values()
        assert (item.due, item.waits_for) == (True, waits)
        (seen,) = (await people.forecast()).items
        assert seen.waits_for == waits
        told = await people.why(item.address)
        assert (told.verdict, told.waits_for) == ("due", waits)
        assert (await people.why(item.address, to_timestamp(ends))).waits_for is None
        status = await people.status()
        assert (status.act, status.first_pass_until, status.problem) == ("first_pass", ends, None)

        kit.machine.advance(FIRST_PASS - LIFETIME - 60)
        assert (await people.why(item.address)).waits_for is None
        assert [one.waits_for for one in (await people.plan("1m")).values()] == [None]
        status = await people.status()
        assert (status.act, status.first_pass_until) == ("auto", None)
        await fixture.world.sweep()
        assert await fixture.world.left() == set()


@pytest.mark.parametrize("domain", WORLDS)
async def test_a_plan_that_is_applied_does_not_wait_for_the_first_pass(domain: str, tmp_path: Path) -> None:
    async with open_fixture(tmp_path, WORLDS[domain], is_new=False) as fixture:
        if not fixture.world.has_first_pass:
            pytest.skip("what it decides about follows the policy, and is younger")
        people = _People(fixture)
        await fixture.fill("a")
        assert await fixture.sweep_when_due() == {"a"}
        plan = await people.verbs.plan(PlanRequest(within="1m", domains=[fixture.name]))
        done = await people.verbs.apply(ApplyRequest(plan=plan))
        assert [(one.outcome, one.because) for one in done.items] == [("ended", None)]


@pytest.mark.parametrize("domain", WORLDS)
async def test_what_the_clock_keeps_dry_says_so(domain: str, tmp_path: Path) -> None:
    async with open_fixture(tmp_path, WORLDS[domain]) as fixture:
        people, kit = _People(fixture), fixture.kit
        await fixture.fill("a")
        await fixture.world.sweep()
        mark = kit.clock.mark()
        kit.machine.advance(LIFETIME + 60)
        kit.machine.reboot("two")
        kit.clock.recall(mark, is_fresh_within=0.0)
        assert kit.clock.dry_ns()
        ends = to_timestamp(kit.now + kit.clock.dry_ns())
        waits = f"the end of a dry run at {ends}: nobody knows for how long the machine was off"
        (item,) = (await people.plan("1m")).values()
        assert item.waits_for == waits
        assert (await people.why(item.address)).waits_for == waits
        assert (await people.status()).act == "dry"


# --- the status -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", WORLDS)
async def test_the_status_tells_what_lapses_next(domain: str, tmp_path: Path) -> None:
    async with open_fixture(tmp_path, WORLDS[domain]) as fixture:
        people = _People(fixture)
        await fixture.fill("a")
        fixture.kit.machine.advance(LIFETIME / 2)
        await fixture.fill("b", "held")
        await fixture.world.hold("held")
        await fixture.world.sweep()
        planned = await people.plan()
        told = await people.status()
        assert (told.next_lapse, told.next_address) == (planned["a"].deadline, planned["a"].address)
        assert (told.due, told.held, told.problem) == (0, 0, None)

        fixture.kit.machine.advance(LIFETIME / 2 + 120)
        told = await people.status()
        assert (told.next_lapse, told.next_address) == (planned["b"].deadline, planned["b"].address)
        assert told.due == 1

        fixture.kit.machine.advance(LIFETIME)
        told = await people.status()
        assert (told.due, told.held) == (3, 1)


# --- why, plan and sweep ----------------------------------------------------------------------------------------------


async def _agree(opened: Opener, steps: list[tuple[int, str]], folder: Path) -> None:
    """Let things be added, held and extended, minutes apart, and compare what is told with what is done."""
    async with open_fixture(folder, opened) as fixture:
        people, world = _People(fixture), fixture.world
        for number, (minutes, what) in enumerate(steps):
            name = f"t{number}"
            await world.add(name)
            if what == "held":
                await world.hold(name)
            if what == "extended":
                until = fixture.kit.now // NS * NS + (LIFETIME + HOUR // 2) * NS
                await world.extend(name, until)  # type: ignore[arg-type]  # a moment
            fixture.kit.machine.advance(minutes * 60)
            await _compare(fixture, people)


async def _compare(fixture: DomainFixture, people: _People) -> None:
    world = fixture.world
    before = await world.left()
    cached: Any = world
    if hasattr(cached, "caught_up"):
        await cached.caught_up()
    planned = await people.plan()
    for item in planned.values():
        now, then = await people.why(item.address), await people.why(item.address, to_timestamp(item.due_at + NS))
        assert (now.deadline, now.hold) == (item.deadline, item.hold)
        expected = "keep" if item.hold is not None or not item.due else "due"
        assert now.verdict == expected, (item, now)
        if item.hold is None:
            assert (then.verdict, then.reason, then.rules[0].action) == ("due", item.reason, item.action)
            assert (now.reason == item.reason) is item.due
    await world.sweep()
    ended = before - await world.left()
    assert ended == {name for name, one in planned.items() if one.due and one.hold is None}
    rows = await fixture.kit.journal.entries(outcome=Outcome.ENDED, limit=1000)
    for row in rows:
        name = world.named(row.address.rpartition("/")[2])
        if name in ended:
            item = planned[name]
            assert (row.reason, row.policy, row.anchor_ns) == (item.reason, item.policy, item.anchor)


STEPS = st.lists(
    st.tuples(st.integers(0, 50), st.sampled_from(["plain", "plain", "held", "extended"])), min_size=1, max_size=5
)


@pytest.mark.parametrize("domain", WORLDS)
@given(steps=STEPS)
@settings(max_examples=examples(10), deadline=None)
def test_why_names_the_rule_that_the_plan_shows_and_the_sweep_applies(
    domain: str, steps: list[tuple[int, str]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_agree(WORLDS[domain], steps, Path(folder)))
