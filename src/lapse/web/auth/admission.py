"""Admission: who is calling, by bearer token or by the cookie of a session. Without either, nobody."""

from __future__ import annotations

from typing import Final

from lapse.core.log import get_logger
from lapse.web.api.errors import (
    OriginNotAllowedError,
    TokenMissingError,
    TokensUnavailableError,
)
from lapse.web.auth.sessions import BrowserSessions
from lapse.web.auth.state import StateError
from lapse.web.server.security import READING, Head, Principal

_log: Final = get_logger("lapse.web.auth.admission")


class Admission:
    """Decides who is calling: an `lapse.web.server.security.Admit`."""

    def __init__(self, sessions: BrowserSessions) -> None:
        """Decide by these sessions, and the tokens that they belong to."""
        self._sessions = sessions

    def __call__(self, head: Head) -> Principal:
        """Return who is calling; raises an error with status 401, or 503 when tokens cannot be read."""
        try:
            if "authorization" in head.headers:
                return self._sessions.tokens.principal(given_token(head))
            found = self._sessions.principal("; ".join(head.headers.get("cookie", ())), port=head.server[1])
        except StateError as error:
            # For the log only: whoever is calling has not shown a token yet.
            _log.warning("tokens_unavailable", reason=str(error))
            raise TokensUnavailableError from error
        if found is None:
            raise TokenMissingError
        if head.method not in READING and "origin" not in head.headers:
            # A browser names the origin of every change, and `check_origin` has looked at it; nothing else has cookies.
            raise OriginNotAllowedError
        return found


def given_token(head: Head) -> str:
    """Take the token out of the Authorization header; raises `TokenMissingError`."""
    scheme, _, credentials = (head.only("authorization") or "").partition(" ")
    if scheme.lower() != "bearer":
        raise TokenMissingError
    return credentials.strip()
