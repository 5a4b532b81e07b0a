"""Runs ``lapse`` commands as processes of their own, forked from one that has imported everything, which saves seconds.

The parent (`python -m tests.acceptance.forked`) reads one request per line on stdin and answers one line on stdout. It
is started with the example domain on its path, as if that were installed, and runs nothing of Lapse itself.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "domain"
_NOT_IMPORTED = re.compile(r"__main__|migrations|\.web\b|\.proxy\b|\.postgres|redis|cassandra|dynamodb|conformance")
Result = subprocess.CompletedProcess[str]


def install_example(folder: Path) -> None:
    """Make a folder that stands for an environment with the example domain in it, for PYTHONPATH."""
    metadata = folder / "lapse_scratch-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "lapse_scratch.py").symlink_to(EXAMPLE / "lapse_scratch.py")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: lapse-scratch\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[lapse.domains]\nscratch = lapse_scratch:SCRATCH\n")


class Forked:
    """The parent, as a test has it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    def start(cls, environment: Mapping[str, str]) -> Self:
        command = [sys.executable, "-m", "tests.acceptance.forked"]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return cls(subprocess.Popen(command, env=dict(environment), cwd=ROOT, text=True, **streams))  # type: ignore[call-overload]  # streams are what they are

    def run(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Result:
        """Run one command to its end, with ``environment`` and no other."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps([list(arguments), dict(environment)]) + "\n")
        stdin.flush()
        code, out, err = json.loads(stdout.readline())
        return Result([*arguments], code, out, err)

    def stop(self) -> None:
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)


# --- the parent -------------------------------------------------------------------------------------------------------


def serve() -> None:
    """Answer until nobody asks any more."""
    _import_everything()
    for line in sys.stdin:
        arguments, environment = json.loads(line)
        sys.stdout.write(json.dumps(_run(arguments, environment)) + "\n")
        sys.stdout.flush()


def _import_everything() -> None:
    """Import what commands use, and little else: what a process has in memory makes its forks slow."""
    import lapse

    for module in pkgutil.walk_packages(lapse.__path__, "lapse."):
        if not _NOT_IMPORTED.search(module.name):
            import_module(module.name)
    gc.collect()
    gc.freeze()


def _run(arguments: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            _become(arguments, environment, out, err)
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status), _read(out), _read(err)


def _become(arguments: list[str], environment: dict[str, str], out: IO[str], err: IO[str]) -> NoReturn:
    """Be the command: with these streams, this environment, and nothing on stdin."""
    with Path(os.devnull).open(encoding="ascii") as nothing:
        for stream, number in ((nothing, 0), (out, 1), (err, 2)):
            os.dup2(stream.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    code: Any = 70
    try:
        from lapse.cli import main

        code = main(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(int(code))


def _read(stream: IO[str]) -> str:
    stream.seek(0)
    return stream.read()


if __name__ == "__main__":
    serve()
