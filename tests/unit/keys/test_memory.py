from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

import lapse
from lapse.core.clock import VirtualClock
from lapse.keys.backends.layout import Prefix
from lapse.keys.errors import BackendClosedError, KeysURLError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.keys.port import CleanupReport
    from lapse.keys.store import AppKeys, Keys


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def keys(clock: VirtualClock) -> Iterator[Keys]:
    with lapse.open_keys("memory://", clock=clock, sweep=False) as opened:
        yield opened


def inside(app: AppKeys) -> Any:  # noqa: ANN401 - physical state is checked inside the backend
    return app._space


def stored(keys: Keys) -> int:
    return sum(count for _, _, count in keys.backend.counts())


def sweep_all(keys: Keys, limit: int = 1000) -> int:
    removed = 0
    while True:
        report = keys.sweep(limit)
        assert report.removed <= limit
        removed += report.removed
        if not report.more:
            return removed


def test_the_expiry_is_rounded_up_to_the_millisecond(keys: Keys, clock: VirtualClock) -> None:
    clock.advance(ns=1)
    app = keys.app(1)
    app.put("k", "v", 1)
    item = app.get_item("k")
    assert item is not None
    assert item.expires_ms * 1_000_000 == clock.wall_ns() - 1 + 1_001_000_000
    clock.advance(ns=1_000_999_998)
    assert app.ttl_get("k") == "v"
    assert app.query_ttl("k") == 0.001
    clock.advance(ns=1)
    assert app.ttl_get("k") is None
    assert app.query_ttl("k") is None
    assert app.get_item("k") is None
    assert app.scan() == []


def test_a_sweep_removes_in_slices_exactly_what_has_expired(keys: Keys, clock: VirtualClock) -> None:
    app = keys.app(1)
    for i in range(5000):
        app.put(f"short{i}", "v", 10)
        app.put(f"long{i}", "v", 100_000)
    clock.advance(13)
    reports: list[CleanupReport] = []
    while not reports or reports[-1].more:
        reports.append(keys.sweep(limit=100))
    assert max(report.removed for report in reports) == 100
    assert sum(report.removed for report in reports) == 5000
    assert {report.lag_seconds for report in reports if report.removed} == {3.0}
    assert stored(keys) == 5000
    clock.advance(100_000)
    assert sweep_all(keys) == 5000
    assert stored(keys) == 0


@pytest.mark.parametrize("url", ["memory://", "memory://?buckets=3"])
def test_an_application_without_records_takes_no_memory_and_one_with_records_is_found_again(
    clock: VirtualClock, url: str
) -> None:
    with lapse.open_keys(url, clock=clock, sweep=False) as keys:
        spaces: Any = keys.backend
        for app_id in range(1000):
            keys.app(app_id).ttl_get("k")
        keys.app(7).put("k", "v", 10)
        gc.collect()
        assert len(spaces._spaces) == 1
        assert keys.app(7).ttl_get("k") == "v"
        clock.advance(15)
        sweep_all(keys)
        gc.collect()
        assert len(spaces._spaces) == 0


def test_a_sweep_with_nothing_due_looks_at_nothing(keys: Keys, clock: VirtualClock) -> None:
    backend: Any = keys.backend
    for app_id in range(1000):
        keys.app(app_id).put("k", "v", 3600)
    sweep_all(keys)
    before = list(backend._agenda)
    clock.advance(1)
    assert keys.sweep().removed == 0
    assert backend._agenda == before, "a partition with nothing due was visited"


# --- counts of what expires -----------------------------------------------------------------------------------------


def expiring(keys: Keys, until_ns: int) -> list[tuple[int, int]]:
    return [(one.app_id, one.number) for one in keys.backend.expiring(until_ns) or ()]


class Watched(dict[str, Any]):
    """Records that note which of them are read."""

    def __init__(self, records: dict[str, Any]) -> None:
        super().__init__(records)
        self.read: list[str] = []

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - a record
        self.read.append(key)
        return super().get(key, default)


def test_a_count_looks_at_what_is_due_and_at_the_rest_of_one_slot(keys: Keys, clock: VirtualClock) -> None:
    app, idle = keys.app(1), keys.app(2)
    for ttl in range(1, 5001):
        app.put(f"{ttl}", "v", ttl)
    for number in range(5000):
        app.put(f"far {number}", "v", 1_000_000 + number)
        idle.put(f"far {number}", "v", 1_000_000 + number)
    watched, others = Watched(inside(app)._records), Watched(inside(idle)._records)
    inside(app)._records, inside(idle)._records = watched, others

    assert expiring(keys, clock.wall_ns() + 40 * 10**9) == [(1, 40)]

    assert 40 <= len(watched.read) <= 40 + 64 + 2, "a slot of the second level covers 64 ticks"
    assert others.read == [], "nothing of it is due"


