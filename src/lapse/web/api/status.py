"""Status of the process: what it tells of itself, for the verbs and the dashboard, and ``/api/v1/status``.

Counts per application, never names: keys are secrets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request
from msgspec.structs import replace
from starlette.responses import Response

from lapse.core.clock import Clock
from lapse.core.errors import LapseError
from lapse.engine.verbs.contract import AppReport, KeysReport, StatusView
from lapse.engine.verbs.place import ProcessFacts
from lapse.engine.view import Moment
from lapse.keys.aio import AsyncKeys
from lapse.keys.backends.layout import Prefix
from lapse.web.api.forms import Answer, answer, verbs_of

MAX_APPS: Final = 100
"""Applications listed at most, those with the most records first; the totals count all."""
_NS: Final = 1_000_000_000
_COUNT_EVERY_NS: Final = _NS


class StatusService:
    """What the process tells of itself."""

    def __init__(self, *, clock: Clock, keys: AsyncKeys, backend: str, facts: Callable[[], ProcessFacts]) -> None:
        """Count nothing yet; ``backend`` is the store as it may be shown, without credentials.

        ``facts`` are those of the process.
        """
        self._clock, self._keys, self._backend, self.facts = clock, keys, backend, facts
        self._counting = asyncio.Lock()
        self._counted: tuple[int, KeysReport] | None = None

    @property
    def now(self) -> Moment:
        """The time, for the page."""
        return Moment(self._clock.wall_ns())

    async def keys(self) -> KeysReport:
        """Say how many keys there are; a store that cannot be read is part of the answer, not an error.

        Counted in a thread, once at a time and at most once a second: a large store takes its time.
        """
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


async def status_service(request: Request) -> StatusService:
    """Find the service of this application."""
    service: StatusService = request.app.state.status
    return service


router = APIRouter(tags=["status"])


@router.get("/status", operation_id="status", summary="What runs", responses={200: answer(StatusView)})
async def status(request: Request, service: Annotated[StatusService, Depends(status_service)]) -> Response:
    """Return version, leadership, loops, domains with what stops them and what lapses next, and numbers of keys."""
    return Answer(replace(await verbs_of(request).status(), keys=await service.keys()))
