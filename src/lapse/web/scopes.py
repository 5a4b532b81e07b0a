"""What a token may do: scopes, and the one rule that decides.

``admin`` may do everything, ``read`` every GET, ``keys:APP`` everything with the keys of one application.
``workspaces:OWNER`` everything with the workspaces of one owner, which somebody with ``read`` may look at too.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from lapse.core.errors import UsageError
from lapse.keys.validation import MAX_APP_ID

ADMIN: Final = "admin"
READ: Final = "read"
_OWNED: Final = "workspaces:"
_BUSY: Final = "busy:"
"""Of the token of a workspace's own program, with the workspace's id: no token that people make has it."""
_READING: Final = frozenset({"GET", "HEAD"})
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


@dataclass(frozen=True, slots=True)
class Owners:
    """Whose workspaces somebody may see or change."""

    names: frozenset[str] | None
    """None: everybody's."""

    def __contains__(self, owner: object) -> bool:
        """Whether this owner's are among them."""
        return self.names is None or owner in self.names


def owners_in(scopes: AbstractSet[str], method: str) -> Owners:
    """Return whose workspaces a caller with these scopes may see (GET) or change; none, perhaps."""
    if ADMIN in scopes or (READ in scopes and method in _READING):
        return Owners(None)
    return Owners(frozenset(scope.removeprefix(_OWNED) for scope in scopes if scope.startswith(_OWNED)))


def busy_scope(workspace: str) -> str:
    """Return the scope that lets the program of a workspace say that it works, and nothing else."""
    return f"{_BUSY}{workspace}"


def busy_in(scopes: AbstractSet[str]) -> str | None:
    """Return the id of the workspace whose program is calling; None: somebody else is."""
    return next((scope.removeprefix(_BUSY) for scope in scopes if scope.startswith(_BUSY)), None)


def wanted_scopes(method: str, app: str | None, *, workspaces: bool = False) -> list[str]:
    """Return the scopes of which one is needed.

    ``app`` is the application that the path names, if any; ``workspaces`` is whether it is about workspaces.
    """
    wanted = [ADMIN]
    if method in _READING:
        wanted.append(READ)
    if app is not None and app_number(app) is not None:
        wanted.append(f"keys:{app}")
    if workspaces:
        wanted.append(f"{_OWNED}OWNER")
    return wanted


def allowed(scopes: AbstractSet[str], method: str, app: str | None, *, workspaces: bool = False) -> bool:
    """Whether these scopes are enough to be let in; whose workspaces are meant is decided where that is known."""
    if workspaces and owners_in(scopes, method).names != frozenset():
        return True
    return not scopes.isdisjoint(wanted_scopes(method, app))
