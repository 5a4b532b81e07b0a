"""Writers are killed in the middle of their work: what they were told is true, and nobody was told the same twice."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random  # noqa: TID251 - seeded, for the moments of the kills
from typing import TYPE_CHECKING

import apsw
import pytest

import lapse
from tests.integration.keys_file.writer import COUNTER, THREADS

if TYPE_CHECKING:
    from collections.abc import Iterator

AT_ONCE = 3
PATIENCE_SECONDS = 20


@dataclass
class Reports:
    """What the writers said, gathered by a thread so that no pipe fills up."""

    inserted: list[tuple[str, str]] = field(default_factory=list)
    winners: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    counted: list[int] = field(default_factory=list)
    processes: queue.Queue[tuple[str, int]] = field(default_factory=queue.Queue)
    wrote: dict[str, threading.Event] = field(default_factory=lambda: defaultdict(threading.Event))

    def gather(self, lines: Iterator[str]) -> None:
        for line in lines:
            name, what, detail = line.split()
            if what == "started":
                self.processes.put((name, int(detail)))
                continue
            if what == "inserted":
                self.inserted.append((detail, name))
            elif what == "won":
                self.winners[detail].append(name)
            else:
                self.counted.append(int(detail))
            self.wrote[name.partition(".")[0]].set()


class Nursery:
    """Starts writers and kills them."""

    def __init__(self, program: subprocess.Popen[str], reports: Reports) -> None:
        self._program, self._reports = program, reports
        self._started = 0

    def start_writer(self) -> int:
        """Return the process id of a new writer, once its first write was acknowledged."""
        assert self._program.stdin is not None
        self._started += 1
        self._program.stdin.write(f"w{self._started}\n")
        self._program.stdin.flush()
        name, process = self._reports.processes.get(timeout=PATIENCE_SECONDS)
        assert self._reports.wrote[name].wait(PATIENCE_SECONDS), "a writer wrote nothing"
        return process


@contextmanager
def nursery(url: str, reports: Reports) -> Iterator[Nursery]:
    program = [sys.executable, "-m", "tests.integration.keys_file.writer", url]
    root = Path(__file__).parents[3]
    with subprocess.Popen(program, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        gathering = threading.Thread(target=reports.gather, args=(running.stdout,))
        gathering.start()
        try:
            yield Nursery(running, reports)
        finally:
            assert running.stdin is not None
            running.stdin.close()
            gathering.join(PATIENCE_SECONDS)


@pytest.mark.parametrize(("sync", "kills"), [("full", 50), ("normal", 10)])
def test_after_many_kills_no_acknowledged_write_is_missing_and_no_insert_has_two_winners(
    tmp_path: Path, sync: str, kills: int
) -> None:
    url = f"file://{tmp_path}/keys.db?sync={sync}"
    reports, chance, pause = Reports(), Random(7), threading.Event()
    lapse.open_keys(url, sweep=False).close()

    with nursery(url, reports) as writers:
        living = [writers.start_writer() for _ in range(AT_ONCE)]
        for _ in range(kills - AT_ONCE):
            pause.wait(chance.uniform(0.0, 0.06))
            os.kill(living.pop(chance.randrange(AT_ONCE)), signal.SIGKILL)
            living.append(writers.start_writer())
        for process in living:
            os.kill(process, signal.SIGKILL)

    with lapse.open_keys(url, sweep=False) as keys:
        app = keys.app(7)
        assert len(reports.inserted) > kills
        stored = app.get_many([key for key, _ in reports.inserted])
        assert [key for key, name in reports.inserted if stored.get(key) != name] == []

        assert [key for key, names in reports.winners.items() if len(names) > 1] == []
        stored = app.get_many(reports.winners)
        assert [key for key, names in reports.winners.items() if stored.get(key) != names[0]] == []

        assert [number for number, times in Counter(reports.counted).items() if times > 1] == []
        total = int(app.ttl_get(COUNTER) or 0)
        untold = kills * THREADS  # each killed thread may have counted once without being told
        assert max(reports.counted) <= total <= len(reports.counted) + untold
    db = apsw.Connection(str(tmp_path / "keys.db"))
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()
