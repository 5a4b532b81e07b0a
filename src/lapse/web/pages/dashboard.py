"""The dashboard: what lapses next, one thing and why, plans, trash, journal, and the engine's own state.

Every page reads what it shows from the verbs of people (`lapse.engine.verbs.contract`), by the same scopes as the API,
and changes nothing. What people do on it goes through `lapse.web.pages.actions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from lapse.core.errors import LapseError
from lapse.core.timestamps import from_timestamp
from lapse.engine.journal.port import AUDIT, AuditReason, Outcome
from lapse.engine.journal.view import JournalRowView
from lapse.engine.plans.plan import Plan
from lapse.engine.verbs import operations
from lapse.engine.verbs.contract import (
    BudgetRate,
    DomainForecast,
    Forecast,
    ForecastRequest,
    JournalRequest,
    PlanRequest,
    PlansRequest,
    ProposedRequest,
    StatusView,
    TrashRequest,
    WhyRequest,
)
from lapse.engine.verbs.demo import DemoControl, DemoView
from lapse.engine.verbs.operations import StatusRequest
from lapse.engine.view import Moment, to_json
from lapse.keys.registration import KEYS
from lapse.objects.trash.rules import trash_name
from lapse.requests.api.kinds import OBJECT_KEEPER
from lapse.web.api.status import StatusService, status_service
from lapse.web.api.verbs import address_in_path, carried_out
from lapse.web.pages.outlook import Outlook
from lapse.web.pages.previews import MOST_ITEMS, PlanPreviews
from lapse.web.pages.render import look_first, page
from lapse.web.pages.shared import SharedPages

_NEXT_ROWS: Final = 30
_ENDED_ROWS: Final = 12
_ENDED_LOOKED_AT: Final = 100
_TRASH: Final = f"{OBJECT_KEEPER.word}/{trash_name('')}"
"""How addresses of the trash itself begin."""
_JOURNAL_ROWS: Final = 100
_TRASH_ROWS: Final = 200
_ENDED_WITHIN: Final = "24h"
THING: Final = "/thing/{address:path}"
"""The page of a thing, which may be the caller's own."""
_PLAN_ROWS: Final = 500
"""Items of a plan that are shown; all of them are in the document."""

router = APIRouter(include_in_schema=False, dependencies=[Depends(look_first)])


class ChartWindow(NamedTuple):
    """How far the picture of time reaches."""

    name: str
    within: str
    steps: int
    title: str


WINDOWS: Final = {
    one.name: one
    for one in (
        ChartWindow("minutes", "10m", 60, "coming ten minutes"),
        ChartWindow("hour", "1h", 60, "coming hour"),
        ChartWindow("day", "24h", 48, "coming day"),
        ChartWindow("week", "7d", 84, "coming week"),
    )
}
_DEFAULT: Final = WINDOWS["hour"]
_OF_DEMO: Final = WINDOWS["minutes"]
"""What is shown first while the demo runs: its things lapse within minutes."""


# --- what lapses next -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChartRow:
    """One step of the window, as a row of the table beside the chart."""

    start: Moment
    counts: Sequence[int | None]
    """By domain; None where nobody can tell."""

    @property
    def total(self) -> int:
        """How many lapse in it, as far as is known."""
        return sum(filter(None, self.counts))


def chart_rows(forecast: Forecast) -> Iterator[ChartRow]:
    """Yield the steps in which something lapses."""
    step = int(forecast.step_seconds * 1_000_000_000)
    for at, counts in enumerate(zip_longest(*(one.counts for one in forecast.domains))):
        if any(counts):
            yield ChartRow(Moment(forecast.now + at * step), counts)


def chart_of(forecast: Forecast) -> dict[str, Any]:
    """Return what the script of the page draws: counts by domain and step, and the budget as a line."""
    step = forecast.step_seconds
    budget = min((one.limit / one.seconds for _, one in budgets_of(forecast)), default=None)
    return {
        "start": forecast.now / 1e9,
        "step": step,
        "steps": max((len(one.counts) for one in forecast.domains), default=0),
        "series": [{"name": one.name, "counts": one.counts} for one in forecast.domains if any(one.counts)],
        "budget": None if budget is None else budget * step,
    }


def budgets_of(forecast: Forecast) -> list[tuple[str, BudgetRate]]:
    """Return the budgets over all that a forecast shows: of everything (no name), and of a domain that is alone."""
    alone = forecast.domains if len(forecast.domains) == 1 else []
    given = [("", forecast.budget), *((one.name, one.budget) for one in alone)]
    return [(name, budget) for name, budget in given if budget is not None]


async def _outlook(request: Request) -> Outlook:
    outlook: Outlook = request.app.state.outlook
    return outlook


