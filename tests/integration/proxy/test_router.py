from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import SystemClock, VirtualClock
from lapse.http1.heads import request_head
from lapse.proxy.limits import ProxyLimits
from lapse.proxy.ports import (
    Destination,
    DirectResponse,
    GoingDownError,
    UpstreamAddress,
    WorkspaceId,
    WorkspaceReadiness,
)
from lapse.proxy.router import Router
from tests.integration.proxy.kit import (
    COOKIE,
    LOOPBACK,
    OWNER,
    SESSION,
    TOKEN,
    StoreDownError,
    Wire,
    World,
    asking,
    ok,
    program,
    run_proxy,
    until,
)
from tests.integration.proxy.test_websockets import ACCEPTED, UPGRADE

if TYPE_CHECKING:
    from pathlib import Path


def by_cookie(host: str, *lines: str, cookie: str = f"{COOKIE}={SESSION}", method: str = "GET") -> bytes:
    return asking(host, f"Cookie: {cookie}", *lines, method=method).replace(
        f"Authorization: Bearer {TOKEN}\r\n".encode(), b""
    )


async def ask(port: int, request: bytes) -> bytes:
    async with await Wire.to(port) as wire:
        await wire.send(request.replace(b" HTTP/1.1\r\n", b" HTTP/1.1\r\nConnection: close\r\n", 1))
        return await wire.rest()


def status(answer: bytes) -> int:
    return int(answer.split()[1])


async def test_only_the_owner_gets_in_and_others_cannot_tell_whether_there_is_anything() -> None:
    world = World()
    async with program(ok()) as ours, run_proxy(world) as proxy:
        world.add("mine", ours.port)
        world.add("bobs", ours.port, owner="bob")
        mine, bobs, none = (proxy.host(name) for name in ("mine", "bobs", "none"))
        assert status(await ask(proxy.port, asking(mine))) == 200
        assert status(await ask(proxy.port, by_cookie(mine))) == 200
        assert ours.received.count(b"GET / ") == 2
        theirs = [await ask(proxy.port, asking(host)) for host in (bobs, none)]
        assert theirs[0] == theirs[1]
        assert status(theirs[0]) == 404
        stranger = [await ask(proxy.port, by_cookie(host, cookie="a=b")) for host in (mine, bobs, none)]
        assert stranger[0] == stranger[1] == stranger[2]
        assert status(stranger[0]) == 401
        assert b"WWW-Authenticate: Bearer" in stranger[0]
        assert ours.received.count(b"GET / ") == 2, "nobody else reached the program"


@pytest.mark.parametrize(
    "host", ["localhost", "w.localhost", "a.b.w.localhost", "127.0.0.1", "a.w.localhost.evil.com", "x y"]
)
async def test_a_host_that_is_no_workspace_leads_nowhere(host: str) -> None:
    world = World()
    async with program(ok()) as ours, run_proxy(world) as proxy:
        world.add("a", ours.port)
        assert status(await ask(proxy.port, asking(host))) == 404
        assert not ours.connections


async def test_neither_our_cookie_nor_a_token_reaches_the_workspace_but_its_own_cookies_do() -> None:
    world = World()
    async with program(ok()) as ours, run_proxy(world) as proxy:
        world.add("a", ours.port)
        cookie = f"theme=dark; {COOKIE}={SESSION}; _xsrf=1"
        assert status(await ask(proxy.port, by_cookie(proxy.host("a"), cookie=cookie))) == 200
        assert status(await ask(proxy.port, asking(proxy.host("a"), f"Cookie: {cookie}"))) == 200
        assert SESSION.encode() not in ours.received
        assert TOKEN.encode() not in ours.received
        assert ours.received.count(b"Cookie: theme=dark; _xsrf=1\r\n") == 2


async def test_the_workspace_is_told_who_asked_and_not_what_a_client_claims() -> None:
    world = World()
    async with program(ok()) as ours, run_proxy(world, scheme="https") as proxy:
        world.add("a", ours.port)
        claims = (
            "X-Forwarded-For: 1.2.3.4",
            "x-forwarded-proto: gopher",
            "Forwarded: for=1.2.3.4",
            "X-Real-Ip: 1.2.3.4",
        )
        assert status(await ask(proxy.port, asking(proxy.host("a"), *claims))) == 200
        assert b"1.2.3.4" not in ours.received
        for line in (
            f"X-Forwarded-For: {LOOPBACK}",
            "X-Forwarded-Proto: https",
            f"X-Forwarded-Host: {proxy.host('a')}",
        ):
            assert ours.received.count(line.encode() + b"\r\n") == 1


