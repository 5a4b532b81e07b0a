"""What Lapse promises about its speed, checked against one run. Each claim knows what to say where it does not hold."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bench import expiry, file, memory, writers

_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
}
_WORDS: Final = {">=": "at least", ">": "more than", "<=": "at most"}


@dataclass(frozen=True, slots=True)
class Claim:
    """A ratio and its bound."""

    subject: str
    relation: str
    bound: float
    measured: Mapping[str, float]
    """By case: sizes, or ways to do it. The claim holds if it holds in each."""
    otherwise: str
    """What is known about the gap: shown when the claim does not hold. A run measures the gap, not its cause."""

    @property
    def text(self) -> str:
        """The claim in words."""
        return f"{self.subject}: {_WORDS[self.relation]} {self.bound:g}x"

    @property
    def failing(self) -> list[str]:
        """The cases in which it does not hold."""
        holds = _COMPARE[self.relation]
        return [case for case, ratio in self.measured.items() if not holds(ratio, self.bound)]


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
    layers = "a get of Lapse is two Python calls, the checks of the key and a reading of the clock"
    return [
        Claim("memory: get against cachetools", ">=", 4, against("cachetools", "get"), layers),
        Claim("memory: get against moka-py", ">", 1, against("moka-py", "get"), compiled),
        Claim("memory: get against theine", ">", 1, against("theine", "get"), layers),
        Claim(
            "memory: insert against cachetools",
            ">=",
            2,
            against("cachetools", "insert"),
            "an insert of Lapse also validates, takes a lock, makes a record and puts the key into the timing wheel",
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
            "Lapse lets go of all of it and asks the C library to return it, but Python's allocator keeps blocks of 1 "
            "MiB in which anything is still alive: some megabytes, whatever the size of the process",
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
            "around the same SQL Lapse validates and goes through the queue of the shared commit, some microseconds of "
            "Python; BEGIN and COMMIT as such cost next to nothing",
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
