"""The types that editors see for the awaitable face are those of the methods it is derived from."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import lapse.keys.aio
import lapse.keys.store
from lapse.keys.aio import AsyncAppKeys, AsyncKeys, open_keys_async
from lapse.keys.store import AppKeys, Keys, open_keys

Function = ast.FunctionDef | ast.AsyncFunctionDef

STUB = ast.parse(Path(lapse.keys.aio.__file__).with_suffix(".pyi").read_text())
STORE = ast.parse(Path(lapse.keys.store.__file__).read_text())


def functions(tree: ast.Module, class_name: str) -> dict[str, Function]:
    [found] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name]
    return {node.name: node for node in found.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


STUBS, METHODS = functions(STUB, "AsyncAppKeys"), functions(STORE, "AppKeys")
PUBLIC = sorted(name for name in METHODS if not name.startswith("_"))


def test_the_stub_lists_the_same_methods() -> None:
    assert sorted(name for name in STUBS if not name.startswith("_")) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_a_method_takes_and_returns_the_same_in_both_faces(name: str) -> None:
    stub, method = STUBS[name], METHODS[name]

    assert ast.unparse(stub.args) == ast.unparse(method.args)
    assert stub.returns is not None
    assert method.returns is not None
    assert ast.unparse(stub.returns) == ast.unparse(method.returns)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_method_is_awaitable_at_run_time_exactly_when_the_stub_says_so(name: str) -> None:
    derived = getattr(AsyncAppKeys, name)

    assert inspect.iscoroutinefunction(derived) == isinstance(STUBS[name], ast.AsyncFunctionDef)
    assert inspect.iscoroutinefunction(derived) == (name != "lock")  # a context manager of both colours


@pytest.mark.parametrize("name", PUBLIC)
def test_a_derived_method_keeps_name_docstring_and_signature(name: str) -> None:
    derived, method = getattr(AsyncAppKeys, name), getattr(AppKeys, name)

    assert derived.__name__ == name
    assert derived.__doc__ == method.__doc__
    assert inspect.signature(derived) == inspect.signature(method)


def test_an_opened_store_has_the_same_public_names_in_both_colours() -> None:
    assert {name for name in vars(AsyncKeys) if not name.startswith("_")} == {
        name for name in vars(Keys) if not name.startswith("_")
    }
    assert {name for name in functions(STUB, "AsyncKeys") if not name.startswith("_")} == {
        name for name in vars(Keys) if not name.startswith("_")
    }


def test_both_colours_are_opened_with_the_same_arguments() -> None:
    assert inspect.signature(open_keys_async).parameters == inspect.signature(open_keys).parameters
