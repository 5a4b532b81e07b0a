"""The cost of a plan: with how much is due it grows, and not with how much there is.

``python -m bench.plan [--quick] [--all]`` prints its progress, then one line of JSON, and says by its exit status
whether the limits were kept. ``--all`` measures a whole plan instead, on a running server: see `bench.plan_server`.

- *keys*: how many live keys of an application expire within the next hour, counted as a plan counts them, in a process
  of its own. A hundredth is due, and the rest is spread over four days. In memory it matters where the clock stands:
  the timing wheel has slots of 64, 4096, ... ticks, and of the one into which the end of the hour falls all keys are
  looked at. *usual* is an hour within 4096 ticks (73 minutes), *worst* one that reaches into a new slot of three days,
  which happens in one hour of 78.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import lapse
from bench import plan_server
from bench.contest import Contender, contenders, require_linux, resident_bytes, step
from lapse.core.clock import UnixNs, VirtualClock
from lapse.keys.managed import ManagedKeys

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS: Final = 3.0
MEGABYTES: Final = 300.0
"""Of the whole plan."""
_SECOND: Final = 1_000_000_000
_HOUR: Final = 3600
_DUE_SHARE: Final = 100
_FAR_SECONDS: Final = 4 * 24 * _HOUR
_APP: Final = 7
_BATCH: Final = 10_000
_ROUNDS: Final = 5
_TICK_BITS: Final = 30
_MIDDLE: Final = 1 << 18  # ticks of a slot of the fourth level
_NEAR: Final = 1 << 12  # and of the third
_EPOCH_TICKS: Final = 1_750_000_000 * _SECOND >> _TICK_BITS
_BEGINNING: Final = _EPOCH_TICKS // _MIDDLE * _MIDDLE
STARTS: Final = {
    "usual": (_BEGINNING + _NEAR + 60) << _TICK_BITS,
    "worst": (_BEGINNING + _MIDDLE - 60) << _TICK_BITS,
}
"""When the count begins, by the slots of the timing wheel."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much to do."""

    keys: tuple[int, ...] = (100_000, 1_000_000)


QUICK: Final = Sizes(keys=(10_000,))


@dataclass(frozen=True, slots=True)
class Counted:
    """What it costs to count keys: the best of several rounds, and the peak of all."""

    store: str
    start: str
    keys: int
    due: int
    seconds: float
    cpu_seconds: float
    """Of the whole process: on a busy machine the better figure."""
    peak_megabytes: float
    """Resident memory beyond what the store itself takes."""


class KeysBench:
    """A process with a store full of keys."""

    def __init__(self, url: str, start: str, size: int) -> None:
        """Fill it."""
        self._url, self._start, self._size = url, start, size

    def run(self) -> Counted:
        """Count, several times."""
        return asyncio.run(self._run())

    async def _run(self) -> Counted:
        clock = VirtualClock(STARTS[self._start])
        async with lapse.open_keys_async(self._url, clock=clock, sweep=False) as keys:
            app = keys.app(_APP)
            todo = list(_ttls(self._size))
            for at in range(0, self._size, _BATCH):
                some = enumerate(todo[at : at + _BATCH], start=at)
                await app.insert_many([(f"key:{number:07}", "value", ttl) for number, ttl in some])
            domain, until = ManagedKeys(keys), UnixNs(clock.wall_ns() + _HOUR * _SECOND)
            _forget_peak()
            before = resident_bytes()
            taken, cpu, told = [], [], []
            for _ in range(_ROUNDS):
                began, cpu_began = time.perf_counter(), time.process_time()
                told = await domain.counts(until) or []
                taken.append(time.perf_counter() - began)
                cpu.append(time.process_time() - cpu_began)
            peak = resident_bytes("VmHWM") - before
        return Counted(
            self._url.partition(":")[0],
            self._start,
            self._size,
            sum(one.count for one in told),
            min(taken),
            min(cpu),
            max(0, peak) / 1e6,
        )


def _ttls(size: int) -> Iterator[int]:
    """Yield TTLs of which a hundredth is over within the hour."""
    due = size // _DUE_SHARE
    for number in range(size):
        yield 1 + number * (_HOUR - 1) // due if number < due else _HOUR + 1 + number * _FAR_SECONDS // size


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # the peak is counted from now on


def run_keys(sizes: Sizes, folder: Path) -> list[Counted]:
    """Measure each store, each size and each stand of the clock in a process of its own."""
    found: list[Counted] = []
    for size in sizes.keys:
        for start in STARTS:
            urls = ["memory://"] if start != "usual" else ["memory://", f"file://{folder}/keys-{size}.db?sync=normal"]
            for url in urls:
                with step(f"keys: {size:,} in {url.partition(':')[0]}, {start}"):
                    parts = [Contender("keys", "bench.plan:KeysBench", url, start, size)]
                    with contenders(parts) as (contender,):
                        found.append(contender.ask("run"))
    return found


def main(arguments: list[str]) -> int:
    """Run; return 1 where a limit was not kept."""
    require_linux()
    if "--all" in arguments:
        return plan_server.main(is_quick="--quick" in arguments, seconds=SECONDS, megabytes=MEGABYTES)
    with tempfile.TemporaryDirectory(prefix="lapse-bench-") as folder:
        keys = run_keys(QUICK if "--quick" in arguments else Sizes(), Path(folder))
    sys.stdout.write(json.dumps({"keys": [asdict(one) for one in keys]}) + "\n")
    kept = all(one.seconds < SECONDS and one.peak_megabytes < MEGABYTES for one in keys)
    return 0 if kept and all(one.due == one.keys // _DUE_SHARE for one in keys) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
