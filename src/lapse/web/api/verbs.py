"""The verbs of people over HTTP, for every domain: plan, apply, approve, why, hold, release, extend, delete and more.

The routes are made of `lapse.engine.verbs.operations`, and carried out by what ``create_app`` is given: nothing is
decided here but who may ask. What only reads takes its fields from the query, and an address or an id from the path;
the others take a JSON body. `GET /status` is in `lapse.web.api.status`.

A scope is looked at before anything else; four things depend on what is asked, and are looked at here. A legal hold,
placed or released, needs ``legal``, and any other ``holds``. Who has the workspaces of an owner or the keys of an
application may ask about these and steer them: a workspace of somebody else is answered like one that does not exist,
and keys are asked about and steered by nobody else but ``admin`` and ``read``, because an answer would tell whether
there is a key of that name. And who may not see values gets rows of the journal without their details, and explanations
without what programs and probes have said.

Not guaranteed: that a workspace which changes its owner while a request is under way is not steered by the one before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import getdoc
from typing import Any, Final, Protocol
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from lapse.domains import REGISTRY
from lapse.engine.journal.view import without_details
from lapse.engine.verbs.contract import Forecast, Verbs
from lapse.engine.verbs.operations import HOLD, JOURNAL, OPERATIONS, RELEASE, STATUS, UNDO, WHY, VerbOperation
from lapse.engine.verbs.place import Caller
from lapse.engine.view import schemas
from lapse.keys.registration import KEYS
from lapse.web.api.errors import ScopeMissingError, WorkspacesNotServedError
from lapse.web.api.forms import Answer, answer, problems, verbs_of
from lapse.web.api.workspaces import WorkspacesService
from lapse.web.auth.scopes import ADMIN, HOLDS, LEGAL, READ, Owners, may_decide, owners_in, sees_values, wanted_scopes
from lapse.web.server.security import PRINCIPAL, Principal
from lapse.workspaces.errors import UnknownWorkspaceError
from lapse.workspaces.registration import WORKSPACES


class LocalVerbs(Verbs, Protocol):
    """The verbs of this process, with what its own pages ask for besides."""

    async def refresh_forecast(self, shown: Forecast) -> Forecast:
        """Return a forecast that is shown with its things as they are now; what was counted stays."""
        ...


VerbsOf = Callable[[Caller], LocalVerbs]
"""Returns the verbs on behalf of a caller."""
_ADDRESS: Final = "address"
_STEERING: Final = frozenset({HOLD.verb, RELEASE.verb})

router = APIRouter(tags=["verbs"])
of_things = APIRouter(tags=["verbs"])
"""Those that are about one thing, which may be the caller's own."""


# --- who may ----------------------------------------------------------------------------------------------------------


async def allowed_request(request: Request, operation: VerbOperation[Any, Any], asked: Any) -> Any:  # noqa: ANN401 - of any verb
    """Return what is asked, narrowed to what the caller's scopes allow; raises `ScopeMissingError`."""
    principal: Principal = request.scope[PRINCIPAL]
    scopes = principal.scopes
    wanted = wanted_scopes(operation.method, operation.route, None)
    if operation.verb in _STEERING:
        wanted = [ADMIN, LEGAL if asked.legal else HOLDS]
    if _is_key(operation, asked):  # its name is a secret: rights on things of every domain are none on keys
        wanted = [one for one in wanted if one in {ADMIN, READ}]
    if not scopes.isdisjoint(wanted):
        return asked
    if operation.of_thing and asked.address is not None and not getattr(asked, "legal", False):
        return await _own(request, operation, asked, wanted)
    raise ScopeMissingError(wanted=", ".join(wanted))


def _is_key(operation: VerbOperation[Any, Any], asked: Any) -> bool:  # noqa: ANN401 - of any verb
    address: str | None = asked.address if operation.of_thing else None
    return address is not None and address.partition("/")[0] in {
        word for one in KEYS.kinds for word in (one.name, *one.also)
    }


async def _own(
    request: Request,
    operation: VerbOperation[Any, Any],
    asked: Any,  # noqa: ANN401 - of any verb
    wanted: list[str],
) -> Any:  # noqa: ANN401 - as above
    """Refuse a thing that is not the caller's own."""
    address = REGISTRY.parse(asked.address)
    principal: Principal = request.scope[PRINCIPAL]
    owner = REGISTRY.owner_of(address.kind)
    if owner is KEYS:
        own = f"{KEYS.name}:{address.scope}"
        if own not in principal.scopes:
            raise ScopeMissingError(wanted=", ".join([*wanted, own]))
        return asked
    owners = owners_in(principal.scopes, operation.method)
    if owner is not WORKSPACES or not owners.names:
        raise ScopeMissingError(wanted=", ".join(wanted))
    service: WorkspacesService | None = request.app.state.workspaces
    if service is None:
        raise WorkspacesNotServedError
    uid = await _uid_of_gone(service, operation, address.name, owners, uid=getattr(asked, "uid", None))
    return asked if uid is None else msgspec.structs.replace(asked, uid=uid)


