"""An index over cached objects: which of them have a value, such as the uid of an owner.

Kept by changes: one change costs the values of the object that changed, one question what it returns, whatever the
number of objects. Holds references to the objects and no copies; a value that one object has, as most are, costs no
container of its own.
"""

from __future__ import annotations

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
        self._found: dict[str, T | dict[ObjectKey, T]] = {}

    def __len__(self) -> int:
        """Count the values that some object has."""
        return len(self._found)

    def find(self, value: str) -> list[T]:
        """Return the objects that have ``value``."""
        having = self._found.get(value)
        if having is None:
            return []
        return list(having.values()) if isinstance(having, dict) else [having]

    def replace(self, old: T | None, new: T | None) -> None:
        """Take ``old`` out and ``new`` in; an object for which ``of`` raises is not in the index."""
        if old is not None:
            for value in self._values_before(old):
                self._take_out(value, old)
        if new is not None:
            for value in tuple(self._of(new)):  # complete before anything is stored
                self._put_in(value, new)

    def _values_before(self, old: T) -> Iterable[str]:
        try:
            return tuple(self._of(old))
        except Exception:  # noqa: BLE001 - raised when it came in, too
            return ()

    def _put_in(self, value: str, new: T) -> None:
        having = self._found.get(value)
        key = new.metadata.key
        if isinstance(having, dict):
            having[key] = new
        elif having is None or having.metadata.key == key:
            self._found[value] = new
        else:
            self._found[value] = {having.metadata.key: having, key: new}

    def _take_out(self, value: str, old: T) -> None:
        having = self._found.get(value)
        if isinstance(having, dict):
            having.pop(old.metadata.key, None)
            if not having:
                del self._found[value]
        elif having is old or (having is not None and having.metadata.key == old.metadata.key):
            del self._found[value]
