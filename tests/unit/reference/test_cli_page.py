from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from lapse.cli import app, main
from lapse.cli.former_names import COMMANDS as FORMER
from lapse.cli.former_names import OPTIONS, WITH_NAME
from lapse.cli.output import ExitCode
from tests.cli_reference import FORMER_NAMES, OPTION, PAGE, former_names
from tests.markdown import code, sections, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cyclopts import App

SECTIONS = {
    title.removeprefix("lapse "): body
    for title, body in sections(PAGE.read_text(), 3).items()
    if title.startswith("lapse ")
}


def commands(parent: App, *chain: str) -> Iterator[str]:
    for name in parent:
        if name.startswith("-"):
            continue
        below = list(commands(parent[name], *chain, name))
        yield from below or [" ".join((*chain, name))]


COMMANDS = sorted(commands(app))


def test_the_page_has_a_section_for_every_command() -> None:
    assert sorted(SECTIONS) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_a_section_shows_the_usage_and_the_options_of_the_help(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    usage = re.search(r"^Usage: (.*)$", text, re.MULTILINE)
    listed = re.search(r"^Options: (.*)\.$", SECTIONS[command], re.MULTILINE)

    assert usage is not None
    assert f"```text\n{usage[1].rstrip()}\n```" in SECTIONS[command]
    assert listed is not None
    assert sorted(code(listed[1])) == sorted(OPTION.findall(text))


def test_the_page_lists_exactly_the_former_names() -> None:
    found = FORMER_NAMES.search(PAGE.read_text())
    assert found is not None
    assert found[0] == found[1] + former_names()


@pytest.mark.parametrize("words", [*FORMER.values(), *WITH_NAME.values(), *OPTIONS], ids=" ".join)
def test_a_former_name_leads_to_a_command_that_there_is(words: tuple[str, ...]) -> None:
    assert " ".join(words) in COMMANDS


@pytest.mark.parametrize("words", FORMER, ids=" ".join)
def test_a_former_name_is_no_name_of_this_version(words: tuple[str, ...]) -> None:
    assert " ".join(words) not in COMMANDS


def test_the_page_lists_exactly_the_exit_codes_there_are() -> None:
    assert [int(row["exit code"]) for row in table(PAGE, "exit code", "means")] == sorted(ExitCode)
