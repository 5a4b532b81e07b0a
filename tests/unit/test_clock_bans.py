"""Time, sleep and randomness enter the product in three files only; ruff refuses them everywhere else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process  # ruff

ROOT = Path(__file__).parents[2]

BANNED = [
    pytest.param("import time\n\ntime.time()\n", id="time.time"),
    pytest.param("from time import time_ns\n\ntime_ns()\n", id="time.time_ns"),
    pytest.param("import time\n\ntime.sleep(1)\n", id="time.sleep"),
    pytest.param("import time as t\n\nt.monotonic()\n", id="time.monotonic under another name"),
    pytest.param("import time\n\ntime.monotonic_ns()\n", id="time.monotonic_ns"),
    pytest.param("import time\n\ntime.perf_counter()\n", id="time.perf_counter"),
    pytest.param("import time\n\ntime.clock_gettime(time.CLOCK_BOOTTIME)\n", id="time.clock_gettime"),
    pytest.param("import time\n\ntime.clock_gettime_ns(time.CLOCK_BOOTTIME)\n", id="time.clock_gettime_ns"),
    pytest.param("import asyncio\n\nasyncio.sleep(1)\n", id="asyncio.sleep"),
    pytest.param("import datetime\n\ndatetime.datetime.now(tz=datetime.UTC)\n", id="datetime.now"),
    pytest.param("from datetime import datetime\n\ndatetime.utcnow()\n", id="datetime.utcnow"),
    pytest.param("from datetime import date\n\ndate.today()\n", id="date.today"),
    pytest.param("import random\n\nrandom.random()\n", id="random"),
    pytest.param("from random import uniform\n\nuniform(0, 1)\n", id="from random"),
    pytest.param("import secrets\n\nsecrets.token_hex()\n", id="secrets"),
    pytest.param("import uuid\n\nuuid.uuid4()\n", id="uuid.uuid4"),
    pytest.param("import os\n\nos.urandom(8)\n", id="os.urandom"),
]

SAMPLE = "import asyncio\nimport random\nimport time\n\ntime.time()\nasyncio.sleep(1)\nrandom.random()\n"


def bans_reported(code: str, path: str) -> list[str]:
    """Return the messages of the ban for code as if it stood in this file of the project."""
    result = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=json", "--stdin-filename", path, "-"],
        input=code,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stderr == ""
    return [finding["message"] for finding in json.loads(result.stdout) if finding["code"] == "TID251"]


@pytest.mark.parametrize("code", BANNED)
def test_a_banned_call_is_refused_with_a_message_that_says_what_to_use(code: str) -> None:
    messages = bans_reported(code, "src/lapse/keys/planted.py")

    assert messages
    assert all("lapse.core." in message for message in messages)


@pytest.mark.parametrize("path", ["src/lapse/core/planted.py", "src/lapse/planted.py", "tests/unit/planted.py"])
def test_the_bans_hold_in_every_other_place_too(path: str) -> None:
    assert len(bans_reported(SAMPLE, path)) >= 3


@pytest.mark.parametrize("name", ["clock", "jitter", "identity"])
def test_the_same_calls_are_accepted_in_the_three_files_made_for_them(name: str) -> None:
    assert bans_reported(SAMPLE, f"src/lapse/core/{name}.py") == []
