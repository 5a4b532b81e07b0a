"""What people are told of a request's life: each thing once, deletions together, and nothing for looking again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from lapse.engine.journal.log import LogJournal
from lapse.kube.errors import ForbiddenError
from lapse.kube.events.event import Regarding, Report
from lapse.requests.addresses import keeper_name
from lapse.requests.api.kinds import REQUEST_KINDS, TTL, KeeperMode
from lapse.requests.api.upstream import PERSISTENT_VOLUME_CLAIM
from lapse.requests.controllers.provisioning import EventReports
from lapse.requests.lifecycle.eventing_journal import EventingJournal
from lapse.requests.lifecycle.policy import RequestPolicy, TTLMode
from tests.integration.requests.world import opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from lapse.kube.resources import Kind
    from lapse.requests.api.upstream import PersistentVolumeClaim
    from tests.integration.requests.world import World


@dataclass
class Ears:
    """Hears everything."""

    reports: list[Report] = field(default_factory=list)
    items: dict[Report, list[str]] = field(default_factory=dict)

    def record(self, report: Report) -> None:
        self.reports.append(report)

    def aggregate(self, report: Report, item: str) -> None:
        self.items.setdefault(report, []).append(item)

    def about(self, obj: Any) -> list[str]:  # noqa: ANN401 - any object
        """The reasons that were told on one object."""
        meta = obj.metadata
        return [
            report.reason
            for report in self.reports
            if report.regarding is not None
            and (report.regarding.uid, report.regarding.name) == (meta.uid, meta.name)
            and report.regarding.namespace == meta.namespace
        ]


@pytest.fixture
def ears() -> Ears:
    return Ears()


def listening(folder: Path, ears: Ears, policy: RequestPolicy | None = None) -> AbstractAsyncContextManager[World]:
    services = {"recorder": ears, "journal": EventingJournal(LogJournal(), ears)}
    return opened(folder, policy=policy, services=services)


@pytest.fixture
async def world(tmp_path: Path, ears: Ears) -> AsyncIterator[World]:
    async with listening(tmp_path, ears) as found:
        yield found


ON_NAMESPACE = Report(
    Regarding(api_version="v1", kind="Namespace", name="shop", namespace="shop"),
    "TimeToLiveExpired",
    "Delete",
    "requests deleted because their TTL was over",
)
ON_OPERATOR = Report(None, "TimeToLiveExpired", "Delete", "keepers deleted because their TTL was over")


async def test_a_capture_tells_what_was_made_and_how_it_ended(world: World, ears: Ears) -> None:
    request = await world.capture("nightly", await world.volume())
    await world.settle()
    await world.snapshot_ready(request)
    await world.live(minutes=5)
    assert ears.about(request) == ["KeeperCreated", "SnapshotCreated", "Completed"]
    last = ears.reports[-1]
    assert (last.reason, last.note) == await world.outcome(request)
    assert not last.warning


async def test_a_manifest_capture_tells_what_was_made_and_how_it_ended(world: World, ears: Ears) -> None:
    request = await world.capture_manifests("settings", await world.config_map("one"))
    await world.live(minutes=5)
    assert ears.about(request) == ["KeeperCreated", "CheckpointCreated", "Completed"]


@pytest.mark.parametrize("kind", REQUEST_KINDS, ids=lambda kind: kind.short)
async def test_a_failure_is_a_warning_in_the_words_of_the_condition(world: World, ears: Ears, kind: Kind[Any]) -> None:
    request = await world.completed(kind, fail=True)
    (report,) = [one for one in ears.reports if one.action == "Finish"]
    assert (report.reason, report.note) == await world.outcome(request)
    assert report.warning
    assert ears.about(request)[-1] == report.reason


async def test_deletions_are_told_together_on_what_is_still_there(world: World, ears: Ears) -> None:
    requests = [await world.capture(f"nightly-{number}", target={"name": "none", "uid": "u"}) for number in range(7)]
    kept = await world.capture("weekly", await world.volume())
    await world.settle()
    await world.snapshot_ready(kept)
    await world.live(minutes=15)
    assert not [one for one in requests if await world.exists(one)]
    assert set(ears.items) == {ON_NAMESPACE}
    assert sorted(ears.items[ON_NAMESPACE]) == [
        *(f"vcr/shop/nightly-{number}" for number in range(7)),
        "vcr/shop/weekly",
    ]
    await world.live(hours=25, step=1800)
    assert ears.items[ON_OPERATOR] == [f"keeper/{keeper_name('vcr', kept.metadata.uid)}"]
    assert {report.action for report in ears.reports} == {"Create", "Finish"}


async def test_a_keeper_that_goes_with_its_object_says_why(tmp_path: Path, ears: Ears) -> None:
    async with listening(tmp_path, ears, RequestPolicy(keeper_mode=KeeperMode.FOLLOW_OBJECT)) as world:
        request = await world.capture("nightly", await world.volume())
        await world.settle()
        await world.snapshot_ready(request)
        await world.live(minutes=15)
    assert [report.reason for report in ears.items] == ["TimeToLiveExpired", "FollowedObjectLost"]


@pytest.mark.parametrize("mode", TTLMode)
async def test_that_something_due_is_held_is_told_once_and_not_at_every_look(
    tmp_path: Path, ears: Ears, mode: TTLMode
) -> None:
    async with listening(tmp_path, ears, RequestPolicy(request_ttl_mode=mode)) as world:
        request = await world.completed(REQUEST_KINDS[0])
        await world.annotate(request, {"lapse.dev/hold": "true", "lapse.dev/hold-reason": "an audit"})
        await world.live(hours=3, step=300)
        assert ears.about(request).count("HeldFromDeletion") == 1
        assert ears.reports[-1].note == "due for deletion, but held (an audit)"
        assert await world.exists(request)
        await world.annotate(request, {"lapse.dev/hold": None})
        await world.live(minutes=15)
        assert not await world.exists(request)
    assert ears.items[ON_NAMESPACE] == ["vcr/shop/done"]


async def test_a_ttl_that_cannot_be_read_is_a_warning_told_once(tmp_path: Path, ears: Ears) -> None:
    async with listening(tmp_path, ears, RequestPolicy(request_ttl_mode=TTLMode.ANNOTATION)) as world:
        request = await world.completed(REQUEST_KINDS[0])
        await world.annotate(request, {TTL: "10minutes"})
        await world.live(hours=2, step=300)
        (report,) = [one for one in ears.reports if one.reason == "InvalidTTL"]
        assert (report.reason, report.note) == await world.outcome(request)
        assert report.note.startswith("Invalid TTL annotation format: 10minutes (error: ")
        assert report.warning


# --- what provisioners report -----------------------------------------------------------------------------------------


@dataclass
class Provisioner:
    """Reports what a test says, and remembers when it was asked, in seconds of a claim's age."""

    failure: str | None = None
    ages: list[float] = field(default_factory=list)
    asked: int = 0

    def next_look(self, age: float) -> float:
        self.ages.append(age)
        return min(60.0, max(5.0, age))

    async def final_failure(self, claim: PersistentVolumeClaim) -> str | None:
        self.asked += 1
        return self.failure


