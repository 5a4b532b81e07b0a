"""The harness of every question: contenders in processes of their own, rounds in turn, and facts about this machine.

A contender's process lives as long as its contest and works only when asked, over a pipe, so contenders take turns
within every round: a busy moment of the machine hits all of them alike instead of one.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import platform
import statistics
import sys
import time
import traceback
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

TTL_SECONDS: Final = 900
APP_ID: Final = 7
PACKAGES: Final = (
    *("apsw", "cachebox", "cachetools", "diskcache", "moka-py", "theine"),
    *("redis", "hiredis", "scylla-driver", "aiobotocore"),
)

_ANSWER_SECONDS: Final = 300
_spawn: Final = multiprocessing.get_context("spawn")


def make_keys(count: int, prefix: str = "alpha") -> list[str]:
    """Return keys like the ones of the documentation: ``alpha:0004D2``."""
    return [f"{prefix}:{number:06X}" for number in range(count)]


def make_values(count: int) -> list[str]:
    """Return distinct values of 20 characters."""
    return [f"device:{number:013d}" for number in range(count)]


# --- contenders ------------------------------------------------------------------------------------------------------


class ContenderError(Exception):
    """A contender's process failed; its traceback is the message."""


class Contender:
    """A process that holds one object and calls its methods on request."""

    def __init__(self, name: str, factory: str, *args: object) -> None:
        """Start the process. ``factory`` is ``module:callable``; it is imported and called there, not here."""
        self.name = name
        self._pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(target=_serve, args=(theirs, factory, args), daemon=True)
        self._process.start()
        theirs.close()
        self._receive()

    def ask(self, method: str, *args: object) -> Any:  # noqa: ANN401 - whatever the method returns
        """Call a method over there and wait for its answer."""
        self.tell(method, *args)
        return self._receive()

    def tell(self, method: str, *args: object) -> None:
        """Call a method over there without waiting; `wait` fetches the answer."""
        self._pipe.send((method, args))

    def wait(self) -> Any:  # noqa: ANN401 - whatever the method returned
        """Wait for the answer to the last `tell`."""
        return self._receive()

    def _receive(self) -> Any:  # noqa: ANN401 - see `ask`
        if not self._pipe.poll(_ANSWER_SECONDS):
            raise ContenderError(f"{self.name} did not answer for {_ANSWER_SECONDS} s")
        failure, answer = self._pipe.recv()
        if failure:
            raise ContenderError(f"{self.name} failed:\n{failure}")
        return answer

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(pipe: Connection, factory: str, args: Sequence[object]) -> None:
    module, _, name = factory.partition(":")
    with suppress(EOFError, OSError):  # whoever asked is gone
        try:
            target = getattr(importlib.import_module(module), name)(*args)
            pipe.send((None, None))
            while True:
                method, arguments = pipe.recv()
                pipe.send((None, getattr(target, method)(*arguments)))
        except (EOFError, ConnectionError):
            raise
        except Exception:  # noqa: BLE001 - it is raised again where it was asked for
            pipe.send((traceback.format_exc(), None))


@contextmanager
def contenders(started: Sequence[Contender]) -> Iterator[Sequence[Contender]]:
    """End the processes whatever happens."""
    try:
        yield started
    finally:
        for contender in started:
            contender.close()


# --- measuring -------------------------------------------------------------------------------------------------------


def cpu_seconds(work: Callable[..., object], *args: object) -> float:
    """Return the CPU time that this process, all its threads included, needs for ``work``."""
    start = time.process_time()
    work(*args)
    return time.process_time() - start


def wall_seconds(work: Callable[..., object], *args: object) -> float:
    """Return the time that passes during ``work``."""
    start = time.perf_counter()
    work(*args)
    return time.perf_counter() - start


def resident_bytes(field: str = "VmRSS") -> int:
    """Return this process's resident memory after a garbage collection; ``VmHWM`` gives its peak."""
    gc.collect()
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) * 1024
    raise LookupError(f"/proc/self/status has no {field}")


def best(figures: Sequence[float]) -> float:
    """Return the highest rate of all rounds: noise only ever takes away."""
    return max(figures)


def median(figures: Sequence[float]) -> float:
    """Return the median rate of all rounds: for the disk, whose slow moments (checkpoints) are part of the work."""
    return statistics.median(figures)


# --- progress --------------------------------------------------------------------------------------------------------


@contextmanager
def step(text: str) -> Iterator[None]:
    """Show what runs, and how long it took."""
    print(f"  {text} ...", end="", flush=True)
    start = time.perf_counter()
    yield
    print(f" {time.perf_counter() - start:.1f} s", flush=True)


# --- machine ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the figures come from. Names no host and no path."""

    cores: int
    processor: str
    memory_gib: float
    system: str
    python: str
    file_system: str
    load: float
    """Average number of busy processes in the minute before the run."""
    versions: dict[str, str]


def this_machine(folder: Path) -> Machine:
    """Describe this machine; ``folder`` is where the databases lie."""
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        processor=_field("/proc/cpuinfo", "model name") or platform.machine(),
        memory_gib=int(_field("/proc/meminfo", "MemTotal").split()[0]) / 2**20,
        system=f"{platform.system()} {platform.release().split('-')[0]}, {platform.machine()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        file_system=_file_system(folder),
        load=os.getloadavg()[0],
        versions={name: version(name) for name in ("lapse", *PACKAGES)},
    )


def _field(file: str, name: str) -> str:
    for line in Path(file).read_text("utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _file_system(folder: Path) -> str:
    folder = folder.resolve()
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text("utf-8").splitlines()]
    around = [(len(point), kind) for point, kind in mounts if folder.is_relative_to(point)]
    return max(around)[1] if around else "unknown"


def require_linux() -> None:
    """Memory is read from /proc: say so before anything runs."""
    if not Path("/proc/self/status").exists():
        sys.exit("The benchmark reads memory from /proc/self/status and needs Linux.")
