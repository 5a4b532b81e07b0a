from __future__ import annotations

import pytest

# The cases assert in modules that are no tests; without this a failure would not show what was compared.
for part in (
    "registry",
    "cases_age",
    "cases_any_kind",
    "cases_both",
    "cases_count",
    "cases_meanwhile",
    "cases_reading",
):
    pytest.register_assert_rewrite(f"tests.conformance.retention.{part}")
