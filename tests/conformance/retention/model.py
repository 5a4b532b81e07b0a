"""Retention as a model: the rules of the specification, one after the other, without regard to cost.

It reads whole objects, everything at once and all of it twice, and shares no code with the product but the names of
reasons and the metrics. That it passes every case says that the cases ask for what the specification says, and not for
how the product does it. The broken ones (`broken`) change one step of it each.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lapse.core.decision import DueReason, Reason
from lapse.core.duration import HOUR, Duration
from lapse.core.timestamps import from_timestamp
from lapse.history.records import record
from lapse.history.retention.rules import LimitReason
from lapse.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from lapse.kube.resources import NO_LABELS, Json, Kind, ObjectKey, untyped
from tests.conformance.retention.registry import EXPIRED, RECORD, WIDGET, Result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lapse.core.clock import Clock
    from lapse.engine.running.metrics import Metrics
    from lapse.history.api.kinds import HistorySpec
    from lapse.objects.port import ObjectStore

REASONS: Final[Mapping[str, Reason]] = {one: one for one in (DueReason.TTL_EXPIRED, LimitReason.RETENTION_LIMIT)}
SYSTEM: Final = "kube-system"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A policy, as the model has it."""

    name: str
    kind: Kind[Any]
    namespaces: Sequence[str] = ()
    labels: Mapping[str, str]
    group_by: Sequence[str] = ()
    age_from: str = "metadata.creationTimestamp"
    wanted: Sequence[tuple[str, Sequence[str]]] = ()
    good: tuple[str, Sequence[str]] | None = None
    max_age: int = 0
    max_count: int = 0
    keep: int = 0
    dry_run: bool = True


@dataclass(frozen=True)
class Found:
    """An object, and what each rule says about it."""

    body: Json
    reasons: dict[str, str]
    """By the names of the rules that it violates."""
    is_saved: bool

    @property
    def metadata(self) -> Json:
        found: Json = self.body["metadata"]
        return found

    def reason(self, acting: Sequence[Rule]) -> str | None:
        """Why it goes; None when it stays."""
        found = {self.reasons[rule.name] for rule in acting if rule.name in self.reasons}
        if self.is_saved or not found:
            return None
        return EXPIRED if EXPIRED in found else found.pop()


def value(body: Json, path: str) -> object:
    """What stands at a plain path."""
    found: Any = body
    for name in path.split("."):
        if not name.isidentifier():
            raise ValueError(f"{path!r} is no path")
        found = found.get(name) if isinstance(found, dict) else None
    return found


