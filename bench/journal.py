"""The journal: how many rows a second it takes, when each one that was acknowledged must survive a power cut.

``python -m bench.journal [--quick]``. Beside it, what one would write instead: the standard library's sqlite3 with a
commit for each row, or for a hundred, into the same table with the same indexes; and a file of JSON lines that is
synced after each row, or each hundred. Everybody keeps the same rows on the same disk, and takes turns. Each round goes
on with what the rounds before have left, so the figures are those of a journal that has rows already.

A second part reads: the rows of one address among all of them, a page of the newest, and everything by following.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from bench.claims import Claim
from bench.contest import Contender, contenders, median, require_linux, step, this_machine, wall_seconds
from bench.domain import ROOT, options_of, publish
from bench.page import claims_section, machine_section, table, verdict_on
from lapse.db.sqlite.database import Database
from lapse.db.sqlite.file import Schema, SQLiteFile, Synchronous
from lapse.engine.journal.port import BEGINNING, Entry, Outcome, entry_values
from lapse.engine.journal.sqlite import INTENT_SCRIPTS, SCHEMA_SCRIPTS, SQLiteJournal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.contest import Machine

WRITERS: Final = 64
TOGETHER: Final = 100
WAYS: Final = {
    "lapse 64": "**the journal**, 64 writers, a row each",
    "lapse 100": "**the journal**, 100 rows in a call",
    "lapse 1": "**the journal**, one writer, a row each",
    "sqlite3 1": "sqlite3, a commit for each row",
    "sqlite3 100": "sqlite3, a commit for 100 rows",
    "lines 1": "JSON lines, fsync after each row",
    "lines 100": "JSON lines, fsync after 100 rows",
}
_INSERT: Final = f"INSERT INTO journal ({', '.join(Entry.__struct_fields__)}) VALUES ({', '.join('?' * 14)})"  # noqa: S608 - names of fields


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    rounds: int = 5
    together: int = 50_000
    """Rows of a round of those that share a sync."""
    alone: int = 2_000
    """Rows of a round of those that sync each row."""


QUICK: Final = Plan(rounds=2, together=1_000, alone=100)


@dataclass(frozen=True, slots=True)
class Reading:
    """What reading took, in milliseconds, and how many rows there were; following in rows a second."""

    rows: int
    address_ms: float
    newest_ms: float
    followed: float


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that one run found out."""

    rates: dict[str, float]
    reading: Reading
    rounds: int


def entries(count: int, start: int) -> list[Entry]:
    """Return rows as a sweep of requests writes them."""
    entry = Entry(
        time_ns=0,
        domain="requests",
        address="",
        uid="",
        version="48213",
        verdict="due",
        reason="ttl_expired",
        anchor_ns=1_700_000_000_000_000_000,
        policy="4f1d2c9a77be",
        actor="request-ttl",
        outcome=Outcome.ENDED,
        details={"mode": "scanner", "completed": "2026-01-31T12:00:00Z"},
        tick="c0ffee00c0ffee00",
    )
    return [
        structs.replace(
            entry,
            time_ns=1_700_000_600_000_000_000 + number,
            address=f"vcr/team-{number % 97}/nightly-{number:09d}",
            uid=f"0b6c4d7e-53a1-4a5e-9d5f-{number:012x}",
        )
        for number in range(start, start + count)
    ]


# --- contenders -------------------------------------------------------------------------------------------------------


class Journal:
    """Ours, in a file of its own, durable as that of the state folder."""

    def __init__(self, path: str) -> None:
        """Open it."""
        file = SQLiteFile(Path(path), synchronous=Synchronous.FULL)
        schema = Schema(application_id=0x4C54, scripts=(*SCHEMA_SCRIPTS, *INTENT_SCRIPTS))
        self._journal = SQLiteJournal(Database(file, schema))
        self._loop = asyncio.new_event_loop()

    def rate(self, way: str, count: int, start: int) -> float:
        """Write rows in one of the ways; return how many a second."""
        rows, work = entries(count, start), {"64": self._many, "100": self._batches, "1": self._one}
        return count / wall_seconds(lambda: self._loop.run_until_complete(work[way](rows)))

    async def _one(self, rows: Sequence[Entry]) -> None:
        for row in rows:
            await self._journal.append(row)

    async def _many(self, rows: Sequence[Entry]) -> None:
        await asyncio.gather(*(self._one(rows[number::WRITERS]) for number in range(WRITERS)))

    async def _batches(self, rows: Sequence[Entry]) -> None:
        for start in range(0, len(rows), TOGETHER):
            await self._journal.append(*rows[start : start + TOGETHER])

    def read(self) -> Reading:
        """Read in three ways."""
        return self._loop.run_until_complete(self._read())

    async def _read(self) -> Reading:
        address = entries(1, 500)[0].address
        began = time.perf_counter()
        for _ in range(100):
            (_,) = await self._journal.entries(address=address)
        found = time.perf_counter()
        for _ in range(100):
            await self._journal.entries(limit=100)
        newest, rows, place = time.perf_counter(), 0, BEGINNING
        while page := await self._journal.entries(after=place, limit=1_000):
            rows, place = rows + len(page), page[-1].place
        over = time.perf_counter()
        return Reading(rows, (found - began) * 10, (newest - found) * 10, rows / (over - newest))


