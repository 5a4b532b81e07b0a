"""What a token may do: scopes, and the one rule that decides.

``admin`` may do everything, ``read`` every GET, ``keys:APP`` everything with the keys of one application.
``workspaces:OWNER`` is accepted, and allows nothing until workspaces are served.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from typing import Final

from lapse.core.errors import UsageError
from lapse.keys.validation import MAX_APP_ID

ADMIN: Final = "admin"
READ: Final = "read"
_OWNER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,252}")


class ScopeError(UsageError, ValueError):
    """{text!r} is no scope. Expected admin, read, keys:APP as in keys:7, or workspaces:OWNER as in workspaces:alice."""


def check_scope(text: str) -> str:
    """Return a scope as it is stored; raises `ScopeError`."""
    kind, colon, argument = text.partition(":")
    if not colon and kind in {ADMIN, READ}:
        return text
    if kind == "keys" and app_number(argument) is not None:
        return text
    if kind == "workspaces" and _OWNER.fullmatch(argument):
        return text
    raise ScopeError(text=text)


def app_number(text: str) -> int | None:
    """Read an application id as it stands in a scope or a path; one spelling only, so that both mean the same."""
    if text.isascii() and text.isdigit() and (text == "0" or text[0] != "0") and len(text) <= len(str(MAX_APP_ID)):
        number = int(text)
        return number if number <= MAX_APP_ID else None
    return None


def wanted_scopes(method: str, app: str | None) -> list[str]:
    """Return the scopes of which one is needed; ``app`` is the application that the path names, if any."""
    wanted = [ADMIN]
    if method in {"GET", "HEAD"}:
        wanted.append(READ)
    if app is not None and app_number(app) is not None:
        wanted.append(f"keys:{app}")
    return wanted


def allowed(scopes: AbstractSet[str], method: str, app: str | None) -> bool:
    """Whether these scopes are enough."""
    return not scopes.isdisjoint(wanted_scopes(method, app))
