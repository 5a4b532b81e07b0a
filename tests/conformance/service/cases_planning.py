"""Cases about plans: what is in them, and what carrying them out ends and leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from lapse.core.address import AddressError
from lapse.core.duration import Duration, DurationError
from lapse.engine.plans.approvals import ByPlan, OwnPlanError
from lapse.engine.plans.forecast import ForecastPlaceError
from lapse.engine.plans.plan import PlanExpiredError, PlanSignatureError
from lapse.engine.plans.planner import (
    EndlessPlanError,
    NoSuchPolicyError,
    NotInPlanError,
    OtherPlaceError,
    PlanOfThePastError,
)
from lapse.engine.registry import NoSuchDomainError
from lapse.engine.safety.budget import Budget, Budgets
from lapse.engine.verbs.contract import (
    ApplyRequest,
    ApproveRequest,
    BudgetRate,
    ExtendRequest,
    ForecastRequest,
    FreezeRequest,
    HoldRequest,
    JournalRequest,
    PlanRequest,
    ReleaseRequest,
    WhyRequest,
)
from lapse.engine.verbs.place import NoSecondPersonError
from tests.conformance.service.registry import ANN, BEN, DOMAIN, HOUR, case

if TYPE_CHECKING:
    from lapse.engine.plans.plan import Plan
    from lapse.engine.verbs.contract import AppliedPlan
    from tests.conformance.service.registry import World


async def planned(world: World, within: str = "24h", *, by: str = ANN) -> Plan:
    return await world.of(by).plan(PlanRequest(within=within))


def outcomes(done: AppliedPlan) -> dict[str, str]:
    return {one.address: one.outcome for one in done.items}


# --- making a plan ----------------------------------------------------------------------------------------------------


@case
async def a_plan_has_what_is_over_within_its_time_in_that_order(world: World) -> None:
    await world.things.add("first")
    world.elapse(HOUR / 2)
    await world.things.add("second")

    assert [one.address for one in (await planned(world, "45m")).items] == ["thing/first"]
    plan = await planned(world, "2h")
    assert [(one.address, one.due, one.action) for one in plan.items] == [
        ("thing/first", False, "delete"),
        ("thing/second", False, "delete"),
    ]
    assert (plan.place, plan.author, plan.domains, plan.problems) == ("record-1", "token ann", [DOMAIN], {})


@case
async def what_is_over_exactly_at_the_end_of_a_plan_is_not_in_it(world: World) -> None:
    await world.things.add("a")

    assert (await planned(world, "1h")).items == []
    assert [one.address for one in (await planned(world, "3601s")).items] == ["thing/a"]


@case
async def a_plan_says_what_is_due_and_what_is_held(world: World) -> None:
    await world.things.add("a")
    await world.of(BEN).hold(HoldRequest(address="thing/a", reason="audit"))
    world.elapse(HOUR + 1)

    (item,) = (await planned(world)).items
    assert item.due
    assert item.hold is not None
    assert (item.hold.reason, item.hold.by) == ("audit", "token ben")


@case
async def a_plan_of_some_domains_names_them(world: World) -> None:
    await world.things.add("a")

    plan = await world.of(ANN).plan(PlanRequest(domains=[DOMAIN], policy="test"))
    assert (plan.domains, [one.address for one in plan.items]) == ([DOMAIN], ["thing/a"])
    for policy in (DOMAIN, f"{DOMAIN}/{DOMAIN}"):
        found = await world.of(ANN).plan(PlanRequest(policy=policy))
        assert [(one.address, one.policy_name) for one in found.items] == [("thing/a", DOMAIN)]
    world.things.things.clear()
    assert (await world.of(ANN).plan(PlanRequest(policy=DOMAIN))).items == []


@case
async def a_plan_that_makes_no_sense_is_refused(world: World) -> None:
    verbs = world.of(ANN)
    with pytest.raises(NoSuchDomainError, match="There is no domain 'nothing'"):
        await verbs.plan(PlanRequest(domains=["nothing"]))
    with pytest.raises(NoSuchPolicyError, match="There is no policy 'another'"):
        await verbs.plan(PlanRequest(policy="another"))
    with pytest.raises(EndlessPlanError):
        await verbs.plan(PlanRequest(within="never"))
    with pytest.raises(PlanOfThePastError, match="-1h"):
        await verbs.plan(PlanRequest(within="-1h"))
    with pytest.raises(DurationError):
        await verbs.plan(PlanRequest(within="10minutes"))


# --- carrying it out --------------------------------------------------------------------------------------------------


@case
async def a_plan_ends_what_is_due_and_tells_of_the_rest(world: World) -> None:
    await world.things.add("old")
    world.elapse(HOUR / 2)
    await world.things.add("new")
    plan = await planned(world)
    world.elapse(HOUR / 2 + 1)

    done = await world.of(ANN).apply(ApplyRequest(plan=plan))
    assert outcomes(done) == {"thing/old": "ended", "thing/new": "not_due"}
    assert (done.plan, done.ended, done.left) == (plan.id, 1, 1)
    assert await world.things.left() == {"new"}


@case
async def what_a_plan_ends_is_in_the_journal_with_the_plan(world: World) -> None:
    await world.things.add("a")
    plan = await planned(world)
    world.elapse(HOUR + 1)
    await world.of(ANN).apply(ApplyRequest(plan=plan))

    rows = await world.of(ANN).journal(JournalRequest(address="thing/a", outcome="ended"))
    assert [(one.plan, one.domain, one.reason) for one in rows.items] == [(plan.id, DOMAIN, "ttl_expired")]


@case
async def nothing_else_than_what_was_chosen_is_ended(world: World) -> None:
    for name in ("a", "b"):
        await world.things.add(name)
    plan = await planned(world)
    world.elapse(HOUR + 1)
    await world.things.add("later")

    for strange in ("thing/later", "thing/none"):
        with pytest.raises(NotInPlanError, match=f"{strange} is not in the plan"):
            await world.of(ANN).apply(ApplyRequest(plan=plan, only=["thing/a", strange]))
    with pytest.raises(AddressError):
        await world.of(ANN).apply(ApplyRequest(plan=plan, only=["a"]))
    assert await world.things.left() == {"a", "b", "later"}
    done = await world.of(ANN).apply(ApplyRequest(plan=plan, only=["thing/a"]))
    assert outcomes(done) == {"thing/a": "ended"}
    assert await world.things.left() == {"b", "later"}


@case
async def a_plan_that_is_carried_out_twice_ends_nothing_twice(world: World) -> None:
    await world.things.add("a")
    plan = await planned(world)
    world.elapse(HOUR + 1)
    await world.of(ANN).apply(ApplyRequest(plan=plan))
    await world.things.add("a")

    done = await world.of(BEN).apply(ApplyRequest(plan=plan))
    assert outcomes(done) == {"thing/a": "drifted"}
    assert await world.things.left() == {"a"}


@case
async def what_is_another_one_than_it_was_planned_stays(world: World) -> None:
    for name in ("renewed", "replaced", "held", "extended", "gone", "same"):
        await world.things.add(name)
    plan = await planned(world)
    world.elapse(60)
    world.things.renew("renewed")
    made = world.things.things["replaced"].made
    await world.things.add("replaced")
    world.things.things["replaced"].made = made
    await world.of(BEN).hold(HoldRequest(address="thing/held", reason="wait"))
    await world.of(BEN).extend(ExtendRequest(address="thing/extended", time="10m"))
    await world.things.remove("gone")
    world.elapse(2 * HOUR)

    done = await world.of(ANN).apply(ApplyRequest(plan=plan))
    assert outcomes(done) == {
        "thing/renewed": "drifted",
        "thing/replaced": "drifted",
        "thing/held": "held",
        "thing/extended": "drifted",
        "thing/gone": "gone",
        "thing/same": "ended",
    }
    assert (done.ended, done.left) == (1, 4)
    assert await world.things.left() == {"renewed", "replaced", "held", "extended"}


@case
async def a_hold_that_is_released_again_makes_the_thing_as_it_was_planned(world: World) -> None:
    await world.things.add("a")
    plan = await planned(world)
    await world.of(BEN).hold(HoldRequest(address="thing/a", reason="wait"))
    await world.of(BEN).release(ReleaseRequest(address="thing/a"))
    world.elapse(HOUR + 1)

    assert outcomes(await world.of(ANN).apply(ApplyRequest(plan=plan))) == {"thing/a": "ended"}


@case
async def a_plan_counts_until_the_moment_of_its_end_and_not_longer(world: World) -> None:
    await world.settings(plan_ttl=Duration.parse("2h"))
    await world.things.add("a")
    plan = await planned(world)
    world.elapse(2 * HOUR)
    assert outcomes(await world.of(ANN).apply(ApplyRequest(plan=plan, only=[]))) == {}

    world.elapse(1)
    with pytest.raises(PlanExpiredError, match=plan.id):
        await world.of(ANN).apply(ApplyRequest(plan=plan))
    assert await world.things.left() == {"a"}


@case
async def a_plan_that_was_changed_or_is_of_elsewhere_is_refused(world: World) -> None:
    await world.things.add("a")
    plan = await planned(world)
    world.elapse(HOUR + 1)
    other = replace(plan, author="token ben")
    with pytest.raises(PlanSignatureError):
        await world.of(ANN).apply(ApplyRequest(plan=other))
    with pytest.raises(PlanSignatureError):
        await world.of(ANN).approve(ApproveRequest(plan=replace(plan, items=[])))
    with pytest.raises(OtherPlaceError):
        await world.of(ANN).apply(ApplyRequest(plan=replace(plan, place="record-2")))
    assert await world.things.left() == {"a"}


@case
async def a_plan_ends_nothing_of_a_domain_that_is_frozen(world: World) -> None:
    await world.things.add("a")
    plan = await planned(world)
    world.elapse(HOUR + 1)
    await world.of(BEN).freeze(FreezeRequest(domain="all", reason="look"))

    assert outcomes(await world.of(ANN).apply(ApplyRequest(plan=plan))) == {"thing/a": "refused"}
    assert await world.things.left() == {"a"}


# --- approving it -----------------------------------------------------------------------------------------------------


@case
async def where_plans_are_approved_another_person_must_do_it(world: World) -> None:
    await world.settings(by_plan=ByPlan([DOMAIN]))
    await world.things.add("a")
    plan = await planned(world)
    assert plan.items[0].waits_for is None  # it is not due
    world.elapse(HOUR + 1)
    assert (await planned(world)).items[0].waits_for == (
        await world.of(ANN).why(WhyRequest(address="thing/a"))
    ).waits_for
    asked = ApplyRequest(plan=plan)
    assert outcomes(await world.of(ANN).apply(asked)) == {"thing/a": "waits_for_approval"}
    with pytest.raises(OwnPlanError):
        await world.of(ANN).approve(ApproveRequest(plan=plan))
    assert outcomes(await world.of(ANN).apply(asked)) == {"thing/a": "waits_for_approval"}

    approval = await world.of(BEN).approve(ApproveRequest(plan=plan))
    assert (approval.plan, approval.digest, approval.by) == (plan.id, plan.digest, "token ben")
    assert outcomes(await world.of(ANN).apply(asked)) == {"thing/a": "ended"}


@case
async def nobody_approves_a_plan_where_there_is_no_second_person(world: World) -> None:
    await world.things.add("a")
    plan = await planned(world)
    await world.settings(persons=lambda _scope, _domain: {"token ann"})
    with pytest.raises(NoSecondPersonError, match="lapse tokens create --name NAME --scope approve"):
        await world.of(ANN).approve(ApproveRequest(plan=plan))


# --- forecast ---------------------------------------------------------------------------------------------------------


@case
async def a_forecast_counts_what_lapses_in_each_step_and_tells_the_nearest_first(world: World) -> None:
    for name in ("first", "second", "third"):
        await world.things.add(name)
        world.elapse(HOUR / 4)

    told = await world.of(ANN).forecast(ForecastRequest(within="1h", steps=4))
    (counted,) = told.domains
    assert (counted.name, counted.overdue, counted.held, counted.problem) == (DOMAIN, 0, 0, None)
    assert counted.counts == [0, 1, 1, 1], "each lapses at the instant at which a step begins, and is in that one"
    assert told.step_seconds == HOUR / 4
    assert [one.address for one in told.items] == ["thing/first", "thing/second", "thing/third"]
    assert (told.next, told.problems) == (None, {})
    assert sum((await world.of(ANN).forecast(ForecastRequest(within="20m"))).domains[0].counts) == 1


@case
async def a_forecast_and_a_plan_tell_the_same_of_a_thing(world: World) -> None:
    await world.things.add("over")
    world.elapse(HOUR + 1)
    await world.things.add("a")
    await world.of(ANN).freeze(FreezeRequest(domain=DOMAIN, reason="look"))

    told = await world.of(ANN).forecast(ForecastRequest(within="2h"))
    assert told.items == (await planned(world, "2h")).items
    assert told.items[0].waits_for is not None
    assert (told.domains[0].overdue, sum(told.domains[0].counts)) == (1, 1)


@case
async def a_forecast_counts_what_is_held_apart_and_tells_it_among_the_nearest(world: World) -> None:
    await world.things.add("over")
    world.elapse(HOUR + 1)
    await world.things.add("ahead")
    for name in ("over", "ahead"):
        await world.of(ANN).hold(HoldRequest(address=f"thing/{name}", reason="audit"))

    told = await world.of(ANN).forecast(ForecastRequest(within="2h", steps=1))
    assert (told.domains[0].overdue, told.domains[0].held, told.domains[0].counts) == (0, 2, [0])
    assert [one.hold is not None for one in told.items] == [True, True]


@case
async def pages_of_a_forecast_follow_each_other_and_count_the_same(world: World) -> None:
    for name in "cab":
        await world.things.add(name)
    world.elapse(1)
    await world.things.add("z")
    verbs = world.of(ANN)

    first = await verbs.forecast(ForecastRequest(limit=2))
    second = await verbs.forecast(ForecastRequest(limit=2, after=first.next))
    assert [one.address for one in first.items] == ["thing/a", "thing/b"]
    assert [one.address for one in second.items] == ["thing/c", "thing/z"]
    assert second.next is None
    assert first.domains == second.domains
    assert sum(first.domains[0].counts) == 4
    none = await verbs.forecast(ForecastRequest(limit=0))
    assert (none.items, none.next, sum(none.domains[0].counts)) == ([], None, 4)


@case
async def a_forecast_tells_the_budgets(world: World) -> None:
    await world.settings(budgets=Budgets(Budget.parse("10000/1h"), {DOMAIN: Budget.parse("5/1m")}))

    told = await world.of(ANN).forecast(ForecastRequest())
    assert (told.budget, told.domains[0].budget) == (BudgetRate(10_000, 3600.0), BudgetRate(5, 60.0))


@case
async def a_forecast_of_nothing_that_is_there_is_refused(world: World) -> None:
    verbs = world.of(ANN)
    with pytest.raises(NoSuchDomainError):
        await verbs.forecast(ForecastRequest(domains=["nothing"]))
    with pytest.raises(EndlessPlanError):
        await verbs.forecast(ForecastRequest(within="never"))
    with pytest.raises(PlanOfThePastError):
        await verbs.forecast(ForecastRequest(within="-1h"))
    for place in ("x", "1 2", "-1 a b", "1 a b c"):
        with pytest.raises(ForecastPlaceError):
            await verbs.forecast(ForecastRequest(after=place))
