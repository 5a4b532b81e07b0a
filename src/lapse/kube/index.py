"""An index over cached objects: which of them have a value, such as the uid of an owner.

Kept by changes: one change costs the values of the object that changed, one question what it returns, whatever the
number of objects. Holds references to the objects and no copies.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from lapse.kube.resources import Object, ObjectKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T", bound=Object)


class Index(Generic[T]):
    """``of`` returns the values of an object and must depend on nothing but the object."""

    def __init__(self, of: Callable[[T], Iterable[str]]) -> None:
        """Begin empty."""
        self._of = of
        self._found: dict[str, dict[ObjectKey, T]] = {}

    def __len__(self) -> int:
        """Count the values that some object has."""
        return len(self._found)

    def find(self, value: str) -> list[T]:
        """Return the objects that have ``value``."""
        return list(self._found.get(value, {}).values())

    def replace(self, old: T | None, new: T | None) -> None:
        """Take ``old`` out and ``new`` in; an object for which ``of`` raises is not in the index."""
        if old is not None:
            with suppress(Exception):  # raised when it came in, too
                self._take_out(old)
        if new is not None:
            key = new.metadata.key
            for value in tuple(self._of(new)):  # complete before anything is stored
                self._found.setdefault(value, {})[key] = new

    def _take_out(self, old: T) -> None:
        key = old.metadata.key
        for value in self._of(old):
            having = self._found.get(value, {})
            having.pop(key, None)
            if not having:
                self._found.pop(value, None)