async def test_a_page_of_another_workspace_cannot_use_the_owners_cookie() -> None:
    world = World()
    async with program(ok()) as ours, run_proxy(world) as proxy:
        world.add("a", ours.port)
        host = proxy.host("a")
        foreign = f"Origin: http://{proxy.host('b')}"
        assert status(await ask(proxy.port, by_cookie(host, foreign, method="POST"))) == 403
        assert status(await ask(proxy.port, by_cookie(host, foreign))) == 403
        assert (
            status(await ask(proxy.port, by_cookie(host, "Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors")))
            == 403
        )
        assert not ours.connections
        assert status(await ask(proxy.port, by_cookie(host, f"Origin: http://{host}", method="POST"))) == 200
        assert (
            status(await ask(proxy.port, by_cookie(host, "Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: navigate")))
            == 200
        )


async def test_a_workspace_cannot_set_our_cookie_or_one_for_others() -> None:
    world = World()
    lines = (f"Set-Cookie: {COOKIE}=forged; Path=/", "Set-Cookie: a=1; Domain=localhost; Path=/")
    async with program(ok(b"ok", *lines)) as ours, run_proxy(world) as proxy:
        world.add("a", ours.port)
        answer = await ask(proxy.port, asking(proxy.host("a")))
        assert b"forged" not in answer
        assert b"Set-Cookie: a=1; Path=/\r\n" in answer


async def test_another_suffix_is_a_setting() -> None:
    world = World()
    async with program(ok()) as ours, run_proxy(world, suffix="work.example.com") as proxy:
        world.add("a", ours.port)
        assert status(await ask(proxy.port, asking("A.Work.Example.com"))) == 200
        assert status(await ask(proxy.port, asking(proxy.host("a")))) == 404


async def test_a_directory_that_is_away_is_said_so_and_one_that_fails_harms_nobody_else() -> None:
    class Away(World):
        failure: Exception | None = None

        async def find(self, name: str) -> Destination | None:
            if self.failure is not None:
                raise self.failure
            return await super().find(name)

    world = Away()
    async with program(ok()) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        for failure, expected in ((StoreDownError(), 503), (KeyError("a mistake"), 500), (None, 200)):
            world.failure = failure
            await wire.send(asking(proxy.host("a")))
            head = await wire.head()
            assert status(head) == expected
            assert (b"Retry-After" in head) is (expected == 503)
            length = int(head.lower().split(b"content-length: ")[1].split()[0])
            assert b"mistake" not in await wire.reader.readexactly(length)


# --- waking -----------------------------------------------------------------------------------------------------------


async def test_a_person_gets_a_page_that_waits_and_then_the_workspace() -> None:
    world = World()
    async with program(ok(b"awake")) as ours, run_proxy(world) as proxy:
        place = world.add("a", ours.port, condition=WorkspaceReadiness.ASLEEP)
        page = await ask(proxy.port, by_cookie(proxy.host("a"), "Accept: text/html,application/xhtml+xml"))
        assert status(page) == 503
        assert b"Content-Type: text/html" in page
        assert b'<meta http-equiv="refresh" content="2">' in page
        assert b"<b>a</b> is starting" in page
        assert b"Cache-Control: no-store" in page
        assert world.woken == {place.workspace: 1}
        world.add("a", ours.port)
        assert (await ask(proxy.port, by_cookie(proxy.host("a"), "Accept: text/html"))).endswith(b"awake")


async def test_a_refusal_is_a_page_for_a_person_and_a_sentence_for_a_program() -> None:
    world = World()
    async with run_proxy(world) as proxy:
        world.add("a", 1, condition=WorkspaceReadiness.FAILED)
        page = await ask(proxy.port, by_cookie(proxy.host("a"), "Accept: text/html"))
        sentence = await ask(proxy.port, by_cookie(proxy.host("a")))
        assert status(page) == status(sentence) == 503
        assert b"Content-Type: text/html" in page
        assert b"Content-Security-Policy: default-src 'none'" in page
        assert b"<code>lapse workspaces show</code> says why" in page
        assert b"Content-Type: text/plain" in sentence
        assert b"<" not in sentence


