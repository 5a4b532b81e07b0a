"""The contract can fail: each store that is broken in one way is caught by the cases that are there for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.kube.errors import ObjectError
from tests.conformance.objects import broken
from tests.conformance.objects.cases import CASES
from tests.conformance.objects.worlds import EmbeddedWorld, embedded_world

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_SECONDS = 2.0

CAUGHT: list[tuple[type[broken.Passing], list[str]]] = [
    (broken.PatchesIgnoreTheVersion, ["a_patch_on_a_stale_version_loses", "one_of_two_racing_patches_wins"]),
    (broken.PatchesIgnoreTheUid, ["a_patch_meant_for_another_uid_loses"]),
    (broken.StatusPatchesIgnoreTheUid, ["a_patch_meant_for_another_uid_loses"]),
    (broken.StatusPatchesIgnoreTheVersion, ["a_patch_of_status_on_a_stale_version_loses"]),
    (
        broken.PatchesCompareInTwoSteps,
        ["one_of_two_racing_patches_wins", "one_of_many_racing_patches_wins", "no_increment_of_a_counter_is_lost"],
    ),
    (broken.LosingPatchesAreWritten, ["a_patch_on_a_stale_version_loses"]),
    (broken.DeletionsIgnoreTheVersion, ["a_deletion_on_a_stale_version_leaves_the_object"]),
    (broken.DeletionsIgnoreTheUid, ["a_deletion_meant_for_another_uid_leaves_the_object"]),
    (broken.DeletionsLookAtOneOfTwo, ["a_deletion_with_uid_and_version_needs_both_right"]),
    (broken.DeletionsCompareInTwoSteps, ["a_deletion_and_a_patch_on_one_version_exclude_each_other"]),
    (
        broken.DeletionsOfNothingSucceed,
        ["what_is_missing_is_not_found", "what_is_deleted_is_gone", "one_of_racing_deletions_wins"],
    ),
    (broken.CreationsOverwrite, ["a_name_is_taken_once", "one_of_many_racing_creations_wins"]),
    (broken.CreationsStoreTheStatus, ["status_is_not_stored_at_creation"]),
    (broken.CallersSayWhenTheyCreated, ["what_the_store_fills_in_is_not_taken_from_callers"]),
    (broken.UidsAreNames, ["a_name_used_again_is_another_object"]),
    (broken.InvalidObjectsVanish, ["names_that_are_none_are_refused", "label_values_that_are_none_are_refused"]),
    (broken.StatusPatchesTouchTheSpec, ["a_patch_of_status_touches_nothing_else"]),
    (broken.StatusPatchesReplaceTheStatus, ["status_merges_and_null_removes"]),
    (broken.PatchesTouchTheStatus, ["a_patch_never_touches_status", "what_changed_nothing_is_not_reported"]),
    (broken.NullIsKept, ["null_removes_and_lists_are_replaced", "labels_and_annotations_merge_one_by_one"]),
    (broken.NarrowReadersWriteEverythingBack, ["fields_unknown_to_a_narrow_reader_survive_its_patch"]),
    (broken.GenerationRisesWithMetadata, ["generation_rises_with_the_spec_only"]),
    (broken.GenerationRisesWithStatus, ["generation_rises_with_the_spec_only"]),
    (broken.GenerationStandsStill, ["generation_rises_with_the_spec_only"]),
    (
        broken.PatchesOfNothingAreChanges,
        ["what_changes_nothing_keeps_the_version", "what_changed_nothing_is_not_reported"],
    ),
    (broken.ReadsShareOneObject, ["the_store_shares_no_value_with_its_callers"]),
    (broken.UnknownKindsAreUntyped, ["unknown_kinds_are_refused"]),
    (broken.TypesAreForgotten, ["known_kinds_are_resolved"]),
    (broken.ListsAreBackwards, ["a_list_is_ordered_by_name"]),
    (broken.ListsComeFromACache, ["a_list_shows_what_was_just_written"]),
    (broken.OneLabelIsEnough, ["labels_select_objects_that_have_all_of_them"]),
    (broken.AbsentLabelsAreEmpty, ["labels_select_objects_that_have_all_of_them"]),
    (
        broken.PagesSeeLaterWrites,
        ["pages_show_one_moment_while_writes_go_on", "a_selection_over_pages_shows_the_labels_of_that_moment"],
    ),
    (broken.PagesSkipOne, ["pages_show_everything_once_in_order", "pages_of_a_selection_show_all_of_it"]),
    (broken.ListsNameAnOldVersion, ["a_list_and_the_events_after_it_make_the_present"]),
    (broken.ListsNameALaterVersion, ["a_list_and_the_events_after_it_make_the_present"]),
    (
        broken.WatchesDropAnEvent,
        [
            "a_watch_reports_what_happens_after_the_list",
            "every_change_of_racing_writers_is_reported_once_and_in_order",
            "a_watch_resumes_from_any_version_in_the_middle",
        ],
    ),
    (broken.WatchesRepeatAnEvent, ["every_change_of_racing_writers_is_reported_once_and_in_order"]),
    (broken.WatchesMixTheOrder, ["a_watch_reports_what_happens_after_the_list"]),
    (broken.WatchesHideChangesOfStatus, ["a_watch_reports_what_happens_after_the_list"]),
    (broken.WatchesIgnoreTheNamespace, ["a_watch_of_one_namespace_reports_no_other"]),
    (broken.WatchesBeginNow, ["a_watch_reports_what_happens_after_the_list"]),
    (broken.WatchesHideThatTheyAreLate, ["a_watch_from_too_long_ago_is_gone"]),
    (broken.DeletionsAreReportedWithoutState, ["a_deletion_is_reported_with_the_last_state"]),
    (broken.DeletionsHaveNoVersion, ["a_deletion_is_reported_with_the_last_state"]),
    (broken.BookmarksGoBack, ["a_bookmark_is_a_version_to_resume_from"]),
    (broken.BookmarksRunAhead, ["every_change_since_a_bookmark_is_reported"]),
    (broken.GarbageStays, ["what_is_owned_goes_with_its_owner"]),
    (broken.GarbageIncludesWhatIsStillOwned, ["what_has_another_living_owner_stays"]),
    (broken.TheSecondOwnerDoesNotCount, ["what_has_another_living_owner_stays"]),
    (broken.TheUnbornAreNeverMissed, ["what_is_born_without_a_living_owner_goes"]),
    (broken.GarbageGoesOneLevelDown, ["garbage_goes_down_the_chain"]),
    (broken.OwnersOfTheClusterDoNotCount, ["an_owner_of_the_whole_cluster_owns_objects_in_namespaces"]),
    (broken.OwnersAreKnownByName, ["an_owner_made_again_is_another_owner"]),
]
PAIRS = [(store, name) for store, names in CAUGHT for name in names]


def named(value: object) -> str:
    return value.__name__ if isinstance(value, type) else str(value)


@pytest.mark.parametrize(("store", "name"), PAIRS, ids=named)
async def test_a_broken_store_is_caught(store: type[broken.Passing], name: str, tmp_path: Path) -> None:
    async with embedded_world(tmp_path) as world:
        spoiled = EmbeddedWorld(store(world.store), PATIENCE_SECONDS)
        with pytest.raises((AssertionError, ObjectError)):
            await CASES[name](spoiled)


@pytest.mark.parametrize("name", sorted({name for _, name in PAIRS}))
async def test_a_store_that_passes_everything_on_is_not_caught(name: str, tmp_path: Path) -> None:
    async with embedded_world(tmp_path) as world:
        await CASES[name](EmbeddedWorld(broken.Passing(world.store)))
