"""The contract can fail: each store that is broken in one way is caught by the cases that are there for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.errors import LapseError
from tests.conformance.workspaces import broken
from tests.conformance.workspaces.cases import CASES
from tests.conformance.workspaces.worlds import sqlite_world

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 50

CAUGHT: list[tuple[type[Any], list[str]]] = [
    (broken.NamesAreTakenTwice, ["a_name_is_taken_once", "one_of_racing_creations_gets_the_name"]),
    (broken.RulesAreForgotten, ["what_breaks_a_rule_is_refused_before_anything_is_kept"]),
    (
        broken.VersionsAreIgnored,
        ["a_change_on_a_stale_version_does_nothing", "one_of_racing_changes_on_one_version_wins"],
    ),
    (broken.VersionsAreIgnoredByHolds, ["a_change_on_a_stale_version_does_nothing"]),
    (broken.VersionsAreIgnoredByDeletion, ["a_change_on_a_stale_version_does_nothing"]),
    (broken.VersionsAreComparedInTwoSteps, ["one_of_racing_changes_on_one_version_wins"]),
    (broken.OperationsStopNobody, ["a_person_waits_while_an_operation_is_under_way"]),
    (broken.OperationsStopConnections, ["access_does_not_wait_for_an_operation"]),
    (broken.OneTtlResetsTheOther, ["one_ttl_changes_without_the_other"]),
    (broken.PortsChangeUnderPrograms, ["the_port_of_a_program_that_runs_changes_when_it_has_ended"]),
    (broken.SettingsResetTheProbe, ["what_is_set_changes_and_the_rest_stays"]),
    (broken.PortsOfDeletedOnesAreTaken, ["those_at_a_port_are_found_with_those_that_will_be"]),
    (broken.HoldsHaveNoEnd, ["a_hold_is_kept_until_it_is_released"]),
    (
        broken.ReleasesAreForgotten,
        ["a_hold_is_kept_until_it_is_released", "a_shorter_ttl_and_a_release_are_looked_at_at_once"],
    ),
    (
        broken.FingerprintsForgetStatuses,
        ["what_people_see_of_workspaces_changes_their_fingerprint_and_looks_do_not"],
    ),
    (broken.DeletedOnesAreListed, ["a_deleted_workspace_is_unknown_to_people_and_its_name_is_free"]),
    (broken.PagesBeginWithTheLast, ["pages_show_every_workspace_once_in_the_order_of_names"]),
    (broken.PagesNeverEnd, ["pages_show_every_workspace_once_in_the_order_of_names"]),
    (broken.OwnersSeeEverybodys, ["pages_show_every_workspace_once_in_the_order_of_names"]),
    (broken.ReadsComeFromACache, ["what_one_connection_writes_another_reads_at_once"]),
    (broken.ARestartForgetsAll, ["a_restart_changes_nothing"]),
    (
        broken.ConnectionsAreNoVersion,
        ["a_first_connection_is_an_access_and_wakes", "every_change_of_mind_is_one_version"],
    ),
    (
        broken.FlushesAreVersions,
        ["what_nobody_wanted_is_no_version", "a_flush_writes_the_access_time_and_nothing_else"],
    ),
    (broken.FlushesLoseSome, ["a_flush_writes_the_access_time_and_nothing_else"]),
    (broken.AccessMovesBack, ["an_access_time_never_moves_back", "of_racing_flushes_the_latest_time_stays"]),
    (broken.CandidatesComeEarly, ["a_candidate_is_one_from_the_exact_instant_on"]),
    (broken.CandidatesComeLate, ["a_candidate_is_one_from_the_exact_instant_on"]),
    (
        broken.AllThatRunAreCandidates,
        [
            "a_candidate_is_one_from_the_exact_instant_on",
            "only_those_that_are_where_they_should_be_and_at_rest_are_candidates",
        ],
    ),
    (broken.CandidatesOfAMomentAreLost, ["candidates_come_in_pages_each_once_and_the_longest_due_first"]),
    (broken.DeletedOnesAreCounted, ["workspaces_are_counted_by_what_is_seen_of_them"]),
    (broken.ChecksArePutOffBlindly, ["a_check_is_not_put_off_by_what_was_computed_before_a_change"]),
    (
        broken.StandbyIsWrittenBlindly,
        [
            "a_transition_changes_exactly_those_that_are_as_they_were",
            "who_connects_at_the_moment_of_standby_stays",
            "a_user_who_wants_it_to_run_at_the_moment_of_standby_wins",
            "two_managers_make_one_transition",
        ],
    ),
    (
        broken.StandbyIsComparedInTwoSteps,
        [
            "who_connects_at_the_moment_of_standby_stays",
            "a_user_who_wants_it_to_run_at_the_moment_of_standby_wins",
            "two_managers_make_one_transition",
        ],
    ),
    (broken.StandbyIgnoresTheVersion, ["a_transition_changes_exactly_those_that_are_as_they_were"]),
    (broken.StandbyIgnoresTheAccess, ["a_transition_changes_exactly_those_that_are_as_they_were"]),
    (broken.StandbyIgnoresWhenItBegan, ["a_transition_changes_exactly_those_that_are_as_they_were"]),
    (broken.TransitionsClaimAll, ["a_transition_changes_exactly_those_that_are_as_they_were"]),
    (broken.RecordsTellOfAll, ["what_is_written_beside_a_transition_tells_of_exactly_those_that_changed"]),
    (broken.RecordsAreWrittenAfterwards, ["a_transition_whose_record_fails_is_undone"]),
    (broken.ClaimsTakeOver, ["one_operation_at_a_time", "one_of_racing_claims_wins"]),
    (broken.ClaimsIgnoreTheVersion, ["a_plan_from_before_a_change_of_mind_is_not_claimed"]),
    (broken.AnybodyCompletes, ["a_stale_claim_does_nothing"]),
    (broken.AnybodyFails, ["a_stale_claim_does_nothing"]),
    (broken.StoppingIsNoAccess, ["the_end_of_stopping_is_an_access"]),
    (broken.EveryLookIsAChange, ["a_status_counts_from_when_it_changed"]),
    (broken.ObservationsHealErrors, ["an_error_stays_until_it_is_cleared"]),
    (broken.EveryObservationIsNews, ["a_status_counts_from_when_it_changed"]),
    (broken.DeletedOnesAreNoWork, ["work_is_what_is_not_where_it_should_be_or_deleted_or_worked_on"]),
]
PAIRS = [(store, name) for store, names in CAUGHT for name in names]


def named(value: object) -> str:
    return value.__name__ if isinstance(value, type) else str(value)


@pytest.mark.parametrize(("store", "name"), PAIRS, ids=named)
async def test_a_broken_store_is_caught(store: type[Any], name: str, tmp_path: Path) -> None:
    async with sqlite_world(tmp_path, wrap=store, rounds=ROUNDS) as world:
        with pytest.raises((AssertionError, LapseError)):
            await CASES[name](world)


@pytest.mark.parametrize("name", sorted({name for _, name in PAIRS}))
async def test_a_store_that_passes_everything_on_is_not_caught(name: str, tmp_path: Path) -> None:
    wrap: type[Any] = broken.Passing
    async with sqlite_world(tmp_path, wrap=wrap, rounds=ROUNDS) as world:
        await CASES[name](world)


def test_every_broken_store_is_in_the_table() -> None:
    bases = {broken.Passing, broken.Showing, broken.StandbyIgnores}
    stores = {one for one in vars(broken).values() if isinstance(one, type) and issubclass(one, broken.Passing)}
    assert stores - bases == {store for store, _ in CAUGHT}
