"""One worker of a race: what it does on an order, and the process in which some of them run.

``python -m lapse.keys.conformance.worker`` reads JSON lines from its standard input: first which store to open (not
from its arguments: a URL may hold a password, and arguments are public), then one order after the other. It answers
each with one line and ends with its input.
"""

from __future__ import annotations

import json
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from lapse.core.clock import SystemClock
from lapse.keys.errors import LockHeldError, LockLostError, OutcomeUnknownError
from lapse.keys.store import AppKeys, Keys, open_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

START: Final = "start"
"""The value that everybody expects to find."""
TTL_SECONDS: Final = 600
UNKNOWN: Final = "unknown"
"""The answer of a write whose outcome the backend could not tell."""

_LOCK_SECONDS: Final = 60  # longer than any race
_SECOND: Final = 1_000_000_000
_TURN_SECONDS: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Order:
    """The act that all workers shall do at the same time."""

    act: str
    """A name in `ACTS`."""
    app: int
    key: str
    turn: int = 0
    """The number of the round: roles change from round to round, because threads start in much the same order."""
    times: int = 1
    seconds: float = 5.0
    """After this long even an act that repeats itself comes to an end."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The answer of one worker."""

    who: str
    """Its name: process, dot, thread. Also the value that it writes."""
    answer: Any
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker while it follows an order."""

    keys: AppKeys
    order: Order
    who: str
    index: int
    """Its number within its process."""
    of: int
    """How many there are in its process."""

    def told(self, write: Callable[[], bool]) -> bool | str:
        """Return a write's answer, or that its outcome is unknown."""
        try:
            return write()
        except OutcomeUnknownError:
            return UNKNOWN

    def in_time(self) -> Callable[[], bool]:
        """Return a test whether the order's time is not over yet."""
        clock = SystemClock()
        end_ns = clock.monotonic_ns() + int(self.order.seconds * _SECOND)
        return lambda: clock.monotonic_ns() < end_ns


def _insert(worker: Worker) -> object:
    return worker.told(lambda: worker.keys.insert_if_not_exists(worker.order.key, worker.who, TTL_SECONDS))


def _insert_until_taken(worker: Worker) -> object:
    """Try until somebody must have won: the key is live, expires under everybody's eyes, and has one next owner."""
    in_time = worker.in_time()
    while in_time():
        if (answer := _insert(worker)) is not False:
            return answer
        if worker.keys.ttl_get(worker.order.key) not in {START, None}:
            return False
    return False


def _insert_many(worker: Worker) -> object:
    items = [(f"{worker.order.key}:{number}", worker.who, TTL_SECONDS) for number in range(worker.order.times)]
    try:
        return worker.keys.insert_many(items)
    except OutcomeUnknownError:
        return [UNKNOWN] * len(items)


def _swap(worker: Worker) -> object:
    return worker.told(lambda: worker.keys.compare_and_swap(worker.order.key, START, worker.who, TTL_SECONDS))


def _delete_if(worker: Worker) -> object:
    return worker.told(lambda: worker.keys.compare_and_delete(worker.order.key, START))


def _delete(worker: Worker) -> object:
    return worker.told(lambda: worker.keys.delete(worker.order.key))


def _touch(worker: Worker) -> object:
    return worker.told(lambda: worker.keys.touch(worker.order.key, TTL_SECONDS))


def _count(worker: Worker) -> object:
    """Add one by compare-and-swap until it succeeded ``times`` times; return how often it did, or may have done."""
    keys, key, in_time = worker.keys, worker.order.key, worker.in_time()
    done = unknown = 0
    while done < worker.order.times and in_time():
        seen = keys.ttl_get(key)
        if seen is None:
            raise LookupError("the counter is gone although no worker deletes it")
        answer = worker.told(lambda seen=seen: keys.compare_and_swap(key, seen, str(int(seen) + 1), TTL_SECONDS))  # type: ignore[misc]  # bound early
        done += answer is True
        unknown += answer == UNKNOWN
    return [done, unknown]


