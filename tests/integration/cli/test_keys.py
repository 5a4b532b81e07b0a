"""The keys commands as people and scripts use them, on a store on disk.

What is about a process (stdin, terminals, signals, streams that end) runs in one; the rest within this process.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import lapse
from lapse.core.address import Address
from tests.commands import run_here

Result = subprocess.CompletedProcess[str]
Run = Callable[..., Result]
TTL = ("--ttl", "15m")
SECRET = "s3cr3t"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "keys.db").as_uri()


@pytest.fixture
def run(url: str) -> Run:
    """Give a function that runs one keys command on application 7 of the store, within this process."""

    def keys(*arguments: str, stdin: str = "", app: int = 7) -> Result:
        command = ("keys", *arguments, "--app", str(app), "--url", url)
        return run_here(*command, stdin=stdin, environment={"COLUMNS": "80"})

    return keys


@pytest.fixture
def run_process(url: str) -> Run:
    """Give a function that does the same in a process of its own."""

    def keys(*arguments: str, stdin: str = "") -> Result:
        return subprocess.run(
            [sys.executable, "-m", "lapse", "keys", *arguments, "--app", "7", "--url", url],
            input=stdin,
            env=os.environ | {"COLUMNS": "80", "PYTHONWARNINGS": "error"},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    return keys


def said(result: Result) -> tuple[int, str, str]:
    return result.returncode, result.stdout, result.stderr


def test_the_founding_example_works_from_the_command_line(run_process: Run) -> None:
    run = run_process
    assert said(run("insert", "alpha:ABC123", "device:XYZ789", *TTL)) == (0, "Inserted: key/7/alpha:ABC123.\n", "")
    assert said(run("get", "alpha:ABC123")) == (0, "device:XYZ789\n", "")
    swapped = run("swap", "alpha:ABC123", "device:XYZ789", "-", *TTL, stdin="device:NEW\n")
    assert said(swapped) == (0, "Swapped: key/7/alpha:ABC123.\n", "")
    deleted = run("delete", "alpha:ABC123", "--if-value", "device:NEW")
    assert said(deleted) == (0, "Deleted: key/7/alpha:ABC123.\n", "")
    assert said(run("get", "alpha:ABC123")) == (1, "", "no live key\n")


def test_a_command_whose_condition_does_not_hold_changes_nothing_and_exits_with_1(run: Run) -> None:
    run("put", "k", "first", *TTL)

    taken = run("insert", "k", "second", *TTL)
    swapped = run("swap", "k", "wrong", "second", *TTL)
    deleted = run("delete", "k", "--if-value", "wrong")

    assert said(taken) == (1, "", "a live key is already there; nothing was changed\n")
    assert said(swapped) == (1, "", "no live key with the expected value; nothing was changed\n")
    assert said(deleted) == (1, "", "no live key with the expected value; nothing was changed\n")
    assert run("get", "k").stdout == "first\n"


def test_what_is_absent_is_said_to_be_absent(run: Run) -> None:
    assert said(run("delete", "k")) == (1, "", "no live key; nothing was changed\n")
    assert said(run("touch", "k", *TTL)) == (1, "", "no live key; nothing was changed\n")
    assert said(run("show", "k")) == (1, "", "no live key\n")


def test_put_overwrites_and_delete_removes(run: Run) -> None:
    run("put", "k", "first", *TTL)

    assert said(run("put", "k", "second", "--ttl-seconds", "900")) == (0, "Put: key/7/k.\n", "")
    assert run("get", "k").stdout == "second\n"
    assert said(run("delete", "k")) == (0, "Deleted: key/7/k.\n", "")
    assert run("get", "k").returncode == 1


def test_touch_restarts_the_ttl_and_show_prints_it_as_a_duration_without_the_value(run: Run) -> None:
    run("put", "k", SECRET, "--ttl", "1h")

    before = facts(run("show", "k"))
    assert said(run("touch", "k", "--ttl", "7d")) == (0, "Touched: key/7/k.\n", "")
    after = facts(run("show", "k", "--show-value"))

    assert before["remaining"].startswith("59m")
    assert after["remaining"].startswith("6d23h59m")
    assert before.keys() == {"address", "key", "expires", "remaining"}
    assert after["value"] == SECRET


def facts(result: Result) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in result.stdout.splitlines()[1:])


@pytest.mark.parametrize("name", ["k", "a/b", "key/7/k", "ä ö%", "-x"])
def test_a_key_is_named_by_its_application_and_name_or_by_its_address(url: str, name: str) -> None:
    store = ("--url", url)
    assert run_plain("keys", "put", *TTL, *store, "--app", "7", "--", name, "v").returncode == 0
    address = f"key/7/{quote(name, safe='')}"

    assert run_plain("keys", "get", address, *store).stdout == "v\n"
    shown = as_json(run_plain("keys", "show", address, *store, "-o", "json"))
    assert shown["key"] == name
    deleted = run_plain("keys", "delete", address, *store, "--yes")
    assert said(deleted) == (0, f"Deleted: {Address('key', '7', name)}.\n", "")


@pytest.mark.parametrize("given", ["k", "key/k", "key/x/k", "key/7/a/b", "workspace/k", "key/7/%zz"])
def test_without_an_application_only_an_address_is_understood_and_none_is_repeated(url: str, given: str) -> None:
    for command in ("get", "show", "delete"):
        result = run_plain("keys", command, f"{given}{SECRET}" if given == "k" else given, "--url", url)
        assert result.returncode == 64
        assert "Say whose keys: --app N, or an address such as key/7/alpha" in result.stderr
        assert SECRET not in result.stderr
    assert run_plain("keys", "list", "--url", url).returncode == 64


def test_a_store_is_named_once(url: str, tmp_path: Path) -> None:
    for other in (("--server", "http://localhost:1"), ("--state-dir", str(tmp_path))):
        result = run_plain("keys", "get", "k", "--app", "7", "--url", url, *other)
        assert result.returncode == 64
        assert "--url" in result.stderr


def test_former_names_work_and_say_what_they_are_now(run: Run) -> None:
    run("put", "k", "v", *TTL)

    scanned, ttl = run("scan", "--all", "-o", "json"), run("ttl", "k", "-o", "json")
    assert [one["key"] for one in as_json(scanned)["items"]] == ["k"]
    assert as_json(ttl)["ttl_seconds"] > 0
    assert "warning: lapse keys scan is now lapse keys list; " in scanned.stderr
    assert "warning: --all is now --limit=0; " in scanned.stderr
    assert "warning: lapse keys ttl is now lapse keys show; " in ttl.stderr


def test_applications_do_not_see_each_other(run: Run) -> None:
    run("put", "k", "mine", *TTL)

    assert run("get", "k", app=8).returncode == 1
    assert run("insert", "k", "theirs", *TTL, app=4294967295).returncode == 0
    assert run("get", "k").stdout == "mine\n"


# --- values from stdin -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stdin", "stored"),
    [("v", "v"), ("v\n", "v"), ("v\n\n", "v\n"), ("a\nb\n", "a\nb"), ("", ""), ("\n", ""), (" é🔑 \n", " é🔑 ")],
)
def test_a_value_from_stdin_loses_one_newline_at_its_end(run: Run, stdin: str, stored: str) -> None:
    assert run("put", "k", "-", *TTL, stdin=stdin).returncode == 0
    assert run("get", "k").stdout == f"{stored}\n"


def test_every_value_may_come_from_stdin(run: Run) -> None:
    assert run("insert", "k", "-", *TTL, stdin="one\n").returncode == 0
    assert run("swap", "k", "-", "two", *TTL, stdin="one\n").returncode == 0
    assert run("swap", "k", "two", "-", *TTL, stdin="three\n").returncode == 0
    assert run("swap", "k", "-", "-", *TTL, stdin="three\nfour\n").returncode == 0
    assert run("get", "k").stdout == "four\n"
    assert run("delete", "k", "--if-value", "-", stdin="four\n").returncode == 0


def test_bytes_that_are_no_text_are_refused_and_nothing_is_stored(run: Run, url: str) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "lapse", "keys", "put", "k", "-", *TTL, "--app", "7", "--url", url],
        input=SECRET.encode() + b"\xff\xfe",
        capture_output=True,
        check=False,
    )

    assert process.returncode == 64
    assert b"What came from stdin is not UTF-8: it breaks at byte 6." in process.stderr
    assert SECRET.encode() not in process.stderr
    assert run("get", "k").returncode == 1


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Give both ends of a terminal: the keyboard's and the program's."""
    keyboard, screen = pty.openpty()
    yield keyboard, screen
    os.close(keyboard)
    os.close(screen)