def test_a_count_goes_on_while_others_write(keys: Keys, clock: VirtualClock) -> None:
    app = keys.app(1)
    for number in range(20_000):
        app.put(f"{number}", "v", 60)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for number in range(20_000):
                app.touch(f"{number}", 50 + number % 20)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            assert expiring(keys, clock.wall_ns() + 100 * 10**9) == [(1, 20_000)], "each once, and none left out"
    finally:
        stop.set()
        writer.join()


def test_a_count_after_the_clock_went_back_leaves_nothing_out(keys: Keys, clock: VirtualClock) -> None:
    app = keys.app(1)
    app.put("old", "v", 5)
    clock.advance(100_000)
    app.put("late", "v", 10)
    sweep_all(keys)
    clock.jump_wall(-50_000)
    app.put("early", "v", 10)
    now = clock.wall_ns()

    assert expiring(keys, now + 10 * 10**9) == [(1, 1)]
    assert expiring(keys, now + 60_000 * 10**9) == [(1, 2)]
    sweep_all(keys)
    assert expiring(keys, now + 10 * 10**9) == [(1, 1)]
    assert expiring(keys, now + 60_000 * 10**9) == [(1, 2)]


def test_a_count_while_the_wheel_is_in_doubt_looks_at_every_record(keys: Keys, clock: VirtualClock) -> None:
    app = keys.app(1)
    app.put("k", "v", 10)
    inside(app)._wheel.discard("k", inside(app)._tick_of("k"))  # as an interrupted renewal leaves it
    inside(app)._unsure = True

    assert expiring(keys, clock.wall_ns() + 10 * 10**9) == [(1, 1)]


def test_a_key_that_an_interruption_left_in_two_slots_counts_once(keys: Keys, clock: VirtualClock) -> None:
    app = keys.app(1)
    app.put("k", "v", 100)
    for number in range(100):  # so that keys are looked up
        app.put(f"far {number}", "v", 1_000_000)
    inside(app)._wheel.add("k", inside(app)._tick_of("k") - 90)
    inside(app)._wheel.add("never written", inside(app)._tick_of("k"))

    assert expiring(keys, clock.wall_ns() + 100 * 10**9) == [(1, 1)]


def test_a_partition_that_an_interrupted_sweep_took_in_hand_is_counted(keys: Keys, clock: VirtualClock) -> None:
    keys.app(1).put("k", "v", 10)
    backend: Any = keys.backend
    backend._in_hand = backend._agenda.pop()[2]

    assert expiring(keys, clock.wall_ns() + 10 * 10**9) == [(1, 1)]


def test_a_closed_store_counts_nothing(keys: Keys, clock: VirtualClock) -> None:
    keys.close()

    with pytest.raises(BackendClosedError):
        keys.backend.expiring(clock.wall_ns())


# --- renewals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("renew", ["touch", "swap", "put", "delete and insert"])
def test_a_renewed_record_survives_the_sweep_of_its_old_expiry(keys: Keys, clock: VirtualClock, renew: str) -> None:
    app = keys.app(1)
    app.put("k", "v", 5)
    clock.advance(4)
    if renew == "touch":
        assert app.touch("k", 100)
    elif renew == "swap":
        assert app.compare_and_swap("k", "v", "v", 100)
    elif renew == "put":
        app.put("k", "v", 100)
    else:
        assert app.delete("k")
        assert app.insert_if_not_exists("k", "v", 100)
    clock.advance(10)
    assert sweep_all(keys) == 0
    assert app.ttl_get("k") == "v"
    clock.advance(100)
    assert sweep_all(keys) == 1
    assert stored(keys) == 0


def test_a_record_with_a_shortened_ttl_is_swept_at_its_new_expiry(keys: Keys, clock: VirtualClock) -> None:
    app = keys.app(1)
    app.put("k", "v", 31_536_000)
    assert app.compare_and_swap("k", "v", "w", 1)
    clock.advance(4)
    assert sweep_all(keys) == 1


def test_memory_returns_after_expiry(keys: Keys, clock: VirtualClock) -> None:
    app = keys.app(1)
    app.put("stays", "v", 31_536_000)
    for i in range(50_000):
        app.put(f"key{i}", "v", 10)
    partition = inside(app)
    app.scan()
    large = sys.getsizeof(partition._records)
    clock.advance(20)
    sweep_all(keys)
    assert sys.getsizeof(partition._records) < large / 100
    assert app.ttl_get("stays") == "v"
    assert [item.key for item in app.scan()] == ["stays"]


def test_memory_returns_after_deletes_too(keys: Keys) -> None:
    app = keys.app(1)
    for i in range(50_000):
        app.put(f"key{i}", "v", 1000)
    large = sys.getsizeof(inside(app)._records)
    for i in range(50_000):
        app.delete(f"key{i}")
    assert sys.getsizeof(inside(app)._records) < large / 50


