"""The gate of a real ``lapse up``: a budget, a restart, and the commands of the person that it waits for."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from lapse.app.record import open_store
from lapse.core.clock import SystemClock
from lapse.core.timestamps import to_timestamp
from lapse.engine.journal.port import Outcome
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.requests.api.kinds import MANIFEST_CAPTURE_REQUEST
from tests.servers.lapse_server import lapse, until

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.engine.journal.port import Row
    from tests.integration.up.conftest import Start

CLOCK = SystemClock()
FIRST_PASS = "--retention-interval=1s"
"""What was done before the first start stays for so long."""
FLAGS = ("--request-ttl=1s", "--request-deletion-budget=20/1h", FIRST_PASS)
FROZEN = 'lapse_frozen{domain="requests"}'
ENDED = 'lapse_deletions_total{domain="requests",reason="ttl_expired"}'


def finished_requests(folder: Path, count: int) -> None:
    """Put requests into the store that were done a while ago."""

    async def put() -> None:
        store = open_store(folder, clock=CLOCK)
        done = to_timestamp(CLOCK.wall_ns() - 60_000_000_000)
        ready = {"type": "Ready", "status": "True", "reason": "Completed", "message": "", "lastTransitionTime": done}
        for number in range(count):
            meta = {"name": f"r{number:02}", "namespace": "default"}
            spec = {"targets": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}]}
            made = await store.create(MANIFEST_CAPTURE_REQUEST, {"metadata": meta, "spec": spec})
            status = {"conditions": [ready], "completionTimestamp": done}
            await store.patch_status(MANIFEST_CAPTURE_REQUEST, made.metadata.key, status)
        await store.close()

    asyncio.run(put())


def left_and_told(folder: Path) -> tuple[int, list[Row]]:
    """Return how many requests there are, and what the journal says about whole domains, oldest first."""

    async def look() -> tuple[int, list[Row]]:
        store = open_store(folder, clock=CLOCK)
        try:
            page = await store.list(MANIFEST_CAPTURE_REQUEST)
            rows = await SQLiteJournal(store.database).entries(limit=1_000)
        finally:
            await store.close()
        gate = {Outcome.FROZEN, Outcome.RESUMED}
        return len(page.items), [row for row in reversed(rows) if row.outcome in gate]

    return asyncio.run(look())


def test_a_budget_freezes_a_restart_does_not_thaw_and_a_person_resumes(start: Start, tmp_path: Path) -> None:
    finished_requests(tmp_path, 50)
    server = start(*FLAGS)
    until(lambda: server.metric(FROZEN) == 1 and server.metric(ENDED) == 20)
    warning = server.event("domain_frozen")
    assert warning is not None
    assert (warning["domain"], warning["level"], warning["run"]) == ("requests", "warning", "lapse resume requests")
    assert warning["reason"] == "the deletion budget of requests, 20/1h, is spent"
    server.stop()
    left, told = left_and_told(tmp_path)
    assert left == 30
    assert [(row.domain, row.outcome, row.reason) for row in told] == [("requests", "frozen", "budget_spent")]

    server = start(*FLAGS)
    until(lambda: server.metric(FROZEN) == 1)
    assert left_and_told(tmp_path)[0] == 30
    done = lapse("resume", "requests", f"--state-dir={tmp_path}", "-o", "json", state_dir=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["resumed"]) == (0, ["requests"]), done.stderr
    until(lambda: server.metric(ENDED) == 20 and server.metric(FROZEN) == 1)
    left, told = left_and_told(tmp_path)
    assert left == 10
    assert [row.outcome for row in told] == ["frozen", "resumed", "frozen"]


def test_a_person_freezes_a_running_process_and_lets_it_go_on(start: Start, tmp_path: Path) -> None:
    server = start("--request-ttl=1s", FIRST_PASS)
    at = f"--state-dir={tmp_path}"
    done = lapse("freeze", "all", "--reason", "look at this first", at, "-o", "json", state_dir=tmp_path)
    told = json.loads(done.stdout)
    assert (done.returncode, told["domain"], told["frozen"]["reason"]) == (0, "all", "look at this first")
    until(lambda: server.metric(FROZEN) == 1)
    finished_requests(tmp_path, 3)
    found = json.loads(lapse("requests", "list", at, "-o", "json", state_dir=tmp_path).stdout)
    assert len(found["items"]) == 3
    done = lapse("resume", "requests", at, state_dir=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Still frozen" in done.stdout
    assert left_and_told(tmp_path)[0] == 3

    assert lapse("resume", "all", at, state_dir=tmp_path).returncode == 0
    until(lambda: server.metric(ENDED) == 3)
    until(lambda: server.metric(FROZEN) == 0)
    assert [(row.domain, row.outcome) for row in left_and_told(tmp_path)[1]] == [("all", "frozen"), ("all", "resumed")]


def test_what_cannot_be_frozen_is_wrong_usage(tmp_path: Path) -> None:
    for command in ("freeze", "resume"):
        done = lapse(command, "keys", state_dir=tmp_path)
        assert (done.returncode, done.stdout) == (64, "")
        assert "Keys cannot be frozen" in done.stderr
        done = lapse(command, "request", state_dir=tmp_path)
        assert (done.returncode, done.stdout) == (64, "")
        assert "Expected requests, keepers, schedules, history, retention, workspaces or all." in done.stderr
