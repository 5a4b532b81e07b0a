"""A program of its own: calls and watches on uvloop, to a server that resets every connection at once.

What goes wrong here ends the process (see `lapse.kube.connections`), so it does not run inside that of the tests.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
import threading
from contextlib import suppress

import uvloop

from lapse.kube.client import Client
from lapse.kube.config import Cluster, KubeConfig
from lapse.kube.errors import StoreUnavailableError
from lapse.kube.resources import ObjectKey
from tests.unit.kube.scripted import THING

SECONDS = 5
PATIENCE = itertools.cycle([5, 0.001, 0.003])
CALLERS = 20


def reset_all(server: socket.socket) -> None:
    while True:
        connection, _ = server.accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


async def main() -> None:
    server = socket.create_server(("127.0.0.1", 0), backlog=512)
    threading.Thread(target=reset_all, args=[server], daemon=True).start()
    config = KubeConfig(cluster=Cluster(server=f"https://127.0.0.1:{server.getsockname()[1]}"))
    client = Client(config, environ={})
    loop = asyncio.get_running_loop()
    end = loop.time() + SECONDS

    async def call() -> None:
        while loop.time() < end:
            with suppress(StoreUnavailableError, TimeoutError):
                async with asyncio.timeout(next(PATIENCE)):
                    await client.get(THING, ObjectKey("default", "a"))

    async def watch() -> None:
        while loop.time() < end:
            with suppress(StoreUnavailableError, TimeoutError):
                async with asyncio.timeout(next(PATIENCE)):
                    async for _ in client.watch(THING, since="1"):
                        pass

    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(call())
            group.create_task(watch())
    await client.close()


if __name__ == "__main__":
    uvloop.run(main())
