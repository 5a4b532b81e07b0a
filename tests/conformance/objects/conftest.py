from __future__ import annotations

import pytest

# The cases assert in modules that are no tests; without this a failure would not show what was compared.
for part in ("creating", "deleting", "garbage", "listing", "patching", "validity", "watching"):
    pytest.register_assert_rewrite(f"tests.conformance.objects.cases_{part}")
pytest.register_assert_rewrite("tests.conformance.objects.registry")
