"""The page ``docs/benchmarks-history.md`` and its claims, written from the results of one run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.claims import Claim, size_name
from bench.page import claims_section, machine_section, table, verdict_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.contest import Machine

_NAMES: Final = {"pass": "**a pass**", "listed": "a pass that has to list", "naive": "the naive way"}
_BUSY: Final = "on a busy machine everybody waits for a processor"


@dataclass(frozen=True, slots=True)
class Clear:
    """What it took to find that nothing is due. Memory in MiB above idle, at its most."""

    records: int
    way: str
    seconds: float
    memory: float


@dataclass(frozen=True, slots=True)
class Worst:
    """What it took to end nearly all records of one group."""

    records: int
    seconds: float
    memory: float


@dataclass(frozen=True, slots=True)
class OnCluster:
    """A pass over an API server with nothing due, and a full list in pages of the same size. In MiB."""

    records: int
    page: int
    calls: int
    seconds: float
    read: float
    list_seconds: float
    list_read: float


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that one run found out."""

    rounds: int
    clear: Sequence[Clear] = ()
    worst: Sequence[Worst] = ()
    cluster: OnCluster | None = None
    version: str = ""

    def figures(self) -> dict[str, Any]:
        """Return everything for a line of JSON."""
        return {
            "clear": [_rounded(one) for one in self.clear],
            "worst": [_rounded(one) for one in self.worst],
            "cluster": None if self.cluster is None else _rounded(self.cluster),
        }

    def of(self, way: str) -> dict[int, Clear]:
        """Return what one way took, by the number of records."""
        return {one.records: one for one in self.clear if one.way == way}


def _rounded(figures: Clear | Worst | OnCluster) -> dict[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(figures).items()}


# --- claims ----------------------------------------------------------------------------------------------------------


def claims_of(results: Results) -> list[Claim]:
    """Return what is promised, and what this run says about it."""
    passes, naive, cluster = results.of("pass"), results.of("naive"), results.cluster
    small = {size_name(size): one.seconds for size, one in passes.items() if size <= 100_000}
    ratios = {size_name(size): naive[size].seconds / one.seconds for size, one in passes.items()}
    measured: list[Clear | Worst] = [*results.clear, *results.worst]
    memory = {
        limit: {
            f"{size_name(one.records)} {_case(one)}": one.memory
            for one in measured
            if (one.records <= 100_000) is (limit == 100) and _case(one) != "naive"
        }
        for limit in (100, 200)
    }
    calls = {} if cluster is None else {"": cluster.calls / -(-cluster.records // cluster.page)}
    return [
        Claim("nothing due, up to 100k records: a full pass", "<=", 2, small, _BUSY, unit=" s"),
        Claim("nothing due: a full pass against the naive way", ">=", 5, ratios, _BUSY),
        Claim("memory above idle, up to 100k records", "<=", 100, memory[100], unit=" MiB"),
        Claim("memory above idle, up to 1M records", "<=", 200, memory[200], unit=" MiB"),
        Claim("API server: list calls of a pass against records / page", "<=", 1, calls, "a listing was begun again"),
    ]


def _case(one: Clear | Worst) -> str:
    return "worst case" if isinstance(one, Worst) else one.way


# --- the page --------------------------------------------------------------------------------------------------------


def write(results: Results, machine: Machine, *, command: str, seconds: float) -> str:
    """Return the whole page."""
    claims = claims_of(results)
    parts = [
        _OPENING.format(command=command, verdict=verdict_on(claims, machine)),
        claims_section(claims),
        _clear_figures(results),
        _worst_figures(results.worst),
        _cluster_figures(results.cluster),
        _METHOD.format(rounds=results.rounds),
        machine_section(machine, seconds=seconds, versions=[["Kubernetes", results.version or "-"]]),
    ]
    return "\n".join(part for part in parts if part)


_OPENING: Final = """# Benchmarks of retention

What it costs to look after many records, on the embedded store and on an API server. This page is written by the run;
one command repeats it:

```
{command}
```

{verdict}
"""


def _clear_figures(results: Results) -> str:
    if not results.clear:
        return ""
    rows = [
        [size_name(one.records), _NAMES[one.way], f"{one.seconds:.2f} s", f"{one.memory:.0f} MiB"]
        for one in results.clear
    ]
    return f"""## Nothing is due

A hundred records for each experiment, which is as many as its limit allows, none of them too old. *A pass* is what the
hourly loop does: it asks the store how many records there are of which labels, and is done when none can be due. When
some may be, it lists them, metadata only, in pages: that is *a pass that has to list*. *The naive way* lists all
records, whole and typed, ten thousand at a time, and sorts the times and names of each experiment.

{table(["records", "", "time", "memory above idle"], rows)}
"""


def _worst_figures(worst: Sequence[Worst]) -> str:
    if not worst:
        return ""
    rows = [
        [size_name(one.records), f"{one.seconds:.1f} s", f"{one.records / one.seconds:,.0f}", f"{one.memory:.0f} MiB"]
        for one in worst
    ]
    return f"""## Everything is due

All records are of one experiment, and all but a hundred go by their number. The group is read three times; 64 deletions
with their rows in the journal are one transaction.

{table(["records", "time", "records/s", "memory above idle"], rows)}
"""


def _cluster_figures(cluster: OnCluster | None) -> str:
    if cluster is None:
        return ""
    rows = [
        ["a pass", str(cluster.calls), f"{cluster.seconds:.2f} s", f"{cluster.read:.1f} MiB"],
        ["a full list", str(cluster.calls), f"{cluster.list_seconds:.2f} s", f"{cluster.list_read:.1f} MiB"],
    ]
    return f"""## {cluster.records:,} records on an API server

Nothing is due. A pass asks for metadata only, in pages of {cluster.page}: it reads
{cluster.read / cluster.list_read:.0%} of the bytes of a full list in the same pages.

{table(["", "calls", "time", "bytes read"], rows)}
"""


_METHOD: Final = """## How it is measured

- Records have some 1,500 bytes, four labels and five affected resources. The file is on disk, opened with sync=normal.
- Nothing due: {rounds} rounds in turn, the quickest of each; each way has a process of its own, which opens the store
  anew in each round. Memory is the peak of the resident memory of the first round above what there was before it, with
  SQLite's own cache.
- Everything due: one round, in a process of its own; records are really deleted, and journalled.
- Bytes are those of the answers' bodies.
"""
