"""Where the harness tells people what it does: a function that takes one line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

Tell = Callable[[str], None]


def tell_stderr(line: str) -> None:
    """Write one line for people, now."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def megabytes(size: float) -> str:
    """A size for people: `0.7 MB`, `67 MB`."""
    value = size / 1_000_000
    return f"{value:.1f} MB" if value < 10 else f"{value:.0f} MB"


@dataclass(frozen=True)
class Watch:
    """What a long job is given to keep people informed: `tell` for what happens, `tick` to call every second."""

    tell: Tell
    tick: Callable[[], None] = lambda: None
