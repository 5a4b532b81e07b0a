"""Cron expressions in a time zone: the first run after a moment, and the latest one until it. Pure.

Five fields as Debian's cron reads them, by ``cronsim``, which is asked in local time only; what that means in the world
is settled here. **A local time runs once**: one that does not exist, at the end of the gap; one that exists twice, the
first time. So an hourly schedule has one run in the two hours that share a name, and runs that fall into a gap together
are one.

Moments are nanoseconds since 1970. Guaranteed: a later local time is never an earlier moment, so `Cron.after` and
`Cron.latest` agree with each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from lapse.core.clock import UnixNs
from lapse.core.errors import UsageError

UTC_ZONE: Final = "UTC"
_FIELDS: Final = 5
_MOST_CHARACTERS: Final = 100
_MINUTE: Final = timedelta(minutes=1)
_SECOND: Final = timedelta(seconds=1)
_NS: Final = 1_000_000_000
_START: Final = datetime(2024, 1, 1, tzinfo=UTC).replace(tzinfo=None)


class CronError(UsageError, ValueError):
    """{given!r} is not a schedule: {problem}.

    Expected five fields: minute, hour, day of month, month and day of week, as in 0 3 * * * or */15 8-18 * * MON-FRI.
    """


class TimeZoneError(UsageError, ValueError):
    """{given!r} is not a time zone. Expected a name of the IANA database, such as Europe/Berlin, or UTC."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression that was read, and the zone whose local times it means."""

    expression: str
    zone: ZoneInfo

    @classmethod
    def parse(cls, expression: str, zone: str | None = None) -> Cron:
        """Read both; raises `CronError` and `TimeZoneError`."""
        return _parse(expression, zone or UTC_ZONE)

    def after(self, moment: UnixNs) -> UnixNs | None:
        """Return the first run after a moment; None when there is none within 50 years."""
        for local in CronSim(self.expression, _minute(self.local(moment))):
            run = self._instant(local)
            if run > moment:
                return run
        return None

    def latest(self, moment: UnixNs) -> UnixNs | None:
        """Return the last run that is not after a moment; None when there was none within 50 years."""
        now = self.local(moment)
        # In the second of two equal hours all of the first has been, also what is later by name.
        start = now + (_first(now).utcoffset() or timedelta()) - (now.utcoffset() or timedelta())
        for local in CronSim(self.expression, _minute(start) + _MINUTE, reverse=True):
            run = self._instant(local)
            if run <= moment:
                return run
        return None

    def local(self, moment: UnixNs) -> datetime:
        """Return what the clocks of the zone show at a moment."""
        return datetime.fromtimestamp(moment // _NS, self.zone)

    def _instant(self, local: datetime) -> UnixNs:
        """Return the moment that a local time without zone stands for."""
        first = local.replace(tzinfo=self.zone).astimezone(UTC)
        if first.astimezone(self.zone).replace(tzinfo=None) == local:
            return _ns(first)
        # In a gap: the clocks jump between these two, from below the local time to above it.
        before, behind = local.replace(tzinfo=self.zone, fold=1).astimezone(UTC), first
        while behind - before > _SECOND:
            middle = before + (behind - before) // 2
            if middle.astimezone(self.zone).replace(tzinfo=None) < local:
                before = middle
            else:
                behind = middle
        return _ns(behind)


def _first(local: datetime) -> datetime:
    return local.replace(fold=0)


def _minute(local: datetime) -> datetime:
    return local.replace(tzinfo=None, fold=0, second=0, microsecond=0)


def _ns(moment: datetime) -> UnixNs:
    return UnixNs(round(moment.timestamp()) * _NS)


@lru_cache(maxsize=1_024)
def _parse(expression: str, zone: str) -> Cron:
    fields = expression.split()
    if len(expression) > _MOST_CHARACTERS:
        raise CronError(given=f"{expression[:20]}...", problem=f"it has {len(expression)} characters")
    if len(fields) != _FIELDS or " ".join(fields) != expression:
        # The library takes a sixth field, for seconds, and any white space.
        raise CronError(given=expression, problem="it has not five fields with one space between two")
    try:
        next(CronSim(expression, _START), None)
    except CronSimError as error:
        raise CronError(given=expression, problem=str(error).lower()) from error
    return Cron(expression, _zone(zone))


def _zone(name: str) -> ZoneInfo:
    if name == "localtime":  # a file of this machine, which means another zone on another one
        raise TimeZoneError(given=name)
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:
        raise TimeZoneError(given=name[:_MOST_CHARACTERS]) from error
