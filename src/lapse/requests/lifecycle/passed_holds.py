"""The hold of a request, passed on to its keeper, so that it outlives the request. Pure.

A keeper that has no hold of its own gets the annotations of the hold, and a marker that says whose they are and what
they were. While they are as the marker says, they follow the request: a changed hold is changed there, and a released
one is removed. Annotations that somebody else has written on the keeper are left alone.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from lapse.engine.safety.holds import HOLD, HOLD_REASON, HOLD_UNTIL, own_hold_of

if TYPE_CHECKING:
    from collections.abc import Mapping

PASSED_ON: Final = "lapse.dev/hold-passed-on"
"""The uid of the object whose hold it is, and a digest of that hold."""
_HOLD: Final = (HOLD, HOLD_REASON, HOLD_UNTIL)


def hold_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return those of the hold that was placed on an object; none where there is none."""
    if own_hold_of(annotations) is None:
        return {}
    return {name: annotations[name] for name in _HOLD if name in annotations}


def changes(keeper: Mapping[str, str], followed: Mapping[str, str], *, uid: str) -> dict[str, str | None]:
    """Return how the annotations of a keeper must change; ``followed`` are those of the object with ``uid``."""
    there = hold_annotations(keeper)
    if there and keeper.get(PASSED_ON) != _marker(uid, there):
        return {}
    wanted: dict[str, str] = hold_annotations(followed)
    if wanted:
        wanted[PASSED_ON] = _marker(uid, wanted)
    elif PASSED_ON not in keeper:
        return {}
    names = (*_HOLD, PASSED_ON)
    return {name: wanted.get(name) for name in names if keeper.get(name) != wanted.get(name)}


def _marker(uid: str, hold: Mapping[str, str]) -> str:
    text = "\n".join(f"{name}={hold[name]}" for name in _HOLD if name in hold)
    return f"{uid}/{sha256(text.encode()).hexdigest()[:12]}"
