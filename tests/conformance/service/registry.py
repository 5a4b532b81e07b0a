"""The registry of the cases of the contract of `lapse.engine.verbs.contract.Verbs`, and the world that they are given.

A case is a coroutine function that takes a `World` and asserts; `case` puts it into the registry. Things live for an
hour from when they are added. Time is the world's, and passes only by `World.elapse`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from lapse.engine.verbs.contract import Verbs
    from lapse.engine.verbs.place import Place
    from tests.conformance.service.memory import Things

ANN: Final = "ann"
BEN: Final = "ben"
DOMAIN: Final = "thing"
HOUR: Final = 3_600


class World(Protocol):
    """A place with one domain in memory, and people who ask for something there."""

    place: Place
    things: Things
    """What there is, past the verbs."""

    def of(self, person: str) -> Verbs:
        """Return the verbs on behalf of a person."""
        ...

    def elapse(self, seconds: float) -> None:
        """Let time pass."""
        ...

    async def settings(self, **changed: Any) -> None:  # noqa: ANN401 - fields of a place
        """Change something about the place."""
        ...


Case = Callable[[World], Coroutine[Any, Any, None]]
REGISTRY: Final[dict[str, Case]] = {}


def case(function: Case) -> Case:
    """Put a case into the registry, under its name."""
    REGISTRY[function.__name__] = function
    return function