def asked_on(terminal: tuple[int, int], url: str) -> subprocess.Popen[bytes]:
    """Start a command that asks for a value on a terminal, and wait until it asks."""
    command = [sys.executable, "-m", "lapse", "keys", "put", "k", "-", *TTL, "--app", "7", "--url", url]
    process = subprocess.Popen(
        command, stdin=terminal[1], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stderr is not None
    prompt = b""
    while not prompt.endswith(b"Value: "):
        piece = process.stderr.read(1)
        assert piece, prompt
        prompt += piece
    return process


def test_on_a_terminal_a_value_is_asked_for_and_not_shown(run: Run, url: str, terminal: tuple[int, int]) -> None:
    process = asked_on(terminal, url)
    os.write(terminal[0], f"{SECRET}\n".encode())
    out, err = process.communicate(timeout=30)
    os.set_blocking(terminal[0], False)
    shown = os.read(terminal[0], 1000) if process.returncode else b""

    assert process.returncode == 0
    assert SECRET.encode() not in out + err + shown
    assert run("get", "k").stdout == f"{SECRET}\n"


def test_ctrl_c_ends_with_130_and_without_a_traceback(url: str, terminal: tuple[int, int]) -> None:
    process = asked_on(terminal, url)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)

    assert process.returncode == 130
    assert out == b""
    assert err.strip() == b""


