"""The script of ``lapse completion``, read by the shell that it is for."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.commands import run_here

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.slow]
ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_lapse
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = run_here("completion", "bash")
    assert (made.returncode, made.stderr) == (0, "")
    file = tmp_path_factory.mktemp("completion") / "lapse"
    file.write_text(made.stdout)
    return file


def completed(script: Path, line: str) -> list[str]:
    """Return what bash offers for the last word of a line."""
    words = [*shlex.split(line), *([""] if line.endswith(" ") else [])]
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "bash", script, *words], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("lapse hi", ["history"]),
        ("lapse requests sch", ["schedule"]),
        ("lapse requests schedule sus", ["suspend"]),
        ("lapse workspaces arch", ["archive"]),
        ("lapse history list --exp", ["--experiment", "--experiment-namespace"]),
        ("lapse retention show --ser", ["--server"]),
        ("lapse requests list -o y", ["yaml"]),
        ("lapse completion ", ["bash", "zsh", "fish"]),
        ("lapse requests g", []),
    ],
)
def test_bash_completes_commands_options_and_choices_of_every_noun(script: Path, line: str, offered: list[str]) -> None:
    assert completed(script, line) == offered


def test_bash_registers_it_for_lapse(script: Path) -> None:
    told = subprocess.run(
        ["bash", "--norc", "-c", 'source "$1"; complete -p lapse', "bash", script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "complete -F _lapse lapse\n"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_scripts_of_other_shells_are_valid_there(shell: str, tmp_path: Path) -> None:
    made = run_here("completion", shell)
    assert made.returncode == 0
    assert "capture-manifests" in made.stdout
    if shutil.which(shell) is not None:
        (tmp_path / "script").write_text(made.stdout)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, capture_output=True)


def test_another_shell_is_a_usage_error_that_names_those_that_are_known() -> None:
    refused = run_here("completion", "tcsh")
    assert refused.returncode == 64
    assert all(shell in refused.stderr for shell in ("bash", "zsh", "fish"))
