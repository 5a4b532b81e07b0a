"""Everything that can be wrong with a server: a clear error, nothing guessed, nothing lost, and life goes on after."""

from __future__ import annotations

import asyncio
import socket
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
import redis

import lapse
from lapse.core.clock import SystemClock
from lapse.keys.errors import (
    BackendClosedError,
    BackendError,
    BackendMisfitError,
    BackendUnavailableError,
    OutcomeUnknownError,
)
from tests.servers import Relay, redis_server, wait_until
from tests.servers.ports import reserved_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.keys.store import AppKeys
    from tests.integration.keys_redis.conftest import Raw, Start

RECORD = "lapse:{0000000400000007}:k"
HASTY = "?timeout=300ms&connect_timeout=300ms"

WRITES: dict[str, Callable[[AppKeys], object]] = {
    "insert": lambda app: app.insert_if_not_exists("new", "v", 60),
    "put": lambda app: app.put("k", "w", 60),
    "swap": lambda app: app.compare_and_swap("k", "v", "w", 60),
    "touch": lambda app: app.touch("k", 60),
    "delete": lambda app: app.delete("k"),
    "delete-if": lambda app: app.compare_and_delete("k", "v"),
    "insert-many": lambda app: app.insert_many([("new", "v", 60)]),
}
READS: dict[str, Callable[[AppKeys], object]] = {
    "get": lambda app: app.ttl_get("k"),
    "find": lambda app: app.get_item("k"),
    "ttl": lambda app: app.query_ttl("k"),
    "get-many": lambda app: app.get_many(["k"]),
    "scan": lambda app: app.scan(),
}


def told(error: BaseException) -> str:
    """Everything that a log could show of an error."""
    return "".join(traceback.format_exception(error)) + repr(error)


# --- who may not come in ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("login", "problem"),
    [
        (":wr0ng-s3cret@", "the server refused the user name or the password"),
        ("somebody:wr0ng-s3cret@", "the server refused the user name or the password"),
        ("", "the server wants a password, and the URL has none"),
    ],
)
def test_a_wrong_password_is_said_and_not_shown(start: Start, login: str, problem: str) -> None:
    with start(requirepass="right-s3cret") as server:
        with pytest.raises(BackendUnavailableError, match=problem) as caught:
            lapse.open_keys(f"redis://{login}127.0.0.1:{server.port}")

        assert "s3cret" not in told(caught.value)
        assert isinstance(caught.value.__cause__, redis.RedisError)
        with lapse.open_keys(server.keys_url()) as keys:
            assert keys.app(7).ttl_get("k") is None


def test_a_password_that_is_changed_meanwhile_refuses_new_connections_only(start: Start, raw: Raw) -> None:
    with start(requirepass="first") as server, lapse.open_keys(server.keys_url()) as keys:
        keys.app(7).put("k", "v", 60)
        client = raw(server)
        client.config_set("requirepass", "second")
        assert keys.app(7).ttl_get("k") == "v"

        client.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(BackendUnavailableError, match="refused the user name or the password"):
            wait_until(lambda: keys.app(7).touch("k", 60) is None)


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("127.0.0.1", r"no server listens there \(connection refused\)"),
        ("localhost", "(no server listens there|no address of the host answers)"),
    ],
)
def test_a_wrong_host_or_port(host: str, problem: str) -> None:
    with reserved_port() as port:
        url = f"redis://:s3cret@{host}:{port}/0"
        with pytest.raises(BackendUnavailableError, match=rf"redis://{host}:{port}/0 .*{problem}") as caught:
            lapse.open_keys(url)

    assert "s3cret" not in told(caught.value)
    assert isinstance(caught.value.__cause__, redis.RedisError)


def test_a_host_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}{HASTY}"
        with pytest.raises(BackendUnavailableError, match=r"no connection came about within 0\.3 s"):
            lapse.open_keys(url)


def test_a_database_that_is_not_there(start: Start) -> None:
    with (
        start(config={"databases": "2"}) as server,
        pytest.raises(BackendMisfitError, match="no database of this number"),
    ):
        lapse.open_keys(server.keys_url("2"))


def test_a_server_without_room_for_more_clients(start: Start) -> None:
    with start(config={"maxclients": "3"}) as server, ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(socket.create_connection((server.host, server.port)))
        with pytest.raises(BackendUnavailableError, match="maxclients"):
            lapse.open_keys(server.keys_url())


def test_a_server_that_is_too_old_lacks_a_command(start: Start) -> None:
    with (
        start(config={"rename-command": 'PEXPIRETIME ""'}) as server,
        pytest.raises(BackendMisfitError, match=r"Redis 7\.0 or Valkey 7\.2"),
    ):
        lapse.open_keys(server.keys_url())


# --- TLS (the Valkey of the package registry has none) ----------------------------------------------------------------