def test_readers_and_writers_go_on_while_memory_is_returned() -> None:
    """The dict is replaced while others use it: no live key may be missed, no write lost."""
    with lapse.open_keys("memory://", sweep=False) as keys:
        app = keys.app(1)
        for i in range(100):
            app.put(f"live{i}", "v", 1000)
        missed: list[int] = []
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                missed.extend(i for i in range(100) if app.ttl_get(f"live{i}") != "v")

        reader = threading.Thread(target=read)
        reader.start()
        for round_number in range(3):
            for i in range(20_000):
                app.put(f"bulk{i}", "v", 1000)
            for i in range(20_000):
                assert app.delete(f"bulk{i}")
            app.put(f"kept{round_number}", "v", 1000)
        stop.set()
        reader.join()
        assert missed == []
        assert stored(keys) == 103


def test_a_clock_that_jumps_back_kills_nothing_and_cleanup_recovers(keys: Keys, clock: VirtualClock) -> None:
    app = keys.app(1)
    app.put("before", "v", 100)
    clock.advance(50)
    sweep_all(keys)
    clock.jump_wall(-10_000)
    app.put("after", "v", 10)
    assert sweep_all(keys) == 0
    assert app.ttl_get("before") == "v"
    assert app.ttl_get("after") == "v"
    clock.advance(12)
    assert sweep_all(keys) == 1
    assert app.ttl_get("before") == "v"
    clock.advance(10_100)
    assert sweep_all(keys) == 1
    assert stored(keys) == 0


def test_buckets_spread_and_scan_in_order(clock: VirtualClock) -> None:
    with lapse.open_keys("memory://?buckets=7", clock=clock, sweep=False) as keys:
        app = keys.app(1)
        names = [f"k{i:04d}" for i in range(700)]
        for name in names:
            assert app.insert_if_not_exists(name, "v", 10)
        sizes = [len(partition) for partition in inside(app)._partitions]
        assert len(sizes) == 7
        assert min(sizes) > 50
        seen: list[str] = []
        while page := app.scan(after=seen[-1] if seen else None, limit=30):
            seen += [item.key for item in page]
        assert seen == names
        assert list(keys.backend.counts()) == [(Prefix.APPLICATION_TTL, 1, 700)]
        clock.advance(13)
        assert sweep_all(keys) == 700


def test_a_closed_store_says_so(keys: Keys) -> None:
    app = keys.app(1)
    app.put("k", "v", 10)
    keys.close()
    keys.close()
    for call in (
        lambda: app.ttl_get("k"),
        lambda: app.put("k", "v", 1),
        lambda: app.insert_if_not_exists("k", "v", 1),
        lambda: app.delete("k"),
        app.scan,
        lambda: app.get_many(["k"]),
        lambda: keys.app(1),
        keys.backend.check,
        keys.backend.counts,
    ):
        with pytest.raises(BackendClosedError, match="closed"):
            call()


def test_a_memory_store_has_no_name() -> None:
    with pytest.raises(KeysURLError, match="memory store has no name"):
        lapse.open_keys("memory://name")


def test_every_store_is_its_own() -> None:
    with lapse.open_keys("memory://") as one, lapse.open_keys("memory://") as other:
        one.app(1).put("k", "v", 10)
        assert other.app(1).ttl_get("k") is None


def test_a_store_that_is_never_closed_can_be_collected() -> None:
    threads = threading.active_count()
    keys = lapse.open_keys("memory://?sweep_interval=1ms")
    assert threading.active_count() == threads + 1
    sweeper = keys._sweeper
    assert sweeper is not None
    del keys
    gc.collect()
    sweeper._thread.join(timeout=10)
    assert not sweeper._thread.is_alive()


def test_the_background_sweep_removes_expired_records_without_being_asked(clock: VirtualClock) -> None:
    with lapse.open_keys("memory://?sweep_interval=1ms", clock=clock) as keys:
        for i in range(5000):
            keys.app(1).put(f"k{i}", "v", 1)
        clock.advance(5)
        done = threading.Event()
        for _ in range(10_000):
            if stored(keys) == 0:
                break
            done.wait(0.001)
        assert stored(keys) == 0


@pytest.mark.slow
def test_fresh_keys_that_come_and_go_after_a_scan_take_no_memory(keys: Keys) -> None:
    app = keys.app(1)
    for number in range(10):
        app.put(f"stays:{number}", "v", 900)
    assert len(app.scan()) == 10
    tracemalloc.start()
    for number in range(250_000):
        app.insert_if_not_exists(f"comes and goes:{number:030}", "v", 900)
        app.delete(f"comes and goes:{number:030}")
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 10_000_000
    assert len(app.scan()) == 10
