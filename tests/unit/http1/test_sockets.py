"""Sockets that an event loop takes over are closed once, whatever happens meanwhile."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys

import pytest

from lapse.http1.sockets import new_socket
from tests.unit.http1.resets import CLIENTS

ADDRESS = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)


def test_the_garbage_collector_closes_nothing() -> None:
    made = new_socket(ADDRESS)
    number = made.fileno()
    del made
    gc.collect()

    os.fstat(number)  # raises when it is closed
    os.close(number)


def test_it_can_be_closed_and_looks_after_the_other_end() -> None:
    with new_socket(ADDRESS) as made:
        number = made.fileno()
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


@pytest.mark.process
@pytest.mark.parametrize("client", CLIENTS)
def test_a_server_that_resets_every_connection_does_not_end_the_process(client: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.unit.http1.resets", client],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert done.returncode == 0, done.stderr[-2000:]
