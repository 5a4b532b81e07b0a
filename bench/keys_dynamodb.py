"""How much does Lapse cost on DynamoDB? Ours against the plain driver doing the same call, 1 and 64 callers.

The plain driver is aiobotocore as it comes, with as many connections; it sends the very requests that Lapse sends, and
looks at the expiry of what it gets. Both take turns in every round on one event loop, so a busy moment of the machine
hits both alike. The server is DynamoDB Local on the same machine: a call to AWS takes longer, which makes the
difference smaller. ``python -m bench.keys_dynamodb [--quick]`` prints the table.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession

import lapse
from lapse.core.clock import SystemClock
from lapse.keys.backends.dynamodb.items import Requests, live_expiry, place, text
from lapse.keys.layout import Prefix, partition_keys
from lapse.keys.url import init_store
from tests.servers import Server, dynamodb_server

OPERATIONS: Final = ("get", "insert", "swap")
CALLERS: Final = (1, 64)
_APP: Final = 7
_TTL: Final = 900
_MANY: Final = [f"many:{number:03}" for number in range(100)]
_CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "made-up"}

Act = Callable[[str], Awaitable[Any]]
Results = dict[tuple[str, int], tuple[float, float, float]]
"""Operations a second by operation and callers: ours, theirs, and the median of the rounds' ratios."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    rounds: int = 15
    operations: int = 320


QUICK: Final = Plan(rounds=3, operations=128)


async def run(plan: Plan, server: Server) -> tuple[Results, float]:
    """Return the rates, and how many times as long as one get a get_many of 100 keys takes."""
    config = AioConfig(max_pool_connections=64)
    async with (
        lapse.open_keys_async(server.keys_url()) as keys,
        AioSession().create_client(
            "dynamodb", region_name="eu-west-1", endpoint_url=server.url, config=config
        ) as driver,
    ):
        app = keys.app(_APP)
        await app.insert_many([(key, "v", _TTL) for key in ("hot", *_MANY)])
        ours: dict[str, Act] = {
            "get": lambda _: app.ttl_get("hot"),
            "insert": lambda key: app.insert_if_not_exists(key, "device:XYZ789", _TTL),
            "swap": lambda _: app.compare_and_swap("hot", "v", "v", _TTL),
        }
        theirs = _plain(driver)
        results: Results = {}
        for operation in OPERATIONS:
            for callers in CALLERS:
                results[operation, callers] = await _contest(ours[operation], theirs[operation], callers, plan)
        one = median([await _rate(ours["get"], 1, 50, "") for _ in range(plan.rounds)])
        hundred = median([await _rate(lambda _: app.get_many(_MANY), 1, 10, "") for _ in range(plan.rounds)])
        return results, one / hundred


async def _contest(ours: Act, theirs: Act, callers: int, plan: Plan) -> tuple[float, float, float]:
    rounds = []
    for number in range(plan.rounds):
        rates = [
            await _rate(act, callers, plan.operations, f"{callers}:{number}:{who}")
            for who, act in (("ours", ours), ("theirs", theirs))
        ]
        rounds.append((rates[0], rates[1], rates[0] / rates[1]))
    return median(each[0] for each in rounds), median(each[1] for each in rounds), median(each[2] for each in rounds)


def _plain(driver: Any) -> dict[str, Act]:  # noqa: ANN401 - the driver has no types
    requests = Requests("lapse", margin_seconds=2)
    partition = partition_keys(Prefix.APPLICATION_TTL, _APP)[0]
    hot = place(partition, b"hot")

    async def get(_: str) -> str | None:
        item = (await driver.get_item(**requests.get(hot))).get("Item")
        return None if live_expiry(item, time.time_ns()) is None else text(item)

    async def insert(key: str) -> None:
        await driver.put_item(**requests.insert(place(partition, key.encode()), b"device:XYZ789", _TTL, time.time_ns()))

    async def swap(_: str) -> None:
        await driver.put_item(**requests.swap(hot, b"v", (b"v", _TTL), time.time_ns()))

    return {"get": get, "insert": insert, "swap": swap}


async def _rate(act: Act, callers: int, operations: int, label: str) -> float:
    each = operations // callers

    async def work(caller: int) -> None:
        for number in range(each):
            await act(f"{label}:{caller}:{number}")

    start = time.perf_counter()
    await asyncio.gather(*map(work, range(callers)))
    return callers * each / (time.perf_counter() - start)


def main() -> None:
    """Print the table."""
    os.environ.update(_CREDENTIALS)
    plan = QUICK if "--quick" in sys.argv else Plan()
    with dynamodb_server() as server:
        init_store(server.keys_url(), SystemClock())
        results, many = asyncio.run(run(plan, server))
    print(f"\nDynamoDB Local {server.version}\n\n| operation | callers | lapse | plain driver | ratio |")
    print("|---|---:|---:|---:|---:|")
    for (operation, callers), (ours, theirs, ratio) in results.items():
        print(f"| {operation} | {callers} | {ours:,.0f}/s | {theirs:,.0f}/s | {ratio:.2f}x |")
    print(f"\nget_many of 100 keys takes {many:.1f} times as long as one get.")


if __name__ == "__main__":
    main()
