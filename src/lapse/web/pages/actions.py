"""Actions of the pages: each verb of people as a form, for a click or a key, with and without scripts.

``POST /act/VERB`` takes the fields of the verb's request as a form, and does what the same request of the API does, by
the same scopes. A page with live updates gets an answer without contents, and shows what it says; any other gets a page
that tells what came of it, with the way back. Where a form asks first (the field ``sure`` is its question), a script
has asked before it sends it; without one a page asks, and sends it again.

Nothing is decided here. Plans are named by their ids: ``propose`` keeps the very plan that a page has shown, and
``approve`` and ``apply`` take one that is kept. ``POST /act/log_out`` ends the session of the browser.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from json import dumps
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from lapse.engine.explanation import HoldFacts
from lapse.engine.journal.port import Outcome
from lapse.engine.safety.freeze import ALL
from lapse.engine.verbs import operations
from lapse.engine.verbs.contract import ProposedRequest
from lapse.engine.verbs.demo import DemoControl
from lapse.engine.verbs.operations import VerbOperation
from lapse.web.api.errors import InvalidFieldError, NoSuchRouteError, ScopeMissingError
from lapse.web.api.verbs import carried_out
from lapse.web.auth.scopes import START_DEMO, STOP_DEMO, allowed, wanted_scopes
from lapse.web.auth.sessions import BrowserSessions
from lapse.web.pages.forms import form_of
from lapse.web.pages.previews import PlanPreviews
from lapse.web.pages.render import is_live_update, page
from lapse.web.pages.shared import SharedPages
from lapse.web.server.security import PRINCIPAL, Principal, caller_of

PREFIX: Final = "/act/"
"""Where forms are sent."""
_THEN: Final = "then"
_SURE: Final = "sure"
_ALL: Final = {ALL: "everything"}
_MOST_NAMED: Final = 5
"""Of many things."""
_LONGEST_SAID: Final = 500
"""An answer to a script is a header, and servers on the way have limits for these."""
Act = Callable[[Request, dict[str, str]], Awaitable[str]]
router = APIRouter(include_in_schema=False)


# --- what each form does, and what is said of it ----------------------------------------------------------------------


async def _told(request: Request, operation: VerbOperation[Any, Any], fields: Mapping[str, Any]) -> Any:  # noqa: ANN401 - what the verb answers
    """Carry out a verb with the fields of a form; an empty field is one that was left out."""
    given = {name: value for name, value in fields.items() if value != ""}
    try:
        asked = msgspec.convert(given, operation.asked, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidFieldError(problem=str(error).replace(" - at `$.", ": `")) from error
    return await carried_out(request, operation, asked)


async def _hold(request: Request, fields: dict[str, str]) -> str:
    told = await _told(request, operations.HOLD, fields)
    until = "" if told.hold is None or told.hold.until is None else f" until {told.hold.until}"
    return f"Held: {told.address}{until}."


async def _release(request: Request, fields: dict[str, str]) -> str:
    told = await _told(request, operations.RELEASE, fields)
    return f"{'Released' if told.changed else 'Not held'}: {told.address}."


async def _extend(request: Request, fields: dict[str, str]) -> str:
    told = await _told(request, operations.EXTEND, fields)
    return f"Extended: {told.address} until {told.extended_until}."


async def _delete(request: Request, fields: dict[str, str]) -> str:
    told = await _told(request, operations.DELETE, fields)
    return f"Deleted: {told.address}. {(told.says or '').partition(' To bring')[0]}".rstrip()


async def _undo(request: Request, fields: dict[str, str]) -> str:
    told = await _told(request, operations.UNDO, fields)
    back = [f"{one.address}{_until(one.hold)}" for one in told.items]
    return _in_short("Brought back", back, [*told.problems.values()])


def _until(hold: HoldFacts | None) -> str:
    return "" if hold is None or hold.until is None else f", held until {hold.until}"


def _in_short(said: str, done: Sequence[str], problems: Sequence[str]) -> str:
    """Say what came of many things; the journal has them all."""
    told = [f"{said}: {_some(done, ', ')}."] if done else []
    return " ".join([*told, _some(problems, "; ")]).strip()


def _some(texts: Sequence[str], between: str) -> str:
    shown = between.join(texts[:_MOST_NAMED])
    return shown if len(texts) <= _MOST_NAMED else f"{shown} and {len(texts) - _MOST_NAMED:,} more"


async def _empty_trash(request: Request, fields: dict[str, str]) -> str:
    told = await _told(request, operations.EMPTY_TRASH, fields)
    return _in_short("Removed for good", [one.address for one in told.items], [*told.problems.values()])


async def _freeze(request: Request, fields: dict[str, str]) -> str:
    told = await _told(request, operations.FREEZE, fields)
    return f"Frozen: {_ALL.get(told.domain, told.domain)}. Lapse ends nothing of it by itself until it is resumed."


async def _resume(request: Request, fields: dict[str, str]) -> str:
    told = await _told(request, operations.RESUME, fields)
    resumed = (
        f"Resumed: {', '.join(_ALL.get(one, one) for one in told.resumed)}." if told.resumed else "Nothing was resumed."
    )
    return resumed if told.frozen is None else f"{resumed} Everything is frozen: resume everything."


async def _propose(request: Request, fields: dict[str, str]) -> str:
    previews: PlanPreviews = request.app.state.previews
    made = previews.find(fields.get("id", ""))
    if made is None:
        raise InvalidFieldError(problem="this page is too old; show the plan again, and keep that one")
    told = await carried_out(request, operations.PROPOSE, operations.PROPOSE.asked(plan=made))
    return f"Kept: plan {told.id} with {told.items} items, until {told.expires_at}."


async def _approve(request: Request, fields: dict[str, str]) -> str:
    told = await carried_out(request, operations.APPROVE, operations.APPROVE.asked(plan=await _kept(request, fields)))
    return f"Approved: plan {told.plan}."


async def _apply(request: Request, fields: dict[str, str]) -> str:
    told = await carried_out(request, operations.APPLY, operations.APPLY.asked(plan=await _kept(request, fields)))
    others = Counter(one.outcome for one in told.items if one.outcome != Outcome.ENDED)
    left = "".join(f", {count:,} {outcome.replace('_', ' ')}" for outcome, count in others.most_common())
    return f"Plan {told.plan}: {told.ended:,} ended{left}."


async def _kept(request: Request, fields: Mapping[str, str]) -> Any:  # noqa: ANN401 - a plan
    return await carried_out(request, operations.PROPOSED, ProposedRequest(id=fields.get("id", "")))


async def _start_demo(request: Request, _: dict[str, str]) -> str:
    demo = _demo_for(request, START_DEMO)
    await demo.start()
    return "The demo runs. It ends by itself after an hour."


async def _stop_demo(request: Request, _: dict[str, str]) -> str:
    told = await _demo_for(request, STOP_DEMO).stop(caller_of(request))
    return " ".join(("The demo is removed.", *told.problems.values()))


def _demo_for(request: Request, route: str) -> DemoControl:
    """Return the demo for who may do this with it; raises `ScopeMissingError`."""
    principal: Principal = request.scope[PRINCIPAL]
    if not allowed(principal.scopes, "POST", route, None):
        raise ScopeMissingError(wanted=", ".join(wanted_scopes("POST", route, None)))
    demo: DemoControl = request.app.state.demo
    return demo


ACTS: Final[Mapping[str, Act]] = {
    "hold": _hold,
    "release": _release,
    "extend": _extend,
    "delete": _delete,
    "undo": _undo,
    "empty_trash": _empty_trash,
    "freeze": _freeze,
    "resume": _resume,
    "propose": _propose,
    "approve": _approve,
    "apply": _apply,
    "start_demo": _start_demo,
    "stop_demo": _stop_demo,
}
"""By the names of the verbs."""


@router.post(PREFIX + "log_out")
async def log_out(request: Request) -> Response:
    """End the session of a browser, and show the page that begins another."""
    await form_of(request)
    sessions: BrowserSessions = request.app.state.sessions
    cookie = sessions.end(port=request.scope["server"][1], tls=request.scope["scheme"] == "https")
    return Response(status_code=303, headers={"Location": "/", "Set-Cookie": cookie})


@router.post(PREFIX + "{verb}")
async def act(request: Request, verb: str) -> Response:
    """Do what a form asks for; who may is looked at where the verb is carried out."""
    how = ACTS.get(verb)
    if how is None:
        raise NoSuchRouteError
    fields = await form_of(request)
    then = _own_path(fields.pop(_THEN, "/"))
    sure = fields.pop(_SURE, "")
    if sure and not is_live_update(request):
        return page(request, "sure.html", sure=sure, verb=verb, fields=fields, then=then)
    said = await how(request, fields)
    shared: SharedPages = request.app.state.shared
    shared.forget()
    return done(request, said, then)


def done(request: Request, said: str, then: str) -> Response:
    """Return the answer to a form that was carried out."""
    if is_live_update(request):
        text = said if len(said) <= _LONGEST_SAID else f"{said[:_LONGEST_SAID]}…"
        # ASCII only: what is said names things of people, and a header takes nothing else.
        return Response(status_code=204, headers={"HX-Trigger": dumps({"lapse:said": {"text": text}})})
    return page(request, "done.html", said=said, then=then)


def _own_path(then: str) -> str:
    """Return the way back that a form names, if it is one of our own pages."""
    is_ours = then.startswith("/") and not then.startswith(("//", "/\\"))
    return then if is_ours and then.isprintable() else "/"
