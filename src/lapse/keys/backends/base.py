"""Base classes of keys backends: the blocking half of a network backend, the awaitable half of an embedded one.

Network backends are written as coroutines. A driver's connections belong to the event loop that opened them, so a
backend keeps one client per loop, made at the first use on that loop; blocking callers share the process's background
loop and its client. A backend derives from `NetworkBackend`, gives `async_space`, `async_check` and `async_close`, and
gets the rest from here. Embedded backends answer at once, so `EmbeddedBackend` derives the awaitable half.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from lapse.keys.backends.background import run_blocking
from lapse.keys.port import CleanupReport, Space

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from lapse.keys.backends.layout import Prefix
    from lapse.keys.port import Capabilities

_OPERATIONS: Final = tuple(name for name in vars(Space) if not name.startswith("_"))


class BlockingSpace:
    """A space of coroutines for callers that wait by blocking: each operation runs on the background loop."""

    def __init__(self, space: Space) -> None:
        self._space = space


def _blocking(name: str) -> Callable[..., Any]:
    def call(self: BlockingSpace, *args: Any) -> Any:  # noqa: ANN401 - stands for every operation of `Space`
        answer = getattr(self._space, name)(*args)
        return run_blocking(answer) if isinstance(answer, Coroutine) else answer  # a cache may know it already

    call.__name__ = name
    return call


for _name in _OPERATIONS:
    setattr(BlockingSpace, _name, _blocking(_name))


class NetworkBackend(ABC):
    """The blocking half of a `lapse.keys.port.Backend` whose work is done by a server."""

    capabilities: Capabilities
    sweep_interval: float | None = None  # the server cleans up by itself

    @abstractmethod
    def async_space(self, prefix: Prefix, app_id: int) -> Any:  # noqa: ANN401 - a Space whose answers are coroutines
        """See `Backend`."""

    @abstractmethod
    async def async_check(self) -> None:
        """See `Backend`. Also finds a missing schema, and names the command that makes it."""

    @abstractmethod
    async def async_close(self) -> None:
        """Release the clients of the running loop; called on each loop that has one."""

    def space(self, prefix: Prefix, app_id: int) -> Any:  # noqa: ANN401 - a Space
        """See `Backend`."""
        return BlockingSpace(self.async_space(prefix, app_id))

    def check(self) -> None:
        """See `Backend`."""
        run_blocking(self.async_check())

    def close(self) -> None:
        """See `Backend`."""
        run_blocking(self.async_close())

    def sweep(self, limit: int) -> CleanupReport:
        """See `Backend`. The server removes what has expired."""
        return CleanupReport(0, more=False)

    def counts(self) -> Iterable[tuple[Prefix, int, int]]:
        """See `Backend`. Servers do not count per application without reading everything, so nothing is told."""
        return ()

    def expiring(self, until_ns: int, edges_ns: Sequence[int] = ()) -> None:
        """See `Backend`. Servers have no order by expiry that could be asked for, so none of them can tell."""
        return


class EmbeddedBackend(ABC):
    """The awaitable half of a `lapse.keys.port.Backend` whose work is done in this process."""

    @abstractmethod
    def check(self) -> None:
        """See `Backend`."""

    @abstractmethod
    def close(self) -> None:
        """See `Backend`."""

    def async_check(self) -> None:
        """See `Backend`. A look at an embedded store takes microseconds."""
        self.check()

    def async_close(self) -> Awaitable[None]:
        """See `Backend`. In a thread: closing may wait for the disk."""
        return asyncio.to_thread(self.close)
