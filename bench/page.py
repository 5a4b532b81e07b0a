"""The page ``docs/benchmarks.md``, written from the results of one run: prose, tables, and whether each claim holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench import claims, expiry, file, memory, servers, startup, writers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.claims import Claim
    from bench.contest import Machine
    from bench.plans import Plans

TITLES: Final = {"get": "get", "insert": "insert if absent", "put": "plain set", "swap": "compare-and-swap"}
_NONE: Final = "none"
_ON_SERVERS: Final = ("get", "insert", "swap")
_SIDES: Final = ("Lapse", "plain driver")


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that one run found out."""

    memory: memory.Results
    expiry: expiry.Results
    file: file.Results
    writers: writers.Results
    servers: servers.Results
    startup: startup.Results
    machine: Machine
    seconds: float
    plans: Plans
    command: str

    @property
    def claims(self) -> list[Claim]:
        """All claims, in the order of the page."""
        return [
            *claims.of_memory(self.memory),
            *claims.of_expiry(self.expiry),
            *claims.of_file(self.file),
            *claims.of_writers(self.writers),
            *claims.of_servers(self.servers),
        ]


def write(run: Run) -> str:
    """Return the whole page."""
    parts = [
        _opening(run),
        "## Ratios\n",
        memory_ratios(run.memory),
        file_ratios(run.file),
        writers_ratios(run.writers),
        servers_ratios(run.servers),
        claims_section(run.claims),
        "![Bars: operations per second, memory per key, longest pause of a reader](images/benchmarks-keys.png)\n",
        "## Figures\n",
        memory_figures(run.memory),
        expiry_figures(run.expiry),
        file_figures(run.file),
        writers_figures(run.writers),
        servers_figures(run.servers),
        startup_figures(run.startup),
        _method(run),
        _machine(run),
    ]
    return "\n".join(parts)


def _opening(run: Run) -> str:
    made = [claim for claim in run.claims if claim.bound is not None]
    failing, unknown = [claim for claim in made if claim.failing], [claim for claim in made if not claim.measured]
    verdict = (
        f"{len(failing)} of {len(made)} claims do not hold in this run; the table says which."
        if failing
        else "All claims below hold in this run."
        if not unknown
        else "All claims below that could be measured hold in this run."
    )
    if unknown:
        verdict += f" {len(unknown)} could not be measured, because a server could not be had."
    if run.machine.load > run.machine.cores / 2:
        load = f"load {run.machine.load:.1f} on {run.machine.cores} cores when the run started"
        verdict += (
            f"\n\n**The machine was busy with other work ({load}). "
            "Ratios of wall time, which is all writes to files and everything on servers, mean little then: repeat the "
            "run at rest.**"
        )
    return f"""# Benchmarks

Lapse keys beside what else one could take, all in one run, each contender in a process of its own. This page is written
by the run itself; one command repeats it:

```
{run.command}
```

{verdict}

Compare ratios, not absolute figures: those belong to the machine below. A difference of less than 1.5x is within what
one machine shows from one run to the next; on servers the figures say how far the rounds lie apart.
"""


# --- ratios ----------------------------------------------------------------------------------------------------------


def memory_ratios(results: memory.Results) -> str:
    """How many times as quick as each peer."""
    sizes = list(results)
    columns = [(operation, size) for operation in ("get", "insert", "put") for size in sizes]
    rows = []
    for peer in memory.NAMES:
        if not peer.startswith("lapse"):
            ratios = [
                _over(results[size]["lapse"].rates, results[size][peer].rates, operation) for operation, size in columns
            ]
            rows.append([_peer(peer), *ratios])
    heads = [f"{TITLES[operation]}, {claims.size_name(size)}" for operation, size in columns]
    return f"""In memory: Lapse (blocking calls, validation included) is so many times as quick as

{table(["", *heads], rows)}

{_subscript_note(results)}
"""


