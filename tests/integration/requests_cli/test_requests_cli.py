"""``lapse requests`` as a person runs it, beside a real ``lapse up``: capture, restore, watch it all go."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from lapse.cli import main
from tests.servers.lapse_server import COMMAND, LapseServer, clean_environment, lapse, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(180)
FOLLOWERS = ["keeper/ret-vcr-", "snapshot/snapshot-"]
"""They go after their request, at nearly the same moment."""


Run = Callable[[list[str]], subprocess.CompletedProcess[str]]


class Person:
    """Runs commands in one folder, on the state of one server."""

    def __init__(self, folder: Path, state: Path, run: Run) -> None:
        self.folder, self._state, self._run = folder, state, run

    def run(self, line: str, *, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command and demand its exit code."""
        done = self._run(["requests", *line.split(), f"--state-dir={self._state}"])
        assert done.returncode == code, (line, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    def json(self, line: str) -> Any:  # noqa: ANN401 - whatever it prints
        """Run a command for programs."""
        return json.loads(self.run(f"{line} -o json").stdout)

    def addresses(self, line: str = "list") -> set[str]:
        return {one["address"] for one in self.json(line)["items"]}

    def make(self, name: str, text: str = "hello\n") -> Path:
        directory = self.folder / name
        directory.mkdir()
        (directory / "greeting.txt").write_text(text)
        return directory


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the state of a server under which nothing lapses during a test."""
    state = tmp_path_factory.mktemp("state")
    server = LapseServer.start(state)
    yield state
    server.stop()


@pytest.fixture
def person(
    tmp_path: Path, lasting: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Person:
    """Give somebody who runs commands within this process, which saves a second each."""

    def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
        code = main(arguments)
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, out, err)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return Person(tmp_path, lasting, run)


@pytest.fixture
def newcomer(tmp_path: Path) -> Person:
    """Give somebody whose commands are processes, with a state folder that nobody has used."""
    state = tmp_path / "state"
    state.mkdir()
    return Person(tmp_path, state, lambda arguments: lapse(*arguments, state_dir=tmp_path))


# --- the whole chain --------------------------------------------------------------------------------------------------


def test_capture_restore_and_see_everything_go_but_what_was_restored(newcomer: Person, tmp_path: Path) -> None:
    person, state = newcomer, tmp_path / "state"
    archives = state / "local" / "snapshots"
    person.make("data")
    with running(
        state, "--request-ttl=10m", "--keeper-ttl=2s", "--trash-ttl=never"
    ):  # nothing goes yet, however long this takes
        captured = person.run("capture nightly --directory data --wait")
        restored = person.run("restore monday --from vcr/default/nightly --to data-monday --wait")
        assert "Completed: vcr/default/nightly; the snapshot is in VolumeSnapshotContent" in captured.stdout
        assert f"which is {tmp_path}/data-monday" in restored.stdout
        assert (tmp_path / "data-monday" / "greeting.txt").read_text() == "hello\n"
        assert len(list(archives.iterdir())) == 1

    with watching(person, f"--state-dir={state}") as lines:
        assert sorted(next(lines).split()[1] for _ in range(5)) == ["there"] * 5
        with running(state, "--request-ttl=1s", "--keeper-ttl=2s", "--trash-ttl=never"):
            gone = list(islice((line.split()[2] for line in lines if line.split()[1] == "gone"), 5))
            until(lambda: not list(archives.iterdir()))

    for follower in FOLLOWERS:
        assert any(one.startswith(follower) for one in gone[gone.index("vcr/default/nightly") :]), gone
    assert person.addresses() == set()
    assert person.addresses("list claims") == {
        "PersistentVolumeClaim/default/data",
        "PersistentVolumeClaim/default/monday",
    }
    assert (tmp_path / "data-monday" / "greeting.txt").read_text() == "hello\n"
    assert (tmp_path / "data" / "greeting.txt").read_text() == "hello\n"


@contextmanager
def running(state: Path, *flags: str) -> Iterator[None]:
    """Run a server on a state, and demand that it ends well."""
    server = LapseServer.start(state, *flags)
    try:
        yield
    finally:
        code, _ = server.stop()
    assert code == 0


@contextmanager
def watching(person: Person, *flags: str) -> Iterator[Iterator[str]]:
    """Give the lines of a watch as they come; end it as a person does, with Ctrl-C."""
    with subprocess.Popen(
        [*COMMAND, "requests", "watch", *flags],
        env=clean_environment(person.folder),
        cwd=person.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield iter(process.stdout.readline, "")
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")


def test_what_is_asked_for_while_nobody_works_is_done_by_the_next_lapse_up(newcomer: Person, tmp_path: Path) -> None:
    person, state = newcomer, tmp_path / "state"
    person.make("data")
    person.run("capture nightly --directory data")
    waited = person.run("watch --until-ready vcr/default/nightly --timeout 200ms", code=1)
    assert f"Is lapse up running with --state-dir {state}?" in waited.stderr

    server = LapseServer.start(state)
    try:
        assert person.json("watch --until-ready vcr/default/nightly --timeout 30s")["ready"] is True
    finally:
        server.stop()


# --- one command at a time --------------------------------------------------------------------------------------------


def test_a_list_shows_request_keeper_and_artifact_and_when_each_goes(person: Person) -> None:
    person.make("listed")
    person.run("capture listed --directory listed --wait -n listed")
    table = person.run("list -n listed").stdout.splitlines()
    (row,) = person.json("list vcr -n listed")["items"]

    assert table[0].split() == ["NAMESPACE", "NAME", "KIND", "READY", "REASON", "EXPIRES", "AGE"]
    assert re.match(r"listed +listed +vcr +True +Completed +in \d+m(\d+s)? +\S+$", table[1])
    assert any(re.search(r"keeper +- +Tracking +24h after vcr/listed/listed", line) for line in table)
    assert any(re.search(r"snapshot +True +ReadyToUse +with its keeper", line) for line in table)
    assert (row["address"], row["ready"], row["reason"]) == ("vcr/listed/listed", True, "Completed")
    assert row["expires_at"] > row["completed_at"]
    assert "vcr/listed/listed" in person.addresses("list vcr --all-namespaces")
    assert "vcr/listed/listed" not in person.addresses("list vcr")


def test_one_request_is_shown_with_its_target_artifact_and_keeper(person: Person) -> None:
    directory = person.make("shown")
    person.run("capture shown --directory shown --wait")
    facts = dict(line.split(maxsplit=1) for line in person.run("show vcr/default/shown").stdout.splitlines())
    whole = person.json("show vcr/default/shown")["object"]
    name = whole["status"]["artifactRef"]["name"]

    assert facts["ready"] == "True (Completed)"
    assert facts["target"] == f"pvc/default/shown (Bound, {directory})"
    assert facts["artifact"] == f"snapshot/{name} (ReadyToUse, with its keeper)"
    assert facts["keeper"] == f"keeper/ret-vcr-{whole['metadata']['uid']} (Tracking, 24h after vcr/default/shown)"
    assert person.json(f"show snapshot/{name}")["object"]["spec"]["driver"] == "local.lapse.dev"
    assert f"snapshot/{name}" in person.run(f"show {facts['keeper'].split()[0]}").stdout


def test_a_deleted_request_leaves_its_snapshot_for_a_while_and_can_still_be_restored(person: Person) -> None:
    person.make("early")
    person.run("capture early --directory early --wait")
    said = person.run("delete early").stdout
    person.run("show vcr/default/early", code=1)
    person.run("restore late --from vcr/default/early --wait")
    claim = person.json("show pvc/default/late")["object"]

    assert re.search(r"Deleted: vcr/default/early\. keeper/ret-vcr-\S+ and what it keeps go 1d from now\.", said)
    directory = claim["metadata"]["annotations"]["local.lapse.dev/directory"]
    assert directory.endswith("/local/volumes/default/late")
    said = person.run("delete vrr/late").stdout
    assert re.search(r"keeper/ret-vrr-\S+ goes 1d from now; what was restored stays\.", said)


def test_manifests_are_captured_and_read_back_verified(person: Person) -> None:
    person.make("described")
    person.run("capture described --directory described --wait")
    person.run("capture-manifests described --target pvc/described --target vcr/described --wait")
    name = person.json("show mcr/default/described")["object"]["status"]["checkpointName"]
    shown = person.run(f"manifests show {name}")
    manifests = person.json(f"manifests show {name}")

    assert [(one["kind"], one["metadata"]["name"]) for one in manifests["items"]] == [
        ("VolumeCaptureRequest", "described"),
        ("PersistentVolumeClaim", "described"),
    ]
    assert shown.stdout.splitlines()[0].split() == ["API", "VERSION", "KIND", "NAMESPACE", "NAME"]
    assert "2 manifests, verified." in shown.stderr


def test_a_detached_volume_keeps_its_data_and_can_be_restored(person: Person) -> None:
    directory = person.make("detached")
    person.run("capture first --directory detached --wait")
    person.run("capture detach --claim detached --mode Detach --wait")
    (volume,) = [one for one in person.json("list pv")["items"] if one["keeper"]]
    person.run("show pvc/default/detached", code=1)
    person.run(f"restore attached --from {volume['name']} --to attached --wait")

    assert (directory / "greeting.txt").exists()
    assert (person.folder / "attached" / "greeting.txt").read_text() == "hello\n"


def test_a_request_that_fails_says_why_and_ends_with_1(person: Person) -> None:
    person.make("source")
    person.run("capture source --directory source --wait")
    (person.folder / "blocked").write_text("a file, so nothing can be made in it")
    missing = person.run("capture-manifests none --target cm/none --wait", code=1)
    blocked = person.run("restore blocked --from vcr/default/source --to blocked/inside --wait", code=1)

    assert "mcr/default/none has failed (NotFound): there is no ConfigMap default/none" in missing.stderr
    assert "vrr/default/blocked has failed (RestoreFailed): restoring " in blocked.stderr
    assert len(missing.stderr.splitlines()) == len(blocked.stderr.splitlines()) == 1
    assert person.json("show vrr/default/blocked")["object"]["status"]["completionTimestamp"]


def test_a_watch_prints_what_happens_until_it_is_interrupted(person: Person, lasting: Path) -> None:
    person.make("watched")
    person.run("capture zero --directory watched -n watched --wait")
    with watching(person, "vcr", "-n", "watched", f"--state-dir={lasting}") as coming:
        lines = [next(coming)]
        person.run("capture one --directory watched -n watched --wait")
        person.run("delete vcr/watched/one")
        lines += [next(coming) for _ in range(3)]

    assert [line.split()[1:3] for line in lines] == [
        ["there", "vcr/watched/zero"],
        ["appeared", "vcr/watched/one"],
        ["changed", "vcr/watched/one"],
        ["gone", "vcr/watched/one"],
    ]
    assert "Completed" in lines[2]


def test_a_watch_for_programs_is_one_document_per_line(person: Person) -> None:
    person.make("counted")
    person.run("capture counted --directory counted -n counted --wait")
    lines = person.run("watch vcr -n counted --timeout 2s -o json").stdout.splitlines()
    (report,) = map(json.loads, lines)

    assert (report["event"], report["summary"]["address"]) == ("there", "vcr/counted/counted")
    assert report["object"]["kind"] == "VolumeCaptureRequest"


def test_the_status_of_the_server_names_the_leader(tmp_path: Path) -> None:
    server = LapseServer.start(tmp_path)
    try:
        with server.client() as client:
            until(lambda: client.get("/api/v1/status").json()["leader"])
            assert "This process leads" in client.get("/engine").text
    finally:
        server.stop()
