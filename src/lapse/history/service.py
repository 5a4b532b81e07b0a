"""The service of history and retention: all policies, over everything each hour, over one experiment as it completes.

One path: a policy is an object of the store, wherever it came from, and all policies of a kind are judged in one pass
over one listing (`lapse.history.retention.passes`), which is a sweep of the engine. Whatever is wrong with one policy
or one kind is told in its status and in the log, and the others go on. A policy that is new or changed is counted
before it ends anything (`lapse.engine.safety.blast_radius`).

Two processes that do this at once are no harm: acts carry the version that was judged, and the second finds it done.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lapse.core.clock import UnixNs
from lapse.core.decision import DueReason, KeepReason, Reason
from lapse.core.errors import LapseError
from lapse.core.jitter import Chance, around, chance
from lapse.core.log import get_logger
from lapse.core.timestamps import to_timestamp
from lapse.engine.domain import DELETE, Action
from lapse.engine.executor import Executor
from lapse.engine.running.metrics import ErrorKind
from lapse.engine.safety.gate import Gate, JudgingGate, OpenGate
from lapse.engine.safety.holds import hold_of
from lapse.history.api.kinds import HISTORY, RETENTION, RETENTION_POLICY, domain_of, is_record
from lapse.history.policy.default_policy import NO_LIMITS, POLICY_NAME
from lapse.history.policy.policies import (
    PolicyOverlay,
    SettingsPolicies,
    conflicts,
    is_published,
    publish,
)
from lapse.history.retention.completions import Completions, labels_of
from lapse.history.retention.listing import LEFT_ALONE, Listing
from lapse.history.retention.passes import DOMAINS, REASONS, Pass
from lapse.history.retention.runs import (
    GRANT,
    OutcomeCounts,
    RunReason,
    StatusWriter,
    of_broken,
    of_by_plan,
    of_error,
    of_report,
    of_waiting,
)
from lapse.kube.controller.controller import ReconcileResult
from lapse.kube.errors import StoreUnavailableError
from lapse.kube.resources import NO_LABELS, ObjectMeta
from lapse.objects.target import ObjectHandle, ObjectTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from lapse.core.clock import Clock
    from lapse.core.duration import Duration
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.coordinator import Turn
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.blast_radius import PolicyCount
    from lapse.history.api.kinds import RetentionPolicy
    from lapse.history.policy.default_policy import HistoryLimits
    from lapse.history.policy.policies import LoadedPolicies, StoredPolicy
    from lapse.history.policy.policy import Policy, RetentionPolicyError
    from lapse.history.retention.completions import Experiment
    from lapse.history.retention.passes import PassItem
    from lapse.history.retention.runs import PolicyRun
    from lapse.kube.resources import Json, Kind
    from lapse.objects.port import HoldLookup, ObjectStore, Reader
    from lapse.objects.trash.moves import ObjectTrash

SEED_METRIC: Final = "chaos_experiment_history_ttl_deleted"
"""As the founding document names it; the library adds ``_total``."""
_PATIENCE: Final = 128
"""Deletions that fail one after the other before a pass gives up: the rest would fail as well, call by call."""
_ACTOR: Final = "lapse"
_OPEN_GATE: Final = OpenGate()
_RETRY_SECONDS: Final = 60.0
"""The time before the next pass after a store did not answer."""
_NS: Final = 1_000_000_000
_CAUTION: Final = "what was there before the policy was first seen stays"
_log = get_logger("lapse.history")


class PublishReason(Reason):
    """Reasons for which a published policy is deleted."""

    WITHDRAWN = "withdrawn"
    """It is no longer in the settings."""


def _ignore(_item: PassItem) -> None:
    """Do nothing."""


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _PassRequest:
    """A pass that is asked for: by which policies, over what, and how."""

    only: Collection[str] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False
    on_item: Callable[[PassItem], None] = _ignore
    proceed: Callable[[], bool] = _always
    next_run: UnixNs | None = None
    is_careful: bool = False

    def names(self, policy: str) -> bool:
        """Whether a policy is to pass."""
        return self.only is None or policy in self.only

    @property
    def is_whole(self) -> bool:
        """Whether it is a real pass over everything, which a status tells of."""
        return not self.dry_run and not self.labels


class PoliciesOfKind(NamedTuple):
    """The policies in force that are about one kind, and those of them that may delete."""

    policies: list[Policy]
    acting: frozenset[str]


class AskedPass(NamedTuple):
    """What came of a pass that a person has asked for."""

    items: list[PassItem]
    """Everything that was due."""
    runs: dict[str, PolicyRun]
    """By the names of the policies; without those that there are not."""
    waits: bool
    """Whether it was dry because a person has to confirm it first; not asked for where nothing was due."""


class Retention:
    """Everything that runs for records and for what policies select, on one object store."""

    def __init__(  # noqa: PLR0913 - all of them named, one per dependency
        self,
        store: ObjectStore,
        *,
        history: RetentionPolicy,
        documents: Sequence[Json] = (),
        journal: Journal,
        metrics: Metrics,
        holds: HoldLookup,
        clock: Clock,
        interval: Duration,
        gate: Gate = _OPEN_GATE,
        left_alone: Collection[str] = LEFT_ALONE,
        history_ttl_is_default: bool = False,
        direct: Reader | None = None,
        selected: ObjectStore | None = None,
        trash: ObjectTrash | None = None,
        actor: str = _ACTOR,
        chance: Chance = chance,
    ) -> None:
        """Put it together; nothing runs yet.

        ``history`` and ``documents`` are the policies of the settings; a document that cannot be read is told with the
        first pass. ``direct`` reads what is judged: the store itself unless said otherwise. ``selected`` is the store
        as the account for policies sees it: what policies select is read and ended there, and nowhere else. ``trash``
        keeps what was ended for a while. ``history_ttl_is_default`` says that nobody chose the TTL of records.
        """
        self._store, self._direct = store, store if direct is None else direct
        self._selected, self._advice = selected, "" if selected is None else GRANT
        self._journal, self._metrics, self._holds, self._clock = journal, metrics, holds, clock
        self._gate, self._left_alone, self._actor, self._trash = gate, frozenset(left_alone), actor, trash
        self._history_ttl_is_default = history_ttl_is_default
        self._own = SettingsPolicies(history, documents)
        self._status = StatusWriter(store, metrics=metrics, clock=clock)
        self._unpublished: Collection[str] = ()
        metrics.expect_sweep(HISTORY, reasons=REASONS)
        metrics.expect_sweep(RETENTION, reasons=(*REASONS, PublishReason.WITHDRAWN))
        metrics.count_also(
            SEED_METRIC,
            "Records that were deleted because of their age; counted as in lapse_deletions_total",
            domain=HISTORY,
            reason=DueReason.TTL_EXPIRED,
        )
        self.loops = (
            []
            if interval.is_never
            else [RetentionLoop(self, interval.seconds, clock=clock, metrics=metrics, chance=chance)]
        )
        self.leader_services = [
            Completions(
                store if selected is None else selected,
                self._completed,
                namespace=history.spec.selector.namespaces[0],
                clock=clock,
                on_error=lambda _error: metrics.failed(HISTORY, ErrorKind.RECONCILE),
                chance=chance,
            )
        ]

    def for_person(self, actor: str, limits: HistoryLimits = NO_LIMITS) -> Retention:
        """Return what looks and passes in the name of a person, with ``limits`` in place of the history's own.

        Budgets, freezes and the clock are those of this one. A pass by other limits is judged as a new policy is, and
        the policy that is in force stays so.
        """
        found = copy(self)
        found._be_of(actor, limits)  # noqa: SLF001 - a copy of this one
        return found

    def _be_of(self, actor: str, limits: HistoryLimits) -> None:
        self._actor = actor
        if limits.are_given:
            self._direct = self._with(limits)
            self._gate = JudgingGate(self._gate, self._gate.policies.apart(actor))
            self._history_ttl_is_default = self._history_ttl_is_default and limits.ttl is None

    @property
    def reader(self) -> Reader:
        """Reads what policies select, with the rights that they have."""
        return self._direct if self._selected is None else self._selected

    async def in_force(self) -> list[PoliciesOfKind]:
        """Return the policies as a pass would take them now, by kind; raises what the store answers."""
        loaded = await self.load()
        against = conflicts(loaded)
        found = []
        for policies in _by_kind(loaded):
            used = [read for _, read in policies]
            found.append(PoliciesOfKind(used, frozenset(one.name for one in used if one.name not in against)))
        return found

    async def look_at_policies(self, domain: str) -> None:
        """Count what new and changed policies of ``domain`` would end, before anything is ended by them."""
        for policies in _by_kind(await self.load()):
            if domain_of(policies[0][1]) == domain:
                await self._waiting(policies, [read.name for _, read in policies])

    def listing(self, policies: Sequence[Policy], kind: Kind[Any]) -> Listing:
        """Return the listing of a pass of these policies."""
        return Listing(
            policies=policies,
            kind=kind,
            direct=self.reader,
            clock=self._clock,
            labels=NO_LABELS,
            left_alone=self._left_alone,
        )

    async def publish(self) -> None:
        """Make the policies of the settings objects of the store; raises `StoreUnavailableError`."""
        done = await publish(self._store, self._own.wanted, leave=self._own.unusable)
        for name, error in done.failed.items():
            log = _log.info if name in self._unpublished else _log.error
            log("policy_not_published", policy=name, problem=error.details["problem"])
            self._metrics.failed(RETENTION, ErrorKind.POLICY)
        self._unpublished = done.failed.keys()
        now = UnixNs(self._clock.wall_ns())
        await self._executor().execute([_withdrawal(metadata, now) for metadata in done.outdated])

    async def run_once(
        self,
        *,
        only: Collection[str] | None = None,
        labels: Mapping[str, str] = NO_LABELS,
        dry_run: bool = False,
        on_item: Callable[[PassItem], None] = _ignore,
        proceed: Callable[[], bool] = _always,
    ) -> dict[str, PolicyRun]:
        """Let all policies pass, or those that ``only`` names; return what came of each, by name.

        With ``dry_run`` nothing is deleted and no status is written; with ``labels`` only what has them is looked at,
        and no status is written either. ``on_item`` is called for everything that is due. Raises what the store answers
        when the policies cannot be listed.
        """
        asked = _PassRequest(only=only, labels=labels, dry_run=dry_run, on_item=on_item, proceed=proceed)
        return await self._run(asked)

    async def run_for_person(self, only: Collection[str], *, dry_run: bool, confirmed: bool) -> AskedPass:
        """Let policies pass because a person says so, as `run_once` does.

        Unless it is ``confirmed``, the first pass by a limit that nobody chose is dry. ``confirmed`` is no more than
        that: a policy that is new or changed is counted as everywhere.
        """
        told: list[PassItem] = []
        waits = not (dry_run or confirmed) and await self.is_unproved(only)
        runs = await self.run_once(only=only, dry_run=dry_run or waits, on_item=told.append)
        return AskedPass(told, runs, waits)

    async def pass_over(self, *, proceed: Callable[[], bool], next_run: UnixNs) -> dict[str, PolicyRun]:
        """Let every policy pass, as is done each hour; raises `StoreUnavailableError`."""
        runs = await self._run(_PassRequest(proceed=proceed, next_run=next_run, is_careful=True))
        for domain in DOMAINS:
            found = [run for run in runs.values() if run.domain == domain]
            self._metrics.holding(domain, sum(run.kept.get(KeepReason.HELD, 0) for run in found))
            # A pass reads no more than what may be due, so when the first of the others is due it does not know.
            self._metrics.expecting(domain, next_run / _NS if any(map(_leaves_some, found)) else None)
        return runs

    def first_pass_ends(self) -> UnixNs | None:
        """Return when the next first pass that is under way ends; None when none is."""
        ends = [self._gate.policies.first_pass_ends(domain) for domain in DOMAINS]
        return min((one for one in ends if one is not None), default=None)

    async def is_unproved(self, only: Collection[str]) -> bool:
        """Whether a pass would be the first real one by a limit that nobody chose: a person is asked before."""
        if not self._history_ttl_is_default or POLICY_NAME not in only:
            return False
        unchosen = [one for one in (await self.load()).policies if _is_unchosen(one)]
        return bool(unchosen) and not await self._gate.policies.is_proved(HISTORY, POLICY_NAME)

    # --- passes -------------------------------------------------------------------------------------------------------

    async def _run(self, asked: _PassRequest) -> dict[str, PolicyRun]:
        loaded = await self.load()
        write = partial(self._status.write, in_status=asked.is_whole, next_run=asked.next_run)
        runs: dict[str, PolicyRun] = {}
        for policy, error in loaded.broken:
            if asked.names(policy.metadata.name):
                runs[policy.metadata.name] = run = of_broken(error, domain=domain_of(policy.spec.selector))
                await write(run, policy)
        against = conflicts(loaded)
        for policies in _by_kind(loaded):
            if asked.proceed() and any(asked.names(read.name) for _, read in policies):
                found = await self._run_kind(asked, policies, against)
                runs |= found
                # A pass that was cut short has no status: it is done again, here or by the next leader.
                for policy, read in policies if asked.proceed() else ():
                    if read.name in found:
                        await write(found[read.name], policy)
        return runs

    async def _run_kind(
        self, asked: _PassRequest, policies: Sequence[StoredPolicy], against: Mapping[str, RetentionPolicyError]
    ) -> dict[str, PolicyRun]:
        wanted = {read.name for _, read in policies if asked.names(read.name)}
        domain = domain_of(policies[0][1])
        runs = {name: of_broken(against[name], domain=domain) for name in wanted if name in against}
        acting = wanted - runs.keys()
        return runs | await self._run_acting(asked, policies, acting) if acting else runs

    async def _run_acting(
        self, asked: _PassRequest, policies: Sequence[StoredPolicy], acting: Collection[str]
    ) -> dict[str, PolicyRun]:
        waiting = set() if asked.dry_run else await self._waiting(policies, acting, once=not asked.is_careful)
        used = [replace(read, dry_run=True) if asked.dry_run or read.name in waiting else read for _, read in policies]
        if asked.is_whole and not asked.is_careful:  # a person has asked for it, and knows what would go
            await self._prove([read for read in used if read.name in acting and not read.dry_run])
        try:
            runs = await self._pass(
                used, acting=acting, labels=asked.labels, on_item=asked.on_item, proceed=asked.proceed
            )
        except Exception as error:  # noqa: BLE001 - one kind that fails must not stop the others
            if not isinstance(error, LapseError):
                _log.error("pass_failed", policies=sorted(acting), error=type(error).__name__, exc_info=error)
            return {name: of_error(name, error, domain=domain_of(used[0]), advice=self._advice) for name in acting}
        runs |= {name: of_waiting(runs[name]) for name in waiting if runs[name].is_ready}
        runs |= {read.name: of_by_plan(runs[read.name]) for read in used if self._is_by_plan(read, runs.get(read.name))}
        self._tell_first_passes([runs[read.name] for read in used if read.name in runs and not read.dry_run])
        return runs

    def _is_by_plan(self, policy: Policy, run: PolicyRun | None) -> bool:
        """Whether a run was dry because only an approved plan ends what the policy decides on."""
        is_told = run is not None and run.is_ready and run.dry_run and not policy.dry_run
        return is_told and self._gate.policies.needs_plan(domain_of(policy), policy.name)

    async def _waiting(
        self, policies: Sequence[StoredPolicy], acting: Collection[str], *, once: bool = False
    ) -> set[str]:
        """Return which of the policies that would act may not yet: what is new or changed is counted first."""
        guard, reads = self._gate.policies, [read for _, read in policies]
        found: set[str] = set()
        for read in reads:
            domain = domain_of(read)
            if read.name not in acting:
                continue
            if read.dry_run:  # so that its first pass is over when it is meant
                await guard.see(domain, read.name)
            elif not await guard.judge(
                domain, read.name, read.digest, partial(self._count_due, reads, read.name), once=once
            ):
                found.add(read.name)
        return found

    async def _count_due(self, policies: Sequence[Policy], name: str) -> PolicyCount:
        return (await self._new_pass(policies, acting={name}).count())[name]

    async def _prove(self, policies: Sequence[Policy]) -> None:
        for policy in policies:
            await self._gate.policies.prove(domain_of(policy), policy.name)

    def _tell_first_passes(self, runs: Sequence[PolicyRun]) -> None:
        for run in runs:
            ends = self._gate.policies.first_pass_ends(run.domain)
            if run.dry_run and run.deleted and ends is not None:
                reason = f"{_CAUTION} until {to_timestamp(ends)}"
                _log.warning("first_pass_was_dry", policy=run.name, would_delete=run.deleted, reason=reason)

    async def load(self, limits: HistoryLimits = NO_LIMITS) -> LoadedPolicies:
        """Return the policies that there are, and those of the settings that are not published.

        ``limits`` take the place of the history's own.
        """
        return await self._own.load(self._with(limits))

    def _with(self, limits: HistoryLimits) -> Reader:
        (own, *_) = self._own.wanted
        return PolicyOverlay(self._direct, [limits.over(own)]) if limits.are_given else self._direct

    async def _pass(
        self,
        policies: Sequence[Policy],
        *,
        acting: Collection[str],
        labels: Mapping[str, str],
        on_item: Callable[[PassItem], None] = _ignore,
        proceed: Callable[[], bool] = _always,
    ) -> dict[str, PolicyRun]:
        counts = OutcomeCounts()

        def count(item: PassItem) -> None:
            counts.add(item)
            on_item(item)

        reports = await self._new_pass(policies, acting=acting, on_item=count).run(
            labels=labels, proceed=lambda: proceed() and counts.failed_in_a_row < _PATIENCE
        )
        return {
            policy.name: of_report(
                policy.name,
                reports[policy.name],
                domain=domain_of(policy),
                dry_run=policy.dry_run,
                deleted=counts.deleted.get(policy.name, {}),
                problem=counts.last_problem,
                advice=self._advice,
                age_from=str(policy.age_from),
            )
            for policy in policies
            if policy.name in acting
        }

    def _new_pass(
        self, policies: Sequence[Policy], *, acting: Collection[str], on_item: Callable[[PassItem], None] = _ignore
    ) -> Pass:
        return Pass(
            policies,
            direct=self._direct if self._selected is None else self._selected,
            executor=self._executor(self._selected),
            journal=self._journal,
            metrics=self._metrics,
            clock=self._clock,
            left_alone=self._left_alone,
            acting=acting,
            on_item=on_item,
        )

    def _executor(self, store: ObjectStore | None = None) -> Executor:
        return Executor(
            ObjectTarget(self._store if store is None else store, self._holds, trash=self._trash),
            self._journal,
            clock=self._clock,
            metrics=self._metrics,
            actor=self._actor,
            gate=self._gate,
        )

    async def _completed(self, experiment: Experiment) -> ReconcileResult:
        """Pass over the records of one experiment; raises what the store answers, so that it is tried again."""
        loaded = await self.load()
        policies = [one for one in loaded.policies if is_record(one[1])]
        if any(read.name == POLICY_NAME for _, read in policies) and POLICY_NAME not in conflicts(loaded):
            waiting = await self._waiting(policies, {POLICY_NAME})
            used = [replace(read, dry_run=True) if read.name in waiting else read for _, read in policies]
            await self._pass(used, acting={POLICY_NAME}, labels=labels_of(experiment))
        return ReconcileResult()


class RetentionLoop:
    """A `lapse.engine.running.coordinator.Loop`: publishes the policies of the settings, and passes over everything.

    The engine's own loop sleeps until the next deadline, and spreads what is overdue over runs that go on where the
    last one was. A pass has no deadlines, and compares groups that it has read as a whole, so it runs to its end.
    """

    name = "retention"
    domain = RETENTION
    leader_only = True

    def __init__(
        self, retention: Retention, interval: float, *, clock: Clock, metrics: Metrics, chance: Chance
    ) -> None:
        """Pass every ``interval`` seconds."""
        self.interval, self._metrics = interval, metrics
        self._retention, self._clock, self._chance = retention, clock, chance
        self._turn: Turn | None = None

    def begin(self, turn: Turn) -> None:
        """See `lapse.engine.running.coordinator.Steered`."""
        self._turn = turn

    async def tick(self) -> float:
        """Pass; return the seconds to the next time."""
        wait = around(self.interval, chance=self._chance)
        next_run = self._clock.wall_ns() + round(wait * _NS)
        retry = min(wait, _RETRY_SECONDS)
        try:
            await self._retention.publish()
            runs = await self._retention.pass_over(proceed=self._proceed, next_run=UnixNs(next_run))
        except StoreUnavailableError as error:
            _log.warning("retention_postponed", seconds=retry, reason=str(error))
            self._metrics.failed(RETENTION, ErrorKind.TICK)
            return retry
        if any(run.reason is RunReason.STORE_UNAVAILABLE for run in runs.values()):
            return retry
        ends = self._retention.first_pass_ends()
        again = next_run if ends is None else min(next_run, ends)
        return max(0.0, (again - self._clock.wall_ns()) / _NS)

    def _proceed(self) -> bool:
        return self._turn is None or self._turn.proceed()


_WITHDRAWN: Final = "it is a copy of the settings"


def _withdrawal(metadata: ObjectMeta, now: UnixNs) -> Action:
    return Action(
        domain=RETENTION,
        address=RETENTION_POLICY.address(metadata.key),
        uid=metadata.uid,
        version=metadata.resource_version,
        handle=ObjectHandle(
            RETENTION_POLICY,
            metadata.key,
            metadata.owner_references,
            no_trash="the settings say what policies there are",
        ),
        action=DELETE,
        reason=PublishReason.WITHDRAWN,
        since=now,
        anchor_ns=None,
        policy="",
        hold=hold_of(metadata.annotations),
    )


def _leaves_some(run: PolicyRun) -> bool:
    """Whether a later pass may end something of what is left; also where that is not known."""
    gone = 0 if run.dry_run else sum(run.deleted.values())
    return run.matched is None or run.matched > gone + run.kept.get(KeepReason.NO_LIMIT, 0)


def _is_unchosen(stored: StoredPolicy) -> bool:
    """Whether it is the policy of the settings, and no dry run; one that a person has stored was chosen."""
    policy, read = stored
    is_own = not policy.metadata.uid or is_published(policy.metadata)
    return read.name == POLICY_NAME and not read.dry_run and is_own


def _by_kind(loaded: LoadedPolicies) -> list[list[StoredPolicy]]:
    found: dict[tuple[str, str], list[StoredPolicy]] = {}
    for policy, read in loaded.policies:
        found.setdefault((read.api_version, read.kind), []).append((policy, read))
    return list(found.values())
