"""Cassandra: ours beside the plain driver that sends the same statements, with the same consistency and policies.

One caller waits for each answer: the blocking face beside ``session.execute``. Then 64 callers at a time: 64 tasks on
an event loop beside 64 requests that the driver keeps in flight by callbacks, the quickest way it has: nobody is woken
for an answer there. Both work in 64 buckets, because transactions on one partition wait for each other, whoever sends
them.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import lapse
from bench.contest import APP_ID, TTL_SECONDS
from bench.servers import OPERATIONS, Bench, Pairs, Part, Plan, call
from bench.servers import Lapse as LapseTasks
from lapse.core.clock import SystemClock
from lapse.keys.backends.cassandra import open_backend
from lapse.keys.backends.layout import Prefix, bucket_of, partition_keys
from lapse.keys.url import parse_url
from tests.servers import cassandra_server

if TYPE_CHECKING:
    from tests.servers import Server

PLAN: Final = Plan(rounds=25, operations=256, warm_up=2_000, many_calls=3)
QUICK: Final = Plan(rounds=3, operations=64, warm_up=200, many_calls=2)
BUCKETS: Final = 64
PATIENT: Final = {f"{kind}_timeout": "30s" for kind in ("cas_contention", "write_request", "read_request")}
"""On a busy machine the server shall be slow, not give up: figures with errors in them mean nothing."""


def _url(server: Server) -> str:
    return f"{server.keys_url()}?buckets={BUCKETS}&timeout=60s"


PART: Final = Part(
    "Cassandra",
    start=partial(cassandra_server, config=PATIENT, full_speed=True),
    ours_url=_url,
    raw="bench.keys_cassandra:Driver",
    raw_url=_url,
    ours="bench.keys_cassandra:Lapse",
)


class Lapse(LapseTasks):
    """The blocking face for one caller, the awaitable one for many."""

    def __init__(self, name: str, url: str) -> None:
        """Open the store twice."""
        super().__init__(name, url)
        self._blocking_store = lapse.open_keys(url)
        self._blocking = self._blocking_store.app(APP_ID)

    def work(self, kind: str, callers: int, pairs: Pairs) -> None:
        """See `Bench`."""
        if callers > 1:
            return super().work(kind, callers, pairs)
        for key, value in pairs:
            assert call(self._blocking, kind, key, value) == self.expected(kind, value), "the figures mean nothing"
        return None

    def close(self) -> None:
        """See `Bench`."""
        self._blocking_store.close()
        super().close()


class Driver(Bench):
    """The plain driver: no validation, no judgement of expiry."""

    def __init__(self, name: str, url: str) -> None:
        """Connect."""
        super().__init__(name)
        # Prepared by our own connection, so that consistency and policies are the same; then the driver is alone.
        opened = open_backend(parse_url(url), SystemClock()).connection.open()
        self._session = opened.session
        self._statements = {kind: opened.prepared["find" if kind == "get" else kind] for kind in OPERATIONS}
        self._partitions = partition_keys(Prefix.APPLICATION_TTL, APP_ID, BUCKETS)

    def work(self, kind: str, callers: int, pairs: Pairs) -> None:
        """See `Bench`."""
        if callers > 1:
            return self._in_flight(kind, callers, pairs)
        statement = self._statements[kind]
        for key, value in pairs:
            answer = self._session.execute(statement, self._values(kind, key, value)).one()[0]
            assert answer == self.expected(kind, value), "the figures mean nothing"
        return None

    def _in_flight(self, kind: str, callers: int, pairs: Pairs) -> None:
        statement, send = self._statements[kind], self._session.execute_async
        room = threading.Semaphore(callers)
        failures: list[object] = []

        def done(rows: Any, value: str) -> None:  # noqa: ANN401 - the driver has no types
            if rows[0][0] != self.expected(kind, value):
                failures.append(rows)
            room.release()

        def failed(error: Exception) -> None:
            failures.append(error)
            room.release()

        for key, value in pairs:
            room.acquire()
            send(statement, self._values(kind, key, value)).add_callbacks(done, failed, callback_args=(value,))
        for _ in range(callers):
            room.acquire()
        assert not failures, failures[:3]

    def _values(self, kind: str, key: str, value: str) -> tuple[object, ...]:
        place = (self._partitions[bucket_of(key, BUCKETS)], key.encode())
        if kind == "get":
            return place
        now_ms = time.time_ns() // 1_000_000
        written = (TTL_SECONDS + 1, value, now_ms + TTL_SECONDS * 1000, *place)
        return (*written, None) if kind == "insert" else (*written, value, now_ms)

    def close(self) -> None:
        """See `Bench`."""
        self._session.cluster.shutdown()
