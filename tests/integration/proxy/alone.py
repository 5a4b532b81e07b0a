"""A proxy in a process of its own, to be killed: ``python -m tests.integration.proxy.alone UPSTREAM_PORT``."""

from __future__ import annotations

import asyncio
import sys

import uvloop

from tests.integration.proxy.kit import World, run_proxy


async def main(upstream: int) -> None:
    """Print the port and serve until the end."""
    world = World()
    world.add("a", upstream)
    async with run_proxy(world) as proxy:
        print(proxy.port, flush=True)  # noqa: T201 - for whoever started it
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
