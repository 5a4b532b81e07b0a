"""Records of runs, as they are stored: under a name and labels that are made from nothing but the run, once each.

The same run always has the same name, so that writing a record twice finds the first one: an attempt that is repeated
after a lost answer makes no second record and gives none a younger age. A run is what its document says: two documents
that differ in more than the form of their times are two runs, also when both began in the same second.

`write_record` says what came of it, for a command or an HTTP call. `record_completion` is for the path of the
experiment itself, which must never fail because its record could not be written: whatever goes wrong is logged and
counted, and the run goes on without a record.

Not guaranteed: that the record of a run which was deleted meanwhile is not written anew by a very late attempt.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lapse.core.errors import LapseError
from lapse.core.log import get_logger
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.engine.running.metrics import ErrorKind, Metrics
from lapse.history.api.kinds import (
    CHAOS_EXPERIMENT_HISTORY,
    EXPERIMENT,
    EXPERIMENT_NAME,
    EXPERIMENT_NAMESPACE,
    EXPERIMENT_UID,
    HISTORY,
    STATUS,
    ChaosExperimentHistory,
    ExperimentRef,
    HistorySpec,
    is_record,
    label_value,
    short_hash,
)
from lapse.kube.errors import AlreadyExistsError, NotFoundError
from lapse.kube.resources import ObjectMeta, Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lapse.history.policy.policy import Policy
    from lapse.kube.resources import Json
    from lapse.objects.port import ObjectStore

LONGEST_NAME: Final = 253
NOTHING_GIVEN: Final = ObjectMeta()
_LABELS: Final = (EXPERIMENT_NAMESPACE, EXPERIMENT_NAME, EXPERIMENT_UID, STATUS)
_UNNAMED: Final = "experiment"
_FRACTION: Final = re.compile("[.,]([0-9]+)")
_log = get_logger("lapse.history.records")


def record(spec: HistorySpec, *, namespace: str, given: ObjectMeta = NOTHING_GIVEN) -> ChaosExperimentHistory:
    """Return the record of a run, to be stored in ``namespace``, which is the history's and not the experiment's.

    Of ``given``, the metadata that its writer wants, name, labels and annotations are kept, so a hold among them counts
    from the beginning; what is made from the run wins.
    """
    ref = spec.experiment_ref
    metadata = ObjectMeta(
        name=given.name or record_name(spec),
        namespace=namespace,
        labels={**given.labels, **experiment_labels(ref), STATUS: label_value(spec.execution.status)},
        annotations={**given.annotations, EXPERIMENT: f"{ref.namespace}/{ref.name}"},
    )
    return ChaosExperimentHistory(metadata=metadata, spec=spec)


def experiment_labels(ref: ExperimentRef) -> dict[str, str]:
    """Return the labels that all records of one experiment have, and no others."""
    return {
        EXPERIMENT_NAMESPACE: label_value(ref.namespace),
        EXPERIMENT_NAME: label_value(ref.name),
        EXPERIMENT_UID: label_value(ref.uid or ""),
    }


def is_about_records(policies: Iterable[Policy]) -> bool:
    """Whether policies, which are all about one kind, are about records."""
    return all(map(is_record, policies))


def is_labelled(labels: Mapping[str, str]) -> bool:
    """Whether a record has all labels that retention needs, as ours have; those of another operator need not."""
    return all(name in labels for name in _LABELS)


def labelled(body: Json) -> Json:
    """Return the document of a record with the labels that are missing, made of its spec.

    Labels that it has stay. Where the spec does not say what they are, it stays as it is: it is in no group then.
    """
    metadata = body["metadata"]
    labels = metadata.get("labels") or {}
    try:
        spec = msgspec.convert(body.get("spec"), _LabelSource, strict=False)
    except msgspec.ValidationError:
        return body
    made = {**experiment_labels(spec.experiment_ref), STATUS: label_value(spec.execution.status)}
    return {**body, "metadata": {**metadata, "labels": {**made, **labels}}}


class _Outcome(Struct, frozen=True):
    status: str


class _LabelSource(Struct, frozen=True):
    """The part of a record's spec that its labels are made of."""

    experiment_ref: ExperimentRef
    execution: _Outcome


def record_name(spec: HistorySpec) -> str:
    """Name the record of a run; of one experiment, later runs have greater names."""
    ending = f"-{_stamp(spec.execution.start_time)}-{short_hash(_identity(spec))}"
    readable = re.sub("[^a-z0-9]+", "-", spec.experiment_ref.name.lower())[: LONGEST_NAME - len(ending)].strip("-")
    return f"{readable or _UNNAMED}{ending}"


def instant(text: str) -> str:
    """Return the one form of a moment, in UTC and as exact as it was given; a text that is no moment stays as it is."""
    moment = from_timestamp(_FRACTION.sub("", text, count=1))
    if moment is None:
        return text
    fraction = _FRACTION.search(text)
    digits = "" if fraction is None else fraction[1].rstrip("0")
    return f"{to_timestamp(moment)[:-1]}{f'.{digits}' if digits else ''}Z"


def _identity(spec: HistorySpec) -> str:
    """Return what tells a run from all others: everything about it, with each moment in its one form."""
    body: dict[str, Any] = msgspec.to_builtins(spec)
    execution = body["execution"]
    body["execution"] = execution | {
        name: instant(execution[name]) for name in ("startTime", "endTime") if execution.get(name)
    }
    return msgspec.json.encode(body, order="sorted").decode()


def _stamp(start_time: str) -> str:
    """Return a moment in digits that sort as time does; a text that is none still makes a name."""
    moment = instant(start_time)
    return "0" if from_timestamp(moment) is None else re.sub("[^0-9]", "", moment)


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
    """Store the record of a run that has just ended; None when that failed."""
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
