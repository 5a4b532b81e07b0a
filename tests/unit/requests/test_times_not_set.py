"""Times that mean 'not set', such as the zero of Go, in requests and keepers: a missing anchor, so nothing lapses."""

from __future__ import annotations

import pytest

from lapse.core.clock import UnixNs
from lapse.core.decision import Due, Unknown
from lapse.core.duration import Duration
from lapse.kube.resources import ObjectMeta
from lapse.requests.api.kinds import VOLUME_CAPTURE_REQUEST, KeeperMode, KeeperSpec, KeeperStatus, ObjectKeeper
from lapse.requests.expiry import decide as decide_request
from lapse.requests.expiry import finished
from lapse.requests.lifecycle.keeper import Followed, state_of
from lapse.requests.lifecycle.keeper import decide as decide_keeper

NOW = UnixNs(1_900_000_000 * 10**9)
NOT_SET = ["0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59Z"]
LONG_AGO = "2020-01-01T00:00:00Z"


def keeper(mode: KeeperMode, *, created: str = LONG_AGO, lost: str | None = None) -> ObjectKeeper:
    meta = ObjectMeta(name="k", creation_timestamp=created)
    return ObjectKeeper(metadata=meta, spec=KeeperSpec(mode=mode, ttl="1h"), status=KeeperStatus(lost_at=lost))


@pytest.mark.parametrize("zero", NOT_SET)
def test_a_keeper_whose_creation_is_not_set_stays(zero: str) -> None:
    found = decide_keeper(state_of(keeper(KeeperMode.TTL, created=zero), Followed.UNKNOWN), NOW).verdict
    assert isinstance(found, Unknown)
    assert isinstance(decide_keeper(state_of(keeper(KeeperMode.TTL), Followed.UNKNOWN), NOW).verdict, Due)


@pytest.mark.parametrize("zero", NOT_SET)
def test_a_keeper_whose_loss_has_no_time_stays(zero: str) -> None:
    mode = KeeperMode.FOLLOW_OBJECT_WITH_TTL
    assert not isinstance(decide_keeper(state_of(keeper(mode, lost=zero), Followed.LOST), NOW).verdict, Due)
    assert isinstance(decide_keeper(state_of(keeper(mode, lost=LONG_AGO), Followed.LOST), NOW).verdict, Due)


@pytest.mark.parametrize("zero", NOT_SET)
def test_a_request_whose_completion_is_not_set_stays(zero: str) -> None:
    for completed, expected in ((zero, Unknown), (LONG_AGO, Due)):
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "Completed",
            "message": "",
            "lastTransitionTime": LONG_AGO,
        }
        target = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data", "uid": "u"}
        request = VOLUME_CAPTURE_REQUEST.convert(
            {
                "metadata": {"name": "r", "namespace": "default"},
                "spec": {"mode": "Snapshot", "target": target},
                "status": {"conditions": [ready], "completionTimestamp": completed},
            }
        )
        assert isinstance(decide_request(finished(request, Duration.parse("1h")), NOW).verdict, expected)