OutlookOf = Annotated[Outlook, Depends(_outlook)]


@router.get("/")
async def next_page(
    request: Request,
    *,
    outlook: OutlookOf,
    window: Annotated[str | None, Query()] = None,
    domain: Annotated[str | None, Query()] = None,
    after: Annotated[str | None, Query()] = None,
) -> Response:
    """Show what lapses next, as a picture and as a table, and what has lapsed just now."""
    shared: SharedPages = request.app.state.shared
    return await shared.answer(request, partial(_next, request, outlook, window=window, domain=domain, after=after))


async def _next(
    request: Request, outlook: Outlook, csrf: str, *, window: str | None, domain: str | None, after: str | None
) -> Response:
    """Make the page, for everybody with the same scopes: nothing on it is of one person, but the token of its forms."""
    demo = await _demo(request)
    chosen = WINDOWS.get(window or "", _OF_DEMO if demo.running else _DEFAULT)
    asked = ForecastRequest(
        within=chosen.within, steps=chosen.steps, limit=_NEXT_ROWS, domains=[domain] if domain else [], after=after
    )
    # At once: each of them may wait a moment for a look at very many things.
    forecast, status = await asyncio.gather(outlook.forecast(asked), _status(request))
    async with outlook.turn:
        return page(
            request,
            "next.html",
            csrf=csrf,
            windows=WINDOWS.values(),
            window=chosen,
            domain=domain,
            after=after,
            forecast=forecast,
            chart=None if forecast is None else to_json(chart_of(forecast)),
            budgets=[] if forecast is None else budgets_of(forecast),
            rows=[] if forecast is None else list(chart_rows(forecast)),
            total=0 if forecast is None else sum(map(_total, forecast.domains)),
            status=status,
            now=status.now,
            ended=await _ended(request, domain, status.now),
            demo=demo,
        )


def _total(one: DomainForecast) -> int:
    return one.overdue + sum(one.counts)


async def _status(request: Request) -> StatusView:
    found: StatusView = await carried_out(request, operations.STATUS, StatusRequest())
    return found


class EndedRow(NamedTuple):
    """Something that has lapsed, or was deleted."""

    row: JournalRowView
    is_undoable: bool
    """Whether it can be brought back, as far as the journal tells."""


async def _ended(request: Request, domain: str | None, now: int) -> list[EndedRow] | str:
    """Return what has ended just now; where the journal cannot be read back, why not.

    What is emptied out of the trash is left out: that it has ended was told before.
    """
    ended = JournalRequest(since=_ENDED_WITHIN, outcome=Outcome.ENDED, limit=_ENDED_LOOKED_AT, domain=domain)
    done = JournalRequest(since=_ENDED_WITHIN, outcome=Outcome.DONE, limit=_ENDED_LOOKED_AT)
    try:
        rows = (await carried_out(request, operations.JOURNAL, ended)).items
        acts = (await carried_out(request, operations.JOURNAL, done)).items
    except LapseError as error:
        return str(error)
    settled = {(one.details or {}).get("was") for one in acts if one.reason == AuditReason.BROUGHT_BACK}
    shown: list[EndedRow] = []
    for row in rows:  # newest first: what has come of one that was ended before is known already
        if row.address.startswith(_TRASH):
            settled.add(row.address.removeprefix(_TRASH))
            continue
        shown.append(EndedRow(row, is_undoable=row.uid not in settled and _undo_until(row) > now))
        settled.add(row.uid)
    return shown[:_ENDED_ROWS]


def _undo_until(row: JournalRowView) -> int:
    until = (row.details or {}).get("undo_until")
    return from_timestamp(until) or 0 if row.address and isinstance(until, str) else 0


# --- one thing --------------------------------------------------------------------------------------------------------


@router.get(THING)
async def thing(
    request: Request,
    at: Annotated[str | None, Query()] = None,
    uid: Annotated[str | None, Query()] = None,
) -> Response:
    """Show why a thing is kept or lapses, and what can be done about it."""
    asked = WhyRequest(address=address_in_path(request), at=at, uid=uid)
    told = await carried_out(request, operations.WHY, asked)
    return page(request, "thing.html", told=told, now=told.at)


# --- plans, trash, journal --------------------------------------------------------------------------------------------