# --- JSON ------------------------------------------------------------------------------------------------------------


def as_json(result: Result) -> Any:  # noqa: ANN401 - whatever a command answers
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def test_with_json_every_command_answers_with_one_document(run: Run) -> None:
    json_output, named = ("-o", "json"), {"address": "key/7/k", "key": "k"}

    assert as_json(run("insert", "k", "v", *TTL, *json_output)) == named | {"inserted": True}
    assert as_json(run("insert", "k", "v", *TTL, *json_output)) == named | {"inserted": False}
    assert as_json(run("put", "k", "v", *TTL, *json_output)) == named | {"put": True}
    assert as_json(run("swap", "k", "v", "w", *TTL, *json_output)) == named | {"swapped": True}
    assert as_json(run("touch", "k", *TTL, *json_output)) == named | {"touched": True}
    assert as_json(run("delete", "k", *json_output)) == named | {"deleted": True}
    assert as_json(run("delete", "k", *json_output)) == named | {"deleted": False}
    assert as_json(run("show", "k", *json_output)) == named | {"expires_at": None, "ttl_seconds": None}
    assert as_json(run("get", "k", *json_output)) == named | {"value": None, "expires_at": None, "ttl_seconds": None}


def test_a_key_in_json_has_its_address_its_value_and_its_expiry(run: Run, url: str) -> None:
    run("put", "k\u202e🔑", "v\x1b", "--ttl", "1h")

    item = as_json(run("get", "k\u202e🔑", "-o", "json"))
    left = as_json(run("show", "k\u202e🔑", "-o", "json"))["ttl_seconds"]

    assert run_plain("keys", "get", item["address"], "--url", url).stdout == "v\x1b\n"
    assert (item["key"], item["value"]) == ("k\u202e🔑", "v\x1b")
    assert 3500 < left <= item["ttl_seconds"] <= 3600
    assert datetime.fromisoformat(item["expires_at"]).tzinfo == UTC
    assert len(item["expires_at"]) == len("2030-01-31T12:00:00Z"), "whole seconds, as everywhere"


