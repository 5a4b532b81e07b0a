"""Holds: nothing lapses while somebody holds it.

A hold stands in the annotations of the object that it keeps, so it survives any process of ours and moves with the
object. Reading one is pure, and in doubt it holds: an end that cannot be read is no end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lapse.core.errors import LapseError
from lapse.core.timestamps import from_timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lapse.core.clock import UnixNs

HOLD: Final = "lapse.dev/hold"
"""Any value holds, except an empty one and ``false``."""
HOLD_REASON: Final = "lapse.dev/hold-reason"
HOLD_UNTIL: Final = "lapse.dev/hold-until"
"""RFC 3339."""
_RELEASED: Final = frozenset({"", "false"})


class HeldError(LapseError):
    """{address} is held{reason}, so it is not deleted."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Why something is held, and until when (None: until it is released)."""

    reason: str
    until: UnixNs | None

    def active(self, now: UnixNs) -> bool:
        """Whether it still holds at ``now``."""
        return self.until is None or now < self.until


def hold_of(annotations: Mapping[str, str]) -> Hold | None:
    """Return the hold that these annotations express, over or not; None when there is none."""
    if annotations.get(HOLD, "") in _RELEASED:
        return None
    until = annotations.get(HOLD_UNTIL)
    return Hold(annotations.get(HOLD_REASON, ""), None if until is None else from_timestamp(until))
