"""The verbs of people on a running Lapse, over HTTP, for programs without an event loop.

The methods are those of `lapse.client.aio.AsyncClient` and of its nouns, derived, not written again. Each call
runs on an event loop of its own, which ends with it: in the calling thread or, where that has a loop at work (a
notebook), in another one. What goes on without an end is a plain iterator, with a thread that ends with it.
The types that editors and mypy see are in ``sync.pyi``; a test holds them equal to the methods they stand for.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cache, wraps
from inspect import getmembers, isasyncgenfunction, iscoroutinefunction
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from lapse.client.aio import AsyncClient
from lapse.client.nouns import RemoteNoun

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator

T = TypeVar("T")


class Client(AsyncClient):
    """`AsyncClient` with methods that return when there is an answer."""

    def __init__(self, *given: Any, **named: Any) -> None:  # noqa: ANN401 - as in sync.pyi
        """See `AsyncClient`."""
        super().__init__(*given, **named)
        for name, noun in list(vars(self).items()):
            if isinstance(noun, RemoteNoun):
                setattr(self, name, _without_await(type(noun))(noun))


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
        # Of a noun it is the awaited one that works: its methods await each other.
        return _finished(method(getattr(self, "_awaited", self), *asked, **named))

    return call


def _iterating(method: Callable[..., AsyncGenerator[T, None]]) -> Callable[..., Generator[T, None, None]]:
    @wraps(method)
    def call(self: object, *asked: Any, **named: Any) -> Generator[T, None, None]:  # noqa: ANN401 - as above
        found = method(self, *asked, **named)
        # One loop for all steps, because a connection belongs to its loop; in a thread, so that it works in a notebook.
        loop = asyncio.new_event_loop()
        thread = Thread(target=loop.run_forever, name="lapse-client", daemon=True)
        thread.start()
        try:
            while (step := asyncio.run_coroutine_threadsafe(_next(found), loop).result()) is not None:
                yield step
        finally:
            asyncio.run_coroutine_threadsafe(_end(found), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    return call


async def _next(found: AsyncGenerator[T, None]) -> T | None:
    return await anext(found, None)


async def _end(found: AsyncGenerator[Any, None]) -> None:
    """Give up the step at hand, if one was interrupted, and let the generator close what it has opened."""
    steps = asyncio.all_tasks() - {asyncio.current_task()}
    for step in steps:
        step.cancel()
    await asyncio.gather(*steps, return_exceptions=True)
    await found.aclose()


def _blocking_methods(kind: type) -> dict[str, Callable[..., Any]]:
    methods = [one for one in getmembers(kind) if not one[0].startswith("_")]
    return {
        **{name: _blocking(method) for name, method in methods if iscoroutinefunction(method)},
        **{name: _iterating(method) for name, method in methods if isasyncgenfunction(method)},
    }


@cache
def _without_await(noun: type[RemoteNoun]) -> type[RemoteNoun]:
    def begin(self: Any, awaited: RemoteNoun) -> None:  # noqa: ANN401 - of the class that is made here
        self._awaited = awaited

    return type(noun.__name__, (noun,), {"__init__": begin, **_blocking_methods(noun)})


for _name, _method in _blocking_methods(AsyncClient).items():
    setattr(Client, _name, _method)
