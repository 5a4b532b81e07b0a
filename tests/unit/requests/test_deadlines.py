"""A decision carries its deadline, so nobody decides at another time, or on something else, to learn it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import UnixNs
from lapse.core.decision import Decision, Due, Keep, Unknown
from lapse.core.duration import Duration
from lapse.requests import view
from lapse.requests.api.kinds import VOLUME_CAPTURE_REQUEST, KeeperMode
from lapse.requests.expiry import decide as decide_request
from lapse.requests.lifecycle.keeper import Followed, KeeperReason, KeeperState, decide
from lapse.requests.lifecycle.policy import TTLRule

if TYPE_CHECKING:
    from lapse.requests.expiry import Finished

HOUR = Duration.parse("1h")
LOST = UnixNs(1_800_000_000 * 10**9)
OVER = UnixNs(LOST + 3_600 * 10**9)
NOW = UnixNs(1_900_000_000 * 10**9)


@pytest.mark.parametrize(
    ("mode", "lost", "ttl", "deadline"),
    [
        (KeeperMode.FOLLOW_OBJECT_WITH_TTL, LOST, HOUR, OVER),
        (KeeperMode.FOLLOW_OBJECT_WITH_TTL, None, HOUR, None),
        (KeeperMode.FOLLOW_OBJECT_WITH_TTL, LOST, None, None),
        (KeeperMode.FOLLOW_OBJECT_WITH_TTL, LOST, Duration.parse("never"), None),
        (KeeperMode.FOLLOW_OBJECT, LOST, None, LOST),
        (KeeperMode.FOLLOW_OBJECT, None, None, None),
        ("Unheard", LOST, HOUR, None),
    ],
)
@pytest.mark.parametrize("followed", Followed)
@pytest.mark.parametrize("now", [LOST, OVER, NOW])
def test_the_deadline_of_a_keeper_is_the_same_whatever_is_known_of_what_it_follows(
    mode: str, lost: UnixNs | None, ttl: Duration | None, deadline: UnixNs | None, followed: Followed, now: UnixNs
) -> None:
    found = decide(KeeperState(mode, followed, LOST, lost, ttl), now)

    assert (found.anchor if mode != "Unheard" else lost, found.deadline) == (lost, deadline)


@pytest.mark.parametrize(("followed", "verdict"), [("lost", Due), ("present", Keep), ("unknown", Unknown)])
def test_only_a_keeper_whose_followed_object_is_lost_goes(followed: str, verdict: type) -> None:
    state = KeeperState(KeeperMode.FOLLOW_OBJECT_WITH_TTL, Followed(followed), LOST, LOST, HOUR)

    assert isinstance(decide(state, NOW).verdict, verdict)


@pytest.mark.parametrize("mode", KeeperMode)
def test_a_keeper_that_a_restore_still_needs_stays_in_every_mode(mode: KeeperMode) -> None:
    needed = KeeperState(mode, Followed.LOST, LOST, LOST, HOUR, is_needed=True)

    verdict = decide(needed, NOW).verdict
    assert isinstance(verdict, Keep)
    assert verdict.reason == KeeperReason.RESTORE_PENDING
    assert isinstance(decide(replace(needed, is_needed=False), NOW).verdict, Due)


@pytest.mark.parametrize(("ttl", "told"), [("1h", "2027-01-15T09:00:00Z"), ("never", None)])
def test_a_view_decides_at_the_moment_that_it_is_asked_for(
    ttl: str, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = []

    def watched(request: Finished, now: UnixNs) -> Decision:
        moments.append(now)
        return decide_request(request, now)

    monkeypatch.setattr(view, "decide", watched)
    ready = {"type": "Ready", "status": "True", "reason": "Completed", "message": "", "lastTransitionTime": "x"}
    target = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data", "uid": "u"}
    request = VOLUME_CAPTURE_REQUEST.convert(
        {
            "metadata": {"name": "r", "namespace": "default"},
            "spec": {"mode": "Snapshot", "target": target},
            "status": {"conditions": [ready], "completionTimestamp": "2027-01-15T08:00:00Z"},
        }
    )
    for now in (LOST, NOW):
        seen = view.view_of(
            VOLUME_CAPTURE_REQUEST, request, now=now, rule=TTLRule(Duration.parse(ttl), annotated=False)
        )
        assert (None if seen.expires_at is None else str(seen.expires_at), seen.expires) == (
            told,
            None if told else "never",
        )
    assert moments == [LOST, NOW]
