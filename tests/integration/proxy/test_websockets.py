from __future__ import annotations

import asyncio
import signal
import socket
import struct
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, InvalidStatus
from websockets.extensions.permessage_deflate import PerMessageDeflate

from lapse.core.clock import SystemClock
from lapse.core.identity import secret_bytes
from lapse.proxy.limits import ProxyLimits
from lapse.proxy.ports import WorkspaceId
from tests.integration.proxy.kit import (
    BEARER,
    COOKIE,
    LOOPBACK,
    SESSION,
    Wire,
    World,
    asking,
    ok,
    program,
    run_proxy,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from websockets.asyncio.client import ClientConnection
    from websockets.asyncio.server import ServerConnection

    from tests.integration.proxy.kit import RunningProxy

    Visitors = list[ServerConnection]
    Echoing = tuple[World, RunningProxy, Visitors]

A = WorkspaceId("id-a")
ROOT = Path(__file__).parents[3]
UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)
ACCEPT = "Sec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI="
ACCEPTED = f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{ACCEPT}\r\n\r\n".encode()


def visit(proxy: RunningProxy, name: str = "a", **options: Any) -> connect:  # noqa: ANN401 - the library's own
    """Connect as the owner, by the workspace's host name but to the proxy's address."""
    headers = {**BEARER, **options.pop("headers", {})}
    uri = f"ws://{proxy.host(name)}{options.pop('path', '/')}"
    options = {"max_size": None, "proxy": None, "open_timeout": 30, **options}
    return connect(uri, host=LOOPBACK, port=proxy.port, additional_headers=headers, **options)


@asynccontextmanager
async def echo_program(world: World, name: str = "a", **options: Any) -> AsyncIterator[Visitors]:  # noqa: ANN401 - the library's own
    """Run a real websocket server that sends back what it gets, as a workspace."""
    visitors: list[ServerConnection] = []

    async def handle(connection: ServerConnection) -> None:
        visitors.append(connection)
        try:
            async for message in connection:
                await connection.send(message)
        except ConnectionClosedError:
            pass

    async with serve(handle, LOOPBACK, 0, max_size=None, **options) as server:
        world.add(name, next(iter(server.sockets)).getsockname()[1])
        yield visitors


@pytest.fixture
async def echoing() -> AsyncIterator[tuple[World, RunningProxy, list[ServerConnection]]]:
    world = World()
    async with echo_program(world) as visitors, run_proxy(world) as proxy:
        yield world, proxy, visitors


async def test_texts_and_binaries_of_every_size_come_back(echoing: Echoing) -> None:
    _, proxy, _ = echoing
    async with visit(proxy, compression=None) as client:
        for size in (0, 1, 125, 126, 65_535, 65_536, 1_000_000):
            for message in ("ä" * size, secret_bytes(size)):
                await client.send(message)
                assert await client.recv() == message


async def test_messages_of_ten_megabytes_come_back(echoing: Echoing) -> None:
    _, proxy, _ = echoing
    message = secret_bytes(10_000_000)
    async with visit(proxy, compression=None) as client:
        for _ in range(3):
            await client.send(message)
            assert await client.recv() == message


async def test_a_message_in_fragments_comes_back(echoing: Echoing) -> None:
    _, proxy, _ = echoing
    async with visit(proxy) as client:
        await client.send(["one ", "two ", "three"])
        assert await client.recv() == "one two three"


async def test_pings_are_answered_by_the_peer_itself(echoing: Echoing) -> None:
    _, proxy, visitors = echoing
    async with visit(proxy) as client:
        await asyncio.wait_for(await client.ping(b"from the client"), 30)
        await asyncio.wait_for(await visitors[0].ping(b"from the workspace"), 30)


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (1001, "away"), (3000, "own"), (4999, "ä" * 61)])
async def test_close_codes_pass_both_ways(echoing: Echoing, code: int, reason: str) -> None:
    _, proxy, visitors = echoing
    async with visit(proxy) as client:
        await client.close(code, reason)
        await visitors[0].wait_closed()
        assert (visitors[0].close_code, visitors[0].close_reason) == (code, reason)
    async with visit(proxy) as client:
        await visitors[1].close(code, reason)
        with pytest.raises(ConnectionClosed):
            await client.recv()
        assert (client.close_code, client.close_reason) == (code, reason)


