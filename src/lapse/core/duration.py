"""Durations: how long something lives, exact to the nanosecond.

Accepted: Go's form (``10m``, ``1h30m``, ``1.5s``) with ``d`` and ``w`` added, ISO 8601 (``PT10M``, ``P1DT12H``),
``never`` and a plain ``0``. A number without a unit is an error: ``600`` means ten minutes to one reader and ten hours
to another. Years and months of ISO 8601 are refused, because they have no fixed length.

Guarantees: arithmetic is on integers, so ``0.1s`` three times is ``300ms``; `str` gives a canonical form that parses
back to an equal duration. Whether zero or a negative value makes sense is the business of the field that holds it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from lapse.core.errors import UsageError

NANOSECOND: Final = 1
MICROSECOND: Final = 1_000
MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
WEEK: Final = 7 * DAY

_UNITS: Final = {
    "ns": NANOSECOND,
    "us": MICROSECOND,
    "\u00b5s": MICROSECOND,  # micro sign
    "\u03bcs": MICROSECOND,  # Greek mu: keyboards differ, Go accepts both
    "ms": MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
    "d": DAY,
    "w": WEEK,
}
# What `str` prints, largest first. Weeks are read but not printed: 30d is clearer than 4w2d.
_PRINTED: Final = (
    ("d", DAY),
    ("h", HOUR),
    ("m", MINUTE),
    ("s", SECOND),
    ("ms", MILLISECOND),
    ("us", MICROSECOND),
    ("ns", 1),
)

_LONGEST: Final = 2**63 - 1  # Go's limit, about 292 years, so that every value can be handed to a Go program
_MOST_CHARACTERS: Final = 100  # no duration needs more; Python's own limit on digits would answer with a foreign error
_NUMBER: Final = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_GO_PART: Final = re.compile(rf"({_NUMBER})([^0-9.]+)")
_ISO: Final = re.compile(
    r"P(?:(?P<weeks>{n})W|(?:(?P<days>{n})D)?(?:T(?:(?P<hours>{n})H)?(?:(?P<minutes>{n})M)?(?:(?P<seconds>{n})S)?)?)".format(
        n=r"[0-9]+(?:[.,][0-9]+)?",
    ),
)
_SHOWN: Final = (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND))
_ISO_UNITS: Final = {"weeks": WEEK, "days": DAY, "hours": HOUR, "minutes": MINUTE, "seconds": SECOND}


class DurationError(UsageError, ValueError):
    """{text!r} is not a duration: {problem}.

    Expected numbers with units (ns, us, ms, s, m, h, d, w) as in 10m or 1h30m, ISO 8601 as in PT10M, or never.
    """


@dataclass(frozen=True, slots=True)
class Duration:
    """An exact span of time, or `NEVER`, which is longer than any other."""

    nanoseconds: int | None
    """None means never: an infinite duration has no number, and arithmetic on it should fail, not overflow."""

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Read a duration; raises `DurationError`, which says what was expected."""
        return _parse(text)

    @classmethod
    def of_seconds(cls, seconds: int) -> Duration:
        """Make a duration of whole seconds."""
        return cls(seconds * SECOND)

    @property
    def is_never(self) -> bool:
        """Whether this is `NEVER`."""
        return self.nanoseconds is None

    @property
    def seconds(self) -> float:
        """As float seconds, for timers; infinity for `NEVER`. Comparisons should use the exact value."""
        return float("inf") if self.nanoseconds is None else self.nanoseconds / SECOND

    def __lt__(self, other: Duration) -> bool:
        """Order by length; `NEVER` is the longest."""
        if self.nanoseconds is None:
            return False
        return other.nanoseconds is None or self.nanoseconds < other.nanoseconds

    def __le__(self, other: Duration) -> bool:
        """Order by length; `NEVER` is the longest."""
        return not other < self

    def __str__(self) -> str:
        """Print the canonical form: whole numbers, largest unit first, no empty parts."""
        return self._printed(_PRINTED)

    def go(self) -> str:
        """Print without days, which Go cannot read: for what programs of others read as well."""
        return self._printed(_PRINTED[1:])

    def _printed(self, units: tuple[tuple[str, int], ...]) -> str:
        if self.nanoseconds is None:
            return "never"
        if self.nanoseconds == 0:
            return "0s"
        rest, parts = abs(self.nanoseconds), []
        for name, size in units:
            count, rest = divmod(rest, size)
            if count:
                parts.append(f"{count}{name}")
        return ("-" if self.nanoseconds < 0 else "") + "".join(parts)


NEVER: Final = Duration(None)


def _parse(text: str) -> Duration:
    if len(text) > _MOST_CHARACTERS:
        raise DurationError(text=f"{text[:20]}...", problem=f"it has {len(text)} characters")
    body = text.strip()
    if body == "never":
        return NEVER
    negative, unsigned = body.startswith("-"), body.lstrip("+-")
    if len(body) - len(unsigned) > 1:
        raise DurationError(text=text, problem="it has more than one sign")
    exact = _iso(text, unsigned) if unsigned.startswith("P") else _go(text, unsigned)
    if exact.denominator != 1:
        raise DurationError(text=text, problem="it is finer than a nanosecond")
    if exact > _LONGEST:
        raise DurationError(text=text, problem="it is longer than 292 years; write never for no limit")
    return Duration(-int(exact) if negative else int(exact))


def _go(text: str, unsigned: str) -> Fraction:
    if not unsigned:
        raise DurationError(text=text, problem="it holds no number")
    if unsigned == "0":
        return Fraction(0)
    if re.fullmatch(_NUMBER, unsigned):
        raise DurationError(text=text, problem=f"it has no unit (seconds would be {unsigned}s)")
    total, at = Fraction(0), 0
    for part in _GO_PART.finditer(unsigned):
        number, unit = part.groups()
        if part.start() != at:
            break
        if unit not in _UNITS:
            raise DurationError(text=text, problem=f"{unit!r} is not a unit")
        total += Fraction(number) * _UNITS[unit]
        at = part.end()
    if at != len(unsigned):
        raise DurationError(text=text, problem=f"{unsigned[at:]!r} is not a number with a unit")
    return total


def _iso(text: str, unsigned: str) -> Fraction:
    if re.match(r"P[0-9.,]+Y|P(?:[0-9.,]+Y)?[0-9.,]+M", unsigned):
        raise DurationError(text=text, problem="years and months have no fixed length")
    match = _ISO.fullmatch(unsigned)
    given = {name: number for name, number in match.groupdict().items() if number} if match else {}
    if not given or unsigned.endswith("T"):
        raise DurationError(text=text, problem="it is not a complete ISO 8601 duration")
    for name in list(given)[:-1]:
        if not given[name].isdigit():
            raise DurationError(text=text, problem="only the last part of an ISO 8601 duration may have a fraction")
    return sum((Fraction(number.replace(",", ".")) * _ISO_UNITS[name] for name, number in given.items()), Fraction(0))


def short(nanoseconds: int) -> str:
    """Print a span of time for people, by its two largest units, rounded up to the second: 9m58s, 3d4h."""
    rest = -(-max(0, nanoseconds) // SECOND) * SECOND
    parts: list[str] = []
    for unit, size in _SHOWN:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:  # noqa: PLR2004 - as many as the docstring says
            break
    return "".join(parts) or "0s"
