"""Usage of commands: how they are registered with examples, and what is said to a line that cannot be understood.

A noun's commands are listed in the order of their file. The help of a command is its docstring, line by line as it
stands: hence the short lines of such docstrings. Of a line that is wrong, it is told what was wrong, what was meant and
where to read more; arguments may be secrets, so none is repeated except what can only be the name of a command or an
option.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Protocol

from cyclopts import (
    App,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from lapse.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Command = Callable[..., int]

_OPTION: Final = re.compile(r"--[a-z][a-z-]*|-[a-zA-Z]")


class NumberError(UsageError):
    """{name} is {given}. Expected {expected}."""


class Register(Protocol):
    """Decorates a command with its examples."""

    def __call__(self, *lines: str, name: str | None = None) -> Callable[[Command], Command]:
        """Register it under its own name, or another one."""
        ...


def commands_of(app: App) -> Register:
    """Return the decorator for the commands of an application."""

    def register(*lines: str, name: str | None = None) -> Callable[[Command], Command]:
        return app.command(name=name, help_epilogue=examples(*lines), sort_key=len(list(app)))

    return register


def examples(*lines: str) -> str:
    """Return the end of a help text."""
    return "\n".join(["Examples:", "", *(f"  {line}" for line in lines)])


def explain(error: CycloptsError) -> str:
    """Return a message of one or two lines, the second of which names the help to read."""
    chain = " ".join(("lapse", *(error.command_chain or ())))
    return f"{_problem(error)}\nTry '{chain} --help'."


def _problem(error: CycloptsError) -> str:
    error.verbose = False  # cyclopts adds the Python signature otherwise
    match error:
        case MissingArgumentError():
            return _missing(error)
        case UnusedCliTokensError(unused_tokens=tokens) if tokens:
            many = "1 argument" if len(tokens) == 1 else f"{len(tokens)} arguments"
            return f"{many} too many (not shown: values may be secret). A value with spaces needs quotes."
        case UnknownCommandError(unused_tokens=[given, *_], app=App() as parent):
            return _unknown_command(given, parent)
        case UnknownOptionError(token=token):
            return _unknown_option(str(error), token.keyword or token.value)
        case _:
            return str(error)


def _missing(error: MissingArgumentError) -> str:
    if error.argument is None:
        return str(error)
    name = error.argument.name
    if error.keyword or any(token.keyword for token in error.argument.tokens):
        return f"{name} needs a value."
    unknown = [token.partition("=")[0] for token in error.unused_tokens or ()]
    close = get_close_matches(name, filter(_OPTION.fullmatch, unknown), n=1)
    meant = f" Did you mean {name} instead of {close[0]}?" if close else ""
    return f"{name if name.startswith('-') else f'The argument {name}'} is missing.{meant}"


def _unknown_command(given: str, parent: App) -> str:
    # Not cyclopts' own text: it imports every command to make it, the web framework included.
    names = [name for name in parent if not name.startswith("-")]
    close = get_close_matches(given, names, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    return f"{given!r} is not a command or option.{meant} Commands: {', '.join(names)}."


def _unknown_option(text: str, given: str) -> str:
    if _OPTION.fullmatch(given):
        return f"{text} Put -- before a key or value that starts with -."
    return "An argument starts with - but is not an option. Put -- before a value that starts with -, or pipe it in."


class NoSuchOptionError(UsageError):
    """{word} is neither an option of this command nor a program. Put the command to run after --."""


def check_program(command: Sequence[str]) -> None:
    """Raise unless a command to run can be one: an option that is misspelt would be taken for its first word."""
    if command and command[0].startswith("-"):
        name = command[0].partition("=")[0]
        raise NoSuchOptionError(word=name if _OPTION.fullmatch(name) else "The first word")
