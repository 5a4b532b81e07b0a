"""A program that writes rows until it is killed, and says on standard output which of them were acknowledged.

Started as ``python -m tests.integration.journal.writer FOLDER NAME``: many tasks write a row each, or a few in a call,
into the journal of a state folder, as sweeps and people do at the same time.
"""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import count
from pathlib import Path

from msgspec.structs import replace

from lapse.app.record import ProcessRecord, open_store
from lapse.core.clock import SystemClock
from tests.conformance.journal.registry import ENTRY

TASKS = 16


async def write(record: ProcessRecord, name: str) -> None:
    """Write for ever, and report after each answer, in one piece that a pipe takes atomically."""
    for number in count():
        rows = [replace(ENTRY, uid=f"{name}-{number}-{part}") for part in range(1 + number % 3)]
        await record.journal.append(*rows)
        os.write(1, "".join(f"{row.uid}\n" for row in rows).encode())


async def main(folder: Path, name: str) -> None:
    record = ProcessRecord.in_folder(open_store(folder, clock=SystemClock()))
    await asyncio.gather(*(write(record, f"{name}.{task}") for task in range(TASKS)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
