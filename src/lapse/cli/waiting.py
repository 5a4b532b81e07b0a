"""Waiting for what was asked for: the options that commands share, and what is said when it takes too long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Parameter

from lapse.core.errors import LapseError, UsageError

Wait = Annotated[bool, Parameter(help="Wait until it is done, or has failed.", show_default=False)]
Timeout = Annotated[
    str,
    Parameter(metavar="DURATION", help="How long to wait at most; never for no limit.", allow_leading_hyphen=True),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Waiting:
    """Whether to wait for the outcome."""

    wait: Wait = False
    timeout: Timeout = "60s"

    def check(self) -> None:
        """Raise a usage error unless the timeout can be meant: before anything is asked for."""
        timeout_seconds(self.timeout)


NO_WAIT: Final = Waiting()


class StillWaitingError(LapseError):
    """{address} is {state} after {timeout}. {hint}"""  # noqa: D400 - a sentence follows


class TimeoutValueError(UsageError):
    """The timeout is {given}; expected a duration above zero, such as 30s, or never."""


def timeout_seconds(text: str) -> float | None:
    """Read a timeout; None is no end."""
    from lapse.core.duration import Duration

    duration = Duration.parse(text)
    if duration.nanoseconds is not None and duration.nanoseconds <= 0:
        raise TimeoutValueError(given=text)
    return None if duration.is_never else duration.seconds
