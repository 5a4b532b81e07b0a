"""Workers that do the same thing at the same time, for the cases that race.

Processes, each with several threads, where the store is shared between processes; threads of this process where it is
not. The processes are started once and race many times, because starting one takes longer than a race.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Protocol

from lapse.keys.conformance.case import Violation
from lapse.keys.conformance.worker import Order, WorkerReport, race_in_threads

if TYPE_CHECKING:
    from lapse.keys.store import Keys

PROCESSES: Final = 4
THREADS_EACH: Final = 4
_PATIENCE_SECONDS: Final = 30.0


class Workers(Protocol):
    """Many workers of one race."""

    description: str
    """Part of the result, because threads alone prove less than processes."""

    def run(self, order: Order) -> list[WorkerReport]:
        """Let all of them follow the order at the same time."""
        ...

    def close(self) -> None:
        """End them."""
        ...


class ThreadWorkers:
    """Threads of this process."""

    def __init__(self, keys: Keys, *, threads: int = PROCESSES * THREADS_EACH) -> None:
        """Race on an opened store."""
        self._keys = keys
        self._threads = threads
        self.description = f"{threads} threads of one process: this store is not shared between processes"

    def run(self, order: Order) -> list[WorkerReport]:
        """See `Workers`."""
        return _without_failures(race_in_threads(self._keys, order, threads=self._threads))

    def close(self) -> None:
        """See `Workers`; the store is somebody else's."""


class ProcessWorkers:
    """Processes with several threads each, every process with a connection of its own."""

    def __init__(self, url: str, *, processes: int = PROCESSES, threads: int = THREADS_EACH) -> None:
        """Start them and wait until all have opened the store."""
        self.description = f"{processes} processes with {threads} threads each"
        self._round = 0
        self._members = [_WorkerProcess(number) for number in range(processes)]
        try:
            for number, member in enumerate(self._members):
                member.tell({"url": url, "threads": threads, "process": number})
            for member in self._members:
                _without_failures(member.answer(self._round, _PATIENCE_SECONDS))
        except BaseException:
            self.close()
            raise

    def run(self, order: Order) -> list[WorkerReport]:
        """See `Workers`."""
        self._round += 1
        for member in self._members:
            member.tell({"round": self._round, "order": asdict(order)})
        patience = order.seconds + _PATIENCE_SECONDS
        return _without_failures(
            [report for member in self._members for report in member.answer(self._round, patience)]
        )

    def close(self) -> None:
        """See `Workers`."""
        for member in self._members:
            member.close()


class _WorkerProcess:
    """One racing process."""

    def __init__(self, number: int) -> None:
        self._number = number
        command = [sys.executable, "-m", "lapse.keys.conformance.worker"]
        self._process = subprocess.Popen(  # noqa: S603 - this very program
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        # A thread reads, because reading a pipe knows no time-out.
        self._reader = threading.Thread(target=self._read, name="lapse-conformance-reader", daemon=True)
        self._reader.start()

    def tell(self, message: dict[str, Any]) -> None:
        stdin = self._process.stdin
        if stdin is None or self._process.poll() is not None:
            raise self._gone()
        try:
            stdin.write(json.dumps(message) + "\n")
            stdin.flush()
        except BrokenPipeError:
            raise self._gone() from None

    def answer(self, number: int, seconds: float) -> list[WorkerReport]:
        while True:
            try:
                line = self._lines.get(timeout=seconds)
            except queue.Empty:
                raise self._violation(f"an answer within {seconds:.0f} s", "none") from None
            if not line:
                raise self._gone()
            message = json.loads(line)
            if message["round"] == number:  # an older one came too late for its own race
                return [WorkerReport(**report) for report in message["reports"]]

    def close(self) -> None:
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line)
        self._lines.put("")  # the end

    def _gone(self) -> Violation:
        self._lines.put("")  # for the next question
        return self._violation("it to race", f"it end with code {self._process.wait(timeout=10)}")

    def _violation(self, wanted: str, saw: str) -> Violation:
        return Violation(f"racing process {self._number}: expected {wanted}, saw {saw}")


def _without_failures(reports: list[WorkerReport]) -> list[WorkerReport]:
    failed = [report for report in reports if report.error is not None]
    if failed:
        raise Violation(f"worker {failed[0].who}: expected an answer, saw {failed[0].error}")
    return reports
