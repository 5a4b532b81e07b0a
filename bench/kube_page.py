"""The page ``docs/benchmarks-kubernetes.md`` and its claims, written from the results of one run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.claims import Claim
from bench.page import claims_section, machine_section, table, verdict_on

if TYPE_CHECKING:
    from bench.contest import Machine

_THEIRS: Final = "ttl-after-finished"
_BUSY: Final = "on a busy machine everybody waits for a processor"


@dataclass(frozen=True, slots=True)
class Due:
    """How one of the two did away with what was due at one moment. Times in seconds from that moment."""

    objects: int
    per_second: float
    """From the moment to the last deletion."""
    calls: float
    """API calls per object, whoever made them; leases and watches are left out."""
    client_cpu: float
    """Milliseconds of the process that decides, per object."""
    total_cpu: float
    """Milliseconds of that process, the API server, etcd and the controller-manager, per object."""
    first: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Idle:
    """What an operator asks and takes while nothing is due. Memory in MiB."""

    requests: int
    seconds: float
    start_seconds: float
    calls: int
    """All of the operator's calls but those for its lease."""
    lease_calls: int
    cpu_milliseconds: float
    memory: float
    peak: float


@dataclass(frozen=True, slots=True)
class Capture:
    """What captures that were asked for at once took."""

    captures: int
    claims: int
    ready: int
    artifacts: int
    """VolumeSnapshotContents that exactly one request calls its own."""
    snapshots: int
    """What the driver really has."""
    create_seconds: float
    seconds: float
    """From the first request to the last one that is final."""
    operator_calls: float
    all_calls: float
    cpu_milliseconds: float


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that one run found out."""

    plan_rounds: int
    version: str = ""
    """Of Kubernetes."""
    theirs: Due | None = None
    ours: Due | None = None
    idle: Idle | None = None
    captures: Capture | None = None

    def figures(self) -> dict[str, Any]:
        """Return everything for a line of JSON."""
        parts = {"theirs": self.theirs, "ours": self.ours, "idle": self.idle, "captures": self.captures}
        return {
            name: {key: round(value, 3) for key, value in asdict(part).items()}
            for name, part in parts.items()
            if part is not None
        }


# --- claims ----------------------------------------------------------------------------------------------------------


def claims_of(results: Results) -> list[Claim]:
    """Return what is promised, and what this run says about it."""
    return [*_of_due(results.theirs, results.ours), *_of_idle(results.idle), *_of_captures(results.captures)]


def _of_due(theirs: Due | None, ours: Due | None) -> list[Claim]:
    def of(figure: float | None) -> dict[str, float]:
        return {} if figure is None else {"": figure}

    both = theirs is not None and ours is not None
    rate = ours.per_second / theirs.per_second if both and theirs and ours else None
    lag = ours.p99 / theirs.p99 if both and theirs and ours else None
    return [
        Claim(f"due: objects per second against {_THEIRS}", ">=", 2, of(rate), _BUSY),
        Claim(f"due: lag p99 against {_THEIRS}", "<=", 0.5, of(lag), _BUSY),
        Claim(
            "due: API calls per object",
            "<=",
            1.1,
            of(None if ours is None else ours.calls),
            "deletions were repeated, or somebody else called meanwhile",
            unit="",
        ),
        Claim(
            "due: client CPU per object",
            "<=",
            0.5,
            of(None if ours is None else ours.client_cpu),
            "one encrypted call per object, with its row in the log, is most of it",
            unit=" ms",
        ),
        Claim(
            "due: first deletion after the moment",
            "<=",
            100,
            of(None if ours is None else ours.first * 1000),
            "the API server takes its time for a first deletion, and the watch that measures comes after it",
            unit=" ms",
        ),
    ]


def _of_idle(idle: Idle | None) -> list[Claim]:
    return [
        Claim(
            "idle: calls in a quiet minute beside the lease",
            "<=",
            0,
            {} if idle is None else {"": idle.calls},
            "a watch that ends, as each does after some five minutes, is opened again",
            unit="",
        ),
        Claim("idle: resident memory", "<=", 150, {} if idle is None else {"": idle.memory}, unit=" MiB"),
    ]


def _of_captures(captures: Capture | None) -> list[Claim]:
    def share(count: int) -> dict[str, float]:
        return {} if captures is None else {"": count / captures.captures}

    ready, artifacts = (captures.ready, captures.artifacts) if captures is not None else (0, 0)
    return [
        Claim("captures: Ready, of all that were asked for", ">=", 1, share(ready)),
        Claim("captures: with exactly one artifact, of all", ">=", 1, share(artifacts)),
    ]


# --- the page --------------------------------------------------------------------------------------------------------


def write(results: Results, machine: Machine, *, command: str, seconds: float) -> str:
    """Return the whole page."""
    claims = claims_of(results)
    parts = [
        _OPENING.format(command=command, verdict=verdict_on(claims, machine)),
        claims_section(claims),
        _due_figures(results),
        _idle_figures(results.idle),
        _captures_figures(results.captures),
        _METHOD.format(rounds=results.plan_rounds),
        machine_section(machine, seconds=seconds, versions=[["Kubernetes", results.version]]),
    ]
    return "\n".join(part for part in parts if part)


_OPENING: Final = """# Benchmarks on Kubernetes

