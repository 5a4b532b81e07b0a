"""``lapse requests schedule`` on a state folder: what is made, told, refused, and shown of runs."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from lapse.cli import main
from lapse.cli.context import Context
from lapse.cli.flags import PlaceFlags
from lapse.core.timestamps import from_timestamp
from lapse.engine.safety.holds import Hold
from lapse.kube.errors import ForbiddenError
from lapse.kube.resources import Condition, ObjectKey
from lapse.requests.addresses import locate
from lapse.requests.api.conditions import ScheduleReason
from lapse.requests.api.kinds import CAPTURE_SCHEDULE, ScheduleStatus
from lapse.requests.schedules.view import ScheduleView, read_consequence, read_runs, schedule_view
from lapse.requests.submission import LapsedError, _resolved, or_lapsed
from tests.integration.requests.test_schedules import KEY, VOLUME, at, nights, schedule
from tests.integration.requests.world import opened

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
    assert len(made["next_runs_at"]) == 3
    (listed,) = shown(capsys, "list")["items"]
    assert listed == made
    details = shown(capsys, "show", "csched/nightly", "-n", "default")
    assert details == {**made, "runs": [], "object": details["object"]}
    assert details["object"]["spec"]["schedule"] == "0 3 * * *"
    assert shown(capsys, "suspend", "nightly")["next_runs_at"] == []
    assert shown(capsys, "resume", "nightly")["suspended"] is False
    assert run("show", "nightly") == 0
    assert "daily 7, weekly 4" in capsys.readouterr().out
    deleted = shown(capsys, "delete", "nightly")
    assert (deleted["address"], deleted["domain"]) == ("csched/default/nightly", "schedules")
    assert deleted["uid"] == details["object"]["metadata"]["uid"]
    assert deleted["says"] == "It has kept nothing."
    assert run("delete", "nightly") == 1
    assert "To bring it back: lapse undo csched/default/nightly." in capsys.readouterr().err
    assert run("list") == 0
    assert "There are no schedules in the namespace default." in capsys.readouterr().err


def test_plan_status_and_why_know_a_folder_that_has_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    shown(capsys, *CREATE, "--keep-last", "2")
    for line in (["plan"], ["status"], ["why", "csched/default/nightly"]):
        assert main([*line, "-o", "json"]) == 0, line
    assert json.loads(capsys.readouterr().out.splitlines()[-1])


def test_manifests_by_the_hour(capsys: pytest.CaptureFixture[str]) -> None:
    targets = ["--target", "v1:ConfigMap/a", "--target", "pvc/data"]
    made = shown(capsys, "create", "hourly", *targets, "--schedule", "0 * * * *", "--keep-last", "24")
    assert (made["captures"], made["time_zone"], made["keep"]) == ("2 manifests", "UTC", {"last": 24})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([*CREATE], "Say what stays, as in --keep-daily 7 --keep-weekly 4."),
        ([*CREATE, "--keep-last", "0"], "Say what stays"),
        (
            [*CREATE, "--keep-daily", "7", "--keep-weekly", "-1"],
            "--keep-weekly -1 is not valid: expected a number from",
        ),
        ([*CREATE, "--keep-daily", "1001"], "--keep-daily 1001 is not valid: expected a number from 0 to 1000."),
        ([*CREATE, "--keep-last", "1", "--starting-deadline", "0"], "--starting-deadline 0 is not valid: expected"),
        ([*CREATE, "--keep-last", "1", "--target", "pvc/x"], "either --claim NAME, or --target KIND/NAME"),
        (["create", "n", "--schedule", "0 3 * * *", "--keep-last", "1"], "either --claim NAME, or --target KIND/NAME"),
        ([*CREATE[:-1], "@daily", "--keep-last", "1"], "'@daily' is not a schedule"),
        ([*CREATE[:-1], "99 3 * * *", "--keep-last", "1"], "'99 3 * * *' is not a schedule: bad minute"),
        ([*CREATE, "--keep-last", "1", "--time-zone", "Berlin"], "'Berlin' is not a time zone. Expected a name"),
        (
            [*CREATE, "--keep-last", "1", "--starting-deadline", "soon"],
            "--starting-deadline is not valid: 'soon' is not",
        ),
        (["edit", "nothing", "--keep-last", "1"], "There is no CaptureSchedule default/nothing."),
        (["edit", "nightly"], "Say what to change"),
        (["edit", "nightly", "--keep-last", "-1"], "--keep-last -1 is not valid"),
        (["edit", "nightly", "--time-zone", "Berlin"], "'Berlin' is not a time zone"),
        (["edit", "nightly", "--claim", "data", "--target", "pvc/x"], "either --claim NAME, or --target"),
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
        assert [(str(one.scheduled_at), one.why) for one in runs] == [
            ("2027-06-08T03:00:00Z", "last, weekly"),
            ("2027-06-06T03:00:00Z", "weekly"),
        ]
        view = schedule_view(found, now=clock.wall_ns())
        assert (view.kept, view.reason, [str(one) for one in view.next_runs_at][:1]) == (
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


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store of the state folder stand for that of a cluster."""

    class Cluster(Context):
        is_cluster = True

        async def carry_out(self, work: Any, *, rights: str) -> Any:  # noqa: ANN401 - as of `ClusterContext`
            assert rights
            return await work(self)

    monkeypatch.setattr("lapse.cli.context.ClusterContext", Cluster)