async def test_a_subprotocol_is_agreed_upon_by_the_peers() -> None:
    world = World()
    async with echo_program(world, subprotocols=["v2.chat", "v1.chat"]), run_proxy(world) as proxy:
        async with visit(proxy, subprotocols=["other", "v1.chat"]) as client:
            assert client.subprotocol == "v1.chat"
        with pytest.raises(InvalidStatus) as caught:
            await visit(proxy)
        assert b"missing subprotocol" in caught.value.response.body


async def test_compression_is_between_the_peers(echoing: Echoing) -> None:
    _, proxy, visitors = echoing
    async with visit(proxy, compression="deflate") as client:
        for side in (client, visitors[0]):
            assert [type(each) for each in side.protocol.extensions] == [PerMessageDeflate]
        await client.send("again and " * 10_000)
        assert await client.recv() == "again and " * 10_000


async def test_many_clients_talk_at_once_through_two_proxies() -> None:
    world = World()
    async with (
        echo_program(world, "a"),
        echo_program(world, "b"),
        run_proxy(world) as one,
        run_proxy(world) as two,
    ):

        async def talk(number: int) -> None:
            name, proxy = ("a", "b")[number % 2], (one, two)[number // 2 % 2]
            async with visit(proxy, name) as client:
                for part in range(20):
                    await client.send(f"{number} {part}")
                    assert await client.recv() == f"{number} {part}"

        await asyncio.gather(*(talk(number) for number in range(40)))
        await until(lambda: not world.leases, "the end of all leases")


async def test_a_connection_is_a_lease_from_before_the_upgrade_until_after_its_end() -> None:
    world = World()
    seen: list[tuple[int, int]] = []

    async def handle(connection: ServerConnection) -> None:
        seen.append((len(world.leases), world.announced[A]))
        await connection.wait_closed()

    async with serve(handle, LOOPBACK, 0) as server, run_proxy(world) as proxy:
        place = world.add("a", next(iter(server.sockets)).getsockname()[1])
        async with visit(proxy):
            async with visit(proxy):
                assert len(world.leases) == 2
            await until(lambda: len(world.leases) == 1, "the end of the second lease")
            assert world.idle_timers == set()
        await until(lambda: not world.leases, "the end of the first lease")
        assert world.idle_timers == {place.workspace}
        assert seen == [(1, 1), (2, 2)], "each had told the database before"


async def test_two_proxies_count_together() -> None:
    world = World()
    async with echo_program(world), run_proxy(world) as one, run_proxy(world) as two, visit(one):
        async with visit(two):
            assert len(world.leases) == 2
            assert world.announced == {A: 2}, "each tells the database"
        await until(lambda: len(world.leases) == 1, "the end of the second lease")
        assert world.idle_timers == set()


async def test_all_leases_are_renewed_in_one_call_and_lost_ones_begun_again() -> None:
    world = World()
    async with echo_program(world), run_proxy(world, lease_seconds=0.15) as proxy, AsyncExitStack() as stack:
        for _ in range(20):
            await stack.enter_async_context(visit(proxy))
        held, before, told = dict(world.leases), world.renewals, world.announced[A]
        await until(lambda: world.renewals >= before + 2, "renewals")
        world.leases.clear()  # the store has restarted empty
        await until(lambda: world.leases == held, "all leases again")
        assert told == 20, "they came one after another"
        await until(lambda: world.announced[A] > told, "the database told of those that were begun again")
        assert world.announced[A] < told + 20, "they came back at once, and share"


async def test_without_the_activity_store_nobody_new_gets_in_and_nobody_is_thrown_out(echoing: Echoing) -> None:
    world, proxy, _ = echoing
    async with visit(proxy) as client:
        world.down = True
        with pytest.raises(InvalidStatus) as caught:
            await visit(proxy)
        assert caught.value.response.status_code == 503
        await client.send("still here")
        assert await client.recv() == "still here"
        world.down = False
    await until(lambda: not world.leases, "the end of the lease")


async def test_while_leases_cannot_be_renewed_silence_counts_too() -> None:
    world = World()
    async with (
        echo_program(world),
        run_proxy(world, lease_seconds=0.3) as proxy,
        visit(proxy, ping_interval=None),
    ):
        world.down = True
        before = world.accesses[A]
        await until(lambda: world.accesses[A] > before + 2, "accesses")
        world.down = False


async def test_messages_are_accesses_and_silence_is_not(echoing: Echoing) -> None:
    world, proxy, _ = echoing
    async with visit(proxy, ping_interval=None) as client:
        await client.send("hello")
        await client.recv()
        before = -1
        while before != world.accesses[A]:
            before = world.accesses[A]
            await SystemClock().sleep(0.2)
        await client.send("hello")
        await until(lambda: world.accesses[A] > before, "an access")


async def test_the_end_of_a_silent_connection_is_an_access_too(echoing: Echoing) -> None:
    world, proxy, _ = echoing
    client = await visit(proxy, ping_interval=None)
    before = -1
    while before != world.accesses[A]:
        before = world.accesses[A]
        await SystemClock().sleep(0.2)
    client.transport.abort()  # without a word, which would be a message
    await until(lambda: world.accesses[A] > before, "an access")


async def test_the_house_keeps_its_credentials_and_passes_the_workspaces_cookies_on(echoing: Echoing) -> None:
    _, proxy, visitors = echoing
    headers = {"Cookie": f"theme=dark; {COOKIE}={SESSION}", "X-Forwarded-For": "1.2.3.4"}
    async with visit(proxy, headers=headers, path="/api/kernels/1?session_id=2"):
        request = visitors[0].request
        assert request is not None
        assert request.path == "/api/kernels/1?session_id=2"
        assert request.headers["Cookie"] == "theme=dark"
        assert "Authorization" not in request.headers
        assert request.headers.get_all("X-Forwarded-For") == [LOOPBACK]
        assert request.headers["Host"] == proxy.host("a")


@pytest.mark.parametrize(
    "origin", ["http://b.w.localhost:{port}", "http://localhost:{port}", "https://evil.com", "null"]
)
async def test_another_page_gets_no_websocket(echoing: Echoing, origin: str) -> None:
    world, proxy, visitors = echoing
    with pytest.raises(InvalidStatus) as caught:
        await visit(proxy, origin=origin.format(port=proxy.port))
    assert caught.value.response.status_code == 403
    assert not visitors
    assert not world.leases


async def test_its_own_page_gets_one(echoing: Echoing) -> None:
    _, proxy, _ = echoing
    async with visit(proxy, origin=f"http://{proxy.host('a')}") as client:
        await client.send("hello")
        assert await client.recv() == "hello"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer lapse_token_of_bob"}, 404),
        ({"Authorization": "Bearer nobody"}, 401),
        ({"Authorization": "Bearer nobody", "Cookie": f"{COOKIE}=session-of-bob"}, 404),
        ({"Authorization": "", "Cookie": f"{COOKIE}=forged"}, 401),
    ],
)
async def test_only_the_owner_gets_one(echoing: Echoing, headers: dict[str, str], status: int) -> None:
    world, proxy, visitors = echoing
    with pytest.raises(InvalidStatus) as caught:
        await visit(proxy, headers=headers)
    assert caught.value.response.status_code == status
    assert not visitors
    assert not world.leases


