"""Claims about the speed of Lapse, checked against one run. Each claim knows what to say where it does not hold."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bench import expiry, file, memory, servers, writers

_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
}
_OF_RAW: Final = {"redis": 0.9, "valkey": 0.9, "cassandra": 0.95, "dynamodb": 0.9}
_WORDS: Final = {">=": "at least", ">": "more than", "<=": "at most"}


@dataclass(frozen=True, slots=True)
class Claim:
    """A ratio, or another figure, and its bound."""

    subject: str
    relation: str
    bound: float | None
    """None: a figure that stands beside a claim, for completeness, and claims nothing."""
    measured: Mapping[str, float]
    """By case: sizes, or ways to do it. The claim holds if it holds in each. Empty if it could not be measured."""
    otherwise: str = ""
    """The cause that we suppose: shown when the claim does not hold. A run measures the gap, not its cause."""
    unit: str = "x"
    """What the figures are: ratios, unless said otherwise."""

    @property
    def text(self) -> str:
        """The claim in words."""
        return (
            self.subject if self.bound is None else f"{self.subject}: {_WORDS[self.relation]} {self.bound:g}{self.unit}"
        )

    @property
    def failing(self) -> list[str]:
        """The cases in which it does not hold."""
        holds, bound = _COMPARE[self.relation], self.bound
        return [] if bound is None else [case for case, ratio in self.measured.items() if not holds(ratio, bound)]

    @property
    def verdict(self) -> str:
        """Whether it holds, in words; with the cases in which it does not."""
        if not self.measured:
            return "not measured"
        if self.bound is None:
            return "no claim"
        cases = [case for case in self.failing if case]
        return "yes" if not self.failing else f"no ({', '.join(cases)})" if cases else "no"


def size_name(size: int) -> str:
    """Print a size as people say it: 10k, 1M."""
    for unit, letter in ((1_000_000, "M"), (1_000, "k")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{letter}"
    return f"{size:,}"


def of_memory(results: memory.Results) -> list[Claim]:
    """Claims about the store in memory."""

    def against(peer: str, operation: str) -> dict[str, float]:
        return {
            size_name(size): figures["lapse"].rates[operation] / figures[peer].rates[operation]
            for size, figures in results.items()
        }

    compiled = "it is a compiled library, whose lookup makes no Python call"
    layers = (
        "a get of Lapse is two Python calls, the checks of the key and a reading of the clock; in a large store the "
        "waiting for memory, which all have in common, may outweigh what a peer does besides"
    )
    return [
        Claim("memory: get against cachetools", ">=", 4, against("cachetools", "get"), layers),
        Claim("memory: get against moka-py", ">", 1, against("moka-py", "get"), compiled),
        Claim("memory: get against theine", ">", 1, against("theine", "get"), layers),
        Claim(
            "memory: insert if absent against cachetools (`setdefault`)",
            ">=",
            2,
            against("cachetools", "insert"),
            "an insert of Lapse also validates, takes a lock, makes a record and puts the key into the timing wheel",
        ),
        Claim(
            "beside it, plain set: `put` against cachetools (`cache[key] = value`)",
            ">=",
            None,
            against("cachetools", "put"),
        ),
    ]


def of_expiry(results: expiry.Results) -> list[Claim]:
    """Claims about a million keys that expire beside a reader."""
    ours = results["lapse"]
    return [
        Claim(
            "expiry: the reader's p99.9 against the same reader in calm",
            "<=",
            3,
            {"": ours.sweeping.p999 / ours.calm.p999},
            "readers wait for the interpreter's lock while a slice is swept; on a busy machine they wait longer",
        ),
        Claim(
            "expiry: memory afterwards against before",
            "<=",
            1.1,
            {"": ours.bytes_after / ours.bytes_before},
            "Lapse lets go of all of it and asks the C library to return it; Python's allocator keeps the blocks in "
            "which anything is still alive",
        ),
    ]


def of_file(results: file.Results) -> list[Claim]:
    """Claims about the store in a file."""

    def against(peer: str, operation: str) -> dict[str, float]:
        return {
            size_name(size): rates["lapse normal"][operation] / rates[peer][operation]
            for size, rates in results.items()
        }

    return [
        Claim(
            "file: get against diskcache",
            ">=",
            2.5,
            against("diskcache", "get"),
            "both spend most of a lookup in SQLite",
        ),
        Claim(
            "file: insert at sync=normal against diskcache",
            ">=",
            2,
            against("diskcache", "insert"),
            "both spend most of an insert in SQLite and the file system",
        ),
        Claim(
            "file: insert at sync=normal against bare apsw",
            ">=",
            0.8,
            against("apsw normal", "insert"),
            "around the same SQL Lapse validates and goes through the queue of the shared commit",
        ),
    ]


def of_writers(results: writers.Results) -> list[Claim]:
    """Claims about concurrent writers."""
    return [
        Claim(
            "file: 64 writers at sync=full against one writer",
            ">=",
            8,
            {
                "threads": results["64 threads"] / results["one thread"],
                "tasks": results["64 tasks"] / results["one task"],
            },
            "what is gained depends on what a sync costs on this disk: the quicker it is, the less there is to share",
        ),
    ]


def of_servers(results: servers.Results) -> list[Claim]:
    """Claims about the stores on servers: the most that Lapse may cost beside the plain driver."""
    found = []
    for name, outcome in results.items():
        found.append(
            Claim(
                f"{name}: against the plain driver",
                ">=",
                _OF_RAW[name],
                {
                    f"{operation} {callers_name(callers)}": duel.ratio
                    for (operation, callers), duel in outcome.rates.items()
                },
                "Lapse validates, judges expiry and keeps outcomes apart, all in Python; the time per operation in "
                "the client's process, which the figures show for both, says how much that can be",
            )
        )
        if name in {"redis", "valkey"}:
            found.append(
                Claim(
                    f"{name}: get_many of 100 keys against one get, in time",
                    "<=",
                    3,
                    {} if outcome.many is None else {"": outcome.many},
                    "the answer has to be taken apart in Python, key by key",
                )
            )
    return found


def callers_name(callers: int) -> str:
    """Print a number of callers: 1 caller, 64 callers."""
    return f"{callers} caller{'s' * (callers > 1)}"
