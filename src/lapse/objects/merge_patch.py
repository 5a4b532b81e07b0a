"""JSON merge patch (RFC 7386), the only way in which objects are changed.

Pure: arguments are never modified, and what did not change is shared between the old document and the new one.
"""

from __future__ import annotations

from typing import Any


def merge(target: Any, patch: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return ``target`` with ``patch`` merged in: objects member by member, null removes, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged
