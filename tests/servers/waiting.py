"""Waiting in real time for something that a real server or process does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def wait_until(condition: Callable[[], bool], *, seconds: float = 10, what: str = "the condition") -> float:
    """Return as soon as it holds, with the seconds that took; raises `TimeoutError` when it does not."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > seconds:
            raise TimeoutError(f"{what} did not come true in {seconds} s")
        time.sleep(0.01)
    return time.monotonic() - begun
