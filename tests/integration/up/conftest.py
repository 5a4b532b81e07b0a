from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.servers.lapse_server import LapseServer

if TYPE_CHECKING:
    from pathlib import Path

Start = Callable[..., LapseServer]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LapseServer]:
    """Give one server for all tests that change nothing but keys: starting one takes a second of work."""
    server = LapseServer.start(tmp_path_factory.mktemp("shared"))
    yield server
    server.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start servers on one state folder; all are stopped at the end."""
    running: list[LapseServer] = []

    def one(*flags: str) -> LapseServer:
        running.append(LapseServer.start(tmp_path, *flags))
        return running[-1]

    yield one
    for server in running:
        server.stop()