@router.get("/plans")
async def plans(
    request: Request,
    *,
    outlook: OutlookOf,
    within: Annotated[str | None, Query()] = None,
    domain: Annotated[str | None, Query()] = None,
    policy: Annotated[str | None, Query()] = None,
) -> Response:
    """Show the plans that are kept and, where a window is named, what a new one would hold."""
    status = await _status(request)
    previews: PlanPreviews = request.app.state.previews
    preview: Plan | None = None
    many, wrong = "", None
    try:
        many = await _too_many(outlook, within, domain) if within else ""
        if within and not many:
            asked = PlanRequest(within=within, domains=[domain] if domain else [], policy=policy or None)
            preview = await carried_out(request, operations.PLAN, asked)
            previews.keep(preview)
    except LapseError as error:  # what was typed stays on the page, to be corrected
        wrong = str(error)
    kept: Any = None
    problem = None
    try:
        kept = await carried_out(request, operations.PLANS, PlansRequest())
    except LapseError as error:
        problem = str(error)
    return page(
        request,
        "plans.html",
        kept=kept,
        problem=problem,
        preview=preview,
        many=many,
        wrong=wrong,
        shown=() if preview is None else preview.items[:_PLAN_ROWS],
        asked={"within": within, "domain": domain, "policy": policy},
        status=status,
        now=status.now,
    )


async def _too_many(outlook: Outlook, within: str, domain: str | None) -> str:
    """Say how many things a plan would hold, if these are more than a page can show; otherwise nothing."""
    found = await outlook.forecast(ForecastRequest(within=within, steps=1, limit=0, domains=[domain] if domain else []))
    if found is None:
        return "Very many"
    total = sum(_total(one) + one.held for one in found.domains if one.name != KEYS.name)
    return f"{total:,}" if total > MOST_ITEMS else ""


@router.get("/plans/{id}")
async def plan(request: Request, id: str) -> Response:  # noqa: A002 - as the API calls it
    """Show a plan that is kept, with who approved it, to be approved or carried out."""
    found = await carried_out(request, operations.PROPOSED, ProposedRequest(id=id))
    kept = await carried_out(request, operations.PLANS, PlansRequest())
    about = next((one for one in kept.items if one.id == id), None)
    now = (await _status(request)).now
    return page(request, "plan.html", plan=found, about=about, shown=found.items[:_PLAN_ROWS], now=now)


@router.get("/trash")
async def trash(
    request: Request,
    domain: Annotated[str | None, Query()] = None,
    after: Annotated[str | None, Query()] = None,
) -> Response:
    """Show what lapsed and can be brought back, and what it costs until then."""
    status = await _status(request)
    found: Any = None
    problem = None
    try:
        found = await carried_out(
            request, operations.TRASH, TrashRequest(domain=domain or None, limit=_TRASH_ROWS, after=after)
        )
    except LapseError as error:
        problem = str(error)
    entries = [] if found is None else sorted(found.items, key=lambda one: one.ended_at or 0, reverse=True)
    return page(
        request,
        "trash.html",
        entries=entries,
        next=None if found is None else found.next,
        problem=problem,
        size=sum(one.bytes or 0 for one in entries),
        domain=domain,
        status=status,
        now=status.now,
    )


@router.get("/journal")
async def journal(
    request: Request,
    *,
    domain: Annotated[str | None, Query()] = None,
    outcome: Annotated[str | None, Query()] = None,
    search: Annotated[str | None, Query()] = None,
    address: Annotated[str | None, Query()] = None,
    actor: Annotated[str | None, Query()] = None,
    since: Annotated[str | None, Query()] = None,
    before: Annotated[str | None, Query()] = None,
) -> Response:
    """Show what happened, newest first; ``search`` is a part of an address, as it is typed."""
    status = await _status(request)
    asked = {
        "domain": domain, "outcome": outcome, "search": search, "address": address, "actor": actor, "since": since
    }  # fmt: skip
    given = {name: value for name, value in asked.items() if value}
    found: Any = None
    problem = None
    try:
        question = JournalRequest(limit=_JOURNAL_ROWS, before=before or None, **given)
        found = await carried_out(request, operations.JOURNAL, question)
    except LapseError as error:
        problem = str(error)
    return page(
        request,
        "journal.html",
        found=found,
        problem=problem,
        asked=asked,
        before=before,
        outcomes=list(Outcome),
        domains=[AUDIT, *(one.name for one in status.domains)],
        now=status.now,
    )


# --- the engine -------------------------------------------------------------------------------------------------------


@router.get("/engine")
async def engine(request: Request, service: Annotated[StatusService, Depends(status_service)]) -> Response:
    """Show leader, loops, domains with what stops them, budgets, signals, and where things are."""
    status = await _status(request)
    return page(
        request,
        "engine.html",
        status=status,
        now=status.now,
        links=request.app.state.places(),
        keys=await service.keys(),
        demo=await _demo(request),
    )


async def _demo(request: Request) -> DemoView:
    demo: DemoControl = request.app.state.demo
    return await demo.status()
