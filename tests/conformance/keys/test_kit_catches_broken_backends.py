"""The kit can fail: each backend that is broken in one way is caught by the cases that are there for it."""

from __future__ import annotations

import threading

import pytest

from lapse.keys.conformance import CaseOutcome, StoreTarget, kit, run_conformance
from tests.conformance.keys import broken
from tests.conformance.keys.broken import PassingBackend, PassingSpace, target_of

CAUGHT: list[tuple[type[PassingSpace | PassingBackend], set[str]]] = [
    (
        broken.InsertInTwoSteps,
        {
            "racing-inserts-have-one-winner",
            "racing-inserts-on-an-expired-key-have-one-winner",
            "key-that-expires-during-a-race-has-one-next-owner",
            "racing-insert-many-have-one-winner-per-key",
        },
    ),
    (broken.InsertInTwoStepsWhereExpired, {"racing-inserts-on-an-expired-key-have-one-winner"}),
    (
        broken.SwapInTwoSteps,
        {
            "racing-swaps-have-one-winner",
            "no-update-of-a-counter-is-lost",
            "swap-and-compare-and-delete-exclude-each-other",
        },
    ),
    (
        broken.DeleteInTwoSteps,
        {"racing-deletes-have-one-winner", "racing-compare-and-deletes-have-one-winner"},
    ),
    (broken.TouchInTwoSteps, {"touch-loses-no-update", "touch-revives-no-deleted-key"}),
    (
        broken.AwaitedWritesInTwoSteps,
        {"racing-tasks-have-one-winner", "no-update-by-tasks-is-lost", "racing-locks-have-one-holder-at-a-time"},
    ),
    (broken.AliveAtTheInstant, {"gone-at-the-instant-of-expiry", "async-gone-at-the-instant-of-expiry", "get-expired"}),
    (broken.GoneOneMillisecondEarly, {"alive-until-the-last-nanosecond", "ttl-of-one-lives-one-second"}),
    (broken.GoneASecondEarly, {"readers-never-early-and-late-within-the-bound"}),
    (broken.LivesASecondLonger, {"inserts-never-early-and-late-within-the-bound", "insert-expired", "get-expired"}),
    (broken.BlocksForever, {"insert-expired", "second-life-is-as-good-as-the-first", "delete-live"}),
    (broken.TouchRevives, {"touch-expired", "async-touch-expired"}),
    (broken.SwapRevives, {"swap-expired"}),
    (broken.SwapKeepsTheOldTTL, {"swap-restarts-the-ttl", "insert-long-swap-short-expire-insert-again"}),
    (broken.RefusedInsertRenews, {"insert-live", "refused-writes-and-reads-prolong-nothing"}),
    (broken.ReadRenews, {"refused-writes-and-reads-prolong-nothing"}),
    (
        broken.TTLRoundedDown,
        {
            "query-ttl-is-never-zero-nor-more-than-the-ttl",
            "query-ttl-is-plausible",
            "async-query-ttl-is-never-zero-nor-more-than-the-ttl",
        },
    ),
    (
        broken.SweepKillsTheRenewed,
        {"touched-then-swept", "swapped-then-swept", "put-again-then-swept", "deleted-inserted-then-swept"},
    ),
    (broken.NeverSweeps, {"expired-records-are-removed", "sweeps-come-in-slices", "touched-then-swept"}),
    (broken.SweepsWithoutLimit, {"sweeps-come-in-slices"}),
    (broken.CountsTheExpired, {"expired-records-are-not-counted", "expiries-near-and-far-are-counted"}),
    (broken.CountsWithoutTheInstant, {"expiring-is-counted-to-the-instant"}),
    (broken.CountsByTheSlot, {"expiring-is-counted-to-the-instant", "expiries-near-and-far-are-counted"}),
    (broken.CountsByWriting, {"counting-changes-nothing"}),
    (broken.NormalisedKeys, {"keys-that-look-alike-are-different", "deleting-one-key-leaves-those-that-look-alike"}),
    (broken.CaseFoldedKeys, {"keys-that-look-alike-are-different", "deleting-one-key-leaves-those-that-look-alike"}),
    (broken.KeysWithoutTrailingSpace, {"keys-that-look-alike-are-different"}),
    (broken.KeysThatEndAtNUL, {"keys-that-look-alike-are-different"}),
    (
        broken.KeysOf255Characters,
        {f"longest-key-of-{width}-byte-characters" for width in ("one", "two", "three", "four")},
    ),
    (
        broken.ValuesOf65535Bytes,
        {f"longest-value-of-{width}-byte-characters" for width in ("one", "two", "three", "four")},
    ),
    (broken.ValuesWithTypes, {"values-come-back-as-they-are", "values-that-look-alike-are-different"}),
    (broken.NormalisedValues, {"values-come-back-as-they-are", "values-that-look-alike-are-different"}),
    (broken.EmptyValueIsAbsent, {"empty-value", "get-many-live-absent-and-expired"}),
    (
        broken.UnorderedScan,
        {"scan-in-byte-order", "scan-pages-are-complete", "async-scan-in-byte-order", "scan-of-many"},
    ),
    (broken.ScanInTheOrderOfUTF16, {"scan-in-byte-order"}),
    (broken.ScanWithoutRightBound, {"scan-prefix-has-a-right-bound", "scan-after-with-prefix"}),
    (broken.ScanWithAnInclusiveRightBound, {"scan-prefix-has-a-right-bound", "scan-prefix-of-last-characters"}),
    (broken.ScanWithoutLimit, {"scan-limit"}),
    (broken.ScanRepeatsTheLastKey, {"scan-after", "scan-pages-are-complete"}),
    (broken.ScanCountsTheDead, {"scan-pages-are-full-beside-expired-keys"}),
    (broken.InsertManyStopsAtARefusal, {"insert-many-goes-on-after-a-refusal", "insert-many-live-absent-and-expired"}),
    (broken.InsertManyTakesTheLast, {"insert-many-of-the-same-key"}),
    (broken.GetManyOfAHundred, {"get-many-of-more-than-a-server-takes-at-once"}),
    (broken.DeleteIfIgnoresTheValue, {"delete-if-live-with-a-wrong-value", "values-that-look-alike-are-different"}),
    (broken.DeleteIfForgetsToDelete, {"delete-if-live-with-the-right-value"}),
    (broken.OneApplicationForAll, {"applications-are-isolated", "first-and-last-application"}),
    (broken.ApplicationsOf16Bits, {"neighbouring-applications-are-isolated"}),
    (broken.LocksAmongKeys, {"locks-are-no-keys"}),
    (broken.Failing, {"get-live", "async-get-live"}),
    (broken.AnswersTheWrongType, {"insert-absent"}),
]