async def test_a_program_without_websockets_gives_a_clear_answer_and_no_tunnel() -> None:
    world = World()
    async with program(ok(b"<html>")) as ours, run_proxy(world) as proxy:
        world.add("a", ours.port)
        with pytest.raises(InvalidStatus) as caught:
            await visit(proxy)
        assert caught.value.response.status_code == 502
        assert b"plain HTTP" in caught.value.response.body
        await until(lambda: not world.leases and not ours.open, "the end of everything")


async def test_a_refusal_of_the_workspace_is_passed_on() -> None:
    world = World()
    answer = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\nX-Why: token\r\n\r\nnope"
    async with program(answer) as ours, run_proxy(world) as proxy:
        world.add("a", ours.port)
        with pytest.raises(InvalidStatus) as caught:
            await visit(proxy)
        response = caught.value.response
        assert (response.status_code, response.headers["X-Why"], response.body) == (403, "token", b"nope")
        await until(lambda: not world.leases, "the end of the lease")


@pytest.mark.parametrize(
    "answer",
    [
        ACCEPTED.replace(b"ICX", b"abc"),
        ACCEPTED.replace(b"Upgrade: websocket", b"Upgrade: h2c"),
        ACCEPTED.replace(b"Connection: Upgrade\r\n", b""),
        ACCEPTED.replace(ACCEPT.encode() + b"\r\n", b""),
    ],
)
async def test_a_doubtful_consent_is_none(answer: bytes) -> None:
    world = World()
    async with program(answer) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        await wire.send(asking(proxy.host("a"), *UPGRADE))
        assert await wire.status() == 502
        await until(lambda: not world.leases and not ours.open, "the end of everything")


