"""Sessions of browsers: a signed cookie for one workspace. Pure.

A cookie says for which workspace it is and until when, signed with a secret that all proxies of one state folder share;
nothing is stored, so any of them accepts it. It belongs to one host (no Domain), no script can read it, and no other
page makes a browser send it along but by a plain link. It names the workspace because all workspaces under one suffix
are one site to a browser: a program of one may make the browser send a cookie of its own to the others, and there it
is worth nothing.

Not guaranteed: that a session ends before its time. A token that was revoked opens no new one.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.proxy.ports import WorkspaceId

SESSION_SECONDS: Final = 12 * 3600
_OVER_TLS: Final = "__Host-lapse_session"
_PLAIN: Final = "lapse_session"
COOKIES: Final = frozenset({_OVER_TLS, _PLAIN})
"""All names that are ours, whichever is in use."""
_PURPOSE: Final = b"lapse-session-1"
_PARTS: Final = 3
_LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class Sessions:
    """Makes and recognises cookies. ``scheme`` is that of the addresses that people type."""

    secret: bytes
    scheme: Literal["http", "https"] = "http"

    @property
    def cookie(self) -> str:
        """The name of the cookie: over TLS one that a browser takes from the very host only."""
        return _OVER_TLS if self.scheme == "https" else _PLAIN

    def set_cookie(self, workspace: WorkspaceId, *, now_seconds: int) -> str:
        """Return the Set-Cookie field that begins a session."""
        until = now_seconds + SESSION_SECONDS
        value = f"{workspace}.{until}.{self._sign(workspace, until)}"
        secure = "; Secure" if self.scheme == "https" else ""
        return f"{self.cookie}={value}; Path=/; Max-Age={SESSION_SECONDS}; HttpOnly; SameSite=Lax{secure}"

    def is_open(self, field: str, workspace: WorkspaceId, *, now_seconds: int) -> bool:
        """Whether a Cookie field holds a session of this workspace. One of several is enough: others may be planted."""
        return any(self._is_good(value, workspace, now_seconds) for value in self.given(field))

    def given(self, field: str) -> Iterator[str]:
        """Give the values of our cookie in a Cookie field."""
        for part in field.split(";"):
            name, equals, value = part.strip().partition("=")
            if equals and name == self.cookie and len(value) <= _LONGEST:
                yield value

    def _is_good(self, value: str, workspace: WorkspaceId, now_seconds: int) -> bool:
        parts = value.split(".")
        if len(parts) != _PARTS or not (parts[1].isascii() and parts[1].isdigit()):
            return False
        until = int(parts[1])
        signed = hmac.compare_digest(parts[2].encode(), self._sign(workspace, until).encode())
        return signed and parts[0] == workspace and now_seconds < until

    def _sign(self, workspace: WorkspaceId, until: int) -> str:
        digest = hmac.digest(self.secret, b"%b\0%b\0%d" % (_PURPOSE, workspace.encode(), until), sha256)
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")
