"""The one error root.

An exception's docstring is its message: the sentence a person reads stands where the exception is defined, with
``{named}`` places for what was wrong and what was expected. Messages never hold a secret: no key value, no password
of a URL, no token is ever passed as a detail. A driver's error appears only as ``__cause__``.
"""

from __future__ import annotations

from functools import partial
from inspect import cleandoc
from typing import Any


class LapseError(Exception):
    """Lapse could not do what was asked."""

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
