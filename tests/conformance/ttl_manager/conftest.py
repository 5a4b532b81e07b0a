from __future__ import annotations

import pytest

# The cases assert in modules that are no tests; without this a failure would not show what was compared.
pytest.register_assert_rewrite("tests.conformance.ttl_manager.cases", "tests.conformance.ttl_manager.harness")