`lapse operator` on a real control plane, beside the controller of Kubernetes itself that does the same for Jobs. This
page is written by the run; one command repeats it:

```
{command}
```

{verdict}

Everything runs on one machine and takes its share of it: compare within the run, not with other machines.
"""


def _due_figures(results: Results) -> str:
    theirs, ours = results.theirs, results.ours
    if theirs is None or ours is None:
        return ""
    rows = [_due_row(f"{_THEIRS}, Jobs", theirs), _due_row("**lapse operator**, VolumeCaptureRequests", ours)]
    heads = [
        *("", "objects/s", "API calls per object", "client CPU", "CPU of all", "first after", "lag p50", "lag p99"),
    ]
    return f"""## {ours.objects:,} objects due at one moment

{table(heads, rows)}

CPU is per object: of the client's process, and together with that of the API server, etcd and the controller-manager.
"""


def _due_row(name: str, due: Due) -> list[str]:
    return [
        name,
        f"{due.per_second:.0f}",
        f"{due.calls:.2f}",
        f"{due.client_cpu:.2f} ms",
        f"{due.total_cpu:.1f} ms",
        f"{due.first * 1000:.0f} ms",
        f"{due.p50:.1f} s",
        f"{due.p99:.1f} s",
    ]


def _idle_figures(idle: Idle | None) -> str:
    if idle is None:
        return ""
    rows = [
        ["calls of the operator beside its lease", str(idle.calls)],
        ["calls for its lease", str(idle.lease_calls)],
        ["CPU", f"{idle.cpu_milliseconds:.0f} ms"],
        ["resident memory", f"{idle.memory:.0f} MiB"],
        ["its peak, while the caches were filled", f"{idle.peak:.0f} MiB"],
        ["from its start to leading with full caches", f"{idle.start_seconds:.1f} s"],
    ]
    return f"""## {idle.requests:,} finished requests, none due

For {idle.seconds:g} seconds, after everything was read once. Bookmarks come by themselves. Each of its nine watches is
opened again when it ends, which the operator asks for after some five minutes; this window lies before that.

{table(["", ""], rows)}
"""


def _captures_figures(captures: Capture | None) -> str:
    if captures is None:
        return ""
    rows = [
        ["Ready", f"{captures.ready:,} of {captures.captures:,}"],
        ["with exactly one artifact", f"{captures.artifacts:,}"],
        ["snapshots that the driver has", f"{captures.snapshots:,}"],
        ["all requests were made after", f"{captures.create_seconds:.1f} s"],
        ["all were final after", f"{captures.seconds:.1f} s"],
        ["API calls of the operator, per capture", f"{captures.operator_calls:.1f}"],
        ["API calls of all, per capture", f"{captures.all_calls:.1f}"],
        ["CPU of the operator, per capture", f"{captures.cpu_milliseconds:.1f} ms"],
    ]
    return f"""## {captures.captures:,} captures asked for at once

Of {captures.claims} claims, with the stock csi-snapshotter and the hostpath driver.

{table(["", ""], rows)}
"""


_METHOD: Final = """## How it is measured

- One API server with etcd, which does not sync to disk, kube-controller-manager and the CSI stack, all on this machine.
- Due: {rounds} rounds in turn, medians. ttl-after-finished has 1,000 calls a second, 2,000 at once and 20 workers; the
  operator has the same limit on calls (`--kube-qps`, `--kube-burst`), runs as the service account of `deploy/base`
  with its rights, leads by a Lease, deletes under a precondition by uid and version, and writes its journal to its log;
  metrics are on. Both are there, with full caches, before the objects are due. Deletions are timed by a watch of ours.
- API calls are `apiserver_request_total`, from before the moment to two seconds after the last deletion: all of them,
  whoever called, but for watches and leases. So what the garbage collector does for foreground deletions of Jobs is in
  theirs, and whatever the control plane does in passing is in both.
- The calls of the operator alone are what the API server's flow control counted for service accounts.
- CPU is user and system time of the whole process; of ttl-after-finished that is the controller-manager.
"""
