"""When a failure that a provisioner reports by Events is the end of a restore, and when it is only doubt."""

from __future__ import annotations

import pytest

from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.kube.events.event import EVENT, EventObject
from lapse.requests.api.upstream import PERSISTENT_VOLUME_CLAIM
from lapse.requests.controllers.provisioning import (
    FINAL,
    SOURCE_GOES,
    TRANSIENT,
    EventReports,
    NoReports,
    final_failure,
)

MADE = "2026-03-01T10:00:00Z"
CLAIM = PERSISTENT_VOLUME_CLAIM.convert(
    {"metadata": {"name": "back", "namespace": "shop", "uid": "claim-uid", "creationTimestamp": MADE}}
)
# As the external-provisioner writes it.
PREFIX = 'failed to provision volume with StorageClass "hp": '


def after(seconds: int) -> str:
    made = from_timestamp(MADE)
    assert made is not None
    return to_timestamp(made + seconds * 1_000_000_000)


def event(note: str, *, seconds: int = 1, reason: str = "ProvisioningFailed", uid: str = "claim-uid") -> EventObject:
    return EVENT.convert(
        {
            "metadata": {"name": "back.1", "namespace": "shop"},
            "regarding": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "back", "uid": uid},
            "type": "Warning" if reason == "ProvisioningFailed" else "Normal",
            "reason": reason,
            "note": note,
            "eventTime": None,
            "deprecatedFirstTimestamp": MADE,
            "deprecatedLastTimestamp": after(seconds),
            "deprecatedCount": 3,
        }
    )


def coded(code: str) -> str:
    return f"{PREFIX}rpc error: code = {code} desc = so it is"


@pytest.mark.parametrize("code", sorted(FINAL))
def test_what_fails_again_in_the_same_way_is_final_at_once(code: str) -> None:
    assert final_failure(CLAIM, [event(coded(code))]) == coded(code)


@pytest.mark.parametrize("code", sorted(TRANSIENT))
@pytest.mark.parametrize("seconds", [1, 100_000])
def test_what_may_pass_is_never_final(code: str, seconds: int) -> None:
    assert final_failure(CLAIM, [event(coded(code), seconds=seconds)]) is None


@pytest.mark.parametrize(
    "note",
    [
        coded("Internal"),
        coded("Unknown"),
        coded("SomethingNew"),
        f"{PREFIX}error getting handle for DataSource Type VolumeSnapshot by Name s: snapshot s not Ready",
        'storageclass.storage.k8s.io "none" not found',
        "",
    ],
)
def test_doubt_is_final_when_it_is_still_reported_after_two_minutes(note: str) -> None:
    assert final_failure(CLAIM, [event(note, seconds=119)]) is None
    assert final_failure(CLAIM, [event(note, seconds=120)]) == (note or "ProvisioningFailed")


def test_a_snapshot_that_is_being_deleted_under_its_claim_is_final_at_once() -> None:
    note = f"{PREFIX}error getting handle for DataSource Type VolumeSnapshot by Name s: snapshot s {SOURCE_GOES}"
    assert final_failure(CLAIM, [event(note)]) == note


def test_an_error_that_quotes_another_one_is_what_the_driver_said() -> None:
    note = f"{PREFIX}rpc error: code = Internal desc = rpc error: code = Unavailable desc = no route"
    assert final_failure(CLAIM, [event(note, seconds=500)]) is None


def test_the_newest_report_counts() -> None:
    old, new = event(coded("OutOfRange"), seconds=5), event(coded("Unavailable"), seconds=9)
    assert final_failure(CLAIM, [new, old]) is None
    old, new = event(coded("Unavailable"), seconds=5), event(coded("OutOfRange"), seconds=9)
    assert final_failure(CLAIM, [new, old]) == coded("OutOfRange")


@pytest.mark.parametrize(("seconds", "is_final"), [(4, True), (5, False), (6, False)])
def test_a_success_that_is_not_older_takes_it_back(seconds: int, *, is_final: bool) -> None:
    failed = event(coded("OutOfRange"), seconds=5)
    succeeded = event("Successfully provisioned volume", seconds=seconds, reason="ProvisioningSucceeded")
    assert (final_failure(CLAIM, [failed, succeeded]) is not None) == is_final


def test_what_is_about_something_else_says_nothing() -> None:
    others = [
        event(coded("OutOfRange"), uid="another-uid"),
        event(coded("OutOfRange"), uid=""),
        event(coded("OutOfRange"), seconds=-1),
        event(coded("OutOfRange"), reason="Provisioning"),
        event(coded("OutOfRange"), reason="ExternalProvisioning", seconds=500),
        EVENT.convert({"metadata": {"name": "odd"}}),
    ]
    assert final_failure(CLAIM, others) is None
    assert final_failure(CLAIM, []) is None


def test_a_claim_that_does_not_say_when_it_was_made_is_waited_for() -> None:
    claim = PERSISTENT_VOLUME_CLAIM.convert({"metadata": {"name": "back", "namespace": "shop", "uid": "claim-uid"}})
    assert final_failure(claim, [event(coded("OutOfRange"))]) is None


def test_events_in_the_newer_form_are_read_as_well() -> None:
    newer = EVENT.convert(
        {
            "metadata": {"name": "back.1", "namespace": "shop"},
            "regarding": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "back", "uid": "claim-uid"},
            "type": "Warning",
            "reason": "ProvisioningFailed",
            "note": coded("Internal"),
            "eventTime": "2026-03-01T10:00:01.000001Z",
            "series": {"count": 4, "lastObservedTime": "2026-03-01T10:03:00.000001Z"},
        }
    )
    assert final_failure(CLAIM, [newer]) == coded("Internal")


def test_the_longer_a_claim_waits_the_more_seldom_it_is_asked_about() -> None:
    assert [EventReports.next_look(age) for age in (0, 5, 20, 1000)] == [5, 5, 20, 60]
    assert NoReports().next_look(0) == 60