class Model:
    """See the module."""

    def __init__(self, store: ObjectStore, *, clock: Clock, metrics: Metrics) -> None:
        self.store, self.clock, self.metrics = store, clock, metrics

    # --- reading ------------------------------------------------------------------------------------------------------

    def history(self, **flags: Any) -> Rule:  # noqa: ANN401 - flags
        ttl = self.ttl(flags["ttl"])
        if 0 < ttl < HOUR:
            raise ValueError(f"{flags['ttl']} is shorter than an hour")
        ref = "spec.experimentRef"
        return Rule(
            name="history",
            kind=untyped(RECORD.api_version, RECORD.kind, RECORD.plural),
            namespaces=[flags["namespace"]],
            labels={},
            group_by=[f"{ref}.namespace", f"{ref}.name", f"{ref}.uid"],
            good=("spec.execution.status", ["success"]),
            max_age=ttl,
            max_count=self.count(flags["limit"]),
            keep=self.count(flags.get("keep", 0)),
            dry_run=flags.get("dry_run", False),
        )

    def policy(self, name: str, spec: Json) -> Rule:
        selector, keep = spec["selector"], spec.get("keepLast", {"count": 0})
        good = keep.get("where")
        rule = Rule(
            name=name,
            kind=WIDGET,
            namespaces=selector.get("namespaces", ()),
            labels=selector.get("labels", {}),
            group_by=spec.get("groupBy", ()),
            age_from=spec.get("ageFrom", "metadata.creationTimestamp"),
            wanted=[(one["fieldPath"], one["in"]) for one in spec.get("onlyWhen", ())],
            good=None if good is None else (good["fieldPath"], good["in"]),
            max_age=self.ttl(spec.get("maxAge", "0")),
            max_count=self.count(spec.get("maxCount", 0)),
            keep=self.count(keep["count"]),
            dry_run=spec.get("dryRun", True),
        )
        for path in (rule.age_from, *rule.group_by, *(path for path, _ in rule.wanted)):
            value({}, path)
        return rule

    def ttl(self, text: str) -> int:
        """Read a time limit, 0 for none."""
        return self.count(Duration.parse(text).nanoseconds or 0)

    def count(self, number: int) -> int:
        """Read a limit, 0 for none."""
        if number < 0:
            raise ValueError(f"{number} is below zero")
        return number

    # --- deciding -----------------------------------------------------------------------------------------------------

    def expired(self, anchor: int, rule: Rule, now: int) -> bool:
        return rule.max_age > 0 and now - anchor > rule.max_age

    def too_many(self, newer: int, rule: Rule) -> bool:
        """Whether so many newer ones of its group are enough."""
        return rule.max_count > 0 and newer >= rule.max_count

    def anchor(self, body: Json, rule: Rule) -> int | None:
        found = value(body, rule.age_from)
        return from_timestamp(found) if isinstance(found, str) else None

    def group(self, body: Json, rule: Rule) -> tuple[str, ...] | None:
        found = [value(body, path) for path in rule.group_by]
        if rule.kind.kind == RECORD.kind:
            return tuple(str(one or "") for one in found)  # an experiment need not have a uid
        return None if None in found else tuple(map(str, found))

    def newest_first(self, bodies: Sequence[Json], rule: Rule) -> list[Json]:
        def newness(body: Json) -> tuple[int, str]:
            return self.anchor(body, rule) or 0, body["metadata"]["name"]

        return sorted(bodies, key=newness, reverse=True)

    def is_good(self, body: Json, rule: Rule) -> bool:
        return rule.good is None or str(value(body, rule.good[0])) in rule.good[1]

    def may_be_last(self, body: Json, rule: Rule) -> bool:
        """Whether nobody can say that an object is none of the last ones: doubt means keep."""
        if rule.keep == 0:
            return False
        return self.is_good(body, rule) if self.anchor(body, rule) is None else self.group(body, rule) is None

    def is_held(self, body: Json, now: int) -> bool:
        annotations = body["metadata"].get("annotations", {})
        until = from_timestamp(annotations.get("lapse.dev/hold-until", ""))
        return annotations.get("lapse.dev/hold") == "true" and (until is None or now < until)

    def takes_no_place(self, body: Json, now: int) -> bool:
        """Whether an object counts towards no limit, and is none of the last ones."""
        return self.is_held(body, now)

    def about(self, body: Json, rule: Rule) -> bool:
        """Whether a rule is about an object."""
        metadata = body["metadata"]
        where = metadata["namespace"] in rule.namespaces if rule.namespaces else metadata["namespace"] != SYSTEM
        labels = rule.labels.items() <= metadata.get("labels", {}).items()
        return where and labels and all(str(value(body, path)) in values for path, values in rule.wanted)

    def judged(self, bodies: Sequence[Json], rule: Rule, now: int) -> tuple[dict[str, str], set[str]]:
        """Return what violates a rule, and by which limit, and what it saves; by uid."""
        violations: dict[str, str] = {}
        saved: set[str] = set()
        newer: Counter[tuple[str, ...]] = Counter()
        kept: Counter[tuple[str, ...]] = Counter()
        for body in self.newest_first(bodies, rule):
            uid, anchor, group = body["metadata"]["uid"], self.anchor(body, rule), self.group(body, rule)
            if self.may_be_last(body, rule):
                saved.add(uid)
            if anchor is None:
                continue
            if self.takes_no_place(body, now):
                group = None
            if self.expired(anchor, rule, now):
                violations[uid] = EXPIRED
            elif group is not None and self.too_many(newer[group], rule):
                violations[uid] = "retention_limit"
            if group is not None:
                newer[group] += 1
                if self.is_good(body, rule) and kept[group] < rule.keep:
                    kept[group] += 1
                    saved.add(uid)
        return violations, saved

    def decided(self, bodies: Sequence[Json], rules: Sequence[Rule], now: int) -> list[Found]:
        judged = {rule.name: self.judged([one for one in bodies if self.about(one, rule)], rule, now) for rule in rules}
        found = []
        for body in bodies:
            uid = body["metadata"]["uid"]
            saved = self.is_held(body, now) or any(uid in saves for _, saves in judged.values())
            reasons = {name: violated[uid] for name, (violated, _) in judged.items() if uid in violated}
            found.append(Found(body, reasons, saved))
        return found

    # --- acting -------------------------------------------------------------------------------------------------------

    async def read(self, rules: Sequence[Rule], labels: Mapping[str, str]) -> list[Json]:
        bodies: dict[str, Json] = {}
        for rule in rules:
            for namespace in rule.namespaces or (None,):
                page = await self.store.list(rule.kind, namespace=namespace, labels={**rule.labels, **labels})
                bodies |= {one.metadata.uid: one.body for one in page.items}
        return list(bodies.values())

    async def read_again(self, _first: list[Json], rules: Sequence[Rule], labels: Mapping[str, str]) -> list[Json]:
        return await self.read(rules, labels)

    async def run(self, policies: Sequence[Rule], *, labels: Mapping[str, str] = NO_LABELS) -> Mapping[str, Result]:
        now = self.clock.wall_ns()
        first = await self.read(policies, labels)
        bodies = await self.read_again(first, policies, labels)
        found = self.decided(bodies, policies, now)
        ended = await self.act(found, [rule for rule in policies if not rule.dry_run], policies[0].kind)
        return {rule.name: self.result(found, ended, rule) for rule in policies}

    def result(self, found: Sequence[Found], ended: set[str], rule: Rule) -> Result:
        violating = [one for one in found if rule.name in one.reasons and not one.is_saved]
        return Result(
            matched=sum(self.about(one.body, rule) for one in found),
            due=Counter(one.reasons[rule.name] for one in violating),
            ended=0 if rule.dry_run else sum(one.metadata["uid"] in ended for one in violating),
        )

    async def act(self, found: Sequence[Found], acting: Sequence[Rule], kind: Kind[Any]) -> set[str]:
        """Delete what is due; return the uids of what was deleted."""
        ended = set()
        for one in found:
            reason = one.reason(acting)
            if reason is not None and await self.delete(kind, one):
                ended.add(one.metadata["uid"])
                self.count_deletion(kind, reason)
        return ended

    async def delete(self, kind: Kind[Any], found: Found) -> bool:
        """Delete an object as it was found; return whether it was."""
        metadata = found.metadata
        key = ObjectKey(metadata["namespace"], metadata["name"])
        try:
            await self.store.delete(kind, key, uid=metadata["uid"], version=metadata["resourceVersion"])
        except (NotFoundError, ConflictError):
            return False
        except RuntimeError:
            return self.failed()
        return True

    def failed(self) -> bool:
        """What follows from a deletion that failed: nothing."""
        return False

    def count_deletion(self, kind: Kind[Any], reason: str) -> None:
        domain = "history" if kind.kind == RECORD.kind else "retention"
        self.metrics.deleted(domain, REASONS[reason], count=1)

    # --- writing ------------------------------------------------------------------------------------------------------

    async def write(self, spec: HistorySpec, *, namespace: str) -> tuple[str, bool]:
        made = record(spec, namespace=namespace)
        try:
            await self.store.create(RECORD, made)
        except AlreadyExistsError:
            return made.metadata.name, False
        return made.metadata.name, True
