"""The forecast for people: a chart of how much lapses when, a row for each domain, and the nearest things.

Thin over `lapse.engine.verbs.contract`, as the other verbs. All rows of the chart have one scale, so that they can be
compared; what is not nothing has a bar, however small it is against the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from lapse.cli.context import InCluster, ask
from lapse.cli.flags import VerbFlags
from lapse.cli.output import ExitCode, Output, OutputOption, message, print_document, print_table, print_views
from lapse.cli.usage import NumberError
from lapse.core.duration import SECOND, short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lapse.engine.verbs.contract import BudgetRate, DomainForecast, Forecast

_BARS: Final = "▁▂▃▄▅▆▇█"
_NOTHING: Final = "·"
_SHOWN: Final = ("address", "action", "due", "rule", "held")
"""Of the columns of a plan, those of a glance."""
_MOST_STEPS: Final = 366
_MOST_THINGS: Final = 1_000
_STYLES: Final = {"now": "yellow", "waits": "yellow"}


def forecast(
    *,
    flags: VerbFlags = VerbFlags(),
    within: Annotated[str, Parameter(metavar="DURATION", help="How far to look, such as 2h or 7d.")] = "24h",
    domain: Annotated[
        list[str] | None, Parameter(help="Only this domain; may be given several times.", negative=())
    ] = None,
    steps: Annotated[int, Parameter(metavar="N", help="Bars of the chart, from 1 to 366.")] = 48,
    limit: Annotated[int, Parameter(metavar="N", help="How many of the nearest things to show, up to 1000.")] = 10,
    after: Annotated[str | None, Parameter(metavar="PLACE", help="The next of the page before.")] = None,
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Show how much lapses when, by domain, and what comes next.

    Nothing is changed. Bars tell how much lapses in each part of the time,
    beside what is overdue and what is held.
    """
    from lapse.engine.plans.plan import COLUMNS
    from lapse.engine.verbs.contract import ForecastRequest

    for name, given, first, last in (("--steps", steps, 1, _MOST_STEPS), ("--limit", limit, 0, _MOST_THINGS)):
        if not first <= given <= last:
            raise NumberError(name=name, given=given, expected=f"a number from {first} to {last}")
    asked = ForecastRequest(within=within, domains=domain or [], steps=steps, limit=limit, after=after)
    found = ask(flags, lambda verbs: verbs.forecast(asked), cluster=cluster)
    if output.for_programs:
        print_document(output, found)
    else:
        known = [one for one in found.domains if one.counts]
        if known:
            print_table(["domain", f"from now to {_span((found.until - found.now) / SECOND)}", *_NUMBERS], _rows(known))
        if found.items:
            print_views(found.items, {name: COLUMNS[name] for name in _SHOWN}, now=found.now, styles=_STYLES)
        _tell(found, known)
    if not any(one.problem is None for one in found.domains):
        return ExitCode.FAILED
    return ExitCode.PARTLY if found.problems else ExitCode.DONE


_NUMBERS: Final = ("overdue", "lapse", "held")


def _rows(known: Sequence[DomainForecast]) -> list[tuple[object, ...]]:
    most = max(max(one.counts) for one in known)
    return [(one.name, _chart(one.counts, most), one.overdue, sum(one.counts), one.held) for one in known]


def _chart(counts: Sequence[int], most: int) -> str:
    """Return a bar for each count; the highest stands for ``most``, and only nothing has none."""
    return "".join(_BARS[(one * len(_BARS) - 1) // most] if one else _NOTHING for one in counts)


def _tell(found: Forecast, known: Sequence[DomainForecast]) -> None:
    later, overdue = sum(sum(one.counts) for one in known), sum(one.overdue for one in known)
    held, most = sum(one.held for one in known), max((max(one.counts) for one in known), default=0)
    bar = f" The highest bar is {most} in {_span(found.step_seconds)}." if most else ""
    message(f"{later} lapse by {found.until}, {overdue} are overdue, and {held} are held.{bar}")
    if found.budget is not None:
        message(f"At most {_words(found.budget)} end together.")
    for one in known:
        if one.budget is not None:
            message(f"At most {_words(one.budget)} of {one.name} end.")
    for one in found.domains:
        if one.problem is not None and one.name not in found.problems:
            message(one.problem, style="yellow")
    for name, problem in found.problems.items():
        message(f"{name} could not be read: {problem}", style="red")
    if found.next is not None:
        message(f"There are more things; --limit shows up to 1000, and the next ones begin --after '{found.next}'.")


def _words(budget: BudgetRate) -> str:
    return f"{budget.limit} in {_span(budget.seconds)}"


def _span(seconds: float) -> str:
    """Print a span without the part of a second by which the end of a window is rounded up."""
    return short(int(seconds) * SECOND)
