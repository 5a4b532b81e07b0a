"""Every error as problem+json (RFC 9457): what was wrong, a code for programs, and the id of the request.

``code`` is the name of the exception, which never changes; ``detail`` is for people; ``instance`` is the request's
id, which the log has as well. No traceback and no input of the request ever reaches a problem document.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from lapse.core.errors import LapseError, UsageError
from lapse.engine.running.metrics import ErrorKind, Metrics
from lapse.engine.safety.holds import HeldError
from lapse.keys.errors import BackendClosedError, BackendUnavailableError, OutcomeUnknownError
from lapse.keys.sweeper import DOMAIN
from lapse.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    GoneError,
    InvalidError,
    NotFoundError,
    ObjectError,
    StoreUnavailableError,
)
from lapse.requests.controllers.chunks import ManifestsUnreadableError
from lapse.requests.expiry import DOMAIN as REQUESTS
from lapse.web.api.errors import (
    InternalError,
    InvalidRequestError,
    MalformedRequestError,
    MethodNotAllowedError,
    NoSuchRouteError,
    RequestError,
)
from lapse.workspaces import errors as workspaces
from lapse.workspaces.activity.port import ActivityUnavailableError
from lapse.workspaces.errors import (
    ChangedMeanwhileError,
    LeaseOverError,
    NotRunningError,
    OperationUnderWayError,
    PortInUseError,
    UnknownWorkspaceError,
    WorkspaceExistsError,
    WorkspaceStoreError,
)
from lapse.workspaces.model import DOMAIN as WORKSPACES

MEDIA_TYPE: Final = "application/problem+json"
REQUEST_ID: Final = "lapse.request_id"
"""Where the request's id is kept in the ASGI scope."""


class Problem(BaseModel):
    """How every error looks."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    """What was wrong, what was expected, and what to do."""
    code: str
    """For programs; never changes."""
    instance: str
    """The id of the request, also in the log."""
    errors: list[dict[str, str]] | None = None
    """Where the request does not have the expected form."""


# The most special first.
_STATUS: Final[Sequence[tuple[type[LapseError], int]]] = (
    (UsageError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (BackendUnavailableError, HTTPStatus.SERVICE_UNAVAILABLE),
    (BackendClosedError, HTTPStatus.SERVICE_UNAVAILABLE),
    (OutcomeUnknownError, HTTPStatus.GATEWAY_TIMEOUT),
    (NotFoundError, HTTPStatus.NOT_FOUND),
    (AlreadyExistsError, HTTPStatus.CONFLICT),
    (HeldError, HTTPStatus.CONFLICT),
    (ManifestsUnreadableError, HTTPStatus.CONFLICT),
    (GoneError, HTTPStatus.GONE),
    (ConflictError, HTTPStatus.PRECONDITION_FAILED),
    (InvalidError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (StoreUnavailableError, HTTPStatus.SERVICE_UNAVAILABLE),
    (UnknownWorkspaceError, HTTPStatus.NOT_FOUND),
    (WorkspaceExistsError, HTTPStatus.CONFLICT),
    (OperationUnderWayError, HTTPStatus.CONFLICT),
    (PortInUseError, HTTPStatus.CONFLICT),
    (NotRunningError, HTTPStatus.CONFLICT),
    (LeaseOverError, HTTPStatus.CONFLICT),
    (ChangedMeanwhileError, HTTPStatus.PRECONDITION_FAILED),
    (ActivityUnavailableError, HTTPStatus.SERVICE_UNAVAILABLE),
    (workspaces.WorkspaceOutcomeUnknownError, HTTPStatus.GATEWAY_TIMEOUT),
    (WorkspaceStoreError, HTTPStatus.SERVICE_UNAVAILABLE),
)
_BY_STATUS: Final[Mapping[int, type[RequestError]]] = {404: NoSuchRouteError, 405: MethodNotAllowedError}


def status_of(error: LapseError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, RequestError):
        return error.status
    return next((int(status) for kind, status in _STATUS if isinstance(error, kind)), 500)


def problem(
    error: LapseError,
    instance: str,
    *,
    headers: Mapping[str, str] | None = None,
    errors: Sequence[Mapping[str, str]] = (),
) -> Response:
    """Describe ``error`` to a client."""
    status = status_of(error)
    document: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": str(error),
        "code": type(error).__name__,
        "instance": instance,
    }
    if errors:
        document["errors"] = list(errors)
    own = dict(error.headers) if isinstance(error, RequestError) else {}
    # ASCII only: what a client sent may be no valid Unicode, and an answer about it must be sent all the same.
    return Response(json.dumps(document), status, headers=own | dict(headers or {}), media_type=MEDIA_TYPE)


def install(app: FastAPI, metrics: Metrics) -> None:
    """Let ``app`` answer every error with a problem document."""

    async def on_lapse_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, LapseError)  # noqa: S101 - registered for nothing else
        if status_of(error) >= HTTPStatus.INTERNAL_SERVER_ERROR:
            metrics.failed(_domain_of(error), ErrorKind.REQUEST)
        return problem(error, request.scope[REQUEST_ID])

    async def on_unexpected(request: Request, _: Exception) -> Response:
        metrics.failed(DOMAIN, ErrorKind.REQUEST)
        return problem(InternalError(), request.scope[REQUEST_ID])

    app.add_exception_handler(LapseError, on_lapse_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, on_unexpected)


def _domain_of(error: LapseError) -> str:
    if isinstance(error, WorkspaceStoreError):
        return WORKSPACES
    return REQUESTS if isinstance(error, ObjectError) else DOMAIN


async def _on_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for nothing else
    # Of pydantic's findings only place and rule: `input` would repeat a secret.
    found = [{"where": ".".join(map(str, one["loc"])), "problem": str(one["msg"])} for one in error.errors()]
    return problem(InvalidRequestError(), request.scope[REQUEST_ID], errors=found)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for nothing else
    kind = _BY_STATUS.get(error.status_code, MalformedRequestError)
    return problem(kind(), request.scope[REQUEST_ID], headers=error.headers)
