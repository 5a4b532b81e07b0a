"""A program of its own: a client on uvloop, of a server that resets every connection at once.

What goes wrong here ends the process (see `lapse.http1.sockets`), so it does not run inside that of the tests. Its
argument names the client.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import struct
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import uvloop

from lapse.kube.api.client import KubeClient
from lapse.kube.auth.config import Cluster, KubeConfig
from lapse.kube.errors import StoreUnavailableError
from lapse.kube.resources import ObjectKey
from tests.unit.kube.scripted import THING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SECONDS = 6
CALLERS = 40
PATIENCE = {"kubernetes": (5, 0.001, 0.003), "dynamodb": (5,)}
"""Seconds until a call is given up: some in the middle of connecting."""
Calls = list[Callable[[], Awaitable[None]]]


@asynccontextmanager
async def kubernetes(server: str) -> AsyncIterator[Calls]:
    client = KubeClient(KubeConfig(cluster=Cluster(server=server)), environ={})

    async def call() -> None:
        await client.get(THING, ObjectKey("default", "a"))

    async def watch() -> None:
        async for _ in client.watch(THING, since="1"):
            pass

    yield [call, watch]
    await client.close()


@asynccontextmanager
async def dynamodb(server: str) -> AsyncIterator[Calls]:
    from botocore.exceptions import BotoCoreError  # `make test` has no driver

    from lapse.keys.backends.dynamodb.links import Link, TableSettings

    os.environ |= {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing"}
    link = Link(
        TableSettings(
            name="dynamodb",
            region="local",
            table="keys",
            endpoint=server,
            buckets=1,
            timeout=5,
            connect_timeout=5,
            connections=CALLERS,
            max_skew_ns=1,
        )
    )
    await link.open()

    async def call() -> None:
        with suppress(BotoCoreError):
            await link.client.get_item(TableName="keys", Key={"name": {"S": "a"}})

    yield [call]
    await link.close()


CLIENTS = {"kubernetes": kubernetes, "dynamodb": dynamodb}


def reset_all(server: socket.socket) -> None:
    while True:
        connection, _ = server.accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


async def main(client: str) -> None:
    server = socket.create_server(("127.0.0.1", 0), backlog=512)
    threading.Thread(target=reset_all, args=[server], daemon=True).start()
    loop, patience = asyncio.get_running_loop(), itertools.cycle(PATIENCE[client])
    end = loop.time() + SECONDS

    async def again_and_again(call: Callable[[], Awaitable[None]]) -> None:
        while loop.time() < end:
            with suppress(StoreUnavailableError, TimeoutError):
                async with asyncio.timeout(next(patience)):
                    await call()

    async with CLIENTS[client](f"https://127.0.0.1:{server.getsockname()[1]}") as calls, asyncio.TaskGroup() as group:
        for call in calls * (CALLERS // len(calls)):
            group.create_task(again_and_again(call))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
