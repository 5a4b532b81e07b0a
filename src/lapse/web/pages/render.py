"""Pages as HTML: templates, the content security policy, and which part of a page a live view asks for.

Every page is complete without a script. A script of ours asks for the same address again when something has changed,
with the header ``HX-Request``, and gets the block ``live`` of the template alone. There is no inline script and no
inline style, here or elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from fastapi import Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.environment import TemplateModule
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, Response

from lapse import __version__
from lapse.core.duration import short
from lapse.core.errors import LapseError
from lapse.domains import REGISTRY
from lapse.engine.explanation import words
from lapse.engine.registry import BrokenDomainError, DomainVerb, NoSuchDomainError
from lapse.engine.verbs.operations import WHY
from lapse.engine.view import Moment, to_json
from lapse.web.api.errors import TokenMissingError, TooManyFailuresError
from lapse.web.auth.scopes import has_own, may_act
from lapse.web.live import LiveChanges
from lapse.web.pages.assets import url_of
from lapse.web.pages.forms import csrf_of
from lapse.web.pages.workspaces import span
from lapse.web.server.security import NOBODY, PRINCIPAL, Principal, caller_of

_POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none';"
    " script-src 'self'; connect-src 'self'; form-action 'self'"
)
_SECOND: Final = 1_000_000_000
_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_BYTE_STEP: Final = 1024
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
_PATH: Final = "/:@+=,%"
_SEEN: Final = "seen"


@dataclass(frozen=True, slots=True)
class PageLinks:
    """Where things are, as links."""

    api: str
    """This server, as ``http://host:port``."""
    probes: str
    """The listener of the probes."""


@dataclass(frozen=True, slots=True)
class NavEntry:
    """One page of the dashboard."""

    path: str
    title: str
    icon: str


NAVIGATION: Final = (
    NavEntry("/", "Next", "clock"),
    NavEntry("/requests", "Requests", "camera"),
    NavEntry("/workspaces", "Workspaces", "window"),
    NavEntry("/history", "History", "stack"),
    NavEntry("/keys", "Keys", "key"),
    NavEntry("/plans", "Plans", "list"),
    NavEntry("/trash", "Trash", "bin"),
    NavEntry("/journal", "Journal", "book"),
    NavEntry("/engine", "Engine", "gear"),
)
"""The pages, in the order in which they are shown."""


def ago(then: Moment | int | None, now: int) -> str:
    """Print how long ago something was."""
    return "not yet" if then is None else f"{span((now - then) / _SECOND)} ago"


def until(then: Moment | int | None, now: int) -> str:
    """Print when something will be."""
    if then is None:
        return "unknown"
    return f"in {short(then - now)}" if then > now else "now"


def in_bytes(size: int | None) -> str:
    """Print a size for people."""
    if size is None:
        return "not known"
    value, unit = float(size), 0
    while value >= _BYTE_STEP and unit < len(_BYTE_UNITS) - 1:
        value, unit = value / _BYTE_STEP, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {_BYTE_UNITS[unit]}"


def thing_url(address: str) -> str:
    """Return the page of a thing; an address is percent-encoded already, where that is needed."""
    return f"/thing/{quote(address, safe=_PATH)}"


def with_query(path: str, **given: object) -> str:
    """Return an address with a query of what is not None."""
    query = {name: value for name, value in given.items() if value not in {None, ""}}
    return f"{path}?{urlencode(query)}" if query else path


def clock_time(moment: Moment | int) -> str:
    """Print the time of day of a moment, in UTC."""
    return str(Moment(moment))[11:19]


def _budget(limit: str) -> str:
    """Write a budget as it is set, such as 100000/1h, for people."""
    most, _, window = limit.partition("/")
    return f"{int(most):,} in {window}" if window else limit


def _detail(value: object) -> str:
    """Print a detail of a row of the journal."""
    match value:
        case dict():
            return ", ".join(f"{name}: {_detail(one)}" for name, one in value.items())
        case list():
            return ", ".join(map(_detail, value))
        case _:
            return str(value)


def times(text: object) -> Markup:
    """Escape a text for people, with the times in it as those of the reader, where there are scripts."""
    plain, found = _MOMENT.split(str(text)), _MOMENT.findall(str(text))
    marked = [Markup('<time datetime="{0}" data-local>{0}</time>').format(one) for one in found]
    return Markup("").join(one for pair in zip_longest(map(escape, plain), marked, fillvalue="") for one in pair)


