from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from lapse.cli import main

HelpOf = Callable[..., str]

KEYS_COMMANDS = ["list", "show", "get", "insert", "put", "swap", "touch", "delete", "init", "conformance"]
REQUESTS_COMMANDS = [
    "capture",
    "restore",
    "capture-manifests",
    "list",
    "show",
    "watch",
    "delete",
    "schedule",
    "manifests",
]
SCHEDULE_COMMANDS = ["create", "edit", "list", "show", "suspend", "resume", "delete"]
HISTORY_COMMANDS = ["list", "show", "record", "prune", "delete"]
RETENTION_COMMANDS = ["run", "list", "show", "lint", "rbac"]
WORKSPACES_COMMANDS = ["create", "list", "show", "start", "stop", "archive", "set", "logs", "delete", "open"]
FORBIDDEN = {
    "aiobotocore",
    "aiohttp",
    "apsw",
    "cassandra",
    "fastapi",
    "jinja2",
    "lapse.db.sqlite.database",
    "lapse.db.sqlite.file",
    "lapse.engine.domain",
    "lapse.engine.executor",
    "lapse.engine.journal",
    "lapse.keys.backends.file",
    "lapse.keys.backends.memory",
    "lapse.proxy",
    "lapse.web",
    "lightkube",
    "prometheus_client",
    "psycopg",
    "pydantic",
    "redis",
    "starlette",
    "uvicorn",
}
PROGRAM = """
import json, sys
from lapse.cli import main

code = main(sys.argv[1:])
print(json.dumps({"code": code, "modules": sorted(sys.modules)}))
"""


def modules_after(*arguments: str) -> set[str]:
    result = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True)
    answer = json.loads(result.stdout.splitlines()[-1])
    assert answer["code"] == 0
    return set(answer["modules"])


@pytest.mark.process
def test_the_list_of_commands_imports_no_backend_and_no_web_framework() -> None:
    modules = modules_after("--help")

    assert not modules & FORBIDDEN
    known = {"lapse.keys", *(f"lapse.keys.{name}" for name in ("registration", "validation", "errors"))}
    assert {name for name in modules if name.startswith("lapse.keys")} <= known, "nouns come from registrations"
    assert not modules & {"asyncio", "lapse.settings"}


@pytest.mark.process
@pytest.mark.parametrize("arguments", [["--version"], ["keys", "--help"], ["keys", "put", "--help"]])
def test_neither_does_any_other_text_about_keys(arguments: list[str]) -> None:
    assert not modules_after(*arguments) & FORBIDDEN


@pytest.mark.process
@pytest.mark.parametrize("arguments", [["crds", "--help"], ["crds", "install", "--help"], ["crds", "print"]])
def test_neither_does_any_text_about_definitions(arguments: list[str]) -> None:
    assert not modules_after(*arguments) & FORBIDDEN


@pytest.mark.process
@pytest.mark.parametrize("arguments", [["requests", "--help"], ["requests", "capture", "--help"]])
def test_neither_does_any_text_about_requests(arguments: list[str]) -> None:
    assert not modules_after(*arguments) & FORBIDDEN


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments", [["history", "--help"], ["history", "prune", "--help"], ["retention", "--help"]], ids=str
)
def test_neither_does_any_text_about_history_and_retention(arguments: list[str]) -> None:
    assert not modules_after(*arguments) & FORBIDDEN


@pytest.mark.process
@pytest.mark.parametrize("arguments", [["workspaces", "--help"], ["workspaces", "open", "--help"], ["db", "--help"]])
def test_neither_does_any_text_about_workspaces(arguments: list[str]) -> None:
    assert not modules_after(*arguments) & FORBIDDEN