async def test_a_restore_whose_claim_is_refused_ends_with_the_words_of_the_provisioner(tmp_path: Path) -> None:
    reports = Provisioner()
    async with opened(tmp_path, services={"reports": reports}) as world:
        request = await world.restore("back", await world.snapshot())
        await world.settle()
        await world.provision(request, status={"phase": "Pending"})
        await world.settle()
        assert reports.asked == 0, "it is given a moment"
        await world.live(60, step=1)
        assert 3 <= reports.asked <= 6
        assert await world.outcome(request) is None
        reports.failure = "rpc error: code = OutOfRange desc = too large"
        await world.live(70, step=1)
        left = "the claim shop/restored is left: delete it, and ask again"
        assert await world.outcome(request) == ("RestoreFailed", f"{reports.failure}; {left}")


async def test_a_claim_that_is_bound_is_asked_about_by_nobody(tmp_path: Path) -> None:
    reports = Provisioner(failure="old news")
    async with opened(tmp_path, services={"reports": reports}) as world:
        request = await world.restore("back", await world.snapshot())
        await world.settle()
        await world.provision(request)
        await world.live(minutes=5)
        assert await world.reason(request) == "Completed"
    assert reports.ages == []


async def test_not_being_allowed_to_look_at_events_ends_nothing(tmp_path: Path) -> None:
    class Refusing:
        async def list(self, *_arguments: Any, **_options: Any) -> None:  # noqa: ANN401 - as of a client
            raise ForbiddenError(problem="events is forbidden")

    refusing: Any = Refusing()
    async with opened(tmp_path, services={"reports": EventReports(refusing)}) as world:
        request = await world.restore("back", await world.snapshot())
        await world.settle()
        claim = await world.provision(request, status={"phase": "Pending"})
        await world.live(minutes=10, step=10)
        assert await world.outcome(request) is None
        await world.report(PERSISTENT_VOLUME_CLAIM, claim.metadata.key, {"phase": "Bound"})
        await world.settle()
        assert await world.reason(request) == "Completed"


async def test_a_clock_that_is_set_forth_and_back_does_not_stop_the_reading_of_reports(tmp_path: Path) -> None:
    reports = Provisioner()
    async with opened(tmp_path, services={"reports": reports}) as world:
        request = await world.restore("back", await world.snapshot())
        await world.settle()
        await world.provision(request, status={"phase": "Pending"})
        world.clock.jump_wall(3 * 3600)
        await world.live(30, step=1)
        world.clock.jump_wall(-3 * 3600)
        reports.failure = "rpc error: code = OutOfRange desc = too large"
        await world.live(120, step=1)
        assert await world.reason(request) == "RestoreFailed"
