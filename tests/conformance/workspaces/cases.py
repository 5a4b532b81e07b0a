"""The whole contract: importing the modules puts their cases into the registry."""

from __future__ import annotations

from tests.conformance.workspaces import cases_lapsing, cases_people, cases_settings, cases_working  # noqa: F401
from tests.conformance.workspaces.registry import REGISTRY as CASES

__all__ = ["CASES"]
