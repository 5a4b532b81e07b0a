"""Log-in of browsers, and admission of callers by bearer token or session cookie.

A browser gets a session with a ticket or with a token, and ends it, by the only routes that need no token; they answer
nothing of anybody's. A change must be JSON and from our own origin here as well, so that no foreign page logs a browser
in or out. A caller with neither token nor cookie is refused.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from lapse.core.log import get_logger
from lapse.web.api.errors import (
    OriginNotAllowedError,
    SessionInvalidError,
    TicketUsedError,
    TokenInvalidError,
    TokenMissingError,
    TokensUnavailableError,
)
from lapse.web.auth.sessions import OPEN_PATH, BrowserSessions
from lapse.web.auth.state import StateError
from lapse.web.pages.render import log_in
from lapse.web.server.security import READING, Head, Principal, put_off

_log: Final = get_logger("lapse.web.auth.login")


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
            cookies = "; ".join(head.headers.get("cookie", ()))
            found = self._sessions.principal(cookies, port=head.server[1], tls=head.tls)
        except StateError as error:
            # For the log only: the caller has not shown a token yet.
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


SESSION_PATH: Final = "/session"
_STATIC: Final = "/static/"


def is_public(path: str, *, api: str) -> bool:
    """Whether an address may be asked by everybody: it begins a session, or has nothing of anybody's."""
    return path in {OPEN_PATH, f"{api}{SESSION_PATH}"} or path.startswith(_STATIC)


class LogIn(BaseModel):
    """A token, for a session with its rights."""

    model_config = ConfigDict(extra="forbid", strict=True)
    token: Annotated[str, Field(description="As lapse tokens create printed it")]


async def _sessions(request: Request) -> BrowserSessions:
    sessions: BrowserSessions = request.app.state.sessions
    return sessions


async def _port(request: Request) -> int:
    port: int = request.scope["server"][1]
    return port


async def _tls(request: Request) -> bool:
    """Whether the client speaks TLS with this process, and not with something in front of it."""
    return bool(request.scope["scheme"] == "https")


Sessions = Annotated[BrowserSessions, Depends(_sessions)]
Port = Annotated[int, Depends(_port)]
TLS = Annotated[bool, Depends(_tls)]

page = APIRouter(include_in_schema=False)
router = APIRouter(tags=["session"])


@page.get(OPEN_PATH)
async def open_with_ticket(
    request: Request, *, sessions: Sessions, port: Port, tls: TLS, ticket: Annotated[str, Query()] = ""
) -> Response:
    """Begin a session with a ticket, and go to the dashboard.

    A browser whose session still counts goes there with any ticket, and keeps that session: a link that is opened
    again, as from a history, is no log-in that failed for whoever sits there. It counts as one all the same.
    """
    try:
        cookie = sessions.redeem(ticket, port=port, tls=tls)
    except TicketUsedError as error:
        refusal = put_off(error, request.scope, request.app.state.failures)
        if _has_session(request, sessions, port=port, tls=tls):
            return Response(status_code=303, headers={"Location": "/"})
        return log_in(refusal)
    # 303 and, as everywhere, no-referrer: the address with the ticket goes no further.
    return Response(status_code=303, headers={"Location": "/", "Set-Cookie": cookie})


def _has_session(request: Request, sessions: BrowserSessions, *, port: int, tls: bool) -> bool:
    """Whether a browser has a session that still counts; a cookie that was not made here is none."""
    try:
        return sessions.principal("; ".join(request.headers.getlist("cookie")), port=port, tls=tls) is not None
    except SessionInvalidError:
        return False


@router.post(SESSION_PATH, operation_id="session.begin", summary="Begin a session", status_code=204)
async def begin(request: Request, body: LogIn, *, sessions: Sessions, port: Port, tls: TLS) -> Response:
    """Give a browser a session with the rights of a token, as a cookie that no script can read."""
    try:
        token_id = sessions.tokens.principal(body.token.strip()).token_id
    except TokenInvalidError as error:
        raise put_off(error, request.scope, request.app.state.failures) from error
    if sessions.tokens.find(token_id) is None:
        raise TokenInvalidError  # that of a workspace's program, which no browser has
    secure = request.headers.get("origin", "").startswith("https:")
    cookie = sessions.begin(token_id, port=port, tls=tls, secure=secure)
    return Response(status_code=204, headers={"Set-Cookie": cookie})


@router.delete(SESSION_PATH, operation_id="session.end", summary="End the session", status_code=204)
async def end(sessions: Sessions, port: Port, tls: TLS) -> Response:
    """Take the cookie of the session away. Its token stays; lapse tokens revoke ends all its sessions."""
    return Response(status_code=204, headers={"Set-Cookie": sessions.end(port=port, tls=tls)})
