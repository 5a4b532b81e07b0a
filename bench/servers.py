"""What does Lapse cost on a server? Ours against the plain driver that sends the same, one server at a time.

Each contender has a process of its own. For every kind of operation in every round both do the same number on the same
server, and who begins changes from round to round. A round gives a ratio; the median of the ratios is the figure, so a
busy moment of the machine spoils a few rounds and not the comparison.

A server that cannot be had, or does not start, is an outcome as well: it says why.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import lapse
from bench.contest import APP_ID, TTL_SECONDS, Contender, contenders, make_keys, make_values, median, step, wall_seconds
from lapse.core.clock import SystemClock
from lapse.keys.url import init_store
from tests.servers import ServerFailedError, ServerMissingError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from tests.servers import Server

OPERATIONS: Final = ("insert", "get", "swap")
"""In this order: what a round inserts it reads, and then swaps."""
CALLERS: Final = (1, 64)
MANY: Final = 100

Pairs = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    rounds: int
    """Many short ones are better than a few long ones."""
    operations: int
    """Of each kind and round with 64 callers; one caller does half as many."""
    warm_up: int
    """Of each kind before the first round: a server in Java compiles itself while it works."""
    many_calls: int
    """Calls of `get_many` in a round, beside twice as many of `get`."""


@dataclass(frozen=True, slots=True)
class Part:
    """One server of the benchmark: how it is started, and who works on it."""

    name: str
    start: Callable[[], AbstractContextManager[Server]]
    ours_url: Callable[[Server], str]
    raw: str
    """The contender that uses the plain driver, as ``module:class``; called with what `raw_url` gives."""
    raw_url: Callable[[Server], str]
    ours: str = "bench.servers:Lapse"


@dataclass(frozen=True, slots=True)
class Duel:
    """Ours and the plain driver's, as medians over the rounds."""

    ours: float
    raw: float
    ratio: float
    """The median of the rounds' ratios, which is not the ratio of the medians."""
    middle: tuple[float, float]
    """Between these lies the middle half of the rounds' ratios: how sure the median is."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found out on one server, or why nothing was."""

    title: str
    """Name and version."""
    missing: str = ""
    """Why there are no figures; empty when there are."""
    rates: Mapping[tuple[str, int], Duel] = field(default_factory=dict)
    """Operations per second of wall time, by operation and number of callers."""
    cpu: Mapping[int, Duel] = field(default_factory=dict)
    """Microseconds of CPU time that an operation takes in the client's process, all kinds together, by callers."""
    many: float | None = None
    """How many times as long as one get a `get_many` of 100 keys takes."""


Results = dict[str, Outcome]


def run(part: Part, plan: Plan) -> Outcome:
    """Start the server and let both contenders take turns on it."""
    try:
        with part.start() as server:
            url = part.ours_url(server)
            init_store(url, SystemClock())
            started = [
                Contender("lapse", part.ours, "lapse", url),
                Contender("driver", part.raw, "driver", part.raw_url(server)),
            ]
            with contenders(started):
                return _contest(f"{part.name} {server.version}", plan, started)
    except (ServerMissingError, ServerFailedError) as error:
        reason = str(error).splitlines()[0]
        print(f"  {part.name} is NOT measured: {reason}", flush=True)
        return Outcome(part.name, missing=reason)


def _contest(title: str, plan: Plan, started: Sequence[Contender]) -> Outcome:
    with step(f"{title}, warming the server up"):
        for contender in started:
            for kind in OPERATIONS:
                contender.ask("measure", kind, CALLERS[-1], "warm", plan.warm_up)
    rates: dict[tuple[str, int], Duel] = {}
    cpu: dict[int, Duel] = {}
    for callers in CALLERS:
        with step(f"{title}, {callers} caller{'s' * (callers > 1)}, {plan.rounds} rounds, contenders in turn"):
            measured = _rounds(plan, started, callers)
        for kind in OPERATIONS:
            rates[kind, callers] = duel(*([rate for rate, _ in measured[kind][each.name]] for each in started))
        cpu[callers] = duel(
            *([used for kind in OPERATIONS for _, used in measured[kind][each.name]] for each in started)
        )
    with step(f"{title}, {MANY} keys at once"):
        many: float = started[0].ask("many", plan)
        for contender in started:
            contender.ask("close")
    return Outcome(title, rates=rates, cpu=cpu, many=many)


