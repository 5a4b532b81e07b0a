from __future__ import annotations

import pickle
import string
import subprocess
import sys
from contextlib import contextmanager
from importlib import import_module
from pkgutil import walk_packages
from typing import TYPE_CHECKING

import pytest

import lapse
from lapse.client.errors import RemoteError
from lapse.core.duration import DurationError
from lapse.core.errors import LapseError, UsageError
from lapse.keys.errors import KeyTooLongError, KeyTypeError, OutcomeUnknownError
from tests.selection import DRIVERS, needs_driver

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET_FIELDS = {"value", "password", "token", "key", "secret", "expected_value", "new_value"}


PROGRAMS = {"lapse.__main__", "lapse.db.postgres.migrations.env"}
"""They do something when they are imported; the second one only within Alembic."""


def import_everything() -> None:
    for module in walk_packages(lapse.__path__, "lapse."):
        if module.name not in PROGRAMS:
            with drivers_may_be_missing():
                import_module(module.name)


@contextmanager
def drivers_may_be_missing() -> Iterator[None]:
    """In `make test` they are; errors of modules that need one are then tried with `make test-all`."""
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in DRIVERS:
            raise


def family(root: type[LapseError]) -> list[type[LapseError]]:
    return [root, *(one for child in root.__subclasses__() for one in family(child))]


import_everything()
# What a server answered has its words: tests/unit/client/test_errors.py.
ERRORS = sorted(
    {one for one in family(LapseError) if one.__module__.startswith("lapse.") and not issubclass(one, RemoteError)},
    key=lambda e: e.__name__,
)
EACH_ERROR = [
    pytest.param(error, marks=[pytest.mark.driver] if needs_driver(error.__module__) else []) for error in ERRORS
]


def fields(error: type[LapseError]) -> set[str]:
    assert error.__doc__
    return {name for _, name, _, _ in string.Formatter().parse(error.__doc__) if name is not None}


def test_the_family_is_complete_enough_to_be_worth_checking() -> None:
    assert len(ERRORS) > 15


@pytest.mark.parametrize("error", EACH_ERROR)
def test_every_error_has_a_message_of_its_own(error: type[LapseError]) -> None:
    assert "__doc__" in vars(error)
    assert vars(error)["__doc__"].strip()


@pytest.mark.parametrize("error", EACH_ERROR)
def test_every_message_is_made_of_its_details(error: type[LapseError]) -> None:
    details = {name: f"<{name}>" for name in fields(error)}

    message = str(error(**details))

    assert all(shown in message or repr(shown) in message for shown in details.values())
    assert "{" not in message
    assert "\n" not in message
    assert "  " not in message
    assert message.endswith((".", *details.values()))  # a listing may stand at the end


@pytest.mark.parametrize("error", EACH_ERROR)
def test_no_message_has_a_place_for_a_secret(error: type[LapseError]) -> None:
    assert not fields(error) & SECRET_FIELDS


@pytest.mark.parametrize("error", EACH_ERROR)
def test_every_error_survives_pickling(error: type[LapseError]) -> None:
    original = error(**{name: f"<{name}>" for name in fields(error)})

    copy = pickle.loads(pickle.dumps(original))  # noqa: S301 - our own bytes

    assert type(copy) is error
    assert str(copy) == str(original)
    assert copy.details == original.details


def test_the_docstring_is_the_message() -> None:
    error = KeyTooLongError(length=1025, limit=1024)

    assert str(error) == (
        "The key is 1025 bytes long as UTF-8; the limit is 1024 bytes. Shorten it, or use a hash of it as the key."
    )
    assert error.details == {"length": 1025, "limit": 1024}


def test_braces_in_a_detail_are_text() -> None:
    assert "'{0}{x}'" in str(DurationError(text="{0}{x}", problem="it is not"))


def test_one_root_catches_everything_and_wrong_usage_is_told_apart() -> None:
    assert all(issubclass(error, LapseError) for error in ERRORS)
    assert issubclass(KeyTypeError, UsageError)
    assert issubclass(KeyTypeError, TypeError)
    assert issubclass(KeyTypeError, ValueError)
    assert not issubclass(OutcomeUnknownError, UsageError)


@pytest.mark.process
def test_without_docstrings_the_details_still_say_what_happened() -> None:
    program = (
        "from lapse.keys.errors import KeyTooLongError, KeyEmptyError\n"
        "assert KeyTooLongError.__doc__ is None\n"
        "print(KeyTooLongError(length=1025, limit=1024))\n"
        "print(KeyEmptyError())\n"
    )
    result = subprocess.run([sys.executable, "-OO", "-c", program], capture_output=True, text=True, check=True)

    assert result.stdout == "KeyTooLongError {'length': 1025, 'limit': 1024}\nKeyEmptyError {}\n"