@pytest.mark.server("redis", private=True)
def test_with_tls_certificates_are_checked() -> None:
    with redis_server(tls=True) as server:
        with lapse.open_keys(f"{server.keys_url()}?ca={server.ca_file}") as keys:
            keys.app(7).put("k", "v", 60)
            assert keys.app(7).ttl_get("k") == "v"
        with pytest.raises(BackendUnavailableError, match=r"certificate cannot be trusted .*\?ca=FILE"):
            lapse.open_keys(server.keys_url())
        with pytest.raises(BackendUnavailableError, match="certificate cannot be trusted"):
            lapse.open_keys(f"rediss://127.1:{server.port}/0?ca={server.ca_file}")  # the same address by another name


@pytest.mark.server("redis", private=True)
def test_a_client_without_tls_at_a_port_with_tls_is_told_so() -> None:
    with redis_server(tls=True) as server, pytest.raises(BackendUnavailableError, match="write rediss://"):
        lapse.open_keys(f"redis://127.0.0.1:{server.port}/0")


def test_a_client_with_tls_at_a_port_without_tls_is_told_so(start: Start) -> None:
    with start() as server, pytest.raises(BackendUnavailableError, match=r"within 0\.5 s; .*redis://"):
        lapse.open_keys(f"rediss://127.0.0.1:{server.port}/0?connect_timeout=500ms")


@pytest.mark.server("redis", private=True)
def test_a_server_that_wants_a_clients_certificate_gets_it() -> None:
    with redis_server(tls=True, config={"tls-auth-clients": "optional"}) as server:
        assert server.ca_file is not None
        with redis.Redis.from_url(server.url, ssl_ca_certs=str(server.ca_file)) as client:
            client.config_set("tls-auth-clients", "yes")
        pair = f"&cert={server.ca_file.with_name('server.crt')}&key={server.ca_file.with_name('server.key')}"
        with lapse.open_keys(f"{server.keys_url()}?ca={server.ca_file}{pair}") as keys:
            assert keys.app(7).insert_if_not_exists("k", "v", 60)
        with pytest.raises(BackendUnavailableError):
            lapse.open_keys(f"{server.keys_url()}?ca={server.ca_file}")


# --- a server that does not take writes -------------------------------------------------------------------------------


@pytest.mark.parametrize("write", WRITES)
def test_a_read_only_replica_is_read_and_refuses_writes(start: Start, raw: Raw, write: str) -> None:
    with start() as primary, lapse.open_keys(primary.keys_url()) as keys:
        keys.app(7).put("k", "v", 60)
        keys.app(7).put("over", "v", 1)
        with start(replicaof=primary) as replica, lapse.open_keys(replica.keys_url()) as other:
            app = other.app(7)
            wait_until(lambda: app.ttl_get("over") is None)
            assert [bool(read(app)) for read in READS.values()] == [True] * len(READS)
            assert [item.key for item in app.scan()] == ["k"]
            with pytest.raises(BackendUnavailableError, match="read-only replica"):
                WRITES[write](app)
            assert raw(primary).get(RECORD) == b"v"


def test_a_replica_on_which_nobody_recorded_buckets_is_refused(start: Start) -> None:
    with (
        start() as primary,
        start(replicaof=primary) as replica,
        pytest.raises(BackendUnavailableError, match="read-only replica"),
    ):
        lapse.open_keys(replica.keys_url())


def test_at_maxmemory_nothing_is_written_and_nothing_is_lost(start: Start, raw: Raw) -> None:
    with start() as server, lapse.open_keys(server.keys_url()) as keys:
        app, client = keys.app(7), raw(server)
        app.insert_many([("k", "v", 60), ("gone", "v", 60)])
        # Filling it up would end near the limit: a buffer that the server returns then is room for a small write.
        client.config_set("maxmemory", 1)
        before = set(client.keys("lapse:*"))

        for write in ("insert", "put", "swap", "insert-many"):
            with pytest.raises(BackendUnavailableError, match=r"out of memory \(maxmemory\); nothing was written"):
                WRITES[write](app)
        assert set(client.keys("lapse:*")) == before
        assert client.zrange("lapse:{0000000400000007}#names", 0, -1) == [b"gone", b"k"]
        assert [bool(read(app)) for read in READS.values()] == [True] * len(READS)
        assert app.delete("gone")
        with lapse.open_keys(server.keys_url()) as again:  # opening needs no memory
            assert again.app(7).ttl_get("k") == "v"

        client.config_set("maxmemory", 0)
        assert app.compare_and_swap("k", "v", "w", 60)


def test_a_server_that_lacks_its_replicas_takes_no_writes(start: Start, raw: Raw) -> None:
    with start() as server, lapse.open_keys(server.keys_url()) as keys:
        raw(server).config_set("min-replicas-to-write", 1)
        with pytest.raises(BackendUnavailableError, match="min-replicas-to-write"):
            keys.app(7).put("k", "v", 60)
        assert keys.app(7).ttl_get("k") is None


