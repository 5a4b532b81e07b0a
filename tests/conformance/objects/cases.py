"""The whole contract: importing the modules puts their cases into the registry."""

from __future__ import annotations

from tests.conformance.objects import (  # noqa: F401
    cases_creating,
    cases_deleting,
    cases_garbage,
    cases_listing,
    cases_patching,
    cases_validity,
    cases_watching,
)
from tests.conformance.objects.registry import REGISTRY as CASES

__all__ = ["CASES"]
