"""What a PromQL expression asks for: its metrics, with the labels that it chooses them by, and the labels it groups by.

Enough of the language for our own rules and panels, and no more: expressions that it cannot read are an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

TARGET_LABELS = frozenset({"job", "instance"})
"""What Prometheus adds to each series that it scrapes."""
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_SELECTOR = re.compile(r"\b((?:lapse|process|chaos)_\w+)\s*(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'\s*(\w+)\s*(=~|!~|!=|=)\s*("(?:[^"\\]|\\.)*")\s*')
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")


@dataclass(frozen=True)
class Selector:
    """A metric, and the labels that it is chosen by: name, operator and value of each."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class Question:
    """What an expression asks for."""

    selectors: tuple[Selector, ...]
    grouping: frozenset[str] = field(default_factory=frozenset)


def question(expression: str) -> Question:
    """Read an expression."""
    selectors = tuple(Selector(metric, _matchers(inside)) for metric, inside in _SELECTOR.findall(expression))
    assert selectors, f"{expression!r} asks for nothing of Lapse"
    names = {name.strip() for inside in _GROUPING.findall(_TEXT.sub('""', expression)) for name in inside.split(",")}
    return Question(selectors, frozenset(names))


def _matchers(inside: str) -> tuple[tuple[str, str, str], ...]:
    found = _MATCHER.findall(inside)
    assert ",".join("".join(one) for one in found) == re.sub(r"\s+", "", inside), f"{{{inside}}} cannot be read"
    return tuple((name, operator, text[1:-1]) for name, operator, text in found)


@dataclass(frozen=True)
class Exposition:
    """What a process shows: each series' labels, by the name of the metric."""

    series: dict[str, list[dict[str, str]]]

    @classmethod
    def read(cls, text: str) -> Exposition:
        """Read Prometheus' text format."""
        series: dict[str, list[dict[str, str]]] = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, _, labels = line.rsplit(" ", 1)[0].partition("{")
                series.setdefault(name, []).append(dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)))
        return cls(series)

    def labels(self, metric: str) -> set[str]:
        """The labels of a metric, which all of its series have, and those of its target."""
        ((*names,),) = {tuple(sorted(one)) for one in self.series[metric]}
        return {*names, *TARGET_LABELS}

    def problems(self, asked: Question) -> list[str]:
        """Say what an expression asks for that is not there."""
        unknown = sorted({one.metric for one in asked.selectors} - self.series.keys())
        if unknown:
            return [f"there is no {', '.join(unknown)}"]
        return [*self._wrong_matchers(asked), *self._wrong_grouping(asked)]

    def _wrong_matchers(self, asked: Question) -> list[str]:
        problems = []
        for one in asked.selectors:
            for name, operator, text in one.matchers:
                values = {labels.get(name, "") for labels in self.series[one.metric]}
                if name not in self.labels(one.metric):
                    problems.append(f"{one.metric} has no label {name}")
                elif name not in TARGET_LABELS and not _chooses(operator, text, values):
                    problems.append(f"no {name} of {one.metric} is {text}")
        return problems

    def _wrong_grouping(self, asked: Question) -> list[str]:
        known = set[str]().union(*(self.labels(one.metric) for one in asked.selectors))
        return [f"no metric of the expression has the label {name}" for name in sorted(asked.grouping - known)]


def _chooses(operator: str, text: str, values: set[str]) -> bool:
    """Whether every word of a matcher is a value that there is."""
    words = text.split("|") if "~" in operator else [text]
    return set(words) <= values
