"""The awaitable face of keys: the methods of `lapse.keys.store`, derived, not written again.

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
from lapse.keys.layout import Prefix
from lapse.keys.store import AppKeys, Keys
from lapse.keys.sweeper import SWEEP_SLICE
from lapse.keys.url import open_backend
from lapse.keys.validation import check_app_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from types import TracebackType

    from lapse.keys.port import Backend, SweepReport

_BOTH_COLOURS: Final = frozenset({"lock"})  # returns a context manager for `with` and `async with` alike


def _awaitable(method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    @wraps(method)
    async def call(self: AsyncAppKeys, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - stands for every signature in aio.pyi
        answer = method(self, *args, **kwargs)
        return await answer if hasattr(answer, "__await__") else answer

    return call


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
        self._keys = Keys(backend, clock=clock, sweep=sweep)
        self._clock = clock

    def app(self, app_id: int) -> AsyncAppKeys:
        """See `Keys.app`."""
        check_app_id(app_id)
        backend = self._keys.backend
        return AsyncAppKeys(
            app_id, backend.async_space(Prefix.APPLICATION_TTL, app_id), backend=backend, clock=self._clock
        )

    @property
    def backend(self) -> Backend:
        """See `Keys.backend`."""
        return self._keys.backend

    async def sweep(self, limit: int = SWEEP_SLICE) -> SweepReport:
        """See `Keys.sweep`. Runs in a thread: removing many records takes longer than a loop should stand still."""
        return await asyncio.to_thread(self._keys.sweep, limit)

    async def close(self) -> None:
        """See `Keys.close`."""
        await asyncio.to_thread(self._keys.close)

    def __await__(self) -> Generator[Any, None, AsyncKeys]:
        """Allow ``keys = await open_keys_async(url)``, as other libraries of this kind do."""
        return self._opened().__await__()

    async def _opened(self) -> AsyncKeys:
        return self

    async def __aenter__(self) -> Self:
        """Enter a block that closes the store at its end."""
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
