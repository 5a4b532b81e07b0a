"""Fork protection: a store that was opened before a fork refuses to work in the child.

Its locks are the parent's, and may be held by threads that are gone. Stores and objects that own connections register
here; in a forked child each is told once. SQLite connections are kept until the process ends, never closed: closing one
would run SQLite's clean-up on state that is the parent's.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Final, Protocol

FORKED: Final = "it was opened before this process was forked; open it again in the child"


class ForkAware(Protocol):
    """An owner of something that must not be used in a forked child."""

    def become_forked(self) -> list[Any]:
        """Refuse everything from now on; return what must be kept alive untouched."""
        ...


_owners: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
_kept: Final[list[Any]] = []


def guard_against_forks(owner: ForkAware) -> None:
    """Tell ``owner`` when it finds itself in a forked child."""
    _owners.add(owner)


def _in_child() -> None:
    for owner in list(_owners):
        _kept.extend(owner.become_forked())


os.register_at_fork(after_in_child=_in_child)
