"""How a noun's commands are registered: in the order of their file, each with examples under its help.

The help of a command is its docstring, line by line as it stands: hence the short lines of such docstrings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cyclopts import App

Command = Callable[..., int]


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