def test_a_server_that_is_still_loading_its_data(start: Start, raw: Raw) -> None:
    slow = {"key-load-delay": "5000", "loading-process-events-interval-bytes": "1024"}
    with start(config=slow) as server, lapse.open_keys(server.keys_url()) as keys:
        client = raw(server)
        with client.pipeline() as pipe:
            for number in range(1_000):
                pipe.set(f"other:{number}", "x" * 100)
            pipe.execute()
        client.save()
        server.kill()
        assert server.control is not None
        server.control.process.start()
        wait_until(lambda: _port_answers(server.port))
        with pytest.raises(BackendUnavailableError, match="still loading"):
            lapse.open_keys(server.keys_url())
        with pytest.raises(BackendUnavailableError, match="still loading"):
            keys.app(7).put("k", "v", 60)


def _port_answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


# --- connections that break, answers that do not come -----------------------------------------------------------------


@pytest.mark.parametrize("name", WRITES)
def test_a_write_whose_connection_is_cut_before_its_answer_is_of_unknown_outcome(
    start: Start, raw: Raw, name: str
) -> None:
    with start() as server, Relay(server.port) as relay, lapse.open_keys(server.keys_url(port=relay.port)) as keys:
        app, client = keys.app(7), raw(server)
        WRITES[name](app)  # so that the server knows the script
        app.delete("new")
        app.put("k", "v", 30)
        before = _state(client)
        relay.silence(up=False, down=True)  # the request reaches the server, its answer does not come back
        with ThreadPoolExecutor(1) as thread:
            write = thread.submit(WRITES[name], app)
            wait_until(lambda: _state(client) != before, what="the write to be applied")
            applied = _state(client)
            relay.cut()
            with pytest.raises(OutcomeUnknownError, match="connection was lost") as caught:
                write.result()
        assert isinstance(caught.value.__cause__, redis.RedisError)
        relay.speak()

        assert (app.ttl_get("k") or "").encode() == (client.get(RECORD) or b"")  # the store goes on,
        assert _state(client) == applied  # and nothing was sent a second time


def _state(client: redis.Redis) -> tuple[object, ...]:
    return (
        client.get(RECORD),
        client.pexpiretime(RECORD),
        client.get(RECORD[:-1] + "new"),
        client.info("commandstats")["cmdstat_evalsha"]["calls"],
    )


def test_a_swap_that_never_reached_the_server_is_of_unknown_outcome_as_well(start: Start, raw: Raw) -> None:
    with start() as server, Relay(server.port) as relay, lapse.open_keys(server.keys_url(port=relay.port)) as keys:
        app = keys.app(7)
        app.put("k", "v", 60)
        up = relay.counts.bytes_up
        relay.silence()
        with ThreadPoolExecutor(1) as thread:
            swap = thread.submit(WRITES["swap"], app)
            threading.Event().wait(0.3)
            relay.cut()
            with pytest.raises(OutcomeUnknownError):
                swap.result()
        assert relay.counts.bytes_up == up
        assert raw(server).get(RECORD) == b"v"


def test_a_read_whose_connection_is_cut_is_asked_again(start: Start) -> None:
    with start() as server, Relay(server.port) as relay, lapse.open_keys(server.keys_url(port=relay.port)) as keys:
        app = keys.app(7)
        app.put("k", "v", 60)
        for read in READS.values():
            relay.silence(up=False, down=True)
            turns = relay.counts.requests
            with ThreadPoolExecutor(1) as thread:
                answer = thread.submit(read, app)
                wait_until(lambda turns=turns: relay.counts.requests > turns)  # type: ignore[misc]
                relay.cut()
                relay.speak()
                assert answer.result()


def test_a_server_that_is_killed_in_the_middle_of_a_swap(start: Start) -> None:
    with start(durable=True) as server, lapse.open_keys(server.keys_url()) as keys:
        app = keys.app(7)
        app.put("k", "v", 60)
        server.pause()
        with ThreadPoolExecutor(1) as thread:
            swap = thread.submit(WRITES["swap"], app)
            threading.Event().wait(0.3)
            server.kill()
            with pytest.raises(OutcomeUnknownError):
                swap.result()
        with pytest.raises(BackendUnavailableError):
            app.ttl_get("k")
        with pytest.raises(BackendUnavailableError):  # not unknown: no connection, so nothing was sent
            WRITES["swap"](app)

        server.start()
        assert app.ttl_get("k") == "v"
        assert WRITES["swap"](app) is True


