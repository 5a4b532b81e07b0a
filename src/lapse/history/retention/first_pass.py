"""First passes: a limit that nobody chose ends nothing for a whole interval after it was first seen on a store.

When that was is written down beside what is frozen, so that a restart neither ends it nor begins it anew. A policy that
has acted, by a pass over everything or by a person's own command, is past it for good. Doubt keeps: while it cannot be
read or written, the pass is dry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.core.clock import UnixNs
from lapse.core.duration import HOUR, SECOND
from lapse.core.errors import LapseError
from lapse.core.log import get_logger
from lapse.core.timestamps import from_timestamp, to_timestamp

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.core.duration import Duration
    from lapse.engine.safety.freeze import Notes
    from lapse.history.api.kinds import RetentionPolicy

_ACTED: Final = "acted"
_log = get_logger("lapse.history")


class MemoryNotes:
    """`Notes` that end with the process: for where nothing outlives it."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._texts: dict[str, str] = {}

    async def read_note(self, name: str) -> str | None:
        """See `Notes`."""
        return self._texts.get(name)

    async def write_note(self, name: str, text: str) -> None:
        """See `Notes`."""
        self._texts[name] = text


class FirstPasses:
    """See the module."""

    def __init__(self, notes: Notes, *, interval: Duration, clock: Clock) -> None:
        """Read nothing yet; where no pass is made regularly, an hour is the interval."""
        self._notes, self._clock = notes, clock
        self._interval_ns = interval.nanoseconds or HOUR
        self._acted: set[str] = set()
        self.ends: UnixNs | None = None
        """When the last one that was found to be under way ends."""

    async def is_under_way(self, policy: RetentionPolicy) -> bool:
        """Whether ``policy`` has to be dry still; from the first time that this is asked."""
        name, now = policy.metadata.name, self._clock.wall_ns()
        self.ends = None
        if await self.has_acted(policy):
            return False
        try:
            seen = from_timestamp(await self._notes.read_note(_key(name)) or "")
            if seen is None or seen > now + SECOND:  # a clock that was ahead has written the latter
                await self._notes.write_note(_key(name), to_timestamp(now))
                seen = UnixNs(now)
        except LapseError as error:
            _log.warning("first_pass_unknown", policy=name, effect="the pass is dry", problem=str(error))
            return True
        ends = UnixNs(seen + self._interval_ns)
        self.ends = ends if now < ends else None
        return now < ends

    async def has_acted(self, policy: RetentionPolicy) -> bool:
        """Whether ``policy`` was ever more than dry on this store; what cannot be read counts as no."""
        name, status = policy.metadata.name, policy.status
        if name in self._acted or (status is not None and status.last_run is not None and not status.dry_run):
            return True
        try:
            return await self._notes.read_note(_key(name)) == _ACTED
        except LapseError:
            return False

    async def acted(self, name: str) -> None:
        """Take note that a policy was more than dry."""
        if name in self._acted:
            return
        self._acted.add(name)
        try:
            await self._notes.write_note(_key(name), _ACTED)
        except LapseError as error:  # its status tells as well, where it has one
            _log.warning("first_pass_unknown", policy=name, effect="the next pass may be dry", problem=str(error))


def _key(policy: str) -> str:
    return f"first-pass.{policy}"
