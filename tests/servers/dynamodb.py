"""DynamoDB Local, Amazon's own stand-in for the service.

It listens on ALL interfaces and has no option to bind to one: anyone who can reach this machine can reach it while it
runs. Keep it to test runs, and keep nothing in it that is not made up. It takes any credentials; whatever they are and
whatever the region, all clients see the same tables.

In memory unless `durable` is set, so a restart empties it. Its native TTL removes expired items within seconds, where
the real service takes hours to days.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tests.servers.ports import LOOPBACK, reserved_port
from tests.servers.programs import find, find_java
from tests.servers.progress import Tell, tell_stderr
from tests.servers.server import Launch, Server, exchange, private_folder, running

if TYPE_CHECKING:
    from collections.abc import Iterator

MAIN_CLASS = "software.amazon.dynamodb.services.local.main.ServerRunner"
REQUEST = f"GET / HTTP/1.1\r\nHost: {LOOPBACK}\r\nConnection: close\r\n\r\n".encode()


@contextlib.contextmanager
def dynamodb_server(*, heap: str = "256m", durable: bool = False, tell: Tell = tell_stderr) -> Iterator[Server]:
    """A DynamoDB Local of its own until the block ends."""
    program = find("dynamodb", tell)
    java = find_java(tell)
    with reserved_port() as port, private_folder("dynamodb") as folder:
        (folder / "data").mkdir()
        storage = ["-dbPath", folder / "data"] if durable else ["-inMemory"]
        launch = Launch(
            program=program,
            folder=folder,
            port=port,
            url=f"http://{LOOPBACK}:{port}",
            argv=[
                *(java.path, f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
                *(f"-Dsqlite4java.library.path={program.path}", "-cp", f"{program.path}/*", MAIN_CLASS),
                *("-port", str(port), "-sharedDb", "-disableTelemetry", *storage),
            ],
            # Any answer will do: it refuses what is not signed.
            answers=lambda: exchange(port, REQUEST).startswith(b"HTTP/1.1 "),
        )
        with running(launch) as server:
            yield server
