"""One server of each kind for a whole run, started when first asked for.

`Pool` keeps them in this process. `RemotePool` asks the `Pool` of another process through a socket: that is how the
workers of pytest-xdist share one set, owned by their controller, whose screen also shows the progress. A file lock with
reference counting lost: the last worker to leave would have to stop servers that it did not start, and a crash would
leave the count wrong.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import socketserver
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tests.servers.cassandra import cassandra_server
from tests.servers.dynamodb import dynamodb_server
from tests.servers.errors import ServerFailedError, ServerMissingError
from tests.servers.kube.control_plane import kube_server
from tests.servers.kube.server import KubeServer
from tests.servers.postgres import postgres_server
from tests.servers.process import INTERRUPTED
from tests.servers.programs import NAMES, find_all
from tests.servers.redis_like import redis_server, valkey_server
from tests.servers.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.servers.progress import Tell

STARTERS: dict[str, Callable[[Tell], contextlib.AbstractContextManager[Server]]] = {
    "redis": lambda tell: redis_server(tell=tell),
    "valkey": lambda tell: valkey_server(tell=tell),
    "cassandra": lambda tell: cassandra_server(tell=tell),
    "dynamodb": lambda tell: dynamodb_server(tell=tell),
    "postgres": lambda tell: postgres_server(tell=tell),
    "kube": lambda tell: kube_server(csi=True, tell=tell),
}
KINDS: dict[str, type[Server]] = {"kube": KubeServer}


class Servers(Protocol):
    """What a test run asks for servers."""

    def get(self, name: str) -> Server:
        """The shared server of that name. Raises `ServerMissingError` or `ServerFailedError`, each time the same."""

    def check(self, name: str) -> None:
        """See that a private one could be started, fetching the program. Raises `ServerMissingError`."""

    def close(self) -> None:
        """Stop what was started."""


class Pool:
    """The servers of this process. Safe to use from several threads."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._jobs: dict[tuple[str, str], Future[Server | None]] = {}
        self._started: list[contextlib.ExitStack] = []
        self._threads = ThreadPoolExecutor(max_workers=2 * len(NAMES), thread_name_prefix="servers")

    def _once(self, kind: str, name: str, job: Callable[[str], Server | None]) -> Server | None:
        with self._lock:
            future = self._jobs.get((kind, name))
            if future is None:
                future = self._jobs[kind, name] = self._threads.submit(job, name)
        return future.result()

    def get(self, name: str) -> Server:
        server = self._once("start", name, self._start)
        assert server is not None
        return server

    def check(self, name: str) -> None:
        self._once("find", name, self._find)

    def _find(self, name: str) -> None:
        try:
            find_all(name, self._tell)
        except ServerMissingError as error:
            self._tell(str(error))
            raise

    def _start(self, name: str) -> Server:
        self.check(name)
        stack = contextlib.ExitStack()
        try:
            server = stack.enter_context(STARTERS[name](self._tell))
        except ServerFailedError as error:
            self._tell(str(error))
            raise
        with self._lock:
            self._started.append(stack)
        self._tell(f"{name} {server.version} ({server.source}) on port {server.port} in {server.start_seconds:.2f} s")
        return server.shared()

    def close(self) -> None:
        INTERRUPTED.set()
        self._threads.shutdown(wait=True)
        INTERRUPTED.clear()
        with ThreadPoolExecutor() as threads:
            list(threads.map(contextlib.ExitStack.close, self._started))
        self._started.clear()


def prepare(pool: Servers, *, shared: Iterable[str], private: Iterable[str]) -> None:
    """Fetch and start several at once. Says nothing of failures: who needs the server will ask again and hear of it."""
    jobs = [*((pool.get, name) for name in shared), *((pool.check, name) for name in private)]
    with ThreadPoolExecutor(max_workers=max(1, len(jobs))) as threads:
        futures = [threads.submit(job, name) for job, name in jobs]
        try:
            for future in futures:
                future.exception()
        except KeyboardInterrupt:
            INTERRUPTED.set()  # until the pool is closed
            raise


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        kind, name = json.loads(self.rfile.readline())
        assert isinstance(self.server, _Listener)
        self.wfile.write(json.dumps(self._answer(self.server.pool, kind, name)).encode() + b"\n")

    @staticmethod
    def _answer(pool: Pool, kind: str, name: str) -> dict[str, object]:
        try:
            if kind == "check":
                pool.check(name)
                return {}
            return {"server": pool.get(name).to_json()}
        except ServerMissingError as error:
            return {"missing": error.name, "reason": error.reason}
        except Exception as error:  # noqa: BLE001 - the asking process must hear of it, whatever it is
            return {"failed": str(error)}


class _Listener(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    pool: Pool


class PoolServer:
    """Where other processes ask this one's pool: a socket in a folder that only this user may enter."""

    def __init__(self, pool: Pool) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="lapse-pool-"))
        self.path = str(self._folder / "socket")
        self._listener = _Listener(self.path, _Handler)
        self._listener.pool = pool
        self._thread = threading.Thread(target=self._listener.serve_forever, name="servers-pool", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)


class RemotePool:
    """The pool of another process. Answers are kept: they do not change during a run."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, str], dict[str, object]] = {}

    def _ask(self, kind: str, name: str) -> dict[str, object]:
        with self._lock:
            known = self._answers.get((kind, name))
        if known is None:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(self._path)
                connection.sendall(json.dumps([kind, name]).encode() + b"\n")
                with connection.makefile() as answer:
                    known = json.loads(answer.readline())
            with self._lock:
                self._answers[kind, name] = known
        if "missing" in known:
            raise ServerMissingError(str(known["missing"]), str(known["reason"]))
        if "failed" in known:
            raise ServerFailedError(str(known["failed"]))
        return known

    def get(self, name: str) -> Server:
        facts = self._ask("get", name)["server"]
        assert isinstance(facts, dict)
        return KINDS.get(name, Server).from_json(facts)

    def check(self, name: str) -> None:
        self._ask("check", name)

    def close(self) -> None:
        """Nothing was started here."""
