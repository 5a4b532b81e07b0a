"""Which errors a user of a server wants raised.

A domain has errors of its own, which say what its callers may believe. They are handed down, not translated on the
way up: the driver's error stays the direct ``__cause__``, and an exchange, which is the hot path, has no layer more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lapse.core.errors import LapseError


@dataclass(frozen=True, slots=True)
class Errors:
    """Four classes of errors. All but ``closed`` are called with the places ``backend`` and ``problem``."""

    unavailable: type[LapseError]
    """Nothing was done."""
    outcome_unknown: type[LapseError]
    """A write was sent, and no answer came."""
    misfit: type[LapseError]
    """The server is there, and is not what is needed."""
    closed: type[LapseError]
    """The user closed it; takes no places."""
    foreign: str
    """What is wrong, and what to do, when a name that is used here holds something else; the problem of a misfit."""
