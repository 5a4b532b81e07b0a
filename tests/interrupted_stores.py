"""A program whose main thread is interrupted thousands of times while it uses a store; other threads use it, too.

``python -m tests.interrupted_stores memory|file|lock FOLDER INTERRUPTIONS``: prints what it found, or hangs. A program
of its own, because an exception of a signal handler would hit the test's own tools as well.
"""

from __future__ import annotations

import gc
import json
import random  # noqa: TID251 - moments of interruption
import sys
import threading
from typing import TYPE_CHECKING, Any

import lapse
from lapse.core.clock import SystemClock
from lapse.keys.backends.layout import Prefix
from tests.interruption import Alarm, Interrupted, alarm

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.keys.store import AppKeys, Keys

RNG = random.Random(12)
LONG = 1000


class Others:
    """Threads that write and read all the time, and count how often they were answered."""

    def __init__(self, app: AppKeys, number: int) -> None:
        self._app, self._stop = app, False
        self.answers = [0] * number
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=self._work, args=(name,)) for name in range(number)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop = True
        for thread in self._threads:
            thread.join(10)
        self.errors += ["a thread was never answered" for thread in self._threads if thread.is_alive()]

    def _work(self, name: int) -> None:
        number = 0
        while not self._stop:
            key = f"other:{name}:{number % 50}"
            try:
                self._app.put(key, str(number), LONG)
                if self._app.ttl_get(key) != str(number):
                    self.errors.append("a thread did not read what it wrote")
                self.answers[name] += 1
            except lapse.LapseError as error:  # its group may be failed by the interruption of its leader
                if "interrupted" not in str(error):
                    self.errors.append(str(error))
            number += 1
            threading.Event().wait(0.001)


def operations(app: AppKeys, keys: Keys) -> list[Callable[[], Any]]:
    """Return what the main thread does, in turn."""
    return [
        lambda: app.put(f"main:{RNG.randrange(200)}", "value", RNG.randrange(1, LONG)),
        lambda: app.insert_if_not_exists(f"main:{RNG.randrange(200)}", "value", LONG),
        lambda: app.delete(f"main:{RNG.randrange(200)}"),
        lambda: app.compare_and_swap(f"main:{RNG.randrange(200)}", "value", "value", RNG.randrange(1, LONG)),
        lambda: app.scan("main:", limit=50),
        lambda: app.ttl_get(f"main:{RNG.randrange(200)}"),
        lambda: keys.sweep() if RNG.random() < 0.02 else None,  # rarely: it may wait for a checkpoint
    ]


def stress(url: str, interruptions: int, longest: float) -> dict[str, Any]:
    """Interrupt every operation of a store, at any moment; then look whether it is whole."""
    with lapse.open_keys(url) as keys:
        app = keys.app(1)
        others = Others(keys.app(2), 3)
        with alarm() as interruption:
            calls = operations(app, keys)
            while interruption.raised < interruptions:
                interrupt(interruption, calls[RNG.randrange(len(calls))], longest)
        seen = {item.key for item in app.scan(limit=10_000)}
        missed = [
            key for key in (f"main:{number}" for number in range(200)) if (app.ttl_get(key) is None) == (key in seen)
        ]
        others.stop()
        return {
            "interrupted": interruption.raised,
            "missed": missed,
            "errors": others.errors,
            "answers": others.answers,
        }


def interrupt(interruption: Alarm, call: Callable[[], Any], longest: float) -> None:
    """Once at any moment, and once more while that is dealt with."""
    try:
        interruption.call(call, RNG.uniform(1e-6, longest), RNG.uniform(1e-6, 3e-5))
    except lapse.LapseError as error:
        if "interrupted" not in str(error):
            raise


def locks(interruptions: int) -> dict[str, Any]:
    """Interrupt the entering and leaving of locks at any moment; then look what is still held."""
    with lapse.open_keys("memory://", sweep=False) as keys, alarm() as interruption:

        def enter_and_leave(name: str) -> None:
            with keys.app(1).lock(name, 2):
                pass

        with keys.app(1).lock("first", 2):
            pass  # starts the background thread
        number = 0
        while interruption.raised < interruptions:
            number += 1
            interrupt(interruption, lambda: enter_and_leave(f"job:{number}"), 2e-3)  # noqa: B023 - called at once
        gc.collect()
        space = keys.backend.space(Prefix.LEADER_ELECTION, 1)
        give_up = SystemClock.monotonic_ns() + 3_000_000_000
        while held := [item.key for item in space.scan("lock:", "lock;", 10_000)]:
            if SystemClock.monotonic_ns() > give_up:
                break
            threading.Event().wait(0.1)
        # A TTL of 2 s and 3 s of waiting: what is there now was renewed.
        return {"interrupted": interruption.raised, "missed": held, "errors": []}


def main(kind: str, folder: str, interruptions: int) -> None:
    """Print what was found as JSON."""
    if kind == "lock":
        found = locks(interruptions)
    elif kind == "memory":
        found = stress("memory://?sweep_interval=10ms", interruptions, 2e-5)
    else:
        found = stress(f"file://{folder}/keys.db?sync=normal&sweep_interval=10ms", interruptions, 4e-4)
    print(json.dumps(found))  # noqa: T201 - for the test that started this


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    except Interrupted:
        sys.exit("an interruption came out of a place where none was due")
