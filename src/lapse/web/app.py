"""The ASGI application: routes, the check of scopes on every one of them, and the guard and measurement in front."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from fastapi import Depends, FastAPI, Request
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from lapse import __version__
from lapse.engine.running.logins import LoginFailures
from lapse.engine.running.metrics import Metrics
from lapse.engine.verbs.operations import API, APPLY, APPROVE
from lapse.web.api import busy as busy_api
from lapse.web.api import history as history_api
from lapse.web.api import keys as keys_api
from lapse.web.api import problems, status
from lapse.web.api import requests as requests_api
from lapse.web.api import schedules as schedules_api
from lapse.web.api import verbs as verbs_api
from lapse.web.api import workspaces as workspaces_api
from lapse.web.api.errors import ScopeMissingError
from lapse.web.api.forms import answer, answer_schemas
from lapse.web.api.history import HistoryService
from lapse.web.api.keys import KeysService
from lapse.web.api.requests import RequestsService
from lapse.web.api.status import StatusService
from lapse.web.api.verbs import VerbsOf
from lapse.web.api.workspaces import WorkspacesService
from lapse.web.auth import login
from lapse.web.auth.login import Admission, is_public
from lapse.web.auth.scopes import allowed, busy_in, has_own, in_words, wanted_scopes
from lapse.web.auth.sessions import BrowserSessions
from lapse.web.pages import pages
from lapse.web.pages.pages import PageLinks
from lapse.web.server.measurement import MeasuredApp
from lapse.web.server.security import PRINCIPAL, AllowedHosts, Guard, Principal

_STATIC: Final = "/static"
_ROUTERS: Final = (
    (API, keys_api.router),
    (API, requests_api.router),
    (API, schedules_api.router),
    (API, history_api.router),
    (API, workspaces_api.router),
    (API, busy_api.router),
    (API, status.router),
    (API, verbs_api.router),
    (API, verbs_api.of_things),
    (API, login.router),
    ("", login.page),
    ("", pages.router),
)
_PROBLEM: Final = answer(problems.Problem, "A problem document (RFC 9457)", media_type=problems.MEDIA_TYPE)


class _Application(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """Add what the framework does not know: the forms of answers, and that a token or a session is needed."""
        document = super().openapi()
        if "security" not in document:  # the framework returns one document again and again
            components = document["components"]
            components["schemas"] |= answer_schemas()
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"token": []}]
        return document


def authorise(request: Request) -> None:
    """Refuse what the caller's scopes do not allow. On every route, so that one added without a thought is closed."""
    principal: Principal = request.scope[PRINCIPAL]
    if is_public(request.url.path, api=API):
        return
    app: str | None = request.path_params.get("app")
    route = request.scope["route"]
    about_work = route in busy_api.router.routes
    if about_work and busy_in(principal.scopes) is not None:
        return  # which workspace is meant is decided where that is known
    if route in verbs_api.of_things.routes and has_own(principal.scopes):
        return  # as above, for any thing
    workspaces = about_work or route in workspaces_api.router.routes
    if not allowed(principal.scopes, request.method, route.path, app, workspaces=workspaces):
        wanted = wanted_scopes(request.method, route.path, app, workspaces=workspaces)
        raise ScopeMissingError(wanted=in_words(wanted, route.path))


def create_app(  # noqa: PLR0913 - as many as there are domains, each by its name
    *,
    keys: KeysService,
    requests: RequestsService,
    history: HistoryService,
    workspaces: WorkspacesService | None,
    status_service: StatusService,
    places: Callable[[], PageLinks],
    hosts: AllowedHosts,
    sessions: BrowserSessions,
    failures: LoginFailures,
    metrics: Metrics,
    verbs: VerbsOf,
) -> ASGIApp:
    """Put the API and the pages together; without ``workspaces`` they are refused."""
    app = _Application(
        title="Lapse",
        summary="Everything temporary, ended on time, and only on time.",
        version=__version__,
        dependencies=[Depends(authorise)],
        openapi_url=None,  # served by `pages`, behind the same rules as everything else
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # an empty key is an error, not another address
        responses={"4XX": _PROBLEM, "5XX": _PROBLEM},
    )
    app.state.keys, app.state.requests, app.state.history = keys, requests, history
    app.state.workspaces = workspaces
    app.state.status, app.state.places = status_service, places
    app.state.sessions, app.state.failures, app.state.verbs = sessions, failures, verbs
    for prefix, router in _ROUTERS:
        app.include_router(router, prefix=prefix)
    app.mount(_STATIC, StaticFiles(directory=pages.STATIC), name="static")
    problems.install(app, metrics)
    guarded = Guard(
        app,
        hosts=hosts,
        admit=Admission(sessions),
        is_public=partial(is_public, api=API),
        log_in_page=pages.log_in,
        failures=failures,
        large_bodies={f"{API}{one.path}" for one in (APPLY, APPROVE)},
    )
    routes = [(prefix, router.routes) for prefix, router in _ROUTERS]
    return MeasuredApp(guarded, metrics, routes=routes, static=_STATIC)
