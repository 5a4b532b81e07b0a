"""Ends what a pass found due, a handful at a time, by the engine's own helper, and tells what came of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lapse.core.address import Address
from lapse.engine.domain import DELETE, Action
from lapse.engine.journal.port import Outcome
from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY
from lapse.kube.resources import ObjectKey
from lapse.objects.target import ObjectHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lapse.core.decision import Due
    from lapse.engine.executor import Executor
    from lapse.history.retention.policy_set import Removal
    from lapse.history.retention.rules import RetainedObject
    from lapse.kube.resources import Kind

HISTORY: Final = "history"
RETENTION: Final = "retention"
"""Domains, as metrics and journal name them."""
_TOGETHER: Final = 64
"""Acts that are handed over at once: as many as one transaction of a sweep has."""


class Told(NamedTuple):
    """What was due, by which policies, and what came of it; the one that decided is the first."""

    address: Address
    entry: RetainedObject
    verdict: Due
    policies: tuple[str, ...]
    outcome: Outcome
    problem: Exception | None = None
    """What was against it, where that was something."""


class Acts:
    """What is to be done next. With nothing added and nothing pending it does nothing."""

    def __init__(
        self,
        kind: Kind[Any],
        executor: Executor,
        *,
        proceed: Callable[[], bool],
        told: Callable[[Told], None],
        most: int,
    ) -> None:
        """Let up to ``most`` be pending; ask ``proceed`` before every handful, and drop what it is against."""
        self._kind, self._executor, self._proceed, self._told, self._most = kind, executor, proceed, told, most
        self._pending: list[Removal] = []
        self._has_ended = False

    async def add(self, settled: Removal) -> None:
        """Have it ended, now or with those that follow."""
        self._pending.append(settled)
        if len(self._pending) >= self._most:
            await self.finish()

    async def finish(self) -> None:
        """End all that is pending."""
        pending, self._pending = self._pending, []
        for start in range(0, len(pending), _TOGETHER):
            if not self._proceed():
                return
            await self._end(pending[start : start + _TOGETHER])

    def has_ended(self) -> bool:
        """Tell whether anything was ended since this was asked before."""
        found, self._has_ended = self._has_ended, False
        return found

    async def _end(self, pending: Sequence[Removal]) -> None:
        actions = [self._action(one) for one in pending]
        for one, action, result in zip(pending, actions, await self._executor.execute(actions), strict=True):
            self._has_ended = self._has_ended or result.outcome is Outcome.ENDED
            for member in one.wanted_by:
                member.came_of_it(result.outcome)
            self._told(Told(action.address, one.entry, one.verdict, one.names, *result))

    def _action(self, settled: Removal) -> Action:
        entry, names = settled.entry, settled.names
        key = ObjectKey(entry.namespace, entry.name)
        return Action(
            domain=domain_of(self._kind),
            address=address(self._kind, key),
            uid=entry.uid,
            version=entry.version,
            handle=ObjectHandle(self._kind, key, entry.owners),
            action=DELETE,
            reason=settled.verdict.reason,
            since=settled.verdict.since,
            anchor_ns=entry.anchor,
            policy=settled.wanted_by[0].policy.digest,
            hold=entry.hold,
            details={"policy": names[0]} if len(names) == 1 else {"policy": names[0], "policies": sorted(names)},
            dry_run=settled.dry_run,
        )


def domain_of(kind: Kind[Any]) -> str:
    """Return the domain that objects of a kind are ended in."""
    # By name: a store that was not told the type of records reads them as any other document.
    is_history = (kind.api_version, kind.kind) == (CHAOS_EXPERIMENT_HISTORY.api_version, CHAOS_EXPERIMENT_HISTORY.kind)
    return HISTORY if is_history else RETENTION


def address(kind: Kind[Any], key: ObjectKey) -> Address:
    """Return where an object of any kind is found."""
    if domain_of(kind) == HISTORY:
        return Address(HISTORY, key.namespace, key.name)
    return Address(f"{kind.kind}.{kind.group}" if kind.group else kind.kind, key.namespace, key.name)