@pytest.fixture
def help_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> HelpOf:
    """Return what a command says of itself; in this process, as starting one takes longer than all that it says."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")

    def ask(*command: str) -> str:
        assert main([*command, "--help"]) == 0
        said = capsys.readouterr()
        assert said.err == ""
        return said.out

    return ask


@pytest.mark.parametrize("command", KEYS_COMMANDS)
def test_every_command_shows_a_summary_its_arguments_and_examples_within_80_columns(
    help_of: HelpOf, command: str
) -> None:
    text = help_of("keys", command)

    lines = text.splitlines()
    assert lines[0].startswith(f"Usage: lapse keys {command}")
    assert lines[2].endswith(".")
    assert f"  lapse keys {command} " in text[text.index("Examples:") :]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    "command", [*REQUESTS_COMMANDS[:-2], *(f"schedule {one}" for one in SCHEDULE_COMMANDS), "manifests show"]
)
def test_every_command_for_requests_shows_a_summary_and_examples_within_80_columns(
    help_of: HelpOf, command: str
) -> None:
    text = help_of("requests", *command.split())

    lines = text.splitlines()
    assert lines[0].startswith(f"Usage: lapse requests {command}")
    assert lines[2].endswith(".")
    assert f"  lapse requests {command}" in text[text.index("Examples:") :]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("command", ["install", "diff", "print"])
def test_every_command_for_definitions_shows_a_summary_and_examples_within_80_columns(
    help_of: HelpOf, command: str
) -> None:
    text = help_of("crds", command)

    lines = text.splitlines()
    assert lines[0].startswith(f"Usage: lapse crds {command}")
    assert lines[2].endswith(".")
    assert f"  lapse crds {command}" in text[text.index("Examples:") :]
    assert max(map(len, lines)) <= 80


def test_the_list_of_requests_commands_is_complete_and_shows_one_line_each(help_of: HelpOf) -> None:
    listed = [line[2:].split() for line in help_of("requests").splitlines() if line.startswith("│ ")]

    assert [words[0] for words in listed] == REQUESTS_COMMANDS
    assert all(len(words) > 3 for words in listed)


@pytest.mark.parametrize(
    "command",
    [
        *(f"history {one}" for one in HISTORY_COMMANDS),
        *(f"retention {one}" for one in RETENTION_COMMANDS),
        *(f"workspaces {one}" for one in WORKSPACES_COMMANDS),
        "db init",
    ],
)
def test_every_command_for_other_nouns_shows_a_summary_and_examples_within_80_columns(
    help_of: HelpOf, command: str
) -> None:
    lines = help_of(*command.split()).splitlines()

    assert lines[0].startswith(f"Usage: lapse {command}")
    assert lines[2].endswith(".")
    assert "Examples:" in lines
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("noun", "commands"),
    [("history", HISTORY_COMMANDS), ("retention", RETENTION_COMMANDS), ("workspaces", WORKSPACES_COMMANDS)],
)
def test_the_lists_of_commands_for_other_nouns_show_one_line_each(
    help_of: HelpOf, noun: str, commands: list[str]
) -> None:
    listed = [line[2:].split() for line in help_of(noun).splitlines() if line.startswith("│ ")]

    assert [words[0] for words in listed] == commands
    assert all(len(words) > 3 for words in listed)


def test_the_list_of_keys_commands_is_complete_and_shows_one_line_each(help_of: HelpOf) -> None:
    text = help_of("keys")

    listed = [line[2:].split() for line in text.splitlines() if line.startswith("│ ")]
    assert [words[0] for words in listed] == KEYS_COMMANDS
    assert all(len(words) > 3 for words in listed)


def test_the_list_of_commands_names_the_exit_codes(help_of: HelpOf) -> None:
    text = help_of()

    codes = "0 done, 1 failed, 2 changes pending (with --detailed-exitcode), 3 partly done, 64 wrong usage."
    assert f"Exit codes: {codes}" in " ".join(text.split())
    assert all(f"│ {command} " in text for command in ("up", "keys", "requests", "crds", "config", "tokens"))


@pytest.mark.parametrize("verb", ["why", "hold"])
def test_the_verbs_say_that_they_know_domains_of_your_own(verb: str, help_of: HelpOf) -> None:
    assert "thing of your own domain" in " ".join(help_of(verb).split())
