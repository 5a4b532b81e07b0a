"""Forms of requests and answers that the routes share: bodies, queries, conditions, and views as JSON.

Bodies are pydantic models, which FastAPI validates and describes. Answers are views (`lapse.engine.view`): `Answer`
sends one, and `answer` describes it in the OpenAPI document, whose schemas `answer_schemas` returns.

Conditional requests of keys:

| request | operation |
|---|---|
| nothing | unconditional |
| ``If-None-Match: *`` | only if the key is absent (insert) |
| ``If-Match: "tag"`` or ``*`` | only if the key has this tag, or exists |
| ``expected`` in the JSON body | only if the key has this value |

More than one of these at once is an error, not a guess.

An ETag stands for the value, so a swap by tag is a swap by value: a value that was changed and changed back matches
again, and renewing the TTL does not change the tag. It is a keyed hash with a secret that stays in the state
database. An unkeyed hash would tell short values (PINs, device codes) to anyone who can guess and hash.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import Path, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict
from starlette.responses import JSONResponse

from lapse.engine.verbs.contract import Verbs
from lapse.engine.view import SCHEMAS, encode, schemas
from lapse.kube.resources import Object
from lapse.web.api.errors import ContradictoryConditionsError, UnknownParameterError
from lapse.web.server.security import READING, caller_of

_DIGEST_BYTES: Final = 16


class Tagger:
    """Makes tags with one secret. Two servers on one state database make the same tags."""

    def __init__(self, secret: bytes) -> None:
        """Use ``secret``, 16 to 64 bytes of it."""
        self._secret = secret

    def tag(self, app_id: int, key: str, value: str) -> str:
        """Return the tag, with the quotes that HTTP wants."""
        name = key.encode()
        # Length first: without it a key's end and a value's start could be moved against each other.
        head = app_id.to_bytes(4, "big") + len(name).to_bytes(2, "big")
        digest = blake2b(
            head + name + value.encode(), digest_size=_DIGEST_BYTES, key=self._secret, person=b"lapse-etag"
        ).digest()
        return f'"{base64.urlsafe_b64encode(digest).decode().rstrip("=")}"'


_TAG: Final = r'(?:W/)?"[\x21\x23-\x7e]*"'
_TAG_LIST: Final = re.compile(rf"\s*{_TAG}(?:\s*,\s*{_TAG})*\s*")


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the headers of a request ask for."""

    absent: bool = False
    tags: frozenset[str] | None = None
    """Tags of which one must match; an empty set is ``*``, anything that exists; None is no condition."""

    def matches(self, tag: str) -> bool:
        """Whether a key with this tag fulfils ``If-Match``. A weak tag never does: RFC 9110 wants strong comparison."""
        return self.tags is not None and (not self.tags or tag in self.tags)


def read_conditions(if_match: Sequence[str], if_none_match: Sequence[str], *, expected: bool) -> Conditions:
    """Read the headers, given as all their lines; ``expected`` says whether the body has a condition of its own."""
    match, none_match = ", ".join(if_match), ", ".join(if_none_match)
    given = [bool(if_match), bool(if_none_match), expected]
    if sum(given) > 1:
        raise ContradictoryConditionsError(problem="give one of If-Match, If-None-Match and expected")
    if if_none_match:
        if none_match.strip() != "*":
            raise ContradictoryConditionsError(problem="If-None-Match must be * when something is written")
        return Conditions(absent=True)
    if not if_match:
        return Conditions()
    if match.strip() == "*":
        return Conditions(tags=frozenset())
    if not _TAG_LIST.fullmatch(match):
        raise ContradictoryConditionsError(problem='If-Match must be * or tags in double quotes, as in "abc"')
    return Conditions(tags=frozenset(re.findall(_TAG, match)))


DEFAULT_PAGE: Final = 100
After = Annotated[str | None, Query(description="The next of the page before")]
Namespace = Annotated[str, Path(description="The namespace")]
Name = Annotated[str, Path(description="The name")]
IF_MATCH: Final[dict[str, Any]] = {
    "parameters": [
        {"name": "If-Match", "in": "header", "schema": {"type": "string"}, "description": "Only this version: its ETag"}
    ]
}
"""For ``openapi_extra``: the framework does not see a header that a route reads itself."""
_CONDITIONAL: Final = ("if-match", "if-none-match")
_ETAG: Final = {"ETag": {"description": "Its version, for If-Match", "required": True, "schema": {"type": "string"}}}
_LOCATION: Final = {"Location": {"description": "Its address", "required": True, "schema": {"type": "string"}}}
_answers: Final[dict[str, type]] = {}
_declarations: Final[dict[int, tuple[frozenset[str], frozenset[str]]]] = {}


