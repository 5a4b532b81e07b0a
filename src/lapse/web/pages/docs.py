"""The list of API operations, and the OpenAPI document that it is rendered from.

FastAPI's own documentation pages load their scripts from a content delivery network; on a machine without one they stay
empty. The list of operations is therefore rendered from the document, which every other tool can read as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from lapse.web.api.openapi import resolve
from lapse.web.pages.render import page

_METHODS: Final = ("get", "put", "post", "patch", "delete")
router = APIRouter(include_in_schema=False)


def operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """List the operations of an OpenAPI document in the order of their paths."""
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                operation = methods[method]
                answers = {code: resolve(document, told) for code, told in operation["responses"].items()}
                yield {
                    "method": method.upper(),
                    "path": path,
                    "name": operation["operationId"],
                    "summary": operation.get("summary", ""),
                    "description": operation.get("description", ""),
                    "scopes": operation["x-scopes"],
                    "parameters": operation.get("parameters", []),
                    "fields": list(_fields(document, operation)),
                    "answers": [(code, told["description"]) for code, told in answers.items()],
                    "examples": list(_examples(operation, answers)),
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


def _examples(operation: dict[str, Any], answers: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Return what is asked and what is told in an example, as text."""
    told = [("body", operation.get("requestBody", {})), *answers.items()]
    for name, part in told:
        example = part.get("content", {}).get("application/json", {}).get("example")
        if example is not None:
            yield name, json.dumps(example, indent=2, ensure_ascii=False)


@router.get("/api/v1/docs")
async def docs(request: Request) -> Response:
    """List the operations."""
    document = request.app.openapi()
    return page(request, "docs.html", info=document["info"], operations=list(operations(document)))


@router.get("/api/v1/openapi.json")
async def openapi(request: Request) -> Response:
    """Return the OpenAPI 3.1 document."""
    return JSONResponse(request.app.openapi())
