"""Sessions of browsers with the dashboard: from a ticket, or from a token that a person pastes, to a cookie.

A session is a signed cookie that names a token, and has that token's scopes, read anew with every request: a token
that was revoked has no sessions and no tickets any more. A ticket is 256 random bits, works once, and is stored as its
SHA-256 only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from lapse.core.clock import Clock
from lapse.core.identity import secret_token
from lapse.http1.cookies import SignedCookie
from lapse.web.api.errors import SessionInvalidError, TicketUsedError
from lapse.web.auth.state import StateDatabase
from lapse.web.auth.tokens import TokenStore
from lapse.web.server.security import Principal

SESSION_SECONDS: Final = 12 * 3600
TICKET_SECONDS: Final = 600
OPEN_PATH: Final = "/open"
"""Where a ticket is taken."""
_SECRET: Final = "web-session"  # noqa: S105 - the name of a secret, not the secret
_TICKET: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_MS: Final = 1_000_000
_OVER_TLS: Final = "__Host-"


def ticket_url(url: str, ticket: str) -> str:
    """Return the address that begins a session; ``url`` is that of the server."""
    return f"{url}{OPEN_PATH}?ticket={ticket}"


@dataclass(frozen=True, slots=True)
class BrowserSessions:
    """The sessions and tickets of one state database."""

    state: StateDatabase
    tokens: TokenStore
    clock: Clock

    def issue(self, token_id: str) -> str:
        """Make a ticket for a session with the rights of a token."""
        now_ms = self.clock.wall_ns() // _MS
        ticket = secret_token()
        self.state.rows("remove_old_tickets", now_ms)
        self.state.rows("add_ticket", _digest(ticket), token_id, now_ms + TICKET_SECONDS * 1000)
        return ticket

    def redeem(self, ticket: str, *, port: int, tls: bool = False) -> str:
        """Use a ticket up; return the Set-Cookie field of its session. Raises `TicketUsedError`."""
        now_ms = self.clock.wall_ns() // _MS
        found = self.state.rows("redeem_ticket", _digest(ticket), now_ms) if _TICKET.fullmatch(ticket) else []
        if not found or self.tokens.find(found[0][0]) is None:
            raise TicketUsedError
        return self.begin(found[0][0], port=port, tls=tls)

    def begin(self, token_id: str, *, port: int, tls: bool = False, secure: bool = False) -> str:
        """Return the Set-Cookie field of a session with the rights of a token.

        ``secure``: browsers send it over TLS only, as they do where the server itself speaks it (``tls``).
        """
        return self._cookie(port, tls=tls).issue(token_id, now_seconds=self._seconds(), secure=secure or tls)

    def end(self, *, port: int, tls: bool = False) -> str:
        """Return the Set-Cookie field that ends the session of a browser."""
        return self._cookie(port, tls=tls).remove(secure=tls)

    def principal(self, field: str, *, port: int, tls: bool = False) -> Principal | None:
        """Return the holder of a session that a Cookie field has; None if it has none that still counts.

        Raises `SessionInvalidError` for a cookie that was not made here.
        """
        cookie = self._cookie(port, tls=tls)
        read = list(cookie.read(field))
        if not read and any(cookie.given(field)):
            raise SessionInvalidError
        for (token_id, *_), until in read:
            found = self.tokens.find(token_id) if self._seconds() < until else None
            if found is not None:
                return found
        return None

    def _cookie(self, port: int, *, tls: bool) -> SignedCookie:
        # With the port in its name, because browsers send a cookie to all ports of a host. Over TLS with the prefix for
        # which they take it from this very host and over TLS only: nobody on the way, and no host beside, can plant it.
        secret = self.state.secret(_SECRET)
        return SignedCookie(f"{_OVER_TLS if tls else ''}lapse_{port}", secret, b"lapse-web-session-1", SESSION_SECONDS)

    def _seconds(self) -> int:
        return self.clock.wall_ns() // (1000 * _MS)


def _digest(ticket: str) -> bytes:
    return sha256(ticket.encode()).digest()
