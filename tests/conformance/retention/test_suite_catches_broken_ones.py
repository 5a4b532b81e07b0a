"""The cases can fail: each implementation that is broken in one way is caught by the cases that are there for it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pytest

from lapse.kube.errors import ObjectError
from tests.conformance.retention import broken
from tests.conformance.retention.cases import CASES
from tests.conformance.retention.model import Model
from tests.conformance.retention.worlds import Surroundings, embedded_world

if TYPE_CHECKING:
    from pathlib import Path

CAUGHT: dict[type[Model], list[str]] = {
    broken.NegativeTtlsAreLimits: [
        "a_negative_ttl_does_not_wipe_everything",
        "a_policy_with_limits_that_are_none_is_refused_and_deletes_nothing",
    ],
    broken.NegativeCountsAreLimits: ["a_negative_count_does_not_wipe_everything"],
    broken.ZeroTtlIsALimit: ["a_ttl_of_zero_really_disables", "a_ttl_of_zero_leaves_the_count_in_force"],
    broken.ZeroLimitIsALimit: ["a_limit_of_zero_really_disables"],
    broken.ShortTtlsAreTaken: ["a_ttl_is_off_or_an_hour_or_more"],
    broken.PoliciesActUnlessTheySayDry: ["a_policy_deletes_nothing_until_it_says_so"],
    broken.AgesThatEqualTheTtlGo: ["a_record_goes_when_its_age_exceeds_the_ttl_and_not_before"],
    broken.AgesAreInWholeHours: [
        "a_record_goes_when_its_age_exceeds_the_ttl_and_not_before",
        "various_ttls_each_take_what_is_older",
        "the_smallest_ttl_is_an_hour",
    ],
    broken.AgesHaveNoSign: ["a_record_from_the_future_stays"],
    broken.AgesAreCutTo32BitSeconds: ["the_largest_ttl_keeps_for_centuries"],
    broken.AgesCountFromTheRun: ["an_age_counts_from_the_creation_of_the_record_not_from_the_run"],
    broken.WithoutATimeItIsOld: ["without_a_time_at_the_path_nothing_goes_and_no_place_is_taken"],
    broken.TimesThatAreNotSetAreOld: ["a_time_that_means_not_set_is_no_time"],
    broken.AgeFromIsIgnored: ["an_age_can_count_from_any_field"],
    broken.RetriesReplaceTheRecord: ["a_retried_run_does_not_reset_an_age"],
    broken.RetriesAreRecordedAgain: ["a_retried_run_does_not_reset_an_age"],
    broken.ARunIsItsStart: [
        "two_runs_of_one_second_are_two_records",
        "one_instant_written_in_another_way_is_the_same_run",
    ],
    broken.OneMoreStays: ["the_newest_stay_as_many_as_the_limit_says"],
    broken.OneMoreGoes: ["the_newest_stay_as_many_as_the_limit_says"],
    broken.TheOldestStay: ["the_newest_stay_as_many_as_the_limit_says"],
    broken.NamesSayWhoIsNewer: ["who_was_created_later_is_newer_whatever_it_is_called"],
    broken.GroupsAreBareNames: [
        "two_experiments_of_the_same_name_in_two_namespaces_do_not_share_a_budget",
        "an_experiment_made_anew_under_its_name_does_not_share_a_budget",
        "the_last_success_is_that_of_each_experiment",
    ],
    broken.GroupsHaveNoUid: ["an_experiment_made_anew_under_its_name_does_not_share_a_budget"],
    broken.GroupsAreCutTo63Characters: ["names_that_are_long_and_begin_alike_do_not_share_a_budget"],
    broken.AllAreOneGroup: [
        "each_experiment_has_a_limit_of_its_own",
        "both_limits_hold_for_each_experiment_on_its_own",
        "groups_are_made_of_several_fields",
        "the_last_ones_stay_of_each_group_whatever_the_limits_say",
    ],
    broken.OneFieldMakesTheGroup: ["groups_are_made_of_several_fields"],
    broken.WithoutAFieldItIsAGroup: ["without_a_field_of_the_group_no_count_takes_it"],
    broken.RecordsAreCountedInTheExperimentsNamespace: [
        "records_are_counted_where_they_live_not_in_the_experiments_namespace"
    ],
    broken.CompletionsLookAtEverything: ["a_completion_looks_at_the_records_of_its_experiment_only"],
    broken.TheCountIsForgottenBesideATtl: [
        "who_violates_either_limit_goes_and_is_counted_once_by_age_first",
        "a_record_within_its_ttl_still_goes_by_count",
    ],
    broken.TheTtlIsForgottenBesideACount: [
        "who_violates_either_limit_goes_and_is_counted_once_by_age_first",
        "a_record_within_the_limit_still_goes_by_age",
    ],
    broken.BothLimitsMustBeViolated: [
        "a_record_within_the_limit_still_goes_by_age",
        "a_record_within_its_ttl_still_goes_by_count",
    ],
    broken.DeletionsAreCountedByBothLimits: [
        "who_violates_either_limit_goes_and_is_counted_once_by_age_first",
        "the_metrics_tell_what_went_and_by_which_limit",
        "of_two_policies_either_limit_deletes",
    ],
    broken.DeletionsAreNotCounted: ["the_metrics_tell_what_went_and_by_which_limit"],
    broken.AllKindsAreCountedAsRecords: ["the_metrics_tell_records_from_other_kinds"],
    broken.DryRunsAreCounted: ["the_metrics_tell_what_went_and_by_which_limit"],
    broken.DryPoliciesSayWhy: ["the_reason_is_that_of_a_policy_that_deletes"],
    broken.DryRunsDelete: [
        "a_dry_run_finds_what_the_real_run_then_takes",
        "a_dry_policy_deletes_nothing_beside_one_that_does",
        "a_policy_deletes_nothing_until_it_says_so",
    ],
    broken.HoldsAreIgnored: [
        "a_hold_saves_from_both_limits_and_changes_nothing_for_others",
        "a_hold_wins_over_all_policies",
        "what_is_held_stays_of_any_kind",
        "a_record_that_is_held_between_list_and_delete_survives",
    ],
    broken.HoldsNeverEnd: ["a_hold_that_is_over_saves_nothing"],
    broken.HeldOnesTakePlaces: [
        "a_held_one_among_the_newest_takes_no_place",
        "a_held_one_among_the_last_takes_no_place",
    ],
    broken.NothingIsTheLastOne: [
        "the_last_success_is_saved_from_the_age",
        "the_last_success_is_saved_from_the_count",
        "the_last_ones_stay_of_each_group_whatever_the_limits_say",
        "the_last_ones_of_one_policy_are_saved_from_another",
    ],
    broken.TheLastOnesNeedNotBeGood: [
        "the_last_success_is_saved_from_the_age",
        "the_last_success_is_saved_from_the_count",
    ],
    broken.DoubtSavesNothing: ["what_may_be_the_last_good_one_stays"],
    broken.AllGoodOnesStay: ["the_last_success_is_saved_from_the_age", "the_last_success_is_saved_from_the_count"],
    broken.TheLastOneStaysUnasked: ["without_keep_last_success_the_last_good_one_goes"],
    broken.TheLastOnesAreSavedFromTheirOwnPolicyOnly: ["the_last_ones_of_one_policy_are_saved_from_another"],
    broken.DryPoliciesSaveNothing: ["the_last_ones_of_a_dry_policy_are_saved_nevertheless"],
    broken.TheFirstPolicyDecides: ["of_two_policies_either_limit_deletes"],
    broken.TheSystemIsNotLeftAlone: ["the_system_and_our_own_namespace_are_left_alone_unless_named"],
    broken.ConditionsAreIgnored: ["only_what_the_conditions_hold_for_is_deleted_or_counted"],
    broken.NamespacesAreIgnored: [
        "records_are_counted_where_they_live_not_in_the_experiments_namespace",
        "policies_about_different_objects_do_not_meet",
    ],
    broken.DeletionsHaveNoConditions: ["an_object_changed_between_list_and_delete_survives"],
    broken.AsTheSeedSketchesIt: [
        "an_object_changed_between_list_and_delete_survives",
        "an_object_deleted_and_created_anew_under_its_name_survives",
        "a_record_that_is_held_between_list_and_delete_survives",
    ],
    broken.DeletionsCompareTheUidOnly: ["an_object_changed_between_list_and_delete_survives"],
    broken.WhatIsGoneIsCounted: [
        "concurrent_completions_do_not_delete_twice_or_below_the_limit",
        "a_completion_beside_the_hourly_pass_deletes_nothing_twice",
    ],
    broken.GroupsAreNotReadAgain: ["what_somebody_deletes_meanwhile_does_not_bring_a_group_below_its_limit"],
    broken.NewcomersGo: ["a_record_created_during_the_pass_is_not_counted_as_old"],
    broken.OneFailureStopsEverything: ["a_deletion_that_fails_does_not_stop_the_others"],
}
PAIRS = [(kind, name) for kind, names in CAUGHT.items() for name in names]


def named(value: object) -> str:
    return value.__name__ if isinstance(value, type) else str(value)


@pytest.mark.parametrize(("kind", "name"), PAIRS, ids=named)
async def test_a_broken_one_is_caught(kind: type[Model], name: str, tmp_path: Path) -> None:
    def make(around: Surroundings) -> Model:
        return kind(around.store, clock=around.clock, metrics=around.metrics)

    async with embedded_world(tmp_path, make) as world:
        with pytest.raises((AssertionError, ObjectError, RuntimeError)):
            await CASES[name](world)


def test_every_broken_one_is_tried() -> None:
    written = {one for _, one in inspect.getmembers(broken, inspect.isclass) if issubclass(one, Model)}
    assert set(CAUGHT) == written - {Model}
