"""Status of the process: one snapshot, for ``/api/v1/status`` and for the start page.

Counts per application, never names: keys are secrets.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request
from msgspec import Meta, Struct
from starlette.responses import Response

from lapse import __version__
from lapse.core.clock import Clock
from lapse.core.errors import LapseError
from lapse.engine.running.coordinator import Coordinator, LoopStatus
from lapse.keys.aio import AsyncKeys
from lapse.keys.backends.layout import Prefix
from lapse.web.api.forms import Answer, answer

MAX_APPS: Final = 100
"""Applications listed at most, those with the most records first; the totals count all."""
_NS: Final = 1_000_000_000
_COUNT_EVERY_NS: Final = _NS
UTCTime = Annotated[datetime, Meta(tz=True)]
"""A time that the schema calls date-time, which msgspec does for times with a zone only."""


class LoopReport(Struct, frozen=True):
    """What a loop has done so far."""

    name: str
    domain: str
    interval_seconds: float
    ticks: int
    errors: int
    last_run: UTCTime | None
    last_success: UTCTime | None
    next_run: UTCTime | None
    last_error: str | None


class AppReport(Struct, frozen=True):
    """Stored records of one application, expired ones that are not swept yet included."""

    app: int
    records: int


class KeysReport(Struct, frozen=True):
    """The keys store."""

    backend: str
    apps: int | None = None
    records: int | None = None
    largest: list[AppReport] = []
    problem: Annotated[str | None, Meta(description="Why the records could not be counted")] = None


class Status(Struct, frozen=True):
    """What runs."""

    version: str
    now: UTCTime
    started: UTCTime
    uptime_seconds: float
    leader: Annotated[
        bool,
        Meta(description="Whether this process does what only one may do: it carries out requests and lets them lapse"),
    ]
    keys: KeysReport
    loops: list[LoopReport]


class StatusService:
    """Takes snapshots."""

    def __init__(self, *, clock: Clock, keys: AsyncKeys, backend: str, coordinator: Coordinator) -> None:
        """Start counting the uptime now; ``backend`` is the store as it may be shown, without credentials."""
        self._clock, self._keys, self._coordinator = clock, keys, coordinator
        self._backend = backend
        self._started_ns = clock.wall_ns()
        self._counting = asyncio.Lock()
        self._counted: tuple[int, KeysReport] | None = None

    async def snapshot(self) -> Status:
        """Say what runs now. A store that cannot be read is part of the answer, not an error."""
        keys = await self._keys_report()
        now_ns = self._clock.wall_ns()
        return Status(
            version=__version__,
            now=_time(now_ns),
            started=_time(self._started_ns),
            uptime_seconds=max(0.0, round((now_ns - self._started_ns) / _NS, 3)),
            leader=self._coordinator.leading,
            keys=keys,
            loops=[_loop(status) for status in self._coordinator.loops()],
        )

    async def _keys_report(self) -> KeysReport:
        """Count in a thread, once at a time and at most once a second: a large store takes its time."""
        async with self._counting:
            now_ns = self._clock.monotonic_ns()
            if self._counted is None or now_ns - self._counted[0] >= _COUNT_EVERY_NS:
                try:
                    records = await asyncio.to_thread(self._records)
                    report = _keys(self._backend, records)
                except LapseError as error:
                    report = KeysReport(backend=self._backend, problem=str(error))
                self._counted = now_ns, report
            return self._counted[1]

    def _records(self) -> dict[int, int]:
        counts = self._keys.backend.counts()
        return {app: count for prefix, app, count in counts if prefix is Prefix.APPLICATION_TTL}


def _keys(backend: str, records: dict[int, int]) -> KeysReport:
    largest = sorted(records.items(), key=lambda one: (-one[1], one[0]))[:MAX_APPS]
    return KeysReport(
        backend=backend,
        apps=len(records),
        records=sum(records.values()),
        largest=[AppReport(app=app, records=count) for app, count in largest],
    )


def _loop(status: LoopStatus) -> LoopReport:
    return LoopReport(
        name=status.name,
        domain=status.domain,
        interval_seconds=status.interval,
        ticks=status.ticks,
        errors=status.errors,
        last_run=_time_or_none(status.last_run_ns),
        last_success=_time_or_none(status.last_success_ns),
        next_run=_time_or_none(status.next_run_ns),
        last_error=status.last_error,
    )


def _time(unix_ns: int) -> datetime:
    return datetime.fromtimestamp(unix_ns / _NS, UTC)


def _time_or_none(unix_ns: int | None) -> datetime | None:
    return None if unix_ns is None else _time(unix_ns)


def status_service(request: Request) -> StatusService:
    """Find the service of this application."""
    service: StatusService = request.app.state.status
    return service


router = APIRouter(tags=["status"])


@router.get("/status", summary="What runs", responses={200: answer(Status)})
async def status(service: Annotated[StatusService, Depends(status_service)]) -> Response:
    """Return version, leadership, loops, and the number of stored records per application."""
    return Answer(await service.snapshot())
