"""The secret by which a workspace's program knows its proxy, and the example that asks for it."""

from __future__ import annotations

import asyncio
import hmac
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from lapse.workspaces.example import Notebook, Server
from lapse.workspaces.tickets import derive

if TYPE_CHECKING:
    from pathlib import Path

SECRET = derive(b"state", "workspace-port", "a")
UPGRADE = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"


def test_a_secret_belongs_to_one_workspace_one_purpose_and_one_state_folder() -> None:
    assert hmac.new(b"state", b"workspace-port\0a", sha256).hexdigest() == SECRET
    others = {
        derive(b"state", "workspace-port", "b"),
        derive(b"state", "busy", "a"),
        derive(b"other", "workspace-port", "a"),
    }
    assert len(others | {SECRET}) == 4


@pytest.mark.parametrize(
    ("target", "fields", "status"),
    [
        ("/", "", 403),
        ("/", f"X-Lapse-Workspace-Secret: {SECRET[:-1]}\r\n", 403),
        ("/", f"X-Lapse-Workspace-Secret: {SECRET}\r\n", 200),
        ("/socket", UPGRADE, 403),
        ("/socket", f"{UPGRADE}X-Lapse-Workspace-Secret: {SECRET}\r\n", 101),
    ],
)
async def test_the_example_answers_only_what_came_through_the_proxy(
    tmp_path: Path, unused_tcp_port: int, target: str, fields: str, status: int
) -> None:
    stopping = asyncio.Event()
    server = Server(Notebook(tmp_path / "notebook.json"), SECRET)
    running = asyncio.create_task(server.serve("127.0.0.1", unused_tcp_port, stopping))
    await asyncio.wait([running], timeout=0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", unused_tcp_port)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost:{unused_tcp_port}\r\n{fields}\r\n".encode())
    assert int((await reader.readuntil(b"\r\n")).split()[1]) == status
    writer.close()
    stopping.set()
    await running
