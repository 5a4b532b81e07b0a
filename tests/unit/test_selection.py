"""The rule that chooses the tests of `make test`: see `tests.selection`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.selection import (
    DOMAINS,
    FOLDER_DOMAINS,
    TESTS,
    NoDrivers,
    ProcessGuard,
    ProcessRefusedError,
    domains_of,
    is_quick,
    may_be_quick,
)

ROOT = TESTS.parent
FILES = sorted(TESTS.rglob("test_*.py"))


@pytest.mark.parametrize(
    ("path", "quick"),
    [
        ("unit/core/test_duration.py", True),
        ("unit/test_selection.py", True),
        ("conformance/keys/test_kit_on_backends.py", True),
        ("conformance/keys/test_kit_on_servers.py", False),
        ("conformance/objects/test_contract_on_kubernetes.py", False),
        ("unit/keys/test_redis_url.py", False),
        ("integration/requests/test_ttl.py", False),
        ("acceptance/test_docs.py", False),
        ("unit", True),
        ("integration", False),
    ],
)
def test_folder_and_name_say_what_may_be_quick(path: str, quick: bool) -> None:  # noqa: FBT001
    assert may_be_quick(TESTS / path) is quick


@pytest.mark.parametrize("path", sorted({file.parent.relative_to(TESTS).as_posix() for file in FILES}))
def test_every_folder_of_tests_has_a_domain_or_says_that_it_has_none(path: str) -> None:
    _, folder, *_ = (*Path(path).parts, "", "")
    known = {*DOMAINS, *FOLDER_DOMAINS, ""}
    assert not known.isdisjoint({folder, folder.partition("_")[0]}), "see tests/selection.py"


def test_every_domain_has_quick_tests() -> None:
    assert {domain for file in FILES if may_be_quick(file) for domain in domains_of(file)} == set(DOMAINS)


@pytest.mark.parametrize("event", ["subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"])
def test_a_quick_test_is_refused_another_process(event: str) -> None:
    guard = ProcessGuard()
    guard(event, ("redis-server",))  # before the first test: workers of pytest-xdist
    guard.running = True
    guard("open", ("/tmp/file",))
    with pytest.raises(ProcessRefusedError, match=r"pytest\.mark\.process"):
        guard(event, ("redis-server",))
    assert guard.refused == [f"{event} 'redis-server'"]


def test_no_driver_is_found_and_everything_else_is() -> None:
    NoDrivers().find_spec("json")
    NoDrivers().find_spec("redistribution")
    for name in ("redis", "redis.asyncio", "psycopg"):
        with pytest.raises(ModuleNotFoundError, match="make test") as caught:
            NoDrivers().find_spec(name)
        assert caught.value.name == name


def test_this_test_is_quick(request: pytest.FixtureRequest) -> None:
    assert is_quick(request.node)
    for mark in ("slow", "server"):
        request.node.add_marker(mark)
        assert not is_quick(request.node)


# --- runs of their own ------------------------------------------------------------------------------------------------

STARTS_A_SERVER = """
import subprocess, contextlib, pytest
def test_starts_one(): subprocess.run(["true"])
def test_hides_it():
    with contextlib.suppress(Exception): subprocess.run(["true"])
@pytest.mark.process
def test_says_so(): subprocess.run(["true"])
def test_needs_nothing(): pass
"""


def run(*arguments: str) -> tuple[int, str]:
    hidden = {"LAPSE_REQUIRE_SERVERS", "PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.selection", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in hidden},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.process
def test_a_missing_mark_is_a_failure_also_where_it_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(STARTS_A_SERVER, encoding="utf-8")
    where = ("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), str(tmp_path / "test_it.py"))

    code, screen = run("--quick", *where)
    assert code == 1, screen
    assert "1 failed, 2 passed, 1 deselected, 1 error" in screen
    assert re.search(r"FAILED \S*test_it\.py::test_starts_one", screen), screen
    assert re.search(r"ERROR \S*test_it\.py::test_hides_it", screen), screen
    assert "mark it with `pytest.mark.process`" in screen

    code, screen = run("--rest", *where)
    assert code == 0, screen
    assert "1 passed, 3 deselected" in screen


@pytest.mark.process
def test_a_domain_that_is_none_is_refused_with_those_that_are() -> None:
    code, screen = run("--quick", "--domain", "nowhere", "tests/unit/core")
    assert code == pytest.ExitCode.USAGE_ERROR, screen
    assert f"there is no domain 'nowhere'; expected one of {', '.join(DOMAINS)}" in screen
