from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

import lapse
from lapse.cli.output import Output, message, print_document, print_page, print_result, print_table, print_text
from lapse.core.text import printable
from lapse.engine.view import HoldEnd, Moment, ViewPage

if TYPE_CHECKING:
    from pathlib import Path

LONG = "k" * 300


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make rich believe that it writes to a terminal of 60 columns."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_a_table_on_a_pipe_is_plain_aligned_and_complete(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("key", "left"), [("a", 1), (LONG, "2m"), ("é€🔑", "3")])

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{'KEY':300}  LEFT"
    assert lines[1] == f"{'a':300}  1"
    assert lines[2] == f"{LONG}  2m"
    assert lines[3].split() == ["é€🔑", "3"]
    assert "\x1b" not in "".join(lines)


def test_a_table_without_rows_is_its_headings(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("key", "expires in"), [])

    assert capsys.readouterr().out == "KEY  EXPIRES IN\n"


@pytest.mark.usefixtures("terminal")
def test_a_table_on_a_terminal_folds_long_cells_and_cuts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("key", "left"), [(LONG, "2m")])

    out = capsys.readouterr().out
    assert out.count("k") == 300 + 1  # and the heading's
    assert "…" not in out


@pytest.mark.usefixtures("terminal")
def test_a_wide_table_on_a_narrow_terminal_keeps_each_cell_in_one_piece(capsys: pytest.CaptureFixture[str]) -> None:
    address = "history/chaos-system/kill-pods-20260131020000-fe649fcd72"
    print_table(("address", "due", "rule"), [(address, "now", "ttl_expired")])
    assert capsys.readouterr().out.splitlines()[1] == f"{address}  now  ttl_expired"

    print_table(("address", "due", "rule"), [("workspace/lab", "now", "ttl_expired")])
    assert "│ workspace/lab │ now │ ttl_expired │" in capsys.readouterr().out


@pytest.mark.usefixtures("terminal")
def test_a_cell_may_have_a_style_on_a_terminal_unless_colours_are_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_table(("result",), [("holds",)], styles={"holds": "green"})
    assert "\x1b[32mholds" in capsys.readouterr().out

    monkeypatch.setenv("NO_COLOR", "1")
    print_table(("result",), [("holds",)], styles={"holds": "green"})
    assert "\x1b[32m" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text", "plain text"),
        ("é€🔑", "é€🔑"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\0b\nc\td", r"a\x00b\nc\td"),
        ("\u202etxt.exe", r"\u202etxt.exe"),
        ("\u200b", r"\u200b"),
        ("\x9b2J", r"\x9b2J"),
        ("[bold]x[/bold] :smile:", "[bold]x[/bold] :smile:"),
    ],
)
def test_what_could_steer_a_terminal_is_shown_as_an_escape(
    text: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printable(text) == shown

    print_table(("key",), [(text,)])
    assert capsys.readouterr().out == f"KEY\n{shown}\n"


def test_json_is_one_document_on_one_line_and_keeps_every_character(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"key": "a\0b\x1b", "value": "é🔑", "none": None}

    print_document(Output.JSON, document)

    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "\x1b" not in out
    assert json.loads(out) == document


def test_yaml_is_the_same_document_as_json_and_several_stay_apart(capsys: pytest.CaptureFixture[str]) -> None:
    first = {"key": "a\0b\x1b", "value": "é🔑", "none": None, "at": Moment(0)}
    documents = [first, {"items": ["no", "1e3"], "next": "~"}]

    for document in documents:
        print_document(Output.YAML, document)

    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "é🔑" in out
    assert list(yaml.safe_load_all(out)) == [first | {"at": "1970-01-01T00:00:00Z"}, documents[1]]


def test_a_list_is_items_and_next_for_programs_and_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    page = ViewPage([HoldEnd("audit", None)], "audit")
    columns = {"why": "reason", "until": "until"}

    print_page(Output.JSON, page, columns, none="There are none.")
    assert json.loads(capsys.readouterr().out) == {"items": [{"reason": "audit", "until": None}], "next": "audit"}
    print_page(Output.TABLE, page, columns, none="There are none.")
    told = capsys.readouterr()
    assert (told.out, told.err) == ("WHY    UNTIL\naudit  -\n", "There are more; --limit 0 shows all.\n")
    print_page(Output.TABLE, ViewPage([], None), columns, none="There are none.")
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "There are none.\n")


def test_messages_go_to_stderr_and_are_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    message(f"first {LONG}\nsecond \x1b[31m")

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"first {LONG}\nsecond \\x1b[31m\n"


def test_a_result_is_a_sentence_for_people_and_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(Output.TABLE, {"done": True}, "done")
    people = capsys.readouterr()
    print_result(Output.JSON, {"done": True}, "done")
    programs = capsys.readouterr()

    assert (people.out, people.err) == ("done\n", "")
    assert (programs.out, programs.err) == ('{"done": true}\n', "")


STEERING = "\x1b]0;title\x07\x1b[2J\x9b31m\r\u202eab\ntwo\tlines"
SHOWN = r"\x1b]0;title\x07\x1b[2J\x9b31m\r\u202eab" + "\ntwo\tlines"


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


def test_a_bare_value_cannot_steer_a_terminal_and_is_as_it_is_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print_text(STEERING)
    assert capsys.readouterr().out == f"{STEERING}\n"

    on_terminal(monkeypatch)
    print_text(STEERING)
    assert capsys.readouterr().out == f"{SHOWN}\n"


def test_json_on_a_terminal_is_the_same_document_without_what_could_steer_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_terminal(monkeypatch)
    print_document(Output.JSON, {"value": STEERING + "\U000e0001"})

    out = capsys.readouterr().out
    assert json.loads(out) == {"value": STEERING + "\U000e0001"}
    assert all(c.isprintable() or c == "\n" for c in out)


@pytest.mark.process
def test_lapse_keys_get_writes_no_escape_sequence_to_a_terminal_and_the_value_to_a_pipe(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/keys.db"
    with lapse.open_keys(url) as keys:
        keys.app(7).put("key", STEERING, 60)
    command = [sys.executable, "-m", "lapse", "keys", "get", "key", "--app", "7", "--url", url]

    piped = subprocess.run(command, capture_output=True, check=True).stdout
    assert piped.decode() == f"{STEERING}\n"

    ours, terminal = pty.openpty()
    subprocess.run(command, stdout=terminal, check=True)
    os.close(terminal)
    shown = os.read(ours, 10_000).decode().replace("\r\n", "\n")
    os.close(ours)
    assert shown == f"{SHOWN}\n"
