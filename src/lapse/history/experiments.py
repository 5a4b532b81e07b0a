"""Experiments with records: how many of each there are, how they went, and how old the oldest is.

Counted by labels, without reading records; so records of another operator, which have no labels of ours, are counted
under no name.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta, Struct

from lapse.core.timestamps import from_timestamp
from lapse.engine.view import Moment
from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, EXPERIMENT_NAME, EXPERIMENT_NAMESPACE, STATUS
from lapse.objects.port import Summarising

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lapse.kube.resources import Kind
    from lapse.objects.port import LabelSummary, ObjectStore

MOST: Final = 2_000
"""Groups of labels that are looked at, at most."""
_KIND: Final[Kind[Any]] = CHAOS_EXPERIMENT_HISTORY


class ExperimentView(Struct, frozen=True, kw_only=True):
    """One experiment, by its records."""

    experiment: Annotated[str, Meta(description="NAMESPACE/NAME, as labels have it; empty where there are none")]
    records: int
    statuses: Annotated[dict[str, int], Meta(description="How many ended how")]
    oldest: Moment | None


async def read_experiments(store: ObjectStore, namespace: str | None) -> list[ExperimentView] | None:
    """Return the experiments of a namespace by name; None where there are too many, or the store cannot count."""
    if not isinstance(store, Summarising):
        return None
    found = await store.summary(_KIND, namespace=namespace, at_most=MOST)
    return None if found is None else experiments_of(found)


def experiments_of(summaries: Iterable[LabelSummary]) -> list[ExperimentView]:
    """Put together what is counted of each experiment. Pure."""
    groups: dict[str, list[LabelSummary]] = {}
    for one in summaries:
        name = f"{one.labels.get(EXPERIMENT_NAMESPACE, '')}/{one.labels.get(EXPERIMENT_NAME, '')}".strip("/")
        groups.setdefault(name, []).append(one)
    return [_experiment(name, some) for name, some in sorted(groups.items())]


def _experiment(name: str, summaries: list[LabelSummary]) -> ExperimentView:
    statuses: Counter[str] = Counter()
    for one in summaries:
        statuses[one.labels.get(STATUS, "unknown")] += one.how_many
    known = [moment for one in summaries if (moment := from_timestamp(one.oldest)) is not None]
    return ExperimentView(
        experiment=name, records=statuses.total(), statuses=dict(statuses), oldest=Moment.of(min(known, default=None))
    )
