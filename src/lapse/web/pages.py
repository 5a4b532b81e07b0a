"""The pages: the start page and the list of API operations, without scripts and without anything from elsewhere.

FastAPI's own documentation pages load their scripts from a content delivery network; on a machine without one they stay
empty. The list of operations is therefore rendered from the OpenAPI document, which every other tool can read as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse, JSONResponse, Response

from lapse.web.status import StatusService, status_service

_HERE: Final = Path(__file__).parent
STATIC: Final = _HERE / "static"
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
}
MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
_LETTERS: Final = {DAY: "d", HOUR: "h", MINUTE: "m"}
_METHODS: Final = ("get", "put", "post", "patch", "delete")


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are, as links."""

    api: str
    """This server, as ``http://host:port``."""
    probes: str
    """The listener of the probes."""
    open_mode: bool
    """Whether it may be called without a token."""


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


def span(seconds: float) -> str:
    """Print a length of time for people who glance: 224 ms, 2.5 s, 3m 20s, 1h 5m, 12d 3h."""
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))} ms"
    if seconds < 10:  # noqa: PLR2004 - from ten seconds on nobody reads tenths
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for large, small, size in ((DAY, "h", HOUR), (HOUR, "m", MINUTE), (MINUTE, "s", 1)):
        if whole >= large:
            return f"{whole // large}{_LETTERS[large]} {whole % large // size}{small}"
    return f"{whole} s"


def ago(then: datetime | None, now: datetime) -> str:
    """Print how long ago something was."""
    return "not yet" if then is None else f"{span((now - then).total_seconds())} ago"


def until(then: datetime | None, now: datetime) -> str:
    """Print when something will be."""
    if then is None:
        return "unknown"
    return f"in {span((then - now).total_seconds())}" if then > now else "now"


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


def _page(name: str, **values: object) -> Response:
    return HTMLResponse(_templates().get_template(name).render(values), headers=_HEADERS)


router = APIRouter(include_in_schema=False)


@router.get("/")
async def start(request: Request, service: Annotated[StatusService, Depends(status_service)]) -> Response:
    """Show what runs and where things are."""
    places: Places = request.app.state.places()
    return _page("start.html", status=await service.snapshot(), places=places, ago=ago, until=until)


@router.get("/api/v1/docs")
async def docs(request: Request) -> Response:
    """List the operations."""
    document = request.app.openapi()
    return _page("docs.html", info=document["info"], operations=list(operations(document)))


@router.get("/api/v1/openapi.json")
async def openapi(request: Request) -> Response:
    """Return the OpenAPI 3.1 document."""
    return JSONResponse(request.app.openapi())
