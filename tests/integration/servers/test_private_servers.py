"""What a test may do to a server of its own: options, kill, restart, pause."""

from __future__ import annotations

import select
import ssl
from typing import Any

import psycopg
import pytest
import redis
from aiobotocore.session import get_session
from cassandra import AuthenticationFailed
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster, NoHostAvailable

from tests.servers import (
    Server,
    ServerFailedError,
    cassandra_server,
    dynamodb_server,
    postgres_server,
    redis_server,
    valkey_server,
)


def connect(server: Server, **options: str | float | None) -> redis.Redis:
    return redis.Redis.from_url(server.url, **{"socket_timeout": 5, **options})


@pytest.mark.server("redis", private=True)
def test_redis_with_a_password_refuses_a_client_without() -> None:
    with redis_server(requirepass="s3cret word") as server, connect(server, password="s3cret word") as client:
        assert client.ping()
        with (
            redis.Redis(host=server.host, port=server.port) as stranger,
            pytest.raises(redis.exceptions.AuthenticationError),
        ):
            stranger.ping()


@pytest.mark.server("redis", private=True)
def test_redis_with_tls_is_trusted_by_its_own_authority_only() -> None:
    with redis_server(tls=True) as server:
        assert server.url.startswith("rediss://")
        with connect(server, ssl_ca_certs=str(server.ca_file)) as client:
            assert client.ping()
        with (
            connect(server, ssl_ca_certs=ssl.get_default_verify_paths().openssl_cafile) as stranger,
            pytest.raises(redis.exceptions.ConnectionError, match="certificate verify failed"),
        ):
            stranger.ping()


@pytest.mark.server("redis", private=True)
def test_redis_at_its_memory_limit_refuses_writes() -> None:
    with redis_server(maxmemory="3mb") as server, connect(server) as client:
        client.set("small", "x")
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            _fill(client)
        assert client.get("small") == b"x"


def _fill(client: redis.Redis) -> None:
    for number in range(10_000):
        client.set(str(number), "x" * 10_000)


@pytest.mark.server("valkey", private=True)
def test_a_replica_has_the_data_and_is_read_only() -> None:
    with valkey_server(requirepass="secret") as primary, connect(primary) as writer:
        writer.set("k", "v")
        with valkey_server(replicaof=primary) as replica, connect(replica) as reader:
            assert reader.get("k") == b"v"
            with pytest.raises(redis.exceptions.ReadOnlyError):
                reader.set("k", "other")


@pytest.mark.server("redis", private=True)
def test_a_cluster_of_one_refuses_keys_of_different_slots_together() -> None:
    with redis_server(cluster=True) as server, connect(server) as client:
        assert client.mset({"{a}1": "x", "{a}2": "y"})
        with pytest.raises(redis.exceptions.ResponseError, match="same slot"):
            client.mset({"a": "x", "b": "y"})


@pytest.mark.server("redis", private=True)
def test_a_plain_redis_comes_back_empty_on_the_same_port() -> None:
    with redis_server() as server, connect(server) as client:
        client.set("k", "v")
        before = (server.port, server.pid)
        server.restart()
        assert client.get("k") is None
        assert server.port == before[0]
        assert server.pid != before[1]


@pytest.mark.server("redis", private=True)
def test_a_durable_redis_keeps_an_acknowledged_write_through_a_kill() -> None:
    with redis_server(durable=True) as server, connect(server) as client:
        client.set("k", "v")
        server.kill()
        assert not server.is_running()
        with pytest.raises(redis.exceptions.ConnectionError):
            client.get("k")
        server.start()
        assert client.get("k") == b"v"


@pytest.mark.server("redis", private=True)
def test_a_paused_redis_keeps_silent_and_goes_on_afterwards() -> None:
    with redis_server() as server, connect(server, socket_timeout=0.2, retry=None) as client:
        client.set("k", "v")
        with server.paused(), pytest.raises(redis.exceptions.TimeoutError):
            client.get("k")
        assert client.get("k") == b"v"


@pytest.mark.server("redis", private=True)
def test_a_paused_server_can_still_be_stopped() -> None:
    with redis_server() as server:
        server.pause()
        server.stop()
        assert not server.is_running()


@pytest.mark.server("redis", private=True)
def test_a_server_that_does_not_start_says_why_and_leaves_nothing() -> None:
    with pytest.raises(ServerFailedError, match="nonsense") as failure, redis_server(config={"nonsense": "1"}):
        pass
    assert "ended with code 1" in str(failure.value)


@pytest.mark.server("redis", private=True)
def test_the_folder_is_gone_after_the_block() -> None:
    with redis_server() as server:
        assert server.log.exists()
    assert not server.folder.exists()


@pytest.mark.server("postgres", private=True)
def test_postgres_keeps_committed_rows_through_a_kill() -> None:
    with postgres_server() as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE t AS SELECT 42 AS n")
        server.kill()
        server.start()
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT n FROM t").fetchone() == (42,)


@pytest.mark.server("postgres", private=True)
def test_a_paused_postgres_silences_open_connections_too() -> None:
    with postgres_server() as server, psycopg.connect(server.url, autocommit=True) as connection:
        with server.paused():
            connection.pgconn.send_query(b"SELECT 1")
            connection.pgconn.flush()
            assert _readable(connection.pgconn.socket, seconds=0.3) is False
        assert _readable(connection.pgconn.socket, seconds=5) is True
        while connection.pgconn.get_result() is not None:
            pass


def _readable(descriptor: int, *, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


@pytest.mark.server("dynamodb", private=True)
@pytest.mark.parametrize(("durable", "tables"), [(True, ["kept"]), (False, [])])
async def test_dynamodb_keeps_its_tables_through_a_restart_only_when_durable(
    *, durable: bool, tables: list[str]
) -> None:
    with dynamodb_server(durable=durable) as server:
        async with get_session().create_client(
            "dynamodb",
            region_name="eu-west-1",
            endpoint_url=server.url,
            aws_access_key_id="any",
            aws_secret_access_key="any",
        ) as client:
            await client.create_table(
                TableName="kept",
                KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "k", "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
            server.restart()
            assert (await client.list_tables())["TableNames"] == tables


@pytest.mark.slow
@pytest.mark.timeout(400)  # two starts of Cassandra: ten seconds, or minutes on cores that others keep busy
@pytest.mark.server("cassandra", private=True)
def test_a_durable_cassandra_with_passwords_keeps_a_write_through_a_kill() -> None:
    with cassandra_server(durable=True, auth=True) as server:
        with pytest.raises(NoHostAvailable) as refusal:
            _session(server, "wrong")
        assert any(isinstance(error, AuthenticationFailed) for error in refusal.value.errors.values())
        assert server.password is not None
        cluster, session = _session(server, server.password)
        session.execute("CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
        session.execute("CREATE TABLE k.t (k text PRIMARY KEY, v text)")
        session.execute("INSERT INTO k.t (k, v) VALUES ('a', 'b') IF NOT EXISTS")
        cluster.shutdown()
        server.kill()
        server.start()
        cluster, session = _session(server, server.password)
        assert session.execute("SELECT v FROM k.t WHERE k = 'a'").one().v == "b"
        cluster.shutdown()


def _session(server: Server, password: str) -> tuple[Any, Any]:
    login = PlainTextAuthProvider("cassandra", password)
    cluster = Cluster([server.host], port=server.port, auth_provider=login)
    try:
        return cluster, cluster.connect()
    except NoHostAvailable:
        cluster.shutdown()
        raise