def _subscript_note(results: memory.Results) -> str:
    ratios = " and ".join(
        f"{figures['lapse'].rates['get'] / figures['cachetools'].rates['subscript']:.1f}x at {claims.size_name(size)}"
        for size, figures in results.items()
    )
    return (
        "`get` of cachetools looks twice. Its `cache[key]`, which raises where `get` answers None, looks once:\n"
        f"compared with that Lapse is {ratios}. A plain dict neither expires nor validates; it is\n"
        "the floor. cachebox and moka-py are compiled (Rust)."
    )


def file_ratios(results: file.Results) -> str:
    """How many times as quick as each peer."""
    sizes = list(results)
    columns = [(operation, size) for operation in file.OPERATIONS for size in sizes]
    pairs = (("lapse normal", "diskcache"), ("lapse normal", "apsw normal"), ("lapse full", "apsw full"))
    rows = [
        [
            f"{_peer(ours)} against {_peer(peer)}",
            *(_over(results[size][ours], results[size][peer], op) for op, size in columns),
        ]
        for ours, peer in pairs
    ]
    heads = [f"{TITLES[operation]}, {claims.size_name(size)}" for operation, size in columns]
    return f"""In a file:

{table(["", *heads], rows)}
"""


def writers_ratios(results: writers.Results) -> str:
    """What concurrent writers gain."""
    rows = [
        ["64 threads against one thread", _times(results["64 threads"] / results["one thread"])],
        ["64 tasks of an event loop against one task", _times(results["64 tasks"] / results["one task"])],
    ]
    return f"""Concurrent writers in one file at `sync=full`, where a commit is shared:

{table(["", "inserts per second"], rows)}
"""


def servers_ratios(results: servers.Results) -> str:
    """How many times as quick as the plain driver."""
    columns = [(operation, callers) for operation in _ON_SERVERS for callers in servers.CALLERS]
    rows = [
        [outcome.title, *(_times(outcome.rates[column].ratio, 2) for column in columns)]
        for outcome in results.values()
        if not outcome.missing
    ]
    heads = [f"{TITLES[operation]}, {claims.callers_name(callers)}" for operation, callers in columns]
    parts = [f"{table(['', *heads], rows)}\n"] if rows else []
    parts += [
        f"**{outcome.title} was not measured**: {outcome.missing}.\n" for outcome in results.values() if outcome.missing
    ]
    tables = "\n".join(parts)
    return f"""On a server: Lapse, validation included, is so many times as quick as the plain driver sending the same

{tables}"""


def verdict_on(claims: Sequence[Claim], machine: Machine) -> str:
    """Return what a page says first: whether all claims hold, and whether the machine had other work."""
    failing = [claim for claim in claims if claim.failing]
    verdict = (
        f"{len(failing)} of {len(claims)} claims do not hold in this run; the table says which."
        if failing
        else "All claims below hold in this run."
    )
    if machine.load > machine.cores / 2:
        load = f"load {machine.load:.1f} on {machine.cores} cores when the run started"
        verdict += (
            f"\n\n**The machine was busy with other work ({load}): the absolute figures are worse than at rest.**"
        )
    return verdict


def machine_section(machine: Machine, *, seconds: float, versions: Sequence[Sequence[str]] = ()) -> str:
    """Say where the figures of a page come from; ``versions`` are those of the servers."""
    rows: Sequence[Sequence[str]] = [
        ["processor", f"{machine.processor}, {machine.cores} cores"],
        ["memory", f"{machine.memory_gib:.0f} GiB"],
        ["system", machine.system],
        ["file system", machine.file_system],
        ["Python", machine.python],
        *versions,
        ["lapse", machine.versions["lapse"]],
        ["load when it started", f"{machine.load:.1f}"],
        ["duration of the run", f"{seconds / 60:.1f} minutes"],
    ]
    return f"""## Machine

{table(["", ""], rows)}
"""


