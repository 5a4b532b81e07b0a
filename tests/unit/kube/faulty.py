"""An HTTP server that answers as a test tells it to: what no real API server does on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import web

from lapse.kube.api.client import KubeClient
from lapse.kube.api.transport import CallLimits
from lapse.kube.auth.config import Cluster, KubeConfig, User
from lapse.kube.resources import ObjectKey

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

Answerer = Callable[[web.Request], Awaitable[web.StreamResponse]]
KEY = ObjectKey("default", "a")
QUICK = CallLimits(connect_seconds=0.5, request_seconds=0.5)
"""For servers that do not answer."""
PATIENT = CallLimits(connect_seconds=20, request_seconds=20)


class FaultyServer:
    """Answers requests one by one as scripted, the last line again and again; remembers what it was asked."""

    def __init__(self, *script: Answerer) -> None:
        self.script = list(script)
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.targets: list[str] = []
        self.url = ""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path_qs, dict(request.headers), await request.read()))
        self.targets.append(request.raw_path)
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return await answer(request)

    @property
    def headers(self) -> list[dict[str, str]]:
        return [headers for _, _, headers, _ in self.asked]

    def config(self, **user: Any) -> KubeConfig:  # noqa: ANN401 - fields of User
        return KubeConfig(cluster=Cluster(server=self.url), user=User(**user))

    @asynccontextmanager
    async def running(self, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[FaultyServer]:
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.01)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


@asynccontextmanager
async def client_of(
    server: FaultyServer, *, limits: CallLimits = PATIENT, watch_seconds: float = 300.0, **user: object
) -> AsyncIterator[KubeClient]:
    async with server.running():
        client = KubeClient(server.config(**user), environ={}, limits=limits, watch_seconds=watch_seconds)
        try:
            yield client
        finally:
            await client.close()


# --- answers ----------------------------------------------------------------------------------------------------------


def says(status: int, body: object, headers: dict[str, str] | None = None) -> Answerer:
    async def answer(request: web.Request) -> web.StreamResponse:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(status=status, body=content, headers=headers)

    return answer


def refuses(code: int, reason: str = "", message: str = "no", **details: object) -> Answerer:
    return says(code, {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details})


def cuts() -> Answerer:
    """Closes the connection instead of an answer."""

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    return answer


def keeps_silent() -> Answerer:
    async def answer(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    return answer


def streams(*pieces: bytes, then: str = "end") -> Answerer:
    """Sends pieces; then ends in order, is cut, or stays open without a word."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if then == "cut":
            assert request.transport is not None
            request.transport.abort()
        elif then == "silence":
            await asyncio.Event().wait()
        return response

    return answer


def obj(name: str = "a", version: str = "5", **more: object) -> dict[str, object]:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": version}
    return {"apiVersion": "example.dev/v1", "kind": "Thing", "metadata": metadata, **more}


def event(kind: str, body: object) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode() + b"\n"