def outcomes(target: StoreTarget, *ids: str) -> dict[str, tuple[CaseOutcome, str]]:
    return {result.case.id: (result.outcome, result.detail) for result in run_conformance(target, only=ids)}


@pytest.mark.parametrize(("backend", "ids"), [pytest.param(*entry, id=entry[0].__name__) for entry in CAUGHT])
def test_a_broken_backend_is_caught_by_the_cases_that_are_there_for_it(
    backend: type[PassingSpace | PassingBackend], ids: set[str]
) -> None:
    found = outcomes(target_of(backend), *ids)

    assert {case_id for case_id, (outcome, _) in found.items() if outcome is CaseOutcome.VIOLATED} == ids


def test_a_wrapper_that_breaks_nothing_is_not_caught() -> None:
    results = list(run_conformance(target_of(PassingSpace)))

    assert [(result.case.id, result.detail) for result in results if result.outcome is CaseOutcome.VIOLATED] == []


@pytest.mark.slow
def test_in_real_time_a_key_that_goes_too_early_or_too_late_is_caught() -> None:
    ids = ["readers-never-early-and-late-within-the-bound", "inserts-never-early-and-late-within-the-bound"]
    early = outcomes(target_of(broken.GoneASecondEarly, exact_clock=False, late_by_seconds=0.05), ids[0])
    late = outcomes(target_of(broken.LivesASecondLonger, exact_clock=False, late_by_seconds=0.05), *ids)
    allowed = outcomes(target_of(broken.LivesASecondLonger, exact_clock=False, late_by_seconds=1.05), *ids)

    assert early[ids[0]][0] is CaseOutcome.VIOLATED
    assert [late[case_id][0] for case_id in ids] == [CaseOutcome.VIOLATED] * 2
    assert [allowed[case_id][0] for case_id in ids] == [CaseOutcome.HOLDS] * 2


@pytest.mark.process
def test_processes_that_do_not_see_each_other_are_caught() -> None:
    memory = StoreTarget.from_url("memory://")
    claims_to_be_shared = StoreTarget(open=memory.open, exact_clock=True, shared=True, url=memory.url)
    ids = [
        "racing-inserts-have-one-winner",
        "no-update-of-a-counter-is-lost",
        "racing-compare-and-deletes-have-one-winner",
    ]

    found = outcomes(claims_to_be_shared, *ids)

    assert {outcome for outcome, _ in found.values()} == {CaseOutcome.VIOLATED}
    assert "winners of racing inserts among 16: expected exactly one" in found[ids[0]][1]


@pytest.mark.process
def test_processes_that_cannot_open_the_store_are_a_violation_that_says_why() -> None:
    memory = StoreTarget.from_url("memory://")
    elsewhere = StoreTarget(open=memory.open, exact_clock=True, shared=True, url="memory://?buckets=0")

    found = outcomes(elsewhere, "racing-inserts-have-one-winner")

    assert found["racing-inserts-have-one-winner"][0] is CaseOutcome.VIOLATED
    assert "KeysURLError" in found["racing-inserts-have-one-winner"][1]


def test_a_violation_is_a_sentence_that_says_what_was_expected_and_what_was_seen() -> None:
    _, detail = outcomes(target_of(broken.BlocksForever), "insert-expired")["insert-expired"]

    assert detail == "an insert on an expired key: expected True, saw False"


def test_an_unexpected_error_is_a_violation_with_its_type_and_message() -> None:
    _, detail = outcomes(target_of(broken.Failing), "get-live")["get-live"]

    assert detail == "expected no error, saw OSError: the disk is on fire"


def test_a_store_that_hangs_is_a_violation_and_not_the_end_of_the_kit(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    class Hangs(PassingSpace):
        def get(self, key: str) -> str | None:
            released.wait()
            return None

    monkeypatch.setattr(kit, "_NO_NEWS_SECONDS", 3.0)  # the one that does not hang may take its time
    found = outcomes(target_of(Hangs), "get-live", "touch-live", "insert-live")
    released.set()

    assert found["insert-live"][0] is CaseOutcome.HOLDS
    assert {found["get-live"][0], found["touch-live"][0]} == {CaseOutcome.VIOLATED}
