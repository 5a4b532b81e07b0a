"""How much a run does: all of it, or just enough to see that it works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bench import expiry, file, memory, startup, writers


@dataclass(frozen=True, slots=True)
class Plans:
    """One plan per question."""

    memory: memory.Plan
    expiry: expiry.Plan
    file: file.Plan
    writers: writers.Plan
    startup: startup.Plan


FULL: Final = Plans(memory.Plan(), expiry.Plan(), file.Plan(), writers.Plan(), startup.Plan())
QUICK: Final = Plans(memory.QUICK, expiry.QUICK, file.QUICK, writers.QUICK, startup.QUICK)
