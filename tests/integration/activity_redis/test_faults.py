"""Everything that can be wrong with a server: the answer is an error or Unknown, in bounded time, and never quiet."""

from __future__ import annotations

import asyncio
import re
import socket
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from lapse.core.clock import SystemClock
from lapse.workspaces.activity.port import (
    ActivityDoubt,
    ActivityUnavailableError,
    ActivityUnknown,
    ActivityURLError,
    Connected,
    ConnectionId,
    Quiet,
    Timer,
)
from lapse.workspaces.activity.redis import RedisActivity
from lapse.workspaces.model import WorkspaceId
from tests.servers import Relay
from tests.servers.ports import reserved_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.activity_redis.conftest import Open, Raw, Start

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to" / "workspaces-on-postgresql-and-redis.md"
W = WorkspaceId("0b51ad5c-9f8e-4f5e-8b1e-0d3c6a3f7a11")
A, B = ConnectionId("a"), ConnectionId("b")
HASTY = "?timeout=500ms&connect_timeout=500ms"
PATIENCE = 60
"""How long anything may take on a busy machine. What a fault takes is bounded by time-outs far below."""

CALLS: dict[str, Callable[[RedisActivity], Awaitable[object]]] = {
    "connect": lambda activity: activity.connect(W, A, lease_seconds=60),
    "renew": lambda activity: activity.renew({A: W}, 60),
    "disconnect": lambda activity: activity.disconnect(W, A, idle_seconds=300),
    "read": lambda activity: activity.read([W]),
    "check": lambda activity: activity.check(),
}


def age(client: redis.Redis) -> None:
    """Let the store have been there for ever."""
    client.set("activity:epoch", 1)


async def eventually(activity: RedisActivity, expected: object) -> None:
    clock = SystemClock()
    async with asyncio.timeout(PATIENCE):
        while (await activity.read([W]))[W] != expected:
            await clock.sleep(0.01)


async def recovers(activity: RedisActivity, expected: object) -> None:
    """Wait until one that gives up early gets through again."""
    clock = SystemClock()
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                assert await activity.read([W]) == {W: expected}
            except ActivityUnavailableError:
                await clock.sleep(0.01)
            else:
                return


async def all_fail(activity: RedisActivity, problem: str) -> None:
    for name, call in CALLS.items():
        with pytest.raises(ActivityUnavailableError, match=problem):
            async with asyncio.timeout(PATIENCE):
                pytest.fail(f"{name} said {await call(activity)}")


# --- by the server's own clock ----------------------------------------------------------------------------------------


async def test_leases_and_timers_end_by_the_servers_clock(start: Start, opened: Open) -> None:
    with start() as server:
        async with opened(server.port, lease_seconds=0.5) as activity:
            await eventually(activity, Quiet())
            assert await activity.connect(W, A, lease_seconds=0.5)
            await eventually(activity, Quiet())
            assert await activity.renew({A: W}, 0.5) == {A}
            assert await activity.disconnect(W, A, idle_seconds=0.2)
            await eventually(activity, Quiet())


async def test_what_is_over_leaves_nothing_behind(start: Start, opened: Open, raw: Raw) -> None:
    with start() as server:
        async with opened(server.port) as activity:
            client = raw(server)
            for number in range(20):
                await activity.connect(WorkspaceId(f"w{number}"), A, lease_seconds=0.001)
                await activity.connect(WorkspaceId(f"v{number}"), A, lease_seconds=60)
                assert 0 < client.pttl(f"ws_leases:v{number}") <= 61_000
                await activity.disconnect(WorkspaceId(f"v{number}"), A, idle_seconds=0.001)
            clock = SystemClock()
            async with asyncio.timeout(PATIENCE):
                while list(client.scan_iter()) != list(client.scan_iter("activity:*")):
                    await clock.sleep(0.05)
            assert client.dbsize() == 2


async def test_a_renewed_lease_keeps_its_set(start: Start, opened: Open, raw: Raw) -> None:
    with start() as server:
        async with opened(server.port) as activity:
            client = raw(server)
            await activity.connect(W, A, lease_seconds=30)
            assert client.pttl(f"ws_leases:{W}") <= 31_000
            await activity.renew({A: W}, 60)
            assert 31_000 < client.pttl(f"ws_leases:{W}") <= 61_000


# --- not there, slow, silent ------------------------------------------------------------------------------------------


async def test_nobody_listens(opened: Open) -> None:
    with reserved_port() as port:
        async with opened(port, HASTY) as activity:
            await all_fail(activity, r"The activity store redis://127\.0\.0\.1:\d+/0 cannot .*connection refused")


