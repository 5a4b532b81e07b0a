"""``lapse ttl-manager`` as real processes, beside a real PostgreSQL and a real Redis."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg
import pytest

from lapse.core.clock import SystemClock
from tests.integration.ttl_manager.conftest import believe
from tests.servers import Server, redis_server
from tests.servers.lapse_server import LapseServer, lapse, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.server("redis", private=True), pytest.mark.timeout(300)]
SIGNAL = 'lapse_signal_up{source="activity"}'
ENDED = 'lapse_deletions_total{domain="workspaces",reason="standby_ttl_expired"}'
INSERT = """
INSERT INTO workspaces (
    id, name, owner, command, port, desired_state, desired_by, version, observed_status, status_changed_at, operation,
    op_tries, standby_ttl_seconds, archive_ttl_seconds, last_access_at, check_after, created_at
) VALUES (
    gen_random_uuid()::text, %(name)s, 'ada', '{serve}', 8080, %(state)s, 'user', 1, %(state)s, %(then)s, 'NONE',
    0, 60, 60, %(then)s, %(then)s, %(then)s
)
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with redis_server() as started:
        believe(started)
        yield started


def start(folder: Path, database: str, server: Server, *flags: str, **settings: str) -> LapseServer:
    folder.mkdir(exist_ok=True)
    environment = {
        "LAPSE_DATABASE_URL": database,
        "LAPSE_ACTIVITY_URL": f"{server.url}?timeout=500ms&connect_timeout=500ms",
        "LAPSE_KEYS_URL": server.url,
        "LAPSE_STATE_DIR": str(folder / "state"),
        "TTL_MANAGER_INTERVAL": "1",
        "LAPSE_RETENTION_INTERVAL": "1s",  # how long what was there before the first start stays
        **settings,
    }
    return LapseServer.spawn(folder, "ttl-manager", *flags, settings=environment)


def put(database: str, *names: str, state: str = "RUNNING", idle_seconds: int = 3600) -> None:
    then = SystemClock().wall_ns() // 1_000_000 - idle_seconds * 1000
    with psycopg.connect(database) as connection, connection.cursor() as cursor:
        cursor.executemany(INSERT, [{"name": name, "state": state, "then": then} for name in names])


def wanted(database: str) -> dict[str, tuple[str, int]]:
    with psycopg.connect(database, autocommit=True) as connection:
        rows = connection.execute("SELECT name, desired_state, version FROM workspaces").fetchall()
    return {name: (state, version) for name, state, version in rows}


def test_what_is_idle_goes_to_standby_and_what_is_forgotten_to_the_archive(
    tmp_path: Path, database: str, server: Server
) -> None:
    put(database, "idle")
    put(database, "forgotten", state="STANDBY")
    put(database, "new", idle_seconds=0)
    process = start(tmp_path / "a", database, server)
    try:
        until(lambda: wanted(database)["idle"][0] == "STANDBY" and wanted(database)["forgotten"][0] == "PENDING")
        assert wanted(database)["new"] == ("RUNNING", 1)
        assert until(lambda: process.metric(SIGNAL)) == 1
        assert until(lambda: process.metric(ENDED)) == 1
        put(database, "later")
        until(lambda: wanted(database)["later"][0] == "STANDBY")
    finally:
        code, _took = process.stop()
    assert code == 0


def test_without_redis_nobody_is_stopped_and_archives_go_on_and_afterwards_all_is_well(
    tmp_path: Path, database: str, server: Server
) -> None:
    with redis_server() as activity:
        believe(activity)
        url = {"LAPSE_ACTIVITY_URL": f"{activity.url}?timeout=500ms&connect_timeout=500ms"}
        process = start(tmp_path / "a", database, server, **url)
        try:
            until(lambda: process.metric(SIGNAL))
            activity.kill()
            until(lambda: process.metric(SIGNAL) == 0)
            put(database, "idle")
            put(database, "forgotten", state="STANDBY")
            until(lambda: wanted(database)["forgotten"][0] == "PENDING")
            assert wanted(database)["idle"] == ("RUNNING", 1)
            activity.start()
            believe(activity)
            until(lambda: wanted(database)["idle"][0] == "STANDBY")
        finally:
            assert process.stop()[0] == 0


def test_two_of_them_make_one_transition_and_one_takes_over_from_the_other(
    tmp_path: Path, database: str, server: Server
) -> None:
    with ExitStack() as stack:
        with ThreadPoolExecutor(2) as pool:
            processes = list(pool.map(lambda name: start(tmp_path / name, database, server), "ab"))
        for process in processes:
            stack.callback(process.stop)
        put(database, *(f"w{number}" for number in range(50)))
        until(lambda: {state for state, _ in wanted(database).values()} == {"STANDBY"})
        assert {version for _, version in wanted(database).values()} == {2}
        leads = until(lambda: [process for process in processes if process.metric("lapse_leader")])
        assert len(leads) == 1
        leads[0].stop(signal.SIGKILL)
        put(database, "after")
        until(lambda: wanted(database)["after"] == ("STANDBY", 2), seconds=120)


def test_a_frozen_domain_stays_as_it_is_until_it_is_resumed(tmp_path: Path, database: str, server: Server) -> None:
    where = [f"--state-dir={tmp_path / 'another machine'}", f"--database-url={database}"]
    process = start(tmp_path / "a", database, server)
    try:
        assert lapse("freeze", "workspaces", *where, state_dir=tmp_path).returncode == 0
        until(lambda: process.metric('lapse_frozen{domain="workspaces"}'))
        put(database, "idle")
        ticks = process.metric('lapse_loop_duration_seconds_count{loop="ttl-manager"}')
        until(lambda: process.metric('lapse_loop_duration_seconds_count{loop="ttl-manager"}') > ticks + 1)
        assert wanted(database)["idle"] == ("RUNNING", 1)
        assert lapse("resume", "workspaces", *where, state_dir=tmp_path).returncode == 0
        until(lambda: wanted(database)["idle"][0] == "STANDBY")
    finally:
        assert process.stop()[0] == 0


def test_past_its_budget_the_domain_is_frozen(tmp_path: Path, database: str, server: Server) -> None:
    put(database, *(f"w{number}" for number in range(10)))
    process = start(tmp_path / "a", database, server, LAPSE_WORKSPACES_DELETION_BUDGET="4/1h")
    try:
        until(lambda: process.metric('lapse_frozen{domain="workspaces"}'))
        states = [state for state, _ in wanted(database).values()]
        assert (states.count("STANDBY"), states.count("RUNNING")) == (4, 6)
    finally:
        assert process.stop()[0] == 0


def test_a_dry_run_changes_nothing_and_the_next_one_does(tmp_path: Path, database: str, server: Server) -> None:
    put(database, "idle")
    process = start(tmp_path / "a", database, server, "--dry-run")
    try:
        until(lambda: process.metric('lapse_decisions_total{domain="workspaces",verdict="due"}') >= 2)
        assert wanted(database)["idle"] == ("RUNNING", 1)
    finally:
        assert process.stop()[0] == 0
    process = start(tmp_path / "a", database, server)
    try:
        until(lambda: wanted(database)["idle"][0] == "STANDBY")
    finally:
        assert process.stop()[0] == 0


def test_a_database_that_is_away_is_one_line(tmp_path: Path, server: Server) -> None:
    url = "--database-url=postgresql://lapse@127.0.0.1:1/lapse"
    result = lapse("ttl-manager", url, f"--activity-url={server.url}", "--probes-port=0", state_dir=tmp_path)
    assert result.returncode == 1
    assert "it cannot be reached" in result.stderr
    assert "Traceback" not in result.stderr
