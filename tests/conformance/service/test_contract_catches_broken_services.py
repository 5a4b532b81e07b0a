from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from lapse.core.errors import LapseError
from lapse.engine.service import LocalService
from lapse.engine.verbs.operations import OPERATIONS
from lapse.engine.verbs.place import Caller
from tests.conformance.service import cases  # noqa: F401 - fills the registry
from tests.conformance.service.broken import BROKEN, Passing
from tests.conformance.service.registry import ANN, REGISTRY
from tests.conformance.service.worlds import LocalWorld, local_world

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.engine.verbs.contract import Verbs


class BrokenWorld:
    """A world that is seen through a broken service."""

    def __init__(self, inner: LocalWorld, broken: type[Passing]) -> None:
        self._inner, self._broken = inner, broken
        self.place, self.things, self.elapse, self.settings = inner.place, inner.things, inner.elapse, inner.settings

    def of(self, person: str) -> Verbs:
        return cast("Verbs", self._broken(self._inner.of(person)))


class OnePerson(BrokenWorld):
    """A world in which everybody is the same person."""

    def of(self, person: str) -> Verbs:
        return LocalService(self._inner.place, Caller.token(ANN))


async def catches(name: str, folder: Path, world_of: type[BrokenWorld], broken: type[Passing]) -> bool:
    folder.mkdir()  # noqa: ASYNC240 - of the test alone
    async with local_world(folder) as inner:
        try:
            await REGISTRY[name](world_of(inner, broken))
        except (AssertionError, LapseError, pytest.fail.Exception):
            return True
    return False


async def first_that_catches(folder: Path, world_of: type[BrokenWorld], broken: type[Passing]) -> str | None:
    for number, name in enumerate(REGISTRY):
        if await catches(name, folder / str(number), world_of, broken):
            return name
    return None


@pytest.mark.parametrize("broken", [pytest.param(broken, id=broken.__name__) for broken in BROKEN])
async def test_a_broken_service_is_caught(broken: type[Passing], tmp_path: Path) -> None:
    assert await first_that_catches(tmp_path, BrokenWorld, broken) is not None


async def test_a_service_that_takes_everybody_for_one_person_is_caught(tmp_path: Path) -> None:
    assert await first_that_catches(tmp_path, OnePerson, Passing) is not None


async def test_a_service_that_only_passes_on_is_not_caught(tmp_path: Path) -> None:
    assert await first_that_catches(tmp_path, BrokenWorld, Passing) is None


def test_every_verb_is_spoilt_by_one_of_them() -> None:
    spoilt = {name for one in BROKEN for name in vars(one)} | {"approve", "resume"}  # by `OnePerson` and `OneError`

    assert {one.verb for one in OPERATIONS} <= spoilt