async def _uid_of_gone(
    service: WorkspacesService, operation: VerbOperation[Any, Any], name: str, owners: Owners, *, uid: str | None
) -> str | None:
    """Refuse somebody else's workspace; of those that are gone, only the caller's own are asked about or brought back.

    Returns the uid of one that is gone, because others may have had its name before or since; None for one that is not.
    """
    if operation is not UNDO:
        try:
            found = await service.find(name, owners)
        except UnknownWorkspaceError:
            if operation is not WHY:
                raise
        else:
            if operation is not WHY or uid in {None, found.id}:  # what is to be changed is compared where it is done
                return None
    return await service.find_gone(name, owners, uid=uid)


# --- what is asked, and what is answered ------------------------------------------------------------------------------


async def _asked(request: Request, operation: VerbOperation[Any, Any]) -> Any:  # noqa: ANN401 - of any verb
    """Read what is asked; what has another form is answered like any other request that has."""
    in_path, query, body = _in_path(request, operation), request.query_params.multi_items(), await request.body()
    try:
        return operation.read(in_path=in_path, query=query, body=body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        problem, _, where = str(error).partition(" - at `$")
        place = ("query" if operation.reads else "body", *filter(None, where.strip(".`").split(".")))
        raise RequestValidationError([{"loc": place, "msg": problem}]) from error


def _in_path(request: Request, operation: VerbOperation[Any, Any]) -> str | None:
    """Return what stands in the path; an address as it came."""
    if operation.in_path == _ADDRESS:
        return address_in_path(request)
    decoded: str | None = request.path_params.get(operation.in_path or "")
    return decoded


def address_in_path(request: Request) -> str:
    """Return the address that stands in the path, as it came: decoding it is the business of its grammar."""
    raw: bytes = request.scope.get("raw_path") or quote(request.url.path).encode()
    before = request.scope["route"].path.partition("{")[0]
    return raw.decode("latin-1").partition("?")[0].partition(before)[2]


def _shown(operation: VerbOperation[Any, Any], told: Any, principal: Principal) -> Any:  # noqa: ANN401 - of any verb
    if sees_values(principal.scopes):
        return told
    if operation is JOURNAL:
        return msgspec.structs.replace(told, items=[*map(without_details, told.items)])
    if operation is WHY and may_decide(principal.scopes):
        return msgspec.structs.replace(told, trouble=None, facts={}, journal=[*map(without_details, told.journal)])
    return told


# --- the routes -------------------------------------------------------------------------------------------------------


async def carried_out(request: Request, operation: VerbOperation[Any, Any], asked: Any) -> Any:  # noqa: ANN401 - of any verb
    """Carry out a verb on behalf of who asks, as far as their scopes allow; return what they may see of the answer."""
    asked = await allowed_request(request, operation, asked)
    verb = getattr(verbs_of(request), operation.verb)
    told = await (verb() if operation is STATUS else verb(asked))
    return _shown(operation, told, request.scope[PRINCIPAL])


def _handler(operation: VerbOperation[Any, Any]) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        return Answer(await carried_out(request, operation, await _asked(request, operation)))

    return handle


def _described(operation: VerbOperation[Any, Any]) -> dict[str, Any]:
    """Return what OpenAPI says of a request: the framework does not see what a route reads itself."""
    schema = answer(operation.asked)["content"]
    if not operation.reads:
        return {"requestBody": {"required": True, "content": schema}}
    known = schemas([operation.asked])[operation.asked.__name__]
    return {
        "parameters": [
            {"name": name, "in": "query", "required": name in known["required"], "schema": field}
            for name, field in known["properties"].items()
            if name in operation.query
        ]
        + ([] if operation.in_path is None else [_described_in_path(operation.in_path)])
    }


def _described_in_path(name: str) -> dict[str, Any]:
    described = {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    if name == _ADDRESS:
        described["description"] = "As in workspace/lab: with its slashes, and percent-encoded as everywhere"
    return described


for _operation in OPERATIONS:
    if _operation is not STATUS:
        (of_things if _operation.of_thing else router).add_api_route(
            _operation.route,
            _handler(_operation),
            methods=[_operation.method],
            name=_operation.verb,
            operation_id=_operation.verb,
            summary=_operation.asked.__doc__,
            description=getdoc(getattr(Verbs, _operation.verb)),
            responses={200: answer(_operation.told), **problems(*_operation.problems)},
            openapi_extra=_described(_operation),
        )
