"""``lapse requests``, ``requests schedule``, ``history`` and ``retention`` with ``--server``: as on a state folder."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import SystemClock
from lapse.engine.running.metrics import Metrics
from lapse.engine.verbs.contract import SteeredView
from lapse.engine.view import to_json
from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, RETENTION_POLICY
from lapse.kube.resources import ObjectKey
from lapse.requests.api.kinds import OBJECT_KEEPER, VOLUME_CAPTURE_REQUEST
from lapse.requests.api.upstream import VOLUME_SNAPSHOT_CONTENT
from lapse.requests.view import read_or_none
from tests.past import policy
from tests.policies import MemoryNotes, PolicyGate
from tests.unit.web.test_commands_on_a_server import SERVER, Run, document, run, said  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.web.conftest import API

DIRECTORY = "local.lapse.dev/directory"
KEY = ObjectKey("default", "nightly")
SCHEDULE = ("nightly", "--claim", "data", "--schedule", "0 3 * * *", "--keep-daily", "7")
RUN_OF = ("--experiment", "shop/kill", "--status", "success", "--start")


@pytest.fixture
async def claim(api: API) -> None:
    body = {"metadata": {"name": "data", "annotations": {DIRECTORY: "/srv/data"}}}
    assert (await api.client.post("/api/v1/claims", json=body)).status_code == 201


async def finish(api: API, reason: str = "Completed") -> None:
    """Play the controller."""
    status = {"type": "Ready", "status": "True" if reason == "Completed" else "False", "reason": reason, "message": "m"}
    written = {"conditions": [status], "completionTimestamp": "2023-11-14T22:13:20Z"}
    await api.objects.patch_status(VOLUME_CAPTURE_REQUEST, KEY, written)


async def keeper(api: API) -> None:
    uid = (await api.objects.get(VOLUME_CAPTURE_REQUEST, KEY)).metadata.uid
    follow = {"apiVersion": VOLUME_CAPTURE_REQUEST.api_version, "kind": VOLUME_CAPTURE_REQUEST.kind,
              "namespace": "default", "name": "nightly", "uid": uid}  # fmt: skip
    spec = {"mode": "FollowObjectWithTTL", "ttl": "24h", "followObjectRef": follow}
    made = await api.objects.create(OBJECT_KEEPER, {"metadata": {"name": f"ret-vcr-{uid}"}, "spec": spec})
    owner = {"apiVersion": OBJECT_KEEPER.api_version, "kind": OBJECT_KEEPER.kind, "name": made.metadata.name,
             "uid": made.metadata.uid, "controller": True}  # fmt: skip
    metadata = {"name": "snapshot-1", "ownerReferences": [owner]}
    of = {"volumeSnapshotRef": {"namespace": "default"}}
    await api.objects.create(VOLUME_SNAPSHOT_CONTENT, {"metadata": metadata, "spec": of})


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("claim")
async def test_a_capture_is_asked_for_shown_listed_and_deleted_on_a_server(run: Run, api: API) -> None:  # noqa: F811
    made = await run("requests", "capture", "nightly", "--claim", "data")
    assert said(made)[0] == 0
    assert made.stdout.startswith("Created: vcr/default/nightly. ")
    await keeper(api)
    await finish(api)

    shown = document(await run("requests", "show", "nightly", "-o", "json"))
    assert shown == (await api.client.get("/api/v1/requests/vcr/default/nightly")).json()
    for same in (["vcr/nightly"], ["vcr/nightly", "-n", "default"], ["vcr/default/nightly", "--server", SERVER]):
        assert document(await run("requests", "show", *same, "-o", "json")) == shown
    facts = (await run("requests", "show", "nightly")).stdout
    assert "True (Completed)" in facts
    assert f"keeper/ret-vcr-{shown['uid']}" in facts
    listed = document(await run("requests", "list", "-o", "json"))
    assert [one["kind"] for one in listed["items"]] == [
        "VolumeCaptureRequest",
        "ObjectKeeper",
        "VolumeSnapshotContent",
    ]
    assert listed["items"][0] == {name: value for name, value in shown.items() if name != "object"}

    deleted = document(await run("requests", "delete", "nightly", "--yes", "-o", "json"))
    assert deleted == to_json(SteeredView(address="vcr/default/nightly", domain="requests", uid=shown["uid"]))
    assert await read_or_none(api.objects, VOLUME_CAPTURE_REQUEST, KEY) is None
    lapsed = await run("requests", "show", "nightly")
    assert lapsed.returncode == 1
    assert "vcr/default/nightly has lapsed." in lapsed.stderr


@pytest.mark.usefixtures("claim")
async def test_lists_of_a_server_go_on_where_the_page_before_ended(run: Run) -> None:  # noqa: F811
    for name in ("a", "b", "c"):
        assert (await run("requests", "capture", name, "--claim", "data")).returncode == 0
    first = document(await run("requests", "list", "vcr", "pvc", "--limit", "2", "-o", "json"))
    rest = document(await run("requests", "list", "vcr", "pvc", "--after", first["next"], "-o", "json"))

    assert [one["name"] for one in first["items"] + rest["items"]] == ["a", "b", "c", "data"]
    assert (first["next"], rest["next"]) == ("vcr/default/b", None)


@pytest.mark.usefixtures("claim")
async def test_a_request_of_a_server_is_waited_for(run: Run, api: API) -> None:  # noqa: F811
    waiting = asyncio.create_task(
        run("requests", "capture", "nightly", "--claim", "data", "--wait", "--timeout", "30s")
    )
    while await read_or_none(api.objects, VOLUME_CAPTURE_REQUEST, KEY) is None:
        await SystemClock().sleep(0.01)
    await finish(api)
    assert said(await waiting) == (0, "Completed: vcr/default/nightly; m\n", "")

    gone = asyncio.create_task(run("requests", "watch", "--until-gone", "vcr/nightly", "--timeout", "30s"))
    assert (await api.client.delete("/api/v1/requests/vcr/default/nightly")).status_code == 204
    assert (await gone).stdout.startswith("Gone: vcr/default/nightly.")


@pytest.mark.usefixtures("claim")
async def test_that_a_request_has_failed_is_told_on_stderr_and_by_the_exit_code(run: Run, api: API) -> None:  # noqa: F811
    await run("requests", "capture", "nightly", "--claim", "data")
    await finish(api, reason="InternalError")

    waited = await run("requests", "watch", "--until-ready", "nightly", "--timeout", "30s")
    assert said(waited) == (1, "", "vcr/default/nightly has failed (InternalError): m\n")
    told = await run("requests", "watch", "--until-ready", "nightly", "-o", "json")
    assert (told.returncode, json.loads(told.stdout)["ready"], told.stderr) == (1, False, "")


async def test_what_a_server_cannot_do_is_a_usage_error(run: Run, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "data").mkdir()
    for line, told in (
        ("capture nightly --directory data", "--directory names a directory of this machine"),
        ("restore r --from snapshot-1 --to new", "--to names a directory of this machine"),
        ("watch --timeout 1s", "What happens on a server cannot be followed."),
        (f"list --server {SERVER} --cluster", "--cluster cannot be given with --server"),
    ):
        refused = await run("requests", *line.split())
        assert refused.returncode == 64, line
        assert told in refused.stderr


@pytest.mark.usefixtures("claim")
async def test_a_name_is_that_of_the_one_request_and_several_are_named(run: Run) -> None:  # noqa: F811
    await run("requests", "capture-manifests", "x", "--target", "pvc/data")
    shown = document(await run("requests", "show", "x", "-o", "json"))
    assert shown["address"] == "mcr/default/x"

    await run("requests", "capture", "x", "--claim", "data")
    for verb in ("show", "delete"):
        refused = await run("requests", verb, "x")
        assert refused.returncode == 64
        assert "Name one by its address: vcr/default/x, mcr/default/x." in refused.stderr
    assert len(document(await run("requests", "list", "requests", "-o", "json"))["items"]) == 2


async def test_a_token_that_shows_no_documents_lists_without_them(run: Run, api: API) -> None:  # noqa: F811
    body = {"metadata": {"name": "data", "annotations": {DIRECTORY: "/srv/data"}}}
    await api.client.post("/api/v1/claims", json=body)
    listed = document(await run("requests", "list", "claims", "-o", "json", scopes=("monitor",)))

    assert [one["name"] for one in listed["items"]] == ["data"]


# --- schedules --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("claim")
async def test_a_schedule_of_a_server_from_its_creation_to_its_end(run: Run, api: API) -> None:  # noqa: F811
    made = await run("requests", "schedule", "create", *SCHEDULE)
    assert said(made)[0] == 0
    assert made.stdout.startswith("Created: csched/default/nightly. The next run is at ")
    again = await run("requests", "schedule", "create", *SCHEDULE)
    assert again.returncode == 1
    assert "Change it with lapse requests schedule edit csched/default/nightly" in again.stderr.replace("\n", " ")

    shown = document(await run("requests", "schedule", "show", "nightly", "-o", "json"))
    assert shown == (await api.client.get("/api/v1/schedules/default/nightly")).json()
    assert "daily 7" in (await run("requests", "schedule", "show", "csched/nightly")).stdout
    (listed,) = document(await run("requests", "schedule", "list", "-o", "json"))["items"]
    assert listed == {name: shown[name] for name in listed}
    edited = document(await run("requests", "schedule", "edit", "nightly", "--target", "cm/a", "-o", "json"))
    assert edited["captures"] == "1 manifest"
    suspended = await run("requests", "schedule", "suspend", "nightly")
    assert said(suspended) == (0, "Suspended: csched/default/nightly.\n", "")
    assert (await run("requests", "schedule", "resume", "nightly")).stdout.startswith("Resumed: csched/default/nightly")
    deleted = document(await run("requests", "schedule", "delete", "nightly", "--yes", "-o", "json"))
    assert (deleted["address"], deleted["says"]) == ("csched/default/nightly", "It has kept nothing.")
    assert deleted["uid"] == shown["object"]["metadata"]["uid"]
    for verb in ("show", "suspend", "delete"):
        gone = await run("requests", "schedule", verb, "nightly")
        assert "There is no CaptureSchedule default/nightly." in gone.stderr
        assert gone.returncode == 1


@pytest.mark.usefixtures("claim")
async def test_schedules_of_a_server_are_listed_among_other_kinds(run: Run, tmp_path: Path) -> None:  # noqa: F811
    here = ("--state-dir", str(tmp_path / "state"))
    for place in ((), here):
        assert (await run("requests", "schedule", "create", *SCHEDULE, *place)).returncode == 0
    for line in (["list", "csched", "pvc"], ["show", "csched/nightly"]):
        there, folder = [document(await run("requests", *line, *place, "-o", "json")) for place in ((), here)]
        one, other = (found["items"][0] if "items" in found else found for found in (there, folder))
        assert one["address"] == "csched/default/nightly"
        assert one.keys() == other.keys()
    assert "csched" in (await run("requests", "list", "csched")).stdout
    none = await run("requests", "list", "csched", "-n", "shop")
    assert said(none) == (0, "", "There is nothing in the namespace shop.\n")
    refused = await run("requests", "list", "pod")
    assert refused.returncode == 64
    assert "Expected one of vcr, vrr, mcr, " in refused.stderr


# --- history and retention --------------------------------------------------------------------------------------------


async def test_records_of_a_server_are_written_listed_and_shown(run: Run, api: API) -> None:  # noqa: F811
    recorded = await run("history", "record", *RUN_OF, "2023-11-14T10:00:00Z")
    again = await run("history", "record", *RUN_OF, "2023-11-14T10:00:00Z")
    assert recorded.stdout.startswith("Recorded: history/chaos-system/kill-20231114100000-")
    assert again.stdout == recorded.stdout.replace(".\n", ". It was recorded before, and is left as it is.\n")
    for hour in (11, 12):
        await run("history", "record", *RUN_OF, f"2023-11-14T{hour}:00:00Z")

    first = document(await run("history", "list", "--limit", "2", "-o", "json"))
    rest = document(await run("history", "list", "--after", first["next"], "-o", "json"))
    assert [one["experiment"] for one in first["items"] + rest["items"]] == ["shop/kill"] * 3
    assert document(await run("history", "list", "-n", "bank", "-o", "json")) == {"items": [], "next": None}
    assert (
        len(
            document(
                await run("history", "list", "--experiment-namespace", "shop", "--status", "success", "-o", "json")
            )["items"]
        )
        == 3
    )
    name = first["items"][0]["name"]
    shown = document(await run("history", "show", name, "-o", "json"))
    assert shown == (await api.client.get(f"/api/v1/history/chaos-system/{name}")).json()
    assert "shop/kill" in (await run("history", "show", f"history/chaos-system/{name}")).stdout
    absent = await run("history", "show", "nope")
    assert absent.returncode == 1
    assert f"There is no record chaos-system/nope in {SERVER};" in absent.stderr


async def test_limits_are_asked_of_a_server_as_of_a_folder(run: Run, api: API) -> None:  # noqa: F811
    for hour in (10, 11, 12):
        await run("history", "record", *RUN_OF, f"2023-11-14T{hour}:00:00Z")
        api.clock.advance(3_600)
    name, *_ = sorted(one.metadata.name for one in (await api.objects.list(CHAOS_EXPERIMENT_HISTORY)).items)
    for limits in (["--history-ttl", "150m"], ["--history-retention-limit", "2"]):
        shown = document(await run("history", "show", name, *limits, "-o", "json"))
        listed = document(await run("history", "list", *limits, "-o", "json"))["items"]
        assert [one["verdict"] for one in listed] == ["due", "keep", "keep"]
        assert {**shown, **listed[0]} == shown
        dry = document(await run("history", "prune", *limits, "--dry-run", "-o", "json"))
        assert [one["name"] for one in dry["items"]] == [name]
    kept = ("--history-retention-limit", "2", "--history-keep-last-success", "3")
    assert document(await run("history", "prune", *kept, "-o", "json"))["items"] == []
    pruned = await run("history", "prune", "--history-ttl", "0", "--history-retention-limit", "2")
    assert (pruned.returncode, pruned.stderr) == (0, "history: deleted 1 of 3.\n")


@pytest.mark.parametrize("command", ["list", "prune", "show nobody"])
async def test_limits_that_cannot_be_meant_are_a_usage_error_before_a_server_is_asked(run: Run, command: str) -> None:  # noqa: F811
    refused = await run("history", *command.split(), "--history-ttl", "30m")
    assert refused.returncode == 64
    assert "flag --history-ttl: history_ttl = '30m': it is shorter than an hour" in refused.stderr
    elsewhere = await run("history", *command.split(), "--history-namespace", "bank")
    assert elsewhere.returncode == 64
    assert "--history-namespace cannot be given with --server" in elsewhere.stderr


async def test_a_first_prune_of_a_server_lists_and_waits_for_a_yes(run: Run, api: API) -> None:  # noqa: F811
    notes, journal = MemoryNotes(), api.retention._journal
    api.retention._history_ttl_is_default = True
    api.retention._gate = PolicyGate(notes, journal=journal, clock=api.clock, metrics=Metrics("test"))
    await run("history", "record", *RUN_OF, "2023-11-14T10:00:00Z")
    api.clock.advance(40 * 86_400)

    for command in (("history", "prune"), ("retention", "run", "history")):
        waits = await run(*command)
        assert waits.returncode == 1
        assert "would_end" in waits.stdout
        assert "Nothing was deleted" in waits.stderr
    assert (await run("history", "prune", "--dry-run", "--detailed-exitcode")).returncode == 2
    pruned = document(await run("history", "prune", "--yes", "-o", "json"))
    assert [one["outcome"] for one in pruned["items"]] == ["ended"]


async def test_policies_of_a_server_are_listed_shown_and_run_by_name(run: Run, api: API, tmp_path: Path) -> None:  # noqa: F811
    await api.objects.create(RETENTION_POLICY, policy("records", maxAge="9d"))
    shown = document(await run("retention", "show", "records", "-o", "json"))

    assert document(await run("retention", "list", "records", "-o", "json")) == {"items": [shown], "next": None}
    assert shown == (await api.client.get("/api/v1/retention/records")).json()
    assert document(await run("retention", "show", shown["address"], "-o", "json")) == shown
    assert "9d" in (await run("retention", "show", "records")).stdout
    ran: Any = document(await run("retention", "run", "records", "-o", "json"))
    assert [one["name"] for one in ran["policies"]] == ["records"]
    absent = await run("retention", "show", "nope")
    assert (absent.returncode, f"There is no retention policy nope in {SERVER};" in absent.stderr) == (1, True)
    (tmp_path / "p.yaml").write_text(json.dumps(policy("other", maxAge="9d")))
    refused = await run("retention", "run", "p.yaml")
    assert refused.returncode == 64
    assert "p.yaml is a file, and a server runs the policies that it has." in refused.stderr
