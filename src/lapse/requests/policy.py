"""What the operator of Lapse decides about requests: how long they live, and what happens to what they made.

A request's TTL and its keeper's TTL are independent: the first clears away an answered question, the second decides how
long the answer is kept. See the explanation of the pattern for why a keeper outlives its request by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Final

from lapse.core.duration import Duration
from lapse.requests.api.kinds import KeeperMode
from lapse.requests.errors import PolicyError


class TTLMode(StrEnum):
    """Who decides when a finished request goes."""

    SCANNER = "scanner"
    """The policy's TTL; the annotation on the request only informs."""
    ANNOTATION = "annotation"
    """The annotation on the request."""


class RestoreOwnership(StrEnum):
    """Whose a restored claim is."""

    USER = "user"
    """The user's: it outlives request and keeper."""
    KEEPER = "keeper"
    """The keeper's: it goes with it."""


DEFAULT_REQUEST_TTL: Final = Duration.parse("10m")
DEFAULT_REQUEST_DEADLINE: Final = Duration.parse("24h")
DEFAULT_KEEPER_TTL: Final = Duration.parse("24h")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Checked when it is made: a policy that cannot be meant ends the start, not the data."""

    request_ttl: Duration = DEFAULT_REQUEST_TTL
    request_ttl_mode: TTLMode = TTLMode.SCANNER
    request_deadline: Duration = DEFAULT_REQUEST_DEADLINE
    keeper_mode: KeeperMode = KeeperMode.FOLLOW_OBJECT_WITH_TTL
    keeper_ttl: Duration = DEFAULT_KEEPER_TTL
    restore_ownership: RestoreOwnership = RestoreOwnership.USER

    def __post_init__(self) -> None:
        """Refuse durations that would end everything at once."""
        _demand_positive("request_ttl", self.request_ttl, never=True)
        _demand_positive("request_deadline", self.request_deadline, never=True)
        _demand_positive("keeper_ttl", self.keeper_ttl)
        if self.keeper_mode is KeeperMode.TTL:
            expected = "FollowObject or FollowObjectWithTTL: a keeper of a request follows it"
            raise PolicyError(setting="keeper_mode", given=self.keeper_mode, expected=expected)

    @property
    def digest(self) -> str:
        """A short name of this very policy, for the journal."""
        return sha256(repr(self).encode()).hexdigest()[:12]


def _demand_positive(setting: str, duration: Duration, *, never: bool = False) -> None:
    if duration.is_never and never:
        return
    if duration.nanoseconds is None or duration.nanoseconds <= 0:
        expected = "a duration above zero, such as 10m" + (", or never" if never else "")
        raise PolicyError(setting=setting, given=duration, expected=expected)
