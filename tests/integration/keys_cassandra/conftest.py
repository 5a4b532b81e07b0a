from __future__ import annotations

import itertools
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import lapse
from lapse.core.clock import Clock, SystemClock
from lapse.keys.backends.cassandra import init_store
from lapse.keys.backends.cassandra.driver import connect
from lapse.keys.url import parse_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.keys.store import Keys
    from tests.servers import Server

APP_IDS = itertools.count(1 + (os.getpid() << 12) % 2**31)
"""Every test has applications of its own in the shared store."""


class ShiftedClock:
    """The system's clock, wrong by so many seconds."""

    def __init__(self, seconds: float = 0) -> None:
        self.ahead_ns = round(seconds * 1e9)
        self.monotonic_ahead_ns = 0
        self._system = SystemClock()
        self.boottime_ns = self._system.boottime_ns
        self.boot_id, self.in_doubt = self._system.boot_id, self._system.in_doubt
        self.sleep = self._system.sleep

    def wall_ns(self) -> int:
        return self._system.wall_ns() + self.ahead_ns

    def monotonic_ns(self) -> int:
        return self._system.monotonic_ns() + self.monotonic_ahead_ns


class Raw:
    """The server as its own driver sees it, for looking behind the backend."""

    def __init__(self, url: str) -> None:
        from lapse.keys.backends.cassandra import _address

        self._session = connect(_address(parse_url(url)))

    def __call__(self, text: str, *values: object) -> list[Any]:
        return list(self._session.execute(text, values or None))

    def close(self) -> None:
        self._session.cluster.shutdown()


@contextmanager
def raw_session(url: str) -> Iterator[Raw]:
    raw = Raw(url)
    try:
        yield raw
    finally:
        raw.close()


def init(url: str, clock: Clock | None = None) -> str:
    return init_store(parse_url(url), clock or SystemClock())


@pytest.fixture(scope="session")
def keyspace_url(shared_cassandra: Server) -> str:
    """A store with one bucket, made for this process of the run."""
    url = shared_cassandra.keys_url(f"lapse_{os.getpid()}")
    init(url + "?gc_grace=0s")
    return url


@pytest.fixture(scope="session")
def keys(keyspace_url: str) -> Iterator[Keys]:
    with lapse.open_keys(keyspace_url) as opened:
        yield opened


@pytest.fixture(scope="session")
def raw(keyspace_url: str) -> Iterator[Raw]:
    with raw_session(keyspace_url) as session:
        yield session


@pytest.fixture
def app_id() -> int:
    return next(APP_IDS)


@pytest.fixture
def auth(keys: Keys, app_id: int) -> Any:  # noqa: ANN401 - AppKeys
    return keys.app(app_id)
