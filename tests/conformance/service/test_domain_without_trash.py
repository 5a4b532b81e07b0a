"""A domain of one's own that has no trash: nobody is told that something of it could come back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.app.domains import ManagedOwnDomain, OwnDomain, Section
from lapse.engine.explanation import Grounds, single_rule
from lapse.engine.registry import DomainParts, UnsupportedVerbError
from lapse.engine.safety.sqlite import SQLiteHolds
from lapse.engine.verbs.contract import ApplyRequest, DeleteRequest, PlanRequest, UndoRequest, WhyRequest
from tests.conformance.service.memory import THINGS, Things
from tests.conformance.service.registry import ANN, DOMAIN, HOUR
from tests.conformance.service.worlds import local_world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.conformance.service.worlds import LocalWorld

NO_TRASH = "its domain has no trash"


class Talkative:
    """A domain with words of its own, which knows nothing of the trash."""

    def __init__(self, inner: Things) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the domain has it
        return getattr(self._inner, name)

    def explain(self, _candidate: Any, decision: Any, _now: int) -> Grounds:  # noqa: ANN401 - as the domain has it
        return Grounds(rules=(single_rule(decision, "my rule", action="delete"),), because="I say so")


@pytest.fixture(params=[False, True], ids=["silent", "talkative"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocalWorld]:
    async with local_world(tmp_path) as found:
        things: Any = Talkative(found.things) if request.param else found.things
        own = OwnDomain(THINGS, Section(), DomainParts(things, things), "")
        kit = found.things.kit
        await found.settings(domains={DOMAIN: ManagedOwnDomain(own, SQLiteHolds(kit.store.database), clock=kit.clock)})
        found.things.trashed = NoTrash()
        yield found


class NoTrash(dict[str, Any]):
    """Forgets everything at once."""

    def __setitem__(self, key: str, value: Any) -> None:  # noqa: ANN401 - as a dictionary has it
        """Forget it."""


async def test_an_undo_says_that_the_domain_has_no_trash_and_why_does_not_offer_one(world: LocalWorld) -> None:
    ann = world.of(ANN)
    await world.things.add("a")
    assert (await ann.why(WhyRequest(address="thing/a"))).undo == f"no: {NO_TRASH}"
    await ann.delete(DeleteRequest(address="thing/a"))
    assert (await ann.why(WhyRequest(address="thing/a"))).undo == f"no: {NO_TRASH}"
    with pytest.raises(UnsupportedVerbError, match=f"thing/a does not come back: {NO_TRASH}"):
        await ann.undo(UndoRequest(address="thing/a"))


async def test_a_plan_and_its_undo_say_so_as_well(world: LocalWorld) -> None:
    ann = world.of(ANN)
    await world.things.add("a")
    plan = await ann.plan(PlanRequest())
    assert [one.not_undoable for one in plan.items] == [NO_TRASH]
    world.elapse(HOUR + 1)
    assert (await ann.apply(ApplyRequest(plan=plan))).ended == 1
    done = await ann.undo(UndoRequest(plan=plan.id))
    assert (done.items, done.problems) == ([], {"thing/a": f"thing/a does not come back: {NO_TRASH}."})
