"""Kinds of the history domain: the record of one run of an experiment, and the policy that says how long objects stay.

As everywhere, required is what has no default, and the bounds are for the schema only: a reader takes what is stored.
Rules that no schema can express are beside the types. A record is written once, when a run has ended, and says
everything in its spec. It has no status, because nothing happens to it any more.

Metadata of a record is enough to decide how long it stays: labels say which experiment it belongs to and how the run
ended. Label values have at most 63 characters of a small alphabet, and names of experiments need not fit. A name that
does not is shortened, with a hash of all of it, which tells it from others that begin alike. The exact names are in the
record's spec and, for those who read metadata only, in an annotation.
"""

from __future__ import annotations

import re
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import msgspec
from msgspec import Meta

from lapse.core.duration import HOUR, SECOND, Duration, DurationError
from lapse.kube.crd.definition import AGE, column, definition
from lapse.kube.crd.rules import (
    IMMUTABLE_SPEC,
    MAX_TTL_CHARACTERS,
    ApiVersion,
    Count,
    KindName,
    Name,
    Namespace,
    Rule,
    Time,
    Uid,
    is_duration,
    seconds_in_cel,
)
from lapse.kube.crd.validation import validator
from lapse.kube.resources import READY, Conditions, Kind, ObjectMeta, Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lapse.kube.resources import Json

EXPERIMENT_NAMESPACE: Final = "lapse.dev/experiment-namespace"
EXPERIMENT_NAME: Final = "lapse.dev/experiment-name"
EXPERIMENT_UID: Final = "lapse.dev/experiment-uid"
STATUS: Final = "lapse.dev/status"
"""Labels."""
EXPERIMENT: Final = "lapse.dev/experiment"
"""An annotation: NAMESPACE/NAME, in full."""
NEVER: Final = "never"
"""What a policy says of the trash, if what it ends must be gone at once."""
LONGEST_VALUE: Final = 63
_VALUE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DIGITS: Final = 10


def label_value(text: str) -> str:
    """Return a text as a label can have it; the same text always gives the same value."""
    if not text or (len(text) <= LONGEST_VALUE and _VALUE.fullmatch(text)):
        return text
    kept = re.sub("[^A-Za-z0-9_.-]", "-", text)[: LONGEST_VALUE - _DIGITS - 1].strip("-_.")
    digest = short_hash(text)
    return f"{kept}-{digest}" if kept else digest


def short_hash(*parts: str) -> str:
    """Return a few digits that differ for different parts, also for ``a, bc`` and ``ab, c``."""
    return sha256("\0".join(parts).encode()).hexdigest()[:_DIGITS]


RECORD_GROUP: Final = "chaos.gushchin.dev"
RECORD_KIND: Final = "ChaosExperimentHistory"
SHORTEST_AGE: Final = HOUR
"""Of records: a shorter limit is a typing error, and ``30m`` for ``30d`` would empty a history of years."""
AGE_OF_RECORDS: Final = "maxAge of records must be 0 for any age, or 1h or more, such as 720h"


def is_age_of_records(spec: Mapping[str, Any]) -> bool:
    """Whether a policy leaves records at least an hour, or is about something else, or has another fault."""
    selector, text = spec["selector"], spec.get("maxAge")
    group, _, _ = selector["apiVersion"].partition("/")
    if (group, selector["kind"]) != (RECORD_GROUP, RECORD_KIND) or text is None:
        return True
    try:
        age = Duration.parse(text).nanoseconds
    except DurationError:
        return True
    return age is None or age <= 0 or age >= SHORTEST_AGE


_SECONDS: Final = seconds_in_cel("self.maxAge")
_AGE_OF_RECORDS: Final = Rule(
    ("spec",),
    f"!(self.selector.kind == '{RECORD_KIND}' && self.selector.apiVersion.startsWith('{RECORD_GROUP}/'))"
    f" || !has(self.maxAge) || {_SECONDS} == 0.0 || {_SECONDS} >= {SHORTEST_AGE / SECOND!r}",
    lambda spec, _old: is_age_of_records(spec),
    AGE_OF_RECORDS,
)

RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    RECORD_KIND: (IMMUTABLE_SPEC,),
    "RetentionPolicy": (*is_duration("spec", "maxAge", zero=True), _AGE_OF_RECORDS),
}
"""By the name of the kind."""


CHAOS: Final = "chaos.gushchin.dev/v1alpha1"
LAPSE: Final = "lapse.dev/v1alpha1"

Text = Annotated[str, Meta(extra_json_schema={"maxLength": 32768})]
Word = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 253})]

# --- records ----------------------------------------------------------------------------------------------------------


class ExecutionStatus(StrEnum):
    """How a run ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    PARTIAL = "partial"
    CANCELLED = "cancelled"


class ExperimentRef(Struct, frozen=True):
    """Which experiment ran. It may be gone by now, and another one may have its name; ``uid`` tells them apart."""

    name: Name
    namespace: Namespace
    uid: Uid | None = None


class Execution(Struct, frozen=True):
    """When it ran, and how it ended."""

    start_time: Time
    status: Annotated[str, Meta(extra_json_schema={"enum": [*ExecutionStatus]})]
    end_time: Time | None = None
    message: Text | None = None


class AffectedResource(Struct, frozen=True):
    """Something that the experiment did something to."""

    kind: KindName
    name: Name
    namespace: Namespace | None = None
    action: Word | None = None
    details: Text | None = None


class Audit(Struct, frozen=True):
    """Who started the run, and in which way it ran; ``retry_count`` is 0 for a first attempt."""

    initiated_by: Text | None = None
    scheduled_execution: bool = False
    dry_run: bool = False
    retry_count: Count = 0


class ErrorDetails(Struct, frozen=True):
    """Why it failed."""

    message: Text | None = None
    code: Word | None = None
    last_error: Text | None = None
    failure_reason: Word | None = None


class HistorySpec(Struct, frozen=True):
    """What one run did; ``experiment_spec`` is the experiment as it was then."""

    experiment_ref: ExperimentRef
    execution: Execution
    experiment_spec: dict[str, Any] | None = None
    affected_resources: Annotated[tuple[AffectedResource, ...], Meta(extra_json_schema={"maxItems": 10_000})] = ()
    audit: Audit = Audit()
    error: ErrorDetails | None = None


class ChaosExperimentHistory(Struct, frozen=True):
    """Tells what one run of an experiment did. It never changes."""

    metadata: ObjectMeta
    spec: HistorySpec


# --- policies ---------------------------------------------------------------------------------------------------------

# Whether a path can be read is for the controller to say: the status then tells what is wrong with it, and good
# policies go on beside it.
Path = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 512})]
_UP_TO_A_HUNDRED: Final = Meta(extra_json_schema={"minItems": 1, "maxItems": 100})


class Selector(Struct, frozen=True):
    """Which objects a policy selects: those of a kind that have all of ``labels``, in ``namespaces`` or in all."""

    api_version: ApiVersion
    kind: KindName
    namespaces: Annotated[tuple[Namespace, ...], Meta(extra_json_schema={"maxItems": 1000})] = ()
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class FieldIn(Struct, frozen=True):
    """Holds for objects that have one of the values of ``in`` at ``field_path``; numbers and booleans as JSON text."""

    field_path: Path
    values: Annotated[tuple[str, ...], _UP_TO_A_HUNDRED] = msgspec.field(name="in")


class KeepLast(Struct, frozen=True):
    """How many stay of each group whatever the limits say: the newest of those that ``where`` holds for, or of all."""

    count: Count
    where: FieldIn | None = None


class RetentionSpec(Struct, frozen=True):
    """How long objects stay: at most ``max_age``, at most ``max_count`` of a group; absent or 0: no limit.

    Only objects for which all of ``only_when`` hold are deleted or counted. Until ``dry_run`` is set to false
    nothing is deleted. With ``trash: never`` what is deleted cannot be brought back: for limits that are legal ones.
    """

    selector: Selector
    group_by: Annotated[tuple[Path, ...], Meta(extra_json_schema={"maxItems": 16})] = ()
    max_age: Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_TTL_CHARACTERS})] | None = None
    max_count: Count | None = None
    keep_last: KeepLast | None = None
    age_from: Path | None = None
    only_when: Annotated[tuple[FieldIn, ...], Meta(extra_json_schema={"maxItems": 16})] = ()
    dry_run: bool = True
    trash: Annotated[str, Meta(extra_json_schema={"enum": [NEVER]})] | None = None


class RetentionStatus(Struct, frozen=True):
    """What the last run did: ``kept`` tells by which rule, ``deleted`` what went or, in a dry run, what would go.

    ``unlabelled`` are records of another operator, without labels of Lapse, among ``matched``: they were read whole.
    """

    conditions: Conditions = ()
    observed_generation: int | None = None
    last_run: Time | None = None
    next_run: Time | None = None
    dry_run: bool | None = None
    matched: Count | None = None
    unlabelled: Count | None = None
    deleted: dict[str, int] = msgspec.field(default_factory=dict)
    kept: dict[str, int] = msgspec.field(default_factory=dict)


class RetentionPolicy(Struct, frozen=True):
    """Limits the age and the number of objects of any kind."""

    metadata: ObjectMeta
    spec: RetentionSpec
    status: RetentionStatus | None = None


CHAOS_EXPERIMENT_HISTORY: Final = Kind(
    CHAOS,
    "ChaosExperimentHistory",
    "chaosexperimenthistories",
    ChaosExperimentHistory,
    status=False,
    short="cehist",
    word="history",
    validate=validator(ChaosExperimentHistory, RULES["ChaosExperimentHistory"]),
)
RETENTION_POLICY: Final = Kind(
    LAPSE,
    "RetentionPolicy",
    "retentionpolicies",
    RetentionPolicy,
    namespaced=False,
    short="retention",
    validate=validator(RetentionPolicy, RULES["RetentionPolicy"]),
)
OUR_KINDS: Final[tuple[Kind[Any], ...]] = (CHAOS_EXPERIMENT_HISTORY, RETENTION_POLICY)

# --- domains ----------------------------------------------------------------------------------------------------------

HISTORY: Final = "history"
RETENTION: Final = "retention"
"""The domain of records and that of everything else that policies select, as metrics and journal name them."""
_RECORDS: Final = (CHAOS_EXPERIMENT_HISTORY.api_version, CHAOS_EXPERIMENT_HISTORY.kind)


class _Named(Protocol):
    """A kind, a policy or its selector: all of them name an API version and a kind."""

    @property
    def api_version(self) -> str: ...

    @property
    def kind(self) -> str: ...


def is_record(about: _Named) -> bool:
    """Whether something is, or is about, records. By name: a store may read them as any other document."""
    return (about.api_version, about.kind) == _RECORDS


def domain_of(about: _Named) -> str:
    """Return the domain that objects of a kind are ended in."""
    return HISTORY if is_record(about) else RETENTION


# --- definitions ------------------------------------------------------------------------------------------------------


_COLUMNS: Final[dict[str, tuple[Json, ...]]] = {
    "ChaosExperimentHistory": (
        column("From", ".spec.experimentRef.namespace"),
        column("Experiment", ".spec.experimentRef.name"),
        column("Status", ".spec.execution.status"),
        column("Started", ".spec.execution.startTime"),
        AGE,
    ),
    "RetentionPolicy": (
        column("Kind", ".spec.selector.kind"),
        column("Max age", ".spec.maxAge"),
        column("Max count", ".spec.maxCount", "integer"),
        column("Dry run", ".spec.dryRun", "boolean"),
        column("Ready", f".status.conditions[?(@.type=='{READY}')].status"),
        column("Matched", ".status.matched", "integer"),
        column("Last run", ".status.lastRun", "date"),
        AGE,
    ),
}


def definitions() -> list[Json]:
    """Return the CustomResourceDefinitions of these kinds, with what ``kubectl get`` shows of them."""
    return [definition(kind, rules=RULES[kind.kind], columns=_COLUMNS[kind.kind]) for kind in OUR_KINDS]
