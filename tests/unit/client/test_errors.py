from __future__ import annotations

import pickle
from typing import Any

import pytest

from lapse.client.errors import AnsweredProblem, RemoteError, read_problem, remote_error
from lapse.core.address import AddressError
from lapse.core.errors import LapseError, UsageError
from lapse.engine.service import NothingThereError


def problem(code: str, status: int, detail: str = "No.", **fields: Any) -> AnsweredProblem:  # noqa: ANN401 - of a document
    return AnsweredProblem(detail=detail, code=code, status=status, **fields)


def test_an_error_that_is_known_here_is_the_same_here() -> None:
    error = remote_error(problem("NothingThereError", 404, "There is no workspace/lab."))

    assert isinstance(error, NothingThereError)
    assert isinstance(error, RemoteError)
    assert (error.code, error.status, error.exit_code) == ("NothingThereError", 404, 1)
    assert str(error) == "There is no workspace/lab."


def test_an_error_of_several_kinds_is_of_all_of_them_here() -> None:
    error = remote_error(problem("AddressError", 422))

    assert isinstance(error, AddressError)
    assert isinstance(error, ValueError)
    assert error.exit_code == 64


@pytest.mark.parametrize(("status", "exit_code"), [(400, 64), (422, 64), (404, 1), (500, 1), (403, 1)])
def test_an_error_of_a_newer_server_has_its_code_and_an_exit_code(status: int, exit_code: int) -> None:
    error = remote_error(problem("SomethingNewError", status))

    assert (error.code, error.status, error.exit_code) == ("SomethingNewError", status, exit_code)
    assert isinstance(error, UsageError) is (exit_code == 64)
    assert RemoteError.code == "RemoteError"
    assert LapseError.status == 500


def test_a_request_of_another_form_says_where_it_is_wrong() -> None:
    where = [{"where": "body.until", "problem": "Expected `str`, got `int`"}]
    error = remote_error(problem("InvalidRequestError", 422, "See errors.", errors=where))

    assert str(error) == "See errors. body.until: Expected `str`, got `int`"


def test_a_message_cannot_command_a_terminal_or_flood_it() -> None:
    error = remote_error(problem("X", 500, "\x1b[2Jgone" + "x" * 10_000))

    assert str(error).startswith(" [2Jgone")
    assert len(str(error)) == 2000


@pytest.mark.parametrize("code", ["NothingThereError", "SomethingNewError"])
def test_an_error_survives_pickling(code: str) -> None:
    error = remote_error(problem(code, 404))
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - of our own making

    assert (str(again), again.code, again.status) == (str(error), error.code, error.status)


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b'{"detail": 1}', b"\xff"])
def test_what_is_no_problem_document_is_none(content: bytes) -> None:
    assert read_problem(content) is None
