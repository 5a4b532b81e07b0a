"""A fault injector: an HTTP server in front of the real DynamoDB that spoils chosen answers, and counts requests.

What it cannot be asked for by the real server on demand (throttling, internal errors, keys left out of a batch, a
clock that is off) it makes up; everything else it forwards. `tests.servers.Relay` does what happens below HTTP.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Self

import aiohttp
from aiohttp import web

Spoil = Callable[["Exchange"], Awaitable[web.Response | None]]
"""Answers in place of the real server, or returns None to let it answer."""


class Exchange:
    """One request on its way, as a spoiler sees it."""

    def __init__(self, operation: str, body: bytes, forward: Callable[[bytes], Awaitable[web.Response]]) -> None:
        self.operation = operation
        self.body = body
        self.forward = forward


class Injector:
    """Runs in a thread of its own, from the beginning of a `with` block to its end."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._spoilers: list[tuple[str, int, Spoil]] = []
        self._date_shift = timedelta()
        self.requests: Counter[str] = Counter()

    # --- what a test does ---------------------------------------------------------------------------------------------

    def spoil(self, operation: str, how: Spoil, *, times: int = 1) -> None:
        """Treat the next requests of an operation, such as PutItem, that way."""
        self._spoilers.append((operation, times, how))

    def shift_date(self, seconds: float) -> None:
        """Move the Date header of every answer."""
        self._date_shift = timedelta(seconds=seconds)

    def forget(self) -> None:
        """Count from zero again."""
        self.requests.clear()

    # --- inside -------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="injector", daemon=True)
        self._thread.start()
        self.endpoint = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> str:
        self._client = aiohttp.ClientSession()
        app = web.Application(client_max_size=32 * 1024 * 1024)
        app.router.add_post("/", self._serve)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        assert self._runner.addresses
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _stop(self) -> None:
        await self._client.close()
        await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.Response:
        operation = request.headers["X-Amz-Target"].partition(".")[2]
        self.requests[operation] += 1

        async def forward(body: bytes) -> web.Response:
            headers = {name: value for name, value in request.headers.items() if name not in {"Host", "Content-Length"}}
            async with self._client.post(self._target, data=body, headers=headers) as answer:
                return web.Response(status=answer.status, body=await answer.read(), headers=self._kept(answer.headers))

        exchange = Exchange(operation, await request.read(), forward)
        how = self._next_spoiler(operation)
        spoiled = await how(exchange) if how is not None else None
        return spoiled or await forward(exchange.body)

    def _kept(self, headers: Any) -> dict[str, str]:  # noqa: ANN401 - a multidict
        kept = {name: headers[name] for name in ("Content-Type", "x-amzn-RequestId") if name in headers}
        return {**kept, "Date": self._date()}

    def _date(self) -> str:
        return format_datetime(datetime.now(UTC) + self._date_shift, usegmt=True)  # noqa: TID251 - a server's own clock

    def _next_spoiler(self, operation: str) -> Spoil | None:
        for at, (wanted, times, how) in enumerate(self._spoilers):
            if wanted == operation:
                self._spoilers[at] = (wanted, times - 1, how)
                if times == 1:
                    del self._spoilers[at]
                return how
        return None


# --- ways to spoil an answer ------------------------------------------------------------------------------------------


def _error(status: int, code: str, message: str) -> web.Response:
    body = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message})
    return web.Response(
        status=status, text=body, headers={"x-amzn-RequestId": "INJECTED", "Content-Type": "application/x-amz-json-1.0"}
    )


def refuse(code: str, *, status: int = 400, message: str = "injected") -> Spoil:
    """Answer with an error; the real server never sees the request."""

    async def spoil(_: Exchange) -> web.Response:
        return _error(status, code, message)

    return spoil


def fail_after(code: str = "InternalServerError", *, status: int = 500) -> Spoil:
    """Let the real server do it, and answer with an error nevertheless."""

    async def spoil(exchange: Exchange) -> web.Response:
        await exchange.forward(exchange.body)
        return _error(status, code, "injected")

    return spoil


def forward() -> Spoil:
    """Spoil nothing, for those before the one that matters."""

    async def spoil(_: Exchange) -> None:
        return None

    return spoil


def leave_out(share: float) -> Spoil:
    """Answer only a part of a BatchGetItem, and give the rest back as unprocessed."""

    async def spoil(exchange: Exchange) -> web.Response:
        asked = json.loads(exchange.body)["RequestItems"]
        ((table, wanted),) = asked.items()
        kept = round(len(wanted["Keys"]) * (1 - share))
        left = {**wanted, "Keys": wanted["Keys"][kept:]}
        if not kept:
            whole: dict[str, Any] = {"Responses": {table: []}}
        else:
            asked[table] = {**wanted, "Keys": wanted["Keys"][:kept]}
            answer = await exchange.forward(json.dumps({"RequestItems": asked}).encode())
            assert isinstance(answer.body, bytes)
            whole = json.loads(answer.body)
        return web.json_response(
            {**whole, "UnprocessedKeys": {table: left}},
            headers={"x-amzn-RequestId": "INJECTED"},
            content_type="application/x-amz-json-1.0",
        )

    return spoil


def answer_with_html() -> Spoil:
    """Answer as a portal does that catches every request."""

    async def spoil(_: Exchange) -> web.Response:
        return web.Response(text="<html>Please log in</html>", content_type="text/html")

    return spoil
