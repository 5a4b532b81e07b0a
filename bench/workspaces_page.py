"""The page ``docs/benchmarks-workspaces.md`` and its claims, written from the results of one run."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from math import isnan
from typing import TYPE_CHECKING, Any, Final

from bench.claims import Claim, size_name
from bench.contest import median
from bench.page import claims_section, machine_section, table, verdict_on
from bench.proxy_peers import CHP, NGINX, OURS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.contest import Machine
    from bench.proxy_load import Figures

_SCALED: Final = "the document's algorithm, measured at the smaller size and scaled"
_BUSY: Final = "on a busy machine everybody waits for a processor"


@dataclass(frozen=True, slots=True)
class Ticks:
    """What ticks took, in seconds, and the peak memory of their process."""

    workspaces: int
    seconds: float
    spread: tuple[float, float]
    peak_mb: float


@dataclass(frozen=True, slots=True)
class Flush:
    """What one flush cost the server."""

    cpu_ms: float
    wal_kb: float
    hot: float
    """The share of rows that were updated without touching an index."""


@dataclass(frozen=True, slots=True)
class ProxyFigures:
    """All about one proxy: round by round, and kilobytes per idle websocket."""

    websocket: Sequence[Figures]
    http: Sequence[Figures]
    idle_kb: float


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that one run found out."""

    due: int
    flushed: int
    idle: int
    """Idle websockets, through each proxy."""
    ours: Sequence[Ticks] = ()
    seed: Ticks | None = None
    with_deadlines: Sequence[Flush] = ()
    without: Sequence[Flush] = ()
    proxies: Mapping[str, ProxyFigures] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    """Proxies that could not be had, and why."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of servers and proxies."""

    def figures(self) -> dict[str, Any]:
        """Return everything for a line of JSON."""
        return {
            "ticks": [asdict(one) for one in self.ours],
            "seed": None if self.seed is None else asdict(self.seed),
            "flush": {"cpu": _flush_ratio(self, "cpu_ms"), "wal": _flush_ratio(self, "wal_kb")},
            "proxy": ratios(self.proxies),
        }


def _flush_ratio(results: Results, what: str) -> float | None:
    pairs = zip(results.with_deadlines, results.without, strict=True)
    found = [getattr(ours, what) / getattr(plain, what) for ours, plain in pairs]
    return median(found) if found else None


def ratios(proxies: Mapping[str, ProxyFigures]) -> dict[str, dict[str, float]]:
    """Return what is claimed: ours divided by the other's, the median of the rounds."""
    mine = proxies.get(OURS)
    if mine is None:
        return {}
    found: dict[str, dict[str, float]] = {}
    for name, other in proxies.items():
        if name == OURS:
            continue
        each = {
            "websocket CPU": _ratio(_cpu(mine.websocket), _cpu(other.websocket)),
            "HTTP requests/s": _ratio(_rate(mine.http), _rate(other.http)),
            "HTTP CPU": _ratio(_cpu(mine.http), _cpu(other.http)),
            "idle memory": mine.idle_kb / other.idle_kb,
        }
        found[name] = {what: value for what, value in each.items() if not isnan(value)}
    return found


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def _cpu(figures: Sequence[Figures]) -> list[float]:
    return [each.cpu_us for each in figures]


def _rate(figures: Sequence[Figures]) -> list[float]:
    return [each.per_second for each in figures]


# --- claims ----------------------------------------------------------------------------------------------------------


def claims_of(results: Results) -> list[Claim]:
    """Return what is promised, with what was measured."""
    return [*_tick_claims(results), *_flush_claims(results), *_proxy_claims(results)]


def _tick_claims(results: Results) -> list[Claim]:
    if results.seed is None or not results.ours:
        return []
    small, large = results.ours[0], results.ours[-1]
    scaled = results.seed.seconds * large.workspaces / results.seed.workspaces
    size = size_name(large.workspaces)
    return [
        Claim(f"a tick over {size}: {_SCALED}, against ours", ">=", 1000, {"": scaled / large.seconds}, _BUSY),
        Claim(
            f"a tick over {size} against one over {size_name(small.workspaces)}, as many due",
            "<=",
            1.3,
            {"": large.seconds / small.seconds},
            _BUSY,
        ),
        Claim(f"a tick over {size}: peak memory of the client", "<=", 100, {"": large.peak_mb}, unit=" MB"),
    ]


def _flush_claims(results: Results) -> list[Claim]:
    cpu, wal = _flush_ratio(results, "cpu_ms"), _flush_ratio(results, "wal_kb")
    if cpu is None or wal is None:
        return []
    subject = f"flushing {results.flushed:,} access times, against a table without any index by deadline"
    return [Claim(subject, "<=", 1.2, {"CPU": cpu, "WAL": wal}, _BUSY)]


