"""Apache Cassandra 5.0, one node on loopback, tuned to start in seconds with a small heap.

A kill may lose the writes of the last moments unless `durable` is set: then each is on disk before it is answered.
A benchmark wants `full_speed`: the start then costs twice the CPU time.
`auth=True` asks clients for a password (user `cassandra`, password in `Server.password`).
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from tests.servers.ports import LOOPBACK, reserved_port
from tests.servers.programs import find, find_java
from tests.servers.progress import Tell, tell_stderr
from tests.servers.server import Launch, Server, exchange, private_folder, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# What Cassandra reaches for inside the Java platform; the list is that of its own start script.
EXPORTS = (
    *(f"java.base/{name}" for name in ("jdk.internal.misc", "jdk.internal.ref", "java.lang.ref", "sun.nio.ch")),
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
)
OPENS = (
    *(f"java.base/jdk.internal.{name}" for name in ("loader", "ref", "reflect", "math", "module", "util.jar")),
    *(f"java.base/java.{name}" for name in ("lang", "lang.module", "lang.reflect", "io", "nio", "util")),
    *(f"java.base/java.util.{name}" for name in ("concurrent", "concurrent.atomic")),
    "java.base/sun.nio.ch",
    "jdk.management/com.sun.management.internal",
)
DEFAULT_PASSWORD = "cassandra"  # of the role that every new Cassandra has
LOGBACK = """<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%-5level %date{ISO8601} %logger{0} %msg%n</pattern></encoder></appender>
<root level="INFO"><appender-ref ref="out"/></root></configuration>
"""


@contextlib.contextmanager
def cassandra_server(
    *,
    heap: str = "512m",
    durable: bool = False,
    auth: bool = False,
    full_speed: bool = False,
    config: Mapping[str, Any] | None = None,
    tell: Tell = tell_stderr,
) -> Iterator[Server]:
    """A Cassandra of its own until the block ends; `config` overrides parts of cassandra.yaml."""
    program = find("cassandra", tell)
    java = find_java(tell)
    with contextlib.ExitStack() as stack:
        port, storage, storage_tls = (stack.enter_context(reserved_port()) for _ in range(3))
        folder = stack.enter_context(private_folder("cassandra"))
        settings = {**_settings(folder, port=port, storage=storage, storage_tls=storage_tls), **_sync(durable=durable)}
        if auth:
            settings |= {"authenticator": "PasswordAuthenticator", "authorizer": "CassandraAuthorizer"}
        # JSON is YAML as well.
        (folder / "cassandra.yaml").write_text(json.dumps({**settings, **(config or {})}, indent=1), encoding="utf-8")
        (folder / "logback.xml").write_text(LOGBACK, encoding="ascii")
        password = DEFAULT_PASSWORD if auth else None
        launch = Launch(
            program=program,
            folder=folder,
            port=port,
            url=f"cassandra://{LOOPBACK}:{port}",
            argv=[java.path, *_arguments(program.path, folder, heap, full_speed=full_speed)],
            answers=lambda: _answers(port, password),
            password=password,
        )
        yield stack.enter_context(running(launch))


def _settings(folder: Path, *, port: int, storage: int, storage_tls: int) -> dict[str, Any]:
    seeds = [{"seeds": f"{LOOPBACK}:{storage}"}]
    return {
        "cluster_name": "lapse tests",
        "num_tokens": 1,
        "initial_token": "0",
        "auto_bootstrap": False,
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "endpoint_snitch": "SimpleSnitch",
        "dynamic_snitch": False,
        "seed_provider": [{"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": seeds}],
        "listen_address": LOOPBACK,
        "storage_port": storage,
        "ssl_storage_port": storage_tls,
        "rpc_address": LOOPBACK,
        "native_transport_port": port,
        "data_file_directories": [str(folder / "data")],
        **{f"{name}_directory": str(folder / name) for name in ("commitlog", "saved_caches", "hints", "cdc_raw")},
        "commitlog_segment_size": "8MiB",
        "disk_optimization_strategy": "ssd",
        "auto_snapshot": False,
        "concurrent_reads": 16,
        "concurrent_writes": 16,
        "memtable_heap_space": "64MiB",
        "memtable_offheap_space": "64MiB",
        "file_cache_size": "32MiB",
        "networking_cache_size": "16MiB",
        "key_cache_size": "8MiB",
        "compaction_throughput": "0MiB/s",
    }


def _sync(*, durable: bool) -> dict[str, Any]:
    if durable:
        return {"commitlog_sync": "batch"}
    return {"commitlog_sync": "periodic", "commitlog_sync_period": "10000ms"}


def _arguments(jars: Path, folder: Path, heap: str, *, full_speed: bool) -> list[str]:
    agent = next(jars.glob("jamm-*.jar"))
    return [
        *(f"-Xms{heap}", f"-Xmx{heap}", "-Xss512k", "-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=256m"),
        *("-XX:-UsePerfData", f"-javaagent:{agent}"),
        # Half the CPU time of a start goes into the second compiler, for a speed that tests do not need.
        *([] if full_speed else ["-XX:TieredStopAtLevel=1"]),
        *("-Djdk.attach.allowAttachSelf=true", "-Djava.security.manager=allow"),
        *(word for name in EXPORTS for word in ("--add-exports", f"{name}=ALL-UNNAMED")),
        *(word for name in OPENS for word in ("--add-opens", f"{name}=ALL-UNNAMED")),
        f"-Dcassandra.config=file://{folder}/cassandra.yaml",
        f"-Dlogback.configurationFile={folder}/logback.xml",
        *(f"-Dcassandra.storagedir={folder}", f"-Dcassandra.logdir={folder}", "-Dcassandra-foreground=yes"),
        # One node has nobody to wait for.
        *("-Dcassandra.skip_wait_for_gossip_to_settle=0", "-Dcassandra.ring_delay_ms=100"),
        "-Dcassandra.superuser_setup_delay_ms=0",
        *("-Djava.net.preferIPv4Stack=true", "-Dio.netty.tryReflectionSetAccessible=true"),
        *("-cp", f"{folder}:{jars}/*", "org.apache.cassandra.service.CassandraDaemon"),
    ]


def _frame(opcode: int, body: bytes) -> bytes:
    """One request of protocol version 4."""
    return b"\x04\x00\x00\x00" + bytes([opcode]) + len(body).to_bytes(4) + body


STARTUP = _frame(0x01, b"\x00\x01\x00\x0bCQL_VERSION\x00\x053.4.5")
READY, AUTHENTICATE, AUTH_SUCCESS = 0x02, 0x03, 0x10


def _answers(port: int, password: str | None) -> bool:
    """Whether a client could begin: the port may be open before the role that has the password is there."""
    if password is None:
        return exchange(port, STARTUP)[4:5] == bytes([READY])
    token = f"\0cassandra\0{password}".encode()
    reply = exchange(port, STARTUP, then=_frame(0x0F, len(token).to_bytes(4) + token))
    return reply[4:5] == bytes([AUTH_SUCCESS])
