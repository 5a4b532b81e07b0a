"""The verbs of people on a running Lapse, over HTTP, for programs without an event loop.

The methods are those of `lapse.client.aio.AsyncClient`, derived, not written again. Each call runs on an event loop of
its own, which ends with it: in the calling thread or, where that has a loop at work (a notebook), in another one.
The types that editors and mypy see are in ``sync.pyi``; a test holds them equal to the methods they stand for.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from inspect import getmembers, iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar

from lapse.client.aio import AsyncClient

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class Client(AsyncClient):
    """`AsyncClient` with methods that return when there is an answer."""


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
    def call(self: Client, *asked: Any, **named: Any) -> Any:  # noqa: ANN401 - stands for every signature in sync.pyi
        return _finished(method(self, *asked, **named))

    return call


for _name, _method in getmembers(AsyncClient, iscoroutinefunction):
    if not _name.startswith("_"):
        setattr(Client, _name, _blocking(_method))
