"""Host names: ``{name}.w.localhost:8080`` is the workspace ``name``, and every other host is none. Pure."""

from __future__ import annotations

import re
from typing import Final

_HOST: Final = re.compile(rb"([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)\.([a-z0-9.-]{1,253}?)\.?(?::[0-9]{1,5})?")


def workspace_of(host: bytes, suffix: bytes) -> str | None:
    """Return the name of the workspace that a Host field (in lower case) means; None if it means none."""
    match = _HOST.fullmatch(host)
    if match is None or match[2] != suffix:
        return None
    return match[1].decode("ascii")
