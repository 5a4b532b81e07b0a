"""``lapse up`` and ``lapse ttl-manager`` on one store: one of them acts, and the other takes over when it is gone."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING

import apsw
import psycopg
import pytest

from lapse.core.clock import SystemClock
from tests.conformance.workspaces.worlds import postgres_database
from tests.integration.ttl_manager.conftest import believe
from tests.integration.ttl_manager.test_process import put, wanted
from tests.servers import Server, redis_server
from tests.servers.lapse_server import LapseServer, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

pytestmark = [pytest.mark.server("redis", private=True), pytest.mark.timeout(300)]
LAPSED = "SELECT count(*) FROM journal WHERE domain = 'workspaces' AND outcome = 'ended'"
# On another node, so that the host of this one does not look for its data.
SQLITE_INSERT = """
INSERT INTO workspaces (
    id, name, owner, command, port, node_id, desired_state, desired_by, version, observed_status, status_changed_at,
    operation, op_tries, standby_ttl_seconds, archive_ttl_seconds, last_access_at, check_after, created_at
) VALUES (
    :id, :id, 'ada', '["serve"]', 8080, 'elsewhere', 'STANDBY', 'user', 1, 'STANDBY', :then,
    'NONE', 0, 60, 60, :then, :then, :then
)
"""


@pytest.fixture
def activity() -> Iterator[Server]:
    with redis_server() as started:
        believe(started)
        yield started


@pytest.fixture
def database(shared_postgres: Server) -> Iterator[str]:
    with postgres_database(shared_postgres) as url:
        yield url


class Both:
    """One process of each kind."""

    def __init__(self, stack: ExitStack, folders: tuple[Path, Path], settings: Mapping[str, str]) -> None:
        for folder in folders:
            folder.mkdir(exist_ok=True)
        # Keys that nobody else can see: an election among them would elect everybody.
        given = {
            "TTL_MANAGER_INTERVAL": "1",
            "LAPSE_RETENTION_INTERVAL": "1s",
            "LAPSE_KEYS_URL": "memory://",
            **settings,
        }
        self.up = LapseServer.start(folders[0], settings=given)
        stack.callback(self.up.stop)
        state = {"LAPSE_STATE_DIR": str(folders[1])}
        self.manager = LapseServer.spawn(folders[1], "ttl-manager", settings={**given, **state})
        stack.callback(self.manager.stop)

    def led(self) -> tuple[LapseServer, LapseServer]:
        """Return the one that leads, and the other."""
        processes = self.up, self.manager
        until(lambda: sum(process.metric("lapse_leader") for process in processes) == 1)
        return processes if self.up.metric("lapse_leader") else processes[::-1]


def expect_one_acts_and_the_other_takes_over(both: Both, lapsed: Callable[[str], bool]) -> None:
    leader, other = both.led()
    until(lambda: lapsed("first"))
    assert leader.metric("lapse_leader") == 1
    assert other.metric("lapse_leader") == 0
    assert other.metric('lapse_loop_duration_seconds_count{loop="ttl-manager"}') == 0
    leader.stop(signal.SIGKILL)
    until(lambda: lapsed("second"), seconds=120)
    assert other.metric("lapse_leader") == 1


@pytest.mark.server("postgres")
def test_of_both_kinds_on_one_database_one_acts(tmp_path: Path, database: str, activity: Server) -> None:
    """With state folders and keys of their own, as on two machines that share nothing but the database."""
    with ExitStack() as stack:
        settings = {"LAPSE_DATABASE_URL": database, "LAPSE_ACTIVITY_URL": activity.url}
        both = Both(stack, (tmp_path / "a", tmp_path / "b"), settings)

        def lapsed(name: str) -> bool:
            if name not in wanted(database):
                put(database, name, state="STANDBY")
            return wanted(database)[name][0] == "PENDING"

        expect_one_acts_and_the_other_takes_over(both, lapsed)
        with psycopg.connect(database) as connection:
            assert connection.execute(LAPSED).fetchall() == [(2,)]


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["in the folder", "in a file of its own"])
def test_of_both_kinds_on_one_file_of_workspaces_one_acts(
    tmp_path: Path, activity: Server, *, is_elsewhere: bool
) -> None:
    with ExitStack() as stack:
        folder = tmp_path / "state"
        folders, settings, path = (folder, folder), {"LAPSE_ACTIVITY_URL": activity.url}, folder / "workspaces.db"
        if is_elsewhere:
            folders, path = (tmp_path / "a", tmp_path / "b"), tmp_path / "ws.db"
            settings["LAPSE_WORKSPACES_URL"] = path.as_uri()
        both = Both(stack, folders, settings)
        workspaces = apsw.Connection(str(path))
        stack.callback(workspaces.close)
        workspaces.set_busy_timeout(5_000)

        def lapsed(name: str) -> bool:
            found = workspaces.execute("SELECT desired_state FROM workspaces WHERE name = ?", (name,)).fetchall()
            if not found:
                then = SystemClock().wall_ns() // 1_000_000 - 3_600_000
                workspaces.execute(SQLITE_INSERT, {"id": name, "then": then}).fetchall()
            return found == [("PENDING",)]

        expect_one_acts_and_the_other_takes_over(both, lapsed)
