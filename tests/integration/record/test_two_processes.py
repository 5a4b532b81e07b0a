"""Two processes that end things of one state folder at the same moment share one budget, to the last act."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from lapse.app.record import ProcessRecord, open_store
from lapse.core.clock import SystemClock
from lapse.engine.journal.port import Outcome

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process
BUDGET = 1_000
PROGRAM = """
import asyncio, sys
from pathlib import Path
from lapse.app.record import ProcessRecord, open_store
from lapse.core.believed_clock import BelievedClock
from lapse.core.clock import SystemClock
from lapse.engine.journal.port import Entry, Outcome
from lapse.engine.running.metrics import Metrics
from lapse.engine.safety.budget import Budget, Budgets
from lapse.engine.safety.freeze import FreezeReason

async def main():
    clock = BelievedClock(SystemClock())
    store = open_store(Path(sys.argv[1]), clock=clock)
    record = ProcessRecord.in_folder(store, budgets=Budgets(Budget.parse(sys.argv[3])))
    gate = record.gate(await record.guard(clock), metrics=Metrics("test"))
    print("ready", flush=True)
    sys.stdin.readline()
    while True:
        grant = await gate.allow("requests", 7)
        if grant.refusal in {FreezeReason.FROZEN, FreezeReason.BUDGET_SPENT}:
            return
        if grant.refusal is not None:  # what others have reserved, or taken at the same moment: it is asked again
            await clock.sleep(0.01)
            continue
        row = Entry(
            time_ns=clock.wall_ns(), domain="requests", address="vcr/a/b", uid="u", version="1", verdict="due",
            reason="ttl_expired", anchor_ns=None, policy="", actor=sys.argv[2], outcome=Outcome.ENDED,
        )
        await record.journal.append(*[row] * grant.count)
        gate.done(grant, ended=grant.count)
        await gate.release("requests")

asyncio.run(main())
"""


def test_processes_never_exceed_a_budget_together(tmp_path: Path) -> None:
    names = ["one", "other", "third"]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path), name, f"{BUDGET}/1h"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for name in names
    ]
    try:
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        for process in running:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
        assert [process.wait(60) for process in running] == [0] * len(names)
    finally:
        for process in running:
            process.kill()
            process.communicate()
    ended, frozen = asyncio.run(found_in(tmp_path))
    assert ended.total() == BUDGET
    assert set(ended) == set(names), "all of them had a part"
    assert frozen


async def found_in(folder: Path) -> tuple[Counter[str], bool]:
    """Return who has ended how much, and whether the domain is frozen."""
    store = open_store(folder, clock=SystemClock())
    record = ProcessRecord.in_folder(store)
    rows = await record.journal.entries(domain="requests", limit=2 * BUDGET)
    state = await record.safety.load(0)
    await store.close()
    return Counter(row.actor for row in rows if row.outcome is Outcome.ENDED), "requests" in state.frozen
