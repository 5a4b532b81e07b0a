"""The whole contract: importing the modules puts their cases into the registry."""

from __future__ import annotations

from tests.conformance.journal import cases_retention, cases_rows  # noqa: F401
from tests.conformance.journal.registry import CASES

__all__ = ["CASES"]
