"""Records at a glance, with what retention says about each and why: for lists, for people who ask, for HTTP.

The same judgement as that of a pass, on one reading of the store; nothing is decided and nothing is done here. Metadata
is all that is read where the policies need no more.

Not guaranteed: that what is told is still so a moment later. A policy that puts records of several namespaces into one
group is judged by those of the namespace that is looked at; and where records are asked for by their labels, those of
another operator, without our labels, are not among them and not counted.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.decision import Due, DueReason, Keep, KeepReason, Unknown
from lapse.core.duration import Duration
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.engine.safety.holds import hold_of
from lapse.history.api.kinds import (
    CHAOS_EXPERIMENT_HISTORY,
    EXPERIMENT,
    EXPERIMENT_NAME,
    EXPERIMENT_NAMESPACE,
    EXPERIMENT_UID,
    STATUS,
)
from lapse.history.api.kinds import label_value as value
from lapse.history.policy.paths import FieldPath
from lapse.history.policy.policies import load_policies
from lapse.history.records import labelled
from lapse.history.retention.grouping import judge
from lapse.history.retention.listing import LEFT_ALONE, PAGE, ObjectReader, read_pages
from lapse.history.retention.rules import LimitReason, RetainReason, combine
from lapse.kube.resources import NO_LABELS, Document, PartialObject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from lapse.core.decision import Verdict
    from lapse.history.policy.policy import Policy
    from lapse.history.retention.rules import Judgement, RetainedObject
    from lapse.kube.resources import Kind, ObjectMeta
    from lapse.objects.port import Reader

_KIND: Final[Kind[Any]] = CHAOS_EXPERIMENT_HISTORY
_EXPERIMENT_PATHS: Final = frozenset(
    FieldPath(("metadata", "labels", name)) for name in (EXPERIMENT_NAMESPACE, EXPERIMENT_NAME)
)
_NEVER: Final = Keep(KeepReason.NO_LIMIT)


class Opinion(NamedTuple):
    """What one policy says about a record."""

    policy: Policy
    judgement: Judgement
    newer: int
    """How many of its group are newer."""


class Expiry(NamedTuple):
    """When a record goes: at a moment, or as ``instead`` says."""

    at: UnixNs | None = None
    instead: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """One record, and what the policies say about it."""

    metadata: ObjectMeta
    opinions: tuple[Opinion, ...] = ()

    @property
    def address(self) -> Address:
        """Where it is found."""
        return Address("history", self.metadata.namespace, self.metadata.name)

    @property
    def experiment(self) -> str:
        """Whose run it tells of, as NAMESPACE/NAME; by its labels, which are shortened, where nothing else says it."""
        labels = self.metadata.labels
        told = f"{labels.get(EXPERIMENT_NAMESPACE, '')}/{labels.get(EXPERIMENT_NAME, '')}"
        return self.metadata.annotations.get(EXPERIMENT) or told.strip("/")

    @property
    def status(self) -> str:
        """How the run ended."""
        return self.metadata.labels.get(STATUS, "")

    @property
    def created(self) -> UnixNs | None:
        """When it was written."""
        return from_timestamp(self.metadata.creation_timestamp or "")

    @property
    def verdict(self) -> Verdict:
        """What comes of it, all policies taken together; what is a dry run only protects."""
        counted = [one for one in self.opinions if not one.policy.dry_run or one.judgement.protection]
        return combine([one.judgement for one in counted]).verdict if counted else _NEVER

    def is_held(self, now: int) -> bool:
        """Whether somebody holds it."""
        hold = hold_of(self.metadata.annotations)
        return hold is not None and hold.active(UnixNs(now))

    @property
    def expiry(self) -> Expiry:
        """When it goes."""
        if self.opinions and all(one.policy.dry_run for one in self.opinions):
            return Expiry(instead="never (dry run)")
        return expiry_of(self.verdict)

    def as_json(self, now: int) -> dict[str, Any]:
        """Return the form for programs."""
        created, expiry, verdict = self.created, self.expiry, self.verdict
        return {
            "address": str(self.address),
            "namespace": self.metadata.namespace,
            "name": self.metadata.name,
            "uid": self.metadata.uid,
            "experiment": self.experiment,
            "experiment_uid": self.metadata.labels.get(EXPERIMENT_UID) or None,
            "status": self.status or None,
            "created": None if created is None else to_timestamp(created),
            "verdict": type(verdict).__name__.lower(),
            "reason": str(verdict.reason),
            "expires_at": None if expiry.at is None else to_timestamp(expiry.at),
            "expires": expiry.instead or None,
            "held": self.is_held(now),
        }


def expiry_of(verdict: Verdict) -> Expiry:
    """Say of a verdict when something goes."""
    match verdict:
        case Due(since=since):
            return Expiry(since)
        case Unknown(reason=reason):
            return Expiry(instead=f"unknown ({reason})")
        case Keep(reason=KeepReason.HELD):
            return Expiry(instead="held")
        case Keep(reason=RetainReason.KEEP_LAST):
            return Expiry(instead="kept (keep-last)")
        case Keep(reason=KeepReason.NOT_YET, next_check=at):
            return Expiry(instead="by number") if at is None else Expiry(UnixNs(at - 1))
    return Expiry(instead="never")


# --- reading ----------------------------------------------------------------------------------------------------------


async def in_force(direct: Reader, own: Policy, *, instead: bool = False) -> list[Policy]:
    """Return the policies about records: the stored ones, and ``own`` where none of its name is stored.

    With ``instead`` it takes the place of the stored one, for somebody who asks what would be. One that cannot be
    understood is not in force.
    """
    loaded = await load_policies(direct)
    found = {policy.name: policy for _, policy in loaded.policies}
    if instead or own.name not in {*found, *(one.metadata.name for one, _ in loaded.broken)}:
        found[own.name] = own
    about = (_KIND.api_version, _KIND.kind)
    return [policy for policy in found.values() if (policy.api_version, policy.kind) == about]


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


def is_of(seen: Seen, namespace: str | None, name: str | None) -> bool:
    """Whether it is a record of an experiment of that namespace and name; None stands for any."""
    labels = seen.metadata.labels
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
) -> list[Seen]:
    """Return the records of a namespace that have ``labels``, newest first, each with what the policies say."""
    found: list[ObjectMeta] = []
    entries: list[list[RetainedObject]] = [[] for _ in policies]
    reading = _reading(policies)
    async for one in _objects(direct, policies, namespace=namespace, labels=labels):
        found.append(Document(labelled(one.body)).metadata if isinstance(one, Document) else one.metadata)
        for entry, its in zip(reading.views(one), entries, strict=True):
            if entry is not None:
                its.append(entry)
    opinions: dict[str, list[Opinion]] = {}
    for policy, its in zip(policies, entries, strict=True):
        for opinion in _opinions(policy, its, now):
            opinions.setdefault(opinion.judgement.entry.uid, []).append(opinion)
    seen = [Seen(metadata, tuple(opinions.get(metadata.uid, ()))) for metadata in found]
    return sorted(seen, key=lambda one: (one.created or 0, one.metadata.name), reverse=True)


async def look_at(direct: Reader, metadata: ObjectMeta, policies: Sequence[Policy], *, now: UnixNs) -> Seen:
    """Return one record with what the policies say about it; what shares a group with it is read for that."""
    labels = {name: metadata.labels[name] for name in _shared_labels(policies) if name in metadata.labels}
    seen = await look(direct, policies, namespace=metadata.namespace, labels=labels, now=now)
    return next((one for one in seen if one.metadata.uid == metadata.uid), Seen(metadata))


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


def _opinions(policy: Policy, entries: Sequence[RetainedObject], now: UnixNs) -> Iterator[Opinion]:
    newer: dict[object, int] = {}
    ordered = sorted(entries, key=lambda one: (one.anchor or 0, one.namespace or "", one.name), reverse=True)
    for judgement in judge(ordered, policy.limits, now):
        group = judgement.entry.group
        yield Opinion(policy, judgement, newer.get(group, 0))
        newer[group] = newer.get(group, 0) + 1


def by_age_alone(metadata: ObjectMeta, policies: Sequence[Policy]) -> UnixNs | None:
    """Return when a record is too old for one of the policies, its number and its group left out of account."""
    acting = [policy for policy in policies if not policy.dry_run]
    ends = []
    for policy, entry in zip(acting, _reading(acting).views(PartialObject(metadata=metadata)), strict=True):
        if entry is not None and entry.anchor is not None and policy.limits.max_age is not None:
            ends.append(UnixNs(entry.anchor + policy.limits.max_age))
    return min(ends, default=None)


# --- telling ----------------------------------------------------------------------------------------------------------


def explain(opinion: Opinion, now: UnixNs) -> str:
    """Say in a sentence what a policy wants of a record, and why."""
    verdict, limits = opinion.judgement.verdict, opinion.policy.limits
    age = f"it is older than maxAge {Duration(limits.max_age)}" if limits.max_age is not None else ""
    count = f"{opinion.newer} of its group are newer, and maxCount is {limits.max_count}"
    match verdict:
        case Due(reason=DueReason.TTL_EXPIRED, since=since):
            told = f"goes: {age} since {to_timestamp(since)} ({verdict.reason})"
        case Due(reason=LimitReason.RETENTION_LIMIT, since=since):
            told = f"goes: {count}, since {to_timestamp(since)} ({verdict.reason})"
        case Keep(reason=RetainReason.KEEP_LAST):
            saved = age if _is_expired(opinion, now) else count
            last = f"the last {limits.keep_last}{_where(opinion.policy)}"
            told = f"stays: keepLast keeps {last}; otherwise it would go, as {saved}"
        case Keep(reason=KeepReason.HELD, next_check=until):
            told = f"stays: it is held{'' if until is None else f' until {to_timestamp(until)}'}"
        case Unknown(reason=reason):
            told = f"stays: what cannot be decided is kept ({reason})"
        case _:
            told = _not_yet(opinion)
    return f"{told}; but this policy is a dry run, and deletes nothing" if opinion.policy.dry_run else told


def opinion_json(opinion: Opinion, now: UnixNs) -> dict[str, str]:
    """Return what a policy says about a record, for programs."""
    verdict = opinion.judgement.verdict
    return {
        "policy": opinion.policy.name,
        "verdict": type(verdict).__name__.lower(),
        "reason": str(verdict.reason),
        "says": explain(opinion, now),
    }


def _not_yet(opinion: Opinion) -> str:
    limits, verdict = opinion.policy.limits, opinion.judgement.verdict
    parts = []
    if isinstance(verdict, Keep) and verdict.next_check is not None:
        parts.append(f"until {to_timestamp(verdict.next_check - 1)} by maxAge {Duration(limits.max_age)}")
    if limits.max_count is not None:
        parts.append(f"while fewer than {limits.max_count} of its group are newer; now {opinion.newer} are")
    return f"stays {', and '.join(parts)}" if parts else "stays: there is no limit"


def _is_expired(opinion: Opinion, now: UnixNs) -> bool:
    anchor = opinion.judgement.entry.anchor
    return anchor is not None and opinion.policy.limits.is_expired(anchor, now)


def _where(policy: Policy) -> str:
    where = policy.keep_where
    return "" if where is None else f" with {where.path} {' or '.join(sorted(where.values))}"
