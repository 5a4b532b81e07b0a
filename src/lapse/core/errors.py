"""The one error root.

An exception's docstring is its message: the sentence a person reads stands where the exception is defined, with
``{named}`` places for what was wrong and what was expected. Messages never hold a secret: no key value, no password
of a URL, no token is ever passed as a detail. A driver's error appears only as ``__cause__``.

A class also says what an error becomes outside: the HTTP status, the exit code of a command, and a ``code`` for
programs, which is the name of the class unless it says otherwise (a class that is renamed keeps its old one).
"""

from __future__ import annotations

from functools import partial
from inspect import cleandoc
from typing import Any, ClassVar


class LapseError(Exception):
    """Lapse could not do what was asked."""

    status: ClassVar[int] = 500
    """What the HTTP API answers with."""
    exit_code: ClassVar[int] = 1
    """What a command ends with."""
    code: ClassVar[str] = "LapseError"
    """For programs; never changes. Not inherited: without one of its own, a class is called by its name."""

    def __init_subclass__(cls) -> None:
        """Give the class its code."""
        super().__init_subclass__()
        cls.code = cls.__dict__.get("code", cls.__name__)

    def __init__(self, **details: object) -> None:
        """Fill the docstring's places with ``details``."""
        self.details = details
        super().__init__(self._message(details))

    @classmethod
    def _message(cls, details: dict[str, object]) -> str:
        if not cls.__doc__:  # python -OO strips docstrings; the details alone still say what happened
            return f"{cls.__name__} {details}"
        return " ".join(cleandoc(cls.__doc__).split()).format(**details)

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling: `Exception` would call the class with the message as a positional argument."""
        return partial(type(self), **self.details), ()


class UsageError(LapseError):
    """The request itself is wrong; nothing was touched."""

    status = 422
    exit_code = 64
