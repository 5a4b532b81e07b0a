"""Former names of commands and options: they work, and a warning on stderr says what they are now."""

from __future__ import annotations

import pytest

from lapse.cli import main
from lapse.cli.former_names import COMMANDS, OPTIONS, WITH_NAME, renewed

Words = tuple[str, ...]


def rewritten(*arguments: str) -> tuple[list[str], list[str]]:
    told: list[str] = []
    return renewed(arguments, told.append), told


@pytest.mark.parametrize(
    ("former", "name", "given"),
    [
        *((former, name, ()) for former, name in COMMANDS.items()),
        *((former, name, ("x",)) for former, name in WITH_NAME.items()),
    ],
)
def test_a_former_command_is_the_one_that_it_is_now_with_a_warning(
    former: Words, name: Words, given: Words, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*former, *given, "--help"]) == 0
    told = capsys.readouterr()

    assert told.out.startswith(f"Usage: lapse {' '.join(name)} ")
    said = (
        f"warning: lapse {' '.join(former)} is now lapse {' '.join(name)}; the former name goes with the next version"
    )
    assert " ".join(told.err.split()) == said


@pytest.mark.parametrize(("command", "former", "name"), [
    (command, former, name) for command, options in OPTIONS.items() for former, name in options.items()
])  # fmt: skip
def test_a_former_option_is_the_one_that_it_is_now_with_a_warning(command: Words, former: str, name: str) -> None:
    found, told = rewritten(*command, "x", former)

    assert found == [*command, "x", name]
    assert told == [f"{former} is now {name}; the former name goes with the next version"]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ([], "list"),
        (["--cluster"], "list"),
        (["--state-dir", "x"], "list"),
        (["-o", "json", "--cluster"], "list"),
        (["--state-dir=x", "-o", "json"], "list"),
        (["x"], "show"),
        (["--cluster", "x"], "show"),
        (["--state-dir", "x", "y"], "show"),
        (["--state-dir=x", "y"], "show"),
        (["-"], "show"),
    ],
)
def test_what_meant_two_things_is_told_apart_by_its_argument(given: list[str], name: str) -> None:
    assert rewritten("retention", "status", *given)[0] == ["retention", name, *given]


def test_what_is_no_former_name_stays_as_it_is_and_so_does_what_stands_behind_two_hyphens() -> None:
    for line in (["keys", "list", "--app", "7"], ["requests", "show", "get"], ["workspaces", "set", "--", "--standby"]):
        assert rewritten(*line) == (line, [])
