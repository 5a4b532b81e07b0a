from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lapse.keys.backends.wheel import TimingWheel

YEAR = 2**25  # ticks, a little more than a year


def take_all(wheel: TimingWheel, now: int, ticks: dict[str, int], slice_size: int = 3) -> set[str]:
    taken: set[str] = set()
    more = True
    while more:
        due = wheel.take(now, slice_size, ticks.get)
        next_tick = wheel.next_tick()
        more = next_tick is not None and next_tick < now
        assert len(due) <= slice_size
        assert not taken & set(due), "a key was handed out twice"
        taken.update(due)
    return taken


def test_a_key_is_handed_out_when_its_tick_is_over_and_not_before() -> None:
    wheel = TimingWheel(1000)
    wheel.add("k", 1005)
    assert take_all(wheel, 1005, {"k": 1005}) == set()
    assert take_all(wheel, 1006, {"k": 1005}) == {"k"}
    assert wheel.next_tick() is None


@given(start=st.integers(1, 2**40), distance=st.integers(0, YEAR), stops=st.lists(st.integers(1, YEAR), max_size=6))
def test_a_far_key_survives_any_number_of_stops_on_the_way(start: int, distance: int, stops: list[int]) -> None:
    wheel, ticks = TimingWheel(start), {"k": start + distance}
    wheel.add("k", start + distance)
    for stop in sorted(stops):
        if stop <= distance:
            assert take_all(wheel, start + stop, ticks) == set()
    assert take_all(wheel, start + distance + 1, ticks) == {"k"}


def test_a_discarded_key_leaves_nothing_behind() -> None:
    wheel = TimingWheel(0)
    for round_number in range(1000):  # renewed often, lives long: the case that makes a lazy wheel grow
        wheel.add("k", 30_000_000 + round_number)
        wheel.discard("k", 30_000_000 + round_number)
    assert wheel.next_tick() is None
    assert not wheel._slots


def test_a_coarse_slot_is_dealt_out_in_slices() -> None:
    ticks = {f"k{i}": 5000 + i for i in range(100)}
    wheel = TimingWheel(0)
    for key, tick in ticks.items():
        wheel.add(key, tick)
    rounds = 0
    while (next_tick := wheel.next_tick()) is not None and next_tick < 4999:
        assert wheel.take(4999, 10, ticks.get) == []
        rounds += 1
    assert rounds > 5, "one slice looked at more keys than its limit"
    assert take_all(wheel, 5101, ticks) == set(ticks)


def test_a_clock_that_goes_back_delays_cleanup_and_loses_nothing() -> None:
    wheel, ticks = TimingWheel(1000), {"old": 1010}
    wheel.add("old", 1010)
    wheel.add("passing", 1500)
    take_all(wheel, 1400, {"old": 1010, "passing": 1500})
    ticks = {"passing": 1500, "late": 600}
    wheel.add("late", 600)  # written while the clock stood at 590
    assert take_all(wheel, 595, ticks) == set()
    assert take_all(wheel, 601, ticks) == {"late"}
    assert take_all(wheel, 1501, ticks) == {"passing"}


class WheelMachine(RuleBasedStateMachine):
    """The wheel against a dict of ticks, under any order of adds, renewals, removals and steps of time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 10_000
        self.ticks: dict[str, int] = {}
        self.wheel = TimingWheel(self.now)

    @rule(key=st.sampled_from("abcdefgh"), ttl=st.one_of(st.integers(1, 70), st.integers(1, YEAR)))
    def write(self, key: str, ttl: int) -> None:
        if key in self.ticks:
            self.wheel.discard(key, self.ticks[key])
        self.ticks[key] = self.now + ttl
        self.wheel.add(key, self.now + ttl)

    @precondition(lambda self: self.ticks)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.ticks)))
        self.wheel.discard(key, self.ticks.pop(key))

    @rule(step=st.one_of(st.integers(1, 70), st.integers(1, YEAR)))
    def pass_time(self, step: int) -> None:
        self.now += step

    @rule(limit=st.integers(1, 5))
    def take_a_slice(self, limit: int) -> None:
        due = self.wheel.take(self.now, limit, self.ticks.get)
        for key in due:
            assert self.ticks.pop(key) < self.now, "handed out before its tick was over"

    @rule()
    def take_everything(self) -> None:
        expected = {key for key, tick in self.ticks.items() if tick < self.now}
        assert take_all(self.wheel, self.now, self.ticks) == expected
        for key in expected:
            del self.ticks[key]

    @invariant()
    def next_tick_is_never_too_late(self) -> None:
        earliest = min(self.ticks.values(), default=None)
        promised = self.wheel.next_tick()
        assert earliest is None or (promised is not None and promised <= earliest)


TestWheelMachine = WheelMachine.TestCase
