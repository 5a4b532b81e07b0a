"""Concurrent writers: what do 64 of them gain from sharing a commit, when every answer must survive power loss.

Four ways to insert keys into a file at ``sync=full``: one thread, 64 threads, one task of an event loop, 64 of them.
They take turns in one process, on one file.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.contest import APP_ID, TTL_SECONDS, Contender, contenders, make_keys, median, step, wall_seconds

if TYPE_CHECKING:
    from pathlib import Path

WAYS: Final = ("one thread", "64 threads", "one task", "64 tasks")
_WRITERS: Final = 64
_VALUE: Final = "device:0000000000001"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    rounds: int = 5
    alone: int = 1_000
    """Inserts of a lone writer."""
    each: int = 150
    """Inserts of each of the 64."""


QUICK: Final = Plan(rounds=2, alone=100, each=5)

Results = dict[str, float]


def run(plan: Plan, folder: Path) -> Results:
    """Measure the ways in turn; return inserts per second of wall time."""
    rounds: dict[str, list[float]] = {way: [] for way in WAYS}
    with contenders([Contender("lapse full", "bench.writers:Bench", str(folder / "writers.db"))]) as (contender,):
        for number in range(plan.rounds):
            with step(f"concurrent writers, round {number + 1} of {plan.rounds}"):
                for way in WAYS:
                    rounds[way].append(contender.ask("rate", way, number, plan))
    return {way: median(rates) for way, rates in rounds.items()}


class Bench:
    """One store, opened once in each colour."""

    def __init__(self, path: str) -> None:
        """Open it twice: the second opening belongs to an event loop."""
        import lapse

        self._loop = asyncio.new_event_loop()
        self._keys = lapse.open_keys(f"file://{path}?sync=full").app(APP_ID)
        self._async_keys = lapse.open_keys_async(f"file://{path}?sync=full").app(APP_ID)

    def rate(self, way: str, number: int, plan: Plan) -> float:
        """Insert new keys in one of the `WAYS`."""
        count, colour = way.split(" ", 1)
        writers = _WRITERS if count == "64" else 1
        keys = make_keys(plan.each * writers if writers > 1 else plan.alone, f"{way}:{number}")
        shares = [keys[start::writers] for start in range(writers)]
        work = self._threads if "thread" in colour else self._tasks
        return len(keys) / wall_seconds(work, shares)

    def _threads(self, shares: list[list[str]]) -> None:
        answers: list[bool] = []

        def write(keys: list[str]) -> None:
            answers.append(all([self._keys.insert_if_not_exists(key, _VALUE, TTL_SECONDS) for key in keys]))  # noqa: C419 - all of them

        threads = [threading.Thread(target=write, args=(keys,)) for keys in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [True] * len(shares)

    def _tasks(self, shares: list[list[str]]) -> None:
        async def write(keys: list[str]) -> bool:
            answers: list[Any] = [await self._async_keys.insert_if_not_exists(key, _VALUE, TTL_SECONDS) for key in keys]
            return all(answers)

        async def together() -> list[bool]:
            return await asyncio.gather(*map(write, shares))

        assert all(self._loop.run_until_complete(together()))
