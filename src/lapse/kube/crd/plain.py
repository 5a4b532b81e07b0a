"""What a document may hold that people write: what JSON can say, and a store can keep. Pure.

Readers of YAML, TOML and JSON let more through: dates that became objects, NaN, numbers of any length, halves of
characters, keys that are no text, and nesting without end. Whatever comes later would fail on them, each in its own
way; so they are refused once, where a document enters.
"""

from __future__ import annotations

import math
from typing import Final

DEEPEST: Final = 100
_INT64: Final = range(-(2**63), 2**63)


def plain_problem(document: object) -> tuple[str, str] | None:
    """Return the first place that no store could keep, and what is wrong there; None when there is none."""
    waiting: list[tuple[str, object, int]] = [("", document, 0)]
    while waiting:
        place, value, depth = waiting.pop()
        if depth > DEEPEST:
            return shown(place)[:80], f"it is nested deeper than {DEEPEST} levels"
        if (problem := _scalar_problem(value)) is not None:
            return shown(place), problem
        if isinstance(value, dict):
            for key, part in value.items():
                if not isinstance(key, str) or shown(key) != key:
                    return shown(place), f"{ascii(key)[:80]} is a key, and keys are texts in Unicode"
                waiting.append((f"{place}.{key}" if place else key, part, depth + 1))
        elif isinstance(value, list | tuple):
            waiting += [(f"{place}[{number}]", part, depth + 1) for number, part in enumerate(value)]
    return None


def shown(text: str) -> str:
    """Return a text that can be printed and sent: halves of characters become question marks."""
    return text.encode("utf-8", "replace").decode()


def _scalar_problem(value: object) -> str | None:
    match value:
        case str():
            return None if shown(value) == value else "it holds half of a character (a lone surrogate)"
        case bool() | None | dict() | list() | tuple():
            return None
        case int():
            return None if value in _INT64 else "it is a whole number that does not fit into 64 bits"
        case float():
            return None if math.isfinite(value) else f"{value} is not a number that JSON knows"
    return f"it is a {type(value).__name__}, which JSON does not know; write it as text, in quotes"
