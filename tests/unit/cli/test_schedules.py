"""``lapse requests schedule`` on a state folder: what is made, told, refused, and shown of runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lapse.cli import main
from lapse.kube.errors import ForbiddenError
from lapse.requests.addresses import locate
from lapse.requests.api.kinds import CAPTURE_SCHEDULE
from lapse.requests.schedules.view import read_runs, schedule_view
from lapse.requests.submission import LapsedError, _resolved, or_lapsed
from tests.integration.requests.test_schedules import KEY, VOLUME, at, nights, schedule
from tests.integration.requests.world import opened

if TYPE_CHECKING:
    from pathlib import Path

CREATE = ["create", "nightly", "--claim", "data", "--schedule", "0 3 * * *"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAPSE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def run(*arguments: str) -> int:
    return main(["requests", "schedule", *arguments])


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:  # noqa: ANN401 - any JSON
    capsys.readouterr()
    assert run(*arguments, "-o", "json") == 0
    return json.loads(capsys.readouterr().out)


def test_a_schedule_from_its_creation_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    made = shown(capsys, *CREATE, "--time-zone", "Europe/Berlin", "--keep-daily", "7", "--keep-weekly", "4")
    assert (made["address"], made["captures"], made["time_zone"]) == (
        "csched/default/nightly",
        "pvc/data",
        "Europe/Berlin",
    )
    assert made["keep"] == {"daily": 7, "weekly": 4}
    assert len(made["next"]) == 3
    (listed,) = shown(capsys, "list")["items"]
    assert listed == made
    assert shown(capsys, "show", "nightly") == {**made, "runs": []}
    assert shown(capsys, "suspend", "nightly")["next"] == []
    assert shown(capsys, "resume", "nightly")["suspended"] is False
    assert run("show", "nightly") == 0
    assert "daily 7, weekly 4" in capsys.readouterr().out
    assert shown(capsys, "delete", "nightly") == {"address": "csched/default/nightly", "deleted": True}
    assert run("list") == 0
    assert "There are no schedules in the namespace default." in capsys.readouterr().err


def test_manifests_by_the_hour(capsys: pytest.CaptureFixture[str]) -> None:
    targets = ["--target", "v1:ConfigMap/a", "--target", "pvc/data"]
    made = shown(capsys, "create", "hourly", *targets, "--schedule", "0 * * * *", "--keep-last", "24")
    assert (made["captures"], made["time_zone"], made["keep"]) == ("2 manifests", "UTC", {"last": 24})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([*CREATE], "Say what stays, as in --keep-daily 7 --keep-weekly 4."),
        ([*CREATE, "--keep-last", "0"], "Say what stays"),
        ([*CREATE, "--keep-last", "-1"], "Say what stays"),
        ([*CREATE, "--keep-last", "1", "--target", "pvc/x"], "either --claim NAME, or --target KIND/NAME"),
        (["create", "n", "--schedule", "0 3 * * *", "--keep-last", "1"], "either --claim NAME, or --target KIND/NAME"),
        ([*CREATE[:-1], "@daily", "--keep-last", "1"], "'@daily' is not a schedule"),
        ([*CREATE[:-1], "99 3 * * *", "--keep-last", "1"], "'99 3 * * *' is not a schedule: bad minute"),
        ([*CREATE, "--keep-last", "1", "--time-zone", "Berlin"], "'Berlin' is not a time zone. Expected a name"),
        ([*CREATE, "--keep-last", "1", "--starting-deadline", "soon"], "'soon' is not a duration"),
        (["create", "N", *CREATE[2:], "--keep-last", "1"], "NAME is not valid"),
        (["create", "n" * 53, *CREATE[2:], "--keep-last", "1"], "metadata.name must have at most 52 characters"),
        (["show", "nothing"], "There is no CaptureSchedule default/nothing."),
        (["suspend", "nothing"], "There is no CaptureSchedule default/nothing."),
        (["delete", "nothing"], "There is no CaptureSchedule default/nothing."),
    ],
)
def test_a_mistake_is_one_clear_message(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) != 0
    assert says in " ".join(capsys.readouterr().err.split())


async def test_what_is_kept_is_told_with_its_places_and_can_be_restored_by_the_name_of_its_request(
    tmp_path: Path,
) -> None:
    clock = at("2027-06-01T12:00")
    async with opened(tmp_path, clock=clock) as world:
        await world.volume("data")
        await schedule(world, template=VOLUME, keep={"last": 1, "weekly": 2})
        await nights(world, 7)
        found = await world.store.get(CAPTURE_SCHEDULE, KEY)
        runs = await read_runs(world.store, found)
        assert [(str(one.scheduled), one.why) for one in runs] == [
            ("2027-06-08T03:00:00Z", "last, weekly"),
            ("2027-06-06T03:00:00Z", "weekly"),
        ]
        view = schedule_view(found, now=clock.wall_ns())
        assert (view.kept, view.reason, [str(one) for one in view.next][:1]) == (
            2,
            "Scheduled",
            ["2027-06-09T03:00:00Z"],
        )
        place = locate(runs[1].request or "")
        source = await _resolved(world.store, place)
        assert (source["kind"], source["name"]) == ("VolumeSnapshotContent", runs[1].artifact)
        reading = world.store.get(place.kind, place.key)
        with pytest.raises(LapsedError, match=r"has lapsed\. keeper/ret-vcr-"):
            await or_lapsed(world.store, place, reading, rule=world.policy.ttl_rule, now=clock.wall_ns())


def test_runs_that_may_not_be_listed_do_not_hide_the_schedule(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise ForbiddenError(problem="objectkeepers is forbidden")

    assert run(*CREATE, "--keep-last", "1") == 0
    monkeypatch.setattr("lapse.requests.schedules.view.read_runs", refuse)
    assert run("show", "nightly") == 0
    written = capsys.readouterr()
    assert "csched/default/nightly" in written.out
    assert "You may not list its runs" in written.err
    assert shown(capsys, "show", "nightly")["runs"] is None
