"""All cases of the contract: importing this fills the registry."""

from __future__ import annotations

from tests.conformance.service import cases_looking, cases_planning, cases_steering  # noqa: F401 - fill the registry
