"""Runs ``lapse`` commands within this process: as a person would, but without the second that a new process takes.

What is about processes themselves (signals, terminals, closed streams, two that share a store) wants a real one.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING
from unittest.mock import patch

from lapse.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Result = subprocess.CompletedProcess[str]
NOTHING: Mapping[str, str] = {}


def run_here(*arguments: str, stdin: str = "", environment: Mapping[str, str] = NOTHING) -> Result:
    """Run one command to its end, with ``environment`` beside that of this process."""
    out, err = _stream(), _stream()
    # In a thread of its own: a command runs its own event loop, and tests with a browser have one already.
    with (
        patch.dict(os.environ, environment),
        _stdin(stdin),
        redirect_stdout(out),
        redirect_stderr(err),
        ThreadPoolExecutor(1) as thread,
    ):
        code = thread.submit(main, arguments).result()
    return Result(arguments, code, _text(out), _text(err))


@contextmanager
def _stdin(text: str) -> Iterator[None]:
    with patch.object(sys, "stdin", _stream(text)):
        yield


def _stream(text: str = "") -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8", newline="\n")


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()
