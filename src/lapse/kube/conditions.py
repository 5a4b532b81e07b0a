"""Conditions: how an object says what became of it, in the way that Kubernetes' own kinds do.

Which reasons there are, and which of them are final, is the business of the domain that writes them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from lapse.kube.crd.rules import Time
from lapse.kube.resources import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

READY: Final = "Ready"
"""The only type of condition that our kinds have."""


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Struct, frozen=True):
    """One statement about an object."""

    # Status and reason are text: a reader must survive values that it does not know.
    type: Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 316})]
    status: Annotated[str, Meta(extra_json_schema={"enum": [*ConditionStatus]})]
    reason: Annotated[str, Meta(extra_json_schema={"maxLength": 1024})] = ""
    message: Annotated[str, Meta(extra_json_schema={"maxLength": 32768})] = ""
    last_transition_time: Time | None = None
    """When ``status`` last became what it is; a change of reason or message alone does not move it."""
    observed_generation: int | None = None


Conditions = Annotated[
    tuple[Condition, ...],
    Meta(
        extra_json_schema={
            "maxItems": 32,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        }
    ),
]


def ready_condition(conditions: Iterable[Condition] | None) -> Condition | None:
    """Return the Ready condition, if there is one."""
    return next((one for one in conditions or () if one.type == READY), None)
