"""When runs are, in zones whose clocks are set forward and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.clock import UnixNs
from lapse.requests.schedules.cron import Cron, CronError, TimeZoneError

NS = 1_000_000_000
BERLIN = "Europe/Berlin"
"""Forward on 2027-03-28 at 01:00 UTC (02:00 to 03:00), back on 2027-10-31 at 01:00 UTC (03:00 to 02:00)."""


def at(text: str) -> UnixNs:
    """A moment in UTC."""
    return UnixNs(int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * NS)


def shown(moment: UnixNs | None) -> str:
    assert moment is not None
    return datetime.fromtimestamp(moment / NS, UTC).strftime("%m-%d %H:%M")


def runs(cron: Cron, since: str, count: int) -> list[str]:
    found, moment = [], at(since)
    for _ in range(count):
        following = cron.after(moment)
        assert following is not None
        found.append(shown(following))
        moment = following
    return found


@pytest.mark.parametrize(
    ("expression", "since", "expected"),
    [
        # 02:30 does not exist: once, at the end of the gap.
        ("30 2 * * *", "2027-03-26T12:00", ["03-27 01:30", "03-28 01:00", "03-29 00:30"]),
        # 02:30 exists twice: once, the first time.
        ("30 2 * * *", "2027-10-29T12:00", ["10-30 00:30", "10-31 00:30", "11-01 01:30"]),
        # All that falls into the gap is one run, together with that of its end.
        ("*/15 * * * *", "2027-03-28T00:40", ["03-28 00:45", "03-28 01:00", "03-28 01:15", "03-28 01:30"]),
        ("*/30 2 * * *", "2027-03-27T12:00", ["03-28 01:00", "03-29 00:00", "03-29 00:30"]),
        # Each local time of the hour that comes twice, once.
        ("*/30 * * * *", "2027-10-31T00:10", ["10-31 00:30", "10-31 02:00", "10-31 02:30"]),
        ("0 * * * *", "2027-10-30T23:30", ["10-31 00:00", "10-31 02:00", "10-31 03:00"]),
        ("0 * * * *", "2027-03-27T23:30", ["03-28 00:00", "03-28 01:00", "03-28 02:00"]),
        ("0 3 * * *", "2027-03-27T12:00", ["03-28 01:00", "03-29 01:00"]),
        ("0 3 * * *", "2027-10-30T12:00", ["10-31 02:00", "11-01 02:00"]),
        ("0 0 29 2 *", "2027-01-01T00:00", ["02-28 23:00", "02-28 23:00"]),
        ("0 12 * * MON-FRI", "2027-01-01T12:00", ["01-04 11:00", "01-05 11:00"]),
    ],
)
def test_a_local_time_that_does_not_exist_or_exists_twice_runs_once(
    expression: str, since: str, expected: list[str]
) -> None:
    assert runs(Cron.parse(expression, BERLIN), since, len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "moment", "expected"),
    [
        ("30 2 * * *", "2027-03-28T00:59:59", "03-27 01:30"),
        ("30 2 * * *", "2027-03-28T01:00", "03-28 01:00"),
        ("30 2 * * *", "2027-10-31T00:29:59", "10-30 00:30"),
        ("30 2 * * *", "2027-10-31T00:30", "10-31 00:30"),
        ("30 2 * * *", "2027-10-31T01:10", "10-31 00:30"),  # 02:10 for the second time
        ("*/15 * * * *", "2027-10-31T01:10", "10-31 00:45"),
        ("30 2 * * *", "2027-10-31T12:00", "10-31 00:30"),
        ("0 3 * * *", "2027-06-01T01:00", "06-01 01:00"),
    ],
)
def test_the_latest_run_is_the_one_that_was_due_last(expression: str, moment: str, expected: str) -> None:
    assert shown(Cron.parse(expression, BERLIN).latest(at(moment))) == expected


def test_a_whole_day_that_does_not_exist_runs_once_at_its_end() -> None:
    """Samoa had no 30 December 2011."""
    cron = Cron.parse("0 12 * * *", "Pacific/Apia")
    assert runs(cron, "2011-12-29T00:00", 3) == ["12-29 22:00", "12-30 10:00", "12-30 22:00"]


def test_utc_is_the_zone_of_a_schedule_that_names_none() -> None:
    assert runs(Cron.parse("0 3 * * *"), "2027-03-28T00:00", 1) == ["03-28 03:00"]


EXPRESSIONS = ["* * * * *", "*/7 * * * *", "30 2 * * *", "0 * * * *", "15,45 1-3 * * *", "0 0 1 * *", "0 3 * * SUN"]
ZONES = [BERLIN, "UTC", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/St_Johns"]


@given(
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(ZONES),
    st.datetimes(datetime(2026, 1, 1), datetime(2029, 1, 1)),  # noqa: DTZ001 - made UTC below
)
def test_the_next_and_the_latest_run_agree(expression: str, zone: str, start: datetime) -> None:
    cron, now = Cron.parse(expression, zone), UnixNs(int(start.replace(tzinfo=UTC).timestamp()) * NS)
    following, latest = cron.after(now), cron.latest(now)
    assert following is not None
    assert latest is not None
    assert latest <= now < following
    assert cron.latest(following) == following
    assert cron.latest(UnixNs(following - 1)) == latest
    assert cron.after(latest) == following


@pytest.mark.parametrize("zone", [BERLIN, "Australia/Lord_Howe"])
def test_over_a_year_every_local_time_runs_exactly_once(zone: str) -> None:
    cron, found, moment = Cron.parse("30 2 * * *", zone), [], at("2027-01-01T00:00")
    end = at("2028-01-01T00:00")
    while (following := cron.after(moment)) is not None and following < end:
        found.append(datetime.fromtimestamp(following / NS, ZoneInfo(zone)).date())
        moment = following
    assert len(found) in {365, 366}
    assert all(later - earlier == timedelta(days=1) for earlier, later in pairwise(found))


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "@daily",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "0 24 * * *",
        "0 3 32 * *",
        "0 3 * 13 *",
        "*/0 * * * *",
        "0  3 * * *",
        " 0 3 * * *",
        "0 3 * * *\n",
        "0\t3 * * *",
        "0 3 * * FUNDAY",
        "0 3 30 2 *",
        "5-1 * * * *",
        "1" * 200,
    ],
)
def test_what_is_no_schedule_is_refused_with_words(expression: str) -> None:
    with pytest.raises(CronError, match="Expected five fields: minute, hour, day of month, month and day of week"):
        Cron.parse(expression)


@pytest.mark.parametrize(
    "zone", ["Berlin", "Europe", "localtime", "../etc/passwd", "/etc/localtime", "europe/berlin\0", "+2"]
)
def test_what_is_no_zone_is_refused_with_words(zone: str) -> None:
    with pytest.raises(TimeZoneError, match="Expected a name of the IANA database, such as Europe/Berlin, or UTC"):
        Cron.parse("0 3 * * *", zone)
