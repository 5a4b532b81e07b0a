"""Writing records: one for each run, however often its writer tries.

`write_record` says what came of it, for those who asked for nothing else: a command, an HTTP call. `record_completion`
is for the path of the experiment itself, which must never fail because its record could not be written: whatever goes
wrong is logged and counted, and the run goes on without a record.

Not guaranteed: that the record of a run which was deleted meanwhile is not written anew by a very late attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lapse.core.errors import LapseError
from lapse.core.log import get_logger
from lapse.engine.running.metrics import ErrorKind, Metrics
from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, ChaosExperimentHistory, ExperimentRef, HistorySpec
from lapse.history.records import NOTHING_GIVEN, instant, record
from lapse.history.retention.passes import HISTORY
from lapse.kube.errors import AlreadyExistsError, NotFoundError

if TYPE_CHECKING:
    from lapse.kube.resources import ObjectMeta
    from lapse.objects.port import ObjectStore

_log = get_logger("lapse.history.recording")


async def write_record(
    store: ObjectStore, spec: HistorySpec, *, namespace: str, given: ObjectMeta = NOTHING_GIVEN
) -> tuple[ChaosExperimentHistory, bool]:
    """Store the record of a run in ``namespace``, and return it; False when this run was recorded before.

    Then the first record is returned as it is: a second attempt gives it no younger age. ``given`` is the metadata that
    the writer wants. Raises what the store answers, also when a name that was given is that of another run.
    """
    wanted = record(spec, namespace=namespace, given=given)
    try:
        return await store.create(CHAOS_EXPERIMENT_HISTORY, wanted), True
    except AlreadyExistsError:
        try:
            found = await store.get(CHAOS_EXPERIMENT_HISTORY, wanted.metadata.key)
        except NotFoundError:  # it went this very moment, and must not come back younger
            return wanted, False
        if given.name and _run(found.spec) != _run(spec):
            raise
        return found, False


def _run(spec: HistorySpec) -> tuple[ExperimentRef, str]:
    """Return what a name that was given stands for. No more: a server may write a spec in another way."""
    return spec.experiment_ref, instant(spec.execution.start_time)


async def record_completion(
    store: ObjectStore, spec: HistorySpec, *, namespace: str, metrics: Metrics
) -> ChaosExperimentHistory | None:
    """Store the record of a run that has just ended; None when that failed, which is nobody's failure but ours."""
    try:
        found, _ = await write_record(store, spec, namespace=namespace)
    except Exception as error:  # noqa: BLE001 - whatever it was, the experiment must not fail by it
        ref = spec.experiment_ref
        defect = None if isinstance(error, LapseError) else error
        _log.error(
            "record_not_written",
            experiment=f"{ref.namespace}/{ref.name}",
            error=type(error).__name__,
            reason=str(error) if isinstance(error, LapseError) else "",
            exc_info=defect,
        )
        metrics.failed(HISTORY, ErrorKind.RECORD)
        return None
    return found
