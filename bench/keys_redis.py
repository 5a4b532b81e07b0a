"""How much does Lapse cost on Redis and Valkey? Ours against the plain driver doing the same, 1 and 64 callers.

The plain driver is redis-py's asyncio client with hiredis, as it comes, with one connection per caller; it sends the
very commands that Lapse sends: GET, and EVALSHA of Lapse's own scripts. Both take turns in every round on one event
loop, so a busy moment of the machine hits both alike. ``python -m bench.keys_redis [--quick]`` prints the table.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import redis.asyncio

import lapse
from lapse.keys.backends.redis.scripts import SCRIPTS
from lapse.keys.backends.redis.space import Partition
from lapse.keys.layout import Prefix, partition_keys
from tests.servers import Server, redis_server, valkey_server

OPERATIONS: Final = ("get", "insert", "swap")
CALLERS: Final = (1, 64)
_APP: Final = 7
_TTL: Final = 900
_MANY: Final = [f"many:{number:03}" for number in range(100)]

Act = Callable[[str], Awaitable[Any]]
Results = dict[tuple[str, int], tuple[float, float]]
"""Operations a second by operation and callers: ours, theirs."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    rounds: int = 9
    operations: int = 3_200


QUICK: Final = Plan(rounds=2, operations=640)


async def run(plan: Plan, server: Server) -> tuple[Results, float]:
    """Return the rates, and how many times as long as one get a get_many of 100 keys takes."""
    async with (
        lapse.open_keys_async(f"{server.keys_url()}?connections=64") as keys,
        redis.asyncio.Redis.from_url(server.url, max_connections=64) as driver,
    ):
        app = keys.app(_APP)
        await app.insert_many([(key, "v", _TTL) for key in ("hot", *_MANY)])
        ours: dict[str, Act] = {
            "get": lambda _: app.ttl_get("hot"),
            "insert": lambda key: app.insert_if_not_exists(key, "device:XYZ789", _TTL),
            "swap": lambda _: app.compare_and_swap("hot", "v", "v", _TTL),
        }
        theirs = await _plain(driver)
        results: Results = {}
        for operation in OPERATIONS:
            for callers in CALLERS:
                rates: tuple[list[float], list[float]] = ([], [])
                for number in range(plan.rounds):
                    for side, acts in zip(rates, (ours, theirs), strict=True):
                        label = f"{callers}:{number}:{side is rates[0]}"
                        side.append(await _rate(acts[operation], callers, plan.operations, label))
                results[operation, callers] = median(rates[0]), median(rates[1])
        ratios = [
            await _rate(ours["get"], 1, 200, "") / await _rate(lambda _: app.get_many(_MANY), 1, 200, "")
            for _ in range(2 * plan.rounds)
        ]
        return results, median(ratios)


async def _plain(driver: redis.asyncio.Redis) -> dict[str, Act]:
    names, ends, records = Partition.of("lapse", partition_keys(Prefix.APPLICATION_TTL, _APP)[0])
    insert, swap = [await driver.script_load(SCRIPTS[name].source) for name in ("insert", "swap")]
    ttl_ms = str(_TTL * 1000)

    def call(script: str, key: str, *arguments: str) -> Awaitable[Any]:
        return driver.evalsha(script, 3, names, ends, records + key, *arguments)

    return {
        "get": lambda _: driver.get(records + "hot"),
        "insert": lambda key: call(insert, key, "device:XYZ789", ttl_ms),
        "swap": lambda _: call(swap, "hot", "v", ttl_ms, "v"),
    }


async def _rate(act: Act, callers: int, operations: int, label: str) -> float:
    each = operations // callers

    async def work(caller: int) -> None:
        for number in range(each):
            await act(f"{label}:{caller}:{number}")

    start = time.perf_counter()
    await asyncio.gather(*map(work, range(callers)))
    return callers * each / (time.perf_counter() - start)


def main() -> None:
    """Print one table per server."""
    plan = QUICK if "--quick" in sys.argv else Plan()
    for start in (redis_server, valkey_server):
        with start() as server:
            results, many = asyncio.run(run(plan, server))
        print(f"\n{server.name} {server.version}\n\n| operation | callers | lapse | plain driver | ratio |")
        print("|---|---:|---:|---:|---:|")
        for (operation, callers), (ours, theirs) in results.items():
            print(f"| {operation} | {callers} | {ours:,.0f}/s | {theirs:,.0f}/s | {ours / theirs:.2f}x |")
        print(f"\nget_many of 100 keys takes {many:.1f} times as long as one get.")


if __name__ == "__main__":
    main()
