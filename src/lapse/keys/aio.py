"""The awaitable API of keys: the methods of `lapse.keys.store`, derived, not written again.

Each method of `AppKeys` validates and returns its space's answer. Here the same function is wrapped: when the answer is
pending (a ticket of a shared commit, a coroutine of a network driver) it is awaited, otherwise it is passed on. The
types that editors and mypy see are in ``aio.pyi``; a test holds them equal to the methods they stand for.
"""

from __future__ import annotations

import asyncio
from functools import wraps
from inspect import getmembers, isfunction
from typing import TYPE_CHECKING, Any, Final, Self

from lapse.core.clock import Clock, SystemClock
from lapse.keys.backends.layout import Prefix
from lapse.keys.store import AppKeys
from lapse.keys.sweeper import SWEEP_SLICE, Sweeper
from lapse.keys.url import open_backend
from lapse.keys.validation import check_app_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from types import TracebackType

    from lapse.keys.port import Backend, CleanupReport

_BOTH_COLOURS: Final = frozenset({"lock"})  # returns a context manager for `with` and `async with` alike


def _awaitable(method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    @wraps(method)
    async def call(self: AsyncAppKeys, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - stands for every signature in aio.pyi
        answer = method(self, *args, **kwargs)
        return await answer if hasattr(answer, "__await__") else answer

    return call


async def _settle(answer: Any) -> Any:  # noqa: ANN401 - whatever it is, pending or not
    """Return an answer, waiting for it if it is pending."""
    return await answer if hasattr(answer, "__await__") else answer


class AsyncAppKeys(AppKeys):
    """`AppKeys` with awaitable methods."""

    __slots__ = ()


for _name, _method in getmembers(AppKeys, isfunction):
    if not _name.startswith("_") and _name not in _BOTH_COLOURS:
        setattr(AsyncAppKeys, _name, _awaitable(_method))


class AsyncKeys:
    """`Keys` with awaitable methods. Use it with ``async with``, or await it and call `close`."""

    def __init__(self, backend: Backend, *, clock: Clock, sweep: bool) -> None:
        """See `Keys`."""
        self._backend = backend
        self._clock = clock
        self._sweeper = Sweeper.start(backend) if sweep else None

    def app(self, app_id: int) -> AsyncAppKeys:
        """See `Keys.app`."""
        check_app_id(app_id)
        space = self._backend.async_space(Prefix.APPLICATION_TTL, app_id)
        return AsyncAppKeys(app_id, space, backend=self._backend, clock=self._clock)

    @property
    def backend(self) -> Backend:
        """See `Keys.backend`."""
        return self._backend

    async def sweep(self, limit: int = SWEEP_SLICE) -> CleanupReport:
        """See `Keys.sweep`. Runs in a thread: removing many records takes longer than a loop should stand still."""
        return await asyncio.to_thread(self._backend.sweep, limit)

    async def close(self) -> None:
        """See `Keys.close`."""
        if self._sweeper is not None:
            await asyncio.to_thread(self._sweeper.stop)
            self._sweeper = None
        await _settle(self._backend.async_close())

    def __await__(self) -> Generator[Any, None, AsyncKeys]:
        """Allow ``keys = await open_keys_async(url)``, as other libraries of this kind do."""
        return self._opened().__await__()

    async def _opened(self) -> AsyncKeys:
        try:
            await _settle(self._backend.async_check())
        except BaseException:
            await self.close()
            raise
        return self

    async def __aenter__(self) -> Self:
        """Check that the store can be used, and enter a block that closes it at its end."""
        await self._opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the store."""
        await self.close()


def open_keys_async(url: str, *, clock: Clock | None = None, sweep: bool = True) -> AsyncKeys:
    """Open a keys store by URL for use on an event loop; see `lapse.keys.store.open_keys`."""
    clock = clock or SystemClock()
    return AsyncKeys(open_backend(url, clock), clock=clock, sweep=sweep)
