"""What CI makes of tests that fail: the script itself, in a small project with a ``make`` and tests of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
MAKEFILE = """
setup check:
	@true
test:
	@.venv/bin/python -m pytest -q {options} test_them.py
test-rest:
	@.venv/bin/python -m pytest -q test_rest.py
"""
ALWAYS_FAILS = "    assert False"
FAILS_ONCE = """    from pathlib import Path
    before = Path("ran-before")
    ran, _ = before.exists(), before.touch()
    assert ran"""
FAILS_THE_SECOND_TIME = """    from pathlib import Path
    runs = Path("runs")
    count = int(runs.read_text()) + 1 if runs.exists() else 1
    runs.write_text(str(count))
    assert count == 2  # passes when it is run again, and not the time after"""


def ci(folder: Path, *bodies: str, rest: tuple[str, ...] = (), options: str = "") -> subprocess.CompletedProcess[str]:
    """Run a copy of the script where these are the tests, and the rest."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (folder / "Makefile").write_text(MAKEFILE.format(options=options))
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, group in (("test_them.py", bodies), ("test_rest.py", rest)):
        tests = [f"def test_{place}():\n{body}\n" for place, body in enumerate(["    pass", *group])]
        (folder / name).write_text("\n".join(tests))
    return subprocess.run(
        [folder / ".ci" / "run"], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )


def test_tests_that_pass_are_run_once(tmp_path: Path) -> None:
    done = ci(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "again" not in done.stdout
    assert "UNSTEADY" not in done.stdout
    assert done.stdout.count("1 passed") == 2, "make test, and what it leaves out"


def test_what_fails_once_is_run_twice_more_and_named(tmp_path: Path) -> None:
    done = ci(tmp_path, FAILS_ONCE)
    assert done.returncode == 0, done.stdout
    assert "again-2         " in done.stdout
    _, _, named = done.stdout.partition("UNSTEADY")
    assert "test_them.py::test_1\n" in named
    assert "test_0" not in named


@pytest.mark.parametrize("body", [ALWAYS_FAILS, FAILS_THE_SECOND_TIME])
def test_what_fails_again_has_failed(body: str, tmp_path: Path) -> None:
    done = ci(tmp_path, body)
    assert done.returncode != 0
    assert "UNSTEADY" not in done.stdout


def test_many_that_fail_are_not_excused(tmp_path: Path) -> None:
    done = ci(tmp_path, *[FAILS_ONCE.replace("ran-before", f"ran-before-{place}") for place in range(4)])
    assert done.returncode != 0
    assert "again" not in done.stdout


def test_both_stages_together_may_have_three_that_fail_once(tmp_path: Path) -> None:
    bodies = [FAILS_ONCE.replace("ran-before", f"ran-before-{place}") for place in range(4)]
    (tmp_path / "three").mkdir()
    (tmp_path / "four").mkdir()

    three = ci(tmp_path / "three", *bodies[:1], rest=tuple(bodies[1:3]))
    assert three.returncode == 0, three.stdout
    _, _, named = three.stdout.partition("UNSTEADY")
    assert "test_them.py::test_1\ntest_rest.py::test_1\ntest_rest.py::test_2\n" in named

    four = ci(tmp_path / "four", *bodies[:2], rest=tuple(bodies[2:4]))
    assert four.returncode != 0
    assert "UNSTEADY" not in four.stdout


def test_a_stage_that_has_failed_is_the_last_one(tmp_path: Path) -> None:
    done = ci(tmp_path, ALWAYS_FAILS)
    assert done.returncode != 0
    assert "=== test-rest" not in done.stdout


def test_a_run_that_did_not_come_to_its_end_is_not_excused(tmp_path: Path) -> None:
    done = ci(tmp_path, FAILS_ONCE, options="no_such_file.py")
    assert done.returncode != 0
    assert "again" not in done.stdout
