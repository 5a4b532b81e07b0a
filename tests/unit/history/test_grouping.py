from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lapse.core.clock import UnixNs
from lapse.core.decision import Due
from lapse.history.retention.grouping import GroupRanking, judge
from lapse.history.retention.rules import LimitReason, Protection, RetainedObject, RetentionLimits

NOW = UnixNs(1_000)
FAR = 10**20
ENTRIES = st.lists(
    st.builds(
        RetainedObject,
        namespace=st.just("n"),
        name=st.integers(0, 99).map("r{:02}".format),
        uid=st.just("u"),
        version=st.just("1"),
        anchor=st.integers(980, 1_003).map(UnixNs),
        group=st.sampled_from([("a",), ("b",)]),
        is_kept=st.booleans(),
    ),
    max_size=12,
    unique_by=lambda one: one.name,
)
LIMITS = st.builds(
    RetentionLimits,
    max_age=st.none() | st.integers(1, 20),
    max_count=st.none() | st.integers(1, 4),
    keep_last=st.integers(1, 3),
)


@given(entries=ENTRIES, limits=LIMITS, data=st.data())
def test_a_part_of_a_group_never_ends_what_the_whole_group_would_not(
    entries: list[RetainedObject], limits: RetentionLimits, data: st.DataObject
) -> None:
    part = [one for one in entries if data.draw(st.booleans())]
    whole = {one.entry.name: one for one in judge(entries, limits, NOW)}
    for one in judge(part, limits, NOW):
        known = whole[one.entry.name]
        assert not isinstance(one.verdict, Due) or isinstance(known.verdict, Due)
        assert one.protection is Protection.CERTAIN or known.protection is Protection.NONE


def test_moments_beyond_all_calendars_are_ranked_as_any_other() -> None:
    ages = {"first": -FAR, "second": 5, "third": FAR}
    found = [RetainedObject("n", name, "u", "1", UnixNs(anchor), ("g",)) for name, anchor in ages.items()]
    judged = {one.entry.name: one.verdict for one in judge(found, RetentionLimits(max_count=2), NOW)}
    assert [name for name, verdict in judged.items() if isinstance(verdict, Due)] == ["first"]


def test_one_of_too_many_is_due_since_now_where_the_newer_ones_bear_times_to_come() -> None:
    ages = {"first": NOW - 2, "second": NOW + 1, "third": NOW + 2}
    found = [RetainedObject("n", name, "u", "1", UnixNs(anchor), ("g",)) for name, anchor in ages.items()]
    judged = {one.entry.name: one.verdict for one in judge(found, RetentionLimits(max_count=2), NOW)}
    assert judged["first"] == Due("delete", LimitReason.RETENTION_LIMIT, NOW), (
        "and not since a time that nobody believes"
    )
    assert not isinstance(judged["second"], Due)


def test_an_object_that_was_not_there_when_they_were_ranked_is_judged_by_those_that_were() -> None:
    ranking = GroupRanking(RetentionLimits(max_count=2), NOW)
    for anchor in (10, 20, 30):
        ranking.add(RetainedObject("n", f"r{anchor}", "u", "1", UnixNs(anchor), ("g",)))
    late = {
        anchor: ranking.standing(RetainedObject("n", "late", "u", "1", UnixNs(anchor), ("g",))).judge(NOW).verdict
        for anchor in (5, 15, 40)
    }
    assert late[5] == Due("delete", LimitReason.RETENTION_LIMIT, UnixNs(20))
    assert late[15] == Due("delete", LimitReason.RETENTION_LIMIT, UnixNs(30))
    assert not isinstance(late[40], Due)
