"""A state folder joins a database: what was frozen stays frozen, whatever is tried and taken back on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.workspaces.worlds import postgres_database
from tests.servers.lapse_server import LapseServer, lapse, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers import Server

pytestmark = [pytest.mark.server("postgres"), pytest.mark.timeout(300)]
OVERDUE = {"REQUEST_TTL": "1s"}


@pytest.fixture
def database(shared_postgres: Server) -> Iterator[str]:
    with postgres_database(shared_postgres) as url:
        yield url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state folder in which a request is over and frozen."""
    (tmp_path / "data").mkdir()
    server = LapseServer.start(tmp_path)
    try:
        for line in (
            ("freeze", "requests", "--reason", "legal case"),
            ("requests", "capture", "kept", "--directory", "data", "--wait"),
        ):
            done = command(tmp_path, *line)
            assert done[0] == 0, done
    finally:
        server.stop()
    return tmp_path


def command(folder: Path, *line: str) -> tuple[int, str]:
    done = lapse(*line, f"--state-dir={folder}", state_dir=folder)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def is_there(folder: Path) -> bool:
    return command(folder, "requests", "show", "vcr/default/kept")[0] == 0


def expect_frozen(server: LapseServer) -> None:
    until(lambda: server.metric('lapse_frozen{domain="requests"}') == 1)
    looks = server.metric('lapse_loop_duration_seconds_count{loop="request-ttl"}')
    until(lambda: server.metric('lapse_loop_duration_seconds_count{loop="request-ttl"}') > looks + 1)


def test_a_folder_that_was_used_before_is_moved_and_what_was_frozen_stays_so(folder: Path, database: str) -> None:
    server = LapseServer.start(folder, settings={**OVERDUE, "LAPSE_DATABASE_URL": database})
    try:
        moved = server.event("record_moved")
        assert moved is not None
        expect_frozen(server)
        code, said = command(folder, "freeze", "all")
        assert (code, "is in postgresql://" in said) == (1, True), said
    finally:
        server.stop()
    assert is_there(folder)
    code, said = command(folder, "up", "--http-port=0", "--probes-port=0", "--proxy-port=0")
    assert (code, "lapse db leave" in said) == (1, True), said

    assert command(folder, "db", "leave")[0] == 0
    server = LapseServer.start(folder, settings=OVERDUE)
    try:
        expect_frozen(server)
    finally:
        server.stop()
    assert is_there(folder)


def test_a_command_with_another_database_takes_no_freeze_from_a_process_that_runs(folder: Path, database: str) -> None:
    server = LapseServer.start(folder, settings=OVERDUE)
    try:
        for line in (("freeze", "history"), ("resume", "history"), ("history", "prune", "--yes")):
            code, said = command(folder, *line, f"--database-url={database}")
            assert (code, "has a record of its own" in said) == (1, True), said
        expect_frozen(server)
    finally:
        server.stop()
    assert is_there(folder)


def test_a_folder_with_data_of_workspaces_is_refused_before_anything_is_moved(folder: Path, database: str) -> None:
    (folder / "workspaces" / "volumes" / "lab").mkdir()
    code, said = command(
        folder, "up", f"--database-url={database}", "--http-port=0", "--probes-port=0", "--proxy-port=0"
    )
    assert (code, "Use another state_dir" in said) == (1, True), said

    server = LapseServer.start(folder, settings=OVERDUE)
    try:
        expect_frozen(server)
    finally:
        server.stop()
    assert is_there(folder)
