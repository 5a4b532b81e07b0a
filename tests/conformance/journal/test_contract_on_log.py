"""The contract in the log, as far as it goes: what is written, and which changes of a verdict are."""

from __future__ import annotations

import pytest

from lapse.engine.journal.log import JournalInLogError, LogJournal
from tests.conformance.journal.cases import CASES
from tests.conformance.journal.worlds import log_world

HOLDS = [
    "odd_values_are_read_as_they_were_written",
    "a_row_is_read_as_it_was_written",
    "rows_come_newest_first_and_in_the_order_of_writing_where_the_moment_is_the_same",
    "rows_are_found_by_domain_address_uid_actor_outcome_and_policy",
    "rows_are_found_by_a_part_of_their_address_which_is_no_pattern",
    "a_verdict_is_noted_when_it_changes_and_not_when_it_is_looked_at",
    "another_row_in_between_makes_it_news_again",
    "what_goes_without_saying_is_news_only_after_something_else",
    "objects_and_domains_do_not_hide_each_others_news",
    "a_row_of_the_audit_is_found_by_its_address_and_hides_no_news_of_the_thing",
]


@pytest.mark.parametrize("name", HOLDS)
async def test_a_journal_in_the_log_keeps_the_contract_of_those_who_write(name: str) -> None:
    with log_world() as world:
        await CASES[name](world)


async def test_whoever_wants_to_read_the_log_is_told_where_the_rows_are_and_what_to_set() -> None:
    journal = LogJournal()
    for attempt in (journal.entries(limit=1), journal.end(), journal.unfinished()):
        with pytest.raises(JournalInLogError, match="database_url"):
            await attempt
