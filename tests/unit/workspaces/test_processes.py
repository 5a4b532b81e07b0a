"""Processes by pid, start time and boot; and the example's own little protocol."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.workspaces import example
from lapse.workspaces.runtime import processes
from lapse.workspaces.runtime.processes import MARK, identify, is_alive, members, send

if TYPE_CHECKING:
    from collections.abc import Iterator

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are known from /proc")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True, env={MARK: "mine"})
    yield process
    process.kill()
    process.wait()


@pytest.mark.process
@linux
def test_a_process_is_told_from_one_that_only_has_its_pid(sleeper: subprocess.Popen[bytes]) -> None:
    boot = processes.boot_id()
    found = identify(sleeper.pid, boot)
    assert found is not None
    assert is_alive(found, boot)
    for stranger in (
        msgspec.structs.replace(found, started=found.started + 1),
        msgspec.structs.replace(found, boot="another"),
    ):
        assert not is_alive(stranger, boot)
        assert not send(stranger, signal.SIGKILL, boot)
        assert members(stranger, "of nobody", boot) == []
    assert sleeper.poll() is None
    assert members(found, "of nobody", boot) == [found]
    stranger = msgspec.structs.replace(found, started=found.started + 1)
    assert members(stranger, "mine", boot) == [found], "by its mark"
    assert send(found, signal.SIGKILL, boot)
    sleeper.wait()
    assert not is_alive(found, boot)
    assert not send(found, signal.SIGKILL, boot)
    assert members(found, "mine", boot) == []


@pytest.mark.process
@linux
def test_one_that_has_ended_and_is_not_buried_is_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    boot = processes.boot_id()
    found = identify(sleeper.pid, boot)
    assert found is not None
    send(found, signal.SIGKILL, boot)
    while is_alive(found, boot):
        pass
    assert members(found, "mine", boot) == []
    assert identify(sleeper.pid, boot) == found, "it still has its pid"


@linux
def test_nobody_has_a_pid_that_there_is_not() -> None:
    assert identify(2**22 + 1, processes.boot_id()) is None


@given(name=st.sampled_from(["a) R 1 2 (b", "((", "))", "x y z"]))
def test_a_program_may_be_called_anything(name: str) -> None:
    fields = " ".join(["S", "1", "20", "30", *["0"] * 15, "777"])
    text = f"4711 ({name}) {fields}"
    assert processes.parse_stat(text) == processes.Stat("S", 20, 30, 777)


@given(payload=st.binary(max_size=70_000), mask=st.binary(min_size=4, max_size=4))
def test_a_masked_message_is_read_as_it_was_written(payload: bytes, mask: bytes) -> None:
    frame = example._frame(0x2, payload)
    body = frame[len(frame) - len(payload) :] if payload else b""
    head = bytearray(frame[: len(frame) - len(payload)])
    head[1] |= 0x80
    masked = bytes(byte ^ mask[place % 4] for place, byte in enumerate(body))

    async def read() -> tuple[int, bytes]:
        reader = asyncio.StreamReader()
        reader.feed_data(bytes(head) + mask + masked)
        reader.feed_eof()
        return await example._read_message(reader)

    assert asyncio.run(read()) == (0x2, payload)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"}, True),
        ({"host": "localhost:8000"}, True),
        ({"host": "[::1]:8000", "origin": "http://[::1]:8000"}, True),
        ({"host": "a.w.localhost:1", "x-forwarded-host": "a.w.localhost:1", "origin": "http://a.w.localhost:1"}, True),
        ({"host": "a.w.localhost:1", "x-forwarded-host": "a.w.localhost:1", "origin": "http://b.w.localhost:1"}, False),
        ({"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:9000"}, False),
        ({"host": "127.0.0.1:8000", "origin": "null"}, False),
        ({"host": "evil.example:8000", "origin": "http://evil.example:8000"}, False),
        ({"host": "evil.example:8000"}, False),
        ({}, False),
    ],
)
def test_only_its_own_page_may_run_cells(fields: dict[str, str], expected: bool) -> None:  # noqa: FBT001
    assert example.is_own_page(fields) is expected
