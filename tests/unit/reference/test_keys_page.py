from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from lapse.cli.commands.keys import _promised as promised
from lapse.core.clock import VirtualClock
from lapse.core.errors import LapseError
from lapse.keys import errors
from lapse.keys.backends.layout import Prefix
from lapse.keys.store import AppKeys, Keys
from lapse.keys.url import BACKENDS, open_backend, parse_url
from tests.markdown import REFERENCE, code, table, tables

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAGE = REFERENCE / "keys.md"
PLACES = {"memory": "memory://", "file": "file:///x/keys.db"}


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")} - {"app_id"}


def without_types(method: Callable[..., object]) -> str:
    """Print a signature as a caller thinks of it."""
    _, *parameters = inspect.signature(method).parameters.values()
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return str(inspect.Signature(plain)).replace("'", '"')


def test_the_page_lists_exactly_the_methods_with_their_arguments() -> None:
    told = {code(row["method"])[0] for row in table(PAGE, "method", "answer", "atomicity and limits")}

    assert told == {name + without_types(getattr(AppKeys, name)) for name in public(AppKeys)}


def test_the_page_lists_exactly_what_an_opened_store_can_do() -> None:
    told = {code(row["on `Keys` and `AsyncKeys`"])[0] for row in table(PAGE, "on `Keys` and `AsyncKeys`", "does")}

    assert {text.partition("(")[0] for text in told} == public(Keys)


def test_the_page_lists_exactly_the_errors() -> None:
    validation = {row["error"].strip("`") for row in table(PAGE, "error", "when")}
    others = {row["error"].strip("`") for row in table(PAGE, "error", "means", "was the write applied?")}
    kinds = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, LapseError) and kind.__module__ == errors.__name__
    }

    assert validation == {
        name
        for name, kind in kinds.items()
        if issubclass(kind, errors.TTLValidationError) and kind is not errors.TTLValidationError
    }
    assert others == {name for name, kind in kinds.items() if not issubclass(kind, errors.TTLValidationError)}


def test_the_page_lists_exactly_the_prefixes() -> None:
    assert [int(row["prefix"]) for row in table(PAGE, "prefix", "owner")] == sorted(Prefix)


@pytest.mark.parametrize("scheme", PLACES)
def test_the_page_lists_exactly_the_options_with_their_defaults(scheme: str) -> None:
    told = {
        row["option"].strip("`"): row["default"]
        for row in table(PAGE, "option", "of", "default", "meaning")
        if row["of"] == scheme
    }
    options = import_module(BACKENDS[scheme]).OPTIONS

    assert told == {name: str(option.default) for name, option in options.items()}
    assert dict(parse_url(PLACES[scheme]).options) == {name: option.default for name, option in options.items()}


@pytest.mark.parametrize(
    "scheme",
    ["memory", "file", *(pytest.param(name, marks=pytest.mark.driver) for name in ("redis", "cassandra", "dynamodb"))],
)
def test_the_capability_table_is_what_the_kit_prints(scheme: str, tmp_path: Path) -> None:
    urls = {
        "file": f"file://{tmp_path}/keys.db",
        "redis": "redis://h",
        "cassandra": "cassandra://h/keyspace",
        "dynamodb": "dynamodb://eu-west-1/keys",
    }
    backend = open_backend(urls.get(scheme, "memory://"), VirtualClock())  # no server is asked before the first use
    backend.close()
    told = next(rows for rows in tables(PAGE.read_text()) if "capability" in rows[0])

    assert [(row["capability"], row[scheme]) for row in told] == [
        (name.replace("_", " "), text) for name, text in promised(backend.capabilities)
    ]


def test_every_scheme_is_on_the_page() -> None:
    assert [scheme for scheme in BACKENDS if f"`{scheme}://" not in PAGE.read_text()] == []
