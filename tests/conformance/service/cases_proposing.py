"""Cases about plans that are kept for others to find: who proposes them, what is told of them, and when they go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from lapse.core.duration import Duration
from lapse.engine.plans import proposed
from lapse.engine.plans.approvals import ByPlan, OwnPlanError
from lapse.engine.plans.plan import PlanExpiredError, PlanSignatureError
from lapse.engine.plans.planner import OtherPlaceError
from lapse.engine.plans.proposed import PlanPositionError, PlanTooLargeError, TooManyPlansError
from lapse.engine.service import NoPlansError, NotAuthorError, NotProposedError
from lapse.engine.verbs.contract import (
    ApplyRequest,
    ApproveRequest,
    JournalRequest,
    PlanRequest,
    PlansRequest,
    ProposedPlan,
    ProposedRequest,
    ProposeRequest,
)
from tests.conformance.service.registry import ANN, BEN, DOMAIN, HOUR, case

if TYPE_CHECKING:
    from lapse.engine.plans.plan import Plan
    from tests.conformance.service.registry import World


async def proposed_by(world: World, person: str = ANN, within: str = "24h") -> Plan:
    plan = await world.of(person).plan(PlanRequest(within=within))
    await world.of(person).propose(ProposeRequest(plan=plan))
    return plan


async def kept(world: World) -> list[ProposedPlan]:
    return (await world.of(BEN).plans(PlansRequest())).items


async def audited(world: World) -> list[tuple[str, str, str | None]]:
    rows = (await world.of(ANN).journal(JournalRequest(domain="audit"))).items
    return [(one.reason, one.actor, one.plan) for one in rows if one.reason.startswith("plan_")]


@case
async def a_proposed_plan_is_found_by_others_as_it_was_made(world: World) -> None:
    await world.things.add("a")
    world.elapse(HOUR + 1)
    await world.things.add("b")
    plan = await world.of(ANN).plan(PlanRequest())
    told = await world.of(ANN).propose(ProposeRequest(plan=plan))

    assert (told.id, told.author, told.domains, told.items, told.due) == (plan.id, "token ann", [DOMAIN], 2, 1)
    assert (told.approved_by, told.applied_by, told.ended, told.left) == (None, None, None, None)
    (listed,) = await kept(world)
    for one in (told, listed):
        assert str(one.created_at) == str(plan.created_at)
        assert str(one.expires_at) == str(plan.expires_at)
        assert str(one.until) == str(plan.until)
    found = await world.of(BEN).proposed(ProposedRequest(id=plan.id))
    assert (found.digest, found.signature) == (plan.digest, plan.signature)
    assert [one.fingerprint for one in found.items] == [one.fingerprint for one in plan.items]
    assert await audited(world) == [("plan_proposed", "token ann", plan.id)]


@case
async def a_plan_that_is_proposed_is_approved_by_another_person_and_carried_out_by_its_author(world: World) -> None:
    await world.settings(by_plan=ByPlan([DOMAIN]))
    await world.things.add("a")
    world.elapse(HOUR + 1)
    plan = await proposed_by(world)
    assert (plan.items[0].waits_for or "").startswith("an approved plan: lapse plan --propose, lapse approve ID by")
    found = await world.of(ANN).proposed(ProposedRequest(id=plan.id))
    with pytest.raises(OwnPlanError):
        await world.of(ANN).approve(ApproveRequest(plan=found))
    await world.of(ANN).apply(ApplyRequest(plan=found))
    assert [(one.approved_by, one.applied_by) for one in await kept(world)] == [(None, None)], "it was not carried out"

    theirs = await world.of(BEN).proposed(ProposedRequest(id=plan.id))
    approval = await world.of(BEN).approve(ApproveRequest(plan=theirs))
    (told,) = await kept(world)
    assert (told.approved_by, str(told.approved_at), told.applied_by) == ("token ben", str(approval.at), None)
    assert (await world.of(ANN).apply(ApplyRequest(plan=found))).ended == 1
    (told,) = await kept(world)
    assert (told.applied_by, told.ended, told.left) == ("token ann", 1, 0)
    assert told.applied_at is not None
    assert await world.things.left() == set()
    assert [reason for reason, _, _ in await audited(world)] == ["plan_approved", "plan_proposed"]


@case
async def of_a_plan_that_is_carried_out_in_parts_all_that_ended_is_told(world: World) -> None:
    for name in ("a", "b", "c"):
        await world.things.add(name)
    world.elapse(HOUR + 1)
    plan = await proposed_by(world)
    told = []
    for only in (["thing/a"], ["thing/b"], ["thing/b"], None):
        await world.of(ANN).apply(ApplyRequest(plan=plan, only=only))
        told += [(one.ended, one.left) for one in await kept(world)]
    assert told == [(1, 2), (2, 1), (2, 1), (3, 0)]


@case
async def a_plan_of_somebody_else_is_not_proposed(world: World) -> None:
    plan = await world.of(ANN).plan(PlanRequest())
    with pytest.raises(NotAuthorError, match="was made by token ann: nobody else proposes it"):
        await world.of(BEN).propose(ProposeRequest(plan=plan))
    assert await kept(world) == []


@case
async def a_plan_that_could_not_be_carried_out_is_not_proposed(world: World) -> None:
    await world.things.add("a")
    plan, verbs = await world.of(ANN).plan(PlanRequest()), world.of(ANN)
    for other, error in (
        (replace(plan, author="token ben"), PlanSignatureError),
        (replace(plan, items=[]), PlanSignatureError),
        (replace(plan, place="elsewhere"), OtherPlaceError),
    ):
        with pytest.raises(error):
            await verbs.propose(ProposeRequest(plan=other))
    world.elapse(25 * HOUR)
    with pytest.raises(PlanExpiredError):
        await verbs.propose(ProposeRequest(plan=plan))
    assert await kept(world) == []
    assert await audited(world) == []


@case
async def a_plan_that_is_proposed_again_stays_as_it_is(world: World) -> None:
    await world.things.add("a")
    world.elapse(HOUR + 1)
    plan = await proposed_by(world)
    await world.of(ANN).apply(ApplyRequest(plan=plan))
    told = await world.of(ANN).propose(ProposeRequest(plan=plan))

    assert (told.ended, told.left) == (1, 0)
    assert len(await kept(world)) == 1
    assert len(await audited(world)) == 1


@case
async def an_approval_of_a_plan_before_it_was_proposed_counts(world: World) -> None:
    plan = await world.of(ANN).plan(PlanRequest())
    await world.of(BEN).approve(ApproveRequest(plan=plan))
    assert (await world.of(ANN).propose(ProposeRequest(plan=plan))).approved_by == "token ben"


@case
async def an_expired_plan_is_not_there(world: World) -> None:
    plan = await proposed_by(world)
    world.elapse(24 * HOUR - 1)
    await world.settings(plan_ttl=Duration.parse("1h"))
    later = await proposed_by(world, within="2h")
    assert {one.id for one in await kept(world)} == {plan.id, later.id}
    world.elapse(2)
    assert [one.id for one in await kept(world)] == [later.id]
    with pytest.raises(NotProposedError):
        await world.of(BEN).proposed(ProposedRequest(id=plan.id))


@case
async def a_plan_that_nobody_proposed_is_not_there(world: World) -> None:
    made = await world.of(ANN).plan(PlanRequest())
    for plan in (made.id, "0123456789abcdef", "..%2f", "a b"):
        with pytest.raises(NotProposedError) as caught:
            await world.of(BEN).proposed(ProposedRequest(id=plan))
        assert caught.value.status == 404


@case
async def plans_come_newest_first_and_in_pages(world: World) -> None:
    made = []
    for _ in range(5):
        made.append((await proposed_by(world)).id)
        world.elapse(60)
    pages, after = [], None
    while True:
        page = await world.of(BEN).plans(PlansRequest(limit=2, after=after))
        pages.append([one.id for one in page.items])
        after = page.next
        if after is None:
            break
    newest = made[::-1]
    assert pages == [newest[:2], newest[2:4], newest[4:]]
    with pytest.raises(PlanPositionError):
        await world.of(BEN).plans(PlansRequest(after="x"))


@case
async def no_more_than_so_many_plans_are_kept_and_those_with_nothing_left_give_way(world: World) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proposed, "MOST_PLANS", 2)
        first = await proposed_by(world)
        world.elapse(60)
        second = await proposed_by(world)
        world.elapse(60)
        third = await world.of(ANN).plan(PlanRequest())
        with pytest.raises(TooManyPlansError) as caught:
            await world.of(ANN).propose(ProposeRequest(plan=third))
        assert caught.value.status == 409
        assert str(first.expires_at) in str(caught.value)
        await world.of(ANN).apply(ApplyRequest(plan=second))
        await world.of(ANN).propose(ProposeRequest(plan=third))
        assert [one.id for one in await kept(world)] == [third.id, first.id]


@case
async def a_plan_that_is_too_large_is_not_kept(world: World) -> None:
    plan = await world.of(ANN).plan(PlanRequest())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proposed, "MOST_BYTES", 100)
        with pytest.raises(PlanTooLargeError, match="expected at most 100"):
            await world.of(ANN).propose(ProposeRequest(plan=plan))
    assert await kept(world) == []


@case
async def where_no_plans_are_kept_the_error_names_the_other_way(world: World) -> None:
    plan = await world.of(ANN).plan(PlanRequest())
    await world.settings(plans=None)
    with pytest.raises(NoPlansError, match="lapse plan --out FILE"):
        await world.of(ANN).propose(ProposeRequest(plan=plan))
    with pytest.raises(NoPlansError):
        await world.of(ANN).plans(PlansRequest())
    with pytest.raises(NoPlansError):
        await world.of(ANN).proposed(ProposedRequest(id=plan.id))
    assert (await world.of(ANN).apply(ApplyRequest(plan=plan))).left == 0