async def test_what_is_sent_ahead_waits_for_the_workspaces_consent() -> None:
    world = World()
    ahead = b"GET /admin HTTP/1.1\r\nHost: x\r\n\r\n"
    async with (
        program(lambda got, writer: None) as ours,
        run_proxy(world) as proxy,
        await Wire.to(proxy.port) as wire,
    ):
        world.add("a", ours.port)
        await wire.send(asking(proxy.host("a"), *UPGRADE) + ahead)
        await until(lambda: ours.received, "the request")
        await SystemClock().sleep(0.1)
        assert b"/admin" not in ours.received
    async with (
        program(ACCEPTED + b"hello") as ours,
        run_proxy(world) as proxy,
        await Wire.to(proxy.port) as wire,
    ):
        world.add("a", ours.port)
        await wire.send(asking(proxy.host("a"), *UPGRADE) + ahead)
        await until(lambda: ours.received.endswith(ahead), "what was sent ahead")
        assert await wire.status() == 101
        assert await wire.reader.readexactly(5) == b"hello"


@pytest.mark.parametrize(
    "change", [("GET", "POST"), ("Sec-WebSocket-Key", "X-Key"), ("Upgrade\r\n", "Upgrade\r\nContent-Length: 4\r\n")]
)
async def test_an_upgrade_that_cannot_be_one_is_refused_without_asking_the_workspace(change: tuple[str, str]) -> None:
    world = World()
    async with program(ACCEPTED) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        await wire.send(asking(proxy.host("a"), *UPGRADE).replace(change[0].encode(), change[1].encode(), 1))
        assert await wire.status() == 400
        assert not ours.connections


async def test_a_workspace_that_accepts_and_ends_at_once_is_heard_to_the_end() -> None:
    def short(got: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(ACCEPTED + b"bye")
        writer.close()

    world = World()
    async with program(short) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        await wire.send(asking(proxy.host("a"), *UPGRADE))
        assert await wire.status() == 101
        assert await wire.rest() == b"bye"
        wire.writer.close()
        await until(lambda: not world.leases, "the end of the lease")


async def joined(world: World, proxy: RunningProxy, port: int) -> Wire:
    """A tunnel, as bytes."""
    world.add("a", port)
    wire = await Wire.to(proxy.port)
    await wire.send(asking(proxy.host("a"), *UPGRADE))
    assert await wire.status() == 101
    return wire


async def test_one_side_may_end_while_the_other_goes_on() -> None:
    world = World()
    async with half_open_program() as (port, ended, writer_of), run_proxy(world) as proxy:
        async with await joined(world, proxy, port) as wire:
            wire.writer.write_eof()
            await asyncio.wait_for(ended.wait(), 30)
            writer = writer_of[0]
            writer.write(b"still talking")
            assert await wire.reader.readexactly(13) == b"still talking"
            writer.close()
            assert await wire.rest() == b""
        await until(lambda: not proxy.server.connections and not world.leases, "the end of the tunnel")


@asynccontextmanager
async def half_open_program() -> AsyncIterator[tuple[int, asyncio.Event, list[asyncio.StreamWriter]]]:
    """Accept an upgrade; say when the client's side has ended, and leave ours open."""
    ended, writers = asyncio.Event(), []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ACCEPTED)
        writers.append(writer)
        await reader.read()
        ended.set()

    server = await asyncio.start_server(handle, LOOPBACK, 0)
    try:
        yield server.sockets[0].getsockname()[1], ended, writers
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await server.wait_closed()


async def test_a_side_that_does_not_end_after_the_other_is_ended() -> None:
    world = World()
    limits = ProxyLimits(sweep_seconds=0.02, half_seconds=0.1)
    async with half_open_program() as (port, _, _), run_proxy(world, limits) as proxy:
        async with await joined(world, proxy, port) as wire:
            wire.writer.write_eof()
            with suppress(ConnectionResetError):
                assert await wire.rest() == b""
        await until(lambda: not proxy.server.connections and not world.leases, "the end of the tunnel")


async def test_a_side_that_breaks_off_breaks_the_other_off(echoing: Echoing) -> None:
    world, proxy, visitors = echoing
    client: ClientConnection = await visit(proxy)
    raw: socket.socket = client.transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.transport.abort()
    await asyncio.wait_for(visitors[0].wait_closed(), 30)
    assert visitors[0].close_code == 1006
    await until(lambda: not world.leases, "the end of the lease")


