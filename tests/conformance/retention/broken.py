"""Deliberately broken retention, each wrong in one way; most of them are mistakes that others have made.

A broken one changes one step of the model and knows nothing of the product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lapse.core.duration import Duration
from lapse.core.timestamps import from_timestamp, read_timestamp
from lapse.history.api.kinds import short_hash
from lapse.history.records import record
from lapse.kube.errors import AlreadyExistsError, NotFoundError
from lapse.kube.resources import NO_LABELS, Json, Kind, ObjectKey
from tests.conformance.retention.model import Found, Model, Rule, value
from tests.conformance.retention.registry import EXPIRED, RECORD, TOO_MANY, Result, unique
from tests.conformance.windows import window_of_this_loop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lapse.history.api.kinds import HistorySpec

# --- what is read -----------------------------------------------------------------------------------------------------


class NegativeTtlsAreLimits(Model):
    """Everything is older than less than nothing."""

    def ttl(self, text: str) -> int:
        return Duration.parse(text).nanoseconds or 0

    def expired(self, anchor: int, rule: Rule, now: int) -> bool:
        return rule.max_age != 0 and now - anchor > rule.max_age


class TimesThatAreNotSetAreOld(Model):
    """To Go the zero time is a time as any other."""

    def anchor(self, body: Json, rule: Rule) -> int | None:
        found = value(body, rule.age_from)
        return read_timestamp(found) if isinstance(found, str) else None


class NegativeCountsAreLimits(Model):
    def count(self, number: int) -> int:
        return number

    def too_many(self, newer: int, rule: Rule) -> bool:
        return rule.max_count != 0 and newer >= rule.max_count


class ZeroTtlIsALimit(Model):
    def expired(self, anchor: int, rule: Rule, now: int) -> bool:
        return now - anchor > rule.max_age


class ZeroLimitIsALimit(Model):
    def too_many(self, newer: int, rule: Rule) -> bool:
        return newer >= rule.max_count


class ShortTtlsAreTaken(Model):
    def ttl(self, text: str) -> int:
        return super().ttl(text) * 3600


class PoliciesActUnlessTheySayDry(Model):
    def policy(self, name: str, spec: Json) -> Rule:
        return super().policy(name, {"dryRun": False, **spec})


# --- age --------------------------------------------------------------------------------------------------------------


class AgesThatEqualTheTtlGo(Model):
    def expired(self, anchor: int, rule: Rule, now: int) -> bool:
        return rule.max_age > 0 and now - anchor >= rule.max_age


class AgesAreInWholeHours(Model):
    def expired(self, anchor: int, rule: Rule, now: int) -> bool:
        hour = 3_600_000_000_000
        return rule.max_age > 0 and (now - anchor) // hour > rule.max_age // hour


class AgesHaveNoSign(Model):
    def expired(self, anchor: int, rule: Rule, now: int) -> bool:
        return rule.max_age > 0 and abs(now - anchor) > rule.max_age


class AgesAreCutTo32BitSeconds(Model):
    def expired(self, anchor: int, rule: Rule, now: int) -> bool:
        second = 1_000_000_000
        return rule.max_age > 0 and now - anchor > rule.max_age // second % 2**32 * second


class AgesCountFromTheRun(Model):
    def anchor(self, body: Json, rule: Rule) -> int | None:
        started = from_timestamp(str(body["spec"].get("execution", {}).get("startTime")))
        return super().anchor(body, rule) if started is None else started


class WithoutATimeItIsOld(Model):
    def anchor(self, body: Json, rule: Rule) -> int | None:
        return super().anchor(body, rule) or 0


class AgeFromIsIgnored(Model):
    def anchor(self, body: Json, rule: Rule) -> int | None:
        return from_timestamp(body["metadata"]["creationTimestamp"])


class RetriesReplaceTheRecord(Model):
    async def write(self, spec: HistorySpec, *, namespace: str) -> tuple[str, bool]:
        made = record(spec, namespace=namespace)
        try:
            await self.store.create(RECORD, made)
        except AlreadyExistsError:
            await self.store.delete(RECORD, ObjectKey(namespace, made.metadata.name))
            await self.store.create(RECORD, made)
            return made.metadata.name, False
        return made.metadata.name, True


class RetriesAreRecordedAgain(Model):
    async def write(self, spec: HistorySpec, *, namespace: str) -> tuple[str, bool]:
        body = RECORD.body(record(spec, namespace=namespace))
        body["metadata"]["name"] += unique("")
        return (await self.store.create(RECORD, body)).metadata.name, True


class ARunIsItsStart(Model):
    """As records were named once: by the experiment and the text of the start."""

    async def write(self, spec: HistorySpec, *, namespace: str) -> tuple[str, bool]:
        body = RECORD.body(record(spec, namespace=namespace))
        body["metadata"]["name"] = name = f"r-{short_hash(spec.execution.start_time)}"
        try:
            await self.store.create(RECORD, body)
        except AlreadyExistsError:
            return name, False
        return name, True


# --- count ------------------------------------------------------------------------------------------------------------


class OneMoreStays(Model):
    def too_many(self, newer: int, rule: Rule) -> bool:
        return rule.max_count > 0 and newer > rule.max_count


class OneMoreGoes(Model):
    def too_many(self, newer: int, rule: Rule) -> bool:
        return rule.max_count > 0 and newer + 1 >= rule.max_count


class TheOldestStay(Model):
    def newest_first(self, bodies: Sequence[Json], rule: Rule) -> list[Json]:
        return super().newest_first(bodies, rule)[::-1]


class NamesSayWhoIsNewer(Model):
    def newest_first(self, bodies: Sequence[Json], rule: Rule) -> list[Json]:
        return sorted(bodies, key=lambda body: str(body["metadata"]["name"]), reverse=True)


class GroupsAreBareNames(Model):
    def group(self, body: Json, rule: Rule) -> tuple[str, ...] | None:
        found = super().group(body, rule)
        return (found[1],) if found and rule.kind.kind == RECORD.kind else found


class GroupsHaveNoUid(Model):
    def group(self, body: Json, rule: Rule) -> tuple[str, ...] | None:
        found = super().group(body, rule)
        return found[:2] if found and rule.kind.kind == RECORD.kind else found


class GroupsAreCutTo63Characters(Model):
    def group(self, body: Json, rule: Rule) -> tuple[str, ...] | None:
        found = super().group(body, rule)
        return None if found is None else tuple(part[:63] for part in found)


class AllAreOneGroup(Model):
    def group(self, body: Json, rule: Rule) -> tuple[str, ...] | None:
        return ()


class OneFieldMakesTheGroup(Model):
    def group(self, body: Json, rule: Rule) -> tuple[str, ...] | None:
        found = super().group(body, rule)
        return found if found is None or rule.kind.kind == RECORD.kind else found[:1]


class WithoutAFieldItIsAGroup(Model):
    def group(self, body: Json, rule: Rule) -> tuple[str, ...] | None:
        return super().group(body, rule) or ("",)


class RecordsAreCountedInTheExperimentsNamespace(Model):
    def about(self, body: Json, rule: Rule) -> bool:
        ref = body["spec"].get("experimentRef")
        return super().about(body, rule) if ref is None else body["metadata"]["namespace"] == ref["namespace"]


class CompletionsLookAtEverything(Model):
    async def read(self, rules: Sequence[Rule], labels: Mapping[str, str]) -> list[Json]:
        return await super().read(rules, NO_LABELS)


# --- both -------------------------------------------------------------------------------------------------------------


class TheCountIsForgottenBesideATtl(Model):
    def too_many(self, newer: int, rule: Rule) -> bool:
        return not rule.max_age and super().too_many(newer, rule)


class TheTtlIsForgottenBesideACount(Model):
    def expired(self, anchor: int, rule: Rule, now: int) -> bool:
        return not rule.max_count and super().expired(anchor, rule, now)


class BothLimitsMustBeViolated(Model):
    def expired(self, anchor: int, rule: Rule, now: int) -> bool:
        return False if rule.max_count > 0 else super().expired(anchor, rule, now)

    def too_many(self, newer: int, rule: Rule) -> bool:
        return False if rule.max_age > 0 else super().too_many(newer, rule)


class DeletionsAreCountedByBothLimits(Model):
    def count_deletion(self, kind: Kind[Any], reason: str) -> None:
        super().count_deletion(kind, EXPIRED)
        super().count_deletion(kind, TOO_MANY)


class DeletionsAreNotCounted(Model):
    def count_deletion(self, kind: Kind[Any], reason: str) -> None:
        pass


class AllKindsAreCountedAsRecords(Model):
    def count_deletion(self, kind: Kind[Any], reason: str) -> None:
        super().count_deletion(RECORD, reason)


class DryRunsAreCounted(Model):
    def result(self, found: Sequence[Found], ended: set[str], rule: Rule) -> Result:
        for one in found if rule.dry_run else ():
            for reason in one.reasons.values():
                self.count_deletion(rule.kind, reason)
        return super().result(found, ended, rule)


class DryPoliciesSayWhy(Model):
    async def act(self, found: Sequence[Found], acting: Sequence[Rule], kind: Kind[Any]) -> set[str]:
        by_age = [Found(one.body, dict.fromkeys(one.reasons, EXPIRED), one.is_saved) for one in found]
        return await super().act(
            [told if EXPIRED in one.reasons.values() else one for one, told in zip(found, by_age, strict=True)],
            acting,
            kind,
        )


class DryRunsDelete(Model):
    async def act(self, found: Sequence[Found], acting: Sequence[Rule], kind: Kind[Any]) -> set[str]:
        everyone = {name for one in found for name in one.reasons}
        empty: Mapping[str, str] = {}
        return await super().act(found, [Rule(name=name, kind=kind, labels=empty) for name in everyone], kind)


# --- what is saved ----------------------------------------------------------------------------------------------------


class HoldsAreIgnored(Model):
    def is_held(self, body: Json, now: int) -> bool:
        return False


class HoldsNeverEnd(Model):
    def is_held(self, body: Json, now: int) -> bool:
        return "lapse.dev/hold" in body["metadata"].get("annotations", {})


class HeldOnesTakePlaces(Model):
    """A hold of one object must not have another one ended."""

    def takes_no_place(self, body: Json, now: int) -> bool:
        return False


class NothingIsTheLastOne(Model):
    def judged(self, bodies: Sequence[Json], rule: Rule, now: int) -> tuple[dict[str, str], set[str]]:
        return super().judged(bodies, rule, now)[0], set()


class TheLastOnesNeedNotBeGood(Model):
    def is_good(self, body: Json, rule: Rule) -> bool:
        return True


class DoubtSavesNothing(Model):
    def may_be_last(self, body: Json, rule: Rule) -> bool:
        return False


class AllGoodOnesStay(Model):
    def judged(self, bodies: Sequence[Json], rule: Rule, now: int) -> tuple[dict[str, str], set[str]]:
        violations, _ = super().judged(bodies, rule, now)
        return violations, {one["metadata"]["uid"] for one in bodies if rule.keep and self.is_good(one, rule)}


class TheLastOneStaysUnasked(Model):
    def judged(self, bodies: Sequence[Json], rule: Rule, now: int) -> tuple[dict[str, str], set[str]]:
        violations, saved = super().judged(bodies, rule, now)
        return violations, saved | {one["metadata"]["uid"] for one in self.newest_first(bodies, rule)[:1]}


class TheLastOnesAreSavedFromTheirOwnPolicyOnly(Model):
    def decided(self, bodies: Sequence[Json], rules: Sequence[Rule], now: int) -> list[Found]:
        alone = [super(type(self), self).decided(bodies, [rule], now) for rule in rules]
        found = []
        for judged in zip(*alone, strict=True):
            reasons = {name: why for one in judged if not one.is_saved for name, why in one.reasons.items()}
            found.append(Found(judged[0].body, reasons, is_saved=False))
        return found


class DryPoliciesSaveNothing(Model):
    def decided(self, bodies: Sequence[Json], rules: Sequence[Rule], now: int) -> list[Found]:
        acting = [rule for rule in rules if not rule.dry_run]
        return super().decided(bodies, acting or rules, now)


class TheFirstPolicyDecides(Model):
    async def act(self, found: Sequence[Found], acting: Sequence[Rule], kind: Kind[Any]) -> set[str]:
        return await super().act(found, acting[:1], kind)


# --- any kind ---------------------------------------------------------------------------------------------------------


class TheSystemIsNotLeftAlone(Model):
    def about(self, body: Json, rule: Rule) -> bool:
        return True if not rule.namespaces else super().about(body, rule)


class ConditionsAreIgnored(Model):
    def about(self, body: Json, rule: Rule) -> bool:
        return body["metadata"]["namespace"] in (rule.namespaces or [body["metadata"]["namespace"]])


class NamespacesAreIgnored(Model):
    async def read(self, rules: Sequence[Rule], labels: Mapping[str, str]) -> list[Json]:
        page = await self.store.list(rules[0].kind, labels=labels)
        return [one.body for one in page.items]

    def about(self, body: Json, rule: Rule) -> bool:
        return True


# --- others at work ---------------------------------------------------------------------------------------------------


class DeletionsHaveNoConditions(Model):
    async def delete(self, kind: Kind[Any], found: Found) -> bool:
        try:
            await self.store.delete(kind, ObjectKey(found.metadata["namespace"], found.metadata["name"]))
        except NotFoundError:
            return False
        return True


class DeletionsCompareTheUidOnly(Model):
    async def delete(self, kind: Kind[Any], found: Found) -> bool:
        key = ObjectKey(found.metadata["namespace"], found.metadata["name"])
        try:
            await self.store.delete(kind, key, uid=found.metadata["uid"])
        except NotFoundError:
            return False
        return True


class WhatIsGoneIsCounted(Model):
    async def delete(self, kind: Kind[Any], found: Found) -> bool:
        await window_of_this_loop().meet(found.metadata["uid"])
        await super().delete(kind, found)
        return True


class GroupsAreNotReadAgain(Model):
    async def read_again(self, first: list[Json], _rules: Sequence[Rule], _labels: Mapping[str, str]) -> list[Json]:
        return first


class AsTheSeedSketchesIt(GroupsAreNotReadAgain, DeletionsHaveNoConditions):
    """List, compare, delete by name."""


class NewcomersGo(Model):
    """Whoever was not among the newest of the first look goes."""

    async def run(self, policies: Sequence[Rule], *, labels: Mapping[str, str] = NO_LABELS) -> Mapping[str, Result]:
        now = self.clock.wall_ns()
        first = self.decided(await self.read(policies, labels), policies, now)
        staying = {one.metadata["uid"] for one in first if one.reason(policies) is None}
        second = [
            one if one.metadata["uid"] in staying else Found(one.body, {policies[0].name: TOO_MANY}, is_saved=False)
            for one in self.decided(await self.read(policies, labels), policies, now)
        ]
        ended = await self.act(second, policies, policies[0].kind)
        return {rule.name: self.result(second, ended, rule) for rule in policies}


class OneFailureStopsEverything(Model):
    def failed(self) -> bool:
        raise RuntimeError("a deletion failed")