def test_after_a_restart_nothing_is_lost_and_no_outcome_is_unknown(start: Start) -> None:
    with start(durable=True) as server, lapse.open_keys(server.keys_url()) as keys:
        app = keys.app(7)
        with ThreadPoolExecutor(8) as threads:  # several connections that will all be stale
            assert list(threads.map(lambda n: app.insert_if_not_exists(f"key-{n}", "v", 60), range(32))) == [True] * 32
        server.restart()

        assert len(app.scan()) == 32
        for number in range(32):
            assert app.compare_and_swap(f"key-{number}", "v", "w", 60)


def test_scripts_that_the_server_forgot_are_sent_again(start: Start, raw: Raw) -> None:
    with start() as server, lapse.open_keys(server.keys_url()) as keys:
        app, client = keys.app(7), raw(server)
        app.put("k", "v", 60)
        for operation in (*READS.values(), *WRITES.values()):
            client.script_flush()
            operation(app)
        client.script_flush()
        assert app.insert_many([(f"many-{number}", "v", 60) for number in range(250)]) == [True] * 250


@pytest.mark.parametrize("name", [*READS, *WRITES])
def test_a_server_that_stands_still_is_an_error_in_time_and_works_again_after(start: Start, name: str) -> None:
    operation = READS.get(name) or WRITES[name]
    with start() as server, lapse.open_keys(f"{server.keys_url()}{HASTY}") as keys:
        app = keys.app(7)
        app.put("k", "v", 60)
        with server.paused(), pytest.raises(BackendError, match=r"no answer came within 0\.3 s") as caught:
            operation(app)

        assert type(caught.value) is (BackendUnavailableError if name in READS else OutcomeUnknownError)
        wait_until(lambda: _works(app), what="the server to answer again")


def _works(app: AppKeys) -> bool:
    try:
        app.put("k", "again", 60)
    except BackendError:
        return False
    return app.ttl_get("k") == "again"


def test_a_server_that_stands_still_cannot_be_opened(start: Start) -> None:
    with start() as server, server.paused(), pytest.raises(BackendUnavailableError, match=r"within 0\.3 s"):
        lapse.open_keys(f"{server.keys_url()}{HASTY}")


# --- many callers, several loops --------------------------------------------------------------------------------------


async def test_callers_share_a_bounded_number_of_connections(start: Start, raw: Raw) -> None:
    with start() as server:
        client = raw(server)
        before = len(client.client_list())
        async with lapse.open_keys_async(f"{server.keys_url()}?connections=3") as keys:
            app = keys.app(7)
            answers = await asyncio.gather(*(app.insert_if_not_exists(f"key-{n}", "v", 60) for n in range(100)))

            assert answers == [True] * 100
            assert len(client.client_list()) == before + 3
        wait_until(lambda: len(client.client_list()) == before)


async def test_a_caller_who_waits_too_long_for_a_connection_is_told_how_to_get_more(start: Start) -> None:
    with start() as server:
        async with lapse.open_keys_async(f"{server.keys_url()}?connections=1&timeout=1s") as keys:
            app = keys.app(7)
            server.pause()
            first = asyncio.create_task(app.put("k", "v", 60))
            await SystemClock().sleep(0.5)
            second = asyncio.create_task(app.put("k", "v", 60))
            third = asyncio.create_task(app.put("k", "v", 60))
            errors = await asyncio.gather(first, second, third, return_exceptions=True)
            server.resume()

        assert isinstance(errors[0], OutcomeUnknownError)
        assert any(isinstance(error, BackendUnavailableError) for error in errors)
        assert any("connections=" in str(error) for error in errors)


async def test_a_caller_who_is_cancelled_leaves_no_answer_behind_for_the_next(start: Start) -> None:
    with start() as server:
        async with lapse.open_keys_async(f"{server.keys_url()}?connections=1") as keys:
            app = keys.app(7)
            await app.put("k", "v", 60)
            await app.put("other", "w", 60)
            with server.paused():
                reading = asyncio.create_task(app.ttl_get("k"))
                await SystemClock().sleep(0.1)
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
            assert await app.ttl_get("other") == "w"


def test_a_closed_store_says_so(start: Start) -> None:
    with start() as server:
        keys = lapse.open_keys(server.keys_url())
        app = keys.app(7)
        app.put("k", "v", 60)
        keys.close()
        keys.close()
        with pytest.raises(BackendClosedError):
            app.ttl_get("k")


def test_a_cluster_that_lost_its_slots_is_a_misfit(start: Start, raw: Raw) -> None:
    with start(cluster=True) as server, lapse.open_keys(server.keys_url()) as keys:
        keys.app(7).put("k", "v", 60)
        raw(server).execute_command("CLUSTER", "DELSLOTSRANGE", 0, 16383)  # type: ignore[no-untyped-call]
        with pytest.raises(BackendMisfitError, match="Redis Cluster"):
            wait_until(lambda: keys.app(7).ttl_get("k") is None)
