"""Scopes of tokens, and the one rule that decides what a token may do.

``admin`` may do everything and ``read`` every GET; ``keys:APP`` everything with the keys of one application,
``workspaces:OWNER`` everything with the workspaces of one owner. ``monitor`` sees what runs and lists of what there is,
without anybody's values: no key, no document, no command, no output. ``operate``, ``approve``, ``holds`` and ``legal``
see the same, may ask why of everything but keys, and each may do one kind of thing besides; what that is, `_VERBS` says
for the verbs of every domain, and domains say it for their own in their registrations (`FURTHER`). A route that is not
there is for ``admin``, and for ``read`` if it only reads, so that one added without a thought is closed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from lapse.core.errors import UsageError
from lapse.domains import REGISTRY
from lapse.engine.registry import NoSuchDomainError, Registration, ScopeForm
from lapse.engine.verbs.operations import OPERATIONS
from lapse.keys.validation import app_number

ADMIN: Final = "admin"
READ: Final = "read"
MONITOR: Final = "monitor"
OPERATE: Final = "operate"
APPROVE: Final = "approve"
HOLDS: Final = "holds"
LEGAL: Final = "legal"
PLAIN: Final = (ADMIN, OPERATE, APPROVE, HOLDS, LEGAL, READ, MONITOR)
"""The scopes that are about everything, rather than about an application or an owner."""
_DECIDING: Final = frozenset({OPERATE, APPROVE, HOLDS, LEGAL})
_LOOKING: Final = _DECIDING | {MONITOR}
_LISTS: Final = (
    *("GET /", "GET /status", "GET /api/v1/docs", "GET /api/v1/openapi.json"),
    *("GET /plan", "GET /plans", "GET /plans/{id}", "GET /forecast"),
    *("GET /trash", "GET /journal", "GET /events", "GET /demo"),
    *(f"GET {page}" for page in ("/engine", "/requests", "/workspaces", "/history", "/keys")),
    *(route for one in REGISTRY.built_in for route in one.routes.get(Registration.LISTS, ())),
)
START_DEMO: Final = "/demo/start"
STOP_DEMO: Final = "/demo/stop"
_HOLDING: Final = ("/hold", "/release")
_VERBS: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(("POST /apply", "POST /freeze", "POST /resume"), frozenset({OPERATE})),
    # Who decides about a thing may ask why; of what, and what is left out, is in `lapse.web.api.verbs`.
    **dict.fromkeys(("GET /why/{address:path}", "GET /thing/{address:path}"), _DECIDING),
    "POST /approve": frozenset({APPROVE}),
    "POST /plans": frozenset({OPERATE, APPROVE}),
    "POST /extend": frozenset({HOLDS}),
    # Which of the two depends on whether a legal hold is meant (`lapse.web.api.verbs`).
    **dict.fromkeys((f"POST {path}" for path in _HOLDING), frozenset({HOLDS, LEGAL})),
}


def _further() -> dict[tuple[str, str], frozenset[str]]:
    found: dict[str, frozenset[str]] = {**dict.fromkeys(_LISTS, _LOOKING), **_VERBS}
    for one in REGISTRY.built_in:
        for scope in one.routes.keys() - {Registration.LISTS}:
            found |= {route: found.get(route, frozenset()) | {scope} for route in one.routes[scope]}
    return {(method, path): scopes for route, scopes in found.items() for method, path in [route.split(" ")]}


FURTHER: Final[Mapping[tuple[str, str], frozenset[str]]] = _further()
"""By method and path of a route, as its router has it: which scopes beside admin and read may do it."""
_OWNED: Final = "workspaces:"
_APP: Final = "keys:"
_BUSY: Final = "busy:"
"""Of the token of a workspace's own program, with the workspace's id: no token that people make has it."""
_READING: Final = frozenset({"GET", "HEAD"})


class ScopeError(UsageError, ValueError):
    """{text!r} is not a scope. Expected {expected}."""


def check_scope(text: str) -> str:
    """Return a scope as it is stored; raises `ScopeError`."""
    kind, colon, argument = text.partition(":")
    if not colon and kind in PLAIN:
        return text
    form = _form_of(kind) if colon else None
    if form is not None and form.is_valid(argument):
        return text
    forms = [(one.name, one.scope) for one in REGISTRY.built_in if one.scope is not None]
    told = [f"{name}:{form.argument} as in {name}:{form.example}" for name, form in forms]
    raise ScopeError(text=text, expected=", ".join([*PLAIN, *told[:-1], f"or {told[-1]}"]))


def _form_of(domain: str) -> ScopeForm | None:
    try:
        return REGISTRY.get(domain).scope
    except NoSuchDomainError:
        return None


@dataclass(frozen=True, slots=True)
class Owners:
    """Whose workspaces somebody may see or change."""

    names: frozenset[str] | None
    """None: everybody's."""
    with_values: bool = True
    """Whether commands and the output of programs may be seen, too: they can be secrets."""

    def __contains__(self, owner: object) -> bool:
        """Whether this owner's are among them."""
        return self.names is None or owner in self.names


