"""The ASGI application: routes, the check of scopes on every one of them, and the guard and measurement in front."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from fastapi import Depends, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lapse import __version__
from lapse.engine.running.logins import LoginFailures
from lapse.engine.running.metrics import Metrics
from lapse.engine.verbs.demo import DemoControl
from lapse.engine.verbs.operations import API, APPLY, APPROVE, PROPOSE
from lapse.engine.verbs.place import Caller
from lapse.web.api import busy as busy_api
from lapse.web.api import demo as demo_api
from lapse.web.api import events as events_api
from lapse.web.api import history as history_api
from lapse.web.api import keys as keys_api
from lapse.web.api import problems, status
from lapse.web.api import requests as requests_api
from lapse.web.api import schedules as schedules_api
from lapse.web.api import verbs as verbs_api
from lapse.web.api import workspaces as workspaces_api
from lapse.web.api.errors import ScopeMissingError
from lapse.web.api.events import RowPages
from lapse.web.api.forms import demand_known
from lapse.web.api.history import HistoryService
from lapse.web.api.keys import KeysService
from lapse.web.api.openapi import complete
from lapse.web.api.requests import RequestsService
from lapse.web.api.status import StatusService
from lapse.web.api.verbs import VerbsOf
from lapse.web.api.workspaces import WorkspacesService
from lapse.web.auth import login
from lapse.web.auth.login import Admission, is_public
from lapse.web.auth.scopes import allowed, busy_in, has_own, in_words, wanted_scopes
from lapse.web.auth.sessions import BrowserSessions
from lapse.web.live import LiveChanges
from lapse.web.pages import actions, assets, dashboard, docs, nouns, render
from lapse.web.pages.outlook import Outlook
from lapse.web.pages.previews import PlanPreviews
from lapse.web.pages.render import PageLinks
from lapse.web.pages.shared import SharedPages
from lapse.web.server.measurement import MeasuredApp
from lapse.web.server.security import PRINCIPAL, WITHOUT_BODY, AllowedHosts, Guard, Principal

_ROUTERS: Final = (
    (API, keys_api.router),
    (API, requests_api.router),
    (API, schedules_api.router),
    (API, history_api.router),
    (API, workspaces_api.router),
    (API, busy_api.router),
    (API, demo_api.router),
    (API, status.router),
    (API, events_api.router),
    (API, verbs_api.router),
    (API, verbs_api.of_things),
    (API, login.router),
    ("", login.page),
    ("", docs.router),
    ("", dashboard.router),
    ("", nouns.router),
    ("", actions.router),
)
# By identity, which is what the framework leaves in the scope: to compare routes would take as long as a get.
_ABOUT_WORK, _OF_THINGS, _WORKSPACES = (
    frozenset(map(id, router.routes)) for router in (busy_api.router, verbs_api.of_things, workspaces_api.router)
)
_DASHBOARD: Final = Caller("dashboard", is_person=False)


class _Application(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """Return the document, completed."""
        if self.openapi_schema is None:
            routes = {(method, f"{prefix}{one.path_format}"): one for prefix, one, method in operations()}
            self.openapi_schema = complete(super().openapi(), lambda *place: scopes_of(routes[place], place[0]))
        return self.openapi_schema

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer HEAD like GET, by the same routes and for the same scopes, and leave the body out."""
        if scope["method"] != "HEAD":
            await super().__call__(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        scope["method"], scope[WITHOUT_BODY] = "GET", True
        await super().__call__(scope, receive, without_body)


def operations() -> Iterator[tuple[str, APIRoute, str]]:
    """Return every route: what stands before its path, the route, and each of its methods."""
    for prefix, router in _ROUTERS:
        for route in router.routes:
            if isinstance(route, APIRoute):
                yield from ((prefix, route, method) for method in route.methods or ())


def scopes_of(route: APIRoute, method: str) -> list[str] | None:
    """Return the scopes of which one lets in to a route, as the OpenAPI document names them; None: everybody is."""
    if is_public(f"{API}{route.path}", api=API):
        return None
    workspaces = id(route) in _ABOUT_WORK or id(route) in _WORKSPACES
    of_things = id(route) in _OF_THINGS
    wanted = wanted_scopes(method, route.path, None, workspaces=workspaces or of_things)
    return [*wanted, "keys:APP"] if of_things or "{app}" in route.path else wanted


async def authorise(request: Request) -> None:
    """Refuse what the caller's scopes do not allow. On every route, so that one added without a thought is closed."""
    principal: Principal = request.scope[PRINCIPAL]
    path: str = request.scope["path"]  # as the guard has it
    if is_public(path, api=API) or path.startswith(actions.PREFIX):
        return  # a form names a verb, and who may is looked at where that is carried out
    app: str | None = request.path_params.get("app")
    route = request.scope["route"]
    about_work = id(route) in _ABOUT_WORK
    if about_work and busy_in(principal.scopes) is not None:
        return  # which workspace is meant is decided where that is known
    if (id(route) in _OF_THINGS or route.path == dashboard.THING) and has_own(principal.scopes):
        return  # as above, for any thing
    workspaces = about_work or id(route) in _WORKSPACES
    if not allowed(principal.scopes, request.method, route.path, app, workspaces=workspaces):
        wanted = wanted_scopes(request.method, route.path, app, workspaces=workspaces)
        raise ScopeMissingError(wanted=in_words(wanted, route.path))


_LARGE: Final = {f"{API}{one.path}": one for one in (APPLY, APPROVE, PROPOSE)}


def _may_be_large(path: str, principal: Principal) -> bool:
    """Whether a body may hold a whole plan: only of who may send one."""
    operation = _LARGE.get(path)
    return operation is not None and allowed(principal.scopes, operation.method, operation.route, None)


async def check(request: Request) -> None:
    """Refuse what the caller may not do, then what the operation does not take. One dependency: each one costs time."""
    await authorise(request)
    await demand_known(request)


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
    demo: DemoControl,
    live: LiveChanges,
) -> ASGIApp:
    """Put the API and the pages together; without ``workspaces`` they are refused."""
    app = _Application(
        title="Lapse",
        summary="Everything temporary, ended on time, and only on time.",
        version=__version__,
        dependencies=[Depends(check)],
        openapi_url=None,  # served by `pages`, behind the same rules as everything else
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # an empty key is an error, not another address
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.keys, app.state.requests, app.state.history = keys, requests, history
    app.state.workspaces, app.state.demo = workspaces, demo
    app.state.status, app.state.places = status_service, places
    app.state.sessions, app.state.failures, app.state.verbs = sessions, failures, verbs
    app.state.outlook, app.state.previews = Outlook(verbs(_DASHBOARD), live), PlanPreviews()
    app.state.live, app.state.row_pages, app.state.shared = live, RowPages(), SharedPages(live)
    for prefix, router in _ROUTERS:
        app.include_router(router, prefix=prefix)
    app.mount(assets.PREFIX, assets.serve, name="static")
    problems.install(app, metrics, api=API, page=render.refusal)
    guarded = Guard(
        app,
        hosts=hosts,
        admit=Admission(sessions),
        is_public=partial(is_public, api=API),
        is_form=lambda path: path.startswith(actions.PREFIX),
        log_in_page=render.log_in,
        failures=failures,
        large_bodies=_may_be_large,
    )
    routes = [(prefix, router.routes) for prefix, router in _ROUTERS]
    return MeasuredApp(guarded, metrics, routes=routes, static=assets.PREFIX)
