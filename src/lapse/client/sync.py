"""The verbs of people on a running Lapse, over HTTP, for programs without an event loop.

The methods are those of `lapse.client.aio.AsyncClient` and of its nouns, derived, not written again. Each call
runs on an event loop of its own, which ends with it: in the calling thread or, where that has a loop at work (a
notebook), in another one.
The types that editors and mypy see are in ``sync.pyi``; a test holds them equal to the methods they stand for.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cache, wraps
from inspect import getmembers, iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar

from lapse.client.aio import AsyncClient
from lapse.client.nouns import RemoteNoun

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class Client(AsyncClient):
    """`AsyncClient` with methods that return when there is an answer."""

    def __init__(self, *given: Any, **named: Any) -> None:  # noqa: ANN401 - as in sync.pyi
        """See `AsyncClient`."""
        super().__init__(*given, **named)
        for name, noun in list(vars(self).items()):
            if isinstance(noun, RemoteNoun):
                setattr(self, name, _without_await(type(noun))(self._calls))


def _finished(call: Coroutine[Any, Any, T]) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(call)
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(_run, call).result()


def _run(call: Coroutine[Any, Any, T]) -> T:
    # With a factory the runner leaves the thread's own event loop, if it has one that is not at work, as it is.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(call)


def _blocking(method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: object, *asked: Any, **named: Any) -> Any:  # noqa: ANN401 - stands for every signature in sync.pyi
        return _finished(method(self, *asked, **named))

    return call


def _blocking_methods(kind: type) -> dict[str, Callable[..., Any]]:
    found = getmembers(kind, iscoroutinefunction)
    return {name: _blocking(method) for name, method in found if not name.startswith("_")}


@cache
def _without_await(noun: type[RemoteNoun]) -> type[RemoteNoun]:
    return type(noun.__name__, (noun,), _blocking_methods(noun))


for _name, _method in _blocking_methods(AsyncClient).items():
    setattr(Client, _name, _method)
