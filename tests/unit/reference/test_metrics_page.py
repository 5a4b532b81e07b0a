from __future__ import annotations

import re
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from lapse.app.demo.running import DemoLoop
from lapse.app.process import DecidingLoop
from lapse.app.record import ProcessRecord, open_store
from lapse.core.believed_clock import BelievedClock
from lapse.core.clock import VirtualClock
from lapse.core.duration import Duration
from lapse.engine.journal.expiring import NAME as EXPIRY_WARNINGS
from lapse.engine.journal.outbox import Outbox, Store, WebhookLoop, loop_name
from lapse.engine.journal.retention import JournalRetention
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.journal.webhook import Receiver, Webhook
from lapse.engine.running.coordinator import Loop
from lapse.engine.running.logins import LoginAudit, LoginFailures
from lapse.engine.running.metrics import Metrics
from lapse.engine.safety.budget import Budget, Budgets
from lapse.engine.safety.clock_guard import ClockLoop
from lapse.engine.safety.gate import GateLoop
from lapse.history.policy.default_policy import history_document
from lapse.history.service import Retention
from lapse.keys.aio import open_keys_async
from lapse.keys.counts import count_loops as key_count_loops
from lapse.keys.sweeper import CleanupLoop
from lapse.proxy.server import AccessLoop
from lapse.requests.lifecycle.policy import RequestPolicy
from lapse.requests.local.executor import LocalRequests
from lapse.web.server.listener import Certificate
from lapse.workspaces.activity.in_process import InProcessActivity
from lapse.workspaces.activity.probes import SOURCE as PROBE
from lapse.workspaces.counts import count_loop as workspace_count_loop
from lapse.workspaces.store.sqlite import open_sqlite_store
from lapse.workspaces.ttl_manager import ttl_loop, ttl_sweeps
from tests.markdown import REFERENCE, code, table

if TYPE_CHECKING:
    from lapse.engine.running.coordinator import Loop

PAGE = REFERENCE / "metrics.md"
STORES: tuple[Store, ...] = ("folder", "database")
SUFFIX = re.compile(r"_(?:bucket|count|sum)$")


async def exposition() -> str:
    """Return what new processes show, with the loops that they run."""
    metrics, clock = Metrics("1.2.3"), VirtualClock()
    LoginFailures(clock, metrics)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        keys = await stack.enter_async_context(open_keys_async("memory://", clock=clock, sweep=False))
        store = open_store(folder, clock=clock)
        stack.push_async_callback(store.close)
        record = ProcessRecord.in_folder(store, budgets=Budgets(Budget.parse("1000/1h")))
        gate = record.gate(await record.guard(BelievedClock(clock)), metrics=metrics)
        journal = SQLiteJournal(store.database)
        requests = LocalRequests.build(
            store, folder / "local", policy=RequestPolicy(), journal=journal, gate=gate, clock=clock, metrics=metrics
        ).requests
        retention = Retention(
            store,
            history=history_document(),
            journal=journal,
            metrics=metrics,
            holds=store,
            clock=clock,
            interval=Duration.parse("1h"),
        )
        workspaces = open_sqlite_store(folder / "workspaces.db")
        stack.push_async_callback(workspaces.close)
        sweeps = ttl_sweeps(workspaces, InProcessActivity(clock), journal, clock=clock, metrics=metrics)
        ttl = ttl_loop(sweeps, interval=60)
        sweep = CleanupLoop(keys, interval=1, metrics=metrics)
        loops: list[Loop] = [
            sweep,
            *requests.loops,
            requests.upkeep,
            *retention.loops,
            GateLoop(gate, domain="requests"),
            ttl,
            *key_count_loops(keys, metrics),
            workspace_count_loop(workspaces, metrics),
            *webhook_loops(record, folder, clock, metrics),
        ]
        names = (
            Certificate.name,
            AccessLoop.name,
            LoginAudit.name,
            JournalRetention.name,
            ClockLoop.name,
            DemoLoop.name,
            DecidingLoop.name,
            *(loop_name(EXPIRY_WARNINGS, store) for store in STORES),
            *(loop.name for loop in loops),
        )
        metrics.expect_waiting(["requests"])
        metrics.expect_restarts()
        metrics.expect_signal(PROBE)
        metrics.expect_loops(dict.fromkeys(names, 1.0))
        metrics.leading(leads=False)
        metrics.watch_clock(clock.in_doubt)
        metrics.http([])
        _ = metrics.proxy
    return metrics.exposition().decode()


def webhook_loops(record: ProcessRecord, folder: Path, clock: VirtualClock, metrics: Metrics) -> list[WebhookLoop]:
    (folder / "secret").write_text("bGFwc2UgYW5kIGxhcHNlIGFuZCBsYXBzZSBhbmQ=")
    secret = str(folder / "secret")
    webhook = Webhook(name="ops", url="http://127.0.0.1:1/", secret_file=secret)
    receiver = Receiver(webhook, clock=clock, user_agent="lapse")
    outboxes = [Outbox(record.journal, record.safety, record="r", source="r", store=store) for store in STORES]
    return [WebhookLoop(webhook, receiver, outbox, clock=clock, metrics=metrics) for outbox in outboxes]


async def test_the_page_lists_exactly_the_metrics_there_are() -> None:
    text = await exposition()
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    types = dict(re.findall(r"^# TYPE (\S+) (.*)$", text, re.MULTILINE))
    shown = {name: (kind, helps[name]) for name, kind in types.items()}

    rows = table(PAGE, "metric", "type", "labels", "meaning")
    assert {row["metric"].strip("`"): (row["type"], row["meaning"]) for row in rows} == shown


async def test_the_page_lists_exactly_the_labels_there_are() -> None:
    labels: dict[str, set[str]] = {}
    for name, pairs in re.findall(r"^(\w+)\{(.*)\} ", await exposition(), re.MULTILINE):
        labels.setdefault(SUFFIX.sub("", name), set()).update(re.findall(r"(\w+)=", pairs))

    rows = table(PAGE, "metric", "type", "labels", "meaning")
    told = {row["metric"].strip("`"): set(code(row["labels"])) for row in rows}
    histograms = {row["metric"].strip("`") for row in rows if row["type"] == "histogram"}
    shown = {name: labels.get(name, set()) - ({"le"} if name in histograms else set()) for name in told}
    assert told == shown
    assert set(labels) == {name for name in told if told[name]}


async def test_the_page_lists_exactly_the_values_that_labels_have() -> None:
    values: dict[str, set[str]] = {}
    for pairs in re.findall(r"^\w+\{(.*)\} ", await exposition(), re.MULTILINE):
        for label, value in re.findall(r'(\w+)="([^"]*)"', pairs):
            values.setdefault(label, set()).add(value)

    for row in table(PAGE, "label", "values so far"):
        assert set(code(row["values so far"])) == values[row["label"].strip("`")]
