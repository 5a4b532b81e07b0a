"""Each shared server really answers its usual driver, and is the version that the specifications speak of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis
from aiobotocore.session import get_session
from cassandra.cluster import Cluster

from tests.servers.pytest_plugin import each

if TYPE_CHECKING:
    from tests.servers import Server


@pytest.mark.parametrize("shared_server", each("redis", "valkey"), indirect=True)
def test_redis_and_valkey_answer_a_ping(shared_server: Server) -> None:
    with redis.Redis.from_url(shared_server.url) as client:
        assert client.ping()


def test_redis_is_seven_or_newer(shared_redis: Server) -> None:
    with redis.Redis.from_url(shared_redis.url) as client:
        facts: Any = client.info("server")
    assert facts["redis_version"] == shared_redis.version
    assert int(shared_redis.version.split(".")[0]) >= 7


def test_valkey_is_nine_or_newer(shared_valkey: Server) -> None:
    with redis.Redis.from_url(shared_valkey.url) as client:
        facts: Any = client.info("server")
    assert facts["valkey_version"] == shared_valkey.version
    assert int(shared_valkey.version.split(".")[0]) >= 9


def test_cassandra_is_5_0_and_does_lightweight_transactions(shared_cassandra: Server) -> None:
    cluster = Cluster([shared_cassandra.host], port=shared_cassandra.port)
    try:
        session = cluster.connect()
        version = session.execute("SELECT release_version FROM system.local").one().release_version
        assert version == shared_cassandra.version
        assert version.startswith("5.0.")
        session.execute(
            "CREATE KEYSPACE answers WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        session.execute("CREATE TABLE answers.t (k text PRIMARY KEY, v text)")
        insert = "INSERT INTO answers.t (k, v) VALUES ('a', 'b') IF NOT EXISTS"
        assert [session.execute(insert).one().applied for _ in range(2)] == [True, False]
        session.execute("DROP KEYSPACE answers")
    finally:
        cluster.shutdown()


async def test_dynamodb_makes_a_table_whatever_the_credentials(shared_dynamodb: Server) -> None:
    session = get_session()
    session.set_credentials("one", "made-up")
    other = get_session()
    other.set_credentials("two", "made-up")
    async with (
        session.create_client("dynamodb", region_name="eu-west-1", endpoint_url=shared_dynamodb.url) as first,
        other.create_client("dynamodb", region_name="us-east-1", endpoint_url=shared_dynamodb.url) as second,
    ):
        await first.create_table(
            TableName="answers",
            KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "k", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        assert "answers" in (await second.list_tables())["TableNames"]
        await second.delete_table(TableName="answers")


def test_postgres_is_fourteen_or_newer_and_not_run_by_root(shared_postgres: Server) -> None:
    with psycopg.connect(shared_postgres.url) as connection:
        row = connection.execute("SHOW server_version_num").fetchone()
    assert row is not None
    assert int(row[0]) >= 140_000
    assert Path(f"/proc/{shared_postgres.pid}").stat().st_uid != 0


@pytest.mark.parametrize("shared_server", each("redis", "valkey", "cassandra", "postgres"), indirect=True)
def test_all_but_dynamodb_listen_on_loopback_only(shared_server: Server) -> None:
    listening = {address for address, port in _listening() if port == shared_server.port}
    assert listening == {"0100007F"}  # 127.0.0.1 as /proc writes it


def _listening() -> list[tuple[str, int]]:
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                address, port = words[1].split(":")
                found.append((address, int(port, 16)))
    return found


def test_a_shared_server_cannot_be_killed_by_one_test(shared_redis: Server) -> None:
    with pytest.raises(RuntimeError, match="shared by the whole run"):
        shared_redis.kill()