def claims_section(checked: Iterable[Claim]) -> str:
    """Claim, measured, holds."""
    rows, notes = [], []
    for claim in checked:
        measured = ", ".join(f"{_figure(claim, ratio)} {case}".strip() for case, ratio in claim.measured.items())
        rows.append([claim.text, measured or _NONE, claim.verdict])
        if claim.failing:
            notes.append(f"- {claim.subject}: {claim.otherwise}.")
    said = "Where a claim does not hold, the cause that we suppose; the run has measured the gap and not its cause:"
    reasons = "\n".join(["", said, "", *notes, ""]) if notes else ""
    return f"""## Claims

{table(["claim", "measured", "holds"], rows)}
{reasons}"""


# --- figures ---------------------------------------------------------------------------------------------------------


def memory_figures(results: memory.Results) -> str:
    """Rates and bytes."""
    parts = []
    for size, figures in results.items():
        rows = [
            [
                _peer(name),
                *(_rate(figures[name].rates.get(op)) for op in memory.OPERATIONS),
                f"{figures[name].bytes_per_key:.0f}",
            ]
            for name in memory.NAMES
        ]
        heads = ["", *(TITLES[operation] for operation in memory.OPERATIONS), "bytes per key"]
        parts.append(f"{claims.size_name(size)} keys:\n\n{table(heads, rows)}\n")
    close = ", ".join(
        f"{got['lapse'].rates[op] / got['cachebox'].rates[op]:.0%} of its {TITLES[op]} at {claims.size_name(size)}"
        for size, got in results.items()
        for op in ("get", "insert")
    )
    tables = "\n".join(parts)
    return f"""### Memory

Operations per second of CPU time, and memory per key beyond the key and the value themselves.

{tables}
How close plain Python comes to cachebox, the quickest peer that expires keys: {close}.

No peer has compare-and-swap. theine has no insert-if-absent: its figure is a look followed by a set, which another
thread may come between.
"""


def expiry_figures(results: expiry.Results) -> str:
    """What a reader saw."""
    rows = [
        [
            _peer(name),
            *(
                f"{_time(getattr(got.calm, p))} / {_time(getattr(got.sweeping, p))}"
                for p in ("p50", "p99", "p999", "p9999", "worst")
            ),
            "never all" if got.sweep_seconds is None else f"{got.sweep_seconds:.1f} s",
        ]
        for name, got in results.items()
    ]
    memory_rows = [
        [
            _peer(name),
            *(f"{size / 2**20:.0f}" for size in (got.bytes_before, got.bytes_peak, got.bytes_after)),
            f"{got.bytes_after / got.bytes_before - 1:+.0%}",
            f"{(got.bytes_peak - got.bytes_after) / (got.bytes_peak - got.bytes_before):.0%}",
        ]
        for name, got in results.items()
    ]
    return f"""### Expiry beside a reader

A thread reads live keys at full speed; the others, all with one TTL, expire meanwhile and are removed. Latencies of the
reader in calm / during the removal, and the time from the last key being due to the last key being gone:

{table(["", "p50", "p99", "p99.9", "p99.99", "longest pause", "removed after"], rows)}

Lapse and theine remove by themselves; for cachebox, moka-py and cachetools a second thread calls for it once all keys
are due (cachetools under the lock that it asks for). That call is one long pause for the reader, which percentiles do
not show: see the longest pause.

Resident memory, MiB, before the keys were written, at its peak, and after they were gone, as the system sees it:

{table(["", "before", "peak", "after", "against before", "of the growth came back"], memory_rows)}
"""


def file_figures(results: file.Results) -> str:
    """Rates."""
    parts = []
    for size, rates in results.items():
        rows = [[_peer(name), *(_rate(rates[name].get(op)) for op in file.OPERATIONS)] for name in file.NAMES]
        parts.append(
            f"{claims.size_name(size)} rows:\n\n{table(['', *(TITLES[op] for op in file.OPERATIONS)], rows)}\n"
        )
    tables = "\n".join(parts)
    return f"""### File

Operations per second (get: of CPU time), one caller. diskcache commits as `sync=normal` does, and has no
compare-and-swap of its own.

{tables}"""