@pytest.mark.usefixtures("cluster")
def test_a_schedule_of_a_cluster_is_deleted_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*CREATE, "--keep-last", "1", "--cluster") == 0
    capsys.readouterr()
    assert run("delete", "nightly", "--cluster") == 0
    assert "Deleted: csched/default/nightly. It has kept nothing." in capsys.readouterr().out
    assert run("delete", "nightly", "--cluster") == 1
    assert "There is no csched/default/nightly any more: ended at " in capsys.readouterr().err


@pytest.mark.usefixtures("cluster")
def test_a_held_schedule_of_a_cluster_is_not_deleted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(*CREATE, "--keep-last", "1") == 0
    monkeypatch.setattr("lapse.requests.expiry.hold_of", lambda _: Hold("an audit", None))
    assert run("delete", "nightly", "--cluster") == 1
    told = "csched/default/nightly is held (an audit), so it is not deleted. To let it go: lapse release csched/"
    assert told in capsys.readouterr().err


async def test_a_deletion_tells_how_much_is_kept_and_until_when(tmp_path: Path) -> None:
    clock = at("2027-06-01T12:00")
    async with opened(tmp_path, clock=clock) as world:
        await world.volume("data")
        await schedule(world, template=VOLUME, keep={"last": 2})
        await nights(world, 3)
        found = await world.store.get(CAPTURE_SCHEDULE, KEY)
        now = from_timestamp("2027-06-04T12:00:00Z")
        assert now is not None
        said = await read_consequence(world.store, found, now=now)
        assert said == "It keeps 2 artifacts until 2027-06-05T12:00:00Z (in 1d); then they go."


def test_the_address_that_is_printed_is_taken_as_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*CREATE, "--keep-last", "1", "-n", "shop") == 0
    assert shown(capsys, "show", "csched/shop/nightly")["namespace"] == "shop"
    assert run("show", "vcr/shop/nightly") == 64
    assert run("show", "csched/shop/nightly", "-n", "other") == 64


