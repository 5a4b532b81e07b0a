"""Every error as problem+json (RFC 9457): what was wrong, a code for programs, and the id of the request.

Status and ``code`` are the error's own (`lapse.core.errors`); a code never changes. ``detail`` is for people;
``instance`` is the request's id, which the log has as well. No traceback and no input of the request ever
reaches a problem document.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Mount

from lapse.core.errors import LapseError
from lapse.domains import REGISTRY
from lapse.engine.running.metrics import ErrorKind, Metrics
from lapse.engine.view import to_json
from lapse.keys.registration import KEYS
from lapse.web.api.errors import (
    InternalError,
    InvalidRequestError,
    MalformedRequestError,
    MethodNotAllowedError,
    NoSuchRouteError,
    RequestError,
)

MEDIA_TYPE: Final = "application/problem+json"
REQUEST_ID: Final = "lapse.request_id"
"""Where the request's id is kept in the ASGI scope."""


class Problem(Struct, frozen=True, kw_only=True):
    """How every error looks."""

    type: str = "about:blank"
    title: str
    status: int
    detail: Annotated[str, Meta(description="What was wrong, what was expected, and what to do")]
    code: Annotated[str, Meta(description="For programs; never changes")]
    instance: Annotated[str, Meta(description="The id of the request, also in the log")]
    errors: Annotated[
        list[dict[str, str]] | UnsetType, Meta(description="Where the request does not have the expected form")
    ] = UNSET


_BY_STATUS: Final[Mapping[int, type[RequestError]]] = {404: NoSuchRouteError, 405: MethodNotAllowedError}


def problem(
    error: LapseError,
    instance: str,
    *,
    headers: Mapping[str, str] | None = None,
    errors: Sequence[Mapping[str, str]] = (),
) -> Response:
    """Describe ``error`` to a client."""
    document = Problem(
        title=HTTPStatus(error.status).phrase,
        status=error.status,
        detail=str(error),
        code=error.code,
        instance=instance,
        errors=[dict(one) for one in errors] or UNSET,
    )
    own = dict(error.answer_headers()) if isinstance(error, RequestError) else {}
    # ASCII only: what a client sent may be no valid Unicode, and an answer about it must be sent all the same.
    text = json.dumps(to_json(document))
    return Response(text, error.status, headers=own | dict(headers or {}), media_type=MEDIA_TYPE)


def install(app: FastAPI, metrics: Metrics, *, api: str, page: Callable[[Request, LapseError, str], Response]) -> None:
    """Let ``app`` answer every error with a problem document, and people who look at pages with a ``page``."""

    def answer(request: Request, error: LapseError) -> Response:
        instance: str = request.scope[REQUEST_ID]
        is_script = request.url.path.startswith(f"{api}/") or "hx-request" in request.headers
        if is_script or "text/html" not in request.headers.get("accept", ""):
            return problem(error, instance)
        return page(request, error, instance)

    async def on_http_exception(request: Request, error: Exception) -> Response:
        is_unknown = isinstance(error, HTTPException) and error.status_code == HTTPStatus.NOT_FOUND
        return answer(request, NoSuchRouteError()) if is_unknown else await _on_http_exception(request, error)

    async def on_lapse_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, LapseError)  # noqa: S101 - registered for nothing else
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            metrics.failed(REGISTRY.domain_of(error, default=KEYS.name), ErrorKind.REQUEST)
        return answer(request, error)

    async def on_unexpected(request: Request, _: Exception) -> Response:
        metrics.failed(KEYS.name, ErrorKind.REQUEST)
        return answer(request, InternalError())

    app.add_exception_handler(LapseError, on_lapse_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(Exception, on_unexpected)


async def _on_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for nothing else
    # Of pydantic's findings only place and rule: `input` would repeat a secret.
    found = [{"where": ".".join(map(str, one["loc"])), "problem": str(one["msg"])} for one in error.errors()]
    return problem(InvalidRequestError(), request.scope[REQUEST_ID], errors=found)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for nothing else
    kind = _BY_STATUS.get(error.status_code, MalformedRequestError)
    if kind is not MethodNotAllowedError:
        return problem(kind(), request.scope[REQUEST_ID], headers=error.headers)
    allow = {"Allow": ", ".join(_methods(request))}
    if request.method == "OPTIONS":
        return Response(status_code=HTTPStatus.NO_CONTENT, headers=allow)
    return problem(kind(), request.scope[REQUEST_ID], headers=allow)


def _methods(request: Request) -> list[str]:
    """Return the methods of an address. The framework tells those of one of its routes, and each method is a route."""
    routes = [one for one in request.app.router.routes if not isinstance(one, Mount)]  # below one there are files

    def has(method: str) -> bool:
        return any(one.matches({**request.scope, "method": method})[0] is Match.FULL for one in routes)

    found = [method for method in ("DELETE", "GET", "PATCH", "POST", "PUT") if has(method)] or ["GET"]
    return sorted({*found, "OPTIONS", *(["HEAD"] if "GET" in found else [])})
