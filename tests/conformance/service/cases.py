"""All cases of the contract: importing this fills the registry."""

from __future__ import annotations

from tests.conformance.service import (  # noqa: F401 - fill the registry
    cases_looking,
    cases_planning,
    cases_proposing,
    cases_steering,
)
