"""What came of a pass, in words."""

from __future__ import annotations

from collections import Counter

import pytest

from lapse.core.clock import UnixNs
from lapse.engine.journal.port import Outcome
from lapse.history.api.kinds import RetentionPolicy, RetentionSpec, RetentionStatus, Selector
from lapse.history.policy.policy import RetentionPolicyError
from lapse.history.retention.passes import PassReport
from lapse.history.retention.runs import PolicyRun, RunReason, of_broken, of_error, of_report, status_changes
from lapse.kube.errors import ForbiddenError, GoneError, StoreUnavailableError, UnknownKindError
from lapse.kube.resources import Condition, ObjectMeta

NOW = UnixNs(1_900_000_000 * 10**9)
LATER = UnixNs(NOW + 3600 * 10**9)


def run_of(report: PassReport, *, dry_run: bool = False, problem: Exception | None = None) -> PolicyRun:
    return of_report("p", report, domain="retention", dry_run=dry_run, deleted={"ttl_expired": 1}, problem=problem)


@pytest.mark.parametrize(
    ("outcomes", "problem", "reason", "message"),
    [
        ({Outcome.ENDED: 2}, None, RunReason.COMPLETED, "deleted 2 of 9"),
        ({Outcome.GONE: 1, Outcome.CHANGED: 1}, None, RunReason.COMPLETED, "deleted 0 of 9"),
        (
            {Outcome.ENDED: 1, Outcome.FAILED: 3},
            ForbiddenError(problem="cannot delete pods"),
            RunReason.FORBIDDEN,
            "deleted 1 of 9; 3 could not be deleted: The store does not allow it: cannot delete pods",
        ),
        (
            {Outcome.FAILED: 3},
            OSError("a secret"),
            RunReason.INCOMPLETE,
            "deleted 0 of 9; 3 could not be deleted: an error of Lapse itself; see its log",
        ),
        (
            {Outcome.REFUSED: 4},
            None,
            RunReason.FROZEN,
            "deleted 0 of 9; 4 must wait until lapse resume retention is run",
        ),
    ],
)
def test_a_pass_is_told_by_what_came_of_it(
    outcomes: dict[str, int], problem: Exception | None, reason: RunReason, message: str
) -> None:
    found = run_of(PassReport(matched=9, outcomes=Counter(outcomes)), problem=problem)
    assert (found.reason, found.message, found.is_ready) == (reason, message, reason is RunReason.COMPLETED)


def test_a_dry_run_says_would() -> None:
    assert run_of(PassReport(matched=3, outcomes=Counter({Outcome.WOULD_END: 1})), dry_run=True).message == (
        "would delete 1 of 3"
    )


def test_a_pass_that_was_cut_short_is_not_ready() -> None:
    found = run_of(PassReport(matched=3, is_complete=False))
    assert (found.reason, found.is_whole) == (RunReason.INCOMPLETE, False)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UnknownKindError(kind="A", api_version="b/v1"), RunReason.UNKNOWN_KIND),
        (ForbiddenError(problem="no"), RunReason.FORBIDDEN),
        (StoreUnavailableError(problem="down"), RunReason.STORE_UNAVAILABLE),
        (GoneError(version="1"), RunReason.INCOMPLETE),
        (ZeroDivisionError(), RunReason.FAILED),
    ],
)
def test_a_pass_that_could_not_be_made_is_told_by_its_error(error: Exception, reason: RunReason) -> None:
    assert of_error("p", error, domain="retention").reason is reason


def policy(status: RetentionStatus | None = None) -> RetentionPolicy:
    spec = RetentionSpec(selector=Selector(api_version="v1", kind="Pod"))
    return RetentionPolicy(metadata=ObjectMeta(name="p", generation=7), spec=spec, status=status)


def test_a_failure_leaves_what_the_last_pass_found() -> None:
    found = of_broken(RetentionPolicyError(name="p", problem="x" * 5000), domain="retention")
    changes = status_changes(found, policy(), now=NOW, next_run=LATER)

    assert sorted(changes) == ["conditions", "nextRun", "observedGeneration"]
    (condition,) = changes["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "InvalidPolicy")
    assert len(condition["message"]) == 1024


def test_a_pass_replaces_the_numbers_and_forgets_the_old_ones() -> None:
    old = RetentionStatus(deleted={"retention_limit": 4}, kept={"held": 1})
    report = PassReport(matched=3, kept=Counter({"not_yet": 2, "held": 0}), outcomes=Counter({Outcome.ENDED: 1}))
    changes = status_changes(run_of(report), policy(old), now=NOW, next_run=None)

    assert changes["deleted"] == {"retention_limit": None, "ttl_expired": 1}
    assert changes["kept"] == {"held": None, "not_yet": 2}
    assert (changes["matched"], changes["dryRun"], changes["observedGeneration"]) == (3, False, 7)
    assert changes["lastRun"] == "2030-03-17T17:46:40Z"
    assert "nextRun" not in changes


@pytest.mark.parametrize(("before", "since"), [("True", "2020-01-01T00:00:00Z"), ("False", "2030-03-17T17:46:40Z")])
def test_the_time_of_a_condition_moves_only_when_its_status_does(before: str, since: str) -> None:
    old = RetentionStatus(
        conditions=(Condition(type="Ready", status=before, last_transition_time="2020-01-01T00:00:00Z"),)
    )
    changes = status_changes(run_of(PassReport()), policy(old), now=NOW, next_run=None)
    assert changes["conditions"][0]["lastTransitionTime"] == since
