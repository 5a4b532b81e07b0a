"""The pages: the start page and the list of API operations, without anything from elsewhere.

The start page has one script of its own, which brings it up to date and opens workspaces; without it the same is shown.
What it changes goes through the API, by the same rules as for everybody. There is no inline script, here or elsewhere.

FastAPI's own documentation pages load their scripts from a content delivery network; on a machine without one they stay
empty. The list of operations is therefore rendered from the OpenAPI document, which every other tool can read as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse, JSONResponse, Response

from lapse import __version__
from lapse.core.errors import LapseError
from lapse.engine.view import Moment
from lapse.web.api.errors import TokenMissingError, TooManyFailuresError
from lapse.web.api.status import StatusService, status_service
from lapse.web.api.workspaces import WorkspacesService, opened_by
from lapse.web.pages.workspaces import span

_HERE: Final = Path(__file__).parent
STATIC: Final = _HERE / "static"
_POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_WITH_SCRIPT: Final = f"{_POLICY}; script-src 'self'; connect-src 'self'"
_SECOND: Final = 1_000_000_000
_METHODS: Final = ("get", "put", "post", "patch", "delete")


@dataclass(frozen=True, slots=True)
class PageLinks:
    """Where things are, as links."""

    api: str
    """This server, as ``http://host:port``."""
    probes: str
    """The listener of the probes."""


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["span"] = span
    environment.filters["number"] = lambda number: f"{number:,}"
    return environment


def ago(then: Moment | None, now: Moment) -> str:
    """Print how long ago something was."""
    return "not yet" if then is None else f"{span((now - then) / _SECOND)} ago"


def until(then: Moment | None, now: Moment) -> str:
    """Print when something will be."""
    if then is None:
        return "unknown"
    return f"in {span((then - now) / _SECOND)}" if then > now else "now"


def operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """List the operations of an OpenAPI document in the order of their paths."""
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                operation = methods[method]
                yield {
                    "method": method.upper(),
                    "path": path,
                    "summary": operation.get("summary", ""),
                    "description": operation.get("description", ""),
                    "parameters": operation.get("parameters", []),
                    "fields": list(_fields(document, operation)),
                    "answers": [(code, answer["description"]) for code, answer in operation["responses"].items()],
                }


def _fields(document: dict[str, Any], operation: dict[str, Any]) -> Iterator[tuple[str, bool, str]]:
    content = operation.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    choices = schema.get("anyOf", [schema])
    reference = next((choice["$ref"] for choice in choices if "$ref" in choice), None)
    if reference is None:
        return
    model = document["components"]["schemas"][reference.rpartition("/")[2]]
    for name, field in model["properties"].items():
        yield name, name in model.get("required", []), field.get("description", field.get("type", ""))


def _page(name: str, *, policy: str = _POLICY, status_code: int = 200, **values: object) -> Response:
    text = _templates().get_template(name).render(values)
    return HTMLResponse(text, status_code, headers={"Content-Security-Policy": policy})


def log_in(error: LapseError) -> Response:
    """Tell a browser without a session how to get one. Shows nothing of anybody's."""
    told = None if isinstance(error, TokenMissingError) else str(error)
    page = _page("log_in.html", policy=_WITH_SCRIPT, status_code=error.status, told=told)
    page.headers.update(error.answer_headers() if isinstance(error, TooManyFailuresError) else {})
    return page


router = APIRouter(include_in_schema=False)


@router.get("/")
async def start(request: Request, service: Annotated[StatusService, Depends(status_service)]) -> Response:
    """Show what runs and where things are."""
    places: PageLinks = request.app.state.places()
    workspaces: WorkspacesService | None = request.app.state.workspaces
    return _page(
        "start.html",
        policy=_WITH_SCRIPT,
        version=__version__,
        now=(now := service.now),
        facts=(facts := service.facts()),
        uptime=(now - facts.started) / _SECOND,
        keys=await service.keys(),
        workspaces=None if workspaces is None else await workspaces.overview(opened_by(request)),
        places=places,
        ago=ago,
        until=until,
    )


@router.get("/api/v1/docs")
async def docs(request: Request) -> Response:
    """List the operations."""
    document = request.app.openapi()
    return _page("docs.html", info=document["info"], operations=list(operations(document)))


@router.get("/api/v1/openapi.json")
async def openapi(request: Request) -> Response:
    """Return the OpenAPI 3.1 document."""
    return JSONResponse(request.app.openapi())
