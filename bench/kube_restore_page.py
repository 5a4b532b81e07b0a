"""The page ``docs/benchmarks-restore.md`` and its claims, written from the results of one run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from bench.claims import Claim
from bench.page import claims_section, machine_section, table, verdict_on

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.contest import Machine

MOST_CALLS: Final = 25
MOST_TIMES: Final = 1.3


class Way(StrEnum):
    """How one restore is done."""

    REQUEST_KUBECTL = "request-kubectl"
    HAND_KUBECTL = "hand-kubectl"
    REQUEST_WATCHES = "request-watches"
    HAND_WATCHES = "hand-watches"


WAYS: Final = tuple(Way)


@dataclass(frozen=True, slots=True)
class One:
    """One restore at a time: medians in seconds, and how many times as long as by hand (median, middle half)."""

    rounds: int
    seconds: Mapping[Way, float]
    kubectl: tuple[float, float, float]
    watches: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Many:
    """Restores that were asked for at once. Seconds count from the first request."""

    restores: int
    ready: int
    right: int
    """Those whose claim holds the data that was captured."""
    create_seconds: float
    bound_seconds: float
    final_seconds: float
    clear_seconds: float
    """Until nothing was left of what leads from the snapshots to the claims."""
    operator_calls: float
    all_calls: float
    cpu_milliseconds: float


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that one run found out."""

    version: str = ""
    """Of Kubernetes."""
    one: One | None = None
    many: Many | None = None

    def figures(self) -> dict[str, Any]:
        """Return everything for a line of JSON."""
        found: dict[str, Any] = {}
        if self.one is not None:
            found["one"] = {
                "rounds": self.one.rounds,
                "seconds": {str(way): round(value, 3) for way, value in self.one.seconds.items()},
                "kubectl": [round(value, 3) for value in self.one.kubectl],
                "watches": [round(value, 3) for value in self.one.watches],
            }
        if self.many is not None:
            found["many"] = {name: round(value, 3) for name, value in asdict(self.many).items()}
        return found


# --- claims ----------------------------------------------------------------------------------------------------------


def claims_of(results: Results) -> list[Claim]:
    """Return what is promised, and what this run says about it."""
    one, many = results.one, results.many

    def share(count: int) -> dict[str, float]:
        return {} if many is None else {"": count / many.restores}

    ready, right = (many.ready, many.right) if many is not None else (0, 0)
    return [
        Claim(
            "one: a request against the same steps by hand with kubectl, in time",
            "<=",
            MOST_TIMES,
            {} if one is None else {"": one.kubectl[0]},
            "the operator hears of each step by a watch of its own, and reads again before it acts",
        ),
        Claim(
            "beside it, both as one process with watches and without kubectl",
            "<=",
            None,
            {} if one is None else {"": one.watches[0]},
        ),
        Claim("many: Ready, of all that were asked for", ">=", 1, share(ready)),
        Claim("many: with the data that was captured, of all", ">=", 1, share(right)),
        Claim(
            "many: API calls of the operator per restore",
            "<=",
            MOST_CALLS,
            {} if many is None else {"": many.operator_calls},
            "calls were repeated, because somebody else had written meanwhile",
            unit="",
        ),
    ]


# --- the page --------------------------------------------------------------------------------------------------------


def write(results: Results, machine: Machine, *, command: str, seconds: float) -> str:
    """Return the whole page."""
    claims = claims_of(results)
    made = [claim for claim in claims if claim.bound is not None]
    parts = [
        _OPENING.format(command=command, verdict=verdict_on(made, machine)),
        claims_section(claims),
        _one_figures(results.one),
        _many_figures(results.many),
        _METHOD,
        machine_section(machine, seconds=seconds, versions=[["Kubernetes", results.version]]),
    ]
    return "\n".join(part for part in parts if part)


_OPENING: Final = """# Benchmarks of restores on Kubernetes

From a captured snapshot to a bound claim with its data: by a VolumeRestoreRequest, beside the same steps by hand. This
page is written by the run; one command repeats it:

```
{command}
```

{verdict}

Everything runs on one machine and takes its share of it: compare within the run, not with other machines.
"""


def _one_figures(one: One | None) -> str:
    if one is None:
        return ""

    def row(name: str, request: Way, hand: Way, ratios: tuple[float, float, float]) -> list[str]:
        middle, low, high = ratios
        asked, made = (f"{one.seconds[way] * 1000:.0f} ms" for way in (request, hand))
        return [name, asked, made, f"{middle:.2f}x", f"{low:.2f} to {high:.2f}"]

    rows = [
        row("`kubectl` and `kubectl wait`", Way.REQUEST_KUBECTL, Way.HAND_KUBECTL, one.kubectl),
        row("one process with watches", Way.REQUEST_WATCHES, Way.HAND_WATCHES, one.watches),
    ]
    return f"""## One restore

{table(["", "**by a request**", "by hand", "ratio", "middle half of the ratios"], rows)}

With `kubectl` a request takes two commands, by hand it takes five, and each of them is a process that starts and
connects. The second row leaves that out: it is what the operator adds to the work of the sidecars.
"""


def _many_figures(many: Many | None) -> str:
    if many is None:
        return ""
    rows = [
        ["Ready", f"{many.ready:,} of {many.restores:,}"],
        ["with the data that was captured", f"{many.right:,}"],
        ["all requests were made after", f"{many.create_seconds:.1f} s"],
        ["all claims were bound after", f"{many.bound_seconds:.1f} s"],
        ["all requests were final after", f"{many.final_seconds:.1f} s"],
        ["nothing was left of the bridges after", f"{many.clear_seconds:.1f} s"],
        ["API calls of the operator, per restore", f"{many.operator_calls:.1f}"],
        ["API calls of all, per restore", f"{many.all_calls:.1f}"],
        ["CPU of the operator, per restore", f"{many.cpu_milliseconds:.1f} ms"],
    ]
    return f"""## {many.restores:,} restores asked for at once

Each of a snapshot of its own, with the stock external-provisioner, csi-snapshotter and snapshot-controller and the
hostpath driver.

{table(["", ""], rows)}
"""


_METHOD: Final = """## How it is measured

- One API server with etcd, which does not sync to disk, kube-controller-manager and the CSI stack, all on this machine.
  The operator runs as the service account of `deploy/base` with its rights, and with its default settings.
- One: all four ways in turn in every round, the first of which does not count, and who begins changes. A ratio is the
  median of the ratios of the rounds. What one leaves behind is gone before the next begins; that time is not counted.
  By hand means: read the handle of the snapshot, create a VolumeSnapshotContent and a VolumeSnapshot, wait until that
  is ready, create the claim, wait until it is bound. A request is over when it is Ready, which it is when the claim is
  bound. After each the bytes on the volume are compared with those that were captured.
- The snapshots are small, so that a driver takes no time and what is measured is everything around it.
- Many: API calls of all are `apiserver_request_total` without watches and leases; those of the operator are what the
  API server's flow control counted for service accounts. Both from the first request until nothing of the bridges was
  left, and what the benchmark asks in order to see that is in those of all.
"""
