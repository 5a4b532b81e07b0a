"""Views of records and of retention policies: how long each record stays and why, and what came of passes.

A record is judged as in a pass, on one reading of the store; nothing is decided and nothing is done here. Metadata is
all that is read where the policies need no more. A page of records is judged with the groups that it has a part of, of
which no more is kept than their ranks.

Not guaranteed: that what is told is still so a moment later. A policy that puts records of several namespaces into one
group is judged by those of the namespace that is looked at; and where records are asked for by their labels, those of
another operator, without our labels, are not among them and not counted.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from msgspec import Meta, Struct, to_builtins

from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.decision import Due, DueReason, Keep, KeepReason, Unknown
from lapse.core.duration import SECOND, Duration, DurationError, short
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.engine.safety.extensions import extension_of
from lapse.engine.safety.holds import hold_of
from lapse.engine.view import Expiry, Moment, fill, known
from lapse.history.api.kinds import (
    CHAOS_EXPERIMENT_HISTORY,
    EXPERIMENT,
    EXPERIMENT_NAME,
    EXPERIMENT_NAMESPACE,
    EXPERIMENT_UID,
    RETENTION_POLICY,
    STATUS,
    RetentionStatus,
)
from lapse.history.api.kinds import label_value as value
from lapse.history.policy.paths import FieldPath
from lapse.history.records import labelled
from lapse.history.retention.grouping import GroupRanking, judge
from lapse.history.retention.listing import LEFT_ALONE, PAGE, Listing, ObjectReader, read_pages
from lapse.history.retention.rules import LimitReason, RetainReason, combine
from lapse.kube.resources import NO_LABELS, Document, PartialObject, metadata_only, ready_condition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence

    from lapse.core.clock import Clock
    from lapse.core.decision import Verdict
    from lapse.engine.view import Columns, DetailRow
    from lapse.history.api.kinds import RetentionPolicy
    from lapse.history.policy.policies import LoadedPolicies
    from lapse.history.policy.policy import Policy
    from lapse.history.retention.passes import PassItem
    from lapse.history.retention.policy_set import Views
    from lapse.history.retention.rules import Judgement, RetainedObject
    from lapse.history.retention.runs import PolicyRun
    from lapse.kube.resources import Json, Kind, ObjectMeta, Page
    from lapse.objects.port import Reader

_KIND: Final[Kind[Any]] = CHAOS_EXPERIMENT_HISTORY
_EXPERIMENT_PATHS: Final = frozenset(
    FieldPath(("metadata", "labels", name)) for name in (EXPERIMENT_NAMESPACE, EXPERIMENT_NAME)
)
_NEVER: Final = Keep(KeepReason.NO_LIMIT)
WITH_NEXT: Final = "with the next pass"
_FEW: Final = 10
"""So many groups are listed one by one; for more, one listing of everything costs less."""


class PolicyJudgement(NamedTuple):
    """The judgement of one policy about a record."""

    policy: Policy
    judgement: Judgement
    newer: int | None
    """How many of its group are newer and count: what is held does not. None: not counted, for a page of a list."""


class Opinion(Struct, frozen=True):
    """What one policy says about a record."""

    policy: str
    verdict: str
    reason: str
    says: Annotated[str, Meta(description="In words")]


class RecordView(Struct, frozen=True, kw_only=True):
    """A record, and how long it stays."""

    address: str
    namespace: str | None
    name: str
    uid: str
    experiment: Annotated[str, Meta(description="NAMESPACE/NAME")]
    experiment_uid: str | None
    status: str | None
    created_at: Moment | None
    verdict: Annotated[str, Meta(description="keep, due or unknown: all policies taken together")]
    reason: str
    expires_at: Annotated[
        Moment | None, Meta(description="When it goes, or since when it is due; null where no moment is known")
    ]
    expires: Annotated[str | None, Meta(description="When it goes, in words, where no moment says it")]
    held: bool

    def expiry(self, now: int) -> str:
        """Say for people when it goes."""
        return Expiry(self.expires_at, self.expires or "").words(now, held=self.held)


class Recorded(RecordView, frozen=True, kw_only=True):
    """A record that was written now, or before."""

    new: Annotated[bool, Meta(description="false: the same run was recorded before, and its record left as it is")]


class RecordDetails(RecordView, frozen=True, kw_only=True):
    """A record whole, and how long it stays by which policy."""

    retention: list[Opinion]
    object: Annotated[dict[str, Any], Meta(description="The document")]


COLUMNS: Final[Columns] = {
    "age": lambda one, now: None if one.created_at is None else short(now - one.created_at),
    "experiment": lambda one, _: one.experiment or None,
    "status": "status",
    "address": "address",
    "expires": lambda one, now: one.expiry(now) or None,
}


@dataclass(frozen=True, slots=True)
class JudgedRecord:
    """One record, and the judgements of the policies about it."""

    metadata: ObjectMeta
    judgements: tuple[PolicyJudgement, ...] = ()

    @property
    def experiment(self) -> str:
        """The experiment, as NAMESPACE/NAME; by labels, which are shortened, where no annotation names it."""
        labels = self.metadata.labels
        told = f"{labels.get(EXPERIMENT_NAMESPACE, '')}/{labels.get(EXPERIMENT_NAME, '')}"
        return self.metadata.annotations.get(EXPERIMENT) or told.strip("/")

    @property
    def created(self) -> UnixNs | None:
        """When it was written."""
        return from_timestamp(self.metadata.creation_timestamp or "")

    @property
    def verdict(self) -> Verdict:
        """The verdict, all policies taken together; one that is a dry run only protects."""
        counted = [one for one in self.judgements if not one.policy.dry_run or one.judgement.protection]
        return combine([one.judgement for one in counted]).verdict if counted else _NEVER

    @property
    def expiry(self) -> Expiry:
        """When it goes."""
        if self.judgements and all(one.policy.dry_run for one in self.judgements):
            return Expiry(instead="never (dry run)")
        return expiry_of(self.verdict).extended(extension_of(self.metadata.annotations))

    def view(self, now: int) -> RecordView:
        """Return its view."""
        meta, expiry, verdict = self.metadata, self.expiry, self.verdict
        hold = hold_of(meta.annotations)
        return RecordView(
            address=str(Address("history", meta.namespace, meta.name)),
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            experiment=self.experiment,
            experiment_uid=meta.labels.get(EXPERIMENT_UID) or None,
            status=meta.labels.get(STATUS) or None,
            created_at=Moment.of(self.created),
            verdict=type(verdict).__name__.lower(),
            reason=str(verdict.reason),
            expires_at=Moment.of(expiry.at),
            expires=expiry.instead or None,
            held=hold is not None and hold.active(UnixNs(now)),
        )

    def details(self, document: Json, now: int) -> RecordDetails:
        """Return its view, with what each policy says and with its document."""
        opinions = [opinion_of(one, UnixNs(now)) for one in self.judgements]
        return fill(RecordDetails, self.view(now), retention=opinions, object=document)


def expiry_of(verdict: Verdict) -> Expiry:
    """Say of a verdict when something goes."""
    match verdict:
        case Due(reason=reason, since=since):
            return Expiry(since, WITH_NEXT if reason is LimitReason.RETENTION_LIMIT else "")
        case Unknown(reason=reason):
            return Expiry(instead=f"unknown ({reason})")
        case Keep(reason=KeepReason.HELD):
            return Expiry(instead="held")
        case Keep(reason=RetainReason.KEEP_LAST):
            return Expiry(instead="kept (keep-last)")
        case Keep(reason=KeepReason.NOT_YET | KeepReason.EXTENDED, next_check=at):
            return Expiry(instead="by number") if at is None else Expiry(UnixNs(at - 1))
    return Expiry(instead="never")


# --- reading ----------------------------------------------------------------------------------------------------------


def about_records(loaded: LoadedPolicies) -> list[Policy]:
    """Return the policies about records; one that cannot be understood is not in force."""
    about = (_KIND.api_version, _KIND.kind)
    return [policy for _, policy in loaded.policies if (policy.api_version, policy.kind) == about]


def experiment_filter(policies: Sequence[Policy], namespace: str | None, name: str | None) -> Mapping[str, str]:
    """Return labels that select the records of an experiment, and leave whole every group that a policy counts.

    No labels where a policy groups by something else: then all must be read.
    """
    if namespace is None or not all(set(policy.group_by) >= _EXPERIMENT_PATHS for policy in policies):
        return NO_LABELS
    return {EXPERIMENT_NAMESPACE: value(namespace)} if name is None else experiment_labels_of(namespace, name)


def experiment_labels_of(namespace: str, name: str) -> dict[str, str]:
    """Return the labels that all records of the experiments of that name have, whatever their uid."""
    return {EXPERIMENT_NAMESPACE: value(namespace), EXPERIMENT_NAME: value(name)}


def is_of(record: JudgedRecord, namespace: str | None, name: str | None) -> bool:
    """Whether it is a record of an experiment of that namespace and name; None stands for any."""
    labels = record.metadata.labels
    return all(
        wanted is None or labels.get(label) == value(wanted)
        for label, wanted in ((EXPERIMENT_NAMESPACE, namespace), (EXPERIMENT_NAME, name))
    )


async def look(
    direct: Reader,
    policies: Sequence[Policy],
    *,
    namespace: str | None,
    now: UnixNs,
    labels: Mapping[str, str] = NO_LABELS,
) -> list[JudgedRecord]:
    """Return the records of a namespace that have ``labels``, newest first, each with what the policies say."""
    found: list[ObjectMeta] = []
    entries: list[list[RetainedObject]] = [[] for _ in policies]
    reading = _reading(policies)
    async for obj in _objects(direct, policies, namespace=namespace, labels=labels):
        found.append(_labelled(obj))
        for entry, its in zip(reading.views(obj), entries, strict=True):
            if entry is not None:
                its.append(entry)
    judgements: dict[str, list[PolicyJudgement]] = {}
    for policy, its in zip(policies, entries, strict=True):
        for one in _judgements(policy, its, now):
            judgements.setdefault(one.judgement.entry.uid, []).append(one)
    judged = [JudgedRecord(metadata, tuple(judgements.get(metadata.uid, ()))) for metadata in found]
    return sorted(judged, key=lambda one: (one.created or 0, one.metadata.name), reverse=True)


async def look_at(direct: Reader, metadata: ObjectMeta, policies: Sequence[Policy], *, now: UnixNs) -> JudgedRecord:
    """Return one record with what the policies say about it; what shares a group with it is read for that."""
    labels = {name: metadata.labels[name] for name in _shared_labels(policies) if name in metadata.labels}
    found = await look(direct, policies, namespace=metadata.namespace, labels=labels, now=now)
    return next((one for one in found if one.metadata.uid == metadata.uid), JudgedRecord(metadata))


class RecordQuery(NamedTuple):
    """A page of records that is asked for."""

    namespace: str | None
    labels: Mapping[str, str]
    limit: int
    after: str | None = None


async def look_at_page(
    direct: Reader, policies: Sequence[Policy], asked: RecordQuery, *, clock: Clock
) -> tuple[list[JudgedRecord], str | None]:
    """Return a page of records in the order of the store, each with what the policies say, and where the next begins.

    What shares a group with one of them is read for that, by its labels where the page has a part of few groups. Kept
    are the page and, of these groups, the ranks. Raises what the store answers.
    """
    reading, now = _reading(policies), UnixNs(clock.wall_ns())
    page = await _read_page(direct, reading, asked)
    views = [reading.views(one) for one in page.items]
    rankings = await _rank(direct, policies, page.items, views, now=now, clock=clock)
    by = list(zip(policies, rankings, strict=True))
    judged = []
    for obj, entries in zip(page.items, views, strict=True):
        of_each = zip(by, entries, strict=True)
        found = [
            PolicyJudgement(policy, ranking.standing(entry).judge(now), None)
            for (policy, ranking), entry in of_each
            if entry is not None
        ]
        judged.append(JudgedRecord(_labelled(obj), tuple(found)))
    return judged, page.next


async def _read_page(direct: Reader, reading: ObjectReader, asked: RecordQuery) -> Page[Any]:
    """Return a page as policies need it: metadata where that is enough, and whole where it is not."""
    if reading.is_metadata_enough:
        found: Page[Any] = await direct.list(metadata_only(_KIND), **asked._asdict())
        if not any(map(reading.lacks_labels, found.items)):
            return found
    return await direct.list(replace(_KIND, type=Document), **asked._asdict())


async def _rank(
    direct: Reader,
    policies: Sequence[Policy],
    found: Sequence[PartialObject | Document],
    views: Sequence[Views],
    *,
    now: UnixNs,
    clock: Clock,
) -> list[GroupRanking]:
    """Return for each policy the ranks of the groups that a page has a part of; none where no rank counts."""
    rankings = [GroupRanking(one.limits, now) for one in policies]
    counting = [one for one in policies if one.limits.max_count is not None or one.limits.keep_last > 0]
    if not counting or not found:
        return rankings
    groups = [
        {entry.group for entry in column if entry is not None} if policy in counting else set()
        for policy, column in zip(policies, zip(*views, strict=True), strict=True)
    ]
    for labels in _group_labels(counting, found):
        listing = Listing(policies=policies, kind=_KIND, direct=direct, clock=clock, labels=labels)
        async for page in listing.pages(lambda: True):
            for of_one in page:
                for ranking, wanted, entry in zip(rankings, groups, of_one, strict=True):
                    if entry is not None and entry.group in wanted:
                        ranking.add(entry)
    return rankings


def _group_labels(policies: Sequence[Policy], found: Sequence[PartialObject | Document]) -> list[dict[str, str]]:
    """Return the labels by which to list what shares a group with one of these: no labels where that is everything."""
    shared = _shared_labels(policies)
    asked: list[dict[str, str]] = []
    for one in found:
        labels = {name: value for name, value in one.metadata.labels.items() if name in shared}
        if len(labels) < len(shared) or not labels:
            return [{}]
        if labels not in asked:
            asked.append(labels)
        if len(asked) > _FEW:
            return [{}]
    return asked


def _labelled(obj: PartialObject | Document) -> ObjectMeta:
    """Return the metadata of a record, with our labels also where another operator wrote it."""
    return Document(labelled(obj.body)).metadata if isinstance(obj, Document) else obj.metadata


def _shared_labels(policies: Sequence[Policy]) -> set[str]:
    """Return the labels that all policies group by: what differs in one of them shares no group in any."""
    named = [{path.steps[2] for path in policy.group_by if _is_label(path)} for policy in policies]
    return {str(name) for name in set.intersection(*named)} if named else set()


def _is_label(path: FieldPath) -> bool:
    return len(path.steps) == 3 and path.steps[:2] == ("metadata", "labels")  # noqa: PLR2004 - metadata, labels, its name


def _reading(policies: Sequence[Policy]) -> ObjectReader:
    return ObjectReader(policies, asked=NO_LABELS, left_alone=LEFT_ALONE)


async def _objects(
    direct: Reader, policies: Sequence[Policy], *, namespace: str | None, labels: Mapping[str, str]
) -> AsyncIterator[PartialObject | Document]:
    pages = read_pages(direct, _KIND, _reading(policies), namespace=namespace, labels=labels, limit=PAGE)
    async with aclosing(pages):
        async for page in pages:
            for one in page:
                yield one


def _judgements(policy: Policy, entries: Sequence[RetainedObject], now: UnixNs) -> Iterator[PolicyJudgement]:
    newer: dict[object, int] = {}
    ordered = sorted(entries, key=lambda one: (one.anchor or 0, one.namespace or "", one.name), reverse=True)
    for judgement in judge(ordered, policy.limits, now):
        group = judgement.entry.group
        yield PolicyJudgement(policy, judgement, newer.get(group, 0))
        newer[group] = newer.get(group, 0) + (not judgement.entry.is_held(now))


# --- words and rows of records ---------------------------------------------------------------------------------------


def explain(given: PolicyJudgement, now: UnixNs) -> str:
    """Say in a sentence what a policy wants of a record, and why."""
    verdict, limits = given.judgement.verdict, given.policy.limits
    age = f"it is older than maxAge {Duration(limits.max_age)}" if limits.max_age is not None else ""
    count = f"{given.newer} of its group are newer, and maxCount is {limits.max_count}"
    match verdict:
        case Due(reason=DueReason.TTL_EXPIRED, since=since):
            told = f"goes: {age} since {to_timestamp(since)} ({verdict.reason})"
        case Due(reason=LimitReason.RETENTION_LIMIT, since=since):
            told = f"goes: {count}, since {to_timestamp(since)} ({verdict.reason})"
        case Keep(reason=RetainReason.KEEP_LAST):
            saved = age if _is_expired(given, now) else count
            last = f"the last {limits.keep_last}{_where(given.policy)}"
            told = f"stays: keepLast keeps {last}; otherwise it would go, as {saved}"
        case Keep(reason=KeepReason.HELD, next_check=until):
            told = f"stays: it is held{'' if until is None else f' until {to_timestamp(until)}'}"
        case Keep(reason=KeepReason.EXTENDED, next_check=int(until)):
            told = f"stays: a person has extended it until {to_timestamp(until - 1)}"
        case Unknown(reason=reason):
            told = f"stays: what cannot be decided is kept ({reason})"
        case _:
            told = _not_yet(given)
    return f"{told}; but this policy is a dry run, and deletes nothing" if given.policy.dry_run else told


def opinion_of(given: PolicyJudgement, now: UnixNs) -> Opinion:
    """Return the view of what a policy says about a record."""
    verdict = given.judgement.verdict
    kind = type(verdict).__name__.lower()
    return Opinion(policy=given.policy.name, verdict=kind, reason=str(verdict.reason), says=explain(given, now))


def _not_yet(given: PolicyJudgement) -> str:
    limits, verdict = given.policy.limits, given.judgement.verdict
    parts = []
    if isinstance(verdict, Keep) and verdict.next_check is not None:
        parts.append(f"until {to_timestamp(verdict.next_check - 1)} by maxAge {Duration(limits.max_age)}")
    if limits.max_count is not None:
        parts.append(f"while fewer than {limits.max_count} of its group are newer; now {given.newer} are")
    return f"stays {', and '.join(parts)}" if parts else "stays: there is no limit"


def _is_expired(given: PolicyJudgement, now: UnixNs) -> bool:
    anchor = given.judgement.entry.anchor
    return anchor is not None and given.policy.limits.is_expired(anchor, now)


def _where(policy: Policy) -> str:
    where = policy.keep_where
    return "" if where is None else f" with {where.path} {' or '.join(sorted(where.values))}"


def detail_rows(details: RecordDetails, metadata: ObjectMeta, now: int) -> list[DetailRow]:
    """Return everything about one record that a person may ask for."""
    spec: Json = details.object.get("spec") or {}
    execution, audit, error = (spec.get(name) or {} for name in ("execution", "audit", "error"))
    ref, hold = spec.get("experimentRef") or {}, hold_of(metadata.annotations)
    ways = {"scheduled": audit.get("scheduledExecution"), "dry run": audit.get("dryRun")}
    return known(
        [
            ("address", details.address),
            ("experiment", f"{ref.get('namespace', '')}/{ref.get('name', '')}"),
            ("experiment uid", ref.get("uid") or ""),
            ("status", execution.get("status") or ""),
            ("started", execution.get("startTime") or ""),
            ("ended", execution.get("endTime") or ""),
            ("message", execution.get("message") or ""),
            ("error", ", ".join(f"{name}: {text}" for name, text in error.items())),
            ("by", audit.get("initiatedBy") or ""),
            ("how", ", ".join(name for name, is_so in ways.items() if is_so)),
            ("retries", str(audit.get("retryCount") or "")),
            *(("affected", _affected(one)) for one in spec.get("affectedResources") or ()),
            ("created", "" if details.created_at is None else details.created_at.and_age(now)),
            ("held", (hold.reason or "yes") if hold is not None and details.held else ""),
            ("expires", details.expiry(now)),
            *((f"policy {one.policy}", one.says) for one in details.retention),
            ("uid", details.uid),
        ]
    )


def _affected(one: Json) -> str:
    name = "/".join(filter(None, (one.get("kind"), one.get("namespace"), one.get("name"))))
    told = ", ".join(filter(None, (one.get("action"), one.get("details"))))
    return f"{name} ({told})" if told else name


# --- policies and passes ----------------------------------------------------------------------------------------------


class PolicyView(Struct, frozen=True):
    """A policy, and what its last pass did."""

    address: str
    name: str
    kind: str
    api_version: str
    dry_run: bool
    ready: Annotated[bool | None, Meta(description="null before the first pass")]
    reason: str | None
    message: str | None
    last_run_at: Moment | None
    next_run_at: Moment | None
    last_run_was_dry: bool | None
    matched: int | None
    deleted: dict[str, int]
    kept: dict[str, int]
    object: Annotated[dict[str, Any], Meta(description="The document")]


class PassItemView(Struct, frozen=True):
    """Something that was due in a pass, and what came of it."""

    address: str
    namespace: str | None
    name: str
    uid: str
    reason: str
    since: Moment
    policies: list[str]
    outcome: str


class PolicyResult(Struct, frozen=True):
    """What came of one policy in a pass."""

    name: str
    ready: bool
    reason: str
    message: str
    dry_run: bool
    matched: Annotated[int | None, Meta(description="null: nothing was looked at")]
    deleted: dict[str, int]
    kept: dict[str, int]


class PassView(Struct, frozen=True):
    """What was due in a pass, the outcome of each item, and the result of each policy."""

    items: list[PassItemView]
    policies: list[PolicyResult]


class Findings(Struct, frozen=True):
    """Mistakes in policies."""

    findings: list[dict[str, str]]
    policies: int


POLICY_COLUMNS: Final[Columns] = {
    "name": "name",
    "kind": "kind",
    "max age": lambda one, _: _max_age(one.object["spec"].get("maxAge")) or None,
    "max count": lambda one, _: one.object["spec"].get("maxCount") or None,
    "dry run": lambda one, _: "yes" if one.dry_run else "no",
    "ready": "ready",
    "reason": "reason",
    "matched": "matched",
    "deleted": lambda one, _: _counts(one.deleted, dry_run=one.last_run_was_dry) or None,
    "last run": lambda one, now: _when(one.last_run_at, now) or None,
    "next run": lambda one, now: _when(one.next_run_at, now) or None,
}
PASS_COLUMNS: Final[Columns] = {
    "address": "address",
    "reason": "reason",
    "due since": "since",
    "policies": lambda one, _: ", ".join(one.policies),
    "outcome": "outcome",
}


def policy_view(policy: RetentionPolicy) -> PolicyView:
    """Return the view of a policy."""
    status, spec, (ready, reason, message) = policy.status or RetentionStatus(), policy.spec, _ready(policy)
    return fill(
        PolicyView,
        status,
        address=str(RETENTION_POLICY.address(policy.metadata.key)),
        name=policy.metadata.name,
        kind=spec.selector.kind,
        api_version=spec.selector.api_version,
        dry_run=spec.dry_run,
        ready={"True": True, "False": False}.get(ready),
        reason=reason or None,
        message=message or None,
        last_run_at=_moment(status.last_run),
        next_run_at=_moment(status.next_run),
        last_run_was_dry=status.dry_run,
        object=RETENTION_POLICY.body(to_builtins(policy)),
    )


def pass_view(told: Iterable[PassItem], runs: Iterable[PolicyRun]) -> PassView:
    """Return the view of a pass, by addresses and by the names of policies."""
    items = [
        fill(
            PassItemView,
            one.entry,
            address=str(one.address),
            reason=str(one.verdict.reason),
            since=Moment(one.verdict.since),
            policies=list(one.policies),
            outcome=str(one.outcome),
        )
        for one in sorted(told, key=lambda one: one.address)
    ]
    results = [fill(PolicyResult, run, ready=run.is_ready) for run in sorted(runs, key=lambda run: run.name)]
    return PassView(items, results)


def policy_rows(policy: RetentionPolicy, now: int) -> list[DetailRow]:
    """Return everything about one policy that a person may ask for."""
    status, spec, ready = policy.status or RetentionStatus(), policy.spec, _ready(policy)
    selector, age = spec.selector, _max_age(spec.max_age)
    told = [
        ("address", str(RETENTION_POLICY.address(policy.metadata.key))),
        ("name", policy.metadata.name),
        ("selects", f"{selector.kind} ({selector.api_version})"),
        ("namespaces", ", ".join(selector.namespaces) or "all except the system's and the operator's"),
        ("labels", ", ".join(f"{name}={value}" for name, value in selector.labels.items())),
        ("only when", "; ".join(f"{one.field_path} is {' or '.join(one.values)}" for one in spec.only_when)),
        ("group by", ", ".join(spec.group_by)),
        ("max age", f"{age} from {spec.age_from or 'metadata.creationTimestamp'}" if age else "none"),
        ("max count", str(spec.max_count or "none")),
        ("keep last", _keep_last(policy)),
        ("dry run", "yes: nothing is deleted until dryRun is false" if spec.dry_run else "no"),
        ("ready", " ".join(filter(None, (ready[0], f"({ready[1]})" if ready[1] else "")))),
        ("message", ready[2]),
        ("last run", _last_run(status, now)),
        ("next run", f"{status.next_run} ({_when(_moment(status.next_run), now)})" if status.next_run else ""),
        ("matched", "" if status.matched is None else str(status.matched)),
        ("would delete" if status.dry_run else "deleted", _counts(status.deleted)),
        ("kept", _counts(status.kept)),
    ]
    return known(told)


def _ready(policy: RetentionPolicy) -> tuple[str, str, str]:
    found = ready_condition(policy.status.conditions) if policy.status is not None else None
    return ("", "", "") if found is None else (found.status, found.reason, found.message)


def _max_age(given: str | None) -> str:
    try:
        return given if given and Duration.parse(given).nanoseconds else ""
    except DurationError:
        return given or ""  # the message tells what is wrong with it


def _keep_last(policy: RetentionPolicy) -> str:
    keep = policy.spec.keep_last
    if keep is None or not keep.count:
        return "none"
    where = keep.where
    return f"{keep.count}" + ("" if where is None else f" with {where.field_path} {' or '.join(where.values)}")


def _counts(counts: dict[str, int], *, dry_run: bool | None = False) -> str:
    told = ", ".join(f"{number} {reason}" for reason, number in counts.items() if number)
    return f"would: {told}" if told and dry_run else told


def _last_run(status: RetentionStatus, now: int) -> str:
    if status.last_run is None:
        return "not yet"
    # Not always what the policy says: the first pass over records is a dry one where nobody chose a TTL.
    return f"{status.last_run} ({_when(_moment(status.last_run), now)}{', a dry run' if status.dry_run else ''})"


def _moment(text: str | None) -> Moment | None:
    return Moment.of(from_timestamp(text or ""))


def _when(moment: Moment | None, now: int) -> str:
    """Say how far a moment is from now."""
    if moment is None:
        return ""
    apart = abs(moment - now)
    if apart < SECOND:  # times are rounded up to a second: what just happened seems to be ahead
        return "now"
    return f"in {short(apart)}" if moment > now else f"{short(apart)} ago"
