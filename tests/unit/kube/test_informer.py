from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import VirtualClock
from lapse.kube.controller.informer import Informer
from lapse.kube.errors import ForbiddenError, GoneError, StoreUnavailableError
from lapse.kube.resources import Event, EventType, Kind, ObjectKey, Page
from tests.unit.kube.scripted import (
    END,
    THING,
    ScriptedStore,
    Step,
    Thing,
    View,
    added,
    bookmark,
    deleted,
    modified,
    names,
    page,
    pass_time,
    running,
    settle,
    thing,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

UNAVAILABLE = StoreUnavailableError(problem="restarting")
FORBIDDEN = ForbiddenError(problem="no permission to watch")
GONE = GoneError(version="1")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(clock: VirtualClock) -> ScriptedStore:
    return ScriptedStore(clock)


@pytest.fixture
def errors() -> list[Exception]:
    return []


@pytest.fixture
def informer(store: ScriptedStore, clock: VirtualClock, errors: list[Exception]) -> Informer[Thing]:
    return Informer(store, THING, clock=clock, chance=lambda: 0.5, on_error=errors.append)


def key(name: str) -> ObjectKey:
    return ObjectKey("default", name)


async def test_all_pages_are_read_and_then_watched_from_the_listed_version(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    store.lists.extend([page(thing("a", 1), version=7, following="a"), page(thing("b", 2), version=7)])

    async with running(informer, clock):
        assert names(informer.items()) == ["a", "b"]
        assert store.asked == ["list", "list after a", "watch 7"]


async def test_it_is_synced_after_the_last_page_and_not_before(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    store.lists.extend([page(thing("a", 1), version=7, following="a"), UNAVAILABLE])

    async with running(informer, clock):
        assert not informer.synced.is_set()
        waiting = asyncio.create_task(informer.synced.wait())
        store.lists.extend([page(thing("a", 1), version=9)])
        await pass_time(clock, 1)

        assert waiting.done()
        assert len(informer) == 1


async def test_events_are_applied_in_order(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    view = View()
    informer.subscribe(view)
    store.lists.append(page(thing("a", 1), version=1))
    store.watches.append([added(thing("b", 2)), modified(thing("a", 3)), deleted(thing("b", 4))])

    async with running(informer, clock):
        assert informer.get(key("a")) == thing("a", 3)
        assert informer.get(key("b")) is None
        assert view.calls == [("appeared", "a"), ("appeared", "b"), ("changed", "a"), ("gone", "b")]


async def test_a_watch_that_ends_is_resumed_from_the_last_version_without_a_list(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    store.lists.append(page(version=1))
    store.watches.extend([[added(thing("a", 5)), END], [END]])

    async with running(informer, clock):
        await pass_time(clock, 2)

        assert store.asked == ["list", "watch 1", "watch 5", "watch 5"]
        assert store.open == 1


async def test_a_bookmark_moves_the_version_that_is_resumed_from(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    store.lists.append(page(version=1))
    store.watches.append([added(thing("a", 5)), bookmark(90), END])

    async with running(informer, clock):
        await pass_time(clock, 1)

        assert store.asked[-1] == "watch 90"


@pytest.mark.parametrize("error", [UNAVAILABLE, FORBIDDEN])
async def test_a_failed_watch_is_resumed_without_a_list(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock, error: Exception
) -> None:
    store.lists.append(page(version=1))
    store.watches.extend([[added(thing("a", 5)), error], [error]])

    async with running(informer, clock):
        await pass_time(clock, 2)

        assert store.asked == ["list", "watch 1", "watch 5", "watch 5"]


async def test_changes_that_are_no_longer_kept_are_found_by_a_new_list(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    view = View()
    informer.subscribe(view)
    store.lists.append(page(thing("stays", 1), thing("goes", 1), thing("changes", 1), version=1))
    store.watches.append([GONE])
    store.lists.append(page(thing("stays", 1), thing("changes", 8), thing("comes", 9), version=9))

    async with running(informer, clock):
        before = len(view.calls)
        await pass_time(clock, 1)

        assert view.calls[before:] == [("changed", "changes"), ("appeared", "comes"), ("gone", "goes")]
        assert names(informer.items()) == ["changes", "comes", "stays"]
        assert store.asked[-1] == "watch 9"


async def test_nothing_is_deleted_by_a_relist_that_is_not_complete(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    store.lists.extend([page(thing("a", 1), thing("b", 1), version=1)])
    store.watches.append([GONE])
    store.lists.extend([page(thing("a", 1), version=9, following="a"), UNAVAILABLE])

    async with running(informer, clock):
        clock.advance(0.1)
        await settle(clock)

        assert store.asked[-1] == "list after a"
        assert names(informer.items()) == ["a", "b"]
        store.lists.append(page(thing("b", 1), version=10))  # the next one, when it comes


async def test_a_page_that_comes_too_late_begins_the_list_again(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    store.lists.extend([page(thing("a", 1), version=1, following="a"), GONE, page(thing("b", 5), version=5)])

    async with running(informer, clock):
        await pass_time(clock, 1)

        assert store.asked == ["list", "list after a", "list", "watch 5"]
        assert names(informer.items()) == ["b"]


async def test_an_object_that_was_replaced_by_another_of_its_name_is_gone_first(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    view = View()
    informer.subscribe(view)
    store.lists.append(page(thing("a", 1, uid="first"), version=1))
    store.watches.append([GONE])
    store.lists.append(page(thing("a", 8, uid="second"), version=9))

    async with running(informer, clock):
        await pass_time(clock, 1)

        assert view.calls == [("appeared", "a"), ("gone", "a"), ("appeared", "a")]


async def test_a_repeated_event_is_no_change(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    view = View()
    informer.subscribe(view)
    store.lists.append(page(thing("a", 1), thing("b", 1), version=1))
    again = modified(thing("a", 2))
    store.watches.extend([[added(thing("a", 1)), again, again, END], [again, deleted(thing("b", 3)), END]])
    store.watches.append([deleted(thing("b", 3))])

    async with running(informer, clock):
        await pass_time(clock, 1)

        assert view.calls == [("appeared", "a"), ("appeared", "b"), ("changed", "a"), ("gone", "b")]


async def test_a_late_deletion_does_not_touch_the_successor_of_the_same_name(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    store.lists.append(page(thing("a", 5, uid="second"), version=5))
    store.watches.append([deleted(thing("a", 4, uid="first"))])

    async with running(informer, clock):
        assert informer.get(key("a")) == thing("a", 5, uid="second")


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(UNAVAILABLE, id="unavailable"),
        pytest.param(FORBIDDEN, id="forbidden"),
        pytest.param(RuntimeError("a defect"), id="unexpected"),
    ],
)
async def test_the_waits_between_failed_lists_double_up_to_half_a_minute(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock, error: Exception, errors: list[Exception]
) -> None:
    store.lists.extend([error] * 12)
    store.lists.append(page(version=1))

    async with running(informer, clock):
        await pass_time(clock, 150, step=0.075)

    waits = [later - earlier for earlier, later in zip(store.asked_at[:-1], store.asked_at[1:], strict=True)]
    assert waits[:9] == pytest.approx([0.075, 0.15, 0.3, 0.6, 1.2, 2.4, 4.8, 9.6, 19.2], abs=0.001)
    assert waits[9:12] == pytest.approx([22.5] * 3, abs=0.001)
    assert errors == [error] * 12


async def test_a_watch_that_is_always_refused_makes_no_hot_loop(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    store.lists.extend([page(thing("a", 1), version=1)] * 100)
    store.watches.extend([[FORBIDDEN]] * 100)

    async with running(informer, clock):
        await pass_time(clock, 600)

    assert len(store.asked) < 45
    assert store.asked.count("list") in range(2, 6), "now and then a list, in case the version is what is wrong"


async def test_a_store_that_lists_but_never_keeps_changes_makes_no_hot_loop(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    store.lists.extend([page(thing("a", 1), version=1)] * 100)
    store.watches.extend([[GONE]] * 100)

    async with running(informer, clock):
        await pass_time(clock, 600)

    assert store.asked.count("list") < 45


async def test_a_store_that_forgets_what_it_has_just_reported_makes_no_hot_loop(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    store.lists.extend([page(version=1)] * 100)
    store.watches.extend([[bookmark(1), END], [GONE]] * 50)

    async with running(informer, clock):
        await pass_time(clock, 600)

    assert store.asked.count("list") < 45


async def test_a_store_that_is_back_and_has_forgotten_is_listed_at_once(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    store.lists.extend([page(version=1), page(thing("a", 9), version=9)])
    store.watches.extend([[UNAVAILABLE]] * 7)
    store.watches.append([GONE])

    async with running(informer, clock):
        await pass_time(clock, 30, step=0.1)

    assert store.asked[-3:] == ["watch 1", "list", "watch 9"]
    assert store.asked_at[-1] == store.asked_at[-3]


async def test_a_store_that_asks_to_be_left_alone_is_left_alone(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    store.lists.extend([StoreUnavailableError(problem="429 too many", retry_after=7.0), page(version=1)])

    async with running(informer, clock):
        await pass_time(clock, 10)

    assert store.asked_at[:2] == [0, 7]


async def test_a_store_that_closes_every_watch_at_once_makes_no_hot_loop(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    store.lists.extend([page(version=1)] * 100)
    store.watches.extend([[bookmark(1), END] for _ in range(100)])

    async with running(informer, clock):
        await pass_time(clock, 600)

    assert len(store.asked) < 45


@pytest.mark.parametrize(
    "watch",
    [
        pytest.param([added(thing("a", 2)), UNAVAILABLE], id="a change"),
        pytest.param([5.0, UNAVAILABLE], id="a watch that held although nothing happened"),
    ],
)
async def test_after_a_success_the_next_wait_is_short_again(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock, watch: list[Step]
) -> None:
    store.lists.extend([UNAVAILABLE] * 7)
    store.lists.append(page(version=1))
    store.watches.append(watch)

    async with running(informer, clock):
        await pass_time(clock, 30, step=0.1)

    watched_at = [at for question, at in zip(store.asked, store.asked_at, strict=True) if "watch" in question]
    silent = sum(step for step in watch if isinstance(step, float))
    assert len(watched_at) == 2
    assert watched_at[1] - watched_at[0] <= silent + 0.21


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(Event(EventType.ADDED, None, "5"), id="an event without an object"),
        pytest.param(ValueError("not JSON"), id="an answer that cannot be read"),
        pytest.param(asyncio.CancelledError(), id="a cancellation inside the store"),
    ],
)
async def test_what_cannot_be_understood_is_logged_and_listed_again(
    informer: Informer[Thing],
    store: ScriptedStore,
    clock: VirtualClock,
    step: Step,
    errors: list[Exception],
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.lists.extend([page(version=1), page(thing("a", 5), version=6)])
    store.watches.append([step])

    async with running(informer, clock):
        await pass_time(clock, 1)

        assert store.asked == ["list", "watch 1", "list", "watch 6"]
        assert [record.getMessage() for record in caplog.records] == ["informer_failed"]
        assert caplog.records[0].exc_info
        assert len(errors) == 1


async def test_an_error_of_the_store_is_logged_without_a_traceback(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    store.lists.extend([UNAVAILABLE, page(version=1)])

    async with running(informer, clock):
        await pass_time(clock, 1)

    assert [(record.getMessage(), record.exc_info) for record in caplog.records] == [("watch_failed", None)]


async def test_a_handler_that_raises_harms_neither_the_informer_nor_other_handlers(
    informer: Informer[Thing],
    store: ScriptedStore,
    clock: VirtualClock,
    errors: list[Exception],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(_old: Thing | None, _new: Thing | None) -> None:
        raise ZeroDivisionError

    view = View()
    informer.subscribe(broken)
    informer.subscribe(view)
    store.lists.append(page(thing("a", 1), version=1))
    store.watches.append([added(thing("b", 2))])

    async with running(informer, clock):
        assert names(view.objects.values()) == ["a", "b"]
        assert [record.getMessage() for record in caplog.records] == ["handler_failed"] * 2
        assert [type(error) for error in errors] == [ZeroDivisionError] * 2
        assert store.asked == ["list", "watch 1"]


async def test_who_subscribes_late_is_told_of_everything_that_exists(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    store.lists.append(page(thing("a", 1), version=1))
    store.watches.append([added(thing("b", 2)), 10.0, modified(thing("a", 3))])

    async with running(informer, clock):
        view = View()
        informer.subscribe(view)
        assert view.calls == [("appeared", "a"), ("appeared", "b")]

        await pass_time(clock, 10)
        assert view.calls[2:] == [("changed", "a")]


async def test_who_subscribes_from_within_a_handler_misses_nothing_and_sees_nothing_twice(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock, errors: list[Exception]
) -> None:
    views: list[View] = []

    def subscribing(_old: Thing | None, _new: Thing | None) -> None:
        views.append(View())
        informer.subscribe(views[-1])

    informer.subscribe(subscribing)
    store.lists.append(page(thing("a", 1), version=1))
    store.watches.append([modified(thing("a", 2)), added(thing("b", 3))])

    async with running(informer, clock):
        assert [names(view.objects.values()) for view in views] == [["a", "b"]] * 3
        assert errors == [], "no view was told of anything that it knew already"


async def test_items_may_be_iterated_while_things_change(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    store.lists.append(page(thing("a", 1), thing("b", 1), version=1))
    store.watches.append([10.0, deleted(thing("b", 2))])

    async with running(informer, clock):
        found = []
        for obj in informer.items():
            found.append(obj.metadata.name)
            await pass_time(clock, 10)

        assert found == ["a", "b"]
        assert len(informer) == 1


async def test_when_it_is_cancelled_the_watch_is_closed_and_a_later_run_goes_on_from_there(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    store.lists.append(page(thing("a", 1), version=1))
    store.watches.append([added(thing("b", 5))])
    async with running(informer, clock):
        assert store.open == 1
    assert store.open == 0

    async with running(informer, clock):
        assert store.asked == ["list", "watch 1", "watch 5"]
        assert len(informer) == 2


async def test_only_the_named_namespace_is_asked_for(clock: VirtualClock) -> None:
    asked: list[str | None] = []

    class Namespaced(ScriptedStore):
        async def list(
            self, kind: Kind[Any], *, namespace: str | None = None, limit: int | None = None, after: str | None = None
        ) -> Page[Any]:
            asked.append(namespace)
            return page(version=1)

        def watch(
            self, kind: Kind[Any], *, namespace: str | None = None, since: str
        ) -> AsyncGenerator[Event[Any], None]:
            asked.append(namespace)
            return super().watch(kind, namespace=namespace, since=since)

    async with running(Informer(Namespaced(clock), THING, namespace="team", clock=clock), clock):
        assert asked == ["team", "team"]


def owners(obj: Thing) -> Iterable[str]:
    return [obj.owner]


async def test_an_index_follows_every_change(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    informer.index("owner", owners)
    store.lists.append(page(thing("a", 1, owner="x"), thing("b", 1, owner="x"), thing("c", 1, owner="y"), version=1))
    store.watches.append([modified(thing("a", 2, owner="y")), deleted(thing("b", 3, owner="x")), 10.0, GONE])
    store.lists.append(page(thing("c", 8, owner="z"), version=9))

    async with running(informer, clock):
        assert informer.indexed("owner", "x") == []
        assert informer.indexed("owner", "y") == [thing("c", 1, owner="y"), thing("a", 2, owner="y")]

        await pass_time(clock, 12)
        assert informer.indexed("owner", "y") == []
        assert informer.indexed("owner", "z") == [thing("c", 8, owner="z")]


async def test_a_handler_that_asks_the_index_sees_the_change_it_is_told_of(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    seen: list[list[str]] = []
    informer.index("owner", owners)
    informer.subscribe(lambda _old, _new: seen.append(names(informer.indexed("owner", "x"))))
    store.lists.append(page(thing("a", 1, owner="x"), version=1))
    store.watches.append([added(thing("b", 2, owner="x")), deleted(thing("a", 3, owner="x"))])

    async with running(informer, clock):
        assert seen == [["a"], ["a", "b"], ["b"]]


async def test_a_change_costs_the_index_what_changed_and_not_what_exists(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    asked = 0

    def counting(obj: Thing) -> Iterable[str]:
        nonlocal asked
        asked += 1
        return owners(obj)

    informer.index("owner", counting)
    store.lists.append(page(*(thing(f"o{n}", 1, owner=str(n % 100)) for n in range(5_000)), version=1))
    store.watches.append([10.0, modified(thing("o1", 2, owner="2")), GONE])
    store.lists.append(page(*(thing(f"o{n}", 1, owner=str(n % 100)) for n in range(4_999)), version=9))

    async with running(informer, clock):
        assert asked == 5_000
        await pass_time(clock, 11)

        assert informer.get(key("o4999")) is None
        assert asked - 5_000 <= 5, "one change, taken back by the list, and one deletion"


async def test_an_index_that_raises_for_one_object_leaves_out_that_one_only(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock, errors: list[Exception]
) -> None:
    informer.index("first letter", lambda obj: [obj.owner[0]])
    store.lists.append(page(thing("a", 1, owner="x"), thing("b", 1, owner=""), version=1))
    store.watches.append([modified(thing("a", 2, owner="")), modified(thing("b", 3, owner="x"))])

    async with running(informer, clock):
        assert len(informer) == 2
        assert informer.indexed("first letter", "x") == [thing("b", 3, owner="x")]
        assert [type(error) for error in errors] == [IndexError] * 2


async def test_an_index_that_is_asked_for_late_holds_what_exists(
    informer: Informer[Thing], store: ScriptedStore, clock: VirtualClock
) -> None:
    store.lists.append(page(thing("a", 1, owner="x"), version=1))

    async with running(informer, clock):
        informer.index("owner", owners)

        assert informer.indexed("owner", "x") == [thing("a", 1, owner="x")]
