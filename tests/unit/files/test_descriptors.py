from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import resource
from lapse.files.descriptors import given_limit, raise_limit

given, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
assert raise_limit() == hard
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
assert given_limit() == given == 64 < hard
"""


@pytest.mark.process
def test_the_limit_is_raised_and_what_was_given_is_remembered() -> None:
    # In a process of its own, because a limit is for all of one.
    subprocess.run(["/bin/sh", "-c", 'ulimit -S -n 64; exec "$0" -c "$1"', sys.executable, _PROGRAM], check=True)
