"""``lapse busy``: a command that runs keeps its workspace, from within and from without, and nothing holds it up."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.workspaces_served.conftest import ECHO, QUICK, Served
from tests.servers.lapse_server import COMMAND, LapseServer, clean_environment, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORKS = """
import subprocess, sys
work = "import pathlib, time\\nwhile not pathlib.Path('done').exists(): time.sleep(0.05)"
busy = subprocess.Popen([sys.executable, "-m", "lapse", "busy", "--", sys.executable, "-c", work])
""" + ECHO.replace("sys.argv[1]", "os.environ['PORT']")
"""A program that works for itself beside what it shows, until there is a file."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("busy")
    server = LapseServer.start(folder, *QUICK)
    try:
        yield Served(server, folder)
    finally:
        server.stop()


def busy(served: Served, *arguments: str, **settings: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "busy", f"--state-dir={served.folder}", *served.flags, *arguments],
        env={**clean_environment(served.folder), **settings},
        cwd=served.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def run(served: Served, *arguments: str, **settings: str) -> tuple[int, str, str]:
    process = busy(served, *arguments, **settings)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_work_inside_a_workspace_keeps_it_until_it_is_done(shared: Served) -> None:
    made = shared.create("works", sys.executable, "-c", WORKS, standby_ttl_seconds=1)
    shared.becomes("works", "RUNNING")
    until(lambda: "connected" in shared.ask("GET", "/works/why").json()["activity"])
    shared.ticks(8)
    kept = shared.show("works")
    volume = shared.folder / "workspaces" / "volumes" / made["id"]
    (volume / "done").touch()
    gone = shared.becomes("works", "STANDBY")

    assert (kept["observed_status"], kept["desired_state"]) == ("RUNNING", "RUNNING")
    assert gone["desired_by"] == "ttl"


def test_a_command_outside_keeps_a_workspace_with_the_state_folder_s_right(served: Served, tmp_path: Path) -> None:
    run_echo(served, "lab")
    done = tmp_path / "done"
    wait = f"import pathlib, time\nwhile not pathlib.Path({str(done)!r}).exists(): time.sleep(0.05)"
    process = busy(served, f"--server={served.server.http}", "--workspace=lab", "--", sys.executable, "-c", wait)
    until(lambda: "connected" in served.ask("GET", "/lab/why").json()["activity"])
    served.ticks(4)
    kept = served.show("lab")
    done.touch()
    _, err = process.communicate(timeout=60)

    assert (kept["observed_status"], process.returncode, err) == ("RUNNING", 0, "")
    served.becomes("lab", "STANDBY")


def run_echo(served: Served, name: str, *, standby_ttl_seconds: int = 2) -> None:
    served.create(name, standby_ttl_seconds=standby_ttl_seconds)
    served.becomes(name, "RUNNING")


def test_the_exit_code_and_the_output_are_the_command_s(served: Served) -> None:
    where = (f"--server={served.server.http}", "--workspace=lab")
    served_or_stopped(served)
    shell = run(served, *where, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    killed = run(served, *where, "--", "sh", "-c", "kill -9 $$")
    missing = run(served, *where, "--", "no-such-program-anywhere")

    assert (shell[0], shell[1]) == (7, "out\n")
    assert "err\n" in shell[2]
    assert killed[0] == 128 + 9
    assert missing[0] == 127
    assert "no-such-program-anywhere: there is no such program" in missing[2]


def served_or_stopped(served: Served) -> None:
    if served.ask("GET", "/lab").status_code == 404:
        run_echo(served, "lab")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_are_passed_on(served: Served, number: signal.Signals) -> None:
    served_or_stopped(served)
    trap = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(42))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    process = busy(served, f"--server={served.server.http}", "--workspace=lab", "--", sys.executable, "-c", trap)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    process.communicate(timeout=60)

    assert process.returncode == 42


def test_without_a_server_the_command_runs_and_a_warning_says_that_nothing_protects_it(served: Served) -> None:
    served_or_stopped(served)
    code, out, err = run(
        served, "--server=http://127.0.0.1:9", "--workspace=lab", "--", "sh", "-c", "sleep 1; echo done; exit 3"
    )

    assert (code, out) == (3, "done\n")
    assert err.count("\n") == 1
    assert "workspace/lab: nothing keeps it from lapsing now: the server http://127.0.0.1:9 cannot be reached" in err


def test_a_workspace_that_does_not_run_is_said_and_not_woken(served: Served) -> None:
    served.create("rests", standby_ttl_seconds=600)
    served.becomes("rests", "RUNNING")
    served.ask("POST", "/rests/stop")
    served.becomes("rests", "STANDBY")
    code, _, err = run(served, f"--server={served.server.http}", "--workspace=rests", "--", "sh", "-c", "sleep 1")

    assert code == 0
    assert "the server answers 409: The workspace rests does not run" in err
    assert served.show("rests")["desired_state"] == "STANDBY"


def test_the_time_of_a_lease_is_bounded(served: Served) -> None:
    run_echo(served, "bounded", standby_ttl_seconds=8)  # the command takes seconds to begin, beside others
    process = busy(
        served, f"--server={served.server.http}", "--workspace=bounded", "--most=1s", "--", "sh", "-c", "sleep 60"
    )
    gone = served.becomes("bounded", "STANDBY")
    still_runs = process.poll() is None
    process.terminate()
    _, err = process.communicate(timeout=60)

    assert gone["desired_by"] == "ttl"
    assert still_runs
    assert "the time is over, so the workspace may lapse from now on; the command keeps running" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--", "true"), "Name the workspace to keep from lapsing"),
        (("--workspace=lab",), "Give the command to run after --"),
        (("--worksapce=lab", "--", "true"), "--worksapce is neither an option of this command"),
        (("--workspace=lab", "--most=never", "--", "true"), "--most is never"),
        (("--workspace=lab", "--server=nowhere", "--", "true"), "'nowhere' is not the address of a server"),
        (("--workspace=vcr/a/b", "--", "true"), "workspace/NAME"),
    ],
)
def test_wrong_usage_runs_nothing(served: Served, arguments: tuple[str, ...], said: str) -> None:
    served_or_stopped(served)
    code, _, err = run(served, *arguments)

    assert (code, said in err) == (64, True), err


def test_a_token_of_one_s_own_is_enough(served: Served) -> None:
    run_echo(served, "hers")
    token = served.make_token("workspaces:ann")
    served.token = served.make_token("admin")
    strange = served.make_token("workspaces:bob")
    settings = {"LAPSE_SERVER": served.server.http}
    good = run(served, "--workspace=hers", "--", "true", LAPSE_TOKEN=token, **settings)
    bad = run(served, "--workspace=hers", "--", "sh", "-c", "sleep 1", LAPSE_TOKEN=strange, **settings)

    assert (good[0], good[2]) == (0, "")
    assert "answers 404" in bad[2]
    assert token not in good[2] + bad[2]
    assert strange not in bad[2]
