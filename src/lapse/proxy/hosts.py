"""Host names: ``{name}.w.localhost:8080`` is the workspace ``name``, and every other host is none. Pure."""

from __future__ import annotations

import re
from typing import Final

from lapse.core.errors import UsageError

DEFAULT_SUFFIX: Final = "w.localhost"
_HTTP_PORT: Final = 80
_HOST: Final = re.compile(rb"([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)\.([a-z0-9.-]{1,253}?)\.?(?::[0-9]{1,5})?")
_SUFFIX: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


class SuffixError(UsageError, ValueError):
    """{suffix!r} cannot stand behind the names of workspaces; expected a host name such as w.example.com."""


def check_suffix(suffix: str) -> str:
    """Return a suffix in lower case; raises `SuffixError`."""
    lower = suffix.strip(".").lower()
    if not _SUFFIX.fullmatch(lower):
        raise SuffixError(suffix=suffix)
    return lower


def workspace_of(host: bytes, suffix: bytes) -> str | None:
    """Return the name of the workspace that a Host field (in lower case) means; None if it means none."""
    match = _HOST.fullmatch(host)
    if match is None or match[2] != suffix:
        return None
    return match[1].decode("ascii")


def url_of(name: str, *, suffix: str, scheme: str, port: int) -> str:
    """Return the address of a workspace as people type it; with https it is that of whatever ends TLS, on port 443."""
    shown = "" if scheme == "https" or port == _HTTP_PORT else f":{port}"
    return f"{scheme}://{name}.{suffix}{shown}/"
