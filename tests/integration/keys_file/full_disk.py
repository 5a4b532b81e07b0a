"""A program that fills a disk with keys, lets them expire, sweeps, and writes again. ``python -m ... FOLDER``."""

from __future__ import annotations

import sys

import lapse
from lapse.core.clock import VirtualClock
from lapse.keys.errors import BackendUnavailableError


def main(folder: str) -> str:
    """Return what went wrong, or nothing."""
    clock = VirtualClock()
    with lapse.open_keys(f"file://{folder}/keys.db", clock=clock, sweep=False) as keys:
        app = keys.app(1)
        for size in (1000, 1):
            try:
                for number in range(100_000):
                    app.put(f"{size}:{number}", "v" * size, 60)
            except BackendUnavailableError as error:
                if "the disk is full" not in str(error):
                    return str(error)
            else:
                return "the disk never got full"
        clock.advance(61)
        while keys.sweep().more:
            pass
        if sum(number for _, _, number in keys.backend.counts()):
            return "expired records are still stored"
        app.put("new", "v" * 1000, 60)
        return "" if app.ttl_get("new") else "a write was lost"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) or None)
