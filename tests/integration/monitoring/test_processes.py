"""Which metrics each process has, as the reference says it; not of those that need a cluster, which are not started."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from typing import TYPE_CHECKING

import httpx2
import pytest

from tests.conformance.workspaces.worlds import postgres_database
from tests.integration.monitoring.promql import Exposition
from tests.markdown import REFERENCE, code, tables
from tests.servers.lapse_server import LapseServer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import Server

pytestmark = pytest.mark.process
PAGE = REFERENCE / "metrics.md"


def expected(process: str) -> dict[str, bool]:
    """Return for each pattern of the page whether a process has it."""
    (rows,) = [rows for rows in tables(PAGE.read_text()) if f"`{process}`" in rows[0]]
    return {pattern: row[f"`{process}`"] != "no" for row in rows for pattern in code(row[""])}


def metrics_of(server: LapseServer) -> set[str]:
    """Return the names of what a process shows, as the page has them."""
    text = httpx2.get(f"{server.probes}/metrics", trust_env=False).text
    shown = Exposition.read(text).series
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    return {family for family in families if any(name.startswith(family) for name in shown)}


@pytest.mark.parametrize("process", ["lapse up", "lapse proxy", "lapse ttl-manager"])
def test_a_process_has_the_metrics_that_the_page_says(
    process: str, shared_redis: Server, shared_postgres: Server, tmp_path: Path
) -> None:
    command = process.split()[1]
    flags = [f"--state-dir={tmp_path}", f"--activity-url={shared_redis.url}"]
    if command != "ttl-manager":
        flags += ["--proxy-port=0", "--keys-url", f"file://{tmp_path}/keys.db"]
    if command == "up":
        flags.append("--http-port=0")
    webhook = {"name": "ops", "url": "http://127.0.0.1:9/", "secret_env": "OPS_SECRET"}
    settings = {"LAPSE_WEBHOOKS": json.dumps([webhook]), "OPS_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
    with postgres_database(shared_postgres) as database:
        server = LapseServer.spawn(tmp_path, command, *flags, f"--database-url={database}", settings=settings)
        try:
            shown = metrics_of(server)
        finally:
            server.stop()

    wanted = expected(process)
    assert {pattern: any(fnmatch(name, pattern) for name in shown) for pattern in wanted} == wanted
    known = {name for name in shown if any(fnmatch(name, pattern) for pattern in wanted)}
    assert shown - known <= {"chaos_experiment_history_ttl_deleted_total"}