def writers_figures(results: writers.Results) -> str:
    """Rates."""
    rows = [[way, _rate(rate)] for way, rate in results.items()]
    return f"""### Concurrent writers

Inserts per second in one file at `sync=full`, every one answered after it is durable:

{table(["", "inserts per second"], rows)}
"""


def servers_figures(results: servers.Results) -> str:
    """Rates of ours and of the plain driver, CPU time, and many keys at once."""
    parts = [_server_figures(outcome) for outcome in results.values() if not outcome.missing]
    tables = "\n".join(parts) or "No server could be had.\n"
    return f"""### Servers

Operations per second of wall time, and the CPU time that one operation takes in the client's process. The servers run
on the same machine and take their share of it. Over a network, not measured here, an operation takes longer, so what
Lapse adds or saves should weigh less. Beside the rates: where the middle half of the ratios of the single rounds lies.

{tables}"""


def _server_figures(outcome: servers.Outcome) -> str:
    heads = ["", *(f"{each}, {claims.callers_name(callers)}" for callers in servers.CALLERS for each in _SIDES)]
    rows = [
        [TITLES[kind], *(_rate(rate) for callers in servers.CALLERS for rate in _both(outcome.rates[kind, callers]))]
        for kind in _ON_SERVERS
    ]
    for callers in servers.CALLERS:
        heads.append(f"ratios, {claims.callers_name(callers)}")
        for row, kind in zip(rows, _ON_SERVERS, strict=True):
            low, high = outcome.rates[kind, callers].middle
            row.append(f"{low:.2f} to {high:.2f}")
    rows.append(
        ["CPU time", *(f"{used:.0f} us" for callers in servers.CALLERS for used in _both(outcome.cpu[callers])), "", ""]
    )
    many = f"`get_many` of {servers.MANY} keys takes {outcome.many:.1f} times as long as one get.\n"
    return f"{outcome.title}:\n\n{table(heads, rows)}\n\n{many}"


def _both(duel: servers.Duel) -> tuple[float, float]:
    return duel.ours, duel.raw


def startup_figures(results: startup.Results) -> str:
    """Times."""
    rows = [[f"`{name}`", f"{1000 * seconds:.0f} ms"] for name, seconds in results.items()]
    return f"""### Start-up

{table(["", "time"], rows)}
"""


# --- method and machine ----------------------------------------------------------------------------------------------


