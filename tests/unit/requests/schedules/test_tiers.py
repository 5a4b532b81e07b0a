"""Which runs stay, against a small model that looks at every run for itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from lapse.core.clock import UnixNs
from lapse.requests.api.kinds import KeepSpec
from lapse.requests.schedules.tiers import ReadyRun, Tier, places

if TYPE_CHECKING:
    from collections.abc import Sequence

NS = 1_000_000_000
ZONE = ZoneInfo("Europe/Berlin")
START = datetime(2027, 3, 1, tzinfo=UTC)


def run(uid: str, moment: datetime, made: int = 0) -> ReadyRun:
    return ReadyRun(uid, UnixNs(int(moment.timestamp()) * NS), UnixNs(made))


def nightly(days: int) -> list[ReadyRun]:
    """One run at noon of each day, ``0`` the oldest."""
    return [run(str(day), START + timedelta(days=day, hours=12)) for day in range(days)]


def kept(runs: Sequence[ReadyRun], **keep: int) -> list[str]:
    return sorted(places(runs, KeepSpec(**keep), ZONE), key=int)


def test_the_last_so_many_stay() -> None:
    assert kept(nightly(10), last=3) == ["7", "8", "9"]


def test_a_run_may_have_places_in_several_tiers() -> None:
    found = places(nightly(2), KeepSpec(last=1, daily=2, monthly=1), ZONE)
    assert found == {"1": (Tier.LAST, Tier.DAILY, Tier.MONTHLY), "0": (Tier.DAILY,)}


def test_the_newest_of_each_day_week_and_month_that_is_kept_stays() -> None:
    # From Monday 1 March 2027: weeks end on days 6, 13, 20, 27, 34; months on days 30 and 60.
    assert kept(nightly(60), daily=2, weekly=3, monthly=3) == ["30", "48", "55", "58", "59"]


def test_hours_and_days_are_those_of_the_zone() -> None:
    late, early = datetime(2027, 6, 1, 21, 30, tzinfo=UTC), datetime(2027, 6, 1, 22, 30, tzinfo=UTC)
    runs = [run("0", late), run("1", early)]  # 23:30 and 00:30 in Berlin
    assert kept(runs, daily=2) == ["0", "1"]
    assert sorted(places(runs, KeepSpec(daily=2), ZoneInfo("UTC"))) == ["1"]


def test_nights_without_a_run_push_nothing_out() -> None:
    runs = [*nightly(3), run("9", START + timedelta(days=300))]
    assert kept(runs, daily=4) == ["0", "1", "2", "9"]


def test_of_two_for_the_same_time_the_first_one_made_counts_and_pushes_nobody_out() -> None:
    forged = [run(str(100 + number), START + timedelta(days=9, hours=12), made=5 + number) for number in range(50)]
    assert kept([*forged, *nightly(10)], last=3) == ["7", "8", "9"]


def test_the_newest_stays_also_where_nothing_is_to_be_kept() -> None:
    assert kept(nightly(5)) == ["4"]
    assert kept(nightly(5), last=0, daily=0) == ["4"]
    assert kept([]) == []


def model(runs: Sequence[ReadyRun], keep: KeepSpec) -> set[str]:
    """Say of every run by itself whether it stays: it is the newest of its period, and few periods are newer."""
    unique: dict[int, ReadyRun] = {}
    for one in sorted(runs, key=lambda one: (one.made, one.uid), reverse=True):
        unique[one.scheduled] = one

    def period(one: ReadyRun, tier: str) -> tuple[int, ...]:
        local = datetime.fromtimestamp(one.scheduled / NS, ZONE)
        year, week, _ = local.isocalendar()
        return {
            "last": (one.scheduled,),
            "hourly": (local.year, local.month, local.day, local.hour),
            "daily": (local.year, local.month, local.day),
            "weekly": (year, week),
            "monthly": (local.year, local.month),
        }[tier]

    def stays(one: ReadyRun, tier: str) -> bool:
        mine = period(one, tier)
        newer = [other for other in unique.values() if other.scheduled > one.scheduled]
        if any(period(other, tier) == mine for other in newer):
            return False
        return len({period(other, tier) for other in newer}) < (getattr(keep, tier) or 0)

    found = {one.uid for one in unique.values() if any(stays(one, tier) for tier in Tier)}
    return found or {one.uid for one in unique.values() if one.scheduled == max(unique)}


COUNT = st.none() | st.integers(0, 5)


@given(
    st.lists(st.tuples(st.integers(0, 24 * 90), st.integers(0, 3)), max_size=60),
    st.builds(KeepSpec, last=COUNT, hourly=COUNT, daily=COUNT, weekly=COUNT, monthly=COUNT),
)
def test_what_stays_is_what_the_model_says(found: list[tuple[int, int]], keep: KeepSpec) -> None:
    runs = [run(str(number), START + timedelta(hours=hours), made) for number, (hours, made) in enumerate(found)]
    assert set(places(runs, keep, ZONE)) == model(runs, keep)


@given(
    st.lists(st.integers(0, 24 * 90), min_size=1, max_size=60, unique=True),
    st.builds(KeepSpec, last=COUNT, hourly=COUNT, daily=COUNT, weekly=COUNT, monthly=COUNT),
)
def test_ending_what_is_superseded_changes_nothing_about_what_stays(hours: list[int], keep: KeepSpec) -> None:
    runs = [run(str(hour), START + timedelta(hours=hour)) for hour in hours]
    stay = places(runs, keep, ZONE)
    assert places([one for one in runs if one.uid in stay], keep, ZONE) == stay
    assert str(max(hours)) in stay
