"""Writers of the journal are killed at random moments: no row that was acknowledged is lost, none is half there."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from random import Random  # noqa: TID251 - seeded, for the moments of the kills
from typing import TYPE_CHECKING

from lapse.app.record import ProcessRecord, open_store
from lapse.core.clock import SystemClock
from lapse.engine.journal.port import BEGINNING

if TYPE_CHECKING:
    from lapse.engine.journal.port import Row

KILLS = 8
AT_ONCE = 2
PATIENCE_SECONDS = 30
ROOT = Path(__file__).parents[3]


class Writer:
    """A process that writes, and what it was told."""

    def __init__(self, folder: Path, name: str) -> None:
        program = [sys.executable, "-m", "tests.integration.journal.writer", str(folder), name]
        self._process = subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.acknowledged: list[str] = []
        self.wrote = threading.Event()
        self._gathering = threading.Thread(target=self._gather)
        self._gathering.start()

    def _gather(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.acknowledged.append(line.rstrip("\n"))
            self.wrote.set()

    def kill(self) -> list[str]:
        """End it in the middle of its work; return which rows it was told are durable."""
        assert self.wrote.wait(PATIENCE_SECONDS), "a writer wrote nothing"
        self._process.kill()
        self._process.wait()
        self._gathering.join(PATIENCE_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self.acknowledged


async def all_rows(folder: Path) -> list[Row]:
    """Read the whole journal by following it."""
    store = open_store(folder, clock=SystemClock())
    journal, rows, place = ProcessRecord.in_folder(store).journal, [], BEGINNING
    while page := await journal.entries(after=place, limit=1_000):
        rows += page
        place = page[-1].place
    await store.close()
    return rows


def calls(uids: list[str]) -> dict[str, int]:
    """Return how many rows there are of each call."""
    found: dict[str, int] = {}
    for uid in uids:
        call = uid.rpartition("-")[0]
        found[call] = found.get(call, 0) + 1
    return found


def test_after_many_kills_no_acknowledged_row_is_missing_and_no_call_is_half_written(tmp_path: Path) -> None:
    chance, pause, acknowledged = Random(7), threading.Event(), []
    writers = [Writer(tmp_path, f"w{number}") for number in range(AT_ONCE)]
    for number in range(KILLS):
        pause.wait(chance.uniform(0.0, 0.3))
        acknowledged += writers.pop(chance.randrange(len(writers))).kill()
        if number + AT_ONCE < KILLS:
            writers.append(Writer(tmp_path, f"w{number + AT_ONCE}"))
    written = [row.uid for row in asyncio.run(all_rows(tmp_path))]

    assert len(acknowledged) > 100 * KILLS
    assert len(set(written)) == len(written), "a row is there twice"
    assert set(acknowledged) <= set(written)
    sizes = {call: 1 + int(call.rpartition("-")[2]) % 3 for call in calls(written)}
    assert calls(written) == sizes, "a call is one transaction"
