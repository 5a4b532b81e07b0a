"""Sessions of browsers with workspaces: a signed cookie for one workspace, in the name of a token. Pure.

A cookie says for which workspace it is, by which token it was given and until when, signed with a secret that all
proxies of one state folder share; nothing is stored, so any of them accepts it. It names the workspace because all
workspaces under one suffix are one site to a browser: a program of one may make the browser send a cookie of its own to
the others, and there it is worth nothing. It names the token so that it ends with it: whether a token still counts, and
for whose workspaces, is for the caller to ask, with every request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from lapse.http1.cookies import SignedCookie

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.proxy.ports import WorkspaceId

SESSION_SECONDS: Final = 12 * 3600
_OVER_TLS: Final = "__Host-lapse_session"
_PLAIN: Final = "lapse_session"
COOKIES: Final = frozenset({_OVER_TLS, _PLAIN})
"""All names that are ours, whichever is in use."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """Makes and recognises cookies. ``scheme`` is that of the addresses that people type."""

    secret: bytes
    scheme: Literal["http", "https"] = "http"

    def set_cookie(self, workspace: WorkspaceId, token_id: str, *, now_seconds: int) -> str:
        """Return the Set-Cookie field that begins a session."""
        return self._cookie.issue(workspace, token_id, now_seconds=now_seconds, secure=self.scheme == "https")

    def tokens(self, field: str, workspace: WorkspaceId, *, now_seconds: int) -> Iterator[str]:
        """Give the ids of the tokens whose sessions of this workspace a Cookie field holds; others may be planted."""
        for (named, *rest), until in self._cookie.read(field):
            if named == workspace and now_seconds < until:
                yield "".join(rest)

    def given(self, field: str) -> Iterator[str]:
        """Give the values of our cookie in a Cookie field."""
        return self._cookie.given(field)

    def is_forged(self, field: str) -> bool:
        """Whether a Cookie field holds cookies of our name, and none of them was made here."""
        return any(self.given(field)) and not any(self._cookie.read(field))

    @property
    def _cookie(self) -> SignedCookie:
        # Over TLS a name that a browser takes from the very host only.
        name = _OVER_TLS if self.scheme == "https" else _PLAIN
        return SignedCookie(name, self.secret, b"lapse-session-2", SESSION_SECONDS)
