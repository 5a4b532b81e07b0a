"""Cases of the contract of `lapse.engine.plans.proposed.PlanStore`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.engine.plans.proposed import Application, KeptPlan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lapse.engine.plans.proposed import PlanStore

NOW: Final = 1_000_000_000_000
DOCUMENT: Final = bytes(range(256))


def row(name: str, *, created: int = NOW, expires: int = NOW + 100, items: int = 3) -> KeptPlan:
    """Return what is kept of a plan."""
    return KeptPlan(name, f"digest of {name}", "token ann", created, expires, NOW + 50, "a,b", items, 1)


def applied(name: str, *, ended: int, left: int | None) -> Application:
    """Return what came of one."""
    return Application(name, f"digest of {name}", "token ben", NOW + 1, ended, left)


async def what_is_kept_is_there_until_it_expires(store: PlanStore) -> None:
    assert await store.keep(row("one"), DOCUMENT, now=NOW, most=5)
    assert list(await store.plans(NOW)) == [row("one")]
    assert await store.document("one", NOW + 100) == DOCUMENT
    assert await store.document("one", NOW + 101) is None
    assert list(await store.plans(NOW + 101)) == []
    assert await store.document("two", NOW) is None


async def what_has_expired_is_removed_when_another_is_kept(store: PlanStore) -> None:
    await store.keep(row("one"), DOCUMENT, now=NOW, most=1)
    assert await store.keep(row("two", expires=NOW + 900), DOCUMENT, now=NOW + 101, most=1)
    assert [one.id for one in await store.plans(NOW)] == ["two"]


async def one_that_is_kept_already_stays(store: PlanStore) -> None:
    await store.keep(row("one"), DOCUMENT, now=NOW, most=1)
    assert await store.keep(row("one", items=9), b"other", now=NOW, most=1) is False
    assert await store.document("one", NOW) == DOCUMENT
    assert list(await store.plans(NOW)) == [row("one")]


async def of_too_many_the_oldest_with_nothing_left_gives_way(store: PlanStore) -> None:
    for number, name in enumerate(("one", "two", "three")):
        await store.keep(row(name, created=NOW + number), DOCUMENT, now=NOW, most=3)
    assert await store.keep(row("four"), DOCUMENT, now=NOW, most=3) is None
    await store.note(applied("one", ended=1, left=2))
    assert await store.keep(row("four"), DOCUMENT, now=NOW, most=3) is None
    for name in ("three", "two"):
        await store.note(applied(name, ended=3, left=0))
    assert await store.keep(row("four"), DOCUMENT, now=NOW, most=3)
    assert {one.id for one in await store.plans(NOW)} == {"one", "three", "four"}


async def what_came_of_one_is_noted_on_that_very_one(store: PlanStore) -> None:
    for name in ("one", "two"):
        await store.keep(row(name), DOCUMENT, now=NOW, most=5)
    await store.note(applied("one", ended=1, left=None))
    await store.note(applied("one", ended=1, left=None))
    await store.note(applied("two", ended=0, left=1)._replace(digest="another"))
    found = {one.id: one for one in await store.plans(NOW)}
    assert found["one"][-4:] == ("token ben", NOW + 1, 2, 1)
    assert found["two"] == row("two")
    await store.note(applied("one", ended=0, left=0))
    (one,) = [one for one in await store.plans(NOW) if one.id == "one"]
    assert (one.ended, one.left) == (2, 0)


CASES: Final[dict[str, Callable[[PlanStore], Awaitable[None]]]] = {
    one.__name__: one
    for one in (
        what_is_kept_is_there_until_it_expires,
        what_has_expired_is_removed_when_another_is_kept,
        one_that_is_kept_already_stays,
        of_too_many_the_oldest_with_nothing_left_gives_way,
        what_came_of_one_is_noted_on_that_very_one,
    )
}
