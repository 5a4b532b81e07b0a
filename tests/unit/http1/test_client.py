"""Connections to one server are shared: in turn, kept open, and never one with half an answer on it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from lapse.core.clock import SystemClock
from lapse.kube.api.transport import CallLimits
from lapse.kube.errors import StoreUnavailableError
from tests.unit.kube.faulty import KEY, FaultyServer, client_of, cuts, event, keeps_silent, obj, says, streams
from tests.unit.kube.scripted import THING

if TYPE_CHECKING:
    from tests.unit.kube.faulty import Answerer

CLOCK = SystemClock()
CALM = CallLimits(request_seconds=20.0, connections=2)


def by(ports: list[object], answer: Answerer) -> Answerer:
    """Answer, and note the connection by which the question came."""

    async def noting(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.append(request.transport.get_extra_info("peername"))
        return await answer(request)

    return noting


def closing(answer: Answerer) -> Answerer:
    """Answer, and close the connection without having said so."""

    async def answering(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        asyncio.get_running_loop().call_later(0.05, request.transport.close)
        return await answer(request)

    return answering


async def test_a_connection_is_used_again() -> None:
    ports: list[object] = []
    async with client_of(FaultyServer(by(ports, says(200, obj())))) as client:
        for _ in range(5):
            await client.get(THING, KEY)

    assert len(ports) == 5
    assert len(set(ports)) == 1


async def test_a_connection_is_not_used_again_after_an_answer_that_nobody_waited_for() -> None:
    ports: list[object] = []
    server = FaultyServer(by(ports, keeps_silent()), by(ports, says(200, obj())))
    async with client_of(server, limits=CallLimits(request_seconds=2)) as client:
        with pytest.raises(StoreUnavailableError, match="no answer"):
            await client.get(THING, KEY)
        assert (await client.get(THING, KEY)).metadata.name == "a"

    assert len(set(ports)) == 2


async def test_nobody_overtakes_those_who_wait_for_a_connection() -> None:
    async def slowly(request: web.Request) -> web.StreamResponse:
        await CLOCK.sleep(0.005)
        return await says(200, obj())(request)

    async with client_of(FaultyServer(slowly), limits=CALM) as client:
        busy = True

        async def hammer() -> None:
            while busy:
                await client.get(THING, KEY)

        # As many as there are connections, and each comes back at once.
        hammering = [asyncio.create_task(hammer()) for _ in range(4)]
        await CLOCK.sleep(0.05)
        async with asyncio.timeout(10):
            for _ in range(5):
                await client.get(THING, KEY)
        busy = False
        await asyncio.gather(*hammering)


async def test_a_read_whose_kept_connection_was_closed_meanwhile_is_made_again() -> None:
    server = FaultyServer(says(200, obj()), cuts(), says(200, obj()))
    async with client_of(server) as client:
        await client.get(THING, KEY)
        assert (await client.get(THING, KEY)).metadata.name == "a"

    assert len(server.asked) == 3


async def test_a_write_whose_kept_connection_was_closed_meanwhile_is_not_made_again() -> None:
    server = FaultyServer(says(200, obj()), cuts(), says(201, obj()))
    async with client_of(server) as client:
        await client.get(THING, KEY)
        with pytest.raises(StoreUnavailableError, match="was cut"):
            await client.create(THING, obj())

    assert len(server.asked) == 2


async def test_a_connection_that_the_server_has_closed_is_not_written_to() -> None:
    ports: list[object] = []
    server = FaultyServer(by(ports, closing(says(200, obj()))), by(ports, says(201, obj())))
    async with client_of(server, limits=CALM) as client:
        await client.get(THING, KEY)
        await CLOCK.sleep(0.5)
        await client.create(THING, obj())

    assert len(set(ports)) == 2


async def test_an_answer_in_pieces_and_packed_is_read() -> None:
    async def packed(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_compression(web.ContentCoding.gzip)
        await response.prepare(request)
        await response.write(b'{"metadata": {"name": "a", ')
        await response.write(b'"namespace": "default"}}')
        return response

    async with client_of(FaultyServer(packed)) as client:
        assert (await client.get(THING, KEY)).metadata.name == "a"


async def test_a_path_cannot_smuggle_in_another_request() -> None:
    server = FaultyServer(says(200, {}))
    async with client_of(server) as client:
        await client.fetch("/apis/a b\rX-Remote-User: admin\r\r", dict)

    ((_, path, headers, _),) = server.asked
    assert path == "/apis/a%20b%0DX-Remote-User:%20admin%0D%0D"
    assert "X-Remote-User" not in headers


@pytest.mark.parametrize("turns", range(25))
async def test_a_call_or_a_watch_that_is_given_up_at_any_point_leaves_no_connection_behind(turns: int) -> None:
    server = FaultyServer(says(200, obj()), streams(event("ADDED", obj()), then="silence"), says(200, obj()))

    async def watch() -> None:
        async for _ in client.watch(THING, since="1"):
            pass

    async with client_of(server) as client:
        for work in (client.get(THING, KEY), watch()):
            task = asyncio.create_task(work)
            for _ in range(turns):
                await CLOCK.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        pool = client._transport._connections
        assert len(pool) == len(pool._free), "nobody uses those that are not kept"
        server.script = [says(200, obj())]
        assert (await client.get(THING, KEY)).metadata.name == "a"


async def test_a_connection_is_used_again_after_a_watch_that_ended_in_order() -> None:
    ports: list[object] = []
    server = FaultyServer(by(ports, streams(event("ADDED", obj()))), by(ports, says(200, obj())))
    async with client_of(server) as client:
        assert len([told async for told in client.watch(THING, since="1")]) == 1
        await client.get(THING, KEY)
    assert len(set(ports)) == 1


async def test_a_watch_whose_reader_is_slow_is_not_read_ahead_without_end() -> None:
    line, sent = event("ADDED", obj(owner="x" * 100_000)), 0

    async def pour(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(200):
            await response.write(line)
            sent += 1
        return response

    async with client_of(FaultyServer(pour)) as client:
        watch = client.watch(THING, since="1")
        await anext(watch)
        before = -1
        while sent > before:  # until the server is held up
            before = sent
            await CLOCK.sleep(0.1)
        assert sent < 150
        assert len([told async for told in watch]) == 199
    assert sent == 200
