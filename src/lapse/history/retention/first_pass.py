"""The first pass of the history's own policy: a limit that nobody chose ends nothing for a whole interval.

The interval counts from when the policy was first seen on a store. That is written down beside what is frozen, so that
a restart neither ends it nor begins it anew. A policy that has acted, by a pass over everything or by a person's own
command, is past it for good. Doubt keeps: while it cannot be read or written, the pass is dry.

A policy that a person has stored, or with a TTL that somebody chose, has no first pass: its author set ``dryRun`` to
false.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.core.clock import UnixNs
from lapse.core.duration import HOUR, SECOND
from lapse.core.errors import LapseError
from lapse.core.log import get_logger
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.history.policy.default_policy import POLICY_NAME
from lapse.history.policy.policies import is_published

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lapse.core.clock import Clock
    from lapse.core.duration import Duration
    from lapse.engine.safety.freeze import Notes
    from lapse.history.api.kinds import RetentionPolicy
    from lapse.history.policy.policies import StoredPolicy

_ACTED: Final = "acted"
_NOTE: Final = f"first-pass.{POLICY_NAME}"
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


class FirstPass:
    """The first pass of one store; see the module."""

    def __init__(self, notes: Notes, *, interval: Duration, clock: Clock, is_needed: bool) -> None:
        """Read nothing yet; where no pass is made regularly, an hour is the interval.

        ``is_needed`` says whether nobody chose the TTL; otherwise there is no first pass.
        """
        self._notes, self._clock, self.is_needed = notes, clock, is_needed
        self._interval_ns = interval.nanoseconds or HOUR
        self._has_acted = False
        self.ends: UnixNs | None = None
        """When the one that was found to be under way ends."""

    async def is_under_way(self, policies: Sequence[StoredPolicy]) -> bool:
        """Whether the policy, if it is one of these, has to be dry still; from the first time that this is asked."""
        return self.is_needed and any([await self._is_dry(one) for one in _unchosen(policies)])

    def was_under_way(self, policies: Sequence[StoredPolicy]) -> bool:
        """Whether the last pass over everything was dry for that reason: then no completion deletes anything either."""
        return self.is_needed and any(
            read.name == POLICY_NAME and not read.dry_run and policy.status is not None and bool(policy.status.dry_run)
            for policy, read in policies
        )

    async def is_ahead(self, policies: Sequence[StoredPolicy]) -> bool:
        """Whether a pass now would be the first real one by a limit that nobody chose."""
        return self.is_needed and not all([await self._is_over(one) for one in _unchosen(policies)])

    async def acted(self) -> None:
        """Take note that the policy was more than dry."""
        if self._has_acted or not self.is_needed:
            return
        self._has_acted = True
        try:
            await self._notes.write_note(_NOTE, _ACTED)
        except LapseError as error:  # its status tells as well, where it has one
            _log.warning(
                "first_pass_unknown", policy=POLICY_NAME, effect="the next pass may be dry", problem=str(error)
            )

    async def _is_dry(self, policy: RetentionPolicy) -> bool:
        now = self._clock.wall_ns()
        self.ends = None
        if await self._is_over(policy):
            return False
        try:
            seen = from_timestamp(await self._notes.read_note(_NOTE) or "")
            if seen is None or seen > now + SECOND:  # a clock that was ahead has written the latter
                await self._notes.write_note(_NOTE, to_timestamp(now))
                seen = UnixNs(now)
        except LapseError as error:
            _log.warning("first_pass_unknown", policy=POLICY_NAME, effect="the pass is dry", problem=str(error))
            return True
        ends = UnixNs(seen + self._interval_ns)
        self.ends = ends if now < ends else None
        return now < ends

    async def _is_over(self, policy: RetentionPolicy) -> bool:
        """Whether the policy was ever more than dry on this store; what cannot be read counts as no."""
        status = policy.status
        if self._has_acted or (status is not None and status.last_run is not None and not status.dry_run):
            return True
        try:
            return await self._notes.read_note(_NOTE) == _ACTED
        except LapseError:
            return False


def _unchosen(policies: Sequence[StoredPolicy]) -> list[RetentionPolicy]:
    """Return the policy of the settings, unless it is dry anyway; one that a person has stored was chosen."""
    return [
        policy
        for policy, read in policies
        if read.name == POLICY_NAME and not read.dry_run and (not policy.metadata.uid or is_published(policy.metadata))
    ]