async def test_peers_that_vanish_without_a_word_are_noticed_by_the_kernel(echoing: Echoing) -> None:
    _, proxy, _ = echoing
    async with visit(proxy):
        (tunnel,) = proxy.server._tunnels
        for half in (tunnel.client, tunnel.upstream):
            made = half.transport.get_extra_info("socket")
            assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle, every, count = (
                made.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert idle + every * count <= 120
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 120_000


async def test_a_client_that_does_not_read_holds_the_workspace_back() -> None:
    world = World()
    sent = 0

    async def flood(connection: ServerConnection) -> None:
        nonlocal sent
        while sent < 200:
            await connection.send(bytes(1_000_000))
            sent += 1

    async with serve(flood, LOOPBACK, 0, ping_interval=None) as server, run_proxy(world) as proxy:
        port = next(iter(server.sockets)).getsockname()[1]
        async with await joined(world, proxy, port) as wire:
            before = -1
            while sent != before:
                before = sent
                await SystemClock().sleep(0.3)
            assert sent < 60, "the kernel's buffers on both ways and little more"
            got = 0
            while got < (before + 2) * 1_000_000:
                got += len(await asyncio.wait_for(wire.reader.read(1_000_000), 30))
            wire.writer.transport.abort()
        await until(lambda: not world.leases, "the end of the lease")


async def test_an_upstream_that_never_answers_an_upgrade_is_given_up() -> None:
    world = World()
    limits = ProxyLimits(sweep_seconds=0.02, answer_seconds=0.1)
    async with program(lambda got, writer: None) as ours, run_proxy(world, limits) as proxy:
        world.add("a", ours.port)
        with pytest.raises(InvalidStatus) as caught:
            await visit(proxy)
        assert caught.value.response.status_code == 504
        await until(lambda: not world.leases and not ours.open, "the end of everything")


async def test_a_proxy_that_stops_ends_websockets_and_gives_their_leases_back() -> None:
    world = World()
    async with echo_program(world) as visitors, run_proxy(world) as proxy:
        async with visit(proxy) as client:
            await proxy.server.stop(grace_seconds=5)
            assert not world.leases
            assert world.idle_timers == {"id-a"}
            with pytest.raises(ConnectionClosedError):
                await client.recv()
            await visitors[0].wait_closed()
        with pytest.raises(OSError, match=r".*"):
            await Wire.to(proxy.port)


async def test_a_proxy_that_is_killed_ends_its_connections_and_leaves_its_leases_to_time() -> None:
    world = World()
    async with echo_program(world) as visitors:
        address = world.places["a"].address
        assert address is not None
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.integration.proxy.alone", str(address.port)),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        port = int(await asyncio.wait_for(process.stdout.readline(), 60))
        async with connect(
            f"ws://a.w.localhost:{port}", host=LOOPBACK, port=port, additional_headers=BEARER, proxy=None
        ) as client:
            await client.send("hello")
            assert await client.recv() == "hello"
            process.send_signal(signal.SIGKILL)
            await process.wait()
            with pytest.raises(ConnectionClosedError):
                await client.recv()
        await asyncio.wait_for(visitors[0].wait_closed(), 30)


# --- whose token is revoked -------------------------------------------------------------------------------------------


async def test_a_visitor_who_is_admitted_no_longer_loses_the_websocket_and_its_lease(echoing: Echoing) -> None:
    world, proxy, _ = echoing
    async with visit(proxy) as client:
        await client.send("hello")
        assert await client.recv() == "hello"
        world.people = {token: name for token, name in world.people.items() if name != "ann"}
        async with asyncio.timeout(30):
            with pytest.raises(ConnectionClosed):
                await client.recv()
    await until(lambda: not proxy.server.connections, "the end of the tunnel")
    await until(lambda: not world.leases, "the end of its lease")


async def test_while_it_is_not_known_who_is_admitted_nobody_is_cut_off(echoing: Echoing) -> None:
    world, proxy, _ = echoing
    async with visit(proxy) as client:
        world.tokens_unknown = True
        for number in range(3):
            await proxy.server.look()
            await client.send(str(number))
            assert await client.recv() == str(number)


async def test_an_answer_under_way_is_cut_off_as_well() -> None:
    begun = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nfirst"
    world = World()
    async with program(begun) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        await wire.send(asking(proxy.host("a")))
        assert await wire.status() == 200
        assert await wire.reader.readexactly(5) == b"first"
        world.people = {}
        with suppress(ConnectionError):
            assert await wire.rest() == b""
        assert not proxy.server.clients
