"""Jitter: the only place of the product that uses chance to spread work.

Many instances that wake at the same instant hit the same server at the same instant. Every periodic wait and every
retry goes through here; the source of chance is an argument, so that tests see the bounds exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

Chance = Callable[[], float]
"""Returns a number in [0, 1)."""

chance: Final[Chance] = random.random


def around(seconds: float, *, fraction: float = 0.1, chance: Chance = chance) -> float:
    """Move a wait by up to ``fraction`` of itself, shorter or longer."""
    return seconds * (1 - fraction + 2 * fraction * chance())


def backoff(attempt: int, *, first: float = 0.1, longest: float = 30.0, chance: Chance = chance) -> float:
    """Seconds to wait before retry number ``attempt`` (from 0): between half and all of a doubling, bounded wait.

    Half of the wait is fixed, so that a retry is never immediate.
    """
    wait = min(longest, first * 2.0 ** min(attempt, 60))
    return wait * (0.5 + 0.5 * chance())
