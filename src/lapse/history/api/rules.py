"""What no schema can say about records and policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.core.duration import HOUR, SECOND, Duration, DurationError
from lapse.kube.crd.rules import IMMUTABLE_SPEC, Rule, is_duration, seconds_in_cel

if TYPE_CHECKING:
    from collections.abc import Mapping

RECORD_GROUP: Final = "chaos.gushchin.dev"
RECORD_KIND: Final = "ChaosExperimentHistory"
SHORTEST_AGE: Final = HOUR
"""Of records: a shorter limit is a typing error, and ``30m`` for ``30d`` would empty a history of years."""
AGE_OF_RECORDS: Final = "maxAge of records must be 0 for any age, or 1h or more, such as 720h"


def is_age_of_records(spec: Mapping[str, Any]) -> bool:
    """Whether a policy leaves records at least an hour, or is about something else, or has another fault."""
    selector, text = spec["selector"], spec.get("maxAge")
    group, _, _ = selector["apiVersion"].partition("/")
    if (group, selector["kind"]) != (RECORD_GROUP, RECORD_KIND) or text is None:
        return True
    try:
        age = Duration.parse(text).nanoseconds
    except DurationError:
        return True
    return age is None or age <= 0 or age >= SHORTEST_AGE


_SECONDS: Final = seconds_in_cel("self.maxAge")
_AGE_OF_RECORDS: Final = Rule(
    ("spec",),
    f"!(self.selector.kind == '{RECORD_KIND}' && self.selector.apiVersion.startsWith('{RECORD_GROUP}/'))"
    f" || !has(self.maxAge) || {_SECONDS} == 0.0 || {_SECONDS} >= {SHORTEST_AGE / SECOND!r}",
    lambda spec, _old: is_age_of_records(spec),
    AGE_OF_RECORDS,
)

RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    RECORD_KIND: (IMMUTABLE_SPEC,),
    "RetentionPolicy": (*is_duration("spec", "maxAge", zero=True), _AGE_OF_RECORDS),
}
"""By the name of the kind."""
