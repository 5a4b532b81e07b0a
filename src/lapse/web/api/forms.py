"""Forms of requests and answers that the routes share: bodies, queries, conditions, and views as JSON.

Bodies are pydantic models, which FastAPI validates and describes. Answers are views (`lapse.engine.view`): `Answer`
sends one, and `answer` describes it in the OpenAPI document, whose schemas `answer_schemas` returns.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Path, Query, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import JSONResponse

from lapse.engine.view import SCHEMAS, encode, schemas
from lapse.kube.resources import Object
from lapse.web.api.conditions import Conditions, read_conditions
from lapse.web.api.errors import ContradictoryConditionsError, UnknownParameterError

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
_answers: Final[dict[str, type]] = {}


class Form(BaseModel):
    """A body with its own fields and no others."""

    model_config = ConfigDict(extra="forbid")


class Answer(JSONResponse):
    """A view as JSON."""

    def render(self, content: Any) -> bytes:  # noqa: ANN401 - a view
        """Return its JSON form."""
        return encode(content)


def answer(view: type, description: str | None = None, *, media_type: str = "application/json") -> dict[str, Any]:
    """Return what OpenAPI says of a route that answers with this view."""
    if _answers.setdefault(view.__name__, view) is not view:
        raise TypeError(f"two views are named {view.__name__}")
    content = {media_type: {"schema": {"$ref": f"{SCHEMAS}{view.__name__}"}}}
    return {"content": content} if description is None else {"content": content, "description": description}


def answer_schemas() -> dict[str, Any]:
    """Return the schemas of all views that routes answer with."""
    return schemas(_answers.values())


def etag(found: Object) -> dict[str, str]:
    """Return the header with the version of an object, for If-Match."""
    return {"ETag": f'"{found.metadata.resource_version}"'}


def demand_known(request: Request, *known: str) -> None:
    """Refuse parameters of a query that are not ``known``: a misspelt filter would answer with everything there is."""
    unknown = set(request.query_params) - set(known)
    if unknown:
        raise UnknownParameterError(given=min(unknown), valid=", ".join(sorted(known)))


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
