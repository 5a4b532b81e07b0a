"""The probes: ``/healthz``, ``/readyz`` and ``/metrics``, on a listener of their own.

Apart from the API, so that an orchestrator and a monitoring system need no token and the API's address need not be
open to them. Nothing here is secret: checks are named and told to be ok or failed; why one failed, with names and
addresses, is in the log only. The Host header is checked all the same, as everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from lapse.core.errors import LapseError
from lapse.core.log import get_logger
from lapse.engine.running.metrics import CONTENT_TYPE, Metrics
from lapse.web.api.errors import MethodNotAllowedError, NoSuchRouteError
from lapse.web.api.problems import REQUEST_ID, problem
from lapse.web.server.security import AllowedHosts, Guard

_log: Final = get_logger("lapse.web.server.probes")
CHECK_SECONDS: Final = 2.0
"""Shorter than the time-outs of the usual orchestrators, so that the answer arrives."""


class Readiness:
    """Whether the stores answer. One round at a time: a store that hangs must not eat the threads of the rest."""

    def __init__(self, checks: Mapping[str, Callable[[], None]], *, seconds: float = CHECK_SECONDS) -> None:
        """Ask by ``checks``, which block and raise a `LapseError`, one after the other."""
        self._checks = checks
        self._seconds = seconds
        self._running: asyncio.Task[dict[str, str]] | None = None
        self._logged: dict[str, str] = {}

    async def failed(self) -> list[str]:
        """Return the names of the checks that failed; why is logged, once for each reason."""
        problems = await self._problems()
        for name, reason in problems.items():
            if self._logged.get(name) != reason:
                _log.warning("not_ready", check=name, reason=reason)
        self._logged = problems
        return list(problems)

    async def _problems(self) -> dict[str, str]:
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(asyncio.to_thread(self._round))
        running = self._running
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.wait([running])), self._seconds)
        if not running.done():
            return dict.fromkeys(self._checks, f"the checks did not end within {self._seconds:g} s")
        return running.result()

    def _round(self) -> dict[str, str]:
        problems: dict[str, str] = {}
        for name, check in self._checks.items():
            try:
                check()
            except LapseError as error:
                problems[name] = str(error)
            except Exception as error:  # noqa: BLE001 - a defect or a time-out, which is no reason to be ready
                problems[name] = type(error).__name__
        return problems

    def told(self, failed: Container[str]) -> dict[str, str]:
        """Return all checks by name, ok or failed."""
        return {name: "failed" if name in failed else "ok" for name in self._checks}


def create_probes(
    *, readiness: Readiness, stopping: Callable[[], bool], metrics: Metrics, hosts: AllowedHosts
) -> ASGIApp:
    """Put the three probes together."""

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def readyz(_: Request) -> Response:
        if stopping():
            return JSONResponse({"status": "stopping"}, 503)
        failed = await readiness.failed()
        status = "not ready" if failed else "ready"
        return JSONResponse({"status": status, "checks": readiness.told(failed)}, 503 if failed else 200)

    async def exposition(_: Request) -> Response:
        return Response(metrics.exposition(), headers={"Content-Type": CONTENT_TYPE})

    async def refuse(request: Request, error: Exception) -> Response:
        wrong_method = isinstance(error, HTTPException) and error.status_code == 405  # noqa: PLR2004 - a HTTP status
        return problem(MethodNotAllowedError() if wrong_method else NoSuchRouteError(), request.scope[REQUEST_ID])

    routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", exposition)]
    app = Starlette(routes=routes, exception_handlers={HTTPException: refuse})
    app.router.redirect_slashes = False
    return Guard(app, hosts=hosts, admit=None)