# --- list ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def five(url: str) -> None:
    with lapse.open_keys(url, sweep=False) as keys:
        keys.app(7).insert_many([(name, f"{SECRET}{name}", 3600) for name in ("b:2", "a:2", "b:1", "a:1", "c")])


@pytest.mark.usefixtures("five")
def test_list_lists_keys_in_order_and_hides_values(run: Run) -> None:
    result = run("list")

    lines = [line.split() for line in result.stdout.splitlines()]
    assert result.returncode == 0
    assert lines[0] == ["ADDRESS", "KEY", "EXPIRES", "IN", "EXPIRES", "AT"]
    assert [line[1] for line in lines[1:]] == ["a:1", "a:2", "b:1", "b:2", "c"]
    assert all(line[0] == f"key/7/{line[1]}" for line in lines[1:])
    assert all(line[2].startswith(("59m", "1h")) for line in lines[1:])
    assert SECRET not in result.stdout + result.stderr


@pytest.mark.usefixtures("five")
def test_list_shows_values_only_when_told_to(run: Run) -> None:
    assert f"{SECRET}a:1" in run("list", "--show-values").stdout
    assert as_json(run("list", "--show-values", "-o", "json"))["items"][0]["value"] == f"{SECRET}a:1"
    assert "value" not in as_json(run("list", "-o", "json"))["items"][0]


@pytest.mark.usefixtures("five")
def test_list_goes_page_by_page_and_says_when_there_are_more(run: Run) -> None:
    first = run("list", "--limit", "2", "-o", "json")
    page = as_json(first)
    second = as_json(run("list", "--limit", "2", "--after", page["next"], "-o", "json"))
    last = as_json(run("list", "--limit", "2", "--after", second["next"], "-o", "json"))

    assert [item["key"] for item in page["items"]] == ["a:1", "a:2"]
    assert [item["key"] for item in second["items"]] == ["b:1", "b:2"]
    assert [item["key"] for item in last["items"]] == ["c"]
    assert last["next"] is None
    assert "There are more; --limit 0 shows all." in run("list", "--limit", "2").stderr
    assert run("list").stderr == run("list", "--limit", "5").stderr == ""


@pytest.mark.usefixtures("five")
def test_list_can_give_all_pages_and_one_prefix(run: Run) -> None:
    everything = as_json(run("list", "--limit", "0", "-o", "json"))
    only_b = as_json(run("list", "--prefix", "b:", "-o", "json"))

    assert [item["key"] for item in everything["items"]] == ["a:1", "a:2", "b:1", "b:2", "c"]
    assert everything["next"] is None
    assert [item["key"] for item in only_b["items"]] == ["b:1", "b:2"]


def test_a_long_or_odd_key_is_listed_whole_and_harmless(run: Run) -> None:
    run("put", "k" * 1024, "v", *TTL)
    run("put", "\x1b[31mred\n", "v", *TTL)

    listed = run("list").stdout
    assert "k" * 1024 in listed
    assert r"\x1b[31mred\n" in listed
    assert "\x1b" not in listed


def test_a_reader_that_goes_away_ends_the_command_quietly(url: str) -> None:
    with lapse.open_keys(url, sweep=False) as keys:
        keys.app(7).insert_many([(f"{number:05}:{'k' * 90}", "v", 900) for number in range(5000)])
    command = [sys.executable, "-m", "lapse", "keys", "list", "--limit", "0", "--app", "7", "--url", url]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"ADDRESS")
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=30)

    assert err == b""
    assert process.returncode == 141


# --- stores ----------------------------------------------------------------------------------------------------------


def run_plain(*arguments: str, **environment: str) -> Result:
    return run_here(*arguments, environment=environment)


