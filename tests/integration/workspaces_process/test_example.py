"""The example workspace, run as a workspace's command is, and talked to by a real websocket client."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import websockets

from lapse.workspaces.model import ObservedStatus
from tests.integration.workspaces_process.machine import runtime_in, workspace, yes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.workspaces.model import Workspace
    from lapse.workspaces.runtime.process import ProcessRuntime

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are known from /proc")
EXAMPLE = (sys.executable, "-m", "lapse.workspaces.example")


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[ProcessRuntime, Workspace]]:
    runtime, found = runtime_in(folder), workspace(command=EXAMPLE)
    await runtime.open()
    try:
        await runtime.provision(found)
        await runtime.start(found)
        yield runtime, found
    finally:
        await runtime.close()


async def run(socket: websockets.ClientConnection, cell: int, code: str) -> str:
    await socket.send(json.dumps({"cell": cell, "code": code}))
    told = json.loads(await socket.recv())
    assert told["cell"] == cell
    return str(told["output"])


async def test_cells_run_and_survive_standby_and_the_archive(tmp_path: Path) -> None:
    async with running(tmp_path) as (runtime, found):
        address = f"127.0.0.1:{found.port}"
        async with websockets.connect(f"ws://{address}/socket", origin=websockets.Origin(f"http://{address}")) as one:
            assert len(json.loads(await one.recv())["cells"]) == 1
            assert await run(one, 0, "x = 6 * 7\nx") == "42\n"
            assert await run(one, 1, "print('again', x)") == "again 42\n"
            assert "ZeroDivisionError" in await run(one, 2, "1 / 0")
            assert "SystemExit" in await run(one, 3, "raise SystemExit")
            assert len(await run(one, 4, "'x' * 100000")) == 20_000
            await (await one.ping())
        await runtime.stop(found)
        await runtime.archive(found, confirm=yes)
        await runtime.provision(found)
        await runtime.start(found)
        async with websockets.connect(f"ws://{address}/socket") as one:
            cells = json.loads(await one.recv())["cells"]
            assert cells[0] == {"code": "x = 6 * 7\nx", "output": "42\n"}


async def test_the_page_is_served_and_nothing_else(tmp_path: Path) -> None:
    async with running(tmp_path) as (_runtime, found):
        base = f"http://127.0.0.1:{found.port}"
        with urllib.request.urlopen(f"{base}/") as answer:  # noqa: ASYNC210, S310 - another process answers
            assert b"Example workspace" in answer.read()
        for path in ("/notebook.json", "/../notebook.json", "/socket"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"{base}{path}")  # noqa: ASYNC210, S310 - as above


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        (None, "http://evil.example"),
        (None, "null"),
        ("evil.example:8888", "http://evil.example:8888"),
        ("evil.example:8888", None),
    ],
)
async def test_a_page_of_somebody_else_cannot_run_anything(
    tmp_path: Path, host: str | None, origin: str | None
) -> None:
    async with running(tmp_path) as (_runtime, found):
        headers = {} if host is None else {"Host": host}
        with pytest.raises(websockets.InvalidStatus, match="403"):
            await websockets.connect(
                f"ws://127.0.0.1:{found.port}/socket",
                origin=None if origin is None else websockets.Origin(origin),
                additional_headers=headers,
            )


async def test_a_cell_that_never_ends_does_not_keep_the_workspace_from_stopping(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as (runtime, found),
        websockets.connect(f"ws://127.0.0.1:{found.port}/socket") as one,
    ):
        await one.recv()
        await one.send(json.dumps({"cell": 0, "code": "while True: pass"}))
        await runtime.stop(found)
        assert await runtime.look() == {found.id: ObservedStatus.STANDBY}
