from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import VirtualClock
from lapse.engine.running.election import LeaseElection
from lapse.kube.controller.lease import LEASE, KubeLease, LeaseNotHeldError
from lapse.kube.errors import NotFoundError, StoreUnavailableError
from lapse.kube.resources import ObjectKey
from lapse.objects.embedded import EmbeddedStore, open_embedded
from tests.interruption import cancel_everywhere

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

KEY = ObjectKey("lapse-system", "lapse-operator")
TTL = 15
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class Unsteady:
    """A store whose next answer can be lost after the write, or can take a while."""

    def __init__(self, store: EmbeddedStore, clock: VirtualClock) -> None:
        self._store, self._clock = store, clock
        self.lose_next_answer = False
        self.during_next_get: Callable[[], Any] | None = None

    async def get(self, kind: Any, key: ObjectKey) -> Any:  # noqa: ANN401 - of any kind
        if self.during_next_get is not None:
            meanwhile, self.during_next_get = self.during_next_get, None
            await meanwhile()
        return await self._store.get(kind, key)

    async def create(self, kind: Any, obj: Any) -> Any:  # noqa: ANN401 - of any kind
        return await self._store.create(kind, obj)

    async def patch(self, kind: Any, key: ObjectKey, changes: Any, **preconditions: Any) -> Any:  # noqa: ANN401 - of any kind
        written = await self._store.patch(kind, key, changes, **preconditions)
        if self.lose_next_answer:
            self.lose_next_answer = False
            raise StoreUnavailableError(problem="the answer was lost")
        return written


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[EmbeddedStore]:
    opened = open_embedded(tmp_path / "objects.db", kinds=[LEASE], clock=clock)
    yield opened
    await opened.close()


@pytest.fixture
def unsteady(store: EmbeddedStore, clock: VirtualClock) -> Unsteady:
    return Unsteady(store, clock)


@pytest.fixture
def one(unsteady: Unsteady, clock: VirtualClock) -> KubeLease:
    return KubeLease(unsteady, KEY, identity="one", ttl_seconds=TTL, clock=clock)


@pytest.fixture
def other(unsteady: Unsteady, clock: VirtualClock) -> KubeLease:
    return KubeLease(unsteady, KEY, identity="other", ttl_seconds=TTL, clock=clock)


async def test_of_two_candidates_the_first_holds_it(one: KubeLease, other: KubeLease) -> None:
    assert await one.acquire()
    assert not await other.acquire()
    assert not one.lost
    assert other.lost


async def test_the_record_says_who_holds_it_with_six_digits_of_fraction(one: KubeLease, store: EmbeddedStore) -> None:
    await one.acquire()
    made = (await store.get(LEASE, KEY)).spec
    await one.renew()
    renewed = (await store.get(LEASE, KEY)).spec

    for spec in (made, renewed):
        assert (spec.holder_identity, spec.lease_duration_seconds, spec.lease_transitions) == ("one", TTL, 1)
        assert MICRO_TIME.fullmatch(spec.acquire_time or "")
        assert MICRO_TIME.fullmatch(spec.renew_time or "")


async def test_a_whole_second_has_six_digits_of_fraction_too(
    one: KubeLease, store: EmbeddedStore, clock: VirtualClock
) -> None:
    clock.advance((1_000_000_000 - clock.wall_ns() % 1_000_000_000) / 1e9)
    await one.acquire()

    assert (await store.get(LEASE, KEY)).spec.renew_time is not None
    assert str((await store.get(LEASE, KEY)).spec.renew_time).endswith(".000000Z")


async def test_it_is_lost_when_it_was_not_renewed_in_time(one: KubeLease, clock: VirtualClock) -> None:
    await one.acquire()
    clock.advance(TTL - 1)
    assert not one.lost
    assert await one.renew()
    clock.advance(TTL - 1)
    assert not one.lost
    clock.advance(1)
    assert one.lost


async def test_a_silent_holder_is_replaced_when_its_record_stood_still_for_its_duration(
    one: KubeLease, other: KubeLease, clock: VirtualClock
) -> None:
    await one.acquire()
    clock.advance(TTL - 1)
    assert not await other.acquire()  # sees the record for the first time: its age is unknown
    clock.advance(TTL - 1)
    assert not await other.acquire()
    clock.advance(1)
    assert await other.acquire()
    assert (one.fence, other.fence) == (1, 2)
    assert not await one.renew()
    assert one.lost


async def test_who_lost_it_takes_it_back_at_once_unless_somebody_else_has_it(
    one: KubeLease, other: KubeLease, clock: VirtualClock
) -> None:
    await one.acquire()
    assert not await other.acquire()
    clock.advance(TTL)
    assert one.lost
    assert await one.acquire()
    assert (one.lost, one.fence) == (False, 2)
    assert not await other.acquire(), "it was written since"
    clock.advance(TTL)
    assert await other.acquire()
    assert not await one.acquire()


