"""The admission webhook over HTTP: an address for each judge, to which the API server sends reviews.

Whatever is a review is answered with one, in time for the API server to hear it: how long it waits stands in the
address it calls. Everything else is a problem document with 4xx; a defect of ours is 500. To the API server anything
but a clear yes is a no, because its configuration says ``failurePolicy: Fail``.

Who calls is not checked: API servers show no certificate unless they are told to. A client that reaches the port can
ask who has which right, and gets no object. Nor is the Host: clients have proven the name to themselves by our
certificate.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from http import HTTPStatus
from typing import Final, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from lapse.core.duration import Duration, DurationError
from lapse.core.errors import LapseError
from lapse.engine.running.metrics import ErrorKind, Metrics
from lapse.kube.auth.admission import AdmissionRequest, NotAReviewError, Ruling, read_request, response
from lapse.web.api.errors import MethodNotAllowedError, NoSuchRouteError, RequestError
from lapse.web.api.problems import REQUEST_ID, problem
from lapse.web.server.measurement import MeasuredApp
from lapse.web.server.security import Guard

REQUESTS: Final = "/validate-requests"
POLICIES: Final = "/validate-retention-policies"
MAX_BODY_BYTES: Final = 4 << 20
"""An API server takes objects of 3 MiB; a review adds who is asking."""
IDLE_SECONDS: Final = 120
"""Longer than an API server keeps a connection: closed by us in the moment of its next question, it would be a no."""
_USUAL_SECONDS: Final = 10.0
"""What an API server waits if its configuration does not say."""
_MOST_SECONDS: Final = 30.0
"""What it waits at most."""
_WAY_BACK_SECONDS: Final = 1.0


class BadReviewError(RequestError):
    """{reason}."""

    status = 400


class Judge(Protocol):
    """Judges some kinds: `lapse.requests.admission.RequestJudge`, `lapse.history.policy.admission.PolicyJudge`."""

    @property
    def domain(self) -> str:
        """The domain in which failures are counted."""
        ...

    async def judge(self, request: AdmissionRequest, *, seconds: float) -> Ruling:
        """Say within ``seconds`` whether the request is granted."""
        ...


class _AnyHost(Container[str]):
    def __contains__(self, _host: object) -> bool:
        return True


def create_webhook(judges: Mapping[str, Judge], metrics: Metrics) -> ASGIApp:
    """Put the webhook together; each path has its judge."""

    async def validate(request: Request) -> Response:
        judge = judges[request.url.path]
        try:
            review = read_request(await request.body())
        except NotAReviewError as error:
            raise BadReviewError(reason=str(error).rstrip(".")) from None
        ruling = await judge.judge(review, seconds=time_to_answer(request.query_params.get("timeout")))
        if ruling.failed:
            metrics.failed(judge.domain, ErrorKind.REQUEST)
        return Response(msgspec.json.encode(response(review.uid, ruling)), media_type="application/json")

    async def refuse(request: Request, error: Exception) -> Response:
        wrong_method = isinstance(error, HTTPException) and error.status_code == HTTPStatus.METHOD_NOT_ALLOWED
        return problem(MethodNotAllowedError() if wrong_method else NoSuchRouteError(), request.scope[REQUEST_ID])

    async def explain(request: Request, error: Exception) -> Response:
        assert isinstance(error, LapseError)  # noqa: S101 - registered for nothing else
        return problem(error, request.scope[REQUEST_ID])

    routes = [Route(path, validate, methods=["POST"]) for path in judges]
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: refuse, LapseError: explain},
    )
    app.router.redirect_slashes = False
    guarded = Guard(app, hosts=_AnyHost(), admit=None, max_body=MAX_BODY_BYTES)
    return MeasuredApp(guarded, metrics, routes=[("", routes)])


def time_to_answer(timeout: str | None) -> float:
    """Return the seconds that are left for questions when the API server waits for ``timeout``, such as 10s."""
    try:
        given = Duration.parse(timeout or "").seconds
    except DurationError:
        given = _USUAL_SECONDS
    patience = min(given, _MOST_SECONDS) if given > 0 else _USUAL_SECONDS
    return max(patience / 2, patience - _WAY_BACK_SECONDS)
