"""``lapse completion``: the script with which a shell completes commands and options.

The script is made from all commands, which are imported for that: it takes seconds, so it is kept in a file and not
made by each new shell. It knows the names of commands and options and the choices of options, and asks nobody: names of
things are not completed, and the commands of domains that are not built in are not known.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from cyclopts import Parameter

from lapse.cli.output import ExitCode, print_text


class Shell(Enum):
    """The shells that are known."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, Parameter(name="SHELL", help="bash, zsh or fish.", show_choices=False)], /
) -> int:
    """Print the script with which a shell completes commands and options.

    Keep it in a file that the shell reads, and make it anew with each
    version: making it takes a few seconds.
    """
    from lapse.cli import app

    print_text(app.generate_completion(prog_name="lapse", shell=shell.value).rstrip("\n"))
    return ExitCode.DONE