def test_a_store_that_cannot_be_opened_is_a_failure_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database at all, but long enough to have a header of one hundred bytes" * 3)

    missing = run_plain("keys", "get", "k", "--app", "7", "--url", (tmp_path / "no" / "keys.db").as_uri())
    foreign = run_plain("keys", "get", "k", "--app", "7", "--url", (tmp_path / "text.db").as_uri())

    for result in (missing, foreign):
        assert result.returncode == 1
        assert result.stdout == ""
        assert result.stderr.startswith("lapse: The keys ")
        assert "Traceback" not in result.stderr


def test_without_a_url_the_configured_store_is_used(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    arguments = ("--app", "7")

    written = run_plain("keys", "put", "k", "v", *TTL, *arguments, LAPSE_STATE_DIR=str(folder))
    read = run_plain("keys", "get", "k", *arguments, LAPSE_STATE_DIR=str(folder))
    named = run_plain("keys", "get", "k", *arguments, LAPSE_KEYS_URL=(folder / "keys.db").as_uri())
    in_folder = run_plain("keys", "get", "k", *arguments, "--state-dir", str(folder))

    assert said(written) == (0, "Put: key/7/k.\n", "")
    assert said(read) == (0, "v\n", "")
    assert said(named) == said(in_folder) == (0, "v\n", "")


def test_the_module_and_the_script_are_the_same_program() -> None:
    programs = ([Path(sys.executable).with_name("lapse")], [sys.executable, "-m", "lapse"])
    said = [subprocess.run([*one, "--version"], capture_output=True, text=True, check=True) for one in programs]

    assert [one.stdout for one in said] == [f"lapse {lapse.__version__}\n"] * 2


# --- conformance -----------------------------------------------------------------------------------------------------

CASES = ("insert-absent", "insert-live")


def test_conformance_prints_what_holds_and_what_the_store_promises(url: str) -> None:
    result = run_plain("keys", "conformance", url, "--only", *CASES)

    assert result.returncode == 0
    assert result.stderr == "2 hold, 0 violated, 0 not applicable.\n"
    for name in CASES:
        assert f"holds   {name}" in result.stdout
    assert "atomicity" in result.stdout


def test_conformance_in_json_is_one_document(url: str) -> None:
    answer = as_json(run_plain("keys", "conformance", url, "--only", *CASES, "-o", "json"))

    assert answer["holds"] is True
    assert [(case["id"], case["result"]) for case in answer["cases"]] == [(name, "holds") for name in CASES]
    assert answer["store"] == url
    assert answer["capabilities"]["shared"] is True


# --- odd surroundings ------------------------------------------------------------------------------------------------


def run_in_shell(redirection: str, *arguments: str) -> Result:
    script = f'exec "$@" {redirection}'
    command = ["sh", "-c", script, "sh", sys.executable, "-m", "lapse", "keys", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_full_disk_is_said_and_ends_with_1(run: Run, url: str) -> None:
    run("put", "k", "v", *TTL)

    for command in (("get", "k"), ("list",), ("get", "k", "-o", "json")):
        result = run_in_shell("> /dev/full", *command, "--app", "7", "--url", url)
        assert said(result) == (1, "", "lapse: The result cannot be written to stdout: No space left on device.\n")


def test_closed_streams_do_no_harm(run: Run, url: str) -> None:
    store = ("--app", "7", "--url", url)

    assert said(run_in_shell("<&-", "put", "k", "-", *TTL, *store)) == (0, "Put: key/7/k.\n", "")
    assert said(run_in_shell(">&-", "get", "k", *store)) == (0, "", "")
    assert said(run_in_shell("2>&-", "get", "absent", *store)) == (1, "", "")


def test_values_are_printed_as_utf_8_whatever_the_locale_says(run: Run, url: str) -> None:
    run("put", "k", "é🔑", *TTL)

    result = subprocess.run(
        [sys.executable, "-m", "lapse", "keys", "get", "k", "--app", "7", "--url", url],
        env=os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )

    assert result.stdout == "é🔑\n".encode()
