"""What no schema can say about records and policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.kube.rules import IMMUTABLE_SPEC, Rule, is_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    "ChaosExperimentHistory": (IMMUTABLE_SPEC,),
    "RetentionPolicy": is_duration("spec", "maxAge", zero=True),
}
"""By the name of the kind."""
