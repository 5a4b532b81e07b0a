"""The dashboard and the API under it: a get of a key, pages, first paint, live updates, idle pages, and many of them.

``python -m bench.dashboard [--quick] [--only PART ...]`` prints one line of JSON with figures and whether the claims
hold, which its exit status says too, and writes ``docs/benchmarks-dashboard.md``.

- *api*: a get of a key beside a bare FastAPI route; see `bench.dashboard_api`.
- *pages*: bytes, first paint, live updates and an idle page in Chromium, with ten things and with a hundred thousand;
  see `bench.dashboard_pages`.
- *many*: 50 dashboards on one server; see `bench.dashboard_many`.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import dashboard_api, dashboard_many, dashboard_pages
from bench.claims import Claim
from bench.contest import median, require_linux, this_machine
from bench.dashboard_api import BARE, OURS
from bench.domain import ROOT, options_of, publish
from bench.page import claims_section, machine_section, table, verdict_on

if TYPE_CHECKING:
    from collections.abc import Collection

    from bench.contest import Machine
    from bench.dashboard_api import Rates
    from bench.dashboard_many import Many
    from bench.dashboard_pages import Idle, Pages

PARTS: Final = ("api", "pages", "many")


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that one run found out; empty what it did not measure."""

    api: dict[str, list[Rates]]
    pages: list[Pages]
    live: dict[str, list[float]]
    """Seconds from the hold to the page, by how many things there are."""
    idle: Idle | None
    many: list[Many]


def run(parts: Collection[str], folder: Path, *, quick: bool) -> Results:
    """Measure the parts."""
    api: dict[str, list[Rates]] = {}
    found: dict[str, Any] = {"pages": [], "live": {}, "idle": None}
    many: list[Many] = []
    if "api" in parts:
        (folder / "api").mkdir()
        api = dashboard_api.run(dashboard_api.QUICK if quick else dashboard_api.Plan(), folder / "api")
    if "pages" in parts:
        plan = dashboard_pages.QUICK if quick else dashboard_pages.Plan()
        found = dashboard_pages.run(plan, folder / "pages")
    if "many" in parts:
        dashboard_pages.fill(folder / "many", 10)
        with dashboard_pages.serving(folder / "many") as server:
            many = dashboard_many.run(server, dashboard_many.QUICK if quick else dashboard_many.Plan())
    return Results(api, found["pages"], found["live"], found["idle"], many)


# --- what it says -----------------------------------------------------------------------------------------------------


def _ratios(api: dict[str, list[Rates]]) -> dict[str, float]:
    if not api:
        return {}
    pairs = list(zip(api[OURS], api[BARE], strict=True))
    return {
        "by CPU": median([ours.by_cpu / bare.by_cpu for ours, bare in pairs]),
        "by wall clock": median([ours.by_wall / bare.by_wall for ours, bare in pairs]),
    }


def _idle_differences(idle: Idle) -> list[float]:
    return [one - other for one, other in zip(idle.with_percent, idle.without_percent, strict=True)]


def _idle_share(idle: Idle | None) -> dict[str, float]:
    return {} if idle is None else {"": median(_idle_differences(idle))}


def _lag(many: list[Many], dashboards: bool) -> float:  # noqa: FBT001 - with them, or without
    return max(one.lag_seconds for one in many if bool(one.dashboards) is dashboards)


def claims_of(results: Results) -> list[Claim]:
    """Return what is promised, and what this run says about it."""
    pages, idle = results.pages, results.idle
    sizes = {_things(one): median([visit.bytes for visit in one.visits]) / 1e3 for one in pages}
    paints = {_things(one): median([visit.paint_ms for visit in one.visits]) for one in pages}
    live = {f"{case}, {word}": do(took) for case, took in results.live.items() for word, do in _KINDS}
    warm = {_things(one): median(one.warm_seconds) for one in pages}
    lags = {"": _lag(results.many, True) - _lag(results.many, False)} if results.many else {}
    return [
        Claim("a get of a key against a bare FastAPI route", ">=", 0.5, _ratios(results.api), "checks, store, metrics"),
        Claim("a first visit in all", "<=", 150, sizes, "pages are not compressed", unit=" kB"),
        Claim("first paint", "<=", 300, paints, "the machine is busy: see the floor", unit=" ms"),
        Claim("a change in the page", "<=", 1, live, "the rows of so many things take longer to read", unit=" s"),
        Claim("GET / when the server is warm", "<=", 1, warm, unit=" s"),
        Claim("requests of an idle page", "<=", 0, {} if idle is None else {"": len(idle.requests)}, unit=""),
        Claim("CPU of an idle page", "<=", 0.1, _idle_share(idle), "a server wakes by itself", unit=" %"),
        Claim("lag of the loops that 50 dashboards add", "<=", 0.1, lags, "each renders the page anew", unit=" s"),
    ]


_KINDS: Final = (("median", median), ("worst", max))


def _things(one: Pages) -> str:
    return f"{one.things:,} things"


