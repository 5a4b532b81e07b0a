"""The contract can fail: each journal that is broken in one way is caught by the cases that are there for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.errors import LapseError
from tests.conformance.journal import broken
from tests.conformance.journal.cases import CASES
from tests.conformance.journal.worlds import sqlite_world

if TYPE_CHECKING:
    from pathlib import Path

_FOUND = "rows_are_found_by_domain_address_uid_actor_outcome_and_policy"
_SEARCHED = "rows_are_found_by_a_part_of_their_address_which_is_no_pattern"
_CONDITION = "a_part_of_an_address_is_one_condition_of_several"
_STRETCH = "a_stretch_of_time_begins_with_its_first_moment_and_ends_before_its_last"
_ONCE = "pages_show_every_row_once_also_when_rows_are_written_meanwhile"
_FOLLOWED = "pages_of_those_who_follow_show_every_row_once"
_LOOK = "a_verdict_is_noted_when_it_changes_and_not_when_it_is_looked_at"

CAUGHT: list[tuple[type[Any], list[str]]] = [
    (broken.WritesOneByOne, ["rows_written_together_are_written_all_or_none"]),
    (broken.LosesDetails, ["a_row_is_read_as_it_was_written", "odd_values_are_read_as_they_were_written"]),
    (broken.KeepsRowsToItself, ["rows_outlive_the_process"]),
    (broken.SharesWithEverybody, ["a_journal_shares_the_database_it_lives_in_and_no_other"]),
    (
        broken.NewestLast,
        ["rows_come_newest_first_and_in_the_order_of_writing_where_the_moment_is_the_same", _ONCE],
    ),
    (broken.PagesByTimeAlone, [_ONCE]),
    (broken.PagesBeginWithTheLast, [_ONCE]),
    (broken.SinceLeavesItsMomentOut, [_STRETCH]),
    (broken.UntilTakesItsMomentIn, [_STRETCH]),
    (broken.IgnoresDomains, [_FOUND, "who_follows_may_ask_for_some_rows_only"]),
    (broken.IgnoresAddresses, [_FOUND]),
    (broken.IgnoresSearches, [_SEARCHED, _CONDITION]),
    (broken.SearchesInAnyCase, [_SEARCHED]),
    (broken.SearchesForPatterns, [_SEARCHED]),
    (broken.SearchesInDetails, [_SEARCHED]),
    (broken.SearchesAPageOnly, [_CONDITION]),
    (broken.FollowersSearchNothing, [_CONDITION]),
    (broken.IgnoresUids, [_FOUND]),
    (broken.IgnoresActors, [_FOUND]),
    (broken.IgnoresOutcomes, [_FOUND]),
    (broken.IgnoresPolicies, [_FOUND]),
    (broken.NothingIsFinished, ["an_intent_is_unfinished_until_its_outcome_is_written"]),
    (broken.FollowsByTime, ["whoever_follows_reads_rows_as_they_were_written_whatever_their_times"]),
    (broken.FollowersSeeTheLastAgain, [_FOLLOWED, "a_place_is_one_word_and_read_as_it_was_written"]),
    (broken.FollowersMissTheLastOfAPage, [_FOLLOWED, "many_who_write_at_once_lose_no_row_for_those_who_follow"]),
    (broken.FollowersSeeEverything, ["who_follows_may_ask_for_some_rows_only"]),
    (broken.TheEndIsAhead, ["behind_the_end_are_the_rows_that_come_later_and_no_others"]),
    (broken.TheEndIsTheBeginning, ["behind_the_end_are_the_rows_that_come_later_and_no_others"]),
    (broken.IdsBeginAnew, ["a_row_that_comes_after_the_last_one_was_removed_is_not_missed"]),
    (broken.EveryLookIsNews, [_LOOK, "what_goes_without_saying_is_news_only_after_something_else"]),
    (broken.NewsAreForgottenWithTheProcess, ["what_was_noted_is_not_noted_again_after_a_restart"]),
    (broken.NewsAreToldOnceForEver, [_LOOK, "another_row_in_between_makes_it_news_again"]),
    (broken.DomainsHideEachOthersNews, ["objects_and_domains_do_not_hide_each_others_news"]),
    (broken.FirstLooksAreNews, ["what_goes_without_saying_is_news_only_after_something_else"]),
    (
        broken.TheAuditMakesNews,
        ["a_row_of_the_audit_is_found_by_its_address_and_hides_no_news_of_the_thing"],
    ),
    (broken.OldRowsIncludeTheMoment, ["old_rows_come_oldest_first_in_pages_up_to_a_moment"]),
    (broken.OldRowsBeginAnew, ["old_rows_come_oldest_first_in_pages_up_to_a_moment"]),
    (broken.RemovesTheNextAsWell, ["exactly_the_rows_that_are_named_are_removed_and_counted_once"]),
    (broken.CountsWhatWasAsked, ["exactly_the_rows_that_are_named_are_removed_and_counted_once"]),
]
PAIRS = [(journal, name) for journal, names in CAUGHT for name in names]


def named(value: object) -> str:
    return value.__name__ if isinstance(value, type) else str(value)


@pytest.mark.parametrize(("journal", "name"), PAIRS, ids=named)
async def test_a_broken_journal_is_caught(journal: type[Any], name: str, tmp_path: Path) -> None:
    async with sqlite_world(tmp_path, wrap=journal) as world:
        with pytest.raises((AssertionError, LapseError)):
            await CASES[name](world)


@pytest.mark.parametrize("name", sorted({name for _, name in PAIRS}))
async def test_a_journal_that_passes_everything_on_is_not_caught(name: str, tmp_path: Path) -> None:
    async with sqlite_world(tmp_path, wrap=broken.Passing) as world:
        await CASES[name](world)


def test_every_broken_journal_is_in_the_table() -> None:
    bases = {broken.Passing, broken.Reading, broken.Ignores}
    journals = {one for one in vars(broken).values() if isinstance(one, type) and issubclass(one, broken.Passing)}
    # Where one writes at a time it is not wrong: it is caught on PostgreSQL.
    assert journals - bases - {broken.FollowsById} == {journal for journal, _ in CAUGHT}
