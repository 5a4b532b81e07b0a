"""Records and policies that were written a while ago: into the store of a state folder, with a clock that says so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lapse.app.record import open_store
from lapse.core.clock import SystemClock, VirtualClock
from lapse.core.duration import Duration
from lapse.core.timestamps import to_timestamp
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.history.api.kinds import (
    CHAOS_EXPERIMENT_HISTORY,
    RETENTION_POLICY,
    Execution,
    ExperimentRef,
    HistorySpec,
)
from lapse.history.records import write_record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from lapse.engine.journal.port import Row
    from lapse.objects.embedded import EmbeddedStore

NAMESPACE = "chaos-system"


def at_store(folder: Path, work: Callable[[EmbeddedStore], Awaitable[Any]], *, ago: str = "0s") -> Any:  # noqa: ANN401 - what the work returns
    """Do something in the store of a folder, as if it were a while ago."""
    past = SystemClock().wall_ns() - (Duration.parse(ago).nanoseconds or 0)

    async def run() -> Any:  # noqa: ANN401 - as above
        store = open_store(folder, clock=VirtualClock(wall_ns=past))
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def record(
    folder: Path, experiment: str = "shop/kill", *, ago: str = "0s", status: str = "success", hold: bool = False
) -> str:
    """Record a run that ended then; return the record's name."""
    namespace, _, name = experiment.partition("/")

    async def work(store: EmbeddedStore) -> str:
        moment = SystemClock().wall_ns() - (Duration.parse(ago).nanoseconds or 0)
        ref = ExperimentRef(name=name, namespace=namespace, uid=f"u-{name}")
        spec = HistorySpec(
            experiment_ref=ref, execution=Execution(start_time=to_timestamp(moment), status=status, message="told")
        )
        made, _ = await write_record(store, spec, namespace=NAMESPACE)
        if hold:
            changes = {"metadata": {"annotations": {"lapse.dev/hold": "true", "lapse.dev/hold-reason": "audit"}}}
            await store.patch(CHAOS_EXPERIMENT_HISTORY, made.metadata.key, changes)
        return made.metadata.name

    found: str = at_store(folder, work, ago=ago)
    return found


def many_records(folder: Path, number: int, *, ago: str) -> None:
    """Record so many runs of one experiment, a second apart, the last one then."""

    async def work(store: EmbeddedStore) -> None:
        last = SystemClock().wall_ns() - (Duration.parse(ago).nanoseconds or 0)
        ref = ExperimentRef(name="kill", namespace="shop", uid="u-kill")
        for one in range(number):
            start = to_timestamp(last - one * 1_000_000_000)
            spec = HistorySpec(experiment_ref=ref, execution=Execution(start_time=start, status="success"))
            await write_record(store, spec, namespace=NAMESPACE)

    at_store(folder, work, ago=ago)


def policy(name: str, **spec: Any) -> dict[str, Any]:  # noqa: ANN401 - as in a document
    """Return a policy about records."""
    selector = {"apiVersion": CHAOS_EXPERIMENT_HISTORY.api_version, "kind": CHAOS_EXPERIMENT_HISTORY.kind}
    body = {"selector": {**selector, "namespaces": [NAMESPACE]}, **spec}
    return RETENTION_POLICY.body({"metadata": {"name": name}, "spec": body})


def store_policy(folder: Path, document: dict[str, Any], *, status: dict[str, Any] | None = None) -> None:
    """Store a policy, and what is said about it."""

    async def work(store: EmbeddedStore) -> None:
        made = await store.create(RETENTION_POLICY, document)
        if status is not None:
            await store.patch_status(RETENTION_POLICY, made.metadata.key, status)

    at_store(folder, work)


def left(folder: Path) -> set[str]:
    """Return the names of the records that there are."""

    async def work(store: EmbeddedStore) -> set[str]:
        return {one.metadata.name for one in (await store.list(CHAOS_EXPERIMENT_HISTORY)).items}

    found: set[str] = at_store(folder, work)
    return found


def rows(folder: Path) -> list[Row]:
    """Return what the journal tells, oldest first."""

    async def work(store: EmbeddedStore) -> list[Row]:
        return await SQLiteJournal(store.database).entries(limit=1_000)

    found: list[Row] = at_store(folder, work)
    return found[::-1]
