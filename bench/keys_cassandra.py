"""What does Lapse cost on Cassandra? Ours, and the bare driver sending the same statements to the same server.

One caller waits for each answer: the blocking face beside ``session.execute``. Then 64 callers at a time: 64 tasks on
an event loop beside 64 requests that the driver keeps in flight by callbacks, the quickest way it has. Both contenders
work in 64 buckets, because transactions on one partition wait for each other, whoever sends them.
"""

# ruff: noqa: D102 - contenders have their methods in common; the class says what is special about each

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.contest import APP_ID, TTL_SECONDS, Contender, contenders, make_keys, make_values, median, step, wall_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

NAMES: Final = ("lapse", "driver")
OPERATIONS: Final = ("insert", "get", "swap")
BUCKETS: Final = 64
CALLERS: Final = (1, 64)
PATIENT: Final = {f"{kind}_timeout": "30s" for kind in ("cas_contention", "write_request", "read_request")}
"""On a busy machine the server shall be slow, not give up: figures with errors in them mean nothing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    warm_up: int = 3_000
    rounds: int = 21
    """Many short ones: a busy moment of the machine then spoils a few pairs, not the comparison."""
    operations: int = 256
    """Of each kind and round with 64 callers; one caller does half as many."""


QUICK: Final = Plan(warm_up=500, rounds=3, operations=128)

Rates = dict[str, float]
Results = dict[int, dict[str, Rates]]


def run(plan: Plan) -> Results:
    """Start a server and let the contenders take turns on it."""
    from lapse.core.clock import SystemClock
    from lapse.keys.backends.cassandra import init_store
    from lapse.keys.url import parse_url
    from tests.servers import cassandra_server

    with cassandra_server(config=PATIENT) as server:
        url = f"{server.keys_url()}?buckets={BUCKETS}&timeout=60s"
        init_store(parse_url(url), SystemClock())
        with contenders([Contender(name, "bench.keys_cassandra:Bench", name, url) for name in NAMES]) as started:
            with step("cassandra, warming the server up"):
                for contender in started:
                    contender.ask("round", -1, CALLERS[1], plan.warm_up)
            return {callers: _rounds(plan, started, callers) for callers in CALLERS}


def _rounds(plan: Plan, started: Sequence[Contender], callers: int) -> dict[str, Rates]:
    operations = plan.operations if callers > 1 else plan.operations // 2
    rounds: dict[str, list[Rates]] = {name: [] for name in NAMES}
    with step(f"cassandra, {callers} callers, {plan.rounds} rounds, contenders in turn"):
        for number in range(plan.rounds):
            # Who begins changes: the server is busy with the one before for a moment.
            for contender in started if number % 2 else reversed(started):
                rounds[contender.name].append(contender.ask("round", number, callers, operations))
    for ours, raw in zip(*(rounds[name] for name in NAMES), strict=True):
        ours.update({f"{kind} ratio": ours[kind] / raw[kind] for kind in OPERATIONS})
    return {name: {kind: median([rates[kind] for rates in rounds[name]]) for kind in rounds[name][0]} for name in NAMES}


class Bench:
    """One contender in its process."""

    def __init__(self, name: str, url: str) -> None:
        """Connect."""
        self._name = name
        self._store: Any = _CONTENDERS[name](url)

    def round(self, number: int, callers: int, operations: int) -> Rates:
        """Insert, read and swap; return operations per second of wall time."""
        keys = make_keys(operations, f"{self._name}{callers}-{number}-{time.time_ns()}")
        pairs = list(zip(keys, make_values(operations), strict=True))
        work = self._store.one if callers == 1 else self._store.many
        cpu = time.process_time()
        rates = {kind: operations / wall_seconds(work, kind, pairs) for kind in OPERATIONS}
        rates["cpu us"] = (time.process_time() - cpu) / operations / len(OPERATIONS) * 1e6
        return rates


# --- the contenders --------------------------------------------------------------------------------------------------

Pairs = list[tuple[str, str]]


class Lapse:
    """The blocking face for one caller, the awaitable one for many."""

    def __init__(self, url: str) -> None:
        import lapse

        self._blocking = lapse.open_keys(url).app(APP_ID)
        self._loop = asyncio.new_event_loop()
        self._awaited = self._loop.run_until_complete(_opened(lapse.open_keys_async(url))).app(APP_ID)

    def one(self, kind: str, pairs: Pairs) -> None:
        for pair in pairs:
            _check(kind, pair, self._call(self._blocking, kind, *pair))

    def many(self, kind: str, pairs: Pairs) -> None:
        self._loop.run_until_complete(self._many(kind, iter(pairs)))

    async def _many(self, kind: str, pairs: Iterable[tuple[str, str]]) -> None:
        async def caller() -> None:
            for pair in pairs:
                _check(kind, pair, await self._call(self._awaited, kind, *pair))

        await asyncio.gather(*(caller() for _ in range(CALLERS[1])))

    @staticmethod
    def _call(keys: Any, kind: str, key: str, value: str) -> Any:  # noqa: ANN401 - either face
        if kind == "get":
            return keys.ttl_get(key)
        if kind == "insert":
            return keys.insert_if_not_exists(key, value, TTL_SECONDS)
        return keys.compare_and_swap(key, value, value, TTL_SECONDS)


async def _opened(keys: Any) -> Any:  # noqa: ANN401 - AsyncKeys
    return await keys


def _check(kind: str, pair: tuple[str, str], answer: object) -> None:
    assert answer == (pair[1] if kind == "get" else True), "the figures mean nothing"


class Driver:
    """The same statements with the same consistency, and nothing else: no validation, no judgement of expiry."""

    def __init__(self, url: str) -> None:
        from lapse.core.clock import SystemClock
        from lapse.keys.backends.cassandra import open_backend
        from lapse.keys.layout import Prefix, partition_keys
        from lapse.keys.url import parse_url

        # Prepared by our own connection, so that consistency and policies are the same; then the driver is alone.
        opened = open_backend(parse_url(url), SystemClock()).connection.open()
        self._session, self._prepared = opened.session, opened.prepared
        self._partitions = partition_keys(Prefix.APPLICATION_TTL, APP_ID, BUCKETS)

    def one(self, kind: str, pairs: Pairs) -> None:
        statement = self._prepared[_STATEMENTS[kind]]
        for pair in pairs:
            _check(kind, pair, self._session.execute(statement, self._values(kind, *pair)).one()[0])

    def many(self, kind: str, pairs: Pairs) -> None:
        statement, send = self._prepared[_STATEMENTS[kind]], self._session.execute_async
        room = threading.Semaphore(CALLERS[1])
        failures: list[object] = []

        def done(rows: Any, pair: tuple[str, str]) -> None:  # noqa: ANN401 - the driver has no types
            if rows[0][0] != (pair[1] if kind == "get" else True):
                failures.append(rows)
            room.release()

        def failed(error: Exception) -> None:
            failures.append(error)
            room.release()

        for pair in pairs:
            room.acquire()
            send(statement, self._values(kind, *pair)).add_callbacks(done, failed, callback_args=(pair,))
        for _ in range(CALLERS[1]):
            room.acquire()
        assert not failures, failures[:3]

    def _values(self, kind: str, key: str, value: str) -> tuple[object, ...]:
        from lapse.keys.layout import bucket_of

        place = (self._partitions[bucket_of(key, BUCKETS)], key.encode())
        if kind == "get":
            return place
        now_ms = time.time_ns() // 1_000_000
        written = (TTL_SECONDS + 1, value, now_ms + TTL_SECONDS * 1000, *place)
        return (*written, None) if kind == "insert" else (*written, value, now_ms)


_STATEMENTS: Final = {"get": "find", "insert": "insert", "swap": "swap"}
_CONTENDERS: Final[dict[str, Callable[[str], Any]]] = {"lapse": Lapse, "driver": Driver}


def figures(results: Results) -> str:
    """Return the figures as a table: the median rates, and the median of the ratios of all pairs of rounds."""
    lines = ["| callers | operation | lapse | driver | ratio |", "|---|---|---|---|---|"]
    for callers, rates in results.items():
        ours, raw = (rates[name] for name in NAMES)
        lines += [
            f"| {callers} | {kind} | {ours[kind]:,.0f}/s | {raw[kind]:,.0f}/s | {ours[f'{kind} ratio']:.2f} |"
            for kind in OPERATIONS
        ]
        lines.append(f"| {callers} | client CPU per operation | {ours['cpu us']:.0f} us | {raw['cpu us']:.0f} us | |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shows that it works; its figures mean nothing")
    print(figures(run(QUICK if parser.parse_args().quick else Plan())))
