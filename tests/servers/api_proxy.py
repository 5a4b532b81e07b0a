"""A reverse proxy in front of an API server that answers some requests itself, as an overloaded cluster does.

It stands where a load balancer stands: it has the API server's own certificate, passes on everything unchanged (watches
piece by piece) and, every so many requests, gives an answer of its own instead. It remembers what was asked, and can
hold a request or its answer back while a test does something else, such as ending the client between two of its calls.
Runs in a thread; what a method sets holds for the requests that come after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

import aiohttp
from aiohttp import web

from tests.servers.ports import LOOPBACK, reserved_port

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from tests.servers.kube.server import KubeServer

T = TypeVar("T")
OWN_HEADERS = frozenset({"connection", "content-encoding", "content-length", "date", "transfer-encoding"})
NO_LIMIT = aiohttp.ClientTimeout(total=None)


@dataclass(frozen=True)
class Refusal:
    """An answer of the proxy's own. `after`: the request is carried out all the same, and only its answer is lost."""

    code: int
    reason: str = ""
    retry_after: int | None = None
    after: bool = False

    def response(self) -> web.Response:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if not self.reason:
            page = f"<html><h1>{self.code}</h1></html>"
            return web.Response(status=self.code, headers=headers, text=page, content_type="text/html")
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": self.code}
        text = json.dumps({**status, "reason": self.reason, "message": f"made up by a test: {self.reason}"})
        return web.Response(status=self.code, headers=headers, text=text, content_type="application/json")


class CutError(Exception):
    """Raised by a hook: the request, or its answer, goes no further, and the connection of the client is reset."""


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    """With the query."""
    accept: str
    body: bytes


class ApiProxy:
    """From the beginning of a `with` block to its end."""

    def __init__(self, server: KubeServer) -> None:
        self._server = server
        self._every, self._refusals, self._seen = 0, list[Refusal](), 0
        self._stack = contextlib.ExitStack()
        self.refused: Counter[int] = Counter()
        """How many requests got each code from us."""
        self.asked: list[Asked] = []
        """Every request so far."""
        self.before: Callable[[Asked], object] | None = None
        """Called before a request is passed on, which waits for it; in a thread of its own. May raise `CutError`."""
        self.after: Callable[[Asked, int], object] | None = None
        """Called with the server's code when it has answered, before the answer is passed on; otherwise the same."""

    def refuse(self, every: int, refusals: Sequence[Refusal] = ()) -> None:
        """Give every so many-th request one of these answers, in turn; 0 ends it."""
        self._every, self._refusals = every, list(refusals)

    def __enter__(self) -> Self:
        self.port = self._stack.enter_context(reserved_port())
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"api-proxy-{self.port}", daemon=True)
        self._thread.start()
        self._call(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._stack.close()

    def _call(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=20)

    # --- inside the loop ----------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        trust = ssl.create_default_context(cafile=str(self._server.ca_file))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trust, limit=0), timeout=NO_LIMIT, auto_decompress=False
        )
        own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        pki = self._server.folder / "pki"
        own.load_cert_chain(pki / "apiserver.crt", pki / "apiserver.key")
        self._runner = web.ServerRunner(web.Server(self._answer), shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, self.port, ssl_context=own).start()

    async def _close(self) -> None:
        await self._runner.cleanup()
        left = asyncio.all_tasks() - {asyncio.current_task()}  # those who pass on a watch in which nothing happens
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._session.close()
        await asyncio.sleep(0.1)  # connections with TLS end some turns of the loop later

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self._seen += 1
        refusal = None
        if self._every and self._seen % self._every == 0:
            refusal = self._refusals[self._seen // self._every % len(self._refusals)]
            self.refused[refusal.code] += 1
        body = await request.read()
        asked = Asked(request.method, request.raw_path, request.headers.get("Accept", ""), body)
        self.asked.append(asked)
        try:
            if self.before is not None:
                await asyncio.to_thread(self.before, asked)
            if refusal is not None and not refusal.after:
                return refusal.response()
            return await self._carry_out(request, asked, refusal)
        except (aiohttp.ClientError, OSError, CutError):
            if request.transport is not None:
                request.transport.abort()
            raise web.HTTPBadGateway from None

    async def _carry_out(self, request: web.BaseRequest, asked: Asked, refusal: Refusal | None) -> web.StreamResponse:
        target = f"{self._server.url}{asked.path}"
        headers = {name: value for name, value in request.headers.items() if name.lower() not in OWN_HEADERS}
        async with self._session.request(asked.method, target, headers=headers, data=asked.body or None) as answer:
            if self.after is not None:
                await asyncio.to_thread(self.after, asked, answer.status)
            return await _pass_on(request, answer) if refusal is None else refusal.response()


async def _pass_on(request: web.BaseRequest, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    headers = {name: value for name, value in answer.headers.items() if name.lower() not in OWN_HEADERS}
    if encoding := answer.headers.get("Content-Encoding"):
        headers["Content-Encoding"] = encoding
    response = web.StreamResponse(status=answer.status, headers=headers)
    await response.prepare(request)
    async for piece in answer.content.iter_any():
        await response.write(piece)
    await response.write_eof()
    return response