async def test_a_host_that_never_answers(opened: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with opened(silent.getsockname()[1], HASTY) as activity:
            await all_fail(activity, r"no connection came about within 0\.5 s")


async def test_a_server_that_falls_silent_and_speaks_again(start: Start, opened: Open, raw: Raw) -> None:
    with start() as server, Relay(server.port) as relay:
        async with opened(server.port) as patient, opened(relay.port, HASTY) as activity:
            await patient.connect(W, A, lease_seconds=60)
            age(raw(server))
            await recovers(activity, Connected(1))
            relay.silence()
            await all_fail(activity, "no (answer|connection) came")
            relay.speak()
            await recovers(activity, Connected(1))


async def test_a_server_that_hears_and_does_not_answer_is_asked_again_by_the_caller(
    start: Start, opened: Open, raw: Raw
) -> None:
    with start() as server, Relay(server.port) as relay:
        async with opened(server.port) as patient, opened(relay.port, "?timeout=5s") as activity:
            await activity.connect(WorkspaceId("v"), A, lease_seconds=60)  # now the server knows the script
            age(raw(server))
            relay.silence(up=False)
            with pytest.raises(ActivityUnavailableError, match="no answer came"):
                await activity.connect(W, A, lease_seconds=60)
            relay.speak()
            assert await patient.read([W]) == {W: Connected(1)}, "it was done all the same"
            assert await patient.connect(W, A, lease_seconds=60) is True, "and is still told that it is the first"
            assert await patient.read([W]) == {W: Connected(1)}


async def test_a_lost_connection_is_made_again_and_nobody_notices(start: Start, opened: Open, raw: Raw) -> None:
    with start() as server, Relay(server.port) as relay:
        async with opened(relay.port, "?timeout=60s&connect_timeout=60s") as activity:
            await activity.connect(WorkspaceId("v"), A, lease_seconds=60)  # now the server knows the script
            age(raw(server))
            client = raw(server)
            relay.silence(up=False)
            asked = asyncio.ensure_future(activity.connect(W, A, lease_seconds=60))
            async with asyncio.timeout(PATIENCE):
                while not client.zcard(f"ws_leases:{W}"):
                    await SystemClock().sleep(0.01)
            relay.cut()
            relay.speak()
            assert await asked is True
            assert await activity.read([W]) == {W: Connected(1)}


async def test_a_slow_server_is_waited_for_as_long_as_the_url_says(start: Start, opened: Open, raw: Raw) -> None:
    with start() as server, Relay(server.port) as relay:
        async with opened(relay.port, "?timeout=60s&connect_timeout=60s") as patient:
            await patient.check()
            age(raw(server))
            relay.delay(0.2)
            assert await patient.read([W]) == {W: Quiet()}
            async with opened(relay.port, "?timeout=100ms&connect_timeout=60s") as hasty:
                with pytest.raises(ActivityUnavailableError, match=r"no answer came within 0\.1 s"):
                    await hasty.read([W])


async def test_a_server_that_hangs(start: Start, opened: Open, raw: Raw) -> None:
    with start() as server:
        async with opened(server.port) as patient, opened(server.port, HASTY) as activity:
            await patient.connect(W, A, lease_seconds=60)
            age(raw(server))
            await recovers(activity, Connected(1))
            with server.paused():
                await all_fail(activity, "no (answer|connection) came")
            await recovers(activity, Connected(1))


# --- started again, replaced ------------------------------------------------------------------------------------------


async def test_a_server_that_was_started_again_empty(start: Start, opened: Open, raw: Raw) -> None:
    with start() as server:
        async with opened(server.port) as activity:
            await activity.connect(W, A, lease_seconds=60)
            age(raw(server))
            assert await activity.read([W]) == {W: Connected(1)}
            server.kill()
            with pytest.raises(ActivityUnavailableError):
                await activity.read([W])
            server.start()
            assert await activity.read([W]) == {W: ActivityUnknown(ActivityDoubt.EPOCH_ABSENT)}
            assert await activity.read([W]) == {W: ActivityUnknown(ActivityDoubt.EPOCH_YOUNG)}
            assert await activity.renew({A: W}, 60) == {A}
            assert await activity.connect(W, A, lease_seconds=60) is True


async def test_a_server_that_came_back_with_what_it_had_on_disk_is_not_believed_at_once(
    start: Start, opened: Open, raw: Raw
) -> None:
    with start(durable=True) as server:
        async with opened(server.port) as activity:
            await activity.connect(W, A, lease_seconds=60)
            age(raw(server))
            server.kill()
            server.start()
            assert raw(server).get("activity:epoch") == b"1"
            assert await activity.renew({A: W}, 60) == set(), "this lease came back, another may not have"
            assert await activity.read([W]) == {W: ActivityUnknown(ActivityDoubt.EPOCH_YOUNG)}
            age(raw(server))
            assert await activity.read([W]) == {W: Connected(1)}


async def test_a_replica_is_not_believed_and_takes_no_connections(start: Start, opened: Open, raw: Raw) -> None:
    with start() as primary:
        async with opened(primary.port) as activity:
            await activity.connect(W, A, lease_seconds=60)
            age(raw(primary))
            with start(replicaof=primary) as replica:
                async with opened(replica.port) as other:
                    for name in ("connect", "renew", "disconnect", "read", "check"):
                        with pytest.raises(ActivityUnavailableError, match="read-only replica"):
                            await CALLS[name](other)
            assert await activity.read([W]) == {W: Connected(1)}


async def test_scripts_that_were_flushed_are_sent_again(start: Start, opened: Open, raw: Raw) -> None:
    with start() as server:
        async with opened(server.port) as activity:
            for call in CALLS.values():
                raw(server).script_flush()
                await call(activity)


# --- full, forbidden --------------------------------------------------------------------------------------------------


async def test_a_server_without_memory_takes_no_connection_and_changes_nothing(
    start: Start, opened: Open, raw: Raw
) -> None:
    with start() as server:
        async with opened(server.port) as activity:
            client = raw(server)
            await activity.connect(W, A, lease_seconds=60)
            await activity.disconnect(W, A, idle_seconds=300)
            await activity.connect(WorkspaceId("v"), A, lease_seconds=60)
            age(client)
            client.config_set("maxmemory", "1")
            with pytest.raises(ActivityUnavailableError, match="out of memory"):
                await activity.connect(W, B, lease_seconds=60)
            found = await activity.read([W, WorkspaceId("v")])
            assert isinstance(found[W], Timer), "the connection that was refused left the timer"
            assert found[WorkspaceId("v")] == Connected(1)
            assert await activity.disconnect(WorkspaceId("v"), A, idle_seconds=300) is True
            assert isinstance((await activity.read([WorkspaceId("v")]))[WorkspaceId("v")], Timer)


@pytest.mark.parametrize("command", ["zadd", "info", "set", "pttl", "zremrangebyscore", "del"])
async def test_a_check_finds_what_a_user_may_not_do(start: Start, raw: Raw, command: str) -> None:
    with start() as server:
        rights = ["+@all", f"-{command}"]
        raw(server).acl_setuser("proxy", enabled=True, passwords=["+s3cret"], keys=["*"], commands=rights)
        activity = RedisActivity.at(f"redis://proxy:s3cret@127.0.0.1:{server.port}/0")
        with pytest.raises(ActivityUnavailableError, match=f"(?i)access rules do not let this user run {command}"):
            await activity.check()
        await activity.close()


async def test_the_least_rights_that_do(start: Start, raw: Raw) -> None:
    rules = re.search(r"ACL SETUSER lapse on >PASSWORD (.+?)\n```", HOW_TO.read_text(), re.DOTALL)
    assert rules is not None
    listed = rules[1].replace("\\\n", " ").split()
    with start() as server:
        client = raw(server)
        client.execute_command("ACL", "SETUSER", "proxy", "reset", "on", ">s3cret", *listed)  # type: ignore[no-untyped-call]
        activity = RedisActivity.at(f"redis://proxy:s3cret@127.0.0.1:{server.port}/0", lease_seconds=60)
        for call in CALLS.values():
            await call(activity)
        age(client)
        assert await activity.connect(W, A, lease_seconds=60)
        assert await activity.read([W]) == {W: Connected(1)}
        await activity.close()


async def test_keys_that_a_user_may_not_use_are_found_by_a_check(start: Start, raw: Raw) -> None:
    with start() as server:
        raw(server).acl_setuser(
            "proxy", enabled=True, passwords=["+s3cret"], keys=["ws_*", "activity:*"], commands=["+@all"]
        )
        activity = RedisActivity.at(f"redis://proxy:s3cret@127.0.0.1:{server.port}/0")
        with pytest.raises(ActivityUnavailableError, match="access rules do not let this user"):
            await activity.check()
        await activity.close()


async def test_a_wrong_password_is_said_and_not_shown(start: Start) -> None:
    with start(requirepass="right-s3cret") as server:
        activity = RedisActivity.at(f"redis://:wr0ng-s3cret@127.0.0.1:{server.port}/0")
        with pytest.raises(ActivityUnavailableError, match="refused the user name or the password") as caught:
            await activity.check()
        assert "s3cret" not in "".join(traceback.format_exception(caught.value)) + repr(caught.value)
        assert isinstance(caught.value.__cause__, redis.RedisError)
        await activity.close()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("localhost:6379", "it has no scheme; expected one of redis://, rediss://"),
        ("memory://", "'memory' is not a known scheme"),
        ("redis://localhost/x", "its path is not a database number"),
        ("redis://", "it names no server"),
        ("redis://localhost?namespace=x", "'namespace' is not an option"),
        ("redis://localhost?timeout=5", "the option timeout=5 is not valid"),
    ],
)
def test_urls_that_cannot_be_used_are_refused(url: str, problem: str) -> None:
    with pytest.raises(ActivityURLError, match=problem):
        RedisActivity.at(url)


async def test_a_thousand_workspaces_are_one_round_trip(start: Start, opened: Open, raw: Raw) -> None:
    with start() as server, Relay(server.port) as relay:
        async with opened(relay.port) as activity:
            await activity.read([W])
            age(raw(server))
            before = relay.counts.requests
            assert len(await activity.read(WorkspaceId(f"w{number}") for number in range(5000))) == 5000
            assert relay.counts.requests - before == 5