def _proxy_claims(results: Results) -> list[Claim]:
    found = ratios(results.proxies)
    promised: list[tuple[str, str, str, float]] = [
        ("websocket CPU", CHP, "<=", 1.0),
        ("websocket CPU", NGINX, "<=", 2.0),
        ("idle memory", CHP, "<=", 0.5),
        ("HTTP requests/s", CHP, ">=", 0.8),
    ]
    titles = {
        "websocket CPU": "processor time of a websocket round trip against",
        "idle memory": "memory of an idle websocket, lease included, against",
        "HTTP requests/s": "HTTP requests per second against",
    }
    return [
        Claim(f"{titles[what]} {name}", sign, limit, {"": found[name][what]}, _BUSY)
        for what, name, sign, limit in promised
        if what in found.get(name, {})
    ]


# --- the page --------------------------------------------------------------------------------------------------------


def write(results: Results, machine: Machine, *, command: str, seconds: float) -> str:
    """Return the whole page."""
    claims = claims_of(results)
    parts = [
        _OPENING.format(command=command, verdict=verdict_on(claims, machine)),
        claims_section(claims),
        _tick_figures(results),
        _flush_figures(results),
        _proxy_figures(results),
        _METHOD,
        machine_section(machine, seconds=seconds, versions=list(results.versions.items())),
    ]
    return "\n".join(part for part in parts if part)


_OPENING: Final = """# Benchmarks of workspaces

What it costs to look after a million workspaces on PostgreSQL and Redis, and to stand between them and their users.
This page is written by the run; one command repeats it:

```
{command}
```

{verdict}

Everything runs on one machine and takes its share of it: compare within the run, not with other machines.
"""


def _tick_figures(results: Results) -> str:
    if results.seed is None:
        return ""
    named = [(f"Lapse, {size_name(one.workspaces)}", one) for one in results.ours]
    named.append((f"the founding document's, {size_name(results.seed.workspaces)}", results.seed))
    rows = [
        [
            name,
            f"{one.seconds * 1000:,.0f} ms",
            f"{one.spread[0] * 1000:,.0f} to {one.spread[1] * 1000:,.0f} ms",
            f"{one.peak_mb:.0f} MB",
        ]
        for name, one in named
    ]
    return f"""## A tick

All workspaces run; {results.due:,} of them are due and nobody is connected to those, somebody is to each of the others.
*Lapse* is the whole of it: query, activity, change and a journal on disk. *The founding document's* algorithm asks for
all rows, and then Redis twice for each; it keeps no journal.

{table(["", "median", "from ... to", "peak memory"], rows)}
"""


def _flush_figures(results: Results) -> str:
    if not results.with_deadlines:
        return ""
    rows = [
        [
            name,
            f"{median([one.cpu_ms for one in costs]):.0f} ms",
            f"{median([one.wal_kb for one in costs]):,.0f} KB",
            f"{median([one.hot for one in costs]):.1%}",
        ]
        for name, costs in (("as it is", results.with_deadlines), ("without", results.without))
    ]
    return f"""## A flush of access times

{results.flushed:,} access times, in batches of a thousand, on the table as it is and on a copy without the indexes by
deadline. *Heap-only* updates are those that touch no index at all.

{table(["table", "CPU of the server", "WAL", "heap-only"], rows)}
"""


def _proxy_figures(results: Results) -> str:
    if not results.proxies:
        return ""
    rows = []
    for name, one in results.proxies.items():
        values = [_cpu(one.websocket), _rate(one.websocket), _cpu(one.http), _rate(one.http), [one.idle_kb]]
        rows.append([name, *(_number(statistics.median(each)) for each in values)])
    missing = "".join(f"\n{name} was not measured: {why}.\n" for name, why in results.missing.items())
    headings = ["", "us CPU/round trip", "round trips/s", "us CPU/request", "requests/s", "KB/idle websocket"]
    return f"""## The proxy

Before the same program, in turn. *aiohttp* is a bare proxy on that library, for HTTP only and without any of our
checks. Websockets: messages of 512 bytes, echoed. HTTP: kept connections, answers of a kilobyte. Memory: what
{results.idle:,} more idle websockets add to a process that has a thousand; in the case of Lapse, with a lease for each.

{table(headings, rows)}
{missing}"""


def _number(value: float) -> str:
    if isnan(value):
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


_METHOD: Final = """## How it is measured

- Each contender of the tick has a process of its own; a warm-up tick is not counted. Between two ticks the same
  workspaces are made due again, and the table is vacuumed, so that each tick meets the same table.
- PostgreSQL has 2 GB of shared buffers, so that the larger table fits into them as the smaller one does. With 512 MB,
  where it does not, a tick over 1M took 1.5 times as long as one over 100k.
- The server's processor time is that of the process that serves the connection; WAL is what the server says.
- Flushes go to both tables in turn; a ratio is the median of the ratios of the pairs.
- Proxies take turns within every round, so that a busy moment hits all alike; a ratio is the median of the rounds'.
"""
