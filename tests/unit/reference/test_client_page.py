from __future__ import annotations

from inspect import iscoroutinefunction, signature
from typing import TYPE_CHECKING

import lapse.client
from lapse.client import AsyncClient
from lapse.client.nouns import RemoteNoun
from lapse.client.transport import TimeLimits
from lapse.core.errors import LapseError
from lapse.engine.verbs.operations import OPERATIONS
from tests.markdown import REFERENCE, table

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = REFERENCE / "client.md"


def test_the_page_lists_exactly_the_methods_with_their_types() -> None:
    told = {
        row["method"].strip("`"): (row["asked with"].strip("`"), row["answers"].strip("`"))
        for row in table(PAGE, "method", "asked with", "answers")
    }

    ours = {one.verb: (one.asked.__name__, one.told.__name__) for one in OPERATIONS}
    assert told == {**ours, "status": ("nothing", "StatusView")}


def test_the_page_lists_exactly_the_calls_of_the_nouns_with_what_they_answer() -> None:
    rows = table(PAGE, "call", "answers", "what it does")
    told = [(row["call"].strip("`"), row["answers"].strip("`")) for row in rows]

    client = AsyncClient("http://localhost:8750", "token")
    nouns = {name: type(noun) for name, noun in vars(client).items() if isinstance(noun, RemoteNoun)}
    assert told == [
        (f"{noun}.{name}({', '.join(list(signature(call).parameters)[1:])})", answer(call))
        for noun, kind in nouns.items()
        for name, call in vars(kind).items()
        if iscoroutinefunction(call) and not name.startswith("_")
    ]


def answer(call: Callable[..., object]) -> str:
    return str(signature(call).return_annotation).replace(" | ", " or ")


def test_the_page_lists_exactly_the_errors_of_the_client() -> None:
    told = {row["error"].strip("`") for row in table(PAGE, "error", "when")}
    ours = {name for name in lapse.client.__all__ if issubclass(getattr(lapse.client, name), LapseError)}

    assert told == ours


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    limits = TimeLimits()
    expected = (
        f"{limits.connect:g} s for a connection, {limits.read:g} s for the answer to a question, {limits.change:g} s"
    )
    assert expected in PAGE.read_text()
