"""An example workspace that every machine can run: a page with cells of Python, and a websocket that runs them.

``python -m lapse.workspaces.example`` serves it at ``HOST`` and ``PORT`` of its environment. Cells are kept in
``notebook.json`` of the current directory, so they survive standby and the archive; what they define does not.

It runs whatever it is sent: that is what a notebook is for. So it listens on the loopback interface, answers only
requests that carry the secret of its environment (``LAPSE_WORKSPACE_SECRET``), which the proxy adds, and takes a
websocket only from its own page: one that came through the proxy and says so, or one of this machine's own names. A
page of somebody else, even under a name that was made to point here, is refused.

Not a notebook server, and not a websocket library: just enough of both, without anything to install.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import contextlib
import hashlib
import hmac
import io
import os
import signal
import struct
import sys
import threading
import traceback
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x1, 0x2, 0x8, 0x9, 0xA
_LARGEST: Final = 1024 * 1024
_MOST_CELLS: Final = 200
_MOST_OUTPUT: Final = 20_000
_HEAD_SECONDS: Final = 20.0
_TOO_BIG, _BAD_FRAME, _GOING_AWAY = 1009, 1002, 1001
_LOCAL: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_SHORT: Final = 126
_TWO_BYTES: Final = 0xFFFF


class Cell(msgspec.Struct):
    """A piece of code and what it gave."""

    code: str
    output: str = ""


class Asked(msgspec.Struct):
    """What the page sends."""

    cell: int
    code: str


class Notebook:
    """The cells, in a file; what they define, in memory."""

    def __init__(self, file: Path) -> None:
        """Read the file, if there is one."""
        self._file = file
        self._names: dict[str, object] = {"__name__": "__notebook__"}
        self.cells = [Cell('import os\nprint("Hello from", os.environ.get("LAPSE_WORKSPACE", "here"))')]
        if file.exists():
            self.cells = msgspec.json.decode(file.read_bytes(), type=list[Cell])

    def run(self, number: int, code: str) -> str:
        """Run a cell, keep it, and return its output. Blocks for as long as it takes."""
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            try:
                self._execute(code)
            except BaseException:  # noqa: BLE001 - whatever a cell does, even leave, is its output
                traceback.print_exc(limit=-1, file=output)
        text = output.getvalue()[:_MOST_OUTPUT]
        while len(self.cells) <= number:
            self.cells.append(Cell(""))
        self.cells[number] = Cell(code, text)
        self._save()
        return text

    def _execute(self, code: str) -> None:
        """Run all of it; show the value of the last line, if that is an expression."""
        tree = ast.parse(code, "<cell>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<cell>", "exec"), self._names)  # noqa: S102 - that is what a notebook is for
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), self._names)  # noqa: S307 - as above
            if value is not None:
                sys.stdout.write(f"{value!r}\n")

    def _save(self) -> None:
        part = self._file.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(self.cells))
        part.replace(self._file)


class Server:
    """Serves the page and its websocket."""

    def __init__(self, notebook: Notebook, secret: str = "") -> None:
        """Listen to nobody yet; with ``secret``, only to the proxy, which sends it with each request."""
        self._notebook, self._secret = notebook, secret
        self._page = resources.files("lapse.workspaces").joinpath("example.html").read_bytes()
        self._one_at_a_time = asyncio.Lock()
        self._open: set[asyncio.StreamWriter] = set()

    async def serve(self, host: str, port: int, stopping: asyncio.Event) -> None:
        """Serve until told to stop."""
        server = await asyncio.start_server(self._connection, host, port, limit=64 * 1024)
        await stopping.wait()
        server.close()  # and not waited for, because it would wait for a cell that never ends
        for writer in tuple(self._open):
            writer.write(_frame(_CLOSE, struct.pack("!H", _GOING_AWAY)))
            writer.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                method, path, fields = _head(await reader.readuntil(b"\r\n\r\n"))
            if not self._is_from_proxy(fields):
                writer.write(_response("403 Forbidden", b"this workspace is opened through the proxy of Lapse\n"))
            elif path == "/socket" and fields.get("upgrade", "").lower() == "websocket":
                await self._socket(reader, writer, fields)
            else:
                writer.write(self._answer(method, path))
                await writer.drain()
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, msgspec.MsgspecError):
            pass  # who goes away, or does not speak HTTP, gets no answer
        finally:
            self._open.discard(writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _is_from_proxy(self, fields: Mapping[str, str]) -> bool:
        given = fields.get("x-lapse-workspace-secret", "").encode("latin-1")
        return not self._secret or hmac.compare_digest(given, self._secret.encode())

    def _answer(self, method: str, path: str) -> bytes:
        if method not in {"GET", "HEAD"}:
            return _response("405 Method Not Allowed", b"only GET here\n")
        if path != "/":
            return _response("404 Not Found", b"only / here\n")
        return _response("200 OK", self._page, kind="text/html; charset=utf-8", with_body=method == "GET")

    async def _socket(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fields: Mapping[str, str]
    ) -> None:
        key = fields.get("sec-websocket-key", "")
        if not is_own_page(fields) or not key:
            writer.write(_response("403 Forbidden", b"only for the page of this workspace\n"))
            return
        accept = base64.b64encode(hashlib.sha1(key.encode() + _GUID).digest()).decode()  # noqa: S324 - the protocol's
        writer.write(
            f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept}\r\n\r\n".encode()
        )
        self._open.add(writer)
        writer.write(_message({"cells": self._notebook.cells}))
        await self._talk(reader, writer)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            kind, payload = await _read_message(reader)
            if kind == _CLOSE:
                writer.write(_frame(_CLOSE, payload[:2]))
                await writer.drain()
                return
            if kind == _PING:
                writer.write(_frame(_PONG, payload))
            elif kind in {_TEXT, _BINARY}:
                writer.write(_message(await self._run(payload)))
            await writer.drain()

    async def _run(self, payload: bytes) -> object:
        asked = msgspec.json.decode(payload, type=Asked)
        if not 0 <= asked.cell < _MOST_CELLS:
            raise ValueError(asked.cell)
        async with self._one_at_a_time:  # they share their names, and where they print
            output = await _in_daemon(partial(self._notebook.run, asked.cell, asked.code))
        return {"cell": asked.cell, "output": output}


def is_own_page(fields: Mapping[str, str]) -> bool:
    """Whether a websocket was opened by the page that is served here, or by a program that is no browser."""
    through_proxy = fields.get("x-forwarded-host")
    host = through_proxy or fields.get("host", "")
    if through_proxy is None and urlsplit(f"//{host}").hostname not in _LOCAL:
        return False
    origin = fields.get("origin")
    return origin is None or urlsplit(origin).netloc == host


# --- just enough of HTTP and of websockets ---------------------------------------------------------------------------


def _head(raw: bytes) -> tuple[str, str, dict[str, str]]:
    first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, _version = first.split(" ")
    pairs = (line.partition(":") for line in lines)
    return method, target.partition("?")[0], {name.strip().lower(): value.strip() for name, _, value in pairs}


def _response(status: str, body: bytes, *, kind: str = "text/plain", with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")


def _message(content: object) -> bytes:
    return _frame(_TEXT, msgspec.json.encode(content))


def _frame(kind: int, payload: bytes) -> bytes:
    size = len(payload)
    if size < _SHORT:
        head = struct.pack("!BB", 0x80 | kind, size)
    elif size <= _TWO_BYTES:
        head = struct.pack("!BBH", 0x80 | kind, _SHORT, size)
    else:
        head = struct.pack("!BBQ", 0x80 | kind, _SHORT + 1, size)
    return head + payload


async def _read_message(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return the next message or control frame; pieces are put together. Bad frames end the connection."""
    kind, pieces = 0, b""
    while True:
        first, second = await reader.readexactly(2)
        code, size = first & 0x0F, second & 0x7F
        if size >= _SHORT:
            size = int.from_bytes(await reader.readexactly(2 if size == _SHORT else 8))
        if not second & 0x80 or first & 0x70 or size + len(pieces) > _LARGEST:
            return _CLOSE, struct.pack("!H", _TOO_BIG if size > _LARGEST else _BAD_FRAME)
        mask = await reader.readexactly(4)
        payload = _unmasked(await reader.readexactly(size), mask)
        if code >= _CLOSE:
            return code, payload
        kind, pieces = kind or code, pieces + payload
        if first & 0x80:
            return kind, pieces


def _unmasked(payload: bytes, mask: bytes) -> bytes:
    size = len(payload)
    repeated = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload) ^ int.from_bytes(repeated)).to_bytes(size)


async def _in_daemon(work: Callable[[], str]) -> str:
    """Run it in a thread that does not keep the process from ending: a cell may never return."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[str] = loop.create_future()

    def tell(result: str) -> None:
        if not done.done():
            done.set_result(result)

    def run() -> None:
        result = work()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, result)

    threading.Thread(target=run, daemon=True).start()
    return await done


async def main(host: str, port: int, folder: Path) -> None:
    """Serve until a signal asks to stop."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    secret = os.environ.pop("LAPSE_WORKSPACE_SECRET", "")  # what runs in a cell need not know it
    await Server(Notebook(folder / "notebook.json"), secret).serve(host, port, stopping)


if __name__ == "__main__":
    asyncio.run(main(os.environ.get("HOST", "127.0.0.1"), int(os.environ.get("PORT", "8888")), Path.cwd()))