class Form(BaseModel):
    """A body with its own fields and no others."""

    model_config = ConfigDict(extra="forbid")


class Answer(JSONResponse):
    """A view as JSON."""

    def render(self, content: Any) -> bytes:  # noqa: ANN401 - a view
        """Return its JSON form."""
        return encode(content)


def answer(
    view: type,
    description: str | None = None,
    *,
    media_type: str = "application/json",
    tagged: bool = False,
    located: bool = False,
) -> dict[str, Any]:
    """Return what OpenAPI says of a route that answers with this view; ``tagged`` with its ETag, ``located`` where."""
    if _answers.setdefault(view.__name__, view) is not view:
        raise TypeError(f"two views are named {view.__name__}")
    told: dict[str, Any] = {"content": {media_type: {"schema": {"$ref": f"{SCHEMAS}{view.__name__}"}}}}
    if description is not None:
        told["description"] = description
    if tagged or located:
        told["headers"] = (_ETAG if tagged else {}) | (_LOCATION if located else {})
    return told


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what OpenAPI says of the problems of a route, beside those of every route (`lapse.web.api.openapi`)."""
    return {status: {"description": HTTPStatus(status).phrase} for status in statuses}


def answer_schemas() -> dict[str, Any]:
    """Return the schemas of all views that routes answer with."""
    return schemas(_answers.values())


def etag(found: Object) -> dict[str, str]:
    """Return the header with the version of an object, for If-Match."""
    return {"ETag": f'"{found.metadata.resource_version}"'}


def verbs_of(request: Request) -> Verbs:
    """Return the verbs of people on behalf of who asks."""
    verbs: Verbs = request.app.state.verbs(caller_of(request))
    return verbs


def _declared(route: APIRoute) -> tuple[frozenset[str], frozenset[str]]:
    """Return the parameters of the query and, in lower case, the headers that a route says that it takes."""
    known = _declarations.get(id(route))  # a route has no hash; all of them live as long as their modules
    return _declarations.setdefault(id(route), _read_declared(route)) if known is None else known


def _read_declared(route: APIRoute) -> tuple[frozenset[str], frozenset[str]]:
    told = (route.openapi_extra or {}).get("parameters", [])
    query = {*_query_of(route.dependant), *(one["name"] for one in told if one["in"] == "query")}
    return frozenset(query), frozenset(one["name"].lower() for one in told if one["in"] == "header")


def _query_of(dependant: Dependant) -> Iterator[str]:
    yield from (one.alias for one in dependant.query_params)
    for below in dependant.dependencies:
        yield from _query_of(below)


async def demand_known(request: Request) -> None:
    """Refuse what an operation does not take: a parameter of the query, or a condition on a change.

    A misspelt filter would answer with everything there is, and a condition that nobody looks at would not hold.
    """
    if request.method in READING and not request.scope["query_string"]:
        return  # nothing to refuse, and most requests are so
    route = request.scope["route"]
    if not isinstance(route, APIRoute):
        return
    query, headers = _declared(route)
    unknown = set(request.query_params) - query
    if unknown:
        raise UnknownParameterError(given=min(unknown), valid=", ".join(sorted(query)) or "none")
    takes_none = request.method not in READING and headers.isdisjoint(_CONDITIONAL)
    if takes_none and any(name in request.headers for name in _CONDITIONAL):
        raise ContradictoryConditionsError(problem="this operation takes neither If-Match nor If-None-Match")


def conditions_of(request: Request, *, expected: bool = False) -> Conditions:
    """Return the conditions of a request; ``expected`` says whether its body has one of its own."""
    headers = request.headers
    return read_conditions(headers.getlist("if-match"), headers.getlist("if-none-match"), expected=expected)


def match_of(request: Request, what: str, *, expected: bool = False) -> Conditions:
    """Return the conditions of a request that takes If-Match alone; ``what`` names it in the refusal."""
    conditions = conditions_of(request, expected=expected)
    if conditions.absent:
        raise ContradictoryConditionsError(problem=f"{what} takes If-Match, not If-None-Match")
    return conditions
