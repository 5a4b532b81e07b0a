"""Cases about holds, extensions, deletions, the trash and freezes."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec.structs import replace

from lapse.core.address import AddressError
from lapse.core.errors import UsageError
from lapse.core.timestamps import MomentError, MomentOverError
from lapse.engine.registry import NoSuchDomainError, UnsupportedVerbError
from lapse.engine.running.metrics import Metrics
from lapse.engine.safety.blast_radius import PolicyChangedError, PolicyCount, PolicyGuard
from lapse.engine.safety.holds import (
    AnotherHoldError,
    HeldError,
    LegalHoldError,
    LegalReleaseError,
    ReasonError,
    SecondPersonError,
    WeakerHoldError,
)
from lapse.engine.service import (
    AnotherThingError,
    EndOfLegalHoldError,
    ExtensionError,
    HashWithoutPolicyError,
    NeverError,
    NoSuchPlanError,
    NothingNamedError,
    NothingThereError,
    OneToUndoError,
)
from lapse.engine.trash import NotInTrashError, PlaceTakenError, TrashPositionError
from lapse.engine.verbs.contract import (
    ApplyRequest,
    DeleteRequest,
    EmptyTrashRequest,
    ExtendRequest,
    FreezeRequest,
    HoldRequest,
    JournalRequest,
    PlanRequest,
    ReleaseRequest,
    ResumeRequest,
    TrashRequest,
    UndoRequest,
    WhyRequest,
)
from lapse.engine.verbs.place import NoSecondPersonError
from tests.conformance.service.registry import ANN, BEN, DOMAIN, HOUR, case

if TYPE_CHECKING:
    from tests.conformance.service.registry import World

DAY = 24 * HOUR
LEGAL = ("legal", DOMAIN)


# --- holds ------------------------------------------------------------------------------------------------------------


@case
async def what_is_held_stays_until_it_is_released(world: World) -> None:
    await world.things.add("a")
    held = await world.of(ANN).hold(HoldRequest(address="thing/a", reason="audit"))
    assert held.hold is not None
    assert (held.address, held.domain, held.hold.reason, held.hold.until) == ("thing/a", DOMAIN, "audit", None)
    assert (held.hold.by, held.hold.legal) == ("token ann", False)
    told = await world.of(ANN).why(WhyRequest(address="thing/a"))
    assert (told.verdict, told.reason) == ("keep", "held")

    assert (await world.of(BEN).release(ReleaseRequest(address="thing/a"))).changed
    assert not (await world.of(BEN).release(ReleaseRequest(address="thing/a"))).changed
    assert (await world.of(ANN).why(WhyRequest(address="thing/a"))).hold is None


@case
async def a_hold_counts_until_its_end_and_not_longer(world: World) -> None:
    await world.things.add("a")
    await world.of(ANN).hold(HoldRequest(address="thing/a", reason="audit", until="2h"))
    world.elapse(2 * HOUR - 1)
    assert (await world.of(ANN).why(WhyRequest(address="thing/a"))).hold is not None
    world.elapse(1)
    assert (await world.of(ANN).why(WhyRequest(address="thing/a"))).hold is None


@case
async def a_weaker_hold_takes_the_place_of_a_stronger_one_only_when_that_is_said(world: World) -> None:
    await world.things.add("a")
    verbs = world.of(ANN)
    await verbs.hold(HoldRequest(address="thing/a", reason="long", until="7d"))
    with pytest.raises(WeakerHoldError):
        await verbs.hold(HoldRequest(address="thing/a", reason="short", until="1d"))
    told = await verbs.why(WhyRequest(address="thing/a"))
    assert told.hold is not None
    assert told.hold.reason == "long"

    await verbs.hold(HoldRequest(address="thing/a", reason="short", until="1d", replace=True))
    told = await verbs.why(WhyRequest(address="thing/a"))
    assert told.hold is not None
    assert told.hold.reason == "short"


@case
async def a_legal_hold_has_no_end_and_is_released_by_another_person(world: World) -> None:
    await world.things.add("a")
    asked = HoldRequest(address="thing/a", reason="case 7", legal=True)
    with pytest.raises(EndOfLegalHoldError):
        await world.of(ANN).hold(HoldRequest(address="thing/a", reason="case 7", legal=True, until="7d"))
    held = await world.of(ANN).hold(asked)
    assert held.hold is not None
    assert held.hold.legal

    with pytest.raises(LegalHoldError):
        await world.of(BEN).hold(HoldRequest(address="thing/a", reason="weaker", replace=True))
    with pytest.raises(SecondPersonError):
        await world.of(ANN).release(ReleaseRequest(address="thing/a", legal=True))
    told = await world.of(ANN).why(WhyRequest(address="thing/a"))
    assert told.hold is not None
    assert (told.hold.reason, told.hold.by) == ("case 7", "token ann")
    assert (await world.of(BEN).release(ReleaseRequest(address="thing/a", legal=True))).changed


@case
async def a_legal_hold_is_released_only_by_who_says_that_it_is_meant(world: World) -> None:
    await world.things.add("a")
    await world.of(ANN).hold(HoldRequest(address="thing/a", reason="case 7", legal=True))
    with pytest.raises(LegalReleaseError):
        await world.of(BEN).release(ReleaseRequest(address="thing/a"))
    assert (await world.of(ANN).why(WhyRequest(address="thing/a"))).hold is not None


@case
async def a_legal_hold_is_refused_where_nobody_else_could_release_it(world: World) -> None:
    await world.things.add("a")
    asked = HoldRequest(address="thing/a", reason="case 7", legal=True)
    for known in ({"token ann"}, set[str]()):
        await world.settings(persons=lambda _scope, _domain, known=known: known)
        with pytest.raises(NoSecondPersonError, match="lapse tokens create --name NAME --scope legal"):
            await world.of(ANN).hold(asked)
    assert (await world.of(ANN).why(WhyRequest(address="thing/a"))).hold is None
    await world.of(ANN).hold(HoldRequest(address="thing/a", reason="mine"))

    await world.settings(
        persons=lambda scope, domain: {"token ann", "token ben"} if (scope, domain) == LEGAL else set()
    )
    assert (await world.of(ANN).hold(asked)).hold is not None


@case
async def a_reason_that_cannot_be_shown_everywhere_is_refused(world: World) -> None:
    await world.things.add("a")
    verbs = world.of(ANN)
    for odd in ("", "   ", "a\nb", "a\tb", "\x1b[31mred", "\x00", "\u202ereversed", "\u200b", "\x85", "x" * 1025):
        for legal in (False, True):
            with pytest.raises(ReasonError, match="expected 1 to 1024 printable characters in one line"):
                await verbs.hold(HoldRequest(address="thing/a", reason=odd, legal=legal))
        if odd:
            with pytest.raises(ReasonError, match="The reason of a freeze"):
                await verbs.freeze(FreezeRequest(domain=DOMAIN, reason=odd))
    told = await verbs.why(WhyRequest(address="thing/a"))
    assert (told.hold, told.frozen) == (None, None)


@case
async def a_reason_of_any_script_is_told_as_it_was_given(world: World) -> None:
    await world.things.add("a")
    for number, text in enumerate(
        ("Prüfung 監査 аудит 🙂", "vcr/default/x", "[bold red]x[/]", "--legal", "x" * 1024, '"{}"')
    ):
        asked = HoldRequest(address="thing/a", reason=text, legal=number > 0)
        await world.of(ANN).hold(asked)
        told = await world.of(BEN).why(WhyRequest(address="thing/a"))
        assert told.hold is not None
        assert told.hold.reason == text
        (row, *_) = (await world.of(BEN).journal(JournalRequest(address="thing/a"))).items
        assert (row.details or {})["reason"] == text


@case
async def a_hold_whose_end_is_over_or_no_time_is_refused(world: World) -> None:
    await world.things.add("a")
    with pytest.raises(MomentOverError):
        await world.of(ANN).hold(HoldRequest(address="thing/a", reason="x", until="2001-01-01T00:00:00Z"))
    with pytest.raises(MomentError):
        await world.of(ANN).hold(HoldRequest(address="thing/a", reason="x", until="soon"))
    assert (await world.of(ANN).why(WhyRequest(address="thing/a"))).hold is None


@case
async def what_people_do_is_in_the_journal(world: World) -> None:
    await world.things.add("a")
    verbs = world.of(ANN)
    await verbs.hold(HoldRequest(address="thing/a", reason="audit"))
    await verbs.release(ReleaseRequest(address="thing/a"))
    await verbs.extend(ExtendRequest(address="thing/a", time="2h"))

    rows = await verbs.journal(JournalRequest(address="thing/a"))
    assert [one.reason for one in rows.items] == ["deadline_extended", "hold_released", "hold_placed"]


@case
async def a_release_of_the_hold_that_was_seen_does_not_end_another(world: World) -> None:
    await world.things.add("a")
    mine = (await world.of(ANN).hold(HoldRequest(address="thing/a", reason="debugging", until="90m"))).hold
    seen = (await world.of(ANN).why(WhyRequest(address="thing/a"))).hold
    assert mine is not None
    assert mine.hash
    assert seen == mine
    theirs = (await world.of(BEN).hold(HoldRequest(address="thing/a", reason="evidence", replace=True))).hold
    assert theirs is not None
    assert theirs.hash not in {None, mine.hash}

    told = f"thing/a is under another hold now: evidence, by token ben, without an end.*{theirs.hash}"
    with pytest.raises(AnotherHoldError, match=told) as refused:
        await world.of(ANN).release(ReleaseRequest(address="thing/a", hash=mine.hash))
    assert refused.value.status == HTTPStatus.PRECONDITION_FAILED
    assert (await world.of(ANN).why(WhyRequest(address="thing/a"))).hold == theirs

    assert (await world.of(ANN).release(ReleaseRequest(address="thing/a", hash=theirs.hash))).changed
    assert not (await world.of(ANN).release(ReleaseRequest(address="thing/a", hash=theirs.hash))).changed


@case
async def the_same_hold_of_the_same_person_is_told_with_the_same_hash(world: World) -> None:
    for name in ("a", "b"):
        await world.things.add(name)
    asked = [HoldRequest(address="thing/a", reason="x", until="2h"), HoldRequest(address="thing/a", reason="y")]
    first = [(await world.of(ANN).hold(one)).hold for one in asked]
    other = [(await world.of(ANN).hold(replace(one, address="thing/b"))).hold for one in asked]
    assert first == other
    hashes = {one.hash for one in (*first, (await world.of(BEN).hold(asked[1])).hold) if one is not None}
    assert len(hashes) == 3


# --- another one of its name ------------------------------------------------------------------------------------------


@case
async def what_is_asked_of_one_thing_is_not_done_to_another_of_its_address(world: World) -> None:
    verbs = world.of(ANN)
    await world.things.add("a")
    was = (await verbs.why(WhyRequest(address="thing/a"))).uid
    await verbs.delete(DeleteRequest(address="thing/a", uid=was))
    await world.things.add("a")
    now = await world.of(BEN).hold(HoldRequest(address="thing/a", reason="evidence"))
    assert now.uid != was

    told = rf"thing/a is another one now.*its uid is {now.uid}, and expected was {was}.*lapse why thing/a"
    with pytest.raises(AnotherThingError, match=told) as refused:
        await verbs.hold(HoldRequest(address="thing/a", reason="mine", replace=True, uid=was))
    assert refused.value.status == HTTPStatus.PRECONDITION_FAILED
    with pytest.raises(AnotherThingError):
        await verbs.release(ReleaseRequest(address="thing/a", uid=was))
    with pytest.raises(AnotherThingError):
        await verbs.extend(ExtendRequest(address="thing/a", time="2h", uid=was))
    assert (await verbs.why(WhyRequest(address="thing/a"))).hold == now.hold

    assert (await verbs.release(ReleaseRequest(address="thing/a", uid=now.uid))).changed
    with pytest.raises(AnotherThingError):
        await verbs.delete(DeleteRequest(address="thing/a", uid=was))
    assert await world.things.left() == {"a"}
    assert (await verbs.why(WhyRequest(address="thing/a"))).extended_until is None
    assert (await verbs.extend(ExtendRequest(address="thing/a", time="2h", uid=now.uid))).extended_until is not None
    await verbs.delete(DeleteRequest(address="thing/a", uid=now.uid))
    assert await world.things.left() == set()


@case
async def what_is_asked_of_one_thing_that_is_gone_tells_its_own_end(world: World) -> None:
    verbs = world.of(ANN)
    await world.things.add("a")
    first = await verbs.delete(DeleteRequest(address="thing/a"))
    await world.things.add("a")
    await verbs.delete(DeleteRequest(address="thing/a"))
    with pytest.raises(NothingThereError, match=r"There is no thing/a any more: ended at .*by token ann"):
        await verbs.delete(DeleteRequest(address="thing/a", uid=first.uid))
    with pytest.raises(NothingThereError, match=r"There is no thing/a\.$"):
        await verbs.hold(HoldRequest(address="thing/a", reason="x", uid="nobody's"))


# --- extensions -------------------------------------------------------------------------------------------------------


@case
async def an_extension_moves_the_deadline_by_what_it_says(world: World) -> None:
    await world.things.add("a")
    before = (await world.of(ANN).why(WhyRequest(address="thing/a"))).deadline
    done = await world.of(ANN).extend(ExtendRequest(address="thing/a", time="2h"))
    assert before is not None
    assert done.extended_until == done.deadline == before + 2 * HOUR * 1_000_000_000

    world.elapse(3 * HOUR)
    assert (await world.of(ANN).why(WhyRequest(address="thing/a"))).verdict == "keep"
    world.elapse(1)
    assert (await world.of(ANN).why(WhyRequest(address="thing/a"))).verdict == "due"


@case
async def an_extension_of_what_is_held_tells_its_hold(world: World) -> None:
    await world.things.add("a")
    held = await world.of(BEN).hold(HoldRequest(address="thing/a", reason="audit"))
    done = await world.of(ANN).extend(ExtendRequest(address="thing/a", time="2h"))
    assert held.hold is not None
    assert done.hold == held.hold
    await world.of(BEN).release(ReleaseRequest(address="thing/a"))
    assert (await world.of(ANN).extend(ExtendRequest(address="thing/a", time="2h"))).hold is None


@case
async def an_extension_reaches_as_far_as_is_allowed_and_no_further(world: World) -> None:
    await world.things.add("a")
    with pytest.raises(ExtensionError, match="extend_max is 30d"):
        await world.of(ANN).extend(ExtendRequest(address="thing/a", time=f"{30 * DAY + 1}s"))
    await world.of(ANN).extend(ExtendRequest(address="thing/a", time=f"{30 * DAY}s"))
    with pytest.raises(ExtensionError, match="extend_max is 30d"):
        await world.of(ANN).extend(ExtendRequest(address="thing/a", time="1s"))


@case
async def an_extension_is_never_earlier_and_never_endless(world: World) -> None:
    await world.things.add("a")
    with pytest.raises(ExtensionError, match="never an earlier one"):
        await world.of(ANN).extend(ExtendRequest(address="thing/a", time="2001-01-01T00:00:00Z"))
    with pytest.raises(NeverError):
        await world.of(ANN).extend(ExtendRequest(address="thing/a", time="never"))
    assert (await world.of(ANN).why(WhyRequest(address="thing/a"))).extended_until is None


# --- deletions and the trash ------------------------------------------------------------------------------------------


@case
async def what_a_person_deletes_is_gone_and_comes_back_with_undo(world: World) -> None:
    await world.things.add("a")
    done = await world.of(ANN).delete(DeleteRequest(address="thing/a"))
    assert await world.things.left() == set()
    (entry,) = (await world.of(ANN).trash(TrashRequest())).items
    assert (entry.address, entry.uid, entry.bytes) == ("thing/a", done.uid, 12)
    told = r"There is no thing/a any more: ended at .* by .*ann.*, until .*Z\. To bring it back: lapse undo thing/a\.$"
    with pytest.raises(NothingThereError, match=told):
        await world.of(BEN).delete(DeleteRequest(address="thing/a"))

    (back,) = (await world.of(BEN).undo(UndoRequest(address="thing/a"))).items
    assert back.uid != done.uid
    assert await world.things.left() == {"a"}
    assert (await world.of(ANN).trash(TrashRequest())).items == []


@case
async def what_is_held_is_not_deleted(world: World) -> None:
    await world.things.add("a")
    await world.of(BEN).hold(HoldRequest(address="thing/a", reason="audit"))
    with pytest.raises(HeldError, match="audit"):
        await world.of(ANN).delete(DeleteRequest(address="thing/a"))
    assert await world.things.left() == {"a"}


@case
async def everything_that_a_plan_has_ended_comes_back_together(world: World) -> None:
    for name in ("a", "b", "c"):
        await world.things.add(name)
    plan = await world.of(ANN).plan(PlanRequest())
    world.elapse(HOUR + 1)
    await world.of(ANN).apply(ApplyRequest(plan=plan))
    await world.things.add("c")

    done = await world.of(ANN).undo(UndoRequest(plan=plan.id))
    assert sorted(one.address for one in done.items) == ["thing/a", "thing/b"]
    assert list(done.problems) == ["thing/c"]
    assert await world.things.left() == {"a", "b", "c"}


@case
async def an_undo_of_a_plan_that_is_repeated_goes_on_with_the_rest(world: World) -> None:
    for name in ("a", "b"):
        await world.things.add(name)
    plan = await world.of(ANN).plan(PlanRequest())
    world.elapse(HOUR + 1)
    await world.of(ANN).apply(ApplyRequest(plan=plan))
    await world.of(ANN).undo(UndoRequest(address="thing/a"))

    done = await world.of(ANN).undo(UndoRequest(plan=plan.id))
    assert ([one.address for one in done.items], done.problems) == (["thing/b"], {})
    again = await world.of(ANN).undo(UndoRequest(plan=plan.id))
    assert (again.items, again.problems) == ([], {})


@case
async def an_undo_of_nothing_is_refused(world: World) -> None:
    await world.things.add("a")
    verbs = world.of(ANN)
    with pytest.raises(OneToUndoError):
        await verbs.undo(UndoRequest())
    with pytest.raises(OneToUndoError):
        await verbs.undo(UndoRequest(address="thing/a", plan="x"))
    with pytest.raises(NotInTrashError):
        await verbs.undo(UndoRequest(address="thing/a"))
    with pytest.raises(NoSuchPlanError):
        await verbs.undo(UndoRequest(plan="0000000000000000"))
    await verbs.delete(DeleteRequest(address="thing/a"))
    await world.things.add("a")
    with pytest.raises(PlaceTakenError):
        await verbs.undo(UndoRequest(address="thing/a"))


@case
async def the_trash_is_told_in_pages_and_emptied_for_good(world: World) -> None:
    names = ["a", "b", "c"]
    for name in names:
        await world.things.add(name)
        await world.of(ANN).delete(DeleteRequest(address=f"thing/{name}"))
    verbs = world.of(ANN)
    first = await verbs.trash(TrashRequest(limit=2))
    rest = await verbs.trash(TrashRequest(limit=2, after=first.next))
    with pytest.raises(TrashPositionError):
        await verbs.trash(TrashRequest(after="zzz"))
    assert [one.address for one in (*first.items, *rest.items)] == [f"thing/{name}" for name in names]
    assert rest.next is None

    assert [one.address for one in (await verbs.empty_trash(EmptyTrashRequest(address="thing/b"))).items] == ["thing/b"]
    assert len((await verbs.empty_trash(EmptyTrashRequest())).items) == 2
    with pytest.raises(NotInTrashError):
        await verbs.undo(UndoRequest(address="thing/a"))


@case
async def why_tells_of_an_undo_only_while_there_is_something_to_bring_back(world: World) -> None:
    verbs = world.of(ANN)
    await world.things.add("a")
    await verbs.delete(DeleteRequest(address="thing/a"))
    (entry,) = (await verbs.trash(TrashRequest())).items
    told = await verbs.why(WhyRequest(address="thing/a"))
    assert told.trash is not None
    assert (told.verdict, told.trash.uid) == ("gone", entry.uid)
    assert (told.trash.since, told.trash.until) == (entry.ended_at, entry.expires_at)
    assert told.trash.by == told.journal[0].actor
    assert told.undo == f"lapse undo thing/a, until {entry.expires_at}"

    await verbs.undo(UndoRequest(address="thing/a"))
    back = await verbs.why(WhyRequest(address="thing/a"))
    assert (back.verdict, back.trash) == ("keep", None)
    assert back.undo is None or not back.undo.startswith("lapse undo")
    await verbs.delete(DeleteRequest(address="thing/a"))
    await verbs.empty_trash(EmptyTrashRequest())
    emptied = await verbs.why(WhyRequest(address="thing/a"))
    assert (emptied.verdict, emptied.trash) == ("gone", None)
    assert emptied.undo is None or not emptied.undo.startswith("lapse undo")

    await world.things.add("a")
    await verbs.delete(DeleteRequest(address="thing/a"))
    world.elapse(24 * HOUR + 1)
    over = await verbs.why(WhyRequest(address="thing/a"))
    assert over.undo is None or not over.undo.startswith("lapse undo")
    assert (await verbs.trash(TrashRequest())).items == []


@case
async def what_came_back_is_told_with_its_end(world: World) -> None:
    verbs = world.of(ANN)
    await world.things.add("a")
    await verbs.delete(DeleteRequest(address="thing/a"))
    (back,) = (await verbs.undo(UndoRequest(address="thing/a"))).items
    told = await verbs.why(WhyRequest(address="thing/a"))
    assert back.deadline is not None
    assert str(back.deadline) == str(told.deadline)


@case
async def of_two_of_one_address_the_trash_is_emptied_of_the_one_that_is_named(world: World) -> None:
    verbs = world.of(ANN)
    for _ in range(2):
        await world.things.add("a")
        await verbs.delete(DeleteRequest(address="thing/a"))
        world.elapse(1)
    first, second = (await verbs.trash(TrashRequest())).items
    assert first.address == second.address == "thing/a"

    done = await verbs.empty_trash(EmptyTrashRequest(address="thing/a", uid=first.uid))
    assert [one.uid for one in done.items] == [first.uid]
    assert [one.uid for one in (await verbs.trash(TrashRequest())).items] == [second.uid]
    with pytest.raises(NotInTrashError):
        await verbs.empty_trash(EmptyTrashRequest(address="thing/a", uid=first.uid))
    with pytest.raises(NotInTrashError):
        await verbs.empty_trash(EmptyTrashRequest(address="thing/b"))


# --- freezes ----------------------------------------------------------------------------------------------------------


@case
async def a_freeze_lasts_until_it_is_resumed(world: World) -> None:
    frozen = await world.of(ANN).freeze(FreezeRequest(domain=DOMAIN, reason="look"))
    assert frozen.frozen is not None
    assert (frozen.domain, frozen.frozen.reason, frozen.place) == (DOMAIN, "look", "here")
    await world.things.add("a")
    told = await world.of(BEN).why(WhyRequest(address="thing/a"))
    assert told.frozen is not None

    resumed = await world.of(BEN).resume(ResumeRequest(domain=DOMAIN))
    assert (resumed.resumed, resumed.frozen) == ([DOMAIN], None)
    assert (await world.of(BEN).resume(ResumeRequest(domain=DOMAIN))).resumed == []
    assert (await world.of(BEN).why(WhyRequest(address="thing/a"))).frozen is None


@case
async def a_second_freeze_keeps_the_reason_of_the_first(world: World) -> None:
    await world.of(ANN).freeze(FreezeRequest(domain="all", reason="look"))
    again = await world.of(BEN).freeze(FreezeRequest(domain="all"))
    assert again.frozen is not None
    assert again.frozen.reason == "look"


@case
async def what_cannot_be_frozen_or_resumed_is_refused(world: World) -> None:
    verbs = world.of(ANN)
    with pytest.raises(NoSuchDomainError):
        await verbs.freeze(FreezeRequest(domain="nothing"))
    with pytest.raises(UnsupportedVerbError, match="over by themselves"):
        await verbs.freeze(FreezeRequest(domain="secrets"))
    with pytest.raises(NothingNamedError):
        await verbs.resume(ResumeRequest())
    with pytest.raises(UsageError):
        await verbs.resume(ResumeRequest(policy="nobody's"))


@case
async def a_policy_is_approved_as_it_was_looked_at_and_not_as_it_is_by_now(world: World) -> None:
    place, notes = world.place, cast("Any", world.place.freezes)
    guard = PolicyGuard(
        lambda _: notes, journal=place.journal, clock=place.clock, metrics=Metrics("x"), actor="x", domains=[DOMAIN]
    )

    async def count() -> PolicyCount:
        return PolicyCount(400, 300)

    assert not await guard.judge(DOMAIN, "p", "first", count)
    assert not await guard.judge(DOMAIN, "p", "second", count)
    with pytest.raises(PolicyChangedError, match="it would end 300 now") as refused:
        await world.of(ANN).resume(ResumeRequest(policy="p", hash="first"))
    assert refused.value.status == HTTPStatus.PRECONDITION_FAILED
    (waiting,) = (await place.policy_facts()).waiting
    with pytest.raises(HashWithoutPolicyError):
        await world.of(ANN).resume(ResumeRequest(domain=DOMAIN, hash=waiting.hash))
    assert (await world.of(ANN).resume(ResumeRequest(policy="p", hash=waiting.hash))).resumed == ["p"]
    assert not (await place.policy_facts()).waiting


# --- what makes no sense ----------------------------------------------------------------------------------------------


@case
async def a_verb_that_makes_no_sense_for_a_domain_says_why(world: World) -> None:
    verbs, address = world.of(ANN), "secret/7/pin"
    with pytest.raises(UnsupportedVerbError, match="over by themselves"):
        await verbs.why(WhyRequest(address=address))
    with pytest.raises(UnsupportedVerbError, match="over by themselves"):
        await verbs.hold(HoldRequest(address=address, reason="x"))
    with pytest.raises(UnsupportedVerbError, match="over by themselves"):
        await verbs.release(ReleaseRequest(address=address))
    with pytest.raises(UnsupportedVerbError, match="over by themselves"):
        await verbs.extend(ExtendRequest(address=address, time="1h"))
    with pytest.raises(UnsupportedVerbError, match="over by themselves"):
        await verbs.delete(DeleteRequest(address=address))
    with pytest.raises(UnsupportedVerbError, match="over by themselves"):
        await verbs.undo(UndoRequest(address=address))


@case
async def what_is_no_address_is_refused_by_every_verb(world: World) -> None:
    verbs = world.of(ANN)
    for text in ("", "thing", "thing/", "thing/a/b", "what/a", "thing/%zz", "thing/%ff"):
        with pytest.raises(AddressError):
            await verbs.why(WhyRequest(address=text))
        with pytest.raises(AddressError):
            await verbs.hold(HoldRequest(address=text, reason="x"))
        with pytest.raises(AddressError):
            await verbs.release(ReleaseRequest(address=text))
        with pytest.raises(AddressError):
            await verbs.extend(ExtendRequest(address=text, time="1h"))
        with pytest.raises(AddressError):
            await verbs.delete(DeleteRequest(address=text))
        with pytest.raises(AddressError):
            await verbs.undo(UndoRequest(address=text))


@case
async def what_is_not_there_is_told_as_such(world: World) -> None:
    verbs = world.of(ANN)
    with pytest.raises(NothingThereError, match=r"There is no thing/a\."):
        await verbs.hold(HoldRequest(address="thing/a", reason="x"))
    with pytest.raises(NothingThereError):
        await verbs.release(ReleaseRequest(address="thing/a"))
    with pytest.raises(NothingThereError):
        await verbs.extend(ExtendRequest(address="thing/a", time="1h"))
    with pytest.raises(NothingThereError):
        await verbs.delete(DeleteRequest(address="thing/a"))
