"""Requests of a state folder whose record is in PostgreSQL: their rows, their budget and their freezes are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.conformance.workspaces.worlds import postgres_database
from tests.integration.record.test_upgrade import look
from tests.integration.up.test_gate import finished_requests
from tests.servers.lapse_server import LapseServer, lapse, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers import Server

pytestmark = [pytest.mark.server("postgres"), pytest.mark.timeout(300)]
FROZEN = 'lapse_frozen{domain="requests"}'
JOINED = """
SELECT count(*) FROM journal AS intent JOIN journal AS outcome USING (attempt)
WHERE intent.outcome = 'intent' AND outcome.outcome = 'ended' AND intent.id < outcome.id AND intent.domain = 'requests'
"""


@pytest.fixture
def database(shared_postgres: Server) -> Iterator[str]:
    with postgres_database(shared_postgres) as url:
        yield url


def ended(database: str) -> int:
    """Return how many intents have an outcome after them."""
    with psycopg.connect(database) as connection:
        return int(connection.execute(JOINED).fetchall()[0][0])


def test_rows_budget_and_freeze_of_requests_are_in_the_database(tmp_path: Path, database: str) -> None:
    finished_requests(tmp_path, 5)
    flags = ("--request-ttl=1s", "--request-deletion-budget=2/1h", "--retention-interval=1s")
    server = LapseServer.start(tmp_path, *flags, settings={"LAPSE_DATABASE_URL": database})
    try:
        until(lambda: server.metric(FROZEN) == 1 and ended(database) == 2)
        with psycopg.connect(database) as connection:
            asked = "SELECT name, reason FROM brakes WHERE since_ns IS NOT NULL"
            assert connection.execute(asked).fetchall() == [
                ("requests", "the deletion budget of requests, 2/1h, is spent")
            ]
        where = (f"--state-dir={tmp_path}", f"--database-url={database}")
        done = lapse("resume", "requests", *where, state_dir=tmp_path)
        assert done.returncode == 0, done.stderr
        until(lambda: ended(database) == 4)
    finally:
        assert server.stop()[0] == 0
    assert look(tmp_path / "objects.db", "SELECT count(*) FROM objects WHERE name LIKE 'r0%'") == [(1,)]
    for empty in ("SELECT * FROM journal", "SELECT * FROM brakes"):
        assert look(tmp_path / "objects.db", empty) == []
