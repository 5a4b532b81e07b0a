from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lapse.core.clock import UnixNs
from lapse.engine.deadlines import Deadlines

KEYS = st.sampled_from("abcdefgh")
MOMENTS = st.integers(0, 20)
CHANGES = st.lists(st.one_of(st.tuples(KEYS, MOMENTS), st.tuples(KEYS, st.none())), max_size=60)


def filled(**moments: int) -> Deadlines[str]:
    deadlines = Deadlines[str]()
    for key, when in moments.items():
        deadlines.set(key, UnixNs(when))
    return deadlines


def test_what_is_due_comes_earliest_first_and_the_rest_not_at_all() -> None:
    assert list(filled(late=3, early=1, later=9, now=5).due(UnixNs(5))) == ["early", "late", "now"]


def test_a_deadline_that_moves_counts_only_where_it_is_now() -> None:
    deadlines = filled(a=1, b=2)
    deadlines.set("a", UnixNs(7))

    assert deadlines.next() == 2
    assert list(deadlines.due(UnixNs(9))) == ["b", "a"]


def test_what_was_discarded_is_forgotten() -> None:
    deadlines = filled(a=1)
    deadlines.discard("a")
    deadlines.discard("never known")

    assert deadlines.next() is None
    assert list(deadlines.due(UnixNs(9))) == []
    assert len(deadlines) == 0


def test_a_key_that_was_taken_and_not_settled_is_due_again() -> None:
    deadlines = filled(a=1, b=2, c=3)
    taking = deadlines.due(UnixNs(9))
    assert [next(taking), next(taking)] == ["a", "b"]
    deadlines.discard("a")
    taking.close()

    assert list(deadlines.due(UnixNs(9))) == ["b", "c"]


def test_a_key_that_is_set_to_the_same_moment_while_it_is_taken_comes_once() -> None:
    deadlines = filled(a=1)
    for key in deadlines.due(UnixNs(1)):
        deadlines.set(key, UnixNs(2))
        deadlines.set(key, UnixNs(2))

    assert list(deadlines.due(UnixNs(9))) == ["a"]


def test_only_a_deadline_before_all_others_is_news() -> None:
    news: list[str] = []
    deadlines = Deadlines[str](on_earlier=lambda: news.append("earlier"))
    for key, when in (("a", 5), ("b", 9), ("c", 5), ("d", 4)):
        deadlines.set(key, UnixNs(when))

    assert len(news) == 2, "a was the first, d came before it"


def test_a_deadline_that_keeps_moving_does_not_fill_the_memory() -> None:
    deadlines = filled(a=1, b=2)
    for when in range(10_000):
        deadlines.set("a", UnixNs(when + 10))

    assert len(deadlines._heap) < 200


@given(CHANGES, MOMENTS)
def test_it_agrees_with_a_sorted_dictionary(changes: list[tuple[str, int | None]], now: int) -> None:
    deadlines, model = Deadlines[str](), dict[str, int]()
    for key, when in changes:
        if when is None:
            deadlines.discard(key)
            model.pop(key, None)
        else:
            deadlines.set(key, UnixNs(when))
            model[key] = when

    assert deadlines.next() == min(model.values(), default=None)
    assert len(deadlines) == len(model)
    for _ in range(2):  # looking changes nothing
        found = list(deadlines.due(UnixNs(now)))
        assert sorted(found) == sorted(key for key, when in model.items() if when <= now)
        assert [model[key] for key in found] == sorted(model[key] for key in found)


def test_what_is_due_and_put_off_is_still_among_what_is_due_until_a_moment() -> None:
    deadlines = filled(a=1, b=2, c=3)
    deadlines.put_off("a", None)
    deadlines.put_off("b", UnixNs(600))
    deadlines.put_off("unknown", UnixNs(600))

    assert list(deadlines.until(UnixNs(2))) == ["a", "b"], "a plan has what a loop only told, and what is held"
    assert list(deadlines.until(UnixNs(600))) == ["a", "b", "c"], "each once"
    assert list(deadlines.due(UnixNs(9))) == ["c"], "a loop looks at neither before its time"


def test_what_a_sweep_looks_at_just_now_is_still_among_what_is_due_until_a_moment() -> None:
    deadlines = Deadlines[str]()
    for number, key in enumerate("abc"):
        deadlines.set(key, UnixNs(number))
    sweep = deadlines.due(UnixNs(1))

    assert [next(sweep), next(sweep)] == ["a", "b"]
    assert list(deadlines.until(UnixNs(5))) == ["a", "b", "c"], "a plan that is made beside a sweep has all of it"
    deadlines.discard("a")
    deadlines.set("b", UnixNs(5))
    assert list(deadlines.until(UnixNs(5))) == ["b", "c"], "each once"
    sweep.close()
    assert list(deadlines.until(UnixNs(5))) == ["c", "b"]


def test_a_new_deadline_ends_what_was_put_off() -> None:
    deadlines = filled(a=1, b=1)
    for key in ("a", "b"):
        deadlines.put_off(key, None)
    deadlines.set("a", UnixNs(50))
    deadlines.discard("b")

    assert list(deadlines.until(UnixNs(9))) == []
    assert list(deadlines.until(UnixNs(50))) == ["a"]


def test_what_was_put_off_can_be_hurried_and_nothing_else() -> None:
    woken: list[str] = []
    deadlines = filled(a=1, b=2, c=500)
    deadlines.put_off("a", UnixNs(600))
    deadlines.put_off("b", None)
    deadlines.on_earlier = lambda: woken.append("now")
    for key in ("a", "b", "c", "unknown"):
        deadlines.hurry(key, UnixNs(9))

    assert list(deadlines.due(UnixNs(9))) == ["a", "b"]
    assert woken == ["now"]


def test_a_hurry_that_comes_while_a_key_is_looked_at_is_not_lost() -> None:
    deadlines = filled(a=1, b=1)
    for key in deadlines.due(UnixNs(5)):
        if key == "a":
            deadlines.hurry("a", UnixNs(9))
        deadlines.put_off(key, UnixNs(600))

    assert list(deadlines.due(UnixNs(5))) == []
    assert list(deadlines.due(UnixNs(9))) == ["a"]
    for key in deadlines.due(UnixNs(9)):
        deadlines.put_off(key, UnixNs(600))
    assert list(deadlines.due(UnixNs(599))) == [], "it was hurried once"
