"""Retention in a running `lapse up`: policies of the file, and records that another process writes."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from lapse.app.record import open_store
from lapse.core.clock import SystemClock
from lapse.history.api.kinds import (
    CHAOS_EXPERIMENT_HISTORY,
    RETENTION_POLICY,
    Execution,
    ExperimentRef,
    HistorySpec,
    RetentionStatus,
)
from lapse.history.records import write_record
from lapse.kube.resources import ObjectKey, ready_condition
from tests.servers.lapse_server import LapseServer, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from lapse.objects.embedded import EmbeddedStore
    from tests.integration.up.conftest import Start

FILE = """
[[retention.policies]]
metadata.name = "many"
spec.selector = { apiVersion = "storage.deckhouse.io/v1alpha1", kind = "VolumeCaptureRequest" }
spec.maxCount = 5

[[retention.policies]]
metadata.name = "broken"
spec.selector = { apiVersion = "v1", kind = "Pod" }
spec.ageFrom = "metadata..x"
"""


def beside(folder: Path, work: Callable[[EmbeddedStore], Awaitable[Any]]) -> Any:  # noqa: ANN401 - whatever it finds
    """Do something with the store of a running server, as any other process may."""

    async def run() -> Any:  # noqa: ANN401 - as above
        store = open_store(folder, clock=SystemClock())
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


async def record_run(store: EmbeddedStore, number: int) -> str:
    ref = ExperimentRef(name="kill", namespace="shop", uid="u1")
    execution = Execution(start_time=f"2030-01-01T00:00:{number:02}Z", status="success")
    made, _ = await write_record(store, HistorySpec(experiment_ref=ref, execution=execution), namespace="chaos-system")
    return made.metadata.name


async def records(store: EmbeddedStore) -> list[str]:
    return [one.metadata.name for one in (await store.list(CHAOS_EXPERIMENT_HISTORY)).items]


def status(folder: Path, policy: str) -> RetentionStatus:
    async def get(store: EmbeddedStore) -> RetentionStatus:
        return (await store.get(RETENTION_POLICY, ObjectKey(None, policy))).status or RetentionStatus()

    found: RetentionStatus = beside(folder, get)
    return found


def reason(folder: Path, policy: str) -> str:
    condition = ready_condition(status(folder, policy).conditions)
    return "" if condition is None else condition.reason


def has_passed(server: LapseServer) -> bool:
    return server.metric('lapse_loop_last_success_timestamp_seconds{loop="retention"}') > 0


def test_what_the_file_says_is_published_passed_and_told(tmp_path: Path, start: Start) -> None:
    (tmp_path / "lapse.toml").write_text(FILE)
    server = start()
    until(lambda: has_passed(server))

    assert reason(tmp_path, "many") == reason(tmp_path, "history") == "Completed"
    assert reason(tmp_path, "broken") == "InvalidPolicy"
    assert status(tmp_path, "many").dry_run is True
    (said,) = [line for line in server.log if '"policy_failed"' in line]
    assert "spec.ageFrom" in said
    assert '"level": "warning"' in said
    with server.client() as client:
        loops = client.get("/api/v1/status").json()["loops"]
    domains = {loop["name"]: loop["domain"] for loop in loops}
    assert domains["retention"] == "retention"
    own = {"brakes", "demo", "holds", "journal-retention", "login-audit"}
    assert {name for name, domain in domains.items() if domain is None} == own


def test_a_record_that_another_process_writes_is_a_completion(tmp_path: Path, start: Start) -> None:
    server = start("--history-retention-limit=2", "--history-ttl=720h")
    until(lambda: has_passed(server))
    names: list[str] = []
    while len(names) < 30:  # the watch may begin a moment after the first pass
        names.append(beside(tmp_path, partial(record_run, number=len(names))))
        if len(names) > 2 and len(beside(tmp_path, records)) <= 2:
            break
    until(lambda: beside(tmp_path, records) == names[-2:])
    assert server.metric('lapse_deletions_total{domain="history",reason="retention_limit"}') == len(names) - 2


def test_a_ttl_below_a_day_is_a_warning_at_the_start(start: Start) -> None:
    server = start("--history-ttl=2h")
    (said,) = [line for line in server.log if '"odd_setting"' in line]
    assert "flag --history-ttl: history_ttl is 2h" in said