def supports(domain: str, verb: str) -> bool:
    """Whether a verb makes sense for a domain; not of one that is not known here."""
    try:
        return REGISTRY.get(domain).supports(DomainVerb(verb))
    except (NoSuchDomainError, BrokenDomainError):
        return False


@cache
def _parts(*, linked: bool) -> TemplateModule:
    """Return the macros; ``linked``: whether things are links to why they lapse."""
    return _templates().get_template("parts.html").make_module({"linked": linked})


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "span": span,
        "number": lambda number: f"{number:,}",
        "words": words,
        "budget": _budget,
        "bytes": in_bytes,
        "detail": _detail,
        "times": times,
        "plain": lambda text: str(text).replace("_", " "),
        "iso": lambda moment: str(Moment(moment)),
        "clock": clock_time,
    }
    environment.globals |= {
        "asset": url_of,
        "ago": ago,
        "until": until,
        "thing_url": thing_url,
        "supports": supports,
        "with_query": with_query,
        "navigation": NAVIGATION,
        "version": __version__,
    }
    environment.globals["parts"] = environment.get_template("parts.html").make_module({"linked": True})
    return environment


def is_live_update(request: Request) -> bool:
    """Whether a script of ours asks for what has changed on a page that is shown already."""
    return request.headers.get("hx-request") == "true"


def own_url(request: Request) -> str:
    """Return the address of a page as it was asked for: decoded, it may be that of another thing."""
    path: bytes = request.scope["raw_path"]
    return path.decode("ascii") + (f"?{request.url.query}" if request.url.query else "")


async def look_first(request: Request) -> None:
    """Note what has changed so far, before a page is made: its script then knows whether it has missed something."""
    if not is_live_update(request):
        live: LiveChanges = request.app.state.live
        setattr(request.state, _SEEN, await live.seen())


def page(request: Request, template_name: str, *, status_code: int = 200, **values: object) -> Response:
    """Return a page, or the live part of it, for the person who asks."""
    principal: Principal = request.scope[PRINCIPAL]
    known: Mapping[str, Any] = {
        **_person(request, principal),
        "updating": is_live_update(request),
        "seen": to_json(getattr(request.state, _SEEN, {})),
        "here": request.url.path,
        "then": own_url(request),
        **values,
    }
    template = _templates().get_template(template_name)
    if is_live_update(request) and "live" in template.blocks:
        text = "".join(template.blocks["live"](template.new_context(dict(known))))
    else:
        text = template.render(known)
    found = _html(text, status_code)
    # With no-referrer, which all other answers have, browsers send forms from an origin of ``null``, which is refused.
    found.headers["Referrer-Policy"] = "same-origin"
    return found


def log_in(error: LapseError) -> Response:
    """Tell a browser without a session how to get one. Shows nothing of anybody's."""
    told = None if isinstance(error, TokenMissingError) else str(error)
    text = _templates().get_template("log_in.html").render(told=told, here="", may=frozenset(), me="", csrf="")
    found = _html(text, error.status)
    found.headers.update(error.answer_headers() if isinstance(error, TooManyFailuresError) else {})
    return found


def _person(request: Request, principal: Principal) -> dict[str, Any]:
    """Return who is logged in, for the head of a page and its forms; nobody where nobody is."""
    if not principal.token_id:
        return {"may": frozenset(), "csrf": "", "me": ""}
    may = may_act(principal.scopes)
    linked = WHY.verb in may or has_own(principal.scopes)
    return {"may": may, "csrf": csrf_of(request), "me": caller_of(request).name, "parts": _parts(linked=linked)}


def refusal(request: Request, error: LapseError, instance: str) -> Response:
    """Return the page that tells a person what was wrong; ``instance`` is the id of the request."""
    person = _person(request, request.scope.get(PRINCIPAL, NOBODY))
    values = {"error": error, "instance": instance, "here": "", **person}
    return _html(_templates().get_template("error.html").render(values), error.status)


def _html(text: str, status_code: int) -> Response:
    return HTMLResponse(text, status_code, headers={"Content-Security-Policy": _POLICY, "Vary": "HX-Request"})
