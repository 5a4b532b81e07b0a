"""A program that writes until it is killed, and says on standard output what was acknowledged.

It is started once and forks a writer for each line on its standard input: a fork takes milliseconds, an interpreter
with its imports a quarter of a second. The store is opened after the fork.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from itertools import count
from typing import TYPE_CHECKING

import lapse

if TYPE_CHECKING:
    from lapse.keys.store import AppKeys

THREADS = 2
COUNTER = "counter"


def report(*words: object) -> None:
    """Write one line in one piece: shorter than what a pipe takes atomically from several writers."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def write_forever(app: AppKeys, name: str) -> None:
    for number in count():
        key = f"own:{name}:{number}"
        if app.insert_if_not_exists(key, name, 3600):
            report(name, "inserted", key)
        contested = f"contested:{number}"
        if app.insert_if_not_exists(contested, name, 3600):
            report(name, "won", contested)
        current = app.ttl_get(COUNTER)
        if current is None:
            if app.insert_if_not_exists(COUNTER, "1", 3600):
                report(name, "counted", 1)
        elif app.compare_and_swap(COUNTER, current, str(int(current) + 1), 3600):
            report(name, "counted", int(current) + 1)


def write(url: str, name: str) -> None:
    app = lapse.open_keys(url).app(7)
    threads = [threading.Thread(target=write_forever, args=(app, f"{name}.{number}")) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    url = sys.argv[1]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the killed
    for line in sys.stdin:
        name = line.strip()
        child = os.fork()
        if child == 0:
            try:
                write(url, name)
            finally:
                os._exit(1)
        report(name, "started", child)


if __name__ == "__main__":
    main()
