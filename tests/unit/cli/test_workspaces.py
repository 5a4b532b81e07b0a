"""``lapse workspaces`` on a state folder, in this process."""

from __future__ import annotations

import asyncio
import getpass
import io
import json
import re
import socket
import sys
import webbrowser
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from lapse.app.workspaces import ticket_records
from lapse.cli import main
from lapse.core.clock import SystemClock
from lapse.keys.aio import open_keys_async
from lapse.workspaces.logs import MOST_BYTES
from lapse.workspaces.model import Ms, NewWorkspace, ObservedStatus, Operation, OpId, WorkspaceId
from lapse.workspaces.store.sqlite import open_sqlite_store
from lapse.workspaces.tickets import Tickets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from lapse.workspaces.store.port import WorkspaceStore

PORTS = {"broken": 9009, "a": 9001, "b": 9002, "c": 9003}


def serve(port: int) -> tuple[str, ...]:
    return ("--port", str(port), "--", "python3", "-m", "http.server", str(port))


SERVE = serve(9000)


@dataclass
class Person:
    """Somebody at the command line."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    def run(self, *line: str, code: int = 0) -> tuple[str, str]:
        assert main(["workspaces", *line]) == code, self.capsys.readouterr()
        found = self.capsys.readouterr()
        return found.out, found.err

    def run_why(self, address: str) -> str:
        assert main(["why", address]) == 0, self.capsys.readouterr()
        return " ".join(self.capsys.readouterr().out.split())

    def json(self, *line: str) -> Any:  # noqa: ANN401 - whatever it prints
        command, *rest = line
        return json.loads(self.run(command, "-o", "json", *rest)[0])

    def create(self, name: str = "lab", *options: str) -> Any:  # noqa: ANN401 - as above
        return self.json("create", name, *options, *serve(PORTS.get(name, 9000)))

    def on_store(self, work: Callable[[WorkspaceStore], Awaitable[object]]) -> None:
        """Do what somebody else does meanwhile."""

        async def run() -> None:
            store = open_sqlite_store(self.folder / "state" / "workspaces.db")
            try:
                await work(store)
            finally:
                await store.close()

        asyncio.run(run())


INTO_TRASH = "Deleted: workspace/lab. lapse up puts its data into the trash, where it stays until "


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Person:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAPSE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return Person(tmp_path, capsys)


def now() -> Ms:
    return Ms(SystemClock().wall_ns() // 1_000_000)


# --- create and look --------------------------------------------------------------------------------------------------


def test_a_workspace_is_created_shown_and_listed(person: Person) -> None:
    out, said = person.run("create", "lab", *SERVE)
    shown = person.json("show", "lab")

    assert (out, said) == ("Created: workspace/lab. lapse up starts it.\n", "")
    assert shown["command"] == ["python3", "-m", "http.server", "9000"]
    assert (shown["owner"], shown["port"], shown["desired_state"]) == (getpass.getuser(), 9000, "RUNNING")
    assert (shown["standby_ttl_seconds"], shown["archive_ttl_seconds"]) == (300, 86_400)
    assert person.json("show", "workspace/lab") == shown
    assert person.json("list") == {"items": [shown], "next": None}


def test_tables_are_for_people(person: Person) -> None:
    made = person.create("lab", "--owner", "ann")

    def run(store: WorkspaceStore) -> Awaitable[object]:
        return store.observe({WorkspaceId(made["id"]): ObservedStatus.RUNNING}, now=now())

    person.on_store(run)
    listed, shown = person.run("list")[0], person.run("show", "lab")[0]

    assert re.search(r"^lab +ann +RUNNING +RUNNING +- +\d+s ago +standby in (5m|4m\d+s)$", listed, re.MULTILINE)
    assert re.search(r"^command +python3 -m http.server 9000$", shown, re.MULTILINE)
    assert re.search(r"^wanted +RUNNING \(by user\)$", shown, re.MULTILINE)
    assert re.search(r"^next +standby in (5m|4m\d+s)$", shown, re.MULTILINE)
    assert "error" not in shown


def test_what_is_wrong_with_a_workspace_is_listed_shown_and_part_of_why(person: Person) -> None:
    made, failed = person.create("lab"), person.create("broken")

    async def run(store: WorkspaceStore) -> None:
        one, other = WorkspaceId(made["id"]), WorkspaceId(failed["id"])
        await store.observe({one: ObservedStatus.RUNNING}, now=Ms(now() - 3_600_000))
        await store.observe({one: ObservedStatus.STANDBY}, now=now())
        for at in (1, 2):
            await store.note_exit(one, status=-9, output="out of luck", at=Ms(now() + at), steady=False)
        await store.claim(other, Operation.STARTING, OpId("op"), now=now())
        await store.fail(other, OpId("op"), reason="timed_out", message="no answer", now=now())

    person.on_store(run)
    listed = person.run("list")[0]
    assert re.search(r"^lab .* ended by signal 9, restarts: 2 ", listed, re.MULTILINE)
    assert re.search(r"^broken .* ERROR .* timed_out ", listed, re.MULTILINE)
    shown = person.run("show", "lab")[0]
    assert re.search(r"^restarts +2$", shown, re.MULTILINE)
    assert re.search(r"^last exit +by signal 9, \S+ ago$", shown, re.MULTILINE)
    assert re.search(r"^last output +out of luck$", shown, re.MULTILINE)
    told = person.json("show", "lab")
    assert (told["restarts"], told["exit_status"], told["exit_output"]) == (2, -9, "out of luck")
    why = person.run_why("workspace/broken")
    assert "it has failed, and is not changed until a person acts" in why
    assert "It has failed (timed_out): no answer." in why
    assert "The program ended by itself 2 times in a row, the last time by signal 9" in person.run_why("workspace/lab")


def test_the_list_does_not_claim_to_know_that_nobody_is_connected(person: Person) -> None:
    person.create("other")  # makes the folder

    async def run(store: WorkspaceStore) -> None:
        before = Ms(now() - 3_600_000)
        made = await store.create(NewWorkspace(name="lab", owner="ann", command=("serve",), port=1), now=before)
        await store.observe({made.id: ObservedStatus.RUNNING}, now=before)

    person.on_store(run)
    assert "standby at the next look, unless a user is connected" in person.run("list")[0]
    assert "unless a user is connected" in person.run("show", "lab")[0]


def test_ttls_are_the_settings_unless_they_are_given(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAPSE_DEFAULT_STANDBY_TTL", "7m")
    made = person.create("lab", "--archive-ttl", "2d")

    assert (made["standby_ttl_seconds"], made["archive_ttl_seconds"]) == (420, 172_800)


def test_one_need_not_be_started(person: Person) -> None:
    assert person.create("lab", "--no-start")["desired_state"] == "PENDING"


def test_the_list_goes_on_after_a_page(person: Person) -> None:
    made = [person.create(name) for name in ("a", "b", "c")]
    first = person.json("list", "--limit", "2")
    rest = person.json("list", "--limit", "2", "--after", first["next"])

    assert [one["name"] for one in [*first["items"], *rest["items"]]] == [one["name"] for one in made]
    assert rest["next"] is None


def test_without_any_the_list_says_so(person: Person) -> None:
    assert person.run("list") == ("", "There are no workspaces.\n")
    assert person.run("list", "--owner", "ann") == ("", "There are no such workspaces.\n")


def test_a_list_is_limited_and_says_that_there_is_more(person: Person) -> None:
    for name in ("c", "a", "b"):
        person.create(name)
    two = person.json("list", "--limit", "2")

    assert ([one["name"] for one in two["items"]], two["next"]) == (["a", "b"], "b")
    assert "There are more" in person.run("list", "--limit", "2")[1]
    assert len(person.json("list", "--limit", "0")["items"]) == len(person.json("list", "--limit", "3")["items"]) == 3


# --- wanting ----------------------------------------------------------------------------------------------------------


def test_verbs_say_what_is_wanted(person: Person) -> None:
    made = person.create()

    def run(store: WorkspaceStore) -> Awaitable[object]:
        return store.observe({WorkspaceId(made["id"]): ObservedStatus.RUNNING}, now=now())

    person.on_store(run)

    assert person.run("stop", "lab")[0] == "Changed: workspace/lab. STANDBY is wanted; it is RUNNING.\n"
    assert person.run("archive", "lab")[0] == "Changed: workspace/lab. PENDING is wanted; it is RUNNING.\n"
    assert person.json("start", "workspace/lab")["desired_state"] == "RUNNING"


@pytest.mark.parametrize("line", [("start", "lab"), ("stop", "lab"), ("archive", "lab"), ("delete", "lab")])
def test_during_an_operation_a_change_is_refused(person: Person, line: tuple[str, ...]) -> None:
    made = person.create()

    def begin(store: WorkspaceStore) -> Awaitable[object]:
        return store.claim(WorkspaceId(made["id"]), Operation.PROVISIONING, OpId("op"), now=now())

    person.on_store(begin)
    said = person.run(*line, code=1)[1]

    assert said == "lapse: The workspace lab is busy: PROVISIONING is under way. Try again when it is done.\n"
    assert person.json("set", "lab", "--standby-ttl", "1m")["standby_ttl_seconds"] == 60


def test_a_deleted_one_is_gone_and_its_name_is_free(person: Person) -> None:
    made = person.create()

    assert person.run("delete", "lab")[0].startswith(INTO_TRASH)
    assert "There is no workspace lab" in person.run("show", "lab", code=1)[1]
    again = person.run("delete", "lab", code=1)[1]
    assert "There is no workspace/lab any more: ended at " in again
    assert again.endswith("To bring it back: lapse undo workspace/lab.\n")
    assert person.create()["id"] != made["id"]


def test_ttls_are_durations(person: Person) -> None:
    person.create()

    said = "Changed: workspace/lab. It is stopped after 1h30m idle, and archived after 7d in standby.\n"
    assert person.run("set", "lab", "--standby-ttl", "1h30m", "--archive-ttl", "7d") == (said, "")


def test_the_former_command_for_ttls_works_and_says_what_it_is_now(person: Person) -> None:
    person.create()
    out, err = person.run("ttl", "lab", "--standby", "1h", "--archive=7d")

    assert out.startswith("Changed: workspace/lab. It is stopped after 1h idle, and archived after 7d")
    for former, name in (
        ("lapse workspaces ttl", "lapse workspaces set"),
        ("--standby", "--standby-ttl"),
        ("--archive", "--archive-ttl"),
    ):
        assert f"warning: {former} is now {name}; the former name goes with the next version\n" in err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("create", "lab", "--port", "1"), "Say what the workspace runs, after --"),
        (("create", "Lab", *SERVE), "expected a DNS label"),
        (("create", "../x", *SERVE), "expected a DNS label"),
        (("create", "lab", "--port", "0", "--", "x"), "expected a whole number from 1 to 65535"),
        (("create", "lab", "--standby-ttl", "0s", *SERVE), "from 1 to 315360000 (10 years)"),
        (("create", "lab", "--archive-ttl", "36500d", *SERVE), "from 1 to 315360000 (10 years)"),
        (("create", "lab", "--archive-ttl", "never", *SERVE), "to keep a workspace for good, hold it"),
        (("create", "lab", "--standby-ttl", "1500ms", *SERVE), "whole seconds"),
        (("create", "lab", "--standby-ttl", "5minutes", *SERVE), "is not a duration"),
        (("ttl", "lab"), "Say what to change"),
        (("set", "lab"), "Say what to change"),
        (("set", "lab", "--prot", "9001"), "--prot is neither an option of this command"),
        (
            ("create", "lab", "--port", "9001", "--ownr", "eve", "--", "x"),
            "--ownr is neither an option of this command",
        ),
        (("create", "lab", "--probe", "http://x/", *SERVE), "a path on its port"),
        (("list", "--limit", "-1"), "--limit"),
        (("show", "vcr/default/x"), "it does not name a workspace"),
        (("show",), "NAME"),
    ],
)
def test_wrong_usage_touches_nothing(person: Person, line: tuple[str, ...], said: str) -> None:
    assert said in person.run(*line, code=64)[1]
    assert person.json("list")["items"] == []


def test_a_second_one_of_the_same_name_is_refused(person: Person) -> None:
    person.create()
    assert "There is a workspace lab already" in person.run("create", "lab", *SERVE, code=1)[1]


# --- setting ----------------------------------------------------------------------------------------------------------


def runs(person: Person, made: Any) -> None:  # noqa: ANN401 - as it is printed
    person.on_store(lambda store: store.observe({WorkspaceId(made["id"]): ObservedStatus.RUNNING}, now=now()))


def test_command_port_owner_ttls_and_probe_are_set_without_another_workspace(person: Person) -> None:
    made = person.create()
    options = ("--owner", "eve", "--standby-ttl", "1h", "--archive-ttl", "2d", "--probe", "jupyter")
    changed = person.json("set", "lab", "--port", "9001", *options, "--", "./serve", "--verbose")

    assert (changed["id"], changed["version"]) == (made["id"], made["version"] + 1)
    assert (changed["command"], changed["port"]) == (["./serve", "--verbose"], 9001)
    assert (changed["owner"], changed["standby_ttl_seconds"]) == ("eve", 3600)
    assert (changed["archive_ttl_seconds"], changed["probe"]) == (172_800, "jupyter")
    assert person.json("set", "lab", "--probe", "none")["probe"] is None
    assert person.run("set", "lab", "--owner", "ann")[0] == "Changed: workspace/lab.\n"


def test_a_program_that_runs_goes_on_and_that_is_said(person: Person) -> None:
    made = person.create()
    runs(person, made)
    said = person.run("set", "lab", "--port", "9001")[0]
    shown = person.json("show", "lab")

    assert said == (
        "Changed: workspace/lab. Its program keeps running as it was started; "
        "command and port count from its next start.\n"
    )
    assert (shown["port"], shown["next_port"]) == (9000, 9001)
    assert re.search(r"^port +9000, 9001 from its next start on$", person.run("show", "lab")[0], re.MULTILINE)


def test_with_restart_a_program_that_runs_is_waited_for(person: Person) -> None:
    runs(person, person.create())
    said = person.run("set", "lab", "--port", "9001", "--restart", "--timeout", "10ms", code=1)[1]

    assert "workspace/lab is RUNNING and not STANDBY after 10ms" in said
    assert person.json("show", "lab")["desired_state"] == "STANDBY"


def test_a_port_of_another_workspace_is_refused_by_its_name(person: Person) -> None:
    person.create("lab")
    person.create("a")
    created = person.run("create", "b", *serve(9000), code=1)[1]
    changed = person.run("set", "a", "--port", "9000", code=1)[1]

    said = "lapse: Port 9000 is taken: workspace/lab has it. Choose another port, or free this one first.\n"
    assert created == changed == said
    assert [one["port"] for one in person.json("list")["items"]] == [9001, 9000]


def test_a_port_on_which_something_listens_is_refused(person: Person) -> None:
    person.create("lab")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        created = person.run("create", "a", *serve(port), code=1)[1]
        changed = person.run("set", "lab", "--port", str(port), code=1)[1]

    assert created == changed
    assert f"Port {port} is taken: no program can listen on 127.0.0.1:{port} of this machine now" in created
    assert "Address already in use" in created
    assert person.create("a")["port"] == 9001


def test_its_own_port_is_not_taken(person: Person) -> None:
    person.create()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        listener.close()
        person.run("set", "lab", "--port", str(port))
    with socket.create_server(("127.0.0.1", port)):  # its own program
        assert person.json("set", "lab", "--port", str(port), "--owner", "eve")["owner"] == "eve"


# --- deleting ---------------------------------------------------------------------------------------------------------


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    typed = io.StringIO(answer)
    monkeypatch.setattr(typed, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", typed)


@pytest.mark.parametrize("answer", ["n\n", "\n", "", "yesterday\n"])
def test_at_a_terminal_a_deletion_without_a_yes_does_nothing(
    person: Person, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    made = person.create()
    at_a_terminal(monkeypatch, answer)
    said = person.run("delete", "lab", code=1)[1]

    assert "Delete workspace/lab (PENDING, of " in said
    assert "with its data and its archive? [y/N] " in said
    assert "nothing was done, because the answer was not yes. To do it without a question: --yes." in said
    assert person.json("show", "lab") == made


@pytest.mark.parametrize(("answer", "options"), [("y\n", ()), ("YES\n", ()), ("", ("--yes",)), ("", ("-y",))])
def test_a_yes_deletes(person: Person, monkeypatch: pytest.MonkeyPatch, answer: str, options: tuple[str, ...]) -> None:
    person.create()
    at_a_terminal(monkeypatch, answer)
    out, said = person.run("delete", "lab", *options)

    assert INTO_TRASH in out
    assert ("[y/N]" in said) is not bool(options)


# --- logs -------------------------------------------------------------------------------------------------------------


def log_of(person: Person, made: Any) -> Path:  # noqa: ANN401 - as it is printed
    path = person.folder / "state" / "workspaces" / "logs" / f"{made['id']}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_the_log_is_what_the_program_wrote(person: Person) -> None:
    made = person.create()
    assert person.run("logs", "lab") == ("", "workspace/lab has no output: it was not started yet.\n")
    log_of(person, made).write_bytes(b"one\ntwo\nthree\n")

    assert person.run("logs", "lab") == ("one\ntwo\nthree\n", "")
    assert person.run("logs", "workspace/lab", "--tail", "2") == ("two\nthree\n", "")
    assert person.run("logs", "lab", "--tail", "9")[0] == "one\ntwo\nthree\n"
    assert person.run("logs", "lab", "--tail", "0") == ("", "")
    assert "--tail is -1" in person.run("logs", "lab", "--tail", "-1", code=64)[1]


def test_a_log_is_a_document_for_programs_page_by_page(person: Person) -> None:
    path = log_of(person, person.create())
    assert json.loads(person.run("logs", "lab", "-o", "json")[0]) == {"text": "", "next": 0, "more": False}
    path.write_text("one\ntwo\nthree\n")
    last = json.loads(person.run("logs", "lab", "--tail", "1", "-o", "json")[0])
    assert last == {"text": "three\n", "next": 14, "more": False}
    rest = json.loads(person.run("logs", "lab", "--after", "4", "-o", "json")[0])
    assert rest == {"text": "two\nthree\n", "next": 14, "more": False}
    assert person.run("logs", "lab", "--after", "4") == ("two\nthree\n", "")
    assert "--after is -1" in person.run("logs", "lab", "--after", "-1", code=64)[1]
    path.write_text("x" * (MOST_BYTES + 1))
    first, second = map(json.loads, person.run("logs", "lab", "-o", "json")[0].splitlines())
    assert (len(first["text"]), first["more"]) == (MOST_BYTES, True)
    assert (second["text"], second["more"]) == ("x", False)


@pytest.mark.parametrize("tail", [1, 2, 65_000, 70_000, 200_000])
def test_the_last_lines_are_found_in_a_long_log(person: Person, tail: int) -> None:
    lines = [f"{number} äöü\n" for number in range(100_000)] + ["no newline"]
    log_of(person, person.create()).write_text("".join(lines))

    assert person.run("logs", "lab", "--tail", str(tail))[0] == "".join(lines[-tail:])


def test_a_log_is_followed_until_it_is_enough(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    path = log_of(person, person.create())
    written = iter(["first ", "first more ", "new"])

    async def sleep(_clock: SystemClock, _seconds: float) -> None:
        text = next(written, None)
        if text is None:
            raise KeyboardInterrupt
        path.write_text(text)

    monkeypatch.setattr(SystemClock, "sleep", sleep)
    assert person.run("logs", "lab", "--follow", code=130)[0] == "first more new"


def test_a_terminal_is_not_steered_by_a_log(
    person: Person, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log_of(person, person.create()).write_bytes(b"\x1b[31mred\x07\tand\xff\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    assert person.run("logs", "lab")[0] == "\\x1b[31mred\\x07\tand\N{REPLACEMENT CHARACTER}\n"


# --- opening ----------------------------------------------------------------------------------------------------------


def redeem(person: Person, url: str, workspace: str) -> bool:
    """Use a ticket, as a proxy would."""

    async def use() -> bool:
        async with open_keys_async((person.folder / "state" / "keys.db").as_uri(), sweep=False) as keys:
            tickets = Tickets(ticket_records(keys, clock=SystemClock()))
            return await tickets.redeem(url[-43:], WorkspaceId(workspace)) is not None

    return asyncio.run(use())


def test_opening_prints_an_address_whose_ticket_a_proxy_accepts_once(person: Person) -> None:
    made = person.create()
    out, said = person.run("open", "lab")
    url = out.strip()

    assert re.fullmatch(r"http://lab\.w\.localhost:8752/\.lapse/open\?ticket=[A-Za-z0-9_-]{43}", url)
    assert said == "It works once, within a minute.\n"
    assert redeem(person, url, made["id"])
    assert not redeem(person, url, made["id"])


def test_behind_tls_the_address_is_that_of_the_front(person: Person) -> None:
    person.create()
    told = person.json("open", "lab", "--proxy-scheme", "https", "--proxy-suffix", "w.example.com")

    assert told["url"].startswith("https://lab.w.example.com/.lapse/open?ticket=")
    assert told["expires_at"].endswith("Z")


def test_a_browser_is_opened_when_asked_for(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    person.create()
    url = person.run("open", "lab", "--browser")[0].strip()

    assert opened == [url]


@pytest.mark.parametrize(
    ("option", "said"),
    [(("--keys-url", "memory://"), "Ask the HTTP API"), (("--proxy-port", "0"), "proxy_port is 0")],
)
def test_an_address_that_could_not_work_is_not_printed(person: Person, option: tuple[str, str], said: str) -> None:
    person.create()
    out, err = person.run("open", "lab", *option, code=64)

    assert out == ""
    assert said in err


def test_one_that_is_not_there_cannot_be_opened(person: Person) -> None:
    assert "There is no workspace none" in person.run("open", "none", code=1)[1]


@pytest.mark.parametrize("command", ["proxy", "ttl-manager"])
def test_the_processes_of_workspaces_show_how_they_are_started(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    examples = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"  lapse {command} ")]
    assert examples
    assert all("--activity-url redis://" in line for line in examples), "neither starts without"
