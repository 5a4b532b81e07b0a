"""All cases of retention: importing the modules puts them into the registry."""

from __future__ import annotations

from tests.conformance.retention import (  # noqa: F401
    cases_age,
    cases_any_kind,
    cases_both,
    cases_count,
    cases_meanwhile,
    cases_reading,
)
from tests.conformance.retention.registry import REGISTRY as CASES

__all__ = ["CASES"]
