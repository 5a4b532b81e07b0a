"""Cases about why, the journal and the status."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.core.address import Address
from lapse.core.timestamps import MomentError
from lapse.engine.journal.port import BEGINNING, RowPositionError
from lapse.engine.service import NeverError, NoSuchOutcomeError, NothingThereError, SearchTextError
from lapse.engine.verbs.contract import (
    DeleteRequest,
    FreezeRequest,
    HoldRequest,
    JournalRequest,
    ReleaseRequest,
    WhyRequest,
)
from lapse.engine.view import Moment
from tests.conformance.service.registry import ANN, BEN, DOMAIN, HOUR, case

if TYPE_CHECKING:
    from lapse.engine.journal.view import JournalRowView
    from tests.conformance.service.registry import World


@case
async def a_thing_that_lives_is_explained_with_its_rule_and_its_deadline(world: World) -> None:
    await world.things.add("a")
    made = world.things.things["a"].made

    told = await world.of(ANN).why(WhyRequest(address="thing/a"))
    assert (told.address, told.domain, told.verdict, told.reason) == ("thing/a", DOMAIN, "keep", "not_yet")
    assert told.anchor is not None
    assert (told.anchor.at, told.deadline) == (Moment(made), Moment(made + HOUR * 1_000_000_000))
    assert [one.wins for one in told.rules] == [True]
    assert "lapse hold thing/a --reason TEXT" in told.saved_by


@case
async def a_thing_is_due_after_its_deadline_and_not_at_it(world: World) -> None:
    await world.things.add("a")
    world.elapse(HOUR)
    assert (await world.of(ANN).why(WhyRequest(address="thing/a"))).verdict == "keep"
    world.elapse(1)
    assert (await world.of(ANN).why(WhyRequest(address="thing/a"))).verdict == "due"


@case
async def a_thing_is_explained_for_another_time(world: World) -> None:
    await world.things.add("a")
    told = await world.of(ANN).why(WhyRequest(address="thing/a", at="2h"))
    assert (told.verdict, told.reason) == ("due", "ttl_expired")
    with pytest.raises(NeverError):
        await world.of(ANN).why(WhyRequest(address="thing/a", at="never"))
    with pytest.raises(MomentError):
        await world.of(ANN).why(WhyRequest(address="thing/a", at="some day"))


@case
async def a_thing_that_is_gone_is_explained_from_the_journal(world: World) -> None:
    await world.things.add("a")
    await world.of(BEN).delete(DeleteRequest(address="thing/a"))

    told = await world.of(ANN).why(WhyRequest(address="thing/a"))
    assert (told.verdict, told.reason) == ("gone", "deleted_by_person")
    assert [one.outcome for one in told.journal][:1] == ["ended"]


@case
async def of_two_things_that_had_one_address_each_is_explained_by_its_uid(world: World) -> None:
    uids = []
    for _ in range(2):
        await world.things.add("a")
        uids.append((await world.of(BEN).delete(DeleteRequest(address="thing/a"))).uid)
    await world.things.add("a")

    for uid in uids:
        told = await world.of(ANN).why(WhyRequest(address="thing/a", uid=uid))
        assert (told.verdict, told.uid, {row.uid for row in told.journal}) == ("gone", uid, {uid})
    assert (await world.of(ANN).why(WhyRequest(address="thing/a"))).verdict == "keep"
    with pytest.raises(NothingThereError):
        await world.of(ANN).why(WhyRequest(address="thing/a", uid="u-none"))


@case
async def a_thing_that_never_was_is_not_explained(world: World) -> None:
    with pytest.raises(NothingThereError, match="There is no thing/a"):
        await world.of(ANN).why(WhyRequest(address="thing/a"))


@case
async def names_with_odd_characters_arrive_as_they_are(world: World) -> None:
    for name in ("a b", "ü", "50%", "a/b", "..", "?x=1&y#z", "+", "a%2Fb", "\u202e"):
        await world.things.add(name)
        address = str(Address(DOMAIN, None, name))
        assert (await world.of(ANN).why(WhyRequest(address=address))).address == address
        await world.of(ANN).hold(HoldRequest(address=address, reason="odd"))
        told = await world.of(ANN).why(WhyRequest(address=address))
        assert told.hold is not None
        assert told.hold.reason == "odd"


# --- the journal ------------------------------------------------------------------------------------------------------


async def _fill(world: World, names: str) -> None:
    for name in names:
        await world.things.add(name)
        await world.of(ANN).hold(HoldRequest(address=f"thing/{name}", reason="odd"))
        world.elapse(1)


def _names(rows: list[JournalRowView]) -> list[str]:
    return [one.address.removeprefix("thing/") for one in rows]


@case
async def the_journal_is_told_newest_first_in_pages_without_gaps(world: World) -> None:
    await _fill(world, "abcde")
    verbs = world.of(BEN)
    found: list[str] = []
    before = None
    for _ in range(3):
        page = await verbs.journal(JournalRequest(limit=2, before=before, domain="audit"))
        found += _names(page.items)
        before = page.next

    assert found == list("edcba")
    assert before is None


@case
async def who_follows_the_journal_gets_each_row_once_in_order(world: World) -> None:
    await _fill(world, "ab")
    verbs = world.of(BEN)
    place = (await verbs.journal(JournalRequest(after="end"))).next
    assert place is not None
    assert (await verbs.journal(JournalRequest(after=place))).items == []

    await _fill(world, "cde")
    first = await verbs.journal(JournalRequest(after=place, limit=2))
    rest = await verbs.journal(JournalRequest(after=first.next, limit=2))
    assert _names(first.items) + _names(rest.items) == list("cde")
    assert (await verbs.journal(JournalRequest(after=rest.next))).items == []


@case
async def who_follows_the_journal_since_a_time_gets_the_rows_since_then_first(world: World) -> None:
    await _fill(world, "ab")
    world.elapse(HOUR)
    await _fill(world, "cde")
    verbs = world.of(BEN)

    first = await verbs.journal(JournalRequest(after=str(BEGINNING), since="10m", limit=2))
    rest = await verbs.journal(JournalRequest(after=first.next, since="10m", limit=2))
    assert _names(first.items) + _names(rest.items) == list("cde")
    end = await verbs.journal(JournalRequest(after=rest.next, since="10m"))
    assert (end.items, (await verbs.journal(JournalRequest(after=end.next))).items) == ([], [])


@case
async def rows_of_the_journal_are_found_by_what_they_tell(world: World) -> None:
    await _fill(world, "ab")
    world.elapse(HOUR)
    await world.of(ANN).release(ReleaseRequest(address="thing/a"))
    verbs = world.of(BEN)

    recent = await verbs.journal(JournalRequest(since="10m"))
    assert [(one.address, one.reason) for one in recent.items] == [("thing/a", "hold_released")]
    earlier = await verbs.journal(JournalRequest(until="10m", domain="audit"))
    assert _names(earlier.items) == ["b", "a"]
    assert (await verbs.journal(JournalRequest(actor="nobody"))).items == []
    assert {one.address for one in (await verbs.journal(JournalRequest(search="ng/a"))).items} == {"thing/a"}
    followed = await verbs.journal(JournalRequest(search="g/b", after=str(BEGINNING)))
    assert _names(followed.items) == ["b"]
    assert (await verbs.journal(JournalRequest(search="THING/A"))).items == []


@case
async def a_question_to_the_journal_that_makes_no_sense_is_refused(world: World) -> None:
    verbs = world.of(ANN)
    with pytest.raises(NoSuchOutcomeError):
        await verbs.journal(JournalRequest(outcome="gone fishing"))
    with pytest.raises(RowPositionError):
        await verbs.journal(JournalRequest(after="somewhere"))
    with pytest.raises(MomentError):
        await verbs.journal(JournalRequest(since="some day"))
    for text in ("", "x" * 201, "\0", "a\nb"):
        with pytest.raises(SearchTextError):
            await verbs.journal(JournalRequest(search=text))
    assert (await verbs.journal(JournalRequest(search="x" * 200))).items == []


# --- the status -------------------------------------------------------------------------------------------------------


@case
async def the_status_tells_what_stands_still_and_what_lapses_next(world: World) -> None:
    await world.things.add("a")
    await world.of(BEN).freeze(FreezeRequest(domain=DOMAIN, reason="look"))

    told = await world.of(ANN).status()
    assert told.place == "here"
    (domain,) = told.domains
    assert (domain.name, domain.act, domain.problem) == (DOMAIN, "auto", None)
    assert domain.frozen is not None
    assert domain.frozen.reason == "look"
    assert told.problems == {}
