"""Policy for requests, as the settings make it: how long they live, and what happens to what they made.

A request's TTL and its keeper's TTL are independent: the first clears away an answered question, the second decides how
long the answer is kept. See the explanation of the pattern for why a keeper outlives its request by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lapse.core.duration import Duration, DurationError
from lapse.core.errors import LapseError, UsageError
from lapse.engine.domain import policy_hash
from lapse.requests.api.kinds import TTL, KeeperMode


class PolicyError(UsageError, ValueError):
    """The setting {setting} cannot be {given}: expected {expected}."""


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


class RestoreExecutor(StrEnum):
    """Who makes the claim that a restore asks for."""

    BRIDGE = "bridge"
    """Lapse itself, with the stock provisioner and snapshotter of any CSI driver."""
    EXTERNAL = "external"
    """A foreign provisioner that watches the requests."""
    OFF = "off"
    """Nobody: restores are refused."""
    LOCAL = "local"
    """The local executor of `lapse up`; it cannot be chosen, because it works on the embedded store only."""


class ArtifactTTLError(LapseError):
    """spec.artifactTTL is {given!r}, {problem}; expected {expected}.

    A spec cannot change: make a new request with such a TTL, or with none, and then KEEPER_TTL counts.
    """


class InvalidTTLAnnotationError(ValueError):
    """An annotation that is no TTL; the text says why."""


DEFAULT_REQUEST_TTL: Final = Duration.parse("10m")
DEFAULT_REQUEST_DEADLINE: Final = Duration.parse("24h")
DEFAULT_KEEPER_TTL: Final = Duration.parse("24h")
DEFAULT_ARTIFACT_TTL_MAX: Final = Duration.parse("30d")
_SHOWN: Final = 100
"""How much of a TTL that cannot be read is repeated in a message."""


@dataclass(frozen=True, slots=True)
class TTLRule:
    """Which TTL counts for a finished request: the one noted on it, or else ``default``."""

    default: Duration
    annotated: bool = True
    """Whether a note on the request counts. It does not in mode scanner, where it only repeats what counted once."""

    def ttl(self, annotations: dict[str, str]) -> Duration | None:
        """Return the TTL; None when it cannot be read."""
        if not self.annotated or TTL not in annotations:
            return self.default
        try:
            return ttl_of(annotations[TTL])
        except InvalidTTLAnnotationError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPolicy:
    """Checked when it is made: a policy that cannot be meant ends the start, not the data."""

    request_ttl: Duration = DEFAULT_REQUEST_TTL
    request_ttl_mode: TTLMode = TTLMode.SCANNER
    request_deadline: Duration = DEFAULT_REQUEST_DEADLINE
    keeper_mode: KeeperMode = KeeperMode.FOLLOW_OBJECT_WITH_TTL
    keeper_ttl: Duration = DEFAULT_KEEPER_TTL
    artifact_ttl_max: Duration = DEFAULT_ARTIFACT_TTL_MAX
    restore_ownership: RestoreOwnership = RestoreOwnership.USER

    def __post_init__(self) -> None:
        """Refuse durations that would end everything at once."""
        _demand_positive("request_ttl", self.request_ttl, never=True)
        _demand_positive("request_deadline", self.request_deadline, never=True)
        _demand_positive("keeper_ttl", self.keeper_ttl)
        _demand_positive("artifact_ttl_max", self.artifact_ttl_max, never=True)
        if self.keeper_mode is KeeperMode.TTL:
            expected = "FollowObject or FollowObjectWithTTL: a keeper of a request follows it"
            raise PolicyError(setting="keeper_mode", given=self.keeper_mode, expected=expected)

    @property
    def ttl_rule(self) -> TTLRule:
        """Which TTL counts for a finished request."""
        return TTLRule(self.request_ttl, annotated=self.request_ttl_mode is TTLMode.ANNOTATION)

    @property
    def longest_artifact_ttl(self) -> Duration:
        """What a request may ask for at the most; what it would get without asking is never too much."""
        given = self.keeper_ttl if self.keeper_mode is KeeperMode.FOLLOW_OBJECT_WITH_TTL else self.artifact_ttl_max
        return max(self.artifact_ttl_max, given)

    def demand_artifact_ttl(self, text: str | None) -> None:
        """Refuse a TTL that a request asks for and cannot have; raises `ArtifactTTLError`."""
        asked, longest = artifact_ttl(text), self.longest_artifact_ttl
        if asked is None or asked <= longest:
            return
        problem = "which the operator does not allow" if asked.is_never else f"which is longer than {longest}"
        expected = (
            f"at most {longest}, the longer of artifact_ttl_max and keeper_ttl (to allow it, start lapse up with"
            f" --artifact-ttl-max {asked}; on a cluster that is the operator's setting artifact_ttl_max)"
        )
        raise ArtifactTTLError(given=text, problem=problem, expected=expected)

    @property
    def digest(self) -> str:
        """A short name of this very policy, for the journal."""
        return policy_hash(repr(self))

    @property
    def ttl_digest(self) -> str:
        """A short name of what decides about finished requests that there are: in mode annotation, they carry it."""
        rule = self.ttl_rule
        return policy_hash(self.request_ttl_mode, "" if rule.annotated else rule.default)


def _demand_positive(setting: str, duration: Duration, *, never: bool = False) -> None:
    if duration.is_never and never:
        return
    if duration.nanoseconds is None or duration.nanoseconds <= 0:
        expected = "a duration above zero, such as 10m" + (", or never" if never else "")
        raise PolicyError(setting=setting, given=duration, expected=expected)


def artifact_ttl(text: str | None) -> Duration | None:
    """Read what a request asks for; None when it asks for nothing. Raises `ArtifactTTLError` for what is no TTL."""
    try:
        return None if text is None else ttl_of(text)
    except InvalidTTLAnnotationError as error:
        expected = "a duration above zero, such as 12h or 30d, or never"
        problem = f"which is none: {str(error).partition('. ')[0].rstrip('.')[:_SHOWN]}"
        raise ArtifactTTLError(given=(text or "")[:_SHOWN], problem=problem, expected=expected) from error


def ttl_of(text: str) -> Duration:
    """Read a TTL annotation; raises `InvalidTTLAnnotationError` for what is no duration, or none above zero."""
    try:
        ttl = Duration.parse(text)
    except DurationError as error:
        raise InvalidTTLAnnotationError(str(error)) from error
    if ttl.nanoseconds is not None and ttl.nanoseconds <= 0:
        raise InvalidTTLAnnotationError("expected a duration above zero, such as 10m")
    return ttl
