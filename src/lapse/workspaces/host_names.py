"""Where people find workspaces: each under a host name of its own, ``{name}.{suffix}``. Pure."""

from __future__ import annotations

import re
from typing import Final

from lapse.core.errors import UsageError

DEFAULT_SUFFIX: Final = "w.localhost"
_HTTP_PORT: Final = 80
_SUFFIX: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


class SuffixError(UsageError, ValueError):
    """{suffix!r} cannot follow the names of workspaces; expected a host name such as w.example.com."""


def check_suffix(suffix: str) -> str:
    """Return a suffix in lower case; raises `SuffixError`."""
    lower = suffix.strip(".").lower()
    if not _SUFFIX.fullmatch(lower):
        raise SuffixError(suffix=suffix)
    return lower


def url_of(name: str, *, suffix: str, scheme: str, port: int) -> str:
    """Return the address of a workspace as people type it; with https it is that of whatever ends TLS, on port 443."""
    shown = "" if scheme == "https" or port == _HTTP_PORT else f":{port}"
    return f"{scheme}://{name}.{suffix}{shown}/"