def write(results: Results, machine: Machine, *, command: str, seconds: float) -> str:
    """Return the whole page."""
    claims = claims_of(results)
    return "\n".join(
        [
            _OPENING.format(command=command, verdict=verdict_on(claims, machine)),
            claims_section(claims),
            _api_section(results.api),
            _pages_section(results.pages),
            _live_section(results.live),
            "" if results.idle is None else _idle_section(results.idle),
            _many_section(results.many),
            _METHOD,
            machine_section(machine, seconds=seconds),
        ]
    )


def _api_section(api: dict[str, list[Rates]]) -> str:
    rows = [
        [name, f"{median([one.by_cpu for one in some]):,.0f}", f"{median([one.by_wall for one in some]):,.0f}"]
        for name, some in api.items()
    ]
    return f"## The API\n\n{table(['', 'requests per CPU second', 'requests per second'], rows)}\n"


def _pages_section(pages: list[Pages]) -> str:
    rows = [
        [
            _things(one),
            f"{median([visit.bytes for visit in one.visits]) / 1e3:.0f} kB",
            f"{median([visit.paint_ms for visit in one.visits]):.0f} ms",
            f"{median(one.floor_ms):.0f} ms",
            f"{one.cold_seconds:.2f} s",
            f"{one.counted_seconds:.2f} s",
            f"{median(one.warm_seconds):.3f} s",
            f"{max(one.warm_seconds):.3f} s",
            f"{one.forecast_cpu_seconds:.2f} s",
        ]
        for one in pages
    ]
    heads = ["", "first visit", "first paint", "that of a text", "GET / cold", "until counted", "warm", "worst"]
    return f"## Pages\n\n{table([*heads, 'forecast, CPU'], rows)}\n"


def _live_section(live: dict[str, list[float]]) -> str:
    rows = [[case, str(len(took)), f"{median(took):.2f} s", f"{max(took):.2f} s"] for case, took in live.items()]
    return f"## From a hold over the API to the row in the page\n\n{table(['', 'holds', 'median', 'worst'], rows)}\n"


def _idle_section(idle: Idle) -> str:
    rows = [
        ["requests of the page, beside its stream of events", str(len(idle.requests))],
        ["CPU of the server with a page", f"{median(idle.with_percent):.2f} %"],
        ["without one", f"{median(idle.without_percent):.2f} %"],
        ["the page alone, from round to round", ", ".join(f"{one:.2f} %" for one in _idle_differences(idle))],
    ]
    return f"## An idle page\n\n{table(['', ''], rows)}\n"


def _many_section(many: list[Many]) -> str:
    rows = [
        [
            str(one.dashboards),
            str(one.changes),
            str(one.fetched),
            f"{one.lag_seconds * 1e3:.0f} ms",
            f"{one.answer_ms:.0f} ms",
            f"{one.worst_answer_ms:.0f} ms",
            f"{one.cpu_ms_per_change:.0f} ms",
        ]
        for one in many
    ]
    heads = ["dashboards", "changes", "pages fetched", "longest lag of a loop", "status", "worst", "CPU per change"]
    return f"## Many dashboards\n\n{table(heads, rows)}\n"


_OPENING: Final = """# Benchmarks of the dashboard

What the API and the pages cost, beside a bare route of the same framework and a plain file of the same server.
This page is written by the run; one command repeats it:

```
{command}
```

{verdict}
"""
_METHOD: Final = """## How it is measured

- API: `lapse up` with its keys in a file, and a bare FastAPI application behind the same listener, in processes of
  their own; eight kept connections, 40 short rounds in turn, and the median of the ratios of the rounds. CPU is that of
  the server's process. The bare route returns a constant of the same size; it checks no host, no token and no scope,
  measures nothing and reads nothing.
- Pages: Chromium without a screen, a new window with an empty cache for each visit. Bytes are all answers with their
  heads as they came over the wire. Pages themselves are not compressed, because they hold the token of their forms;
  styles and scripts are. The first paint is the browser's own figure (first contentful paint); beside it stands that of
  a plain text of the same server, visited in turn.
- Things are finished requests that all lapse within the hour, so that all of them are counted; the page shows 30.
- Live: another client holds a thing over the API, and a `MutationObserver` in the page tells when its row shows that.
- Idle: 20 s without a page, then 20 s with one, seven times in turn, and the median of the differences.
- Many: 50 streams of events that each ask for the page after a change, as its script does, while a thing is held or
  released about once a second. CPU per change includes four calls of the status for each, with dashboards and without.
"""


def main() -> None:
    """Measure, print, write."""
    options = options_of("dashboard", __doc__, PARTS).parse_args()
    require_linux()
    (ROOT / "build").mkdir(exist_ok=True)
    machine, start = this_machine(ROOT / "build"), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=ROOT / "build") as folder:
        results = run(options.only or PARTS, Path(folder), quick=options.quick)
    publish(
        "dashboard",
        options,
        figures=asdict(results),
        claims=claims_of(results),
        page="benchmarks-dashboard.md",
        write=lambda command: write(results, machine, command=command, seconds=time.perf_counter() - start),
    )


if __name__ == "__main__":
    main()