@pytest.mark.parametrize("lines", [["Accept: application/json"], [], ["Accept: */*"]])
async def test_a_program_is_told_when_to_ask_again(lines: list[str]) -> None:
    world = World()
    async with run_proxy(world) as proxy:
        place = world.add("a", 1, condition=WorkspaceReadiness.ASLEEP)
        answer = await ask(proxy.port, asking(proxy.host("a"), *lines))
        assert status(answer) == 503
        assert b"Retry-After: 2\r\n" in answer
        assert b"<html" not in answer
        assert world.woken == {place.workspace: 1}


async def test_a_posted_form_is_not_answered_with_a_page_that_reloads() -> None:
    world = World()
    async with run_proxy(world) as proxy:
        world.add("a", 1, condition=WorkspaceReadiness.ASLEEP)
        answer = await ask(proxy.port, asking(proxy.host("a"), "Accept: text/html", "Content-Length: 0", method="POST"))
        assert status(answer) == 503
        assert b"refresh" not in answer


async def test_somebody_else_wakes_nothing() -> None:
    world = World()
    async with run_proxy(world) as proxy:
        world.add("a", 1, owner="bob", condition=WorkspaceReadiness.ASLEEP)
        assert status(await ask(proxy.port, asking(proxy.host("a")))) == 404
        foreign = "Origin: https://evil.com"
        world.add("b", 1, condition=WorkspaceReadiness.ASLEEP)
        assert status(await ask(proxy.port, by_cookie(proxy.host("b"), foreign))) == 403
        assert not world.woken


async def test_a_visit_revives_a_failed_workspace_and_waits_for_it() -> None:
    world = World(revives=True)
    async with run_proxy(world) as proxy:
        place = world.add("a", 1, condition=WorkspaceReadiness.FAILED)
        page = await ask(proxy.port, by_cookie(proxy.host("a"), "Accept: text/html"))
        assert status(page) == 503
        assert b"<b>a</b> is starting" in page
        assert world.woken == {place.workspace: 1}


async def test_the_owner_is_told_what_is_wrong() -> None:
    world = World()
    async with run_proxy(world) as proxy:
        for condition in (WorkspaceReadiness.FAILED, WorkspaceReadiness.ASLEEP):
            place = world.add("a", 1, condition=condition)
            world.places["a"] = replace(place, problem="It listens on <port> 9001.")
            page = await ask(proxy.port, by_cookie(proxy.host("a"), "Accept: text/html"))
            assert b"It listens on &lt;port&gt; 9001." in page


async def test_a_failed_workspace_is_not_woken() -> None:
    world = World()
    async with run_proxy(world) as proxy:
        world.add("a", 1, condition=WorkspaceReadiness.FAILED)
        answer = await ask(proxy.port, asking(proxy.host("a")))
        assert status(answer) == 503
        assert b"failed" in answer
        assert b"Retry-After" not in answer
        assert not world.woken


async def test_a_websocket_waits_for_its_workspace() -> None:
    world = World()
    async with program(ACCEPTED) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        place = world.add("a", ours.port, condition=WorkspaceReadiness.ASLEEP)
        await wire.send(asking(proxy.host("a"), *UPGRADE))
        await until(lambda: world.woken, "waking")
        assert not ours.connections
        world.add("a", ours.port)
        assert await wire.status() == 101
        assert world.woken == {place.workspace: 1}
        assert list(world.leases.values()) == [place.workspace]


async def test_a_websocket_is_not_joined_to_a_program_that_is_being_stopped() -> None:
    class Stopping(World):
        """Looks ready for a moment longer than it is, as a directory that remembers does."""

        async def connected(self, workspace: WorkspaceId) -> None:
            await super().connected(workspace)
            if self.announced[workspace] == 1:
                self.add("a", ours.port, condition=WorkspaceReadiness.ASLEEP)
                raise GoingDownError

    world = Stopping()
    async with program(ACCEPTED) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        place = world.add("a", ours.port)
        await wire.send(asking(proxy.host("a"), *UPGRADE))
        await until(lambda: world.woken, "waking")
        assert not ours.connections
        world.add("a", ours.port)
        assert await wire.status() == 101
        await until(lambda: list(world.leases.values()) == [place.workspace], "one lease, of the second try")


