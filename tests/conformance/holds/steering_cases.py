"""Cases of holding, releasing and extending objects, for any store: see `stage`."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from lapse.engine.safety.holds import (
    AnotherHoldError,
    Hold,
    LegalHoldError,
    LegalReleaseError,
    SecondPersonError,
    WeakerHoldError,
    hold_of,
)
from lapse.kube.errors import ConflictError, ForbiddenError, NotFoundError
from lapse.kube.resources import ObjectKey
from lapse.objects.holds.steering import DependantsHeldError, ObjectPlace, PassedOnHoldError
from lapse.requests.api.kinds import OBJECT_KEEPER
from lapse.requests.api.upstream import CONFIG_MAP
from tests.conformance.holds.stage import ANN, BOB, CutOffError, Line, Stage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lapse.kube.resources import Kind

CASES: dict[str, Callable[[Stage], Awaitable[None]]] = {}
PLAIN = Hold("audit", None, ANN)
LEGAL = Hold("case 7", None, ANN, is_legal=True)


def case(test: Callable[[Stage], Awaitable[None]]) -> Callable[[Stage], Awaitable[None]]:
    CASES[test.__name__] = test
    return test


async def chain(stage: Stage) -> tuple[ObjectPlace, ObjectPlace, ObjectPlace]:
    """A keeper that owns a map that owns a map."""
    top = await stage.keeper("top")
    middle = await stage.map("middle", top)
    return top, middle, await stage.map("bottom", middle)


# --- plain holds ------------------------------------------------------------------------------------------------------


@case
async def a_hold_says_why_by_whom_and_until_when_and_is_noted_on_every_owner(stage: Stage) -> None:
    top, middle, bottom = await chain(stage)
    hold = Hold("audit", stage.later(2), ANN)
    assert await stage.steering().hold(bottom, hold) is None
    assert await stage.held(bottom) == hold
    for owner in (middle, top):
        assert await stage.held(owner) is None
        noted = hold_of(await stage.annotations(owner))
        assert noted is not None
        assert noted.until == hold.until
        assert bottom.key.name in noted.reason
    assert await stage.steering().release(bottom, by=BOB) == hold
    for one in (top, middle, bottom):
        assert hold_of(await stage.annotations(one)) is None
    assert await stage.steering().release(bottom, by=BOB) is None


@case
async def a_release_takes_away_the_note_of_its_own_object_only(stage: Stage) -> None:
    top = await stage.keeper("top")
    one, two = await stage.map("one", top), await stage.map("two", top)
    await stage.steering().hold(one, PLAIN)
    await stage.steering().hold(two, PLAIN)
    assert await stage.noted(top) == {one.uid, two.uid}
    await stage.steering().release(one, by=ANN)
    assert await stage.noted(top) == {two.uid}


@case
async def holds_of_siblings_at_the_same_moment_do_not_lose_each_other(stage: Stage) -> None:
    top = await stage.keeper("top")
    maps = [await stage.map(f"m{number}", top) for number in range(6)]
    await asyncio.gather(*[stage.steering(Line(stage.store)).hold(one, PLAIN) for one in maps])
    assert await stage.noted(top) == {one.uid for one in maps}
    await asyncio.gather(
        *[stage.steering(Line(stage.store)).release(one, by=BOB) for one in maps[:3]],
        *[stage.steering(Line(stage.store)).hold(one, Hold("still", None, BOB)) for one in maps[3:]],
    )
    assert await stage.noted(top) == {one.uid for one in maps[3:]}


@case
async def a_hold_and_a_release_at_the_same_moment_leave_a_held_object_with_its_notes(stage: Stage) -> None:
    top, middle, bottom = await chain(stage)
    for _ in range(5):
        await stage.steering().hold(bottom, PLAIN)
        again = stage.steering(Line(stage.store)).hold(bottom, Hold("again", None, BOB))
        await asyncio.gather(stage.steering(Line(stage.store)).release(bottom, by=BOB), again)
        if await stage.held(bottom) is not None:
            assert await stage.noted(middle) == await stage.noted(top) == {bottom.uid}
        await stage.steering().release(bottom, by=BOB)
        assert await stage.noted(middle) == await stage.noted(top) == set()


@case
async def wherever_a_hold_is_cut_off_no_less_is_held_and_a_second_call_repairs(stage: Stage) -> None:
    top, middle, bottom = await chain(stage)
    for writes in count():
        line = Line(stage.store, writes_left=writes)
        is_whole = await _is_whole(stage.steering(line).hold(bottom, PLAIN))
        if await stage.held(bottom) is not None:
            assert await stage.noted(middle) == await stage.noted(top) == {bottom.uid}
        if is_whole:
            assert writes == 3
            break
        await stage.steering().hold(bottom, PLAIN)
        assert await stage.noted(middle) == await stage.noted(top) == {bottom.uid}
        await stage.steering().release(bottom, by=ANN)
        assert await stage.noted(middle) == await stage.noted(top) == set()


@case
async def wherever_a_release_is_cut_off_no_less_is_held_and_a_second_call_repairs(stage: Stage) -> None:
    top, middle, bottom = await chain(stage)
    for writes in count():
        await stage.steering().hold(bottom, PLAIN)
        line = Line(stage.store, writes_left=writes)
        is_whole = await _is_whole(stage.steering(line).release(bottom, by=ANN))
        if await stage.held(bottom) is not None:
            assert await stage.noted(middle) == await stage.noted(top) == {bottom.uid}
        await stage.steering().release(bottom, by=ANN)
        for one in (top, middle, bottom):
            assert hold_of(await stage.annotations(one)) is None
        if is_whole:
            assert writes == 3
            break


async def _is_whole(work: Awaitable[object]) -> bool:
    try:
        await work
    except CutOffError:
        return False
    return True


@case
async def an_owner_that_cannot_be_written_refuses_the_hold(stage: Stage) -> None:
    _, middle, bottom = await chain(stage)

    def before(method: str, kind: Kind[Any], _key: ObjectKey) -> None:
        if method == "patch" and kind.kind == OBJECT_KEEPER.kind:
            raise ForbiddenError(problem="patch is not allowed")

    with pytest.raises(ForbiddenError):
        await stage.steering(Line(stage.store, before=before)).hold(bottom, PLAIN)
    assert await stage.held(bottom) is None
    assert await stage.noted(middle) == set()


@case
async def an_owner_that_appears_while_it_is_held_is_noted(stage: Stage) -> None:
    bottom = await stage.map("bottom")
    top, is_first = await stage.keeper("top"), True
    line = Line(stage.store)

    class Adopting(Line):
        async def patch(self, kind: Kind[Any], key: ObjectKey, changes: Any, **how: Any) -> Any:  # noqa: ANN401 - as the port has it
            nonlocal is_first
            if is_first and kind.kind == CONFIG_MAP.kind:
                is_first = False
                owner = {
                    "apiVersion": OBJECT_KEEPER.api_version,
                    "kind": OBJECT_KEEPER.kind,
                    "name": top.key.name,
                    "uid": top.uid,
                }
                await stage.store.patch(CONFIG_MAP, key, {"metadata": {"ownerReferences": [owner]}})
            return await line.patch(kind, key, changes, **how)

    await stage.steering(Adopting(stage.store)).hold(bottom, PLAIN)
    assert await stage.noted(top) == {bottom.uid}


@case
async def a_weaker_hold_is_refused_unless_it_is_to_replace_the_other(stage: Stage) -> None:
    top = await stage.keeper("top")
    one = await stage.map("one", top)
    await stage.steering().hold(one, Hold("long", stage.later(9), ANN))
    shorter = Hold("short", stage.later(1), BOB)
    with pytest.raises(WeakerHoldError):
        await stage.steering().hold(one, shorter)
    assert (await stage.held(one) or shorter).reason == "long"
    was = await stage.steering().hold(one, shorter, replace=True)
    assert was == Hold("long", stage.later(9), ANN)
    assert await stage.held(one) == shorter
    noted = hold_of(await stage.annotations(top))
    assert noted is not None
    assert noted.until == shorter.until
    longer = Hold("longer", stage.later(5), BOB)
    assert await stage.steering().hold(one, longer) == shorter


@case
async def an_owner_that_is_kept_by_a_note_is_not_said_to_be_free(stage: Stage) -> None:
    top = await stage.keeper("top")
    one = await stage.map("one", top)
    await stage.steering().hold(one, PLAIN)
    with pytest.raises(DependantsHeldError) as told:
        await stage.steering().release(top, by=BOB)
    assert f"/{one.key.name}" in str(told.value)
    await stage.steering().release(one, by=BOB)
    assert await stage.steering().release(top, by=BOB) is None


@case
async def a_person_who_may_not_write_keepers_holds_a_request_nevertheless(stage: Stage) -> None:
    request, keeper = await stage.request()

    def before(_method: str, kind: Kind[Any], _key: ObjectKey) -> None:
        if kind.kind == OBJECT_KEEPER.kind:
            raise ForbiddenError(problem="it is not allowed")

    line = Line(stage.store, before=before)
    await stage.steering(line).hold(request, PLAIN)
    assert (await stage.held(request), await stage.held(keeper)) == (PLAIN, None)
    await stage.steering().hold(request, PLAIN)
    await stage.steering(line).release(request, by=BOB)
    assert (await stage.held(request), await stage.held(keeper)) == (None, PLAIN)
    await stage.steering().release(request, by=BOB)
    assert await stage.held(keeper) is None


@case
async def only_the_object_that_was_meant_is_held(stage: Stage) -> None:
    one = await stage.map("one")
    with pytest.raises(ConflictError):
        await stage.steering().hold(one._replace(uid="another"), PLAIN)
    with pytest.raises(NotFoundError):
        await stage.steering().hold(one._replace(key=ObjectKey(stage.namespace, "nothing")), PLAIN)
    assert await stage.held(one) is None


# --- requests and what they made --------------------------------------------------------------------------------------


@case
async def a_hold_on_a_request_is_written_on_its_keeper_and_outlives_it(stage: Stage) -> None:
    request, keeper = await stage.request()
    await stage.steering().hold(request, PLAIN)
    assert await stage.held(keeper) == PLAIN
    with pytest.raises(PassedOnHoldError) as refused:
        await stage.steering().release(keeper, by=BOB)
    assert f"Release {request.kind.address(request.key)}" in str(refused.value)
    await stage.store.delete(request.kind, request.key)
    assert await stage.held(keeper) == PLAIN
    assert await stage.steering().release(keeper, by=BOB) == PLAIN
    assert await stage.held(keeper) is None


@case
async def a_released_request_releases_its_keeper_and_no_hold_of_the_keeper_itself(stage: Stage) -> None:
    request, keeper = await stage.request()
    await stage.steering().hold(request, PLAIN)
    await stage.steering().release(request, by=BOB)
    assert await stage.held(keeper) is None
    await stage.steering().hold(keeper, Hold("mine", None, BOB))
    await stage.steering().hold(request, PLAIN)
    await stage.steering().release(request, by=BOB)
    assert await stage.held(keeper) == Hold("mine", None, BOB)


@case
async def a_legal_hold_marks_request_keeper_and_artifacts_and_is_released_by_another_person(stage: Stage) -> None:
    request, keeper = await stage.request()
    artifact = await stage.map("artifact", keeper)
    chunk = await stage.map("chunk", artifact)
    await stage.steering().hold(request, LEGAL)
    for one in (request, keeper, artifact, chunk):
        assert await stage.held(one) == LEGAL
    with pytest.raises(SecondPersonError):
        await stage.steering().release(request, by=ANN)
    for weaker in (PLAIN, Hold("longer", None, BOB), Hold("case 8", None, BOB, is_legal=True)):
        with pytest.raises(LegalHoldError):
            await stage.steering().hold(request, weaker, replace=True)
        with pytest.raises(LegalHoldError):
            await stage.steering().hold(artifact, weaker, replace=True)
    for one in (request, keeper, artifact, chunk):
        assert await stage.held(one) == LEGAL
    await stage.steering().release(request, by=BOB)
    for one in (request, keeper, artifact, chunk):
        assert await stage.held(one) is None


@case
async def a_legal_hold_that_comes_in_between_is_not_released_for_the_one_that_was_seen(stage: Stage) -> None:
    request, keeper = await stage.request()
    artifact = await stage.map("artifact", keeper)
    await stage.steering().hold(request, PLAIN)
    releasing: Any = stage.steering()
    take_back = releasing._take_back

    async def after_another_hold(*seen: Any) -> None:  # noqa: ANN401 - as the real one
        await stage.steering().hold(request, LEGAL)
        await take_back(*seen)

    releasing._take_back = after_another_hold
    with pytest.raises(LegalReleaseError):
        await releasing.release(request, by=BOB, legal=False)
    for one in (request, keeper, artifact):
        assert await stage.held(one) == LEGAL


@case
async def another_hold_that_comes_in_between_is_not_released_for_the_one_that_was_seen(stage: Stage) -> None:
    request, keeper = await stage.request()
    await stage.steering().hold(request, PLAIN)
    theirs = Hold("evidence", None, BOB)
    releasing: Any = stage.steering()
    take_back = releasing._take_back

    async def after_another_hold(*seen: Any) -> None:  # noqa: ANN401 - as the real one
        await stage.steering().hold(request, theirs)
        await take_back(*seen)

    releasing._take_back = after_another_hold
    for _ in range(2):  # the second time it is there from the beginning
        with pytest.raises(AnotherHoldError, match="evidence"):
            await releasing.release(request, by=ANN, only=PLAIN.hash)
        for one in (request, keeper):
            assert await stage.held(one) == theirs
    releasing._take_back = take_back
    assert await releasing.release(request, by=ANN, only=theirs.hash) == theirs
    assert await stage.held(keeper) is None


@case
async def a_legal_hold_gives_back_the_plain_one_in_whose_place_it_stood(stage: Stage) -> None:
    request, keeper = await stage.request()
    artifact = await stage.map("artifact", keeper)
    mine = Hold("mine", stage.later(99), BOB)
    await stage.steering().hold(artifact, mine)
    await stage.steering().hold(request, LEGAL)
    assert await stage.held(artifact) == LEGAL
    await stage.steering().release(request, by=BOB)
    assert await stage.held(artifact) == mine
    assert await stage.noted(keeper) == {artifact.uid}


@case
async def a_legal_hold_that_outlived_its_request_is_released_on_the_keeper_with_all_that_it_marked(
    stage: Stage,
) -> None:
    request, keeper = await stage.request()
    artifact = await stage.map("artifact", keeper)
    await stage.steering().hold(request, LEGAL)
    await stage.store.delete(request.kind, request.key)
    with pytest.raises(PassedOnHoldError):
        await stage.steering().release(artifact, by=BOB)
    with pytest.raises(SecondPersonError):
        await stage.steering().release(keeper, by=ANN)
    await stage.steering().release(keeper, by=BOB)
    for one in (keeper, artifact):
        assert await stage.held(one) is None


@case
async def wherever_a_legal_hold_is_cut_off_a_second_call_repairs(stage: Stage) -> None:
    request, keeper = await stage.request()
    artifact = await stage.map("artifact", keeper)
    for writes in count():
        line = Line(stage.store, writes_left=writes)
        if await _is_whole(stage.steering(line).hold(request, LEGAL)):
            assert writes == 3
            break
        await stage.steering().hold(request, LEGAL)
        for one in (request, keeper, artifact):
            assert await stage.held(one) == LEGAL
        line = Line(stage.store, writes_left=writes)
        await _is_whole(stage.steering(line).release(request, by=BOB))
        await stage.steering().release(request, by=BOB)
        for one in (request, keeper, artifact):
            assert await stage.held(one) is None


# --- extensions -------------------------------------------------------------------------------------------------------


@case
async def an_extension_is_never_shortened(stage: Stage) -> None:
    one = await stage.map("one")
    steering = stage.steering()
    assert await steering.extend(one, stage.later(2)) == stage.later(2)
    assert await steering.extend(one, stage.later(1)) == stage.later(2)
    found = await asyncio.gather(*[stage.steering(Line(stage.store)).extend(one, stage.later(at)) for at in (5, 4, 3)])
    assert max(found) == stage.later(5)
    await stage.annotate(one, extended_until="tomorrow")
    assert await steering.extend(one, stage.later(1)) == stage.later(1)
