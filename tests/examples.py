"""The number of generated examples that a property is tried on.

`LAPSE_EXAMPLES=few` divides it by five, and `make test` sets it: the loop of everybody who changes something.
Everywhere else, CI included, all of them run. How long each example is (`stateful_step_count`) stays the same.
"""

from __future__ import annotations

import os

FEW = os.environ.get("LAPSE_EXAMPLES") == "few"


def examples(number: int) -> int:
    """The number of examples for `hypothesis.settings(max_examples=...)`, where all of them are `number`."""
    return max(number // 5, 5) if FEW else number