def owners_in(scopes: AbstractSet[str], method: str, path: str = "") -> Owners:
    """Return whose workspaces a caller with these scopes may see (GET) or change; none, perhaps.

    ``path`` is that of the route; without it, what only some routes allow does not count.
    """
    if ADMIN in scopes or (READ in scopes and method in _READING):
        return Owners(None)
    if not FURTHER.get((method, path), frozenset()).isdisjoint(scopes):
        return Owners(None, with_values=READ in scopes)
    return Owners(frozenset(scope.removeprefix(_OWNED) for scope in scopes if scope.startswith(_OWNED)))


def busy_scope(workspace: str) -> str:
    """Return the scope that lets the program of a workspace say that it works, and nothing else."""
    return f"{_BUSY}{workspace}"


def busy_in(scopes: AbstractSet[str]) -> str | None:
    """Return the id of the workspace whose program is calling; None: somebody else is."""
    return next((scope.removeprefix(_BUSY) for scope in scopes if scope.startswith(_BUSY)), None)


def has_own(scopes: AbstractSet[str]) -> bool:
    """Whether a caller has something of its own: the keys of an application, or the workspaces of an owner."""
    return any(scope.startswith((_OWNED, _APP)) for scope in scopes)


def sees_values(scopes: AbstractSet[str]) -> bool:
    """Whether documents may be shown whole to a caller who may see lists of them."""
    return not scopes.isdisjoint({ADMIN, READ})


def may_decide(scopes: AbstractSet[str]) -> bool:
    """Whether a caller decides about things that are not their own, and so may ask why of them."""
    return not scopes.isdisjoint(_DECIDING)


def may_act(scopes: AbstractSet[str]) -> frozenset[str]:
    """Return the verbs of people that these scopes allow on things of everybody, for pages that offer them."""
    verbs = frozenset(one.verb for one in OPERATIONS if allowed(scopes, one.method, one.route, None))
    return verbs | {"demo"} if allowed(scopes, "POST", STOP_DEMO, None) else verbs


def wanted_scopes(method: str, path: str, app: str | None, *, workspaces: bool = False) -> list[str]:
    """Return the scopes of which one is needed.

    ``path`` is that of the route, ``app`` the application that the path names, if any; ``workspaces`` is whether it is
    about workspaces.
    """
    wanted = [ADMIN, *sorted(FURTHER.get((method, path), frozenset()))]
    if method in _READING:
        wanted.append(READ)
    if app is not None and app_number(app) is not None:
        wanted.append(f"{_APP}{app}")
    if workspaces:
        wanted.append(f"{_OWNED}OWNER")
    return wanted


def in_words(wanted: Sequence[str], path: str) -> str:
    """Return the scopes of which one is needed, for a message; of a hold it is not known yet which kind is meant."""
    if path in _HOLDING:
        return f"{', '.join(one for one in wanted if one != LEGAL)}, or {LEGAL} for a legal hold"
    return ", ".join(wanted)


def allowed(scopes: AbstractSet[str], method: str, path: str, app: str | None, *, workspaces: bool = False) -> bool:
    """Whether these scopes are enough to be let in; whose workspaces are meant is decided where that is known."""
    if workspaces and owners_in(scopes, method, path).names != frozenset():
        return True
    return not scopes.isdisjoint(wanted_scopes(method, path, app))
