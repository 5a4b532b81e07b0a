from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.client import AsyncClient, nouns, sync
from lapse.client.calls import ApiCalls
from lapse.client.nouns import RemoteNoun
from lapse.client.transport import ServerAnswer
from lapse.engine.verbs.contract import (
    ForecastRequest,
    JournalRequest,
    PlanRequest,
    ProposedRequest,
    Verbs,
    WhyRequest,
)
from lapse.engine.verbs.operations import FORECAST, JOURNAL, OPERATIONS, PLAN, PROPOSED, WHY
from lapse.engine.view import ViewPage

if TYPE_CHECKING:
    from lapse.engine.verbs.operations import VerbOperation

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def sent(operation: VerbOperation[Any, Any], asked: Any) -> Any:  # noqa: ANN401 - of any operation
    """Write a request, and read it as a server does."""
    target, body = operation.write(asked)
    parts = urlsplit(f"http://host{target}")
    before = operation.path.partition("{")[0]
    in_path = None if operation.in_path is None else parts.path.partition(before)[2]
    if operation is not WHY and in_path is not None:
        in_path = unquote(in_path)
    query = parse_qsl(parts.query, keep_blank_values=True)
    return operation.read(in_path=in_path, query=query, body=body or b"")


@given(TEXT, st.lists(TEXT), st.none() | TEXT)
def test_a_plan_is_asked_for_as_it_was_meant(within: str, domains: list[str], policy: str | None) -> None:
    asked = PlanRequest(within=within, domains=domains, policy=policy)
    assert sent(PLAN, asked) == asked


@given(TEXT, st.lists(TEXT), st.integers(1, 366), st.integers(0, 1000), st.none() | TEXT)
def test_a_forecast_is_asked_for_as_it_was_meant(
    within: str, domains: list[str], steps: int, limit: int, after: str | None
) -> None:
    asked = ForecastRequest(within=within, domains=domains, steps=steps, limit=limit, after=after)
    assert sent(FORECAST, asked) == asked


@given(st.integers(1, 1000), st.none() | TEXT, st.none() | TEXT)
def test_the_journal_is_asked_for_as_it_was_meant(limit: int, since: str | None, address: str | None) -> None:
    asked = JournalRequest(limit=limit, since=since, address=address)
    assert sent(JOURNAL, asked) == asked


@given(st.text("abcXYZ019-_.~:@+=,/%", max_size=20), st.none() | TEXT)
def test_an_address_of_the_grammar_is_sent_as_it_is(address: str, at: str | None) -> None:
    asked = WhyRequest(address=address, at=at)
    assert sent(WHY, asked) == asked


@given(TEXT)
def test_an_id_is_sent_as_one_segment_of_the_path(plan: str) -> None:
    asked = ProposedRequest(id=plan)
    assert sent(PROPOSED, asked) == asked
    assert PROPOSED.write(asked)[0].count("/") == PROPOSED.path.count("/")
    assert PROPOSED.query == {}


def test_every_verb_is_an_operation_with_the_types_of_the_verb() -> None:
    verbs = {name for name, _ in inspect.getmembers(Verbs, inspect.isfunction) if not name.startswith("_")}
    assert {one.verb for one in OPERATIONS} == verbs
    assert len({(one.method, one.path) for one in OPERATIONS}) == len(OPERATIONS)
    for one in OPERATIONS:
        given_type = inspect.signature(getattr(Verbs, one.verb)).parameters.get("asked")
        assert given_type is None or given_type.annotation == one.asked.__name__


def methods(path: Path, name: str) -> dict[str, str]:
    """Return the signatures of a class's public methods, as they are written."""
    tree = ast.parse(path.read_text())
    (found,) = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name]
    functions = [one for one in found.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        one.name: f"{ast.unparse(one.args)} -> {answer_without_await(one.returns)}"
        for one in functions
        if not one.name.startswith("_")
    }


def answer_without_await(answered: ast.expr | None) -> str:
    """Return the type of an answer; that of a generator as of one without await."""
    text = ast.unparse(answered) if answered else ""
    found = re.fullmatch(r"AsyncGenerator\[(.*), None\]", text)
    return text if found is None else f"Generator[{found[1]}]"


NOUNS = {kind.__name__: kind for kind in RemoteNoun.__subclasses__()}


def test_the_stub_has_the_methods_that_it_stands_for() -> None:
    stub = Path(inspect.getfile(sync)).with_suffix(".pyi")

    assert methods(stub, "Client") == methods(Path(inspect.getfile(AsyncClient)), "AsyncClient")
    for name in NOUNS:
        assert methods(stub, f"_{name}") == methods(Path(inspect.getfile(nouns)), name)


@pytest.mark.parametrize("name", [one.verb for one in OPERATIONS])
def test_every_verb_of_the_client_without_await_returns_at_once(name: str) -> None:
    assert not inspect.iscoroutinefunction(getattr(sync.Client, name))


def test_the_client_without_await_has_every_noun_without_await() -> None:
    awaited: Any = AsyncClient("http://localhost:8750", "token")
    client: Any = sync.Client("http://localhost:8750", "token")

    found = {name: noun for name, noun in vars(client).items() if isinstance(noun, RemoteNoun)}
    assert {type(noun).__name__ for noun in found.values()} == set(NOUNS)
    for name, noun in found.items():
        own = inspect.getmembers(type(getattr(awaited, name)), inspect.iscoroutinefunction)
        for method, _ in own:
            assert method.startswith("_") or not inspect.iscoroutinefunction(getattr(noun, method))


def test_a_noun_without_await_returns_the_answer() -> None:
    class Canned:
        async def call(self, *_: object) -> ServerAnswer:
            return ServerAnswer(200, b'{"items": [], "next": "b"}')

    client = sync.Client("http://localhost:8750", "token")
    canned: Any = ApiCalls(Canned())  # type: ignore[arg-type]
    client.keys._awaited._calls = canned  # type: ignore[attr-defined]
    assert client.keys.list(7) == ViewPage([], "b")
