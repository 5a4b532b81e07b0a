"""The forecast as the pages show it: computed once for everybody who looks, and no more often than something changes.

A forecast over a hundred thousand things takes seconds. So it is computed beside the pages, one at a time for each
question: a page waits for it a moment, then shows the one before, or says that it is being counted; it does not wait
where the one before took long. Who has live updates is told when it is there, and also when a page was shown an older
one because it was too early for another. Of an older one the things in its rows are read again, so that a hold is seen
at once, whatever else is to be counted.

Where not every store can tell that it has changed (`LiveChanges.is_whole`), one is shown again only for as long as it
is too early to count.

Not guaranteed: that rows show what changed within the last quarter of a second; that figures, and the choice of the
nearest things, have what changed within five times as long as a forecast takes. Each page says of what time they are.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from lapse.core.errors import LapseError
from lapse.engine.verbs.contract import Forecast, ForecastRequest
from lapse.engine.view import encode
from lapse.web.api.verbs import LocalVerbs
from lapse.web.live import LiveChanges

FORECAST: Final = "forecast"
"""The topic under which pages with live updates are told that a forecast is there."""
_MOST_KEPT: Final = 24
_MOST_AT_ONCE: Final = 4
"""Forecasts that are computed at once: each question has its own, and anybody can ask any."""
_SECOND: Final = 1_000_000_000
_PAUSE_NS: Final = _SECOND // 4
_SHARE: Final = 5
"""A forecast is computed again after so many times as long as it took: at most a fifth of one core."""
_PATIENCE_SECONDS: Final = 0.4
_DEAR_NS: Final = _SECOND // 10
"""What takes longer is not waited for where there is an older one: a page is there at once, and is told."""


@dataclass(frozen=True, slots=True)
class _Look:
    """When something was read, of which version of the stores, and what that took."""

    version: object
    at_ns: int
    """Monotonic."""
    cost_ns: int

    def too_early_ns(self, now_ns: int) -> int:
        """For how long it is not read again, whatever changes."""
        return max(0, self.at_ns + max(_PAUSE_NS, _SHARE * self.cost_ns) - now_ns)

    def is_of(self, version: object) -> bool:
        """Whether no change was told since; None: nobody knows."""
        return version is not None and version == self.version


@dataclass(frozen=True, slots=True)
class _Kept:
    found: Forecast
    look: _Look
    rows: _Look
    """The last look at the things in its rows."""

    def is_young(self, now_ns: int) -> bool:
        """Whether it still begins with the time that it is."""
        return now_ns - self.look.at_ns < self.found.step_seconds * _SECOND


class Outlook:
    """See the module."""

    def __init__(self, verbs: LocalVerbs, live: LiveChanges) -> None:
        """Ask ``verbs``; ``live`` knows whether something has changed, and tells pages of a forecast that is there."""
        self._verbs, self._live = verbs, live
        self._kept: dict[bytes, _Kept] = {}
        self._running: dict[bytes, asyncio.Task[Forecast]] = {}
        self._refreshing: dict[bytes, asyncio.Task[Forecast]] = {}
        self._reminders: dict[tuple[bytes, str], asyncio.Task[None]] = {}
        self.turn = asyncio.Lock()
        """Held while a page is made: of many dashboards that ask at once each has its turn, and the loops between."""

    async def forecast(self, asked: ForecastRequest) -> Forecast | None:
        """Return the newest forecast that can be had quickly; None while there is none yet. Raises as `Verbs` does."""
        key, version = encode(asked), await self._version()
        kept = self._kept.get(key)
        if kept is not None and self._is_fresh(kept, version):
            return await self._shown(key, kept, version)
        task = self._running.get(key)
        if task is None and len(self._running) >= _MOST_AT_ONCE:
            next(iter(self._running.values())).add_done_callback(self._late)
            return None if kept is None else await self._refreshed(key, kept, version)
        task = task or self._begin(key, asked, version)
        is_dear = kept is not None and kept.look.cost_ns > _DEAR_NS
        done, _ = await asyncio.wait({task}, timeout=0 if is_dear else _PATIENCE_SECONDS)
        if done:
            found = await task
            computed = self._kept.get(key)
            return found if computed is None else await self._shown(key, computed, version)
        task.add_done_callback(self._late)
        return None if kept is None else await self._refreshed(key, kept, version)

    def _is_fresh(self, kept: _Kept, version: object) -> bool:
        """Whether it may be shown again: nothing has changed, or it is too early to count again."""
        now = self._live.clock.monotonic_ns()
        return kept.look.too_early_ns(now) > 0 or (self._is_unchanged(kept.look, version) and kept.is_young(now))

    def _is_unchanged(self, look: _Look, version: object) -> bool:
        return self._live.is_whole and look.is_of(version)

    async def _shown(self, key: bytes, kept: _Kept, version: object) -> Forecast:
        """Return one that may be older than the last change; then pages are told when there can be another."""
        if version not in {None, kept.look.version}:
            self._remind_once((key, "all"), kept.look)
        return await self._refreshed(key, kept, version)

    async def _refreshed(self, key: bytes, kept: _Kept, version: object) -> Forecast:
        """Return one with its rows as they are now, where they may have changed and that can be had quickly."""
        if self._is_unchanged(kept.rows, version):
            return kept.found
        if kept.rows.too_early_ns(self._live.clock.monotonic_ns()):
            if version not in {None, kept.rows.version}:
                self._remind_once((key, "rows"), kept.rows)
            return kept.found
        task = self._refreshing.get(key)
        if task is None:
            task = asyncio.create_task(self._refresh(key, kept, version), name="lapse-forecast-rows")
            self._refreshing[key] = task
            task.add_done_callback(lambda _: self._refreshing.pop(key, None))
        done, _ = await asyncio.wait({task}, timeout=_PATIENCE_SECONDS)
        if done:
            return await task
        task.add_done_callback(self._late)
        return kept.found

    async def _refresh(self, key: bytes, kept: _Kept, version: object) -> Forecast:
        began = self._live.clock.monotonic_ns()
        found = await self._verbs.refresh_forecast(kept.found)
        now = self._live.clock.monotonic_ns()
        if self._kept.get(key) is kept:  # otherwise a whole one has come meanwhile
            self._kept[key] = replace(kept, found=found, rows=_Look(version, now, now - began))
        return found

    def _remind_once(self, what: tuple[bytes, str], look: _Look) -> None:
        """Tell pages as soon as it is not too early any more, however many of them were shown what is older."""
        if what not in self._reminders:
            wait = look.too_early_ns(self._live.clock.monotonic_ns()) / _SECOND
            self._reminders[what] = asyncio.create_task(self._remind(wait), name="lapse-forecast-again")
            self._reminders[what].add_done_callback(lambda _: self._reminders.pop(what, None))

    async def _remind(self, seconds: float) -> None:
        await self._live.clock.sleep(seconds)
        self._live.tell(FORECAST)

    def _begin(self, key: bytes, asked: ForecastRequest, version: object) -> asyncio.Task[Forecast]:
        task = asyncio.create_task(self._compute(key, asked, version), name="lapse-forecast")
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key, None))
        return task

    async def _compute(self, key: bytes, asked: ForecastRequest, version: object) -> Forecast:
        began = self._live.clock.monotonic_ns()
        found = await self._verbs.forecast(asked)
        now = self._live.clock.monotonic_ns()
        self._kept.pop(key, None)  # to the end of the order
        look = _Look(version, now, now - began)
        # Of the time at which it began: what was held meanwhile may have been read before.
        self._kept[key] = _Kept(found, look, rows=_Look(version, began, 0))
        while len(self._kept) > _MOST_KEPT:
            self._kept.pop(next(iter(self._kept)))
        return found

    async def _version(self) -> object:
        """Return what is another one after each change that is told; None where a store could not be asked yet."""
        seen = await self._live.seen()
        stores = self._live.versions.keys() - {FORECAST}
        return tuple((topic, seen[topic]) for topic in sorted(stores)) if stores <= seen.keys() else None

    def _late(self, task: asyncio.Task[Forecast]) -> None:
        if not task.cancelled() and (task.exception() is None or isinstance(task.exception(), LapseError)):
            self._live.tell(FORECAST)
