"""The OpenAPI 3.1 document: what the framework knows of the routes, completed with what it does not.

Of every operation: the scopes that allow it (``x-scopes``, and as alternatives of ``security``), each status that it
can answer with, an example of its body and of its answer, which stand in ``examples.json`` under its ``operationId``.
The ``operationId`` is the name of the client's method. Every problem is one schema, in one place.

Deterministic: the same routes give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import msgspec

from lapse.web.api import problems
from lapse.web.api.forms import answer, answer_schemas

ScopesOf = Callable[[str, str], list[str] | None]
"""Returns the scopes of which one is needed, by method and path; None: everybody may."""

_EXAMPLES: Final = Path(__file__).parent / "examples.json"
_METHODS: Final = ("get", "put", "post", "patch", "delete")
_RESPONSES: Final = "#/components/responses/"
_PROBLEM: Final = answer(problems.Problem, media_type=problems.MEDIA_TYPE)["content"]
_EVERYWHERE: Final[dict[int, str]] = {
    400: "The request cannot be read, or its conditions cannot be used together or here",
    408: "The request was not complete in time",
    413: "The body is too large",
    422: "The request does not have the expected form, or asks for what cannot be",
    431: "The head of the request is too large",
    500: "Something went wrong inside Lapse",
    503: "A store cannot be reached, or the server is stopping",
    504: "Whether it was applied is unknown",
}
_WITH_TOKEN: Final[dict[int, str]] = {
    401: "There is no valid token or session",
    403: "The token does not allow this, or the Host or Origin is not one of this server's",
    429: "Too many wrong tokens, links or sessions came from this address",
}
_CHANGING: Final[dict[int, str]] = {415: "The body is not JSON"}
_OWN: Final[dict[int, str]] = {
    404: "There is no such thing",
    409: "The state of the thing does not allow this",
    410: "The page was asked for too late; begin with the first one",
    412: "The condition does not hold; nothing was changed",
}
PROBLEMS_OF_ALL: Final = _EVERYWHERE.keys() | _WITH_TOKEN.keys() | _CHANGING.keys()
"""Statuses of problems that no operation has to name."""
_PROBLEMS: Final = dict(sorted((_EVERYWHERE | _WITH_TOKEN | _CHANGING | _OWN).items()))
_HEADERS: Final[Mapping[int, tuple[str, str]]] = {
    401: ("WWW-Authenticate", "How to log in"),
    429: ("Retry-After", "Seconds"),
}
_SECURITY: Final = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token, as lapse tokens create prints it"},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "lapse_PORT",
        "description": "The session of a browser, with the rights of its token; a change must name our own Origin",
    },
}
TAGS: Final[Mapping[str, str]] = {
    "verbs": "What people do with things of every domain, by address: plan, why, hold, extend, delete, undo and more.",
    "status": "What runs.",
    "events": "What changes, as it happens: server-sent events.",
    "keys": "Keys that expire, by application. What must be atomic is a conditional request.",
    "requests": "Requests that are carried out once, the claims that they name, their keepers and artifacts.",
    "schedules": "Captures again and again.",
    "history": "Records of what experiments did, and the policies that limit them and objects of any kind.",
    "workspaces": "Programs with a port and a directory, which run while somebody uses them.",
    "demo": "Things that were made to be watched, in every domain, and their removal.",
    "session": "Sessions of browsers.",
}
"""What each group of operations is about."""


def complete(document: dict[str, Any], scopes_of: ScopesOf) -> dict[str, Any]:
    """Add to the framework's document what it does not know."""
    components = document["components"]
    generated: dict[str, Any] = {
        name: schema
        for name, schema in components["schemas"].items()
        if name not in {"HTTPValidationError", "ValidationError"}  # ours is another one
    }
    components["schemas"] = dict(sorted((generated | answer_schemas()).items()))
    components["responses"] = {str(status): _problem(status, words) for status, words in _PROBLEMS.items()}
    components["securitySchemes"] = _SECURITY
    document["tags"] = [{"name": name, "description": words} for name, words in TAGS.items()]
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                _complete(methods[method], method, scopes_of(method.upper(), path))
    return document


def _complete(operation: dict[str, Any], method: str, scopes: list[str] | None) -> None:
    own: dict[str, Any] = operation["responses"]
    statuses = {int(status) for status in own if int(status) >= HTTPStatus.BAD_REQUEST} | _EVERYWHERE.keys()
    statuses |= _WITH_TOKEN.keys()  # a wrong Host or Origin, and a token that is too often wrong, are refused anywhere
    statuses |= set() if method == "get" else _CHANGING.keys()
    success = {status: told for status, told in own.items() if int(status) < HTTPStatus.BAD_REQUEST}
    operation["responses"] = success | {str(status): {"$ref": f"{_RESPONSES}{status}"} for status in sorted(statuses)}
    operation["security"] = [{scheme: [scope]} for scope in scopes or () for scheme in _SECURITY]
    operation["x-scopes"] = scopes or []
    given = examples().get(operation["operationId"], {})
    if "asked" in given and "requestBody" in operation:
        operation["requestBody"]["content"]["application/json"]["example"] = given["asked"]
    for told in success.values():
        if "content" in told and "told" in given:
            next(iter(told["content"].values()))["example"] = given["told"]


def _problem(status: int, words: str) -> dict[str, Any]:
    told: dict[str, Any] = {"description": words, "content": _PROBLEM}
    if status in _HEADERS:
        name, meaning = _HEADERS[status]
        told["headers"] = {name: {"description": meaning, "schema": {"type": "string"}}}
    return told


@cache
def examples() -> dict[str, dict[str, Any]]:
    """Return, by ``operationId``, what is asked and what is told in an example."""
    found: dict[str, dict[str, Any]] = msgspec.json.decode(_EXAMPLES.read_bytes())
    return found


def resolve(document: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of the document itself where it is named by reference."""
    reference = told.get("$ref", "")
    if not reference.startswith(_RESPONSES):
        return told
    found: dict[str, Any] = document["components"]["responses"][reference.removeprefix(_RESPONSES)]
    return found
