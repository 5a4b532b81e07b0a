"""A store with records and widgets in virtual time, and what a pass over it needs."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lapse.core.clock import VirtualClock
from lapse.core.timestamps import to_timestamp
from lapse.db.sqlite.file import Synchronous
from lapse.engine.executor import Executor
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.running.metrics import Metrics
from lapse.history.api.kinds import (
    CHAOS_EXPERIMENT_HISTORY,
    OUR_KINDS,
    RETENTION_POLICY,
    Execution,
    ExperimentRef,
    HistorySpec,
)
from lapse.history.policy.default_policy import history_document
from lapse.history.policy.policy import Policy
from lapse.history.records import record
from lapse.history.retention.passes import Pass, PassReport
from lapse.kube.errors import GoneError
from lapse.kube.resources import Kind, ObjectKey, untyped
from lapse.objects.embedded import EmbeddedStore, open_embedded
from lapse.objects.target import ObjectTarget

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from lapse.engine.journal.port import Row

WIDGET = untyped("test.lapse.dev/v1", "Widget", "widgets")
NAMESPACE = "chaos-system"


@dataclass
class World:
    """A store with records, and what a pass needs beside it."""

    store: EmbeddedStore
    clock: VirtualClock
    journal: SQLiteJournal
    metrics: Metrics
    listed: list[type] = field(default_factory=list)
    """As what each page was read."""
    before_list: Callable[[int], Awaitable[object]] | None = None
    """Called before each page, with its number."""

    async def run(self, experiment: str = "kill", *, namespace: str = "shop", status: str = "success") -> str:
        """Let an experiment run, and store its record; return the record's name."""
        ref = ExperimentRef(name=experiment, namespace=namespace, uid=f"u-{namespace}-{experiment}")
        execution = Execution(start_time=to_timestamp(self.clock.wall_ns()), status=status)
        found = record(HistorySpec(experiment_ref=ref, execution=execution), namespace=NAMESPACE)
        return (await self.store.create(CHAOS_EXPERIMENT_HISTORY, found)).metadata.name

    async def runs(self, count: int, *, hours: float = 1, **how: str) -> list[str]:
        """Do so several times, with time in between; the oldest is the first."""
        names = []
        for _ in range(count):
            names.append(await self.run(**how))
            self.clock.advance(hours * 3600)
        return names

    def passing(self, *policies: Policy, page: int = 3, **how: Any) -> Pass:  # noqa: ANN401 - as a pass is made
        executor = Executor(
            ObjectTarget(self.store, self.store), self.journal, clock=self.clock, metrics=self.metrics, actor="test"
        )
        direct = how.pop("direct", self)
        around: Any = {"journal": self.journal, "metrics": self.metrics, "clock": self.clock}
        return Pass(policies, direct=direct, executor=executor, page=page, **around, **how)

    async def prune(self, policy: Policy | None = None, **values: Any) -> PassReport:  # noqa: ANN401 - those of the policy
        (report,) = (await self.passing(policy or history_policy(**values)).run()).values()
        return report

    async def left(self, kind: Kind[Any] = CHAOS_EXPERIMENT_HISTORY) -> list[str]:
        return [one.metadata.name for one in (await self.store.list(kind)).items]

    async def rows(self) -> list[Row]:
        return await self.journal.entries()

    # What a `Reader` does, with a look at it.

    async def get(self, kind: Kind[Any], key: ObjectKey) -> Any:  # noqa: ANN401 - any object
        return await self.store.get(kind, key)

    async def list(self, kind: Kind[Any], **question: Any) -> Any:  # noqa: ANN401 - as it is asked
        self.listed.append(kind.type)
        if self.before_list is not None:
            await self.before_list(len(self.listed) - 1)
        return await self.store.list(kind, **question)

    async def resolve(self, api_version: str, kind: str) -> Kind[Any]:
        return await self.store.resolve(api_version, kind)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[World]:
    clock = VirtualClock()
    kinds = (*OUR_KINDS, WIDGET)
    store = open_embedded(folder / "objects.db", kinds=kinds, clock=clock, synchronous=Synchronous.NORMAL)
    try:
        yield World(store, clock, SQLiteJournal(store.database), Metrics("test"))
    finally:
        await store.close()


def history_policy(**values: Any) -> Policy:  # noqa: ANN401 - those of the flags
    return Policy.read(history_document(**values))


def gone_at(*pages: int) -> Callable[[int], Awaitable[object]]:
    """Let the store have forgotten the moment of a listing at these pages, unless one begins there."""

    async def before_list(page: int) -> None:
        if page in pages:
            raise GoneError(version=1)

    return before_list


def widgets(name: str = "widgets", **spec: Any) -> Policy:  # noqa: ANN401 - as in a document
    selector = {"apiVersion": WIDGET.api_version, "kind": WIDGET.kind}
    body = {"metadata": {"name": name}, "spec": {"selector": selector, "dryRun": False, **spec}}
    return Policy.read(RETENTION_POLICY.convert(body))
