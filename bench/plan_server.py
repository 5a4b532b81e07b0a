"""The cost of a whole plan on a running ``lapse up``: keys, requests, records and workspaces, within the next hour.

``python -m bench.plan --all [--quick]``. Two sizes, of which the second has ten times as much of everything and as much
that lapses within the hour: a hundredth of it. Stores are filled past the product; the server then reads them as it
reads any. Workspaces are of another machine, because this one would look for their data. What is measured is a call of
``GET /api/v1/plan`` from outside, and the peak of the server's memory beyond what it had before the call.
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
from bench import history, requests_ttl
from bench.contest import step
from lapse.app.record import open_store
from lapse.core.clock import SystemClock
from lapse.workspaces.store.sqlite import open_sqlite_store
from tests.servers.lapse_server import LapseServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    import apsw

_HOUR: Final = 3600
_SECOND: Final = 1_000_000_000
_SPARED: Final = 600  # seconds: nothing is over while it is measured
_TTL: Final = 24 * _HOUR
_BATCH: Final = 10_000
_ROUNDS: Final = 3
_SHARE: Final = 100
_WORKSPACES: Final = """
WITH RECURSIVE numbers (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < :count)
INSERT INTO workspaces (
    id, name, owner, command, port, node_id, desired_state, desired_by, version, observed_status, observed_at,
    status_changed_at, operation, op_tries, standby_ttl_seconds, archive_ttl_seconds, last_access_at, check_after,
    created_at
)
SELECT
    printf('00000000-0000-4000-8000-%012x', number), 'w' || number, 'ann', '["true"]', 20000 + number % 40000,
    'elsewhere', 'STANDBY', 'ttl', 1, 'STANDBY', :now,
    CASE WHEN number <= :due THEN :now - :early ELSE :now END, 'NONE', 0, 60, :ttl,
    CASE WHEN number <= :due THEN :now - :early ELSE :now END,
    CASE WHEN number <= :due THEN :now - :early + :ttl * 1000 ELSE :now + :ttl * 1000 END,
    :now - :early
FROM numbers
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is of everything, and how much of each lapses within the hour."""

    keys: int
    others: int
    """Requests, records and workspaces, of each."""
    due_keys: int
    due: int


SIZES: Final = (Size(100_000, 10_000, 10_000, 1_000), Size(1_000_000, 100_000, 10_000, 1_000))
QUICK: Final = (Size(1_000, 100, 100, 10), Size(10_000, 1_000, 100, 10))


@dataclass(frozen=True, slots=True)
class Planned:
    """What a plan costs."""

    keys: int
    others: int
    counted: int
    items: int
    seconds: float
    cpu_seconds: float
    """Of the server: on a busy machine the better figure."""
    peak_megabytes: float
    resident_megabytes: float


def fill(folder: Path, size: Size) -> None:
    """Fill the stores of a state folder."""
    now = SystemClock().wall_ns()
    with lapse.open_keys((folder / "keys.db").as_uri() + "?sync=normal") as keys:
        app = keys.app(7)
        for start in range(0, size.keys, _BATCH):
            numbers = range(start, min(size.keys, start + _BATCH))
            app.insert_many([(f"key:{one:07}", "value", _ttl(one, size)) for one in numbers])
    store = open_store(folder, clock=SystemClock())
    try:
        requests_ttl.fill(store, _completions(size, now))
        # As many in an hour as are to be due, and the oldest of them in ten minutes.
        history.fill(store, size.others, size.others // 50 or 1, seconds=_span(size))
    finally:
        asyncio.run(store.close())
    rows = open_sqlite_store(folder / "workspaces.db")
    early = (_TTL - _SPARED - _HOUR // 2) * 1000
    values = {"count": size.others, "due": size.due, "now": now // 1_000_000, "ttl": _TTL, "early": early}

    def write(cursor: apsw.Cursor) -> None:
        cursor.execute(_WORKSPACES, values)

    rows.database.write_and_wait(write)
    asyncio.run(rows.close())


def _ttl(number: int, size: Size) -> int:
    soon = number < size.due_keys
    return _SPARED + number * (_HOUR - _SPARED) // size.due_keys if soon else 2 * _HOUR + number % (4 * _TTL)


def _completions(size: Size, now: int) -> Iterator[int]:
    for number in range(size.others):
        soon = number < size.due
        ago = _TTL - _SPARED - number * (_HOUR - 2 * _SPARED) // size.due if soon else number % (_TTL // 2)
        yield now - ago * _SECOND


def _span(size: Size) -> int:
    return size.others * (_HOUR - _SPARED) // size.due


def measure(size: Size, folder: Path) -> Planned:
    """Fill, start and plan."""
    with step(f"fill: {size.keys:,} keys, {size.others:,} of each other"):
        fill(folder, size)
    flags = ("--request-ttl=24h", f"--history-ttl={_span(size) + _SPARED}s")
    with step("start"):
        server = LapseServer.start(folder, *flags)
    try:
        with step("plan"):
            return _planned(server, size)
    finally:
        server.stop()


def _planned(server: LapseServer, size: Size) -> Planned:
    status = Path(f"/proc/{server.process.pid}")
    taken, cpu, answer, peak = [], [], {}, 0.0
    with server.client() as client:
        client.timeout = 120
        while client.get("/api/v1/plan", params={"within": "1m"}).json()["problems"]:  # until it has read everything
            time.sleep(1)
        before = _megabytes(status, "VmRSS")
        for _ in range(_ROUNDS):
            (status / "clear_refs").write_text("5", "ascii")
            began, cpu_began = time.perf_counter(), _cpu(status)
            answer = client.get("/api/v1/plan", params={"within": "1h"}).json()
            taken.append(time.perf_counter() - began)
            cpu.append(_cpu(status) - cpu_began)
            peak = max(peak, _megabytes(status, "VmHWM"))
    counted = sum(one["count"] for one in answer["counts"])
    return Planned(
        size.keys, size.others, counted, len(answer["items"]), min(taken), min(cpu), max(0.0, peak - before), before
    )


def _megabytes(process: Path, field: str) -> float:
    lines = (process / "status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(f"{field}:"))


def _cpu(process: Path) -> float:
    fields = (process / "stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def main(*, is_quick: bool, seconds: float, megabytes: float) -> int:
    """Measure both sizes, and print them; return 1 where a limit was not kept."""
    found = []
    for size in QUICK if is_quick else SIZES:
        with tempfile.TemporaryDirectory(prefix="lapse-bench-") as folder:
            found.append(measure(size, Path(folder)))
        sys.stderr.write(f"  {found[-1]}\n")
    sys.stdout.write(json.dumps({"plan": [asdict(one) for one in found]}) + "\n")
    return 0 if all(one.seconds < seconds and one.peak_megabytes < megabytes for one in found) else 1
