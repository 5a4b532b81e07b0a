"""The probes: ``/healthz``, ``/readyz`` and ``/metrics``, on a listener of their own.

Apart from the API, so that an orchestrator and a monitoring system need no token and the API's address need not be
open to them. Nothing here is secret: no names, no addresses. The Host header is checked all the same, as
everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from lapse.core.errors import LapseError
from lapse.engine.metrics import CONTENT_TYPE, Metrics
from lapse.web.errors import MethodNotAllowedError, NoSuchRouteError
from lapse.web.problems import REQUEST_ID, problem
from lapse.web.security import AllowedHosts, Guard

CHECK_SECONDS: Final = 2.0
"""Shorter than the time-outs of the usual orchestrators, so that the answer, with its reason, arrives."""


class Readiness:
    """Whether the stores answer. One check at a time: a store that hangs must not eat the threads of the rest."""

    def __init__(self, check: Callable[[], None], *, seconds: float = CHECK_SECONDS) -> None:
        """Ask by ``check``, which blocks and raises a `LapseError`."""
        self._check = check
        self._seconds = seconds
        self._running: asyncio.Task[None] | None = None

    async def problem(self) -> str | None:
        """Return why this process should get no work; None when it should."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(asyncio.to_thread(self._check))
        running = self._running
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.wait([running])), self._seconds)
        if not running.done():
            return f"a store did not answer within {self._seconds:g} s"
        error = running.exception()
        if error is None:
            return None
        return str(error) if isinstance(error, LapseError) else f"a store failed with {type(error).__name__}"


def create_probes(
    *, readiness: Readiness, stopping: Callable[[], bool], metrics: Metrics, hosts: AllowedHosts
) -> ASGIApp:
    """Put the three probes together."""

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def readyz(_: Request) -> Response:
        reason = "the process is stopping" if stopping() else await readiness.problem()
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": reason}, 503)

    async def exposition(_: Request) -> Response:
        return Response(metrics.exposition(), headers={"Content-Type": CONTENT_TYPE})

    async def refuse(request: Request, error: Exception) -> Response:
        wrong_method = isinstance(error, HTTPException) and error.status_code == 405  # noqa: PLR2004 - a HTTP status
        return problem(MethodNotAllowedError() if wrong_method else NoSuchRouteError(), request.scope[REQUEST_ID])

    routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", exposition)]
    app = Starlette(routes=routes, exception_handlers={HTTPException: refuse})
    app.router.redirect_slashes = False
    return Guard(app, hosts=hosts, admit=None)
