from __future__ import annotations

import pytest

# The cases assert in modules that are no tests; without this a failure would not show what was compared.
for part in ("cases_retention", "cases_rows", "registry"):
    pytest.register_assert_rewrite(f"tests.conformance.journal.{part}")
