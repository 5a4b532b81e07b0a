"""Keys URLs: which backend, and how it is opened. How a URL is taken apart stands in `lapse.db.urls`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from lapse.db.urls import missing_driver, take_apart
from lapse.keys.errors import KeysURLError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lapse.core.clock import Clock
    from lapse.db.urls import Option, StoreURL
    from lapse.keys.port import Backend

BACKENDS: Final[Mapping[str, str]] = {
    "memory": "lapse.keys.backends.memory",
    "file": "lapse.keys.backends.file",
    "redis": "lapse.keys.backends.redis",
    "rediss": "lapse.keys.backends.redis",
    "cassandra": "lapse.keys.backends.cassandra",
    "dynamodb": "lapse.keys.backends.dynamodb",
}
"""Scheme to module. A module is imported only when its scheme is used, so that drivers stay optional. It provides
``OPTIONS``, ``open_backend(url, clock)`` and ``init_store(url, clock)``, which says in a sentence what it made."""


def parse_url(text: str) -> StoreURL:
    """Take a URL apart and check scheme and options; imports the backend's module, opens nothing."""
    return take_apart(text, schemes=BACKENDS, options_of=_options_of, refusal=KeysURLError)


def open_backend(text: str, clock: Clock) -> Backend:
    """Open the backend that a URL names."""
    url = parse_url(text)
    backend: Backend = _module(url.scheme).open_backend(url, clock)
    if not url.options.get("cache"):
        return backend
    return _cached(backend, url, clock)


def _cached(backend: Any, url: StoreURL, clock: Clock) -> Backend:  # noqa: ANN401 - a NetworkBackend: only those have the option
    from lapse.keys.backends.cache import CachedBackend

    return CachedBackend(backend, size=url.options["cache"], max_age=url.options["cache_max_age"], clock=clock)


def init_store(text: str, clock: Clock) -> str:
    """Make what the backend of a URL needs before it is opened (a schema, a table), and say what was made."""
    url = parse_url(text)
    said: str = _module(url.scheme).init_store(url, clock)
    return said


def _options_of(scheme: str) -> Mapping[str, Option]:
    options: Mapping[str, Option] = _module(scheme).OPTIONS
    return options


def _module(scheme: str) -> Any:  # noqa: ANN401 - a module with the names that `BACKENDS` lists
    try:
        return import_module(BACKENDS[scheme])
    except ModuleNotFoundError as error:
        problem = missing_driver(error, BACKENDS[scheme].rpartition(".")[2])
        raise KeysURLError(url=f"{scheme}://...", problem=problem) from error
