from __future__ import annotations

import pytest

# The cases assert in modules that are no tests; without this a failure would not show what was compared.
for part in ("lapsing", "people", "working"):
    pytest.register_assert_rewrite(f"tests.conformance.workspaces.cases_{part}")
pytest.register_assert_rewrite("tests.conformance.workspaces.registry")
