"""Validation rules that no schema can express, each once in CEL for Kubernetes and in Python for the embedded store.

That both sides of a rule say the same is proven by one table of documents, which runs against both. Which kind has
which rules is the business of the domain that the kind belongs to.

Types of fields that many kinds have are here too. The bounds in ``Meta(extra_json_schema=...)`` are for the schema
only: a reader of an object takes what is stored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta

from lapse.core.duration import Duration, DurationError

if TYPE_CHECKING:
    from collections.abc import Callable

# Not `format: date-time`: with that, an API server takes a list for a text, and nobody could read the object again.
_DATE: Final = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME_OF_DAY: Final = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?"
TIME_PATTERN: Final = f"^{_DATE}T{_TIME_OF_DAY}(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
"""A moment in RFC 3339."""

Name = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 253})]
Namespace = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 63})]
Uid = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 128})]
ApiVersion = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 317})]
KindName = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 63})]
Time = Annotated[str, Meta(extra_json_schema={"pattern": TIME_PATTERN})]
Count = Annotated[int, Meta(extra_json_schema={"minimum": 0})]


MAX_TTL_CHARACTERS: Final = 100


@dataclass(frozen=True)
class Rule:
    """Something that must hold for the value at a place of a document, whenever there is one."""

    at: tuple[str, ...]
    """The names on the way to the value, none for the document itself."""
    cel: str
    """Sees the value as ``self`` and, in a rule about changes, the earlier one as ``oldSelf``."""
    holds: Callable[[Any, Any], bool] = field(repr=False)
    """Sees the value and, in a rule about changes, the earlier one."""
    message: str
    about_changes: bool = False
    """Whether it compares with an earlier value, and so says nothing about a new one."""


IMMUTABLE_SPEC: Final = Rule(
    ("spec",), "self == oldSelf", lambda new, old: new == old, "spec is immutable", about_changes=True
)


# --- durations --------------------------------------------------------------------------------------------------------

# The grammar of `Duration` without signs and spaces. The number of decimals is bounded, because nothing is finer than a
# nanosecond.
_NUMBER: Final = r"([0-9]+(\.[0-9]{0,9})?|\.[0-9]{1,9})"
_MILLI: Final = r"([0-9]+(\.[0-9]{0,6})?|\.[0-9]{1,6})"
_MICRO: Final = r"([0-9]+(\.[0-9]{0,3})?|\.[0-9]{1,3})"
_GO: Final = f"({_NUMBER}[smhdw]|{_MILLI}ms|{_MICRO}[uµμ]s|[0-9]+ns)+"
_LAST: Final = "[0-9]+([.,][0-9]{1,9})?"
_ISO_TIME: Final = f"T(([0-9]+H)?([0-9]+M)?{_LAST}S|([0-9]+H)?{_LAST}M|{_LAST}H)"
_ISO: Final = f"P({_LAST}[WD]|([0-9]+D)?{_ISO_TIME})"
DURATION_PATTERN: Final = f"^({_GO}|{_ISO})$"

_LONGEST_SECONDS: Final = (2**63 - 1) / 1e9  # the most that a duration holds
_SECONDS: Final = {
    "ns": "0.000000001",
    "us": "0.000001",
    "µs": "0.000001",
    "μs": "0.000001",
    "ms": "0.001",
    "s": "1.0",
    "m": "60.0",
    "h": "3600.0",
    "d": "86400.0",
    "w": "604800.0",
    "S": "1.0",
    "M": "60.0",
    "H": "3600.0",
    "D": "86400.0",
    "W": "604800.0",
}
_UNITS: Final = "(" + "|".join(_SECONDS) + ")"
_OR_ZERO: Final = " || self == '0'"
_SECONDS_OF_UNIT: Final = "{" + ", ".join(f"'{unit}': {seconds}" for unit, seconds in _SECONDS.items()) + "}"


def seconds_in_cel(text: str) -> str:
    """Return the CEL of the seconds of a duration, 0.0 for never; ``text`` is the CEL of a text that is one."""
    return (
        f"{text}.replace(',', '.').findAll('[0-9.]+{_UNITS}')"
        f".map(part, double(part.find('[0-9.]+')) * {_SECONDS_OF_UNIT}[part.find('{_UNITS}')])"
        ".sum()"
    )


def _readable(text: str) -> bool:
    try:
        Duration.parse(text)
    except DurationError:
        return False
    return True


def _above_zero(at: tuple[str, ...]) -> Rule:
    return Rule(
        at,
        "self == 'never' || self.matches('[1-9]')",
        lambda text, _old: text == "never" or re.search("[1-9]", text) is not None,
        "must be longer than zero",
    )


def is_duration(*at: str, zero: bool = False) -> tuple[Rule, ...]:
    """Demand a duration longer than zero, or never; with ``zero``, where that means off, also 0."""
    return (
        Rule(
            at,
            f"self == 'never'{_OR_ZERO if zero else ''} || self.matches(r'{DURATION_PATTERN}')",
            lambda text, _old: (
                text == "never" or (zero and text == "0") or re.fullmatch(DURATION_PATTERN[1:-1], text) is not None
            ),
            f"must be a duration such as 10m, 1h30m, 7d or PT10M, or never{', or 0 for none' if zero else ''}",
        ),
        *(() if zero else (_above_zero(at),)),
        Rule(
            at,
            f"{seconds_in_cel('self')} <= {_LONGEST_SECONDS!r}",
            lambda text, _old: re.fullmatch(DURATION_PATTERN[1:-1], text) is None or _readable(text),
            "must be at most 292 years; write never for no limit",
        ),
    )
