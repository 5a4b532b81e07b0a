"""The contract of rows: written, read, followed, noted and removed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from lapse.engine.journal.port import AUDIT, BEGINNING, AuditReason, Entry, Outcome, RowPosition, audit_row
from tests.conformance.journal.registry import ENTRY, HELD, UNKNOWN, World, case, follow, keeper, names

# --- writing ----------------------------------------------------------------------------------------------------------


class TextOfItsOwn(str):
    """As some libraries have."""

    __slots__ = ()


ODD: list[dict[str, Any]] = [
    {"details": {"hold": "audit\0 2026", "nested": {"\0": ["\0"]}}},
    {"details": {"quotes": "\"'\\ \n\t\u2028", "number": 2**63 + 1, "empty": {}, "none": None}},
    {"details": {}},
    {"uid": TextOfItsOwn("a uid")},
    {"actor": "null", "policy": "NULL", "tick": "\\u0000"},
    {"time_ns": 2**63 - 1, "anchor_ns": -(2**63)},
    {"address": "x" * 100_000},
]


@case
async def odd_values_are_read_as_they_were_written(world: World) -> None:
    await world.journal.append(*[replace(ENTRY, **changes) for changes in ODD])
    rows = await world.journal.entries(after=BEGINNING)

    for row, changes in zip(rows, ODD, strict=True):
        assert {name: getattr(row, name) for name in changes} == changes


@case
async def a_row_is_read_as_it_was_written(world: World) -> None:
    bare = replace(ENTRY, anchor_ns=None, details=None, tick="", address="keeper/x", time_ns=ENTRY.time_ns + 1)
    await world.journal.append(ENTRY, bare)
    newer, older = await world.journal.entries()

    for row, entry in ((older, ENTRY), (newer, bare)):
        assert {name: getattr(row, name) for name in Entry.__struct_fields__} == {
            name: getattr(entry, name) for name in Entry.__struct_fields__
        }


@case
async def rows_outlive_the_process(world: World) -> None:
    await world.journal.append(ENTRY)

    assert await names(await world.another()) == ["vcr/default/nightly"]


@case
async def rows_written_together_are_written_all_or_none(world: World) -> None:
    with pytest.raises(TypeError):
        await world.journal.append(ENTRY, replace(ENTRY, details={"what": object()}))

    assert await world.journal.entries() == []


@case
async def a_journal_shares_the_database_it_lives_in_and_no_other(world: World) -> None:
    class Store:
        def __init__(self, database: object | None) -> None:
            self.database = database

    other = await world.another()

    assert world.journal.shares(Store(world.journal.database))
    assert not world.journal.shares(Store(other.database))
    assert not world.journal.shares(Store(None))


# --- reading ----------------------------------------------------------------------------------------------------------


@case
async def rows_come_newest_first_and_in_the_order_of_writing_where_the_moment_is_the_same(world: World) -> None:
    for number, time in enumerate((5, 7, 7, 6, 7)):
        await world.journal.append(keeper(number, time_ns=time))

    assert await names(world.journal) == ["keeper/4", "keeper/2", "keeper/1", "keeper/3", "keeper/0"]


@case
async def pages_show_every_row_once_also_when_rows_are_written_meanwhile(world: World) -> None:
    await world.journal.append(*(keeper(number, time_ns=10 + number // 4) for number in range(20)))
    seen, before = [], None
    for _ in range(10):
        rows = await world.journal.entries(limit=3, before=before)
        if not rows:
            break
        seen += [row.address for row in rows]
        before = rows[-1].place
        await world.journal.append(replace(ENTRY, time_ns=99))

    assert seen == [f"keeper/{number}" for number in reversed(range(20))]


@case
async def rows_are_found_by_domain_address_uid_actor_outcome_and_policy(world: World) -> None:
    odd = {"domain": "b", "address": "x/b", "uid": "b", "actor": "b", "outcome": Outcome.HELD, "policy": "b"}
    await world.journal.append(ENTRY, *(replace(ENTRY, time_ns=5, **{name: value}) for name, value in odd.items()))

    for name, value in odd.items():
        assert [getattr(row, name) for row in await world.journal.entries(**{name: value})] == [value]
        assert len(await world.journal.entries(**{name: getattr(ENTRY, name)})) == len(odd)
    assert len(await world.journal.entries(**dict.fromkeys(odd))) == len(odd) + 1, "None asks for nothing"
    assert await names(world.journal, domain="b", actor="b") == []
    assert await names(world.journal, uid="nobody") == []


@case
async def rows_are_found_by_a_part_of_their_address_which_is_no_pattern(world: World) -> None:
    odd = ("x/100%25", "x/a_b", "x/a*b", "x/[ab]?", "x/Upper", "x/upper", "x/größe", "x/a'b\\", "")
    found = {
        "x/": list(odd[:-1]),
        "%25": ["x/100%25"],
        "%": ["x/100%25"],
        "a_b": ["x/a_b"],
        "a*": ["x/a*b"],
        "[ab]": ["x/[ab]?"],
        "?": ["x/[ab]?"],
        "upper": ["x/upper"],
        "Upper": ["x/Upper"],
        "UPPER": [],
        "öß": ["x/größe"],
        "'b\\": ["x/a'b\\"],
        "vcr/default/nightly": ["vcr/default/nightly"],
        "uid-1": [],
        "hidden": [],
    }
    await world.journal.append(*(replace(ENTRY, address=one, details={"why": "hidden %25"}) for one in odd), ENTRY)

    for text, addresses in found.items():
        assert sorted(await names(world.journal, search=text)) == sorted(addresses), text
    assert len(await names(world.journal, search=None)) == len(odd) + 1, "None asks for nothing"


@case
async def a_part_of_an_address_is_one_condition_of_several(world: World) -> None:
    for number in range(12):
        await world.journal.append(keeper(number, time_ns=number + 1, domain=f"domain-{number % 2}"))

    assert await names(world.journal, search="r/1") == ["keeper/11", "keeper/10", "keeper/1"]
    assert await names(world.journal, search="r/1", limit=2) == ["keeper/11", "keeper/10"]
    assert await names(world.journal, search="r/1", domain="domain-1") == ["keeper/11", "keeper/1"]
    assert await names(world.journal, search="r/1", until_ns=12, since_ns=3) == ["keeper/10"]
    newest, *_ = await world.journal.entries(search="r/1", limit=1)
    assert await names(world.journal, search="r/1", before=newest.place) == ["keeper/10", "keeper/1"]
    rows = await world.journal.entries(search="r/1", after=BEGINNING, limit=2)
    assert [row.address for row in rows] == ["keeper/1", "keeper/10"]
    assert await names(world.journal, search="r/1", after=rows[-1].place) == ["keeper/11"]


@case
async def a_stretch_of_time_begins_with_its_first_moment_and_ends_before_its_last(world: World) -> None:
    await world.journal.append(*(keeper(time, time_ns=time) for time in range(5)))

    assert await names(world.journal, since_ns=1, until_ns=3) == ["keeper/2", "keeper/1"]
    assert await names(world.journal, since_ns=4) == ["keeper/4"]
    assert await names(world.journal, until_ns=1) == ["keeper/0"]
    assert await names(world.journal, since_ns=3, until_ns=3) == []


@case
async def an_intent_is_unfinished_until_its_outcome_is_written(world: World) -> None:
    for number in range(3):
        await world.journal.append(keeper(number, outcome=Outcome.INTENT, attempt=f"attempt-{number}"))
    await world.journal.append(keeper(1, outcome=Outcome.ENDED, attempt="attempt-1"))
    await world.journal.append(ENTRY)

    assert [row.address for row in await world.journal.unfinished()] == ["keeper/2", "keeper/0"]
    assert [row.address for row in await world.journal.unfinished(limit=1)] == ["keeper/2"]


# --- following --------------------------------------------------------------------------------------------------------


@case
async def whoever_follows_reads_rows_as_they_were_written_whatever_their_times(world: World) -> None:
    await world.journal.append(*(keeper(number, time_ns=time) for number, time in enumerate((9, 3, 7))))
    seen, place = await follow(world.journal)
    await world.journal.append(keeper(3, time_ns=1))
    later, _ = await follow(await world.another(), place)

    assert (seen, later) == (["keeper/0", "keeper/1", "keeper/2"], ["keeper/3"])


@case
async def pages_of_those_who_follow_show_every_row_once(world: World) -> None:
    for start in range(0, 20, 4):
        await world.journal.append(*(keeper(number) for number in range(start, start + 4)))

    assert (await follow(world.journal))[0] == [f"keeper/{number}" for number in range(20)]


@case
async def a_row_that_is_committed_late_is_not_missed(world: World) -> None:
    await world.journal.append(keeper(0))
    seen, place = await follow(world.journal)
    async with world.uncommitted(keeper(1)):
        # Where one writes at a time, it waits; elsewhere it is committed first, and has the larger id.
        other = asyncio.create_task(world.journal.append(keeper(2)))
        await asyncio.wait([other], timeout=0.2)
        first, place = await follow(world.journal, place)
        end = await world.journal.end()
    await other
    then, _ = await follow(world.journal, place)
    since_end, _ = await follow(world.journal, end)

    assert sorted([*seen, *first, *then]) == ["keeper/0", "keeper/1", "keeper/2"]
    assert {"keeper/1"} <= {*since_end}


@case
async def many_who_write_at_once_lose_no_row_for_those_who_follow(world: World) -> None:
    writers = [await world.another() for _ in range(4)]

    async def write(number: int) -> None:
        for turn in range(10):
            await writers[number].append(keeper(100 * number + turn), keeper(100 * number + 10 + turn))

    writing = asyncio.gather(*map(write, range(len(writers))))
    seen, place = [], BEGINNING
    while True:
        is_over = writing.done()
        # As many as one call writes: a page is then always full, however close behind the writers it is read.
        more, place = await follow(world.journal, place, page=2)
        seen += more
        if is_over:
            break
        await asyncio.sleep(0.001)  # noqa: TID251 - servers have their own time

    assert sorted(seen) == sorted(f"keeper/{100 * number + turn}" for number in range(4) for turn in range(20))


@case
async def who_follows_may_ask_for_some_rows_only(world: World) -> None:
    for number in range(6):
        await world.journal.append(keeper(number, domain=f"domain-{number % 2}"))
    rows = await world.journal.entries(after=BEGINNING, domain="domain-1", limit=2)

    assert [row.address for row in rows] == ["keeper/1", "keeper/3"]
    assert await names(world.journal, after=rows[-1].place, domain="domain-1") == ["keeper/5"]


@case
async def behind_the_end_are_the_rows_that_come_later_and_no_others(world: World) -> None:
    assert await names(world.journal, after=await world.journal.end()) == []
    await world.journal.append(keeper(0), keeper(1))
    end = await world.journal.end()
    assert await names(world.journal, after=end) == []
    await world.journal.append(keeper(2))

    assert await names(world.journal, after=end) == ["keeper/2"]


@case
async def a_place_is_one_word_and_read_as_it_was_written(world: World) -> None:
    await world.journal.append(keeper(0), keeper(1))
    place = (await world.journal.entries(after=BEGINNING))[0].place

    assert RowPosition.parse(str(place)) == place
    assert await names(world.journal, after=RowPosition.parse(str(place))) == ["keeper/1"]


@case
async def a_row_that_comes_after_the_last_one_was_removed_is_not_missed(world: World) -> None:
    await world.journal.append(keeper(0), keeper(1))
    _, place = await follow(world.journal)
    await world.journal.remove([row.id for row in await world.journal.entries()])
    end = await world.journal.end()
    await world.journal.append(keeper(2))

    assert await names(world.journal, after=place) == ["keeper/2"]
    assert await names(world.journal, after=end) == ["keeper/2"]


# --- changes of a verdict ---------------------------------------------------------------------------------------------


@case
async def a_verdict_is_noted_when_it_changes_and_not_when_it_is_looked_at(world: World) -> None:
    written = [await world.journal.note(entry) for entry in (UNKNOWN, UNKNOWN, HELD, HELD, UNKNOWN)]

    assert written == [True, False, True, False, True]
    assert [row.reason for row in await world.journal.entries()] == ["missing_anchor", "held", "missing_anchor"]


@case
async def what_was_noted_is_not_noted_again_after_a_restart(world: World) -> None:
    await world.journal.note(UNKNOWN)

    assert not await (await world.another()).note(UNKNOWN)


@case
async def another_row_in_between_makes_it_news_again(world: World) -> None:
    await world.journal.note(HELD)
    await world.journal.append(replace(ENTRY, outcome=Outcome.FAILED, time_ns=ENTRY.time_ns + 1))

    assert await world.journal.note(replace(HELD, time_ns=ENTRY.time_ns + 2))


@case
async def what_goes_without_saying_is_news_only_after_something_else(world: World) -> None:
    not_yet = replace(ENTRY, verdict="keep", reason="not_yet", outcome=Outcome.NOTED)

    assert not await world.journal.note(not_yet, unless_first=True)
    assert await world.journal.note(UNKNOWN)
    assert await world.journal.note(not_yet, unless_first=True)


@case
async def objects_and_domains_do_not_hide_each_others_news(world: World) -> None:
    assert await world.journal.note(HELD)
    assert await world.journal.note(replace(HELD, uid="another"))
    assert await world.journal.note(replace(HELD, domain="another"))


# --- the audit --------------------------------------------------------------------------------------------------------


@case
async def a_row_of_the_audit_is_found_by_its_address_and_hides_no_news_of_the_thing(world: World) -> None:
    await world.journal.note(HELD)
    row = audit_row(
        AuditReason.HOLD_PLACED,
        address=ENTRY.address,
        uid=ENTRY.uid,
        actor="user ann",
        time_ns=ENTRY.time_ns + 1,
        domain=ENTRY.domain,
        details={"reason": "lawyers"},
    )
    await world.journal.append(row)
    (found,) = await world.journal.entries(domain=AUDIT, address=ENTRY.address)

    assert (found.reason, found.actor, found.outcome) == ("hold_placed", "user ann", Outcome.DONE)
    assert found.details == {"domain": "requests", "reason": "lawyers"}
    assert not await world.journal.note(HELD)


# --- removing ---------------------------------------------------------------------------------------------------------


@case
async def old_rows_come_oldest_first_in_pages_up_to_a_moment(world: World) -> None:
    for number, time in enumerate((5, 3, 9, 3, -7)):
        await world.journal.append(keeper(number, time_ns=time, details={"number": number}))
    first = await world.journal.oldest(until_ns=9, behind=None, limit=2)
    then = await world.journal.oldest(until_ns=9, behind=first[-1].place, limit=2)
    over = await world.journal.oldest(until_ns=9, behind=then[-1].place, limit=2)

    assert [row.details for row in [*first, *then]] == [f'{{"number":{number}}}' for number in (4, 1, 3, 0)]
    assert over == []


@case
async def exactly_the_rows_that_are_named_are_removed_and_counted_once(world: World) -> None:
    await world.journal.append(*map(keeper, range(5)))
    ids = [row.id for row in await world.journal.entries() if row.address in {"keeper/1", "keeper/4"}]

    assert await world.journal.remove(ids) == 2
    assert await (await world.another()).remove(ids) == 0
    assert await names(world.journal) == ["keeper/3", "keeper/2", "keeper/0"]