async def test_a_websocket_that_leaves_while_it_waits_leaves_nothing_behind() -> None:
    world = World()
    async with program(ACCEPTED) as ours, run_proxy(world) as proxy:
        world.add("a", ours.port, condition=WorkspaceReadiness.ASLEEP)
        async with await Wire.to(proxy.port) as wire:
            await wire.send(asking(proxy.host("a"), *UPGRADE))
            await until(lambda: world.woken, "waking")
        await until(lambda: not proxy.server.clients, "the end of the connection")
        world.add("a", ours.port)
        await SystemClock().sleep(0.3)  # longer than it takes to look again
        assert not ours.connections
        assert not world.leases


SLEEPING = Destination(WorkspaceId("w"), OWNER, WorkspaceReadiness.ASLEEP)


async def waiting_websocket(becomes: Destination | None, seconds: float) -> Destination | DirectResponse | None:
    """Let a websocket wait so long in virtual time, while the workspace becomes something else after a second."""
    world, clock = World(places={"a": SLEEPING}), VirtualClock()
    router = Router(
        directory=world,
        authenticator=world,
        waker=world,
        clock=clock,
        limits=ProxyLimits(wake_seconds=60),
        suffix="w.localhost",
        scheme="http",
    )
    head = request_head(asking("a.w.localhost", *UPGRADE)[:-4], most_fields=100)
    task = asyncio.get_running_loop().create_task(router.route(head, b"peer"))
    for quarter in range(int(seconds * 4)):
        for _ in range(5):
            await clock.sleep(0)
        clock.advance(0.25)
        if quarter == 4 and becomes is not SLEEPING:
            world.places = {} if becomes is None else {"a": becomes}
    for _ in range(5):
        await clock.sleep(0)
    if task.done():
        received = task.result()
        return received if isinstance(received, DirectResponse) else received[1]
    task.cancel()
    return None


READY = Destination(WorkspaceId("w"), OWNER, WorkspaceReadiness.READY, UpstreamAddress(LOOPBACK, 1))


@pytest.mark.parametrize(
    ("becomes", "seconds", "outcome"),
    [
        (READY, 2, READY),
        (SLEEPING, 59, None),
        (SLEEPING, 61, 503),
        (None, 2, 404),
        (Destination(WorkspaceId("w"), "bob", WorkspaceReadiness.READY, UpstreamAddress(LOOPBACK, 1)), 2, 404),
        (Destination(WorkspaceId("w"), OWNER, WorkspaceReadiness.FAILED), 2, 503),
    ],
    ids=["comes up", "not yet", "never", "is deleted", "changes hands", "fails"],
)
async def test_how_a_websockets_wait_ends(becomes: Destination | None, seconds: float, outcome: object) -> None:
    result = await waiting_websocket(becomes, seconds)
    assert (result.status if isinstance(result, DirectResponse) else result) == outcome


async def test_a_workspace_gets_its_secret_from_the_proxy_and_from_nobody_else_also_over_a_unix_socket(
    tmp_path: Path,
) -> None:
    world, got = World(), bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.extend(await reader.readuntil(b"\r\n\r\n"))
        writer.write(ok())
        writer.close()

    path = str(tmp_path / "s")
    server = await asyncio.start_unix_server(serve, path)
    async with server, run_proxy(world) as proxy:
        place = world.add("a", 1)
        world.places["a"] = replace(place, address=UpstreamAddress(LOOPBACK, 1, path, "s3cret"))
        for lines in ([], ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: a"]):
            got.clear()
            async with await Wire.to(proxy.port) as wire:
                forged = ["X-Lapse-Workspace-Secret: forged", "X_Lapse_Workspace_Secret: forged"]
                await wire.send(asking(proxy.host("a"), *forged, *lines))
                await wire.status()
            assert got.count(b"X-Lapse-Workspace-Secret: s3cret\r\n") == 1
            assert b"forged" not in got