def _rounds(plan: Plan, started: Sequence[Contender], callers: int) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return rate and CPU time of every round, by kind and contender."""
    measured: dict[str, dict[str, list[tuple[float, float]]]] = {
        kind: {contender.name: [] for contender in started} for kind in OPERATIONS
    }
    operations = plan.operations if callers > 1 else plan.operations // 2
    for number in range(plan.rounds):
        for kind in OPERATIONS:
            # Who begins changes: the server is busy with the one before for a moment.
            for contender in started if number % 2 else reversed(started):
                answer = contender.ask("measure", kind, callers, f"{callers}-{number}", operations)
                measured[kind][contender.name].append(answer)
    return measured


def duel(ours: Sequence[float], raw: Sequence[float]) -> Duel:
    """Compare what was measured in pairs."""
    ratios = [mine / other for mine, other in zip(ours, raw, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Duel(median(ours), median(raw), median(ratios), (low, high))


# --- the contenders --------------------------------------------------------------------------------------------------


class Bench(ABC):
    """One contender in its process."""

    def __init__(self, name: str) -> None:
        """Take a name, which keeps its keys apart from those of the other."""
        self._name = name

    def measure(self, kind: str, callers: int, label: str, operations: int) -> tuple[float, float]:
        """Return operations per second of wall time, and microseconds of CPU time per operation."""
        pairs = list(zip(make_keys(operations, f"{self._name}-{label}"), make_values(operations), strict=True))
        cpu = time.process_time()
        rate = operations / wall_seconds(self.work, kind, callers, pairs)
        return rate, (time.process_time() - cpu) / operations * 1e6

    @abstractmethod
    def work(self, kind: str, callers: int, pairs: Pairs) -> None:
        """Do one operation per pair, shared by so many callers, and check each answer."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect."""

    def expected(self, kind: str, value: str) -> object:
        """Return the right answer: insert and swap have changed something, a get finds the value."""
        return value if kind == "get" else True


class Tasks(Bench):
    """A contender whose callers are tasks of one event loop."""

    def __init__(self, name: str) -> None:
        """Make the loop."""
        super().__init__(name)
        self.loop = asyncio.new_event_loop()

    @abstractmethod
    def call(self, kind: str, key: str, value: str) -> Awaitable[object]:
        """Begin one operation."""

    def work(self, kind: str, callers: int, pairs: Pairs) -> None:
        """See `Bench`."""
        left = iter(pairs)

        async def caller() -> None:
            for key, value in left:
                assert await self.call(kind, key, value) == self.expected(kind, value), "the figures mean nothing"

        async def together() -> None:
            await asyncio.gather(*(caller() for _ in range(callers)))

        self.loop.run_until_complete(together())

    @abstractmethod
    async def disconnect(self) -> None:
        """Close what is connected."""

    def close(self) -> None:
        """See `Bench`."""
        self.loop.run_until_complete(self.disconnect())


class Lapse(Tasks):
    """The awaitable face."""

    def __init__(self, name: str, url: str) -> None:
        """Open the store."""
        super().__init__(name)
        self._store = self.loop.run_until_complete(_opened(url))
        self._keys = self._store.app(APP_ID)

    def call(self, kind: str, key: str, value: str) -> Awaitable[object]:
        """See `Tasks`."""
        answer: Awaitable[object] = call(self._keys, kind, key, value)
        return answer

    def many(self, plan: Plan) -> float:
        """Return how many times as long as one get a `get_many` of 100 keys takes: the median of the rounds."""
        keys = make_keys(MANY, "many")

        async def one() -> None:
            for _ in range(plan.many_calls):
                await self._keys.ttl_get(keys[0])
                await self._keys.ttl_get(keys[-1])

        async def all_at_once() -> None:
            for _ in range(plan.many_calls):
                assert len(await self._keys.get_many(keys)) == MANY

        run = self.loop.run_until_complete
        run(self._keys.insert_many([(key, "device:0000000000001", TTL_SECONDS) for key in keys]))
        return median([2 * wall_seconds(run, all_at_once()) / wall_seconds(run, one()) for _ in range(plan.rounds)])

    async def disconnect(self) -> None:
        """See `Tasks`."""
        await self._store.close()


async def _opened(url: str) -> Any:  # noqa: ANN401 - AsyncKeys
    return await lapse.open_keys_async(url)


def call(keys: Any, kind: str, key: str, value: str) -> Any:  # noqa: ANN401 - either face of keys, and its answer
    """Begin one operation of Lapse."""
    if kind == "get":
        return keys.ttl_get(key)
    if kind == "insert":
        return keys.insert_if_not_exists(key, value, TTL_SECONDS)
    return keys.compare_and_swap(key, value, value, TTL_SECONDS)