def _method(run: Run) -> str:
    plan, expiring, files = run.plans.memory, run.plans.expiry, run.plans.file
    turns = " or ".join(str(number) for number in sorted({each.rounds for each in run.plans.servers.values()}))
    rounds = " and ".join(f"{times} rounds at {claims.size_name(size)}" for size, times in plan.rounds)
    return f"""## How it is measured

- Each contender runs in a process of its own. The processes stay alive and take turns within every round, so that a
  busy moment of the machine hits all alike.
- Memory: CPU time of the whole process, threads of the contender included; the best of {rounds},
  because noise only ever adds. Every round fills fresh stores (insert), reads {plan.reads:,} keys in random order,
  timed in slices of 10,000 (get), and writes every key again (plain set, then compare-and-swap). Keys like
  `alpha:0004D2`, values of 20 characters, a TTL of 15 minutes; every store has room for twice as many keys, so nobody
  evicts. The garbage collector is as it is by default. After every round a sample of keys is checked to be there.
- Each peer is called in its own quickest way for the purpose, in a loop of its own: insert-if-absent is `setdefault`
  (dict, cachetools, cachebox), `get_with` (moka-py), `get` then `set` (theine), `add` (diskcache). cachetools is
  measured without the lock that threads would need.
- Memory per key: growth of resident memory in the first round. The key and value strings exist before, so they are not
  in it.
- Expiry: {expiring.keys:,} keys and 10,000 live ones. Latencies include reading the clock. Keys and values belong to
  the store alone, so their memory has to come back, too. Memory is `VmRSS` after a garbage collection, and nothing else
  helps.
- File: {files.rounds} rounds. Reads are CPU time, the best slice of 1,000; the system's page cache is warm. Writes are
  wall time, the median of slices of 250, because waiting for the disk is part of the work. Bare apsw runs the
  statements of Lapse with the pragmas of Lapse, each in its own transaction. Stores start with the rows named and grow
  by {files.writes:,} in every round.
- Concurrent writers: wall time, median of rounds, all ways in turn in one process on one file.
- Servers: a server of its own for each part. In each of {turns} rounds both contenders do
  the same number of inserts, then of gets, then of swaps, in turn, and who begins changes from round to round; a ratio
  is the median of the ratios of the rounds. The plain driver sends what Lapse sends, and every answer is checked. It is
  redis-py's asyncio client (with hiredis) and aiobotocore, as they come, with as many connections as Lapse has; and
  scylla-driver with the consistency and the policies of Lapse: one caller by `session.execute` beside the blocking face
  of Lapse, 64 by callbacks beside 64 tasks that wait, in 64 buckets, each of which a `get_many` has to ask. Elsewhere
  callers are tasks of one event loop on both sides. On Redis and Valkey Lapse leaves the client and the pool of
  redis-py out, which may be why it is quicker where it is.
"""


def _machine(run: Run) -> str:
    machine = run.machine
    rows = [
        ["processor", f"{machine.processor}, {machine.cores} cores"],
        ["memory", f"{machine.memory_gib:.0f} GiB"],
        ["system", machine.system],
        ["file system", machine.file_system],
        ["Python", machine.python],
        *([name, number] for name, number in machine.versions.items()),
        ["load when it started", f"{machine.load:.1f}"],
        ["duration of the run", f"{run.seconds / 60:.1f} minutes"],
    ]
    return f"""## Machine

{table(["", ""], rows)}
"""


# --- words -----------------------------------------------------------------------------------------------------------


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Print a table of Markdown, whose figures stand to the right."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _peer(name: str) -> str:
    return {
        "lapse": "**Lapse**",
        "lapse awaited": "**Lapse**, awaited",
        "lapse normal": "**Lapse**, `sync=normal`",
        "lapse full": "**Lapse**, `sync=full`",
        "dict": "plain dict",
        "cachebox": "cachebox VTTLCache",
        "cachetools": "cachetools TTLCache",
        "apsw normal": "bare apsw, normal",
        "apsw full": "bare apsw, full",
    }.get(name, name)


def _over(ours: dict[str, float], theirs: dict[str, float], operation: str) -> str:
    return _times(ours[operation] / theirs[operation]) if operation in theirs else _NONE


def _times(ratio: float, digits: int = 1) -> str:
    return f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.{digits if ratio >= 1 else 2}f}x"


def _figure(claim: Claim, figure: float) -> str:
    return _times(figure, 2) if claim.unit == "x" else f"{figure:.3g}{claim.unit}"


def _rate(rate: float | None) -> str:
    if rate is None:
        return _NONE
    if rate < 1e3:
        return f"{rate:.0f}"
    return f"{rate / 1e6:.2f} M" if rate >= 1e6 else f"{rate / 1e3:.1f} k" if rate < 1e4 else f"{rate / 1e3:.0f} k"


def _time(nanoseconds: float) -> str:
    for unit, name in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if nanoseconds >= unit:
            return (
                f"{nanoseconds / unit:.2g} {name}" if nanoseconds < 100 * unit else f"{nanoseconds / unit:.0f} {name}"
            )
    return f"{nanoseconds:.0f} ns"