class Plain:
    """The standard library, with the same table and indexes, and the same durability."""

    def __init__(self, path: str) -> None:
        """Make the file."""
        self._db = sqlite3.connect(path)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        for script in (*SCHEMA_SCRIPTS, *INTENT_SCRIPTS):
            self._db.executescript(script)

    def rate(self, way: str, count: int, start: int) -> float:
        """Write rows, some with one commit."""
        rows, size = entries(count, start), int(way)

        def work() -> None:
            for first in range(0, count, size):
                with self._db:
                    self._db.executemany(_INSERT, map(entry_values, rows[first : first + size]))

        return count / wall_seconds(work)


class Lines:
    """A file of JSON lines."""

    def __init__(self, path: str) -> None:
        """Make the file."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def rate(self, way: str, count: int, start: int) -> float:
        """Write rows, some with one sync."""
        rows, size = entries(count, start), int(way)

        def work() -> None:
            for first in range(0, count, size):
                lines = [json.dumps(structs.asdict(row)) for row in rows[first : first + size]]
                os.write(self._file, ("\n".join(lines) + "\n").encode())
                os.fsync(self._file)

        return count / wall_seconds(work)


# --- the run ----------------------------------------------------------------------------------------------------------


def run(plan: Plan, folder: Path) -> Results:
    """Measure the ways in turn."""
    started = {
        name: Contender(name, f"bench.journal:{factory}", str(folder / name))
        for name, factory in {"lapse": "Journal", "sqlite3": "Plain", "lines": "Lines"}.items()
    }
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    written = dict.fromkeys(started, 0)
    with contenders(list(started.values())):
        for number in range(plan.rounds):
            with step(f"rows, round {number + 1} of {plan.rounds}"):
                for way in WAYS:
                    name, how = way.split()
                    count = plan.alone if how == "1" else plan.together
                    rates[way].append(started[name].ask("rate", how, count, written[name]))
                    written[name] += count
        with step("reading"):
            reading = started["lapse"].ask("read")
    return Results({way: median(found) for way, found in rates.items()}, reading, plan.rounds)


def claims_of(results: Results) -> list[Claim]:
    """Return what is promised, and what this run says about it."""
    rates = results.rates
    sustained = {"64 writers": rates["lapse 64"] / 1_000, "100 in a call": rates["lapse 100"] / 1_000}
    peers = {"64 writers": rates["lapse 64"] / rates["sqlite3 1"]}
    batches = {"100 in a call": rates["lapse 100"] / rates["sqlite3 100"]}
    return [
        Claim("durable rows", ">=", 5, sustained, "the disk takes long to sync", unit=" thousand/s"),
        Claim("64 writers against a commit for each row", ">=", 2, peers, "syncing costs nothing on this disk"),
        Claim("100 rows in a call against sqlite3 with 100 in a commit", ">=", 0.7, batches, "a thread more, and JSON"),
    ]


def write(results: Results, machine: Machine, *, command: str, seconds: float) -> str:
    """Return the whole page."""
    claims, reading = claims_of(results), results.reading
    rows = [[words, f"{results.rates[way]:,.0f}"] for way, words in WAYS.items()]
    read = [
        ["the rows of one address", f"{reading.address_ms:.2f} ms"],
        ["the 100 newest", f"{reading.newest_ms:.2f} ms"],
        ["everything, by following, 1,000 at a time", f"{reading.followed:,.0f} rows/s"],
    ]
    return "\n".join(
        [
            _OPENING.format(command=command, verdict=verdict_on(claims, machine)),
            claims_section(claims),
            f"## Writing\n\n{table(['', 'rows/s'], rows)}\n",
            f"## Reading {reading.rows:,} rows\n\n{table(['', ''], read)}\n",
            _METHOD.format(rounds=results.rounds),
            machine_section(machine, seconds=seconds),
        ]
    )


_OPENING: Final = """# Benchmarks of the journal

How many rows a second it takes, each of them on the disk when it is acknowledged, beside what one would write instead.
This page is written by the run; one command repeats it:

```
{command}
```

{verdict}
"""
_METHOD: Final = """## How it is measured

- A row is that of a request that lapsed: some 300 bytes, in a table with six indexes. SQLite in write-ahead mode with
  `synchronous=full`, ours and the peer's; JSON lines have no index, and cannot be asked anything.
- The median of {rounds} rounds in turn; each contender has a process and a file of its own, on the same disk.
- 64 writers are tasks of one event loop, each of which waits for its row to be durable before it writes the next.
- No acknowledged row is lost when the process is killed:
  `tests/integration/journal/test_sigkill.py` kills writers at random moments.
"""


def main() -> None:
    """Measure, print, write."""
    options = options_of("journal", __doc__, ()).parse_args()
    require_linux()
    (ROOT / "build").mkdir(exist_ok=True)
    plan = QUICK if options.quick else Plan()
    machine, start = this_machine(ROOT / "build"), time.perf_counter()
    # Not the system's folder for temporary files: that may be memory, where durability costs nothing.
    with tempfile.TemporaryDirectory(prefix="bench-", dir=ROOT / "build") as folder:
        results = run(plan, Path(folder))
    publish(
        "journal",
        options,
        figures=asdict(results),
        claims=claims_of(results),
        page="benchmarks-journal.md",
        write=lambda command: write(results, machine, command=command, seconds=time.perf_counter() - start),
    )


if __name__ == "__main__":
    main()
