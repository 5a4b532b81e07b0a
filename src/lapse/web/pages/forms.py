"""Forms of the pages: their token against forged requests, and their fields.

A form is sent with the cookie of a session, so a page of another site could send one. Three things refuse that: the
cookie is not sent along with a foreign form (SameSite), the Origin of every change is compared
(`lapse.web.server.security`), and a form carries a token that only our pages can know. It is a keyed hash of who is
logged in, so that the pages of one person cannot be used with the session of another.
"""

from __future__ import annotations

import hmac
from typing import Final
from urllib.parse import parse_qs

from fastapi import Request

from lapse.web.api.errors import ForgedFormError, MalformedRequestError
from lapse.web.auth.sessions import BrowserSessions
from lapse.web.server.security import PRINCIPAL, Principal

FIELD: Final = "csrf"
_MOST_FIELDS: Final = 50


def csrf_of(request: Request) -> str:
    """Return the token that forms of this person carry."""
    sessions: BrowserSessions = request.app.state.sessions
    principal: Principal = request.scope[PRINCIPAL]
    return hmac.digest(sessions.state.secret("csrf"), principal.token_id.encode(), "sha256").hex()


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form that one of our pages has sent; the last of several counts.

    Raises `MalformedRequestError` for what is no form, and `ForgedFormError` for one without its token.
    """
    body = await request.body()
    try:
        fields = parse_qs(
            body.decode(),
            keep_blank_values=True,
            strict_parsing=bool(body),
            max_num_fields=_MOST_FIELDS,
            errors="strict",
        )
    except (UnicodeDecodeError, ValueError) as error:
        raise MalformedRequestError from error
    given = {name: values[-1] for name, values in fields.items()}
    if not hmac.compare_digest(given.pop(FIELD, "").encode(), csrf_of(request).encode()):
        raise ForgedFormError
    return given
