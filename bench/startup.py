"""How long does ``lapse --help`` take? Beside an interpreter that does nothing, which is the floor under it."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Final

from bench.contest import step

COMMANDS: Final = {"python -c pass": ("-c", "pass"), "lapse --help": ("-m", "lapse", "--help")}


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    rounds: int = 15


QUICK: Final = Plan(rounds=3)

Results = dict[str, float]


def run(plan: Plan) -> Results:
    """Start the commands in turn; return the median of seconds until they have ended."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with step("start-up"):
        for _ in range(plan.rounds):
            for name, arguments in COMMANDS.items():
                start = time.perf_counter()
                subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(figures) for name, figures in seconds.items()}
