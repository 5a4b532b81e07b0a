"""What the proxy counts: answers by class of status, why workspaces failed, and open websockets."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from lapse.engine.running.metrics import UpstreamFailure
from lapse.proxy.limits import ProxyLimits
from tests.integration.proxy.kit import LOOPBACK, Wire, World, asking, ok, program, run_proxy, until
from tests.integration.proxy.test_websockets import ACCEPTED, UPGRADE
from tests.unit.engine.harness import series

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

IMPATIENT = ProxyLimits(sweep_seconds=0.02, answer_seconds=0.1)


def shown(world: World) -> dict[str, float]:
    """Return what the proxy counts, without zeros."""
    found = {name: value for name, value in series(world.metrics).items() if name.startswith("lapse_proxy_")}
    return {name.removeprefix("lapse_proxy_"): value for name, value in found.items() if value}


def requests(status: str) -> str:
    return f'requests_total{{status="{status}"}}'


def failures(reason: UpstreamFailure) -> str:
    return f'upstream_failures_total{{reason="{reason}"}}'


async def test_answers_are_counted_by_class_whoever_gives_them() -> None:
    world = World()
    async with program(ok()) as ours, run_proxy(world) as proxy:
        world.add("a", ours.port)
        for host in (proxy.host("a"), proxy.host("a"), proxy.host("nobody")):
            async with await Wire.to(proxy.port) as wire:
                await wire.send(asking(host))
                await wire.head()
        async with await Wire.to(proxy.port) as wire:
            await wire.send(b"no HTTP at all\r\n\r\n")
            await wire.head()

    assert shown(world) == {requests("2xx"): 2, requests("4xx"): 2}


async def test_websockets_are_counted_while_they_are_open() -> None:
    world = World()
    async with program(ACCEPTED) as ours, run_proxy(world) as proxy:
        world.add("a", ours.port)
        async with await Wire.to(proxy.port) as wire:
            await wire.send(asking(proxy.host("a"), *UPGRADE))
            assert await wire.status() == 101
            assert shown(world) == {requests("1xx"): 1, "websockets": 1}
        await until(lambda: "websockets" not in shown(world), "the end of the websocket")

    assert shown(world) == {requests("1xx"): 1}


def _cut(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def _cut_in_the_middle(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    writer.close()


def _silent(_: bytes, writer: asyncio.StreamWriter) -> None: ...


def _invalid(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"nothing that is HTTP\r\n\r\n")


def _invalid_in_the_middle(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno length\r\n")


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        (_cut, "5xx", UpstreamFailure.CUT),
        (_cut_in_the_middle, "2xx", UpstreamFailure.CUT),
        (_silent, "5xx", UpstreamFailure.SILENT),
        (_invalid, "5xx", UpstreamFailure.INVALID),
        (_invalid_in_the_middle, "2xx", UpstreamFailure.INVALID),
    ],
)
async def test_what_a_workspace_does_wrong_is_counted_by_its_reason(
    answer: Callable[[bytes, asyncio.StreamWriter], None], status: str, reason: UpstreamFailure
) -> None:
    world = World()
    async with program(answer) as ours, run_proxy(world, IMPATIENT) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        await wire.send(asking(proxy.host("a"), "Connection: close"))
        await wire.rest()

    assert shown(world) == {requests(status): 1, failures(reason): 1}


async def test_a_program_that_does_not_listen_is_unreachable() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        free = taken.getsockname()[1]
    world = World()
    async with run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", free)
        await wire.send(asking(proxy.host("a")))
        assert await wire.status() == 502

    assert shown(world) == {requests("5xx"): 1, failures(UpstreamFailure.UNREACHABLE): 1}


async def test_what_a_client_does_wrong_is_no_failure_of_its_workspace() -> None:
    world = World()
    limits = ProxyLimits(sweep_seconds=0.02, body_bytes=10)
    async with program(_silent) as ours, run_proxy(world, limits) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        await wire.send(
            asking(proxy.host("a"), "Transfer-Encoding: chunked", method="POST", body=b"14\r\n" + b"x" * 20)
        )
        assert await wire.status() == 413

    assert shown(world) == {requests("4xx"): 1}