async def test_what_makes_no_run_announces_none_and_says_why(tmp_path: Path) -> None:
    clock = at("2027-06-01T12:00")
    async with opened(tmp_path, clock=clock) as world:
        made = await schedule(world)

        def view(reason: ScheduleReason, **spec: Any) -> ScheduleView:  # noqa: ANN401 - any part of a spec
            condition = Condition(type="Ready", status="False", reason=reason, message="because")
            status = ScheduleStatus(conditions=(condition,), observed_generation=made.metadata.generation)
            changed = replace(made, spec=replace(made.spec, **spec), status=status)
            return schedule_view(changed, now=clock.wall_ns())

        for refused in (ScheduleReason.NOT_ALLOWED, ScheduleReason.INVALID_SCHEDULE):
            assert (view(refused).next_runs_at, view(refused).no_run) == ([], f"{refused}: because")
        assert len(view(ScheduleReason.RUN_NOT_MADE).next_runs_at) == 3
        unreadable = view(ScheduleReason.RUN_FAILED, schedule="99 3 * * *")
        assert unreadable.next_runs_at == []
        assert (unreadable.no_run or "").startswith("InvalidSchedule: '99 3 * * *' is not a schedule")


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("place", [[], ["--cluster"]])
def test_an_edit_changes_only_what_is_given(place: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    made = shown(capsys, *CREATE, "--keep-daily", "7", "--keep-weekly", "4", "--starting-deadline", "6h", *place)
    changed = shown(capsys, "edit", "nightly", "--keep-daily", "14", *place)
    assert changed == {**made, "keep": {"daily": 14, "weekly": 4}}
    changed = shown(capsys, "edit", "nightly", "--schedule", "30 2 * * *", "--time-zone", "Europe/Berlin", *place)
    assert (changed["schedule"], changed["time_zone"], changed["captures"]) == (
        "30 2 * * *",
        "Europe/Berlin",
        "pvc/data",
    )
    assert shown(capsys, "edit", "nightly", "--target", "pvc/x", *place)["captures"] == "1 manifest"
    assert shown(capsys, "edit", "nightly", "--claim", "other", *place)["captures"] == "pvc/other"
    assert run("edit", "nightly", "--keep-daily", "0", "--keep-weekly", "0", *place) == 64
    assert "Say what stays" in capsys.readouterr().err
    assert shown(capsys, "show", "nightly", *place)["keep"] == {"daily": 14, "weekly": 4}


def test_who_makes_a_schedule_that_is_there_is_told_of_edit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*CREATE, "--keep-last", "1") == 0
    assert run(*CREATE, "--keep-last", "2") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "There is a CaptureSchedule default/nightly already." in said
    assert "lapse requests schedule edit csched/default/nightly" in said


def test_a_claim_that_is_not_there_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*CREATE, "--keep-last", "1") == 0
    assert "warning: There is no pvc/default/data now." in capsys.readouterr().err


@pytest.mark.usefixtures("cluster")
def test_no_run_of_manifests_is_promised_on_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    schedule = ["create", "hourly", "--target", "pvc/a", "--schedule", "0 * * * *", "--keep-last", "1"]
    assert run(*schedule, "--cluster") == 0
    assert "if the operator makes scheduled captures of manifests" in capsys.readouterr().out


def test_the_document_on_the_page_is_what_its_command_makes() -> None:
    page = Path(__file__).parents[3].joinpath("docs", "how-to", "capture-every-night.md").read_text()
    (line,) = re.findall(r"^\$ lapse requests schedule create (.*)$", page, re.MULTILINE)
    (document,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert run("create", *shlex.split(line)) == 0

    async def read() -> Any:  # noqa: ANN401 - any JSON
        async with AsyncExitStack() as stack:
            context = Context(PlaceFlags().load(), stack)
            return CAPTURE_SCHEDULE.body(await context.store.get(CAPTURE_SCHEDULE, ObjectKey("default", "nightly")))[
                "spec"
            ]

    assert asyncio.run(read()) == yaml.safe_load(document)["spec"]


def test_schedules_are_named_where_people_look(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["requests", "--help"]) == 0
    assert "Capture by the clock" in capsys.readouterr().out
    assert main(["requests", "list", "--help"]) == 0
    assert "csched" in capsys.readouterr().out
    assert main(["requests", "list", "csched"]) == 0
