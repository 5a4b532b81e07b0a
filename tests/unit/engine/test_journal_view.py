from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from lapse.engine.journal.port import Outcome, RowPosition, RowPositionError
from lapse.engine.journal.view import COLUMNS, END, read_page, row_line, row_view, without_details
from lapse.engine.view import row, to_json
from tests.conformance.journal.registry import ENTRY, keeper

if TYPE_CHECKING:
    from lapse.engine.journal.sqlite import SQLiteJournal


async def test_a_row_is_shown_with_all_that_it_tells(journal: SQLiteJournal) -> None:
    await journal.append(replace(ENTRY, details={"plan": "p-1", "until_ns": 1_800_000_000_000_000_000}))
    (found,) = await journal.entries()
    view = row_view(found)

    assert to_json(view) == {
        "time": "2023-11-14T22:13:20Z",
        "domain": "requests",
        "address": "vcr/default/nightly",
        "uid": "uid-1",
        "version": "41",
        "verdict": "due",
        "reason": "ttl_expired",
        "anchor": "2023-11-14T21:56:40Z",
        "policy": "a1b2c3",
        "actor": "requests-ttl",
        "outcome": "ended",
        "details": {"until": "2027-01-15T08:00:00Z"},
        "plan": "p-1",
        "id": found.id,
        "place": str(found.place),
    }
    assert dict(zip(COLUMNS, row(view, COLUMNS), strict=True)) == {
        "time": "2023-11-14T22:13:20Z",
        "outcome": "ended",
        "domain": "requests",
        "address": "vcr/default/nightly",
        "reason": "ttl_expired",
        "actor": "requests-ttl",
        "plan": "p-1",
        "details": "until 2027-01-15T08:00:00Z",
    }


async def test_a_row_without_details_shows_none(journal: SQLiteJournal) -> None:
    await journal.append(replace(ENTRY, details=None, anchor_ns=None))
    view = row_view((await journal.entries())[0])

    assert (view.details, view.plan, view.anchor) == (None, None, None)
    assert row(view, COLUMNS)[-2:] == ["-", "-"]
    assert without_details(view) == view


async def test_details_that_are_not_shown_are_told_to_be_there(journal: SQLiteJournal) -> None:
    await journal.append(replace(ENTRY, details={"reason": "hunter2"}))
    view = without_details(row_view((await journal.entries())[0]))

    assert (view.details, to_json(view)["details_hidden"]) == (None, True)
    assert row(view, COLUMNS)[-1] == "details hidden"
    assert row_line(view).endswith("details hidden) by requests-ttl")


async def test_pages_lead_from_the_newest_row_to_the_oldest(journal: SQLiteJournal) -> None:
    await journal.append(*(keeper(number, time_ns=number) for number in range(4)))
    first = await read_page(journal, limit=2)
    second = await read_page(journal, limit=2, before=first.next)

    assert [one.address for one in first.items] == ["keeper/3", "keeper/2"]
    assert [one.address for one in second.items] == ["keeper/1", "keeper/0"]
    assert second.next is None, "a page that is full and the last one"


async def test_pages_of_those_who_follow_lead_on_for_ever_also_past_rows_that_they_do_not_want(
    journal: SQLiteJournal,
) -> None:
    await journal.append(*map(keeper, range(3)))
    now = await read_page(journal, limit=2, after=END)
    assert now.items == []
    await journal.append(keeper(3), keeper(4, outcome=Outcome.HELD), keeper(5))
    page = await read_page(journal, limit=2, after=now.next)
    rest = await read_page(journal, limit=2, after=page.next)
    held = await read_page(journal, limit=9, after=now.next, outcome=Outcome.HELD)
    none = await read_page(journal, limit=9, after=held.next, outcome=Outcome.HELD)

    assert [[one.address for one in found.items] for found in (page, rest, held)] == [
        ["keeper/3", "keeper/4"],
        ["keeper/5"],
        ["keeper/4"],
    ]
    assert none.items == []
    assert none.next == str(await journal.end()), "nothing is looked through twice"


@pytest.mark.parametrize("text", ["", "1", "1.2", "1.2.x", "1.2.3.4", "½.1.1", "1.2.", "9" * 30 + ".1.1"])
def test_what_is_no_place_is_a_usage_error(text: str) -> None:
    with pytest.raises(RowPositionError, match="is not a position in the journal"):
        RowPosition.parse(text)
