"""Retention as the product has it, by its public pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lapse.engine.executor import Executor
from lapse.history.api.kinds import RETENTION_POLICY
from lapse.history.policy.default_policy import history_document, read_ttl
from lapse.history.policy.policy import Policy
from lapse.history.records import write_record
from lapse.history.retention.passes import Pass
from lapse.kube.resources import NO_LABELS
from lapse.objects.holds.cluster import ListedDependants, listed_holds
from lapse.objects.target import ObjectTarget
from tests.conformance.retention.registry import Result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lapse.history.api.kinds import HistorySpec
    from lapse.kube.resources import Json
    from tests.conformance.retention.worlds import Surroundings

PAGE = 3
"""Few, so that a handful of objects makes several pages."""


class Product:
    """See the module."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    def history(self, **flags: Any) -> Policy:  # noqa: ANN401 - flags
        document = history_document(
            namespace=flags["namespace"],
            ttl=read_ttl(flags["ttl"]),
            limit=flags["limit"],
            keep_last_success=flags.get("keep", 0),
            dry_run=flags.get("dry_run", False),
        )
        return Policy.read(document)

    def policy(self, name: str, spec: Json) -> Policy:
        return Policy.read(RETENTION_POLICY.convert({"metadata": {"name": name}, "spec": spec}))

    async def run(self, policies: Sequence[Policy], *, labels: Mapping[str, str] = NO_LABELS) -> Mapping[str, Result]:
        around = self._around
        holds = listed_holds(around.store, ListedDependants(around.store, (), clock=around.clock))
        executor = Executor(
            ObjectTarget(around.store, holds),
            around.journal,
            clock=around.clock,
            metrics=around.metrics,
            actor="test",
        )
        passing = Pass(
            policies,
            direct=around.store,
            executor=executor,
            journal=around.journal,
            metrics=around.metrics,
            clock=around.clock,
            page=PAGE,
        )
        reports = await passing.run(labels=labels)
        return {
            name: Result(matched=report.matched, due=report.due, ended=report.outcomes["ended"])
            for name, report in reports.items()
        }

    async def write(self, spec: HistorySpec, *, namespace: str) -> tuple[str, bool]:
        found, is_new = await write_record(self._around.store, spec, namespace=namespace)
        return found.metadata.name, is_new