async def test_only_changes_count_and_not_what_the_clock_of_the_holder_says(
    one: KubeLease, other: KubeLease, store: EmbeddedStore, clock: VirtualClock
) -> None:
    await one.acquire()
    await store.patch(LEASE, KEY, {"spec": {"renewTime": "1999-01-01T00:00:00.000000Z"}})
    assert not await other.acquire()
    for _ in range(3):
        clock.advance(TTL - 1)
        await store.patch(LEASE, KEY, {"spec": {"renewTime": f"1999-01-01T00:00:{clock.wall_ns() % 60:02}.000000Z"}})
        await store.patch(LEASE, KEY, {"metadata": {"labels": {"at": str(clock.wall_ns())}}})
        assert not await other.acquire()


async def test_a_record_that_was_written_while_it_was_asked_for_is_counted_from_the_answer(
    one: KubeLease, other: KubeLease, unsteady: Unsteady, clock: VirtualClock
) -> None:
    await one.acquire()

    async def renewed_late() -> None:
        clock.advance(5)
        await one.renew()

    unsteady.during_next_get = renewed_late
    assert not await other.acquire()
    clock.advance(TTL - 1)
    assert not one.lost
    assert not await other.acquire()


async def test_the_longer_of_the_two_durations_counts(one: KubeLease, unsteady: Unsteady, clock: VirtualClock) -> None:
    await one.acquire()
    hasty = KubeLease(unsteady, KEY, identity="hasty", ttl_seconds=1, clock=clock)
    assert not await hasty.acquire()
    clock.advance(TTL - 1)
    assert not await hasty.acquire()


async def test_released_it_is_taken_at_once(one: KubeLease, other: KubeLease, store: EmbeddedStore) -> None:
    await one.acquire()
    assert await one.release()
    assert one.lost
    assert (await store.get(LEASE, KEY)).spec.holder_identity == ""
    assert await other.acquire()
    assert other.fence == 2


async def test_what_is_lost_is_not_released(one: KubeLease, other: KubeLease, clock: VirtualClock) -> None:
    await one.acquire()
    assert not await other.acquire()
    clock.advance(TTL)
    assert await other.acquire()
    assert not await one.release()
    assert not other.lost
    assert await other.renew()


async def test_somebody_elses_change_of_the_object_does_not_end_a_term(one: KubeLease, store: EmbeddedStore) -> None:
    await one.acquire()
    await store.patch(LEASE, KEY, {"metadata": {"labels": {"seen": "yes"}}})
    assert await one.renew()
    assert not one.lost


async def test_a_renewal_whose_answer_was_lost_can_be_repeated(one: KubeLease, unsteady: Unsteady) -> None:
    await one.acquire()
    unsteady.lose_next_answer = True
    with pytest.raises(StoreUnavailableError):
        await one.renew()
    assert await one.renew()
    assert not one.lost


async def test_an_object_that_was_deleted_ends_the_term_at_once(
    one: KubeLease, other: KubeLease, store: EmbeddedStore
) -> None:
    await one.acquire()
    await store.delete(LEASE, KEY)
    assert not await one.renew()
    assert one.lost
    assert await other.acquire()


async def test_a_free_object_without_a_record_is_taken(one: KubeLease, store: EmbeddedStore) -> None:
    await store.create(LEASE, {"metadata": {"namespace": KEY.namespace, "name": KEY.name}, "spec": {}})
    assert await one.acquire()
    assert one.fence == 1


async def test_who_never_held_it_has_no_fence_and_nothing_to_renew(one: KubeLease) -> None:
    with pytest.raises(LeaseNotHeldError):
        _ = one.fence
    assert one.lost
    assert not await one.renew()
    assert not await one.release()


@pytest.mark.parametrize("again", [None, 1, 3])
async def test_an_election_that_is_cancelled_at_any_wait_leaves_no_holder(
    store: EmbeddedStore, clock: VirtualClock, again: int | None
) -> None:
    async def work(_: object) -> None:
        await asyncio.sleep(0)  # noqa: TID251 - a place to be cancelled at

    def election() -> Coroutine[Any, Any, None]:
        lease = KubeLease(store, KEY, identity="one", ttl_seconds=TTL, clock=clock)
        return LeaseElection(lease, clock=clock).campaign(work)

    async def check(when: str) -> None:
        await asyncio.sleep(0.02)  # noqa: TID251 - what was cancelled twice gives back in the background
        with suppress(NotFoundError):
            assert (await store.get(LEASE, KEY)).spec.holder_identity in {None, ""}, when

    assert await cancel_everywhere(election, check, again=again) > 2
