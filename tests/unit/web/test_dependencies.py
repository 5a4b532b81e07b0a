"""What routes depend on: nothing that the framework would run in a thread."""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import TYPE_CHECKING

from lapse.web.app import authorise, operations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi.dependencies.models import Dependant


def below(dependant: Dependant) -> Iterator[Dependant]:
    for one in dependant.dependencies:
        yield one
        yield from below(one)


def test_no_route_and_nothing_that_it_depends_on_runs_in_a_thread() -> None:
    # A function that is not awaitable costs a thread's turn for each request: half of what a get of a key takes in all.
    assert iscoroutinefunction(authorise)
    for prefix, route, method in operations():
        calls = [route.endpoint, *(one.call for one in below(route.dependant))]
        names = [getattr(one, "__name__", "?") for one in calls if not iscoroutinefunction(one)]
        assert not names, (method, prefix + route.path)
