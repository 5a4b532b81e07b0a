"""Holds that are passed on: from a request to its keeper, so that they outlive it, and to what is under a legal hold.

The object that is told gets the annotations of the hold, and a marker that says whose they are and what they were.
While they are as the marker says, they follow their source: a changed hold is changed there, and a released one is
removed. A hold that somebody else has placed on the object is left alone, unless it is a plain one and a legal one is
passed on: that one is stronger, and what it replaces is kept beside it and comes back when it is released.

Pure.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

from lapse.engine.safety.holds import HOLD, HOLD_NAMES, LEGAL, own_hold_of

if TYPE_CHECKING:
    from collections.abc import Mapping

PASSED_ON: Final = "lapse.dev/hold-passed-on"
"""The uid of the object whose hold it is, and a digest of that hold."""
REPLACED: Final = "lapse.dev/hold-replaced"
"""The annotations of the plain hold in whose place a legal one stands."""
MARK_NAMES: Final = (*HOLD_NAMES, PASSED_ON, REPLACED)
"""All that a hold on an object is written in, its own or passed on."""
_decode: Final = msgspec.json.Decoder(dict[str, str]).decode


def hold_marks(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations of the hold that was placed on an object; none where there is none."""
    if own_hold_of(annotations) is None:
        return {}
    return {name: annotations[name] for name in HOLD_NAMES if name in annotations}


def source_of(annotations: Mapping[str, str]) -> str | None:
    """Return the uid of the object whose hold was passed on to this one; None for a hold of its own, or none."""
    uid, _, _ = annotations.get(PASSED_ON, "").rpartition("/")
    return uid if uid and annotations[PASSED_ON] == _marker(uid, hold_marks(annotations)) else None


def passed_on(told: Mapping[str, str], source: Mapping[str, str], *, uid: str) -> dict[str, str | None]:
    """Return how the annotations of an object must change; ``source`` are those of the object with ``uid``."""
    there, wanted = hold_marks(told), hold_marks(source)
    is_own = bool(there) and told.get(PASSED_ON) != _marker(uid, there)
    if is_own and (wanted.get(HOLD) != LEGAL or there[HOLD] == LEGAL):
        return {}
    if not wanted and PASSED_ON not in told:
        return {}
    before = there if is_own else _replaced(told)
    marks = dict(wanted)
    if wanted:
        marks[PASSED_ON] = _marker(uid, wanted)
        if before:
            marks[REPLACED] = msgspec.json.encode(before).decode()
    else:
        marks = before
    return {name: marks.get(name) for name in MARK_NAMES if told.get(name) != marks.get(name)}


def _replaced(annotations: Mapping[str, str]) -> dict[str, str]:
    try:
        found = _decode(annotations.get(REPLACED, "{}"))
    except msgspec.MsgspecError:
        return {HOLD: "true"}  # somebody was held here: doubt keeps
    return {name: found[name] for name in HOLD_NAMES if name in found}


def _marker(uid: str, hold: Mapping[str, str]) -> str:
    text = "\n".join(f"{name}={hold[name]}" for name in HOLD_NAMES if name in hold)
    return f"{uid}/{sha256(text.encode()).hexdigest()[:12]}"
