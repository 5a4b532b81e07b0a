"""Adapters between cases and the two APIs of keys: a case is written once, in blocking style, and runs on either.

A `Handle` stands for an `AppKeys`. It drives awaitable answers on an event loop in a thread of its own (as a user's
program would have one, and not the loop that backends may use inside), and notes every key it writes, so that the kit
can remove them all.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from lapse.keys.backends.layout import Prefix

if TYPE_CHECKING:
    from lapse.keys.store import AppKeys

T = TypeVar("T")
Note = Callable[[Prefix, int, str], None]

_PATIENCE_SECONDS: Final = 30.0
_WRITES: Final = frozenset({"insert_if_not_exists", "compare_and_swap", "put"})


class LoopThread:
    """An event loop that runs in a thread, for callers that block."""

    def __init__(self) -> None:
        """Start it."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lapse-conformance-loop", daemon=True)
        self._thread.start()

    def run(self, work: Awaitable[T]) -> T:
        """Wait for ``work`` on the loop; raises `TimeoutError` when it hangs."""
        return asyncio.run_coroutine_threadsafe(_wait_for(work), self._loop).result(_PATIENCE_SECONDS)

    def close(self) -> None:
        """End the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _wait_for(work: Awaitable[T]) -> T:
    return await work


class Handle:
    """One application's keys, blocking whatever the API behind it, with every written key noted."""

    def __init__(self, keys: object, note: Note, loop: LoopThread | None) -> None:
        """Stand for ``keys``, an `AppKeys` or, with a ``loop``, an `AsyncAppKeys`."""
        self._keys = keys
        self._note = note
        self._loop = loop

    @classmethod
    def on(cls, keys: object, note: Note, loop: LoopThread | None = None) -> AppKeys:
        """Return a handle as what it stands for."""
        return cast("AppKeys", cls(keys, note, loop))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - stands for every method of AppKeys
        """Pass on, note, and wait for the answer if it is pending."""
        meant = getattr(self._keys, name)
        if not callable(meant):
            return meant

        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any operation
            for prefix, key in _written(name, args):
                self._note(prefix, self.app_id, key)
            if self._loop is None or name == "lock":
                return meant(*args, **kwargs)
            return self._loop.run(meant(*args, **kwargs))

        return call


def _written(name: str, args: tuple[Any, ...]) -> list[tuple[Prefix, str]]:
    if name in _WRITES:
        return [(Prefix.APPLICATION_TTL, args[0])]
    if name == "insert_many":
        return [(Prefix.APPLICATION_TTL, item[0]) for item in args[0]]
    if name == "lock":  # its two records; see lapse.keys.lock
        return [(Prefix.LEADER_ELECTION, f"lock:{args[0]}"), (Prefix.LEADER_ELECTION, f"fence:{args[0]}")]
    return []


class Stalled:
    """A clock whose sleepers never wake: what a holder of a lock looks like while its machine stands still."""

    def __init__(self, clock: Any) -> None:  # noqa: ANN401 - any Clock
        """Tell the time of ``clock``."""
        self._clock = clock

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any operation
        """Tell the time as the clock does."""
        return getattr(self._clock, name)

    async def sleep(self, seconds: float) -> None:
        """Sleep until cancelled."""
        await asyncio.get_running_loop().create_future()