def _count_or_touch(worker: Worker) -> object:
    """Half of the workers count while the other half renews the counter."""
    if (worker.index + worker.order.turn) % 2 == 0:
        return _count(worker)
    for _ in range(worker.order.times):
        _touch(worker)
    return [0, 0]


def _touch_or_delete(worker: Worker) -> object:
    deletes = worker.index == worker.order.turn % worker.of
    return ["delete", _delete(worker)] if deletes else ["touch", _touch(worker)]


def _swap_or_delete_if(worker: Worker) -> object:
    swaps = (worker.index + worker.order.turn) % 2 == 0
    return ["swap", _swap(worker)] if swaps else ["delete", _delete_if(worker)]


def _put_or_delete(worker: Worker) -> object:
    keys, key = worker.keys, worker.order.key
    for number in range(worker.order.times):
        with suppress(OutcomeUnknownError):
            if (number + worker.index) % 2 == 0:
                keys.put(key, f"{worker.who}:{number}", TTL_SECONDS)
            else:
                keys.delete(key)
    return True


def _hold_lock(worker: Worker) -> object:
    """Take the lock when it is free; return the fencing numbers, how often it was shared, and how often lost."""
    keys, key, in_time = worker.keys, worker.order.key, worker.in_time()
    fences: list[int] = []
    shared = lost = 0
    while len(fences) < worker.order.times and in_time():
        try:
            with suppress(LockHeldError, OutcomeUnknownError), keys.lock(key, _LOCK_SECONDS) as lock:
                shared += not keys.insert_if_not_exists(f"{key}:inside", worker.who, TTL_SECONDS)
                fences.append(lock.fence)
                keys.compare_and_delete(f"{key}:inside", worker.who)
        except LockLostError:
            lost += 1
    return [fences, shared, lost]


ACTS: Final[Mapping[str, Callable[[Worker], object]]] = {
    "insert": _insert,
    "insert-until-taken": _insert_until_taken,
    "insert-many": _insert_many,
    "swap": _swap,
    "delete-if": _delete_if,
    "delete": _delete,
    "count": _count,
    "count-or-touch": _count_or_touch,
    "touch-or-delete": _touch_or_delete,
    "swap-or-delete-if": _swap_or_delete_if,
    "put-or-delete": _put_or_delete,
    "hold-lock": _hold_lock,
}


def race_in_threads(keys: Keys, order: Order, *, threads: int, process: int = 0) -> list[WorkerReport]:
    """Let ``threads`` threads follow an order, all let go at the same time."""
    app = keys.app(order.app)
    reports: list[WorkerReport] = []
    barrier = threading.Barrier(threads)

    def run(index: int) -> None:
        who = f"{process}.{index}"
        try:
            barrier.wait()
            reports.append(WorkerReport(who, ACTS[order.act](Worker(app, order, who, index, threads))))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what this worker has to report
            reports.append(WorkerReport(who, None, f"{type(error).__name__}: {error}"))

    runners = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(threads)]
    with _eager_switching():
        for runner in runners:
            runner.start()
        for runner in runners:
            runner.join()
    return reports


@contextmanager
def _eager_switching() -> Iterator[None]:
    """Let threads take turns after microseconds, not milliseconds: a whole operation would fit into one turn."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(_TURN_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def main() -> None:
    """Follow orders from standard input until it ends."""
    hello = json.loads(sys.stdin.readline())
    try:
        keys = open_keys(hello["url"], sweep=False)
    except Exception as error:  # noqa: BLE001 - told to the one who started this process
        _say(0, [WorkerReport(f"{hello['process']}", None, f"{type(error).__name__}: {error}")])
        return
    with keys:
        _say(0, [])
        for line in sys.stdin:
            message = json.loads(line)
            order = Order(**message["order"])
            reports = race_in_threads(keys, order, threads=hello["threads"], process=hello["process"])
            _say(message["round"], reports)


def _say(number: int, reports: list[WorkerReport]) -> None:
    sys.stdout.write(json.dumps({"round": number, "reports": [asdict(report) for report in reports]}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
