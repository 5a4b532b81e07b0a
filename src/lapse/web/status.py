"""What runs: one snapshot, for ``/api/v1/status`` and for the start page.

Counts per application, never names: keys are secrets.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel

from lapse import __version__
from lapse.core.clock import Clock
from lapse.engine.coordinator import Coordinator, LoopStatus
from lapse.keys.aio import AsyncKeys
from lapse.keys.layout import Prefix

MAX_APPS: Final = 100
"""Applications listed at most, those with the most records first; the totals count all."""
_NS: Final = 1_000_000_000


class LoopReport(BaseModel):
    """What a loop has done so far."""

    name: str
    domain: str
    interval_seconds: float
    ticks: int
    errors: int
    last_run: datetime | None
    last_success: datetime | None
    next_run: datetime | None
    last_error: str | None


class AppReport(BaseModel):
    """Stored records of one application, expired ones that are not swept yet included."""

    app: int
    records: int


class KeysReport(BaseModel):
    """The keys store."""

    backend: str
    apps: int
    records: int
    largest: list[AppReport]


class Status(BaseModel):
    """What runs."""

    version: str
    now: datetime
    started: datetime
    uptime_seconds: float
    keys: KeysReport
    loops: list[LoopReport]


@dataclass(frozen=True, slots=True)
class StatusService:
    """Takes snapshots."""

    clock: Clock
    keys: AsyncKeys
    backend: str
    """The store as it may be shown: without credentials."""
    coordinator: Coordinator
    started_ns: int
    """Wall time, Unix nanoseconds."""

    async def snapshot(self) -> Status:
        """Count in a thread: a large store takes its time."""
        records = await asyncio.to_thread(self._records)
        now_ns = self.clock.wall_ns()
        largest = sorted(records.items(), key=lambda one: (-one[1], one[0]))[:MAX_APPS]
        return Status(
            version=__version__,
            now=_time(now_ns),
            started=_time(self.started_ns),
            uptime_seconds=max(0.0, round((now_ns - self.started_ns) / _NS, 3)),
            keys=KeysReport(
                backend=self.backend,
                apps=len(records),
                records=sum(records.values()),
                largest=[AppReport(app=app, records=count) for app, count in largest],
            ),
            loops=[_loop(status) for status in self.coordinator.loops()],
        )

    def _records(self) -> dict[int, int]:
        counts = self.keys.backend.counts()
        return {app: count for prefix, app, count in counts if prefix is Prefix.APPLICATION_TTL}


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


@router.get("/status", summary="What runs")
async def status(service: Annotated[StatusService, Depends(status_service)]) -> Status:
    """Return version, loops, and the number of stored records per application."""
    return await service.snapshot()
