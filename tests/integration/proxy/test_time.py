from __future__ import annotations

import asyncio
import socket

import pytest

from lapse.core.clock import SystemClock
from lapse.proxy.limits import LimitError, ProxyLimits
from tests.integration.proxy.kit import LOOPBACK, Wire, World, asking, ok, program, run_proxy, until


async def test_a_head_that_takes_too_long_is_refused_however_steadily_it_drips() -> None:
    world = World()
    async with (
        run_proxy(world, ProxyLimits(sweep_seconds=0.02, head_seconds=0.3)) as proxy,
        await Wire.to(proxy.port) as wire,
    ):

        async def drip() -> None:
            for byte in asking(proxy.host("a"), "X: " + "a" * 5000):
                wire.writer.write(bytes([byte]))
                await SystemClock().sleep(0.01)

        task = asyncio.get_running_loop().create_task(drip())
        assert await wire.status() == 408
        task.cancel()


async def test_connections_that_say_nothing_are_closed() -> None:
    world = World()
    limits = ProxyLimits(sweep_seconds=0.02, head_seconds=0.1, keep_seconds=0.1)
    async with program(ok()) as ours, run_proxy(world, limits) as proxy:
        world.add("a", ours.port)
        async with await Wire.to(proxy.port) as wire:
            assert await wire.rest() == b""
        async with await Wire.to(proxy.port) as wire:
            await wire.send(asking(proxy.host("a")))
            assert (await wire.rest()).endswith(b"\r\n\r\nok")


async def test_a_workspace_that_never_answers_is_given_up() -> None:
    world = World()
    limits = ProxyLimits(sweep_seconds=0.02, answer_seconds=0.1)
    async with program(lambda got, writer: None) as ours, run_proxy(world, limits) as proxy:
        world.add("a", ours.port)
        async with await Wire.to(proxy.port) as wire:
            await wire.send(asking(proxy.host("a")))
            assert await wire.status() == 504
        await until(lambda: not ours.open, "the end at the workspace")


async def test_a_workspace_that_stops_in_the_middle_is_given_up() -> None:
    world = World()
    limits = ProxyLimits(sweep_seconds=0.02, idle_seconds=0.1)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"
    async with program(answer) as ours, run_proxy(world, limits) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        await wire.send(asking(proxy.host("a")))
        assert await wire.status() == 200
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await wire.reader.readexactly(10)


async def test_a_client_that_stops_in_the_middle_of_its_request_is_given_up() -> None:
    world = World()
    limits = ProxyLimits(sweep_seconds=0.02, idle_seconds=0.1)
    async with program(lambda got, writer: None) as ours, run_proxy(world, limits) as proxy:
        world.add("a", ours.port)
        async with await Wire.to(proxy.port) as wire:
            await wire.send(asking(proxy.host("a"), "Content-Length: 10", method="POST", body=b"half"))
            assert await wire.status() == 408
        await until(lambda: not ours.open, "the end at the workspace")


async def test_a_workspace_that_does_not_listen_is_said_so() -> None:
    world = World()
    with socket.socket() as unused:
        unused.bind((LOOPBACK, 0))
        world.add("a", unused.getsockname()[1])
        async with run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
            await wire.send(asking(proxy.host("a")))
            assert await wire.status() == 502


async def test_a_workspace_that_takes_no_connection_is_given_up() -> None:
    world = World()
    with socket.socket() as full:
        full.bind((LOOPBACK, 0))
        full.listen(0)
        address = full.getsockname()
        with socket.socket() as one, socket.socket() as two:  # the queue is full with these
            for each in (one, two):
                each.setblocking(False)
                each.connect_ex(address)
            world.add("a", address[1])
            limits = ProxyLimits(sweep_seconds=0.02, connect_seconds=0.3)
            async with run_proxy(world, limits) as proxy, await Wire.to(proxy.port) as wire:
                await wire.send(asking(proxy.host("a")))
                assert await wire.status() == 504


async def test_a_stop_lets_requests_finish_and_takes_no_more() -> None:
    world = World()
    answers: list[asyncio.StreamWriter] = []
    async with program(lambda got, writer: answers.append(writer)) as ours, run_proxy(world) as proxy:
        world.add("a", ours.port)
        async with await Wire.to(proxy.port) as wire, await Wire.to(proxy.port) as idle:
            await wire.send(asking(proxy.host("a")))
            await until(lambda: answers, "the request")
            stop = asyncio.get_running_loop().create_task(proxy.server.stop(grace_seconds=30))
            assert await idle.rest() == b""
            assert not stop.done()
            answers[0].write(ok(b"finished"))
            assert (await wire.rest()).endswith(b"finished")
            await asyncio.wait_for(stop, 30)
        with pytest.raises(OSError, match=r".*"):
            await Wire.to(proxy.port)


async def test_a_stop_does_not_wait_for_ever() -> None:
    world = World()
    async with (
        program(lambda got, writer: None) as ours,
        run_proxy(world) as proxy,
        await Wire.to(proxy.port) as wire,
    ):
        world.add("a", ours.port)
        await wire.send(asking(proxy.host("a")))
        await until(lambda: ours.received, "the request")
        await asyncio.wait_for(proxy.server.stop(grace_seconds=0.1), 30)
        await until(lambda: not ours.open, "the end at the workspace")


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(LimitError, match="head_bytes must be more than 0"):
        ProxyLimits(head_bytes=0)
